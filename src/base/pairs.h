/* Vectors of sixteen dwords, each a pair of bf16, and their products, on every
 * instruction set.
 *
 * The part of simd.h for products: the same meaning lane by lane on every set. A pair
 * holds the earlier factor in its lower half. Sums here treat subnormals as zero, as
 * backend.h defines for bf16.
 */
#ifndef KG_BASE_PAIRS_H
#define KG_BASE_PAIRS_H

#include "base/simd.h"

/* ---- pairs of bf16, and other dwords ---- */
/* Sixteen dwords, each two bf16 (the first in the lower half) or one float. */
#if defined(KG_SIMD_512)
struct kg_pairs {
    __m512i r;
};
static inline struct kg_pairs kg_pairs_load(const void *p)
{
    return (struct kg_pairs){_mm512_loadu_si512(p)};
}
static inline void kg_pairs_store(void *p, struct kg_pairs w)
{
    _mm512_storeu_si512(p, w.r);
}
/* Dword i is even[i] in the lower and odd[i] in the upper half. */
static inline struct kg_pairs kg_pairs_zip(const uint16_t *even, const uint16_t *odd)
{
    __m256i e = _mm256_loadu_si256((const __m256i *)(const void *)even);
    __m256i o = _mm256_loadu_si256((const __m256i *)(const void *)odd);
    return (struct kg_pairs){_mm512_or_si512(
        _mm512_cvtepu16_epi32(e), _mm512_slli_epi32(_mm512_cvtepu16_epi32(o), 16))};
}
static inline struct kg_v16 kg_pairs_low(struct kg_pairs w)
{
    return (struct kg_v16){_mm512_castsi512_ps(_mm512_slli_epi32(w.r, 16))};
}
static inline struct kg_v16 kg_pairs_high(struct kg_pairs w)
{
    return (struct kg_v16){
        _mm512_castsi512_ps(_mm512_and_si512(w.r, _mm512_set1_epi32((int)0xffff0000u)))};
}
/* kg_pairs_split orders the 32 bf16 of a block for two chains: eight pairs of even ones,
 * then eight of odd ones, the earlier of a pair in its upper half. kg_pairs_join undoes
 * it. */
static inline struct kg_pairs kg_pairs_split(struct kg_pairs w)
{
    static const uint16_t from[32] = {2,  0,  6,  4,  10, 8,  14, 12, 18, 16, 22,
                                      20, 26, 24, 30, 28, 3,  1,  7,  5,  11, 9,
                                      15, 13, 19, 17, 23, 21, 27, 25, 31, 29};
    return (struct kg_pairs){_mm512_permutexvar_epi16(_mm512_loadu_si512(from), w.r)};
}
static inline struct kg_pairs kg_pairs_join(struct kg_pairs w)
{
    static const uint16_t from[32] = {1,  17, 0,  16, 3,  19, 2,  18, 5,  21, 4,
                                      20, 7,  23, 6,  22, 9,  25, 8,  24, 11, 27,
                                      10, 26, 13, 29, 12, 28, 15, 31, 14, 30};
    return (struct kg_pairs){_mm512_permutexvar_epi16(_mm512_loadu_si512(from), w.r)};
}
/* w[i] <- dword i of every w: transposes 16 x 16 dwords in log2(16) = 4 steps. */
static inline void kg_pairs_transpose(struct kg_pairs w[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(w[i].r, w[i + 1].r);
        t[i + 1] = _mm512_unpackhi_epi32(w[i].r, w[i + 1].r);
    }
    __m512i s[16];
    for (int i = 0; i < 16; i += 4) {
        s[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        s[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        s[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        s[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        __m512i a = _mm512_shuffle_i32x4(s[i], s[i + 4], 0x88);
        __m512i b = _mm512_shuffle_i32x4(s[i], s[i + 4], 0xdd);
        __m512i c = _mm512_shuffle_i32x4(s[i + 8], s[i + 12], 0x88);
        __m512i d = _mm512_shuffle_i32x4(s[i + 8], s[i + 12], 0xdd);
        w[i].r = _mm512_shuffle_i32x4(a, c, 0x88);
        w[i + 8].r = _mm512_shuffle_i32x4(a, c, 0xdd);
        w[i + 4].r = _mm512_shuffle_i32x4(b, d, 0x88);
        w[i + 12].r = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
}
#elif defined(KG_SIMD_256)
struct kg_pairs {
    __m256i lo;
    __m256i hi;
};
static inline struct kg_pairs kg_pairs_load(const void *p)
{
    const __m256i *q = p;
    return (struct kg_pairs){_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
static inline void kg_pairs_store(void *p, struct kg_pairs w)
{
    __m256i *q = p;
    _mm256_storeu_si256(q, w.lo);
    _mm256_storeu_si256(q + 1, w.hi);
}
static inline __m256i kg_simd_zip8(const uint16_t *even, const uint16_t *odd)
{
    __m256i e = _mm256_cvtepu16_epi32(
        _mm_loadu_si128((const __m128i *)(const void *)even));
    __m256i o = _mm256_cvtepu16_epi32(
        _mm_loadu_si128((const __m128i *)(const void *)odd));
    return _mm256_or_si256(e, _mm256_slli_epi32(o, 16));
}
static inline struct kg_pairs kg_pairs_zip(const uint16_t *even, const uint16_t *odd)
{
    return (struct kg_pairs){kg_simd_zip8(even, odd), kg_simd_zip8(even + 8, odd + 8)};
}
static inline __m256i kg_simd_shuffle16(__m256i w, int64_t first, int64_t second)
{
    return _mm256_shuffle_epi8(w, _mm256_setr_epi64x(first, second, first, second));
}
static inline struct kg_pairs kg_pairs_split(struct kg_pairs w)
{
    const int64_t even = 0x09080d0c01000504, odd = 0x0b0a0f0e03020706;
    __m256i a = _mm256_permute4x64_epi64(kg_simd_shuffle16(w.lo, even, odd), 0xd8);
    __m256i b = _mm256_permute4x64_epi64(kg_simd_shuffle16(w.hi, even, odd), 0xd8);
    return (struct kg_pairs){_mm256_permute2x128_si256(a, b, 0x20),
                             _mm256_permute2x128_si256(a, b, 0x31)};
}
static inline struct kg_pairs kg_pairs_join(struct kg_pairs w)
{
    const int64_t first = 0x090801000b0a0302, second = 0x0d0c05040f0e0706;
    __m256i a = _mm256_permute2x128_si256(w.lo, w.hi, 0x20);
    __m256i b = _mm256_permute2x128_si256(w.lo, w.hi, 0x31);
    return (struct kg_pairs){
        kg_simd_shuffle16(_mm256_permute4x64_epi64(a, 0xd8), first, second),
        kg_simd_shuffle16(_mm256_permute4x64_epi64(b, 0xd8), first, second)};
}
static inline struct kg_v16 kg_pairs_low(struct kg_pairs w)
{
    return (struct kg_v16){_mm256_castsi256_ps(_mm256_slli_epi32(w.lo, 16)),
                           _mm256_castsi256_ps(_mm256_slli_epi32(w.hi, 16))};
}
static inline struct kg_v16 kg_pairs_high(struct kg_pairs w)
{
    __m256i mask = _mm256_set1_epi32((int)0xffff0000u);
    return (struct kg_v16){_mm256_castsi256_ps(_mm256_and_si256(w.lo, mask)),
                           _mm256_castsi256_ps(_mm256_and_si256(w.hi, mask))};
}
/* t[i] <- dword i of eight rows that start at `src`, two __m256i apart. */
static inline void kg_simd_transpose8(__m256i t[8], const __m256i *src)
{
    __m256i s[8];
    for (int i = 0; i < 8; i += 2) {
        s[i] = _mm256_unpacklo_epi32(src[2 * i], src[2 * i + 2]);
        s[i + 1] = _mm256_unpackhi_epi32(src[2 * i], src[2 * i + 2]);
    }
    __m256i q[8];
    for (int i = 0; i < 8; i += 4) {
        q[i] = _mm256_unpacklo_epi64(s[i], s[i + 2]);
        q[i + 1] = _mm256_unpackhi_epi64(s[i], s[i + 2]);
        q[i + 2] = _mm256_unpacklo_epi64(s[i + 1], s[i + 3]);
        q[i + 3] = _mm256_unpackhi_epi64(s[i + 1], s[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2x128_si256(q[i], q[i + 4], 0x20);
        t[i + 4] = _mm256_permute2x128_si256(q[i], q[i + 4], 0x31);
    }
}
static inline void kg_pairs_transpose(struct kg_pairs w[16])
{
    __m256i all[4][8]; /* rows 0-7 and 8-15, each in columns 0-7 and 8-15 */
    for (int i = 0; i < 4; i++)
        kg_simd_transpose8(all[i], (i & 1 ? &w[i / 2 * 8].hi : &w[i / 2 * 8].lo));
    for (int i = 0; i < 8; i++) {
        w[i] = (struct kg_pairs){all[0][i], all[2][i]};
        w[i + 8] = (struct kg_pairs){all[1][i], all[3][i]};
    }
}
#else
struct kg_pairs {
    uint32_t u[16];
};
static inline struct kg_pairs kg_pairs_load(const void *p)
{
    struct kg_pairs w;
    memcpy(w.u, p, sizeof w.u);
    return w;
}
static inline void kg_pairs_store(void *p, struct kg_pairs w)
{
    memcpy(p, w.u, sizeof w.u);
}
static inline struct kg_pairs kg_pairs_zip(const uint16_t *even, const uint16_t *odd)
{
    struct kg_pairs w;
    for (int i = 0; i < 16; i++)
        w.u[i] = even[i] | (uint32_t)odd[i] << 16;
    return w;
}
static inline uint32_t kg_simd_half(uint32_t pair, int upper)
{
    return upper ? pair >> 16 : pair & 0xffffu;
}
static inline struct kg_pairs kg_pairs_split(struct kg_pairs w)
{
    struct kg_pairs y;
    for (int i = 0; i < 8; i++)
        for (int odd = 0; odd < 2; odd++)
            y.u[8 * odd + i] = kg_simd_half(w.u[2 * i], odd) << 16 |
                               kg_simd_half(w.u[2 * i + 1], odd);
    return y;
}
static inline struct kg_pairs kg_pairs_join(struct kg_pairs w)
{
    struct kg_pairs y;
    for (int i = 0; i < 16; i++) {
        uint32_t even = w.u[i / 2], odd = w.u[8 + i / 2];
        y.u[i] = kg_simd_half(even, i % 2 == 0) | kg_simd_half(odd, i % 2 == 0) << 16;
    }
    return y;
}
static inline struct kg_v16 kg_pairs_low(struct kg_pairs w)
{
    struct kg_v16 y;
    for (int i = 0; i < 16; i++)
        w.u[i] <<= 16;
    memcpy(y.f, w.u, sizeof y.f);
    return y;
}
static inline struct kg_v16 kg_pairs_high(struct kg_pairs w)
{
    struct kg_v16 y;
    for (int i = 0; i < 16; i++)
        w.u[i] &= 0xffff0000u;
    memcpy(y.f, w.u, sizeof y.f);
    return y;
}
static inline void kg_pairs_transpose(struct kg_pairs w[16])
{
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < i; j++) {
            uint32_t u = w[i].u[j];
            w[i].u[j] = w[j].u[i];
            w[j].u[i] = u;
        }
}
#endif

/* acc + a b with one rounding, and a + b, with subnormal operands and results zero. With
 * KG_SIMD_FLUSH_MODE this holds only in mode KG_FP_FLUSH. acc must not be subnormal. */
#if defined(KG_SIMD_512) || defined(KG_SIMD_256)
static inline struct kg_v16 kg_v16_fma_flushed(struct kg_v16 a, struct kg_v16 b,
                                               struct kg_v16 acc)
{
    return kg_v16_fma(a, b, acc);
}
static inline struct kg_v16 kg_v16_add_flushed(struct kg_v16 a, struct kg_v16 b)
{
    return kg_v16_add(a, b);
}
#else
static inline struct kg_v16 kg_v16_fma_flushed(struct kg_v16 a, struct kg_v16 b,
                                               struct kg_v16 acc)
{
    for (int i = 0; i < 16; i++)
        acc.f[i] = kg_simd_fma_flushed(kg_simd_flush(a.f[i]), kg_simd_flush(b.f[i]),
                                       acc.f[i]);
    return acc;
}
static inline struct kg_v16 kg_v16_add_flushed(struct kg_v16 a, struct kg_v16 b)
{
    for (int i = 0; i < 16; i++)
        a.f[i] = kg_simd_flush(a.f[i] + b.f[i]);
    return a;
}
#endif

/* 2^(23 - at) + q, q the bits [at, at + bits) of each dword, below bit 23; each dword
 * without its lowest bits; and the bf16 nearest to low and high, as pairs: both finite,
 * and 0 or of at least 2^-100, since the instruction has no subnormals. */
#if defined(KG_SIMD_512)
static inline struct kg_v16 kg_pairs_code(struct kg_pairs w, const int at, const int bits)
{
    const __m512i mask = _mm512_set1_epi32(((1 << bits) - 1) << at);
    const __m512i one = _mm512_set1_epi32((150 - at) << 23);
    return (struct kg_v16){_mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(w.r, mask, one, 0xea))}; /* w & mask | one */
}
static inline struct kg_pairs kg_pairs_after(struct kg_pairs w, const int bits)
{
    return (struct kg_pairs){_mm512_srli_epi32(w.r, (unsigned)bits)};
}
static inline struct kg_pairs kg_pairs_round(struct kg_v16 low, struct kg_v16 high)
{
#if defined(__AVX512BF16__)
    static const uint16_t from[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (struct kg_pairs){_mm512_permutexvar_epi16(
        _mm512_loadu_si512(from), (__m512i)_mm512_cvtne2ps_pbh(high.r, low.r))};
#else
    __m512i l = _mm512_castps_si512(low.r), h = _mm512_castps_si512(high.r);
    const __m512i one = _mm512_set1_epi32(1), half = _mm512_set1_epi32(0x7fff);
    l = _mm512_add_epi32(_mm512_add_epi32(l, half),
                         _mm512_and_si512(_mm512_srli_epi32(l, 16), one));
    h = _mm512_add_epi32(_mm512_add_epi32(h, half),
                         _mm512_and_si512(_mm512_srli_epi32(h, 16), one));
    return (struct kg_pairs){
        _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(l, 16), h)};
#endif
}
#elif defined(KG_SIMD_256)
static inline __m256 kg_simd_code8(__m256i w, const int at, const int bits)
{
    w = _mm256_and_si256(w, _mm256_set1_epi32(((1 << bits) - 1) << at));
    return _mm256_castsi256_ps(_mm256_or_si256(w, _mm256_set1_epi32((150 - at) << 23)));
}
static inline struct kg_pairs kg_pairs_after(struct kg_pairs w, const int bits)
{
    return (struct kg_pairs){_mm256_srli_epi32(w.lo, bits),
                             _mm256_srli_epi32(w.hi, bits)};
}
static inline struct kg_v16 kg_pairs_code(struct kg_pairs w, const int at, const int bits)
{
    return (struct kg_v16){kg_simd_code8(w.lo, at, bits), kg_simd_code8(w.hi, at, bits)};
}
static inline __m256i kg_simd_nearest8(__m256 a)
{
    const __m256i u = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
}
static inline __m256i kg_simd_round8(__m256 low, __m256 high)
{
    return _mm256_blend_epi16(_mm256_srli_epi32(kg_simd_nearest8(low), 16),
                              kg_simd_nearest8(high), 0xaa);
}
static inline struct kg_pairs kg_pairs_round(struct kg_v16 low, struct kg_v16 high)
{
    return (struct kg_pairs){kg_simd_round8(low.lo, high.lo),
                             kg_simd_round8(low.hi, high.hi)};
}
#else
static inline struct kg_v16 kg_pairs_code(struct kg_pairs w, const int at, const int bits)
{
    struct kg_v16 y;
    for (int i = 0; i < 16; i++)
        y.f[i] = (float)((1 << (23 - at)) + (int)(w.u[i] >> at & ((1u << bits) - 1)));
    return y;
}
static inline struct kg_pairs kg_pairs_after(struct kg_pairs w, const int bits)
{
    for (int i = 0; i < 16; i++)
        w.u[i] >>= bits;
    return w;
}
static inline uint32_t kg_simd_nearest(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u + 0x7fffu + (u >> 16 & 1u);
}
static inline struct kg_pairs kg_pairs_round(struct kg_v16 low, struct kg_v16 high)
{
    struct kg_pairs w;
    for (int i = 0; i < 16; i++)
        w.u[i] = kg_simd_nearest(low.f[i]) >> 16 |
                 (kg_simd_nearest(high.f[i]) & 0xffff0000u);
    return w;
}
#endif

#if defined(KG_SIMD_512) && defined(__AVX512BF16__)
/* acc + the product of the upper halves, then + that of the lower halves. pair: address
 * of one dword */
static inline struct kg_v16 kg_v16_dot_bf16(struct kg_v16 acc, struct kg_pairs w,
                                            const void *pair)
{
    int32_t u;
    memcpy(&u, pair, sizeof u);
    return (struct kg_v16){
        _mm512_dpbf16_ps(acc.r, (__m512bh)w.r, (__m512bh)_mm512_set1_epi32(u))};
}
#else
/* Never called: KG_SIMD_BF16_DOT is 0. */
static inline struct kg_v16 kg_v16_dot_bf16(struct kg_v16 acc, struct kg_pairs w,
                                            const void *pair)
{
    (void)w;
    (void)pair;
    return acc;
}
#endif

#endif
