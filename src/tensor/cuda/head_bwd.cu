/* The vocabulary head, backward: from a few numbers per row to gradients of hidden states
 * and weights, with the bits of cpu/head_bwd.c, which explains the numbers.
 *
 * The host leaves out rows without any gradient and sends the coefficients of the others.
 * The other inputs of a row are on the device since the forward (kg_head.kept), or are
 * sent too. Then, for each block of rows and each strip of the vocabulary, the device
 * computes logits again, dz in the compute dtype, and two products that consume it. A
 * thread has eight columns; then one thread per requested id overwrites the column of the
 * id, which has its own coefficient. Blocks and strips are the CPU's, and dweight is
 * added to block by block.
 *
 * Several blocks of rows share a strip. Their logits are in the cache one block after the
 * other, but their dhidden is one product of all their rows, because a single block has
 * fewer tiles than a device has multiprocessors. The strip of dweight stays in the cache
 * from block to block.
 */
extern "C" {
#include "base/mem.h"
}
#include "tensor/cuda/eights_internal.h"
#include "tensor/cuda/head_internal.h"

enum { BLOCK_ROWS = 1024, GROUP = 4 /* most blocks of a group */ };
enum { GROUP_BYTES = 256 << 20 };

/* Numbers of a row in the formula of cpu/head_bwd.c; floats for most columns. */
struct factors {
    double lse;
    double apart; /* lse less the anchor's */
    double k0;
    double ks; /* c_S / S; 0 without a set */
    double k1;
    double kr;
    double r; /* R */
    double kf;
    double t;
    float lse_high, lse_low;
    float anchor_high, anchor_low;
    float k0_single, k1_single, kr_single, kf_single;
};

/* Inputs for the rows that have a gradient; arrays that are not needed are NULL. a_set
 * and set_logp are 0 for a set of all ids. */
struct given {
    int32_t *row; /* indices of these rows in hidden */
    double *a_target;
    double *a_indices; /* (n,K) */
    double *a_entropy;
    double *a_reverse;
    double *a_forward;
    double *a_set;
    double *set_logp;
    struct kg_cuda_asked asked;
    struct kg_cuda_found found;
};

static __device__ double term(const double *x, int64_t n) { return x ? x[n] : 0.0; }

/* Sum of the coefficients of row n's ids, in order. */
static __device__ double sum_a(const struct given &u, int64_t k, int64_t n)
{
    double sum = 0.0;

    for (int64_t i = n * k; u.a_indices && i < (n + 1) * k; i++)
        sum += u.asked.indices[i] >= 0 ? u.a_indices[i] : 0.0;
    return sum + (u.a_target && u.asked.target[n] >= 0 ? u.a_target[n] : 0.0);
}

/* Factors of rows [n0, n0+rows), each with k ids. */
static __global__ void derive(struct factors *to, struct given u, int64_t k, int64_t n0,
                              int64_t rows)
{
    const int64_t i = kg_cuda_flat(), n = n0 + i;
    struct factors f;

    if (i >= rows)
        return;
    const double anchor_lse = term(u.found.anchor_lse, n), cs = term(u.a_set, n);
    const double ch = term(u.a_entropy, n), a = sum_a(u, k, n);
    const double entropy = u.a_entropy ? (double)u.found.entropy[n] : 0.0;

    f.t = u.asked.inv_temp ? (double)u.asked.inv_temp[n] : 1.0;
    f.lse = u.found.lse[n];
    f.apart = f.lse - anchor_lse;
    f.k0 = f.t * (-a - cs - ch * entropy);
    f.ks = cs != 0.0 ? f.t * cs * kg_real_exp(-u.set_logp[n]) : 0.0;
    f.k1 = f.t * -ch;
    f.kr = f.t * term(u.a_reverse, n);
    f.r = term(u.a_reverse ? u.found.kl_reverse : NULL, n);
    f.kf = f.t * term(u.a_forward, n);
    f.lse_high = (float)f.lse;
    f.lse_low = (float)(f.lse - (double)f.lse_high);
    f.anchor_high = (float)anchor_lse;
    f.anchor_low = (float)(anchor_lse - (double)f.anchor_high);
    f.k0_single = (float)f.k0;
    f.k1_single = (float)f.k1;
    f.kr_single = (float)f.kr;
    f.kf_single = (float)f.kf;
    to[i] = f;
}

/* ---- dz of a column ---- */
/* A strip's columns [first, ..) for a block's rows. */
struct strip {
    struct kg_mat dz;
    struct kg_mat z;
    struct kg_mat zq; /* data NULL: no anchor */
    int64_t first;
    const struct factors *factors;
    const uint32_t *bits; /* (rows, words), NULL without sets */
    int64_t words;
    struct kg_cuda_scale by; /* not yet applied to z */
    struct kg_cuda_scale anchor_by;
};

static __device__ float z_at(struct kg_mat z, int64_t n, int64_t v)
{
    return z.data ? kg_cuda_f32(z, n)[v] : 0.0f;
}

static __device__ bool in_set(const struct strip *s, int64_t n, int64_t v)
{
    const int64_t id = s->first + v;

    return s->factors[n].ks != 0.0 && s->bits[n * s->words + id / 32] >> id % 32 & 1;
}

/* In double, because a_v and p_v sum a may cancel. */
static __device__ double double_at(const struct strip *s, int64_t n, int64_t v)
{
    const struct factors *f = s->factors + n;
    const double z = (double)z_at(s->z, n, v), lp = z - f->lse, p = kg_real_exp(lp);
    const double x = f->k0 + (in_set(s, n, v) ? f->ks : 0.0) + f->k1 * lp;
    double d;

    if (!s->zq.data)
        return p * x;
    d = z - (double)z_at(s->zq, n, v) - f->apart;
    return p * (x + f->kr * (d - f->r)) - f->kf * p * kg_real_expm1(-d);
}

/* dz without an anchor, and with one. */
static __device__ float plain_of(const struct factors *f, float z)
{
    const float lp = z - f->lse_high - f->lse_low;

    return kg_cuda_exp(lp) * kg_fma(f->k1_single, lp, f->k0_single);
}
static __device__ float anchored_of(const struct factors *f, float z, float zq)
{
    const float lp = z - f->lse_high - f->lse_low;
    const float lq = zq - f->anchor_high - f->anchor_low;
    const float x = kg_fma(f->k1_single, lp, f->k0_single);
    const double d = (double)z - (double)zq - f->apart;
    const float gap = kg_cuda_p_minus_q(kg_cuda_exp(lp > lq ? lp : lq), (float)d);

    return kg_fma(kg_cuda_exp(lp), kg_fma(f->kr_single, (float)(d - f->r), x),
                  f->kf_single * gap);
}

/* Derivative of the softcap: 1 - (z / (t cap))^2 */
static __device__ float slope_of(const struct strip *s, int64_t n, float z)
{
    const float t = kg_cuda_inv_temp(s->by, n), cap = s->by.softcap;
    const float x = cap > 0.0f ? z / (t * cap) : 0.0f;

    return kg_fma(-x, x, 1.0f);
}

static __device__ void store_double(const struct strip *s, int64_t n, int64_t v, double a)
{
    kg_cuda_store(s->dz, n, v,
                  (float)(a + double_at(s, n, v)) * slope_of(s, n, z_at(s->z, n, v)));
}

/* ---- columns with a coefficient ---- */
/* Coefficients of a block's rows; slot K is the target. */
struct coefs {
    int64_t k;
    const int32_t *target; /* (rows) with a_target, or NULL */
    const double *a_target;
    const int32_t *indices; /* (rows,K) with a_indices, or NULL */
    const double *a_indices;
};

static __device__ double coef_at(struct coefs c, int64_t n, int64_t slot, int32_t *id)
{
    const bool index = slot < c.k;

    *id = -1;
    if (!(index ? c.indices : c.target))
        return 0.0;
    *id = index ? c.indices[n * c.k + slot] : c.target[n];
    return index ? c.a_indices[n * c.k + slot] : c.a_target[n];
}

/* Adds the coefficients of all slots of an id; the first of these slots writes dz. A
 * block of threads does this for ids in its columns. */
static __device__ void fill_asked(const struct strip *s, const struct coefs &c, int64_t n)
{
    const int64_t most = KG_EIGHT * KG_ROW_THREADS, from = blockIdx.y * most;
    const int64_t end = kg_cuda_min(from + most, s->dz.cols);

    for (int64_t slot = threadIdx.x; slot <= c.k; slot += KG_ROW_THREADS) {
        int32_t id, other;
        const double mine = coef_at(c, n, slot, &id);
        const int64_t v = id - s->first;
        double a = 0.0;
        bool first = true;

        if (mine == 0.0 || id < 0 || v < from || v >= end)
            continue;
        for (int64_t i = 0; first && i <= c.k; i++) {
            const double more = coef_at(c, n, i, &other);

            if (other != id || more == 0.0)
                continue;
            first = i >= slot;
            a += s->factors[n].t * more;
        }
        if (first)
            store_double(s, n, v, a);
    }
}

/* ---- dz of a strip ---- */
/* Loads what the product left, and stores z. */
static __device__ struct kg_cuda_eights bring(const struct kg_mat &z,
                                              struct kg_cuda_scale by, int64_t n,
                                              int64_t v, bool together)
{
    struct kg_cuda_eights x = kg_cuda_load_eights(z, n, v, together);

    if (by.softcap == 0.0f && !by.inv_temp)
        return x;
#pragma unroll
    for (int i = 0; i < KG_EIGHT; i++)
        x.at[i] = kg_cuda_scaled(x.at[i], by.softcap, kg_cuda_inv_temp(by, n));
    kg_cuda_store_eights(z, n, v, together, x);
    return x;
}

static __device__ struct kg_cuda_eights eight_of(const struct strip *s, int64_t n,
                                                 int64_t v, bool together)
{
    const struct factors *f = s->factors + n;
    const struct kg_cuda_eights z = bring(s->z, s->by, n, v, together);
    struct kg_cuda_eights zq, dz;

    if (s->zq.data) {
        zq = bring(s->zq, s->anchor_by, n, v, together);
#pragma unroll
        for (int i = 0; i < KG_EIGHT; i++)
            dz.at[i] = anchored_of(f, z.at[i], zq.at[i]);
    } else {
#pragma unroll
        for (int i = 0; i < KG_EIGHT; i++)
            dz.at[i] = plain_of(f, z.at[i]);
    }
    if (s->by.softcap == 0.0f)
        return dz;
#pragma unroll
    for (int i = 0; i < KG_EIGHT; i++)
        dz.at[i] *= slope_of(s, n, z.at[i]);
    return dz;
}

static __device__ void fill_eight(const struct strip *s, int64_t n, int64_t v,
                                  bool together)
{
    const bool sets = s->factors[n].ks != 0.0;

    kg_cuda_store_eights(s->dz, n, v, together, eight_of(s, n, v, together));
    for (int i = 0; sets && i < KG_EIGHT && v + i < s->dz.cols; i++)
        if (in_set(s, n, v + i))
            store_double(s, n, v + i, 0.0);
}

static __global__ void fill(struct strip s, struct coefs c, bool together)
{
    const int64_t n = blockIdx.x, v = kg_cuda_eights_first();

    if (v < s.dz.cols)
        fill_eight(&s, n, v, together);
    __syncthreads(); /* z and dz of other threads are complete */
    fill_asked(&s, c, n);
}

/* ---- rows with a gradient, chosen by the host ---- */
struct job {
    const struct kg_head_grad *g;
    struct kg_head h; /* the inputs that are used; host arrays */
    struct kg_head_anchor anchor;
    int64_t n;     /* rows that have a gradient */
    int64_t block; /* rows per block */
    int64_t group; /* rows of the blocks that share a strip */
    int64_t width; /* of a strip */
    int32_t *row;  /* host (n): indices of these rows in hidden, ascending */
};

/* Device memory of a group; z and zq are of a block. */
struct work {
    struct factors *factors; /* (group) */
    char *hidden;            /* (group, D) ct */
    char *anchor_hidden;
    char *dz;       /* (group, width) ct */
    float *z;       /* (block, width) */
    float *zq;      /* as z, with an anchor */
    float *dhidden; /* (group, D) */
    uint32_t *bits; /* (group, words), with sets */
};

static double at(const double *a, int64_t n) { return a ? a[n] : 0.0; }

/* Whether an id of the row has a coefficient. */
static bool has_a(const struct job *job, int64_t n)
{
    const struct kg_head *h = &job->h;

    for (int64_t i = n * h->k; h->indices && i < (n + 1) * h->k; i++)
        if (h->indices[i] >= 0 && job->g->a_indices[i] != 0.0)
            return true;
    return h->target && h->target[n] >= 0 && job->g->a_target[n] != 0.0;
}

static double a_set(const struct job *job, int64_t n)
{
    return job->h.sets && job->h.sets[n].n > 0 ? job->g->a_set[n] : 0.0;
}

static bool has_gradient(const struct job *job, int64_t n)
{
    const struct kg_head_grad *g = job->g;

    return at(g->a_entropy, n) != 0.0 || at(g->a_kl_reverse, n) != 0.0 ||
           at(g->a_kl_forward, n) != 0.0 || a_set(job, n) != 0.0 || has_a(job, n);
}

/* Leaves out inputs that no gradient needs. */
static void plan(struct job *job, const struct kg_head_grad *g, const struct kg_head *h)
{
    const int64_t n = h->hidden.rows;

    job->g = g;
    job->h = *h;
    job->h.inv_temp = kg_not_one(h->inv_temp, n);
    job->h.target = g->a_target ? h->target : NULL;
    job->h.indices = g->a_indices ? h->indices : NULL;
    job->h.sets = g->a_set ? h->sets : NULL;
    job->h.anchor = NULL;
    job->width = kg_cuda_min(KG_CUDA_STRIP_TILES * kg_head_tile_width(h->weight.rows),
                             h->weight.rows);
    if (h->anchor && (g->a_kl_reverse || g->a_kl_forward)) {
        job->anchor = *h->anchor;
        job->anchor.inv_temp = kg_not_one(h->anchor->inv_temp, n);
        job->h.anchor = &job->anchor;
    }
}

static void choose_rows(struct job *job)
{
    int64_t blocks;

    for (int64_t n = 0; n < job->h.hidden.rows; n++)
        if (has_gradient(job, n))
            job->row[job->n++] = (int32_t)n;
    blocks = kg_cuda_pieces(job->n, BLOCK_ROWS); /* of nearly equal size */
    if (blocks > 0)
        job->block = kg_cuda_pieces(kg_cuda_pieces(job->n, blocks), 16) * 16;
}

/* ---- arrays ---- */
/* Inputs: always sent (given), and sent only if the forward kept nothing (known). */
static void place_given(struct given *u, struct kg_cuda_piece *p, const struct job *job)
{
    const struct kg_head_grad *g = job->g;
    const int64_t anchored = job->h.anchor ? job->n : 0;

    kg_cuda_take(p, &u->row, job->n);
    kg_cuda_take(p, &u->a_target, job->h.target ? job->n : 0);
    kg_cuda_take(p, &u->a_indices, job->h.indices ? job->n * job->h.k : 0);
    kg_cuda_take(p, &u->a_entropy, g->a_entropy ? job->n : 0);
    kg_cuda_take(p, &u->a_reverse, g->a_kl_reverse ? anchored : 0);
    kg_cuda_take(p, &u->a_forward, g->a_kl_forward ? anchored : 0);
    kg_cuda_take(p, &u->a_set, job->h.sets ? job->n : 0);
    kg_cuda_take(p, &u->set_logp, job->h.sets ? job->n : 0);
    kg_cuda_sets_place(&u->asked, p, &job->h, job->row, job->n);
}
static void place_known(struct given *u, struct kg_cuda_piece *p, const struct job *job)
{
    const struct kg_head_grad *g = job->g;
    const int64_t anchored = job->h.anchor ? job->n : 0;

    kg_cuda_take(p, &u->found.lse, job->n);
    kg_cuda_take(p, &u->found.kl_reverse, g->a_kl_reverse ? anchored : 0);
    kg_cuda_take(p, &u->found.anchor_lse, anchored);
    kg_cuda_take(p, &u->found.entropy, g->a_entropy ? job->n : 0);
    kg_cuda_asked_place(&u->asked, p, &job->h, job->n);
}

static void fill_given(const struct given *u, const struct job *job)
{
    const struct kg_head_grad *g = job->g;

    memcpy(u->row, job->row, (size_t)job->n * sizeof *u->row);
    kg_cuda_fill(u->a_target, g->a_target, job->row, job->n, 1);
    kg_cuda_fill(u->a_indices, g->a_indices, job->row, job->n, job->h.k);
    kg_cuda_fill(u->a_entropy, g->a_entropy, job->row, job->n, 1);
    kg_cuda_fill(u->a_reverse, g->a_kl_reverse, job->row, job->n, 1);
    kg_cuda_fill(u->a_forward, g->a_kl_forward, job->row, job->n, 1);
    for (int64_t i = 0; u->a_set && i < job->n; i++)
        u->a_set[i] = a_set(job, job->row[i]);
    kg_cuda_fill(u->set_logp, g->set_logp, job->row, job->n, 1);
    kg_cuda_sets_fill(&u->asked, &job->h, job->row, job->n);
}
static void fill_known(const struct given *u, const struct job *job)
{
    const struct kg_head_grad *g = job->g;

    kg_cuda_fill(u->found.lse, g->lse, job->row, job->n, 1);
    kg_cuda_fill(u->found.kl_reverse, g->kl_reverse, job->row, job->n, 1);
    kg_cuda_fill(u->found.anchor_lse, g->anchor_lse, job->row, job->n, 1);
    kg_cuda_fill(u->found.entropy, g->entropy, job->row, job->n, 1);
    kg_cuda_asked_fill(&u->asked, &job->h, job->row, job->n);
}

/* to[i] <- from[row[i]], `each` elements per row */
template <typename T>
static __global__ void pick(T *to, const T *from, const int32_t *row, int64_t n,
                            int64_t each)
{
    const int64_t i = kg_cuda_flat();

    if (i < n * each)
        to[i] = from[row[i / each] * each + i % each];
}
template <typename T>
static void launch_pick(T *to, const T *from, const struct given *u, int64_t n,
                        int64_t each)
{
    if (to)
        KG_LAUNCH(pick<T>, kg_cuda_all(n * each), KG_FLAT_THREADS, to, from, u->row, n,
                  each);
}

/* Copies what the forward kept for the rows that have a gradient. */
static void pick_known(const struct given *u, const struct job *job)
{
    struct kg_cuda_kept k;

    kg_cuda_kept_place(&k, &job->h);
    launch_pick(u->found.lse, k.found.lse, u, job->n, 1);
    launch_pick(u->found.kl_reverse, k.found.kl_reverse, u, job->n, 1);
    launch_pick(u->found.anchor_lse, k.found.anchor_lse, u, job->n, 1);
    launch_pick(u->found.entropy, k.found.entropy, u, job->n, 1);
    launch_pick(u->asked.inv_temp, k.asked.inv_temp, u, job->n, 1);
    launch_pick(u->asked.anchor_temp, k.asked.anchor_temp, u, job->n, 1);
    launch_pick(u->asked.target, k.asked.target, u, job->n, 1);
    launch_pick(u->asked.indices, k.asked.indices, u, job->n, job->h.k);
}

static void place_work(struct work *w, struct kg_cuda_piece *p, const struct job *job)
{
    const struct kg_head *h = &job->h;
    const int64_t rows = job->group, block = job->block,
                  ct = (int64_t)kg_dtype_traits(h->hidden.dtype)->bytes;
    const int64_t anchor_cols = h->anchor ? h->anchor->hidden.cols : 0;

    kg_cuda_take(p, &w->factors, rows);
    kg_cuda_take(p, &w->hidden, rows * h->hidden.cols * ct);
    kg_cuda_take(p, &w->anchor_hidden, rows * anchor_cols * ct);
    kg_cuda_take(p, &w->dz, rows * job->width * ct);
    kg_cuda_take(p, &w->z, block * job->width);
    kg_cuda_take(p, &w->zq, h->anchor ? block * job->width : 0);
    kg_cuda_take(p, &w->dhidden, rows * h->hidden.cols);
    kg_cuda_take(p, &w->bits, h->sets ? rows * kg_cuda_set_words(h->weight.rows) : 0);
}

/* As many blocks as fit, at least one; results do not depend on it. */
static void choose_group(struct job *job)
{
    struct kg_cuda_piece p = {NULL, 0};
    struct work w;

    job->group = kg_cuda_min(GROUP * job->block, job->n);
    for (place_work(&w, &p, job); p.used > GROUP_BYTES && job->group > job->block;) {
        job->group = (kg_cuda_pieces(job->group, job->block) - 1) * job->block;
        p.used = 0;
        place_work(&w, &p, job);
    }
}

/* ---- groups and strips ---- */
/* Rows [n0, n0+rows) of those that have a gradient. */
struct group {
    const struct job *job;
    const struct given *u; /* on the device, from the first row of all */
    const struct work *w;
    int64_t n0;
    int64_t rows;
};

static struct kg_mat hidden_of(const struct group *g)
{
    const struct kg_mat all = g->job->h.hidden;

    return kg_mat(g->w->hidden, all.dtype, g->rows, all.cols);
}

static struct kg_mat anchor_hidden_of(const struct group *g)
{
    const struct kg_mat all = g->job->anchor.hidden;

    return kg_mat(g->w->anchor_hidden, all.dtype, g->rows, all.cols);
}

static struct kg_mat dhidden_of(const struct group *g)
{
    return kg_mat(g->w->dhidden, KG_F32, g->rows, g->job->h.hidden.cols);
}

/* dz of columns [first, ..) for a block: the group's rows [at, at + dz.rows) */
static kg_status fill_block(struct kg_mat dz, const struct group *g, int64_t first,
                            int64_t at, struct kg_err *err)
{
    const struct kg_head *h = &g->job->h;
    const struct kg_cuda_asked *a = &g->u->asked;
    const int64_t n = g->n0 + at, rows = dz.rows, cols = dz.cols;
    const int64_t words = kg_cuda_set_words(h->weight.rows);
    const float cap = h->anchor ? h->anchor->softcap : 0.0f;
    const struct strip s = {dz,
                            kg_mat(g->w->z, KG_F32, rows, cols),
                            kg_mat(g->w->zq, KG_F32, rows, cols),
                            first,
                            g->w->factors + at,
                            g->w->bits ? g->w->bits + at * words : NULL,
                            words,
                            {h->softcap, a->inv_temp ? a->inv_temp + n : NULL},
                            {cap, a->anchor_temp ? a->anchor_temp + n : NULL}};
    const struct coefs c = {h->k, a->target ? a->target + n : NULL,
                            g->u->a_target ? g->u->a_target + n : NULL,
                            a->indices ? a->indices + n * h->k : NULL,
                            g->u->a_indices ? g->u->a_indices + n * h->k : NULL};

    KG_TRY(kg_cuda_head_products(s.z, g->job->width, kg_mat_rows(hidden_of(g), at, rows),
                                 kg_mat_rows(h->weight, first, cols), err));
    if (h->anchor)
        KG_TRY(kg_cuda_head_products(s.zq, g->job->width,
                                     kg_mat_rows(anchor_hidden_of(g), at, rows),
                                     kg_mat_rows(h->anchor->weight, first, cols), err));
    KG_LAUNCH(fill, kg_cuda_eights_grid(rows, cols), KG_ROW_THREADS, s, c,
              kg_cuda_by_eights(dz) && kg_cuda_by_eights(s.z));
    return KG_OK;
}

/* Block by block dW += dz^T hidden; then dhidden (=|+=) dz W; over one strip. */
static kg_status run_strip(const struct group *g, int64_t first, struct kg_err *err)
{
    const struct kg_head *h = &g->job->h;
    const struct kg_mat dweight = g->job->g->dweight;
    const int64_t cols = kg_cuda_min(g->job->width, h->weight.rows - first);
    const struct kg_mat dz = kg_mat(g->w->dz, h->hidden.dtype, g->rows, cols);

    for (int64_t at = 0; at < g->rows; at += g->job->block) {
        const int64_t rows = kg_cuda_min(g->job->block, g->rows - at);
        const struct kg_mat some = kg_mat_rows(dz, at, rows);

        KG_TRY(fill_block(some, g, first, at, err));
        if (dweight.data)
            KG_TRY(kg_cuda_matmul(kg_mat_rows(dweight, first, cols), some,
                                  kg_mat_rows(hidden_of(g), at, rows), KG_MATMUL_TN, true,
                                  err));
    }
    return kg_cuda_matmul(dhidden_of(g), dz, kg_mat_rows(h->weight, first, cols),
                          KG_MATMUL_NN, first > 0, err);
}

static kg_status run_group(const struct group *g, struct kg_err *err)
{
    const struct kg_head *h = &g->job->h;
    const struct kg_ivec row = kg_ivec(g->u->row + g->n0, g->rows);
    const struct kg_cuda_asked *a = &g->u->asked;

    KG_LAUNCH(derive, kg_cuda_all(g->rows), KG_FLAT_THREADS, g->w->factors, *g->u,
              (int64_t)h->k, g->n0, g->rows);
    KG_TRY(kg_cuda_gather_rows(hidden_of(g), h->hidden, row, err));
    if (h->anchor)
        KG_TRY(kg_cuda_gather_rows(anchor_hidden_of(g), h->anchor->hidden, row, err));
    if (h->sets)
        kg_cuda_open_sets(g->w->bits, a->sets + g->n0, a->packed, g->rows,
                          h->weight.rows);
    for (int64_t v = 0; v < h->weight.rows; v += g->job->width)
        KG_TRY(run_strip(g, v, err));
    return kg_cuda_scatter_rows(g->job->g->dhidden, row, dhidden_of(g), err);
}

/* host: inputs to send, `up` bytes */
static kg_status run(const struct job *job, char *host, uint64_t up, uint64_t all,
                     struct kg_err *err)
{
    struct kg_cuda_piece from = {host, 0}, to = {NULL, 0};
    struct given given, there;
    struct work work;

    to.base = (char *)kg_cuda_scratch(all, err);
    if (!to.base)
        return err->code;
    place_given(&given, &from, job);
    place_known(&given, &from, job);
    place_given(&there, &to, job);
    place_known(&there, &to, job);
    place_work(&work, &to, job);
    fill_given(&given, job);
    if (!job->h.kept)
        fill_known(&given, job);
    kg_cuda_up(to.base, host, up);
    if (job->h.kept)
        pick_known(&there, job);
    for (int64_t n = 0; n < job->n; n += job->group) {
        const struct group g = {job, &there, &work, n,
                                kg_cuda_min(job->group, job->n - n)};

        KG_TRY(run_group(&g, err));
    }
    return kg_dev_done("head_bwd", err);
}

static kg_status run_rows(const struct job *job, struct kg_err *err)
{
    struct kg_cuda_piece p = {NULL, 0};
    struct given given;
    struct work work;
    uint64_t up;
    char *host;

    if (job->n == 0)
        return KG_OK;
    place_given(&given, &p, job);
    up = p.used;
    place_known(&given, &p, job);
    up = job->h.kept ? up : p.used;
    place_work(&work, &p, job);
    host = (char *)kg_cuda_host_scratch(up, err);
    return host ? run(job, host, up, p.used, err) : err->code;
}

static __global__ void clear(struct kg_mat m)
{
    const int64_t end = kg_cuda_end(m.cols);

    for (int64_t d = kg_cuda_first(); d < end; d += KG_ROW_THREADS)
        kg_cuda_f32(m, blockIdx.x)[d] = 0.0f;
}

kg_status kg_cuda_head_bwd(const struct kg_head_grad *g, const struct kg_head *h,
                           struct kg_err *err)
{
    struct job job = {};
    kg_status status;

    if (g->dhidden.rows == 0 || g->dhidden.cols == 0 || h->weight.rows == 0)
        return KG_OK;
    KG_LAUNCH(clear, kg_cuda_rows(g->dhidden.rows, g->dhidden.cols), KG_ROW_THREADS,
              g->dhidden);
    KG_TRY(kg_dev_done("head_bwd", err));
    plan(&job, g, h);
    job.row = (int32_t *)kg_mem_calloc((size_t)g->dhidden.rows, sizeof *job.row,
                                       "head backward rows", err);
    if (!job.row)
        return err->code;
    choose_rows(&job);
    choose_group(&job);
    status = run_rows(&job, err);
    kg_mem_free(job.row);
    return status;
}
