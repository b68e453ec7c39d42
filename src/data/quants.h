/* Types of tensors in a GGUF file: single values, and blocks of values that share their
 * scales.
 *
 * A block is converted to fp32 by the same fp32 operations in the same order as in the
 * Python package `gguf`, so the values are bit-identical to that package's.
 */
#ifndef KG_DATA_QUANTS_H
#define KG_DATA_QUANTS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { KG_QUANT_MAX = 256 /* maximum values per block */ };

/* A block taken apart, for panels of weights (tensor/coded.h). With d = `scale` times the
 * value's scales[] (if any),
 *   value i = d (q[i] - zero) + low, low multiplied by the value's lows[] (if any)
 * All products are exact in fp32 and the sum is rounded once, as in `widen`. */
struct kg_quant_parts {
    uint16_t scale; /* bits of an fp16 */
    uint16_t low;   /* bits of an fp16 */
    int8_t scales[KG_QUANT_MAX / 16];
    int8_t lows[KG_QUANT_MAX / 32];
    uint8_t q[KG_QUANT_MAX];
};
struct kg_quant_form {
    int bits; /* 4 or 8 per value; 0: not in panels */
    int zero;
    int scales; /* number of scales[] for 32 values: 0, 1 or 2 */
    bool low;
    void (*part)(struct kg_quant_parts *to, const unsigned char *block);
};

struct kg_quant {
    const char *name; /* "Q4_0"; single values: as in safetensors, "BF16" */
    uint32_t id;      /* in enum ggml_type */
    int values;       /* values per block; 1: single values */
    int bytes;        /* size of a block; 0: a known type that kedge cannot read */
    /* to (values); NULL for single values */
    void (*widen)(float *to, const unsigned char *block);
    /* rounds as llama.cpp does; x (values), finite; NULL: never written by kedge */
    void (*narrow)(unsigned char *block, const float *x);
    struct kg_quant_form form;
};

/* errors: EUNSUPPORTED, naming the type if it is known, and the readable types */
kg_status kg_quant_find(const struct kg_quant **type, uint32_t id,
                        struct kg_err *err) KG_MUST_CHECK;

/* The type with this name in safetensors or ggml, "BF16"; NULL if there is none. */
const struct kg_quant *kg_quant_named(const char *name);

#endif
