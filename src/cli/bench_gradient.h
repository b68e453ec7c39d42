/* kedge bench ranks, its last figure: what the exchange of a gradient takes beside its
 * bytes alone.
 */
#ifndef KG_CLI_BENCH_GRADIENT_H
#define KG_CLI_BENCH_GRADIENT_H

#include "base/str.h"
#include "ranks/ranks.h"
#include "tensor/backend.h"

enum { KG_BENCH_GRADIENT = 1 << 24 }; /* elements: 64 MiB */
/* A gradient of n elements, a lane on each rank, in the memory of `be` (of a GPU by the
 * NCCL that joins the ranks); the same bytes moved by one exchange; what they bring added
 * by itself: in turns. Appends a row: the median share of the seconds of the slowest
 * rank, over those of the bytes alone (at most 1.1 asked) and of both.
 * errors: of any rank */
kg_status kg_bench_gradient(struct kg_str *out, struct kg_ranks *ranks,
                            const struct kg_backend *be, int64_t n, bool json,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
