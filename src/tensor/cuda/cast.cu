/* Between element types, in rows: what has no other arithmetic than one rounding. */
#include "tensor/cuda/cuda_internal.h"

static __global__ void cast(struct kg_mat dst, struct kg_mat src)
{
    const int64_t r = blockIdx.x, end = kg_cuda_end(dst.cols);

    for (int64_t c = kg_cuda_first(); c < end; c += KG_ROW_THREADS)
        kg_cuda_store(dst, r, c, kg_cuda_load(src, r, c));
}

kg_status kg_cuda_cast(struct kg_mat dst, struct kg_mat src, struct kg_err *err)
{
    if (dst.rows > 0 && dst.cols > 0)
        KG_LAUNCH(cast, kg_cuda_rows(dst.rows, dst.cols), KG_ROW_THREADS, dst, src);
    return kg_dev_done("cast", err);
}
