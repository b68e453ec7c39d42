/* The gated activation h = silu(gate) up and its gradient: element by element in fp32,
 * rounded once at the store. */
#include "tensor/cuda/cuda_internal.h"

/* x / (1 + e^-x): one division, so not x times the sigmoid */
static __global__ void swiglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up)
{
    const int64_t n = blockIdx.x, end = kg_cuda_end(h.cols);

    for (int64_t f = kg_cuda_first(); f < end; f += KG_ROW_THREADS) {
        const float x = kg_cuda_load(gate, n, f);
        const float silu = x / (1.0f + kg_cuda_exp(0.0f - x));

        kg_cuda_store(h, n, f, silu * kg_cuda_load(up, n, f));
    }
}

kg_status kg_cuda_swiglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                         struct kg_err *err)
{
    if (h.rows > 0 && h.cols > 0)
        KG_LAUNCH(swiglu, kg_cuda_rows(h.rows, h.cols), KG_ROW_THREADS, h, gate, up);
    return kg_dev_done("swiglu", err);
}

/* With s = sigmoid(g):
 *   dh/dup = g s,   dh/dg = up (s + g s (1 - s)) = up s (1 + g (1 - s)) */
static __global__ void swiglu_bwd(struct kg_mat dgate, struct kg_mat dup,
                                  struct kg_mat dh, struct kg_mat gate, struct kg_mat up)
{
    const int64_t n = blockIdx.x, end = kg_cuda_end(dh.cols);

    for (int64_t f = kg_cuda_first(); f < end; f += KG_ROW_THREADS) {
        const float d = kg_cuda_load(dh, n, f), g = kg_cuda_load(gate, n, f);
        const float u = kg_cuda_load(up, n, f);
        const float s = 1.0f / (1.0f + kg_cuda_exp(0.0f - g));
        const float slope = s * kg_fma(g, 1.0f - s, 1.0f);

        kg_cuda_store(dgate, n, f, d * u * slope);
        kg_cuda_store(dup, n, f, d * (g * s));
    }
}

kg_status kg_cuda_swiglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                             struct kg_mat gate, struct kg_mat up, struct kg_err *err)
{
    if (dh.rows > 0 && dh.cols > 0)
        KG_LAUNCH(swiglu_bwd, kg_cuda_rows(dh.rows, dh.cols), KG_ROW_THREADS, dgate, dup,
                  dh, gate, up);
    return kg_dev_done("swiglu_bwd", err);
}
