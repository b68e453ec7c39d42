/* Copies whole rows into the blocks of a cache and out of them, and adds rows. If rows
 * begin and end at multiples of sixteen bytes, a thread moves sixteen bytes. Destinations
 * are distinct.
 */
#include "tensor/cuda/eights_internal.h"

/* ---- moving ---- */
/* dst[rows[n]] = src[n], or the reverse: dst[n] = src[rows[n]].   T: what a thread moves,
 * and the unit of cols and of the strides to and from */
template <typename T> struct moved {
    T *dst;
    const T *src;
    int64_t n, cols, to, from;
};

template <typename T>
static __global__ void move_rows(struct moved<T> m, struct kg_ivec rows, bool scatter)
{
    const int64_t i = kg_cuda_flat();

    if (i >= m.n * m.cols)
        return;
    const int64_t n = i / m.cols, c = i % m.cols, there = rows.data[n];

    m.dst[(scatter ? there : n) * m.to + c] = m.src[(scatter ? n : there) * m.from + c];
}

template <typename T>
static void launch(struct kg_mat dst, struct kg_mat src, struct kg_ivec rows,
                   bool scatter)
{
    const int64_t each = (int64_t)(sizeof(T) / kg_dtype_traits(dst.dtype)->bytes);
    const struct moved<T> m = {
        (T *)dst.data, (const T *)src.data, rows.n, dst.cols / each, dst.stride / each,
            src.stride / each
    };

    KG_LAUNCH(move_rows<T>, kg_cuda_all(m.n * m.cols), KG_FLAT_THREADS, m, rows, scatter);
}

static void move(struct kg_mat dst, struct kg_mat src, struct kg_ivec rows, bool scatter)
{
    if (rows.n == 0 || dst.cols == 0)
        return;
    if (kg_cuda_by_eights(dst) && kg_cuda_by_eights(src))
        launch<struct kg_cuda_eight>(dst, src, rows, scatter);
    else if (dst.dtype == KG_F32)
        launch<float>(dst, src, rows, scatter);
    else
        launch<uint16_t>(dst, src, rows, scatter);
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

/* ---- adding ---- */
/* A thread has WIDE columns of a row of dst. */
template <int WIDE>
static __global__ void sum_rows(struct kg_mat dst, struct kg_mat src, struct kg_ivec ends,
                                struct kg_ivec places)
{
    const int64_t i = kg_cuda_flat(), wide = dst.cols / WIDE;
    struct alignas(4 * WIDE) part {
        float at[WIDE];
    };
    struct part sum = {};

    if (i >= dst.rows * wide)
        return;
    const int64_t n = i / wide, c = i % wide * WIDE;
    const int32_t end = ends.data[n];

#pragma unroll 4
    for (int32_t k = n > 0 ? ends.data[n - 1] : 0; k < end; k++) {
        const struct part x = *(const struct part *)(kg_cuda_f32(src, places.data[k]) +
                                                     c);

#pragma unroll
        for (int w = 0; w < WIDE; w++)
            sum.at[w] += x.at[w];
    }
    *(struct part *)(kg_cuda_f32(dst, n) + c) = sum;
}

kg_status kg_cuda_sum_rows(struct kg_mat dst, struct kg_mat src, struct kg_ivec ends,
                           struct kg_ivec places, struct kg_err *err)
{
    const int64_t n = dst.rows * dst.cols;

    if (n > 0 && kg_cuda_by_eights(dst) && kg_cuda_by_eights(src))
        KG_LAUNCH(sum_rows<4>, kg_cuda_all(n / 4), KG_FLAT_THREADS, dst, src, ends,
                  places);
    else if (n > 0)
        KG_LAUNCH(sum_rows<1>, kg_cuda_all(n), KG_FLAT_THREADS, dst, src, ends, places);
    return kg_dev_done("sum_rows", err);
}
