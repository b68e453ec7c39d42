/* Between element types, and sums of matrices: what has no other arithmetic than one
 * rounding. */
#include "tensor/cpu/cpu_internal.h"

kg_status kg_cpu_cast(struct kg_mat dst, struct kg_mat src, struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(dst.rows * dst.cols / 2))
    for (int64_t n = 0; n < dst.rows; n++)
        for (int64_t d = 0; d < dst.cols; d += KG_LANES) {
            int lanes = kg_cpu_lanes(dst.cols - d);
            kg_cpu_store(dst, n, d, kg_cpu_load(src, n, d, lanes), lanes);
        }
    return KG_OK;
}

kg_status kg_cpu_add(struct kg_mat y, struct kg_mat x, struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(y.rows * y.cols / 2))
    for (int64_t n = 0; n < y.rows; n++)
        for (int64_t d = 0; d < y.cols; d += KG_LANES) {
            int lanes = kg_cpu_lanes(y.cols - d);
            struct kg_v16 sum = kg_v16_add(kg_cpu_load(y, n, d, lanes),
                                           kg_cpu_load(x, n, d, lanes));
            kg_cpu_store(y, n, d, sum, lanes);
        }
    return KG_OK;
}
