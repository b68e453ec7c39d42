/* Shared by the files of operations: checks of operands, and errors for missing slots.
 * Internal to src/tensor.
 */
#ifndef KG_TENSOR_OP_INTERNAL_H
#define KG_TENSOR_OP_INTERNAL_H

#include "data/quants.h"
#include "tensor/backend.h"

/* Bits of what an operand may have: types, panels (PANELS << layout), kg_mat.quant. */
enum { F32 = 1 << KG_F32, BF16 = 1 << KG_BF16, CT = F32 | BF16, PANELS = 1 << 8 };
enum { CODED = 1 << 16 };

/* For check: a dimension may have any length. */
enum { ANY = -1 };

static inline kg_status check_shape(const char *op, const char *name, struct kg_mat m,
                                    int64_t rows, int64_t cols, struct kg_err *err)
{
    if ((rows == ANY || m.rows == rows) && (cols == ANY || m.cols == cols) &&
        m.rows >= 0 && m.cols >= 0)
        return KG_OK;
    if (rows == ANY)
        return kg_fail(err, KG_ESHAPE, "%s: %s has %lld columns, expected %lld", op, name,
                       (long long)m.cols, (long long)cols);
    if (cols == ANY)
        return kg_fail(err, KG_ESHAPE, "%s: %s has %lld rows, expected %lld", op, name,
                       (long long)m.rows, (long long)rows);
    return kg_fail(err, KG_ESHAPE, "%s: %s is %lld x %lld, expected %lld x %lld", op,
                   name, (long long)m.rows, (long long)m.cols, (long long)rows,
                   (long long)cols);
}

static inline const char *types_name(unsigned types)
{
    types &= CT;
    return types == F32 ? "fp32" : types == BF16 ? "bf16" : "fp32 or bf16";
}

/* Checks that an operand is a valid view of this shape and of one of these types. */
static inline kg_status check(const char *op, const char *name, struct kg_mat m,
                              int64_t rows, int64_t cols, unsigned types,
                              struct kg_err *err)
{
    KG_TRY(check_shape(op, name, m, rows, cols, err));
    if (!(types & 1u << m.dtype))
        return kg_fail(err, KG_EDTYPE, "%s: %s is %s, expected %s", op, name,
                       kg_dtype_traits(m.dtype)->name, types_name(types));
    if (m.layout != KG_ROWS && !(types & PANELS << m.layout))
        return kg_fail(err, KG_EINVAL, "%s: %s is in %spanels, expected rows%s", op, name,
                       types / PANELS ? "other " : "",
                       types / PANELS ? " or the backend's" : "");
    if (m.quant && !(types & CODED))
        return kg_fail(err, KG_EINVAL, "%s: %s is of %s, expected elements", op, name,
                       m.quant->name);
    if (m.rows > 1 && m.stride < m.cols)
        return kg_fail(err, KG_ESHAPE,
                       "%s: %s has a row stride of %lld elements, expected at least "
                       "its %lld columns",
                       op, name, (long long)m.stride, (long long)m.cols);
    if (!m.data && m.rows > 0 && m.cols > 0)
        return kg_fail(err, KG_EINVAL, "%s: %s (%lld x %lld) has no memory", op, name,
                       (long long)m.rows, (long long)m.cols);
    return KG_OK;
}

static inline kg_status check_length(const char *op, const char *name, const void *data,
                                     int64_t n, int64_t expected, struct kg_err *err)
{
    if (n != expected)
        return kg_fail(err, KG_ESHAPE, "%s: %s has %lld elements, expected %lld", op,
                       name, (long long)n, (long long)expected);
    if (!data && n > 0)
        return kg_fail(err, KG_EINVAL, "%s: %s (%lld) has no memory", op, name,
                       (long long)n);
    return KG_OK;
}

static inline kg_status check_vec(const char *op, const char *name, struct kg_vec v,
                                  int64_t n, struct kg_err *err)
{
    return check_length(op, name, v.data, v.n, n, err);
}

/* Expected length of a norm's weight: w.n if it divides x.cols, else x.cols. */
static inline int64_t norm_width(struct kg_mat x, struct kg_vec w)
{
    return w.n > 0 && x.cols % w.n == 0 ? w.n : x.cols;
}

/* check_vec for a vector that may be absent (data NULL). */
static inline kg_status check_vec_if(const char *op, const char *name, struct kg_vec v,
                                     int64_t n, struct kg_err *err)
{
    return v.data ? check_vec(op, name, v, n, err) : KG_OK;
}

static inline kg_status check_ids(const struct kg_backend *be, const char *op,
                                  const char *name, struct kg_ivec ids, int64_t n,
                                  int64_t end, struct kg_err *err)
{
    KG_TRY(check_length(op, name, ids.data, ids.n, n, err));
    return be->host_memory ? kg_ids_check(op, name, ids.data, n, end, err) : KG_OK;
}

/* The panels of the backend as bits for `types`; 0: it has none. */
static inline unsigned panels(const struct kg_backend *be)
{
    return be->weights == KG_ROWS ? 0 : PANELS << be->weights | (be->coded ? CODED : 0);
}

/* Fails for a slot that the backend lacks. */
static inline kg_status missing(const struct kg_backend *be, const char *op,
                                struct kg_err *err)
{
    return kg_fail(err, KG_EUNSUPPORTED, "backend %s has no operation %s", be->name, op);
}

#endif
