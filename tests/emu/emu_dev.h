/* nvcc's builtins for a C++ compiler: kernels become host code, which emu.c runs.
 * Included by dev.h. */
#ifndef KG_EMU_DEV_H
#define KG_EMU_DEV_H

#include "emu/emu.h"

#include "base/half.h"
#include "base/simd.h"

#define KG_DEV_NAME   "emu"
#define KG_DEV_STREAM NULL
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define threadIdx kg_emu_thread
#define blockIdx  kg_emu_block

#define KG_SHARED(type, name, dims)                                                      \
    typedef type name##_type dims;                                                       \
    static const char name##_is = 0;                                                     \
    name##_type &name = *(name##_type *)kg_emu_shared(&name##_is, sizeof(name##_type))
#define KG_SHARED_ASKED(type, name) type *const name = (type *)kg_emu_asked()

#define KG_DEV_CUDA_ROOT kg_emu_cuda_root()
enum { KG_DEV_REPEATS = 1, KG_DEV_TRIED = 80 };

/* Small, so that tests with small shapes need several iterations. */
enum { KG_DEV_HEAD_ROWS = 24, KG_DEV_LOGITS = 1 << 13, KG_DEV_WHOLE = 1 << 16 };
enum { KG_DEV_BLOCKS = 3, KG_DEV_HEADS = 1 << 19, KG_DEV_LONG = 20 };

/* ---- launching ---- */
typedef struct kg_emu_dim dim3;
static inline dim3 kg_grid(int64_t x, int64_t y) { return {(unsigned)x, (unsigned)y, 1}; }

/* Checks that pointers in an argument are device pointers. */
template <typename T> static inline void kg_emu_check(const char *, const T &) {}
template <typename T> static inline void kg_emu_check(const char *kernel, T *const &p)
{
    kg_emu_argument(kernel, p);
}
static inline void kg_emu_check(const char *kernel, const struct kg_mat &m)
{
    kg_emu_argument(kernel, m.data);
}
static inline void kg_emu_check(const char *kernel, const struct kg_vec &v)
{
    kg_emu_argument(kernel, v.data);
}
static inline void kg_emu_check(const char *kernel, const struct kg_ivec &v)
{
    kg_emu_argument(kernel, v.data);
}
static inline void kg_emu_check(const char *kernel, const struct kg_attn &a)
{
    kg_emu_check(kernel, a.q);
    kg_emu_check(kernel, a.k);
    kg_emu_check(kernel, a.v);
    kg_emu_argument(kernel, a.seqs);
    kg_emu_check(kernel, a.blocks);
}
static inline void kg_emu_check(const char *kernel, const struct kg_route &r)
{
    kg_emu_check(kernel, r.p);
    kg_emu_check(kernel, r.weight);
    kg_emu_argument(kernel, r.ids);
    kg_emu_argument(kernel, r.place);
    kg_emu_argument(kernel, r.token);
    kg_emu_argument(kernel, r.first);
}
static inline void kg_emu_check(const char *kernel, const struct kg_codes &m)
{
    kg_emu_argument(kernel, m.data);
}
static inline void kg_emu_check(const char *kernel, const struct kg_groups &g)
{
    kg_emu_argument(kernel, g.first);
}

template <typename F> static void kg_emu_call(void *f) { (*(F *)f)(); }
template <typename F>
static void kg_emu_run(const char *kernel, dim3 grid, unsigned threads, F body)
{
    static_assert(__is_trivially_copyable(F), "a record has a copy of its bytes");
    kg_emu_launch(kernel, grid, threads, kg_emu_call<F>, &body, sizeof body);
}
template <typename... A, typename... B>
static void kg_emu_start(const char *name, void (*kernel)(A...), dim3 grid, int threads,
                         B... args)
{
    (kg_emu_check(name, args), ...);
    (kg_emu_lend(&args, sizeof args), ...);
    kg_emu_run(name, grid, (unsigned)threads, [=] { kernel(args...); });
}
#define KG_LAUNCH(kernel, grid, threads, ...)                                            \
    kg_emu_start(#kernel, kernel, grid, threads, __VA_ARGS__)
#define KG_LAUNCH_ASKING(bytes, kernel, grid, threads, ...)                              \
    (kg_emu_ask(#kernel, bytes, KG_ASKED_MOST),                                          \
     KG_LAUNCH(kernel, grid, threads, __VA_ARGS__))

/* ---- threads together ---- */
static inline void __syncthreads(int line = __builtin_LINE()) { kg_emu_barrier(line); }

static inline void __syncwarp(int line = __builtin_LINE())
{
    kg_emu_exchange(~0u, "", 1, NULL, line);
}
static inline unsigned __ballot_sync(unsigned mask, bool mine,
                                     int line = __builtin_LINE())
{
    const char *all = kg_emu_exchange(mask, &mine, 1, NULL, line);
    unsigned bits = 0;

    for (int i = 0; i < KG_EMU_WARP; i++)
        bits |= (unsigned)all[i * KG_EMU_SHOWN] << i;
    return bits;
}
static inline int __ffs(unsigned bits) { return __builtin_ffs((int)bits); }
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T x, unsigned by,
                                int line = __builtin_LINE())
{
    const char *all = kg_emu_exchange(mask, &x, sizeof x, NULL, line);
    T y;

    memcpy(&y, all + (threadIdx.x % KG_EMU_WARP ^ by) * KG_EMU_SHOWN, sizeof y);
    return y;
}

template <typename T> static inline T kg_anew(T x) { return x; }

/* ---- copies ---- */
static inline void kg_copy_later(void *to, const void *from, int bytes,
                                 int line = __builtin_LINE())
{
    kg_emu_copy(to, from, bytes, line);
}
static inline void kg_copies_end(void) { kg_emu_copies_end(); }
template <int N> static inline void kg_copies_wait(void) { kg_emu_copies_wait(N); }

static inline void kg_store_sixteen(void *to, const uint32_t part[4],
                                    int line = __builtin_LINE())
{
    kg_emu_row(to, line);
    memcpy(to, part, 4 * sizeof *part);
}

/* ---- arithmetic ---- */
static inline float kg_fma(float a, float b, float c) { return fmaf(a, b, c); }
static inline double kg_fma(double a, double b, double c) { return fma(a, b, c); }
static inline float kg_fma_flushed(float a, float b, float c)
{
    return kg_simd_fma_flushed(kg_simd_flush(a), kg_simd_flush(b), kg_simd_flush(c));
}
static inline float kg_add_flushed(float a, float b)
{
    return kg_simd_flush(kg_simd_flush(a) + kg_simd_flush(b));
}

/* By a polynomial; a device's bits may differ. */
static inline float kg_exp2(float x)
{
    const float n = rintf(x), r = x - n;
    float p;

    if (!(x >= -126.0f && x < 128.0f))
        return x < 0.0f ? 0.0f : x > 0.0f ? INFINITY : x;
    p = fmaf(0x1.5c08e6p-10f, r, 0x1.3d0c52p-7f);
    p = fmaf(p, r, 0x1.c6b6e4p-5f);
    p = fmaf(p, r, 0x1.ebf918p-3f);
    p = fmaf(p, r, 0x1.62e428p-1f);
    p = fmaf(p, r, 1.0f);
    return ldexpf(p, (int)n);
}

static inline void kg_mma(float d[4], const uint32_t a[4], const uint32_t b[2],
                          int line = __builtin_LINE())
{
    const struct kg_emu_parts mine = {
        {d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    const char *all = kg_emu_exchange(~0u, &mine, sizeof mine, kg_emu_mma, line);

    memcpy(d, all + threadIdx.x % KG_EMU_WARP * KG_EMU_SHOWN, 4 * sizeof *d);
}

static inline float kg_of_half(uint16_t h)
{
    if ((h & 0x7c00) == 0x7c00)
        return copysignf(h & 0x3ff ? NAN : INFINITY, h & 0x8000 ? -1.0f : 1.0f);
    return kg_half_float(h);
}
static inline uint32_t kg_pair(float first, float second)
{
    return kg_f32_to_bf16(first) | (uint32_t)kg_f32_to_bf16(second) << 16;
}

/* f[i] <- element (r, c) of matrix i and its right neighbour; down: the element below */
static inline void kg_emu_fragments(uint32_t f[4], const void *row, int r, int c,
                                    bool down, int line)
{
    kg_emu_row(row, line);
    const char *all = kg_emu_exchange(~0u, &row, sizeof row, NULL, line);

    for (int i = 0; i < 4; i++) {
        const uint16_t *from[2];

        for (int k = 0; k < 2; k++)
            memcpy(&from[k], all + (i * 8 + r + (down ? k : 0)) * KG_EMU_SHOWN,
                   sizeof from[k]);
        f[i] = from[0][c] | (uint32_t)from[1][c + !down] << 16;
    }
}
static inline void kg_fragments(uint32_t f[4], const void *row,
                                int line = __builtin_LINE())
{
    const int lane = (int)(threadIdx.x % KG_EMU_WARP);

    kg_emu_fragments(f, row, lane / 4, lane % 4 * 2, false, line);
}
static inline void kg_fragments_transposed(uint32_t f[4], const void *row,
                                           int line = __builtin_LINE())
{
    const int lane = (int)(threadIdx.x % KG_EMU_WARP);

    kg_emu_fragments(f, row, lane % 4 * 2, lane / 4, true, line);
}

#endif
