/* Kernels with faults, for the emulation's own test: each is what a slip in a kernel of
 * the backend would be. */
#include "emu/emu_testing.h"
#include "tensor/cuda/cuda_internal.h"
#include "tensor/cuda/hopper.h"

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
    if (trial == KG_TRIAL_COPIES || trial == KG_TRIAL_OVER)
        kg_copies_wait<1>();
    __syncthreads();
    if (trial == KG_TRIAL_OVER && i < THREADS / 4)
        kg_copy_later(held + 4 * i, x + THREADS - 4 * (i + 1), 16);
    kg_copies_end();
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

enum { M = 64, N = 128, K = KG_BOX, BYTES = (M + N) * 2 * K };

static __device__ void bring(char *to, const struct kg_boxes *a, const struct kg_boxes *b,
                             struct kg_barrier *full, enum kg_trial_four trial)
{
    kg_barrier_expect(full, BYTES + (trial == KG_FOUR_SHORT ? 16 : 0));
    kg_box_later(to + (trial == KG_FOUR_ASKEW ? 128 : 0), a, 0, 0, full);
    kg_box_later(to + M * 2 * K, b, 0, 0, full);
    if (trial == KG_FOUR_MORE)
        kg_barrier_arrive(full);
}

static __device__ void add_all(float sums[N / 2], const char *a, const char *b,
                               enum kg_trial_four trial)
{
    if (trial != KG_FOUR_UNBEGUN)
        kg_products_begin();
    for (int k = 0; k < K / 16; k++)
        kg_multiply_later<N, false, false>(sums, kg_factors_at(a + 32 * k, 0, 1024),
                                           kg_factors_at(b + 32 * k, 0, 1024));
    kg_products_end();
    if (trial == KG_FOUR_WRITTEN)
        sums[threadIdx.x / 2] = 0.0f;
}

static __global__ void four(float *y, struct kg_boxes a, struct kg_boxes b,
                            enum kg_trial_four trial)
{
    KG_SHARED_ASKED(char, asked);
    char *at = (char *)(((uintptr_t)asked + KG_BOX_ALIGN - 1) / KG_BOX_ALIGN *
                        KG_BOX_ALIGN);
    struct kg_barrier *full = (struct kg_barrier *)(at + BYTES);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    float sums[N / 2] = {0.0f};

    if (threadIdx.x == 0) {
        kg_barrier_init(full, 1);
        kg_barriers_end();
    }
    __syncthreads();
    if (threadIdx.x == 0)
        bring(at, &a, &b, full, trial);
    if (trial != KG_FOUR_EARLY && trial != KG_FOUR_BOXES)
        kg_barrier_wait(full, 0, 1);
    __syncthreads();
    add_all(sums, at, at + M * 2 * K, trial);
    if (trial == KG_FOUR_OVER && threadIdx.x == 0)
        bring(at, &b, &a, full, trial);
    if (trial != KG_FOUR_SUMS && trial != KG_FOUR_LEFT)
        kg_products_wait<0>();
    for (int i = 0; i < N / 2; i++)
        y[(warp * 16 + lane / 4 + i / 2 % 2 * 8) * N + i / 4 * 8 + lane % 4 * 2 + i % 2] =
            sums[i];
    if (trial != KG_FOUR_LEFT)
        kg_products_wait<0>();
    if (trial == KG_FOUR_EARLY)
        kg_barrier_wait(full, 0, 1);
    if (trial == KG_FOUR_OVER)
        kg_barrier_wait(full, 1, 1);
}

kg_status kg_trial_four(enum kg_trial_four trial, float *y, const uint16_t *a,
                        const uint16_t *b, struct kg_err *err)
{
    const struct kg_mat left = kg_mat((void *)(uintptr_t)a, KG_BF16, M, K);
    const struct kg_mat right = kg_mat((void *)(uintptr_t)b, KG_BF16, N, K);
    struct kg_boxes from_a, from_b;

    if (!kg_dev_boxes(&from_a, left, M) || !kg_dev_boxes(&from_b, right, N))
        return kg_fail(err, KG_EINVAL, "no boxes");
    KG_LAUNCH_HOPPER(2 * KG_BOX_ALIGN + BYTES, four, kg_grid(1, 1), KG_FOUR_WARPS, y,
                     from_a, from_b, trial);
    return kg_dev_done("trial", err);
}

/* Rows of a to shared memory, and those of a thread's warp to its registers. */
static __device__ void write_rows(char *to, uint32_t left[K / 16][4], const uint16_t *a,
                                  enum kg_trial_two trial)
{
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4;

    for (int e = (int)threadIdx.x; e < M * K / 8; e += KG_FOUR_WARPS) {
        uint32_t part[4];

        memcpy(part, a + 8 * e, sizeof part);
        kg_write_later(to + kg_box_place(e / 8, e % 8), part);
    }
    if (trial != KG_TWO_UNENDED && trial != KG_TWO_WRITES)
        kg_writes_end();
    for (int k = 0; k < K / 16; k++)
        for (int i = 0; i < 4; i++)
            memcpy(&left[k][i],
                   a + (row + i % 2 * 8) * K + 16 * k + lane % 4 * 2 + i / 2 * 8,
                   sizeof left[k][i]);
}

static __global__ void two(float *y, const uint16_t *a, struct kg_boxes b,
                           enum kg_trial_two trial)
{
    KG_SHARED_ASKED(char, asked);
    char *at = (char *)(((uintptr_t)asked + KG_BOX_ALIGN - 1) / KG_BOX_ALIGN *
                        KG_BOX_ALIGN);
    char *right = at + M * 2 * K;
    struct kg_barrier *full = (struct kg_barrier *)(at + BYTES);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int eight = trial == KG_TWO_PLACE ? 512 : 1024;
    float sums[2][N / 4] = {{0.0f}};
    uint32_t left[K / 16][4];

    for (int i = 0; i < N / 4; i++)
        sums[0][i] = NAN; /* its first product does not add */
    if (threadIdx.x == 0) {
        kg_barrier_init(full, 1);
        kg_barriers_end();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        kg_barrier_expect(full, N * 2 * K);
        kg_box_later(right, &b, 0, 0, full);
    }
    write_rows(at, left, a, trial);
    kg_barrier_wait(full, 0, 1);
    __syncthreads();
    kg_products_begin();
    for (int k = 0; k < K / 16; k++)
        kg_multiply_later<N / 2, false, false>(
            sums[0], kg_factors_at(at + 32 * k, 0, 1024),
            kg_factors_at(right + 32 * k, 0, eight), k > 0);
    kg_products_end();
    if (trial == KG_TWO_AGAIN)
        kg_products_wait<0>();
    for (int k = 0; k < K / 16; k++)
        kg_multiply_later<N / 2, false>(
            sums[1], left[k], kg_factors_at(right + N / 2 * 2 * K + 32 * k, 0, 1024));
    kg_products_end();
    if (trial == KG_TWO_CHANGED)
        left[1][2] = 0;
    if (trial == KG_TWO_FIRST)
        kg_products_wait<1>();
    else
        kg_products_wait<0>();
    for (int i = 0; i < N / 2; i++)
        y[(warp * 16 + lane / 4 + i / 2 % 2 * 8) * N + i / 4 * 8 + lane % 4 * 2 + i % 2] =
            sums[i / (N / 4)][i % (N / 4)];
    kg_products_wait<0>();
    if (trial == KG_TWO_UNENDED)
        kg_writes_end();
}

kg_status kg_trial_two(enum kg_trial_two trial, float *y, const uint16_t *a,
                       const uint16_t *b, struct kg_err *err)
{
    struct kg_boxes from;

    if (!kg_dev_boxes(&from, kg_mat((void *)(uintptr_t)b, KG_BF16, N, K), N))
        return kg_fail(err, KG_EINVAL, "no boxes");
    KG_LAUNCH_HOPPER(2 * KG_BOX_ALIGN + BYTES, two, kg_grid(1, 1), KG_FOUR_WARPS, y, a,
                     from, trial);
    return kg_dev_done("trial", err);
}
