/* Shared by the laboratory's benchmarks and their tests. */
#ifndef KG_LAB_BENCH_H
#define KG_LAB_BENCH_H

#include "bench/measure.h"
#include "rollout/episode.h"

/* ops.c */
enum { KG_BENCH_OPS_ROWS = 4 };
struct kg_bench_ops_sizes {
    int64_t rows[KG_BENCH_OPS_ROWS]; /* of products */
    int32_t head_rows, vocab;
    int32_t sequences, length; /* of attention */
    int64_t weights;           /* of an update */
    int repeats;
    size_t layers, widths; /* number of shapes of products, of heads */
};
extern const struct kg_bench_ops_sizes kg_bench_ops_device, kg_bench_ops_host;
kg_status kg_bench_ops_of(struct kg_bench_report *r,
                          const struct kg_bench_ops_sizes *sizes,
                          struct kg_err *err) KG_MUST_CHECK;
/* ranks.c */
/* Fits seconds = alpha + beta bytes to n >= 2 different sizes; worst: the largest
 * relative error. */
struct kg_bench_line {
    double alpha, beta, worst;
};
struct kg_bench_line kg_bench_fit(const double *bytes, const double *seconds, int n);
/* episodes.c */
/* A tool for at most 128 episodes; the retriever's place gives its delay in seconds. */
extern const struct kg_env_row kg_bench_tool;
/* async.c */
struct kg_bench_async_size {
    int steps, prompts; /* timed steps; prompts of a step, with 8 samples each */
    int32_t hidden, layers;
};
kg_status kg_bench_async_of(struct kg_bench_report *r,
                            const struct kg_bench_async_size *size,
                            struct kg_err *err) KG_MUST_CHECK;
/* policy.c */
struct kg_bench_policy_seconds {
    double ema_pg;
    double dearest; /* of the preset that takes longest */
    const char *name;
};
/* The policy mathematics of a step of 4,096 tokens under every preset. */
kg_status kg_bench_policy_seconds(struct kg_bench_policy_seconds *out,
                                  struct kg_bench_report *r,
                                  struct kg_err *err) KG_MUST_CHECK;

/* ---- models of a given shape, and a training step without an optimizer ---- */
/* model.c */
struct kg_bench_shape {
    const char *name;
    int32_t hidden, ffn, layers, heads, kv_heads, vocab;
    int32_t experts, per_token; /* ffn is the total of per_token experts; 0: none */
    const char *base_dtype;     /* of frozen weights, as in kg_model_opts */
};
extern const struct kg_bench_shape kg_bench_small, kg_bench_narrow, kg_bench_half_b;

/* Whether frozen weights may be in blocks of 4 and 8 bits. */
static inline bool kg_bench_has_blocks(const struct kg_bench_report *r)
{
    return r->ct == KG_BF16 && r->be->coded;
}

kg_status kg_bench_model(struct kg_model **m, const struct kg_bench_report *r,
                         const struct kg_bench_shape *s, bool trainable,
                         struct kg_err *err) KG_MUST_CHECK;

/* Parameters used in products for one token, counting its own experts; its cost is twice
 * that. */
double kg_bench_parameters(const struct kg_model *m);
/* Data copied to a device and back per token and step, next to the planned amount:
 * positions, ids and token counts. */
kg_status kg_bench_put_traffic(struct kg_bench_report *r, const char *name,
                               const struct kg_traffic *t, double tokens, double steps,
                               const char *planned, struct kg_err *err) KG_MUST_CHECK;

kg_status kg_bench_decode_parts_of(struct kg_bench_report *r,
                                   const struct kg_bench_shape *s, int batch, int tokens,
                                   struct kg_err *err) KG_MUST_CHECK;
/* The row of copies to and from a device, in a second run. */
kg_status kg_bench_decode_bus(struct kg_bench_report *r, const struct kg_model *m,
                              int batch, int tokens, struct kg_err *err) KG_MUST_CHECK;
/* Decoding of one sequence, measured in bytes of weights read. */
kg_status kg_bench_decode_one(struct kg_bench_report *r, const struct kg_model *m,
                              const char *name, double bar,
                              struct kg_err *err) KG_MUST_CHECK;
/* train.c */
/* The row of copies to and from a device, in a second step. */
kg_status kg_bench_train_bus(struct kg_bench_report *r, const struct kg_bench_shape *s,
                             int n_seqs, int seq_len, struct kg_err *err) KG_MUST_CHECK;
/* The parts of a step, on the CPU.   errors: UNSUPPORTED (a device) */
kg_status kg_bench_train_parts_of(struct kg_bench_report *r,
                                  const struct kg_bench_shape *s, int n_seqs, int seq_len,
                                  struct kg_err *err) KG_MUST_CHECK;
kg_status kg_bench_lora_of(struct kg_bench_report *r, const struct kg_bench_shape *s,
                           int n_seqs, int seq_len, struct kg_err *err) KG_MUST_CHECK;
/* Forward and backward of n_seqs x seq_len tokens at the 0.5B shape, best of two. */
kg_status kg_bench_step_seconds(double *seconds, struct kg_bench_report *r, int n_seqs,
                                int seq_len, struct kg_err *err) KG_MUST_CHECK;
/* parts.c: the CPU backend with timed operations */
/* Starts the measurement: resets all counts. */
void kg_bench_parts_begin(void);
/* Adds drawn tokens of all threads, and their steps. */
void kg_bench_parts_draw(double seconds, double tokens, double vocab, double steps);
/* Rows of the best of three runs with their ceilings; run: *seconds of one step. */
kg_status kg_bench_best_parts(struct kg_bench_report *r, const char *name,
                              kg_bench_work_fn run, void *user,
                              struct kg_err *err) KG_MUST_CHECK;

#endif
