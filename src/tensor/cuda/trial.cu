/* Trials on the device: pseudorandom operands, and whether two results have the same
 * bits. */
#include "tensor/cuda/trial_internal.h"

static __device__ uint32_t scramble(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

static __global__ void fill(struct kg_mat m, bool down, bool cancels, uint32_t seed)
{
    const int64_t r = blockIdx.x, half = (down ? m.rows : m.cols) / 2;

    for (int64_t c = threadIdx.x; c < m.cols; c += KG_ROW_THREADS) {
        const int64_t v = down ? c : r, k = down ? r : c, at = k % half;
        const uint32_t drawn = scramble((uint32_t)(v * 65537 + at) + (seed << 28));
        const bool turns = cancels && v % 2 == 1 && k >= half;
        const uint32_t sign = (drawn & 0x8000u) ^ (turns ? 0x8000u : 0u);

        kg_cuda_bf16(m, r)[c] = (uint16_t)(sign | ((119u << 7) + (drawn & 0x3ffu)));
    }
}

void kg_cuda_trial_fill(struct kg_mat m, bool down, bool cancels, uint32_t seed)
{
    KG_LAUNCH(fill, kg_grid(m.rows, 1), KG_ROW_THREADS, m, down, cancels, seed);
}

/* found[b] <- differences in every KG_TRIAL_BLOCKS-th row from b on; a warp per block. */
static __global__ void compare(struct kg_cuda_others *found, struct kg_mat x,
                               struct kg_mat y)
{
    int n = 0;
    float most = 0.0f;

    for (int64_t r = blockIdx.x; r < x.rows; r += KG_TRIAL_BLOCKS)
        for (int64_t c = threadIdx.x; c < x.cols; c += KG_WARP) {
            const float a = kg_cuda_f32(x, r)[c], b = kg_cuda_f32(y, r)[c];
            const float d = fabsf(a - b);

            n += kg_cuda_bits(a) != kg_cuda_bits(b);
            most = d <= most ? most : d == d ? d : INFINITY;
        }
    for (unsigned by = KG_WARP / 2; by > 0; by /= 2) {
        const float other = __shfl_xor_sync(~0u, most, by);

        n += __shfl_xor_sync(~0u, n, by);
        most = other > most ? other : most;
    }
    if (threadIdx.x == 0)
        found[blockIdx.x] = {n, most};
}

kg_status kg_cuda_trial_compare(struct kg_cuda_others *sum, struct kg_mat x,
                                struct kg_mat y, struct kg_cuda_others *room,
                                struct kg_err *err)
{
    struct kg_cuda_others found[KG_TRIAL_BLOCKS];

    KG_LAUNCH(compare, kg_grid(KG_TRIAL_BLOCKS, 1), KG_WARP, room, x, y);
    kg_dev_get(found, room, sizeof found);
    KG_TRY(kg_dev_done("trial of two kernels", err));
    for (int b = 0; b < KG_TRIAL_BLOCKS; b++) {
        sum->n += found[b].n;
        sum->apart = found[b].apart > sum->apart ? found[b].apart : sum->apart;
    }
    return KG_OK;
}

struct kg_mat kg_cuda_trial_take(struct kg_cuda_piece *p, enum kg_dtype dtype,
                                 int64_t rows, int64_t cols)
{
    char *at;

    kg_cuda_take(p, &at, rows * cols * (int64_t)kg_dtype_traits(dtype)->bytes);
    return kg_mat(at, dtype, rows, cols);
}
