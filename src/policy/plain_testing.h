/* A second, plain implementation of the losses: dense over a small vocabulary, directly
 * from the formulas, one term after another. It shares only the numbers of struct kg_algo
 * and the names of its rows with policy/.
 *
 * The primitive is the logit. Everything is computed in complex numbers: a logit gets an
 * imaginary part of 1e-20, and the derivative is the imaginary part of the loss, exact to
 * all digits because nothing is subtracted. A detached value is the real part.
 */
#ifndef KG_POLICY_PLAIN_TESTING_H
#define KG_POLICY_PLAIN_TESTING_H

#include "policy/policy_testing.h"

#include <complex.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { PLAIN_V = 24, PLAIN_N = 40, PLAIN_S = 8, PLAIN_K = 8 };

struct plain {
    const struct kg_algo *algo;
    int vocab, n_seqs, begin[PLAIN_S + 1];
    bool drop[PLAIN_S];
    int y[PLAIN_N];
    double z[PLAIN_N][PLAIN_V]; /* logits of the policy */
    /* log-probs of the anchor, the old policy and the sampler */
    double lq[PLAIN_N][PLAIN_V], lo[PLAIN_N][PLAIN_V], mu[PLAIN_N][PLAIN_V];
    double advantage[PLAIN_N];
    double is[PLAIN_N]; /* detached factor of the policy term */
    bool truncated; /* y is one of the kept ids, and ratios are renormalised on them */
    bool kept[PLAIN_N][PLAIN_V];
    /* top ids of the sampler and of the anchor, the largest first; -1: none */
    int sampler_top[PLAIN_N][PLAIN_K], anchor_top[PLAIN_N][PLAIN_K];
    double divisor; /* of the KL; 0: none */
};

/* One sequence, with everything that its terms read. */
struct plain_seq {
    const struct plain *p;
    int begin, end;
    double complex lp[PLAIN_N][PLAIN_V]; /* log-probs of the policy, from begin on */
    double complex x[PLAIN_N];           /* of y; renormalised if p->truncated */
    double old[PLAIN_N], mu[PLAIN_N];
};

/* ---- numbers ---- */

static inline double sg(double complex x) { return creal(x); }

static inline double complex plain_max(double complex a, double complex b)
{
    return creal(b) > creal(a) ? b : a;
}
static inline double complex plain_min(double complex a, double complex b)
{
    return creal(b) < creal(a) ? b : a;
}
static inline double complex plain_clip(double complex x, double low, double high)
{
    return creal(x) < low ? low : creal(x) > high ? high : x;
}
static inline double complex plain_abs(double complex x)
{
    return creal(x) < 0 ? -x : creal(x) > 0 ? x : 0;
}
static inline bool plain_is(const char *name, const char *other)
{
    return strcmp(name, other) == 0;
}
static inline bool plain_has(const char *name, const char *part)
{
    return strstr(name, part) != NULL;
}

/* log softmax of token n's logits; logit v carries the step */
static inline void plain_log_softmax(double complex *lp, const struct plain *p, int n,
                                     int v, double step)
{
    double complex sum = 0;
    double most = p->z[n][0];

    for (int u = 1; u < p->vocab; u++)
        most = fmax(most, p->z[n][u]);
    for (int u = 0; u < p->vocab; u++) {
        lp[u] = p->z[n][u] - most + (u == v ? step * I : 0);
        sum += cexp(lp[u]);
    }
    for (int u = 0; u < p->vocab; u++)
        lp[u] -= clog(sum);
}

/* log mass of the kept ids under these log-probs; 0 if all ids were kept */
static inline double complex plain_log_kept(const struct plain *p, int n,
                                            const double complex *lp)
{
    double complex sum = 0;

    if (!p->truncated)
        return 0;
    for (int v = 0; v < p->vocab; v++)
        sum += p->kept[n][v] ? cexp(lp[v]) : 0;
    return clog(sum);
}

static inline double plain_old_log_kept(const struct plain *p, int n)
{
    double complex lo[PLAIN_V];

    for (int v = 0; v < p->vocab; v++)
        lo[v] = p->lo[n][v];
    return creal(plain_log_kept(p, n, lo));
}

/* ---- weights ---- */

static inline bool plain_counts(const struct plain *p, int s, bool filtered)
{
    return p->begin[s + 1] > p->begin[s] && !(filtered && p->drop[s]);
}

/* The weight of every token of sequence s. */
static inline double plain_weight(const struct plain *p, int s, bool filtered)
{
    const char *mode = kg_algo_row_name(p->algo, KG_TABLE_AGGREGATE);
    double tokens = 0, seqs = 0, length = p->begin[s + 1] - p->begin[s];

    if (!plain_counts(p, s, filtered))
        return 0;
    for (int i = 0; i < p->n_seqs; i++) {
        tokens += plain_counts(p, i, filtered) ? p->begin[i + 1] - p->begin[i] : 0;
        seqs += plain_counts(p, i, filtered);
    }
    if (plain_is(mode, "token-mean"))
        return 1 / tokens;
    if (plain_is(mode, "token-sum"))
        return 1;
    if (plain_is(mode, "seq-mean-token-sum"))
        return 1 / seqs;
    if (plain_is(mode, "seq-mean-token-mean"))
        return 1 / (length + p->algo->count_eps) / seqs;
    if (plain_is(mode, "seq-mean-token-norm"))
        return 1 / (p->algo->length_norm * seqs);
    return 1 / p->algo->length_norm;
}

/* ---- policy terms of one token ---- */

static inline double complex plain_ppo(double complex r, double complex a,
                                       const struct kg_algo *g, double dual)
{
    double complex l = plain_max(-r * a,
                                 -plain_clip(r, 1 - g->clip_low, 1 + g->clip_high) * a);

    return dual > 0 && creal(a) < 0 ? plain_min(l, -dual * a) : l;
}

static inline double complex plain_ratio(double complex n, const struct kg_algo *g)
{
    double c = g->ratio_clamp;

    return cexp(c > 0 ? plain_clip(n, -c, c) : n);
}

/* DPPO's masks at the current values: does the token stay? */
static inline bool plain_region(const struct plain_seq *q, int n, const char *row)
{
    const struct plain *p = q->p;
    const struct kg_algo *g = p->algo;
    double center = plain_has(row, "-old") ? q->old[n] : q->mu[n];
    double pi = exp(sg(q->x[n])), m = exp(center), d = 0;
    bool up = p->advantage[n] > 0;

    if (plain_has(row, "tv"))
        d = fabs(m - pi);
    else
        d = m * (center - sg(q->x[n])) +
            fmax(1 - m, 0) * log((fmax(1 - m, 0) + 1e-8) / (fmax(1 - pi, 0) + 1e-8));
    if (plain_has(row, "topk")) {
        double tv = 0, kl = 0, rest_m = 1, rest_p = 1;
        bool in[PLAIN_V] = {false};

        in[p->y[n]] = true;
        for (int j = 0; j < g->top_k; j++)
            if (p->sampler_top[n][j] >= 0)
                in[p->sampler_top[n][j]] = true;
        for (int v = 0; v < p->vocab; v++) {
            double mv = exp(p->mu[n][v]), pv = exp(sg(q->lp[n - q->begin][v]));

            if (!in[v])
                continue;
            tv += fabs(mv - pv), rest_m -= mv, rest_p -= pv;
            kl += mv > 0 ? mv * (p->mu[n][v] - sg(q->lp[n - q->begin][v])) : 0;
        }
        rest_m = fmax(rest_m, 1e-12), rest_p = fmax(rest_p, 1e-12);
        d = plain_has(row, "tv") ? (tv + fabs(rest_m - rest_p)) / 2
                                 : kl + rest_m * log(rest_m / rest_p);
    }
    if (up)
        return !(pi > m && d > g->delta_high);
    return !(pi < m && d > g->delta_low);
}

static inline bool plain_ratio_region(const struct plain_seq *q, int n, const char *row)
{
    const struct kg_algo *g = q->p->algo;
    double to = plain_is(row, "minirl") ? q->old[n] : q->mu[n];
    double r = exp(sg(q->x[n]) - to), m = exp(q->mu[n]);
    bool up = q->p->advantage[n] > 0;

    if (plain_is(row, "pg-is"))
        return true;
    if (up && (plain_has(row, "-positive") || plain_has(row, "-both")))
        return !(r > 1.28 && m >= g->delta_high);
    if (!up && (plain_has(row, "-negative") || plain_has(row, "-both")))
        return !(r < 0.8 && m >= g->delta_low);
    return up ? !(r > 1 + g->clip_high) : !(r < 1 - g->clip_low);
}

static inline double complex plain_dppo(const struct plain_seq *q, int n, const char *row)
{
    double c = q->p->algo->truncate;
    double rho = exp(fmin(sg(q->x[n]) - q->mu[n], 20));
    bool stays = plain_has(row, "dppo") ? plain_region(q, n, row)
                                        : plain_ratio_region(q, n, row);

    if (c > 0)
        rho = fmin(rho, c);
    return stays ? -q->p->advantage[n] * rho * q->x[n] : 0;
}

static inline double complex plain_ipo(const struct plain_seq *q, int n)
{
    const struct kg_algo *g = q->p->algo;
    double complex x = q->x[n] - q->mu[n];
    double gap = exp(sg(q->x[n])) - exp(q->mu[n]);
    bool far = gap > g->delta_high || gap < -g->delta_low;

    return (far ? 0 : -q->p->advantage[n] * cexp(plain_min(x, 20))) + g->kl_beta * x * x;
}

static inline double complex plain_drpo(const struct plain_seq *q, int n)
{
    const struct kg_algo *g = q->p->algo;
    double a = q->p->advantage[n], delta = a > 0 ? g->delta_high : g->delta_low;
    double complex r = cexp(plain_clip(q->x[n] - q->mu[n], -20, 20));

    return -a * r + fabs(a) * exp(q->mu[n]) * (r - 1) * (r - 1) / (2 * delta);
}

/* Whether a row of the RPG family has the KL of this name. */
static inline bool plain_kl_is(const char *row, const char *name)
{
    const char *at = strstr(row, name);

    return at && at[-1] == '-';
}

static inline double complex plain_rpg(const struct plain_seq *q, int n, const char *row)
{
    const struct kg_algo *g = q->p->algo;
    double c = g->ratio_clamp;
    double complex x = q->x[n] - q->old[n], a = q->p->advantage[n], loss;

    x = c > 0 ? plain_clip(x, -c, c) : x;
    if (plain_kl_is(row, "rkl"))
        a -= g->kl_beta * (x + 1);
    if (plain_kl_is(row, "urkl"))
        a -= g->kl_beta * x;
    loss = plain_ppo(cexp(x), g->rpg_detach ? sg(a) : a, g, g->dual_clip);
    if (plain_kl_is(row, "fkl"))
        loss -= g->kl_beta * x;
    if (plain_kl_is(row, "ufkl"))
        loss += g->kl_beta * (cexp(x) - x - 1);
    return loss;
}

static inline double plain_component(const char *row, double w)
{
    if (plain_kl_is(row, "ufkl"))
        return 1 - w;
    if (plain_kl_is(row, "urkl"))
        return -w * log(w);
    return plain_kl_is(row, "fkl") ? 1 : -w * (log(w) + 1);
}

/* Algorithm 2 */
static inline double complex plain_algorithm_2(const struct plain_seq *q, int n,
                                               const char *row)
{
    const struct kg_algo *g = q->p->algo;
    double w = exp(sg(q->x[n]) - q->old[n]), a = q->p->advantage[n];
    double k = g->kl_beta * plain_component(row, w), dual = g->dual_clip;
    double complex l = -q->x[n];

    if (a + k / w >= 0)
        return w < 1 + g->clip_high ? (w * a + k) * l
                                    : ((1 + g->clip_high) * a + k) * sg(l);
    if (w <= 1 - g->clip_low)
        return ((1 - g->clip_low) * a + k) * sg(l);
    return !(dual > 0) || w < dual ? (w * a + k) * l : (dual * a + k) * sg(l);
}

/* The released variants: no suffix, _clip_ppo, _clip_ppo_v3 */
static inline double complex plain_released(const struct plain_seq *q, int n,
                                            const char *row)
{
    const struct kg_algo *g = q->p->algo;
    double w = exp(sg(q->x[n]) - q->old[n]), a = q->p->advantage[n];
    double low = 1 - g->clip_low, high = 1 + g->clip_high, lp = sg(q->x[n]);
    double wb = fmin(fmax(w, low), high), k = g->kl_beta * plain_component(row, wb);
    double complex x = (a * w + k) * q->x[n];
    double complex l1 = w < high ? x : a * lp * high - k * lp;
    double complex l21 = w < low ? a * lp * low - k * lp : x;
    double complex l2 = !(g->dual_clip > 0) || w < g->dual_clip
                            ? l21
                            : a * lp * g->dual_clip + k * lp;

    if (!plain_has(row, "clip-ppo"))
        return -(a * wb + k) * q->x[n];
    if (plain_has(row, "v3"))
        return (a + k / w) * lp > 0 ? -l1 : -l2;
    return a > 0 ? -l1 : -l2;
}

static inline double complex plain_token(const struct plain_seq *q, int n,
                                         const char *row, bool selected)
{
    const struct kg_algo *g = q->p->algo;
    double a = q->p->advantage[n], tau = a > 0 ? g->tau_pos : g->tau_neg;
    double complex d = q->x[n] - q->old[n], r = plain_ratio(d, g);

    if (plain_is(row, "none"))
        return 0;
    if (plain_is(row, "ppo-clip"))
        return plain_ppo(r, a, g, g->dual_clip);
    if (plain_is(row, "reinforce") || plain_is(row, "gpg"))
        return -a * q->x[n];
    if (plain_is(row, "importance"))
        return -a * r;
    if (plain_is(row, "cispo"))
        return -sg(plain_clip(r, 1 - g->clip_low, 1 + g->clip_high)) * a * q->x[n];
    if (plain_is(row, "sapo"))
        return -a / (1 + cexp(-tau * (r - 1))) * 4 / tau;
    if (plain_is(row, "clip-cov"))
        return selected ? 0 : plain_ppo(cexp(d), a, g, g->dual_clip);
    if (plain_is(row, "kl-cov"))
        return -a * cexp(d) + (selected ? g->cov_coef * plain_abs(d) : 0);
    if (plain_has(row, "m2po"))
        return selected ? 0 : -a * cexp(d);
    if (plain_is(row, "drpo"))
        return plain_drpo(q, n);
    if (plain_is(row, "ipo"))
        return plain_ipo(q, n);
    if (plain_has(row, "rpg-reinforce"))
        return plain_algorithm_2(q, n, row);
    if (plain_has(row, "rpg-rf"))
        return plain_released(q, n, row);
    if (plain_has(row, "rpg-"))
        return plain_rpg(q, n, row);
    if (!plain_has(row, "dppo-") && !plain_has(row, "ratio-") &&
        !plain_is(row, "pg-is") && !plain_is(row, "minirl"))
        fail_msg("plain_testing.h: the surrogate '%s' is not written there", row);
    return plain_dppo(q, n, row);
}

/* ---- policy terms of a whole sequence ---- */

/* Does token n keep its policy term under algo.mask? */
static inline bool plain_unmasked(const struct plain_seq *q, int n)
{
    const char *mask = kg_algo_row_name(q->p->algo, KG_TABLE_MASK);
    double far = 0, gap = sg(q->x[n]) - q->mu[n];

    if (plain_is(mask, "vaco-old"))
        gap = q->old[n] - q->mu[n];
    if (plain_has(mask, "vaco") && !(q->p->advantage[n] * gap > 0))
        return true;
    if (plain_is(mask, "none") || plain_is(mask, "icepop") ||
        (plain_has(mask, "off-policy") && q->p->advantage[n] >= 0))
        return true;
    for (int t = q->begin; t < q->end; t++) {
        double from = plain_has(mask, "-old") ? q->old[t] : q->mu[t];
        double x = fmin(fmax(sg(q->x[t]) - from, -20), 20);

        if (plain_is(mask, "trm-max"))
            far = fmax(far, x * x / 2);
        else if (plain_is(mask, "vaco"))
            far += fabs(exp(x) - 1) / 2 / (q->end - q->begin);
        else if (plain_is(mask, "vaco-old"))
            far += fabs(exp(q->old[t] - q->mu[t]) - 1) / (q->end - q->begin);
        else
            far += (plain_is(mask, "trm-mean") ? exp(x) - 1 - x : -x) /
                   (q->end - q->begin);
    }
    return far <= q->p->algo->mask_delta;
}

/* s_t = sg(s) p_t / sg(p_t), log s limited to 10 */
static inline double complex plain_gspo(const struct plain_seq *q)
{
    double complex sum = 0;
    double mean = 0;

    for (int n = q->begin; n < q->end; n++)
        mean += (sg(q->x[n]) - q->old[n]) / (q->end - q->begin);
    for (int n = q->begin; n < q->end; n++) {
        double complex log_s = plain_min(10, mean + q->x[n] - sg(q->x[n]));

        if (plain_unmasked(q, n))
            sum += plain_ppo(cexp(log_s), q->p->advantage[n], q->p->algo, 0) *
                   q->p->is[n];
    }
    return sum;
}

static inline double complex plain_vespo(const struct plain_seq *q)
{
    const struct kg_algo *g = q->p->algo;
    bool negative = q->p->advantage[q->begin] < 0;
    double k = negative ? g->vespo_k_neg : g->vespo_k_pos;
    double lambda = negative ? g->vespo_lambda_neg : g->vespo_lambda_pos, log_w = 0, w;
    double complex sum = 0;

    for (int n = q->begin; n < q->end; n++)
        log_w += fmin(fmax(sg(q->x[n]) - q->mu[n], -20), 20);
    w = exp(fmin(fmax(log_w, -20), 20));
    for (int n = q->begin; n < q->end; n++)
        if (plain_unmasked(q, n))
            sum -= pow(fmax(w, 1e-8), k) * exp(lambda * (1 - w)) * q->p->advantage[n] *
                   q->x[n] * q->p->is[n];
    return sum;
}

/* The budget of a sequence: the 90th percentile of its distances, interpolated, but from
 * `least` to 2 least. */
static inline double plain_prefix_budget(const double *far, int n, double least)
{
    double at = 0.9 * (n - 1), sorted[PLAIN_N], x;

    for (int i = 0; i < n; i++) {
        int rank = 0;

        for (int j = 0; j < n; j++)
            rank += far[j] < far[i] || (far[j] == far[i] && j < i);
        sorted[rank] = far[i];
    }
    x = sorted[(int)ceil(at)] * (at - floor(at)) +
        sorted[(int)floor(at)] * (1 - at + floor(at));
    return fmin(fmax(x, least), 2 * least);
}

static inline double complex plain_cppo(const struct plain_seq *q)
{
    const struct kg_algo *g = q->p->algo;
    bool released = plain_has(kg_algo_row_name(g, KG_TABLE_SURROGATE), "-calibrated");
    int n = q->end - q->begin;
    double far[PLAIN_N], budget = g->prefix_budget, S = 0, W = 0;
    double complex sum = 0;

    for (int i = 0; i < n; i++)
        far[i] = fabs(exp(sg(q->x[q->begin + i])) - exp(q->mu[q->begin + i]));
    if (released)
        budget = plain_prefix_budget(far, n, budget);
    for (int i = 0; i < n; i++) {
        int t = q->begin + i;
        double w = 1 + (g->prefix_weight - 1) * i / fmax(n - 1, 1);
        double a = q->p->advantage[t], delta = a > 0 ? g->delta_high : g->delta_low;
        double rho = exp(fmin(sg(q->x[t]) - q->mu[t], 20));
        bool stays = a * (rho - 1) <= 0 ||
                     w * far[i] <= fmin(delta, delta + budget * W - S);

        if (g->truncate > 0)
            rho = fmin(rho, g->truncate);
        if (stays && plain_unmasked(q, t))
            sum -= q->p->is[t] * a * rho * q->x[t];
        S += w * far[i], W += w;
    }
    return sum;
}

static inline double complex plain_gmpo(const struct plain_seq *q)
{
    const struct kg_algo *g = q->p->algo;
    double n_eps = q->end - q->begin + g->count_eps, a = 0, is = 0;
    double complex sum = 0;

    for (int n = q->begin; n < q->end; n++) {
        double one = q->p->advantage[n];
        double complex x = q->x[n] - q->old[n];

        a += one / n_eps;
        is += q->p->is[n] == 1 ? 0 : log(q->p->is[n] + 1e-10) / n_eps;
        if (one != 0)
            sum += (one > 0 ? plain_min(x, g->clip_high) : plain_max(x, -g->clip_low)) /
                   n_eps;
    }
    return plain_unmasked(q, q->begin) ? -(q->end - q->begin) * a * cexp(sum) * exp(is)
                                       : 0;
}

/* ---- KL terms ---- */

static inline double complex plain_k3(double complex d, bool clamp)
{
    double complex x = clamp ? plain_clip(-d, -20, 20) : -d;
    double complex value = cexp(x) - x - 1;

    return clamp ? plain_clip(value, -10, 10) : value;
}

static inline double complex plain_k5(double complex d, double complex log_r, bool clamp)
{
    double complex x = clamp ? plain_clip(-d, -20, 20) : -d;

    return exp(sg(x)) * x + log_r;
}

/* These names are taken from the RPG code; u = exp(d) */
static inline double complex plain_kind(const char *row, double complex d, bool clamp)
{
    double complex u = cexp(d), value;

    if (plain_is(row, "rpg-fkl"))
        return -d;
    if (plain_is(row, "rpg-rkl"))
        value = u * d;
    else if (plain_is(row, "rpg-ufkl"))
        value = u - d - 1;
    else if (plain_is(row, "rpg-urkl"))
        value = u * (d - 1) + 1;
    else
        value = (u * d + (plain_is(row, "jeffreys") ? -d : d)) / 2;
    return clamp ? plain_clip(value, -10, 10) : value;
}

static inline double complex plain_exact(const struct plain_seq *q, int n, bool forward)
{
    double complex sum = 0;

    for (int v = 0; v < q->p->vocab; v++) {
        double complex lp = q->lp[n - q->begin][v];
        double lq = q->p->lq[n][v];

        sum += forward ? exp(lq) * (lq - lp) : cexp(lp) * (lp - lq);
    }
    return sum;
}

static inline double complex plain_topk(const struct plain_seq *q, int n, bool forward,
                                        double s)
{
    const struct kg_algo *g = q->p->algo;
    const int *top = forward ? q->p->anchor_top[n] : q->p->sampler_top[n];
    double complex sum = 0, lp_y = q->lp[n - q->begin][q->p->y[n]];
    double complex d = lp_y - q->p->lq[n][q->p->y[n]], log_r = lp_y - sg(lp_y);
    bool tail = g->kl_tail;

    for (int j = 0; j < g->kl_top_k; j++) {
        double complex lp;
        double lq;

        if (top[j] < 0)
            continue;
        lp = q->lp[n - q->begin][top[j]];
        lq = q->p->lq[n][top[j]];
        tail = tail && top[j] != q->p->y[n];
        if (forward)
            sum += exp(lq) * (lq - lp) + (g->kl_corrected ? cexp(lp) - exp(sg(lp)) : 0);
        else
            sum += cexp(lp) * (g->kl_corrected ? sg(lp) - lq : lp - lq);
    }
    if (!tail)
        return sum;
    return sum + s * (forward ? plain_k5(d, log_r, g->kl_clamp) : cexp(log_r) * sg(d));
}

/* The KL of both policies renormalised on the anchor's top k. */
static inline double complex plain_truncated(const struct plain_seq *q, int n,
                                             bool forward)
{
    const int *top = q->p->anchor_top[n];
    double complex mass = 0, sum = 0;
    double anchor_mass = 0;
    int k = q->p->algo->kl_top_k;

    for (int j = 0; j < k && top[j] >= 0; j++) {
        mass += cexp(q->lp[n - q->begin][top[j]]);
        anchor_mass += exp(q->p->lq[n][top[j]]);
    }
    for (int j = 0; j < k && top[j] >= 0; j++) {
        double complex log_a = q->lp[n - q->begin][top[j]] - clog(mass);
        double log_b = q->p->lq[n][top[j]] - log(anchor_mass);

        sum += forward ? exp(log_b) * (log_b - log_a) : cexp(log_a) * (log_a - log_b);
    }
    return sum;
}

/* The KL over the anchor's top k and one event for the rest; or MOPD's sum. */
static inline double complex plain_coarse(const struct plain_seq *q, int n,
                                          const char *row)
{
    const int *top = q->p->anchor_top[n];
    double complex rest = 1, sum = 0;
    double anchor_rest = 1;

    for (int j = 0; j < q->p->algo->kl_top_k && top[j] >= 0; j++) {
        double complex lp = q->lp[n - q->begin][top[j]];
        double lq = q->p->lq[n][top[j]];

        rest -= cexp(lp);
        anchor_rest -= exp(lq);
        sum += plain_has(row, "forward") ? exp(lq) * (lq - lp) : cexp(lp) * (lp - lq);
        if (plain_has(row, "generalised"))
            sum += exp(lq) - cexp(lp);
    }
    rest = plain_max(rest, 1e-7);
    anchor_rest = fmax(anchor_rest, 1e-7);
    if (plain_has(row, "generalised"))
        return sum;
    return sum + (plain_has(row, "forward")
                      ? anchor_rest * (log(anchor_rest) - clog(rest))
                      : rest * (clog(rest) - log(anchor_rest)));
}

static inline double plain_importance(const struct plain_seq *q, int n)
{
    const struct kg_algo *g = q->p->algo;
    int y = q->p->y[n];
    double x = sg(q->lp[n - q->begin][y]) - q->p->lo[n][y], s;

    if (!g->kl_importance)
        return 1;
    s = exp(g->kl_clamp ? fmin(fmax(x, -20), 20) : x);
    if (g->kl_iw_lower > 0)
        s = fmax(s, g->kl_iw_lower);
    return g->kl_iw_upper > 0 ? fmin(s, g->kl_iw_upper) : s;
}

static inline double complex plain_kl(const struct plain_seq *q, int n)
{
    const char *row = kg_algo_row_name(q->p->algo, KG_TABLE_KL);
    double complex lp = q->lp[n - q->begin][q->p->y[n]], d = lp - q->p->lq[n][q->p->y[n]];
    double complex log_r = lp - sg(lp);
    bool clamp = q->p->algo->kl_clamp;
    double s = plain_importance(q, n);

    if (plain_is(row, "none"))
        return 0;
    if (plain_has(row, "exact-"))
        return plain_exact(q, n, plain_has(row, "forward"));
    if (plain_has(row, "topk-"))
        return plain_topk(q, n, plain_has(row, "forward"), s);
    if (plain_is(row, "k1"))
        return s * d;
    if (plain_is(row, "k2"))
        return s * d * d / 2;
    if (plain_is(row, "k3"))
        return s * plain_k3(d, clamp);
    if (plain_is(row, "k3++"))
        return s * cexp(log_r) * plain_k3(d, clamp);
    if (plain_is(row, "k4"))
        return s * cexp(log_r) * sg(d);
    if (plain_is(row, "k5"))
        return s * plain_k5(d, log_r, clamp);
    if (plain_is(row, "abs"))
        return s * plain_abs(d);
    if (plain_has(row, "truncated-"))
        return plain_truncated(q, n, plain_has(row, "forward"));
    if (plain_has(row, "bucket-") || plain_has(row, "generalised-"))
        return plain_coarse(q, n, row);
    if (!plain_has(row, "rpg-") && !plain_has(row, "jeffreys"))
        fail_msg("plain_testing.h: the KL '%s' is not written there", row);
    return plain_kind(row, d, clamp);
}

/* ---- which tokens are selected ---- */

static inline bool plain_unclipped(const struct kg_algo *g, double a, double r)
{
    return !(a > 0 && r > 1 + g->clip_high) && !(a < 0 && r < 1 - g->clip_low);
}

static inline int plain_covariances(double *cov, bool *in, const struct plain *p,
                                    const double *x)
{
    double mean_a = 0, mean_x = 0;
    int n = 0;

    for (int s = 0; s < p->n_seqs; s++)
        for (int t = p->begin[s]; t < p->begin[s + 1]; t++) {
            in[t] = plain_weight(p, s, true) != 0;
            n += in[t];
            mean_a += in[t] ? p->advantage[t] : 0;
            mean_x += in[t] ? x[t] : 0;
        }
    for (int t = 0; t < p->begin[p->n_seqs]; t++)
        cov[t] = in[t] ? (p->advantage[t] - mean_a / n) * (x[t] - mean_x / n) : 0;
    return n;
}

/* Is the mean of (log r)^2 within the budget if squares above `most` are left out, or
 * clipped to it? */
static inline bool plain_within(const struct plain *p, const double *square, double most,
                                bool cut)
{
    double sum = 0;
    int n = 0;

    for (int t = 0; t < p->begin[p->n_seqs]; t++)
        if (square[t] > 0 && (cut || square[t] <= most))
            sum += fmin(square[t], most), n++;
    return n == 0 || sum / n <= p->algo->m2_budget;
}

/* M2PO: the bound is the largest square that keeps the mean within the budget. The
 * released code also selects that token. */
static inline int plain_second_moment(bool *may, const struct plain *p, const double *x,
                                      const double *old)
{
    bool cut = plain_has(kg_algo_row_name(p->algo, KG_TABLE_SURROGATE), "-released");
    double square[PLAIN_N] = {0}, bound = 0;
    int found = 0, n = p->begin[p->n_seqs];

    for (int s = 0; s < p->n_seqs; s++)
        for (int t = p->begin[s]; t < p->begin[s + 1]; t++)
            if (plain_weight(p, s, true) != 0 && p->advantage[t] * (x[t] - old[t]) > 0)
                square[t] = (x[t] - old[t]) * (x[t] - old[t]);
    for (int t = 0; t < n; t++)
        if (plain_within(p, square, square[t], cut))
            bound = fmax(bound, square[t]);
    for (int t = 0; t < n; t++) {
        may[t] = square[t] > bound;
        if (cut && !plain_within(p, square, INFINITY, true))
            may[t] = square[t] > 0 && square[t] >= bound &&
                     !plain_unclipped(p->algo, p->advantage[t], exp(x[t] - old[t]));
        found += may[t];
    }
    return found;
}

/* Which tokens may be selected, and how many are. x, old (N) in the ratio's frame.
 * kl-cov: exactly the share with the largest covariance; clip-cov: any of the unclipped
 * tokens inside the bounds. */
static inline int plain_candidates(bool *may, const struct plain *p, const double *x,
                                   const double *old)
{
    const struct kg_algo *g = p->algo;
    bool largest = plain_is(kg_algo_row_name(g, KG_TABLE_SURROGATE), "kl-cov");
    bool in[PLAIN_N] = {false};
    double cov[PLAIN_N];
    int n = plain_covariances(cov, in, p, x), found = 0;
    int most = (int)fmin(fmax(floor(n * g->cov_ratio), 1), n);

    memset(may, 0, PLAIN_N * sizeof *may);
    if (plain_has(kg_algo_row_name(g, KG_TABLE_SURROGATE), "m2po"))
        return plain_second_moment(may, p, x, old);
    for (int i = 0; largest && i < most; i++) {
        int best = -1;

        for (int t = 0; t < p->begin[p->n_seqs]; t++)
            if (in[t] && !may[t] && (best < 0 || cov[t] > cov[best]))
                best = t;
        may[best] = true;
    }
    for (int t = 0; !largest && t < p->begin[p->n_seqs]; t++) {
        may[t] = in[t] && cov[t] > g->cov_low && cov[t] < g->cov_high &&
                 plain_unclipped(g, p->advantage[t], exp(x[t] - old[t]));
        found += may[t];
    }
    return largest || found > most ? most : found;
}

/* ---- the whole update ---- */

static inline void plain_read(struct plain_seq *q, const struct plain *p, int s, int n,
                              int v, double step)
{
    q->p = p;
    q->begin = p->begin[s], q->end = p->begin[s + 1];
    for (int t = q->begin; t < q->end; t++) {
        double complex *lp = q->lp[t - q->begin];
        double kept = plain_old_log_kept(p, t);

        plain_log_softmax(lp, p, t, t == n ? v : -1, step);
        q->x[t] = lp[p->y[t]] - plain_log_kept(p, t, lp);
        q->old[t] = p->lo[t][p->y[t]] - kept;
        q->mu[t] = p->mu[t][p->y[t]] - kept;
    }
}

static inline double complex plain_entropy(const struct plain_seq *q, int n)
{
    double complex sum = 0;

    for (int v = 0; v < q->p->vocab; v++)
        sum -= cexp(q->lp[n - q->begin][v]) * q->lp[n - q->begin][v];
    return sum;
}

/* The loss of sequence s; logit v of token n (-1: none) carries an imaginary step. */
static inline double complex plain_loss(const struct plain *p, const bool *selected,
                                        int s, int n, int v, double step)
{
    const struct kg_algo *g = p->algo;
    const char *row = kg_algo_row_name(g, KG_TABLE_SURROGATE);
    double complex pg = 0, kl = 0, entropy = 0;
    double weight = plain_weight(p, s, true);
    bool in_loss = plain_is(kg_algo_row_name(g, KG_TABLE_PLACE), "loss");
    static const struct {
        const char *name;
        double complex (*term)(const struct plain_seq *q);
    } whole[] = {{"gspo", plain_gspo},
                 {"gmpo", plain_gmpo},
                 {"vespo", plain_vespo},
                 {"cppo", plain_cppo},
                 {"cppo-calibrated", plain_cppo}};
    bool of_sequence = false;
    static struct plain_seq q;

    plain_read(&q, p, s, n, v, step);
    for (int i = 0; i < 5 && q.end > q.begin; i++)
        if (plain_is(row, whole[i].name))
            pg = whole[i].term(&q), of_sequence = true;
    for (int t = q.begin; t < q.end; t++) {
        if (!of_sequence && plain_unmasked(&q, t))
            pg += p->is[t] * plain_token(&q, t, row, selected[t]);
        if (in_loss) /* otherwise it is part of the advantages */
            kl += plain_kl(&q, t) / (p->divisor > 0 ? p->divisor : 1);
        entropy += plain_entropy(&q, t);
    }
    /* 0 times infinity counts as 0 here */
    pg = weight != 0 ? weight * pg : 0;
    entropy = g->entropy_coef != 0 ? weight * g->entropy_coef * entropy : 0;
    kl = g->kl_beta != 0 ? g->kl_beta * plain_weight(p, s, g->kl_after_filter) * kl : 0;
    return pg + kl - entropy;
}

#endif
