/* The vocabulary head, forward: log-probs, entropy, top-k and exact KL without an array
 * of all logits.
 *
 * Every (row, tile) yields a maximum and a few sums relative to it, in a fixed order of
 * lanes; a row combines its tiles in order, in double. These numbers do not depend on the
 * other outputs of the head, on the number of rows, or on the thread of a tile.
 *
 * Exponentials are fp32; they are added to the largest of them in double. So 1 - p has
 * fp32 accuracy even if p is nearly 1, and so has an exact KL if p is nearly q: small
 * differences are summed, instead of subtracting two sums.
 *
 * A unit of work is a chunk of rows times a group of tiles. Many rows use one group, and
 * the heap of the top-k is kept across all tiles. Few rows (decode) use several groups,
 * so that all threads read weights.
 */
#include "base/mem.h"
#include "base/real.h"
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/head_internal.h"
#include "tensor/cpu/parallel_internal.h"

/* Sums over the columns v of one row in one tile. */
struct stat {
    double s; /* sum exp(z - m) */
    float e;  /* sum exp(z - m) (z - m): the maximum adds 0 */
    float m;  /* max z */
};

/* With the anchor's logits z', their maximum m', and d = (z - m) - (z' - m'). */
struct anchor_stat {
    struct stat q;  /* of z' */
    double reverse; /* sum exp(z - m) d */
    double forward; /* sum exp(z' - m') (-d) */
    double excess;  /* sum exp(z - m) - exp(z' - m') */
};

struct job {
    const struct kg_head_out *out;
    const struct kg_head *h;
    int64_t vocab;
    int64_t width; /* columns per tile */
    int64_t tiles;
    int64_t chunks;                   /* of rows */
    int64_t groups;                   /* of tiles */
    bool asked;                       /* log-probs of target or indices are wanted */
    struct stat *stats;               /* owned (N, tiles) */
    struct anchor_stat *anchor_stats; /* owned (N, tiles), NULL without an anchor */
    double *set_sums;        /* owned (N, tiles) sum exp(z - m) over the set; or NULL */
    struct kg_head_top *top; /* owned (N, groups, top_k), NULL when not wanted */
    int32_t *top_count;      /* owned (N, groups) */
};

/* Buffers of one thread. */
struct scratch {
    float *z;                 /* owned (rows of a chunk, columns of the tile), dense */
    float *zq;                /* owned, for the anchor; NULL without one */
    struct kg_head_ask *asks; /* owned (rows of a chunk, K+1) */
    int32_t *start;           /* owned (rows of a chunk, tiles+1) */
    struct kg_idset_walk *in_set; /* owned (rows of a chunk, tiles) */
};

static int64_t tile_cols(const struct job *job, int64_t tile)
{
    int64_t left = job->vocab - tile * job->width;
    return left < job->width ? left : job->width;
}

static int64_t chunk_rows(const struct job *job)
{
    int64_t n = job->h->hidden.rows;
    return n < KG_HEAD_ROWS ? n : KG_HEAD_ROWS;
}

static kg_status scratch_init(struct scratch *w, const struct job *job,
                              struct kg_err *err)
{
    size_t rows = (size_t)chunk_rows(job);
    size_t tile = rows * (size_t)job->width;
    w->z = kg_mem_calloc(tile, sizeof *w->z, "head logits tile", err);
    if (!w->z)
        return err->code;
    w->zq = job->h->anchor ? kg_mem_calloc(tile, sizeof *w->zq, "head anchor tile", err)
                           : NULL;
    if (job->h->anchor && !w->zq)
        return err->code;
    if (job->set_sums) {
        w->in_set = kg_mem_calloc(rows * (size_t)job->tiles, sizeof *w->in_set,
                                  "head sets", err);
        if (!w->in_set)
            return err->code;
    }
    if (!job->asked)
        return KG_OK;
    w->asks = kg_mem_calloc(rows * (size_t)(job->h->k + 1), sizeof *w->asks, "head ids",
                            err);
    if (!w->asks)
        return err->code;
    w->start = kg_mem_calloc(rows * (size_t)(job->tiles + 1), sizeof *w->start,
                             "head ids", err);
    return w->start ? KG_OK : err->code;
}

static void scratch_release(struct scratch *w)
{
    kg_mem_free(w->z);
    kg_mem_free(w->zq);
    kg_mem_free(w->asks);
    kg_mem_free(w->start);
    kg_mem_free(w->in_set);
}

/* ---- one row of one tile ---- */
static float row_max(const float *z, int64_t n)
{
    struct kg_v16 m = kg_v16_set1(-INFINITY);
    int64_t v = 0;
    for (; v + KG_LANES <= n; v += KG_LANES)
        m = kg_v16_max(m, kg_v16_load(z + v));
    if (v < n)
        m = kg_v16_max(m, kg_v16_first_n(kg_v16_load_n(z + v, (int)(n - v)), (int)(n - v),
                                         kg_v16_set1(-INFINITY)));
    return kg_v16_hmax(m);
}

/* z - m in the first n lanes, 0 in the others, whose exponentials lanes_exp removes */
static struct kg_v16 lanes_below(const float *z, float m, int n)
{
    struct kg_v16 d = kg_v16_sub(kg_v16_load_n(z, n), kg_v16_set1(m));
    return n < KG_LANES ? kg_v16_first_n(d, n, kg_v16_zero()) : d;
}

static struct kg_v16 lanes_exp(struct kg_v16 d, int n)
{
    struct kg_v16 p = kg_v16_exp(d);
    return n < KG_LANES ? kg_v16_first_n(p, n, kg_v16_zero()) : p;
}

static struct stat row_stat(const float *z, int64_t n)
{
    struct stat t = {.m = row_max(z, n)};
    struct kg_d16 s = kg_d16_set1(0);
    struct kg_v16 e = kg_v16_zero();
    for (int64_t v = 0; v < n; v += KG_LANES) {
        int lanes = kg_cpu_lanes(n - v);
        struct kg_v16 d = lanes_below(z + v, t.m, lanes);
        struct kg_v16 p = lanes_exp(d, lanes);
        s = kg_d16_add(s, kg_d16_widen(p));
        e = kg_v16_fma(p, d, e);
    }
    t.s = kg_d16_sum(s);
    t.e = kg_v16_sum(e);
    return t;
}

static struct anchor_stat row_anchor_stat(const float *z, float m, const float *zq,
                                          int64_t n)
{
    struct anchor_stat t = {.q = row_stat(zq, n)};
    struct kg_d16 apart = kg_d16_set1((double)m - (double)t.q.m);
    struct kg_d16 reverse = kg_d16_set1(0);
    struct kg_d16 forward = kg_d16_set1(0);
    struct kg_d16 excess = kg_d16_set1(0);
    for (int64_t v = 0; v < n; v += KG_LANES) {
        int lanes = kg_cpu_lanes(n - v);
        struct kg_v16 p = lanes_exp(lanes_below(z + v, m, lanes), lanes);
        struct kg_v16 q = lanes_exp(lanes_below(zq + v, t.q.m, lanes), lanes);
        struct kg_d16 d = kg_d16_sub(kg_cpu_head_log_ratio(z + v, zq + v, lanes), apart);
        struct kg_v16 gap = kg_cpu_head_p_minus_q(kg_v16_max(p, q), kg_d16_narrow(d));
        reverse = kg_d16_fma(kg_d16_widen(p), d, reverse);
        forward = kg_d16_sub(forward, kg_d16_fma(kg_d16_widen(q), d, kg_d16_set1(0)));
        excess = kg_d16_add(excess, kg_d16_widen(gap));
    }
    t.reverse = kg_d16_sum(reverse);
    t.forward = kg_d16_sum(forward);
    t.excess = kg_d16_sum(excess);
    return t;
}

/* Stores the logits of row n's ids; finish_asked subtracts lse. */
static void keep_asked(const struct job *job, const struct scratch *w, const float *z,
                       int64_t r, int64_t n, int64_t tile)
{
    const struct kg_head_out *out = job->out;
    const int32_t *start = w->start + r * (job->tiles + 1);
    const struct kg_head_ask *asks = w->asks + r * (job->h->k + 1);
    for (int32_t i = start[tile]; i < start[tile + 1]; i++) {
        float x = z[asks[i].id - tile * job->width];
        if (asks[i].slot == job->h->k && out->logp)
            out->logp[n] = x;
        else if (asks[i].slot < job->h->k && out->logp_at)
            out->logp_at[n * job->h->k + asks[i].slot] = x;
    }
}

/* sum exp(z - m) over the set's ids in the tile, in ascending order */
static double set_sum(const struct kg_idset *set, struct kg_idset_walk at, const float *z,
                      float m, int64_t first, int64_t cols)
{
    double sum = 0;
    for (; at.id < first + cols; kg_idset_next(&at, set)) {
        if (at.id >= set->bound)
            break;
        sum += kg_exp((double)z[at.id - first] - (double)m);
    }
    return sum;
}

/* ---- one tile ---- */
static kg_status tile_logits(float *z, struct kg_mat hidden, struct kg_mat weight,
                             const float *inv_temp, float softcap, struct kg_err *err)
{
    return kg_cpu_head_logits(kg_mat(z, KG_F32, hidden.rows, weight.rows), hidden, weight,
                              inv_temp, softcap, err);
}

static void visit_row(const struct job *job, const struct scratch *w, int64_t r,
                      int64_t n, int64_t group, int64_t tile)
{
    int64_t first = tile * job->width;
    int64_t cols = tile_cols(job, tile);
    const float *z = w->z + r * cols;
    struct stat *stat = job->stats + n * job->tiles + tile;
    *stat = row_stat(z, cols);
    if (job->anchor_stats)
        job->anchor_stats[n * job->tiles + tile] = row_anchor_stat(
            z, stat->m, w->zq + r * cols, cols);
    if (job->set_sums && job->h->sets[n].n > 0)
        job->set_sums[n * job->tiles + tile] = set_sum(
            &job->h->sets[n], w->in_set[r * job->tiles + tile], z, stat->m, first, cols);
    if (job->asked)
        keep_asked(job, w, z, r, n, tile);
    int64_t list = n * job->groups + group;
    if (job->top)
        kg_cpu_head_top_offer(job->top + list * job->h->top_k, job->top_count + list,
                              job->h->top_k, z, cols, (int32_t)first);
    if (job->out->logits)
        memcpy(job->out->logits + n * job->vocab + first, z, (size_t)cols * sizeof *z);
}

static kg_status visit_tile(const struct job *job, const struct scratch *w, int64_t chunk,
                            int64_t group, int64_t tile, struct kg_err *err)
{
    const struct kg_head *h = job->h;
    int64_t n0 = chunk * KG_HEAD_ROWS;
    int64_t rows = h->hidden.rows - n0 < KG_HEAD_ROWS ? h->hidden.rows - n0
                                                      : KG_HEAD_ROWS;
    int64_t first = tile * job->width;
    int64_t cols = tile_cols(job, tile);
    KG_TRY(tile_logits(w->z, kg_mat_rows(h->hidden, n0, rows),
                       kg_mat_rows(h->weight, first, cols),
                       h->inv_temp ? h->inv_temp + n0 : NULL, h->softcap, err));
    const struct kg_head_anchor *q = h->anchor;
    if (q)
        KG_TRY(tile_logits(w->zq, kg_mat_rows(q->hidden, n0, rows),
                           kg_mat_rows(q->weight, first, cols),
                           q->inv_temp ? q->inv_temp + n0 : NULL, q->softcap, err));
    for (int64_t r = 0; r < rows; r++)
        visit_row(job, w, r, n0 + r, group, tile);
    return KG_OK;
}

/* Sorts ids and sets of a chunk's rows by tile. */
static void sort_chunk(const struct job *job, const struct scratch *w, int64_t n0)
{
    const struct kg_head *h = job->h;
    for (int64_t r = 0; r < KG_HEAD_ROWS && n0 + r < h->hidden.rows; r++) {
        if (job->asked)
            kg_cpu_head_sort_ids(w->asks + r * (h->k + 1),
                                 w->start + r * (job->tiles + 1), h, n0 + r, job->width,
                                 job->tiles);
        if (job->set_sums && h->sets[n0 + r].n > 0)
            kg_cpu_head_set_starts(w->in_set + r * job->tiles, &h->sets[n0 + r],
                                   job->width, job->tiles);
    }
}

static kg_status run_unit(const struct job *job, const struct scratch *w, int64_t unit,
                          struct kg_err *err)
{
    int64_t chunk = unit / job->groups;
    int64_t group = unit % job->groups;
    sort_chunk(job, w, chunk * KG_HEAD_ROWS);
    int64_t end = (group + 1) * job->tiles / job->groups;
    for (int64_t tile = group * job->tiles / job->groups; tile < end; tile++)
        KG_TRY(visit_tile(job, w, chunk, group, tile, err));
    return KG_OK;
}

static kg_status run_units(const struct job *job, bool threads, struct kg_err *err)
{
    int64_t units = job->chunks * job->groups;
    int64_t next = 0;
    kg_status status = KG_OK;
#pragma omp parallel if (threads && units > 1)
    {
        struct scratch w = {0};
        struct kg_err mine;
        kg_status got = scratch_init(&w, job, &mine);
        for (int64_t i = 0; got == KG_OK && (i = kg_cpu_take(&next)) < units;)
            got = run_unit(job, &w, i, &mine);
        if (got != KG_OK)
            kg_cpu_report(&status, err, &mine);
        scratch_release(&w);
    }
    return status;
}

/* ---- rows, after all tiles ---- */
struct total {
    double m;
    double s;
    double e;
};

static double largest(const struct stat *stat, int64_t tiles, size_t step)
{
    double m = (double)stat->m;
    for (int64_t t = 1; t < tiles; t++) {
        const struct stat *at = (const void *)((const char *)stat + (size_t)t * step);
        m = (double)at->m > m ? (double)at->m : m;
    }
    return m;
}

/* Adds tiles in order; they are `step` bytes apart. */
static struct total combine(const struct stat *stat, int64_t tiles, size_t step)
{
    struct total sum = {.m = largest(stat, tiles, step)};
    for (int64_t t = 0; t < tiles; t++) {
        const struct stat *at = (const void *)((const char *)stat + (size_t)t * step);
        double below = (double)at->m - sum.m;
        double w = kg_exp(below);
        sum.s += w * at->s;
        sum.e += w * ((double)at->e + below * at->s);
    }
    return sum;
}

/* Sums over all tiles; d and the exponentials are relative to the maxima of the rows. */
struct apart {
    double reverse;
    double forward;
    double excess; /* S - S' */
};

static struct apart sum_apart(const struct job *job, int64_t n, double m, double mq)
{
    const struct stat *stat = job->stats + n * job->tiles;
    const struct anchor_stat *anchor = job->anchor_stats + n * job->tiles;
    struct apart sum = {0};
    for (int64_t t = 0; t < job->tiles; t++) {
        const struct anchor_stat *a = anchor + t;
        double dp = (double)stat[t].m - m;
        double dq = (double)a->q.m - mq;
        double wp = kg_exp(dp);
        double wq = kg_exp(dq);
        sum.reverse += wp * (a->reverse + (dp - dq) * stat[t].s);
        sum.forward += wq * (a->forward + (dq - dp) * a->q.s);
        sum.excess += wp * a->excess + (wp - wq) * a->q.s;
    }
    return sum;
}

/* log S - log S'; if they are nearly equal, from their difference */
static double log_of_ratio(double s, double sq, double excess)
{
    return fabs(excess) < 0.5 * sq ? kg_log1p(excess / sq) : kg_log(s) - kg_log(sq);
}

/* R = sum p d / S - log(S / S'), F = log(S / S') - sum q d / S' (d as in `apart`) */
static void finish_anchor(const struct job *job, int64_t n, const struct total *p)
{
    const struct kg_head_out *out = job->out;
    const struct anchor_stat *anchor = job->anchor_stats + n * job->tiles;
    struct total q = combine(&anchor->q, job->tiles, sizeof *anchor);
    struct apart sum = sum_apart(job, n, p->m, q.m);
    double l = log_of_ratio(p->s, q.s, sum.excess);
    if (out->kl_reverse)
        out->kl_reverse[n] = sum.reverse / p->s - l;
    if (out->kl_forward)
        out->kl_forward[n] = sum.forward / q.s + l;
    if (out->anchor_lse)
        out->anchor_lse[n] = p->m + kg_log(p->s) - (p->m - q.m) - l;
}

static void finish_asked(const struct job *job, int64_t n, double lse)
{
    const struct kg_head *h = job->h;
    const struct kg_head_out *out = job->out;
    if (out->logp)
        out->logp[n] = h->target && h->target[n] >= 0
                           ? (float)((double)out->logp[n] - lse)
                           : 0.0f;
    for (int k = 0; out->logp_at && k < h->k; k++) {
        float *x = out->logp_at + n * h->k + k;
        *x = h->indices && h->indices[n * h->k + k] >= 0 ? (float)((double)*x - lse)
                                                         : -INFINITY;
    }
}

static void finish_top(const struct job *job, int64_t n, double lse)
{
    int k = job->h->top_k;
    struct kg_head_top *heap = job->top + n * job->groups * k;
    int32_t *count = job->top_count + n * job->groups;
    for (int64_t g = 1; g < job->groups; g++)
        kg_cpu_head_top_merge(heap, count, k, heap + g * k, count[g]);
    kg_cpu_head_top_sort(heap, *count);
    for (int i = 0; i < k; i++) {
        bool there = i < *count;
        if (job->out->top_ids)
            job->out->top_ids[n * k + i] = there ? heap[i].id : -1;
        if (job->out->top_logp)
            job->out->top_logp[n * k + i] = there ? (float)((double)heap[i].z - lse)
                                                  : -INFINITY;
    }
}

/* Adds tiles in order, as `combine` does. */
static double log_set(const struct job *job, int64_t n, const struct total *p)
{
    const struct stat *stat = job->stats + n * job->tiles;
    const double *sums = job->set_sums + n * job->tiles;
    double sum = 0;
    for (int64_t t = 0; t < job->tiles; t++)
        sum += kg_exp((double)stat[t].m - p->m) * sums[t];
    return kg_log(sum) - kg_log(p->s);
}

static void finish_row(const struct job *job, int64_t n)
{
    struct total p = combine(job->stats + n * job->tiles, job->tiles, sizeof *job->stats);
    double lse = p.m + kg_log(p.s);
    if (job->out->lse)
        job->out->lse[n] = lse;
    if (job->out->entropy)
        job->out->entropy[n] = (float)(kg_log(p.s) - p.e / p.s);
    if (job->anchor_stats)
        finish_anchor(job, n, &p);
    if (job->set_sums)
        job->out->set_logp[n] = job->h->sets[n].n > 0 ? log_set(job, n, &p) : 0;
    finish_asked(job, n, lse);
    if (job->top)
        finish_top(job, n, lse);
}

/* ---- the operation ---- */
/* Enough units for the threads; results do not depend on the number of units. */
static void plan(struct job *job, bool threads)
{
    int64_t n = job->h->hidden.rows;
    int64_t wanted = threads ? 4 * (int64_t)omp_get_max_threads() : 1;
    job->vocab = job->h->weight.rows;
    job->width = kg_head_tile_width(job->vocab);
    job->tiles = (job->vocab + job->width - 1) / job->width;
    job->chunks = (n + KG_HEAD_ROWS - 1) / KG_HEAD_ROWS;
    job->groups = job->chunks > 0 ? (wanted + job->chunks - 1) / job->chunks : 1;
    job->groups = job->groups < job->tiles ? job->groups : job->tiles;
    job->asked = (job->out->logp && job->h->target) ||
                 (job->out->logp_at && job->h->indices);
}

static kg_status job_init(struct job *job, struct kg_err *err)
{
    size_t n = (size_t)job->h->hidden.rows;
    size_t tiles = (size_t)job->tiles;
    size_t lists = n * (size_t)job->groups;
    job->stats = kg_mem_calloc(n * tiles, sizeof *job->stats, "head statistics", err);
    if (!job->stats)
        return err->code;
    if (job->h->anchor) {
        job->anchor_stats = kg_mem_calloc(n * tiles, sizeof *job->anchor_stats,
                                          "head anchor statistics", err);
        if (!job->anchor_stats)
            return err->code;
    }
    if (job->out->set_logp) {
        job->set_sums = kg_mem_calloc(n * tiles, sizeof *job->set_sums, "head sets", err);
        if (!job->set_sums)
            return err->code;
    }
    if (job->h->top_k <= 0 || (!job->out->top_ids && !job->out->top_logp))
        return KG_OK;
    job->top = kg_mem_calloc(lists * (size_t)job->h->top_k, sizeof *job->top,
                             "head top-k lists", err);
    if (!job->top)
        return err->code;
    job->top_count = kg_mem_calloc(lists, sizeof *job->top_count, "head top-k lists",
                                   err);
    return job->top_count ? KG_OK : err->code;
}

static void job_release(struct job *job)
{
    kg_mem_free(job->stats);
    kg_mem_free(job->anchor_stats);
    kg_mem_free(job->set_sums);
    kg_mem_free(job->top);
    kg_mem_free(job->top_count);
}

kg_status kg_cpu_head(const struct kg_head_out *out, const struct kg_head *h,
                      struct kg_err *err)
{
    struct job job = {.out = out, .h = h};
    kg_status status;
    int64_t n = h->hidden.rows;
    bool threads = kg_cpu_use_threads(n * h->weight.rows * h->hidden.cols);
    plan(&job, threads);
    KG_TRY_GOTO(out, job_init(&job, err));
    KG_TRY_GOTO(out, run_units(&job, threads, err));
#pragma omp parallel for schedule(static) if (threads && n > 1)
    for (int64_t r = 0; r < n; r++)
        finish_row(&job, r);
out:
    job_release(&job);
    return status;
}
