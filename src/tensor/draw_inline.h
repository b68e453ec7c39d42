/* The functions that draw a token from a row of logits, compiled for the host sampler
 * (rollout/sampler.c, which explains them) and for device kernels. Sums have a fixed
 * order, so both return the same token and the same bits. */
#ifndef KG_TENSOR_DRAW_INLINE_H
#define KG_TENSOR_DRAW_INLINE_H

#include "base/real_inline.h"
#include "tensor/backend.h"

/* Prefix of each function; device code needs its own qualifier. */
#ifndef KG_DRAW
#define KG_DRAW static inline
#endif

/* ---- the whole vocabulary ---- */
/* Probabilities of a block are summed in KG_DRAW_SUMS interleaved sums, which are then
 * added in order. */
enum { KG_DRAW_BLOCK = 512, KG_DRAW_SUMS = 8, KG_DRAW_MOST_SPANS = 1024 };

union kg_draw_bits {
    float f;
    int32_t i;
};

/* exp(x) for x < 0, relative error below 1e-6: 2^n times a polynomial on [-ln 2 / 2, ln 2
 * / 2]; 0 below -80. It uses plain multiplications, additions and integer selections
 * (bits of negative floats order them in reverse), so that all machines get the same bits
 * and compilers can vectorise it. */
KG_DRAW float kg_draw_exp(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    union kg_draw_bits limit, t, scale, y;
    limit.f = -80.0f;
    t.f = x;
    int32_t in_range = -(int32_t)(t.i < limit.i);
    t.i = t.i < limit.i ? t.i : limit.i;
    float n = (t.f * 1.44269504f + magic) - magic;
    float r = (t.f - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    scale.i = ((int32_t)n + 127) * (1 << 23);
    y.f = p * scale.f;
    y.i &= in_range;
    return y.f;
}

/* A bound slightly above the log-sum-exp, so that z - above < 0 in spite of rounding.
 * Probabilities are divided by their total, which cancels the bound. */
KG_DRAW float kg_draw_above(double lse) { return (float)(lse + 1e-3 + 1e-6 * fabs(lse)); }

/* n logits of a row, divided into at most KG_DRAW_MOST_SPANS spans of whole blocks. */
struct kg_draw_part {
    const float *z;
    int32_t n;
    int32_t span; /* logits per span; one block for a vocabulary up to 524,288 */
    float above;
};

KG_DRAW struct kg_draw_part kg_draw_part(const float *z, int32_t n, float above)
{
    int32_t blocks = 1 + (n - 1) / (KG_DRAW_BLOCK * KG_DRAW_MOST_SPANS);
    struct kg_draw_part part = {z, n, KG_DRAW_BLOCK * blocks, above};
    return part;
}

KG_DRAW int32_t kg_draw_spans(const struct kg_draw_part *part)
{
    return (part->n + part->span - 1) / part->span;
}

/* Sums x in order. Here and in kg_draw_find, the inner loop lets device code load
 * KG_DRAW_AT_ONCE values before it adds them. */
enum { KG_DRAW_AT_ONCE = 16 };
KG_DRAW double kg_draw_sum(const double *x, int32_t n)
{
    double sum = 0;
    int32_t i = 0;
    for (; i + KG_DRAW_AT_ONCE <= n; i += KG_DRAW_AT_ONCE)
        for (int32_t j = 0; j < KG_DRAW_AT_ONCE; j++)
            sum += x[i + j];
    for (; i < n; i++)
        sum += x[i];
    return sum;
}

/* The first index of x (no x[i] is below 0) at which the running sum exceeds *target; if
 * rounding leaves *target at or above the total, the last index with x[i] above 0. The
 * running sum before that element is subtracted from *target. */
KG_DRAW int32_t kg_draw_find(double *target, const double *x, int32_t n)
{
    double before = 0;
    int32_t i = 0;
    for (; i + KG_DRAW_AT_ONCE <= n; i += KG_DRAW_AT_ONCE) {
        double sum = before;
        for (int32_t j = 0; j < KG_DRAW_AT_ONCE; j++)
            sum += x[i + j];
        if (sum > *target)
            break;
        before = sum;
    }
    for (; i < n && before + x[i] <= *target; i++)
        before += x[i];
    if (i == n) {
        for (i = n - 1; i > 0 && !(x[i] > 0); i--)
            ;
        before = kg_draw_sum(x, i);
    }
    *target -= before;
    return i;
}

/* ---- truncated ---- */
struct kg_draw_candidate {
    float z;
    int32_t id;
};

/* The order of candidates: largest logit first, ties by smaller id. */
KG_DRAW bool kg_draw_before(struct kg_draw_candidate a, struct kg_draw_candidate b)
{
    return a.z > b.z || (a.z == b.z && a.id < b.id);
}

/* Weight of candidate i relative to candidate 0. Below, w[i] is this weight. */
KG_DRAW double kg_draw_weight(const struct kg_draw_candidate *c, int32_t i)
{
    return kg_real_exp((double)c[i].z - (double)c[0].z);
}

KG_DRAW bool kg_draw_top_k_is_on(const struct kg_draw *d, int32_t vocab)
{
    return d->top_k > 0 && d->top_k < vocab;
}

KG_DRAW bool kg_draw_truncates(const struct kg_draw *d, int32_t vocab)
{
    return !d->greedy && (d->top_p < 1 || d->min_p > 0 || kg_draw_top_k_is_on(d, vocab));
}

/* Logits this far below the largest one fail min_p (the depth includes a margin for
 * rounding). With top-k, top-p is a share of all k candidates, so min_p must not exclude
 * any: the depth is infinite. */
KG_DRAW float kg_draw_deepest(const struct kg_draw *d, int32_t vocab)
{
    if (d->min_p <= 0 || (kg_draw_top_k_is_on(d, vocab) && d->top_p < 1))
        return INFINITY;
    return 0.01f - (float)kg_real_log((double)d->min_p);
}

/* The first search takes candidates at most kg_draw_depth below the largest logit. Each
 * further search doubles the depth; beyond kg_draw_last_depth it takes all ids. */
static const float kg_draw_depth = 6;
static const float kg_draw_last_depth = 100;

/* Whether the first n candidates in order (all ids above some floor) suffice to decide
 * which ids are kept. w (n), for top-p only; total: the mass that top_p is a share of. */
KG_DRAW bool kg_draw_enough(const double *w, int32_t n, const struct kg_draw *d,
                            int32_t vocab, double total)
{
    if (kg_draw_top_k_is_on(d, vocab))
        return n >= d->top_k;
    return d->top_p < 1 && kg_draw_sum(w, n) >= (double)d->top_p * total;
}

/* Number of candidates that top-k, if on, keeps of n: ties with the k-th, too. */
KG_DRAW int32_t kg_draw_keep_top_k(const struct kg_draw_candidate *c, int32_t n,
                                   const struct kg_draw *d, int32_t vocab)
{
    if (!kg_draw_top_k_is_on(d, vocab) || d->top_k >= n)
        return n;
    int32_t m = d->top_k;
    while (m < n && c[m].z == c[d->top_k - 1].z)
        m++;
    return m;
}

/* total: the mass that top_p is a share of. */
KG_DRAW int32_t kg_draw_keep_top_p(const double *w, int32_t n, double top_p, double total)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        if (i > 0 && sum >= top_p * total)
            return i;
        sum += w[i];
    }
    return n;
}

KG_DRAW int32_t kg_draw_keep_min_p(const double *w, int32_t n, double min_p)
{
    int32_t m = 1;
    while (m < n && w[m] >= min_p)
        m++;
    return m;
}

/* Number of candidates that top-p and min_p keep of the n that top-k kept. total: as in
 * kg_draw_enough */
KG_DRAW int32_t kg_draw_keep(const double *w, int32_t n, const struct kg_draw *d,
                             int32_t vocab, double total)
{
    if (d->top_p < 1) {
        double share_of = kg_draw_top_k_is_on(d, vocab) ? kg_draw_sum(w, n) : total;
        n = kg_draw_keep_top_p(w, n, (double)d->top_p, share_of);
    }
    return d->min_p > 0 ? kg_draw_keep_min_p(w, n, (double)d->min_p) : n;
}

/* The index among the n kept candidates at which the running sum exceeds target. */
KG_DRAW int32_t kg_draw_walk(const double *w, int32_t n, double target)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += w[i];
        if (sum > target)
            return i;
    }
    return n - 1;
}

/* Draws from the n kept candidates: sets token, n_kept and cut. */
KG_DRAW void kg_draw_take(struct kg_drawn *out, const struct kg_draw_candidate *c,
                          const double *w, int32_t n, int32_t vocab, double u, double lse)
{
    double sum = kg_draw_sum(w, n);
    double log_mass = kg_real_log(sum) + (double)c[0].z - lse;
    out->token = c[kg_draw_walk(w, n, u * sum)].id;
    out->n_kept = n == vocab ? 0 : n;
    out->cut = out->n_kept > 0 && log_mass < 0 ? (float)-log_mass : 0;
}

#endif
