/* Vectors that another program made: the rows of a FAISS index that is flat, or of
 * NumPy's .npy.
 *
 * Either is a header and numbers, row by row, to the end of the file, which is mapped: of
 * a file that opens every row is there. What the numbers are (finite, of length 1, of
 * which text) is for the caller to find out. Read alone; npy.h writes.
 */
#ifndef KG_RETRIEVER_VECTORS_H
#define KG_RETRIEVER_VECTORS_H

#include "base/file.h"

#include <stdint.h>

enum { KG_VECTORS_COLS_MAX = 1 << 24 };

struct kg_vectors { /* {0}: none */
    struct kg_map map;
    const unsigned char *numbers; /* in the map, at any place */
    int64_t rows, cols;           /* both > 0 */
    bool halves;                  /* a number is fp16, else fp32 */
    bool distances;               /* of an index that finds by L2 distance */
};

/* A .npy is a matrix of '<f4' or '<f2', row by row; an index is "IxFI" or "IxF2".
 * errors: ENOTFOUND, EIO, EFORMAT (neither, cut off, bytes behind the last row, no row),
 * EUNSUPPORTED (another index, type or order of the numbers: named) */
kg_status kg_vectors_open(struct kg_vectors *v, const char *path,
                          struct kg_err *err) KG_MUST_CHECK;
/* The same of bytes that are borrowed; `name` is for errors. */
kg_status kg_vectors_open_bytes(struct kg_vectors *v, const void *bytes, size_t n,
                                const char *name, struct kg_err *err) KG_MUST_CHECK;
void kg_vectors_close(struct kg_vectors *v); /* {0} allowed */
/* out (n, cols) fp32 of rows first..first + n; what is no number is one that is none */
void kg_vectors_get(float *out, const struct kg_vectors *v, int64_t first, int64_t n);
/* These rows are not read again: their pages are the process's no longer. */
void kg_vectors_let_go(const struct kg_vectors *v, int64_t first, int64_t n);

#endif
