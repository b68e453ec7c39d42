/* Drawing tokens from logits that stay on the device: the sampler of rollout/sampler.c,
 * to its bits.
 *
 * A block has a row. What is added in an order is added by one thread in that order, in
 * the text that both share (tensor/draw_inline.h); what it adds is made by all threads
 * before: exponentials, sums of spans, weights. Truncation sorts the candidates above a
 * floor; their order is total, so neither how they were found nor how they were sorted
 * shows.
 */
#include "tensor/cuda/head_internal.h"

enum {
    THREADS = 512,
    WARPS = THREADS / KG_WARP,
    GROUPS = THREADS / KG_DRAW_SUMS, /* of threads that share a span */
    NEAR = 1024                      /* candidates that are sorted in shared memory */
};

/* What a block draws from. */
struct row {
    const float *z;
    int32_t vocab;
    int32_t words; /* of bits of what is kept */
    double lse;
    struct kg_draw how;
    struct kg_draw_candidate *candidates; /* (vocab) when there are many, as the next */
    double *weights;
};

static __device__ struct kg_draw_candidate first_of(struct kg_draw_candidate a,
                                                    struct kg_draw_candidate b)
{
    return kg_draw_before(a, b) ? a : b;
}

static __device__ struct kg_draw_candidate largest_of(const struct row *r)
{
    KG_SHARED(struct kg_draw_candidate, best, [WARPS]);
    struct kg_draw_candidate mine = {-INFINITY, INT32_MAX};

    for (int32_t v = (int32_t)threadIdx.x; v < r->vocab; v += THREADS)
        mine = first_of(mine, {r->z[v], v});
    for (unsigned by = KG_WARP / 2; by > 0; by /= 2) {
        const float z = __shfl_xor_sync(~0u, mine.z, by);

        mine = first_of(mine, {z, __shfl_xor_sync(~0u, mine.id, by)});
    }
    if (threadIdx.x % KG_WARP == 0)
        best[threadIdx.x / KG_WARP] = mine;
    __syncthreads();
    mine = best[0];
    for (int w = 1; w < WARPS; w++)
        mine = first_of(mine, best[w]);
    return mine;
}

/* ---- the whole vocabulary ---- */
/* sums (shared) <- of spans; a span is a group's, a thread of it has every eighth of a
 * block */
static __device__ void sum_spans(double *sums, const struct kg_draw_part *part)
{
    KG_SHARED(double, lanes, [GROUPS][KG_DRAW_SUMS]);
    const int32_t group = (int32_t)threadIdx.x / KG_DRAW_SUMS;
    const int32_t lane = (int32_t)threadIdx.x % KG_DRAW_SUMS, n = kg_draw_spans(part);

    for (int32_t first = 0; first < n; first += GROUPS) {
        const int64_t at = (int64_t)(first + group) * part->span + lane;
        double sum = 0.0;

        for (int64_t block = at; block < at + part->span; block += KG_DRAW_BLOCK) {
            double mine = 0.0;

            for (int32_t i = 0; i < KG_DRAW_BLOCK; i += KG_DRAW_SUMS)
                if (block + i < part->n)
                    mine += (double)kg_draw_exp(part->z[block + i] - part->above);
            lanes[group][lane] = mine;
            __syncwarp();
            sum += kg_draw_sum(lanes[group], KG_DRAW_SUMS);
            __syncwarp();
        }
        if (lane == 0 && first + group < n)
            sums[first + group] = sum;
    }
    __syncthreads();
}

/* Where the walk stands. */
struct found {
    double target;
    int32_t id;
};

/* To the span in which u falls, of the row or, once inside, of the span before.
 * at: shared */
static __device__ void go_on(struct found *at, const struct kg_draw_part *part,
                             bool inside, double u)
{
    KG_SHARED(double, sums, [KG_DRAW_MOST_SPANS]);
    const int32_t n = kg_draw_spans(part);

    sum_spans(sums, part);
    if (threadIdx.x == 0) {
        struct found next = {at->target, inside ? at->id : 0};

        if (!inside)
            next.target = u * kg_draw_sum(sums, n);
        next.id += kg_draw_find(&next.target, sums, n) * part->span;
        *at = next;
    }
    __syncthreads();
}

static __device__ int32_t draw_full(const struct row *r)
{
    KG_SHARED(struct found, at, [1]);
    KG_SHARED(float, p, [KG_DRAW_BLOCK]);
    const float above = kg_draw_above(r->lse);
    struct kg_draw_part part = kg_draw_part(r->z, r->vocab, above);
    int32_t rest;

    go_on(at, &part, false, r->how.u);
    while (part.span > KG_DRAW_BLOCK) {
        rest = r->vocab - at->id;
        part = kg_draw_part(r->z + at->id, part.span < rest ? part.span : rest, above);
        go_on(at, &part, true, 0.0);
    }
    rest = r->vocab - at->id;
    for (int32_t i = (int32_t)threadIdx.x; i < KG_DRAW_BLOCK; i += THREADS)
        p[i] = i < rest ? kg_draw_exp(r->z[at->id + i] - above) : 0.0f;
    __syncthreads();
    return threadIdx.x == 0 ? at->id + kg_draw_walk_block(p, at->target) : 0;
}

/* ---- candidates ---- */
struct candidates {
    struct kg_draw_candidate *c;
    double *w;
    int32_t n;
};

/* How many of the row are not below floor; of them those of the threads before this one
 * are in *before. */
static __device__ int32_t count(int32_t *before, const struct row *r, float floor)
{
    KG_SHARED(int32_t, counts, [THREADS]);
    const unsigned t = threadIdx.x;
    int32_t mine = 0, all;

    for (int32_t v = (int32_t)t; v < r->vocab; v += THREADS)
        mine += r->z[v] >= floor;
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

static __device__ void collect(const struct candidates *x, int32_t at,
                               const struct row *r, float floor)
{
    for (int32_t v = (int32_t)threadIdx.x; v < r->vocab; v += THREADS)
        if (r->z[v] >= floor)
            x->c[at++] = {r->z[v], v};
    __syncthreads();
}

/* Runs of `size` in order become those of twice the size: first each is compared with the
 * next one from its end, then parts with parts. What lies beyond n would be last. */
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

/* Those above a floor that falls until they suffice, in order. */
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

/* bits <- the candidates up to the last that is kept; by warps */
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

/* bits: NULL where what was kept is not asked for */
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
static __global__ void __launch_bounds__(THREADS)
    draw_rows(struct kg_cuda_drawing d, struct kg_mat z, const double *lse, int64_t first)
{
    const int64_t n = first + blockIdx.x, vocab = z.cols, at = blockIdx.x * vocab;
    const struct row r = {kg_cuda_f32(z, blockIdx.x),
                          (int32_t)vocab,
                          (int32_t)d.words,
                          lse[n],
                          d.how[n],
                          d.candidates ? d.candidates + at : NULL,
                          d.weights ? d.weights + at : NULL};
    struct kg_drawn drawn = {0, 0.0f, 0, 0.0f};
    struct kg_draw_candidate largest;

    if (!(fabs(r.lse) < (double)INFINITY)) {
        if (threadIdx.x == 0)
            d.drawn[n] = drawn;
        return;
    }
    largest = largest_of(&r);
    if (r.how.greedy)
        drawn.token = largest.id;
    else if (kg_draw_truncates(&r.how, r.vocab))
        draw_truncated(&drawn, d.kept ? d.kept + n * d.words : NULL, &r, largest.z);
    else
        drawn.token = draw_full(&r);
    if (threadIdx.x == 0) {
        drawn.logp = (float)((double)r.z[drawn.token] - r.lse);
        d.drawn[n] = drawn;
    }
}

void kg_cuda_draw_rows(const struct kg_cuda_drawing *d, struct kg_mat z,
                       const double *lse, int64_t first)
{
    KG_LAUNCH(draw_rows, kg_grid(z.rows, 1), THREADS, *d, z, lse, first);
}

/* ---- on to the next step ---- */
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
