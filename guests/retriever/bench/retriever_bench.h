/* Shared by the retriever's benchmarks and their tests. */
#ifndef KG_RETRIEVER_BENCH_H
#define KG_RETRIEVER_BENCH_H

#include "bench/measure.h"
#include "retriever/encoder/encoder.h"

kg_status kg_bench_encode_of(struct kg_bench_report *r, const char *name,
                             const struct kg_encoder_shape *shape, size_t texts,
                             int repeats, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_bench_search_of(struct kg_bench_report *r, int64_t passages, int repeats,
                             struct kg_err *err) KG_MUST_CHECK;

#endif
