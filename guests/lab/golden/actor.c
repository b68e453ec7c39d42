/* Family ema_actor_loss: the whole EMA-PG loss, in one or more micro-batches, with
 * gradients of logits, so that a mistake in any factor shows. There are two published
 * trees: one reduces by several rules, clamps the ratio, and logs losses with the weight
 * of the micro-batch; the other has token means only. A case names its tree; comments
 * next to the numbers explain the deviations of a tree. */
#include "lab/golden/golden_internal.h"

#include <string.h>

/* *math: the mathematics tree, which has several reductions; the other has token means */
static kg_status is_math(bool *math, const struct kg_golden_case *g, struct kg_err *err)
{
    const char *name = kg_json_text(kg_json_get(g->json, "name"), NULL), *mode;

    KG_TRY(kg_golden_text(&mode, g, "loss_agg_mode", err));
    *math = (name && strncmp(name, "math/", 5) == 0) || *mode;
    return KG_OK;
}

static kg_status estimator(struct kg_golden_batch *e, struct kg_err *err)
{
    bool topk = kg_golden_at(e->g, "config", "kl_topk_tokens") != NULL, forward;
    const char *kl;

    KG_TRY(kg_golden_text(&kl, e->g, "kl_loss_type", err));
    forward = strcmp(kl, "full_forward") == 0;
    if (!forward && strcmp(kl, "full_reverse") != 0)
        return kg_golden_estimator(e, "kl_loss_type", err);
    if (topk)
        return kg_algo_set(&e->algo, "kl.estimator",
                           forward ? "topk-forward" : "topk-reverse", err);
    return kg_algo_set(&e->algo, "kl.estimator",
                       forward ? "exact-forward" : "exact-reverse", err);
}

static kg_status options(struct kg_golden_batch *e, bool math, const char *mode,
                         struct kg_err *err)
{
    struct kg_algo *a = &e->algo;

    KG_TRY(kg_golden_clips(e, err));
    if (!math)
        a->dual_clip = 0;
    a->ratio_clamp = math ? 20 : 0;
    KG_TRY(estimator(e, err));
    KG_TRY(kg_algo_set(a, "kl.gradient", "published", err));
    KG_TRY(kg_algo_set(a, "algo.aggregate", math ? mode : "token-mean", err));
    KG_TRY(kg_golden_bool(&a->kl_tail, e->g, "kl_tail", err));
    KG_TRY(kg_golden_importance(e, err));
    KG_TRY(kg_golden_real(&a->kl_beta, e->g, "kl_loss_coef", 0, err));
    return kg_golden_real(&a->entropy_coef, e->g, "entropy_coeff", 0, err);
}

static kg_status metrics(struct kg_golden_batch *e, struct kg_golden_part part, bool math,
                         struct kg_err *err)
{
    const struct kg_policy_metrics *m = &e->grad.metrics;
    double n = (double)e->b.n_tokens + (math ? 1e-8 : 0);
    /* the mathematics tree logs losses with the weight of the micro-batch */
    double share = math ? 1 / (double)part.n : 1;
    struct kg_golden_case *g = e->g;

    KG_TRY(kg_golden_metric_of(g, "actor/pg_clipfrac", part, (double)m->clips / n, err));
    if (!math || m->gap_max <= e->algo.ratio_clamp) /* the published value is clamped */
        KG_TRY(kg_golden_metric_of(g, "actor/ppo_kl", part, m->k1_sum / n, err));
    KG_TRY(kg_golden_metric_of(g, "actor/pg_loss", part, share * e->grad.pg, err));
    return kg_golden_metric_of(g, "actor/kl_loss", part, share * e->grad.kl, err);
}

static kg_status micro_batch(struct kg_golden_batch *e, struct kg_golden_part part,
                             bool math, struct kg_err *err)
{
    struct kg_golden_reduction how = {.variant = math ? "ema-math" : ""};
    double std;

    KG_TRY(kg_golden_text(&how.mode, e->g, "loss_agg_mode", err));
    KG_TRY(kg_golden_real(&std, e->g, "adv_batch_std", 0, err));
    KG_TRY(options(e, math, how.mode, err));
    KG_TRY(kg_golden_load(e, part.i * part.rows, part.rows, err));
    const char *row = kg_algo_row_name(&e->algo, KG_TABLE_KL);
    if (strncmp(row, "topk-", 5) == 0) {
        KG_TRY(
            kg_golden_columns(e, "topk_indices", strcmp(row, "topk-forward") == 0, err));
        e->algo.kl_top_k = (int)e->rows.k;
    }
    e->b.kl_divisor = kg_golden_at(e->g, "config", "adv_batch_std") ? std + 1e-6 : 0;
    how.rows = (double)e->B, how.width = (double)e->T;
    if (math)
        e->scale = kg_golden_totals(&e->totals, &how);
    return kg_golden_run(e, true, err);
}

/* part: the first micro-batch; the number of micro-batches must divide the rows. */
static kg_status split(struct kg_golden_part *part, struct kg_golden_case *g,
                       int64_t rows, struct kg_err *err)
{
    double n;

    KG_TRY(kg_golden_real(&n, g, "micro_batches", 1, err));
    part->i = 0;
    part->n = n >= 1 && n <= (double)rows ? (int64_t)n : 1;
    part->rows = rows / part->n;
    if ((double)part->n != n || rows % part->n != 0)
        return kg_fail(err, KG_EFORMAT,
                       "config.micro_batches: expected a divisor of %lld rows, found %g",
                       (long long)rows, n);
    return KG_OK;
}

/* One micro-batch; its gradient is added to dlogits, its share of the loss to *loss. */
static kg_status part_of(double *loss, struct kg_golden_batch *e, double *dlogits,
                         struct kg_golden_part part, struct kg_err *err)
{
    double share = 1 / (double)part.n;
    bool math;

    KG_TRY(is_math(&math, e->g, err));
    KG_TRY(micro_batch(e, part, math, err));
    e->dlogits = dlogits;
    *loss += share * e->grad.loss;
    KG_TRY(kg_golden_expect_tokens(e, "expected", "kl_token_scaled", e->grad.kl_term, 1,
                                   err));
    KG_TRY(kg_golden_expect_tokens(e, "grad", "log_prob", e->grad.a_logp, share, err));
    KG_TRY(kg_golden_expect_tokens(e, "expected", "entropy", e->b.entropy, 1, err));
    KG_TRY(kg_golden_expect_tokens(e, "expected", "log_prob", e->b.logp, 1, err));
    KG_TRY(kg_golden_backward(e, share, err));
    return metrics(e, part, math, err);
}

kg_status kg_golden_actor_loss(struct kg_golden_case *g, struct kg_err *err)
{
    struct kg_golden_array z;
    struct kg_golden_batch e;
    struct kg_golden_part part;
    double loss = 0, *dlogits;

    KG_TRY(
        kg_golden_input(&z, g, "logits", (struct kg_golden_shape){3, {-1, -1, -1}}, err));
    KG_TRY(split(&part, g, z.d[0], err));
    KG_TRY(kg_golden_reals(&dlogits, g, z.n, err));
    for (; part.i < part.n; part.i++) {
        KG_TRY(kg_golden_start(&e, g, err));
        KG_TRY(part_of(&loss, &e, dlogits, part, err));
    }
    KG_TRY(kg_golden_expect(g, "loss", loss, err));
    return kg_golden_expect_logits(&e, err);
}
