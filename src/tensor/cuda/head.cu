/* The vocabulary head, forward: log-probs, entropy, top-k and exact KL without an array
 * of all logits.
 *
 * A pass computes the logits of a block of rows and some tiles of the vocabulary, and
 * reads them while they are in the cache. For each (row, tile) a block of threads
 * computes exponentials, which sixteen threads add as the CPU's lanes do, one warp per
 * sum. At the end a block has a row: its threads scale the tiles to the maximum of the
 * row, and one thread per kind of sum adds them in order, in double. The bits are the
 * CPU's (cpu/head.c explains them), for any number of rows or tiles per pass.
 *
 * The k largest logits are kept in one list per row and tile of a pass, through all
 * passes; the lists are merged last.
 */
#include "tensor/cuda/eights_internal.h"
#include "tensor/cuda/head_top.h"

enum {
    LANES = KG_CUDA_LANES,
    WARPS = KG_ROW_THREADS / KG_WARP,
    WIDEST = 2048, /* columns of the widest tile */
    FOURS = WIDEST / (4 * KG_ROW_THREADS)
};

/* Sums of a (row, tile), relative first to the tile's maxima, then to the row's. */
struct sums {
    double s;       /* sum exp(z - m) */
    double e;       /* sum exp(z - m) (z - m) */
    double sq;      /* sum exp(z' - m') */
    double reverse; /* sum exp(z - m) d,  d = (z - m) - (z' - m') */
    double forward; /* sum exp(z' - m') (-d) */
    double excess;  /* sum exp(z - m) - exp(z' - m') */
    double set;     /* sum exp(z - m) over the set */
};
enum { SUMS = sizeof(struct sums) / sizeof(double) };
struct stat {
    struct sums of;
    float m;  /* max z */
    float mq; /* max z' */
};

/* Tiles [first, first+n) of `all`. */
struct tiles {
    int64_t width;
    int64_t all;
    int64_t first;
    int64_t n;
};

/* The (row, tile) of some lanes: columns [first, first+cols) of the pass. */
struct place {
    int64_t row;
    int64_t tile; /* within the pass */
    int64_t first;
    int64_t cols; /* 0: after the last row */
    int lane;
};

static __device__ struct place place_of(struct kg_mat z, struct tiles t, int lanes)
{
    const int64_t unit = (int64_t)blockIdx.x * (KG_ROW_THREADS / lanes) +
                         threadIdx.x / (unsigned)lanes;
    const int64_t row = unit / t.n, tile = unit % t.n, first = tile * t.width;
    const int64_t cols = row < z.rows ? kg_cuda_min(t.width, z.cols - first) : 0;

    return {row, tile, first, cols, (int)(threadIdx.x % (unsigned)lanes)};
}

/* ---- requested ids ---- */
/* Results of all rows, on the device; NULL: not wanted. */
struct results {
    double *lse;
    double *set_logp;
    double *kl_reverse;
    double *kl_forward;
    double *anchor_lse;
    float *logp;
    float *logp_at;
    float *entropy;
    float *top_logp;
    int32_t *top_ids;
};

/* Ids of the rows [first, ..) of a pass; slot K is the target. */
struct slots {
    int64_t first;
    int64_t k;
    const int32_t *target;
    const int32_t *indices;
};

static __device__ int32_t id_at(struct slots s, int64_t n, int64_t slot)
{
    if (slot < s.k)
        return s.indices ? s.indices[n * s.k + slot] : -1;
    return s.target ? s.target[n] : -1;
}

/* Where the slot's result is stored; NULL: not wanted. */
static __device__ float *kept_at(struct results r, struct slots s, int64_t n,
                                 int64_t slot)
{
    if (slot < s.k)
        return r.logp_at ? r.logp_at + n * s.k + slot : NULL;
    return r.logp ? r.logp + n : NULL;
}

/* Stores the requested logits of a tile; finish_asked subtracts lse. */
static __device__ void keep_asked(struct results r, struct slots s, const float *z,
                                  int64_t column, struct place p)
{
    const int64_t n = s.first + p.row;

    for (int64_t slot = p.lane; slot <= s.k; slot += KG_ROW_THREADS) {
        const int64_t v = id_at(s, n, slot) - column;
        float *to = kept_at(r, s, n, slot);

        if (to && v >= 0 && v < p.cols)
            *to = z[v];
    }
}

/* ---- sums of a tile ---- */
/* A thread's part of a (row, tile), which a block has: columns column_of(i) + j. */
struct mine {
    float at[FOURS][4];
};

static __device__ int column_of(int i)
{
    return 4 * (i * KG_ROW_THREADS + (int)threadIdx.x);
}

/* Maximum over a block's threads; to: shared memory. */
static __device__ float largest_of(float to[WARPS], float m)
{
    for (unsigned apart = KG_WARP / 2; apart > 0; apart /= 2) {
        const float other = __shfl_xor_sync(~0u, m, apart);

        m = m > other ? m : other;
    }
    if (threadIdx.x % KG_WARP == 0)
        to[threadIdx.x / KG_WARP] = m;
    __syncthreads();
    m = to[0];
    for (int w = 1; w < WARPS; w++)
        m = m > to[w] ? m : to[w];
    return m;
}

/* Replaces logits as products leave them by z, in registers and in memory. */
static __device__ void scale(struct mine *z, float *row, int cols,
                             struct kg_cuda_scale by, int64_t n)
{
    const float inv_temp = kg_cuda_inv_temp(by, n);

#pragma unroll
    for (int i = 0; i < FOURS; i++) {
        struct kg_cuda_four four;

#pragma unroll
        for (int j = 0; j < 4; j++)
            four.at[j] = z->at[i][j] = kg_cuda_scaled(z->at[i][j], by.softcap, inv_temp);
        if (column_of(i) < cols)
            *(struct kg_cuda_four *)(row + column_of(i)) = four;
    }
}

/* Loads z, 16 bytes at a time (rows are padded to that); -inf after the end. */
static __device__ void bring(struct mine *z, float *row, int cols,
                             struct kg_cuda_scale by, int64_t n)
{
    struct kg_cuda_four four[FOURS];

#pragma unroll
    for (int i = 0; i < FOURS; i++)
        if (column_of(i) < cols)
            four[i] = *(const struct kg_cuda_four *)(row + column_of(i));
#pragma unroll
    for (int i = 0; i < FOURS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            z->at[i][j] = column_of(i) + j < cols ? four[i].at[j] : -INFINITY;
    if (by.softcap != 0.0f || by.inv_temp)
        scale(z, row, cols, by, n);
}

/* The terms that lanes add, in shared memory. */
struct alignas(16) terms {
    float x[WIDEST]; /* exp(z - m) */
    float d[WIDEST]; /* z - m, or p - q */
    float m[WARPS];
};

/* to->x, to->d <- exp(z - m), z - m.   returns m */
static __device__ float make_terms(struct terms *to, const struct mine *z)
{
    float m = -INFINITY;

#pragma unroll
    for (int i = 0; i < FOURS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            m = m > z->at[i][j] ? m : z->at[i][j];
    m = largest_of(to->m, m);
#pragma unroll
    for (int i = 0; i < FOURS; i++) {
        struct kg_cuda_four d, x;

#pragma unroll
        for (int j = 0; j < 4; j++) {
            d.at[j] = z->at[i][j] - m;
            x.at[j] = kg_cuda_exp(d.at[j]);
        }
        *(struct kg_cuda_four *)(to->d + column_of(i)) = d;
        *(struct kg_cuda_four *)(to->x + column_of(i)) = x;
    }
    return m;
}

/* anchor->d <- p - q */
static __device__ void make_gaps(struct terms *anchor, const struct terms *t,
                                 const struct mine *z, const struct mine *zq,
                                 double between)
{
    for (int i = 0; i < FOURS; i++)
        for (int j = 0; j < 4; j++) {
            const double d = (double)z->at[i][j] - (double)zq->at[i][j] - between;
            const float x = t->x[column_of(i) + j], q = anchor->x[column_of(i) + j];

            anchor->d[column_of(i) + j] = kg_cuda_p_minus_q(x > q ? x : q, (float)d);
        }
}

/* By one warp, as the next two functions; its halves compute the same. */
static __device__ void add(double *to, const float *x, int cols)
{
    double s = 0.0;

#pragma unroll 8
    for (int v = (int)(threadIdx.x % LANES); v < cols; v += LANES)
        s += (double)x[v];
    s = kg_cuda_sum_lanes(s);
    if (threadIdx.x % KG_WARP == 0)
        *to = s;
}

static __device__ void add_entropy(double *to, const struct terms *t, int cols)
{
    float e = 0.0f;

#pragma unroll 8
    for (int v = (int)(threadIdx.x % LANES); v < cols; v += LANES)
        e = kg_fma(t->x[v], t->d[v], e);
    e = kg_cuda_sum_lanes(e);
    if (threadIdx.x % KG_WARP == 0)
        *to = (double)e;
}

static __device__ void add_apart(double *to, const float *x, bool forward, const float *z,
                                 const float *zq, double between, int cols)
{
    double s = 0.0;

#pragma unroll 4
    for (int v = (int)(threadIdx.x % LANES); v < cols; v += LANES) {
        const double d = (double)z[v] - (double)zq[v] - between;

        s = forward ? s - (double)x[v] * d : kg_fma((double)x[v], d, s);
    }
    s = kg_cuda_sum_lanes(s);
    if (threadIdx.x % KG_WARP == 0)
        *to = s;
}

/* Scales not yet applied to a tile's logits, and the results wanted of them. */
struct wishes {
    struct kg_cuda_scale by;
    struct kg_cuda_scale anchor;
    struct slots slots;
    struct results results;
    float *maxima; /* (rows, all tiles), or NULL */
};

/* Only this kernel reads logits as products leave them: it stores z for all others. */
template <bool ANCHOR>
static __global__ void __launch_bounds__(KG_ROW_THREADS)
    sum_tiles(struct stat *stats, struct kg_mat z, struct kg_mat zq, struct tiles t,
              struct wishes w)
{
    KG_SHARED(struct terms, terms, [ANCHOR ? 2 : 1]);
    struct terms *const anchor = terms + ANCHOR;
    const struct place p = place_of(z, t, KG_ROW_THREADS);
    const int cols = (int)p.cols;
    /* rotated, because a quarter of a multiprocessor runs the same warp of all blocks */
    const int warp = (int)((threadIdx.x / KG_WARP + blockIdx.x) % WARPS);
    struct stat *to = stats + p.row * t.all + t.first + p.tile;
    float *row = kg_cuda_f32(z, p.row) + p.first, *other = row;
    struct mine mine, theirs;
    float m, mq = 0.0f;

    bring(&mine, row, cols, w.by, p.row);
    if (ANCHOR) {
        other = kg_cuda_f32(zq, p.row) + p.first;
        bring(&theirs, other, cols, w.anchor, p.row);
    }
    m = make_terms(terms, &mine);
    if (ANCHOR) {
        mq = make_terms(anchor, &theirs);
        make_gaps(anchor, terms, &mine, &theirs, (double)m - (double)mq);
    }
    if (threadIdx.x == 0)
        *to = {{0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0}, m, mq};
    if (threadIdx.x == 0 && w.maxima)
        w.maxima[to - stats] = m;
    __syncthreads();
    if (warp == 0)
        add(&to->of.s, terms->x, cols);
    else if (warp == 1)
        add_entropy(&to->of.e, terms, cols);
    else if (ANCHOR && warp == 2)
        add(&to->of.sq, anchor->x, cols);
    else if (ANCHOR)
        add(&to->of.excess, anchor->d, cols);
    if (ANCHOR && warp == 0)
        add_apart(&to->of.reverse, terms->x, false, row, other, (double)m - (double)mq,
                  cols);
    else if (ANCHOR && warp == 1)
        add_apart(&to->of.forward, anchor->x, true, row, other, (double)m - (double)mq,
                  cols);
    keep_asked(w.results, w.slots, row, t.first * t.width + p.first, p);
}

/* By one warp: 32 exponentials at a time, added in order; skips words without a bit. */
static __global__ void sum_sets(struct stat *stats, struct kg_mat z, const uint32_t *bits,
                                int64_t words, struct tiles t)
{
    KG_SHARED(double, part, [WARPS][KG_WARP]);
    const struct place p = place_of(z, t, KG_WARP);
    double *mine = part[threadIdx.x / KG_WARP], sum = 0.0;
    struct stat *stat = stats + p.row * t.all + t.first + p.tile;
    const float *row = kg_cuda_f32(z, p.row) + p.first;
    const double m = p.cols > 0 ? (double)stat->m : 0.0;

    for (int64_t v = 0; v < p.cols; v += KG_WARP) {
        const int64_t column = t.first * t.width + p.first + v;
        const uint32_t word = bits[p.row * words + column / 32];

        if (word == 0)
            continue;
        if (word >> p.lane & 1)
            mine[p.lane] = kg_real_exp((double)row[v + p.lane] - m);
        __syncwarp();
        for (uint32_t rest = word; p.lane == 0 && rest; rest &= rest - 1)
            sum += mine[__ffs(rest) - 1];
        __syncwarp();
    }
    if (p.cols > 0 && p.lane == 0)
        stat->of.set = sum;
}

/* ---- results of requested ids ---- */
static __global__ void finish_asked(struct results r, struct slots s)
{
    const int64_t n = s.first + blockIdx.x, end = kg_cuda_end(s.k + 1);

    for (int64_t slot = kg_cuda_first(); slot < end; slot += KG_ROW_THREADS) {
        float *x = kept_at(r, s, n, slot);

        if (x && id_at(s, n, slot) >= 0)
            *x = (float)((double)*x - r.lse[n]);
        else if (x)
            *x = slot < s.k ? -INFINITY : 0.0f;
    }
}

/* ---- the k largest ---- */
/* (rows, n, k) of a pass, whose n tiles have one list each */
struct lists {
    struct kg_cuda_top *at;
    int32_t *counts;
    int64_t n;
    int32_t k;
};

static __global__ void offer(struct lists l, struct kg_mat z, struct tiles t)
{
    const struct place p = place_of(z, t, KG_WARP);
    const int64_t list = p.row * l.n + p.tile;
    struct kg_cuda_top_list top = {l.at + list * l.k, 0, l.k};

    if (p.cols == 0)
        return;
    top.count = l.counts[list];
    kg_cuda_top_offer(&top, kg_cuda_f32(z, p.row) + p.first, p.cols,
                      t.first * t.width + p.first);
    if (p.lane == 0)
        l.counts[list] = top.count;
}

/* By one warp: merges a row's lists into the first. */
static __global__ void finish_top(struct results r, struct lists l, int64_t first,
                                  int64_t rows)
{
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / KG_WARP;
    const int64_t n = first + i;
    struct kg_cuda_top_list top = {l.at + i * l.n * l.k, 0, l.k};

    if (i >= rows)
        return;
    top.count = l.counts[i * l.n];
    for (int64_t g = 1; g < l.n; g++)
        kg_cuda_top_merge(&top, l.at + (i * l.n + g) * l.k, l.counts[i * l.n + g]);
    for (int32_t j = (int32_t)(threadIdx.x % KG_WARP); j < l.k; j += KG_WARP) {
        const bool there = j < top.count;

        if (r.top_ids)
            r.top_ids[n * l.k + j] = there ? top.at[j].id : -1;
        if (r.top_logp)
            r.top_logp[n * l.k + j] = there ? (float)((double)top.at[j].z - r.lse[n])
                                            : -INFINITY;
    }
}

/* ---- rows, after all tiles ---- */
struct maxima {
    double m;
    double mq;
};

static __device__ struct sums scaled(const struct stat *t, struct maxima x)
{
    const double dp = (double)t->m - x.m, dq = (double)t->mq - x.mq;
    const double wp = kg_real_exp(dp), wq = kg_real_exp(dq);
    const struct sums *of = &t->of;

    return {wp * of->s,
            wp * (of->e + dp * of->s),
            wq * of->sq,
            wp * (of->reverse + (dp - dq) * of->s),
            wq * (of->forward + (dq - dp) * of->sq),
            wp * of->excess + (wp - wq) * of->sq,
            wp * of->set};
}

/* As finish_anchor of cpu/head.c. */
static __device__ void finish_anchor(struct results r, int64_t n, const struct sums *sum,
                                     struct maxima x)
{
    const bool near = fabs(sum->excess) < 0.5 * sum->sq;
    const double l = near ? kg_real_log1p(sum->excess / sum->sq)
                          : kg_real_log(sum->s) - kg_real_log(sum->sq);

    if (r.kl_reverse)
        r.kl_reverse[n] = sum->reverse / sum->s - l;
    if (r.kl_forward)
        r.kl_forward[n] = sum->forward / sum->sq + l;
    if (r.anchor_lse)
        r.anchor_lse[n] = x.m + kg_real_log(sum->s) - (x.m - x.mq) - l;
}

/* set: the row's; only used for set_logp */
static __device__ void finish_row(struct results r, int64_t n, const struct sums *sum,
                                  struct maxima x, const struct kg_cuda_set *set)
{
    const double log_s = kg_real_log(sum->s);

    r.lse[n] = x.m + log_s;
    if (r.entropy)
        r.entropy[n] = (float)(log_s - sum->e / sum->s);
    if (r.set_logp)
        r.set_logp[n] = set->n > 0 ? kg_real_log(sum->set) - log_s : 0.0;
    if (r.kl_reverse || r.kl_forward || r.anchor_lse)
        finish_anchor(r, n, sum, x);
}

/* A block per row; sets (rows of the pass) */
static __global__ void finish_rows(struct results r, const struct stat *stats,
                                   const struct kg_cuda_set *sets, int64_t first,
                                   int64_t tiles)
{
    KG_SHARED(float, of_warps, [2][WARPS]);
    KG_SHARED(struct sums, part, [KG_ROW_THREADS]);
    KG_SHARED(struct sums, all, [1]);
    const int64_t i = blockIdx.x, me = threadIdx.x;
    float m = -INFINITY, mq = -INFINITY;
    double sum = 0.0;

    stats += i * tiles;
    for (int64_t t = me; t < tiles; t += KG_ROW_THREADS) {
        m = m > stats[t].m ? m : stats[t].m;
        mq = mq > stats[t].mq ? mq : stats[t].mq;
    }
    const struct maxima x = {(double)largest_of(of_warps[0], m),
                             (double)largest_of(of_warps[1], mq)};

    for (int64_t t = 0; t < tiles; t += KG_ROW_THREADS) {
        if (t + me < tiles)
            part[me] = scaled(&stats[t + me], x);
        __syncthreads();
        for (int64_t k = 0; me < SUMS && k < KG_ROW_THREADS && t + k < tiles; k++)
            sum += ((const double *)&part[k])[me];
        __syncthreads();
    }
    if (me < SUMS)
        ((double *)all)[me] = sum;
    __syncthreads();
    if (me == 0)
        finish_row(r, first + i, all, x, sets ? sets + i : NULL);
}

/* ---- the operation ---- */
struct job {
    const struct kg_head_out *out;
    const struct kg_draws *draws; /* NULL: no tokens */
    bool whole;                   /* a pass has rows with all their logits */
    bool truncates;               /* some row truncates */
    struct kg_head h;             /* the inputs that are used; host arrays */
    struct kg_head_anchor anchor;
    int64_t n;
    int64_t vocab;
    int64_t rows;               /* per pass */
    struct tiles tiles;         /* per pass */
    struct kg_cuda_asked asked; /* on the device, as all below */
    struct results results;
    struct kg_cuda_drawing drawing;
    float *logits; /* (rows, V) if whole, else (rows, tiles) */
    float *anchor_logits;
    struct stat *stats; /* (rows, all tiles) */
    struct lists lists;
    uint32_t *bits; /* (rows, words) */
};

/* Rows per pass; if whole, at most as many as KG_DEV_WHOLE bytes hold. */
static int64_t rows_at_a_time(const struct job *job)
{
    const int64_t each = job->truncates ? (int64_t)sizeof(struct kg_draw_candidate) +
                                              (int64_t)sizeof(double)
                                        : 0;
    const int64_t most = KG_DEV_WHOLE / ((each + (int64_t)sizeof(float)) * job->vocab);
    const int64_t rows = kg_cuda_min(job->n, KG_DEV_HEAD_ROWS);

    return job->whole ? kg_cuda_min(rows, most > 1 ? most : 1) : rows;
}

/* Leaves out inputs that no result needs. */
static void plan(struct job *job, const struct kg_head_out *out, const struct kg_head *h,
                 const struct kg_draws *draws)
{
    const int64_t n = h->hidden.rows, vocab = h->weight.rows;
    const int64_t width = kg_head_tile_width(vocab), all = kg_cuda_pieces(vocab, width);
    int64_t strips; /* per pass */

    job->out = out;
    job->draws = draws;
    job->whole = draws || out->logits;
    job->truncates = draws && draws->truncates;
    job->h = *h;
    job->n = n;
    job->vocab = vocab;
    job->h.inv_temp = kg_not_one(h->inv_temp, n);
    job->h.target = out->logp || h->kept ? h->target : NULL;
    job->h.indices = out->logp_at || h->kept ? h->indices : NULL;
    job->h.sets = out->set_logp ? h->sets : NULL;
    job->h.top_k = out->top_ids || out->top_logp ? h->top_k : 0;
    job->h.anchor = NULL;
    if (out->kl_reverse || out->kl_forward || out->anchor_lse) {
        job->anchor = *h->anchor;
        job->anchor.inv_temp = kg_not_one(h->anchor->inv_temp, n);
        job->h.anchor = &job->anchor;
    }
    job->rows = rows_at_a_time(job);
    strips = KG_DEV_LOGITS / (job->rows * width * KG_CUDA_STRIP_TILES);
    job->tiles = {width, all, 0,
                  kg_cuda_min((strips > 1 ? strips : 1) * KG_CUDA_STRIP_TILES, all)};
}

static void place_asked(struct kg_cuda_asked *a, struct kg_cuda_piece *p,
                        const struct job *job)
{
    kg_cuda_asked_place(a, p, &job->h, job->n);
    kg_cuda_sets_place(a, p, &job->h, NULL, job->n);
}

static void place_results(struct results *r, struct kg_cuda_piece *p,
                          const struct job *job)
{
    const struct kg_head_out *out = job->out;
    const int64_t n = job->n, top = n * job->h.top_k;

    kg_cuda_take(p, &r->lse, n);
    kg_cuda_take(p, &r->set_logp, out->set_logp ? n : 0);
    kg_cuda_take(p, &r->kl_reverse, out->kl_reverse ? n : 0);
    kg_cuda_take(p, &r->kl_forward, out->kl_forward ? n : 0);
    kg_cuda_take(p, &r->anchor_lse, out->anchor_lse ? n : 0);
    kg_cuda_take(p, &r->logp, out->logp ? n : 0);
    kg_cuda_take(p, &r->logp_at, out->logp_at ? n * job->h.k : 0);
    kg_cuda_take(p, &r->entropy, out->entropy ? n : 0);
    kg_cuda_take(p, &r->top_logp, out->top_logp ? top : 0);
    kg_cuda_take(p, &r->top_ids, out->top_ids ? top : 0);
}

static void give_results(const struct results *r, const struct job *job)
{
    const struct kg_head_out *out = job->out;
    const int64_t n = job->n;

    kg_cuda_fill(out->lse, r->lse, NULL, n, 1);
    kg_cuda_fill(out->set_logp, r->set_logp, NULL, n, 1);
    kg_cuda_fill(out->kl_reverse, r->kl_reverse, NULL, n, 1);
    kg_cuda_fill(out->kl_forward, r->kl_forward, NULL, n, 1);
    kg_cuda_fill(out->anchor_lse, r->anchor_lse, NULL, n, 1);
    kg_cuda_fill(out->logp, r->logp, NULL, n, 1);
    kg_cuda_fill(out->logp_at, r->logp_at, NULL, n, job->h.k);
    kg_cuda_fill(out->entropy, r->entropy, NULL, n, 1);
    kg_cuda_fill(out->top_logp, r->top_logp, NULL, n, job->h.top_k);
    kg_cuda_fill(out->top_ids, r->top_ids, NULL, n, job->h.top_k);
}

/* Columns from one row of logits to the next: a multiple of 8, as libraries require. */
static int64_t padded(int64_t cols) { return (cols + 7) / 8 * 8; }

static void place_work(struct job *job, struct kg_cuda_piece *p)
{
    const int64_t rows = job->rows, n = job->tiles.n, columns = n * job->tiles.width;
    const int64_t lists = job->h.top_k > 0 ? rows * n : 0;
    const int64_t words = kg_cuda_set_words(job->vocab);
    const int64_t candidates = job->truncates ? rows * job->vocab : 0;
    const struct kg_draw_part part = kg_draw_part(NULL, (int32_t)job->vocab, 0.0f);

    kg_cuda_take(p, &job->logits, rows * (job->whole ? padded(job->vocab) : columns));
    kg_cuda_take(p, &job->drawing.maxima, job->draws ? rows * job->tiles.all : 0);
    kg_cuda_take(p, &job->drawing.sums, job->draws ? rows * kg_draw_spans(&part) : 0);
    kg_cuda_take(p, &job->drawing.candidates, candidates);
    kg_cuda_take(p, &job->drawing.weights, candidates);
    kg_cuda_take(p, &job->anchor_logits, job->h.anchor ? rows * columns : 0);
    kg_cuda_take(p, &job->stats, rows * job->tiles.all);
    kg_cuda_take(p, &job->lists.at, lists * job->h.top_k);
    kg_cuda_take(p, &job->lists.counts, lists);
    kg_cuda_take(p, &job->bits, job->h.sets ? rows * words : 0);
    job->lists.n = n;
    job->lists.k = job->h.top_k;
}

/* Logits of a pass's rows in tiles t. */
static struct kg_mat logits_of(const struct job *job, float *logits, int64_t rows,
                               struct tiles t)
{
    const int64_t column = t.first * t.width;
    const int64_t cols = kg_cuda_min(t.n * t.width, job->vocab - column);
    struct kg_mat z = kg_mat(logits, KG_F32, rows, cols);

    z.stride = padded(cols);
    if (job->whole && logits == job->logits) {
        z.data = logits + column;
        z.stride = padded(job->vocab);
    }
    return z;
}

static struct slots slots_of(const struct job *job, int64_t first)
{
    return {first, job->h.k, job->asked.target, job->asked.indices};
}

static struct wishes wishes_of(const struct job *job, int64_t first)
{
    const struct kg_cuda_asked *a = &job->asked;
    const float *inv_temp = job->draws ? job->draws->inv_temp : a->inv_temp;
    struct wishes w = {{job->h.softcap, inv_temp ? inv_temp + first : NULL},
                       {0.0f, a->anchor_temp ? a->anchor_temp + first : NULL},
                       slots_of(job, first),
                       job->results,
                       job->drawing.maxima};

    if (job->h.anchor)
        w.anchor.softcap = job->h.anchor->softcap;
    return w;
}

static kg_status run_tiles(const struct job *job, int64_t first, int64_t rows,
                           struct tiles t, struct kg_err *err)
{
    const struct kg_head *h = &job->h;
    const struct kg_mat z = logits_of(job, job->logits, rows, t);
    struct kg_mat zq = logits_of(job, job->anchor_logits, rows, t);
    const int64_t column = t.first * t.width, units = rows * t.n;
    const int64_t strip = KG_CUDA_STRIP_TILES * t.width;
    const dim3 warps = kg_grid(kg_cuda_pieces(units, WARPS), 1);

    KG_TRY(kg_cuda_head_products(z, strip, kg_mat_rows(h->hidden, first, rows),
                                 kg_mat_rows(h->weight, column, z.cols), err));
    if (h->anchor)
        KG_TRY(
            kg_cuda_head_products(zq, strip, kg_mat_rows(h->anchor->hidden, first, rows),
                                  kg_mat_rows(h->anchor->weight, column, z.cols), err));
    if (h->anchor)
        KG_LAUNCH(sum_tiles<true>, kg_grid(units, 1), KG_ROW_THREADS, job->stats, z, zq,
                  t, wishes_of(job, first));
    else
        KG_LAUNCH(sum_tiles<false>, kg_grid(units, 1), KG_ROW_THREADS, job->stats, z, zq,
                  t, wishes_of(job, first));
    if (h->sets)
        KG_LAUNCH(sum_sets, warps, KG_ROW_THREADS, job->stats, z, job->bits,
                  kg_cuda_set_words(job->vocab), t);
    if (h->top_k > 0)
        KG_LAUNCH(offer, warps, KG_ROW_THREADS, job->lists, z, t);
    return KG_OK;
}

static void finish(const struct job *job, int64_t first, int64_t rows)
{
    const struct kg_cuda_set *sets = job->asked.sets;

    KG_LAUNCH(finish_rows, kg_grid(rows, 1), KG_ROW_THREADS, job->results, job->stats,
              sets ? sets + first : NULL, first, job->tiles.all);
    if (job->out->logp || job->out->logp_at)
        KG_LAUNCH(finish_asked, kg_cuda_rows(rows, job->h.k + 1), KG_ROW_THREADS,
                  job->results, slots_of(job, first));
    if (job->h.top_k > 0)
        KG_LAUNCH(finish_top, kg_grid(kg_cuda_pieces(rows, WARPS), 1), KG_ROW_THREADS,
                  job->results, job->lists, first, rows);
}

/* Copies logits that are wanted on the host, of all rows or of some. */
static void give_logits(const struct job *job, int64_t first, int64_t rows)
{
    const int64_t vocab = job->vocab;
    float *const *some = job->draws ? job->draws->logits : NULL;
    float *all = job->out->logits;

    for (int64_t i = 0; (some || all) && i < rows; i++) {
        const float *from = job->logits + i * padded(vocab);

        if (all)
            kg_cuda_down(all + (first + i) * vocab, from, (uint64_t)vocab * sizeof *from);
        if (some && some[first + i])
            kg_cuda_down(some[first + i], from, (uint64_t)vocab * sizeof *from);
    }
}

static kg_status run_rows(const struct job *job, int64_t first, int64_t rows,
                          struct kg_err *err)
{
    const struct tiles whole = {job->tiles.width, job->tiles.all, 0, job->tiles.all};
    struct tiles t = job->tiles;

    if (job->h.sets)
        kg_cuda_open_sets(job->bits, job->asked.sets + first, job->asked.packed, rows,
                          job->vocab);
    if (job->h.top_k > 0)
        kg_dev_zero(job->lists.counts, (uint64_t)(rows * t.n) * sizeof(int32_t));
    for (; t.first < t.all; t.first += t.n) {
        t.n = kg_cuda_min(job->tiles.n, t.all - t.first);
        KG_TRY(run_tiles(job, first, rows, t, err));
    }
    finish(job, first, rows);
    if (job->draws)
        kg_cuda_draw_rows(&job->drawing, logits_of(job, job->logits, rows, whole),
                          job->results.lse, first);
    give_logits(job, first, rows);
    return KG_OK;
}

static kg_status run(const struct job *job, struct kg_err *err)
{
    for (int64_t n = 0; n < job->n; n += job->rows)
        KG_TRY(run_rows(job, n, kg_cuda_min(job->rows, job->n - n), err));
    return KG_OK;
}

template <typename T> static void keep_one(T *to, const T *from, int64_t n)
{
    if (from)
        kg_dev_copy(to, from, (uint64_t)n * sizeof *to);
}

/* Keeps results for the backward. */
static void keep(const struct job *job)
{
    const struct kg_cuda_asked *a = &job->asked;
    const struct results *r = &job->results;
    struct kg_cuda_kept k;

    kg_cuda_kept_place(&k, &job->h);
    keep_one(k.asked.inv_temp, a->inv_temp, job->n);
    keep_one(k.asked.anchor_temp, a->anchor_temp, job->n);
    keep_one(k.asked.target, a->target, job->n);
    keep_one(k.asked.indices, a->indices, job->n * job->h.k);
    keep_one(k.found.lse, r->lse, job->n);
    keep_one(k.found.kl_reverse, r->kl_reverse, job->n);
    keep_one(k.found.anchor_lse, r->anchor_lse, job->n);
    keep_one(k.found.entropy, r->entropy, job->n);
}

/* host: inputs, then results; device memory begins with the same, then has scratch. */
static kg_status run_head(struct job *job, char *host, uint64_t up, uint64_t both,
                          uint64_t all, struct kg_err *err)
{
    struct kg_cuda_piece from = {host, 0}, to = {NULL, 0};
    struct kg_cuda_asked asked;
    struct results results;

    to.base = (char *)kg_cuda_scratch(all, err);
    if (!to.base)
        return err->code;
    place_asked(&asked, &from, job);
    place_asked(&job->asked, &to, job);
    place_results(&results, &from, job);
    place_results(&job->results, &to, job);
    place_work(job, &to);
    kg_cuda_asked_fill(&asked, &job->h, NULL, job->n);
    kg_cuda_sets_fill(&asked, &job->h, NULL, job->n);
    if (up > 0)
        kg_cuda_up(to.base, host, up);
    KG_TRY(run(job, err));
    if (job->h.kept)
        keep(job);
    kg_cuda_down(host + up, to.base + up, both - up);
    KG_TRY(kg_dev_done("head", err));
    give_results(&results, job);
    return KG_OK;
}

kg_status kg_cuda_head(const struct kg_head_out *out, const struct kg_head *h,
                       struct kg_err *err)
{
    struct job job = {};
    struct kg_cuda_piece p = {NULL, 0};
    uint64_t up, both;
    char *host;

    if (h->hidden.rows == 0 || h->weight.rows == 0)
        return KG_OK;
    plan(&job, out, h, NULL);
    place_asked(&job.asked, &p, &job);
    up = p.used;
    place_results(&job.results, &p, &job);
    both = p.used;
    place_work(&job, &p);
    host = (char *)kg_cuda_host_scratch(both, err);
    return host ? run_head(&job, host, up, both, p.used, err) : err->code;
}

/* The caller's operands and results are already on the device. */
kg_status kg_cuda_draw(const struct kg_draws *d, const struct kg_head_out *out,
                       const struct kg_head *h, struct kg_err *err)
{
    struct job job = {};
    struct kg_cuda_piece p = {NULL, 0};

    if (h->hidden.rows == 0 || h->weight.rows == 0)
        return KG_OK;
    plan(&job, out, h, d);
    place_work(&job, &p);
    p.base = (char *)kg_cuda_scratch(p.used, err);
    if (!p.base)
        return err->code;
    p.used = 0;
    place_work(&job, &p);
    job.results.lse = out->lse;
    job.results.top_ids = out->top_ids;
    job.results.top_logp = out->top_logp;
    job.drawing.how = d->how;
    job.drawing.drawn = d->drawn;
    job.drawing.kept = (uint32_t *)d->kept;
    job.drawing.words = (job.vocab + 63) / 64 * 2;
    job.drawing.tiles = job.tiles.all;
    job.drawing.width = job.tiles.width;
    KG_TRY(run(&job, err));
    return kg_dev_done("draw", err);
}
