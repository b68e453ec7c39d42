/* Family policy_losses: surrogates from logits, so that softmax, choice of the token and
 * mask are checked too, with a gradient for every logit. If the published code clamps a
 * log-ratio before logging it, that metric is compared only within the clamp. One mode
 * draws a random subset of tokens, which cannot be reproduced: such cases are skipped.
 */
#include "lab/golden/golden_internal.h"

#include <string.h>

static const struct kg_golden_name modes[] = {
    {"vanilla", "ppo-clip"}, {"gpg", "gpg"},           {"cispo", "cispo"},
    {"gspo", "gspo"},        {"sapo", "sapo"},         {"geo_mean", "gmpo"},
    {"kl_cov", "kl-cov"},    {"clip_cov", "clip-cov"}, {NULL, NULL},
};

static bool by_sequence(const char *mode)
{
    return strcmp(mode, "gspo") == 0 || strcmp(mode, "sapo") == 0 ||
           strcmp(mode, "geo_mean") == 0;
}

static kg_status numbers(struct kg_golden_batch *e, const char *mode, struct kg_err *err)
{
    struct kg_algo *a = &e->algo;

    if (strcmp(mode, "gpg") == 0)
        return KG_OK;
    if (strcmp(mode, "sapo") == 0) {
        KG_TRY(kg_golden_need_real(&a->tau_pos, e->g, "tau_pos", err));
        return kg_golden_need_real(&a->tau_neg, e->g, "tau_neg", err);
    }
    if (strcmp(mode, "kl_cov") == 0) {
        KG_TRY(kg_golden_need_real(&a->cov_ratio, e->g, "kl_cov_ratio", err));
        return kg_golden_need_real(&a->cov_coef, e->g, "ppo_kl_coef", err);
    }
    KG_TRY(kg_golden_clips(e, err));
    if (strcmp(mode, "clip_cov") != 0)
        return KG_OK;
    a->dual_clip = 0;
    KG_TRY(kg_golden_need_real(&a->cov_ratio, e->g, "clip_cov_ratio", err));
    KG_TRY(kg_golden_need_real(&a->cov_low, e->g, "clip_cov_lb", err));
    KG_TRY(kg_golden_need_real(&a->cov_high, e->g, "clip_cov_ub", err));
    if (a->cov_ratio < 1)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "config.clip_cov_ratio %g: the reference draws a random subset",
                       a->cov_ratio);
    return KG_OK;
}

static kg_status clip_fractions(struct kg_golden_batch *e, struct kg_err *err)
{
    const struct kg_policy_metrics *m = &e->grad.metrics;
    double n = (double)e->b.n_tokens + 1e-8;

    KG_TRY(kg_golden_metric(e->g, "actor/pg_clipfrac", (double)m->clips / n, err));
    KG_TRY(kg_golden_metric(e->g, "actor/pg_clipfrac_lower", (double)m->clips_lower / n,
                            err));
    if (m->gap_max > e->algo.ratio_clamp) /* the published value is clamped */
        return KG_OK;
    return kg_golden_metric(e->g, "actor/ppo_kl", m->k1_sum / n, err);
}

kg_status kg_golden_policy_losses(struct kg_golden_case *g, struct kg_err *err)
{
    struct kg_golden_reduction how = {.variant = "stable-rl"};
    struct kg_golden_batch e;
    const char *mode, *row;

    KG_TRY(kg_golden_text(&mode, g, "loss_mode", err));
    KG_TRY(kg_golden_text(&how.mode, g, "loss_agg_mode", err));
    KG_TRY(kg_golden_rename(&row, modes, "loss_mode", mode, err));
    how.mode = by_sequence(mode) ? "seq-mean-token-mean" : how.mode;
    KG_TRY(kg_golden_start(&e, g, err));
    KG_TRY(kg_algo_set(&e.algo, "algo.surrogate", row, err));
    KG_TRY(kg_algo_set(&e.algo, "algo.aggregate", how.mode, err));
    KG_TRY(numbers(&e, mode, err));
    KG_TRY(kg_golden_load(&e, 0, 0, err));
    how.info = kg_golden_at(g, "config", "global_batch_info");
    how.rows = (double)e.B, how.width = (double)e.T;
    e.scale = kg_golden_totals(&e.totals, &how);
    if (strcmp(mode, "geo_mean") == 0) {
        e.totals.seqs = (double)e.B;
        e.totals.length_eps = 0;
        e.scale = 1;
        e.algo.count_eps = 1e-8;
    }
    KG_TRY(kg_golden_finish(&e, err));
    return strcmp(mode, "vanilla") == 0 ? clip_fractions(&e, err) : KG_OK;
}
