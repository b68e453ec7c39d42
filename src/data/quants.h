/* Types of tensors in a GGUF file: single values, and blocks of values that share their
 * scales.
 *
 * A block is read as fp32, by the products and sums, in fp32 and in the order, of the
 * `gguf` package, so its values have that package's bits.
 */
#ifndef KG_DATA_QUANTS_H
#define KG_DATA_QUANTS_H

#include "base/status.h"

#include <stdint.h>

enum { KG_QUANT_MAX = 256 /* values of a block */ };

struct kg_quant {
    const char *name; /* "Q4_0"; of single values as safetensors has it, "BF16" */
    uint32_t id;      /* of ggml_type */
    int values;       /* of a block; 1: single values */
    int bytes;        /* of a block; 0: the type is known and not read */
    /* to (values); NULL for single values */
    void (*widen)(float *to, const unsigned char *block);
    /* x (values), finite, to nearest as llama.cpp does; NULL: not written */
    void (*narrow)(unsigned char *block, const float *x);
};

/* errors: UNSUPPORTED, naming the type where it is known, and those that are read */
kg_status kg_quant_find(const struct kg_quant **type, uint32_t id,
                        struct kg_err *err) KG_MUST_CHECK;

/* The same by safetensors' or ggml's name, "BF16"; NULL: none of that name. */
const struct kg_quant *kg_quant_named(const char *name);

#endif
