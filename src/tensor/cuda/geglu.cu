/* The gated activation h = gelu(gate) up with GELU by tanh, and its gradient: element by
 * element in fp32. cpu/geglu.c has the formulas. */
#include "tensor/cuda/eights_internal.h"

#define A 0.7978845608028654f /* sqrt(2 / pi) */
#define B 0.044715f

/* tanh(a (x + b x^3)) */
static __device__ inline float bend(float x)
{
    return kg_cuda_tanh(A * x * kg_fma(B * x, x, 1.0f));
}

static __global__ void geglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                             bool together)
{
    const int64_t n = blockIdx.x, f = kg_cuda_eights_first();
    const struct kg_mat from[] = {gate, up};
    struct kg_cuda_eights x[2];

    if (f >= h.cols)
        return;
    kg_cuda_load_eights(x, from, n, f, together);
#pragma unroll
    for (int i = 0; i < KG_EIGHT; i++) {
        const float g = x[0].at[i], y = g * kg_fma(0.5f, bend(g), 0.5f);

        x[0].at[i] = y * x[1].at[i];
    }
    kg_cuda_store_eights(h, n, f, together, x[0]);
}

kg_status kg_cuda_geglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                        struct kg_err *err)
{
    const bool together = kg_cuda_by_eights(h) && kg_cuda_by_eights(gate) &&
                          kg_cuda_by_eights(up);

    if (h.rows > 0 && h.cols > 0)
        KG_LAUNCH(geglu, kg_cuda_eights_grid(h.rows, h.cols), KG_ROW_THREADS, h, gate, up,
                  together);
    return kg_dev_done("geglu", err);
}

static __global__ void geglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                                 struct kg_mat gate, struct kg_mat up, bool together)
{
    const int64_t n = blockIdx.x, f = kg_cuda_eights_first();
    const struct kg_mat from[] = {dh, gate, up};
    struct kg_cuda_eights y[3];

    if (f >= dh.cols)
        return;
    kg_cuda_load_eights(y, from, n, f, together);
#pragma unroll
    for (int i = 0; i < KG_EIGHT; i++) {
        const float d = y[0].at[i], x = y[1].at[i];
        const float t = bend(x), half = kg_fma(0.5f, t, 0.5f);
        const float curve = kg_fma(-t, t, 1.0f) * kg_fma(3.0f * B * x, x, 1.0f);

        y[2].at[i] = d * y[2].at[i] * kg_fma(0.5f * A * x, curve, half);
        y[1].at[i] = d * (x * half);
    }
    kg_cuda_store_eights(dgate, n, f, together, y[2]);
    kg_cuda_store_eights(dup, n, f, together, y[1]);
}

kg_status kg_cuda_geglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                            struct kg_mat gate, struct kg_mat up, struct kg_err *err)
{
    const bool together = kg_cuda_by_eights(dgate) && kg_cuda_by_eights(dup) &&
                          kg_cuda_by_eights(dh) && kg_cuda_by_eights(gate) &&
                          kg_cuda_by_eights(up);

    if (dh.rows > 0 && dh.cols > 0)
        KG_LAUNCH(geglu_bwd, kg_cuda_eights_grid(dh.rows, dh.cols), KG_ROW_THREADS, dgate,
                  dup, dh, gate, up, together);
    return kg_dev_done("geglu_bwd", err);
}
