/* Element types: the traits table and conversion of whole arrays.
 *
 * Conversions serve files and host arrays; kernels convert what they load and store. Each
 * conversion goes through fp32, which holds each of the types but F64 exactly, and rounds
 * once at the end; an F64 value is rounded to fp32 first, as in torch.
 */
#include "tensor/dtype.h"

static const struct kg_dtype_traits traits[KG_DTYPE_COUNT] = {
    [KG_F32] = {"fp32", "F32", 4},
    [KG_BF16] = {"bf16", "BF16", 2},
    [KG_F16] = {"fp16", "F16", 2},
    [KG_F64] = {"fp64", "F64", 8},
};

const struct kg_dtype_traits *kg_dtype_traits(enum kg_dtype dtype)
{
    return &traits[dtype];
}

kg_status kg_dtype_parse(enum kg_dtype *dtype, const char *name, struct kg_err *err)
{
    for (int i = 0; i < KG_DTYPE_COUNT; i++)
        if (strcmp(name, traits[i].name) == 0 ||
            strcmp(name, traits[i].safetensors_name) == 0) {
            *dtype = (enum kg_dtype)i;
            return KG_OK;
        }
    return kg_fail(
        err, KG_EINVAL,
        "expected an element type (fp32, bf16, fp16, fp64, or F32, BF16, F16, F64), "
        "found \"%s\"",
        name);
}

/* 1 sign, 5 exponent (bias 15), 10 fraction bits: every value is an fp32. */
static float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = h >> 10 & 0x1fu;
    uint32_t fraction = h & 0x3ffu;
    if (exponent == 0) { /* zero and denormals: fraction * 2^-24 */
        float small = (float)fraction * 0x1p-24f;
        return sign ? -small : small;
    }
    uint32_t bits = exponent == 31 ? 0x7f800000u : (exponent + 112) << 23;
    bits |= sign | fraction << 13;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Element i of an array, which may have any alignment, as in a mapped file. */
static float element(const unsigned char *p, enum kg_dtype type, size_t i)
{
    float f;
    double d;
    uint16_t h;
    if (type == KG_F64) {
        memcpy(&d, p + i * sizeof d, sizeof d);
        return (float)d;
    }
    if (type == KG_F32) {
        memcpy(&f, p + i * sizeof f, sizeof f);
        return f;
    }
    memcpy(&h, p + i * sizeof h, sizeof h);
    return type == KG_BF16 ? kg_bf16_to_f32(h) : f16_to_f32(h);
}

kg_status kg_dtype_convert(void *dst, enum kg_dtype dst_type, const void *src,
                           enum kg_dtype src_type, size_t n, struct kg_err *err)
{
    if (dst_type == src_type) {
        memcpy(dst, src, n * traits[src_type].bytes);
        return KG_OK;
    }
    if (dst_type == KG_F16 || dst_type == KG_F64)
        return kg_fail(
            err, KG_EDTYPE,
            "cannot convert %s to %s: fp16 and fp64 can only be converted from",
            traits[src_type].name, traits[dst_type].name);
    unsigned char *out = dst;
    for (size_t i = 0; i < n; i++) {
        float f = element(src, src_type, i);
        uint16_t h = kg_f32_to_bf16(f);
        if (dst_type == KG_F32)
            memcpy(out + i * sizeof f, &f, sizeof f);
        else
            memcpy(out + i * sizeof h, &h, sizeof h);
    }
    return KG_OK;
}
