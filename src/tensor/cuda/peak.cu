/* The peak rate of products on a device: executes the instructions of a product whose
 * sums fill the registers, without reads and writes.
 *
 * Blocks are short and many, so that little of a device is idle at the end; their number
 * follows from the requested FLOP. Factors have many significant bits, as in a real
 * product: a device computes zeros faster. Not measured.
 */
#include "tensor/cuda/cuda_internal.h"

enum { THREADS = 128, TURNS = 64, SUMS = 16 /* per warp or per thread */ };

/* From 1 to 2, with bits that the compiler does not know. */
static __device__ float between(unsigned seed)
{
    return kg_cuda_of_bits(0x3f800000u | (seed * 2654435761u >> 9));
}

/* Keeps the compiler from removing sums that nobody reads: they are never NaN. */
static __device__ void keep(float *out, float sum)
{
    if (!(sum == sum))
        *out = sum;
}

static __global__ void __launch_bounds__(THREADS) by_mma(float *out)
{
    const unsigned seed = threadIdx.x + blockIdx.x;
    uint32_t a[4], b[2];
    float s[SUMS][4], all = 0.0f;

    for (unsigned i = 0; i < 4; i++)
        a[i] = kg_pair(between(seed + i), -between(seed + i + 4));
    for (unsigned i = 0; i < 2; i++)
        b[i] = kg_pair(between(seed + i + 8), between(seed + i + 10));
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        s[i][0] = s[i][1] = s[i][2] = s[i][3] = between(seed + 12);
    for (int t = 0; t < TURNS; t++)
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            kg_mma(s[i], a, b);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        all += s[i][0] + s[i][1] + s[i][2] + s[i][3];
    keep(out, all);
}

static __global__ void __launch_bounds__(THREADS) by_fma(float *out)
{
    const unsigned seed = threadIdx.x + blockIdx.x;
    const float a = between(seed), b = -between(seed + 1);
    float s[SUMS], all = 0.0f;

#pragma unroll
    for (int i = 0; i < SUMS; i++)
        s[i] = between(seed + 2 + (unsigned)i);
    for (int t = 0; t < TURNS; t++)
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            s[i] = kg_fma(a, b, s[i]);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        all += s[i];
    keep(out, all);
}

double kg_cuda_peak(enum kg_dtype t, double flops)
{
    const double of_a_warp = t == KG_BF16 ? 2.0 * 16 * 8 * 16 : 2.0 * 32;
    const double of_a_block = of_a_warp * SUMS * TURNS * (THREADS / 32);
    const dim3 grid = kg_grid((int64_t)(flops / of_a_block) + 1, 1);
    struct kg_err none;
    float *out = (float *)kg_cuda_scratch(sizeof *out, &none);

    if (!out)
        return 0; /* the caller measures no time */
    if (t == KG_BF16)
        KG_LAUNCH(by_mma, grid, THREADS, out);
    else
        KG_LAUNCH(by_fma, grid, THREADS, out);
    return of_a_block * grid.x;
}
