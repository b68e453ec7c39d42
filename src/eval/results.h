/* The folder that an evaluation leaves, and takes up again after any interruption.
 *
 *     config.yaml         the resolved suite
 *     manifest.json       version and hashes of what went in
 *     journal.jsonl       every finished answer, in the order in which they came; goes
 *     samples.jsonl.zst   the same in order: set, problem, sample
 *     problems.jsonl      every problem with its values
 *     results.json        metrics of sets, groups and all; written last
 *
 * A folder without results.json is not finished: the answers of its journal count, what
 * is cut off at its end is dropped. A sample depends on its seed alone, so the last three
 * files have the same bytes whether it was interrupted or not. Nothing in them says when
 * or where.
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

/* Where the line of an answer is: bytes of the journal. */
struct kg_result_place {
    uint64_t at;
    uint64_t n;
};

struct kg_results {
    char *dir; /* owned */
    struct kg_file_lock lock;
    struct kg_file_writer journal;
    bool writing;  /* the journal is open */
    bool complete; /* results.json was there */
};

/* Make the folder, or take it up: then config and inputs must be those it was begun with.
 * inputs: JSON object of data/inputs.h
 * errors: ECONFLICT (another config or other inputs, the difference named; another
 * process at work in it; not a folder of results), EIO */
kg_status kg_results_open(struct kg_results *r, const char *dir,
                          const struct kg_suite *suite, const char *inputs,
                          struct kg_err *err) KG_MUST_CHECK;
void kg_results_close(struct kg_results *r); /* {0} allowed */

/* Every answer that is there, once; then the journal is open for more. A line that does
 * not end, or is no JSON, and all behind it are cut off. */
typedef kg_status (*kg_result_fn)(void *user, const struct kg_json_doc *line,
                                  struct kg_result_place place, struct kg_err *err);
kg_status kg_results_read(struct kg_results *r, kg_result_fn fn, void *user,
                          struct kg_err *err) KG_MUST_CHECK;
/* Add the line of an answer, "{..}\n". */
kg_status kg_results_put(struct kg_results *r, struct kg_result_place *place,
                         const struct kg_str *line, struct kg_err *err) KG_MUST_CHECK;

/* Write the last three files; the journal goes. places (n): every line, in order; a
 * frame of the compressed file ends where the set changes, after ends[i] lines. */
struct kg_results_end {
    const struct kg_result_place *places;
    const size_t *ends; /* (n_ends), rising; the last is the number of places */
    size_t n_ends;
    const struct kg_str *problems;
    const struct kg_str *results;
};
kg_status kg_results_finish(struct kg_results *r, const struct kg_results_end *end,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
