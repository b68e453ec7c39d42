/* Converts between element types, in rows; the only arithmetic is one rounding. */
#include "tensor/cuda/eights_internal.h"

enum { MOST = 1 << 20 }; /* columns per launch */

static __global__ void cast(struct kg_mat dst, struct kg_mat src, bool together)
{
    const int64_t r = blockIdx.x, c = kg_cuda_eights_first();

    if (c < dst.cols)
        kg_cuda_store_eights(dst, r, c, together,
                             kg_cuda_load_eights(src, r, c, together));
}

/* Columns [first, first+n). */
static struct kg_mat columns(struct kg_mat m, int64_t first, int64_t n)
{
    m.data = (char *)m.data + (uint64_t)first * kg_dtype_traits(m.dtype)->bytes;
    m.cols = n;
    return m;
}

/* A slab may be one row, which needs more than the 65,535 blocks of a grid's y. */
kg_status kg_cuda_cast(struct kg_mat dst, struct kg_mat src, struct kg_err *err)
{
    for (int64_t c = 0; dst.rows > 0 && c < dst.cols; c += MOST) {
        const int64_t n = kg_cuda_min(dst.cols - c, MOST);
        const struct kg_mat to = columns(dst, c, n), from = columns(src, c, n);

        KG_LAUNCH(cast, kg_cuda_eights_grid(dst.rows, n), KG_ROW_THREADS, to, from,
                  kg_cuda_by_eights(to) && kg_cuda_by_eights(from));
    }
    return kg_dev_done("cast", err);
}
