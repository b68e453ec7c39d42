/* Vectors that are kept in few bits and only ever multiplied: those of an index.
 *
 * A number is fp16, or a whole one of a byte whose factor the caller keeps. Sixteen rows
 * stand together, number by number, so that a product reads memory as it comes and
 * widens on the way: element d of row r is code (r%16) of the sixteen at place
 * r/16*cols + d. The last sixteen are padded by zeros.
 */
#ifndef KG_TENSOR_CODES_H
#define KG_TENSOR_CODES_H

#include "tensor/backend.h"

enum kg_code { KG_CODE_F16, KG_CODE_I8, KG_CODES };

struct kg_codes {
    void *data; /* of kg_codes_bytes, memory of the backend that multiplies, aligned as
                 * it gives it; or the host's while they are put into their places */
    enum kg_code code;
    int64_t rows;
    int64_t cols;
};
uint64_t kg_codes_bytes(enum kg_code code, int64_t rows, int64_t cols);
/* values (cols): uint16_t or int8_t */
void kg_codes_put(const struct kg_codes *m, int64_t row, const void *values);
/* Rows from `first` on, a multiple of KG_PANEL, n of them, which others may follow. */
struct kg_codes kg_codes_rows(const struct kg_codes *m, int64_t first, int64_t n);

/* c[q,i] = sum_d a[q,d] m[i,d]
 * c (Q, rows) fp32 out, its stride a multiple of KG_PANEL: up to that, the products of
 * what follows stand behind a row's end, of rows of m or of the zeros of its padding
 * a (Q, cols) fp32
 * numerics: the bits of kg_op_matmul's NT with m as fp32, whatever Q, rows and threads
 * errors: SHAPE, DTYPE, EINVAL, ENOMEM, EUNSUPPORTED (no such operation there) */
kg_status kg_op_scan(const struct kg_backend *be, struct kg_mat c, struct kg_mat a,
                     const struct kg_codes *m, struct kg_err *err) KG_MUST_CHECK;

#endif
