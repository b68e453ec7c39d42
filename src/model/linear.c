/* Linear layers: the one place where forward and backward use the weights of products.
 *
 * forward.c and backward.c name the weight and the buffers; this file computes. So only
 * this file handles adapters and frozen weights.
 *
 * The one idea of adapters: A and B stay separate from W wherever a model is read, so
 * sampler and trainer run the same operations, and W never changes. s multiplies the
 * narrow side, where it costs N r products and serves the gradients of A and B too.
 *
 * The products of W and of one adapter are one operation, which writes y once; its bits
 * equal those of the two products, summed in fp32.
 *
 * A pack may hold rows of several adapters on one base. W is multiplied by all rows at
 * once, A and B by their own rows. A row's bits do not depend on its neighbours, so they
 * are those of a pack with one adapter. But if some rows have no adapter, each run of
 * rows is multiplied by W separately: rows with an adapter are summed in fp32 and rounded
 * once, and the sums of rows without one may have another order (products choose a plan
 * by the type that they write).
 *
 * Experts have one W, A and B each, and a row is multiplied by those of the expert that
 * it was gathered for; all else is the same.
 */
#include "model/acts_internal.h"

#include <assert.h>

/* One matrix for all rows, or one for each expert of a route. */
struct matrices {
    const struct kg_param *c;     /* expert 0's */
    const struct kg_param *next;  /* expert 1's; c if there is only one matrix */
    const struct kg_route *route; /* NULL: one for all rows */
};

static struct matrices one(const struct kg_param *c)
{
    return (struct matrices){c, c, NULL};
}

static struct matrices of_each(struct kg_param *of_0, const struct kg_route *r)
{
    return (struct matrices){of_0, r->n_experts > 1 ? kg_expert(of_0, 1) : of_0, r};
}

/* The factors A and B of their adapters. */
static struct matrices a_of(struct matrices w)
{
    return (struct matrices){w.c->adapter->a, w.next->adapter->a, w.route};
}

static struct matrices b_of(struct matrices w)
{
    return (struct matrices){w.c->adapter->b, w.next->adapter->b, w.route};
}

/* y (=|+=) x C^T or, NN, x C */
static kg_status multiply(const struct kg_walk *p, struct kg_mat y, struct kg_mat x,
                          struct matrices m, enum kg_matmul_kind kind, bool accumulate,
                          struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;

    if (!m.route)
        return kg_op_matmul(be, y, x, m.c->compute, kind, accumulate, err);
    struct kg_groups g = {m.route->first, m.route->n_experts,
                          (const char *)m.next->compute.data -
                              (const char *)m.c->compute.data};
    return kg_op_matmul_groups(be, y, x, m.c->compute, &g, kind, accumulate, err);
}

/* dC += dy^T x, if C is trained */
static kg_status add_grad(const struct kg_walk *p, struct kg_grads grads,
                          struct matrices m, struct kg_mat dy, struct kg_mat x,
                          struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    const struct kg_mat dc = kg_grad_mat(grads, m.c);

    if (m.c->offset < 0)
        return KG_OK;
    if (!m.route)
        return kg_op_matmul(be, dc, dy, x, KG_MATMUL_TN, true, err);
    struct kg_groups g = {m.route->first, m.route->n_experts,
                          (m.next->offset - m.c->offset) * (int64_t)sizeof(float)};
    return kg_op_matmul_groups(be, dc, dy, x, &g, KG_MATMUL_TN, true, err);
}

/* Where y is summed in fp32: y itself, or scratch. */
static struct kg_mat sum_of(const struct kg_walk *p, struct kg_mat y)
{
    return y.dtype == KG_F32 ? y : kg_mat(p->acts->wide.data, KG_F32, y.rows, y.cols);
}

static kg_status settle(const struct kg_walk *p, struct kg_mat y, struct kg_mat sum,
                        struct kg_err *err)
{
    return y.data == sum.data ? KG_OK : kg_op_cast(p->m->backend, y, sum, err);
}

/* y (=|+=) x W^T + t B^T or, NN, x W + t A: rounded once */
static kg_status multiply_two(const struct kg_walk *p, struct kg_mat y,
                              const struct kg_factors f[2], enum kg_matmul_kind kind,
                              bool accumulate, struct kg_err *err)
{
    return kg_op_matmul_two(p->m->backend, y, f, sum_of(p, y), kind, accumulate, err);
}

/* *t = s (x C^T) or, NN, s (x C): summed and scaled in fp32, rounded once.
 * of: the adapter of C */
static kg_status narrow(struct kg_mat *t, const struct kg_walk *p,
                        const struct kg_adapter *of, struct kg_mat x, struct matrices c,
                        enum kg_matmul_kind kind, struct kg_err *err)
{
    const int64_t n = x.rows, r = of->a->rows;
    const struct kg_mat wide = kg_mat(p->acts->low_wide.data, KG_F32, n, r);

    KG_TRY(multiply(p, wide, x, c, kind, false, err));
    KG_TRY(kg_op_scale(p->m->backend, kg_vec(wide.data, n * r), of->scale, err));
    *t = kg_mat(p->acts->low.data, p->m->ct, n, r);
    return settle(p, *t, wide, err);
}

/* ---- forward ---- */
/* The adapter of w in the rows of a run; NULL: none. */
static const struct kg_adapter *
beside(const struct kg_walk *p, const struct kg_mix_run *run, const struct kg_param *w)
{
    return run->model->params[w - p->m->params].adapter;
}

/* Number of runs of the pack with an adapter of w. */
static int32_t runs_beside(const struct kg_walk *p, const struct kg_param *w)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->pack->n_runs; i++)
        n += beside(p, &p->acts->runs[i], w) != NULL;
    return n;
}

/* sum += t B^T, in the rows of a run */
static kg_status add_run(const struct kg_walk *p, const struct kg_mix_run *run,
                         struct kg_mat sum, struct kg_mat x, const struct kg_param *w,
                         struct kg_err *err)
{
    const struct kg_adapter *c = beside(p, run, w);
    struct kg_mat t;

    if (!c)
        return KG_OK;
    KG_TRY(narrow(&t, p, c, kg_mat_rows(x, run->first, run->n), one(c->a), KG_MATMUL_NT,
                  err));
    return multiply(p, kg_mat_rows(sum, run->first, run->n), t, one(c->b), KG_MATMUL_NT,
                    true, err);
}

/* y in the rows of one run: W and its adapter in one operation. */
static kg_status linear_run(const struct kg_walk *p, const struct kg_mix_run *run,
                            struct kg_mat y, struct kg_mat x, const struct kg_param *w,
                            bool accumulate, struct kg_err *err)
{
    const struct kg_mat own = kg_mat_rows(y, run->first, run->n);
    const struct kg_mat from = kg_mat_rows(x, run->first, run->n);
    const struct kg_adapter *c = beside(p, run, w);
    struct kg_mat t;

    if (!c)
        return multiply(p, own, from, one(w), KG_MATMUL_NT, accumulate, err);
    KG_TRY(narrow(&t, p, c, from, one(c->a), KG_MATMUL_NT, err));
    const struct kg_factors f[2] = {{from, w->compute}, {t, c->b->compute}};
    return multiply_two(p, own, f, KG_MATMUL_NT, accumulate, err);
}

kg_status kg_linear(const struct kg_walk *p, struct kg_mat y, struct kg_mat x,
                    const struct kg_param *w, bool accumulate, struct kg_err *err)
{
    const int32_t n = p->pack->n_runs, adapted = runs_beside(p, w);
    const struct kg_mat sum = adapted > 0 ? sum_of(p, y) : y;

    if (adapted > 0 && (adapted < n || n == 1)) {
        for (int32_t i = 0; i < n; i++)
            KG_TRY(linear_run(p, &p->acts->runs[i], y, x, w, accumulate, err));
        return KG_OK;
    }
    KG_TRY(multiply(p, sum, x, one(w), KG_MATMUL_NT, accumulate, err));
    for (int32_t i = 0; i < adapted; i++)
        KG_TRY(add_run(p, &p->acts->runs[i], sum, x, w, err));
    return settle(p, y, sum, err);
}

kg_status kg_linear_onto(const struct kg_walk *p, struct kg_mat y, struct kg_mat old,
                         struct kg_mat x, const struct kg_param *w, struct kg_err *err)
{
    const bool apart = y.data != old.data;

    if (apart && runs_beside(p, w) == 0)
        return kg_op_matmul_onto(p->m->backend, y, old, x, w->compute, err);
    if (apart)
        KG_TRY(kg_op_cast(p->m->backend, y, old, err));
    return kg_linear(p, y, x, w, true, err);
}

/* Merges `next` into *to, if their weights (layout KG_ROWS) follow each other in memory
 * and their results are adjacent columns.   returns whether it did */
static bool join(struct kg_product *to, const struct kg_product *next)
{
    const struct kg_mat right = kg_mat_cols(to->c, to->c.cols, next->c.cols);

    if (to->b.layout != KG_ROWS || right.data != next->c.data ||
        right.dtype != next->c.dtype || right.stride != next->c.stride ||
        kg_mat_rows(to->b, to->b.rows, 0).data != next->b.data)
        return false;
    to->b.rows += next->b.rows;
    to->c.cols += next->c.cols;
    return true;
}

/* kg_linear_shared in rows [first, first+n_rows), without adapters. */
static kg_status multiply_shared(const struct kg_walk *p, int n, const struct kg_mat *y,
                                 struct kg_mat x, const struct kg_param *const *w,
                                 int64_t first, int64_t n_rows, struct kg_err *err)
{
    struct kg_product to[KG_PRODUCTS_AT_ONCE];
    int last = -1;

    assert(n <= KG_PRODUCTS_AT_ONCE);
    for (int j = 0; j < n; j++) {
        to[++last] = (struct kg_product){kg_mat_rows(y[j], first, n_rows), w[j]->compute};
        last -= last > 0 && join(&to[last - 1], &to[last]);
    }
    return kg_op_matmul_shared(p->m->backend, to, last + 1, kg_mat_rows(x, first, n_rows),
                               err);
}

/* Whether some of n weights have adapters in a run. */
static bool any_beside(const struct kg_walk *p, const struct kg_mix_run *run, int n,
                       const struct kg_param *const *w)
{
    for (int j = 0; j < n; j++)
        if (beside(p, run, w[j]))
            return true;
    return false;
}

kg_status kg_linear_shared(const struct kg_walk *p, int n, const struct kg_mat *y,
                           struct kg_mat x, const struct kg_param *const *w,
                           struct kg_err *err)
{
    const int32_t runs = p->pack->n_runs;
    int32_t adapted = 0;

    for (int32_t i = 0; i < runs; i++)
        adapted += any_beside(p, &p->acts->runs[i], n, w);
    if (adapted == 0)
        return multiply_shared(p, n, y, x, w, 0, x.rows, err);
    for (int j = 0; j < n && adapted == runs; j++)
        KG_TRY(kg_linear(p, y[j], x, w[j], false, err));
    for (int32_t i = 0; i < runs && adapted < runs; i++) {
        const struct kg_mix_run *run = &p->acts->runs[i];
        if (!any_beside(p, run, n, w))
            KG_TRY(multiply_shared(p, n, y, x, w, run->first, run->n, err));
        for (int j = 0; j < n && any_beside(p, run, n, w); j++)
            KG_TRY(linear_run(p, run, y[j], x, w[j], false, err));
    }
    return KG_OK;
}

kg_status kg_linear_experts(const struct kg_walk *p, const struct kg_route *r,
                            struct kg_mat y, struct kg_mat x, struct kg_param *of_0,
                            struct kg_err *err)
{
    const struct matrices w = of_each(of_0, r);
    struct kg_mat sum, t;

    if (!of_0->adapter)
        return multiply(p, y, x, w, KG_MATMUL_NT, false, err);
    sum = sum_of(p, y);
    KG_TRY(multiply(p, sum, x, w, KG_MATMUL_NT, false, err));
    KG_TRY(narrow(&t, p, w.c->adapter, x, a_of(w), KG_MATMUL_NT, err));
    KG_TRY(multiply(p, sum, t, b_of(w), KG_MATMUL_NT, true, err));
    return settle(p, y, sum, err);
}

/* ---- backward ---- */
/* dB += dy^T t;   dA += u^T x;   *u = s (dy B) */
static kg_status adapter_bwd(struct kg_mat *u, const struct kg_walk *p,
                             struct kg_grads grads, struct matrices w, struct kg_mat dy,
                             struct kg_mat x, struct kg_err *err)
{
    const struct kg_adapter *c = w.c->adapter;
    struct kg_mat t;

    KG_TRY(narrow(&t, p, c, x, a_of(w), KG_MATMUL_NT, err));
    KG_TRY(add_grad(p, grads, b_of(w), dy, t, err));
    KG_TRY(narrow(u, p, c, dy, b_of(w), KG_MATMUL_NN, err)); /* overwrites t */
    return add_grad(p, grads, a_of(w), *u, x, err);
}

static kg_status grads_alone(const struct kg_walk *p, struct kg_grads grads,
                             struct matrices w, struct kg_mat dy, struct kg_mat x,
                             struct kg_err *err)
{
    struct kg_mat u;

    KG_TRY(add_grad(p, grads, w, dy, x, err));
    return w.c->adapter ? adapter_bwd(&u, p, grads, w, dy, x, err) : KG_OK;
}

kg_status kg_linear_bwd(const struct kg_walk *p, struct kg_grads grads,
                        const struct kg_param *w, struct kg_mat dy, struct kg_mat x,
                        struct kg_mat dx, bool accumulate, struct kg_err *err)
{
    struct kg_mat u;

    if (!dx.data)
        return grads_alone(p, grads, one(w), dy, x, err);
    KG_TRY(add_grad(p, grads, one(w), dy, x, err));
    if (!w->adapter)
        return multiply(p, dx, dy, one(w), KG_MATMUL_NN, accumulate, err);
    KG_TRY(adapter_bwd(&u, p, grads, one(w), dy, x, err)); /* x may be dx */
    const struct kg_factors f[2] = {{dy, w->compute}, {u, w->adapter->a->compute}};
    return multiply_two(p, dx, f, KG_MATMUL_NN, accumulate, err);
}

/* dx (=|+=) dy W + u A, in fp32 */
static kg_status back_alone(const struct kg_walk *p, struct matrices w, struct kg_mat dx,
                            struct kg_mat dy, bool accumulate, struct kg_err *err)
{
    struct kg_mat u;

    KG_TRY(multiply(p, dx, dy, w, KG_MATMUL_NN, accumulate, err));
    if (!w.c->adapter)
        return KG_OK;
    KG_TRY(narrow(&u, p, w.c->adapter, dy, b_of(w), KG_MATMUL_NN, err));
    return multiply(p, dx, u, a_of(w), KG_MATMUL_NN, true, err);
}

kg_status kg_linear_grads(const struct kg_walk *p, const struct kg_route *r,
                          struct kg_grads grads, struct kg_param *w, struct kg_mat dy,
                          struct kg_mat x, struct kg_err *err)
{
    return grads_alone(p, grads, r ? of_each(w, r) : one(w), dy, x, err);
}

kg_status kg_linear_back(const struct kg_walk *p, const struct kg_route *r,
                         struct kg_param *w, struct kg_mat dx, struct kg_mat dy,
                         bool accumulate, struct kg_err *err)
{
    return back_alone(p, r ? of_each(w, r) : one(w), dx, dy, accumulate, err);
}

/* ---- workspace ---- */
static uint64_t product_bytes(const struct kg_model *m, const struct kg_param *p)
{
    int64_t rows = p->rows;
    if (!p->is_product || (p == m->embed && p != m->head))
        return 0;
    if (p == m->head) {
        int64_t strip = KG_HEAD_STRIP_TILES * kg_head_tile_width(rows);
        rows = rows < strip ? rows : strip;
    }
    return kg_product_room(rows, p->cols);
}

/* Workspace of joined products: of q, k and v, or of gate and up. The bf16 results of
 * gate and up take the room of one fp32 result, so only the second weight adds room. */
static uint64_t joined_bytes(const struct kg_model *m, const struct kg_layer_params *w)
{
    const struct kg_param *g = w->wgate ? w->wgate : w->sgate;
    uint64_t qkv, gates = 0;
    if (!kg_joins(m) || m->ct != KG_BF16)
        return 0;
    qkv = kg_product_room(w->wq->rows + w->wk->rows + w->wv->rows, w->wq->cols);
    if (g)
        gates = kg_product_room(g->rows, g->cols) +
                sizeof(uint16_t) * (uint64_t)(g->rows * g->cols);
    return qkv > gates ? qkv : gates;
}

uint64_t kg_model_product_bytes(const struct kg_model *m)
{
    uint64_t most = 0;
    for (size_t i = 0; m->ct == KG_BF16 && i < m->n_params; i++) {
        uint64_t bytes = product_bytes(m, &m->params[i]);
        most = bytes > most ? bytes : most;
    }
    for (int32_t l = 0; l < m->config.layers; l++) {
        uint64_t bytes = joined_bytes(m, &m->layers[l]);
        most = bytes > most ? bytes : most;
    }
    return most;
}
