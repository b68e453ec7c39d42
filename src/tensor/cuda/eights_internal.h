/* Loads and stores of eight adjacent elements of a row. An instruction moves sixteen
 * bytes, so that elementwise kernels run at memory speed.
 *
 * A thread processes elements [c, c + 8) of a row; a block has KG_ROW_THREADS threads. If
 * kg_cuda_by_eights is false, a thread moves single elements, with the same values.
 */
#ifndef KG_TENSOR_CUDA_EIGHTS_INTERNAL_H
#define KG_TENSOR_CUDA_EIGHTS_INTERNAL_H

#include "tensor/cuda/cuda_internal.h"

enum { KG_EIGHT = 8 };
struct kg_cuda_eights {
    float at[KG_EIGHT];
};
struct alignas(16) kg_cuda_four {
    float at[4];
};

/* Rounds to bf16 as kg_cuda_store does. */
static __device__ inline uint32_t kg_cuda_round(float x)
{
    uint16_t u;
    const struct kg_mat one = {&u, KG_BF16, 1, 1, 1, KG_ROWS};

    kg_cuda_store(one, 0, 0, x);
    return u;
}

static inline bool kg_cuda_by_eights(struct kg_mat m)
{
    const uint64_t row = (uint64_t)m.stride * kg_dtype_traits(m.dtype)->bytes;

    return m.cols % KG_EIGHT == 0 && ((uintptr_t)m.data | row) % 16 == 0;
}
static inline dim3 kg_cuda_eights_grid(int64_t rows, int64_t cols)
{
    return kg_grid(rows, kg_cuda_pieces(cols, KG_EIGHT * KG_ROW_THREADS));
}
/* The first element of this thread, which may be beyond the row's end. */
static __device__ inline int64_t kg_cuda_eights_first(void)
{
    return ((int64_t)blockIdx.y * KG_ROW_THREADS + threadIdx.x) * KG_EIGHT;
}

/* Converts eight elements of type t to fp32: 16 bytes of bf16, or 32 bytes of fp32. */
static __device__ inline struct kg_cuda_eights
kg_cuda_eights_of(const struct kg_cuda_eight part[2], enum kg_dtype t)
{
    struct kg_cuda_eights x;

#pragma unroll
    for (int i = 0; i < KG_EIGHT; i++) {
        const uint32_t pair = part[0].pair[i / 2];

        x.at[i] = kg_cuda_of_bits(t == KG_F32 ? part[i / 4].pair[i % 4]
                                  : i % 2     ? pair & 0xffff0000u
                                              : pair << 16);
    }
    return x;
}

/* x[k] <- eight elements of m[k]; elements after the row's end are 0. All loads start
 * before the first value is used. together: kg_cuda_by_eights(m[k]) for all k */
template <int N>
static __device__ inline void kg_cuda_load_eights(struct kg_cuda_eights (&x)[N],
                                                  const struct kg_mat (&m)[N], int64_t r,
                                                  int64_t c, bool together)
{
    struct kg_cuda_eight part[N][2];

#pragma unroll
    for (int k = 0; k < N && together; k++) {
        const int64_t at = r * m[k].stride + c;
        const struct kg_cuda_eight *from =
            (const struct kg_cuda_eight *)((const uint16_t *)m[k].data +
                                           (m[k].dtype == KG_F32 ? 2 * at : at));

        part[k][0] = from[0];
        if (m[k].dtype == KG_F32)
            part[k][1] = from[1];
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        if (together)
            x[k] = kg_cuda_eights_of(part[k], m[k].dtype);
        else
            for (int i = 0; i < KG_EIGHT; i++)
                x[k].at[i] = c + i < m[k].cols ? kg_cuda_load(m[k], r, c + i) : 0.0f;
}
static __device__ inline struct kg_cuda_eights
kg_cuda_load_eights(const struct kg_mat &m, int64_t r, int64_t c, bool together)
{
    const struct kg_mat one[1] = {m};
    struct kg_cuda_eights x[1];

    kg_cuda_load_eights(x, one, r, c, together);
    return x[0];
}

static __device__ inline void kg_cuda_store_eights(const struct kg_mat &m, int64_t r,
                                                   int64_t c, bool together,
                                                   const struct kg_cuda_eights &x)
{
    if (!together) {
        for (int i = 0; i < KG_EIGHT && c + i < m.cols; i++)
            kg_cuda_store(m, r, c + i, x.at[i]);
    } else if (m.dtype == KG_F32) {
        uint32_t part[KG_EIGHT];

#pragma unroll
        for (int i = 0; i < KG_EIGHT; i++)
            part[i] = kg_cuda_bits(x.at[i]);
        kg_store_sixteen(kg_cuda_f32(m, r) + c, part);
        kg_store_sixteen(kg_cuda_f32(m, r) + c + 4, part + 4);
    } else {
        struct kg_cuda_eight e;
        bool nan = false;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            nan |= x.at[2 * i] != x.at[2 * i] || x.at[2 * i + 1] != x.at[2 * i + 1];
            e.pair[i] = kg_pair(x.at[2 * i], x.at[2 * i + 1]);
        }
        for (int i = 0; nan && i < 4; i++) /* kg_pair would change NaNs */
            e.pair[i] = kg_cuda_round(x.at[2 * i]) | kg_cuda_round(x.at[2 * i + 1]) << 16;
        kg_store_sixteen(kg_cuda_bf16(m, r) + c, e.pair);
    }
}

#endif
