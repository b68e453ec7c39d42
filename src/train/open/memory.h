/* The memory of a run, item by item, from the shapes of its models and its recipe.
 *
 * --dry-run prints this list. A run whose list does not fit the device refuses to start,
 * before it allocates anything large. A test compares the list with the bytes actually
 * allocated. Models may be outlines, so a plan needs no weights and no device.
 */
#ifndef KG_TRAIN_MEMORY_H
#define KG_TRAIN_MEMORY_H

#include "train/run.h"

enum { KG_MEMORY_ITEMS = 20 };
struct kg_memory_item {
    const char *what;
    struct kg_bytes bytes; /* on device and host; without a device only the sum counts */
};
struct kg_memory {
    struct kg_memory_item item[KG_MEMORY_ITEMS];
    int n;
    struct kg_bytes sum;
};

/* KG_MEMORY_OPERATIONS is an item on devices: an upper bound for the memory of running
 * operations, of trials of products (reserved by the model), and of code loaded by the
 * driver. "recorded experts" is an upper bound too. All other items are exact, but omit
 * tables of cache blocks (a few numbers per sequence of a pack) and frequencies. */
#define KG_MEMORY_OPERATIONS "operations"

/* The item KG_MEMORY_OPERATIONS, for products with a model's weights and rows of its
 * head. */
struct kg_bytes kg_memory_operations(const struct kg_model *m,
                                     const struct kg_rows_opts *rows);

/* A copy of a run for the functions here. It stands for the first of n trainer ranks,
 * which has the largest shard; rollout ranks are not among the n. Borrows the run. */
struct kg_memory_plan {
    struct kg_run run;
    struct kg_model model, anchor, sampler;
    struct kg_ranks ranks, all;
};
void kg_run_memory_plan(struct kg_memory_plan *plan, const struct kg_run *run, int n);

/* Reads models, options, ranks and work->index_bytes; the run may be an outline. */
void kg_run_memory(struct kg_memory *m, const struct kg_run *run);

/* Compares the sum with the device's free memory when the run was opened
 * (work->device_free; 0: no device, or unknown).
 * errors: ENOMEM, with both numbers and the keys that would help */
kg_status kg_run_memory_check(const struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;

/* Appends the lines of a plan; with several ranks, the memory of one of them. */
kg_status kg_run_memory_say(struct kg_str *out, const struct kg_run *run,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
