/* The loss tokens of one RL step: flat arrays with the inputs of the policy mathematics
 * for every sampled token, in order.
 *
 * Only MODEL tokens appear. Arrays are (N) or (N,K) over the loss tokens of all
 * trajectories; trajectory i owns [begin[i], begin[i+1]).
 */
#ifndef KG_TRAIN_RL_BATCH_H
#define KG_TRAIN_RL_BATCH_H

#include "base/columns.h"
#include "train/run.h"
#include "train/step/rank_times.h"

#include <math.h>

/* Counters of dynamic sampling, over all generation batches of the step. */
struct kg_rl_dynamic {
    int64_t batches; /* 0: off */
    int64_t prompts;
    int64_t answers;
    int64_t judged; /* completions with a verdict; reward_sum adds their rewards */
    int64_t correct;
    int64_t all_right, all_wrong; /* prompts */
    int64_t equal;   /* prompts with the same value of the metric for all samples */
    int64_t surplus; /* prompts with differing values, beyond the number needed */
    double reward_sum;
};

struct kg_rl_batch {
    struct kg_traj *trajs;   /* (n_trajs) owned; groups are consecutive */
    struct kg_grade *grades; /* (n_trajs) owned */
    size_t n_trajs;
    /* (n_trajs) owned: 1 for a filtered sample that is kept for its KL only; NULL: none.
     * A group is kept as a whole or not at all */
    uint8_t *drop;
    size_t n_learned;      /* number of samples to learn from */
    struct kg_traj *spare; /* (n_spare) owned: sampled and dumped, not in the batch */
    size_t n_spare;
    int64_t places;      /* prompts that the step took from the epochs */
    struct kg_str begun; /* owned: for the run after this step (train/step/begun.h) */
    struct kg_rl_dynamic dynamic;
    /* (n_trajs) owned: shaped reward of the greedy completion, NaN without a verdict;
     * NULL unless needed */
    double *greedy;
    double greedy_correct;  /* number of correct completions among n_greedy */
    double greedy_ungraded; /* number of those without a verdict */
    size_t n_greedy;
    struct kg_rollout_stats rolled; /* sum over the step's rollouts */
    double sampling_seconds;        /* this rank's sampling time, with grading */
    struct kg_rank_times *times;    /* (n_times) owned: the rollout ranks'; NULL: none */
    int n_times;
    double seconds_idle; /* time in which all waited for tools and nothing decoded */
    struct kg_env_stats tools; /* sum over the step's rollouts, if counted */
    bool tools_counted;
    /* number of forwards over the whole batch before the update: with the anchor's
     * weights, and with the weights of the policy or of its sampler (old log-probs, kept
     * mass, sum of squares) */
    int anchor_passes, own_passes;
    int32_t group; /* samples per prompt */
    /* samples are expected to have a verdict (kg_task_judges); those without one are left
     * out */
    bool judges;
    bool shaped; /* rewards include overlong shaping */
    /* passes read each trajectory as one text, ignoring windows; else each turn in its
     * own context (kg_traj_part) */
    bool whole;
    double whole_tokens; /* tokens computed for old_logp of windows; 0 unless `whole` */

    int64_t *begin;        /* (n_trajs+1) owned */
    int64_t n;             /* N */
    struct kg_block block; /* owned: holds the arrays below */
    int32_t *tokens;
    double *old_logp;    /* denominator of the ratio */
    double *mu_logp;     /* recorded by the sampler */
    double *sum_sq;      /* sum_v p_v^2 of the policy of old_logp; NULL unless needed */
    double *anchor_logp; /* NULL without an anchor */
    double *advantage;
    double *pg_weight;
    double *kl_weight;
    double *entropy_weight;

    /* columns of ids: k_sampler recorded by the sampler, then k_anchor of the anchor's
     * top ids */
    int k_sampler, k_anchor;
    int k;             /* their sum */
    int32_t *ids;      /* (N,k) */
    double *anchor_at; /* (N,k) */
    double *mu_at;     /* (N,k), 0 in the anchor's columns */
    /* (N) kept sets of truncated sampling, borrowed from the trajectories; NULL: not
     * recorded */
    struct kg_idset *kept;
    /* (N) log mass of the kept set under the policy of old_logp; NULL: not recorded */
    double *old_log_kept;
};

static inline bool kg_rl_learns(const struct kg_rl_batch *b, size_t i)
{
    return !b->drop || !b->drop[i];
}

/* True if no verdicts are needed, or if sample i and its greedy completion, if any, have
 * verdicts. */
static inline bool kg_rl_judged(const struct kg_rl_batch *b, size_t i)
{
    return !b->judges || (b->trajs[i].graded && !(b->greedy && isnan(b->greedy[i])));
}

/* Whether trajectory i was sampled in a context other than the one that passes use. */
static inline bool kg_rl_displaced(const struct kg_rl_batch *b, size_t i)
{
    return b->whole && b->trajs[i].n_windows > 0;
}

/* Whether the sample is excluded from the policy loss: by dynamic sampling,
 * algo.mask_truncated, or a missing verdict. */
bool kg_rl_filtered(const struct kg_rl_batch *b, const struct kg_algo *algo, size_t i);
/* Whether the anchor pass includes the sample: not if kl.after_filter excludes its KL. */
bool kg_rl_anchored(const struct kg_rl_batch *b, const struct kg_algo *algo, size_t i);

/* Samples and grades the next prompts of the run: rollout.prompts of them, or with
 * dynamic sampling, enough generation batches to find this many prompts whose samples
 * differ.
 * errors: ENOTFOUND (rollout.max_refills batches were not enough) */
kg_status kg_rl_sample(struct kg_rl_batch *b, const struct kg_run_inputs *in,
                       const struct kg_run_state *state, struct kg_run_work *work,
                       struct kg_err *err) KG_MUST_CHECK;

/* Offline distillation, completions read from a file instead of sampled (answers.c): a
 * step uses the next rollout.prompts lines of the file's epochs. This run's policy did
 * not sample them, so the loss must not depend on the sampled tokens; the recorded
 * log-prob of a token is computed with the current policy, and the ratio is 1. */

/* Reads rollout.data into in->answers; does nothing if the key is empty.
 * errors: those of kg_sft_from_jsonl; EINVAL (a key that needs samples) */
kg_status kg_run_answers_open(struct kg_run_inputs *in, const struct kg_run_state *state,
                              struct kg_err *err) KG_MUST_CHECK;

/* Called instead of kg_rl_sample: reads the batch from in->answers. */
kg_status kg_rl_read_answers(struct kg_rl_batch *b, const struct kg_run_inputs *in,
                             const struct kg_run_state *state, struct kg_run_work *work,
                             struct kg_err *err) KG_MUST_CHECK;

/* If groups are compared by the sum of several rewards: a sample gets no verdict if it
 * lacks a reward that another sample of its group has. A reward that no sample of the
 * group has is ignored. Algorithms that take each reward separately handle missing ones
 * themselves. */
void kg_rl_compare_sums(struct kg_traj *trajs, size_t n, size_t group,
                        const struct kg_run_inputs *in);

/* Flattens the batch, runs the anchor pass, and computes what the recipe needs besides:
 * old log-probs, masses of kept sets, sum_sq. */
kg_status kg_rl_prepare(struct kg_rl_batch *b, const struct kg_run_inputs *in,
                        const struct kg_run_state *state, struct kg_run_work *work,
                        struct kg_err *err) KG_MUST_CHECK;

/* Whether the anchor's rows need a forward pass over the batch. An exact KL is computed
 * in the micro-batches; for the iterative anchor the sampler's records suffice, except
 * for the anchor's own top ids. */
bool kg_rl_asks_anchor(const struct kg_algo *algo, const struct kg_model *anchor);
/* Computes the anchor's rows; called again when the anchor has changed. */
kg_status kg_rl_ask_anchor(struct kg_rl_batch *b, const struct kg_algo *algo,
                           const struct kg_run_state *state, struct kg_run_work *work,
                           struct kg_err *err) KG_MUST_CHECK;

/* Moves the completions begun after this step from b to the state. */
void kg_rl_take_begun(struct kg_run_state *state, struct kg_rl_batch *b);

void kg_rl_batch_release(struct kg_rl_batch *b);

#endif
