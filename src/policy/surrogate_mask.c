/* Trust-region masks: -A sg(min(r, C)) M log p with r = p / mu, everything but log p
 * detached; CPPO, whose bound moves along the sequence; IPO, whose mask is symmetric and
 * whose ratio is not; and DRPO, which turns back the term that a mask would remove.
 *
 * M is 0 where the update would lead further away from the sampler's policy and the
 * divergence (or the ratio) has already passed its bound. A > 0 is tested against "up",
 * anything else against "down"; A = 0 has no term, so its side does not matter.
 */
#include "base/real.h"
#include "policy/policy_internal.h"

#include <math.h>
#include <stdlib.h>

enum { LOG_RATIO_MAX = 20 };

/* Divergence over at most k + 2 buckets: the recorded ids, the sampled token if it is not
 * among them, and one bucket for the rest. */
struct buckets {
    double tv, kl, mu_left, p_left;
};

static void add_bucket(struct buckets *b, double log_mu, double log_p)
{
    double mu = kg_exp(log_mu), p = kg_exp(log_p);

    b->tv += fabs(mu - p);
    b->kl += mu == 0 ? 0 : mu * (log_mu - log_p); /* NaN stays NaN */
    b->mu_left -= mu;
    b->p_left -= p;
}

void kg_pg_topk_divergence(double *tv, double *kl, const struct kg_pg_in *in, int k)
{
    struct buckets b = {0, 0, 1, 1};
    bool found = false;

    for (int j = 0; j < k && j < in->k; j++) {
        if (in->ids[j] < 0)
            continue;
        found = found || in->ids[j] == in->token;
        add_bucket(&b, in->mu_at[j], in->at[j]);
    }
    if (!found)
        add_bucket(&b, in->mu, in->logp);
    b.mu_left = fmax(b.mu_left, 1e-12);
    b.p_left = fmax(b.p_left, 1e-12);
    *tv = (b.tv + fabs(b.mu_left - b.p_left)) / 2;
    *kl = b.kl + b.mu_left * kg_log(b.mu_left / b.p_left);
}

/* mu log(mu / p) + (1 - mu) log((1 - mu) / (1 - p)), with 1e-8 in the second logarithm */
static double binary_kl(double log_mu, double log_p)
{
    /* by rounding, a log-prob from fp32 can be above 0 */
    double not_mu = fmax(-kg_expm1(log_mu), 0), not_p = fmax(-kg_expm1(log_p), 0);

    return kg_exp(log_mu) * (log_mu - log_p) +
           not_mu * kg_log((not_mu + 1e-8) / (not_p + 1e-8));
}

/* Whether the row's divergence test drops the token. */
static bool divergence_drops(struct kg_pg_out *out, const struct kg_pg_in *in,
                             struct kg_pg_call call)
{
    int kind = call.row->kind;
    bool to_old = kind == KG_MASK_BINARY_TV_OLD || kind == KG_MASK_BINARY_KL_OLD;
    double center = to_old ? in->old : in->mu;
    bool up = in->advantage > 0;
    double tv, kl;

    if (kind == KG_MASK_TOPK_TV || kind == KG_MASK_TOPK_KL) {
        kg_pg_topk_divergence(&tv, &kl, in, call.algo->top_k);
        out->divergence = kind == KG_MASK_TOPK_TV ? tv : kl;
    } else if (kind == KG_MASK_BINARY_TV || kind == KG_MASK_BINARY_TV_OLD) {
        out->divergence = fabs(kg_exp(in->logp) - kg_exp(center));
    } else {
        out->divergence = binary_kl(center, in->logp);
    }
    if (up)
        return in->logp > center && out->divergence > call.algo->delta_high;
    return in->logp < center && out->divergence > call.algo->delta_low;
}

static bool ratio_drops(const struct kg_pg_in *in, struct kg_pg_call call)
{
    const struct kg_algo *algo = call.algo;
    int kind = call.row->kind;
    double center = kind == KG_MASK_RATIO_OLD ? in->old : in->mu;
    double r = kg_exp(fmin(in->logp - center, LOG_RATIO_MAX));
    bool relax_up = kind == KG_MASK_RELAX_POSITIVE || kind == KG_MASK_RELAX_BOTH;
    bool relax_down = kind == KG_MASK_RELAX_NEGATIVE || kind == KG_MASK_RELAX_BOTH;

    if (in->advantage > 0)
        return relax_up ? r > 1.28 && kg_exp(in->mu) >= algo->delta_high
                        : r > 1 + algo->clip_high;
    return relax_down ? r < 0.8 && kg_exp(in->mu) >= algo->delta_low
                      : r < 1 - algo->clip_low;
}

/* Sets the term of a token.   drop: the trust region removes it */
static void close_term(struct kg_pg_out *out, const struct kg_pg_in *in,
                       const struct kg_algo *algo, bool drop)
{
    double r = kg_exp(fmin(in->logp - in->mu, LOG_RATIO_MAX)), weight = r;

    if (algo->truncate > 0)
        weight = fmin(r, algo->truncate);
    out->ratio = r;
    out->masked = drop;
    out->clips = drop && in->advantage != 0;
    out->clips_lower = drop && in->advantage < 0;
    out->value = drop ? 0 : -in->advantage * weight * in->logp;
    out->coef = drop ? 0 : -in->advantage * weight;
}

void kg_pg_mask(struct kg_pg_out *out, const struct kg_pg_in *in, struct kg_pg_call call)
{
    bool drop = false;

    if (call.row->divergence)
        drop = divergence_drops(out, in, call);
    else if (call.row->kind != KG_MASK_NEVER)
        drop = ratio_drops(in, call);
    close_term(out, in, call.algo, drop);
}

static int by_divergence(const void *a, const void *b)
{
    double x = ((const struct kg_pg_out *)a)->divergence;
    double y = ((const struct kg_pg_out *)b)->divergence;

    return (x > y) - (x < y);
}

/* The 90th percentile of the n divergences in out, interpolated linearly and clamped to
 * [budget, 2 budget]. Sorts out. */
static double calibrated(struct kg_pg_out *out, int64_t n, double budget)
{
    double at = 0.9 * (double)(n - 1), high;
    int64_t i = (int64_t)at;

    qsort(out, (size_t)n, sizeof *out, by_divergence);
    high = out[i + 1 < n ? i + 1 : i].divergence;
    at -= (double)i;
    at = out[i].divergence + at * (high - out[i].divergence);
    return fmin(fmax(at, budget), 2 * budget);
}

/* w_t falls linearly from 1 (first token) to prefix_weight (last), Z_t = w_t |p - mu|. A
 * step away from mu is kept while Z_t <= delta minus the prefix's excess over its budget:
 * Z_t <= delta + min(0, budget W - S), S = sum_{j<t} Z_j, W = sum_{j<t} w_j. */
void kg_pg_cppo(struct kg_pg_out *out, const struct kg_pg_in *in, int64_t n,
                struct kg_pg_call call)
{
    const struct kg_algo *algo = call.algo;
    double budget = algo->prefix_budget, slack = 0;

    for (int64_t t = 0; t < n; t++)
        out[t].divergence = fabs(kg_exp(in[t].logp) - kg_exp(in[t].mu));
    if (call.row->kind == KG_CPPO_CALIBRATED && n > 0)
        budget = calibrated(out, n, budget);
    for (int64_t t = 0; t < n; t++) {
        double w = 1 -
                   (1 - algo->prefix_weight) * (double)t / (double)(n > 1 ? n - 1 : 1);
        double delta = in[t].advantage > 0 ? algo->delta_high : algo->delta_low, z;
        bool away = in[t].advantage * (in[t].logp - in[t].mu) > 0;

        out[t].divergence = fabs(kg_exp(in[t].logp) - kg_exp(in[t].mu));
        z = w * out[t].divergence;
        close_term(&out[t], &in[t], algo, away && z > delta + fmin(0, slack));
        slack += budget * w - z;
    }
}

/* -A r M + beta (log r)^2, differentiable. M is 0 if p is further than delta from mu, in
 * either direction and for any advantage.  d/dlog p = -A r M + 2 beta log r */
void kg_pg_ipo(struct kg_pg_out *out, const struct kg_pg_in *in, struct kg_pg_call call)
{
    const struct kg_algo *algo = call.algo;
    double x = in->logp - in->mu, r = kg_exp(fmin(x, LOG_RATIO_MAX));
    double gap = kg_exp(in->logp) - kg_exp(in->mu);
    bool drop = gap > algo->delta_high || -gap > algo->delta_low;

    out->ratio = r;
    out->divergence = fabs(gap);
    out->masked = drop;
    out->clips = drop && in->advantage != 0;
    out->clips_lower = drop && in->advantage < 0;
    out->value = (drop ? 0 : -in->advantage * r) + algo->kl_beta * x * x;
    out->coef = (drop || x > LOG_RATIO_MAX ? 0 : -in->advantage * r) +
                2 * algo->kl_beta * x;
}

/* -A r + |A| mu (r - 1)^2 / (2 delta), and with mu (r - 1) = p - mu
 *     dvalue/dlog p = -A r (1 - sign(A) (p - mu) / delta):
 * 0 where a mask with that delta begins; beyond it, the gradient leads back to mu */
void kg_pg_drpo(struct kg_pg_out *out, const struct kg_pg_in *in, struct kg_pg_call call)
{
    double a = in->advantage, x = in->logp - in->mu;
    double r = kg_exp(fmax(fmin(x, LOG_RATIO_MAX), -LOG_RATIO_MAX)), mu = kg_exp(in->mu);
    double delta = a > 0 ? call.algo->delta_high : call.algo->delta_low;
    double pull = fabs(a) * mu * (r - 1) / delta;

    out->ratio = r;
    out->divergence = fabs(kg_exp(in->logp) - mu);
    out->value = -a * r + pull * (r - 1) / 2;
    out->coef = fabs(x) <= LOG_RATIO_MAX ? (pull - a) * r : 0;
}
