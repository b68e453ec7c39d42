/* Moving whole rows: into the pages of a KV cache, and out of them. No arithmetic;
 * destinations are distinct. */
#include "tensor/cuda/cuda_internal.h"

/* dst[rows[n]] = src[n], or the reverse: dst[n] = src[rows[n]] */
static __global__ void move_rows(struct kg_mat dst, struct kg_mat src,
                                 struct kg_ivec rows, bool scatter)
{
    const int64_t n = blockIdx.x, there = rows.data[n], end = kg_cuda_end(dst.cols);
    const int64_t to = scatter ? there : n, from = scatter ? n : there;

    for (int64_t c = kg_cuda_first(); c < end; c += KG_ROW_THREADS)
        if (dst.dtype == KG_F32)
            kg_cuda_f32(dst, to)[c] = kg_cuda_f32(src, from)[c];
        else
            kg_cuda_bf16(dst, to)[c] = kg_cuda_bf16(src, from)[c];
}

static void move(struct kg_mat dst, struct kg_mat src, struct kg_ivec rows, bool scatter)
{
    if (rows.n > 0 && dst.cols > 0)
        KG_LAUNCH(move_rows, kg_cuda_rows(rows.n, dst.cols), KG_ROW_THREADS, dst, src,
                  rows, scatter);
}

kg_status kg_cuda_scatter_rows(struct kg_mat pool, struct kg_ivec rows, struct kg_mat src,
                               struct kg_err *err)
{
    move(pool, src, rows, true);
    return kg_dev_done("scatter_rows", err);
}

kg_status kg_cuda_gather_rows(struct kg_mat dst, struct kg_mat src, struct kg_ivec rows,
                              struct kg_err *err)
{
    move(dst, src, rows, false);
    return kg_dev_done("gather_rows", err);
}
