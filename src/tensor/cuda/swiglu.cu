/* The gated activation h = silu(gate) up and its gradient: element by element in fp32,
 * rounded once at the store. */
#include "tensor/cuda/eights_internal.h"

/* 1 + e^-x in fewer steps than by kg_cuda_exp, as exponentials take half of the kernels'
 * time. An e^-x below 2^-24 adds nothing, so -x is clamped at -86: then 2^n is a normal
 * number, and one multiplication suffices; by 2^(n-1), because n may be 128. For NaN the
 * result is any number: callers multiply by x. */
static __device__ inline float one_plus_exp_minus(float x)
{
    const struct kg_cuda_exp_parts e = kg_cuda_exp_within(
        fminf(fmaxf(-x, -86.0f), 89.0f));
    const float p = kg_fma(e.poly, e.r, 1.0f);
    const uint32_t half = (kg_cuda_bits(e.n + 0x1.8p23f) << 23) + 0x3f000000u;

    return 1.0f + (p + p) * kg_cuda_of_bits(half);
}

/* x / (1 + e^-x): one division, so not x times the sigmoid */
static __global__ void __launch_bounds__(KG_ROW_THREADS, 12)
    swiglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up, bool together)
{
    const int64_t n = blockIdx.x, f = kg_cuda_eights_first();
    const struct kg_mat from[] = {gate, up};
    struct kg_cuda_eights x[2];
    float by[KG_EIGHT]; /* first, because divisions have branches */

    if (f >= h.cols)
        return;
    kg_cuda_load_eights(x, from, n, f, together);
#pragma unroll
    for (int i = 0; i < KG_EIGHT; i++)
        by[i] = one_plus_exp_minus(x[0].at[i]);
#pragma unroll
    for (int i = 0; i < KG_EIGHT; i++)
        x[0].at[i] = x[0].at[i] / by[i] * x[1].at[i];
    kg_cuda_store_eights(h, n, f, together, x[0]);
}

kg_status kg_cuda_swiglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                         struct kg_err *err)
{
    const bool together = kg_cuda_by_eights(h) && kg_cuda_by_eights(gate) &&
                          kg_cuda_by_eights(up);

    if (h.rows > 0 && h.cols > 0)
        KG_LAUNCH(swiglu, kg_cuda_eights_grid(h.rows, h.cols), KG_ROW_THREADS, h, gate,
                  up, together);
    return kg_dev_done("swiglu", err);
}

/* With s = sigmoid(g):
 *   dh/dup = g s,   dh/dg = up (s + g s (1 - s)) = up s (1 + g (1 - s)) */
static __global__ void __launch_bounds__(KG_ROW_THREADS, 10)
    swiglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
               struct kg_mat gate, struct kg_mat up, bool together)
{
    const int64_t n = blockIdx.x, f = kg_cuda_eights_first();
    const struct kg_mat from[] = {dh, gate, up};
    struct kg_cuda_eights x[3];
    float by[KG_EIGHT];

    if (f >= dh.cols)
        return;
    kg_cuda_load_eights(x, from, n, f, together);
#pragma unroll
    for (int i = 0; i < KG_EIGHT; i++)
        by[i] = one_plus_exp_minus(x[1].at[i]);
#pragma unroll
    for (int i = 0; i < KG_EIGHT; i++) {
        const float d = x[0].at[i], g = x[1].at[i], s = 1.0f / by[i];
        const float slope = s * kg_fma(g, 1.0f - s, 1.0f);

        x[2].at[i] = d * x[2].at[i] * slope;
        x[1].at[i] = d * (g * s);
    }
    kg_cuda_store_eights(dgate, n, f, together, x[2]);
    kg_cuda_store_eights(dup, n, f, together, x[1]);
}

kg_status kg_cuda_swiglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                             struct kg_mat gate, struct kg_mat up, struct kg_err *err)
{
    const bool together = kg_cuda_by_eights(dgate) && kg_cuda_by_eights(dup) &&
                          kg_cuda_by_eights(dh) && kg_cuda_by_eights(gate) &&
                          kg_cuda_by_eights(up);

    if (dh.rows > 0 && dh.cols > 0)
        KG_LAUNCH(swiglu_bwd, kg_cuda_eights_grid(dh.rows, dh.cols), KG_ROW_THREADS,
                  dgate, dup, dh, gate, up, together);
    return kg_dev_done("swiglu_bwd", err);
}
