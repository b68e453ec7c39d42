/* Operations: where shapes and dtypes are checked, once for every backend.
 *
 * Each kg_op_* says what it expects, names operation and operand when it finds something
 * else, and calls the backend's slot. Kernels behind it may assume all of it. Nothing
 * here touches an element, but for the ids, whose range is a shape too.
 */
#include "tensor/backend.h"

#include <assert.h>

/* What an operand may be: types, and whether in panels. */
enum { F32 = 1 << KG_F32, BF16 = 1 << KG_BF16, CT = F32 | BF16, PANELS = 1 << 8 };

/* A dimension of any length. */
enum { ANY = -1 };

struct kg_mat kg_mat_rows(struct kg_mat m, int64_t first, int64_t n)
{
    assert(m.layout == KG_ROWS || first % KG_PANEL == 0);
    size_t bytes = (size_t)(first * m.stride) * kg_dtype_traits(m.dtype)->bytes;
    m.data = (char *)m.data + bytes;
    m.rows = n;
    return m;
}

uint64_t kg_panels_bytes(enum kg_dtype dtype, int64_t rows, int64_t cols)
{
    int64_t padded = (rows + KG_PANEL - 1) / KG_PANEL * KG_PANEL;
    return (uint64_t)padded * (uint64_t)kg_panels(NULL, dtype, rows, cols).stride *
           kg_dtype_traits(dtype)->bytes;
}

/* Address of element (r, c). */
static char *element(struct kg_mat m, int64_t r, int64_t c)
{
    int64_t bytes = (int64_t)kg_dtype_traits(m.dtype)->bytes;
    if (m.layout == KG_ROWS)
        return (char *)m.data + (r * m.stride + c) * bytes;
    int64_t dword = r / KG_PANEL * m.stride * bytes * KG_PANEL / 4 +
                    c * bytes / 4 * KG_PANEL + r % KG_PANEL;
    return (char *)m.data + dword * 4 + c * bytes % 4;
}

void kg_mat_read(void *dst, struct kg_mat m, int64_t first, int64_t n)
{
    size_t bytes = kg_dtype_traits(m.dtype)->bytes;
    for (int64_t i = 0; i < n; i++)
        memcpy((char *)dst + (size_t)i * bytes,
               element(m, (first + i) / m.cols, (first + i) % m.cols), bytes);
}

void kg_mat_write(struct kg_mat m, const void *src, int64_t first, int64_t n)
{
    size_t bytes = kg_dtype_traits(m.dtype)->bytes;
    for (int64_t i = 0; i < n; i++)
        memcpy(element(m, (first + i) / m.cols, (first + i) % m.cols),
               (const char *)src + (size_t)i * bytes, bytes);
}

/* ---- checks ---- */
static kg_status check_shape(const char *op, const char *name, struct kg_mat m,
                             int64_t rows, int64_t cols, struct kg_err *err)
{
    if ((rows == ANY || m.rows == rows) && (cols == ANY || m.cols == cols) &&
        m.rows >= 0 && m.cols >= 0)
        return KG_OK;
    if (rows == ANY)
        return kg_fail(err, KG_ESHAPE, "%s: %s has %lld columns, expected %lld", op, name,
                       (long long)m.cols, (long long)cols);
    if (cols == ANY)
        return kg_fail(err, KG_ESHAPE, "%s: %s has %lld rows, expected %lld", op, name,
                       (long long)m.rows, (long long)rows);
    return kg_fail(err, KG_ESHAPE, "%s: %s is %lld x %lld, expected %lld x %lld", op,
                   name, (long long)m.rows, (long long)m.cols, (long long)rows,
                   (long long)cols);
}

static const char *types_name(unsigned types)
{
    types &= CT;
    return types == F32 ? "fp32" : types == BF16 ? "bf16" : "fp32 or bf16";
}

/* One operand: a view that could exist, of this shape (ANY allowed) and one of these
 * types. */
static kg_status check(const char *op, const char *name, struct kg_mat m, int64_t rows,
                       int64_t cols, unsigned types, struct kg_err *err)
{
    KG_TRY(check_shape(op, name, m, rows, cols, err));
    if (!(types & 1u << m.dtype))
        return kg_fail(err, KG_EDTYPE, "%s: %s is %s, expected %s", op, name,
                       kg_dtype_traits(m.dtype)->name, types_name(types));
    if (m.layout == KG_PANELS && !(types & PANELS))
        return kg_fail(err, KG_EINVAL, "%s: %s lies in panels, expected rows", op, name);
    if (m.rows > 1 && m.stride < m.cols)
        return kg_fail(err, KG_ESHAPE,
                       "%s: %s has a row stride of %lld elements, expected at least "
                       "its %lld columns",
                       op, name, (long long)m.stride, (long long)m.cols);
    if (!m.data && m.rows > 0 && m.cols > 0)
        return kg_fail(err, KG_EINVAL, "%s: %s (%lld x %lld) has no memory", op, name,
                       (long long)m.rows, (long long)m.cols);
    return KG_OK;
}

static kg_status check_ids(const char *op, const char *name, const int32_t *ids,
                           int64_t n, int32_t lowest, int64_t end, struct kg_err *err)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < lowest || ids[i] >= end)
            return kg_fail(err, KG_EINVAL, "%s: %s[%lld] is %d, expected %d..%lld", op,
                           name, (long long)i, (int)ids[i], (int)lowest,
                           (long long)end - 1);
    return KG_OK;
}

static kg_status check_head_dim(const char *op, int64_t cols, int heads, int head_dim,
                                struct kg_err *err)
{
    if (heads >= 1 && head_dim >= 1 && cols == (int64_t)heads * head_dim)
        return KG_OK;
    return kg_fail(err, KG_ESHAPE, "%s: %lld columns, expected %d heads of %d", op,
                   (long long)cols, heads, head_dim);
}

/* A slot that a backend does not fill. */
static kg_status missing(const struct kg_backend *be, const char *op, struct kg_err *err)
{
    return kg_fail(err, KG_EUNSUPPORTED, "backend %s has no operation %s", be->name, op);
}

/* ---- products ---- */
kg_status kg_op_matmul(const struct kg_backend *be, struct kg_mat c, struct kg_mat a,
                       struct kg_mat b, enum kg_matmul_kind kind, bool accumulate,
                       struct kg_err *err)
{
    static const char *const names[] = {"matmul NT", "matmul NN", "matmul TN"};
    const char *op = names[kind];
    int64_t M = kind == KG_MATMUL_TN ? a.cols : a.rows;
    int64_t K = kind == KG_MATMUL_TN ? a.rows : a.cols;
    int64_t N = kind == KG_MATMUL_NT ? b.rows : b.cols;
    KG_TRY(check(op, "a", a, ANY, ANY, CT, err));
    KG_TRY(check(op, "b", b, kind == KG_MATMUL_NT ? ANY : K,
                 kind == KG_MATMUL_NT ? K : ANY,
                 1u << a.dtype | (kind == KG_MATMUL_TN ? 0 : PANELS), err));
    KG_TRY(check(op, "c", c, M, N, accumulate ? F32 : F32 | 1u << a.dtype, err));
    return be->matmul ? be->matmul(c, a, b, kind, accumulate, err) : missing(be, op, err);
}

/* ---- embedding ---- */
kg_status kg_op_embed(const struct kg_backend *be, struct kg_mat x, struct kg_mat table,
                      const int32_t *tokens, struct kg_err *err)
{
    const char *op = "embed";
    KG_TRY(check(op, "table", table, ANY, ANY, CT | PANELS, err));
    KG_TRY(check(op, "x", x, ANY, table.cols, F32, err));
    KG_TRY(check_ids(op, "tokens", tokens, x.rows, 0, table.rows, err));
    return be->embed ? be->embed(x, table, tokens, err) : missing(be, op, err);
}

kg_status kg_op_embed_bwd(const struct kg_backend *be, struct kg_mat dtable,
                          struct kg_mat dx, const int32_t *tokens, struct kg_err *err)
{
    const char *op = "embed_bwd";
    KG_TRY(check(op, "dtable", dtable, ANY, ANY, F32, err));
    KG_TRY(check(op, "dx", dx, ANY, dtable.cols, F32, err));
    KG_TRY(check_ids(op, "tokens", tokens, dx.rows, 0, dtable.rows, err));
    return be->embed_bwd ? be->embed_bwd(dtable, dx, tokens, err) : missing(be, op, err);
}

/* ---- norm and bias ---- */
kg_status kg_op_rmsnorm(const struct kg_backend *be, struct kg_mat y, float *inv,
                        struct kg_mat x, const float *w, float eps, struct kg_err *err)
{
    const char *op = "rmsnorm";
    KG_TRY(check(op, "x", x, ANY, ANY, F32, err));
    KG_TRY(check(op, "y", y, x.rows, x.cols, CT, err));
    return be->rmsnorm ? be->rmsnorm(y, inv, x, w, eps, err) : missing(be, op, err);
}

kg_status kg_op_rmsnorm_bwd(const struct kg_backend *be, struct kg_mat dx,
                            bool accumulate, float *dw, struct kg_mat dy, struct kg_mat x,
                            const float *w, const float *inv, struct kg_err *err)
{
    const char *op = "rmsnorm_bwd";
    KG_TRY(check(op, "x", x, ANY, ANY, F32, err));
    KG_TRY(check(op, "dy", dy, x.rows, x.cols, F32, err));
    KG_TRY(check(op, "dx", dx, x.rows, x.cols, F32, err));
    return be->rmsnorm_bwd ? be->rmsnorm_bwd(dx, accumulate, dw, dy, x, w, inv, err)
                           : missing(be, op, err);
}

kg_status kg_op_bias(const struct kg_backend *be, struct kg_mat y, const float *b,
                     struct kg_err *err)
{
    KG_TRY(check("bias", "y", y, ANY, ANY, F32, err));
    return be->bias ? be->bias(y, b, err) : missing(be, "bias", err);
}

kg_status kg_op_bias_bwd(const struct kg_backend *be, float *db, struct kg_mat dy,
                         struct kg_err *err)
{
    KG_TRY(check("bias_bwd", "dy", dy, ANY, ANY, CT, err));
    return be->bias_bwd ? be->bias_bwd(db, dy, err) : missing(be, "bias_bwd", err);
}

/* ---- positions and activations ---- */
kg_status kg_op_rope(const struct kg_backend *be, struct kg_mat x, const int32_t *pos,
                     const float *inv_freq, int head_dim, float attention_factor,
                     bool inverse, struct kg_err *err)
{
    const char *op = "rope";
    KG_TRY(check(op, "x", x, ANY, ANY, F32, err));
    if (head_dim < 2 || head_dim % 2 != 0)
        return kg_fail(err, KG_ESHAPE, "%s: head dimension %d, expected an even one", op,
                       head_dim);
    KG_TRY(check_head_dim(op, x.cols, (int)(x.cols / head_dim), head_dim, err));
    return be->rope ? be->rope(x, pos, inv_freq, head_dim, attention_factor, inverse, err)
                    : missing(be, op, err);
}

kg_status kg_op_swiglu(const struct kg_backend *be, struct kg_mat h, struct kg_mat gate,
                       struct kg_mat up, struct kg_err *err)
{
    const char *op = "swiglu";
    KG_TRY(check(op, "gate", gate, ANY, ANY, CT, err));
    KG_TRY(check(op, "up", up, gate.rows, gate.cols, CT, err));
    KG_TRY(check(op, "h", h, gate.rows, gate.cols, CT, err));
    return be->swiglu ? be->swiglu(h, gate, up, err) : missing(be, op, err);
}

kg_status kg_op_swiglu_bwd(const struct kg_backend *be, struct kg_mat dgate,
                           struct kg_mat dup, struct kg_mat dh, struct kg_mat gate,
                           struct kg_mat up, struct kg_err *err)
{
    const char *op = "swiglu_bwd";
    KG_TRY(check(op, "gate", gate, ANY, ANY, CT, err));
    KG_TRY(check(op, "up", up, gate.rows, gate.cols, CT, err));
    KG_TRY(check(op, "dh", dh, gate.rows, gate.cols, CT, err));
    KG_TRY(check(op, "dgate", dgate, gate.rows, gate.cols, CT, err));
    KG_TRY(check(op, "dup", dup, gate.rows, gate.cols, CT, err));
    return be->swiglu_bwd ? be->swiglu_bwd(dgate, dup, dh, gate, up, err)
                          : missing(be, op, err);
}

/* ---- moving ---- */
kg_status kg_op_cast(const struct kg_backend *be, struct kg_mat dst, struct kg_mat src,
                     struct kg_err *err)
{
    KG_TRY(check("cast", "src", src, ANY, ANY, CT | PANELS, err));
    KG_TRY(check("cast", "dst", dst, src.rows, src.cols, CT | PANELS, err));
    if (src.layout == KG_PANELS && dst.layout == KG_PANELS)
        return kg_fail(err, KG_EINVAL,
                       "cast: src and dst lie in panels, expected rows on one side");
    return be->cast ? be->cast(dst, src, err) : missing(be, "cast", err);
}

kg_status kg_op_scatter_rows(const struct kg_backend *be, struct kg_mat pool,
                             const int32_t *rows, struct kg_mat src, struct kg_err *err)
{
    const char *op = "scatter_rows";
    KG_TRY(check(op, "src", src, ANY, ANY, CT, err));
    KG_TRY(check(op, "pool", pool, ANY, src.cols, 1u << src.dtype, err));
    KG_TRY(check_ids(op, "rows", rows, src.rows, 0, pool.rows, err));
    return be->scatter_rows ? be->scatter_rows(pool, rows, src, err)
                            : missing(be, op, err);
}

kg_status kg_op_gather_rows(const struct kg_backend *be, struct kg_mat dst,
                            struct kg_mat src, const int32_t *rows, struct kg_err *err)
{
    const char *op = "gather_rows";
    KG_TRY(check(op, "src", src, ANY, ANY, CT, err));
    KG_TRY(check(op, "dst", dst, ANY, src.cols, 1u << src.dtype, err));
    KG_TRY(check_ids(op, "rows", rows, dst.rows, 0, src.rows, err));
    return be->gather_rows ? be->gather_rows(dst, src, rows, err) : missing(be, op, err);
}

/* ---- attention ---- */

/* Where the keys of sequence i stand: every row that its last query sees lies in k. */
static kg_status check_keys(const char *op, const struct kg_attn *a, int32_t i,
                            struct kg_err *err)
{
    const struct kg_attn_seq *s = &a->seqs[i];
    int64_t keys = (int64_t)s->pos + s->n_rows;
    if (!s->blocks) {
        if (s->kv_row >= 0 && s->kv_row + keys <= a->k.rows)
            return KG_OK;
        return kg_fail(err, KG_ESHAPE,
                       "%s: sequence %d needs key rows %d..%lld, but k has %lld rows", op,
                       (int)i, (int)s->kv_row, (long long)(s->kv_row + keys - 1),
                       (long long)a->k.rows);
    }
    int64_t pages = (keys + KG_KV_BLOCK - 1) / KG_KV_BLOCK;
    for (int64_t b = 0; b < pages; b++) {
        int64_t last = b + 1 < pages ? KG_KV_BLOCK : keys - b * KG_KV_BLOCK;
        if (s->blocks[b] < 0 || (int64_t)s->blocks[b] * KG_KV_BLOCK + last > a->k.rows)
            return kg_fail(
                err, KG_ESHAPE,
                "%s: block %lld of sequence %d is page %d, beyond the %lld rows of k", op,
                (long long)b, (int)i, (int)s->blocks[b], (long long)a->k.rows);
    }
    return KG_OK;
}

static kg_status check_seqs(const char *op, const struct kg_attn *a, struct kg_err *err)
{
    for (int32_t i = 0; i < a->n_seqs; i++) {
        const struct kg_attn_seq *s = &a->seqs[i];
        if (s->row < 0 || s->n_rows < 0 || s->pos < 0 ||
            (int64_t)s->row + s->n_rows > a->q.rows)
            return kg_fail(
                err, KG_ESHAPE,
                "%s: sequence %d has rows %d+%d at position %d, expected within the %lld "
                "rows of q",
                op, (int)i, (int)s->row, (int)s->n_rows, (int)s->pos,
                (long long)a->q.rows);
        if (s->n_rows > 0)
            KG_TRY(check_keys(op, a, i, err));
    }
    return KG_OK;
}

static kg_status check_attention(const char *op, const struct kg_attn *a,
                                 struct kg_err *err)
{
    KG_TRY(check(op, "q", a->q, ANY, ANY, CT, err));
    KG_TRY(check(op, "k", a->k, ANY, ANY, 1u << a->q.dtype, err));
    KG_TRY(check(op, "v", a->v, a->k.rows, a->k.cols, 1u << a->q.dtype, err));
    KG_TRY(check_head_dim(op, a->q.cols, a->n_heads, a->head_dim, err));
    KG_TRY(check_head_dim(op, a->k.cols, a->n_kv_heads, a->head_dim, err));
    if (a->n_heads % a->n_kv_heads != 0)
        return kg_fail(err, KG_ESHAPE,
                       "%s: %d query heads, expected a multiple of %d key heads", op,
                       a->n_heads, a->n_kv_heads);
    return check_seqs(op, a, err);
}

kg_status kg_op_attention(const struct kg_backend *be, struct kg_mat o, float *lse,
                          const struct kg_attn *a, struct kg_err *err)
{
    const char *op = "attention";
    KG_TRY(check_attention(op, a, err));
    KG_TRY(check(op, "o", o, a->q.rows, a->q.cols, CT, err));
    return be->attention ? be->attention(o, lse, a, err) : missing(be, op, err);
}

kg_status kg_op_attention_bwd(const struct kg_backend *be, struct kg_mat dq,
                              struct kg_mat dk, struct kg_mat dv, struct kg_mat dout,
                              struct kg_mat o, const float *lse, const struct kg_attn *a,
                              struct kg_err *err)
{
    const char *op = "attention_bwd";
    KG_TRY(check_attention(op, a, err));
    KG_TRY(check(op, "o", o, a->q.rows, a->q.cols, CT, err));
    KG_TRY(check(op, "dout", dout, a->q.rows, a->q.cols, CT, err));
    KG_TRY(check(op, "dq", dq, a->q.rows, a->q.cols, F32, err));
    KG_TRY(check(op, "dk", dk, a->k.rows, a->k.cols, F32, err));
    KG_TRY(check(op, "dv", dv, a->k.rows, a->k.cols, F32, err));
    for (int32_t i = 0; i < a->n_seqs; i++)
        if (a->seqs[i].pos != 0 || a->seqs[i].blocks ||
            a->seqs[i].kv_row != a->seqs[i].row)
            return kg_fail(
                err, KG_ESHAPE,
                "%s: sequence %d starts at position %d with keys at row %d, expected a "
                "whole sequence whose keys lie at its rows",
                op, (int)i, (int)a->seqs[i].pos, (int)a->seqs[i].kv_row);
    return be->attention_bwd ? be->attention_bwd(dq, dk, dv, dout, o, lse, a, err)
                             : missing(be, op, err);
}

/* ---- vocabulary head ---- */
static kg_status check_head(const char *op, const struct kg_head *h, struct kg_err *err)
{
    int64_t N = h->hidden.rows;
    int64_t V = h->weight.rows;
    KG_TRY(check(op, "hidden", h->hidden, ANY, ANY, CT, err));
    KG_TRY(check(op, "weight", h->weight, ANY, h->hidden.cols,
                 1u << h->hidden.dtype | PANELS, err));
    if (h->k < 0 || h->top_k < 0 || h->top_k > V)
        return kg_fail(err, KG_EINVAL,
                       "%s: k %d and top_k %d, expected 0 or more, top_k at most the "
                       "vocabulary of %lld",
                       op, h->k, h->top_k, (long long)V);
    if (h->target)
        KG_TRY(check_ids(op, "target", h->target, N, -1, V, err));
    if (h->indices)
        KG_TRY(check_ids(op, "indices", h->indices, N * h->k, -1, V, err));
    for (int64_t n = 0; h->sets && n < N; n++)
        if (h->sets[n].n > 0 && h->sets[n].bound != V)
            return kg_fail(err, KG_ESHAPE,
                           "%s: the set of row %lld is of %d ids, expected the "
                           "vocabulary of %lld",
                           op, (long long)n, h->sets[n].bound, (long long)V);
    if (!h->anchor)
        return KG_OK;
    KG_TRY(check(op, "anchor hidden", h->anchor->hidden, N, ANY, 1u << h->hidden.dtype,
                 err));
    return check(op, "anchor weight", h->anchor->weight, V, h->anchor->hidden.cols,
                 1u << h->hidden.dtype | PANELS, err);
}

kg_status kg_op_head(const struct kg_backend *be, const struct kg_head_out *out,
                     const struct kg_head *h, struct kg_err *err)
{
    const char *op = "head";
    KG_TRY(check_head(op, h, err));
    if ((out->kl_reverse || out->kl_forward || out->anchor_lse) && !h->anchor)
        return kg_fail(err, KG_EINVAL,
                       "%s: an exact KL is asked for, but no anchor given", op);
    if (out->set_logp && !h->sets)
        return kg_fail(err, KG_EINVAL,
                       "%s: the mass of sets is asked for, but no sets given", op);
    return be->head ? be->head(out, h, err) : missing(be, op, err);
}

kg_status kg_op_head_bwd(const struct kg_backend *be, const struct kg_head_grad *g,
                         const struct kg_head *h, struct kg_err *err)
{
    const char *op = "head_bwd";
    KG_TRY(check_head(op, h, err));
    KG_TRY(check(op, "dhidden", g->dhidden, h->hidden.rows, h->hidden.cols, F32, err));
    if (g->dweight.data)
        KG_TRY(
            check(op, "dweight", g->dweight, h->weight.rows, h->weight.cols, F32, err));
    if ((g->a_kl_reverse || g->a_kl_forward) && (!h->anchor || !g->anchor_lse))
        return kg_fail(err, KG_EINVAL,
                       "%s: the gradient of an exact KL needs the anchor and its lse",
                       op);
    if ((g->a_target && !h->target) || (g->a_indices && !h->indices) ||
        (g->a_set && !h->sets))
        return kg_fail(err, KG_EINVAL, "%s: a gradient needs the ids it belongs to", op);
    if ((g->a_entropy && !g->entropy) || (g->a_kl_reverse && !g->kl_reverse) ||
        (g->a_set && !g->set_logp))
        return kg_fail(err, KG_EINVAL, "%s: a gradient needs its value of the forward",
                       op);
    return be->head_bwd ? be->head_bwd(g, h, err) : missing(be, op, err);
}

/* ---- optimizer ---- */
kg_status kg_op_adamw(const struct kg_backend *be, float *w, float *m, float *v,
                      const float *g, int64_t n, const struct kg_adamw *a,
                      struct kg_err *err)
{
    if (a->step < 1)
        return kg_fail(err, KG_EINVAL, "adamw: step %lld, expected 1 or more",
                       (long long)a->step);
    return be->adamw ? be->adamw(w, m, v, g, n, a, err) : missing(be, "adamw", err);
}

kg_status kg_op_schedule_free(const struct kg_backend *be, float *y, float *z, float *v,
                              const float *g, int64_t n, const struct kg_adamw *a,
                              struct kg_err *err)
{
    if (a->step < 1)
        return kg_fail(err, KG_EINVAL, "schedule_free: step %lld, expected 1 or more",
                       (long long)a->step);
    if (!(a->average >= 0.0f && a->average <= 1.0f))
        return kg_fail(err, KG_EINVAL, "schedule_free: average %g, expected 0..1",
                       (double)a->average);
    return be->schedule_free ? be->schedule_free(y, z, v, g, n, a, err)
                             : missing(be, "schedule_free", err);
}

kg_status kg_op_schedule_free_average(const struct kg_backend *be, float *x,
                                      const float *y, const float *z, int64_t n,
                                      float beta1, struct kg_err *err)
{
    if (!(beta1 > 0.0f && beta1 <= 1.0f))
        return kg_fail(err, KG_EINVAL,
                       "schedule_free: beta1 %g, expected above 0 and at most 1",
                       (double)beta1);
    return be->schedule_free_average ? be->schedule_free_average(x, y, z, n, beta1, err)
                                     : missing(be, "schedule_free_average", err);
}

kg_status kg_op_ema(const struct kg_backend *be, float *avg, const float *w, int64_t n,
                    float eta, struct kg_err *err)
{
    if (!(eta >= 0.0f && eta <= 1.0f))
        return kg_fail(err, KG_EINVAL, "ema: eta %g, expected 0..1", (double)eta);
    return be->ema ? be->ema(avg, w, n, eta, err) : missing(be, "ema", err);
}

kg_status kg_op_sum_squares(const struct kg_backend *be, double *out, const float *x,
                            const float *minus, int64_t n, struct kg_err *err)
{
    return be->sum_squares ? be->sum_squares(out, x, minus, n, err)
                           : missing(be, "sum_squares", err);
}

kg_status kg_op_peak(const struct kg_backend *be, enum kg_dtype t, double flops,
                     struct kg_err *err)
{
    if (!be->peak)
        return missing(be, "peak", err);
    be->peak(t, flops);
    return KG_OK;
}
