/* Family dppo_loss: trust-region masks, and the binned top-k divergences. A mask is a yes
 * or no, so equal losses prove little about its divergence. So divergences of a case are
 * compared as numbers, with each token as a batch of its own. Binned: each of the
 * likeliest tokens is an event, all others are one; the sampled one must be listed. */
#include "lab/golden/golden_internal.h"

#include <math.h>

static const struct kg_golden_name modes[] = {
    {"dppo_binary_kl", "dppo-binary-kl"},
    {"dppo_binary_tv", "dppo-binary-tv"},
    {"dppo_binary_kl_recompute", "dppo-binary-kl-old"},
    {"dppo_binary_tv_recompute", "dppo-binary-tv-old"},
    {"dppo_topk_kl", "dppo-topk-kl"},
    {"dppo_topk_tv", "dppo-topk-tv"},
    {"ppo", "ratio-mask"},
    {"ppo_recompute", "minirl"},
    {"ppo_ablation_positive", "ratio-relax-positive"},
    {"ppo_ablation_negative", "ratio-relax-negative"},
    {"ppo_ablation_both", "ratio-relax-both"},
    {"pg_no_mask", "pg-is"},
    {NULL, NULL},
};

/* The divergence of a token: the sum in the metrics of a batch of this token only. */
static kg_status token_divergence(double *divergence, const struct kg_golden_batch *e,
                                  int64_t n, struct kg_err *err)
{
    int64_t one[2] = {0, 1}, K = e->rows.k;
    double mu = NAN, zero = 0, weight = 1, a_logp;
    struct kg_policy_batch b = e->b;
    struct kg_policy_grad grad = {.a_logp = &a_logp, .a_at = e->grad.a_at + n * K};

    for (int64_t j = n * K; j < (n + 1) * K; j++)
        if (b.ids[j] == b.tokens[n])
            mu = b.mu_at[j];
    if (isnan(mu))
        return kg_fail(err, KG_EFORMAT,
                       "inputs.rollout_topk_ids: expected the sampled token among the "
                       "ids of every position, found none at position %lld",
                       (long long)e->at[n]);
    b.n_seqs = b.n_tokens = 1, b.seq_begin = one;
    b.tokens += n, b.logp += n, b.old_logp = b.mu_logp = &mu;
    b.ids += n * K, b.logp_at += n * K, b.mu_at += n * K;
    b.advantage = &zero, b.pg_weight = &weight, b.entropy = NULL, b.is_weight = NULL;
    KG_TRY(kg_policy_loss(&grad, &e->algo, &b, err));
    *divergence = grad.metrics.divergence_sum;
    return KG_OK;
}

/* Compares expected.KEY (topk_kl or topk_tv) if the case has it. */
static kg_status divergence(struct kg_golden_case *g, const char *row, const char *key,
                            struct kg_err *err)
{
    struct kg_golden_batch e;
    double *found;

    if (!kg_golden_at(g, "expected", key))
        return KG_OK;
    KG_TRY(kg_golden_start(&e, g, err));
    KG_TRY(kg_algo_set(&e.algo, "algo.surrogate", row, err));
    KG_TRY(kg_golden_load(&e, 0, 0, err));
    KG_TRY(kg_golden_columns(&e, "rollout_topk_ids", false, err));
    if (!e.b.mu_at)
        return kg_fail(err, KG_EFORMAT,
                       "inputs.rollout_topk_log_probs: expected an array, found nothing");
    e.algo.top_k = (int)e.rows.k;
    KG_TRY(kg_golden_run(&e, false, err));
    KG_TRY(kg_golden_reals(&found, g, e.rows.n, err));
    for (int64_t n = 0; n < e.rows.n; n++)
        KG_TRY(token_divergence(&found[n], &e, n, err));
    return kg_golden_expect_tokens(&e, "expected", key, found, 1, err);
}

static kg_status masked_loss(struct kg_golden_case *g, const char *mode,
                             struct kg_err *err)
{
    struct kg_golden_reduction how = {.variant = "stable-rl"};
    struct kg_golden_batch e;
    const struct kg_policy_metrics *m = &e.grad.metrics;
    const char *row;

    KG_TRY(kg_golden_rename(&row, modes, "loss_mode", mode, err));
    KG_TRY(kg_golden_text(&how.mode, g, "loss_agg_mode", err));
    KG_TRY(kg_golden_start(&e, g, err));
    KG_TRY(kg_algo_set(&e.algo, "algo.surrogate", row, err));
    KG_TRY(kg_algo_set(&e.algo, "algo.aggregate", how.mode, err));
    KG_TRY(kg_golden_clips(&e, err));
    KG_TRY(kg_golden_need_real(&e.algo.truncate, g, "clip_ratio_c", err));
    e.algo.dual_clip = 0;
    e.algo.delta_low = e.algo.clip_low, e.algo.delta_high = e.algo.clip_high;
    KG_TRY(kg_golden_load(&e, 0, 0, err));
    if (kg_golden_at(g, "inputs", "rollout_topk_ids")) {
        KG_TRY(kg_golden_columns(&e, "rollout_topk_ids", false, err));
        e.algo.top_k = e.b.k_sampler;
    }
    how.info = kg_golden_at(g, "config", "global_batch_info");
    how.rows = (double)e.B, how.width = (double)e.T;
    e.scale = kg_golden_totals(&e.totals, &how);
    KG_TRY(kg_golden_finish(&e, err));
    double used = (double)(m->positive + m->negative) + 1e-8;
    KG_TRY(kg_golden_metric(g, "actor/pg_clipfrac", (double)m->clips / used, err));
    KG_TRY(kg_golden_metric(g, "actor/pg_clipfrac_lower", (double)m->clips_lower / used,
                            err));
    KG_TRY(kg_golden_metric(g, "n_invalid_positive", (double)m->masked_positive, err));
    return kg_golden_metric(g, "n_invalid_negative", (double)m->masked_negative, err);
}

kg_status kg_golden_dppo_loss(struct kg_golden_case *g, struct kg_err *err)
{
    const char *mode;

    KG_TRY(kg_golden_text(&mode, g, "loss_mode", err));
    if (*mode)
        KG_TRY(masked_loss(g, mode, err));
    KG_TRY(divergence(g, "dppo-topk-kl", "topk_kl", err));
    return divergence(g, "dppo-topk-tv", "topk_tv", err);
}
