/* Loss and sparse gradient of a micro-batch, put together from the rows' functions.
 *
 *     loss = sum_n  pg_weight is pg_term  +  beta kl_weight kl_term
 *                   -  c_H entropy_weight H
 *
 * A row's function has no weights; this file has no formulas. The KL term is a summand of
 * its own: it is never inside the policy term's clip.
 */
#include "policy/policy_internal.h"

#include "base/mem.h"
#include "base/real.h"

#include <math.h>
#include <string.h>

struct work {
    const struct kg_algo *algo;
    const struct kg_policy_batch *b;
    struct kg_policy_grad *g;
    struct kg_pg_in *in; /* (longest sequence) owned, as out */
    struct kg_pg_out *out;
    int64_t seq; /* the sequence that is being evaluated */
    int k;       /* K = k_sampler + k_anchor */
};

/* ---- required inputs ---- */

struct input {
    bool needed;
    const void *given;
    const char *what, *why;
};

static kg_status first_missing(const struct input *inputs, size_t n, struct kg_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (inputs[i].needed && !inputs[i].given)
            return kg_fail(err, KG_EINVAL, "policy loss: expected %s for %s, found none",
                           inputs[i].what, inputs[i].why);
    return KG_OK;
}

static bool is_iterative(const struct kg_algo *algo)
{
    return algo->anchor->kind == KG_ANCHOR_ITERATIVE;
}

static bool reads_exact(const struct kg_algo *algo)
{
    return algo->kl->about.needs & (KG_NEED_EXACT_REVERSE | KG_NEED_EXACT_FORWARD);
}

static bool reads_head(const struct kg_algo *algo)
{
    return algo->kl_top_k > 0 &&
           (algo->kl->about.needs & (KG_NEED_TOP_SAMPLER | KG_NEED_TOP_ANCHOR));
}

static kg_status check_inputs(const struct kg_algo *algo, const struct kg_policy_batch *b,
                              const struct kg_policy_grad *g, struct kg_err *err)
{
    const char *kl = algo->kl->about.name, *pg = algo->surrogate->about.name;
    bool head = reads_head(algo);
    bool kl_term = kg_algo_kl_in_loss(algo), iterative = is_iterative(algo);
    bool anchor = kl_term && (algo->kl->about.needs & KG_NEED_ANCHOR);
    bool mu_at = algo->surrogate->about.needs & KG_NEED_MU_AT;
    bool ids = head || mu_at, entropy = algo->entropy_coef != 0;
    const struct input inputs[] = {
        {true, b->logp, "logp", "every loss"},
        {true, b->old_logp, "old_logp", "every loss"},
        {true, b->advantage, "advantage", pg},
        {true, b->pg_weight, "pg_weight", pg},
        {true, g->a_logp, "room for a_logp", "every loss"},
        {anchor, iterative ? b->old_logp : b->anchor_logp, "anchor_logp", kl},
        {reads_exact(algo), b->kl_exact, "kl_exact", kl},
        {reads_exact(algo), g->a_kl_exact, "room for a_kl_exact", kl},
        {kl_term, b->kl_weight, "kl_weight", kl},
        {ids, b->ids, "ids", head ? kl : pg},
        {ids, b->tokens, "tokens", head ? kl : pg},
        {ids, b->logp_at, "logp_at", head ? kl : pg},
        {head,
         b->anchor_at ? b->anchor_at
         : iterative  ? b->mu_at
                      : NULL,
         "anchor_at", kl},
        {mu_at, b->mu_at, "mu_at", pg},
        {ids, g->a_at, "room for a_at", head ? kl : pg},
        {entropy, b->entropy, "entropy", "algo.entropy_coef"},
        {entropy, b->entropy_weight, "entropy_weight", "algo.entropy_coef"},
        {entropy, g->a_entropy, "room for a_entropy", "algo.entropy_coef"},
        {b->log_kept, b->old_log_kept, "old_log_kept", "log_kept"},
        {b->log_kept, g->a_log_kept, "room for a_log_kept", "log_kept"},
        {algo->surrogate->about.scope == KG_SCOPE_BATCH, b->selected, "selected", pg},
    };

    KG_TRY(first_missing(inputs, KG_COUNT(inputs), err));
    if (head &&
        algo->kl_top_k > (kg_kl_anchor_head(algo->kl) ? b->k_anchor : b->k_sampler))
        return kg_fail(
            err, KG_EINVAL, "kl.top_k: %s: expected %d recorded ids per token, found %d",
            kl, algo->kl_top_k, kg_kl_anchor_head(algo->kl) ? b->k_anchor : b->k_sampler);
    if (mu_at && algo->top_k > b->k_sampler)
        return kg_fail(err, KG_EINVAL,
                       "algo.top_k: %s: expected %d recorded ids per token, found %d", pg,
                       algo->top_k, b->k_sampler);
    return KG_OK;
}

static kg_status not_finite(const struct work *w, int64_t n, const char *what,
                            double found, struct kg_err *err)
{
    return kg_fail(err, KG_ENONFINITE,
                   "policy loss: sequence %lld, loss token %lld: expected a finite %s, "
                   "found %g (log-probs: current %g, old %g)",
                   (long long)w->seq, (long long)(n - w->b->seq_begin[w->seq]), what,
                   found, w->b->logp[n], w->b->old_logp[n]);
}

/* Rows clamp and take maxima, which would hide a NaN, so inputs are checked before. */
static kg_status check_finite(const struct work *w, int64_t begin, int64_t end,
                              struct kg_err *err)
{
    for (int64_t n = begin; n < end; n++) {
        const struct kg_pg_in *in = &w->in[n - begin];

        if (!isfinite(in->logp))
            return not_finite(w, n, "log-prob", in->logp, err);
        if (!isfinite(in->old) || !isfinite(in->mu))
            return not_finite(w, n, "old log-prob", isfinite(in->old) ? in->mu : in->old,
                              err);
        if (!isfinite(in->advantage))
            return not_finite(w, n, "advantage", in->advantage, err);
        if (!isfinite(in->is_weight))
            return not_finite(w, n, "importance weight", in->is_weight, err);
    }
    return KG_OK;
}

/* ---- policy term ---- */

/* outside: whether the weight was beyond a bound of algo.tis */
static double is_weight(const struct work *w, int64_t n, double sequence_log_weight,
                        bool *outside)
{
    const struct kg_policy_batch *b = w->b;
    const struct kg_algo *algo = w->algo;

    *outside = false;
    if (b->is_weight)
        return b->is_weight[n];
    if (!(algo->tis > 0) || !b->mu_logp)
        return 1;
    double x = algo->tis_sequence ? sequence_log_weight : b->old_logp[n] - b->mu_logp[n];
    x = kg_exp(fmax(fmin(x, 20), -20));
    *outside = x < algo->tis_low || x > algo->tis;
    if (*outside && algo->mask->pops)
        return 0;
    return fmin(fmax(x, algo->tis_low), algo->tis);
}

static double sequence_log_weight(const struct work *w, int64_t begin, int64_t end)
{
    double sum = 0;

    for (int64_t n = begin; w->b->mu_logp && n < end; n++)
        sum += w->b->old_logp[n] - w->b->mu_logp[n];
    return sum;
}

static void gather_pg(struct work *w, int64_t begin, int64_t end)
{
    const struct kg_policy_batch *b = w->b;
    double log_weight = sequence_log_weight(w, begin, end);

    for (int64_t n = begin; n < end; n++) {
        double kept = b->log_kept ? b->log_kept[n] : 0;
        double old_kept = b->log_kept ? b->old_log_kept[n] : 0;
        const double *mu = b->mu_logp ? b->mu_logp : b->old_logp;
        size_t at = (size_t)n * (size_t)w->k;
        bool outside;

        w->in[n - begin] = (struct kg_pg_in){
            .logp = b->logp[n] - kept,
            .old = b->old_logp[n] - old_kept,
            .mu = mu[n] - old_kept,
            .advantage = b->advantage[n],
            .is_weight = is_weight(w, n, log_weight, &outside),
            .ids = b->ids ? b->ids + at : NULL,
            .at = b->logp_at ? b->logp_at + at : NULL,
            .mu_at = b->mu_at ? b->mu_at + at : NULL,
            .k = b->k_sampler,
            .token = b->tokens ? b->tokens[n] : -1,
            .selected = b->selected && b->selected[n],
            .entropy = b->entropy ? b->entropy[n] : 0,
        };
        w->in[n - begin].outside = outside;
        w->out[n - begin] = (struct kg_pg_out){0};
    }
}

static kg_status finish_pg(struct work *w, int64_t n, const struct kg_pg_in *in,
                           const struct kg_pg_out *out, struct kg_err *err)
{
    struct kg_policy_grad *g = w->g;
    double factor = w->algo->surrogate->own_is ? 1 : in->is_weight;
    double weight = w->b->pg_weight[n];

    if (!isfinite(out->divergence))
        return not_finite(w, n, "divergence", out->divergence, err);
    if (!isfinite(out->value) || !isfinite(out->coef))
        return not_finite(w, n, "policy term",
                          isfinite(out->value) ? out->coef : out->value, err);
    g->a_logp[n] = weight * factor * out->coef;
    g->pg += weight * factor * out->value;
    if (g->a_log_kept)
        g->a_log_kept[n] = w->b->log_kept ? -g->a_logp[n] : 0;
    if (g->pg_term)
        g->pg_term[n] = factor * out->value;
    if (weight != 0)
        kg_policy_metrics_pg(&g->metrics, in, out, w->algo);
    return KG_OK;
}

static void mask_sequence(struct work *w, int64_t begin, int64_t end)
{
    bool masked;
    double divergence;

    if (!w->algo->mask->divergence || begin == end)
        return;
    divergence = kg_policy_mask(w->out, &masked, w->in, end - begin, w->algo);
    if (w->b->pg_weight[begin] != 0)
        kg_policy_metrics_mask(&w->g->metrics, divergence, masked);
}

static kg_status policy_term(struct work *w, struct kg_err *err)
{
    const struct kg_surrogate_row *row = w->algo->surrogate;
    struct kg_pg_call call = {w->algo, row};
    int64_t begin = w->b->seq_begin[w->seq], end = w->b->seq_begin[w->seq + 1];

    gather_pg(w, begin, end);
    KG_TRY(check_finite(w, begin, end, err));
    for (int64_t t = 0; row->token && t < end - begin; t++)
        row->token(&w->out[t], &w->in[t], call);
    if (row->sequence)
        row->sequence(w->out, w->in, end - begin, call);
    mask_sequence(w, begin, end);
    for (int64_t n = begin; n < end; n++)
        KG_TRY(finish_pg(w, n, &w->in[n - begin], &w->out[n - begin], err));
    return KG_OK;
}

/* ---- KL ---- */

static double importance(const struct kg_algo *algo, double log_ratio)
{
    if (!algo->kl_importance || !algo->kl->weighted)
        return 1;
    if (algo->kl_clamp)
        log_ratio = fmax(fmin(log_ratio, 20), -20);
    double s = kg_exp(log_ratio);
    if (algo->kl_iw_lower > 0)
        s = fmax(s, algo->kl_iw_lower);
    return algo->kl_iw_upper > 0 ? fmin(s, algo->kl_iw_upper) : s;
}

/* Without log-probs of an anchor, the anchor is the iterative one: the sampler. */
static struct kg_kl_in gather_kl(const struct work *w, int64_t n)
{
    const struct kg_policy_batch *b = w->b;
    const double *sampler = b->mu_logp ? b->mu_logp : b->old_logp;
    const double *anchor = b->anchor_logp ? b->anchor_logp : sampler;
    const double *anchor_at = b->anchor_at ? b->anchor_at : b->mu_at;
    size_t at = (size_t)n * (size_t)w->k +
                (size_t)(kg_kl_anchor_head(w->algo->kl) ? b->k_sampler : 0);
    bool head = reads_head(w->algo);

    return (struct kg_kl_in){
        .d = b->logp[n] - anchor[n],
        .s = importance(w->algo, b->logp[n] - b->old_logp[n]),
        .exact = b->kl_exact ? b->kl_exact[n] : 0,
        .ids = head ? b->ids + at : NULL,
        .at = head ? b->logp_at + at : NULL,
        .anchor_at = head ? anchor_at + at : NULL,
        .k = head ? w->algo->kl_top_k : 0,
        .token = b->tokens ? b->tokens[n] : -1,
    };
}

/* Scales the derivatives of the unweighted term, which are in `at`. */
static kg_status scale_head(struct work *w, int64_t n, const struct kg_kl_in *in,
                            double *at, double scale, struct kg_err *err)
{
    for (int j = 0; j < in->k; j++) {
        if (!isfinite(at[j]))
            return not_finite(w, n, "KL coefficient", at[j], err);
        at[j] *= scale;
    }
    return KG_OK;
}

static kg_status kl_token(struct work *w, int64_t n, struct kg_err *err)
{
    const struct kg_algo *algo = w->algo;
    struct kg_policy_grad *g = w->g;
    double divisor = w->b->kl_divisor != 0 ? w->b->kl_divisor : 1;
    double weight = w->b->kl_weight[n] / divisor, scale = algo->kl_beta * weight;
    struct kg_kl_in in = gather_kl(w, n);
    size_t at = (size_t)n * (size_t)w->k +
                (size_t)(kg_kl_anchor_head(algo->kl) ? w->b->k_sampler : 0);
    struct kg_kl_out out = {.at = in.k > 0 ? g->a_at + at : NULL};

    if (!isfinite(in.d))
        return not_finite(w, n, "log-ratio to the anchor", in.d, err);
    algo->kl->token(&out, &in, algo->kl, algo);
    if (!isfinite(out.value) || !isfinite(out.coef))
        return not_finite(w, n, "KL term", isfinite(out.value) ? out.coef : out.value,
                          err);
    KG_TRY(scale_head(w, n, &in, out.at, scale, err));
    g->a_logp[n] += scale * out.coef;
    if (reads_exact(algo))
        g->a_kl_exact[n] = scale * out.exact;
    g->kl += weight * out.value;
    if (g->kl_term)
        g->kl_term[n] = out.value / divisor;
    if (weight != 0)
        kg_policy_metrics_kl(&g->metrics, &in, &out);
    return KG_OK;
}

/* ---- entropy ---- */

static kg_status entropy_token(struct work *w, int64_t n, struct kg_err *err)
{
    struct kg_policy_grad *g = w->g;
    double h = w->b->entropy[n];

    if (!isfinite(h))
        return not_finite(w, n, "entropy", h, err);
    g->metrics.entropy_sum += h;
    g->metrics.entropy_tokens++;
    if (!w->b->entropy_weight)
        return KG_OK;
    g->entropy += w->b->entropy_weight[n] * h;
    if (g->a_entropy)
        g->a_entropy[n] = -w->algo->entropy_coef * w->b->entropy_weight[n];
    return KG_OK;
}

/* ---- the whole loss ---- */

static void clear(struct kg_policy_grad *g, const struct kg_policy_batch *b, int k)
{
    size_t n = (size_t)b->n_tokens;

    g->pg = g->kl = g->entropy = g->loss = 0;
    g->any = false;
    g->metrics = (struct kg_policy_metrics){.seqs = b->n_seqs, .tokens = b->n_tokens};
    if (g->a_at)
        memset(g->a_at, 0, n * (size_t)k * sizeof *g->a_at);
    if (g->a_entropy)
        memset(g->a_entropy, 0, n * sizeof *g->a_entropy);
    if (g->a_kl_exact)
        memset(g->a_kl_exact, 0, n * sizeof *g->a_kl_exact);
    if (g->kl_term)
        memset(g->kl_term, 0, n * sizeof *g->kl_term);
}

static bool any_nonzero(const double *x, size_t n)
{
    for (size_t i = 0; x && i < n; i++)
        if (x[i] != 0)
            return true;
    return false;
}

static kg_status evaluate(struct work *w, struct kg_err *err)
{
    const struct kg_policy_batch *b = w->b;
    struct kg_policy_grad *g = w->g;
    size_t n = (size_t)b->n_tokens;

    for (w->seq = 0; w->seq < b->n_seqs; w->seq++) {
        KG_TRY(policy_term(w, err));
        for (int64_t t = b->seq_begin[w->seq]; t < b->seq_begin[w->seq + 1]; t++) {
            if (kg_algo_kl_in_loss(w->algo))
                KG_TRY(kl_token(w, t, err));
            if (b->entropy)
                KG_TRY(entropy_token(w, t, err));
        }
    }
    g->loss = g->pg + w->algo->kl_beta * g->kl - w->algo->entropy_coef * g->entropy;
    g->any = any_nonzero(g->a_logp, n) || any_nonzero(g->a_at, n * (size_t)w->k) ||
             any_nonzero(g->a_entropy, n) || any_nonzero(g->a_kl_exact, n);
    return KG_OK;
}

kg_status kg_policy_loss(struct kg_policy_grad *grad, const struct kg_algo *algo,
                         const struct kg_policy_batch *batch, struct kg_err *err)
{
    struct work w = {algo, batch, grad, .k = batch->k_sampler + batch->k_anchor};
    int64_t longest = 1;

    KG_TRY(check_inputs(algo, batch, grad, err));
    for (int64_t i = 0; i < batch->n_seqs; i++)
        if (batch->seq_begin[i + 1] - batch->seq_begin[i] > longest)
            longest = batch->seq_begin[i + 1] - batch->seq_begin[i];
    clear(grad, batch, w.k);
    KG_TRY(kg_mem_new(&w.in, (size_t)longest, sizeof *w.in, "policy terms", err));
    w.out = kg_mem_calloc((size_t)longest, sizeof *w.out, "policy terms", err);
    kg_status status = w.out ? evaluate(&w, err) : err->code;
    kg_mem_free(w.out);
    kg_mem_free(w.in);
    return status;
}
