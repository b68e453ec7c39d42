/* The gated activation h = gelu(gate) up with GELU by tanh, and its gradient: element by
 * element in fp32, as cpu/geglu.c, which has the formulas. */
#include "tensor/cuda/cuda_internal.h"

#define A 0.7978845608028654f /* sqrt(2 / pi) */
#define B 0.044715f

/* tanh(a (x + b x^3)) */
static __device__ inline float bend(float x)
{
    return kg_cuda_tanh(A * x * kg_fma(B * x, x, 1.0f));
}

static __global__ void geglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up)
{
    const int64_t n = blockIdx.x, end = kg_cuda_end(h.cols);

    for (int64_t f = kg_cuda_first(); f < end; f += KG_ROW_THREADS) {
        const float x = kg_cuda_load(gate, n, f);
        const float y = x * kg_fma(0.5f, bend(x), 0.5f);

        kg_cuda_store(h, n, f, y * kg_cuda_load(up, n, f));
    }
}

kg_status kg_cuda_geglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                        struct kg_err *err)
{
    if (h.rows > 0 && h.cols > 0)
        KG_LAUNCH(geglu, kg_cuda_rows(h.rows, h.cols), KG_ROW_THREADS, h, gate, up);
    return kg_dev_done("geglu", err);
}

static __global__ void geglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                                 struct kg_mat gate, struct kg_mat up)
{
    const int64_t n = blockIdx.x, end = kg_cuda_end(dh.cols);

    for (int64_t f = kg_cuda_first(); f < end; f += KG_ROW_THREADS) {
        const float d = kg_cuda_load(dh, n, f), x = kg_cuda_load(gate, n, f);
        const float u = kg_cuda_load(up, n, f);
        const float t = bend(x), half = kg_fma(0.5f, t, 0.5f);
        const float curve = kg_fma(-t, t, 1.0f) * kg_fma(3.0f * B * x, x, 1.0f);

        kg_cuda_store(dgate, n, f, d * u * kg_fma(0.5f * A * x, curve, half));
        kg_cuda_store(dup, n, f, d * (x * half));
    }
}

kg_status kg_cuda_geglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                            struct kg_mat gate, struct kg_mat up, struct kg_err *err)
{
    if (dh.rows > 0 && dh.cols > 0)
        KG_LAUNCH(geglu_bwd, kg_cuda_rows(dh.rows, dh.cols), KG_ROW_THREADS, dgate, dup,
                  dh, gate, up);
    return kg_dev_done("geglu_bwd", err);
}
