/* What the files of the CPU backend share: the slots' functions and when to wake threads.
 *
 * Every file of this folder is compiled once per instruction set, and of each set only
 * the table (table.c) is visible outside. Shapes and dtypes were checked by op.c, so the
 * kernels hold mathematics only. A kernel splits its work by a partition that depends on
 * shapes alone; whether threads run it is decided by kg_cpu_use_threads and never changes
 * a bit.
 */
#ifndef KG_TENSOR_CPU_INTERNAL_H
#define KG_TENSOR_CPU_INTERNAL_H

#include "base/simd.h"
#include "tensor/backend.h"

#include <omp.h>
#include <stddef.h>

/* Scalar operations below which waking threads costs more than it saves. */
enum { KG_CPU_THREAD_WORK = 32768 };

/* For `#pragma omp parallel if (kg_cpu_use_threads(work))`: inside an enclosing region
 * the calling thread does it all. */
static inline bool kg_cpu_use_threads(int64_t work)
{
    return work >= KG_CPU_THREAD_WORK && !omp_in_parallel();
}

/* Address of row r. */
static inline float *kg_cpu_f32(struct kg_mat m, int64_t r)
{
    return (float *)m.data + r * m.stride;
}
static inline uint16_t *kg_cpu_bf16(struct kg_mat m, int64_t r)
{
    return (uint16_t *)m.data + r * m.stride;
}

/* n <= 16 elements of row r from column c, in fp32 (or rounded to the matrix's type). */
static inline struct kg_v16 kg_cpu_load(struct kg_mat m, int64_t r, int64_t c, int n)
{
    return m.dtype == KG_F32 ? kg_v16_load_n(kg_cpu_f32(m, r) + c, n)
                             : kg_v16_load_bf16_n(kg_cpu_bf16(m, r) + c, n);
}
static inline void kg_cpu_store(struct kg_mat m, int64_t r, int64_t c, struct kg_v16 v,
                                int n)
{
    if (m.dtype == KG_F32)
        kg_v16_store_n(kg_cpu_f32(m, r) + c, v, n);
    else
        kg_v16_store_bf16_n(kg_cpu_bf16(m, r) + c, v, n);
}
static inline int kg_cpu_lanes(int64_t left)
{
    return left < KG_LANES ? (int)left : KG_LANES;
}

/* ---- the slots of struct kg_backend, one file each or a few ---- */
kg_status kg_cpu_matmul(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                        enum kg_matmul_kind kind, bool accumulate, struct kg_err *err);
kg_status kg_cpu_embed(struct kg_mat x, struct kg_mat table, const int32_t *tokens,
                       struct kg_err *err);
kg_status kg_cpu_embed_bwd(struct kg_mat dtable, struct kg_mat dx, const int32_t *tokens,
                           struct kg_err *err);
kg_status kg_cpu_rmsnorm(struct kg_mat y, float *inv, struct kg_mat x, const float *w,
                         float eps, struct kg_err *err);
kg_status kg_cpu_rmsnorm_bwd(struct kg_mat dx, bool accumulate, float *dw,
                             struct kg_mat dy, struct kg_mat x, const float *w,
                             const float *inv, struct kg_err *err);
kg_status kg_cpu_bias(struct kg_mat y, const float *b, struct kg_err *err);
kg_status kg_cpu_bias_bwd(float *db, struct kg_mat dy, struct kg_err *err);
kg_status kg_cpu_rope(struct kg_mat x, const int32_t *pos, const float *inv_freq,
                      int head_dim, float attention_factor, bool inverse,
                      struct kg_err *err);
kg_status kg_cpu_swiglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                        struct kg_err *err);
kg_status kg_cpu_swiglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                            struct kg_mat gate, struct kg_mat up, struct kg_err *err);
kg_status kg_cpu_cast(struct kg_mat dst, struct kg_mat src, struct kg_err *err);
kg_status kg_cpu_add(struct kg_mat y, struct kg_mat x, struct kg_err *err);
kg_status kg_cpu_scatter_rows(struct kg_mat pool, const int32_t *rows, struct kg_mat src,
                              struct kg_err *err);
kg_status kg_cpu_gather_rows(struct kg_mat dst, struct kg_mat src, const int32_t *rows,
                             struct kg_err *err);
kg_status kg_cpu_attention(struct kg_mat o, float *lse, const struct kg_attn *a,
                           struct kg_err *err);
kg_status kg_cpu_attention_bwd(struct kg_mat dq, struct kg_mat dk, struct kg_mat dv,
                               struct kg_mat dout, struct kg_mat o, const float *lse,
                               const struct kg_attn *a, struct kg_err *err);
kg_status kg_cpu_head(const struct kg_head_out *out, const struct kg_head *h,
                      struct kg_err *err);
kg_status kg_cpu_head_bwd(const struct kg_head_grad *g, const struct kg_head *h,
                          struct kg_err *err);
kg_status kg_cpu_adamw(float *w, float *m, float *v, const float *g, int64_t n,
                       const struct kg_adamw *a, struct kg_err *err);
kg_status kg_cpu_schedule_free(float *y, float *z, float *v, const float *g, int64_t n,
                               const struct kg_adamw *a, struct kg_err *err);
kg_status kg_cpu_schedule_free_average(float *x, const float *y, const float *z,
                                       int64_t n, float beta1, struct kg_err *err);
kg_status kg_cpu_ema(float *avg, const float *w, int64_t n, float eta,
                     struct kg_err *err);
kg_status kg_cpu_sum_squares(double *out, const float *x, const float *minus, int64_t n,
                             struct kg_err *err);

/* ---- matmul_onednn.c: dense blocks on one thread, and what a thread keeps ---- */
struct kg_cpu_product {
    enum kg_matmul_kind kind;
    enum kg_dtype in;  /* of a and b */
    enum kg_dtype out; /* of c */
    bool accumulate;   /* c += */
    int64_t m;         /* c is m x n; k is summed over */
    int64_t n;
    int64_t k;
    const void *a; /* dense: (m,k), for TN (k,m) */
    const void *b; /* dense: (n,k) for NT, else (k,n) */
    void *c;       /* dense */
};

/* On the calling thread alone. A row of c depends on its row of a and on b, not on m; a
 * column not on n (measured; kg_selfcheck_rows checks it on the machine at hand).
 * errors: UNSUPPORTED, ENOMEM */
kg_status kg_cpu_library_product(const struct kg_cpu_product *p, struct kg_err *err);
const char *kg_cpu_library_version(void);

/* Memory of the calling thread, one block per use, valid until it asks for the same use
 * again. Not zeroed. */
enum kg_cpu_scratch_use {
    KG_CPU_SCRATCH_LIBRARY = 0,
    KG_CPU_SCRATCH_A,
    KG_CPU_SCRATCH_B,
    KG_CPU_SCRATCH_C,
    KG_CPU_SCRATCH_SMALL,
    KG_CPU_SCRATCH_SUMS,
    KG_CPU_SCRATCH_USES
};
void *kg_cpu_scratch(enum kg_cpu_scratch_use use, size_t bytes, struct kg_err *err);

/* ---- matmul_small.c: products of few rows ---- */
enum { KG_CPU_SMALL_ROWS = 16 };

/* How the library sums over K: `chunk` products at a time, each chunk from zero, chunks
 * added in order, what c holds already last. 0: unknown, so the small kernel must not be
 * used. Found by comparing bits at the first use of a K, then remembered. */
int64_t kg_cpu_small_chunk(int64_t k, bool accumulate);

/* C[M,N] (=|+=) A[M,K] B[N,K]^T for M <= KG_CPU_SMALL_ROWS, bf16 in, with the library's
 * bits, given its chunk. */
kg_status kg_cpu_matmul_small(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                              int64_t chunk, bool accumulate, struct kg_err *err);

/* How many lengths K were calibrated, and for how many no chunk gave the library's
 * bits. */
void kg_cpu_small_counts(int *known, int *refused);

/* ---- matmul_plain.c: fp32 products where the library does not keep rows ---- */

/* Whether the library's fp32 rows keep their bits on this machine: tried once. */
bool kg_cpu_library_keeps_rows(void);

/* NT and NN in fp32: one chain of FMAs an element. */
kg_status kg_cpu_matmul_plain(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                              enum kg_matmul_kind kind, bool accumulate,
                              struct kg_err *err);

#endif
