/* Reads vectors of other programs: the rows of a flat FAISS index, or of NumPy's .npy.
 *
 * Both formats are a header, then numbers, row by row, to the end of the file. The file
 * is mapped. Opening checks that every row is present. The caller checks the vectors
 * (finite, of length 1, matching the texts).
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

/* A .npy must be a row-major matrix of '<f4' or '<f2'; a FAISS index "IxFI" or "IxF2".
 * errors: ENOTFOUND, EIO, EFORMAT (neither format, truncated, bytes after the last row,
 * no row), EUNSUPPORTED (another index, type or order, which the message names) */
kg_status kg_vectors_open(struct kg_vectors *v, const char *path,
                          struct kg_err *err) KG_MUST_CHECK;
/* kg_vectors_open for a file's bytes, borrowed; `name` is for errors. */
kg_status kg_vectors_open_bytes(struct kg_vectors *v, const void *bytes, size_t n,
                                const char *name, struct kg_err *err) KG_MUST_CHECK;
void kg_vectors_close(struct kg_vectors *v); /* {0} allowed */
/* out (n, cols): rows first .. first + n - 1 as fp32; NaN and infinities stay */
void kg_vectors_get(float *out, const struct kg_vectors *v, int64_t first, int64_t n);
/* Drops the pages of these rows from memory; they will not be read again. */
void kg_vectors_let_go(const struct kg_vectors *v, int64_t first, int64_t n);

/* Writes NumPy's .npy: one fp32 matrix, row by row.
 *
 * The header holds the number of rows, which is known only at the end. So kg_npy_open
 * leaves space for the header, and kg_npy_close writes it.
 */
struct kg_npy { /* {0}: none */
    struct kg_file_writer file;
    int64_t cols, rows;
};
/* path is written directly: use a temporary name and rename it.   errors: EIO */
kg_status kg_npy_open(struct kg_npy *npy, const char *path, int64_t cols,
                      struct kg_err *err) KG_MUST_CHECK;
/* x (n, cols) */
kg_status kg_npy_put(struct kg_npy *npy, const float *x, int64_t n,
                     struct kg_err *err) KG_MUST_CHECK;
/* On failure the file is removed.   errors: EIO, ENOSPACE */
kg_status kg_npy_close(struct kg_npy *npy, struct kg_err *err) KG_MUST_CHECK;
void kg_npy_abort(struct kg_npy *npy); /* {0} allowed */

#endif
