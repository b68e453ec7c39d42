/* See npy.h.   source: NumPy's "A Simple File Format for NumPy Arrays", version 1.0 */
#include "retriever/npy.h"

#include <stdio.h>
#include <string.h>

/* magic, version and length of what follows, then the description, padded with spaces to
 * a multiple of 64 that ends with a line end */
enum { HEADER = 128, PREAMBLE = 10 };

static kg_status put_header(struct kg_npy *npy, struct kg_err *err)
{
    static const char magic[] = "\x93NUMPY\x01\x00";
    char header[HEADER + 1];
    int n;

    memset(header, ' ', sizeof header);
    memcpy(header, magic, 8);
    header[8] = (char)(HEADER - PREAMBLE);
    header[9] = 0;
    n = snprintf(header + PREAMBLE, HEADER - PREAMBLE,
                 "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld), }",
                 (long long)npy->rows, (long long)npy->cols);
    header[PREAMBLE + n] = ' ';
    header[HEADER - 1] = '\n';
    return kg_file_writer_put(&npy->file, header, HEADER, err);
}

kg_status kg_npy_open(struct kg_npy *npy, const char *path, int64_t cols,
                      struct kg_err *err)
{
    *npy = (struct kg_npy){.cols = cols};
    KG_TRY(kg_file_writer_open(&npy->file, path, err));
    if (put_header(npy, err) == KG_OK)
        return KG_OK;
    kg_npy_abort(npy);
    return err->code;
}

kg_status kg_npy_put(struct kg_npy *npy, const float *x, int64_t n, struct kg_err *err)
{
    npy->rows += n;
    return kg_file_writer_put(&npy->file, x, (size_t)(n * npy->cols) * sizeof *x, err);
}

kg_status kg_npy_close(struct kg_npy *npy, struct kg_err *err)
{
    kg_status status = kg_file_writer_seek(&npy->file, 0, err);

    if (status == KG_OK)
        status = put_header(npy, err);
    if (status != KG_OK) {
        kg_npy_abort(npy);
        return status;
    }
    return kg_file_writer_close(&npy->file, err);
}

void kg_npy_abort(struct kg_npy *npy) { kg_file_writer_abort(&npy->file); }
