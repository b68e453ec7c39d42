/* Vectors of sixteen dwords, each a pair of bf16, and their products, on every
 * instruction set.
 *
 * As in simd.h, every function has one meaning, lane by lane, on every set. A pair holds
 * the earlier factor in its lower half. Sums here treat subnormals as zero, as backend.h
 * defines for bf16 products.
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
    kg_u4 q[4];
};
static inline struct kg_pairs kg_pairs_load(const void *p)
{
    struct kg_pairs w;
    for (int i = 0; i < 4; i++)
        memcpy(&w.q[i], (const uint32_t *)p + 4 * i, sizeof w.q[i]);
    return w;
}
static inline void kg_pairs_store(void *p, struct kg_pairs w)
{
    for (int i = 0; i < 4; i++)
        memcpy((uint32_t *)p + 4 * i, &w.q[i], sizeof w.q[i]);
}
static inline struct kg_pairs kg_pairs_zip(const uint16_t *even, const uint16_t *odd)
{
    struct kg_pairs w;
    for (int i = 0; i < 4; i++)
        w.q[i] = kg_simd_load_h4(even + 4 * i) | kg_simd_load_h4(odd + 4 * i) << 16;
    return w;
}
static inline struct kg_pairs kg_pairs_split(struct kg_pairs w)
{
    uint16_t h[32], y[32];
    kg_pairs_store(h, w);
    for (int i = 0; i < 16; i++)
        for (int odd = 0; odd < 2; odd++)
            y[16 * odd + (i ^ 1)] = h[2 * i + odd];
    return kg_pairs_load(y);
}
static inline struct kg_pairs kg_pairs_join(struct kg_pairs w)
{
    uint16_t h[32], y[32];
    kg_pairs_store(h, w);
    for (int i = 0; i < 16; i++)
        for (int odd = 0; odd < 2; odd++)
            y[2 * i + odd] = h[16 * odd + (i ^ 1)];
    return kg_pairs_load(y);
}
static inline struct kg_v16 kg_pairs_low(struct kg_pairs w)
{
    struct kg_v16 y;
    for (int i = 0; i < 4; i++)
        y.q[i] = (kg_f4)(w.q[i] << 16);
    return y;
}
static inline struct kg_v16 kg_pairs_high(struct kg_pairs w)
{
    struct kg_v16 y;
    for (int i = 0; i < 4; i++)
        y.q[i] = (kg_f4)(w.q[i] & 0xffff0000u);
    return y;
}
static inline kg_u4 kg_simd_zip_low(kg_u4 a, kg_u4 b)
{
    return (kg_u4){a[0], b[0], a[1], b[1]};
}
static inline kg_u4 kg_simd_zip_high(kg_u4 a, kg_u4 b)
{
    return (kg_u4){a[2], b[2], a[3], b[3]};
}
/* Columns [4j,4j+4) of rows 4i to 4i+3, transposed. */
static inline void kg_simd_transpose4(kg_u4 t[4], const struct kg_pairs *w, int i, int j)
{
    kg_u4 a = w[4 * i].q[j], b = w[4 * i + 1].q[j];
    kg_u4 c = w[4 * i + 2].q[j], d = w[4 * i + 3].q[j];
    kg_u4 ac = kg_simd_zip_low(a, c), bd = kg_simd_zip_low(b, d);
    t[0] = kg_simd_zip_low(ac, bd);
    t[1] = kg_simd_zip_high(ac, bd);
    ac = kg_simd_zip_high(a, c), bd = kg_simd_zip_high(b, d);
    t[2] = kg_simd_zip_low(ac, bd);
    t[3] = kg_simd_zip_high(ac, bd);
}
static inline void kg_pairs_transpose(struct kg_pairs w[16])
{
    for (int i = 0; i < 4; i++)
        for (int j = 0; j <= i; j++) {
            kg_u4 below[4], above[4];
            kg_simd_transpose4(below, w, i, j);
            kg_simd_transpose4(above, w, j, i);
            for (int k = 0; k < 4; k++) {
                w[4 * j + k].q[i] = below[k];
                w[4 * i + k].q[j] = above[k];
            }
        }
}
#endif

/* acc + a b with one rounding, and a + b. Subnormal operands become zero, as do results
 * that are subnormal after rounding. acc must not be subnormal. If KG_SIMD_FLUSH_MODE is
 * set, kg_v16_fma and kg_v16_add in mode KG_FP_FLUSH give the same result unless
 * kg_fp_underflowed. */
static inline struct kg_v16 kg_v16_fma_flushed(struct kg_v16 a, struct kg_v16 b,
                                               struct kg_v16 acc)
{
    float x[KG_LANES], y[KG_LANES], s[KG_LANES];
    kg_v16_store(x, a);
    kg_v16_store(y, b);
    kg_v16_store(s, acc);
    for (int i = 0; i < KG_LANES; i++)
        s[i] = kg_simd_fma_flushed(kg_simd_flush(x[i]), kg_simd_flush(y[i]), s[i]);
    return kg_v16_load(s);
}
static inline struct kg_v16 kg_v16_add_flushed(struct kg_v16 a, struct kg_v16 b)
{
    float s[KG_LANES];
    kg_v16_store(s, kg_v16_add(a, b));
    for (int i = 0; i < KG_LANES; i++)
        s[i] = kg_simd_flush(s[i]);
    return kg_v16_load(s);
}

/* kg_pairs_code: 2^(23 - at) + q; q is bits [at, at + bits) of each dword, below bit 23.
 * kg_pairs_turn: each dword rotated right by `bits`, 0 to 31.
 * kg_v16_twice: lanes 8 half to 8 half + 7 of a, each two times in a row.
 * kg_pairs_round: the bf16 nearest to each lane; dword i is lanes 2i and 2i + 1 of a,
 * dword 8 + i those of b. Lanes must be finite, and 0 or at least 2^-100 in magnitude,
 * because the instruction flushes subnormals. */
#if defined(KG_SIMD_512)
static inline struct kg_v16 kg_pairs_code(struct kg_pairs w, const int at, const int bits)
{
    const __m512i mask = _mm512_set1_epi32(((1 << bits) - 1) << at);
    const __m512i one = _mm512_set1_epi32((150 - at) << 23);
    return (struct kg_v16){_mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(w.r, mask, one, 0xea))}; /* w & mask | one */
}
static inline struct kg_pairs kg_pairs_turn(struct kg_pairs w, const int bits)
{
    const __m512i by = _mm512_set1_epi32(bits);
    return bits == 0 ? w : (struct kg_pairs){_mm512_rorv_epi32(w.r, by)};
}
static inline struct kg_v16 kg_v16_twice(struct kg_v16 a, const int half)
{
    const __m512i from = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7,
                                           7);
    return (struct kg_v16){
        _mm512_permutexvar_ps(_mm512_add_epi32(from, _mm512_set1_epi32(8 * half)), a.r)};
}
static inline struct kg_pairs kg_pairs_round(struct kg_v16 a, struct kg_v16 b)
{
#if defined(__AVX512BF16__)
    return (struct kg_pairs){(__m512i)_mm512_cvtne2ps_pbh(b.r, a.r)};
#else
    static const uint16_t upper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                       23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                       45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    __m512i l = _mm512_castps_si512(a.r), h = _mm512_castps_si512(b.r);
    const __m512i one = _mm512_set1_epi32(1), half = _mm512_set1_epi32(0x7fff);
    l = _mm512_add_epi32(_mm512_add_epi32(l, half),
                         _mm512_and_si512(_mm512_srli_epi32(l, 16), one));
    h = _mm512_add_epi32(_mm512_add_epi32(h, half),
                         _mm512_and_si512(_mm512_srli_epi32(h, 16), one));
    return (struct kg_pairs){_mm512_permutex2var_epi16(l, _mm512_loadu_si512(upper), h)};
#endif
}
#elif defined(KG_SIMD_256)
static inline __m256 kg_simd_code8(__m256i w, const int at, const int bits)
{
    w = _mm256_and_si256(w, _mm256_set1_epi32(((1 << bits) - 1) << at));
    return _mm256_castsi256_ps(_mm256_or_si256(w, _mm256_set1_epi32((150 - at) << 23)));
}
static inline struct kg_v16 kg_pairs_code(struct kg_pairs w, const int at, const int bits)
{
    return (struct kg_v16){kg_simd_code8(w.lo, at, bits), kg_simd_code8(w.hi, at, bits)};
}
static inline __m256i kg_simd_turn8(__m256i w, const int bits)
{
    return _mm256_or_si256(_mm256_srli_epi32(w, bits), _mm256_slli_epi32(w, 32 - bits));
}
static inline struct kg_pairs kg_pairs_turn(struct kg_pairs w, const int bits)
{
    return (struct kg_pairs){kg_simd_turn8(w.lo, bits), kg_simd_turn8(w.hi, bits)};
}
static inline struct kg_v16 kg_v16_twice(struct kg_v16 a, const int half)
{
    const __m256i from = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    const __m256 part = half ? a.hi : a.lo;
    return (struct kg_v16){
        _mm256_permutevar8x32_ps(part, from),
        _mm256_permutevar8x32_ps(part, _mm256_add_epi32(from, _mm256_set1_epi32(4)))};
}
/* The bits of the bf16 nearest to each lane. */
static inline __m256i kg_simd_nearest8(__m256 a)
{
    const __m256i u = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
}
static inline __m256i kg_simd_round8(struct kg_v16 a)
{
    return _mm256_permute4x64_epi64(
        _mm256_packus_epi32(kg_simd_nearest8(a.lo), kg_simd_nearest8(a.hi)), 0xd8);
}
static inline struct kg_pairs kg_pairs_round(struct kg_v16 a, struct kg_v16 b)
{
    return (struct kg_pairs){kg_simd_round8(a), kg_simd_round8(b)};
}
#else
static inline struct kg_v16 kg_pairs_code(struct kg_pairs w, const int at, const int bits)
{
    struct kg_v16 y;
    for (int i = 0; i < 4; i++)
        y.q[i] = (kg_f4)((w.q[i] & ((1u << bits) - 1) << at) | (uint32_t)(150 - at)
                                                                   << 23);
    return y;
}
static inline struct kg_pairs kg_pairs_turn(struct kg_pairs w, const int bits)
{
    for (int i = 0; i < 4 && bits > 0; i++)
        w.q[i] = w.q[i] >> bits | w.q[i] << (32 - bits);
    return w;
}
static inline struct kg_v16 kg_v16_twice(struct kg_v16 a, const int half)
{
    struct kg_v16 y;
    for (int i = 0; i < 4; i++) {
        const kg_f4 from = a.q[2 * half + i / 2];
        const int k = i % 2 * 2;
        y.q[i] = (kg_f4){from[k], from[k], from[k + 1], from[k + 1]};
    }
    return y;
}
static inline struct kg_pairs kg_pairs_round(struct kg_v16 a, struct kg_v16 b)
{
    struct kg_pairs w;
    for (int i = 0; i < 8; i++) {
        const kg_u4 n = kg_simd_nearest4(i < 4 ? a.q[i] : b.q[i - 4]);
        w.q[i / 2][i % 2 * 2] = n[0] >> 16 | (n[1] & 0xffff0000u);
        w.q[i / 2][i % 2 * 2 + 1] = n[2] >> 16 | (n[3] & 0xffff0000u);
    }
    return w;
}
#endif

#if defined(KG_SIMD_512) && defined(__AVX512BF16__)
/* Lane by lane, acc + the product of the upper halves of w and the pair, then + that of
 * the lower halves. pair: address of one dword, used for all lanes */
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
