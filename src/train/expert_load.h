/* How tokens are shared out among experts: the load that a step logs, and the loss that
 * evens it (train.router_aux).
 *
 * With N tokens, Lx layers of E experts, n_e the times that expert e was had over tokens
 * and layers, and p the routers' probabilities before the choice of K,
 *
 *     loss = c E sum_e (n_e / (Lx N)) (1 / (Lx N)) sum_{l,t} p[l,t,e]
 *
 * c K where all experts have the same. It is Switch Transformer's loss (Fedus et al.
 * 2021, equation 4) for K of E, over layers and tokens at once: c times what
 * load_balancing_loss_func of transformers gives of the update as one batch without
 * padding.
 *
 * The N tokens are all that an optimizer update reads: prompts, answers and observations
 * of sequences that have any term of the loss (one without is not computed), a token
 * that is read in two contexts twice. A forward over them counts n_e before gradients are
 * made: whole numbers, of all lanes and ranks, so that the loss is of the update and not
 * of its micro-batches. n_e has no gradient; that of p is one row for every token:
 *
 *     dloss/dp[l,t,e] = c E n_e / (Lx N)^2
 *
 * Where experts are replayed (rollout.router_replay) n_e is of these, p the trainer's.
 */
#ifndef KG_TRAIN_EXPERT_LOAD_H
#define KG_TRAIN_EXPERT_LOAD_H

#include "model/rows.h"
#include "ranks/ranks.h"
#include "report/metrics.h"

struct kg_expert_load {
    int32_t layers;  /* Lx; 0: the model has no experts, and nothing is counted */
    int32_t experts; /* E */
    int32_t k;
    int64_t *counts; /* (Lx,E) owned: tokens */
    float *balance;  /* (E) owned: of the loss */
    float *p_sum;    /* (E) owned: scratch */
};

/* errors: ENOMEM */
kg_status kg_expert_load_init(struct kg_expert_load *l, const struct kg_model_config *c,
                              struct kg_err *err) KG_MUST_CHECK;
void kg_expert_load_release(struct kg_expert_load *l);
void kg_expert_load_clear(struct kg_expert_load *l);
/* The tokens of the last forward of p. */
kg_status kg_expert_load_add(struct kg_expert_load *l, const struct kg_rows *p,
                             struct kg_err *err) KG_MUST_CHECK;
/* The counts of all ranks. */
kg_status kg_expert_load_gather(struct kg_expert_load *l, struct kg_ranks *ranks,
                                struct kg_err *err) KG_MUST_CHECK;
/* experts/..; nothing where nothing was counted. */
void kg_expert_load_put(struct kg_metrics *log, const struct kg_expert_load *l);

/* From here on forwards of p that are kept have the loss of these counts with coefficient
 * c, until kg_rows_balance(p, NULL). */
kg_status kg_expert_load_balance(struct kg_expert_load *l, const struct kg_rows *p,
                                 double c, struct kg_err *err) KG_MUST_CHECK;
/* What the tokens of the last forward of p have of it. */
kg_status kg_expert_load_loss(double *loss, struct kg_expert_load *l,
                              const struct kg_rows *p, struct kg_err *err) KG_MUST_CHECK;

#endif
