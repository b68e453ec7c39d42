/* Draws tokens from logits that stay on the device: the sampler of rollout/sampler.c,
 * with its bits.
 *
 * A block draws one row; for rows without truncation, an earlier launch has summed the
 * spans. One thread computes every sum whose order matters, by the code that host and
 * device share (tensor/draw_inline.h); all threads prepare its terms: exponentials, sums
 * of spans, weights. Truncation sorts the candidates above a floor. Their order is total,
 * so the way of finding and sorting them does not affect the result.
 */
#include "tensor/cuda/eights_internal.h"
#include "tensor/cuda/head_internal.h"

enum {
    THREADS = 512,
    WARPS = THREADS / KG_WARP,
    SPANS = KG_ROW_THREADS / KG_WARP, /* added at once */
    FOURS = KG_DRAW_BLOCK / (4 * KG_WARP),
    AT_ONCE = 8, /* logits loaded at once by a thread */
    NEAR = 1024  /* most candidates sorted in shared memory */
};

/* A block's row, and what it is drawn from. */
struct row {
    const float *z;
    int32_t vocab;
    int32_t words; /* of one bit per id */
    double lse;
    struct kg_draw how;
    const double *sums;                   /* of spans */
    struct kg_draw_candidate *candidates; /* (vocab) if there are many, as the next */
    double *weights;
};

static __device__ struct kg_draw_candidate first_of(struct kg_draw_candidate a,
                                                    struct kg_draw_candidate b)
{
    return kg_draw_before(a, b) ? a : b;
}

/* The largest of x[0..n), ties by smaller index. */
static __device__ struct kg_draw_candidate largest_of(const float *x, int32_t n)
{
    KG_SHARED(struct kg_draw_candidate, best, [WARPS]);
    struct kg_draw_candidate mine = {-INFINITY, INT32_MAX};

    for (int32_t v = (int32_t)threadIdx.x; v < n; v += THREADS)
        mine = first_of(mine, {x[v], v});
    for (unsigned by = KG_WARP / 2; by > 0; by /= 2) {
        const float z = __shfl_xor_sync(~0u, mine.z, by);

        mine = first_of(mine, {z, __shfl_xor_sync(~0u, mine.id, by)});
    }
    __syncthreads(); /* an earlier call has read best */
    if (threadIdx.x % KG_WARP == 0)
        best[threadIdx.x / KG_WARP] = mine;
    __syncthreads();
    mine = best[0];
    for (int w = 1; w < WARPS; w++)
        mine = first_of(mine, best[w]);
    return mine;
}

/* ---- the whole vocabulary ---- */
/* p (a block, shared) <- probabilities from `first` on, 0 after the end. By one warp, 16
 * bytes at a time; rows are padded to that. */
static __device__ void make_block(double *p, const struct kg_draw_part *part,
                                  int64_t first)
{
    const int64_t at = first + 4 * (threadIdx.x % KG_WARP);
    struct kg_cuda_four z[FOURS];

#pragma unroll
    for (int i = 0; i < FOURS; i++)
        if (at + i * 4 * KG_WARP < part->n)
            z[i] = *(const struct kg_cuda_four *)(part->z + at + i * 4 * KG_WARP);
#pragma unroll
    for (int i = 0; i < FOURS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int64_t v = at + i * 4 * KG_WARP + j;

            p[v - first] = (double)kg_draw_exp((v < part->n ? z[i].at[j] : -INFINITY) -
                                               part->above);
        }
}

/* Sum of span i, by one warp. p: the warp's, shared */
static __device__ double sum_span(double p[KG_DRAW_BLOCK],
                                  const struct kg_draw_part *part, int32_t i)
{
    const int64_t first = (int64_t)i * part->span;
    double sum = 0.0;

    for (int32_t block = 0; block < part->span; block += KG_DRAW_BLOCK) {
        const unsigned lane = threadIdx.x % KG_WARP;
        double mine = 0.0;

        make_block(p, part, first + block);
        __syncwarp();
#pragma unroll 16
        for (int k = (int)(lane % KG_DRAW_SUMS); k < KG_DRAW_BLOCK; k += KG_DRAW_SUMS)
            mine += p[k];
        __syncwarp();
        if (lane < KG_DRAW_SUMS)
            p[lane] = mine;
        __syncwarp();
        sum += kg_draw_sum(p, KG_DRAW_SUMS);
        __syncwarp();
    }
    return sum;
}

static __device__ bool is_finite(double lse) { return fabs(lse) < (double)INFINITY; }

/* For rows that are drawn from the whole vocabulary. */
static __global__ void __launch_bounds__(KG_ROW_THREADS)
    sum_spans(struct kg_cuda_drawing d, struct kg_mat z, const double *lse, int64_t first)
{
    KG_SHARED(double, p, [SPANS][KG_DRAW_BLOCK]);
    const int64_t n = first + blockIdx.x;
    const int32_t vocab = (int32_t)z.cols, warp = (int32_t)threadIdx.x / KG_WARP;
    const int32_t i = (int32_t)blockIdx.y * SPANS + warp;
    const struct kg_draw_part part = kg_draw_part(kg_cuda_f32(z, blockIdx.x), vocab,
                                                  kg_draw_above(lse[n]));
    double sum;

    if (!is_finite(lse[n]) || d.how[n].greedy || kg_draw_truncates(&d.how[n], vocab))
        return;
    sum = sum_span(p[warp], &part, i);
    if (threadIdx.x % KG_WARP == 0 && i < kg_draw_spans(&part))
        d.sums[blockIdx.x * (int64_t)kg_draw_spans(&part) + i] = sum;
}

/* State of the search for the sum `target`, which continues at id. */
struct found {
    double target;
    int32_t id;
};

/* Finds the first of x[0..n) at which the sum passes the target, and advances id by its
 * index times `each`. at, x: shared */
static __device__ void go_on(struct found *at, const double *x, int32_t n, int32_t each)
{
    __syncthreads();
    if (threadIdx.x == 0)
        at->id += kg_draw_find(&at->target, x, n) * each;
    __syncthreads();
}

static __device__ int32_t draw_full(const struct row *r)
{
    KG_SHARED(struct found, at, [1]);
    KG_SHARED(double, x, [KG_DRAW_MOST_SPANS]);
    KG_SHARED(double, p, [SPANS][KG_DRAW_BLOCK]);
    const int32_t t = (int32_t)threadIdx.x, warp = t / KG_WARP;
    const float above = kg_draw_above(r->lse);
    struct kg_draw_part part = kg_draw_part(r->z, r->vocab, above);
    int32_t n = kg_draw_spans(&part);

    for (int32_t i = t; i < n; i += THREADS)
        x[i] = r->sums[i];
    __syncthreads();
    if (t == 0)
        *at = {r->how.u * kg_draw_sum(x, n), 0};
    go_on(at, x, n, part.span);
    while (part.span > KG_DRAW_BLOCK) {
        part = kg_draw_part(r->z + at->id,
                            (int32_t)kg_cuda_min(part.span, r->vocab - at->id), above);
        n = kg_draw_spans(&part);
        for (int32_t i = warp; warp < SPANS && i < n; i += SPANS) {
            const double sum = sum_span(p[warp], &part, i);

            if (t % KG_WARP == 0)
                x[i] = sum;
        }
        go_on(at, x, n, part.span);
    }
    part = {r->z + at->id, r->vocab - at->id, KG_DRAW_BLOCK, above};
    if (warp == 0)
        make_block(x, &part, 0);
    go_on(at, x, KG_DRAW_BLOCK, 1);
    return at->id;
}

/* ---- candidates ---- */
struct candidates {
    struct kg_draw_candidate *c;
    double *w;
    int32_t n;
};

/* x[i] <- z[v + i THREADS]; NaN after the end, which passes no floor */
static __device__ void take(float x[AT_ONCE], const struct row *r, int32_t v)
{
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        x[i] = v + i * THREADS < r->vocab ? r->z[v + i * THREADS] : NAN;
}

/* returns the number of the row's logits that are not below floor; *before <- the number
 * of them in earlier threads */
static __device__ int32_t count(int32_t *before, const struct row *r, float floor)
{
    KG_SHARED(int32_t, counts, [THREADS]);
    const unsigned t = threadIdx.x;
    int32_t mine = 0, all;
    float x[AT_ONCE];

    for (int32_t v = (int32_t)t; v < r->vocab; v += AT_ONCE * THREADS) {
        take(x, r, v);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            mine += x[i] >= floor;
    }
    counts[t] = mine;
    __syncthreads();
    for (unsigned by = 1; by < THREADS; by *= 2) {
        const int32_t lower = t >= by ? counts[t - by] : 0;

        __syncthreads();
        counts[t] += lower;
        __syncthreads();
    }
    *before = counts[t] - mine;
    all = counts[THREADS - 1];
    __syncthreads();
    return all;
}

static __device__ void collect(const struct candidates *c, int32_t at,
                               const struct row *r, float floor)
{
    float x[AT_ONCE];

    for (int32_t v = (int32_t)threadIdx.x; v < r->vocab; v += AT_ONCE * THREADS) {
        take(x, r, v);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (x[i] >= floor)
                c->c[at++] = {x[i], v + i * THREADS};
    }
    __syncthreads();
}

/* One step of merging sorted runs of `size` in pairs: at by == size, a run is compared
 * with the reversed next one; then parts with parts. Indices from n on count as last. */
static __device__ void merge(const struct candidates *x, int32_t size, int32_t by)
{
    const int32_t pairs = (x->n / (2 * by) + 1) * by;

    for (int32_t i = (int32_t)threadIdx.x; i < pairs; i += THREADS) {
        const int32_t base = i / by * 2 * by, in = i % by;
        const int32_t b = by == size ? base + 2 * by - 1 - in : base + by + in;
        const struct kg_draw_candidate left = x->c[base + in < x->n ? base + in : 0];

        if (b < x->n && kg_draw_before(x->c[b], left)) {
            x->c[base + in] = x->c[b];
            x->c[b] = left;
        }
    }
    __syncthreads();
}

static __device__ void sort(const struct candidates *x)
{
    for (int32_t size = 1; size < x->n; size *= 2)
        for (int32_t by = size; by > 0; by /= 2)
            merge(x, size, by);
    for (int32_t i = (int32_t)threadIdx.x; i < x->n; i += THREADS)
        x->w[i] = kg_draw_weight(x->c, i);
    __syncthreads();
}

/* The candidates above a floor, sorted; the floor falls until they suffice. */
static __device__ struct candidates gather(const struct row *r, float largest,
                                           double total)
{
    KG_SHARED(struct kg_draw_candidate, c, [NEAR]);
    KG_SHARED(double, w, [NEAR]);
    KG_SHARED(bool, enough, [1]);
    const float deepest = kg_draw_deepest(&r->how, r->vocab);

    for (float depth = kg_draw_depth;; depth *= 2) {
        const bool last = depth > kg_draw_last_depth || depth >= deepest;
        const float floor = largest - (last ? deepest : depth);
        int32_t before;
        struct candidates x = {c, w, count(&before, r, floor)};

        if (x.n > NEAR) {
            x.c = r->candidates;
            x.w = r->weights;
        }
        collect(&x, before, r, floor);
        sort(&x);
        if (threadIdx.x == 0)
            *enough = last || kg_draw_enough(x.w, x.n, &r->how, r->vocab, total);
        __syncthreads();
        if (*enough)
            return x;
    }
}

/* bits <- the candidates up to `last`; one warp per word */
static __device__ void mark(uint32_t *bits, const struct row *r,
                            struct kg_draw_candidate last)
{
    const int32_t lane = (int32_t)(threadIdx.x % KG_WARP);

    for (int32_t w = (int32_t)threadIdx.x / KG_WARP; w < r->words; w += WARPS) {
        const int32_t v = w * KG_WARP + lane;
        const bool kept = v < r->vocab && !kg_draw_before(last, {r->z[v], v});
        const uint32_t word = __ballot_sync(~0u, kept);

        if (lane == 0)
            bits[w] = word;
    }
}

/* bits: NULL if not wanted */
static __device__ void draw_truncated(struct kg_drawn *out, uint32_t *bits,
                                      const struct row *r, float largest)
{
    KG_SHARED(struct kg_draw_candidate, last, [1]);
    const double total = kg_real_exp(r->lse - (double)largest);
    const struct candidates x = gather(r, largest, total);

    if (threadIdx.x == 0) {
        int32_t n = kg_draw_keep_top_k(x.c, x.n, &r->how, r->vocab);

        n = kg_draw_keep(x.w, n, &r->how, r->vocab, total);
        kg_draw_take(out, x.c, x.w, n, r->vocab, r->how.u, r->lse);
        *last = x.c[n - 1];
    }
    __syncthreads();
    if (bits)
        mark(bits, r, *last);
}

/* ---- a row ---- */
/* top: the first tile with the largest logit */
static __device__ int32_t draw_greedy(const struct row *r, int64_t width,
                                      struct kg_draw_candidate top)
{
    const int64_t first = top.id * width;

    return (int32_t)(first + largest_of(r->z + first,
                                        (int32_t)kg_cuda_min(width, r->vocab - first))
                                 .id);
}

static __global__ void __launch_bounds__(THREADS)
    draw_rows(struct kg_cuda_drawing d, struct kg_mat z, const double *lse, int64_t first)
{
    const int64_t n = first + blockIdx.x, vocab = z.cols, at = blockIdx.x * vocab;
    const struct kg_draw_part part = kg_draw_part(NULL, (int32_t)vocab, 0.0f);
    const struct row r = {kg_cuda_f32(z, blockIdx.x),
                          (int32_t)vocab,
                          (int32_t)d.words,
                          lse[n],
                          d.how[n],
                          d.sums + blockIdx.x * (int64_t)kg_draw_spans(&part),
                          d.candidates ? d.candidates + at : NULL,
                          d.weights ? d.weights + at : NULL};
    struct kg_drawn drawn = {0, 0.0f, 0, 0.0f};
    struct kg_draw_candidate top;

    if (!is_finite(r.lse)) {
        if (threadIdx.x == 0)
            d.drawn[n] = drawn;
        return;
    }
    if (r.how.greedy || kg_draw_truncates(&r.how, r.vocab)) {
        top = largest_of(d.maxima + blockIdx.x * d.tiles, (int32_t)d.tiles);
        if (r.how.greedy)
            drawn.token = draw_greedy(&r, d.width, top);
        else
            draw_truncated(&drawn, d.kept ? d.kept + n * d.words : NULL, &r, top.z);
    } else {
        drawn.token = draw_full(&r);
    }
    if (threadIdx.x == 0) {
        drawn.logp = (float)((double)r.z[drawn.token] - r.lse);
        d.drawn[n] = drawn;
    }
}

void kg_cuda_draw_rows(const struct kg_cuda_drawing *d, struct kg_mat z,
                       const double *lse, int64_t first)
{
    const struct kg_draw_part part = kg_draw_part(NULL, (int32_t)z.cols, 0.0f);

    KG_LAUNCH(sum_spans, kg_grid(z.rows, kg_cuda_pieces(kg_draw_spans(&part), SPANS)),
              KG_ROW_THREADS, *d, z, lse, first);
    KG_LAUNCH(draw_rows, kg_grid(z.rows, 1), THREADS, *d, z, lse, first);
}

/* ---- tokens of the next step ---- */
static __global__ void feed(int32_t *tokens, struct kg_ivec from,
                            const struct kg_drawn *drawn)
{
    const int64_t n = kg_cuda_flat();

    if (n < from.n && from.data[n] >= 0)
        tokens[n] = drawn[from.data[n]].token;
}

kg_status kg_cuda_feed(int32_t *tokens, struct kg_ivec from, const struct kg_drawn *drawn,
                       struct kg_err *err)
{
    if (from.n > 0)
        KG_LAUNCH(feed, kg_cuda_all(from.n), KG_FLAT_THREADS, tokens, from, drawn);
    return kg_dev_done("feed", err);
}
