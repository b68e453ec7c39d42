/* The output of an RL step: sums over its micro-batches, the line of metrics, the dump of
 * its trajectories. */
#ifndef KG_TRAIN_RL_LOG_H
#define KG_TRAIN_RL_LOG_H

#include "train/step/rl_batch.h"

enum kg_rl_phase {
    KG_PHASE_ROLLOUT,
    KG_PHASE_ANCHOR,
    KG_PHASE_TRAIN,
    KG_PHASE_END,
    KG_PHASE_COUNT
};

struct kg_rl_totals {
    struct kg_policy_metrics metrics; /* over all updates */
    /* metrics of the first update only: mismatch, on-policy */
    struct kg_policy_metrics first_metrics;
    double loss, pg, kl, entropy; /* means over updates */
    double router;                /* mean over updates of the loss of train.router_aux */
    double grad_norm_sum, grad_norm_max, lr;
    int updates;
    bool any;       /* the current update has a gradient */
    bool skipped;   /* the step was skipped because of a non-finite number */
    double kl_beta; /* coefficient in this step */
    double kl_divisor;
    /* with kl.in other than loss: the KL, mean over samples of the mean over tokens, and
     * the largest amount subtracted from an advantage */
    double kl_taken, kl_taken_max;
    double trained_tokens; /* tokens with a loss */
    double shared_tokens;  /* tokens that sharing saved: kg_rows_saved */
    double clock[KG_PHASE_COUNT];
};

/* Contribution of a part of a micro-batch to the totals, as plain bytes: the rank that
 * computes it appends them, and the rank that has the totals adds them. */
struct kg_rl_terms {
    double loss, pg, kl, entropy;
    double router; /* included in loss, not in the others */
    double shared; /* tokens that sharing saved: kg_rows_saved */
    int64_t tokens;
    int64_t any; /* 1: the part has a gradient */
    struct kg_policy_metrics metrics;
};

void kg_rl_terms_fill(struct kg_rl_terms *terms, const struct kg_policy_grad *grad,
                      const struct kg_policy_batch *batch);
void kg_rl_totals_add(struct kg_rl_totals *t, const struct kg_rl_terms *terms);
void kg_rl_totals_update(struct kg_rl_totals *t, double grad_norm, double lr);

/* Writes the step's line of metrics.jsonl and the progress line. */
kg_status kg_rl_log(struct kg_run *run, const struct kg_rl_batch *b,
                    const struct kg_rl_totals *t, const struct kg_policy_advantage *a,
                    struct kg_err *err) KG_MUST_CHECK;

/* The line of a step that was skipped before training: only its counters. */
kg_status kg_rl_log_skip(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;

/* Writes RUN/rollouts/step-NNNNNN.jsonl.zst with every trajectory; for a skipped step
 * skipped-NNNNNN, even if the config disables dumps. */
kg_status kg_rl_dump(const struct kg_run *run, const struct kg_rl_batch *b, bool skipped,
                     struct kg_err *err) KG_MUST_CHECK;

#endif
