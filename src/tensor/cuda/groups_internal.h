/* Assigns tiles of the experts' products to CUDA blocks.
 *
 * Only the device knows the number of rows per expert, so the grid has the maximum size,
 * which depends on the total number of rows. For NT and NN, tiles of expert e have H rows
 * each, begin at row f = first[e], and have numbers from floor(f / H) + e up to the first
 * of expert e + 1. Since floor((f + n) / H) - floor(f / H) + 1 >= ceil(n / H), these
 * numbers suffice for its n rows; blocks with surplus tiles end at once. For TN there is
 * one c per expert, so every expert has the tiles of a whole c.
 */
#ifndef KG_TENSOR_CUDA_GROUPS_INTERNAL_H
#define KG_TENSOR_CUDA_GROUPS_INTERNAL_H

#include "tensor/cuda/cuda_internal.h"

/* The operands of one expert, and the first row of c that a block computes; below 0:
 * none. They are in shared memory, to save registers. */
struct alignas(16) kg_cuda_share {
    struct kg_mat c, a, b;
    int64_t row;
};

static inline int64_t kg_cuda_group_tiles(const struct kg_groups *g, struct kg_mat c,
                                          bool tn, int height)
{
    return tn ? kg_cuda_pieces(c.rows, height) * g->n : c.rows / height + g->n;
}

static __device__ inline void kg_cuda_advance(struct kg_mat *m, int64_t bytes)
{
    m->data = (char *)m->data + bytes;
}
static __device__ inline void kg_cuda_rows_of(struct kg_mat *m, int64_t first, int64_t n)
{
    kg_cuda_advance(m, first * m->stride *
                           (m->dtype == KG_F32 ? sizeof(float) : sizeof(uint16_t)));
    m->rows = n;
}

/* The expert of tile i: the last whose first tile is at most i. For whole warps. */
static __device__ inline int32_t kg_cuda_owner(const struct kg_groups &g, int height,
                                               int64_t i)
{
    int32_t before = 0;

    for (int32_t at = 0; at < g.n; at += KG_WARP) {
        const int32_t e = at + (int32_t)(threadIdx.x % KG_WARP);

        before += __popc(__ballot_sync(~0u, e < g.n && g.first[e] / height + e <= i));
    }
    return before - 1;
}

/* *to (in shared memory) <- the operands and row of block blockIdx.x, for tiles of
 * `height` rows. All threads must call it.
 * add: the product is added to c, so experts without tokens are skipped for TN */
template <bool TN>
static __device__ inline void
kg_cuda_share_out(struct kg_cuda_share *to, struct kg_mat c, struct kg_mat a,
                  struct kg_mat b, const struct kg_groups &g, bool add, int height)
{
    const int64_t i = blockIdx.x, each = (c.rows + height - 1) / height;
    const int32_t e = TN ? (int32_t)(i / each) : kg_cuda_owner(g, height, i);
    const int64_t first = g.first[e], n = g.first[e + 1] - first;
    const int64_t tile = TN ? i % each : i - (first / height + e);

    if (threadIdx.x == 0) {
        *to = {c, a, b, tile * height};
        kg_cuda_rows_of(&to->a, first, n);
        kg_cuda_rows_of(TN ? &to->b : &to->c, first, n);
        kg_cuda_advance(TN ? &to->c : &to->b, e * g.stride);
        if (TN ? n == 0 && add : to->row >= n)
            to->row = -1;
    }
    __syncthreads();
}

#endif
