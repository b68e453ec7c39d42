/* What a run takes of memory, item by item, from the shapes of its models and its recipe.
 *
 * One list is what --dry-run prints, what a run is refused by before it takes anything
 * large, and what a test holds against the bytes that were really taken. Models may be
 * outlines: a plan needs no weights, and no device.
 */
#ifndef KG_TRAIN_MEMORY_H
#define KG_TRAIN_MEMORY_H

#include "train/run.h"

enum { KG_MEMORY_ITEMS = 20 };
struct kg_memory_item {
    const char *what;
    struct kg_bytes bytes; /* of two memories; where there is one all is there */
};
struct kg_memory {
    struct kg_memory_item item[KG_MEMORY_ITEMS];
    int n;
    struct kg_bytes sum;
};

/* KG_MEMORY_OPERATIONS is an item of a device: at most so much is taken by operations
 * while they run, by trials of products, which is what a model reserves, and by what the
 * driver loads for them. All else is taken to the byte, but for tables of cache blocks (a
 * few numbers for each sequence of a pack) and frequencies. */
#define KG_MEMORY_OPERATIONS "operations"

/* That item, of products by a model's weights and of rows of its head. */
struct kg_bytes kg_memory_operations(const struct kg_model *m,
                                     const struct kg_rows_opts *rows);

/* A run as the first of n ranks that train would have it, beside those that sample, for
 * the functions here: that rank has the largest cut. Copies of what they read; borrows
 * the run. */
struct kg_memory_plan {
    struct kg_run run;
    struct kg_model model, anchor, sampler;
    struct kg_ranks ranks, all;
};
void kg_run_memory_plan(struct kg_memory_plan *plan, const struct kg_run *run, int n);

/* Of models, recipe, ranks and work->*_opts: nothing else of the run is read. */
void kg_run_memory(struct kg_memory *m, const struct kg_run *run);

/* Against what the device had when the run was opened (work->device_free; 0: there is no
 * device, or its memory is not known).
 * errors: ENOMEM, with both numbers and the keys that would help */
kg_status kg_run_memory_check(const struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;

/* The lines of a plan; of ranks that of one. */
kg_status kg_run_memory_say(struct kg_str *out, const struct kg_run *run,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
