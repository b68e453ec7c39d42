/* One token from one row of logits.
 *
 * Without truncation the row is walked once: sums of exp(z - lse) over blocks of the
 * vocabulary show in which block u falls, and a walk through this block finds the id.
 * With truncation only the likeliest ids are collected and sorted: each truncation keeps
 * a prefix of the ids in the order (falling logit, rising id), so together they keep the
 * shortest of their prefixes.
 *
 * Code that devices share is in tensor/draw_inline.h. Not here: the random number
 * (base/rng.h), the log sum exp (the head), EOS and stop strings (rollout.c).
 */
#include "rollout/sampler.h"

#include "base/mem.h"
#include "base/real.h"
#include "rollout/sampling.h"
#include "tensor/draw_inline.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum {
    THREADED = 32768, /* vocabulary from which threads share the sums of one row */
    MOST_ADDED = 1000000,
    MOST_REPETITION = 10000 /* the least is 1 / 10000 */
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
    if (truncates && scratch->weights == NULL)
        scratch->weights = kg_mem_calloc(n, sizeof *scratch->weights, what, err);
    if (s->adjust && scratch->adjusted == NULL)
        scratch->adjusted = kg_mem_calloc(n, sizeof *scratch->adjusted, what, err);
    if (s->adjust && scratch->times == NULL)
        scratch->times = kg_mem_calloc(n, sizeof *scratch->times, what, err);
    if (truncates && scratch->words == NULL)
        scratch->words = kg_mem_calloc((n + 63) / 64, sizeof *scratch->words, what, err);
    bool there = (!truncates ||
                  (scratch->candidates && scratch->weights && scratch->words)) &&
                 (!s->adjust || (scratch->adjusted && scratch->times));
    return there ? KG_OK : err->code;
}

void kg_sampler_scratch_release(struct kg_sampler_scratch *scratch)
{
    kg_mem_free(scratch->candidates);
    kg_mem_free(scratch->weights);
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
        return kg_fail(err, KG_EINVAL, "stop strings: expected at most %d, found %d",
                       KG_MAX_STOPS, s->n_stops);
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
                       "kept ids cannot be recorded if logits are adjusted");
    if (!(fabsf(a->presence) <= MOST_ADDED && fabsf(a->frequency) <= MOST_ADDED))
        return kg_fail(
            err, KG_EINVAL,
            "penalties: expected -%d to %d, found presence %g and frequency %g",
            MOST_ADDED, MOST_ADDED, (double)a->presence, (double)a->frequency);
    if (!(a->repetition == 0 ||
          (a->repetition >= 1.0f / MOST_REPETITION && a->repetition <= MOST_REPETITION)))
        return kg_fail(err, KG_EINVAL,
                       "repetition: expected 0 (off) or 0.0001 to %d, found %g",
                       MOST_REPETITION, (double)a->repetition);
    for (size_t i = 0; i < a->n_bias; i++)
        if (!(fabsf(a->bias[i].add) <= MOST_ADDED))
            return kg_fail(err, KG_EINVAL, "bias of id %d: expected -%d to %d, found %g",
                           a->bias[i].id, MOST_ADDED, MOST_ADDED, (double)a->bias[i].add);
    return KG_OK;
}

const struct kg_opt_row kg_sampling_rows[] = {
    KG_SAMPLING_ROWS("", struct kg_sampling, , false, NULL, NULL), {0}};

const struct kg_opt_row *kg_sampling_row(const char *key)
{
    const struct kg_opt_row *row = kg_sampling_rows;

    while (row->key && strcmp(row->key, key) != 0)
        row++;
    return row->key ? row : NULL;
}

kg_status kg_sampler_check(const struct kg_sampling *s, struct kg_err *err)
{
    for (const struct kg_opt_row *row = kg_sampling_rows; row->key; row++)
        KG_TRY(kg_opt_check_field(row, s, err));
    if (s->max_tokens < 1)
        return kg_fail(err, KG_EINVAL, "max_tokens: expected at least 1, found %d",
                       s->max_tokens);
    KG_TRY(check_adjust(s, err));
    return check_stops(s, err);
}

struct kg_draw kg_sampler_draw_of(const struct kg_sampling *s, double u)
{
    return (struct kg_draw){.u = u,
                            .top_p = s->top_p,
                            .min_p = s->min_p,
                            .top_k = s->top_k,
                            .greedy = s->temperature == 0};
}

bool kg_sampler_truncates(const struct kg_sampling *s, int32_t vocab)
{
    struct kg_draw d = kg_sampler_draw_of(s, 0);
    return kg_draw_truncates(&d, vocab);
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

/* p (a block) = exp(z - above), 0 beyond n. */
static void block_probs(float *p, const float *z, int32_t n, float above)
{
    float x[KG_DRAW_BLOCK];
    memcpy(x, z, (size_t)n * sizeof *x);
    for (int32_t i = n; i < KG_DRAW_BLOCK; i++)
        x[i] = -FLT_MAX;
#pragma omp simd
    for (int32_t i = 0; i < KG_DRAW_BLOCK; i++)
        p[i] = kg_draw_exp(x[i] - above);
}

static double block_sum(const float *p)
{
    double lane[KG_DRAW_SUMS] = {0};
    for (int32_t i = 0; i < KG_DRAW_BLOCK; i += KG_DRAW_SUMS)
#pragma omp simd
        for (int32_t j = 0; j < KG_DRAW_SUMS; j++)
            lane[j] += (double)p[i + j];
    return kg_draw_sum(lane, KG_DRAW_SUMS);
}

static int32_t min_i32(int32_t a, int32_t b) { return a < b ? a : b; }

/* Sum of exp(z - above) over span i. */
static double span_sum(const struct kg_draw_part *part, int32_t i)
{
    float p[KG_DRAW_BLOCK];
    double sum = 0;
    int32_t end = min_i32((i + 1) * part->span, part->n);
    for (int32_t v = i * part->span; v < end; v += KG_DRAW_BLOCK) {
        block_probs(p, part->z + v, min_i32(KG_DRAW_BLOCK, end - v), part->above);
        sum += block_sum(p);
    }
    return sum;
}

/* Spans are independent, so threads share them, outside parallel regions.
 * returns the sum of sums, added in order */
static double sum_spans(double sums[KG_DRAW_MOST_SPANS], const struct kg_draw_part *part)
{
    int32_t n = kg_draw_spans(part);
#pragma omp parallel for schedule(static) if (part->n >= THREADED && !omp_in_parallel())
    for (int32_t i = 0; i < n; i++)
        sums[i] = span_sum(part, i);
    return kg_draw_sum(sums, n);
}

static int32_t draw_full(const struct kg_sampler_row *row, double u)
{
    double sums[KG_DRAW_MOST_SPANS];
    double wide[KG_DRAW_BLOCK];
    float p[KG_DRAW_BLOCK];
    float above = kg_draw_above(row->lse);
    struct kg_draw_part part = kg_draw_part(row->z, row->vocab, above);
    double target = u * sum_spans(sums, &part);
    int32_t found = kg_draw_find(&target, sums, kg_draw_spans(&part)) * part.span;
    while (part.span > KG_DRAW_BLOCK) {
        part = kg_draw_part(row->z + found, min_i32(part.span, row->vocab - found),
                            above);
        sum_spans(sums, &part);
        found += kg_draw_find(&target, sums, kg_draw_spans(&part)) * part.span;
    }
    block_probs(p, row->z + found, min_i32(KG_DRAW_BLOCK, row->vocab - found), above);
    for (int32_t i = 0; i < KG_DRAW_BLOCK; i++)
        wide[i] = (double)p[i];
    return found + kg_draw_find(&target, wide, KG_DRAW_BLOCK);
}

/* ---- truncated ---- */

static int by_falling_logit(const void *a, const void *b)
{
    const struct kg_draw_candidate *x = a;
    const struct kg_draw_candidate *y = b;
    return kg_draw_before(*y, *x) - kg_draw_before(*x, *y);
}

static int32_t collect(struct kg_draw_candidate *c, const struct kg_sampler_row *row,
                       float floor)
{
    int32_t n = 0;
    for (int32_t v = 0; v < row->vocab; v++) {
        c[n] = (struct kg_draw_candidate){row->z[v], v};
        n += row->z[v] >= floor;
    }
    return n;
}

/* Sorted candidates of a row, in the scratch; the first `weighed` have weights. */
struct sorted {
    struct kg_draw_candidate *c;
    double *w;
    int32_t weighed;
};

static void weigh(struct sorted *x, int32_t n)
{
    for (; x->weighed < n; x->weighed++)
        x->w[x->weighed] = kg_draw_weight(x->c, x->weighed);
}

/* Collects candidates in order, at least all that truncation keeps. The floor falls until
 * they suffice; candidates above an earlier floor stay first and keep their weights. */
static int32_t gather(struct sorted *x, const struct kg_sampler_row *row,
                      const struct kg_draw *d, float largest, double total)
{
    float deepest = kg_draw_deepest(d, row->vocab);
    for (float depth = kg_draw_depth;; depth *= 2) {
        bool last = depth > kg_draw_last_depth || depth >= deepest;
        int32_t n = collect(x->c, row, largest - (last ? deepest : depth));
        qsort(x->c, (size_t)n, sizeof *x->c, by_falling_logit);
        if (d->top_p < 1 && !kg_draw_top_k_is_on(d, row->vocab))
            weigh(x, n);
        if (last || kg_draw_enough(x->w, n, d, row->vocab, total))
            return n;
    }
}

/* returns the number of kept candidates, which all have weights */
static int32_t truncate_row(struct kg_sampler_scratch *scratch,
                            const struct kg_sampler_row *row, const struct kg_draw *d)
{
    struct sorted x = {.c = scratch->candidates, .w = scratch->weights};
    float largest = row->z[argmax(row->z, row->vocab)];
    double total = kg_exp(row->lse - (double)largest);
    int32_t n = gather(&x, row, d, largest, total);
    n = kg_draw_keep_top_k(x.c, n, d, row->vocab);
    weigh(&x, n);
    return kg_draw_keep(x.w, n, d, row->vocab, total);
}

static kg_status pack_kept(struct kg_sampler_pick *pick, const uint64_t *words,
                           int32_t vocab, struct kg_err *err)
{
    size_t most = kg_idset_most(vocab);
    KG_TRY(kg_mem_grow(&pick->room, &pick->capacity, most, 1, most, "kept ids", err));
    pick->kept = kg_idset_pack(pick->room, words, vocab);
    return KG_OK;
}

/* Packs the kept ids through a bitmap, which is zero between rows. */
static kg_status record_kept(struct kg_sampler_pick *pick,
                             struct kg_sampler_scratch *scratch, int32_t n, int32_t vocab,
                             struct kg_err *err)
{
    const struct kg_draw_candidate *c = scratch->candidates;
    for (int32_t i = 0; i < n; i++)
        scratch->words[c[i].id / 64] |= (uint64_t)1 << (c[i].id % 64);
    kg_status status = pack_kept(pick, scratch->words, vocab, err);
    for (int32_t i = 0; i < n; i++)
        scratch->words[c[i].id / 64] = 0;
    return status;
}

static kg_status draw_truncated(struct kg_sampler_pick *pick,
                                struct kg_sampler_scratch *scratch,
                                const struct kg_sampler_row *row,
                                const struct kg_sampling *s, const struct kg_draw *d,
                                struct kg_err *err)
{
    struct kg_drawn drawn;
    int32_t n = truncate_row(scratch, row, d);
    kg_draw_take(&drawn, scratch->candidates, scratch->weights, n, row->vocab, d->u,
                 row->lse);
    pick->token = drawn.token;
    pick->n_kept = drawn.n_kept;
    pick->cut = drawn.cut;
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

/* Changes each id of the text once, at its first occurrence. */
static void penalise_repetition(float *z, int32_t *times,
                                const struct kg_sampler_row *row, float penalty)
{
    for (size_t i = 0; i < row->n_text; i++) {
        int32_t id = row->text[i];
        if (times[id]++ == 0)
            z[id] = z[id] > 0 ? z[id] / penalty : z[id] * penalty;
    }
    for (size_t i = 0; i < row->n_text; i++)
        times[row->text[i]] = 0;
}

/* Counts ids of the completion, then lowers each once, at its first occurrence. */
static void add_penalties(float *z, int32_t *times, const struct kg_sampler_row *row,
                          const struct kg_adjust *a, float inv_temp)
{
    for (size_t i = row->n_prompt; i < row->n_text; i++)
        times[row->text[i]]++;
    for (size_t i = row->n_prompt; i < row->n_text; i++) {
        int32_t id = row->text[i];
        if (times[id] > 0)
            z[id] -= inv_temp * (a->presence + a->frequency * (float)times[id]);
        times[id] = 0;
    }
}

/* The adjusted row, from which the token is drawn, in the scratch. */
static struct kg_sampler_row adjust(struct kg_sampler_scratch *scratch,
                                    const struct kg_sampler_row *row,
                                    const struct kg_sampling *s)
{
    double sums[KG_DRAW_MOST_SPANS];
    const struct kg_adjust *a = s->adjust;
    float inv_temp = kg_inv_temperature(s->temperature);
    float *z = scratch->adjusted;
    memcpy(z, row->z, (size_t)row->vocab * sizeof *z);
    for (size_t i = 0; i < a->n_bias; i++)
        z[a->bias[i].id] += inv_temp * a->bias[i].add;
    if (a->repetition != 0 && a->repetition != 1)
        penalise_repetition(z, scratch->times, row, a->repetition);
    add_penalties(z, scratch->times, row, a, inv_temp);
    float largest = z[argmax(z, row->vocab)];
    float above = largest + 1e-3f + 1e-6f * fabsf(largest); /* as kg_draw_above */
    struct kg_draw_part part = kg_draw_part(z, row->vocab, above);
    double lse = (double)above + kg_log(sum_spans(sums, &part));
    return (struct kg_sampler_row){.z = z, .vocab = row->vocab, .lse = lse};
}

static kg_status check_lse(double lse, struct kg_err *err)
{
    return isfinite(lse)
               ? KG_OK
               : kg_fail(err, KG_ENONFINITE,
                         "expected finite logits, found a log sum exp of %g",
                         isnan(lse) ? (double)NAN : lse); /* a NaN without its sign */
}

kg_status kg_sampler_draw(struct kg_sampler_pick *pick,
                          struct kg_sampler_scratch *scratch,
                          const struct kg_sampler_row *row, const struct kg_sampling *s,
                          double u, struct kg_err *err)
{
    KG_TRY(check_lse(row->lse, err));
    struct kg_draw d = kg_sampler_draw_of(s, u);
    struct kg_sampler_row from = s->adjust ? adjust(scratch, row, s) : *row;
    pick->n_kept = 0;
    pick->cut = 0;
    pick->kept = (struct kg_idset){0};
    if (d.greedy) {
        pick->token = argmax(from.z, from.vocab);
    } else if (kg_draw_truncates(&d, from.vocab)) {
        assert(scratch != NULL);
        KG_TRY(draw_truncated(pick, scratch, &from, s, &d, err));
    } else {
        pick->token = draw_full(&from, u);
    }
    pick->logp = (float)((double)row->z[pick->token] - row->lse);
    return KG_OK;
}

kg_status kg_sampler_take(struct kg_sampler_pick *pick, const struct kg_drawn *drawn,
                          double lse, const uint64_t *kept, int32_t vocab,
                          struct kg_err *err)
{
    KG_TRY(check_lse(lse, err));
    pick->token = drawn->token;
    pick->logp = drawn->logp;
    pick->n_kept = drawn->n_kept;
    pick->cut = drawn->cut;
    pick->kept = (struct kg_idset){0};
    return kept && pick->n_kept > 0 ? pack_kept(pick, kept, vocab, err) : KG_OK;
}
