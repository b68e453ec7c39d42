/* Evaluation: samples completions for held-out problems and grades them. Used by the
 * command and by validation in training.
 *
 * A sample is a function of (weights, prompt, sampling, evaluation seed, set name,
 * problem number in its file, sample number). It does not depend on other problems, the
 * batch or earlier draws. The last four determine the seed of the sample
 * (kg_eval_seed), which is also sent to a server.
 *
 * Against a reference model the per-token KL(policy || reference) is estimated on the
 * sampled tokens:
 *     k1 = mean d,   k3 = mean (d + exp(-d) - 1),   d = log p(y) - log q(y)
 * Both are unbiased in value at temperature 1 without truncation.
 */
#ifndef KG_EVAL_EVAL_H
#define KG_EVAL_EVAL_H

#include "base/status.h"
#include "eval/metrics.h"
#include "model/model.h"
#include "ranks/ranks.h"
#include "rollout/episode.h"
#include "rollout/rollout.h"
#include "task/prompts.h"
#include "task/task.h"

#include <stdint.h>

/* The set name of validation in training, and of an evaluation without a suite. */
#define KG_EVAL_SET "val"

struct kg_eval_opts {
    const struct kg_task_row *task;
    const struct kg_task_opts *task_opts;
    struct kg_sampling sampling; /* its rng.seed is the evaluation seed */
    const char *set;             /* NULL: KG_EVAL_SET */
    int32_t samples;             /* n of avg@n */
    int32_t max_batch;
    const struct kg_model *reference; /* NULL: no KL */
    struct kg_rows *rows; /* borrowed: for scoring with the model; NULL: allocated here */
    struct kg_episodes *episodes; /* samples are episodes; NULL: single turns; borrowed */
    /* kg_eval_run: each rank computes a share of the samples, and gets all of them in the
     * end; NULL: a single process; borrowed */
    struct kg_ranks *ranks;
    /* true: a stop signal ends the call with EINTERRUPTED; false: the call ignores stop
     * signals and finishes */
    bool stop_on_signal;
};

struct kg_eval_result {
    int64_t problems;
    int64_t answers;
    double accuracy; /* avg@n, in 0..1 */
    double accuracy_stderr;
    double reward; /* mean */
    double reward_stderr;
    double response_tokens; /* mean */
    double truncated;       /* fraction */
    double ungraded;        /* fraction without a verdict; counted as wrong */
    double entropy; /* mean over sampled tokens, nats, at the sampling temperature */
    double kl_k1;   /* against the reference; 0 without one */
    double kl_k3;
    double seconds;
    struct kg_episode_sums episodes;
};

/* Called for every graded sample in order; NULL allowed. text borrowed. */
typedef kg_status (*kg_eval_dump_fn)(void *user, const struct kg_traj *t,
                                     const struct kg_record *r, const struct kg_grade *g,
                                     const struct kg_str *text, struct kg_err *err);

kg_status kg_eval_run(struct kg_eval_result *out, const struct kg_model *m,
                      const struct kg_tokenizer *tok, const struct kg_prompts *prompts,
                      const struct kg_eval_opts *opts, kg_eval_dump_fn dump, void *user,
                      struct kg_err *err) KG_MUST_CHECK;

/* ---- its parts ---- */

/* The seed of a sample, below 2^52 (exact in JSON): a hash of seed, set and problem, plus
 * the sample's number, so that seeds of one problem are consecutive. problem: the line of
 * its record. The second file of a data set is the set "NAME 2", and so on. */
uint64_t kg_eval_seed(uint64_t seed, const char *set, int64_t problem, int32_t sample);

/* The engine's options; the request for samples first .. first+n-1 of prompt i. */
struct kg_rollout_opts kg_eval_rollout_opts(const struct kg_model *m,
                                            const struct kg_prompts *prompts,
                                            const struct kg_eval_opts *opts);
struct kg_request kg_eval_request(const struct kg_model *m,
                                  const struct kg_prompts *prompts, size_t i,
                                  int32_t first, int32_t n,
                                  const struct kg_eval_opts *opts);
struct kg_sampling kg_eval_sampling(const struct kg_eval_opts *opts);

/* Decodes and grades n trajectories (t->prompt_index is an index into prompts); sets
 * reward, graded, parts and further of each. grades (n) out; texts (n) out, each released
 * by the caller, NULL allowed */
kg_status kg_eval_grade(struct kg_grade *grades, struct kg_str *texts,
                        struct kg_traj *trajs, size_t n, const struct kg_tokenizer *tok,
                        const struct kg_prompts *prompts, const struct kg_eval_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;

/* Computes entropy and KL of n trajectories into answers[i]. reference NULL: no KL; rows:
 * as in struct kg_eval_opts */
kg_status kg_eval_token_sums(struct kg_eval_answer *answers, const struct kg_model *m,
                             const struct kg_model *reference, struct kg_rows *rows,
                             const struct kg_traj *trajs, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;

/* Fills the means that training logs. score: metrics of the (n) answers */
void kg_eval_result_fill(struct kg_eval_result *out, const struct kg_eval_score *score,
                         const struct kg_eval_answer *answers, size_t n);

#endif
