/* What `kedge doctor` and the start of a run check on this machine: its CPU features, and
 * whether products are exact. Both are measured, not assumed. */
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
 * threads, and that the bits of a sum over tokens do not depend on the number of threads,
 * for a few shapes, including odd ones. Takes a few seconds at most.
 * errors: ECONFLICT, naming dtype, kind, shape, row, and number of rows and threads */
kg_status kg_selfcheck_rows(const struct kg_backend *be, enum kg_dtype dtype,
                            struct kg_err *err) KG_MUST_CHECK;

/* Checks that elements of products equal the definition in backend.h, also for subnormal
 * sums.
 * errors: ECONFLICT, naming dtype, K and element */
kg_status kg_selfcheck_definition(const struct kg_backend *be, enum kg_dtype dtype,
                                  struct kg_err *err) KG_MUST_CHECK;

/* Checks that products of every kind, into each type of result, differ from the sum in
 * double by at most 2^-16 times the sum of the terms' magnitudes (into bf16, plus 2^-8
 * times the result).
 * errors: ECONFLICT, naming dtypes, kind, shape and element */
kg_status kg_selfcheck_values(const struct kg_backend *be, enum kg_dtype dtype,
                              struct kg_err *err) KG_MUST_CHECK;
/* kg_selfcheck_values for products of at most `most` multiply-adds. */
kg_status kg_selfcheck_values_to(const struct kg_backend *be, enum kg_dtype dtype,
                                 int64_t most, struct kg_err *err) KG_MUST_CHECK;

/* *digest <- a hash of the bits of a few products: equal on machines that give the same
 * bits. */
kg_status kg_selfcheck_digest(uint64_t *digest, const struct kg_backend *be,
                              enum kg_dtype dtype, struct kg_err *err) KG_MUST_CHECK;

#endif
