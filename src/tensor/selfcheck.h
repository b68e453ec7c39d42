/* What `kedge doctor` and the start of a run ask of the machine: features, and whether
 * the promises of exact products hold here. Checked, not assumed.
 */
#ifndef KG_TENSOR_SELFCHECK_H
#define KG_TENSOR_SELFCHECK_H

#include "tensor/backend.h"

/* The CPU tables that this machine can run, best first; NULL past the last. They give the
 * same bits. */
const struct kg_backend *kg_backend_cpu_variant(int i);
/* For tests of whole runs: from here on the backend "cpu" is this one. False, and nothing
 * changed, past the last. */
bool kg_backend_cpu_use(int i);

/* Instruction sets found, in words. */
void kg_selfcheck_cpu_features(char *text, size_t bytes);

/* Whether a row of a product keeps its bits however many rows stand beside it and however
 * many threads run, and a sum over tokens however many threads run. Some seconds at most.
 * shapes: N x K of a few projections, odd ones included
 * errors: ECONFLICT, naming kind, dtype, shape and row count */
kg_status kg_selfcheck_rows(const struct kg_backend *be, enum kg_dtype dtype,
                            struct kg_err *err) KG_MUST_CHECK;

/* Whether elements of products are those that backend.h defines, subnormal sums included.
 * errors: ECONFLICT, naming dtype, K and element */
kg_status kg_selfcheck_definition(const struct kg_backend *be, enum kg_dtype dtype,
                                  struct kg_err *err) KG_MUST_CHECK;

/* One number of all bits of a few products: equal on machines that compute alike. */
kg_status kg_selfcheck_digest(uint64_t *digest, const struct kg_backend *be,
                              enum kg_dtype dtype, struct kg_err *err) KG_MUST_CHECK;

#endif
