/* The gated activation h = silu(gate) up and its gradient.
 *
 * Computed lane by lane in fp32 and rounded once at the store. The backward computes
 * sigmoid(gate) again from the kept gate, because an exponential costs less than the
 * memory to keep the result.
 */
#include "tensor/cpu/cpu_internal.h"

/* 1 / (1 + e^-x) */
static inline struct kg_v16 sigmoid(struct kg_v16 x)
{
    struct kg_v16 one = kg_v16_set1(1.0f);
    struct kg_v16 e = kg_v16_exp(kg_v16_sub(kg_v16_zero(), x));
    return kg_v16_div(one, kg_v16_add(one, e));
}

/* x / (1 + e^-x): one division, so not x times the sigmoid */
static inline struct kg_v16 silu(struct kg_v16 x)
{
    struct kg_v16 e = kg_v16_exp(kg_v16_sub(kg_v16_zero(), x));
    return kg_v16_div(x, kg_v16_add(kg_v16_set1(1.0f), e));
}

kg_status kg_cpu_swiglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                        struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(h.rows * h.cols * 2))
    for (int64_t n = 0; n < h.rows; n++)
        for (int64_t f = 0; f < h.cols; f += KG_LANES) {
            int lanes = kg_cpu_lanes(h.cols - f);
            struct kg_v16 s = silu(kg_cpu_load(gate, n, f, lanes));
            kg_cpu_store(h, n, f, kg_v16_mul(s, kg_cpu_load(up, n, f, lanes)), lanes);
        }
    return KG_OK;
}

/* With s = sigmoid(g):
 *   dh/dup = g s,   dh/dg = up (s + g s (1 - s)) = up s (1 + g (1 - s)) */
kg_status kg_cpu_swiglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                            struct kg_mat gate, struct kg_mat up, struct kg_err *err)
{
    (void)err;
    struct kg_v16 one = kg_v16_set1(1.0f);
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(dh.rows * dh.cols * 4))
    for (int64_t n = 0; n < dh.rows; n++)
        for (int64_t f = 0; f < dh.cols; f += KG_LANES) {
            int lanes = kg_cpu_lanes(dh.cols - f);
            struct kg_v16 d = kg_cpu_load(dh, n, f, lanes);
            struct kg_v16 g = kg_cpu_load(gate, n, f, lanes);
            struct kg_v16 u = kg_cpu_load(up, n, f, lanes);
            struct kg_v16 s = sigmoid(g);
            struct kg_v16 slope = kg_v16_mul(s, kg_v16_fma(g, kg_v16_sub(one, s), one));
            kg_cpu_store(dgate, n, f, kg_v16_mul(kg_v16_mul(d, u), slope), lanes);
            kg_cpu_store(dup, n, f, kg_v16_mul(d, kg_v16_mul(g, s)), lanes);
        }
    return KG_OK;
}
