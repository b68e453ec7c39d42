/* The loss tokens of one RL step: what the policy mathematics needs of every sampled
 * token, flat and in order.
 *
 * Only MODEL tokens appear. Arrays are (N) or (N,K) over the loss tokens of all
 * trajectories; trajectory i owns [begin[i], begin[i+1]).
 */
#ifndef KG_TRAIN_RL_BATCH_H
#define KG_TRAIN_RL_BATCH_H

#include "train/run.h"

struct kg_rl_batch {
    struct kg_traj *trajs;   /* (n_trajs) owned; groups one after the other */
    struct kg_grade *grades; /* (n_trajs) owned */
    size_t n_trajs;
    int32_t group; /* samples of a prompt */
    bool shaped;   /* rewards carry overlong shaping */

    int64_t *begin; /* (n_trajs+1) owned, as all below */
    int64_t n;      /* N */
    int32_t *tokens;
    double *old_logp;    /* what the ratio refers to */
    double *mu_logp;     /* the sampler's record */
    double *anchor_logp; /* NULL without an anchor */
    double *advantage;
    double *pg_weight;
    double *kl_weight;
    double *entropy_weight;

    /* columns of ids: k_sampler that the sampler recorded, then k_anchor of the anchor's
     * own, then k_kept that truncated sampling kept (-1 in unused slots) */
    int k_sampler, k_anchor, k_kept;
    int k;             /* their sum */
    int32_t *ids;      /* (N,k) */
    double *anchor_at; /* (N, k_sampler + k_anchor) */
    double *mu_at;     /* (N, k_sampler + k_anchor), 0 in the anchor's columns */
    /* (N) log mass of the kept ids under the sampling policy; NULL without */
    double *old_log_kept;
};

/* Sample and grade run->rollout.prompts prompts of step count.step + 1. */
kg_status kg_rl_sample(struct kg_rl_batch *b, struct kg_run *run,
                       struct kg_err *err) KG_MUST_CHECK;

/* Flatten, and run the anchor pass and, when asked for, the recomputed old log-probs. */
kg_status kg_rl_prepare(struct kg_rl_batch *b, struct kg_run *run,
                        struct kg_err *err) KG_MUST_CHECK;

/* The anchor's rows again, after it moved. */
kg_status kg_rl_ask_anchor(struct kg_rl_batch *b, struct kg_run *run,
                           struct kg_err *err) KG_MUST_CHECK;

void kg_rl_batch_release(struct kg_rl_batch *b);

#endif
