/* Shared by the files of the CUDA backend: the functions of its slots, and element
 * access.
 *
 * op*.c has checked shapes and dtypes. Kernels mirror cpu/: the same operations per
 * element and the same order of sums, so they return the CPU's bits; the exceptions are
 * attention (attention_internal.h) and products by the matrix instruction.
 */
#ifndef KG_TENSOR_CUDA_INTERNAL_H
#define KG_TENSOR_CUDA_INTERNAL_H

#include "tensor/cuda/dev.h"

extern "C" {
#include "tensor/cuda/library.h"
}

static __host__ __device__ inline int64_t kg_cuda_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- elements ---- */
static __device__ inline float *kg_cuda_f32(struct kg_mat m, int64_t r)
{
    return (float *)m.data + r * m.stride;
}
static __device__ inline uint16_t *kg_cuda_bf16(struct kg_mat m, int64_t r)
{
    return (uint16_t *)m.data + r * m.stride;
}
static __device__ inline uint32_t kg_cuda_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return u;
}
static __device__ inline float kg_cuda_of_bits(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

/* _load: element (r, c) as fp32. _store: rounds to the matrix's type, to nearest even;
 * NaN is kept. */
static __device__ inline float kg_cuda_load(struct kg_mat m, int64_t r, int64_t c)
{
    return m.dtype == KG_F32 ? kg_cuda_f32(m, r)[c]
                             : kg_cuda_of_bits((uint32_t)kg_cuda_bf16(m, r)[c] << 16);
}
static __device__ inline void kg_cuda_store(struct kg_mat m, int64_t r, int64_t c,
                                            float x)
{
    const uint32_t u = kg_cuda_bits(x);

    if (m.dtype == KG_F32)
        kg_cuda_f32(m, r)[c] = x;
    else if ((u & 0x7fffffffu) > 0x7f800000u)
        kg_cuda_bf16(m, r)[c] = (uint16_t)((u | 0x400000u) >> 16);
    else
        kg_cuda_bf16(m, r)[c] = (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* Eight bf16, moved by one instruction. */
struct alignas(16) kg_cuda_eight {
    uint32_t pair[4];
};

/* ---- exponentials, explained in base/simd.h ---- */
/* 2^n for integral n in [-126, 127]: adding 1.5 * 2^23 leaves n in the low bits. */
static __device__ inline float kg_cuda_power_of_2(float n)
{
    return kg_cuda_of_bits((kg_cuda_bits(n + 0x1.8p23f) << 23) + 0x3f800000u);
}
/* p 2^n by two multiplications, the first of them exact */
static __device__ inline float kg_cuda_scale(float p, float n)
{
    const float half = (n * 0.5f + 0x1.8p23f) - 0x1.8p23f;

    return p * kg_cuda_power_of_2(half) * kg_cuda_power_of_2(n - half);
}

/* x = n ln 2 + r,   e^r = 1 + r poly;   x in [-105, 89] */
struct kg_cuda_exp_parts {
    float n;
    float r;
    float poly;
};
static __device__ inline struct kg_cuda_exp_parts kg_cuda_exp_within(float x)
{
    const float n = kg_fma(x, 0x1.715476p+0f, 0x1.8p23f) - 0x1.8p23f;
    float r = kg_fma(-n, 0x1.62e400p-1f, x), p;

    r = kg_fma(-n, 0x1.7f7d1cp-20f, r);
    p = kg_fma(0x1.6a2434p-10f, r, 0x1.1239e2p-7f);
    p = kg_fma(p, r, 0x1.5558f2p-5f);
    p = kg_fma(p, r, 0x1.555492p-3f);
    p = kg_fma(p, r, 0x1.fffffcp-2f);
    return {n, r, kg_fma(p, r, 1.0f)};
}
static __device__ inline struct kg_cuda_exp_parts kg_cuda_exp_parts(float x)
{
    x = -105.0f > x ? -105.0f : x;
    return kg_cuda_exp_within(89.0f < x ? 89.0f : x);
}
static __device__ inline float kg_cuda_exp(float x)
{
    const struct kg_cuda_exp_parts e = kg_cuda_exp_parts(x);

    return kg_cuda_scale(kg_fma(e.poly, e.r, 1.0f), e.n);
}
/* 1 - e^x for x <= 0 */
static __device__ inline float kg_cuda_one_minus_exp(float x)
{
    const struct kg_cuda_exp_parts e = kg_cuda_exp_parts(x);
    const float scale = kg_cuda_scale(1.0f, e.n);

    return kg_fma(-scale, e.poly * e.r, 1.0f - scale);
}
static __device__ inline float kg_cuda_tanh(float x)
{
    const float minus = 0.0f - x, below = 2.0f * (x < minus ? x : minus);
    const float t = kg_cuda_one_minus_exp(below) / (1.0f + kg_cuda_exp(below));

    return x > 0.0f ? t : 0.0f - t;
}
/* cap tanh(x / cap) */
static __device__ inline float kg_cuda_softcap(float x, float cap)
{
    return cap * kg_cuda_tanh(x / cap);
}

/* ---- assignment of elements to threads ---- */
enum { KG_WARP = 32 };
/* For matrices, a block computes columns [blockIdx.y * KG_STRIP, ..) of row blockIdx.x,
 * and a thread every KG_ROW_THREADS-th of these:
 *   for (int64_t c = kg_cuda_first(); c < kg_cuda_end(cols); c += KG_ROW_THREADS)
 * For vectors, a thread computes one element. */
enum { KG_ROW_THREADS = 128, KG_STRIP = 4 * KG_ROW_THREADS, KG_FLAT_THREADS = 256 };

static __device__ inline int64_t kg_cuda_first(void)
{
    return (int64_t)blockIdx.y * KG_STRIP + threadIdx.x;
}
static __device__ inline int64_t kg_cuda_end(int64_t cols)
{
    return kg_cuda_min(((int64_t)blockIdx.y + 1) * KG_STRIP, cols);
}
static __device__ inline int64_t kg_cuda_flat(void)
{
    return (int64_t)blockIdx.x * KG_FLAT_THREADS + threadIdx.x;
}

static inline int64_t kg_cuda_pieces(int64_t n, int64_t piece)
{
    return (n + piece - 1) / piece;
}
/* The grid for a matrix, and for a vector; it must not be empty. */
static inline dim3 kg_cuda_rows(int64_t rows, int64_t cols)
{
    return kg_grid(rows, kg_cuda_pieces(cols, KG_STRIP));
}
static inline dim3 kg_cuda_all(int64_t n)
{
    return kg_grid(kg_cuda_pieces(n, KG_FLAT_THREADS), 1);
}

/* ---- the CPU's sixteen lanes ---- */
/* Sixteen threads compute a row; each adds every sixteenth column, in order. Threads of
 * rows after the last one (there = false) only take part in exchanges. */
enum { KG_CUDA_LANES = 16, KG_CUDA_LANE_ROWS = KG_ROW_THREADS / KG_CUDA_LANES };
struct kg_cuda_lane {
    int64_t row;
    int first; /* column */
    bool there;
};
static __device__ inline struct kg_cuda_lane kg_cuda_lane_of(int64_t rows)
{
    const int64_t row = (int64_t)blockIdx.x * KG_CUDA_LANE_ROWS +
                        threadIdx.x / KG_CUDA_LANES;

    return {row, (int)(threadIdx.x % KG_CUDA_LANES), row < rows};
}
static inline dim3 kg_cuda_lanes(int64_t rows)
{
    return kg_grid(kg_cuda_pieces(rows, KG_CUDA_LANE_ROWS), 1);
}
/* x[i] <- element d + i * KG_CUDA_LANES of the row; 0 from `end` on. A thread loads eight
 * elements at a time, because in decoding few rows must keep the device busy. */
enum { KG_CUDA_AT_ONCE = 8, KG_CUDA_TURN = KG_CUDA_AT_ONCE * KG_CUDA_LANES };
static __device__ inline void kg_cuda_take(float x[KG_CUDA_AT_ONCE], const float *row,
                                           int64_t d, int64_t end)
{
#pragma unroll
    for (int i = 0; i < KG_CUDA_AT_ONCE; i++)
        x[i] = d + i * KG_CUDA_LANES < end ? row[d + i * KG_CUDA_LANES] : 0.0f;
}
/* The reduction tree of base/simd.h: lane i adds lane i+8, then i+4, i+2, i+1. All lanes
 * get the sum. */
template <typename T> static __device__ inline T kg_cuda_sum_lanes(T x)
{
    for (unsigned by = KG_CUDA_LANES / 2; by > 0; by /= 2)
        x += __shfl_xor_sync(~0u, x, by);
    return x;
}

/* ---- several arrays in one buffer ---- */
/* Arrays in host and device memory have the same layout, so one copy moves all of them.
 * If base is NULL, kg_cuda_take only measures. */
struct kg_cuda_piece {
    char *base;
    uint64_t used;
};
/* *at <- space for n elements, not to be used when measuring; NULL if n is 0 */
template <typename T>
static inline void kg_cuda_take(struct kg_cuda_piece *p, T **at, int64_t n)
{
    *at = n > 0 ? (T *)((uintptr_t)p->base + p->used) : NULL;
    p->used += ((uint64_t)n * sizeof(T) + 255) / 256 * 256;
}

/* ---- the slots of struct kg_backend, in files named as those of cpu/ ---- */
void *kg_cuda_alloc(uint64_t bytes, const char *what, struct kg_err *err);
void kg_cuda_free(void *memory);
kg_status kg_cuda_memory(uint64_t *total, uint64_t *free, struct kg_err *err);
kg_status kg_cuda_put(void *to, const void *from, uint64_t bytes, struct kg_err *err);
kg_status kg_cuda_get(void *to, const void *from, uint64_t bytes, struct kg_err *err);
void *kg_cuda_pin(uint64_t bytes, const char *what, struct kg_err *err);
void kg_cuda_unpin(void *memory);
kg_status kg_cuda_fetch(void *to, const void *from, uint64_t bytes, struct kg_err *err);
kg_status kg_cuda_put_later(void *to, const void *from, uint64_t bytes,
                            struct kg_err *err);
kg_status kg_cuda_get_later(void *to, const void *from, uint64_t bytes,
                            struct kg_err *err);
kg_status kg_cuda_mark(uint64_t *mark, struct kg_err *err);
kg_status kg_cuda_wait(uint64_t mark, struct kg_err *err);
kg_status kg_cuda_lend(int *result, int (*call)(void *arg, void *stream), void *arg,
                       const void *const *memory, size_t n, struct kg_err *err);
kg_status kg_cuda_reached(bool *yes, uint64_t mark, struct kg_err *err);
kg_status kg_cuda_copy(void *to, const void *from, uint64_t bytes, struct kg_err *err);
kg_status kg_cuda_zero(void *to, uint64_t bytes, struct kg_err *err);
kg_status kg_cuda_swap(void *a, void *b, uint64_t bytes, struct kg_err *err);
kg_status kg_cuda_matmul(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                         enum kg_matmul_kind kind, bool accumulate, struct kg_err *err);
kg_status kg_cuda_matmul_onto(struct kg_mat c, struct kg_mat old, struct kg_mat a,
                              struct kg_mat b, struct kg_err *err);
kg_status kg_cuda_embed(struct kg_mat x, struct kg_mat table, struct kg_ivec tokens,
                        struct kg_err *err);
kg_status kg_cuda_embed_bwd(struct kg_mat dtable, struct kg_mat dx, struct kg_ivec tokens,
                            struct kg_err *err);
kg_status kg_cuda_rmsnorm(struct kg_mat y, struct kg_vec inv, struct kg_mat x,
                          struct kg_vec w, float eps, struct kg_err *err);
kg_status kg_cuda_rmsnorm_bwd(struct kg_mat dx, bool accumulate, struct kg_vec dw,
                              struct kg_mat dy, struct kg_mat x, struct kg_vec w,
                              struct kg_vec inv, struct kg_err *err);
kg_status kg_cuda_layernorm(struct kg_mat y, struct kg_mat x, struct kg_vec w,
                            struct kg_vec b, float eps, struct kg_err *err);
kg_status kg_cuda_gelu(struct kg_mat y, struct kg_mat x, struct kg_err *err);
kg_status kg_cuda_scan(struct kg_mat c, struct kg_mat a, const struct kg_codes *m,
                       struct kg_err *err);
kg_status kg_cuda_bias(struct kg_mat y, struct kg_vec b, struct kg_err *err);
kg_status kg_cuda_bias_bwd(struct kg_vec db, struct kg_mat dy, struct kg_err *err);
kg_status kg_cuda_rope(struct kg_mat x, const struct kg_turn *by, bool inverse,
                       struct kg_err *err);
kg_status kg_cuda_heads(const struct kg_heads *h, int n, const struct kg_turn *by,
                        struct kg_err *err);
kg_status kg_cuda_swiglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                         struct kg_err *err);
kg_status kg_cuda_swiglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                             struct kg_mat gate, struct kg_mat up, struct kg_err *err);
kg_status kg_cuda_geglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                        struct kg_err *err);
kg_status kg_cuda_geglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                            struct kg_mat gate, struct kg_mat up, struct kg_err *err);
kg_status kg_cuda_cast(struct kg_mat dst, struct kg_mat src, struct kg_err *err);
kg_status kg_cuda_scatter_rows(struct kg_mat pool, struct kg_ivec rows, struct kg_mat src,
                               struct kg_err *err);
kg_status kg_cuda_gather_rows(struct kg_mat dst, struct kg_mat src, struct kg_ivec rows,
                              struct kg_err *err);
kg_status kg_cuda_sum_rows(struct kg_mat dst, struct kg_mat src, struct kg_ivec ends,
                           struct kg_ivec places, struct kg_err *err);
kg_status kg_cuda_route(const struct kg_route *r, struct kg_mat logits,
                        struct kg_ivec given, struct kg_err *err);
kg_status kg_cuda_route_bwd(struct kg_mat dlogits, const struct kg_route *r,
                            struct kg_mat dweight, struct kg_vec dp, struct kg_err *err);
kg_status kg_cuda_matmul_groups(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                                const struct kg_groups *g, enum kg_matmul_kind kind,
                                bool accumulate, struct kg_err *err);
kg_status kg_cuda_combine(struct kg_mat y, struct kg_mat x, struct kg_mat weight,
                          struct kg_ivec place, bool accumulate, struct kg_err *err);
kg_status kg_cuda_combine_bwd(struct kg_mat dweight, struct kg_mat dx, struct kg_mat x,
                              struct kg_mat weight, struct kg_ivec place,
                              struct kg_err *err);
kg_status kg_cuda_sigmoid(struct kg_vec y, struct kg_vec x, struct kg_err *err);
kg_status kg_cuda_sigmoid_bwd(struct kg_vec dx, struct kg_vec dy, struct kg_vec y,
                              struct kg_err *err);
kg_status kg_cuda_attention(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a,
                            struct kg_err *err);
kg_status kg_cuda_attention_bwd(struct kg_mat dq, struct kg_mat dk, struct kg_mat dv,
                                struct kg_mat dout, struct kg_mat o, struct kg_vec lse,
                                const struct kg_attn *a, struct kg_err *err);
kg_status kg_cuda_head(const struct kg_head_out *out, const struct kg_head *h,
                       struct kg_err *err);
kg_status kg_cuda_head_bwd(const struct kg_head_grad *g, const struct kg_head *h,
                           struct kg_err *err);
kg_status kg_cuda_draw(const struct kg_draws *d, const struct kg_head_out *out,
                       const struct kg_head *h, struct kg_err *err);
kg_status kg_cuda_feed(int32_t *tokens, struct kg_ivec from, const struct kg_drawn *drawn,
                       struct kg_err *err);
kg_status kg_cuda_replay(uint64_t key, kg_status (*body)(void *arg, struct kg_err *err),
                         void *arg, struct kg_err *err);
kg_status kg_cuda_adamw(struct kg_vec w, struct kg_mat m, struct kg_mat v,
                        struct kg_vec g, const struct kg_adamw *a, struct kg_err *err);
kg_status kg_cuda_schedule_free(struct kg_vec y, struct kg_vec z, struct kg_mat v,
                                struct kg_vec g, const struct kg_adamw *a,
                                struct kg_err *err);
kg_status kg_cuda_schedule_free_average(struct kg_vec x, struct kg_vec y, struct kg_vec z,
                                        float beta1, struct kg_err *err);
kg_status kg_cuda_ema(struct kg_vec avg, struct kg_vec w, float eta, struct kg_err *err);
kg_status kg_cuda_scale(struct kg_vec y, float factor, struct kg_err *err);
kg_status kg_cuda_add(struct kg_vec y, struct kg_vec x, struct kg_err *err);
kg_status kg_cuda_sum_squares(double *out, struct kg_vec x, struct kg_vec minus,
                              struct kg_err *err);
double kg_cuda_peak(enum kg_dtype t, double flops);
kg_status kg_cuda_reserve(uint64_t bytes, struct kg_err *err);

/* ---- products ---- */
/* Selects the implementation of bf16 products from now on; the default is exact.
 * errors: those of kg_blas_open, ENOMEM; on failure nothing changes */
extern "C" kg_status kg_cuda_use(const struct kg_cuda_opts *opts, struct kg_err *err);
enum kg_cuda_products kg_cuda_used(void);
/* The bf16 product by kg_mma; c must not be empty. Here and below, c = old + product; old
 * has the rows, columns and stride of c, or is c itself; NULL: c = product */
void kg_cuda_product_mma(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                         enum kg_matmul_kind kind, const float *old);
/* kg_cuda_product_mma by wgmma (hopper.h). width: index of a tile width, below
 * KG_WGMMA_WIDTHS, for trials; -1: chosen by shape.   returns false, with nothing
 * launched, if the device lacks wgmma, there are no factors, rows are not aligned to 16
 * bytes, or width is -1 after kg_cuda_wgmma_leave_out(true) */
enum { KG_WGMMA_WIDTHS = 2 };
bool kg_cuda_product_wgmma(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                           enum kg_matmul_kind kind, const float *old, int width);
void kg_cuda_wgmma_leave_out(bool yes);
/* The bf16 product with the bits of kg_cuda_product_mma. Uses wgmma if it is faster and
 * kg_cuda_own_try found equal bits; otherwise mma. c must not be empty. */
void kg_cuda_product_own(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                         enum kg_matmul_kind kind, const float *old);
/* Compares products by wgmma and mma on this device, once per process. Must not be called
 * while a graph is captured.   errors: ENOMEM, EDEVICE */
kg_status kg_cuda_own_try(struct kg_err *err);
/* Whether kg_cuda_product_own uses mma alone. */
void kg_cuda_own_leave_out(bool yes);
/* text <- the result of kg_cuda_own_try; "" if there is nothing to compare */
void kg_cuda_own_describe(char *text, size_t bytes);
/* As above for attention by wgmma and by mma, forward and backward. */
kg_status kg_cuda_attention_try(struct kg_err *err);
void kg_cuda_attention_leave_out(bool yes);
void kg_cuda_attention_describe(char *text, size_t bytes);
/* kg_cuda_product_mma for experts. */
void kg_cuda_groups_mma(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                        const struct kg_groups *g, enum kg_matmul_kind kind,
                        bool accumulate);
/* The bf16 product by cuBLASLt, which must be open (blas.h); c must not be empty.
 * errors: EDEVICE (no plan has the required bits), ENOMEM (a shape whose workspace was
 * not reserved) */
kg_status kg_cuda_product_blas(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                               enum kg_matmul_kind kind, const float *old,
                               struct kg_err *err);
/* *is <- whether kg_cuda_product_own is known to give, for a b^T, the bits of
 * kg_cuda_product_blas. Only products of few rows are compared, once per number of rows.
 * errors: those of kg_cuda_product_blas */
kg_status kg_cuda_blas_is_own(bool *is, struct kg_mat c, struct kg_mat a, struct kg_mat b,
                              struct kg_err *err);
/* The bf16 product by cuBLASLt's fastest plan, whose bits are not pinned. To be used
 * between kg_cuda_unpinned_begin and kg_cuda_unpinned_leave (product_fastest.cu).
 * errors: EDEVICE (no plan at all), ENOMEM (for a trial) */
bool kg_cuda_is_unpinned(void);
kg_status kg_cuda_unpinned_begin(struct kg_err *err);
kg_status kg_cuda_product_fastest(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                                  enum kg_matmul_kind kind, const float *old,
                                  struct kg_err *err);
kg_status kg_cuda_unpinned_leave(struct kg_err *err);
void kg_cuda_unpinned_end(void); /* also frees the library's memory */
/* Reserves memory for trials and padded operands until kg_cuda_blas_end. */
kg_status kg_cuda_blas_reserve(uint64_t bytes, struct kg_err *err);
/* text <- "cublas 13.1.0, plans HASH", which together with the device determines the
 * bits; or "cublas 13.1.0, unpinned". */
void kg_cuda_blas_identity(char *text, size_t bytes);
/* Forgets the plans and closes the library. */
void kg_cuda_blas_end(void);

/* ---- replay.cu ---- */
/* Call before freeing memory that a record may use. */
void kg_cuda_forget(void);

/* ---- memory.cu ---- */
/* Device memory for one operation, valid until the next call. Not zeroed.
 * returns NULL with err set */
void *kg_cuda_scratch(uint64_t bytes, struct kg_err *err);
/* As kg_cuda_scratch, in page-locked host memory, for copies in both directions. Later
 * calls do not overwrite data of a pending kg_cuda_up. */
void *kg_cuda_host_scratch(uint64_t bytes, struct kg_err *err);
/* kg_cuda_up copies from host scratch, ordered after earlier launches, without waiting;
 * kg_cuda_down copies to the host after waiting for all launches. kg_dev_done reports
 * errors of both. */
void kg_cuda_up(void *to, const void *from, uint64_t bytes);
void kg_cuda_down(void *to, const void *from, uint64_t bytes);

#endif
