/* kedge bench ranks, its last figure: what the exchange of a gradient takes beside its
 * bytes alone.
 */
#ifndef KG_CLI_BENCH_GRADIENT_H
#define KG_CLI_BENCH_GRADIENT_H

#include "base/str.h"
#include "ranks/ranks.h"

/* A gradient of 64 MiB, a lane on each rank; the same bytes moved by one exchange; what
 * they bring added by itself: in turns. Appends a row: the median share of the seconds of
 * the slowest rank, over those of the bytes alone (at most 1.1 asked) and of both.
 * errors: of any rank */
kg_status kg_bench_gradient(struct kg_str *out, struct kg_ranks *ranks, bool json,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
