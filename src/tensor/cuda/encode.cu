/* The operations that only encoders need: layer norm with a bias, and GELU by the error
 * function. cpu/encode.c has the formulas.
 *
 * Sixteen threads compute a row of the norm, one for each of the CPU's lanes. They read
 * it three times, for its mean, for the squares about it and for the result; the last two
 * times it is in a cache.
 */
#include "tensor/cuda/eights_internal.h"

enum { AT_ONCE = KG_CUDA_AT_ONCE, TURN = KG_CUDA_TURN };

/* ---- layer norm ---- */
/* A lane's part of a row, less its mean; 0 after the row's end. */
static __device__ void centred(float x[AT_ONCE], const float *row, float mean, int64_t d,
                               int64_t end)
{
    kg_cuda_take(x, row, d, end);
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        x[i] = d + i * KG_CUDA_LANES < end ? x[i] - mean : 0.0f;
}

static __device__ float row_mean(const float *row, const struct kg_cuda_lane &l,
                                 int64_t cols)
{
    float sum = 0.0f, v[AT_ONCE];

    for (int64_t d = l.first; l.there && d < cols; d += TURN) {
        kg_cuda_take(v, row, d, cols);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) /* adding 0 changes no sum that began at +0 */
            sum += v[i];
    }
    return kg_cuda_sum_lanes(sum) / (float)cols;
}

static __device__ float row_inv(const float *row, const struct kg_cuda_lane &l,
                                float mean, float eps, int64_t cols)
{
    float sum = 0.0f, v[AT_ONCE];

    for (int64_t d = l.first; l.there && d < cols; d += TURN) {
        centred(v, row, mean, d, cols);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            sum = kg_fma(v[i], v[i], sum);
    }
    return 1.0f / sqrtf(kg_cuda_sum_lanes(sum) / (float)cols + eps);
}

static __global__ void layernorm(struct kg_mat y, struct kg_mat x, struct kg_vec w,
                                 struct kg_vec b, float eps)
{
    const struct kg_cuda_lane l = kg_cuda_lane_of(x.rows);
    const float *row = kg_cuda_f32(x, l.row);
    const float mean = row_mean(row, l, x.cols);
    const float inv = row_inv(row, l, mean, eps, x.cols);
    float v[AT_ONCE], by[AT_ONCE], onto[AT_ONCE];

    for (int64_t d = l.first; l.there && d < x.cols; d += TURN) {
        centred(v, row, mean, d, x.cols);
        kg_cuda_take(by, w.data, d, x.cols);
        kg_cuda_take(onto, b.data, d, x.cols);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (d + i * KG_CUDA_LANES < x.cols)
                kg_cuda_store(y, l.row, d + i * KG_CUDA_LANES,
                              kg_fma(by[i], v[i] * inv, onto[i]));
    }
}

kg_status kg_cuda_layernorm(struct kg_mat y, struct kg_mat x, struct kg_vec w,
                            struct kg_vec b, float eps, struct kg_err *err)
{
    if (x.rows > 0)
        KG_LAUNCH(layernorm, kg_cuda_lanes(x.rows), KG_ROW_THREADS, y, x, w, b, eps);
    return kg_dev_done("layernorm", err);
}

/* ---- GELU ---- */
static __device__ inline float gelu_of(float x)
{
    const float P[] = {-1.26551231f,  1.00003777f,  0.373714841f, 0.100654198f,
                       -0.206139561f, 0.336006476f, -1.23176147f, 1.58359674f,
                       -0.872641654f, 0.182045106f};
    enum { DEGREE = sizeof P / sizeof *P - 1 };
    const float minus = 0.0f - x, size = x > minus ? x : minus; /* |x| */
    const float z = size * 0.70710678f, t = 2.0f / (2.0f + z);
    float p = P[DEGREE];

#pragma unroll
    for (int i = DEGREE - 1; i >= 0; i--)
        p = kg_fma(p, t, P[i]);
    p = t * 0.5f * kg_cuda_exp(kg_fma(-z, z, p));
    return kg_fma(-size, p, x > 0.0f ? x : 0.0f);
}

static __global__ void gelu(struct kg_mat y, struct kg_mat x, bool together)
{
    const int64_t n = blockIdx.x, f = kg_cuda_eights_first();
    struct kg_cuda_eights v;

    if (f >= y.cols)
        return;
    v = kg_cuda_load_eights(x, n, f, together);
#pragma unroll
    for (int i = 0; i < KG_EIGHT; i++)
        v.at[i] = gelu_of(v.at[i]);
    kg_cuda_store_eights(y, n, f, together, v);
}

kg_status kg_cuda_gelu(struct kg_mat y, struct kg_mat x, struct kg_err *err)
{
    const bool together = kg_cuda_by_eights(y) && kg_cuda_by_eights(x);

    if (y.rows > 0 && y.cols > 0)
        KG_LAUNCH(gelu, kg_cuda_eights_grid(y.rows, y.cols), KG_ROW_THREADS, y, x,
                  together);
    return kg_dev_done("gelu", err);
}
