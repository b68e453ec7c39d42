/* The loss tokens of one RL step: what the policy mathematics needs of every sampled
 * token, flat and in order.
 *
 * Only MODEL tokens appear. Arrays are (N) or (N,K) over the loss tokens of all
 * trajectories; trajectory i owns [begin[i], begin[i+1]).
 */
#ifndef KG_TRAIN_RL_BATCH_H
#define KG_TRAIN_RL_BATCH_H

#include "base/columns.h"
#include "train/rank_times.h"
#include "train/run.h"

#include <math.h>

/* What dynamic sampling saw, over all generation batches of the step. */
struct kg_rl_dynamic {
    int64_t batches; /* 0: it is off */
    int64_t prompts;
    int64_t answers;
    int64_t judged; /* of these: with a verdict, whose rewards reward_sum adds */
    int64_t correct;
    int64_t all_right, all_wrong; /* prompts */
    int64_t equal;                /* prompts without different values of the metric */
    int64_t surplus;              /* prompts with, beyond those that were wanted */
    double reward_sum;
};

struct kg_rl_batch {
    struct kg_traj *trajs;   /* (n_trajs) owned; groups one after the other */
    struct kg_grade *grades; /* (n_trajs) owned */
    size_t n_trajs;
    /* (n_trajs) owned: 1 where an answer that was filtered out is here for its KL alone;
     * NULL: nowhere. A group is here whole or not at all */
    uint8_t *drop;
    size_t n_learned;      /* those that are learned from */
    struct kg_traj *spare; /* (n_spare) owned: sampled, dumped, not in the batch */
    size_t n_spare;
    int64_t places; /* prompts that the step took from the row of epochs */
    struct kg_rl_dynamic dynamic;
    /* (n_trajs) owned: shaped reward of the greedy answer, NaN where it has no verdict;
     * NULL unless needed */
    double *greedy;
    double greedy_correct; /* how many of the n_greedy were */
    double greedy_ungraded;
    size_t n_greedy;
    struct kg_rollout_stats rolled; /* sum over the step's rollouts */
    double sampling_seconds;        /* of this rank, grading too */
    struct kg_rank_times *times; /* (n_times) owned: of the rollout ranks; NULL without */
    int n_times;
    double seconds_idle;       /* all waited for a tool and nothing decoded */
    struct kg_env_stats tools; /* sum over the step's rollouts, where counted */
    bool tools_counted;
    /* forwards over the whole batch before the update: of the anchor's weights, and of
     * the policy's or its sampler's (old log-probs, kept mass, sum of squares) */
    int anchor_passes, own_passes;
    int32_t group; /* samples of a prompt */
    /* answers are expected to have a verdict (kg_task_judges): one without is left out */
    bool judges;
    bool shaped; /* rewards carry overlong shaping */
    /* passes read each trajectory as one text, whatever its turns were sampled from; else
     * every turn in its own context (kg_traj_part) */
    bool whole;
    double
        whole_tokens; /* computed for what old_logp says of windows; 0 unless `whole` */

    int64_t *begin;        /* (n_trajs+1) owned */
    int64_t n;             /* N */
    struct kg_block block; /* owned: what follows stands in it */
    int32_t *tokens;
    double *old_logp;    /* what the ratio refers to */
    double *mu_logp;     /* the sampler's record */
    double *sum_sq;      /* sum_v p_v^2 of the policy of old_logp; NULL unless needed */
    double *anchor_logp; /* NULL without an anchor */
    double *advantage;
    double *pg_weight;
    double *kl_weight;
    double *entropy_weight;

    /* columns of ids: k_sampler that the sampler recorded, then k_anchor of the anchor's
     * own */
    int k_sampler, k_anchor;
    int k;             /* their sum */
    int32_t *ids;      /* (N,k) */
    double *anchor_at; /* (N,k) */
    double *mu_at;     /* (N,k), 0 in the anchor's columns */
    /* (N) what truncated sampling kept, as the trajectories hold it; NULL: nothing is
     * recorded */
    struct kg_idset *kept;
    /* (N) log mass of the kept ids under the sampling policy; NULL without */
    double *old_log_kept;
};

/* The tokens of a part, of which those before its first sampled one may be shared.
 * replay: with the experts that the sampler chose, where they are recorded */
struct kg_rows_seq kg_rl_seq(const struct kg_traj *t, struct kg_traj_part part,
                             bool replay);

static inline bool kg_rl_learns(const struct kg_rl_batch *b, size_t i)
{
    return !b->drop || !b->drop[i];
}

/* Whether a reward is known of the answer, and what it is compared with. */
static inline bool kg_rl_judged(const struct kg_rl_batch *b, size_t i)
{
    return !b->judges || (b->trajs[i].graded && !(b->greedy && isnan(b->greedy[i])));
}

/* Whether what was recorded with it is of another context than passes read it in. */
static inline bool kg_rl_displaced(const struct kg_rl_batch *b, size_t i)
{
    return b->whole && b->trajs[i].n_windows > 0;
}

/* Whether the answer is out of the policy's loss: by dynamic sampling, by
 * algo.mask_truncated, or for want of a verdict. */
bool kg_rl_filtered(const struct kg_rl_batch *b, const struct kg_algo *algo, size_t i);
/* Whether the anchor is asked about the answer: not where kl.after_filter leaves its KL
 * out of the loss. */
bool kg_rl_anchored(const struct kg_rl_batch *b, const struct kg_algo *algo, size_t i);

/* Sample and grade the next prompts of the run: rollout.prompts of them, or as many
 * generation batches as it takes to find so many whose answers differ.
 * errors: ENOTFOUND (rollout.max_refills batches were not enough) */
kg_status kg_rl_sample(struct kg_rl_batch *b, const struct kg_run_inputs *in,
                       const struct kg_run_state *state, struct kg_run_work *work,
                       struct kg_err *err) KG_MUST_CHECK;

/* Several rewards, whose sums are compared within a group: an answer has no verdict where
 * it lacks a reward that another one has. A reward that none has is not of this prompt.
 * Rows that take each reward by itself see which is missing. */
void kg_rl_compare_sums(struct kg_traj *trajs, size_t n, size_t group,
                        const struct kg_run_inputs *in);

/* Flatten, and run the anchor pass and, when asked for, the recomputed old log-probs. */
kg_status kg_rl_prepare(struct kg_rl_batch *b, const struct kg_run_inputs *in,
                        const struct kg_run_state *state, struct kg_run_work *work,
                        struct kg_err *err) KG_MUST_CHECK;

/* Whether the anchor's rows are made by a forward pass over what was sampled. An exact KL
 * reads it in the micro-batches; of the iterative anchor the record says it, but for its
 * own largest ids. */
bool kg_rl_asks_anchor(const struct kg_algo *algo, const struct kg_model *anchor);
/* The anchor's rows, and again after it moved. */
kg_status kg_rl_ask_anchor(struct kg_rl_batch *b, const struct kg_algo *algo,
                           const struct kg_run_state *state, struct kg_run_work *work,
                           struct kg_err *err) KG_MUST_CHECK;

void kg_rl_batch_release(struct kg_rl_batch *b);

#endif
