/* Checks by `kedge doctor` and at the start of a run: CPU features, and whether exact
 * products hold on this machine. Both are measured, not assumed. */
#ifndef KG_TENSOR_SELFCHECK_H
#define KG_TENSOR_SELFCHECK_H

#include "tensor/backend.h"

/* The i-th CPU table that this machine can run, best first; NULL past the last. All
 * tables give the same bits. */
const struct kg_backend *kg_backend_cpu_variant(int i);
/* For tests of whole runs: makes this table the backend "cpu" from now on.   returns
 * false past the last table, with no change */
bool kg_backend_cpu_use(int i);

/* The instruction sets found, as text. */
void kg_selfcheck_cpu_features(char *text, size_t bytes);

/* Checks that the bits of a product's row do not depend on the number of rows and
 * threads, and that the bits of a sum over tokens do not depend on the number of threads.
 * Takes a few seconds at most. Shapes: N x K of a few projections, including odd ones
 * errors: ECONFLICT, naming kind, dtype, shape and row count */
kg_status kg_selfcheck_rows(const struct kg_backend *be, enum kg_dtype dtype,
                            struct kg_err *err) KG_MUST_CHECK;

/* Checks that elements of products equal the definition in backend.h, also for subnormal
 * sums.
 * errors: ECONFLICT, naming dtype, K and element */
kg_status kg_selfcheck_definition(const struct kg_backend *be, enum kg_dtype dtype,
                                  struct kg_err *err) KG_MUST_CHECK;

/* Checks that products of every kind, into each type of result, are within 2^-16 of the
 * sum in double, relative to the sum of the terms' sizes (a bf16 result: plus half its
 * last place).
 * errors: ECONFLICT, naming dtypes, kind, shape and element */
kg_status kg_selfcheck_values(const struct kg_backend *be, enum kg_dtype dtype,
                              struct kg_err *err) KG_MUST_CHECK;
/* kg_selfcheck_values for products of at most `most` multiply-adds. */
kg_status kg_selfcheck_values_to(const struct kg_backend *be, enum kg_dtype dtype,
                                 int64_t most, struct kg_err *err) KG_MUST_CHECK;

/* A hash of the bits of a few products: equal on machines that compute alike. */
kg_status kg_selfcheck_digest(uint64_t *digest, const struct kg_backend *be,
                              enum kg_dtype dtype, struct kg_err *err) KG_MUST_CHECK;

#endif
