/* The text of drawing a token from a row of logits, for the two who do it: the sampler
 * on the host (rollout/sampler.c, which explains it) and kernels of devices. Sums are
 * made in the order of what they add, so both return the same token and the same bits.
 */
#ifndef KG_TENSOR_DRAW_INLINE_H
#define KG_TENSOR_DRAW_INLINE_H

#include "base/real_inline.h"
#include "tensor/backend.h"

/* What stands before each function: a compiler of device code wants a word of its own. */
#ifndef KG_DRAW
#define KG_DRAW static inline
#endif

/* ---- the whole vocabulary ---- */
/* Probabilities of a block are added in so many sums of every eighth, then those in
 * order. */
enum { KG_DRAW_BLOCK = 512, KG_DRAW_SUMS = 8, KG_DRAW_MOST_SPANS = 1024 };

union kg_draw_bits {
    float f;
    int32_t i;
};

/* exp(x) for x < 0, relative error below 1e-6: 2^n times a polynomial on [-ln 2 / 2, ln 2
 * / 2]; 0 below -80. Plain multiplications and additions, and selections on integers
 * (negative floats are ordered by their bits, the other way round), so that every machine
 * gets the same bits and the compiler can use its lanes. */
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

/* A little above the log sum exp, for z - above < 0 whatever the rounding; the total of
 * the sums takes the factor out again. */
KG_DRAW float kg_draw_above(double lse) { return (float)(lse + 1e-3 + 1e-6 * fabs(lse)); }

/* A part of the row, cut into at most KG_DRAW_MOST_SPANS spans of whole blocks. */
struct kg_draw_part {
    const float *z;
    int32_t n;
    int32_t span; /* a block up to a vocabulary of 524,288 */
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

/* In order. */
KG_DRAW double kg_draw_sum(const double *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

/* The span in which the running sum passes *target, which becomes what is left of it
 * there. */
KG_DRAW int32_t kg_draw_find(double *target, const double *sums, int32_t n)
{
    double before = 0;
    double rest = 0;
    int32_t found = 0;
    for (int32_t i = 0; i < n; i++) {
        if (sums[i] > 0) {
            found = i;
            rest = *target - before;
        }
        before += sums[i];
        if (before > *target)
            break;
    }
    *target = rest;
    return found;
}

/* The first id of the block at which the running sum passes target; rounding may leave
 * target beyond the end, then the last id that has any probability. */
KG_DRAW int32_t kg_draw_walk_block(const float *p, double target)
{
    double sum = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < KG_DRAW_BLOCK; i++) {
        sum += (double)p[i];
        if (sum > target)
            return i;
        if (p[i] > 0)
            last = i;
    }
    return last;
}

/* ---- truncated ---- */
struct kg_draw_candidate {
    float z;
    int32_t id;
};

/* The order of candidates: falling logit, rising id. */
KG_DRAW bool kg_draw_before(struct kg_draw_candidate a, struct kg_draw_candidate b)
{
    return a.z > b.z || (a.z == b.z && a.id < b.id);
}

/* Weights below are those of candidates in order, relative to the first. */
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

/* Below this much under the largest logit min_p keeps nothing (a little lower, for
 * rounding). Top-p after top-k is a share of all k, so there min_p may not narrow the
 * candidates. */
KG_DRAW float kg_draw_deepest(const struct kg_draw *d, int32_t vocab)
{
    if (d->min_p <= 0 || (kg_draw_top_k_is_on(d, vocab) && d->top_p < 1))
        return INFINITY;
    return 0.01f - (float)kg_real_log((double)d->min_p);
}

/* Candidates are looked for this deep under the largest logit first, then twice as deep,
 * and beyond the second number all at once. */
static const float kg_draw_depth = 6;
static const float kg_draw_last_depth = 100;

/* Whether the n candidates in order, all that are above some floor, are enough to tell
 * what is kept. w (n), looked at for top-p alone; total: the mass that it is a share
 * of. */
KG_DRAW bool kg_draw_enough(const double *w, int32_t n, const struct kg_draw *d,
                            int32_t vocab, double total)
{
    if (kg_draw_top_k_is_on(d, vocab))
        return n >= d->top_k;
    return d->top_p < 1 && kg_draw_sum(w, n) >= (double)d->top_p * total;
}

/* How many of n top-k leaves, where it is on. */
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

/* How many of the n that top-k left are kept.   total: as kg_draw_enough's */
KG_DRAW int32_t kg_draw_keep(const double *w, int32_t n, const struct kg_draw *d,
                             int32_t vocab, double total)
{
    if (d->top_p < 1) {
        double share_of = kg_draw_top_k_is_on(d, vocab) ? kg_draw_sum(w, n) : total;
        n = kg_draw_keep_top_p(w, n, (double)d->top_p, share_of);
    }
    return d->min_p > 0 ? kg_draw_keep_min_p(w, n, (double)d->min_p) : n;
}

/* Which of the n that are kept. */
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

/* Of the n that are kept: token, n_kept and cut. */
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
