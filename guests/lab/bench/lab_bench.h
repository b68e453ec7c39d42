/* Shared by the laboratory's benchmarks and their tests. */
#ifndef KG_LAB_BENCH_H
#define KG_LAB_BENCH_H

#include "bench/measure.h"
#include "rollout/episode.h"

/* bench_ops.c */
enum { KG_BENCH_OPS_ROWS = 4 };
struct kg_bench_ops_sizes {
    int64_t rows[KG_BENCH_OPS_ROWS]; /* of products */
    int32_t head_rows, vocab;
    int32_t sequences, length; /* of attention */
    int64_t weights;           /* of an update */
    int repeats;
    size_t layers, widths; /* number of product shapes, and of head shapes */
};
extern const struct kg_bench_ops_sizes kg_bench_ops_device, kg_bench_ops_host;
kg_status kg_bench_ops_of(struct kg_bench_report *r,
                          const struct kg_bench_ops_sizes *sizes,
                          struct kg_err *err) KG_MUST_CHECK;
/* bench_ranks.c */
/* Fits seconds = alpha + beta bytes to n >= 2 different sizes; worst: the largest
 * relative error. */
struct kg_bench_line {
    double alpha, beta, worst;
};
struct kg_bench_line kg_bench_fit(const double *bytes, const double *seconds, int n);
/* bench_async.c */
struct kg_bench_async_size {
    int steps; /* timed steps per round */
    int rounds;
    int prompts; /* prompts per step, with 8 samples each */
    int32_t hidden, layers;
};
kg_status kg_bench_async_of(struct kg_bench_report *r,
                            const struct kg_bench_async_size *size,
                            struct kg_err *err) KG_MUST_CHECK;
#endif
