/* The load of experts: the metrics that a step logs, and the load-balancing loss
 * (train.router_aux).
 *
 * N tokens, Lx layers of E experts; n_e is the number of uses of expert e over tokens and
 * layers, p the routers' probabilities before the top K are chosen:
 *
 *     loss = c E sum_e (n_e / (Lx N)) (1 / (Lx N)) sum_{l,t} p[l,t,e]
 *
 * The loss is c K if all loads are equal. This is Switch Transformer's loss (Fedus et al.
 * 2021, equation 4) for K of E, over all layers and tokens together: c times
 * load_balancing_loss_func of transformers for the update as one batch without padding.
 *
 * The N tokens are all tokens that an optimizer update computes: prompts, completions and
 * observations of sequences with a term in the loss; a token in two contexts counts
 * twice. A forward over all lanes and ranks counts n_e before gradients are computed, so
 * the loss is computed for the update, not for its micro-batches. n_e has no gradient;
 * the gradient of p is the same for all tokens:
 *
 *     dloss/dp[l,t,e] = c E n_e / (Lx N)^2
 *
 * With rollout.router_replay, n_e counts the replayed experts; p is computed by the
 * trainer.
 */
#ifndef KG_TRAIN_EXPERT_LOAD_H
#define KG_TRAIN_EXPERT_LOAD_H

#include "model/rows.h"
#include "ranks/ranks.h"
#include "report/metrics.h"

struct kg_expert_load {
    int32_t layers;  /* Lx; 0: no experts, nothing is counted */
    int32_t experts; /* E */
    int32_t k;
    int64_t *counts; /* (Lx,E) owned: tokens */
    float *balance;  /* (E) owned: coefficients of the loss */
    float *p_sum;    /* (E) owned: scratch */
};

/* errors: ENOMEM */
kg_status kg_expert_load_init(struct kg_expert_load *l, const struct kg_model_config *c,
                              struct kg_err *err) KG_MUST_CHECK;
void kg_expert_load_release(struct kg_expert_load *l);
void kg_expert_load_clear(struct kg_expert_load *l);
/* Adds the tokens of p's last forward. */
kg_status kg_expert_load_add(struct kg_expert_load *l, const struct kg_rows *p,
                             struct kg_err *err) KG_MUST_CHECK;
/* Sums the counts of all ranks. */
kg_status kg_expert_load_gather(struct kg_expert_load *l, struct kg_ranks *ranks,
                                struct kg_err *err) KG_MUST_CHECK;
/* Logs experts/..; nothing if nothing was counted. */
void kg_expert_load_put(struct kg_metrics *log, const struct kg_expert_load *l);

/* Later forwards of p that are kept for a backward include the loss of these counts with
 * coefficient c, until kg_rows_balance(p, NULL). */
kg_status kg_expert_load_balance(struct kg_expert_load *l, const struct kg_rows *p,
                                 double c, struct kg_err *err) KG_MUST_CHECK;
/* *loss <- the part of this loss that comes from p's last forward. */
kg_status kg_expert_load_loss(double *loss, struct kg_expert_load *l,
                              const struct kg_rows *p, struct kg_err *err) KG_MUST_CHECK;

#endif
