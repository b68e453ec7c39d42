/* Vectors of a search index in 16 or 8 bits per number, only for products.
 *
 * A number is fp16, or int8 with a scale that the caller keeps. Sixteen rows are
 * interleaved number by number, so that a product reads memory sequentially and widens on
 * the fly: element d of row r is code (r%16) of the sixteen at index r/16*cols + d. The
 * last sixteen rows are zero-padded.
 */
#ifndef KG_TENSOR_CODES_H
#define KG_TENSOR_CODES_H

#include "tensor/backend.h"

enum kg_code { KG_CODE_F16, KG_CODE_I8, KG_CODES };

struct kg_codes {
    /* kg_codes_bytes bytes of backend memory; while kg_codes_put fills them, of host
     * memory */
    void *data;
    enum kg_code code;
    int64_t rows;
    int64_t cols;
};
uint64_t kg_codes_bytes(enum kg_code code, int64_t rows, int64_t cols);
/* Sets a row.   values (cols): uint16_t with the bits of fp16, or int8_t */
void kg_codes_put(const struct kg_codes *m, int64_t row, const void *values);
/* A view of rows [first, first+n).   first: a multiple of KG_PANEL */
struct kg_codes kg_codes_rows(const struct kg_codes *m, int64_t first, int64_t n);

/* c[q,i] = sum_d a[q,d] m[i,d]
 * c (Q, rows) fp32 out; its stride is a multiple of KG_PANEL, and up to the next multiple
 * of it, columns after the last get products with rows after the view, or with padding
 * a (Q, cols) fp32
 * numerics: the bits of kg_op_matmul's NT with m as fp32, for any Q, rows and threads
 * errors: ESHAPE, EDTYPE, EINVAL, ENOMEM, EUNSUPPORTED (the backend has no such slot) */
kg_status kg_op_scan(const struct kg_backend *be, struct kg_mat c, struct kg_mat a,
                     const struct kg_codes *m, struct kg_err *err) KG_MUST_CHECK;

#endif
