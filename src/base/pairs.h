/* Dwords by sixteen: pairs of bf16 and what products do with them, on every instruction
 * set.
 *
 * Like simd.h, of which this is the part for products: one meaning, lane by lane. A pair
 * holds the earlier factor in its lower half. Sums here treat subnormals as zero, as
 * backend.h defines for bf16.
 */
#ifndef KG_BASE_PAIRS_H
#define KG_BASE_PAIRS_H

#include "base/simd.h"

/* ---- pairs of bf16, and other dwords ---- */
/* Sixteen dwords: of two bf16 each, the first in the lower half, or of a float each. */
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
/* Dword i is even[i] with odd[i] above it. */
static inline struct kg_pairs kg_pairs_zip(const uint16_t *even, const uint16_t *odd)
{
    __m256i e = _mm256_loadu_si256((const __m256i *)(const void *)even);
    __m256i o = _mm256_loadu_si256((const __m256i *)(const void *)odd);
    return (struct kg_pairs){_mm512_or_si512(
        _mm512_cvtepu16_epi32(e), _mm512_slli_epi32(_mm512_cvtepu16_epi32(o), 16))};
}
static inline struct kg_v16 kg_pairs_even(struct kg_pairs w)
{
    return (struct kg_v16){_mm512_castsi512_ps(_mm512_slli_epi32(w.r, 16))};
}
static inline struct kg_v16 kg_pairs_odd(struct kg_pairs w)
{
    return (struct kg_v16){
        _mm512_castsi512_ps(_mm512_and_si512(w.r, _mm512_set1_epi32((int)0xffff0000u)))};
}
/* w[i] <- dword i of every w: 16 x 16 dwords, in four steps of log2. */
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
static inline struct kg_v16 kg_pairs_even(struct kg_pairs w)
{
    return (struct kg_v16){_mm256_castsi256_ps(_mm256_slli_epi32(w.lo, 16)),
                           _mm256_castsi256_ps(_mm256_slli_epi32(w.hi, 16))};
}
static inline struct kg_v16 kg_pairs_odd(struct kg_pairs w)
{
    __m256i mask = _mm256_set1_epi32((int)0xffff0000u);
    return (struct kg_v16){_mm256_castsi256_ps(_mm256_and_si256(w.lo, mask)),
                           _mm256_castsi256_ps(_mm256_and_si256(w.hi, mask))};
}
/* t[i] <- dword i of eight rows of which `src` is the first, two __m256i apart. */
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
static inline struct kg_v16 kg_pairs_even(struct kg_pairs w)
{
    struct kg_v16 y;
    for (int i = 0; i < 16; i++)
        w.u[i] <<= 16;
    memcpy(y.f, w.u, sizeof y.f);
    return y;
}
static inline struct kg_v16 kg_pairs_odd(struct kg_pairs w)
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

/* acc + a b with one rounding, and a + b, where subnormal operands and results are zero:
 * with KG_SIMD_FLUSH_MODE only in the mode KG_FP_FLUSH. acc is not subnormal. */
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

/* Two steps of one chain as one pair, the earlier above the later one, as the instruction
 * for pairs takes them: of the even elements (the lower halves) of a, then b; and of the
 * odd ones. */
static inline uint32_t kg_pair_of_even(uint32_t a, uint32_t b)
{
    return a << 16 | (b & 0xffffu);
}
static inline uint32_t kg_pair_of_odd(uint32_t a, uint32_t b)
{
    return (a & 0xffff0000u) | b >> 16;
}
#if defined(KG_SIMD_512) && defined(__AVX512BF16__)
static inline struct kg_pairs kg_pairs_of_even(struct kg_pairs a, struct kg_pairs b)
{
    return (struct kg_pairs){
        _mm512_mask_blend_epi16(0x55555555u, _mm512_slli_epi32(a.r, 16), b.r)};
}
static inline struct kg_pairs kg_pairs_of_odd(struct kg_pairs a, struct kg_pairs b)
{
    return (struct kg_pairs){
        _mm512_mask_blend_epi16(0x55555555u, a.r, _mm512_srli_epi32(b.r, 16))};
}
/* acc + the product of the upper halves, then + that of the lower ones. `pair` in
 * memory. */
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
static inline struct kg_pairs kg_pairs_of_even(struct kg_pairs a, struct kg_pairs b)
{
    (void)b;
    return a;
}
static inline struct kg_pairs kg_pairs_of_odd(struct kg_pairs a, struct kg_pairs b)
{
    (void)b;
    return a;
}
static inline struct kg_v16 kg_v16_dot_bf16(struct kg_v16 acc, struct kg_pairs w,
                                            const void *pair)
{
    (void)w;
    (void)pair;
    return acc;
}
#endif

#endif
