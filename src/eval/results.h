/* The folder of an evaluation, from which it continues after any interruption.
 *
 *     config.yaml         the resolved suite
 *     manifest.json       version and hashes of the inputs
 *     journal.jsonl       every sample, in the order in which they finished; removed at
 *                         the end
 *     samples.jsonl.zst   the same, sorted by set, problem and sample
 *     problems.jsonl      every problem with its values
 *     results.json        metrics of sets, groups and all sets; written last
 *
 * A folder without results.json is unfinished: the samples in its journal are kept, and
 * an incomplete last line is dropped. A sample depends only on its seed, so the last
 * three files have the same bytes with and without interruption. They contain no times,
 * hosts or paths.
 */
#ifndef KG_EVAL_RESULTS_H
#define KG_EVAL_RESULTS_H

#include "base/file.h"
#include "base/status.h"
#include "base/str.h"
#include "data/json.h"
#include "eval/suite.h"

#include <stdbool.h>
#include <stdint.h>

/* Where a sample's line is in the journal: offset and length in bytes. */
struct kg_result_place {
    uint64_t at;
    uint64_t n;
};

struct kg_results {
    char *dir; /* owned */
    struct kg_file_lock lock;
    struct kg_file_writer journal;
    bool writing;  /* the journal is open */
    bool complete; /* results.json exists */
};

/* Creates the folder, or continues it if config and inputs are the same. inputs: JSON
 * object of data/inputs.h
 * errors: ECONFLICT (another config or other inputs, names the difference; another
 * process is using it; not a folder of results), EIO */
kg_status kg_results_open(struct kg_results *r, const char *dir,
                          const struct kg_suite *suite, const char *inputs,
                          struct kg_err *err) KG_MUST_CHECK;
void kg_results_close(struct kg_results *r); /* {0} allowed */

/* Calls fn for every sample in the journal, then opens the journal for more. A line that
 * is incomplete or not JSON is removed, with all lines after it. In a complete folder, fn
 * is called for the lines of samples.jsonl.zst, with place {0}. */
typedef kg_status (*kg_result_fn)(void *user, const struct kg_json_doc *line,
                                  struct kg_result_place place, struct kg_err *err);
kg_status kg_results_read(struct kg_results *r, kg_result_fn fn, void *user,
                          struct kg_err *err) KG_MUST_CHECK;
/* Appends the line of a sample, "{..}\n". */
kg_status kg_results_put(struct kg_results *r, struct kg_result_place *place,
                         const struct kg_str *line, struct kg_err *err) KG_MUST_CHECK;

/* Writes the last three files and removes the journal. places (n): every line, in order;
 * a frame of the compressed file ends where the set changes, after ends[i] lines. */
struct kg_results_end {
    const struct kg_result_place *places;
    const size_t *ends; /* (n_ends), increasing; the last is the number of places */
    size_t n_ends;
    const struct kg_str *problems;
    const struct kg_str *results;
};
kg_status kg_results_finish(struct kg_results *r, const struct kg_results_end *end,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
