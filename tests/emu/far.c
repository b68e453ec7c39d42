/* The CPU with memory that the host cannot access: every test that runs on it checks what
 * a device requires of its callers.
 *
 * A buffer is accessible only during an operation that was given a view of it. Host
 * memory instead of backend memory is an error that names the operation. Calls from a
 * parallel region are refused, and concurrent calls wait.
 *
 * It computes nothing itself: an operation lends the buffers of its views to the CPU's
 * table and takes them back.
 */
#define _GNU_SOURCE
#include "emu/far.h"

#include "emu/pages.h"
#include "tensor/codes.h"

#include <omp.h>
#include <pthread.h>
#include <stdio.h>

/* recursive: a test that jumps out of a fault in an operation must not block the next */
static pthread_mutex_t busy = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static const struct kg_backend *cpu; /* computes */

/* ---- lending ---- */
static kg_status lend(const char *op, const void *const *views, size_t n,
                      struct kg_err *err)
{
    if (omp_in_parallel())
        return kg_fail(err, KG_ECONFLICT, "%s: called from a parallel region", op);
    for (size_t i = 0; i < n; i++)
        if (views[i] && !kg_pages_hold(views[i]))
            return kg_fail(err, KG_EINVAL,
                           "%s: operand %zu is not memory of the backend far", op, i);
    pthread_mutex_lock(&busy);
    kg_pages_lend(views, n);
    return KG_OK;
}

static void take_back(const void *const *views, size_t n)
{
    kg_pages_take_back(views, n);
    pthread_mutex_unlock(&busy);
}

/* The body of a slot: the CPU's call, and the backend memory among its arguments. */
#define LENDING(call, ...)                                                               \
    const void *const views[] = {__VA_ARGS__};                                           \
    const size_t n_views = sizeof views / sizeof *views;                                 \
    kg_status status;                                                                    \
                                                                                         \
    KG_TRY(lend(__func__, views, n_views, err));                                         \
    status = cpu->call;                                                                  \
    take_back(views, n_views);                                                           \
    return status

/* ---- the slots ---- */
static void describe(char *text, size_t bytes)
{
    int n = snprintf(text, bytes, "far: ");

    cpu->describe(text + n, bytes - (size_t)n);
}

static kg_status far_put(void *to, const void *from, uint64_t bytes, struct kg_err *err)
{
    LENDING(put(to, from, bytes, err), to);
}
static kg_status far_get(void *to, const void *from, uint64_t bytes, struct kg_err *err)
{
    LENDING(get(to, from, bytes, err), from);
}
static kg_status far_copy(void *to, const void *from, uint64_t bytes, struct kg_err *err)
{
    LENDING(copy(to, from, bytes, err), to, from);
}
static kg_status far_lend(int *result, int (*call)(void *arg, void *stream), void *arg,
                          const void *const *memory, size_t n, struct kg_err *err)
{
    KG_TRY(lend("far_lend", memory, n, err));
    *result = call(arg, NULL);
    take_back(memory, n);
    return KG_OK;
}
static kg_status far_zero(void *to, uint64_t bytes, struct kg_err *err)
{
    LENDING(zero(to, bytes, err), to);
}
static kg_status far_swap(void *a, void *b, uint64_t bytes, struct kg_err *err)
{
    LENDING(swap(a, b, bytes, err), a, b);
}
static kg_status far_matmul(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                            enum kg_matmul_kind kind, bool accumulate, struct kg_err *err)
{
    LENDING(matmul(c, a, b, kind, accumulate, err), c.data, a.data, b.data);
}
static kg_status far_matmul_two(struct kg_mat c, const struct kg_factors f[2],
                                enum kg_matmul_kind kind, bool accumulate,
                                struct kg_err *err)
{
    LENDING(matmul_two(c, f, kind, accumulate, err), c.data, f[0].a.data, f[0].b.data,
            f[1].a.data, f[1].b.data);
}
static kg_status far_embed(struct kg_mat x, struct kg_mat table, struct kg_ivec tokens,
                           struct kg_err *err)
{
    LENDING(embed(x, table, tokens, err), x.data, table.data, tokens.data);
}
static kg_status far_embed_bwd(struct kg_mat dtable, struct kg_mat dx,
                               struct kg_ivec tokens, struct kg_err *err)
{
    LENDING(embed_bwd(dtable, dx, tokens, err), dtable.data, dx.data, tokens.data);
}
static kg_status far_rmsnorm(struct kg_mat y, struct kg_vec inv, struct kg_mat x,
                             struct kg_vec w, float eps, struct kg_err *err)
{
    LENDING(rmsnorm(y, inv, x, w, eps, err), y.data, inv.data, x.data, w.data);
}
static kg_status far_rmsnorm_bwd(struct kg_mat dx, bool accumulate, struct kg_vec dw,
                                 struct kg_mat dy, struct kg_mat x, struct kg_vec w,
                                 struct kg_vec inv, struct kg_err *err)
{
    LENDING(rmsnorm_bwd(dx, accumulate, dw, dy, x, w, inv, err), dx.data, dw.data,
            dy.data, x.data, w.data, inv.data);
}
static kg_status far_layernorm(struct kg_mat y, struct kg_mat x, struct kg_vec w,
                               struct kg_vec b, float eps, struct kg_err *err)
{
    LENDING(layernorm(y, x, w, b, eps, err), y.data, x.data, w.data, b.data);
}
static kg_status far_gelu(struct kg_mat y, struct kg_mat x, struct kg_err *err)
{
    LENDING(gelu(y, x, err), y.data, x.data);
}
static kg_status far_scan(struct kg_mat c, struct kg_mat a, const struct kg_codes *m,
                          struct kg_err *err)
{
    LENDING(scan(c, a, m, err), c.data, a.data, m->data);
}
static kg_status far_bias(struct kg_mat y, struct kg_vec b, struct kg_err *err)
{
    LENDING(bias(y, b, err), y.data, b.data);
}
static kg_status far_bias_bwd(struct kg_vec db, struct kg_mat dy, struct kg_err *err)
{
    LENDING(bias_bwd(db, dy, err), db.data, dy.data);
}
static kg_status far_rope(struct kg_mat x, const struct kg_turn *by, bool inverse,
                          struct kg_err *err)
{
    LENDING(rope(x, by, inverse, err), x.data, by->pos.data, by->inv_freq.data);
}
static kg_status far_swiglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                            struct kg_err *err)
{
    LENDING(swiglu(h, gate, up, err), h.data, gate.data, up.data);
}
static kg_status far_swiglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                                struct kg_mat gate, struct kg_mat up, struct kg_err *err)
{
    LENDING(swiglu_bwd(dgate, dup, dh, gate, up, err), dgate.data, dup.data, dh.data,
            gate.data, up.data);
}
static kg_status far_geglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                           struct kg_err *err)
{
    LENDING(geglu(h, gate, up, err), h.data, gate.data, up.data);
}
static kg_status far_geglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                               struct kg_mat gate, struct kg_mat up, struct kg_err *err)
{
    LENDING(geglu_bwd(dgate, dup, dh, gate, up, err), dgate.data, dup.data, dh.data,
            gate.data, up.data);
}
static kg_status far_cast(struct kg_mat dst, struct kg_mat src, struct kg_err *err)
{
    LENDING(cast(dst, src, err), dst.data, src.data);
}
static kg_status far_matmul_onto(struct kg_mat c, struct kg_mat old, struct kg_mat a,
                                 struct kg_mat b, struct kg_err *err)
{
    KG_TRY(far_cast(c, old, err)); /* the CPU lacks this slot */
    return far_matmul(c, a, b, KG_MATMUL_NT, true, err);
}
static kg_status far_scatter_rows(struct kg_mat pool, struct kg_ivec rows,
                                  struct kg_mat src, struct kg_err *err)
{
    LENDING(scatter_rows(pool, rows, src, err), pool.data, rows.data, src.data);
}
static kg_status far_gather_rows(struct kg_mat dst, struct kg_mat src,
                                 struct kg_ivec rows, struct kg_err *err)
{
    LENDING(gather_rows(dst, src, rows, err), dst.data, src.data, rows.data);
}
static kg_status far_sum_rows(struct kg_mat dst, struct kg_mat src, struct kg_ivec ends,
                              struct kg_ivec places, struct kg_err *err)
{
    LENDING(sum_rows(dst, src, ends, places, err), dst.data, src.data, ends.data,
            places.data);
}
static kg_status far_route(const struct kg_route *r, struct kg_mat logits,
                           struct kg_ivec given, struct kg_err *err)
{
    LENDING(route(r, logits, given, err), r->p.data, r->weight.data, r->ids, r->place,
            r->token, r->first, logits.data, given.data);
}
static kg_status far_route_bwd(struct kg_mat dlogits, const struct kg_route *r,
                               struct kg_mat dweight, struct kg_vec dp,
                               struct kg_err *err)
{
    LENDING(route_bwd(dlogits, r, dweight, dp, err), dlogits.data, r->p.data,
            r->weight.data, r->ids, dweight.data, dp.data);
}
static kg_status far_matmul_groups(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                                   const struct kg_groups *g, enum kg_matmul_kind kind,
                                   bool accumulate, struct kg_err *err)
{
    LENDING(matmul_groups(c, a, b, g, kind, accumulate, err), c.data, a.data, b.data,
            g->first);
}
static kg_status far_combine(struct kg_mat y, struct kg_mat x, struct kg_mat weight,
                             struct kg_ivec place, bool accumulate, struct kg_err *err)
{
    LENDING(combine(y, x, weight, place, accumulate, err), y.data, x.data, weight.data,
            place.data);
}
static kg_status far_combine_bwd(struct kg_mat dweight, struct kg_mat dx, struct kg_mat x,
                                 struct kg_mat weight, struct kg_ivec place,
                                 struct kg_err *err)
{
    LENDING(combine_bwd(dweight, dx, x, weight, place, err), dweight.data, dx.data,
            x.data, weight.data, place.data);
}
static kg_status far_sigmoid(struct kg_vec y, struct kg_vec x, struct kg_err *err)
{
    LENDING(sigmoid(y, x, err), y.data, x.data);
}
static kg_status far_sigmoid_bwd(struct kg_vec dx, struct kg_vec dy, struct kg_vec y,
                                 struct kg_err *err)
{
    LENDING(sigmoid_bwd(dx, dy, y, err), dx.data, dy.data, y.data);
}
static kg_status far_attention(struct kg_mat o, struct kg_vec lse,
                               const struct kg_attn *a, struct kg_err *err)
{
    LENDING(attention(o, lse, a, err), o.data, lse.data, a->q.data, a->k.data, a->v.data,
            a->seqs, a->blocks.data);
}
static kg_status far_attention_bwd(struct kg_mat dq, struct kg_mat dk, struct kg_mat dv,
                                   struct kg_mat dout, struct kg_mat o, struct kg_vec lse,
                                   const struct kg_attn *a, struct kg_err *err)
{
    LENDING(attention_bwd(dq, dk, dv, dout, o, lse, a, err), dq.data, dk.data, dv.data,
            dout.data, o.data, lse.data, a->q.data, a->k.data, a->v.data, a->seqs);
}
static kg_status far_head(const struct kg_head_out *out, const struct kg_head *h,
                          struct kg_err *err)
{
    LENDING(head(out, h, err), h->hidden.data, h->weight.data,
            h->anchor ? h->anchor->hidden.data : NULL,
            h->anchor ? h->anchor->weight.data : NULL);
}
static kg_status far_head_bwd(const struct kg_head_grad *g, const struct kg_head *h,
                              struct kg_err *err)
{
    LENDING(head_bwd(g, h, err), g->dhidden.data, g->dweight.data, h->hidden.data,
            h->weight.data, h->anchor ? h->anchor->hidden.data : NULL,
            h->anchor ? h->anchor->weight.data : NULL);
}
static kg_status far_adamw(struct kg_vec w, struct kg_mat m, struct kg_mat v,
                           struct kg_vec g, const struct kg_adamw *a, struct kg_err *err)
{
    LENDING(adamw(w, m, v, g, a, err), w.data, m.data, v.data, g.data,
            a->n_rounded > 0 ? a->rounded->to : NULL);
}
static kg_status far_schedule_free(struct kg_vec y, struct kg_vec z, struct kg_mat v,
                                   struct kg_vec g, const struct kg_adamw *a,
                                   struct kg_err *err)
{
    LENDING(schedule_free(y, z, v, g, a, err), y.data, z.data, v.data, g.data,
            a->n_rounded > 0 ? a->rounded->to : NULL);
}
static kg_status far_schedule_free_average(struct kg_vec x, struct kg_vec y,
                                           struct kg_vec z, float beta1,
                                           struct kg_err *err)
{
    LENDING(schedule_free_average(x, y, z, beta1, err), x.data, y.data, z.data);
}
static kg_status far_ema(struct kg_vec avg, struct kg_vec w, float eta,
                         struct kg_err *err)
{
    LENDING(ema(avg, w, eta, err), avg.data, w.data);
}
static kg_status far_add(struct kg_vec y, struct kg_vec x, struct kg_err *err)
{
    LENDING(add(y, x, err), y.data, x.data);
}
static kg_status far_scale(struct kg_vec y, float factor, struct kg_err *err)
{
    LENDING(scale(y, factor, err), y.data);
}
static kg_status far_sum_squares(double *out, struct kg_vec x, struct kg_vec minus,
                                 struct kg_err *err)
{
    LENDING(sum_squares(out, x, minus, err), x.data, minus.data);
}
static double far_peak(enum kg_dtype t, double flops) { return cpu->peak(t, flops); }

/* Weights have the CPU's layout. */
static struct kg_backend table = {
    .name = "far",
    .describe = describe,
    .one_caller = true,
    .alloc = kg_pages_alloc,
    .free = kg_pages_free,
    .memory = kg_pages_free_bytes,
    .put = far_put,
    .get = far_get,
    .lend = far_lend,
    .copy = far_copy,
    .zero = far_zero,
    .swap = far_swap,
    .matmul = far_matmul,
    .matmul_onto = far_matmul_onto,
    .matmul_two = far_matmul_two,
    .embed = far_embed,
    .embed_bwd = far_embed_bwd,
    .rmsnorm = far_rmsnorm,
    .rmsnorm_bwd = far_rmsnorm_bwd,
    .layernorm = far_layernorm,
    .gelu = far_gelu,
    .scan = far_scan,
    .bias = far_bias,
    .bias_bwd = far_bias_bwd,
    .rope = far_rope,
    .swiglu = far_swiglu,
    .swiglu_bwd = far_swiglu_bwd,
    .geglu = far_geglu,
    .geglu_bwd = far_geglu_bwd,
    .cast = far_cast,
    .scatter_rows = far_scatter_rows,
    .gather_rows = far_gather_rows,
    .sum_rows = far_sum_rows,
    .route = far_route,
    .route_bwd = far_route_bwd,
    .matmul_groups = far_matmul_groups,
    .combine = far_combine,
    .combine_bwd = far_combine_bwd,
    .sigmoid = far_sigmoid,
    .sigmoid_bwd = far_sigmoid_bwd,
    .attention = far_attention,
    .attention_bwd = far_attention_bwd,
    .head = far_head,
    .head_bwd = far_head_bwd,
    .adamw = far_adamw,
    .schedule_free = far_schedule_free,
    .schedule_free_average = far_schedule_free_average,
    .ema = far_ema,
    .add = far_add,
    .scale = far_scale,
    .sum_squares = far_sum_squares,
    .peak = far_peak,
};

kg_status kg_far_open(const struct kg_backend **be, struct kg_err *err)
{
    KG_TRY(kg_backend_open(&cpu, "cpu", err));
    table.weights = cpu->weights;
    *be = &table;
    return KG_OK;
}
