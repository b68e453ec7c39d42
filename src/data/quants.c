/* Blocks as fp32.
 *
 * Every type here is value = scale q, or scale q - minimum, with q of 2 to 8 bits. Only
 * the places of the bits differ: a byte of `qs` holds values that are half a block (or 32
 * values) apart, and the sixth bits of scales are in separate bytes. The layouts are
 * defined by ggml; the comments give the place of value i.
 */
#include "data/quants.h"

#include "base/half.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <strings.h>

static float bits_float(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t u16(const unsigned char *p) { return p[0] | (uint32_t)p[1] << 8; }

/* A scale as fp32. Infinity and NaN are kept, so that checks of the weights find them. */
static float half(const unsigned char *p)
{
    const uint32_t h = u16(p);

    if ((h & 0x7c00u) == 0x7c00u)
        return bits_float((h & 0x8000u) << 16 | 0x7f800000u | (h & 0x3ffu) << 13);
    return kg_half_float((uint16_t)h);
}

/* Value i of a block of 32: byte i % 16, low half first. */
static int nibble(const unsigned char *qs, int i)
{
    return qs[i % 16] >> (i < 16 ? 0 : 4) & 15;
}

/* ---- 32 values ---- */

static void widen_q4_0(float *to, const unsigned char *b)
{
    const float d = half(b);

    for (int i = 0; i < 32; i++)
        to[i] = d * (float)(nibble(b + 2, i) - 8);
}

static void widen_q4_1(float *to, const unsigned char *b)
{
    const float d = half(b), m = half(b + 2);

    for (int i = 0; i < 32; i++)
        to[i] = d * (float)nibble(b + 4, i) + m;
}

/* The fifth bit of value i is bit i of four bytes. */
static int fifth(const unsigned char *qh, int i) { return (qh[i / 8] >> i % 8 & 1) << 4; }

static void widen_q5_0(float *to, const unsigned char *b)
{
    const float d = half(b);

    for (int i = 0; i < 32; i++)
        to[i] = d * (float)((nibble(b + 6, i) | fifth(b + 2, i)) - 16);
}

static void widen_q5_1(float *to, const unsigned char *b)
{
    const float d = half(b), m = half(b + 2);

    for (int i = 0; i < 32; i++)
        to[i] = d * (float)(nibble(b + 8, i) | fifth(b + 4, i)) + m;
}

static void widen_q8_0(float *to, const unsigned char *b)
{
    const float d = half(b);

    for (int i = 0; i < 32; i++)
        to[i] = (float)(int8_t)b[2 + i] * d;
}

static const int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

static void widen_iq4_nl(float *to, const unsigned char *b)
{
    const float d = half(b);

    for (int i = 0; i < 32; i++)
        to[i] = d * (float)IQ4_VALUES[nibble(b + 2, i)];
}

/* The values of E2M1 are doubled, so the scale is half of its power of two. */
static void widen_mxfp4(float *to, const unsigned char *b)
{
    static const int8_t values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                      0, -1, -2, -3, -4, -6, -8, -12};
    const float d = bits_float(b[0] < 2 ? 0x00200000u << b[0]
                                        : (uint32_t)(b[0] - 1) << 23);

    for (int i = 0; i < 32; i++)
        to[i] = d * (float)values[nibble(b + 1, i)];
}

/* ---- 256 values ---- */

/* Value i of 256: 32 bytes hold 128 values, bits 0-1 of each byte, then bits 2-3, ... */
static int two_bits(const unsigned char *qs, int i)
{
    return qs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

static void widen_q2_k(float *to, const unsigned char *b)
{
    const float d = half(b + 80), min = half(b + 82);

    for (int i = 0; i < 256; i++) {
        const int scale = b[i / 16];

        to[i] = d * (float)(scale & 15) * (float)two_bits(b + 16, i) -
                min * (float)(scale >> 4);
    }
}

/* Scale j of 16: four bits in bytes 0-7, low halves first, and two bits in bytes 8-11. */
static int q3_scale(const unsigned char *s, int j)
{
    return (s[j % 8] >> j / 8 * 4 & 15) | (s[8 + j % 4] >> j / 4 * 2 & 3) << 4;
}

static void widen_q3_k(float *to, const unsigned char *b)
{
    const float d = half(b + 108);

    for (int i = 0; i < 256; i++) {
        const int low = b[i % 32] >> i / 32 & 1 ? 0 : 4;

        to[i] = d * (float)(q3_scale(b + 96, i / 16) - 32) *
                (float)(two_bits(b + 32, i) - low);
    }
}

/* Scale and minimum j of 8: 6 bits each, in 12 bytes. */
static int k_scale(const unsigned char *s, int j)
{
    return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
}

static int k_minimum(const unsigned char *s, int j)
{
    return j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

static void put_k_scale(unsigned char *s, int j, int scale, int minimum)
{
    if (j < 4) {
        s[j] = (unsigned char)scale;
        s[j + 4] = (unsigned char)minimum;
        return;
    }
    s[j + 4] = (unsigned char)((scale & 15) | (minimum & 15) << 4);
    s[j - 4] |= (unsigned char)(scale >> 4 << 6);
    s[j] |= (unsigned char)(minimum >> 4 << 6);
}

/* Value i of 256: 32 bytes hold 64 values, low halves first. */
static int four_bits(const unsigned char *qs, int i)
{
    return qs[i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15;
}

static void widen_q4_k(float *to, const unsigned char *b)
{
    const float d = half(b), min = half(b + 2);

    for (int i = 0; i < 256; i++)
        to[i] = d * (float)k_scale(b + 4, i / 32) * (float)four_bits(b + 16, i) -
                min * (float)k_minimum(b + 4, i / 32);
}

static void widen_q5_k(float *to, const unsigned char *b)
{
    const float d = half(b), min = half(b + 2);

    for (int i = 0; i < 256; i++) {
        const int q = four_bits(b + 48, i) | (b[16 + i % 32] >> i / 32 & 1) << 4;

        to[i] = d * (float)k_scale(b + 4, i / 32) * (float)q -
                min * (float)k_minimum(b + 4, i / 32);
    }
}

/* Value i of 256: 64 bytes hold the low four bits of 128 values, low halves first. */
static int six_bits(const unsigned char *b, int i)
{
    return (b[i / 128 * 64 + i % 64] >> i % 128 / 64 * 4 & 15) | two_bits(b + 128, i)
                                                                     << 4;
}

static void widen_q6_k(float *to, const unsigned char *b)
{
    const float d = half(b + 208);

    for (int i = 0; i < 256; i++)
        to[i] = d * (float)(int8_t)b[192 + i / 16] * (float)(six_bits(b, i) - 32);
}

static void widen_iq4_xs(float *to, const unsigned char *b)
{
    const float d = half(b);
    const uint32_t high = u16(b + 2);

    for (int j = 0; j < 8; j++) {
        const int low = b[4 + j / 2] >> j % 2 * 4 & 15;
        const float scale = d * (float)((int)(low | (high >> 2 * j & 3) << 4) - 32);

        for (int i = 0; i < 32; i++)
            to[32 * j + i] = scale * (float)IQ4_VALUES[nibble(b + 8 + 16 * j, i)];
    }
}

/* ---- split into integers and scales ---- */

static void part_q8_0(struct kg_quant_parts *to, const unsigned char *b)
{
    to->scale = (uint16_t)u16(b);
    for (int i = 0; i < 32; i++)
        to->q[i] = b[2 + i] ^ 0x80; /* + 128 */
}

static void part_q4_0(struct kg_quant_parts *to, const unsigned char *b)
{
    to->scale = (uint16_t)u16(b);
    for (int i = 0; i < 32; i++)
        to->q[i] = (uint8_t)nibble(b + 2, i);
}

static void part_q4_1(struct kg_quant_parts *to, const unsigned char *b)
{
    to->scale = (uint16_t)u16(b);
    to->low = (uint16_t)u16(b + 2);
    for (int i = 0; i < 32; i++)
        to->q[i] = (uint8_t)nibble(b + 4, i);
}

static void part_q4_k(struct kg_quant_parts *to, const unsigned char *b)
{
    to->scale = (uint16_t)u16(b);
    to->low = (uint16_t)(u16(b + 2) ^ 0x8000u); /* the format subtracts it */
    for (int j = 0; j < 8; j++) {
        to->scales[j] = (int8_t)k_scale(b + 4, j);
        to->lows[j] = (int8_t)k_minimum(b + 4, j);
    }
    for (int i = 0; i < 256; i++)
        to->q[i] = (uint8_t)four_bits(b + 16, i);
}

static void part_q6_k(struct kg_quant_parts *to, const unsigned char *b)
{
    to->scale = (uint16_t)u16(b + 208);
    memcpy(to->scales, b + 192, 16);
    for (int i = 0; i < 256; i++)
        to->q[i] = (uint8_t)(six_bits(b, i) + 96); /* - 32 + 128 */
}

/* ---- writing ---- */

static void put_half(unsigned char *to, float x)
{
    const uint32_t h = fabsf(x) <= KG_HALF_MAX ? kg_half_of(x)
                                               : 0x7c00u | (x < 0 ? 0x8000u : 0);

    to[0] = (unsigned char)(h & 255);
    to[1] = (unsigned char)(h >> 8);
}

static void narrow_f16(unsigned char *b, const float *x) { put_half(b, x[0]); }

/* The value of the largest magnitude, the first of equal ones. */
static float largest(const float *x)
{
    float most = 0;

    for (int i = 0; i < 32; i++)
        most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
    return most;
}

static void narrow_q8_0(unsigned char *b, const float *x)
{
    const float d = fabsf(largest(x)) / 127, inverse = d != 0 ? 1 / d : 0;

    put_half(b, d);
    for (int i = 0; i < 32; i++)
        b[2 + i] = (unsigned char)(int8_t)roundf(x[i] * inverse);
}

/* The largest value becomes -8 of -8 .. 7. */
static void narrow_q4_0(unsigned char *b, const float *x)
{
    const float d = largest(x) / -8, inverse = d != 0 ? 1 / d : 0;

    put_half(b, d);
    for (int i = 0; i < 16; i++) {
        const int low = (int)(x[i] * inverse + 8.5f);
        const int high = (int)(x[16 + i] * inverse + 8.5f);

        b[2 + i] = (unsigned char)((low < 15 ? low : 15) | (high < 15 ? high : 15) << 4);
    }
}

/* ---- writing, 256 values ---- */

/* Rounds to the nearest, ties to even, and limits to the range. */
static int nearest(float x, int low, int high)
{
    if (!(x > (float)low))
        return low;
    return x < (float)high ? (int)lrintf(x) : high;
}

enum { PART4 = 32, PART6 = 16 /* values that share a scale in Q4_K and in Q6_K */ };

/* x = scale q + low: a candidate, and the weighted sum of its squared errors. */
struct line {
    float scale, low, error;
    int q[PART4];
};

static void measure(struct line *a, const float *x, const float *weights)
{
    a->error = 0;
    for (int i = 0; i < PART4; i++) {
        const float diff = a->scale * (float)a->q[i] + a->low - x[i];

        a->error += weights[i] * (diff * diff);
    }
}

/* Fits x = scale q + low for q = round(inverse (x - low)), by weighted least squares.
 * returns false if all q are equal */
static bool fit(struct line *a, const float *x, const float *weights, float inverse,
                float low)
{
    float w = 0, wx = 0, l = 0, l2 = 0, xl = 0;

    for (int i = 0; i < PART4; i++) {
        const int q = nearest(inverse * (x[i] - low), 0, 15);

        a->q[i] = q;
        w += weights[i];
        wx += weights[i] * x[i];
        l += weights[i] * (float)q;
        l2 += weights[i] * (float)q * (float)q;
        xl += weights[i] * (float)q * x[i];
    }
    const float d = w * l2 - l * l;

    a->scale = (w * xl - wx * l) / d;
    a->low = (l2 * wx - l * xl) / d;
    if (a->low > 0) {
        a->low = 0;
        a->scale = xl / l2;
    }
    return d > 0;
}

/* The best of 22 lines: the one through the smallest and the largest value, and 21 fits
 * to the q of other scales. Large values weigh more. */
static void search_line(struct line *best, const float *x)
{
    float weights[PART4], squares = 0, low = x[0], high = x[0];
    struct line a;

    for (int i = 0; i < PART4; i++) {
        squares += x[i] * x[i];
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    for (int i = 0; i < PART4; i++)
        weights[i] = sqrtf(squares / PART4) + fabsf(x[i]);
    low = low > 0 ? 0 : low;
    *best = (struct line){.low = low};
    if (high == low)
        return;
    best->scale = 1 / (15 / (high - low));
    for (int i = 0; i < PART4; i++)
        best->q[i] = nearest(15 / (high - low) * (x[i] - low), 0, 15);
    measure(best, x, weights);
    for (int s = 0; s <= 20; s++) {
        const float inverse = (-1 + 0.1f * (float)s + 15) / (high - best->low);

        if (!fit(&a, x, weights, inverse, best->low))
            continue;
        measure(&a, x, weights);
        if (a.error < best->error)
            *best = a;
    }
}

static float part_of(float most, float x) { return most > 0 ? 63 / most * x : 0; }

static void narrow_q4_k(unsigned char *b, const float *x)
{
    float scale = 0, low = 0;
    struct line lines[8];

    memset(b, 0, 144);
    for (int j = 0; j < 8; j++) {
        search_line(&lines[j], x + PART4 * j);
        scale = lines[j].scale > scale ? lines[j].scale : scale;
        low = -lines[j].low > low ? -lines[j].low : low;
    }
    put_half(b, scale / 63);
    put_half(b + 2, low / 63);
    for (int j = 0; j < 8; j++) {
        const int s = nearest(part_of(scale, lines[j].scale), 0, 63);
        const int m = nearest(part_of(low, -lines[j].low), 0, 63);
        const float d = half(b) * (float)s, minimum = half(b + 2) * (float)m;

        put_k_scale(b + 4, j, s, m);
        for (int i = 0; i < PART4; i++) {
            const float q = (x[PART4 * j + i] + minimum) / d;
            const int of = d != 0 ? nearest(q, 0, 15) : lines[j].q[i];

            b[16 + j / 2 * 32 + i] |= (unsigned char)(of << j % 2 * 4);
        }
    }
}

/* Of 19 scales, the one of least squared error; x squared is the weight. */
static float search_scale(int q[PART6], const float *x)
{
    float most = 0, scale = 0, best = 0;

    for (int i = 0; i < PART6; i++)
        most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
    for (int i = 0; i < PART6; i++)
        q[i] = -32; /* stored as 0 */
    for (int k = 0; k < 19 && fabsf(most) >= 1e-15f; k++) {
        const int s = k == 0 ? 0 : k < 10 ? k - 10 : k - 9; /* 0, -9 .. -1, 1 .. 9 */
        const float inverse = -(32 + 0.1f * (float)s) / most;
        float xl = 0, l2 = 0;
        int l[PART6];

        for (int i = 0; i < PART6; i++) {
            const float w = x[i] * x[i];

            l[i] = nearest(inverse * x[i], -32, 31);
            xl += w * x[i] * (float)l[i];
            l2 += w * (float)l[i] * (float)l[i];
        }
        if (k > 0 && !(l2 > 0 && xl * xl > best * l2))
            continue;
        scale = l2 != 0 ? xl / l2 : 0;
        best = scale * xl;
        memcpy(q, l, sizeof l);
    }
    return scale;
}

static void put_six(unsigned char *b, int i, int q)
{
    b[i / 128 * 64 + i % 64] |= (unsigned char)((q & 15) << i % 128 / 64 * 4);
    b[128 + i / 128 * 32 + i % 32] |= (unsigned char)(q >> 4 << i % 128 / 32 * 2);
}

static void narrow_q6_k(unsigned char *b, const float *x)
{
    float scales[16], most = 0;
    int q[16][PART6];

    memset(b, 0, 210);
    for (int j = 0; j < 16; j++) {
        scales[j] = search_scale(q[j], x + PART6 * j);
        most = fabsf(scales[j]) > fabsf(most) ? scales[j] : most;
    }
    if (fabsf(most) < 1e-15f)
        return;
    const float inverse = -128 / most;

    put_half(b + 208, 1 / inverse);
    for (int j = 0; j < 16; j++) {
        const int s = nearest(inverse * scales[j], -128, 127);
        const float d = half(b + 208) * (float)s;

        b[192 + j] = (unsigned char)s;
        for (int i = 0; i < PART6; i++) {
            const float of = x[PART6 * j + i] / d;

            put_six(b, PART6 * j + i, (d != 0 ? nearest(of, -32, 31) : q[j][i]) + 32);
        }
    }
}

/* ---- the table ---- */

static const struct kg_quant QUANTS[] = {
    {"F32", 0, 1, 4, NULL, NULL, {0}},
    {"F16", 1, 1, 2, NULL, narrow_f16, {0}},
    {"BF16", 30, 1, 2, NULL, NULL, {0}},
    {"F64", 28, 1, 8, NULL, NULL, {0}},
    {"Q8_0", 8, 32, 34, widen_q8_0, narrow_q8_0, {8, 128, 0, false, part_q8_0}},
    {"Q4_0", 2, 32, 18, widen_q4_0, narrow_q4_0, {4, 8, 0, false, part_q4_0}},
    {"Q4_1", 3, 32, 20, widen_q4_1, NULL, {4, 0, 0, true, part_q4_1}},
    {"Q5_0", 6, 32, 22, widen_q5_0, NULL, {0}},
    {"Q5_1", 7, 32, 24, widen_q5_1, NULL, {0}},
    {"Q2_K", 10, 256, 84, widen_q2_k, NULL, {0}},
    {"Q3_K", 11, 256, 110, widen_q3_k, NULL, {0}},
    {"Q4_K", 12, 256, 144, widen_q4_k, narrow_q4_k, {4, 0, 1, true, part_q4_k}},
    {"Q5_K", 13, 256, 176, widen_q5_k, NULL, {0}},
    {"Q6_K", 14, 256, 210, widen_q6_k, narrow_q6_k, {8, 128, 2, false, part_q6_k}},
    {"IQ4_NL", 20, 32, 18, widen_iq4_nl, NULL, {0}},
    {"IQ4_XS", 23, 256, 136, widen_iq4_xs, NULL, {0}},
    {"MXFP4", 39, 32, 17, widen_mxfp4, NULL, {0}},
    /* known, but not read */
    {"Q8_1", 9, 32, 0, NULL, NULL, {0}},
    {"Q8_K", 15, 256, 0, NULL, NULL, {0}},
    {"IQ2_XXS", 16, 256, 0, NULL, NULL, {0}},
    {"IQ2_XS", 17, 256, 0, NULL, NULL, {0}},
    {"IQ3_XXS", 18, 256, 0, NULL, NULL, {0}},
    {"IQ1_S", 19, 256, 0, NULL, NULL, {0}},
    {"IQ3_S", 21, 256, 0, NULL, NULL, {0}},
    {"IQ2_S", 22, 256, 0, NULL, NULL, {0}},
    {"I8", 24, 1, 0, NULL, NULL, {0}},
    {"I16", 25, 1, 0, NULL, NULL, {0}},
    {"I32", 26, 1, 0, NULL, NULL, {0}},
    {"I64", 27, 1, 0, NULL, NULL, {0}},
    {"IQ1_M", 29, 256, 0, NULL, NULL, {0}},
    {"TQ1_0", 34, 256, 0, NULL, NULL, {0}},
    {"TQ2_0", 35, 256, 0, NULL, NULL, {0}},
    {"NVFP4", 40, 64, 0, NULL, NULL, {0}},
};

kg_status kg_quant_find(const struct kg_quant **type, uint32_t id, struct kg_err *err)
{
    const size_t n = sizeof QUANTS / sizeof *QUANTS;
    char names[256];
    size_t i = 0, used = 0;

    while (i < n && QUANTS[i].id != id)
        i++;
    *type = i < n ? &QUANTS[i] : NULL;
    if (i < n && QUANTS[i].bytes > 0)
        return KG_OK;
    for (size_t k = 0; k < n && QUANTS[k].bytes > 0; k++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                 k > 0 ? ", " : "", QUANTS[k].name);
    return kg_fail(err, KG_EUNSUPPORTED, "expected one of the types %s, found %u (%s)",
                   names, (unsigned)id, i < n ? QUANTS[i].name : "unknown");
}

const struct kg_quant *kg_quant_named(const char *name)
{
    for (size_t i = 0; i < sizeof QUANTS / sizeof *QUANTS; i++)
        if (strcasecmp(QUANTS[i].name, name) == 0)
            return &QUANTS[i];
    return NULL;
}
