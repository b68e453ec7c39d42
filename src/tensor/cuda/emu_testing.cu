/* Kernels with faults, for the emulation's own test: each is what a slip in a kernel of
 * the backend would be. */
#include "tensor/cuda/cuda_internal.h"
#include "tensor/cuda/emu_testing.h"

enum { THREADS = KG_TRIAL_THREADS };

static __global__ void reverse(float *y, const float *x, enum kg_trial trial, int beyond)
{
    KG_SHARED(float, held, [THREADS]);
    const int i = (int)threadIdx.x;
    const bool some = i < THREADS / 2;

    if (trial != KG_TRIAL_UNSET || i != 5)
        held[i == THREADS - 1 ? i + beyond : i] = x[i];
    if (trial == KG_TRIAL_OTHER_BARRIER && some)
        __syncthreads();
    else if (trial == KG_TRIAL_SOME_BARRIER ? some : trial != KG_TRIAL_NO_BARRIER)
        __syncthreads();
    y[i] = held[THREADS - 1 - i];
    if (trial == KG_TRIAL_LANES && some)
        y[i] += __shfl_xor_sync(~0u >> 16, y[i], 1);
}

kg_status kg_trial_run(enum kg_trial trial, float *y, const float *x, struct kg_err *err)
{
    const int threads = trial == KG_TRIAL_TOO_MANY ? 2048 : THREADS;

    KG_LAUNCH(reverse, kg_grid(trial != KG_TRIAL_NO_BLOCK, 1), threads, y, x, trial,
              trial == KG_TRIAL_BEYOND ? 1 : 0);
    return kg_dev_done("trial", err);
}

static __device__ uint32_t pair(const uint16_t *row, int col)
{
    return row[col] | (uint32_t)row[col + 1] << 16;
}

static __global__ void multiply(float *y, const uint16_t *a, const uint16_t *b)
{
    const int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4 * 2;
    const uint32_t left[4] = {pair(a + g * 16, t), pair(a + (g + 8) * 16, t),
                              pair(a + g * 16, t + 8), pair(a + (g + 8) * 16, t + 8)};
    const uint32_t right[2] = {pair(b + g * 16, t), pair(b + g * 16, t + 8)};
    float d[4] = {0.0f};

    kg_mma(d, left, right);
    for (int i = 0; i < 4; i++)
        y[(g + i / 2 * 8) * 8 + t + i % 2] = d[i];
}

kg_status kg_trial_mma(float *y, const uint16_t *a, const uint16_t *b, struct kg_err *err)
{
    KG_LAUNCH(multiply, kg_grid(1, 1), 32, y, a, b);
    return kg_dev_done("trial", err);
}
