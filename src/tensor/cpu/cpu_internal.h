/* Shared by the files of the CPU backend: the functions of its slots, and when to use
 * threads.
 *
 * Every file of this folder is compiled once per instruction set, and only the table of
 * each set (table.c) is visible outside. op*.c has checked shapes and dtypes, so kernels
 * contain only mathematics. The order of a kernel's sums depends on shapes alone, however
 * threads share its work; so kg_cpu_use_threads, which decides whether they do, never
 * changes a bit.
 */
#ifndef KG_TENSOR_CPU_INTERNAL_H
#define KG_TENSOR_CPU_INTERNAL_H

#include "base/simd.h"
#include "tensor/backend.h"

#include <omp.h>
#include <stddef.h>

/* Scalar operations below which threads cost more than they save. */
enum { KG_CPU_THREAD_WORK = 32768 };

/* For `#pragma omp parallel if (kg_cpu_use_threads(work))`: inside an enclosing region
 * the calling thread does all work. */
static inline bool kg_cpu_use_threads(int64_t work)
{
    return work >= KG_CPU_THREAD_WORK && !omp_in_parallel();
}

/* The address of row r, whose elements are fp32 or bf16. */
static inline float *kg_cpu_f32(struct kg_mat m, int64_t r)
{
    return (float *)m.data + r * m.stride;
}
static inline uint16_t *kg_cpu_bf16(struct kg_mat m, int64_t r)
{
    return (uint16_t *)m.data + r * m.stride;
}

/* Elements [c,c+n) of row r, n <= 16, as fp32; _store rounds to the matrix's type. */
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

/* ---- the slots of struct kg_backend; a file has one or a few of them ---- */
void *kg_cpu_alloc(uint64_t bytes, const char *what, struct kg_err *err);
void kg_cpu_free(void *memory);
kg_status kg_cpu_copy(void *to, const void *from, uint64_t bytes, struct kg_err *err);
kg_status kg_cpu_zero(void *to, uint64_t bytes, struct kg_err *err);
kg_status kg_cpu_swap(void *a, void *b, uint64_t bytes, struct kg_err *err);
kg_status kg_cpu_matmul(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                        enum kg_matmul_kind kind, bool accumulate, struct kg_err *err);
kg_status kg_cpu_matmul_shared(const struct kg_product *to, int n, struct kg_mat a,
                               struct kg_err *err);
kg_status kg_cpu_matmul_two(struct kg_mat c, const struct kg_factors f[2],
                            enum kg_matmul_kind kind, bool accumulate,
                            struct kg_err *err);
kg_status kg_cpu_embed(struct kg_mat x, struct kg_mat table, struct kg_ivec tokens,
                       struct kg_err *err);
kg_status kg_cpu_embed_bwd(struct kg_mat dtable, struct kg_mat dx, struct kg_ivec tokens,
                           struct kg_err *err);
kg_status kg_cpu_rmsnorm(struct kg_mat y, struct kg_vec inv, struct kg_mat x,
                         struct kg_vec w, float eps, struct kg_err *err);
kg_status kg_cpu_rmsnorm_bwd(struct kg_mat dx, bool accumulate, struct kg_vec dw,
                             struct kg_mat dy, struct kg_mat x, struct kg_vec w,
                             struct kg_vec inv, struct kg_err *err);
kg_status kg_cpu_layernorm(struct kg_mat y, struct kg_mat x, struct kg_vec w,
                           struct kg_vec b, float eps, struct kg_err *err);
kg_status kg_cpu_gelu(struct kg_mat y, struct kg_mat x, struct kg_err *err);
kg_status kg_cpu_scan(struct kg_mat c, struct kg_mat a, const struct kg_codes *m,
                      struct kg_err *err);
kg_status kg_cpu_bias(struct kg_mat y, struct kg_vec b, struct kg_err *err);
kg_status kg_cpu_bias_bwd(struct kg_vec db, struct kg_mat dy, struct kg_err *err);
kg_status kg_cpu_rope(struct kg_mat x, const struct kg_turn *by, bool inverse,
                      struct kg_err *err);
kg_status kg_cpu_swiglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                        struct kg_err *err);
kg_status kg_cpu_swiglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                            struct kg_mat gate, struct kg_mat up, struct kg_err *err);
kg_status kg_cpu_geglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                       struct kg_err *err);
kg_status kg_cpu_geglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                           struct kg_mat gate, struct kg_mat up, struct kg_err *err);
kg_status kg_cpu_cast(struct kg_mat dst, struct kg_mat src, struct kg_err *err);
kg_status kg_cpu_scatter_rows(struct kg_mat pool, struct kg_ivec rows, struct kg_mat src,
                              struct kg_err *err);
kg_status kg_cpu_gather_rows(struct kg_mat dst, struct kg_mat src, struct kg_ivec rows,
                             struct kg_err *err);
kg_status kg_cpu_sum_rows(struct kg_mat dst, struct kg_mat src, struct kg_ivec ends,
                          struct kg_ivec places, struct kg_err *err);
kg_status kg_cpu_route(const struct kg_route *r, struct kg_mat logits,
                       struct kg_ivec given, struct kg_err *err);
kg_status kg_cpu_route_bwd(struct kg_mat dlogits, const struct kg_route *r,
                           struct kg_mat dweight, struct kg_vec dp, struct kg_err *err);
kg_status kg_cpu_matmul_groups(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                               const struct kg_groups *g, enum kg_matmul_kind kind,
                               bool accumulate, struct kg_err *err);
kg_status kg_cpu_combine(struct kg_mat y, struct kg_mat x, struct kg_mat weight,
                         struct kg_ivec place, bool accumulate, struct kg_err *err);
kg_status kg_cpu_combine_bwd(struct kg_mat dweight, struct kg_mat dx, struct kg_mat x,
                             struct kg_mat weight, struct kg_ivec place,
                             struct kg_err *err);
kg_status kg_cpu_sigmoid(struct kg_vec y, struct kg_vec x, struct kg_err *err);
kg_status kg_cpu_sigmoid_bwd(struct kg_vec dx, struct kg_vec dy, struct kg_vec y,
                             struct kg_err *err);
kg_status kg_cpu_attention(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a,
                           struct kg_err *err);
kg_status kg_cpu_attention_bwd(struct kg_mat dq, struct kg_mat dk, struct kg_mat dv,
                               struct kg_mat dout, struct kg_mat o, struct kg_vec lse,
                               const struct kg_attn *a, struct kg_err *err);
kg_status kg_cpu_head(const struct kg_head_out *out, const struct kg_head *h,
                      struct kg_err *err);
kg_status kg_cpu_head_bwd(const struct kg_head_grad *g, const struct kg_head *h,
                          struct kg_err *err);
kg_status kg_cpu_adamw(struct kg_vec w, struct kg_mat m, struct kg_mat v, struct kg_vec g,
                       const struct kg_adamw *a, struct kg_err *err);
kg_status kg_cpu_schedule_free(struct kg_vec y, struct kg_vec z, struct kg_mat v,
                               struct kg_vec g, const struct kg_adamw *a,
                               struct kg_err *err);
kg_status kg_cpu_schedule_free_average(struct kg_vec x, struct kg_vec y, struct kg_vec z,
                                       float beta1, struct kg_err *err);
kg_status kg_cpu_add(struct kg_vec y, struct kg_vec x, struct kg_err *err);
kg_status kg_cpu_scale(struct kg_vec y, float factor, struct kg_err *err);
kg_status kg_cpu_ema(struct kg_vec avg, struct kg_vec w, float eta, struct kg_err *err);
kg_status kg_cpu_sum_squares(double *out, struct kg_vec x, struct kg_vec minus,
                             struct kg_err *err);

double kg_cpu_peak(enum kg_dtype t, double flops);

/* ---- scratch.c: memory per thread ---- */
/* Memory of the calling thread, one block per use, valid until the thread's next request
 * for that use. Not zeroed. */
enum kg_cpu_scratch_use {
    KG_CPU_SCRATCH_LEFT = 0,
    KG_CPU_SCRATCH_RIGHT,
    KG_CPU_SCRATCH_OWN_LEFT,
    KG_CPU_SCRATCH_OWN_RIGHT,
    KG_CPU_SCRATCH_SECOND_LEFT,
    KG_CPU_SCRATCH_SECOND_RIGHT,
    KG_CPU_SCRATCH_SUMS,
    KG_CPU_SCRATCH_TURNED,
    KG_CPU_SCRATCH_ATTENTION,
    KG_CPU_SCRATCH_USES
};
void *kg_cpu_scratch(enum kg_cpu_scratch_use use, size_t bytes, struct kg_err *err);

#endif
