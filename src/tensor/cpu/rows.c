/* Copies whole rows into the blocks of a cache and out of them, and adds rows.
 *
 * Gathering and sums write each row once, so threads share the rows. Scattering runs in
 * order on one thread; destinations are distinct.
 */
#include "tensor/cpu/cpu_internal.h"

static void copy_row(struct kg_mat dst, int64_t to, struct kg_mat src, int64_t from)
{
    size_t bytes = kg_dtype_traits(src.dtype)->bytes;
    memcpy((char *)dst.data + (size_t)(to * dst.stride) * bytes,
           (const char *)src.data + (size_t)(from * src.stride) * bytes,
           (size_t)src.cols * bytes);
}

kg_status kg_cpu_scatter_rows(struct kg_mat pool, struct kg_ivec rows, struct kg_mat src,
                              struct kg_err *err)
{
    (void)err;
    for (int64_t n = 0; n < src.rows; n++)
        copy_row(pool, rows.data[n], src, n);
    return KG_OK;
}

kg_status kg_cpu_gather_rows(struct kg_mat dst, struct kg_mat src, struct kg_ivec rows,
                             struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(dst.rows * dst.cols / 4))
    for (int64_t n = 0; n < dst.rows; n++)
        copy_row(dst, n, src, rows.data[n]);
    return KG_OK;
}

static void add_row(float *sum, const float *x, int64_t cols)
{
    for (int64_t c = 0; c < cols; c++)
        sum[c] += x[c];
}

kg_status kg_cpu_sum_rows(struct kg_mat dst, struct kg_mat src, struct kg_ivec ends,
                          struct kg_ivec places, struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(places.n * dst.cols))
    for (int64_t n = 0; n < dst.rows; n++) {
        float *sum = kg_cpu_f32(dst, n);
        memset(sum, 0, (size_t)dst.cols * sizeof *sum);
        for (int32_t i = n > 0 ? ends.data[n - 1] : 0; i < ends.data[n]; i++)
            add_row(sum, kg_cpu_f32(src, places.data[i]), dst.cols);
    }
    return KG_OK;
}
