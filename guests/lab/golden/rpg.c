/* Family rpg_loss: the kinds alone, the differentiable loss, and the score-function
 * style. The same divergence gives a loss whose gradient flows through the ratio, and one
 * whose weight is a constant factor of the log-prob; they are different rows of kedge's
 * table. A released kind becomes a row's name by rule, so a forgotten kind cannot be
 * judged by the row of another. */
#include "lab/golden/golden_internal.h"

#include <stdio.h>

enum { ROW_BYTES = 64 };

/* The policy row of a released kind: rpg_rf_ufkl_clip_ppo -> rpg-rf-ufkl-clip-ppo. */
static kg_status released_row(char row[ROW_BYTES], const struct kg_golden_case *g,
                              struct kg_err *err)
{
    struct kg_err unknown;
    const char *kind;

    KG_TRY(kg_golden_text(&kind, g, "kl_type", err));
    snprintf(row, ROW_BYTES, "%s", kind);
    for (char *c = row; *c; c++)
        *c = *c == '_' ? '-' : *c;
    if (!kg_policy_find(KG_TABLE_SURROGATE, row, &unknown))
        return kg_fail(err, KG_EUNSUPPORTED,
                       "config.kl_type: '%s' is not one of the released kinds", kind);
    return KG_OK;
}

static kg_status start(struct kg_golden_batch *e, struct kg_golden_reduction *how,
                       struct kg_golden_case *g, struct kg_err *err)
{
    KG_TRY(kg_golden_start(e, g, err));
    KG_TRY(kg_golden_text(&how->mode, g, "loss_agg_mode", err));
    KG_TRY(kg_algo_set(&e->algo, "algo.aggregate", how->mode, err));
    KG_TRY(kg_algo_set(&e->algo, "kl.importance", "false", err));
    how->variant = "rpg";
    return kg_golden_clips(e, err);
}

static kg_status finish(struct kg_golden_batch *e, struct kg_golden_reduction *how,
                        struct kg_err *err)
{
    const struct kg_policy_metrics *m = &e->grad.metrics;
    double n = (double)e->b.n_tokens + 1e-8;

    how->rows = (double)e->B, how->width = (double)e->T;
    e->scale = kg_golden_totals(&e->totals, how);
    KG_TRY(kg_golden_finish(e, err));
    KG_TRY(kg_golden_expect_tokens(e, "expected", "entropy", e->b.entropy, 1, err));
    KG_TRY(kg_golden_metric(e->g, "actor/pg_clipfrac", (double)m->clips / n, err));
    KG_TRY(kg_golden_metric(e->g, "actor/pg_clipfrac_lower", (double)m->clips_lower / n,
                            err));
    KG_TRY(kg_golden_metric(e->g, "actor/ppo_kl", m->k1_sum / n, err));
    KG_TRY(kg_golden_metric(e->g, "actor/pg_loss", e->grad.pg, err));
    KG_TRY(kg_golden_metric(e->g, "actor/kl_loss", e->grad.kl, err));
    KG_TRY(kg_golden_expect(e->g, "pg_clipfrac", (double)m->clips / n, err));
    KG_TRY(kg_golden_expect(e->g, "pg_clipfrac_lower", (double)m->clips_lower / n, err));
    return kg_golden_expect(e->g, "ppo_kl", m->k1_sum / n, err);
}

static kg_status dual_clip(struct kg_golden_case *g, struct kg_err *err)
{
    struct kg_golden_reduction how = {0};
    struct kg_golden_batch e;
    bool iterative;

    KG_TRY(start(&e, &how, g, err));
    KG_TRY(kg_golden_estimator(&e, "kl_loss_type", err));
    KG_TRY(kg_golden_bool(&iterative, g, "use_iterative_ref_model", err));
    if (iterative)
        KG_TRY(kg_algo_set(&e.algo, "anchor.kind", "iterative", err));
    e.algo.ratio_clamp = 0;
    KG_TRY(kg_golden_real(&e.algo.kl_beta, g, "kl_loss_coef", 0, err));
    KG_TRY(kg_golden_real(&e.algo.entropy_coef, g, "entropy_coeff", 0, err));
    KG_TRY(kg_golden_load(&e, 0, 0, err));
    if (iterative)
        e.b.anchor_logp = NULL;
    KG_TRY(finish(&e, &how, err));
    return kg_golden_expect_tokens(&e, "expected", "kl_token", e.grad.kl_term, 1, err);
}

static kg_status kind(struct kg_golden_case *g, struct kg_err *err)
{
    struct kg_golden_batch e;

    KG_TRY(kg_golden_start(&e, g, err));
    KG_TRY(kg_golden_estimator(&e, "estimator", err));
    KG_TRY(kg_algo_set(&e.algo, "kl.importance", "false", err));
    e.algo.kl_beta = 1;
    KG_TRY(kg_golden_load(&e, 0, 0, err));
    e.totals.tokens += 1e-8;
    return kg_golden_kl_finish(&e, "kl_token", err);
}

static kg_status score_function(struct kg_golden_case *g, struct kg_err *err)
{
    struct kg_golden_reduction how = {0};
    struct kg_golden_batch e;
    char row[ROW_BYTES];

    KG_TRY(released_row(row, g, err));
    KG_TRY(start(&e, &how, g, err));
    KG_TRY(kg_algo_set(&e.algo, "algo.surrogate", row, err));
    KG_TRY(kg_golden_need_real(&e.algo.kl_beta, g, "beta", err));
    KG_TRY(kg_golden_load(&e, 0, 0, err));
    return finish(&e, &how, err);
}

kg_status kg_golden_rpg_loss(struct kg_golden_case *g, struct kg_err *err)
{
    if (kg_golden_at(g, "config", "kl_type"))
        return score_function(g, err);
    if (kg_golden_at(g, "config", "estimator"))
        return kind(g, err);
    return dual_clip(g, err);
}
