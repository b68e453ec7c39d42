/* For tests: runs single instructions of dev.h on a device, and reports the plans of
 * cuBLASLt there. libkedge_cuda.so exports both functions; kedge does not call them. */
#ifndef KG_TENSOR_CUDA_PROBE_H
#define KG_TENSOR_CUDA_PROBE_H

#include "base/status.h"

#include <stdint.h>

/* Runs one warp. Unless noted otherwise, lane l reads x, y, z from in[3 l] and the next
 * two words, and writes its result to out[l]. */
enum kg_probe {
    KG_PROBE_MMA,        /* in[10 l]: a[4], b[2], d[4]; out[4 l]: d[4] (dev.h) */
    KG_PROBE_FRAGMENTS,  /* in[4 l] is a row of 16 bytes; out[4 l] is f[4] */
    KG_PROBE_TRANSPOSED, /* as FRAGMENTS */
    KG_PROBE_COPY,       /* the first l % 17 of 16 bytes at in[4 l], to out[4 l] */
    KG_PROBE_FMA,        /* x y + z */
    KG_PROBE_FMA_FLUSHED,
    KG_PROBE_ADD_FLUSHED, /* x + y */
    KG_PROBE_MULTIPLY,
    KG_PROBE_DIVIDE,
    KG_PROBE_ROOT, /* sqrt x */
    KG_PROBE_PAIR, /* x and y to bf16 */
    KG_PROBE_HALF, /* fp16 x to fp32 */
    KG_PROBE_EXP2, /* kg_exp2(x), x <= 0 */
};
enum { KG_PROBE_IN = 320, KG_PROBE_OUT = 128 };

/* in, out: on the host; the backend must be open
 * errors: EDEVICE, ENOMEM */
typedef kg_status kg_cuda_probe_fn(uint32_t out[KG_PROBE_OUT],
                                   const uint32_t in[KG_PROBE_IN], enum kg_probe which,
                                   struct kg_err *err);
extern kg_cuda_probe_fn kg_cuda_probe __attribute__((visibility("default")));

/* The plans for a weight matrix and a number of rows (product_blas.cu). */
struct kg_plan_row {
    uint32_t config[9]; /* the reference's cublasLtMatmulAlgoConfigAttributes_t */
    int tried, members; /* plans tried, own kernels included; those with config's bits */
    int64_t made;       /* rows of one product: more than `rows` if zero rows pad it,
                         * fewer if the rows are split */
    double seconds;     /* time of a product of `made` rows by the plan in use */
    double own_seconds; /* time of kedge's own kernel */
    double fastest_seconds; /* time of the fastest plan tried, of any bits */
};
/* Plans for C (rows, n) in fp32 = A (rows, k) B (n, k)^T, rows at most 4,096. The backend
 * must use KG_CUDA_CUBLAS, not unpinned.
 * errors: EDEVICE, ENOMEM */
typedef kg_status kg_cuda_plans_fn(struct kg_plan_row *row, int64_t rows, int64_t n,
                                   int64_t k, struct kg_err *err);
extern kg_cuda_plans_fn kg_cuda_plans __attribute__((visibility("default")));

#endif
