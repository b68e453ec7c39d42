/* Sixteen float lanes with one meaning on every instruction set.
 *
 * The kernels of the CPU backend are compiled once per instruction set and chosen at run
 * time; they are written against this header and contain no conditional code themselves.
 * The idea: every function here is defined lane by lane by IEEE single precision (one
 * rounding each), and the sums by one fixed tree. So a kernel returns the same bits on
 * every instruction set. That is why nothing here uses approximate reciprocals or sets a
 * mode. `_n` variants touch only the first n lanes of memory, 0 <= n <= 16; missing
 * lanes read as +0. NaN stays NaN, but its payload may change.
 *
 * Loops belong to the kernels, not here.
 */
#ifndef KG_BASE_SIMD_H
#define KG_BASE_SIMD_H

#include "base/half.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) &&            \
    defined(__AVX512DQ__)
#define KG_SIMD_512 1
#elif defined(__AVX2__) && defined(__FMA__)
#define KG_SIMD_256 1
#endif
#if defined(KG_SIMD_512) || defined(KG_SIMD_256)
#include <immintrin.h>
#endif

enum { KG_LANES = 16 };

/* Constants of the instruction set. FLUSH_MODE: the processor's flush mode handles small
 * sums; else the _flushed functions do. BF16_DOT: one instruction multiplies pairs of
 * bf16. TILE (fp32), PAIR (bf16): the sums that fit the registers, as rows by panels of
 * sixteen; bf16 needs two chains for each sum. */
#if defined(KG_SIMD_512)
enum { KG_SIMD_FLUSH_MODE = 1, KG_TILE_ROWS = 8, KG_TILE_PANELS = 3 };
#elif defined(KG_SIMD_256)
enum { KG_SIMD_FLUSH_MODE = 1, KG_TILE_ROWS = 6, KG_TILE_PANELS = 1 };
#elif defined(__aarch64__)
enum { KG_SIMD_FLUSH_MODE = 1, KG_TILE_ROWS = 5, KG_TILE_PANELS = 1 };
#else
enum { KG_SIMD_FLUSH_MODE = 0, KG_TILE_ROWS = 4, KG_TILE_PANELS = 1 };
#endif
#if defined(KG_SIMD_512) && defined(__AVX512BF16__)
enum { KG_SIMD_BF16_DOT = 1, KG_PAIR_ROWS = 5, KG_PAIR_PANELS = 2 };
#else
enum { KG_SIMD_BF16_DOT = 0, KG_PAIR_ROWS = KG_TILE_ROWS, KG_PAIR_PANELS = 1 };
#endif

/* Put before a loop of constant length that must be fully unrolled. */
#if defined(__clang__)
#define KG_UNROLL _Pragma("unroll")
#else
#define KG_UNROLL _Pragma("GCC unroll 16")
#endif

static inline uint32_t kg_simd_first_bits(int n)
{
    return n >= 32 ? ~0u : (1u << n) - 1u;
}

/* ---- one float: the definition of the vector operations ---- */
/* a*b + c rounded to odd in double. The product is exact in double; setting the last bit
 * when anything was lost makes the later rounding to float correct. */
static inline double kg_simd_fma_odd(float a, float b, float c)
{
    double p = (double)a * (double)b;
    double s = p + (double)c;
    double back = s - p;
    double lost = (p - (s - back)) + ((double)c - back);
    uint64_t u;
    memcpy(&u, &s, sizeof u);
    bool finite = (u >> 52 & 0x7ff) != 0x7ff;
    uint64_t inexact = (uint64_t)(finite && lost != 0.0 && (u & 1) == 0);
    u += (lost > 0.0) == (s > 0.0) ? inexact : -inexact;
    memcpy(&s, &u, sizeof s);
    return s;
}
#if defined(FP_FAST_FMAF)
static inline float kg_simd_fma(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
#else
static inline float kg_simd_fma(float a, float b, float c)
{
    return (float)kg_simd_fma_odd(a, b, c);
}
#endif
/* kg_simd_fma with results below 2^-126 set to zero. The test applies to the result
 * rounded with unlimited exponent range. */
static inline float kg_simd_fma_flushed(float a, float b, float c)
{
    float f = kg_simd_fma(a, b, c);
    if (fabsf(f) > 0x1p-126f || f == 0.0f)
        return f;
    if (fabsf((float)(kg_simd_fma_odd(a, b, c) * 0x1p64)) < 0x1p-62f)
        return copysignf(0.0f, f);
    return f;
}

static inline float kg_simd_flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}
#if defined(KG_SIMD_512)
/* ---- AVX-512: one register ---- */
struct kg_v16 {
    __m512 r;
};

static inline struct kg_v16 kg_v16_zero(void)
{
    return (struct kg_v16){_mm512_setzero_ps()};
}
static inline struct kg_v16 kg_v16_set1(float x)
{
    return (struct kg_v16){_mm512_set1_ps(x)};
}
static inline struct kg_v16 kg_v16_load(const float *p)
{
    return (struct kg_v16){_mm512_loadu_ps(p)};
}
static inline struct kg_v16 kg_v16_load_n(const float *p, int n)
{
    return (struct kg_v16){_mm512_maskz_loadu_ps((__mmask16)kg_simd_first_bits(n), p)};
}
static inline void kg_v16_store(float *p, struct kg_v16 a) { _mm512_storeu_ps(p, a.r); }
static inline void kg_v16_store_n(float *p, struct kg_v16 a, int n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)kg_simd_first_bits(n), a.r);
}

static inline struct kg_v16 kg_v16_widen(__m256i h)
{
    return (struct kg_v16){
        _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
static inline struct kg_v16 kg_v16_load_bf16(const uint16_t *p)
{
    return kg_v16_widen(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline struct kg_v16 kg_v16_load_bf16_n(const uint16_t *p, int n)
{
    return kg_v16_widen(_mm256_maskz_loadu_epi16((__mmask16)kg_simd_first_bits(n), p));
}
/* Loads of fp16 and of int8. */
static inline struct kg_v16 kg_v16_load_half(const uint16_t *p)
{
    return (struct kg_v16){
        _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p))};
}
static inline struct kg_v16 kg_v16_load_i8(const int8_t *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (struct kg_v16){_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
/* Rounds with integer operations: the conversion instruction flushes denormals. */
static inline __m256i kg_v16_narrow(struct kg_v16 a)
{
    __m512i u = _mm512_castps_si512(a.r);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(a.r, a.r, _CMP_UNORD_Q);
    up = _mm512_mask_or_epi32(up, nan, u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}
static inline void kg_v16_store_bf16(uint16_t *p, struct kg_v16 a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, kg_v16_narrow(a));
}
static inline void kg_v16_store_bf16_n(uint16_t *p, struct kg_v16 a, int n)
{
    _mm256_mask_storeu_epi16(p, (__mmask16)kg_simd_first_bits(n), kg_v16_narrow(a));
}

static inline struct kg_v16 kg_v16_add(struct kg_v16 a, struct kg_v16 b)
{
    return (struct kg_v16){_mm512_add_ps(a.r, b.r)};
}
static inline struct kg_v16 kg_v16_sub(struct kg_v16 a, struct kg_v16 b)
{
    return (struct kg_v16){_mm512_sub_ps(a.r, b.r)};
}
static inline struct kg_v16 kg_v16_mul(struct kg_v16 a, struct kg_v16 b)
{
    return (struct kg_v16){_mm512_mul_ps(a.r, b.r)};
}
static inline struct kg_v16 kg_v16_div(struct kg_v16 a, struct kg_v16 b)
{
    return (struct kg_v16){_mm512_div_ps(a.r, b.r)};
}
static inline struct kg_v16 kg_v16_sqrt(struct kg_v16 a)
{
    return (struct kg_v16){_mm512_sqrt_ps(a.r)};
}
/* a > b ? a : b and a < b ? a : b; if either is NaN, the second operand. */
static inline struct kg_v16 kg_v16_max(struct kg_v16 a, struct kg_v16 b)
{
    return (struct kg_v16){_mm512_max_ps(a.r, b.r)};
}
static inline struct kg_v16 kg_v16_min(struct kg_v16 a, struct kg_v16 b)
{
    return (struct kg_v16){_mm512_min_ps(a.r, b.r)};
}
/* a*b + c,  c - a*b,  one rounding */
static inline struct kg_v16 kg_v16_fma(struct kg_v16 a, struct kg_v16 b, struct kg_v16 c)
{
    return (struct kg_v16){_mm512_fmadd_ps(a.r, b.r, c.r)};
}
static inline struct kg_v16 kg_v16_fnma(struct kg_v16 a, struct kg_v16 b, struct kg_v16 c)
{
    return (struct kg_v16){_mm512_fnmadd_ps(a.r, b.r, c.r)};
}
/* a > b ? x : y per lane; y if either is NaN */
static inline struct kg_v16 kg_v16_select_gt(struct kg_v16 a, struct kg_v16 b,
                                             struct kg_v16 x, struct kg_v16 y)
{
    return (struct kg_v16){
        _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.r, b.r, _CMP_GT_OQ), y.r, x.r)};
}
/* Bit i is set where a[i] > b[i]. */
static inline uint32_t kg_v16_gt_bits(struct kg_v16 a, struct kg_v16 b)
{
    return _mm512_cmp_ps_mask(a.r, b.r, _CMP_GT_OQ);
}
/* Lanes 0..n-1 of a, the rest from fill. */
static inline struct kg_v16 kg_v16_first_n(struct kg_v16 a, int n, struct kg_v16 fill)
{
    return (struct kg_v16){
        _mm512_mask_blend_ps((__mmask16)kg_simd_first_bits(n), fill.r, a.r)};
}
/* p * 2^n for 0 <= p < 2 and integral n; it rounds once, only if the result is denormal.
 * Results below half the smallest denormal, such as those of masked lanes (a score of
 * -inf), are set to 0 without a multiplication, which would take some hundred cycles. */
static inline struct kg_v16 kg_v16_scale2(struct kg_v16 p, struct kg_v16 n)
{
    __mmask16 some = _mm512_cmp_ps_mask(n.r, _mm512_set1_ps(-151.0f), _CMP_NLE_UQ);
    return (struct kg_v16){_mm512_maskz_scalef_ps(some, p.r, n.r)};
}

/* The tree of every horizontal operation: lane i with i+8, then i+4, i+2, i+1. */
static inline float kg_v16_sum(struct kg_v16 a)
{
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a.r),
                              _mm512_extractf32x8_ps(a.r, 1));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
static inline float kg_v16_hmax(struct kg_v16 a)
{
    __m256 s8 = _mm256_max_ps(_mm512_castps512_ps256(a.r),
                              _mm512_extractf32x8_ps(a.r, 1));
    __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

/* Sixteen doubles, for sums where a small term must survive a large one. */
struct kg_d16 {
    __m512d lo;
    __m512d hi;
};

static inline struct kg_d16 kg_d16_set1(double x)
{
    return (struct kg_d16){_mm512_set1_pd(x), _mm512_set1_pd(x)};
}
static inline struct kg_d16 kg_d16_widen(struct kg_v16 a)
{
    return (struct kg_d16){_mm512_cvtps_pd(_mm512_castps512_ps256(a.r)),
                           _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.r, 1))};
}
static inline struct kg_v16 kg_d16_narrow(struct kg_d16 a)
{
    __m512 lo = _mm512_castps256_ps512(_mm512_cvtpd_ps(a.lo));
    return (struct kg_v16){_mm512_insertf32x8(lo, _mm512_cvtpd_ps(a.hi), 1)};
}
static inline struct kg_d16 kg_d16_add(struct kg_d16 a, struct kg_d16 b)
{
    return (struct kg_d16){_mm512_add_pd(a.lo, b.lo), _mm512_add_pd(a.hi, b.hi)};
}
static inline struct kg_d16 kg_d16_sub(struct kg_d16 a, struct kg_d16 b)
{
    return (struct kg_d16){_mm512_sub_pd(a.lo, b.lo), _mm512_sub_pd(a.hi, b.hi)};
}
/* a*b + c, one rounding */
static inline struct kg_d16 kg_d16_fma(struct kg_d16 a, struct kg_d16 b, struct kg_d16 c)
{
    return (struct kg_d16){_mm512_fmadd_pd(a.lo, b.lo, c.lo),
                           _mm512_fmadd_pd(a.hi, b.hi, c.hi)};
}
/* The tree of kg_v16_sum. */
static inline double kg_d16_sum(struct kg_d16 a)
{
    __m512d s8 = _mm512_add_pd(a.lo, a.hi);
    __m256d s4 = _mm256_add_pd(_mm512_castpd512_pd256(s8), _mm512_extractf64x4_pd(s8, 1));
    __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(s4), _mm256_extractf128_pd(s4, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
}

#elif defined(KG_SIMD_256)
/* ---- AVX2 with FMA: two registers ---- */
struct kg_v16 {
    __m256 lo;
    __m256 hi;
};

static inline struct kg_v16 kg_v16_zero(void)
{
    return (struct kg_v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
static inline struct kg_v16 kg_v16_set1(float x)
{
    return (struct kg_v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
static inline struct kg_v16 kg_v16_load(const float *p)
{
    return (struct kg_v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
/* All ones in the first n of 8 dwords. */
static inline __m256i kg_simd_mask8(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline struct kg_v16 kg_v16_load_n(const float *p, int n)
{
    return (struct kg_v16){_mm256_maskload_ps(p, kg_simd_mask8(n)),
                           _mm256_maskload_ps(p + 8, kg_simd_mask8(n - 8))};
}
static inline void kg_v16_store(float *p, struct kg_v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
static inline void kg_v16_store_n(float *p, struct kg_v16 a, int n)
{
    _mm256_maskstore_ps(p, kg_simd_mask8(n), a.lo);
    _mm256_maskstore_ps(p + 8, kg_simd_mask8(n - 8), a.hi);
}

static inline __m256 kg_simd_widen8(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
static inline struct kg_v16 kg_v16_load_bf16(const uint16_t *p)
{
    return (struct kg_v16){
        kg_simd_widen8(_mm_loadu_si128((const __m128i *)(const void *)p)),
        kg_simd_widen8(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)))};
}
static inline struct kg_v16 kg_v16_load_bf16_n(const uint16_t *p, int n)
{
    uint16_t h[16] = {0};
    memcpy(h, p, (size_t)n * sizeof h[0]);
    return kg_v16_load_bf16(h);
}
static inline struct kg_v16 kg_v16_load_half(const uint16_t *p)
{
    return (struct kg_v16){
        _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
        _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)))};
}
static inline struct kg_v16 kg_v16_load_i8(const int8_t *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (struct kg_v16){
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
/* Rounds to bf16, each in the lower half of its dword. */
static inline __m256i kg_simd_narrow8(__m256 a)
{
    __m256i u = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
}
static inline void kg_v16_store_bf16(uint16_t *p, struct kg_v16 a)
{
    __m256i packed = _mm256_packus_epi32(kg_simd_narrow8(a.lo), kg_simd_narrow8(a.hi));
    packed = _mm256_permute4x64_epi64(packed,
                                      0xd8); /* packing works within 128-bit halves */
    _mm256_storeu_si256((__m256i *)(void *)p, packed);
}
static inline void kg_v16_store_bf16_n(uint16_t *p, struct kg_v16 a, int n)
{
    uint16_t h[16];
    kg_v16_store_bf16(h, a);
    memcpy(p, h, (size_t)n * sizeof h[0]);
}

static inline struct kg_v16 kg_v16_add(struct kg_v16 a, struct kg_v16 b)
{
    return (struct kg_v16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
static inline struct kg_v16 kg_v16_sub(struct kg_v16 a, struct kg_v16 b)
{
    return (struct kg_v16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
static inline struct kg_v16 kg_v16_mul(struct kg_v16 a, struct kg_v16 b)
{
    return (struct kg_v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
static inline struct kg_v16 kg_v16_div(struct kg_v16 a, struct kg_v16 b)
{
    return (struct kg_v16){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
static inline struct kg_v16 kg_v16_sqrt(struct kg_v16 a)
{
    return (struct kg_v16){_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)};
}
static inline struct kg_v16 kg_v16_max(struct kg_v16 a, struct kg_v16 b)
{
    return (struct kg_v16){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
static inline struct kg_v16 kg_v16_min(struct kg_v16 a, struct kg_v16 b)
{
    return (struct kg_v16){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
static inline struct kg_v16 kg_v16_fma(struct kg_v16 a, struct kg_v16 b, struct kg_v16 c)
{
    return (struct kg_v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo),
                           _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline struct kg_v16 kg_v16_fnma(struct kg_v16 a, struct kg_v16 b, struct kg_v16 c)
{
    return (struct kg_v16){_mm256_fnmadd_ps(a.lo, b.lo, c.lo),
                           _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
static inline struct kg_v16 kg_v16_select_gt(struct kg_v16 a, struct kg_v16 b,
                                             struct kg_v16 x, struct kg_v16 y)
{
    return (struct kg_v16){
        _mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ)),
        _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))};
}
static inline uint32_t kg_v16_gt_bits(struct kg_v16 a, struct kg_v16 b)
{
    uint32_t lo = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ));
    uint32_t hi = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ));
    return lo | hi << 8;
}
static inline struct kg_v16 kg_v16_first_n(struct kg_v16 a, int n, struct kg_v16 fill)
{
    return (struct kg_v16){
        _mm256_blendv_ps(fill.lo, a.lo, _mm256_castsi256_ps(kg_simd_mask8(n))),
        _mm256_blendv_ps(fill.hi, a.hi, _mm256_castsi256_ps(kg_simd_mask8(n - 8)))};
}
/* 2^n for integral n in [-126, 127]: adding 1.5 * 2^23 leaves n in the low bits. */
static inline __m256 kg_simd_pow2_8(__m256 n)
{
    __m256i u = _mm256_castps_si256(_mm256_add_ps(n, _mm256_set1_ps(0x1.8p23f)));
    u = _mm256_add_epi32(_mm256_slli_epi32(u, 23), _mm256_set1_epi32(0x3f800000));
    return _mm256_castsi256_ps(u);
}
/* p * 2^n in two multiplications. The first is exact, so n may exceed the exponent
 * range. The result is 0 in the same cases as with KG_SIMD_512. */
static inline __m256 kg_simd_scale2_8(__m256 p, __m256 n)
{
    __m256 magic = _mm256_set1_ps(0x1.8p23f);
    p = _mm256_and_ps(p, _mm256_cmp_ps(n, _mm256_set1_ps(-151.0f), _CMP_NLE_UQ));
    __m256 half = _mm256_mul_ps(n, _mm256_set1_ps(0.5f));
    half = _mm256_sub_ps(_mm256_add_ps(half, magic), magic);
    p = _mm256_mul_ps(p, kg_simd_pow2_8(half));
    return _mm256_mul_ps(p, kg_simd_pow2_8(_mm256_sub_ps(n, half)));
}
static inline struct kg_v16 kg_v16_scale2(struct kg_v16 p, struct kg_v16 n)
{
    return (struct kg_v16){kg_simd_scale2_8(p.lo, n.lo), kg_simd_scale2_8(p.hi, n.hi)};
}

static inline float kg_v16_sum(struct kg_v16 a)
{
    __m256 s8 = _mm256_add_ps(a.lo, a.hi);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
static inline float kg_v16_hmax(struct kg_v16 a)
{
    __m256 s8 = _mm256_max_ps(a.lo, a.hi);
    __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

struct kg_d16 {
    __m256d q[4];
};

static inline struct kg_d16 kg_d16_set1(double x)
{
    __m256d a = _mm256_set1_pd(x);
    return (struct kg_d16){{a, a, a, a}};
}
static inline struct kg_d16 kg_d16_widen(struct kg_v16 a)
{
    return (struct kg_d16){{_mm256_cvtps_pd(_mm256_castps256_ps128(a.lo)),
                            _mm256_cvtps_pd(_mm256_extractf128_ps(a.lo, 1)),
                            _mm256_cvtps_pd(_mm256_castps256_ps128(a.hi)),
                            _mm256_cvtps_pd(_mm256_extractf128_ps(a.hi, 1))}};
}
static inline struct kg_v16 kg_d16_narrow(struct kg_d16 a)
{
    return (struct kg_v16){
        _mm256_set_m128(_mm256_cvtpd_ps(a.q[1]), _mm256_cvtpd_ps(a.q[0])),
        _mm256_set_m128(_mm256_cvtpd_ps(a.q[3]), _mm256_cvtpd_ps(a.q[2]))};
}
static inline struct kg_d16 kg_d16_add(struct kg_d16 a, struct kg_d16 b)
{
    for (int i = 0; i < 4; i++)
        a.q[i] = _mm256_add_pd(a.q[i], b.q[i]);
    return a;
}
static inline struct kg_d16 kg_d16_sub(struct kg_d16 a, struct kg_d16 b)
{
    for (int i = 0; i < 4; i++)
        a.q[i] = _mm256_sub_pd(a.q[i], b.q[i]);
    return a;
}
static inline struct kg_d16 kg_d16_fma(struct kg_d16 a, struct kg_d16 b, struct kg_d16 c)
{
    for (int i = 0; i < 4; i++)
        a.q[i] = _mm256_fmadd_pd(a.q[i], b.q[i], c.q[i]);
    return a;
}
static inline double kg_d16_sum(struct kg_d16 a)
{
    __m256d s4 = _mm256_add_pd(_mm256_add_pd(a.q[0], a.q[2]),
                               _mm256_add_pd(a.q[1], a.q[3]));
    __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(s4), _mm256_extractf128_pd(s4, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
}

#else
/* ---- any machine: four vectors of four lanes, by the compiler's operators ---- */
#if defined(__aarch64__)
#include <arm_neon.h>
#endif
typedef float kg_f4 __attribute__((vector_size(16)));
typedef int32_t kg_i4 __attribute__((vector_size(16))); /* of a comparison: -1 or 0 */
typedef uint32_t kg_u4 __attribute__((vector_size(16)));
typedef double kg_d2 __attribute__((vector_size(16)));
struct kg_v16 {
    kg_f4 q[4];
};
struct kg_d16 {
    kg_d2 q[8];
};

/* Operations that have no vector operator. */
#if defined(__aarch64__)
static inline kg_f4 kg_simd_fma4(kg_f4 a, kg_f4 b, kg_f4 c) { return vfmaq_f32(c, a, b); }
static inline kg_d2 kg_simd_fma2(kg_d2 a, kg_d2 b, kg_d2 c) { return vfmaq_f64(c, a, b); }
static inline kg_f4 kg_simd_sqrt4(kg_f4 a) { return vsqrtq_f32(a); }
static inline kg_u4 kg_simd_load_h4(const uint16_t *p) { return vmovl_u16(vld1_u16(p)); }
static inline void kg_simd_store_h4(uint16_t *p, kg_u4 u) { vst1_u16(p, vmovn_u32(u)); }
#else
static inline kg_f4 kg_simd_fma4(kg_f4 a, kg_f4 b, kg_f4 c)
{
    for (int i = 0; i < 4; i++)
        c[i] = kg_simd_fma(a[i], b[i], c[i]);
    return c;
}
static inline kg_d2 kg_simd_fma2(kg_d2 a, kg_d2 b, kg_d2 c)
{
    return (kg_d2){fma(a[0], b[0], c[0]), fma(a[1], b[1], c[1])};
}
static inline kg_f4 kg_simd_sqrt4(kg_f4 a)
{
    return (kg_f4){sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])};
}
static inline kg_u4 kg_simd_load_h4(const uint16_t *p)
{
    return (kg_u4){p[0], p[1], p[2], p[3]};
}
static inline void kg_simd_store_h4(uint16_t *p, kg_u4 u)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint16_t)u[i];
}
#endif
static inline kg_f4 kg_simd_pick4(kg_i4 which, kg_f4 x, kg_f4 y)
{
    return (kg_f4)((which & (kg_i4)x) | (~which & (kg_i4)y));
}

static inline struct kg_v16 kg_v16_set1(float x)
{
    kg_f4 a = {x, x, x, x};
    return (struct kg_v16){{a, a, a, a}};
}
static inline struct kg_v16 kg_v16_zero(void) { return kg_v16_set1(0.0f); }
static inline struct kg_v16 kg_v16_load(const float *p)
{
    struct kg_v16 y;
    for (int i = 0; i < 4; i++)
        memcpy(&y.q[i], p + 4 * i, sizeof y.q[i]);
    return y;
}
static inline struct kg_v16 kg_v16_load_n(const float *p, int n)
{
    float f[16] = {0};
    memcpy(f, p, (size_t)n * sizeof f[0]);
    return kg_v16_load(f);
}
static inline void kg_v16_store(float *p, struct kg_v16 a)
{
    for (int i = 0; i < 4; i++)
        memcpy(p + 4 * i, &a.q[i], sizeof a.q[i]);
}
static inline void kg_v16_store_n(float *p, struct kg_v16 a, int n)
{
    float f[16];
    kg_v16_store(f, a);
    memcpy(p, f, (size_t)n * sizeof f[0]);
}
static inline struct kg_v16 kg_v16_load_bf16(const uint16_t *p)
{
    struct kg_v16 y;
    for (int i = 0; i < 4; i++)
        y.q[i] = (kg_f4)(kg_simd_load_h4(p + 4 * i) << 16);
    return y;
}
static inline struct kg_v16 kg_v16_load_bf16_n(const uint16_t *p, int n)
{
    uint16_t h[16] = {0};
    memcpy(h, p, (size_t)n * sizeof h[0]);
    return kg_v16_load_bf16(h);
}
static inline struct kg_v16 kg_v16_load_half(const uint16_t *p)
{
    float f[16];
    for (int i = 0; i < KG_LANES; i++)
        f[i] = kg_half_float(p[i]);
    return kg_v16_load(f);
}
static inline struct kg_v16 kg_v16_load_i8(const int8_t *p)
{
    float f[16];
    for (int i = 0; i < KG_LANES; i++)
        f[i] = p[i];
    return kg_v16_load(f);
}
/* The upper half of each dword is the nearest bf16; not for NaN. */
static inline kg_u4 kg_simd_nearest4(kg_f4 a)
{
    kg_u4 u = (kg_u4)a;
    return u + 0x7fffu + (u >> 16 & 1u);
}
static inline void kg_v16_store_bf16(uint16_t *p, struct kg_v16 a)
{
    for (int i = 0; i < 4; i++) {
        kg_u4 nan = (kg_u4)(a.q[i] != a.q[i]), quiet = (kg_u4)a.q[i] | 0x400000u;
        kg_u4 u = (nan & quiet) | (~nan & kg_simd_nearest4(a.q[i]));
        kg_simd_store_h4(p + 4 * i, u >> 16);
    }
}
static inline void kg_v16_store_bf16_n(uint16_t *p, struct kg_v16 a, int n)
{
    uint16_t h[16];
    kg_v16_store_bf16(h, a);
    memcpy(p, h, (size_t)n * sizeof h[0]);
}

static inline struct kg_v16 kg_v16_add(struct kg_v16 a, struct kg_v16 b)
{
    for (int i = 0; i < 4; i++)
        a.q[i] += b.q[i];
    return a;
}
static inline struct kg_v16 kg_v16_sub(struct kg_v16 a, struct kg_v16 b)
{
    for (int i = 0; i < 4; i++)
        a.q[i] -= b.q[i];
    return a;
}
static inline struct kg_v16 kg_v16_mul(struct kg_v16 a, struct kg_v16 b)
{
    for (int i = 0; i < 4; i++)
        a.q[i] *= b.q[i];
    return a;
}
static inline struct kg_v16 kg_v16_div(struct kg_v16 a, struct kg_v16 b)
{
    for (int i = 0; i < 4; i++)
        a.q[i] /= b.q[i];
    return a;
}
static inline struct kg_v16 kg_v16_sqrt(struct kg_v16 a)
{
    for (int i = 0; i < 4; i++)
        a.q[i] = kg_simd_sqrt4(a.q[i]);
    return a;
}
static inline struct kg_v16 kg_v16_fma(struct kg_v16 a, struct kg_v16 b, struct kg_v16 c)
{
    for (int i = 0; i < 4; i++)
        c.q[i] = kg_simd_fma4(a.q[i], b.q[i], c.q[i]);
    return c;
}
static inline struct kg_v16 kg_v16_fnma(struct kg_v16 a, struct kg_v16 b, struct kg_v16 c)
{
    for (int i = 0; i < 4; i++)
        c.q[i] = kg_simd_fma4(-a.q[i], b.q[i], c.q[i]);
    return c;
}
static inline struct kg_v16 kg_v16_select_gt(struct kg_v16 a, struct kg_v16 b,
                                             struct kg_v16 x, struct kg_v16 y)
{
    for (int i = 0; i < 4; i++)
        y.q[i] = kg_simd_pick4(a.q[i] > b.q[i], x.q[i], y.q[i]);
    return y;
}
static inline struct kg_v16 kg_v16_max(struct kg_v16 a, struct kg_v16 b)
{
    return kg_v16_select_gt(a, b, a, b);
}
static inline struct kg_v16 kg_v16_min(struct kg_v16 a, struct kg_v16 b)
{
    return kg_v16_select_gt(b, a, a, b);
}
static inline uint32_t kg_v16_gt_bits(struct kg_v16 a, struct kg_v16 b)
{
    kg_i4 bits = {0}, one = {1, 2, 4, 8};
    for (int i = 0; i < 4; i++)
        bits |= (a.q[i] > b.q[i]) & one << 4 * i;
    return (uint32_t)(bits[0] | bits[1] | bits[2] | bits[3]);
}
static inline struct kg_v16 kg_v16_first_n(struct kg_v16 a, int n, struct kg_v16 fill)
{
    const kg_i4 lanes = {0, 1, 2, 3};
    for (int i = 0; i < 4; i++)
        a.q[i] = kg_simd_pick4(lanes < n - 4 * i, a.q[i], fill.q[i]);
    return a;
}
/* 2^n for integral n in [-126, 127]: adding 1.5 * 2^23 leaves n in the low bits. */
static inline kg_f4 kg_simd_pow2_4(kg_f4 n)
{
    return (kg_f4)(((kg_u4)(n + 0x1.8p23f) << 23) + 0x3f800000u);
}
/* p * 2^n in two multiplications. The first is exact, so n may exceed the exponent
 * range. The result is 0 in the same cases as with KG_SIMD_512. */
static inline struct kg_v16 kg_v16_scale2(struct kg_v16 p, struct kg_v16 n)
{
    for (int i = 0; i < 4; i++) {
        kg_f4 half = (n.q[i] * 0.5f + 0x1.8p23f) - 0x1.8p23f;
        p.q[i] = (kg_f4)((kg_i4)p.q[i] & ~(n.q[i] <= -151.0f));
        p.q[i] = p.q[i] * kg_simd_pow2_4(half) * kg_simd_pow2_4(n.q[i] - half);
    }
    return p;
}
static inline float kg_v16_sum(struct kg_v16 a)
{
    kg_f4 s4 = (a.q[0] + a.q[2]) + (a.q[1] + a.q[3]);
    return (s4[0] + s4[2]) + (s4[1] + s4[3]);
}
static inline float kg_v16_hmax(struct kg_v16 a)
{
    float f[16];
    kg_v16_store(f, a);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            f[i] = f[i] > f[i + half] ? f[i] : f[i + half];
    return f[0];
}

static inline struct kg_d16 kg_d16_set1(double x)
{
    kg_d2 a = {x, x};
    return (struct kg_d16){{a, a, a, a, a, a, a, a}};
}
static inline struct kg_d16 kg_d16_widen(struct kg_v16 a)
{
    struct kg_d16 y;
    for (int i = 0; i < 8; i++)
        y.q[i] = (kg_d2){(double)a.q[i / 2][i % 2 * 2],
                         (double)a.q[i / 2][i % 2 * 2 + 1]};
    return y;
}
static inline struct kg_v16 kg_d16_narrow(struct kg_d16 a)
{
    struct kg_v16 y;
    for (int i = 0; i < 4; i++) {
        kg_d2 lo = a.q[2 * i], hi = a.q[2 * i + 1];
        y.q[i] = (kg_f4){(float)lo[0], (float)lo[1], (float)hi[0], (float)hi[1]};
    }
    return y;
}
static inline struct kg_d16 kg_d16_add(struct kg_d16 a, struct kg_d16 b)
{
    for (int i = 0; i < 8; i++)
        a.q[i] += b.q[i];
    return a;
}
static inline struct kg_d16 kg_d16_sub(struct kg_d16 a, struct kg_d16 b)
{
    for (int i = 0; i < 8; i++)
        a.q[i] -= b.q[i];
    return a;
}
static inline struct kg_d16 kg_d16_fma(struct kg_d16 a, struct kg_d16 b, struct kg_d16 c)
{
    for (int i = 0; i < 8; i++)
        c.q[i] = kg_simd_fma2(a.q[i], b.q[i], c.q[i]);
    return c;
}
static inline double kg_d16_sum(struct kg_d16 a)
{
    kg_d2 s4[2];
    for (int i = 0; i < 2; i++)
        s4[i] = (a.q[i] + a.q[i + 4]) + (a.q[i + 2] + a.q[i + 6]);
    return (s4[0] + s4[1])[0] + (s4[0] + s4[1])[1];
}
#endif

/* ---- built from the above, the same on every set ---- */

/* x = n ln 2 + r with |r| <= ln 2 / 2, and e^r = 1 + r poly: a minimax polynomial of
 * degree 6. x is first clamped to -105 .. 89, in the order that keeps NaN. */
struct kg_exp_parts {
    struct kg_v16 n;
    struct kg_v16 r;
    struct kg_v16 poly;
};
static inline struct kg_exp_parts kg_v16_exp_parts(struct kg_v16 x)
{
    struct kg_v16 magic = kg_v16_set1(0x1.8p23f); /* rounds to an integer when added */
    x = kg_v16_max(kg_v16_set1(-105.0f), x);
    x = kg_v16_min(kg_v16_set1(89.0f), x);
    struct kg_v16 n = kg_v16_sub(kg_v16_fma(x, kg_v16_set1(0x1.715476p+0f), magic),
                                 magic);
    struct kg_v16 r = kg_v16_fnma(n, kg_v16_set1(0x1.62e400p-1f),
                                  x); /* exact: 15 bits of ln 2 */
    r = kg_v16_fnma(n, kg_v16_set1(0x1.7f7d1cp-20f), r);
    struct kg_v16 p = kg_v16_set1(0x1.6a2434p-10f);
    p = kg_v16_fma(p, r, kg_v16_set1(0x1.1239e2p-7f));
    p = kg_v16_fma(p, r, kg_v16_set1(0x1.5558f2p-5f));
    p = kg_v16_fma(p, r, kg_v16_set1(0x1.555492p-3f));
    p = kg_v16_fma(p, r, kg_v16_set1(0x1.fffffcp-2f));
    p = kg_v16_fma(p, r, kg_v16_set1(1.0f));
    return (struct kg_exp_parts){n, r, p};
}

/* e^x, at most 2 ulp off (measured 0.9), for every input: -inf gives 0, overflow gives
 * inf, NaN gives NaN, denormal results are rounded once. */
static inline struct kg_v16 kg_v16_exp(struct kg_v16 x)
{
    struct kg_exp_parts e = kg_v16_exp_parts(x);
    return kg_v16_scale2(kg_v16_fma(e.poly, e.r, kg_v16_set1(1.0f)), e.n);
}

/* 1 - e^x for x <= 0, at most 4 ulp off, also near 0, where subtracting e^x from 1 would
 * cancel. */
static inline struct kg_v16 kg_v16_one_minus_exp(struct kg_v16 x)
{
    struct kg_exp_parts e = kg_v16_exp_parts(x);
    struct kg_v16 one = kg_v16_set1(1.0f);
    struct kg_v16 scale = kg_v16_scale2(one, e.n);
    return kg_v16_fnma(scale, kg_v16_mul(e.poly, e.r), kg_v16_sub(one, scale));
}

/* tanh x = sign(x) (1 - e) / (1 + e), e = exp(-2 |x|); as accurate near 0 as elsewhere */
static inline struct kg_v16 kg_v16_tanh(struct kg_v16 x)
{
    struct kg_v16 minus = kg_v16_sub(kg_v16_zero(), x);
    struct kg_v16 below = kg_v16_mul(kg_v16_set1(2.0f), kg_v16_min(x, minus));
    struct kg_v16 above = kg_v16_add(kg_v16_set1(1.0f), kg_v16_exp(below));
    struct kg_v16 t = kg_v16_div(kg_v16_one_minus_exp(below), above);
    return kg_v16_select_gt(x, kg_v16_zero(), t, kg_v16_sub(kg_v16_zero(), t));
}

/* cap tanh(x / cap) */
static inline struct kg_v16 kg_v16_softcap(struct kg_v16 x, float cap)
{
    struct kg_v16 t = kg_v16_tanh(kg_v16_div(x, kg_v16_set1(cap)));
    return kg_v16_mul(kg_v16_set1(cap), t);
}

#endif
