/* The gated activation h = silu(gate) up and its gradient: element by element in fp32,
 * rounded once at the store. */
#include "tensor/cuda/eights_internal.h"

/* x / (1 + e^-x): one division, so not x times the sigmoid */
static __global__ void swiglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                              bool together)
{
    const int64_t n = blockIdx.x, f = kg_cuda_eights_first();
    struct kg_cuda_eights x, u;

    if (f >= h.cols)
        return;
    x = kg_cuda_load_eights(gate, n, f, together);
    u = kg_cuda_load_eights(up, n, f, together);
#pragma unroll
    for (int i = 0; i < KG_EIGHT; i++)
        x.at[i] = x.at[i] / (1.0f + kg_cuda_exp(0.0f - x.at[i])) * u.at[i];
    kg_cuda_store_eights(h, n, f, together, x);
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
static __global__ void swiglu_bwd(struct kg_mat dgate, struct kg_mat dup,
                                  struct kg_mat dh, struct kg_mat gate, struct kg_mat up,
                                  bool together)
{
    const int64_t n = blockIdx.x, f = kg_cuda_eights_first();
    struct kg_cuda_eights d, g, u;

    if (f >= dh.cols)
        return;
    d = kg_cuda_load_eights(dh, n, f, together);
    g = kg_cuda_load_eights(gate, n, f, together);
    u = kg_cuda_load_eights(up, n, f, together);
#pragma unroll
    for (int i = 0; i < KG_EIGHT; i++) {
        const float s = 1.0f / (1.0f + kg_cuda_exp(0.0f - g.at[i]));
        const float slope = s * kg_fma(g.at[i], 1.0f - s, 1.0f);

        u.at[i] = d.at[i] * u.at[i] * slope;
        g.at[i] = d.at[i] * (g.at[i] * s);
    }
    kg_cuda_store_eights(dgate, n, f, together, u);
    kg_cuda_store_eights(dup, n, f, together, g);
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
