/* Writes NumPy's .npy: one fp32 matrix, row by row, complete or not at all.
 *
 * The header holds the number of rows, which is known at the end. So space is kept for
 * it, and it is written last.
 */
#ifndef KG_RETRIEVER_NPY_H
#define KG_RETRIEVER_NPY_H

#include "base/file.h"

#include <stdint.h>

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
