/* One token from one row of logits.
 *
 * Without truncation the row is walked once: sums of exp(z - lse) over blocks of the
 * vocabulary find the block in which u falls, a walk through this block the id. With
 * truncation only the likeliest ids are collected and sorted: each truncation keeps a
 * prefix of the ids in the order (falling logit, rising id), so together they keep the
 * shortest of their prefixes.
 *
 * Not here: the random number (base/rng.h), the log sum exp (the head), EOS and stop
 * strings (rollout.c).
 */
#include "rollout/sampler.h"

#include "base/mem.h"
#include "base/real.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 512,
    LANES = 8,
    MOST_SPANS = 1024,
    THREADED = 32768, /* ids from which one row's sums are worth waking threads */
    MOST_ADDED = 1000000
};

kg_status kg_sampler_scratch_grow(struct kg_sampler_scratch *scratch,
                                  const struct kg_sampling *s, int32_t vocab,
                                  struct kg_err *err)
{
    static const char what[] = "scratch of sampling";
    size_t n = (size_t)vocab;
    bool truncates = kg_sampler_truncates(s, vocab);
    if (truncates && scratch->candidates == NULL)
        scratch->candidates = kg_mem_calloc(n, sizeof *scratch->candidates, what, err);
    if (s->adjust && scratch->adjusted == NULL)
        scratch->adjusted = kg_mem_calloc(n, sizeof *scratch->adjusted, what, err);
    if (s->adjust && scratch->times == NULL)
        scratch->times = kg_mem_calloc(n, sizeof *scratch->times, what, err);
    if (truncates && scratch->words == NULL)
        scratch->words = kg_mem_calloc((n + 63) / 64, sizeof *scratch->words, what, err);
    bool there = (!truncates || (scratch->candidates && scratch->words)) &&
                 (!s->adjust || (scratch->adjusted && scratch->times));
    return there ? KG_OK : err->code;
}

void kg_sampler_scratch_release(struct kg_sampler_scratch *scratch)
{
    kg_mem_free(scratch->candidates);
    kg_mem_free(scratch->adjusted);
    kg_mem_free(scratch->times);
    kg_mem_free(scratch->words);
    *scratch = (struct kg_sampler_scratch){0};
}

void kg_sampler_pick_release(struct kg_sampler_pick *pick)
{
    kg_mem_free(pick->room);
    *pick = (struct kg_sampler_pick){0};
}

static kg_status check_stops(const struct kg_sampling *s, struct kg_err *err)
{
    if (s->n_stops < 0 || s->n_stops > KG_MAX_STOPS)
        return kg_fail(err, KG_EINVAL,
                       "at most %d stop strings are allowed, %d were given", KG_MAX_STOPS,
                       s->n_stops);
    for (int i = 0; i < s->n_stops; i++) {
        size_t n = strlen(s->stops[i]);
        if (n == 0 || n > KG_MAX_STOP_BYTES)
            return kg_fail(err, KG_EINVAL,
                           "stop string %d has %zu bytes, expected between 1 and %d",
                           i + 1, n, KG_MAX_STOP_BYTES);
    }
    return KG_OK;
}

static kg_status check_adjust(const struct kg_sampling *s, struct kg_err *err)
{
    const struct kg_adjust *a = s->adjust;
    if (a == NULL)
        return KG_OK;
    if (s->record_kept)
        return kg_fail(err, KG_EINVAL,
                       "kept ids cannot be recorded where logits are adjusted");
    if (!(fabsf(a->presence) <= MOST_ADDED && fabsf(a->frequency) <= MOST_ADDED))
        return kg_fail(err, KG_EINVAL,
                       "penalties must be between -%d and %d, presence is %g and "
                       "frequency %g",
                       MOST_ADDED, MOST_ADDED, (double)a->presence, (double)a->frequency);
    for (size_t i = 0; i < a->n_bias; i++)
        if (!(fabsf(a->bias[i].add) <= MOST_ADDED))
            return kg_fail(err, KG_EINVAL,
                           "the bias of id %d must be between -%d and %d, it is %g",
                           a->bias[i].id, MOST_ADDED, MOST_ADDED, (double)a->bias[i].add);
    return KG_OK;
}

kg_status kg_sampler_check(const struct kg_sampling *s, struct kg_err *err)
{
    if (!(s->temperature == 0 || (s->temperature >= 1e-4f && s->temperature <= 1e4f)))
        return kg_fail(err, KG_EINVAL,
                       "temperature must be 0 or between 0.0001 and 10000, it is %g",
                       (double)s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return kg_fail(err, KG_EINVAL, "top-p must be above 0 and at most 1, it is %g",
                       (double)s->top_p);
    if (s->top_k < 0)
        return kg_fail(err, KG_EINVAL, "top-k must be 0 (off) or more, it is %d",
                       s->top_k);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return kg_fail(err, KG_EINVAL, "min-p must be between 0 and 1, it is %g",
                       (double)s->min_p);
    if (s->max_tokens < 1)
        return kg_fail(err, KG_EINVAL, "max tokens must be at least 1, it is %d",
                       s->max_tokens);
    KG_TRY(check_adjust(s, err));
    return check_stops(s, err);
}

static bool top_k_is_on(const struct kg_sampling *s, int32_t vocab)
{
    return s->top_k > 0 && s->top_k < vocab;
}

bool kg_sampler_truncates(const struct kg_sampling *s, int32_t vocab)
{
    return s->temperature > 0 && (s->top_p < 1 || s->min_p > 0 || top_k_is_on(s, vocab));
}

static int32_t argmax(const float *z, int32_t n)
{
    int32_t best = 0;
    for (int32_t v = 1; v < n; v++)
        if (z[v] > z[best])
            best = v;
    return best;
}

/* ---- the whole vocabulary ---- */

union bits {
    float f;
    int32_t i;
};

/* exp(x) for x < 0, relative error below 1e-6: 2^n times a polynomial on [-ln 2 / 2, ln 2
 * / 2]; 0 below -80. Plain multiplications and additions, and selections on integers
 * (negative floats are ordered by their bits, the other way round), so that every machine
 * gets the same bits and the compiler can use its lanes. */
static inline float exp_neg(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    const union bits limit = {.f = -80.0f};
    union bits t = {.f = x};
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
    union bits scale = {.i = ((int32_t)n + 127) * (1 << 23)};
    union bits y = {.f = p * scale.f};
    y.i &= in_range;
    return y.f;
}

/* p (BLOCK) = exp(z - above), 0 beyond n. */
static void block_probs(float *p, const float *z, int32_t n, float above)
{
    float x[BLOCK];
    memcpy(x, z, (size_t)n * sizeof *x);
    for (int32_t i = n; i < BLOCK; i++)
        x[i] = -FLT_MAX;
#pragma omp simd
    for (int32_t i = 0; i < BLOCK; i++)
        p[i] = exp_neg(x[i] - above);
}

static double block_sum(const float *p)
{
    double lane[LANES] = {0};
    for (int32_t i = 0; i < BLOCK; i += LANES)
#pragma omp simd
        for (int32_t j = 0; j < LANES; j++)
            lane[j] += (double)p[i + j];
    double sum = 0;
    for (int32_t j = 0; j < LANES; j++)
        sum += lane[j];
    return sum;
}

static int32_t min_i32(int32_t a, int32_t b) { return a < b ? a : b; }

/* The first id of the block at which the running sum passes target; rounding may leave
 * target beyond the end, then the last id that has any probability. */
static int32_t walk_block(const float *p, double target)
{
    double sum = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < BLOCK; i++) {
        sum += (double)p[i];
        if (sum > target)
            return i;
        if (p[i] > 0)
            last = i;
    }
    return last;
}

/* A part of the row, cut into at most MOST_SPANS spans of whole blocks. */
struct part {
    const float *z;
    int32_t n;
    int32_t span; /* BLOCK up to a vocabulary of 524,288 */
    float above;
};

static struct part part_of(const float *z, int32_t n, float above)
{
    return (struct part){z, n, BLOCK * (1 + (n - 1) / (BLOCK * MOST_SPANS)), above};
}

static int32_t spans_of(const struct part *part)
{
    return (part->n + part->span - 1) / part->span;
}

/* Of exp(z - above). */
static double span_sum(const struct part *part, int32_t i)
{
    float p[BLOCK];
    double sum = 0;
    int32_t end = min_i32((i + 1) * part->span, part->n);
    for (int32_t v = i * part->span; v < end; v += BLOCK) {
        block_probs(p, part->z + v, min_i32(BLOCK, end - v), part->above);
        sum += block_sum(p);
    }
    return sum;
}

/* Spans are independent of each other: threads share them where they are free.
 * returns the sum of sums, in order */
static double sum_spans(double sums[MOST_SPANS], const struct part *part)
{
    int32_t n = spans_of(part);
    double total = 0;
#pragma omp parallel for schedule(static) if (part->n >= THREADED && !omp_in_parallel())
    for (int32_t i = 0; i < n; i++)
        sums[i] = span_sum(part, i);
    for (int32_t i = 0; i < n; i++)
        total += sums[i];
    return total;
}

/* The span in which the running sum passes *target, which becomes what is left of it
 * there. */
static int32_t find_span(double *target, const double *sums, int32_t n)
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

static int32_t draw_full(const struct kg_sampler_row *row, double u)
{
    double sums[MOST_SPANS];
    float p[BLOCK];
    /* A little above the log sum exp, for z - above < 0 whatever the rounding; the total
     * takes the factor out again. */
    float above = (float)(row->lse + 1e-3 + 1e-6 * fabs(row->lse));
    struct part part = part_of(row->z, row->vocab, above);
    double target = u * sum_spans(sums, &part);
    int32_t found = find_span(&target, sums, spans_of(&part)) * part.span;
    while (part.span > BLOCK) {
        part = part_of(row->z + found, min_i32(part.span, row->vocab - found), above);
        sum_spans(sums, &part);
        found += find_span(&target, sums, spans_of(&part)) * part.span;
    }
    block_probs(p, row->z + found, min_i32(BLOCK, row->vocab - found), above);
    return found + walk_block(p, target);
}

/* ---- truncated ---- */

static int by_falling_logit(const void *a, const void *b)
{
    const struct kg_sampler_candidate *x = a;
    const struct kg_sampler_candidate *y = b;
    if (x->z != y->z)
        return x->z > y->z ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static int32_t collect(struct kg_sampler_candidate *c, const struct kg_sampler_row *row,
                       float floor)
{
    int32_t n = 0;
    for (int32_t v = 0; v < row->vocab; v++) {
        c[n] = (struct kg_sampler_candidate){row->z[v], v};
        n += row->z[v] >= floor;
    }
    return n;
}

/* Weights below are relative to the largest logit: exp(z - z_0). */
static double weight(const struct kg_sampler_candidate *c, int32_t i)
{
    return kg_exp((double)c[i].z - (double)c[0].z);
}

static double sum_weights(const struct kg_sampler_candidate *c, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += weight(c, i);
    return sum;
}

/* Whether the n sorted candidates, all that are above some floor, are enough to tell what
 * is kept. */
static bool enough(const struct kg_sampler_candidate *c, int32_t n,
                   const struct kg_sampling *s, int32_t vocab, double total)
{
    if (top_k_is_on(s, vocab))
        return n >= s->top_k;
    if (s->top_p >= 1)
        return false;
    return sum_weights(c, n) >= (double)s->top_p * total;
}

/* Below this much under the largest logit min_p keeps nothing (a little lower, for
 * rounding). Top-p after top-k is a share of all k, so there min_p may not narrow the
 * candidates. */
static float min_p_depth(const struct kg_sampling *s, int32_t vocab)
{
    if (s->min_p <= 0 || (top_k_is_on(s, vocab) && s->top_p < 1))
        return INFINITY;
    return 0.01f - (float)kg_log((double)s->min_p);
}

/* Candidates in order: at least all that truncation keeps. The floor falls until they
 * suffice. */
static int32_t gather(struct kg_sampler_candidate *c, const struct kg_sampler_row *row,
                      const struct kg_sampling *s, float largest)
{
    double total = kg_exp(row->lse - (double)largest);
    float deepest = min_p_depth(s, row->vocab);
    for (float depth = 6;; depth *= 2) {
        bool last = depth > 100 || depth >= deepest;
        int32_t n = collect(c, row, largest - (last ? deepest : depth));
        qsort(c, (size_t)n, sizeof *c, by_falling_logit);
        if (last || enough(c, n, s, row->vocab, total))
            return n;
    }
}

static int32_t keep_top_k(const struct kg_sampler_candidate *c, int32_t n, int32_t k)
{
    if (k <= 0 || k >= n)
        return n;
    int32_t m = k;
    while (m < n && c[m].z == c[k - 1].z)
        m++;
    return m;
}

/* total: the mass that top_p is a share of. */
static int32_t keep_top_p(const struct kg_sampler_candidate *c, int32_t n, double top_p,
                          double total)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        if (i > 0 && sum >= top_p * total)
            return i;
        sum += weight(c, i);
    }
    return n;
}

static int32_t keep_min_p(const struct kg_sampler_candidate *c, int32_t n, double min_p)
{
    int32_t m = 1;
    while (m < n && weight(c, m) >= min_p)
        m++;
    return m;
}

/* Number of candidates that are kept. */
static int32_t truncate_row(struct kg_sampler_candidate *c,
                            const struct kg_sampler_row *row, const struct kg_sampling *s)
{
    float largest = row->z[argmax(row->z, row->vocab)];
    int32_t n = gather(c, row, s, largest);
    bool k_is_on = top_k_is_on(s, row->vocab);
    if (k_is_on)
        n = keep_top_k(c, n, s->top_k);
    if (s->top_p < 1) {
        double total = k_is_on ? sum_weights(c, n) : kg_exp(row->lse - (double)largest);
        n = keep_top_p(c, n, (double)s->top_p, total);
    }
    return s->min_p > 0 ? keep_min_p(c, n, (double)s->min_p) : n;
}

static int32_t walk_candidates(const struct kg_sampler_candidate *c, int32_t n, double u)
{
    double target = u * sum_weights(c, n);
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += weight(c, i);
        if (sum > target)
            return c[i].id;
    }
    return c[n - 1].id;
}

/* Packed by way of a bitmap, which is cleared again. */
static kg_status record_kept(struct kg_sampler_pick *pick,
                             struct kg_sampler_scratch *scratch, int32_t n, int32_t vocab,
                             struct kg_err *err)
{
    const struct kg_sampler_candidate *c = scratch->candidates;
    size_t most = kg_idset_most(vocab);
    KG_TRY(kg_mem_grow(&pick->room, &pick->capacity, most, 1, most, "kept ids", err));
    for (int32_t i = 0; i < n; i++)
        scratch->words[c[i].id / 64] |= (uint64_t)1 << (c[i].id % 64);
    pick->kept = kg_idset_pack(pick->room, scratch->words, vocab);
    for (int32_t i = 0; i < n; i++)
        scratch->words[c[i].id / 64] = 0;
    return KG_OK;
}

/* n: of the candidates, in order, those that are kept. */
static void note_cut(struct kg_sampler_pick *pick, const struct kg_sampler_candidate *c,
                     int32_t n, const struct kg_sampler_row *row)
{
    double log_mass = kg_log(sum_weights(c, n)) + (double)c[0].z - row->lse;
    pick->n_kept = n == row->vocab ? 0 : n;
    pick->cut = pick->n_kept > 0 && log_mass < 0 ? (float)-log_mass : 0;
}

static kg_status draw_truncated(struct kg_sampler_pick *pick,
                                struct kg_sampler_scratch *scratch,
                                const struct kg_sampler_row *row,
                                const struct kg_sampling *s, double u, struct kg_err *err)
{
    const struct kg_sampler_candidate *c = scratch->candidates;
    int32_t n = truncate_row(scratch->candidates, row, s);
    pick->token = walk_candidates(c, n, u);
    note_cut(pick, c, n, row);
    return s->record_kept && pick->n_kept > 0
               ? record_kept(pick, scratch, n, row->vocab, err)
               : KG_OK;
}

kg_status kg_sampler_keep(struct kg_sampler_pick *pick,
                          struct kg_sampler_scratch *scratch,
                          const struct kg_sampler_row *row, const struct kg_sampling *s,
                          struct kg_err *err)
{
    struct kg_sampling keep = *s;
    keep.record_kept = true;
    keep.adjust = NULL;
    return kg_sampler_draw(pick, scratch, row, &keep, 0, err);
}

/* ---- adjusted ---- */

/* Ids are counted, then each is lowered once, where it comes first. */
static void add_penalties(float *z, int32_t *times, const struct kg_sampler_row *row,
                          const struct kg_adjust *a, float inv_temp)
{
    for (size_t i = 0; i < row->n_said; i++)
        times[row->said[i]]++;
    for (size_t i = 0; i < row->n_said; i++) {
        int32_t id = row->said[i];
        if (times[id] > 0)
            z[id] -= inv_temp * (a->presence + a->frequency * (float)times[id]);
        times[id] = 0;
    }
}

/* The row from which the token is drawn, in the scratch. */
static struct kg_sampler_row adjust(struct kg_sampler_scratch *scratch,
                                    const struct kg_sampler_row *row,
                                    const struct kg_sampling *s)
{
    double sums[MOST_SPANS];
    const struct kg_adjust *a = s->adjust;
    float inv_temp = kg_inv_temperature(s->temperature);
    float *z = scratch->adjusted;
    memcpy(z, row->z, (size_t)row->vocab * sizeof *z);
    for (size_t i = 0; i < a->n_bias; i++)
        z[a->bias[i].id] += inv_temp * a->bias[i].add;
    add_penalties(z, scratch->times, row, a, inv_temp);
    float largest = z[argmax(z, row->vocab)];
    float above = largest + 1e-3f + 1e-6f * fabsf(largest); /* as in draw_full */
    struct part part = part_of(z, row->vocab, above);
    double lse = (double)above + kg_log(sum_spans(sums, &part));
    return (struct kg_sampler_row){.z = z, .vocab = row->vocab, .lse = lse};
}

kg_status kg_sampler_draw(struct kg_sampler_pick *pick,
                          struct kg_sampler_scratch *scratch,
                          const struct kg_sampler_row *row, const struct kg_sampling *s,
                          double u, struct kg_err *err)
{
    if (!isfinite(row->lse))
        return kg_fail(err, KG_ENONFINITE,
                       "expected finite logits, found a log sum exp of %g", row->lse);
    struct kg_sampler_row from = s->adjust ? adjust(scratch, row, s) : *row;
    pick->n_kept = 0;
    pick->cut = 0;
    pick->kept = (struct kg_idset){0};
    if (s->temperature == 0) {
        pick->token = argmax(from.z, from.vocab);
    } else if (kg_sampler_truncates(s, from.vocab)) {
        assert(scratch != NULL);
        KG_TRY(draw_truncated(pick, scratch, &from, s, u, err));
    } else {
        pick->token = draw_full(&from, u);
    }
    pick->logp = (float)((double)row->z[pick->token] - row->lse);
    return KG_OK;
}
