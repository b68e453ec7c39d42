/* The golden vectors of the authors' code against policy/.
 *
 * Every case is evaluated through the public functions; tests/data/golden holds a small
 * part that always runs, ../shared/golden all of it where it is there. One cmocka test
 * per family; each prints how many cases pass and names those that fail or are not
 * covered. Where published code differs from itself (an eps in a mean, empty rows counted
 * or not) the test sets totals, not formulas.
 */
#include "policy_golden.h"

#include "policy/shaping.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void set(struct eval *e, const char *key, const char *value)
{
    struct kg_err err;

    if (kg_algo_set(&e->algo, key, value, &err))
        give_up(e->g, &err);
}

static struct eval fresh(struct golden *g)
{
    struct eval e = {.g = g};

    kg_algo_init(&e.algo);
    set(&e, "anchor.kind", "fixed");
    return e;
}

/* ---- KL ---- */

static const char *estimator(const char *published)
{
    static const struct {
        const char *from, *to;
    } names[] = {
        {"kl", "k1"},
        {"mse", "k2"},
        {"low_var_kl", "k3"},
        {"k3plusplus", "k3++"},
        {"rpg_fkl", "rpg-fkl"},
        {"rpg_rkl", "rpg-rkl"},
        {"rpg_ufkl", "rpg-ufkl"},
        {"rpg_urkl", "rpg-urkl"},
        {"rpg_js", "jeffreys-released"},
        {"rpg_ujs", "jeffreys"},
        {"rpg_rf_fkl", "reward-fkl"},
        {"rpg_rf_rkl", "reward-rkl"},
        {"rpg_rf_ufkl", "reward-ufkl"},
        {"rpg_rf_urkl", "reward-urkl"},
        {"rpg_rf_rkl_clip_ppo", "reward-rkl"},
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(published, names[i].from) == 0)
            return names[i].to;
    return published;
}

static void importance_from_config(struct eval *e)
{
    set(e, "kl.importance", config_bool(e->g, "kl_iw") ? "true" : "false");
    e->algo.kl_iw_lower = config_real(e->g, "kl_iw_clip_lower", 0);
    e->algo.kl_iw_upper = config_real(e->g, "kl_iw_clip_upper", 0);
}

static void finish_kl(struct eval *e, const char *per_token)
{
    if (!eval_run(e, false))
        return;
    expect_scalar(e->g, "kl_loss", e->grad.kl);
    expect_tokens(e, "expected", per_token, e->grad.kl_term, 1);
    expect_tokens(e, "grad", "log_prob", e->grad.a_logp, 1);
    expect_tokens(e, "grad", "tail_log_prob", e->grad.a_logp, 1);
    master_rule(e, 1);
    expect_logits(e);
}

static void kl_sampled(struct golden *g)
{
    struct eval e = fresh(g), plain;

    set(&e, "kl.estimator", estimator(config_text(g, "estimator")));
    importance_from_config(&e);
    e.algo.kl_beta = 1;
    eval_load(&e, g, 0, 0);
    if (strstr(config_text(g, "reduce"), "1e-8"))
        e.totals.tokens += 1e-8;
    plain = e;
    finish_kl(&e, section(g, "expected", "kl_token_iw") ? "kl_token_iw" : "kl_token");
    plain.algo.kl_importance = false;
    if (eval_run(&plain, false))
        expect_tokens(&plain, "expected", "kl_token", plain.grad.kl_term, 1);
}

static void kl_topk(struct golden *g)
{
    struct eval e = fresh(g);
    bool forward = strcmp(config_text(g, "kl_type"), "full_forward") == 0;

    set(&e, "kl.estimator", forward ? "topk-forward" : "topk-reverse");
    set(&e, "kl.gradient", "published");
    set(&e, "kl.tail", config_bool(g, "tail") ? "true" : "false");
    importance_from_config(&e);
    e.algo.kl_beta = 1;
    e.algo.kl_top_k = (int)config_real(g, "k", 0);
    eval_load(&e, g, 0, 0);
    eval_columns(&e, "topk_indices", forward);
    finish_kl(&e, "kl_token");
}

static void kl_full(struct golden *g)
{
    struct eval e = fresh(g);
    bool forward = strcmp(config_text(g, "kl_type"), "full_forward") == 0;

    set(&e, "kl.estimator", forward ? "exact-forward" : "exact-reverse");
    e.algo.kl_beta = 1;
    eval_load(&e, g, 0, 0);
    finish_kl(&e, "kl_token");
}

/* ---- aggregation ---- */

/* The divisors that each published variant of agg_loss uses; `info` may override them.
 * Returns the factor on every weight. */
static double variant_totals(struct kg_policy_totals *totals, const char *variant,
                             const char *mode, const struct kg_json *info, double rows,
                             double width)
{
    bool stable = strcmp(variant, "stable-rl") == 0, rpg = strcmp(variant, "rpg") == 0;
    double dp = kg_json_real(kg_json_get(info, "dp_size"), 1);

    totals->length_norm = width;
    if (rpg || strcmp(variant, "ema-math") == 0)
        totals->tokens += 1e-8;
    if (rpg)
        totals->seqs = rows;
    else
        totals->length_eps = 1e-8;
    if (!stable)
        return 1;
    totals->tokens = kg_json_real(kg_json_get(info, "batch_num_tokens"), totals->tokens);
    totals->seqs = kg_json_real(kg_json_get(info, "global_batch_size"), totals->seqs);
    totals->length_norm = kg_json_real(kg_json_get(info, "loss_scale_factor"),
                                       totals->length_norm);
    return strcmp(mode, "seq-mean-token-sum-norm") == 0 ? 1 : dp;
}

static void agg_loss(struct golden *g)
{
    struct tensor x = input(g, "loss_mat"), mask = input(g, "loss_mask");
    struct tensor want = tensor_at(g, "grad", "loss_mat");
    const char *variant = config_text(g, "variant"),
               *mode = config_text(g, "loss_agg_mode");
    struct kg_policy_totals totals;
    int64_t *begin = room(g, x.d[0] + 1, sizeof *begin), n = 0;
    double *w = reals(g, x.n), loss = 0, scale;
    struct eval e = fresh(g);
    struct kg_err err;

    set(&e, "algo.aggregate", mode);
    for (int64_t r = 0; r < x.d[0]; r++, begin[r] = n)
        for (int64_t t = 0; t < x.d[1]; t++)
            n += mask.x[r * x.d[1] + t] != 0;
    kg_policy_totals(&totals, &e.algo, x.d[0], begin, NULL);
    scale = variant_totals(&totals, variant, mode, kg_json_get(g->c, "config"),
                           (double)x.d[0], (double)x.d[1]);
    if (kg_policy_weights_of(w, &e.algo, &totals, x.d[0], begin, NULL, &err)) {
        give_up(g, &err);
        return;
    }
    n = 0;
    for (int64_t i = 0; i < x.n; i++) {
        double a = mask.x[i] != 0 ? scale * w[n++] : 0;

        loss += a * x.x[i];
        compare(g, "grad.loss_mat", i, a, want.x[i]);
    }
    expect_scalar(g, "loss", loss);
}

/* ---- policy losses ---- */

static void clips_from_config(struct eval *e)
{
    e->algo.clip_low = config_real(e->g, "clip_ratio_low", 0);
    e->algo.clip_high = config_real(e->g, "clip_ratio_high", 0);
    e->algo.dual_clip = config_real(e->g, "clip_ratio_c", 0);
}

static void finish_pg(struct eval *e)
{
    if (!eval_run(e, true))
        return;
    expect_scalar(e->g, "loss", e->grad.loss);
    expect_tokens(e, "grad", "log_prob", e->grad.a_logp, 1);
    master_rule(e, 1);
    expect_logits(e);
}

static void select_tokens(struct eval *e)
{
    uint8_t *selected = room(e->g, e->b.n_tokens, 1);
    struct kg_err err;

    if (kg_policy_select(selected, &e->algo, &e->b, &err))
        give_up(e->g, &err);
    e->b.selected = selected;
}

static void policy_losses(struct golden *g)
{
    static const struct {
        const char *mode, *row, *aggregate;
    } rows[] = {
        {"vanilla", "ppo-clip", NULL},
        {"gpg", "gpg", NULL},
        {"cispo", "cispo", NULL},
        {"gspo", "gspo", "seq-mean-token-mean"},
        {"sapo", "sapo", "seq-mean-token-mean"},
        {"geo_mean", "gmpo", "seq-mean-token-mean"},
        {"kl_cov", "kl-cov", NULL},
        {"clip_cov", "clip-cov", NULL},
    };
    const char *mode = config_text(g, "loss_mode"),
               *aggregate = config_text(g, "loss_agg_mode");
    struct eval e = fresh(g);
    double n;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].mode, mode) == 0) {
            set(&e, "algo.surrogate", rows[i].row);
            aggregate = rows[i].aggregate ? rows[i].aggregate : aggregate;
        }
    set(&e, "algo.aggregate", aggregate);
    clips_from_config(&e);
    if (strcmp(mode, "clip_cov") == 0)
        e.algo.dual_clip = 0;
    e.algo.tau_pos = config_real(g, "tau_pos", 1);
    e.algo.tau_neg = config_real(g, "tau_neg", 1);
    e.algo.cov_ratio = config_real(g, "kl_cov_ratio",
                                   config_real(g, "clip_cov_ratio", 0));
    e.algo.cov_coef = config_real(g, "ppo_kl_coef", 0);
    e.algo.cov_low = config_real(g, "clip_cov_lb", 0);
    e.algo.cov_high = config_real(g, "clip_cov_ub", 0);
    eval_load(&e, g, 0, 0);
    e.scale = variant_totals(&e.totals, "stable-rl", aggregate,
                             section(g, "config", "global_batch_info"), 0, (double)e.T);
    if (strcmp(mode, "geo_mean") == 0) {
        e.totals.seqs = (double)e.B;
        e.totals.length_eps = 0;
        e.scale = 1;
        e.algo.count_eps = 1e-8;
    }
    select_tokens(&e);
    finish_pg(&e);
    n = (double)e.b.n_tokens + 1e-8;
    if (strcmp(mode, "vanilla") == 0) {
        expect_metric(g, "actor/pg_clipfrac", (double)e.grad.metrics.clips / n);
        expect_metric(g, "actor/pg_clipfrac_lower",
                      (double)e.grad.metrics.clips_lower / n);
        if (e.grad.metrics.gap_max <=
            e.algo.ratio_clamp) /* the published one is clamped */
            expect_metric(g, "actor/ppo_kl", e.grad.metrics.k1_sum / n);
    }
}

static const char *mask_row(const char *mode)
{
    static const struct {
        const char *from, *to;
    } rows[] = {
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
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(mode, rows[i].from) == 0)
            return rows[i].to;
    return mode;
}

/* compute_topk_kl alone: the divergence of one token at a time, read from the metrics of
 * the row. */
static void topk_divergence(struct golden *g)
{
    struct tensor want[2] = {tensor_at(g, "expected", "topk_kl"),
                             tensor_at(g, "expected", "topk_tv")};
    const char *rows[2] = {"dppo-topk-kl", "dppo-topk-tv"};
    struct tensor ids = input(g, "rollout_topk_ids"),
                  mu_at = input(g, "rollout_topk_log_probs");

    for (int kind = 0; kind < 2; kind++) {
        struct eval e = fresh(g);

        set(&e, "algo.surrogate", rows[kind]);
        e.algo.top_k = (int)ids.d[2];
        eval_load(&e, g, 0, 0);
        eval_columns(&e, "rollout_topk_ids", false);
        for (int64_t n = 0; n < e.b.n_tokens; n++) {
            int64_t one[2] = {0, 1}, K = ids.d[2];
            double mu = NAN, zero = 0, weight = 1, a[1], a_at[64];
            struct kg_policy_batch b = e.b;
            struct kg_policy_grad grad = {.a_logp = a, .a_at = a_at};
            struct kg_err err;

            for (int64_t j = 0; j < K; j++)
                if (e.b.ids[n * K + j] == e.b.tokens[n])
                    mu = mu_at.x[n * K + j];
            b.n_seqs = b.n_tokens = 1, b.seq_begin = one;
            b.tokens += n, b.logp += n, b.old_logp = &mu, b.mu_logp = &mu;
            b.ids += n * K, b.logp_at += n * K, b.mu_at += n * K;
            b.advantage = &zero, b.pg_weight = &weight, b.entropy = NULL;
            if (kg_policy_loss(&grad, &e.algo, &b, &err))
                give_up(g, &err);
            else
                compare(g, "divergence", n, grad.metrics.divergence_sum, want[kind].x[n]);
        }
    }
}

static void dppo_loss(struct golden *g)
{
    struct eval e = fresh(g);
    const char *mode = config_text(g, "loss_mode"),
               *aggregate = config_text(g, "loss_agg_mode");
    const struct kg_policy_metrics *m = &e.grad.metrics;
    double used;

    if (*mode == '\0') {
        topk_divergence(g);
        return;
    }
    set(&e, "algo.surrogate", mask_row(mode));
    set(&e, "algo.aggregate", aggregate);
    clips_from_config(&e);
    e.algo.dual_clip = 0;
    e.algo.truncate = config_real(g, "clip_ratio_c", 0);
    e.algo.delta_low = e.algo.clip_low, e.algo.delta_high = e.algo.clip_high;
    eval_load(&e, g, 0, 0);
    if (section(g, "inputs", "rollout_topk_ids")) {
        eval_columns(&e, "rollout_topk_ids", false);
        e.algo.top_k = e.b.k_sampler;
    }
    e.scale = variant_totals(&e.totals, "stable-rl", aggregate,
                             section(g, "config", "global_batch_info"), 0, (double)e.T);
    finish_pg(&e);
    used = (double)(m->positive + m->negative) + 1e-8;
    expect_metric(g, "actor/pg_clipfrac", (double)m->clips / used);
    expect_metric(g, "actor/pg_clipfrac_lower", (double)m->clips_lower / used);
    expect_metric(g, "n_invalid_positive", (double)m->masked_positive);
    expect_metric(g, "n_invalid_negative", (double)m->masked_negative);
}

/* ---- the EMA-PG actor ---- */

static void actor_algo(struct eval *e, bool math)
{
    struct golden *g = e->g;
    const char *kl = config_text(g, "kl_loss_type");
    bool topk = kg_json_is_number(section(g, "config", "kl_topk_tokens"));
    bool forward = strcmp(kl, "full_forward") == 0,
         full = forward || strcmp(kl, "full_reverse") == 0;

    clips_from_config(e);
    e->algo.ratio_clamp = math ? 20 : 0;
    if (full && topk)
        set(e, "kl.estimator", forward ? "topk-forward" : "topk-reverse");
    else if (full)
        set(e, "kl.estimator", forward ? "exact-forward" : "exact-reverse");
    else
        set(e, "kl.estimator", estimator(kl));
    set(e, "kl.gradient", "published");
    set(e, "kl.tail", config_bool(g, "kl_tail") ? "true" : "false");
    set(e, "algo.aggregate", math ? config_text(g, "loss_agg_mode") : "token-mean");
    importance_from_config(e);
    e->algo.kl_beta = config_real(g, "kl_loss_coef", 0);
    e->algo.kl_top_k = (int)config_real(g, "kl_topk_tokens", 0);
    e->algo.entropy_coef = config_real(g, "entropy_coeff", 0);
}

static bool actor_part(struct eval *e, bool math, int64_t first, int64_t rows)
{
    struct golden *g = e->g;
    double std = config_real(g, "adv_batch_std", 0);
    bool ids = section(g, "inputs", "topk_indices") != NULL;

    actor_algo(e, math);
    eval_load(e, g, first, rows);
    if (ids)
        eval_columns(e, "topk_indices",
                     strcmp(config_text(g, "kl_loss_type"), "full_forward") == 0);
    e->b.kl_divisor = std != 0 ? std + 1e-6 : 0;
    if (math)
        e->scale = variant_totals(&e->totals, "ema-math", config_text(g, "loss_agg_mode"),
                                  NULL, 0, (double)e->T);
    return eval_run(e, true);
}

static void ema_actor(struct golden *g)
{
    bool math = strncmp(kg_json_text(kg_json_get(g->c, "name"), NULL), "math/", 5) == 0;
    int64_t parts = (int64_t)config_real(g, "micro_batches", 1);
    int64_t rows = input(g, "logits").d[0] / parts;
    double loss = 0, *total = reals(g, input(g, "logits").n);
    struct eval e;

    for (int64_t p = 0; p < parts; p++) {
        double n;

        e = fresh(g);
        if (!actor_part(&e, math, p * rows, rows))
            return;
        loss += e.grad.loss / (double)parts;
        expect_tokens(&e, "expected", "kl_token_scaled", e.grad.kl_term, 1);
        expect_tokens(&e, "grad", "log_prob", e.grad.a_logp, 1 / (double)parts);
        expect_tokens(&e, "expected", "entropy", e.b.entropy, 1);
        master_rule(&e, 1 / (double)parts);
        for (int64_t i = 0; i < input(g, "logits").n; i++)
            total[i] += e.logits_grad[i];
        n = (double)e.b.n_tokens + (math ? 1e-8 : 0);
        if (parts == 1) {
            expect_metric(g, "actor/pg_clipfrac", (double)e.grad.metrics.clips / n);
            expect_metric(g, "actor/ppo_kl", e.grad.metrics.k1_sum / n);
            expect_metric(g, "actor/pg_loss", e.grad.pg);
            expect_metric(g, "actor/kl_loss", e.grad.kl);
        }
    }
    expect_scalar(g, "loss", loss);
    e.logits_grad = total;
    expect_logits(&e);
}

/* ---- RPG ---- */

static void rpg_dual_clip(struct golden *g)
{
    struct eval e = fresh(g);
    const char *kl = config_text(g, "kl_loss_type"),
               *aggregate = config_text(g, "loss_agg_mode");
    double n;

    set(&e, "algo.aggregate", aggregate);
    set(&e, "kl.estimator", *kl ? estimator(kl) : "none");
    set(&e, "kl.importance", "false");
    if (config_bool(g, "use_iterative_ref_model"))
        set(&e, "anchor.kind", "iterative");
    clips_from_config(&e);
    e.algo.ratio_clamp = 0;
    e.algo.kl_beta = config_real(g, "kl_loss_coef", 0);
    e.algo.entropy_coef = config_real(g, "entropy_coeff", 0);
    eval_load(&e, g, 0, 0);
    if (config_bool(g, "use_iterative_ref_model"))
        e.b.anchor_logp = NULL;
    e.scale = variant_totals(&e.totals, "rpg", aggregate, NULL, (double)e.B, (double)e.T);
    finish_pg(&e);
    expect_tokens(&e, "expected", "kl_token", e.grad.kl_term, 1);
    n = (double)e.b.n_tokens + 1e-8;
    expect_metric(g, "actor/pg_clipfrac", (double)e.grad.metrics.clips / n);
    expect_metric(g, "actor/pg_clipfrac_lower", (double)e.grad.metrics.clips_lower / n);
    expect_metric(g, "actor/ppo_kl", e.grad.metrics.k1_sum / n);
    expect_scalar(g, "pg_clipfrac", (double)e.grad.metrics.clips / n);
    expect_scalar(g, "pg_clipfrac_lower", (double)e.grad.metrics.clips_lower / n);
    expect_scalar(g, "ppo_kl", e.grad.metrics.k1_sum / n);
}

static void rpg_kind(struct golden *g)
{
    struct eval e = fresh(g);

    set(&e, "kl.estimator", estimator(config_text(g, "estimator")));
    set(&e, "kl.importance", "false");
    e.algo.kl_beta = 1;
    eval_load(&e, g, 0, 0);
    e.totals.tokens += 1e-8;
    finish_kl(&e, "kl_token");
}

static void rpg_reinforce(struct golden *g)
{
    struct eval e = fresh(g);
    const char *aggregate = config_text(g, "loss_agg_mode");
    char row[64];
    double n;

    snprintf(row, sizeof row, "%s", config_text(g, "kl_type"));
    for (char *c = row; *c; c++)
        *c = *c == '_' ? '-' : *c;
    set(&e, "algo.surrogate", row);
    set(&e, "algo.aggregate", aggregate);
    clips_from_config(&e);
    e.algo.kl_beta = config_real(g, "beta", 0);
    eval_load(&e, g, 0, 0);
    e.scale = variant_totals(&e.totals, "rpg", aggregate, NULL, (double)e.B, (double)e.T);
    finish_pg(&e);
    n = (double)e.b.n_tokens + 1e-8;
    expect_scalar(g, "pg_clipfrac", (double)e.grad.metrics.clips / n);
    expect_scalar(g, "pg_clipfrac_lower", (double)e.grad.metrics.clips_lower / n);
    expect_scalar(g, "ppo_kl", e.grad.metrics.k1_sum / n);
}

static void rpg_loss(struct golden *g)
{
    const char *name = kg_json_text(kg_json_get(g->c, "name"), NULL);

    if (strncmp(name, "reinforce/", 10) == 0)
        rpg_reinforce(g);
    else if (strncmp(name, "kl_kind/", 8) == 0)
        rpg_kind(g);
    else
        rpg_dual_clip(g);
}

/* ---- advantages ---- */

static const char *advantage_row(struct golden *g)
{
    const char *name = config_text(g, "estimator");
    bool std = config_bool(g, "norm_by_std"), tail = config_bool(g, "handle_zero_tail");

    if (strcmp(name, "grpo") == 0) {
        if (config_bool(g, "norm_by_batch_std"))
            return "batch-std";
        return std || !section(g, "config", "norm_by_std") ? "grpo" : "dr-grpo";
    }
    if (strcmp(name, "grpo_vectorized") == 0)
        return std ? "grpo-floor" : "dr-grpo";
    if (strcmp(name, "grpo_passk") == 0)
        return std ? "passk-std" : "passk";
    if (strcmp(name, "rpg_batchmean") == 0)
        return "batch-mean";
    if (strcmp(name, "rloo_vectorized") == 0)
        return "rloo-vectorized";
    if (strcmp(name, "reinforce_plus_plus") == 0)
        return "reinforce++";
    if (strcmp(name, "reinforce_plus_plus_baseline") == 0)
        return "reinforce++-baseline";
    if (strstr(name, "optimal_token_baseline"))
        return tail ? "token-baseline-tail" : "token-baseline";
    return name;
}

/* Rows of the case in the order of their groups. */
struct layout {
    int64_t B, T, G, N;
    int64_t *row;         /* (B) row of the case at place i */
    int64_t *group_begin; /* (G+1) */
    int64_t *seq_begin;   /* (B+1) */
    int64_t *at;          /* (N) position in [B,T] of the case */
    uint8_t *mask;        /* (N) */
};

static struct layout layout_of(struct golden *g, bool compress)
{
    struct tensor group = input(g, "group"), mask = input(g, "response_mask");
    struct layout l = {.B = mask.d[0], .T = mask.d[1]};
    int64_t placed = 0;

    l.row = room(g, l.B, sizeof *l.row);
    l.group_begin = room(g, l.B + 1, sizeof *l.group_begin);
    l.seq_begin = room(g, l.B + 1, sizeof *l.seq_begin);
    l.at = room(g, l.B * l.T, sizeof *l.at);
    l.mask = room(g, l.B * l.T, 1);
    for (int64_t id = 0; placed < l.B; id++) {
        int64_t before = placed;

        for (int64_t r = 0; r < l.B; r++)
            if ((int64_t)group.x[r] == id)
                l.row[placed++] = r;
        if (placed > before)
            l.group_begin[++l.G] = placed;
    }
    for (int64_t i = 0; i < l.B; i++) {
        for (int64_t t = 0; t < l.T; t++) {
            int64_t at = l.row[i] * l.T + t;

            if (compress && mask.x[at] == 0)
                continue;
            l.mask[l.N] = mask.x[at] != 0;
            l.at[l.N++] = at;
        }
        l.seq_begin[i + 1] = l.N;
    }
    return l;
}

static double *place(struct golden *g, const struct layout *l, const char *name)
{
    struct tensor t = input(g, name);
    double *out = t.x ? reals(g, l->N) : NULL;

    for (int64_t n = 0; t.x && n < l->N; n++)
        out[n] = t.x[l->at[n]];
    return out;
}

static double *place_rows(struct golden *g, const struct layout *l, const char *name)
{
    struct tensor t = input(g, name);
    double *out = t.x ? reals(g, l->B) : NULL;

    for (int64_t i = 0; t.x && i < l->B; i++)
        out[i] = t.x[l->row[i]];
    return out;
}

static void advantages(struct golden *g)
{
    bool stable = strcmp(config_text(g, "repo"), "stable-rl") == 0;
    bool search = strcmp(config_text(g, "repo"), "ema-search") == 0;
    const char *name = config_text(g, "estimator");
    bool compress = strncmp(name, "tir_", 4) == 0 || (stable && strcmp(name, "gae") == 0);
    struct layout l = layout_of(g, compress);
    struct tensor want = tensor_at(g, "expected", "advantages");
    struct tensor returns = tensor_at(g, "expected", "returns");
    struct eval e = fresh(g);
    struct kg_policy_scores in = {.n_seqs = l.B,
                                  .n_groups = l.G,
                                  .group_begin = l.group_begin,
                                  .seq_begin = l.seq_begin,
                                  .mask = l.mask};
    struct kg_policy_advantage out = {.token = reals(g, l.N), .returns = reals(g, l.N)};
    struct kg_err err;

    set(&e, "algo.advantage", advantage_row(g));
    e.algo.gamma = config_real(g, "gamma", 1), e.algo.lambda = config_real(g, "lam", 1);
    e.algo.gpg_norm = config_real(g, "f_norm", 1);
    e.algo.count_eps = search ? 0 : 1e-8;
    in.token_reward = place(g, &l, "token_level_rewards");
    in.value = place(g, &l, "values");
    in.old_logp = place(g, &l, "old_log_probs");
    in.sum_sq = place(g, &l, "sum_pi_squared");
    in.is_weight = place(g, &l, "rollout_is_weights");
    in.greedy = place_rows(g, &l, "reward_baselines");
    if (strcmp(name, "grpo_vectorized") == 0)
        g->v.rel = g->v.abs = 1e-4;
    if (kg_policy_advantages(&out, &e.algo, &in, &err)) {
        give_up(g, &err);
        return;
    }
    for (int64_t n = 0; n < l.N; n++) {
        if (!l.mask[n])
            continue;
        compare(g, "advantages", l.at[n], out.token[n], want.x[l.at[n]]);
        if (returns.x && out.returns[n] != 0)
            compare(g, "returns", l.at[n], out.returns[n], returns.x[l.at[n]]);
    }
    expect_scalar(g, "batch_std", out.batch_std);
}

/* ---- misc ---- */

static void adaptive_kl(struct golden *g)
{
    struct tensor kl = input(g, "current_kl"), n = input(g, "n_steps");
    struct tensor want = tensor_at(g, "expected", "value");
    double coef = config_real(g, "init_kl_coef", 0);

    for (int64_t i = 0; i < kl.n; i++) {
        coef = kg_policy_adaptive_kl(coef, kl.x[i], config_real(g, "target_kl", 0),
                                     config_real(g, "horizon", 0), (int64_t)n.x[i]);
        compare(g, "value", i, coef, want.x[i]);
    }
}

static void value_loss(struct golden *g)
{
    struct tensor v = input(g, "vpreds"), old = input(g, "values"),
                  ret = input(g, "returns"), mask = input(g, "response_mask"),
                  want = tensor_at(g, "grad", "vpreds");
    const char *variant = config_text(g, "variant"),
               *mode = config_text(g, "loss_agg_mode");
    int64_t *begin = room(g, v.d[0] + 1, sizeof *begin), n = 0;
    struct kg_policy_totals totals;
    double *w = reals(g, v.n), loss = 0, clips = 0, count, eps;
    struct eval e = fresh(g);
    struct kg_err err;

    set(&e, "algo.aggregate", *mode ? mode : "token-mean");
    for (int64_t r = 0; r < v.d[0]; r++, begin[r] = n)
        for (int64_t t = 0; t < v.d[1]; t++)
            n += mask.x[r * v.d[1] + t] != 0;
    count = (double)n;
    kg_policy_totals(&totals, &e.algo, v.d[0], begin, NULL);
    (void)variant_totals(&totals, variant, mode, NULL, (double)v.d[0], (double)v.d[1]);
    if (kg_policy_weights_of(w, &e.algo, &totals, v.d[0], begin, NULL, &err)) {
        give_up(g, &err);
        return;
    }
    n = 0;
    for (int64_t i = 0; i < v.n; i++) {
        double dv = 0, weight = mask.x[i] != 0 ? w[n++] : 0;
        bool clipped;

        loss += weight * kg_policy_value_loss(&dv, &clipped, v.x[i], old.x[i], ret.x[i],
                                              config_real(g, "cliprange_value", 0));
        clips += weight != 0 && clipped;
        compare(g, "grad.vpreds", i, weight * dv, want.x[i]);
    }
    eps = strcmp(variant, "ema-search") == 0 ? 0 : 1e-8;
    expect_scalar(g, "vf_loss", loss);
    expect_scalar(g, "vf_clipfrac", clips / (count + eps));
}

static void overlong(struct golden *g)
{
    struct tensor n = input(g, "response_length"), score = input(g, "score");
    struct tensor penalty = tensor_at(g, "expected", "overlong_penalty");
    struct tensor reward = tensor_at(g, "expected", "sequence_reward");

    for (int64_t i = 0; i < n.n; i++) {
        double p = kg_policy_overlong((int64_t)n.x[i],
                                      (int64_t)config_real(g, "max_resp_len", 0),
                                      (int64_t)config_real(g, "overlong_buffer_len", 0),
                                      config_real(g, "penalty_factor", 0));

        compare(g, "overlong_penalty", i, p, penalty.x[i]);
        compare(g, "sequence_reward", i, score.x[i] + p, reward.x[i]);
    }
}

static void kl_in_reward(struct golden *g)
{
    struct tensor score = input(g, "token_level_scores"),
                  mask = input(g, "response_mask");
    struct tensor want = tensor_at(g, "expected", "token_level_rewards");
    struct tensor old = input(g, "old_log_prob"), ref = input(g, "ref_log_prob");
    int64_t B = score.d[0], T = score.d[1], n = 0;
    int64_t *begin = room(g, B + 1, sizeof *begin), *at = room(g, B * T, sizeof *at);
    double *reward = reals(g, B * T), *lp = reals(g, B * T), *q = reals(g, B * T), mean;
    struct eval e = fresh(g);
    struct kg_err err;

    set(&e, "kl.estimator", estimator(config_text(g, "kl_penalty")));
    e.algo.kl_beta = config_real(g, "init_kl_coef", 0);
    e.algo.count_eps = 1e-8;
    for (int64_t r = 0; r < B; r++, begin[r] = n)
        for (int64_t i = r * T; i < (r + 1) * T; i++)
            if (mask.x[i] != 0) {
                reward[n] = score.x[i], lp[n] = old.x[i], q[n] = ref.x[i];
                at[n++] = i;
            }
    if (kg_policy_kl_reward(reward, &mean, &e.algo, B, begin, lp, q, &err)) {
        give_up(g, &err);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        compare(g, "token_level_rewards", at[i], reward[i], want.x[at[i]]);
    expect_metric(g, "actor/reward_kl_penalty", mean);
    expect_scalar(g, "next_coef",
                  kg_policy_adaptive_kl(e.algo.kl_beta, mean,
                                        config_real(g, "target_kl", 0),
                                        config_real(g, "horizon", 0), B));
}

static void misc(struct golden *g)
{
    const char *name = kg_json_text(kg_json_get(g->c, "name"), NULL);

    if (strncmp(name, "adaptive_kl/", 12) == 0)
        adaptive_kl(g);
    else if (strncmp(name, "value_loss/", 11) == 0)
        value_loss(g);
    else if (strncmp(name, "overlong/", 9) == 0)
        overlong(g);
    else
        kl_in_reward(g);
}

static void ema_update(struct golden *g)
{
    struct tensor start = input(g, "theta0"), theta = input(g, "theta");
    struct tensor want = tensor_at(g, "expected", "ema"),
                  due = tensor_at(g, "expected", "updated");
    struct eval e = fresh(g);

    set(&e, "anchor.kind", "ema");
    e.algo.anchor_eta = config_real(g, "tau", 0);
    e.algo.anchor_period = (int64_t)config_real(g, "period", 1);
    if (strcmp(config_text(g, "dtype"), "float32") == 0)
        g->v.rel = g->v.abs = 1e-6;
    for (int64_t s = 1; s <= theta.d[0]; s++) {
        bool move = kg_policy_anchor_due(&e.algo, s);

        compare(g, "updated", s, move, due.x[s - 1]);
        if (move)
            kg_policy_ema(start.x, theta.x + (s - 1) * start.n, start.n,
                          e.algo.anchor_eta);
        for (int64_t i = 0; i < start.n; i++)
            compare(g, "ema", s, start.x[i], want.x[(s - 1) * start.n + i]);
    }
}

/* ---- files ---- */

static const struct family {
    const char *file;
    void (*run)(struct golden *g);
} families[] = {
    {"kl_sampled", kl_sampled},
    {"kl_topk", kl_topk},
    {"kl_full", kl_full},
    {"advantages", advantages},
    {"agg_loss", agg_loss},
    {"policy_losses", policy_losses},
    {"ema_actor_loss_1", ema_actor},
    {"ema_actor_loss_2", ema_actor},
    {"dppo_loss", dppo_loss},
    {"rpg_loss", rpg_loss},
    {"misc", misc},
    {"ema_update", ema_update},
};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

static int run_file(const struct family *family, const struct kg_json_doc *doc)
{
    const struct kg_json *cases = kg_json_get(doc->root, "cases");
    struct golden g = {0};
    struct kg_err err;
    int passed = 0, failed = 0;
    double worst = 0;
    int64_t total = 0;

    assert_int_equal(kg_arena_init(&g.arena, (size_t)256 << 20, "golden", &err), KG_OK);
    for (size_t i = 0; i < kg_json_size(cases); i++) {
        size_t mark = kg_arena_mark(&g.arena);

        g.c = kg_json_at(cases, i);
        g.v = (struct verdict){.rel = 1e-10, .abs = 1e-12};
        family->run(&g);
        if (g.v.compared == 0 && !g.v.failed) {
            g.v.failed = true;
            snprintf(g.v.why, sizeof g.v.why, "nothing was compared");
        }
        total += g.v.compared;
        if (g.v.failed)
            printf("    %s: %s\n", kg_json_text(kg_json_get(g.c, "name"), NULL), g.v.why);
        passed += !g.v.failed;
        failed += g.v.failed;
        worst = fmax(worst, g.v.worst);
        kg_arena_rewind(&g.arena, mark);
    }
    printf("    %s: %d passed, %d failed, %lld numbers, worst relative error %.1e\n",
           family->file, passed, failed, (long long)total, worst);
    kg_arena_release(&g.arena);
    return failed;
}

static int run_folder(const struct family *family, const char *folder, bool *absent)
{
    char path[256];
    struct kg_json_doc doc = {0};
    struct kg_err err;
    int failed;

    snprintf(path, sizeof path, "%s/%s.json", folder, family->file);
    *absent = kg_json_read(&doc, path, (uint64_t)1 << 30, &err) != KG_OK;
    if (*absent) {
        if (err.code != KG_ENOTFOUND)
            fail_msg("%s", err.message);
        return 0;
    }
    failed = run_file(family, &doc);
    kg_json_release(&doc);
    return failed;
}

static void part_of_the_published_numbers(void **state)
{
    int failed = 0;

    (void)state;
    for (int i = 0; i < N_FAMILIES; i++) {
        bool absent;

        failed += run_folder(&families[i], "tests/data/golden", &absent);
        assert_false(absent);
    }
    assert_int_equal(failed, 0);
}

static void all_of_the_published_numbers(void **state)
{
    int failed = 0;

    (void)state;
    for (int i = 0; i < N_FAMILIES; i++) {
        bool absent;

        failed += run_folder(&families[i], "../shared/golden", &absent);
        if (absent) {
            printf("skip: ../shared/golden/%s.json is not there\n", families[i].file);
            skip();
        }
    }
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(part_of_the_published_numbers),
        cmocka_unit_test(all_of_the_published_numbers),
    };

    return cmocka_run_group_tests_name("policy golden", tests, NULL, NULL);
}
