/* Kernels with faults, for the emulation's own test: each is what a slip in a kernel of
 * the backend would be. */
#include "emu/emu_testing.h"
#include "tensor/cuda/cuda_internal.h"

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

static __global__ void reverse_copied(float *y, const float *x, enum kg_trial trial)
{
    KG_SHARED_ASKED(float, held);
    const int i = (int)threadIdx.x;

    if (i < THREADS / 4)
        kg_copy_later(held + 4 * i, x + 4 * i + (trial == KG_TRIAL_ASKEW), 16);
    kg_copies_end();
    kg_copies_end();
    if (trial == KG_TRIAL_COPIES)
        kg_copies_wait<1>();
    __syncthreads();
    y[i] = held[THREADS - 1 - i];
    if (trial != KG_TRIAL_LEFT)
        kg_copies_wait<0>();
}

kg_status kg_trial_run(enum kg_trial trial, float *y, const float *x, struct kg_err *err)
{
    const int bytes = trial == KG_TRIAL_ASKS ? (int)KG_ASKED_MOST + 16
                                             : THREADS * (int)sizeof *x;
    const int threads = trial == KG_TRIAL_TOO_MANY ? 2048 : THREADS;

    if (trial >= KG_TRIAL_COPIES)
        KG_LAUNCH_ASKING(bytes, reverse_copied, kg_grid(1, 1), THREADS, y, x, trial);
    else
        KG_LAUNCH(reverse, kg_grid(trial != KG_TRIAL_NO_BLOCK, 1), threads, y, x, trial,
                  trial == KG_TRIAL_BEYOND ? 1 : 0);
    return kg_dev_done("trial", err);
}

struct alignas(16) kg_trial_tile {
    uint16_t a[16][16];
    uint16_t rows[16][16]; /* b, and zeros */
    uint16_t b[16][16];    /* the same transposed */
};

/* y <- a b^T; both ways to bring b give the same, or it is no number. */
static __global__ void multiply(float *y, const uint16_t *a, const uint16_t *b, int askew)
{
    KG_SHARED(struct kg_trial_tile, shared, [1]);
    struct kg_trial_tile &held = shared[0];
    const int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4 * 2;
    uint32_t left[4], right[4], down[4];
    float d[4] = {0.0f};

    for (int i = lane; i < 16 * 16; i += 32) {
        held.a[i / 16][i % 16] = a[i];
        held.b[i % 16][i / 16] = held.rows[i / 16][i % 16] = i < 8 * 16 ? b[i] : 0;
    }
    __syncthreads();
    kg_fragments(left, &held.a[lane % 16][lane / 16 * 8 + askew]);
    kg_fragments(right, &held.rows[lane % 8][lane / 8 % 2 * 8]);
    kg_fragments_transposed(down, &held.b[lane % 16][0]);
    kg_mma(d, left, right);
    for (int i = 0; i < 4; i++)
        y[(g + i / 2 * 8) * 8 + t + i % 2] = right[i % 2] == down[i % 2] ? d[i] : NAN;
}

kg_status kg_trial_mma(float *y, const uint16_t *a, const uint16_t *b, int askew,
                       struct kg_err *err)
{
    KG_LAUNCH(multiply, kg_grid(1, 1), 32, y, a, b, askew);
    return kg_dev_done("trial", err);
}
