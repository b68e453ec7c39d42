/* The optimizer's passes over all parameters: AdamW, schedule-free AdamW, the moving
 * average, a sum of squares.
 *
 * A thread has one element and computes as a lane of cpu/optim.c does; with moments in
 * bf16 it has the four elements whose random bits come from one block. The sum of squares
 * has the CPU's pieces with eight lanes each; the host adds the pieces in order.
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
/* Inputs of an update's random words (backend.h). */
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

/* words[j] <- the word of element e + j KG_DRAW_LANES; e begins a lane of its group */
static __device__ void draw(uint32_t words[4], const struct draws &d, int64_t e)
{
    const int64_t block = e / KG_DRAW_GROUP * KG_DRAW_LANES + e % KG_DRAW_LANES;

    words[0] = d.counter[0];
    words[1] = d.counter[1];
    words[2] = (uint32_t)block;
    words[3] = (uint32_t)(block >> 32);
    for (uint32_t round = 0; round < KG_RNG_ROUNDS; round++)
        kg_rng_round(&words[0], &words[1], &words[2], &words[3], round, d.key[0],
                     d.key[1]);
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

/* ---- a pass over all elements ---- */
/* Values of one element. AdamW: w, m, v; schedule-free AdamW: y, z, v. */
struct held {
    float w, m, v;
};
struct operands {
    float *w;
    struct kg_mat m, v;
    const float *g;
};

enum { RUNS = 48 /* of a launch, passed by value */ };
/* Elements [begin, end) of a launch, and their runs that are also stored rounded. */
struct span {
    int64_t begin, end;
    int32_t n;
    struct kg_rounded run[RUNS];
};

/* NULL: e is in no run. A warp's elements are adjacent, so they rarely diverge. */
static __device__ uint16_t *rounded_at(const struct span &s, int64_t e)
{
    int low = 0, high = s.n; /* the first run that ends after e */

    while (low < high) {
        const int mid = (low + high) / 2;

        if (e < s.run[mid].first + s.run[mid].n)
            high = mid;
        else
            low = mid + 1;
    }
    return low < s.n && e >= s.run[low].first ? s.run[low].to + (e - s.run[low].first)
                                              : NULL;
}

/* The runs are searched while the operands arrive. */
template <class RULE>
static __device__ void step(const struct operands &o, const RULE &rule,
                            const struct span &s, int64_t first, int64_t e, uint32_t word)
{
    const int64_t i = e - first;
    const float grad = o.g[i] * rule.grad_scale;
    const struct held old = {o.w[i], kg_cuda_load(o.m, 0, i), kg_cuda_load(o.v, 0, i)};
    uint16_t *to = rounded_at(s, e);
    const struct held now = rule.after(old, grad);

    o.w[i] = now.w;
    store_moment(o.m, i, now.m, word & 0xffffu);
    store_moment(o.v, i, now.v, word >> 16);
    if (to) {
        const struct kg_mat one = {to, KG_BF16, 1, 1, 1, KG_ROWS};

        kg_cuda_store(one, 0, 0, now.w);
    }
}

template <class RULE>
static __global__ void pass(struct operands o, RULE rule, struct draws d, struct span s)
{
    const int64_t e = s.begin + kg_cuda_flat();

    if (e < s.end)
        step(o, rule, s, d.first, e, 0);
}

/* Four elements of a group, KG_DRAW_LANES apart, whose words come from one block. */
template <class RULE>
static __global__ void drawing_pass(struct operands o, RULE rule, struct draws d,
                                    struct span s)
{
    const int64_t lane = s.begin / KG_DRAW_GROUP * KG_DRAW_LANES + kg_cuda_flat();
    const int64_t e = lane / KG_DRAW_LANES * KG_DRAW_GROUP + lane % KG_DRAW_LANES;
    uint32_t words[4];

    if (e >= s.end)
        return;
    draw(words, d, e);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int64_t at = e + j * KG_DRAW_LANES;

        if (at >= s.begin && at < s.end)
            step(o, rule, s, d.first, at, words[j]);
    }
}

template <class RULE>
static void launch(struct operands o, const RULE &rule, const struct kg_adamw *a,
                   const struct span &s)
{
    const int64_t groups = kg_cuda_pieces(s.end, KG_DRAW_GROUP) - s.begin / KG_DRAW_GROUP;

    if (o.m.dtype == KG_BF16 || o.v.dtype == KG_BF16)
        KG_LAUNCH(drawing_pass<RULE>, kg_cuda_all(groups * KG_DRAW_LANES),
                  KG_FLAT_THREADS, o, rule, draws_of(a), s);
    else
        KG_LAUNCH(pass<RULE>, kg_cuda_all(s.end - s.begin), KG_FLAT_THREADS, o, rule,
                  draws_of(a), s);
}

/* n elements: one launch, or several if there are many runs. */
template <class RULE>
static void launch_all(struct operands o, int64_t n, const RULE &rule,
                       const struct kg_adamw *a)
{
    const int64_t end = a->first + n;
    struct span s = {a->first, end, 0, {}};

    for (int32_t i = 0; s.begin < end; s.begin = s.end) {
        for (s.n = 0; s.n < RUNS && i < a->n_rounded; i++)
            s.run[s.n++] = a->rounded[i];
        s.end = i < a->n_rounded ? a->rounded[i].first / KG_DRAW_LANES * KG_DRAW_LANES
                                 : end;
        launch(o, rule, a, s);
    }
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

    __device__ struct held after(struct held x, float grad) const
    {
        const float m = kg_fma(b1, x.m, g1 * grad);
        const float v = kg_fma(b2, x.v, g2 * (grad * grad));
        const float root = kg_fma(sqrtf(v), inv_c2, eps);

        return {kg_fma(-rate, m / root, x.w * keep), m, v};
    }
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

kg_status kg_cuda_adamw(struct kg_vec w, struct kg_mat m, struct kg_mat v,
                        struct kg_vec g, const struct kg_adamw *a, struct kg_err *err)
{
    launch_all({w.data, m, v, g.data}, w.n, adamw_constants(a), a);
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

    __device__ struct held after(struct held x, float grad) const
    {
        const float v = kg_fma(b2, x.v, g2 * (grad * grad));
        const float root = kg_fma(sqrtf(v), inv_c2, eps);
        const float move = kg_fma(decay, x.w, grad / root);
        const float nearer = kg_fma(average, x.m - x.w, x.w);

        return {kg_fma(-y_rate, move, nearer), kg_fma(-z_rate, move, x.m), v};
    }
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

kg_status kg_cuda_schedule_free(struct kg_vec y, struct kg_vec z, struct kg_mat v,
                                struct kg_vec g, const struct kg_adamw *a,
                                struct kg_err *err)
{
    launch_all({y.data, kg_mat(z.data, KG_F32, 1, z.n), v, g.data}, y.n,
               schedule_free_constants(a), a);
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
/* The FMA does not round the product with the larger weight. */
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

/* sums[p] <- piece p: a lane adds every eighth element, the first lane also the rest */
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
