/* fp16 conversions. fp16 is a storage format only. */
#ifndef KG_BASE_HALF_H
#define KG_BASE_HALF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* the largest float that rounds to a finite fp16, 65504 */
#define KG_HALF_MAX 65519.996f

/* Rounds to nearest, ties to even. x: |x| <= KG_HALF_MAX */
static inline uint16_t kg_half_of(float x)
{
    uint32_t u, sign;
    float scaled;

    memcpy(&u, &x, sizeof u);
    sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u < 0x38800000u) { /* below 2^-14: multiples of 2^-24 */
        memcpy(&scaled, &u, sizeof scaled);
        return (uint16_t)(sign | (uint32_t)lrintf(scaled * 0x1p24f));
    }
    u += 0xfffu + (u >> 13 & 1u);
    return (uint16_t)(sign | ((u - 0x38000000u) >> 13));
}

/* h: not NaN or infinity. Multiplying by 2^112 corrects the exponent's bias, also
 * for subnormals. */
static inline float kg_half_float(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t u = (uint32_t)(h & 0x7fffu) << 13;
    float f;

    memcpy(&f, &u, sizeof f);
    f *= 0x1p112f;
    memcpy(&u, &f, sizeof u);
    u |= sign;
    memcpy(&f, &u, sizeof f);
    return f;
}

#endif
