/* Collects the weights of products of a sharded model: each rank sends its shard, and all
 * pack the whole.
 *
 * The layout of the slabs is walked in buckets, of whole parameters or whole panels of a
 * large one. A bucket holds weights in the type in which they are read, the compute dtype
 * for products: their owner rounds them once, as packing would, and sends two bytes each.
 * A shard is a contiguous range of the layout, so its part of a bucket is contiguous too.
 *
 * A bucket is in host memory. If NCCL joins devices that hold the whole model, it is on
 * the device: rounded there, sent from GPU to GPU, packed there.
 */
#include "base/mem.h"
#include "model/model_internal.h"
#include "ranks/nccl.h"

#include <assert.h>

enum { BUCKET_BYTES = 16 << 20, RUNS = 64, ALIGN = 64 };

/* Rows [row, row+rows) of a parameter. */
struct run {
    const struct kg_param *p;
    int64_t row, rows;
    uint64_t at; /* their byte offset in the bucket */
};

struct bucket {
    struct run run[RUNS];
    int n;
    uint64_t bytes;
    size_t param; /* the next bucket begins at this parameter's `row` */
    int64_t row;
};

struct collect {
    struct kg_model *m;
    bool direct;                 /* by NCCL, with the bucket on the device */
    unsigned char *data;         /* owned: the bucket */
    struct kg_ranks_part *parts; /* (2, ranks) owned, if direct: sent, received */
    void *packed; /* owned, pinned: a run in the device's layout; NULL without a device */
    /* (KG_SLAB_RUN) owned, pinned: master weights copied from a device; NULL if they are
     * on the host */
    float *wide;
    uint64_t *ends; /* (ranks) owned: end of each rank's part of the bucket, in bytes */
};

static enum kg_dtype dtype_of(const struct kg_model *m, const struct kg_param *p)
{
    return p->is_product ? m->ct : KG_F32;
}

static uint64_t row_bytes(const struct kg_model *m, const struct kg_param *p)
{
    return (uint64_t)p->cols * kg_dtype_traits(dtype_of(m, p))->bytes;
}

static int64_t first_of(const struct run *r)
{
    return r->p->offset + r->row * r->p->cols;
}

/* ---- the walk ---- */

/* Number of rows of p from b->row on that fit in b: whole panels, except the last. */
static int64_t rows_that_fit(const struct bucket *b, const struct kg_model *m,
                             const struct kg_param *p)
{
    const int64_t left = p->rows - b->row;
    const uint64_t room = BUCKET_BYTES > b->bytes ? BUCKET_BYTES - b->bytes : 0;
    int64_t fit = (int64_t)(room / row_bytes(m, p));
    if (fit >= left)
        return left;
    fit = fit / KG_PANEL * KG_PANEL;
    if (fit == 0 && b->n == 0)
        fit = KG_PANEL < left ? KG_PANEL : left;
    return fit;
}

/* returns whether there is another bucket */
static bool next_bucket(struct bucket *b, const struct kg_model *m)
{
    b->n = 0;
    b->bytes = 0;
    while (b->param < m->n_params && b->n < RUNS) {
        const struct kg_param *p = &m->params[b->param];
        const int64_t rows = rows_that_fit(b, m, p);
        if (rows == 0)
            break;
        b->run[b->n++] = (struct run){p, b->row, rows, b->bytes};
        b->bytes += ((uint64_t)rows * row_bytes(m, p) + ALIGN - 1) / ALIGN * ALIGN;
        b->row += rows;
        if (b->row == p->rows) {
            b->row = 0;
            b->param++;
        }
    }
    return b->n > 0;
}

static struct bucket first_bucket(const struct kg_model *m)
{
    return (struct bucket){.param = kg_model_first_trained(m)};
}

/* Bytes of the largest bucket.   *packed: out, bytes of the largest run in the device's
 * layout, with padded panels; 0 without a device */
static uint64_t room_of(uint64_t *packed, const struct kg_model *m)
{
    struct bucket b = first_bucket(m);
    uint64_t most = 0;
    *packed = 0;
    while (next_bucket(&b, m)) {
        most = b.bytes > most ? b.bytes : most;
        for (int i = 0; i < b.n && !m->backend->host_memory; i++) {
            const struct run *r = &b.run[i];
            const uint64_t bytes = kg_weights_bytes(m->backend, dtype_of(m, r->p),
                                                    r->rows, r->p->cols);
            *packed = bytes > *packed ? bytes : *packed;
        }
    }
    return most;
}

/* Staging for master weights that are on a device. */
static uint64_t wide_bytes(const struct kg_model *m)
{
    const bool near = m->host == m->backend || m->on_host != KG_HOST_NONE;
    return near ? 0 : KG_SLAB_RUN * sizeof(float);
}

static bool is_direct(const struct kg_model *m)
{
    return !m->backend->host_memory && m->on_host == KG_HOST_NONE;
}

struct kg_bytes kg_model_refresh_bytes(const struct kg_model *m, bool nccl)
{
    uint64_t packed, bytes;
    if (!m->ranks)
        return (struct kg_bytes){0, 0};
    bytes = room_of(&packed, m);
    if (nccl && is_direct(m))
        return (struct kg_bytes){bytes, 0};
    return (struct kg_bytes){0, bytes + packed + wide_bytes(m)};
}

/* ---- a bucket ---- */

/* Bytes of the bucket that hold elements before `end` of the layout. */
static uint64_t bytes_before(const struct bucket *b, const struct kg_model *m,
                             int64_t end)
{
    uint64_t bytes = 0;
    for (int i = 0; i < b->n; i++) {
        const struct run *r = &b->run[i];
        const int64_t n = r->rows * r->p->cols, before = end - first_of(r);
        if (before > 0)
            bytes = r->at + (uint64_t)(before < n ? before : n) *
                                kg_dtype_traits(dtype_of(m, r->p))->bytes;
    }
    return bytes;
}

/* Converts n elements, with all threads. */
static kg_status convert(unsigned char *to, enum kg_dtype dtype, const float *from,
                         int64_t n, struct kg_err *err)
{
    kg_status status = KG_OK;
#pragma omp parallel for schedule(static) if (n > 4 * KG_SLAB_PIECE)
    for (int64_t i = 0; i < n; i += KG_SLAB_PIECE) {
        struct kg_err local;
        const size_t count = (size_t)kg_slab_piece(n, i);
        kg_status s = kg_dtype_convert(to + (uint64_t)i * kg_dtype_traits(dtype)->bytes,
                                       dtype, from + i, KG_F32, count, &local);
        if (s != KG_OK) {
#pragma omp critical(kg_model_collect)
            {
                status = s;
                *err = local;
            }
        }
    }
    return status;
}

/* Converts elements [first, first+n) of the layout, which are in this rank's shard. */
static kg_status fill_range(unsigned char *to, enum kg_dtype dtype,
                            const struct collect *c, int64_t first, int64_t n,
                            struct kg_err *err)
{
    const struct kg_slab *master = &c->m->master;
    const int64_t at = first - c->m->cut.first;
    if (c->direct)
        return kg_op_cast(master->backend, kg_mat(to, dtype, 1, n),
                          kg_slab_row(master, at, n), err);
    for (int64_t i = 0; i < n; i += KG_SLAB_RUN) {
        struct kg_vec seen;
        KG_TRY(kg_slab_see(&seen, c->wide, master, at + i, kg_slab_run(n, i), err));
        KG_TRY(convert(to + (uint64_t)i * kg_dtype_traits(dtype)->bytes, dtype, seen.data,
                       seen.n, err));
    }
    return KG_OK;
}

static kg_status fill(struct collect *c, const struct bucket *b, struct kg_err *err)
{
    for (int i = 0; i < b->n; i++) {
        const struct run *r = &b->run[i];
        const enum kg_dtype dtype = dtype_of(c->m, r->p);
        const struct kg_cut own = kg_cut_within(c->m->cut, first_of(r),
                                                r->rows * r->p->cols);
        const uint64_t skipped = (uint64_t)(own.first - first_of(r)) *
                                 kg_dtype_traits(dtype)->bytes;
        if (own.n > 0)
            KG_TRY(
                fill_range(c->data + r->at + skipped, dtype, c, own.first, own.n, err));
    }
    return KG_OK;
}

static kg_status pack(const struct collect *c, const struct run *r, struct kg_err *err)
{
    struct kg_model *m = c->m;
    unsigned char *data = c->data + r->at;
    const struct kg_stored to = kg_param_stored(m, r->p);
    if (!r->p->is_product)
        return kg_model_put_vector(m, r->p, c->direct ? m->backend : m->host,
                                   (float *)(void *)data, err);
    struct kg_mat from = kg_mat(data, m->ct, r->rows, r->p->cols);
    return to.backend->host_memory || c->direct
               ? kg_op_cast(to.backend, kg_mat_rows(to.mat, r->row, r->rows), from, err)
               : kg_model_send_rows(m, r->p, r->row, from, c->packed, err);
}

static kg_status pack_all(const struct collect *c, const struct bucket *b,
                          struct kg_err *err)
{
    for (int i = 0; i < b->n; i++)
        KG_TRY(pack(c, &b->run[i], err));
    return KG_OK;
}

/* Sends each rank's part of the bucket to all. */
static kg_status move(struct collect *c, struct kg_err *err)
{
    struct kg_ranks *ranks = c->m->ranks;
    struct kg_ranks_part *out = c->parts, *in = c->parts + ranks->n;
    struct kg_ranks_part own = {NULL, 0};
    uint64_t from = 0;
    if (!c->direct)
        return kg_ranks_gather(ranks, c->data, c->ends, "weights", err);
    for (int p = 0; p < ranks->n; from = c->ends[p++])
        in[p] = (struct kg_ranks_part){c->data + from, c->ends[p] - from};
    own = in[ranks->me];
    for (int p = 0; p < ranks->n; p++)
        out[p] = own;
    out[ranks->me] = in[ranks->me] = (struct kg_ranks_part){NULL, 0};
    return kg_ranks_nccl_exchange(ranks, out, in, "weights", err);
}

/* *status: of this rank's own work. After a failure there the rank still takes part in
 * the exchanges, for which the others wait. */
static kg_status one_bucket(struct collect *c, const struct bucket *b, kg_status *status,
                            struct kg_err *err)
{
    struct kg_ranks *ranks = c->m->ranks;
    struct kg_err lost;
    if (*status == KG_OK)
        *status = fill(c, b, err);
    for (int r = 0; r < ranks->n; r++) {
        const struct kg_cut cut = kg_cut_of(c->m->n_elements, r, ranks->n);
        c->ends[r] = bytes_before(b, c->m, cut.first + cut.n);
    }
    if (move(c, &lost) != KG_OK) {
        *err = lost;
        return lost.code;
    }
    if (*status == KG_OK)
        *status = pack_all(c, b, err);
    return KG_OK;
}

static kg_status take_room(struct collect *c, struct kg_err *err)
{
    const size_t n = (size_t)c->m->ranks->n;
    uint64_t packed;
    const uint64_t bytes = room_of(&packed, c->m), wide = wide_bytes(c->m);
    c->data = c->direct ? kg_buf_alloc(c->m->backend, bytes, "weights of all ranks", err)
                        : kg_mem_calloc(1, bytes, "weights of all ranks", err);
    c->ends = c->data ? kg_mem_calloc(n, sizeof *c->ends, "weights of all ranks", err)
                      : NULL;
    if (!c->ends)
        return err->code;
    if (c->direct) {
        return kg_mem_new(&c->parts, 2 * n, sizeof *c->parts, "weights of all ranks",
                          err);
    }
    if (packed > 0)
        c->packed = kg_buf_pin(c->m->backend, packed, "a piece of weights", err);
    if (packed > 0 && !c->packed)
        return err->code;
    if (wide == 0)
        return KG_OK;
    c->wide = kg_buf_pin(c->m->backend, wide, "a piece of weights", err);
    return c->wide ? KG_OK : err->code;
}

kg_status kg_model_collect(struct kg_model *m, struct kg_err *err)
{
    struct collect c = {.m = m,
                        .direct = kg_ranks_nccl_version(m->ranks) && is_direct(m)};
    struct bucket b = first_bucket(m);
    kg_status own = KG_OK;
    kg_status status = kg_ranks_agree(m->ranks, take_room(&c, err), "weights", err);
    /* a fetch that packs a layer from master weights would need all shards */
    assert(m->on_host != KG_HOST_LAYERS || m->host != m->backend);
    while (status == KG_OK && next_bucket(&b, m))
        status = one_bucket(&c, &b, &own, err);
    if (status == KG_OK)
        status = kg_ranks_agree(m->ranks, own, "weights", err);
    if (c.direct)
        kg_buf_free(m->backend, c.data);
    else
        kg_mem_free(c.data);
    kg_mem_free(c.parts);
    kg_mem_free(c.ends);
    kg_buf_unpin(m->backend, c.packed);
    kg_buf_unpin(m->backend, c.wide);
    return status;
}
