/* Vectors from another program: checks that there is one per passage, that they are
 * finite, and that they come from this encoder, for these passages, in this order.
 *
 * A sample checks the origin. Rounding to fp16 during the computation moves a vector by
 * well under a hundredth of its length; rounding to bf16 moves it by about two
 * hundredths, which is a cosine of .9998. Another passage, model or prefix moves it much
 * farther.
 */
#include "retriever/dense/dense_internal.h"

#include <math.h>

/* Tolerance of a vector's length, which should be 1. Rounding to bf16 changes a length by
 * up to half of this. */
#define LENGTH_OFF 0x1p-8
/* The same for an index of L2 distances: they rank like products only at length 1. */
#define LENGTH_OFF_OF_DISTANCES 1e-4

kg_status kg_given_open(struct kg_vectors *v, const char *path,
                        const struct kg_encoder_info *encoder, struct kg_err *err)
{
    KG_TRY(kg_vectors_open(v, path, err));
    if (v->cols != encoder->dim)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected vectors of the encoder's %d numbers, found %lld",
                       path, (int)encoder->dim, (long long)v->cols);
    if (v->distances && !encoder->normalised)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "%s: expected an index of inner products (IxFI), found an index "
                       "of L2 distances (IxF2), which ranks differently because the "
                       "encoder's vectors do not have length 1",
                       path);
    if (kg_dense_check_count(v->rows, err) != KG_OK)
        return kg_err_prefix(err, "%s", path);
    return KG_OK;
}

static double length_of(const float *x, int32_t dim)
{
    double squares = 0;

    for (int32_t d = 0; d < dim; d++)
        squares += (double)x[d] * (double)x[d];
    return sqrt(squares);
}

kg_status kg_given_take(float *out, const struct kg_vectors *v, const char *path,
                        const struct kg_encoder_info *encoder, int64_t first, int64_t n,
                        struct kg_err *err)
{
    const double off = v->distances ? LENGTH_OFF_OF_DISTANCES : LENGTH_OFF;

    kg_vectors_get(out, v, first, n);
    kg_vectors_let_go(v, first, n);
    for (int64_t i = 0; i < n; i++) {
        const double length = length_of(out + i * v->cols, encoder->dim);

        if (!isfinite(length))
            return kg_fail(err, KG_EFORMAT,
                           "%s: vector %lld: expected numbers, found NaN or infinity",
                           path, (long long)(first + i) + 1);
        if (encoder->normalised && fabs(length - 1) > off)
            return kg_fail(err, KG_EFORMAT,
                           "%s: vector %lld: expected length 1 like the encoder's "
                           "vectors (within %g), found %.6g",
                           path, (long long)(first + i) + 1, off, length);
    }
    return KG_OK;
}

bool kg_given_sampled(const struct kg_vectors *v, int64_t row)
{
    const int64_t gaps = KG_GIVEN_SAMPLE - 1;
    /* the only k for which row = floor(k (rows - 1) / gaps) is possible */
    const int64_t k = v->rows > 1 ? (row * gaps + v->rows - 2) / (v->rows - 1) : 0;

    return k <= gaps && k * (v->rows - 1) / gaps == row;
}

kg_status kg_given_compare(const float *made, const float *found, int32_t dim,
                           const char *path, int64_t row, struct kg_err *err)
{
    const double lengths = length_of(made, dim) * length_of(found, dim);
    double product = 0, cosine;

    for (int32_t d = 0; d < dim; d++)
        product += (double)made[d] * (double)found[d];
    cosine = product / lengths;
    if (cosine >= KG_GIVEN_COSINE)
        return KG_OK;
    return kg_fail(err, KG_ECONFLICT,
                   "%s: vector %lld: expected the encoder's vector of passage %lld "
                   "(cosine at least %g), found cosine %.4f: the model, prefix, pooling, "
                   "--max-tokens or the order differs",
                   path, (long long)row + 1, (long long)row + 1, KG_GIVEN_COSINE, cosine);
}
