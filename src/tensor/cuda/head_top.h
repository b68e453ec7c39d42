/* The k largest logits of a row, for head.cu: one sorted list per warp.
 *
 * The order is total (larger z, then smaller id), so the result depends neither on how
 * the vocabulary is divided nor on the order of merging. A warp compares 32 logits at a
 * time with the last entry of its list, and inserts few of them.
 */
#ifndef KG_TENSOR_CUDA_HEAD_TOP_H
#define KG_TENSOR_CUDA_HEAD_TOP_H

#include "tensor/cuda/head_internal.h"

struct kg_cuda_top {
    float z;
    int32_t id;
};

/* A warp's list: entries [0, count), largest first. */
struct kg_cuda_top_list {
    struct kg_cuda_top *at; /* (k) */
    int32_t count;
    int32_t k;
};

static __device__ inline bool kg_cuda_better(struct kg_cuda_top a, struct kg_cuda_top b)
{
    return a.z > b.z || (a.z == b.z && a.id < b.id);
}

/* Whether x should be inserted; never for NaN. */
static __device__ inline bool kg_cuda_top_wants(const struct kg_cuda_top_list *l,
                                                struct kg_cuda_top x)
{
    return x.z == x.z && (l->count < l->k || kg_cuda_better(x, l->at[l->count - 1]));
}

/* Inserts x, for which kg_cuda_top_wants must be true. Shifts worse entries by one, 32 at
 * a time from the end. All lanes must call it together. */
static __device__ inline void kg_cuda_top_insert(struct kg_cuda_top_list *l,
                                                 struct kg_cuda_top x)
{
    const int32_t lane = (int32_t)(threadIdx.x % KG_WARP), old = l->count;
    const int32_t count = old < l->k ? old + 1 : old;

    for (int32_t end = count; end > 0; end -= KG_WARP) {
        const int32_t i = end - 1 - lane;
        const bool moves = i > 0 && kg_cuda_better(x, l->at[i - 1]);
        const bool here = !moves && i >= 0 && (i == old || kg_cuda_better(x, l->at[i]));
        const struct kg_cuda_top now = moves ? l->at[i - 1] : x;
        const int32_t next = end - KG_WARP;
        const bool more = next > 0 && kg_cuda_better(x, l->at[next - 1]);

        __syncwarp();
        if (moves || here)
            l->at[i] = now;
        __syncwarp();
        if (!more)
            break;
    }
    l->count = count;
}

/* Inserts those of z[0..n), with ids first, first + 1, .., that the list wants. */
static __device__ inline void kg_cuda_top_offer(struct kg_cuda_top_list *l,
                                                const float *z, int64_t n, int64_t first)
{
    const int64_t lane = threadIdx.x % KG_WARP;

    for (int64_t v = 0; v < n; v += KG_WARP) {
        const int64_t mine = v + lane;
        const bool wants = mine < n &&
                           kg_cuda_top_wants(l, {z[mine], (int32_t)(first + mine)});
        unsigned rest = __ballot_sync(~0u, wants);

        for (; rest; rest &= rest - 1) {
            const int64_t i = v + __ffs(rest) - 1;
            const struct kg_cuda_top x = {z[i], (int32_t)(first + i)};

            if (kg_cuda_top_wants(l, x))
                kg_cuda_top_insert(l, x);
        }
    }
}

/* Inserts all wanted entries of another list. */
static __device__ inline void kg_cuda_top_merge(struct kg_cuda_top_list *l,
                                                const struct kg_cuda_top *other,
                                                int32_t count)
{
    for (int32_t i = 0; i < count && kg_cuda_top_wants(l, other[i]); i++)
        kg_cuda_top_insert(l, other[i]);
}

#endif
