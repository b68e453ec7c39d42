/* Benchmarks: the ceilings of this machine, and how close kedge comes to them in the same
 * run.
 *
 * Each figure is the best of several repetitions. It is printed with the median (which
 * shows noise), the ceiling measured between the repetitions, and the target, if there is
 * one. Only useful work counts, not recomputation: 2 x parameters x tokens for a forward,
 * three times that for training, plus causal attention.
 */
#ifndef KG_BENCH_H
#define KG_BENCH_H

#include "base/status.h"
#include "base/str.h"
#include "ranks/ranks.h"
#include "tensor/backend.h"

#include <stdbool.h>

/* A benchmark. `run` appends its rows to the report. */
struct kg_bench_report;
struct kg_bench_row {
    const char *name;
    const char *help;
    bool part;         /* left out of `all` */
    const char *guest; /* guest that holds the row; NULL: the trunk */
    kg_status (*run)(struct kg_bench_report *report, struct kg_err *err);
    /* measures the parts of the same work, on the CPU; NULL: no parts */
    kg_status (*parts)(struct kg_bench_report *report, struct kg_err *err);
};
/* Ended by a row with name NULL. */
const struct kg_bench_row *kg_bench_table(void);

/* Which benchmarks to run, and on which device. The report is text, or one JSON object
 * per line. */
struct kg_bench_opts {
    const char *name; /* a benchmark; NULL: all */
    /* Measures only rows of the report with this text in their name; NULL: all. Read by
     * products, decode, prefill, train and their parts. */
    const char *row;
    /* a device only for ceilings, ops, decode, prefill, train and search; else the CPU */
    const struct kg_backend *be;
    enum kg_dtype ct; /* dtype of products */
    bool json;
    bool parts; /* measure the parts of a step of `name`, which must have them */
    struct kg_ranks *ranks; /* for async: each rank gets the report; NULL: one process */
};
/* errors: ENOTFOUND (no such benchmark: lists the valid names; no row with such a name),
 * EUNSUPPORTED (parts on a device; the benchmark's guest is not linked) */
kg_status kg_bench_run(struct kg_str *out, const struct kg_bench_opts *opts,
                       struct kg_err *err) KG_MUST_CHECK;

enum { KG_BENCH_EXCHANGE = 1 << 26 }; /* most bytes that a rank sends to all others */
/* Measures exchanges among ranks by message size; collective, and each rank gets the
 * report. gpu: its memory is exchanged by the ranks' NCCL; NULL: host memory is. most:
 * bytes of the largest exchange
 * errors: EINVAL (a single process), ECONFLICT (received data are wrong), those of the
 * device and the ranks */
kg_status kg_bench_ranks(struct kg_str *out, struct kg_ranks *ranks,
                         const struct kg_backend *gpu, size_t most, bool json,
                         struct kg_err *err) KG_GUEST;

enum { KG_BENCH_GRADIENT = 1 << 24 }; /* elements: 64 MiB */
/* Times the sum of a gradient of n elements with one lane per rank, in the memory of `be`
 * (on GPUs by NCCL). In turn it times one exchange of the same bytes, and the additions
 * alone. Appends a row with the slowest rank's median time relative to the
 * exchange (target: at most 1.1) and to exchange plus additions.
 * errors: of any rank */
kg_status kg_bench_gradient(struct kg_str *out, struct kg_ranks *ranks,
                            const struct kg_backend *be, int64_t n, bool json,
                            struct kg_err *err) KG_GUEST;

/* The reference for a run's speed, in FLOP/s: multiply-adds in registers in `dtype`; on a
 * backend that does not measure these, a product of 1024 x 1024 matrices. It is the best
 * of three runs (some hundredths of a second in all), measured once per process, dtype
 * and number of threads. `kedge bench ceilings` measures both with care. */
kg_status kg_bench_compute_flops(double *flops, const struct kg_backend *be,
                                 enum kg_dtype dtype, struct kg_err *err) KG_MUST_CHECK;

#endif
