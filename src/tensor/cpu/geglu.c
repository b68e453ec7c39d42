/* The gated activation h = gelu(gate) up with GELU by tanh, and its gradient.
 *
 * Computed lane by lane in fp32 and rounded once at the store, as in swiglu.c. With
 *     u = a (x + b x^3),   t = tanh u:   gelu = x (1 + t) / 2
 *     gelu' = (1 + t) / 2 + x (1 - t^2) a (1 + 3 b x^2) / 2
 */
#include "tensor/cpu/cpu_internal.h"

static const float A = 0.7978845608028654f; /* sqrt(2 / pi) */
static const float B = 0.044715f;

/* tanh(a (x + b x^3)) */
static inline struct kg_v16 bend(struct kg_v16 x)
{
    struct kg_v16 one = kg_v16_set1(1.0f);
    struct kg_v16 cubic = kg_v16_fma(kg_v16_mul(kg_v16_set1(B), x), x, one);
    return kg_v16_tanh(kg_v16_mul(kg_v16_mul(kg_v16_set1(A), x), cubic));
}

/* (1 + t) / 2 */
static inline struct kg_v16 gate_of(struct kg_v16 t)
{
    struct kg_v16 half = kg_v16_set1(0.5f);
    return kg_v16_fma(half, t, half);
}

/* gelu'(x), given t = bend(x) */
static inline struct kg_v16 slope_of(struct kg_v16 x, struct kg_v16 t)
{
    struct kg_v16 one = kg_v16_set1(1.0f);
    struct kg_v16 inner = kg_v16_fma(kg_v16_mul(kg_v16_set1(3.0f * B), x), x, one);
    struct kg_v16 curve = kg_v16_mul(kg_v16_fnma(t, t, one), inner);
    return kg_v16_fma(kg_v16_mul(kg_v16_set1(0.5f * A), x), curve, gate_of(t));
}

kg_status kg_cpu_geglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                       struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(h.rows * h.cols * 2))
    for (int64_t n = 0; n < h.rows; n++)
        for (int64_t f = 0; f < h.cols; f += KG_LANES) {
            int lanes = kg_cpu_lanes(h.cols - f);
            struct kg_v16 g = kg_cpu_load(gate, n, f, lanes);
            struct kg_v16 y = kg_v16_mul(g, gate_of(bend(g)));
            kg_cpu_store(h, n, f, kg_v16_mul(y, kg_cpu_load(up, n, f, lanes)), lanes);
        }
    return KG_OK;
}

kg_status kg_cpu_geglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                           struct kg_mat gate, struct kg_mat up, struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(dh.rows * dh.cols * 4))
    for (int64_t n = 0; n < dh.rows; n++)
        for (int64_t f = 0; f < dh.cols; f += KG_LANES) {
            int lanes = kg_cpu_lanes(dh.cols - f);
            struct kg_v16 d = kg_cpu_load(dh, n, f, lanes);
            struct kg_v16 g = kg_cpu_load(gate, n, f, lanes);
            struct kg_v16 u = kg_cpu_load(up, n, f, lanes);
            struct kg_v16 t = bend(g);
            struct kg_v16 y = kg_v16_mul(g, gate_of(t));
            kg_cpu_store(dgate, n, f, kg_v16_mul(kg_v16_mul(d, u), slope_of(g, t)),
                         lanes);
            kg_cpu_store(dup, n, f, kg_v16_mul(d, y), lanes);
        }
    return KG_OK;
}
