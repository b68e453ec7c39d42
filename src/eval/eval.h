/* Evaluation: sample answers to held-out problems and grade them. The command and
 * validation in training are this code.
 *
 * A sample is a function of (weights, prompt, sampling, seed of the evaluation, name of
 * the set, number of the problem in its file, number of the sample): not of the other
 * problems, of the batch, or of what was drawn before. The last four make one number, the
 * seed of the sample (kg_eval_seed), which is also what a server is sent.
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

/* The name of the set that training validates on, and of the only set of an evaluation
 * without a suite. */
#define KG_EVAL_SET "val"

struct kg_eval_opts {
    const struct kg_task_row *task;
    const struct kg_task_opts *task_opts;
    struct kg_sampling sampling; /* its rng.seed is the seed of the evaluation */
    const char *set;             /* NULL: KG_EVAL_SET */
    int32_t samples;             /* n of avg@n */
    int32_t max_batch;
    const struct kg_model *reference; /* NULL: no KL */
    struct kg_rows *rows; /* borrowed: to score with, of the model; NULL: its own */
    struct kg_episodes *episodes; /* answers are episodes; NULL: of one turn; borrowed */
    struct kg_ranks *ranks; /* kg_eval_run: each makes a share of the answers, and has all
                             * of them in the end; NULL: alone; borrowed */
    bool stop_on_signal;    /* EINTERRUPTED on a stop signal; else it is finished */
};

struct kg_eval_result {
    int64_t problems;
    int64_t answers;
    double accuracy; /* avg@n, in 0..1 */
    double accuracy_stderr;
    double reward; /* mean */
    double reward_stderr;
    double response_tokens; /* mean */
    double truncated;       /* share */
    double ungraded;        /* share that could not be graded; counted as wrong */
    double entropy; /* mean over sampled tokens, nats, at the sampling temperature */
    double kl_k1;   /* to the reference; 0 without */
    double kl_k3;
    double seconds;
    struct kg_episode_sums episodes;
};

/* Called for every graded answer in order; NULL allowed. text borrowed. */
typedef kg_status (*kg_eval_dump_fn)(void *user, const struct kg_traj *t,
                                     const struct kg_record *r, const struct kg_grade *g,
                                     const struct kg_str *text, struct kg_err *err);

kg_status kg_eval_run(struct kg_eval_result *out, const struct kg_model *m,
                      const struct kg_tokenizer *tok, const struct kg_prompts *prompts,
                      const struct kg_eval_opts *opts, kg_eval_dump_fn dump, void *user,
                      struct kg_err *err) KG_MUST_CHECK;

/* ---- its parts ---- */

/* The seed of a sample, below 2^52 (exact in JSON): a hash of the first three and the
 * sample's number, so that those of a problem follow each other.   problem: its
 * record's line. The second file of a data set is a set "NAME 2", and so on. */
uint64_t kg_eval_seed(uint64_t seed, const char *set, int64_t problem, int32_t sample);

/* What the engine is made and asked for: samples first.. of prompt i. */
struct kg_rollout_opts kg_eval_rollout_opts(const struct kg_model *m,
                                            const struct kg_prompts *prompts,
                                            const struct kg_eval_opts *opts);
struct kg_request kg_eval_request(const struct kg_model *m,
                                  const struct kg_prompts *prompts, size_t i,
                                  int32_t first, int32_t n,
                                  const struct kg_eval_opts *opts);
struct kg_sampling kg_eval_sampling(const struct kg_eval_opts *opts);

/* Decode and grade n trajectories of the prompts they name (t->prompt_index is an index
 * into prompts); sets reward and graded of each.   grades (n) out; texts (n) out, each
 * released by the caller, NULL allowed */
kg_status kg_eval_grade(struct kg_grade *grades, struct kg_str *texts,
                        struct kg_traj *trajs, size_t n, const struct kg_tokenizer *tok,
                        const struct kg_prompts *prompts, const struct kg_eval_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;

/* Entropy and KL of n trajectories into answers[i].   reference NULL: no KL; rows as
 * those of struct kg_eval_opts */
kg_status kg_eval_token_sums(struct kg_eval_answer *answers, const struct kg_model *m,
                             const struct kg_model *reference, struct kg_rows *rows,
                             const struct kg_traj *trajs, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;

/* The means that training logs.   score: of the answers (n) */
void kg_eval_result_fill(struct kg_eval_result *out, const struct kg_eval_score *score,
                         const struct kg_eval_answer *answers, size_t n);

#endif
