/* Shared by the benchmarks: timing work against the ceiling that bounds it, and rows of
 * the report.
 *
 * Machines are seldom idle, and ceilings fall with load. So on a CPU a ceiling is
 * measured again before every repetition, as a rate sustained over a quarter of a second.
 * A share is the best rate of the work divided by the best ceiling, measured in the same
 * minute.
 */
#ifndef KG_BENCH_MEASURE_H
#define KG_BENCH_MEASURE_H

#include "bench/bench.h"
#include "model/model.h"

enum kg_bench_ceiling {
    KG_BENCH_NO_CEILING,
    /* FLOP/s of a product in the report's dtype; on a device, by its library */
    KG_BENCH_GEMM,
    KG_BENCH_GEMM_FP32, /* the same in fp32 */
    KG_BENCH_PEAK,      /* FLOP/s of multiply-adds in registers, in the report's dtype */
    KG_BENCH_PEAK_FP32, /* the same in fp32 */
    KG_BENCH_MEMORY     /* bytes/s: read; on a device copied, read and written */
};

struct kg_bench_report {
    struct kg_str *out;          /* borrowed */
    const struct kg_backend *be; /* the measured backend */
    struct kg_ranks *ranks;      /* borrowed; NULL: one process */
    bool json;
    enum kg_dtype ct;    /* dtype of products */
    const char *row;     /* only rows with this text in their name; NULL: all */
    int64_t gemm_side;   /* side of the ceilings' matrices; 0: 2,048, on a device 8,192
                            (fp32: 4,096) */
    double ceiling_time; /* seconds per ceiling; 0: a quarter of a second */
    unsigned char *slab; /* owned, in the backend's memory: operands of the ceilings */
    double known[KG_BENCH_MEMORY + 1]; /* ceilings of a device; 0: not yet measured */
    uint64_t sum; /* keeps the memory ceiling's reads from being optimised away */
};

/* The ceiling for products in fp32 (`fp32`) or in the report's dtype: on a CPU its peak
 * rate, on a device the best rate of its library. */
static inline enum kg_bench_ceiling kg_bench_compute(const struct kg_bench_report *r,
                                                     bool fp32)
{
    if (r->be->host_memory)
        return fp32 ? KG_BENCH_PEAK_FP32 : KG_BENCH_PEAK;
    return fp32 ? KG_BENCH_GEMM_FP32 : KG_BENCH_GEMM;
}

/* ---- time ---- */

/* Does the work once. *seconds out: its time, which may exclude setup. */
typedef kg_status (*kg_bench_work_fn)(double *seconds, void *user, struct kg_err *err);

struct kg_bench_job {
    kg_bench_work_fn run;
    void *user;
    int repeats;
    bool warm; /* run once untimed first */
    enum kg_bench_ceiling ceiling;
    /* > 0: work per byte read; then the memory's rate times this is a second ceiling */
    double per_byte;
};

enum { KG_BENCH_MOST_REPEATS = 16 };
struct kg_bench_timing {
    double seconds[KG_BENCH_MOST_REPEATS]; /* (n) */
    int n;
    double ceiling; /* best rate of the ceiling between repetitions, work per second */
    double memory;  /* the same of the memory's ceiling; 0: none */
};

/* Waits until the backend, which may run asynchronously, is done. p: its memory */
kg_status kg_bench_settle(const struct kg_backend *be, const void *p,
                          struct kg_err *err) KG_MUST_CHECK;
/* Allocates the ceilings' memory now, so that it is not counted as memory of the
 * benchmark. */
kg_status kg_bench_prepare(struct kg_bench_report *r, struct kg_err *err) KG_MUST_CHECK;
/* Measures a ceiling once more (a device's: only once): *best <- the larger rate. */
kg_status kg_bench_raise(double *best, struct kg_bench_report *r,
                         enum kg_bench_ceiling kind, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_bench_time(struct kg_bench_timing *t, struct kg_bench_report *r,
                        const struct kg_bench_job *job, struct kg_err *err) KG_MUST_CHECK;
/* One more repetition, after measuring its ceiling. */
kg_status kg_bench_repeat(struct kg_bench_timing *t, struct kg_bench_report *r,
                          const struct kg_bench_job *job,
                          struct kg_err *err) KG_MUST_CHECK;
double kg_bench_best(const struct kg_bench_timing *t); /* seconds */
double kg_bench_median(const struct kg_bench_timing *t);

/* ---- rows of the report ---- */

/* Whether the row of this name is to be measured; "batch 1" does not match "batch 16". */
bool kg_bench_wants(const struct kg_bench_report *r, const char *name);

/* Target of a row; `{0}`: none. */
struct kg_bench_bar {
    double limit;
    bool at_most; /* else at least */
};

struct kg_bench_rate {
    const char *name;
    double work; /* work per repetition in 1e-9 `unit` s: FLOP if unit is GFLOP/s */
    const char *unit;
    struct kg_bench_bar bar; /* target for the share of the timing's ceiling */
};
kg_status kg_bench_put_rate(struct kg_bench_report *r, const struct kg_bench_rate *rate,
                            const struct kg_bench_timing *t,
                            struct kg_err *err) KG_MUST_CHECK;
kg_status kg_bench_put_bytes(struct kg_bench_report *r, const char *name, double bytes,
                             struct kg_bench_bar bar, struct kg_err *err) KG_MUST_CHECK;
/* part / whole, both in `unit`; `of` names the whole. */
struct kg_bench_share {
    const char *name;
    double part;
    double whole;
    const char *unit;
    const char *of;
    struct kg_bench_bar bar;
};
kg_status kg_bench_put_share(struct kg_bench_report *r, const struct kg_bench_share *s,
                             struct kg_err *err) KG_MUST_CHECK;
kg_status kg_bench_put_note(struct kg_bench_report *r, const char *name, const char *text,
                            struct kg_err *err) KG_MUST_CHECK;

/* ---- models of a given shape, and a training step without an optimizer ---- */

struct kg_bench_shape {
    const char *name;
    int32_t hidden, ffn, layers, heads, kv_heads, vocab;
    int32_t experts, per_token; /* ffn is the total of per_token experts; 0: none */
};
extern const struct kg_bench_shape kg_bench_small, kg_bench_narrow, kg_bench_half_b;

kg_status kg_bench_model(struct kg_model **m, const struct kg_bench_report *r,
                         const struct kg_bench_shape *s, bool trainable,
                         struct kg_err *err) KG_MUST_CHECK;

/* Parameters used in products for one token, those of its K experts included. A token's
 * forward costs twice this number in FLOP. */
double kg_bench_parameters(const struct kg_model *m);
/* A row of the bytes copied to a device and back, per token and per step (positions, ids,
 * token counts), with the planned number. */
kg_status kg_bench_put_traffic(struct kg_bench_report *r, const char *name,
                               const struct kg_traffic *t, double tokens, double steps,
                               const char *planned, struct kg_err *err) KG_MUST_CHECK;

/* ---- the benchmarks ---- */
/* bench.c */
kg_status kg_bench_ceilings(struct kg_bench_report *r, struct kg_err *err) KG_MUST_CHECK;
/* bench_model.c */
kg_status kg_bench_decode(struct kg_bench_report *r, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_bench_decode_parts(struct kg_bench_report *r,
                                struct kg_err *err) KG_MUST_CHECK;
kg_status kg_bench_decode_parts_of(struct kg_bench_report *r,
                                   const struct kg_bench_shape *s, int batch, int tokens,
                                   struct kg_err *err) KG_MUST_CHECK;
kg_status kg_bench_prefill(struct kg_bench_report *r, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_bench_prefill_parts(struct kg_bench_report *r,
                                 struct kg_err *err) KG_MUST_CHECK;
/* Decodes once more and adds a row of the copies to and from the device. */
kg_status kg_bench_decode_bus(struct kg_bench_report *r, const struct kg_model *m,
                              int batch, int tokens, struct kg_err *err) KG_MUST_CHECK;
/* bench_train.c */
kg_status kg_bench_train(struct kg_bench_report *r, struct kg_err *err) KG_MUST_CHECK;
/* Trains once more and adds a row of the copies to and from the device. */
kg_status kg_bench_train_bus(struct kg_bench_report *r, const struct kg_bench_shape *s,
                             int n_seqs, int seq_len, struct kg_err *err) KG_MUST_CHECK;
/* The parts of a step, on the CPU.   errors: EUNSUPPORTED (a device) */
kg_status kg_bench_train_parts(struct kg_bench_report *r,
                               struct kg_err *err) KG_MUST_CHECK;
kg_status kg_bench_train_parts_of(struct kg_bench_report *r,
                                  const struct kg_bench_shape *s, int n_seqs, int seq_len,
                                  struct kg_err *err) KG_MUST_CHECK;
/* bench_parts.c: the CPU backend with timed operations */
const struct kg_backend *kg_bench_timed(const struct kg_backend *be);
/* Starts the measurement: resets all counts. */
void kg_bench_parts_begin(void);
/* Adds drawn tokens of all threads, and their steps. */
void kg_bench_parts_draw(double seconds, double tokens, double vocab, double steps);
/* Appends the parts of the best of three runs, with their ceilings. run: does one step */
kg_status kg_bench_best_parts(struct kg_bench_report *r, const char *name,
                              kg_bench_work_fn run, void *user,
                              struct kg_err *err) KG_MUST_CHECK;
/* bench_products.c */
enum {
    KG_BENCH_FEW_ROWS = 8, /* up to this number of rows, weights are read from memory */
    KG_BENCH_FROM_MEMORY = 256 << 20, /* bytes of weights, more than any cache holds */
};
struct kg_bench_product {
    enum kg_matmul_kind kind;
    int64_t rows;
    int64_t n, k; /* of the weights */
    enum kg_dtype dtype;
};
/* Another library's products, timed in alternation with kedge's. *seconds out: of one
 * product. kedge contains no such library; see tools/bench_onednn.c. */
struct kg_bench_rival {
    const char *name;
    kg_status (*run)(double *seconds, const struct kg_bench_product *p,
                     struct kg_err *err);
};
double kg_bench_product_bar(const struct kg_backend *be,
                            const struct kg_bench_product *p);
kg_status kg_bench_products(struct kg_bench_report *r, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_bench_products_beside(struct kg_bench_report *r,
                                   const struct kg_bench_rival *rival,
                                   struct kg_err *err) KG_MUST_CHECK;
/* ---- of guests ---- */
/* guests/lab */
kg_status kg_bench_ops(struct kg_bench_report *r, struct kg_err *err) KG_GUEST;
kg_status kg_bench_async(struct kg_bench_report *r, struct kg_err *err) KG_GUEST;
kg_status kg_bench_head(struct kg_bench_report *r, struct kg_err *err) KG_GUEST;
kg_status kg_bench_head_parts(struct kg_bench_report *r, struct kg_err *err) KG_GUEST;
/* guests/retriever */
kg_status kg_bench_encode(struct kg_bench_report *r, struct kg_err *err) KG_GUEST;
kg_status kg_bench_search(struct kg_bench_report *r, struct kg_err *err) KG_GUEST;

#endif
