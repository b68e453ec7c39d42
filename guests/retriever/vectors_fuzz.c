/* Fuzz target: a file of vectors. If it opens, its first and last vectors are read. */
#include "retriever/vectors.h"

#include <stdlib.h>

int kg_fuzz_vectors(const uint8_t *bytes, size_t n);

int kg_fuzz_vectors(const uint8_t *bytes, size_t n)
{
    struct kg_vectors v;
    struct kg_err err;
    float *row;

    if (kg_vectors_open_bytes(&v, bytes, n, "fuzz", &err) != KG_OK)
        return 0;
    if (v.rows < 1 || v.cols < 1)
        abort();
    row = calloc((size_t)v.cols, sizeof *row);
    if (!row)
        abort();
    kg_vectors_get(row, &v, 0, 1);
    kg_vectors_get(row, &v, v.rows - 1, 1);
    free(row);
    kg_vectors_close(&v);
    return 0;
}
