/* Loads and stores of the elements of c that kg_mma assigns to a thread: two neighbours
 * in a row, moved by one instruction if they are aligned. */
#ifndef KG_TENSOR_CUDA_TWOS_INTERNAL_H
#define KG_TENSOR_CUDA_TWOS_INTERNAL_H

#include "tensor/cuda/cuda_internal.h"

struct alignas(8) kg_cuda_two {
    float x, y;
};

/* Whether one instruction can move two elements of c that begin at an even column. */
static __host__ __device__ inline bool kg_cuda_in_twos(const struct kg_mat &c)
{
    return c.stride % 2 == 0 &&
           (uintptr_t)c.data % (c.dtype == KG_F32 ? sizeof(struct kg_cuda_two) : 4) == 0;
}

static __device__ inline struct kg_cuda_two
kg_cuda_two_get(const struct kg_mat &c, int64_t r, int64_t v, bool paired)
{
    struct kg_cuda_two old = {0.0f, 0.0f};

    if (r >= c.rows || v >= c.cols)
        return old;
    if (paired && c.dtype == KG_F32 && v + 1 < c.cols)
        return *(const struct kg_cuda_two *)(kg_cuda_f32(c, r) + v);
    old.x = kg_cuda_load(c, r, v);
    if (v + 1 < c.cols)
        old.y = kg_cuda_load(c, r, v + 1);
    return old;
}

static __device__ inline void kg_cuda_two_set(const struct kg_mat &c, int64_t r,
                                              int64_t v, bool paired,
                                              struct kg_cuda_two sum)
{
    if (r >= c.rows || v >= c.cols)
        return;
    if (paired && v + 1 < c.cols) {
        if (c.dtype == KG_F32)
            *(struct kg_cuda_two *)(kg_cuda_f32(c, r) + v) = sum;
        else
            *(uint32_t *)(kg_cuda_bf16(c, r) + v) = kg_pair(sum.x, sum.y);
        return;
    }
    kg_cuda_store(c, r, v, sum.x);
    if (v + 1 < c.cols)
        kg_cuda_store(c, r, v + 1, sum.y);
}

#endif
