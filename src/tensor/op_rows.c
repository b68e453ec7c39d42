/* The operations that move, add or look up whole rows, with their checks, as in op.c. */
#include "tensor/op_internal.h"

kg_status kg_op_scatter_rows(const struct kg_backend *be, struct kg_mat pool,
                             struct kg_ivec rows, struct kg_mat src, struct kg_err *err)
{
    const char *op = "scatter_rows";
    KG_TRY(check(op, "src", src, ANY, ANY, CT, err));
    KG_TRY(check(op, "pool", pool, ANY, src.cols, 1u << src.dtype, err));
    KG_TRY(check_ids(be, op, "rows", rows, src.rows, pool.rows, err));
    return be->scatter_rows ? be->scatter_rows(pool, rows, src, err)
                            : missing(be, op, err);
}

kg_status kg_op_gather_rows(const struct kg_backend *be, struct kg_mat dst,
                            struct kg_mat src, struct kg_ivec rows, struct kg_err *err)
{
    const char *op = "gather_rows";
    KG_TRY(check(op, "src", src, ANY, ANY, CT, err));
    KG_TRY(check(op, "dst", dst, ANY, src.cols, 1u << src.dtype, err));
    KG_TRY(check_ids(be, op, "rows", rows, dst.rows, src.rows, err));
    return be->gather_rows ? be->gather_rows(dst, src, rows, err) : missing(be, op, err);
}

kg_status kg_op_sum_rows(const struct kg_backend *be, struct kg_mat dst,
                         struct kg_mat src, struct kg_ivec ends, struct kg_ivec places,
                         struct kg_err *err)
{
    const char *op = "sum_rows";
    KG_TRY(check(op, "src", src, ANY, ANY, F32, err));
    KG_TRY(check(op, "dst", dst, ANY, src.cols, F32, err));
    KG_TRY(check_ids(be, op, "ends", ends, dst.rows, places.n + 1, err));
    KG_TRY(check_ids(be, op, "places", places, places.n, src.rows, err));
    return be->sum_rows ? be->sum_rows(dst, src, ends, places, err)
                        : missing(be, op, err);
}

kg_status kg_op_embed(const struct kg_backend *be, struct kg_mat x, struct kg_mat table,
                      struct kg_ivec tokens, struct kg_err *err)
{
    const char *op = "embed";
    KG_TRY(check(op, "table", table, ANY, ANY, CT | panels(be), err));
    KG_TRY(check(op, "x", x, ANY, table.cols, F32, err));
    KG_TRY(check_ids(be, op, "tokens", tokens, x.rows, table.rows, err));
    return be->embed ? be->embed(x, table, tokens, err) : missing(be, op, err);
}

kg_status kg_op_embed_bwd(const struct kg_backend *be, struct kg_mat dtable,
                          struct kg_mat dx, struct kg_ivec tokens, struct kg_err *err)
{
    const char *op = "embed_bwd";
    KG_TRY(check(op, "dtable", dtable, ANY, ANY, F32, err));
    KG_TRY(check(op, "dx", dx, ANY, dtable.cols, F32, err));
    KG_TRY(check_ids(be, op, "tokens", tokens, dx.rows, dtable.rows, err));
    return be->embed_bwd ? be->embed_bwd(dtable, dx, tokens, err) : missing(be, op, err);
}
