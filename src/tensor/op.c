/* Operations: checks shapes and dtypes, once for every backend.
 *
 * Each kg_op_* checks its operands, names operation and operand if one is wrong, and
 * calls the backend's slot. Kernels may rely on these checks. Nothing here reads an
 * element, except ids on the host, whose range is checked like a shape.
 */
#include "tensor/op_internal.h"

#include "base/mem.h"
#include "tensor/coded.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct kg_mat kg_mat_rows(struct kg_mat m, int64_t first, int64_t n)
{
    assert(m.layout == KG_ROWS || first % KG_PANEL == 0);
    size_t bytes = (size_t)(first * m.stride) * kg_dtype_traits(m.dtype)->bytes;
    if (m.quant)
        bytes = (size_t)(first / KG_PANEL * kg_coded_panel_bytes(m.quant, m.cols));
    m.data = (char *)m.data + bytes;
    m.rows = n;
    return m;
}

uint64_t kg_panels_bytes(enum kg_dtype dtype, int64_t rows, int64_t cols)
{
    int64_t padded = (rows + KG_PANEL - 1) / KG_PANEL * KG_PANEL;
    return (uint64_t)padded *
           (uint64_t)kg_panels(KG_PANELS, NULL, dtype, rows, cols).stride *
           kg_dtype_traits(dtype)->bytes;
}

uint64_t kg_mat_bytes(struct kg_mat m)
{
    const int64_t panels = (m.rows + KG_PANEL - 1) / KG_PANEL;
    if (m.quant)
        return (uint64_t)(panels * kg_coded_panel_bytes(m.quant, m.cols));
    return (uint64_t)((m.layout == KG_ROWS ? m.rows : panels * KG_PANEL) * m.stride) *
           kg_dtype_traits(m.dtype)->bytes;
}

uint64_t kg_weights_bytes(const struct kg_backend *be, enum kg_dtype dtype, int64_t rows,
                          int64_t cols)
{
    return be->weights == KG_ROWS
               ? (uint64_t)rows * (uint64_t)cols * kg_dtype_traits(dtype)->bytes
               : kg_panels_bytes(dtype, rows, cols);
}

/* Index, in KG_SPLIT_PANELS, of element c of a bf16 row. */
static int64_t split(int64_t c)
{
    int64_t block = c / KG_PRODUCT_BLOCK * KG_PRODUCT_BLOCK, i = c % KG_PRODUCT_BLOCK;
    return block + i % 2 * (KG_PRODUCT_BLOCK / 2) + (i / 2 ^ 1);
}

/* Address of element (r, c). */
static char *element(struct kg_mat m, int64_t r, int64_t c)
{
    int64_t bytes = (int64_t)kg_dtype_traits(m.dtype)->bytes;
    if (m.layout == KG_ROWS)
        return (char *)m.data + (r * m.stride + c) * bytes;
    if (m.layout == KG_SPLIT_PANELS && m.dtype == KG_BF16)
        c = split(c);
    int64_t dword = r / KG_PANEL * m.stride * bytes * KG_PANEL / 4 +
                    c * bytes / 4 * KG_PANEL + r % KG_PANEL;
    return (char *)m.data + dword * 4 + c * bytes % 4;
}

void kg_mat_read(void *dst, struct kg_mat m, int64_t first, int64_t n)
{
    size_t bytes = kg_dtype_traits(m.dtype)->bytes;
    for (int64_t i = 0; i < n; i++) {
        const int64_t r = (first + i) / m.cols, c = (first + i) % m.cols;
        if (m.quant)
            ((uint16_t *)dst)[i] = kg_coded_get(m, r, c);
        else
            memcpy((char *)dst + (size_t)i * bytes, element(m, r, c), bytes);
    }
}

void kg_mat_write(struct kg_mat m, const void *src, int64_t first, int64_t n)
{
    size_t bytes = kg_dtype_traits(m.dtype)->bytes;
    for (int64_t i = 0; i < n; i++)
        memcpy(element(m, (first + i) / m.cols, (first + i) % m.cols),
               (const char *)src + (size_t)i * bytes, bytes);
}

/* ---- ids ---- */
static kg_status check_range(const char *op, const char *name, const int32_t *ids,
                             int64_t n, int32_t lowest, int64_t end, struct kg_err *err)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < lowest || ids[i] >= end)
            return kg_fail(err, KG_EINVAL, "%s: %s[%lld] is %d, expected %d..%lld", op,
                           name, (long long)i, (int)ids[i], (int)lowest,
                           (long long)end - 1);
    return KG_OK;
}

kg_status kg_ids_check(const char *op, const char *name, const int32_t *ids, int64_t n,
                       int64_t end, struct kg_err *err)
{
    return check_range(op, name, ids, n, 0, end, err);
}

static kg_status check_head_dim(const char *op, int64_t cols, int heads, int head_dim,
                                struct kg_err *err)
{
    if (heads >= 1 && head_dim >= 1 && cols == (int64_t)heads * head_dim)
        return KG_OK;
    return kg_fail(err, KG_ESHAPE, "%s: %lld columns, expected %d heads of %d", op,
                   (long long)cols, heads, head_dim);
}

/* ---- memory ---- */
/* Appends to a failed allocation's message how much memory is free. */
static void say_memory(const struct kg_backend *be, struct kg_err *err)
{
    const size_t used = strlen(err->message);
    uint64_t total, free;
    struct kg_err ignored;

    if (be->memory(&total, &free, &ignored) == KG_OK)
        snprintf(err->message + used, sizeof err->message - used,
                 "; of %.2f GB, %.2f GB are free (another process may hold some)",
                 (double)total / 1e9, (double)free / 1e9);
}

void *kg_buf_alloc(const struct kg_backend *be, uint64_t bytes, const char *what,
                   struct kg_err *err)
{
    void *buffer = be->alloc(bytes, what, err);

    if (!buffer && be->memory && err->code == KG_ENOMEM)
        say_memory(be, err);
    return buffer;
}

void kg_buf_free(const struct kg_backend *be, void *buffer)
{
    if (buffer)
        be->free(buffer);
}

static kg_status check_range_of(const char *op, const void *p, uint64_t bytes,
                                struct kg_err *err)
{
    return p || bytes == 0 ? KG_OK
                           : kg_fail(err, KG_EINVAL, "%s: found NULL for %llu bytes", op,
                                     (unsigned long long)bytes);
}

static kg_status check_apart(const char *op, const void *a, const void *b, uint64_t bytes,
                             struct kg_err *err)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;

    KG_TRY(check_range_of(op, a, bytes, err));
    KG_TRY(check_range_of(op, b, bytes, err));
    return (x < y ? y - x : x - y) >= bytes
               ? KG_OK
               : kg_fail(err, KG_EINVAL, "%s: the ranges of %llu bytes overlap", op,
                         (unsigned long long)bytes);
}

kg_status kg_buf_put(const struct kg_backend *be, void *to, const void *from,
                     uint64_t bytes, struct kg_err *err)
{
    KG_TRY(check_apart("put", to, from, bytes, err));
    return be->put(to, from, bytes, err);
}

kg_status kg_buf_get(const struct kg_backend *be, void *to, const void *from,
                     uint64_t bytes, struct kg_err *err)
{
    KG_TRY(check_apart("get", to, from, bytes, err));
    return be->get(to, from, bytes, err);
}

void *kg_buf_pin(const struct kg_backend *be, uint64_t bytes, const char *what,
                 struct kg_err *err)
{
    const uint64_t some = bytes > 0 ? bytes : 1;

    return be->pin ? be->pin(some, what, err) : kg_mem_calloc(some, 1, what, err);
}

void kg_buf_unpin(const struct kg_backend *be, void *pinned)
{
    if (pinned && be->unpin)
        be->unpin(pinned);
    else
        kg_mem_free(pinned);
}

kg_status kg_buf_fetch(const struct kg_backend *be, void *to, const void *from,
                       uint64_t bytes, struct kg_err *err)
{
    KG_TRY(check_apart("fetch", to, from, bytes, err));
    return be->fetch ? be->fetch(to, from, bytes, err) : be->get(to, from, bytes, err);
}

kg_status kg_buf_put_later(const struct kg_backend *be, void *to, const void *from,
                           uint64_t bytes, struct kg_err *err)
{
    KG_TRY(check_apart("put_later", to, from, bytes, err));
    return be->put_later ? be->put_later(to, from, bytes, err)
                         : be->put(to, from, bytes, err);
}

kg_status kg_buf_get_later(const struct kg_backend *be, void *to, const void *from,
                           uint64_t bytes, struct kg_err *err)
{
    KG_TRY(check_apart("get_later", to, from, bytes, err));
    return be->get_later ? be->get_later(to, from, bytes, err)
                         : be->get(to, from, bytes, err);
}

kg_status kg_buf_mark(const struct kg_backend *be, uint64_t *mark, struct kg_err *err)
{
    *mark = 0;
    return be->mark ? be->mark(mark, err) : KG_OK;
}

kg_status kg_buf_wait(const struct kg_backend *be, uint64_t mark, struct kg_err *err)
{
    return be->wait ? be->wait(mark, err) : KG_OK;
}

kg_status kg_buf_reached(const struct kg_backend *be, bool *yes, uint64_t mark,
                         struct kg_err *err)
{
    *yes = true;
    return be->reached ? be->reached(yes, mark, err) : KG_OK;
}

kg_status kg_buf_lend(const struct kg_backend *be, int *result,
                      int (*call)(void *arg, void *stream), void *arg,
                      const void *const *memory, size_t n, struct kg_err *err)
{
    if (!be->lend)
        return kg_fail(err, KG_EUNSUPPORTED, "lend: the backend %s has no such operation",
                       be->name);
    return be->lend(result, call, arg, memory, n, err);
}

kg_status kg_buf_settle(const struct kg_backend *be, struct kg_err *err)
{
    uint64_t mark;

    KG_TRY(kg_buf_mark(be, &mark, err));
    return kg_buf_wait(be, mark, err);
}

kg_status kg_buf_copy(const struct kg_backend *be, void *to, const void *from,
                      uint64_t bytes, struct kg_err *err)
{
    KG_TRY(check_apart("copy", to, from, bytes, err));
    return be->copy(to, from, bytes, err);
}

kg_status kg_buf_zero(const struct kg_backend *be, void *to, uint64_t bytes,
                      struct kg_err *err)
{
    KG_TRY(check_range_of("zero", to, bytes, err));
    return be->zero(to, bytes, err);
}

kg_status kg_buf_swap(const struct kg_backend *be, void *a, void *b, uint64_t bytes,
                      struct kg_err *err)
{
    KG_TRY(check_apart("swap", a, b, bytes, err));
    return be->swap(a, b, bytes, err);
}

static uint64_t counted(const uint64_t *count)
{
    return __atomic_load_n(count, __ATOMIC_RELAXED);
}

struct kg_traffic kg_buf_traffic(const struct kg_backend *be)
{
    const struct kg_traffic *t = be->traffic;
    if (!t)
        return (struct kg_traffic){0};
    return (struct kg_traffic){.up = counted(&t->up),
                               .down = counted(&t->down),
                               .ups = counted(&t->ups),
                               .downs = counted(&t->downs),
                               .replays = counted(&t->replays),
                               .waits = counted(&t->waits)};
}

void kg_buf_traffic_add(struct kg_traffic *sum, const struct kg_backend *be,
                        struct kg_traffic since)
{
    const struct kg_traffic now = kg_buf_traffic(be);
    sum->up += now.up - since.up;
    sum->down += now.down - since.down;
    sum->ups += now.ups - since.ups;
    sum->downs += now.downs - since.downs;
    sum->replays += now.replays - since.replays;
    sum->waits += now.waits - since.waits;
}

/* ---- products ---- */
kg_status kg_op_reserve(const struct kg_backend *be, uint64_t bytes, struct kg_err *err)
{
    return be->reserve ? be->reserve(bytes, err) : KG_OK;
}

static kg_status check_product(const struct kg_backend *be, const char *op,
                               struct kg_mat c, struct kg_mat a, struct kg_mat b,
                               enum kg_matmul_kind kind, bool accumulate,
                               struct kg_err *err)
{
    int64_t M = kind == KG_MATMUL_TN ? a.cols : a.rows;
    int64_t K = kind == KG_MATMUL_TN ? a.rows : a.cols;
    int64_t N = kind == KG_MATMUL_NT ? b.rows : b.cols;
    KG_TRY(check(op, "a", a, ANY, ANY, CT, err));
    KG_TRY(check(op, "b", b, kind == KG_MATMUL_NT ? ANY : K,
                 kind == KG_MATMUL_NT ? K : ANY,
                 1u << a.dtype | (kind == KG_MATMUL_TN ? 0 : panels(be)), err));
    return check(op, "c", c, M, N,
                 accumulate || kind == KG_MATMUL_TN ? F32 : F32 | 1u << a.dtype, err);
}

kg_status kg_op_matmul(const struct kg_backend *be, struct kg_mat c, struct kg_mat a,
                       struct kg_mat b, enum kg_matmul_kind kind, bool accumulate,
                       struct kg_err *err)
{
    static const char *const names[] = {"matmul NT", "matmul NN", "matmul TN"};
    const char *op = names[kind];
    KG_TRY(check_product(be, op, c, a, b, kind, accumulate, err));
    return be->matmul ? be->matmul(c, a, b, kind, accumulate, err) : missing(be, op, err);
}

kg_status kg_op_matmul_onto(const struct kg_backend *be, struct kg_mat c,
                            struct kg_mat old, struct kg_mat a, struct kg_mat b,
                            struct kg_err *err)
{
    const char *op = "matmul_onto";
    const bool one = c.data == old.data && c.stride == old.stride;
    const int64_t step = (uintptr_t)c.data < (uintptr_t)old.data ? c.stride : old.stride;
    KG_TRY(check(op, "old", old, c.rows, c.cols, F32, err));
    KG_TRY(check_product(be, op, c, a, b, KG_MATMUL_NT, true, err));
    if (one)
        return kg_op_matmul(be, c, a, b, KG_MATMUL_NT, true, err);
    KG_TRY(check_apart(op, c.data, old.data, (uint64_t)(c.rows * step) * 4, err));
    if (be->matmul_onto)
        return be->matmul_onto(c, old, a, b, err);
    KG_TRY(kg_op_cast(be, c, old, err));
    return kg_op_matmul(be, c, a, b, KG_MATMUL_NT, true, err);
}

kg_status kg_op_matmul_shared(const struct kg_backend *be, const struct kg_product *to,
                              int n, struct kg_mat a, struct kg_err *err)
{
    assert(n > 0 && n <= KG_PRODUCTS_AT_ONCE);
    for (int j = 0; j < n; j++)
        KG_TRY(be->matmul_shared
                   ? check_product(be, "matmul NT", to[j].c, a, to[j].b, KG_MATMUL_NT,
                                   false, err)
                   : kg_op_matmul(be, to[j].c, a, to[j].b, KG_MATMUL_NT, false, err));
    return be->matmul_shared ? be->matmul_shared(to, n, a, err) : KG_OK;
}

static kg_status check_factors(const struct kg_backend *be, const char *op,
                               const struct kg_factors *f, struct kg_mat c,
                               enum kg_matmul_kind kind, struct kg_err *err)
{
    const int64_t K = f->a.cols;
    const bool nt = kind == KG_MATMUL_NT;
    if (K == 0)
        return kg_fail(err, KG_ESHAPE, "%s: expected K of at least 1, found 0", op);
    KG_TRY(check(op, "a", f->a, c.rows, ANY, CT, err));
    return check(op, "b", f->b, nt ? c.cols : K, nt ? K : c.cols,
                 1u << f->a.dtype | panels(be), err);
}

/* For a backend that has no slot for this: two products, and a cast. */
static kg_status two_by_one(const struct kg_backend *be, struct kg_mat c,
                            const struct kg_factors f[2], struct kg_mat wide,
                            enum kg_matmul_kind kind, bool accumulate, struct kg_err *err)
{
    KG_TRY(kg_op_matmul(be, wide, f[0].a, f[0].b, kind, accumulate, err));
    KG_TRY(kg_op_matmul(be, wide, f[1].a, f[1].b, kind, true, err));
    return c.data == wide.data ? KG_OK : kg_op_cast(be, c, wide, err);
}

kg_status kg_op_matmul_two(const struct kg_backend *be, struct kg_mat c,
                           const struct kg_factors f[2], struct kg_mat wide,
                           enum kg_matmul_kind kind, bool accumulate, struct kg_err *err)
{
    static const char *const names[] = {"matmul_two NT, 1st", "matmul_two NN, 1st",
                                        "matmul_two NT, 2nd", "matmul_two NN, 2nd"};
    const char *op = names[kind];
    assert(kind != KG_MATMUL_TN);
    KG_TRY(check(op, "c", c, ANY, ANY, accumulate ? F32 : F32 | 1u << f[0].a.dtype, err));
    KG_TRY(check(op, "wide", wide, c.rows, c.cols, F32, err));
    KG_TRY(check_factors(be, op, &f[0], c, kind, err));
    KG_TRY(check(names[kind + 2], "a", f[1].a, c.rows, ANY, 1u << f[0].a.dtype, err));
    KG_TRY(check_factors(be, names[kind + 2], &f[1], c, kind, err));
    return be->matmul_two ? be->matmul_two(c, f, kind, accumulate, err)
                          : two_by_one(be, c, f, wide, kind, accumulate, err);
}

/* ---- norm and bias ---- */
kg_status kg_op_rmsnorm(const struct kg_backend *be, struct kg_mat y, struct kg_vec inv,
                        struct kg_mat x, struct kg_vec w, float eps, struct kg_err *err)
{
    const char *op = "rmsnorm";
    KG_TRY(check(op, "x", x, ANY, ANY, F32, err));
    KG_TRY(check(op, "y", y, x.rows, x.cols, CT, err));
    KG_TRY(check_vec(op, "w", w, norm_width(x, w), err));
    KG_TRY(check_vec_if(op, "inv", inv, kg_norm_rows(x, w), err));
    return be->rmsnorm ? be->rmsnorm(y, inv, x, w, eps, err) : missing(be, op, err);
}

kg_status kg_op_rmsnorm_bwd(const struct kg_backend *be, struct kg_mat dx,
                            bool accumulate, struct kg_vec dw, struct kg_mat dy,
                            struct kg_mat x, struct kg_vec w, struct kg_vec inv,
                            struct kg_err *err)
{
    const char *op = "rmsnorm_bwd";
    KG_TRY(check(op, "x", x, ANY, ANY, F32, err));
    KG_TRY(check(op, "dy", dy, x.rows, x.cols, F32, err));
    KG_TRY(check(op, "dx", dx, x.rows, x.cols, F32, err));
    KG_TRY(check_vec(op, "w", w, norm_width(x, w), err));
    KG_TRY(check_vec(op, "inv", inv, kg_norm_rows(x, w), err));
    KG_TRY(check_vec_if(op, "dw", dw, w.n, err));
    return be->rmsnorm_bwd ? be->rmsnorm_bwd(dx, accumulate, dw, dy, x, w, inv, err)
                           : missing(be, op, err);
}

kg_status kg_op_layernorm(const struct kg_backend *be, struct kg_mat y, struct kg_mat x,
                          struct kg_vec w, struct kg_vec b, float eps, struct kg_err *err)
{
    const char *op = "layernorm";
    KG_TRY(check(op, "x", x, ANY, ANY, F32, err));
    KG_TRY(check(op, "y", y, x.rows, x.cols, CT, err));
    KG_TRY(check_vec(op, "w", w, x.cols, err));
    KG_TRY(check_vec(op, "b", b, x.cols, err));
    return be->layernorm ? be->layernorm(y, x, w, b, eps, err) : missing(be, op, err);
}

kg_status kg_op_bias(const struct kg_backend *be, struct kg_mat y, struct kg_vec b,
                     struct kg_err *err)
{
    KG_TRY(check("bias", "y", y, ANY, ANY, F32, err));
    KG_TRY(check_vec("bias", "b", b, y.cols, err));
    return be->bias ? be->bias(y, b, err) : missing(be, "bias", err);
}

kg_status kg_op_bias_bwd(const struct kg_backend *be, struct kg_vec db, struct kg_mat dy,
                         struct kg_err *err)
{
    KG_TRY(check("bias_bwd", "dy", dy, ANY, ANY, CT, err));
    KG_TRY(check_vec("bias_bwd", "db", db, dy.cols, err));
    return be->bias_bwd ? be->bias_bwd(db, dy, err) : missing(be, "bias_bwd", err);
}

/* ---- positions and activations ---- */
static kg_status check_turn(const char *op, struct kg_mat x, const struct kg_turn *by,
                            struct kg_err *err)
{
    const int hd = by->head_dim;
    if (hd < 2 || hd % 2 != 0)
        return kg_fail(err, KG_ESHAPE, "%s: head dimension %d, expected an even one", op,
                       hd);
    KG_TRY(check_head_dim(op, x.cols, (int)(x.cols / hd), hd, err));
    KG_TRY(check_length(op, "pos", by->pos.data, by->pos.n, x.rows, err));
    if (by->inv_freq.n < 1 || by->inv_freq.n > hd / 2)
        return kg_fail(err, KG_ESHAPE,
                       "%s: inv_freq has %lld elements, expected 1 to %d, half of a head",
                       op, (long long)by->inv_freq.n, hd / 2);
    return KG_OK;
}

kg_status kg_op_rope(const struct kg_backend *be, struct kg_mat x,
                     const struct kg_turn *by, bool inverse, struct kg_err *err)
{
    const char *op = "rope";
    KG_TRY(check(op, "x", x, ANY, ANY, F32, err));
    KG_TRY(check_turn(op, x, by, err));
    return be->rope ? be->rope(x, by, inverse, err) : missing(be, op, err);
}

static kg_status check_heads(const struct kg_backend *be, const struct kg_heads *h,
                             int64_t rows, const struct kg_turn *by, struct kg_err *err)
{
    const char *op = "heads";
    const bool one = h->x.data == h->out.data;
    KG_TRY(check(op, "x", h->x, rows, ANY, one && !h->bias.data && !h->turned ? CT : F32,
                 err));
    KG_TRY(check(op, "out", h->out, rows, h->x.cols, one ? 1u << h->x.dtype : CT, err));
    if (h->bias.data)
        KG_TRY(check_vec(op, "bias", h->bias, h->x.cols, err));
    if (h->turned)
        KG_TRY(check_turn(op, h->x, by, err));
    if (!h->pool.data)
        return KG_OK;
    KG_TRY(check(op, "pool", h->pool, ANY, h->x.cols, 1u << h->out.dtype, err));
    return check_ids(be, op, "rows", h->rows, rows, h->pool.rows, err);
}

/* For a backend without the slot `heads`: one operation at a time. */
static kg_status heads_by_one(const struct kg_backend *be, const struct kg_heads *h,
                              const struct kg_turn *by, struct kg_err *err)
{
    if (h->bias.data)
        KG_TRY(kg_op_bias(be, h->x, h->bias, err));
    if (h->turned)
        KG_TRY(kg_op_rope(be, h->x, by, false, err));
    if (h->x.data != h->out.data)
        KG_TRY(kg_op_cast(be, h->out, h->x, err));
    return h->pool.data ? kg_op_scatter_rows(be, h->pool, h->rows, h->out, err) : KG_OK;
}

kg_status kg_op_heads(const struct kg_backend *be, const struct kg_heads *h, int n,
                      const struct kg_turn *by, struct kg_err *err)
{
    assert(n > 0 && n <= KG_HEADS_AT_ONCE);
    for (int i = 0; i < n; i++) {
        KG_TRY(check_heads(be, &h[i], h->x.rows, by, err));
        if (!be->heads)
            KG_TRY(heads_by_one(be, &h[i], by, err));
    }
    return be->heads ? be->heads(h, n, by, err) : KG_OK;
}

static kg_status check_gated(const char *op, struct kg_mat h, struct kg_mat gate,
                             struct kg_mat up, struct kg_err *err)
{
    KG_TRY(check(op, "gate", gate, ANY, ANY, CT, err));
    KG_TRY(check(op, "up", up, gate.rows, gate.cols, CT, err));
    return check(op, "h", h, gate.rows, gate.cols, CT, err);
}

static kg_status check_gated_bwd(const char *op, struct kg_mat dgate, struct kg_mat dup,
                                 struct kg_mat dh, struct kg_mat gate, struct kg_mat up,
                                 struct kg_err *err)
{
    KG_TRY(check(op, "gate", gate, ANY, ANY, CT, err));
    KG_TRY(check(op, "up", up, gate.rows, gate.cols, CT, err));
    KG_TRY(check(op, "dh", dh, gate.rows, gate.cols, CT, err));
    KG_TRY(check(op, "dgate", dgate, gate.rows, gate.cols, CT, err));
    return check(op, "dup", dup, gate.rows, gate.cols, CT, err);
}

kg_status kg_op_swiglu(const struct kg_backend *be, struct kg_mat h, struct kg_mat gate,
                       struct kg_mat up, struct kg_err *err)
{
    const char *op = "swiglu";
    KG_TRY(check_gated(op, h, gate, up, err));
    return be->swiglu ? be->swiglu(h, gate, up, err) : missing(be, op, err);
}

kg_status kg_op_swiglu_bwd(const struct kg_backend *be, struct kg_mat dgate,
                           struct kg_mat dup, struct kg_mat dh, struct kg_mat gate,
                           struct kg_mat up, struct kg_err *err)
{
    const char *op = "swiglu_bwd";
    KG_TRY(check_gated_bwd(op, dgate, dup, dh, gate, up, err));
    return be->swiglu_bwd ? be->swiglu_bwd(dgate, dup, dh, gate, up, err)
                          : missing(be, op, err);
}

kg_status kg_op_geglu(const struct kg_backend *be, struct kg_mat h, struct kg_mat gate,
                      struct kg_mat up, struct kg_err *err)
{
    const char *op = "geglu";
    KG_TRY(check_gated(op, h, gate, up, err));
    return be->geglu ? be->geglu(h, gate, up, err) : missing(be, op, err);
}

kg_status kg_op_geglu_bwd(const struct kg_backend *be, struct kg_mat dgate,
                          struct kg_mat dup, struct kg_mat dh, struct kg_mat gate,
                          struct kg_mat up, struct kg_err *err)
{
    const char *op = "geglu_bwd";
    KG_TRY(check_gated_bwd(op, dgate, dup, dh, gate, up, err));
    return be->geglu_bwd ? be->geglu_bwd(dgate, dup, dh, gate, up, err)
                         : missing(be, op, err);
}

kg_status kg_op_gelu(const struct kg_backend *be, struct kg_mat y, struct kg_mat x,
                     struct kg_err *err)
{
    KG_TRY(check("gelu", "x", x, ANY, ANY, CT, err));
    KG_TRY(check("gelu", "y", y, x.rows, x.cols, CT, err));
    return be->gelu ? be->gelu(y, x, err) : missing(be, "gelu", err);
}

kg_status kg_op_cast(const struct kg_backend *be, struct kg_mat dst, struct kg_mat src,
                     struct kg_err *err)
{
    KG_TRY(check("cast", "src", src, ANY, ANY, CT | panels(be), err));
    KG_TRY(
        check("cast", "dst", dst, src.rows, src.cols, CT | (panels(be) & ~CODED), err));
    if (src.layout != KG_ROWS && dst.layout != KG_ROWS)
        return kg_fail(err, KG_EINVAL,
                       "cast: src and dst are in panels, expected rows on one side");
    return be->cast ? be->cast(dst, src, err) : missing(be, "cast", err);
}

/* ---- attention ---- */

/* Sequence i has at most most_keys keys, and k holds all that its last query sees. */
static kg_status check_keys(const char *op, const struct kg_attn *a, int32_t i,
                            struct kg_err *err)
{
    const struct kg_attn_seq *s = &a->seqs[i];
    int64_t keys = (int64_t)s->pos + s->n_rows;
    if (a->most_keys > 0 && keys > a->most_keys)
        return kg_fail(err, KG_ESHAPE,
                       "%s: sequence %d has %lld keys, expected at most %d (most_keys)",
                       op, (int)i, (long long)keys, (int)a->most_keys);
    if (!a->blocks.data) {
        if (s->keys >= 0 && s->keys + keys <= a->k.rows)
            return KG_OK;
        return kg_fail(err, KG_ESHAPE,
                       "%s: sequence %d needs key rows %d..%lld, but k has %lld rows", op,
                       (int)i, (int)s->keys, (long long)(s->keys + keys - 1),
                       (long long)a->k.rows);
    }
    int64_t pages = (keys + KG_KV_BLOCK - 1) / KG_KV_BLOCK;
    if (s->keys < 0 || s->keys + pages > a->blocks.n)
        return kg_fail(err, KG_ESHAPE,
                       "%s: sequence %d needs blocks %d..%lld of a table of %lld", op,
                       (int)i, (int)s->keys, (long long)(s->keys + pages - 1),
                       (long long)a->blocks.n);
    for (int64_t b = 0; b < pages; b++) {
        int64_t last = b + 1 < pages ? KG_KV_BLOCK : keys - b * KG_KV_BLOCK;
        int32_t page = a->blocks.data[s->keys + b];
        if (page < 0 || (int64_t)page * KG_KV_BLOCK + last > a->k.rows)
            return kg_fail(err, KG_ESHAPE,
                           "%s: block %lld of sequence %d is cache block %d, beyond the "
                           "%lld rows of k",
                           op, (long long)b, (int)i, (int)page, (long long)a->k.rows);
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

static kg_status check_softcap(const char *op, float softcap, struct kg_err *err)
{
    return softcap >= 0 && !isinf(softcap)
               ? KG_OK
               : kg_fail(err, KG_EINVAL, "%s: softcap %g, expected 0 or more", op,
                         (double)softcap);
}

static kg_status check_attention(const struct kg_backend *be, const char *op,
                                 const struct kg_attn *a, struct kg_err *err)
{
    if (a->window < 0)
        return kg_fail(err, KG_EINVAL, "%s: window %d, expected 0 or more", op,
                       (int)a->window);
    if (a->both_ways && a->window > 0)
        return kg_fail(err, KG_EINVAL, "%s: both ways with a window of %d, expected none",
                       op, (int)a->window);
    KG_TRY(check_softcap(op, a->softcap, err));
    KG_TRY(check(op, "q", a->q, ANY, ANY, CT, err));
    KG_TRY(check(op, "k", a->k, ANY, ANY, 1u << a->q.dtype, err));
    KG_TRY(check(op, "v", a->v, a->k.rows, a->k.cols, 1u << a->q.dtype, err));
    KG_TRY(check_head_dim(op, a->q.cols, a->n_heads, a->head_dim, err));
    KG_TRY(check_head_dim(op, a->k.cols, a->n_kv_heads, a->head_dim, err));
    if (a->n_heads % a->n_kv_heads != 0)
        return kg_fail(err, KG_ESHAPE,
                       "%s: %d query heads, expected a multiple of %d key heads", op,
                       a->n_heads, a->n_kv_heads);
    return be->host_memory ? check_seqs(op, a, err) : KG_OK;
}

kg_status kg_op_attention(const struct kg_backend *be, struct kg_mat o, struct kg_vec lse,
                          const struct kg_attn *a, struct kg_err *err)
{
    const char *op = "attention";
    KG_TRY(check_attention(be, op, a, err));
    KG_TRY(check(op, "o", o, a->q.rows, a->q.cols, CT, err));
    KG_TRY(check_vec_if(op, "lse", lse, a->q.rows * a->n_heads, err));
    return be->attention ? be->attention(o, lse, a, err) : missing(be, op, err);
}

/* Sequences must not share keys, because each writes the gradients of its own. */
static kg_status check_own_keys(const char *op, const struct kg_attn *a,
                                struct kg_err *err)
{
    int64_t end = 0;

    for (int32_t i = 0; i < a->n_seqs; i++) {
        if (a->seqs[i].keys < end)
            return kg_fail(
                err, KG_ESHAPE,
                "%s: the keys of sequence %d begin at row %d, expected %lld or "
                "more, after those of the sequence before",
                op, (int)i, (int)a->seqs[i].keys, (long long)end);
        end = (int64_t)a->seqs[i].keys + a->seqs[i].pos + a->seqs[i].n_rows;
    }
    return KG_OK;
}

kg_status kg_op_attention_bwd(const struct kg_backend *be, struct kg_mat dq,
                              struct kg_mat dk, struct kg_mat dv, struct kg_mat dout,
                              struct kg_mat o, struct kg_vec lse, const struct kg_attn *a,
                              struct kg_err *err)
{
    const char *op = "attention_bwd";
    KG_TRY(check_attention(be, op, a, err));
    KG_TRY(check(op, "o", o, a->q.rows, a->q.cols, CT, err));
    KG_TRY(check_vec(op, "lse", lse, a->q.rows * a->n_heads, err));
    KG_TRY(check(op, "dout", dout, a->q.rows, a->q.cols, CT, err));
    KG_TRY(check(op, "dq", dq, a->q.rows, a->q.cols, F32, err));
    KG_TRY(check(op, "dk", dk, a->k.rows, a->k.cols, F32, err));
    KG_TRY(check(op, "dv", dv, a->k.rows, a->k.cols, F32, err));
    if (a->both_ways)
        return kg_fail(err, KG_EUNSUPPORTED, "%s: both ways, expected causal attention",
                       op);
    if (a->blocks.data)
        return kg_fail(err, KG_EINVAL, "%s: keys are in blocks, expected contiguous rows",
                       op);
    if (be->host_memory)
        KG_TRY(check_own_keys(op, a, err));
    return be->attention_bwd ? be->attention_bwd(dq, dk, dv, dout, o, lse, a, err)
                             : missing(be, op, err);
}

/* ---- vocabulary head ---- */
static kg_status check_head(const struct kg_backend *be, const char *op,
                            const struct kg_head *h, struct kg_err *err)
{
    int64_t N = h->hidden.rows;
    int64_t V = h->weight.rows;
    KG_TRY(check(op, "hidden", h->hidden, ANY, ANY, CT, err));
    KG_TRY(check(op, "weight", h->weight, ANY, h->hidden.cols,
                 1u << h->hidden.dtype | panels(be), err));
    if (h->k < 0 || h->top_k < 0 || h->top_k > V)
        return kg_fail(err, KG_EINVAL,
                       "%s: k %d and top_k %d, expected 0 or more, top_k at most the "
                       "vocabulary of %lld",
                       op, h->k, h->top_k, (long long)V);
    if (h->target)
        KG_TRY(check_range(op, "target", h->target, N, -1, V, err));
    if (h->indices)
        KG_TRY(check_range(op, "indices", h->indices, N * h->k, -1, V, err));
    for (int64_t n = 0; h->sets && n < N; n++)
        if (h->sets[n].n > 0 && h->sets[n].bound != V)
            return kg_fail(err, KG_ESHAPE,
                           "%s: the set of row %lld has a bound of %d ids, expected the "
                           "vocabulary of %lld",
                           op, (long long)n, h->sets[n].bound, (long long)V);
    KG_TRY(check_softcap(op, h->softcap, err));
    if ((uintptr_t)h->kept % 64 != 0)
        return kg_fail(err, KG_EINVAL, "%s: kept: expected 64-byte aligned memory", op);
    if (!h->anchor)
        return KG_OK;
    KG_TRY(check_softcap(op, h->anchor->softcap, err));
    KG_TRY(check(op, "anchor hidden", h->anchor->hidden, N, ANY, 1u << h->hidden.dtype,
                 err));
    return check(op, "anchor weight", h->anchor->weight, V, h->anchor->hidden.cols,
                 1u << h->hidden.dtype | panels(be), err);
}

static kg_status check_asked(const struct kg_backend *be, const char *op,
                             const struct kg_head_out *out, const struct kg_head *h,
                             struct kg_err *err)
{
    KG_TRY(check_head(be, op, h, err));
    if ((out->kl_reverse || out->kl_forward || out->anchor_lse) && !h->anchor)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected an anchor for the exact KL, found none", op);
    if (out->set_logp && !h->sets)
        return kg_fail(err, KG_EINVAL, "%s: expected sets for their mass, found none",
                       op);
    return KG_OK;
}

kg_status kg_op_head(const struct kg_backend *be, const struct kg_head_out *out,
                     const struct kg_head *h, struct kg_err *err)
{
    const char *op = "head";
    KG_TRY(check_asked(be, op, out, h, err));
    if (h->kept && !out->lse)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected an array for lse, which is kept for the backward, "
                       "found none",
                       op);
    return be->head ? be->head(out, h, err) : missing(be, op, err);
}

kg_status kg_op_draw(const struct kg_backend *be, const struct kg_draws *d,
                     const struct kg_head_out *out, const struct kg_head *h,
                     struct kg_err *err)
{
    const char *op = "draw";
    KG_TRY(check_asked(be, op, out, h, err));
    if (!out->lse || !d->how || !d->drawn)
        return kg_fail(err, KG_EINVAL, "%s: expected lse, how and drawn, found NULL", op);
    if (out->logits || h->inv_temp || h->target || h->indices || h->sets || h->anchor)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected no host arrays, found temperatures, ids or logits",
                       op);
    return be->draw ? be->draw(d, out, h, err) : missing(be, op, err);
}

kg_status kg_op_feed(const struct kg_backend *be, int32_t *tokens, struct kg_ivec from,
                     const struct kg_drawn *drawn, struct kg_err *err)
{
    const char *op = "feed";

    KG_TRY(check_length(op, "from", from.data, from.n, from.n, err));
    KG_TRY(check_length(op, "tokens", tokens, from.n, from.n, err));
    KG_TRY(check_length(op, "drawn", drawn, from.n, from.n, err));
    return be->feed ? be->feed(tokens, from, drawn, err) : missing(be, op, err);
}

kg_status kg_op_replay(const struct kg_backend *be, uint64_t key,
                       kg_status (*body)(void *arg, struct kg_err *err), void *arg,
                       struct kg_err *err)
{
    return be->replay ? be->replay(key, body, arg, err) : body(arg, err);
}

kg_status kg_op_head_bwd(const struct kg_backend *be, const struct kg_head_grad *g,
                         const struct kg_head *h, struct kg_err *err)
{
    const char *op = "head_bwd";
    KG_TRY(check_head(be, op, h, err));
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
        return kg_fail(err, KG_EINVAL,
                       "%s: the gradient of an output needs the forward's value of it",
                       op);
    return be->head_bwd ? be->head_bwd(g, h, err) : missing(be, op, err);
}

/* ---- optimizer ---- */
static kg_status check_update(const char *op, const struct kg_adamw *a, int64_t n,
                              struct kg_err *err)
{
    int64_t from = a->first;

    if (a->step < 1)
        return kg_fail(err, KG_EINVAL, "%s: step %lld, expected 1 or more", op,
                       (long long)a->step);
    if (a->first < 0 || a->first % KG_DRAW_LANES != 0)
        return kg_fail(err, KG_EINVAL, "%s: first %lld, expected a multiple of %d", op,
                       (long long)a->first, KG_DRAW_LANES);
    for (int32_t i = 0; i < a->n_rounded; i++) {
        const struct kg_rounded *r = &a->rounded[i];
        if (r->first % KG_DRAW_LANES != 0 || r->first < from || r->n < 1 ||
            r->n > a->first + n - r->first)
            return kg_fail(
                err, KG_EINVAL,
                "%s: run %d of rounded weights: expected 1 or more elements "
                "in %lld..%lld, the first a multiple of %d, found %lld from %lld",
                op, i, (long long)from, (long long)(a->first + n - 1), KG_DRAW_LANES,
                (long long)r->n, (long long)r->first);
        from = r->first + r->n;
    }
    return KG_OK;
}

kg_status kg_op_adamw(const struct kg_backend *be, struct kg_vec w, struct kg_mat m,
                      struct kg_mat v, struct kg_vec g, const struct kg_adamw *a,
                      struct kg_err *err)
{
    const char *op = "adamw";
    KG_TRY(check_update(op, a, w.n, err));
    KG_TRY(check_vec(op, "w", w, w.n, err));
    KG_TRY(check(op, "m", m, 1, w.n, CT, err));
    KG_TRY(check(op, "v", v, 1, w.n, CT, err));
    KG_TRY(check_vec(op, "g", g, w.n, err));
    return be->adamw ? be->adamw(w, m, v, g, a, err) : missing(be, op, err);
}

kg_status kg_op_schedule_free(const struct kg_backend *be, struct kg_vec y,
                              struct kg_vec z, struct kg_mat v, struct kg_vec g,
                              const struct kg_adamw *a, struct kg_err *err)
{
    const char *op = "schedule_free";
    KG_TRY(check_update(op, a, y.n, err));
    if (!(a->average >= 0.0f && a->average <= 1.0f))
        return kg_fail(err, KG_EINVAL, "%s: average %g, expected 0..1", op,
                       (double)a->average);
    KG_TRY(check_vec(op, "y", y, y.n, err));
    KG_TRY(check_vec(op, "z", z, y.n, err));
    KG_TRY(check(op, "v", v, 1, y.n, CT, err));
    KG_TRY(check_vec(op, "g", g, y.n, err));
    return be->schedule_free ? be->schedule_free(y, z, v, g, a, err)
                             : missing(be, op, err);
}

kg_status kg_op_schedule_free_average(const struct kg_backend *be, struct kg_vec x,
                                      struct kg_vec y, struct kg_vec z, float beta1,
                                      struct kg_err *err)
{
    if (!(beta1 > 0.0f && beta1 <= 1.0f))
        return kg_fail(err, KG_EINVAL,
                       "schedule_free: beta1 %g, expected above 0 and at most 1",
                       (double)beta1);
    KG_TRY(check_vec("schedule_free", "x", x, x.n, err));
    KG_TRY(check_vec("schedule_free", "y", y, x.n, err));
    KG_TRY(check_vec("schedule_free", "z", z, x.n, err));
    return be->schedule_free_average ? be->schedule_free_average(x, y, z, beta1, err)
                                     : missing(be, "schedule_free_average", err);
}

kg_status kg_op_ema(const struct kg_backend *be, struct kg_vec avg, struct kg_vec w,
                    float eta, struct kg_err *err)
{
    if (!(eta >= 0.0f && eta <= 1.0f))
        return kg_fail(err, KG_EINVAL, "ema: eta %g, expected 0..1", (double)eta);
    KG_TRY(check_vec("ema", "avg", avg, avg.n, err));
    KG_TRY(check_vec("ema", "w", w, avg.n, err));
    return be->ema ? be->ema(avg, w, eta, err) : missing(be, "ema", err);
}

kg_status kg_op_add(const struct kg_backend *be, struct kg_vec y, struct kg_vec x,
                    struct kg_err *err)
{
    KG_TRY(check_vec("add", "y", y, y.n, err));
    KG_TRY(check_vec("add", "x", x, y.n, err));
    return be->add ? be->add(y, x, err) : missing(be, "add", err);
}

kg_status kg_op_scale(const struct kg_backend *be, struct kg_vec y, float factor,
                      struct kg_err *err)
{
    KG_TRY(check_vec("scale", "y", y, y.n, err));
    return be->scale ? be->scale(y, factor, err) : missing(be, "scale", err);
}

kg_status kg_op_sum_squares(const struct kg_backend *be, double *out, struct kg_vec x,
                            struct kg_vec minus, struct kg_err *err)
{
    KG_TRY(check_vec("sum_squares", "x", x, x.n, err));
    KG_TRY(check_vec_if("sum_squares", "minus", minus, x.n, err));
    return be->sum_squares ? be->sum_squares(out, x, minus, err)
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
