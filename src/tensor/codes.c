/* Checks the operands of products with codes, and stores codes (codes.h). */
#include "tensor/codes.h"

#include "tensor/op_internal.h"

static const int64_t code_bytes[KG_CODES] = {[KG_CODE_F16] = 2, [KG_CODE_I8] = 1};

uint64_t kg_codes_bytes(enum kg_code code, int64_t rows, int64_t cols)
{
    return (uint64_t)((rows + KG_PANEL - 1) / KG_PANEL * KG_PANEL * cols *
                      code_bytes[code]);
}

void kg_codes_put(const struct kg_codes *m, int64_t row, const void *values)
{
    const int64_t at = row / KG_PANEL * KG_PANEL * m->cols + row % KG_PANEL;

    for (int64_t d = 0; d < m->cols; d++)
        if (m->code == KG_CODE_F16)
            ((uint16_t *)m->data)[at + d * KG_PANEL] = ((const uint16_t *)values)[d];
        else
            ((int8_t *)m->data)[at + d * KG_PANEL] = ((const int8_t *)values)[d];
}

struct kg_codes kg_codes_rows(const struct kg_codes *m, int64_t first, int64_t n)
{
    struct kg_codes part = *m;

    part.data = (char *)m->data + first * m->cols * code_bytes[m->code];
    part.rows = n;
    return part;
}

kg_status kg_op_scan(const struct kg_backend *be, struct kg_mat c, struct kg_mat a,
                     const struct kg_codes *m, struct kg_err *err)
{
    const char *op = "scan";

    KG_TRY(check(op, "a", a, ANY, m->cols, F32, err));
    KG_TRY(check(op, "c", c, a.rows, m->rows, F32, err));
    if (c.stride % KG_PANEL != 0 || c.stride < m->rows)
        return kg_fail(err, KG_ESHAPE,
                       "%s: c has a row stride of %lld elements, expected a multiple of "
                       "%d, at least %lld",
                       op, (long long)c.stride, (int)KG_PANEL, (long long)m->rows);
    if (!m->data || m->rows < 1 || m->cols < 1)
        return kg_fail(err, KG_EINVAL, "%s: m (%lld x %lld) is empty or has no data", op,
                       (long long)m->rows, (long long)m->cols);
    return be->scan ? be->scan(c, a, m, err)
                    : kg_fail(err, KG_EUNSUPPORTED,
                              "%s: backend %s has no such operation", op, be->name);
}
