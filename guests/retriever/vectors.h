/* Reads vectors of other programs: the rows of a flat FAISS index, or of NumPy's .npy.
 *
 * Both formats are a header and numbers, row by row, to the end of the file, which is
 * mapped. Opening checks that every row is present. The caller checks the numbers
 * (finite, of length 1, matching the texts). npy.h writes .npy.
 */
#ifndef KG_RETRIEVER_VECTORS_H
#define KG_RETRIEVER_VECTORS_H

#include "base/file.h"

#include <stdint.h>

enum { KG_VECTORS_COLS_MAX = 1 << 24 };

struct kg_vectors { /* {0}: none */
    struct kg_map map;
    const unsigned char *numbers; /* points into the map, perhaps unaligned */
    int64_t rows, cols;           /* both > 0 */
    bool halves;                  /* numbers are fp16, else fp32 */
    bool distances;               /* the index searches by L2 distance */
};

/* A .npy must be a row-major matrix of '<f4' or '<f2'; an index must be "IxFI" or "IxF2".
 * errors: ENOTFOUND, EIO, EFORMAT (neither format, truncated, bytes after the last row,
 * no row), EUNSUPPORTED (another index, type or order, which the message names) */
kg_status kg_vectors_open(struct kg_vectors *v, const char *path,
                          struct kg_err *err) KG_MUST_CHECK;
/* The same for borrowed bytes; `name` is for errors. */
kg_status kg_vectors_open_bytes(struct kg_vectors *v, const void *bytes, size_t n,
                                const char *name, struct kg_err *err) KG_MUST_CHECK;
void kg_vectors_close(struct kg_vectors *v); /* {0} allowed */
/* out (n, cols): rows first .. first + n - 1 as fp32; NaN and infinities stay */
void kg_vectors_get(float *out, const struct kg_vectors *v, int64_t first, int64_t n);
/* Drops the pages of these rows from memory; they will not be read again. */
void kg_vectors_let_go(const struct kg_vectors *v, int64_t first, int64_t n);

#endif
