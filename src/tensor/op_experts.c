/* The operations of experts, with their checks; op.c and op_rows.c have the others. */
#include "tensor/op_internal.h"

const char *kg_experts_missing(const struct kg_backend *be)
{
    const struct {
        bool there;
        const char *name;
    } slots[] = {
        {be->route, "route"},
        {be->route_bwd, "route_bwd"},
        {be->matmul_groups, "matmul_groups"},
        {be->combine, "combine"},
        {be->combine_bwd, "combine_bwd"},
        {be->sigmoid, "sigmoid"},
        {be->sigmoid_bwd, "sigmoid_bwd"},
    };
    for (size_t i = 0; be->matmul && i < sizeof slots / sizeof *slots; i++)
        if (!slots[i].there)
            return slots[i].name;
    return NULL;
}

/* ---- routes ---- */
static kg_status check_route(const char *op, const struct kg_route *r, int64_t tokens,
                             struct kg_err *err)
{
    if (r->n_experts < 1 || r->n_experts > KG_MAX_EXPERTS || r->k < 1 ||
        r->k > r->n_experts)
        return kg_fail(err, KG_ESHAPE,
                       "%s: %d of %d experts, expected 1 or more of at most %d", op,
                       (int)r->k, (int)r->n_experts, KG_MAX_EXPERTS);
    if (tokens * r->k > INT32_MAX)
        return kg_fail(err, KG_ESHAPE,
                       "%s: %lld tokens with %d experts each, expected at "
                       "most %d pairs",
                       op, (long long)tokens, (int)r->k, INT32_MAX);
    if (!r->ids || !r->place || !r->token || !r->first)
        return kg_fail(err, KG_EINVAL, "%s: the route has no memory", op);
    KG_TRY(check(op, "p", r->p, tokens, r->n_experts, F32, err));
    return check(op, "weight", r->weight, tokens, r->k, F32, err);
}

/* The given ids of one token, from index i on. */
static kg_status check_given(struct kg_ivec given, int64_t i, const struct kg_route *r,
                             struct kg_err *err)
{
    for (int64_t j = i; j < i + r->k; j++)
        if (given.data[j] < 0 || given.data[j] >= r->n_experts)
            return kg_fail(err, KG_EINVAL, "route: given[%lld] is %d, expected 0..%d",
                           (long long)j, (int)given.data[j], (int)r->n_experts - 1);
    return KG_OK;
}

kg_status kg_op_route(const struct kg_backend *be, const struct kg_route *r,
                      struct kg_mat logits, struct kg_ivec given, struct kg_err *err)
{
    const char *op = "route";
    KG_TRY(check(op, "logits", logits, ANY, r->n_experts, F32, err));
    KG_TRY(check_route(op, r, logits.rows, err));
    if (given.data)
        KG_TRY(check_length(op, "given", given.data, given.n, logits.rows * r->k, err));
    for (int64_t i = 0; given.data && be->host_memory && i < given.n; i += r->k)
        if (given.data[i] != -1)
            KG_TRY(check_given(given, i, r, err));
    return be->route ? be->route(r, logits, given, err) : missing(be, op, err);
}

kg_status kg_op_route_bwd(const struct kg_backend *be, struct kg_mat dlogits,
                          const struct kg_route *r, struct kg_mat dweight,
                          struct kg_vec dp, struct kg_err *err)
{
    const char *op = "route_bwd";
    KG_TRY(check(op, "dweight", dweight, ANY, r->k, F32, err));
    KG_TRY(check_route(op, r, dweight.rows, err));
    KG_TRY(check(op, "dlogits", dlogits, dweight.rows, r->n_experts, F32, err));
    KG_TRY(check_vec_if(op, "dp", dp, r->n_experts, err));
    return be->route_bwd ? be->route_bwd(dlogits, r, dweight, dp, err)
                         : missing(be, op, err);
}

/* ---- products ---- */
static kg_status check_groups(const struct kg_backend *be, const char *op,
                              const struct kg_groups *g, int64_t rows, struct kg_err *err)
{
    if (g->n < 1 || g->n > KG_MAX_EXPERTS || !g->first)
        return kg_fail(err, KG_ESHAPE,
                       "%s: found %d experts, expected 1 to %d and a non-NULL `first`",
                       op, (int)g->n, KG_MAX_EXPERTS);
    if (!be->host_memory)
        return KG_OK;
    for (int32_t e = 0; e < g->n; e++)
        if (g->first[e] < 0 || g->first[e + 1] < g->first[e] || g->first[e + 1] > rows)
            return kg_fail(err, KG_ESHAPE,
                           "%s: expert %d has places %d..%d, expected within %lld rows",
                           op, (int)e, (int)g->first[e], (int)g->first[e + 1] - 1,
                           (long long)rows);
    return KG_OK;
}

kg_status kg_op_matmul_groups(const struct kg_backend *be, struct kg_mat c,
                              struct kg_mat a, struct kg_mat b, const struct kg_groups *g,
                              enum kg_matmul_kind kind, bool accumulate,
                              struct kg_err *err)
{
    static const char *const names[] = {"matmul_groups NT", "matmul_groups NN",
                                        "matmul_groups TN"};
    const char *op = names[kind];
    const bool tn = kind == KG_MATMUL_TN;
    KG_TRY(check(op, "a", a, ANY, ANY, CT, err));
    KG_TRY(check(op, "b", b, tn || kind == KG_MATMUL_NN ? (tn ? a.rows : a.cols) : ANY,
                 kind == KG_MATMUL_NT ? a.cols : ANY,
                 1u << a.dtype | (tn ? 0 : panels(be)), err));
    KG_TRY(check(op, "c", c, tn ? a.cols : a.rows, kind == KG_MATMUL_NT ? b.rows : b.cols,
                 accumulate || tn ? F32 : F32 | 1u << a.dtype, err));
    KG_TRY(check_groups(be, op, g, a.rows, err));
    return be->matmul_groups ? be->matmul_groups(c, a, b, g, kind, accumulate, err)
                             : missing(be, op, err);
}

/* ---- weighted sums ---- */
/* weight.data NULL: all are 1. x has a row for each slot or, with `place`, any rows. */
static kg_status check_places(const struct kg_backend *be, const char *op,
                              struct kg_mat weight, struct kg_mat x, struct kg_ivec place,
                              struct kg_err *err)
{
    const int64_t n = weight.rows * weight.cols;
    if (weight.data)
        KG_TRY(check(op, "weight", weight, ANY, ANY, F32, err));
    if (!place.data)
        return check_shape(op, "x", x, n, x.cols, err);
    KG_TRY(check_length(op, "place", place.data, place.n, n, err));
    return be->host_memory ? kg_ids_check(op, "place", place.data, n, x.rows, err)
                           : KG_OK;
}

kg_status kg_op_combine(const struct kg_backend *be, struct kg_mat y, struct kg_mat x,
                        struct kg_mat weight, struct kg_ivec place, bool accumulate,
                        struct kg_err *err)
{
    const char *op = "combine";
    KG_TRY(check(op, "x", x, ANY, ANY, F32, err));
    KG_TRY(check(op, "y", y, weight.rows, x.cols, F32, err));
    KG_TRY(check_places(be, op, weight, x, place, err));
    return be->combine ? be->combine(y, x, weight, place, accumulate, err)
                       : missing(be, op, err);
}

kg_status kg_op_combine_bwd(const struct kg_backend *be, struct kg_mat dweight,
                            struct kg_mat dx, struct kg_mat x, struct kg_mat weight,
                            struct kg_ivec place, struct kg_err *err)
{
    const char *op = "combine_bwd";
    KG_TRY(check(op, "weight", weight, ANY, ANY, F32, err));
    KG_TRY(check(op, "dweight", dweight, weight.rows, weight.cols, F32, err));
    KG_TRY(check(op, "x", x, ANY, ANY, CT, err));
    KG_TRY(check(op, "dx", dx, x.rows, x.cols, F32, err));
    KG_TRY(check_places(be, op, weight, x, place, err));
    return be->combine_bwd ? be->combine_bwd(dweight, dx, x, weight, place, err)
                           : missing(be, op, err);
}

kg_status kg_op_sigmoid(const struct kg_backend *be, struct kg_vec y, struct kg_vec x,
                        struct kg_err *err)
{
    KG_TRY(check_vec("sigmoid", "x", x, x.n, err));
    KG_TRY(check_vec("sigmoid", "y", y, x.n, err));
    return be->sigmoid ? be->sigmoid(y, x, err) : missing(be, "sigmoid", err);
}

kg_status kg_op_sigmoid_bwd(const struct kg_backend *be, struct kg_vec dx,
                            struct kg_vec dy, struct kg_vec y, struct kg_err *err)
{
    const char *op = "sigmoid_bwd";
    KG_TRY(check_vec(op, "y", y, y.n, err));
    KG_TRY(check_vec(op, "dy", dy, y.n, err));
    KG_TRY(check_vec(op, "dx", dx, y.n, err));
    return be->sigmoid_bwd ? be->sigmoid_bwd(dx, dy, y, err) : missing(be, op, err);
}
