/* The vocabulary head, backward: from a few numbers per row to gradients of hidden states
 * and weights.
 *
 * With p = exp(lp), lp = z - lse, t the inverse temperature, and a, c_H, c_R, c_F from
 * the loss:
 *
 *     dloss/dz_v = a_v - p_v sum_J a - c_H p_v (lp_v + H) + c_R p_v (lp_v - lq_v - R)
 *                  + c_F (p_v - q_v) + c_S (1[v in set] p_v / S - p_v)
 *                = a_v + p_v (k0 + k1 lp_v + kr (lp_v - lq_v - R)) + kf (p_v - q_v)
 *     k0 = -sum a - c_H H - c_S,   k1 = -c_H,   kr = c_R,   kf = c_F   (all times t)
 *     and for v in the row's set k0 + c_S / S
 *
 * and with a softcap, z = t cap tanh(x / cap), times 1 - (z / (t cap))^2 for dloss/dx.
 *
 * This is computed in fp32, but differences of two large numbers in double. Columns with
 * an a_v are computed in double throughout, because a_v and p_v sum a may cancel, and so
 * are those of the set. An id whose a_v is 0 changes no bit.
 *
 * Rows without any gradient are left out first. Then, for each block of rows and each
 * strip of the vocabulary, dz is written in the compute dtype, and two products consume
 * it. Strips and row blocks depend on shapes and on which rows have a gradient, never on
 * the threads; dz has the size of one block by one strip.
 */
#include "base/mem.h"
#include "base/real.h"
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/head_internal.h"
#include "tensor/cpu/parallel_internal.h"

enum { BLOCK_ROWS = 1024, STRIP_TILES = 2, UNIT_ROWS = 128 /* per unit of work */ };

/* Numbers of a row in the formula above. */
struct factors {
    double lse;
    double anchor_lse;
    double k0;
    double ks; /* c_S / S */
    double k1;
    double kr;
    double r; /* R */
    double kf;
    double t;
};

struct job {
    const struct kg_head_grad *g;
    const struct kg_head *h;
    enum kg_dtype dtype;
    int64_t vocab;
    int64_t width; /* of a tile */
    int64_t tiles; /* of the vocabulary */
    int64_t n;     /* rows that have a gradient */
    int64_t block; /* rows per block */
    int32_t *row;  /* owned (n) indices of these rows in hidden, ascending */
};

/* One block of at most R rows. All arrays are owned, except `row`. */
struct block {
    int64_t rows;
    const int32_t *row;           /* borrowed from the job */
    void *hidden;                 /* (R, D) ct */
    void *anchor_hidden;          /* (R, Da), NULL without an anchor gradient */
    void *dz;                     /* (R, columns of the strip) ct, dense */
    float *dhidden;               /* (R, D) */
    float *inv_temp;              /* (R), 1 if the head has none */
    float *anchor_temp;           /* (R) */
    struct factors *factors;      /* (R) */
    struct kg_head_ask *asks;     /* (R, K+1) */
    int32_t *start;               /* (R, tiles+1) */
    struct kg_idset_walk *in_set; /* (R, tiles), NULL without a gradient of sets */
};

/* ---- which rows, and their factors ---- */
static double at(const double *a, int64_t n) { return a ? a[n] : 0.0; }

static double sum_a(const struct job *job, int64_t n, bool *any)
{
    const struct kg_head *h = job->h;
    double sum = 0.0;
    for (int k = 0; job->g->a_indices && k < h->k; k++) {
        double a = h->indices[n * h->k + k] >= 0 ? job->g->a_indices[n * h->k + k] : 0.0;
        *any = *any || a != 0.0;
        sum += a;
    }
    double a = job->g->a_target && h->target[n] >= 0 ? job->g->a_target[n] : 0.0;
    *any = *any || a != 0.0;
    return sum + a;
}

/* a_set of the row; 0 if its set is all ids. */
static double a_set(const struct job *job, int64_t n)
{
    return job->g->a_set && job->h->sets[n].n > 0 ? job->g->a_set[n] : 0.0;
}

static bool has_gradient(const struct job *job, int64_t n)
{
    const struct kg_head_grad *g = job->g;
    bool any = at(g->a_entropy, n) != 0.0 || at(g->a_kl_reverse, n) != 0.0 ||
               at(g->a_kl_forward, n) != 0.0 || a_set(job, n) != 0.0;
    sum_a(job, n, &any);
    return any;
}

static struct factors factors_of(const struct job *job, int64_t n)
{
    const struct kg_head_grad *g = job->g;
    bool any = false;
    double a = sum_a(job, n, &any);
    double ch = at(g->a_entropy, n);
    double entropy = g->a_entropy ? (double)g->entropy[n] : 0.0;
    double t = job->h->inv_temp ? (double)job->h->inv_temp[n] : 1.0;
    double cs = a_set(job, n);
    return (struct factors){
        .lse = g->lse[n],
        .anchor_lse = g->anchor_lse ? g->anchor_lse[n] : 0.0,
        .k0 = t * (-a - cs - ch * entropy),
        .ks = cs != 0.0 ? t * cs * kg_exp(-g->set_logp[n]) : 0.0,
        .k1 = t * -ch,
        .kr = t * at(g->a_kl_reverse, n),
        .r = g->a_kl_reverse ? g->kl_reverse[n] : 0.0,
        .kf = t * at(g->a_kl_forward, n),
        .t = t,
    };
}

static bool with_anchor(const struct job *job)
{
    return job->h->anchor && (job->g->a_kl_reverse || job->g->a_kl_forward);
}

static kg_status job_init(struct job *job, struct kg_err *err)
{
    int64_t rows = job->h->hidden.rows;
    job->dtype = job->h->hidden.dtype;
    job->vocab = job->h->weight.rows;
    job->width = kg_head_tile_width(job->vocab);
    job->tiles = (job->vocab + job->width - 1) / job->width;
    job->row = kg_mem_calloc((size_t)rows, sizeof *job->row, "head backward rows", err);
    if (!job->row)
        return err->code;
    for (int64_t n = 0; n < rows; n++)
        if (has_gradient(job, n))
            job->row[job->n++] = (int32_t)n;
    int64_t blocks = (job->n + BLOCK_ROWS - 1) / BLOCK_ROWS; /* of nearly equal size */
    job->block = blocks > 0 ? ((job->n + blocks - 1) / blocks + 15) / 16 * 16 : 0;
    return KG_OK;
}

/* ---- one block of rows ---- */
/* Allocates, with a status for KG_TRY. */
static kg_status get(void *slot, int64_t count, size_t size, struct kg_err *err)
{
    void *p = kg_mem_calloc((size_t)count, size, "head backward block", err);
    memcpy(slot, &p, sizeof p);
    return p ? KG_OK : err->code;
}

static kg_status block_init(struct block *b, const struct job *job, struct kg_err *err)
{
    int64_t r = job->block;
    const struct kg_head *h = job->h;
    size_t ct = kg_dtype_traits(job->dtype)->bytes;
    KG_TRY(get(&b->hidden, r * h->hidden.cols, ct, err));
    KG_TRY(get(&b->dz, r * STRIP_TILES * job->width, ct, err));
    KG_TRY(get(&b->dhidden, r * h->hidden.cols, sizeof *b->dhidden, err));
    KG_TRY(get(&b->inv_temp, r, sizeof *b->inv_temp, err));
    KG_TRY(get(&b->factors, r, sizeof *b->factors, err));
    KG_TRY(get(&b->asks, r * (h->k + 1), sizeof *b->asks, err));
    KG_TRY(get(&b->start, r * (job->tiles + 1), sizeof *b->start, err));
    if (job->g->a_set)
        KG_TRY(get(&b->in_set, r * job->tiles, sizeof *b->in_set, err));
    if (!with_anchor(job))
        return KG_OK;
    KG_TRY(get(&b->anchor_temp, r, sizeof *b->anchor_temp, err));
    return get(&b->anchor_hidden, r * h->anchor->hidden.cols,
               kg_dtype_traits(h->anchor->hidden.dtype)->bytes, err);
}

static void block_release(struct block *b)
{
    kg_mem_free(b->hidden);
    kg_mem_free(b->anchor_hidden);
    kg_mem_free(b->dz);
    kg_mem_free(b->dhidden);
    kg_mem_free(b->inv_temp);
    kg_mem_free(b->anchor_temp);
    kg_mem_free(b->factors);
    kg_mem_free(b->asks);
    kg_mem_free(b->start);
    kg_mem_free(b->in_set);
}

static void copy_row(void *dst, int64_t i, struct kg_mat src, int64_t n)
{
    size_t bytes = kg_dtype_traits(src.dtype)->bytes;
    size_t row = (size_t)src.cols * bytes;
    memcpy((char *)dst + (size_t)i * row,
           (const char *)src.data + (size_t)(n * src.stride) * bytes, row);
}

static void gather_row(struct block *b, const struct job *job, int64_t i)
{
    const struct kg_head *h = job->h;
    int64_t n = b->row[i];
    copy_row(b->hidden, i, h->hidden, n);
    b->inv_temp[i] = h->inv_temp ? h->inv_temp[n] : 1.0f;
    b->factors[i] = factors_of(job, n);
    kg_cpu_head_sort_ids(b->asks + i * (h->k + 1), b->start + i * (job->tiles + 1), h, n,
                         job->width, job->tiles);
    if (b->factors[i].ks != 0.0)
        kg_cpu_head_set_starts(b->in_set + i * job->tiles, &h->sets[n], job->width,
                               job->tiles);
    if (!b->anchor_hidden)
        return;
    copy_row(b->anchor_hidden, i, h->anchor->hidden, n);
    b->anchor_temp[i] = h->anchor->inv_temp ? h->anchor->inv_temp[n] : 1.0f;
}

static void scatter_row(const struct block *b, const struct job *job, int64_t i)
{
    int64_t cols = job->h->hidden.cols;
    memcpy(kg_cpu_f32(job->g->dhidden, b->row[i]), b->dhidden + i * cols,
           (size_t)cols * sizeof *b->dhidden);
}

/* ---- dz of a chunk of rows in one tile ---- */
/* Buffers of one thread, for a unit. */
struct scratch {
    float *z;     /* owned (UNIT_ROWS, width) */
    float *zq;    /* owned, NULL without an anchor */
    float *slope; /* owned (width) derivative of the softcap; or NULL */
    double *a;    /* owned (width), zero between rows */
    bool *in;     /* owned (width), false between rows: in the row's set; or NULL */
    struct column {
        int64_t v; /* within the tile */
        double dz;
    } * columns; /* owned (K+1, plus width if there are sets) */
};

/* z - lse, with lse as a sum of two floats: one alone would lose bits of a large lse. */
static struct kg_v16 log_prob(struct kg_v16 z, double lse)
{
    float high = (float)lse;
    float low = (float)(lse - (double)high);
    return kg_v16_sub(kg_v16_sub(z, kg_v16_set1(high)), kg_v16_set1(low));
}

/* Replaces z by the dense part of dz: all terms but a_v and those of the set. */
static void dense_row(float *z, const struct factors *f, int64_t n)
{
    struct kg_v16 k0 = kg_v16_set1((float)f->k0);
    struct kg_v16 k1 = kg_v16_set1((float)f->k1);
    for (int64_t v = 0; v < n; v += KG_LANES) {
        int lanes = kg_cpu_lanes(n - v);
        struct kg_v16 lp = log_prob(kg_v16_load_n(z + v, lanes), f->lse);
        struct kg_v16 x = kg_v16_fma(k1, lp, k0);
        kg_v16_store_n(z + v, kg_v16_mul(kg_v16_exp(lp), x), lanes);
    }
}

/* dense_row with an exact KL. */
static void dense_row_anchor(float *z, const float *zq, const struct factors *f,
                             int64_t n)
{
    struct kg_d16 apart = kg_d16_set1(f->lse - f->anchor_lse);
    struct kg_d16 r = kg_d16_set1(f->r);
    struct kg_v16 k0 = kg_v16_set1((float)f->k0);
    struct kg_v16 k1 = kg_v16_set1((float)f->k1);
    struct kg_v16 kr = kg_v16_set1((float)f->kr);
    struct kg_v16 kf = kg_v16_set1((float)f->kf);
    for (int64_t v = 0; v < n; v += KG_LANES) {
        int lanes = kg_cpu_lanes(n - v);
        struct kg_v16 lp = log_prob(kg_v16_load_n(z + v, lanes), f->lse);
        struct kg_v16 lq = log_prob(kg_v16_load_n(zq + v, lanes), f->anchor_lse);
        struct kg_d16 d = kg_d16_sub(kg_cpu_head_log_ratio(z + v, zq + v, lanes), apart);
        struct kg_v16 gap = kg_cpu_head_p_minus_q(kg_v16_exp(kg_v16_max(lp, lq)),
                                                  kg_d16_narrow(d));
        struct kg_v16 x = kg_v16_fma(k1, lp, k0);
        x = kg_v16_fma(kr, kg_d16_narrow(kg_d16_sub(d, r)), x);
        kg_v16_store_n(z + v, kg_v16_fma(kg_v16_exp(lp), x, kg_v16_mul(kf, gap)), lanes);
    }
}

/* The dense part at one column, in double, with the term of the set. */
static double dense_at(const struct factors *f, bool in_set, float z, const float *zq)
{
    double lp = (double)z - f->lse;
    double p = kg_exp(lp);
    double x = f->k0 + (in_set ? f->ks : 0.0) + f->k1 * lp;
    if (!zq)
        return p * x;
    double d = (double)z - (double)*zq - (f->lse - f->anchor_lse);
    return p * (x + f->kr * (d - f->r)) - f->kf * p * kg_expm1(-d);
}

static double coefficient(const struct job *job, int64_t n, int32_t slot)
{
    const struct kg_head_grad *g = job->g;
    if (slot == job->h->k)
        return at(g->a_target, n);
    return g->a_indices ? g->a_indices[n * job->h->k + slot] : 0.0;
}

static int64_t tile_cols(const struct job *job, int64_t tile)
{
    int64_t left = job->vocab - tile * job->width;
    return left < job->width ? left : job->width;
}

/* Collects the columns of row i in one tile that have a coefficient. Coefficients of an
 * id that occurs twice are added first. */
static int32_t asked_columns(const struct scratch *w, const struct block *b,
                             const struct job *job, int64_t i, int64_t tile)
{
    const struct kg_head_ask *asks = b->asks + i * (job->h->k + 1);
    const int32_t *start = b->start + i * (job->tiles + 1);
    int32_t n = 0;
    for (int32_t s = start[tile]; s < start[tile + 1]; s++) {
        int64_t v = asks[s].id - tile * job->width;
        double a = coefficient(job, b->row[i], asks[s].slot);
        if (a == 0.0)
            continue;
        w->a[v] += b->factors[i].t * a;
        w->columns[n++].v = v;
    }
    return n;
}

/* Appends the columns of the row's set to the n that are collected. */
static int32_t set_columns(const struct scratch *w, int32_t n, const struct block *b,
                           const struct job *job, int64_t i, int64_t tile)
{
    int64_t first = tile * job->width, end = first + tile_cols(job, tile);
    const struct kg_idset *set = &job->h->sets[b->row[i]];
    struct kg_idset_walk at = b->in_set[i * job->tiles + tile];
    for (; at.id < end && at.id < set->bound; kg_idset_next(&at, set)) {
        w->in[at.id - first] = true;
        w->columns[n++].v = at.id - first;
    }
    return n;
}

/* slope[v] = 1 - (z[v] / most)^2 */
static void slopes(float *slope, const float *z, float most, int64_t n)
{
    struct kg_v16 one = kg_v16_set1(1.0f), cap = kg_v16_set1(most);
    for (int64_t v = 0; v < n; v += KG_LANES) {
        int lanes = kg_cpu_lanes(n - v);
        struct kg_v16 t = kg_v16_div(kg_v16_load_n(z + v, lanes), cap);
        kg_v16_store_n(slope + v, kg_v16_fnma(t, t, one), lanes);
    }
}

static void times_slopes(float *dz, const float *slope, int64_t n)
{
    for (int64_t v = 0; v < n; v += KG_LANES) {
        int lanes = kg_cpu_lanes(n - v);
        struct kg_v16 s = kg_v16_load_n(slope + v, lanes);
        kg_v16_store_n(dz + v, kg_v16_mul(kg_v16_load_n(dz + v, lanes), s), lanes);
    }
}

/* Replaces z by dz. */
static void fill_row(float *z, const float *zq, const struct scratch *w,
                     const struct block *b, const struct job *job, int64_t i,
                     int64_t tile)
{
    const struct factors *f = b->factors + i;
    int32_t n = asked_columns(w, b, job, i, tile);
    if (w->slope)
        slopes(w->slope, z, b->inv_temp[i] * job->h->softcap, tile_cols(job, tile));
    if (f->ks != 0.0)
        n = set_columns(w, n, b, job, i, tile);
    for (int32_t s = 0; s < n; s++) {
        int64_t v = w->columns[s].v;
        w->columns[s].dz = w->a[v] +
                           dense_at(f, w->in && w->in[v], z[v], zq ? zq + v : NULL);
    }
    if (zq)
        dense_row_anchor(z, zq, f, tile_cols(job, tile));
    else
        dense_row(z, f, tile_cols(job, tile));
    for (int32_t s = 0; s < n; s++) {
        z[w->columns[s].v] = (float)w->columns[s].dz;
        w->a[w->columns[s].v] = 0.0;
        if (w->in)
            w->in[w->columns[s].v] = false;
    }
    if (w->slope)
        times_slopes(z, w->slope, tile_cols(job, tile));
}

/* dz of rows i0.. of the block in one tile, stored in the tile's columns of its strip. */
static kg_status fill_dz(struct kg_mat dz, const struct scratch *w, const struct block *b,
                         const struct job *job, int64_t i0, int64_t tile,
                         struct kg_err *err)
{
    const struct kg_head *h = job->h;
    int64_t rows = b->rows - i0 < UNIT_ROWS ? b->rows - i0 : UNIT_ROWS;
    int64_t cols = tile_cols(job, tile);
    struct kg_mat z = kg_mat(w->z, KG_F32, rows, cols);
    struct kg_mat hidden = kg_mat(b->hidden, job->dtype, b->rows, h->hidden.cols);
    KG_TRY(kg_cpu_head_logits(z, kg_mat_rows(hidden, i0, rows),
                              kg_mat_rows(h->weight, tile * job->width, cols),
                              b->inv_temp + i0, h->softcap, err));
    if (w->zq) {
        struct kg_mat zq = kg_mat(w->zq, KG_F32, rows, cols);
        struct kg_mat q = kg_mat(b->anchor_hidden, h->anchor->hidden.dtype, b->rows,
                                 h->anchor->hidden.cols);
        KG_TRY(kg_cpu_head_logits(zq, kg_mat_rows(q, i0, rows),
                                  kg_mat_rows(h->anchor->weight, tile * job->width, cols),
                                  b->anchor_temp + i0, h->anchor->softcap, err));
    }
    int64_t first = tile % STRIP_TILES * job->width;
    for (int64_t r = 0; r < rows; r++) {
        float *row = w->z + r * cols;
        fill_row(row, w->zq ? w->zq + r * cols : NULL, w, b, job, i0 + r, tile);
        for (int64_t v = 0; v < cols; v += KG_LANES) {
            int lanes = kg_cpu_lanes(cols - v);
            kg_cpu_store(dz, i0 + r, first + v, kg_v16_load_n(row + v, lanes), lanes);
        }
    }
    return KG_OK;
}

static kg_status scratch_init(struct scratch *w, const struct job *job,
                              struct kg_err *err)
{
    KG_TRY(get(&w->z, UNIT_ROWS * job->width, sizeof *w->z, err));
    KG_TRY(get(&w->a, job->width, sizeof *w->a, err));
    if (job->h->softcap > 0)
        KG_TRY(get(&w->slope, job->width, sizeof *w->slope, err));
    KG_TRY(get(&w->columns, job->h->k + 1 + (job->g->a_set ? job->width : 0),
               sizeof *w->columns, err));
    if (job->g->a_set)
        KG_TRY(get(&w->in, job->width, sizeof *w->in, err));
    return with_anchor(job) ? get(&w->zq, UNIT_ROWS * job->width, sizeof *w->zq, err)
                            : KG_OK;
}

static void scratch_release(struct scratch *w)
{
    kg_mem_free(w->z);
    kg_mem_free(w->zq);
    kg_mem_free(w->slope);
    kg_mem_free(w->a);
    kg_mem_free(w->in);
    kg_mem_free(w->columns);
}

/* dz of all rows of the block in tiles [tile, tile + n_tiles). */
static kg_status fill_strip(struct kg_mat dz, const struct block *b,
                            const struct job *job, int64_t tile, int64_t n_tiles,
                            struct kg_err *err)
{
    int64_t units = (b->rows + UNIT_ROWS - 1) / UNIT_ROWS * n_tiles;
    int64_t next = 0;
    kg_status status = KG_OK;
#pragma omp parallel if (units > 1 &&                                                    \
                         kg_cpu_use_threads(dz.rows * dz.cols * job->h->hidden.cols))
    {
        struct scratch w = {0};
        struct kg_err mine;
        kg_status got = scratch_init(&w, job, &mine);
        for (int64_t i = 0; got == KG_OK && (i = kg_cpu_take(&next)) < units;)
            got = fill_dz(dz, &w, b, job, i / n_tiles * UNIT_ROWS, tile + i % n_tiles,
                          &mine);
        if (got != KG_OK)
            kg_cpu_report(&status, err, &mine);
        scratch_release(&w);
    }
    return status;
}

/* ---- strips and blocks ---- */
/* dhidden (=|+=) dz W,   dW += dz^T hidden,   over one strip */
static kg_status run_strip(const struct block *b, const struct job *job, int64_t tile,
                           struct kg_err *err)
{
    int64_t n_tiles = job->tiles - tile < STRIP_TILES ? job->tiles - tile : STRIP_TILES;
    int64_t first = tile * job->width;
    int64_t cols = (n_tiles - 1) * job->width + tile_cols(job, tile + n_tiles - 1);
    int64_t width = job->h->hidden.cols;
    struct kg_mat dz = kg_mat(b->dz, job->dtype, b->rows, cols);
    struct kg_mat hidden = kg_mat(b->hidden, job->dtype, b->rows, width);
    struct kg_mat dhidden = kg_mat(b->dhidden, KG_F32, b->rows, width);
    KG_TRY(fill_strip(dz, b, job, tile, n_tiles, err));
    KG_TRY(kg_cpu_matmul(dhidden, dz, kg_mat_rows(job->h->weight, first, cols),
                         KG_MATMUL_NN, tile > 0, err));
    if (!job->g->dweight.data)
        return KG_OK;
    return kg_cpu_matmul(kg_mat_rows(job->g->dweight, first, cols), dz, hidden,
                         KG_MATMUL_TN, true, err);
}

static kg_status run_block(struct block *b, const struct job *job, int64_t n0,
                           struct kg_err *err)
{
    b->row = job->row + n0;
    b->rows = job->n - n0 < job->block ? job->n - n0 : job->block;
    for (int64_t i = 0; i < b->rows; i++)
        gather_row(b, job, i);
    for (int64_t tile = 0; tile < job->tiles; tile += STRIP_TILES)
        KG_TRY(run_strip(b, job, tile, err));
    for (int64_t i = 0; i < b->rows; i++)
        scatter_row(b, job, i);
    return KG_OK;
}

kg_status kg_cpu_head_bwd(const struct kg_head_grad *g, const struct kg_head *h,
                          struct kg_err *err)
{
    struct job job = {.g = g, .h = h};
    struct block block = {0};
    kg_status status;
    for (int64_t n = 0; n < g->dhidden.rows; n++)
        memset(kg_cpu_f32(g->dhidden, n), 0, (size_t)g->dhidden.cols * sizeof(float));
    KG_TRY_GOTO(out, job_init(&job, err));
    KG_TRY_GOTO(out, block_init(&block, &job, err));
    for (int64_t n0 = 0; n0 < job.n; n0 += job.block)
        KG_TRY_GOTO(out, run_block(&block, &job, n0, err));
out:
    block_release(&block);
    kg_mem_free(job.row);
    return status;
}
