/* Linear layers: the one place where forward and backward meet the weights of products.
 *
 * forward.c and backward.c say which weight and which buffers; what is made of them is
 * said here, so that what stands beside a weight, or that it is frozen, is known nowhere
 * else.
 *
 * The one idea of adapters: A and B stay apart from W wherever a model is read, so
 * sampler and trainer make the same operations, and W never changes. s goes to the narrow
 * side, where it costs N r products and serves the gradients of A and B too.
 *
 * A pack may hold rows of several adapters on one base. W is multiplied by all of them at
 * once, A and B by the rows whose they are; as no row's bits depend on its neighbours
 * each has those of a pack of its own.
 */
#include "model/acts_internal.h"

/* y as a sum in fp32: itself, or room for it. */
static struct kg_mat sum_of(const struct kg_walk *p, struct kg_mat y)
{
    return y.dtype == KG_F32 ? y : kg_mat(p->acts->wide.data, KG_F32, y.rows, y.cols);
}

static kg_status settle(const struct kg_walk *p, struct kg_mat y, struct kg_mat sum,
                        struct kg_err *err)
{
    return y.data == sum.data ? KG_OK : kg_op_cast(p->m->backend, y, sum, err);
}

/* *t = s (x C^T) or, NN, s (x C), on the narrow side: fp32, times s, rounded once.
 * l: what adapters C is of */
static kg_status narrow(struct kg_mat *t, const struct kg_walk *p,
                        const struct kg_lora *l, struct kg_mat x,
                        const struct kg_param *c, enum kg_matmul_kind kind,
                        struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    const int64_t n = x.rows, r = l->rank;
    const struct kg_mat wide = kg_mat(p->acts->low_wide.data, KG_F32, n, r);

    KG_TRY(kg_op_matmul(be, wide, x, c->compute, kind, false, err));
    KG_TRY(kg_op_scale(be, kg_vec(wide.data, n * r), kg_lora_scale(l), err));
    *t = kg_mat(p->acts->low.data, p->m->ct, n, r);
    return settle(p, *t, wide, err);
}

/* What the rows of a run have beside w; NULL: nothing. */
static const struct kg_adapter *beside(const struct kg_walk *p, const struct kg_run *run,
                                       const struct kg_param *w)
{
    return run->model->params[w - p->m->params].adapter;
}

/* Whether any rows of the pack have something beside w. */
static bool is_adapted(const struct kg_walk *p, const struct kg_param *w)
{
    for (int32_t i = 0; i < p->pack->n_runs; i++)
        if (beside(p, &p->acts->runs[i], w))
            return true;
    return false;
}

/* sum += t B^T, in the rows of a run */
static kg_status add_run(const struct kg_walk *p, const struct kg_run *run,
                         struct kg_mat sum, struct kg_mat x, const struct kg_param *w,
                         struct kg_err *err)
{
    const struct kg_adapter *c = beside(p, run, w);
    struct kg_mat t;

    if (!c)
        return KG_OK;
    KG_TRY(narrow(&t, p, &run->model->lora, kg_mat_rows(x, run->first, run->n), c->a,
                  KG_MATMUL_NT, err));
    return kg_op_matmul(p->m->backend, kg_mat_rows(sum, run->first, run->n), t,
                        c->b->compute, KG_MATMUL_NT, true, err);
}

kg_status kg_linear(const struct kg_walk *p, struct kg_mat y, struct kg_mat x,
                    const struct kg_param *w, bool accumulate, struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    struct kg_mat sum;

    if (!is_adapted(p, w))
        return kg_op_matmul(be, y, x, w->compute, KG_MATMUL_NT, accumulate, err);
    sum = sum_of(p, y);
    KG_TRY(kg_op_matmul(be, sum, x, w->compute, KG_MATMUL_NT, accumulate, err));
    for (int32_t i = 0; i < p->pack->n_runs; i++)
        KG_TRY(add_run(p, &p->acts->runs[i], sum, x, w, err));
    return settle(p, y, sum, err);
}

/* dB += dy^T t;   dA += u^T x;   *u = s (dy B) */
static kg_status adapter_bwd(struct kg_mat *u, const struct kg_walk *p, float *grads,
                             const struct kg_adapter *w, struct kg_mat dy,
                             struct kg_mat x, struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    struct kg_mat t;

    KG_TRY(narrow(&t, p, &p->m->lora, x, w->a, KG_MATMUL_NT, err));
    KG_TRY(kg_op_matmul(be, kg_grad_mat(grads, w->b), dy, t, KG_MATMUL_TN, true, err));
    KG_TRY(
        narrow(u, p, &p->m->lora, dy, w->b, KG_MATMUL_NN, err)); /* in the place of t */
    return kg_op_matmul(be, kg_grad_mat(grads, w->a), *u, x, KG_MATMUL_TN, true, err);
}

kg_status kg_linear_bwd(const struct kg_walk *p, float *grads, const struct kg_param *w,
                        struct kg_mat dy, struct kg_mat x, struct kg_mat dx,
                        bool accumulate, struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;
    struct kg_mat sum, u;

    if (w->offset >= 0)
        KG_TRY(kg_op_matmul(be, kg_grad_mat(grads, w), dy, x, KG_MATMUL_TN, true, err));
    if (!w->adapter)
        return kg_op_matmul(be, dx, dy, w->compute, KG_MATMUL_NN, accumulate, err);
    KG_TRY(adapter_bwd(&u, p, grads, w->adapter, dy, x, err)); /* x may be dx */
    sum = sum_of(p, dx);
    KG_TRY(kg_op_matmul(be, sum, dy, w->compute, KG_MATMUL_NN, accumulate, err));
    KG_TRY(kg_op_matmul(be, sum, u, w->adapter->a->compute, KG_MATMUL_NN, true, err));
    return settle(p, dx, sum, err);
}
