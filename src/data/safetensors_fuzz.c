/* Fuzz target: if a file opens, every byte of every tensor can be read, and every tensor
 * is found by its name. */
#include "data/safetensors.h"

#include <stdlib.h>

int kg_fuzz_safetensors(const uint8_t *bytes, size_t n);

static unsigned touch(const struct kg_st_tensor *t)
{
    unsigned sum = 0;

    for (uint64_t i = 0; i < t->bytes; i++)
        sum += t->data[i];
    return sum;
}

int kg_fuzz_safetensors(const uint8_t *bytes, size_t n)
{
    struct kg_st_set *set;
    volatile unsigned sum = 0;
    struct kg_err err;

    if (kg_st_open_bytes(&set, bytes, n, "fuzz", &err) != KG_OK)
        return 0;
    for (size_t i = 0; i < kg_st_count(set); i++) {
        const struct kg_st_tensor *t = kg_st_at(set, i);

        sum += touch(t);
        if (kg_st_find(set, t->name) != t)
            abort();
    }
    kg_st_close(set);
    return 0;
}
