/* The operations that only encoders need: layer norm with a bias, and GELU by the error
 * function. Forward only.
 *
 * A row of the norm is two chains of lanes in column order, one for the mean and one for
 * the squares about it. GELU is computed by the complement of erf,
 *     gelu(x) = max(x, 0) - |x| erfc(|x| / sqrt 2) / 2
 * which loses no digit on either side, and one formula serves all x:
 *     erfc(z) = t exp(P(t) - z^2),   t = 2 / (2 + z) in (0, 1]
 * P is the polynomial through log(erfc(z) / t) + z^2 at ten Chebyshev points of [0, 1],
 * with an error of at most 2e-7 there.
 */
#include "tensor/cpu/cpu_internal.h"

/* ---- layer norm ---- */
static float row_mean(struct kg_mat x, int64_t n)
{
    struct kg_v16 sum = kg_v16_zero();

    for (int64_t d = 0; d < x.cols; d += KG_LANES)
        sum = kg_v16_add(sum, kg_cpu_load(x, n, d, kg_cpu_lanes(x.cols - d)));
    return kg_v16_sum(sum) / (float)x.cols;
}

/* x - mean, 0 in lanes after the row. */
static struct kg_v16 centred(struct kg_mat x, int64_t n, int64_t d, struct kg_v16 mean)
{
    const int lanes = kg_cpu_lanes(x.cols - d);
    struct kg_v16 v = kg_v16_sub(kg_cpu_load(x, n, d, lanes), mean);

    return lanes < KG_LANES ? kg_v16_first_n(v, lanes, kg_v16_zero()) : v;
}

static float row_inv(struct kg_mat x, int64_t n, struct kg_v16 mean, float eps)
{
    struct kg_v16 sum = kg_v16_zero();

    for (int64_t d = 0; d < x.cols; d += KG_LANES) {
        struct kg_v16 v = centred(x, n, d, mean);

        sum = kg_v16_fma(v, v, sum);
    }
    return 1.0f / sqrtf(kg_v16_sum(sum) / (float)x.cols + eps);
}

static void row_norm(struct kg_mat y, struct kg_mat x, int64_t n, const float *w,
                     const float *b, float eps)
{
    struct kg_v16 mean = kg_v16_set1(row_mean(x, n));
    struct kg_v16 inv = kg_v16_set1(row_inv(x, n, mean, eps));

    for (int64_t d = 0; d < x.cols; d += KG_LANES) {
        int lanes = kg_cpu_lanes(x.cols - d);
        struct kg_v16 v = kg_v16_mul(centred(x, n, d, mean), inv);

        v = kg_v16_fma(kg_v16_load_n(w + d, lanes), v, kg_v16_load_n(b + d, lanes));
        kg_cpu_store(y, n, d, v, lanes);
    }
}

kg_status kg_cpu_layernorm(struct kg_mat y, struct kg_mat x, struct kg_vec w,
                           struct kg_vec b, float eps, struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(x.rows * x.cols))
    for (int64_t n = 0; n < x.rows; n++)
        row_norm(y, x, n, w.data, b.data, eps);
    return KG_OK;
}

/* ---- GELU ---- */
static struct kg_v16 gelu(struct kg_v16 x)
{
    static const float P[] = {-1.26551231f,  1.00003777f,  0.373714841f, 0.100654198f,
                              -0.206139561f, 0.336006476f, -1.23176147f, 1.58359674f,
                              -0.872641654f, 0.182045106f};
    enum { DEGREE = sizeof P / sizeof *P - 1 };
    const struct kg_v16 zero = kg_v16_zero(), two = kg_v16_set1(2.0f);
    const struct kg_v16 size = kg_v16_max(x, kg_v16_sub(zero, x)); /* |x| */
    const struct kg_v16 z = kg_v16_mul(size, kg_v16_set1(0.70710678f));
    const struct kg_v16 t = kg_v16_div(two, kg_v16_add(two, z));
    struct kg_v16 p = kg_v16_set1(P[DEGREE]);

    for (int i = DEGREE - 1; i >= 0; i--)
        p = kg_v16_fma(p, t, kg_v16_set1(P[i]));
    p = kg_v16_mul(kg_v16_mul(t, kg_v16_set1(0.5f)), kg_v16_exp(kg_v16_fnma(z, z, p)));
    return kg_v16_fnma(size, p, kg_v16_max(x, zero));
}

kg_status kg_cpu_gelu(struct kg_mat y, struct kg_mat x, struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(x.rows * x.cols * 2))
    for (int64_t n = 0; n < x.rows; n++)
        for (int64_t f = 0; f < x.cols; f += KG_LANES) {
            int lanes = kg_cpu_lanes(x.cols - f);

            kg_cpu_store(y, n, f, gelu(kg_cpu_load(x, n, f, lanes)), lanes);
        }
    return KG_OK;
}
