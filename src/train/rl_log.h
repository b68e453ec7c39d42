/* What a step of RL says of itself: sums over its micro-batches, the line of metrics, the
 * dump of its trajectories. */
#ifndef KG_TRAIN_RL_LOG_H
#define KG_TRAIN_RL_LOG_H

#include "train/rl_batch.h"

enum kg_rl_phase {
    KG_PHASE_ROLLOUT,
    KG_PHASE_ANCHOR,
    KG_PHASE_TRAIN,
    KG_PHASE_END,
    KG_PHASE_COUNT
};

struct kg_rl_totals {
    struct kg_policy_metrics metrics; /* over all updates */
    /* of the first update alone: mismatch, on-policy */
    struct kg_policy_metrics first_metrics;
    double loss, pg, kl, entropy; /* means over updates */
    double router;                /* the same of train.router_aux */
    double grad_norm_sum, grad_norm_max, lr;
    int updates;
    bool any;       /* the present update has a gradient */
    bool skipped;   /* a number was not finite */
    double kl_beta; /* coefficient of the step */
    double kl_divisor;
    /* kl.in other than loss: mean over answers of the mean over tokens, and the largest
     * amount that an advantage lost */
    double kl_taken, kl_taken_max;
    double trained_tokens; /* that carry the loss */
    double shared_tokens;  /* that a micro-batch had already: kg_rows_saved */
    double clock[KG_PHASE_COUNT];
};

/* What a part of a micro-batch adds to the totals: bytes, said where it is computed and
 * added wherever the totals are. */
struct kg_rl_terms {
    double loss, pg, kl, entropy;
    double router; /* in loss, and of none of the others */
    double shared; /* tokens that were not computed again */
    int64_t tokens;
    int64_t any; /* 1: it has a gradient */
    struct kg_policy_metrics metrics;
};

void kg_rl_terms_fill(struct kg_rl_terms *terms, const struct kg_policy_grad *grad,
                      const struct kg_policy_batch *batch);
void kg_rl_totals_add(struct kg_rl_totals *t, const struct kg_rl_terms *terms);
void kg_rl_totals_update(struct kg_rl_totals *t, double grad_norm, double lr);

/* metrics.jsonl and the progress line. */
kg_status kg_rl_log(struct kg_run *run, const struct kg_rl_batch *b,
                    const struct kg_rl_totals *t, const struct kg_policy_advantage *a,
                    struct kg_err *err) KG_MUST_CHECK;

/* The line of a step that was skipped before it could train: its counters alone. */
kg_status kg_rl_log_skip(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;

/* RUN/rollouts/step-NNNNNN.jsonl.zst with every trajectory; of a skipped step under
 * skipped-NNNNNN, whatever the config says of dumps. */
kg_status kg_rl_dump(const struct kg_run *run, const struct kg_rl_batch *b, bool skipped,
                     struct kg_err *err) KG_MUST_CHECK;

#endif
