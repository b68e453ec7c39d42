/* The optimizer's passes over all parameters: AdamW, schedule-free AdamW, the moving
 * average, a sum of squares.
 *
 * A thread has an element and does what a lane of cpu/optim.c does, which explains it.
 * The sum of squares has the CPU's pieces and eight lanes for each; the host adds the
 * pieces in order.
 */
extern "C" {
#include "base/mem.h"
#include "base/real.h"
#include "base/rng.h"
}
#include "tensor/cuda/cuda_internal.h"

#define KG_RNG static __device__ inline
#include "base/rng_inline.h"

/* ---- moments ---- */
/* What backend.h draws the words of an update from. */
struct draws {
    uint32_t counter[4]; /* of block 0 */
    uint32_t key[2];
    int64_t first;
};

static struct draws draws_of(const struct kg_adamw *a)
{
    struct draws d = {
        {0}, {(uint32_t)a->rounding.seed, (uint32_t)(a->rounding.seed >> 32)}, a->first};

    kg_rng_counter(d.counter, a->rounding, (uint64_t)a->step, 0, 0);
    return d;
}

/* The word of element i, where a moment is bf16. */
static __device__ uint32_t draw(struct draws d, int64_t i)
{
    const int64_t at = d.first + i;
    const int64_t block = at / KG_DRAW_GROUP * KG_DRAW_LANES + at % KG_DRAW_LANES;
    uint32_t x[4] = {d.counter[0], d.counter[1], (uint32_t)block,
                     (uint32_t)(block >> 32)};

    for (uint32_t round = 0; round < KG_RNG_ROUNDS; round++)
        kg_rng_round(&x[0], &x[1], &x[2], &x[3], round, d.key[0], d.key[1]);
    switch (at / KG_DRAW_LANES % 4) {
    case 0:
        return x[0];
    case 1:
        return x[1];
    case 2:
        return x[2];
    }
    return x[3];
}

static __device__ void store_moment(struct kg_mat m, int64_t i, float x, uint32_t bits)
{
    const uint32_t u = kg_cuda_bits(x);
    const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;

    if (m.dtype == KG_F32)
        kg_cuda_f32(m, 0)[i] = x;
    else
        kg_cuda_bf16(m, 0)[i] = (uint16_t)((is_nan ? u | 0x400000u : u + bits) >> 16);
}

/* ---- AdamW ---- */
struct adamw {
    float b1;
    float b2;
    float g1; /* 1 - b1 */
    float g2; /* 1 - b2 */
    float grad_scale;
    float rate;   /* lr / (1 - b1^t) */
    float inv_c2; /* 1 / sqrt(1 - b2^t) */
    float eps;
    float keep; /* 1 - lr decay */
};

static struct adamw adamw_constants(const struct kg_adamw *a)
{
    const double c1 = 1.0 - kg_power((double)a->beta1, a->step);
    const double c2 = 1.0 - kg_power((double)a->beta2, a->step);

    return {a->beta1,
            a->beta2,
            (float)(1.0 - (double)a->beta1),
            (float)(1.0 - (double)a->beta2),
            a->grad_scale,
            (float)((double)a->lr / c1),
            (float)(1.0 / sqrt(c2)),
            a->eps,
            (float)(1.0 - (double)a->lr * (double)a->weight_decay)};
}

static __global__ void adamw(struct kg_vec w, struct kg_mat m, struct kg_mat v,
                             struct kg_vec g, struct adamw k, struct draws d)
{
    const int64_t i = kg_cuda_flat();

    if (i < w.n) {
        const bool rounds = m.dtype == KG_BF16 || v.dtype == KG_BF16;
        const uint32_t word = rounds ? draw(d, i) : 0;
        const float grad = g.data[i] * k.grad_scale;
        const float m1 = kg_fma(k.b1, kg_cuda_load(m, 0, i), k.g1 * grad);
        const float v1 = kg_fma(k.b2, kg_cuda_load(v, 0, i), k.g2 * (grad * grad));
        const float root = kg_fma(sqrtf(v1), k.inv_c2, k.eps);

        w.data[i] = kg_fma(-k.rate, m1 / root, w.data[i] * k.keep);
        store_moment(m, i, m1, word & 0xffffu);
        store_moment(v, i, v1, word >> 16);
    }
}

kg_status kg_cuda_adamw(struct kg_vec w, struct kg_mat m, struct kg_mat v,
                        struct kg_vec g, const struct kg_adamw *a, struct kg_err *err)
{
    if (w.n > 0)
        KG_LAUNCH(adamw, kg_cuda_all(w.n), KG_FLAT_THREADS, w, m, v, g,
                  adamw_constants(a), draws_of(a));
    return kg_dev_done("adamw", err);
}

/* ---- schedule-free AdamW ---- */
struct schedule_free {
    float b2;
    float g2; /* 1 - b2 */
    float grad_scale;
    float inv_c2; /* 1 / sqrt(1 - b2^t) */
    float eps;
    float decay;
    float average;
    float y_rate; /* lr (1 - b1 (1 - c)) */
    float z_rate; /* lr */
};

static struct schedule_free schedule_free_constants(const struct kg_adamw *a)
{
    const double c2 = 1.0 - kg_power((double)a->beta2, a->step);
    const double moves = 1.0 - (double)a->beta1 * (1.0 - (double)a->average);

    return {a->beta2,      (float)(1.0 - (double)a->beta2),
            a->grad_scale, (float)(1.0 / sqrt(c2)),
            a->eps,        a->weight_decay,
            a->average,    (float)((double)a->lr * moves),
            a->lr};
}

static __global__ void schedule_free(struct kg_vec y, struct kg_vec z, struct kg_mat v,
                                     struct kg_vec g, struct schedule_free k,
                                     struct draws d)
{
    const int64_t i = kg_cuda_flat();

    if (i < y.n) {
        const float grad = g.data[i] * k.grad_scale;
        const float v1 = kg_fma(k.b2, kg_cuda_load(v, 0, i), k.g2 * (grad * grad));
        const float root = kg_fma(sqrtf(v1), k.inv_c2, k.eps);
        const float y0 = y.data[i], z0 = z.data[i];
        const float move = kg_fma(k.decay, y0, grad / root);
        const float nearer = kg_fma(k.average, z0 - y0, y0);

        y.data[i] = kg_fma(-k.y_rate, move, nearer);
        z.data[i] = kg_fma(-k.z_rate, move, z0);
        store_moment(v, i, v1, v.dtype == KG_BF16 ? draw(d, i) >> 16 : 0);
    }
}

kg_status kg_cuda_schedule_free(struct kg_vec y, struct kg_vec z, struct kg_mat v,
                                struct kg_vec g, const struct kg_adamw *a,
                                struct kg_err *err)
{
    if (y.n > 0)
        KG_LAUNCH(schedule_free, kg_cuda_all(y.n), KG_FLAT_THREADS, y, z, v, g,
                  schedule_free_constants(a), draws_of(a));
    return kg_dev_done("schedule_free", err);
}

/* x = y + (1/b1 - 1) (y - z) */
static __global__ void average(struct kg_vec x, struct kg_vec y, struct kg_vec z,
                               float beyond)
{
    const int64_t i = kg_cuda_flat();

    if (i < x.n)
        x.data[i] = kg_fma(beyond, y.data[i] - z.data[i], y.data[i]);
}

kg_status kg_cuda_schedule_free_average(struct kg_vec x, struct kg_vec y, struct kg_vec z,
                                        float beta1, struct kg_err *err)
{
    if (x.n > 0)
        KG_LAUNCH(average, kg_cuda_all(x.n), KG_FLAT_THREADS, x, y, z,
                  (float)(1.0 / (double)beta1 - 1.0));
    return kg_dev_done("schedule_free_average", err);
}

/* ---- moving average ---- */
/* The product with the larger weight is not rounded before the sum. */
static __global__ void ema(struct kg_vec avg, struct kg_vec w, bool keeps, float large,
                           float small)
{
    const int64_t i = kg_cuda_flat();

    if (i < avg.n) {
        const float more = keeps ? avg.data[i] : w.data[i];
        const float less = keeps ? w.data[i] : avg.data[i];

        avg.data[i] = kg_fma(large, more, small * less);
    }
}

kg_status kg_cuda_ema(struct kg_vec avg, struct kg_vec w, float eta, struct kg_err *err)
{
    const bool keeps = eta >= 0.5f;
    const float large = keeps ? eta : (float)(1.0 - (double)eta);

    if (avg.n > 0)
        KG_LAUNCH(ema, kg_cuda_all(avg.n), KG_FLAT_THREADS, avg, w, keeps, large,
                  1.0f - large);
    return kg_dev_done("ema", err);
}

/* ---- sum ---- */
static __global__ void add(struct kg_vec y, struct kg_vec x)
{
    const int64_t i = kg_cuda_flat();

    if (i < y.n)
        y.data[i] += x.data[i];
}

kg_status kg_cuda_add(struct kg_vec y, struct kg_vec x, struct kg_err *err)
{
    if (y.n > 0)
        KG_LAUNCH(add, kg_cuda_all(y.n), KG_FLAT_THREADS, y, x);
    return kg_dev_done("add", err);
}

static __global__ void scale(struct kg_vec y, float factor)
{
    const int64_t i = kg_cuda_flat();

    if (i < y.n)
        y.data[i] *= factor;
}

kg_status kg_cuda_scale(struct kg_vec y, float factor, struct kg_err *err)
{
    if (y.n > 0)
        KG_LAUNCH(scale, kg_cuda_all(y.n), KG_FLAT_THREADS, y, factor);
    return kg_dev_done("scale", err);
}

/* ---- sum of squares ---- */
enum { PIECE = 16384 /* elements */, LANES = 8 };

static __device__ double square(struct kg_vec x, struct kg_vec minus, int64_t i)
{
    const double d = (double)x.data[i] - (minus.data ? (double)minus.data[i] : 0.0);

    return d * d;
}

/* sums[p] <- piece p: a lane every eighth element, the first also what is left over */
static __global__ void piece_squares(double *sums, struct kg_vec x, struct kg_vec minus)
{
    const int64_t p = kg_cuda_flat() / LANES, first = p * PIECE;
    const int lane = (int)(threadIdx.x % LANES);
    const int64_t n = kg_cuda_min(x.n - first, PIECE);
    double sum = 0.0;

    for (int64_t i = lane; i < n / LANES * LANES; i += LANES)
        sum += square(x, minus, first + i);
    for (int64_t i = n / LANES * LANES; lane == 0 && i >= 0 && i < n; i++)
        sum += square(x, minus, first + i);
    for (unsigned by = LANES / 2; by > 0; by /= 2)
        sum += __shfl_xor_sync(~0u, sum, by);
    if (lane == 0 && n > 0)
        sums[p] = sum;
}

kg_status kg_cuda_sum_squares(double *out, struct kg_vec x, struct kg_vec minus,
                              struct kg_err *err)
{
    const int64_t pieces = kg_cuda_pieces(x.n, PIECE);
    const uint64_t bytes = (uint64_t)pieces * sizeof *out;
    double *there = (double *)kg_cuda_scratch(bytes + 1, err), *sums;

    if (!there)
        return err->code;
    sums = (double *)kg_mem_calloc(bytes + 1, 1, "sums of squares", err);
    if (!sums)
        return err->code;
    if (pieces > 0)
        KG_LAUNCH(piece_squares, kg_cuda_all(pieces * LANES), KG_FLAT_THREADS, there, x,
                  minus);
    kg_cuda_down(sums, there, bytes);
    *out = 0.0;
    for (int64_t p = 0; p < pieces; p++)
        *out += sums[p];
    kg_mem_free(sums);
    return kg_dev_done("sum_squares", err);
}
