/* Evaluation: sample answers to held-out problems and grade them. The command and
 * validation in training are this code.
 *
 * avg@n is the mean over problems of the share of right answers among n; its standard
 * error is taken over problems, so that the n answers of one problem do not count as
 * independent. Against a reference model it also estimates the per-token KL(policy ||
 * reference) on the sampled tokens:
 *     k1 = mean d,   k3 = mean (d + exp(-d) - 1),   d = log p(y) - log q(y)
 * Both are unbiased in value at temperature 1 without truncation.
 */
#ifndef KG_EVAL_EVAL_H
#define KG_EVAL_EVAL_H

#include "base/status.h"
#include "model/model.h"
#include "rollout/episode.h"
#include "rollout/rollout.h"
#include "task/prompts.h"
#include "task/task.h"

#include <stdint.h>

struct kg_eval_opts {
    const struct kg_task_row *task;
    const struct kg_task_opts *task_opts;
    struct kg_sampling sampling;
    int32_t samples; /* n of avg@n */
    int32_t max_batch;
    const struct kg_model *reference; /* NULL: no KL */
    struct kg_episodes *episodes; /* answers are episodes; NULL: of one turn; borrowed */
    bool stop_on_signal; /* EINTERRUPTED on SIGINT or SIGTERM; else it is finished */
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
                                     const char *text, struct kg_err *err);

kg_status kg_eval_run(struct kg_eval_result *out, const struct kg_model *m,
                      const struct kg_tokenizer *tok, const struct kg_prompts *prompts,
                      const struct kg_eval_opts *opts, kg_eval_dump_fn dump, void *user,
                      struct kg_err *err) KG_MUST_CHECK;

/* Decode and grade n trajectories of the prompts they name (t->prompt_index is an index
 * into prompts); sets reward and graded of each.   grades (n) out; texts (n) out, each
 * released by the caller, NULL allowed */
kg_status kg_eval_grade(struct kg_grade *grades, struct kg_str *texts,
                        struct kg_traj *trajs, size_t n, const struct kg_tokenizer *tok,
                        const struct kg_prompts *prompts, const struct kg_eval_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;

#endif
