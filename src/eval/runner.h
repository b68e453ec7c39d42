/* Runs a suite: gets samples from a source, grades and stores each as it arrives, and
 * computes the metrics.
 *
 * A source samples the problems of a set: the local engine (kg_eval_local) or a server
 * (eval/remote.h). It samples only the missing samples and returns them in any order. So
 * an evaluation can be interrupted and continued at any moment.
 *
 * With ranks, the samples of a set are dealt in rounds: each rank computes and grades its
 * share, and all lines go to rank 0, which stores, counts and reports.
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

/* A new sample. text borrowed: without special tokens, ends before a stop string. */
struct kg_eval_fresh {
    size_t problem; /* index into the set's records */
    int32_t sample;
    const char *text;
    size_t n;
    int64_t tokens;
    enum kg_finish finish;
    const struct kg_eval_answer *sums; /* its token sums if it is scored; else NULL */
    double extra[KG_EVAL_EXTRAS]; /* episodes: turns, finished, calls, invalid, failed */
    /* both NULL for a single turn. The texts of an episode (`text` is the model's part);
     * `take` moves them: {0} afterwards */
    struct kg_episode_text *episode;
    const struct kg_traj *verdict; /* the environment's graded, reward and further */
};
typedef kg_status (*kg_eval_take_fn)(void *user, const struct kg_eval_fresh *fresh,
                                     struct kg_err *err);

struct kg_eval_source {
    /* Loads the set's problems and prepares sampling. */
    kg_status (*prepare)(struct kg_eval_source *self, struct kg_eval_set *set,
                         struct kg_err *err);
    /* Calls `take` once for every sample that is not marked in `there` (problems *
     * samples). */
    kg_status (*answer)(struct kg_eval_source *self, struct kg_eval_set *set,
                        const bool *there, kg_eval_take_fn take, void *user,
                        struct kg_err *err);
    /* Appends the model's identity to the inputs of the manifest. NULL: nothing. */
    kg_status (*put_inputs)(struct kg_eval_source *self, struct kg_str *out,
                            struct kg_err *err);
};

/* ---- the local engine ---- */
struct kg_eval_local {
    struct kg_eval_source source; /* first; filled by kg_eval_local_init */
    const struct kg_model *model; /* borrowed, as all below */
    const struct kg_tokenizer *tok;
    const char *model_dir;
    const char *adapter_dir;          /* adapter folder of model_dir; NULL: none */
    const struct kg_model *reference; /* NULL: no KL */
    const char *reference_dir;        /* of reference */
    int32_t max_batch;
    bool score; /* also compute entropy and KL of the sampled tokens */
};
void kg_eval_local_init(struct kg_eval_local *l);

/* ---- the run ---- */
struct kg_eval_set_report {
    struct kg_eval_score score;
    struct kg_eval_answer *answers; /* (n) owned */
    size_t n;
    /* problems with a sample that reached the model's context length before max_tokens */
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
    struct kg_eval_set *sets;     /* (suite->n) of kg_suite_sets, problems not loaded */
    struct kg_eval_source *source;
    const char *out; /* results folder; NULL: nothing is stored */
    /* without a folder: called for the line of every sample, in order; NULL allowed */
    kg_status (*dump)(void *user, const char *line, size_t n, struct kg_err *err);
    void *user;
    /* all ranks make the same call; only rank 0 uses out and dump; NULL: a single
     * process; borrowed */
    struct kg_ranks *ranks;
};
/* report: on rank 0; stays empty on the others
 * errors: those of the source on any rank; ECONFLICT (the folder belongs to another
 * evaluation) */
kg_status kg_eval_suite(struct kg_eval_report *report, const struct kg_eval_run *run,
                        struct kg_err *err) KG_MUST_CHECK;

/* ---- output of a report ---- */
/* The object of results.json. */
kg_status kg_eval_report_json(struct kg_str *out, const struct kg_eval_report *r,
                              const struct kg_suite *suite,
                              const struct kg_eval_set *sets,
                              struct kg_err *err) KG_MUST_CHECK;
/* "3 of 30 problems have a completion ..."; nothing if none ended early. */
kg_status kg_eval_report_put_cut(struct kg_str *out, const struct kg_eval_set_report *r,
                                 const struct kg_eval_set *set,
                                 struct kg_err *err) KG_MUST_CHECK;
/* Aligned columns for a terminal. */
kg_status kg_eval_report_table(struct kg_str *out, const struct kg_eval_report *r,
                               const struct kg_suite *suite,
                               const struct kg_eval_set *sets,
                               struct kg_err *err) KG_MUST_CHECK;
/* One line per problem: set, problem, id, prompt, ground_truth, metrics. */
kg_status kg_eval_report_problems(struct kg_str *out, const struct kg_eval_report *r,
                                  const struct kg_eval_set *sets,
                                  struct kg_err *err) KG_MUST_CHECK;

#endif
