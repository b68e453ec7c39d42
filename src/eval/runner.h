/* Running a suite: every answer from a source, graded as it comes, kept, and counted.
 *
 * A source answers the problems of a set: the engine of this process (kg_eval_local) or a
 * server (eval/remote.h). What it is asked for are the samples that are not there yet;
 * what it gives, in any order, is graded and kept at once. So an evaluation can be left
 * at any moment and taken up again.
 *
 * Among ranks the answers of a set are dealt in rounds: each rank makes and grades its
 * share, and the lines of all go to the first, which keeps, counts and reports.
 */
#ifndef KG_EVAL_RUNNER_H
#define KG_EVAL_RUNNER_H

#include "base/status.h"
#include "eval/eval.h"
#include "eval/results.h"
#include "eval/suite.h"
#include "ranks/ranks.h"

#include <stdbool.h>
#include <stdint.h>

/* A fresh answer. text borrowed: without special tokens, cut before a stop string. */
struct kg_eval_fresh {
    size_t problem; /* index into the set's records */
    int32_t sample;
    const char *text;
    size_t n;
    int64_t tokens;
    enum kg_finish finish;
    const struct kg_eval_answer *sums; /* its token sums where it is scored; or NULL */
    double
        extra[KG_EVAL_EXTRAS]; /* of episodes: calls, turns, answered, invalid, failed */
    /* of an episode, whose text is what the model wrote; NULL: one turn. Taken over:
     * {0} afterwards */
    struct kg_episode_text *episode;
};
typedef kg_status (*kg_eval_take_fn)(void *user, const struct kg_eval_fresh *fresh,
                                     struct kg_err *err);

struct kg_eval_source {
    /* Load the set's problems and whatever else it needs of them. */
    kg_status (*prepare)(struct kg_eval_source *self, struct kg_eval_set *set,
                         struct kg_err *err);
    /* Give `take` every sample that there (problems * samples) does not mark, once. */
    kg_status (*answer)(struct kg_eval_source *self, struct kg_eval_set *set,
                        const bool *there, kg_eval_take_fn take, void *user,
                        struct kg_err *err);
    /* Append what identifies the model to the inputs of the manifest. NULL: nothing. */
    kg_status (*put_inputs)(struct kg_eval_source *self, struct kg_str *out,
                            struct kg_err *err);
};

/* ---- the engine of this process ---- */
struct kg_eval_local {
    struct kg_eval_source source; /* first; filled by kg_eval_local_init */
    const struct kg_model *model; /* borrowed, as all that follows */
    const struct kg_tokenizer *tok;
    const char *model_dir;
    const char *adapter_dir;          /* of adapters beside its weights; NULL: none */
    const struct kg_model *reference; /* NULL: no KL */
    const char *reference_dir;        /* with it */
    int32_t max_batch;
    bool score; /* entropy and KL of the sampled tokens too */
};
void kg_eval_local_init(struct kg_eval_local *l);

/* ---- the run ---- */
struct kg_eval_set_report {
    struct kg_eval_score score;
    struct kg_eval_answer *answers; /* (n) owned */
    size_t n;
    /* problems with an answer that ended for its length before max_tokens: where the
     * model's positions end */
    int64_t cut_short;
};
struct kg_eval_group_report {
    const char *name; /* borrowed from the suite */
    size_t sets;
    struct kg_eval_score mean;
};
struct kg_eval_report {
    struct kg_eval_set_report *sets; /* (n_sets) owned */
    size_t n_sets;
    struct kg_eval_group_report *groups; /* (n_groups) owned, in order of appearance */
    size_t n_groups;
    struct kg_eval_score mean; /* over the sets */
    double seconds;
};
void kg_eval_report_release(struct kg_eval_report *r); /* {0} allowed */

struct kg_eval_run {
    const struct kg_suite *suite; /* resolved */
    struct kg_eval_set *sets;     /* (suite->n) initialised; problems are loaded here */
    struct kg_eval_source *source;
    const char *out; /* folder of results; NULL: nothing is kept */
    /* without a folder: called for the line of every answer, in order; NULL allowed */
    kg_status (*dump)(void *user, const char *line, size_t n, struct kg_err *err);
    void *user;
    struct kg_ranks *ranks; /* each calls it alike, out and dump act on the first; NULL:
                             * alone; borrowed */
};
/* report: on the first rank; of the others it stays empty
 * errors: those of the source on any rank; ECONFLICT (the folder is of another
 * evaluation) */
kg_status kg_eval_suite(struct kg_eval_report *report, const struct kg_eval_run *run,
                        struct kg_err *err) KG_MUST_CHECK;

/* ---- how a report is written ---- */
/* The object of results.json. */
kg_status kg_eval_report_json(struct kg_str *out, const struct kg_eval_report *r,
                              const struct kg_suite *suite,
                              const struct kg_eval_set *sets,
                              struct kg_err *err) KG_MUST_CHECK;
/* "3 of 30 problems have an answer ..."; nothing where none was cut short. */
kg_status kg_eval_report_put_cut(struct kg_str *out, const struct kg_eval_set_report *r,
                                 const struct kg_eval_set *set,
                                 struct kg_err *err) KG_MUST_CHECK;
/* Aligned columns for a terminal. */
kg_status kg_eval_report_table(struct kg_str *out, const struct kg_eval_report *r,
                               const struct kg_suite *suite,
                               const struct kg_eval_set *sets,
                               struct kg_err *err) KG_MUST_CHECK;
/* One line for each problem: set, problem, id, prompt, ground_truth, metrics. */
kg_status kg_eval_report_problems(struct kg_str *out, const struct kg_eval_report *r,
                                  const struct kg_eval_set *sets,
                                  struct kg_err *err) KG_MUST_CHECK;

#endif
