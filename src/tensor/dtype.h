/* Element types as data: one traits table instead of a function per type.
 *
 * Weights, inputs of products, the cache and moments have these types; sums are fp32 or
 * fp64. This file converts host values and arrays; kg_op_cast converts matrices.
 */
#ifndef KG_TENSOR_DTYPE_H
#define KG_TENSOR_DTYPE_H

#include "base/status.h"

#include <stdint.h>
#include <string.h>

enum kg_dtype {
    KG_F32 = 0,
    KG_BF16,
    KG_F16, /* KG_F16 and KG_F64 occur only in files */
    KG_F64,
    KG_DTYPE_COUNT
};

struct kg_dtype_traits {
    const char *name;             /* "fp32": used in options and messages */
    const char *safetensors_name; /* "F32" */
    size_t bytes;
};

const struct kg_dtype_traits *kg_dtype_traits(enum kg_dtype dtype);

/* Looks up either name.   errors: EINVAL, listing the valid names */
kg_status kg_dtype_parse(enum kg_dtype *dtype, const char *name,
                         struct kg_err *err) KG_MUST_CHECK;

/* A bf16 is the upper half of an fp32. Rounds to nearest, ties to even; a NaN becomes a
 * quiet NaN. */
static inline float kg_bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint16_t kg_f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Stochastic rounding to bf16 by 16 random bits: the magnitude is truncated, and the next
 * larger magnitude is taken with probability equal to the truncated fraction. So the mean
 * over draws is the value itself. Values that bf16 has, infinities included, stay the
 * same; NaN stays NaN; a magnitude above the largest bf16 may become infinity. */
static inline uint16_t kg_f32_to_bf16_drawn(float f, uint16_t draw)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + draw) >> 16);
}

/* Converts n elements; to F16 or F64 only from the same type.   errors: EDTYPE */
kg_status kg_dtype_convert(void *dst, enum kg_dtype dst_type, const void *src,
                           enum kg_dtype src_type, size_t n,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
