/* Time, ceilings, the rows of the report, and the table of benchmarks.
 *
 * Shared machines change their speed from minute to minute, so no figure stands alone:
 * the ceiling of a row is measured again between its repetitions, and the best of each is
 * compared. A device is not shared: its ceilings are measured once per report, with so
 * much work between two waits that the time of a wait is negligible. The target of a row
 * is data of the row, and is printed with the result.
 */
#include "bench/measure.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/sort.h"
#include "base/status.h"
#include "tensor/backend.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <string.h>

/* ---- ceilings ---- */

enum {
    GEMM_N = 2048,
    DEVICE_N = 8192,
    DEVICE_N_FP32 = 4096,    /* fp32 has no matrix instruction; both sizes fit the slab */
    DEVICE_TURNS = 20,       /* between two waits */
    STREAM_BLOCK = 1 << 15,  /* words of 8 bytes */
    STREAM_WORDS = 64 << 20, /* 512 MiB: much more than any cache */
    STREAM_BYTES = 8 * STREAM_WORDS
};
static const double CEILING_SECONDS = 0.25;
enum { COMPUTE_N = 1024 };
static const double LONG_SECONDS = 1e-3; /* about fifty waits for a device */
static const double MOST_WORK = 1e14;    /* FLOP; ends the search if time reads as zero */

/* n x n x n in `dtype`; the operands are in slab, which has at least 12 n^2 bytes. */
static kg_status gemm(const struct kg_backend *be, unsigned char *slab,
                      enum kg_dtype dtype, int64_t n, struct kg_err *err)
{
    size_t bytes = (size_t)(n * n) * kg_dtype_traits(dtype)->bytes;
    struct kg_mat a = kg_mat(slab, dtype, n, n);
    struct kg_mat b = kg_mat(slab + bytes, dtype, n, n);
    struct kg_mat c = kg_mat(slab + 2 * bytes, KG_F32, n, n);

    return kg_op_matmul(be, c, a, b, KG_MATMUL_NT, false, err);
}

/* Plain reads into eight sums, so that memory is the bound, not additions. */
static uint64_t read_block(const uint64_t *x)
{
    uint64_t s[8] = {0};

    for (int i = 0; i < STREAM_BLOCK; i += 8)
        for (int j = 0; j < 8; j++)
            s[j] += x[i + j];
    return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static uint64_t read_all(const uint64_t *x)
{
    uint64_t sum = 0;

#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (int64_t block = 0; block < STREAM_WORDS / STREAM_BLOCK; block++)
        sum += read_block(x + block * STREAM_BLOCK);
    return sum;
}

/* Numbers from 0.5 to 2 in either dtype: a GPU multiplies zeros faster. */
static kg_status fill(struct kg_bench_report *r, struct kg_err *err)
{
    enum { PART = 1 << 16 };
    static unsigned char part[PART];

    for (size_t i = 0; i < PART; i++)
        part[i] = i % 2 ? 0x3f : (unsigned char)(i * 40503 >> 5);
    KG_TRY(kg_buf_put(r->be, r->slab, part, PART, err));
    for (size_t have = PART; have < STREAM_BYTES; have *= 2)
        KG_TRY(kg_buf_copy(r->be, r->slab + have, r->slab, have, err));
    return KG_OK;
}

kg_status kg_bench_prepare(struct kg_bench_report *r, struct kg_err *err)
{
    if (r->slab)
        return KG_OK;
    r->slab = kg_buf_alloc(r->be, STREAM_BYTES, "operands of the ceilings", err);
    if (!r->slab)
        return err->code;
    if (!r->be->host_memory)
        return fill(r, err);
    for (size_t i = 0; i < STREAM_BYTES; i += 4096)
        r->slab[i] = 1; /* so that each page is allocated */
    return KG_OK;
}

kg_status kg_bench_settle(const struct kg_backend *be, const void *p, struct kg_err *err)
{
    uint32_t word;

    return kg_buf_get(be, &word, p, sizeof word, err);
}

static bool is_fp32(enum kg_bench_ceiling kind)
{
    return kind == KG_BENCH_GEMM_FP32 || kind == KG_BENCH_PEAK_FP32;
}

static int64_t gemm_side(const struct kg_bench_report *r, enum kg_bench_ceiling kind)
{
    if (r->gemm_side > 0 || r->be->host_memory)
        return r->gemm_side > 0 ? r->gemm_side : GEMM_N;
    return is_fp32(kind) || r->ct == KG_F32 ? DEVICE_N_FP32 : DEVICE_N;
}

static double ceiling_work(const struct kg_bench_report *r, enum kg_bench_ceiling kind)
{
    double n = (double)gemm_side(r, kind);

    return kind == KG_BENCH_MEMORY ? 8.0 * STREAM_WORDS : 2.0 * n * n * n;
}

static double ceiling_time(const struct kg_bench_report *r)
{
    return r->ceiling_time > 0 ? r->ceiling_time : CEILING_SECONDS;
}

static kg_status start_ceiling(struct kg_bench_report *r, enum kg_bench_ceiling kind,
                               struct kg_err *err)
{
    enum kg_dtype t = is_fp32(kind) ? KG_F32 : r->ct;

    if (kind == KG_BENCH_PEAK || kind == KG_BENCH_PEAK_FP32)
        return kg_op_peak(r->be, t, ceiling_work(r, kind), err);
    if (kind == KG_BENCH_MEMORY && r->be->host_memory) {
        r->sum += read_all((const uint64_t *)(const void *)r->slab);
        return KG_OK;
    }
    if (kind == KG_BENCH_MEMORY)
        return kg_buf_copy(r->be, r->slab, r->slab + STREAM_BYTES / 2, STREAM_BYTES / 2,
                           err);
    return gemm(r->be, r->slab, t, gemm_side(r, kind), err);
}

static kg_status run_ceiling(struct kg_bench_report *r, enum kg_bench_ceiling kind,
                             int turns, struct kg_err *err)
{
    for (int i = 0; i < turns; i++)
        KG_TRY(start_ceiling(r, kind, err));
    return kg_bench_settle(r->be, r->slab, err);
}

/* Runs a ceiling for a quarter of a second: the rate that the machine sustains, as the
 * measured work must. A single pass may run between two time slices of a neighbour. */
static kg_status sustain(double *rate, struct kg_bench_report *r,
                         enum kg_bench_ceiling kind, struct kg_err *err)
{
    const int together = r->be->host_memory ? 1 : DEVICE_TURNS;
    double start, seconds;
    int turns = 0;

    KG_TRY(kg_bench_prepare(r, err));
    KG_TRY(run_ceiling(r, kind, 1, err)); /* warm */
    start = kg_clock_seconds();
    do {
        KG_TRY(run_ceiling(r, kind, together, err));
        turns += together;
        seconds = kg_clock_seconds() - start;
    } while (seconds < ceiling_time(r));
    *rate = turns * ceiling_work(r, kind) / seconds;
    return KG_OK;
}

kg_status kg_bench_raise(double *best, struct kg_bench_report *r,
                         enum kg_bench_ceiling kind, struct kg_err *err)
{
    if (kind == KG_BENCH_NO_CEILING)
        return KG_OK;
    double rate = r->known[kind];

    if (rate == 0)
        KG_TRY(sustain(&rate, r, kind, err));
    if (!r->be->host_memory)
        r->known[kind] = rate;
    *best = rate > *best ? rate : *best;
    return KG_OK;
}

static kg_status raise_ceilings(struct kg_bench_timing *t, struct kg_bench_report *r,
                                const struct kg_bench_job *job, struct kg_err *err)
{
    double bytes = job->per_byte > 0 ? t->memory / job->per_byte : 0;

    KG_TRY(kg_bench_raise(&t->ceiling, r, job->ceiling, err));
    if (job->per_byte > 0)
        KG_TRY(kg_bench_raise(&bytes, r, KG_BENCH_MEMORY, err));
    t->memory = bytes * job->per_byte;
    return KG_OK;
}

/* *seconds: the best of three, after a warm-up */
static kg_status time_compute(double *seconds, const struct kg_backend *be,
                              unsigned char *slab, enum kg_dtype dtype, double flops,
                              struct kg_err *err)
{
    for (int i = 0; i < 4; i++) {
        const double start = kg_clock_seconds();

        KG_TRY(be->peak ? kg_op_peak(be, dtype, flops, err)
                        : gemm(be, slab, dtype, COMPUTE_N, err));
        KG_TRY(kg_bench_settle(be, slab, err));
        const double now = kg_clock_seconds() - start;

        *seconds = i < 2 || now < *seconds ? now : *seconds;
    }
    return KG_OK;
}

/* Multiply-adds in registers if the backend has such a loop, enough of them to hide
 * launch and wait; else a matrix product. */
static kg_status measure_compute(double *flops, const struct kg_backend *be,
                                 enum kg_dtype dtype, struct kg_err *err)
{
    const double n = COMPUTE_N;
    double work = 2 * n * n * n, seconds;
    unsigned char *slab = kg_buf_alloc(be, (uint64_t)(n * n) * 12, "GEMM ceiling", err);
    kg_status status;

    if (!slab)
        return err->code;
    KG_TRY_GOTO(out, time_compute(&seconds, be, slab, dtype, work, err));
    while (be->peak && seconds < LONG_SECONDS && work < MOST_WORK) {
        work *= 4;
        KG_TRY_GOTO(out, time_compute(&seconds, be, slab, dtype, work, err));
    }
    *flops = work / seconds;
out:
    kg_buf_free(be, slab);
    return status;
}

kg_status kg_bench_compute_flops(double *flops, const struct kg_backend *be,
                                 enum kg_dtype dtype, struct kg_err *err)
{
    static struct {
        double flops;
        int threads;
    } known[KG_DTYPE_COUNT];
    int threads = kg_threads_get();

    if (known[dtype].threads != threads) {
        KG_TRY(measure_compute(&known[dtype].flops, be, dtype, err));
        known[dtype].threads = threads;
    }
    *flops = known[dtype].flops;
    return KG_OK;
}

/* ---- time ---- */

kg_status kg_bench_repeat(struct kg_bench_timing *t, struct kg_bench_report *r,
                          const struct kg_bench_job *job, struct kg_err *err)
{
    KG_TRY(raise_ceilings(t, r, job, err));
    KG_TRY(job->run(&t->seconds[t->n], job->user, err));
    t->n++;
    return KG_OK;
}

kg_status kg_bench_time(struct kg_bench_timing *t, struct kg_bench_report *r,
                        const struct kg_bench_job *job, struct kg_err *err)
{
    double seconds;

    *t = (struct kg_bench_timing){.n = 0};
    if (job->warm)
        KG_TRY(job->run(&seconds, job->user, err));
    for (int i = 0; i < job->repeats; i++)
        KG_TRY(kg_bench_repeat(t, r, job, err));
    return raise_ceilings(t, r, job, err);
}

/* The i-th smallest time. */
static double ranked(const struct kg_bench_timing *t, int i)
{
    struct kg_bench_timing sorted = *t;

    kg_sort_doubles(sorted.seconds, (size_t)t->n);
    return sorted.seconds[i];
}

double kg_bench_best(const struct kg_bench_timing *t) { return ranked(t, 0); }

double kg_bench_median(const struct kg_bench_timing *t) { return ranked(t, t->n / 2); }

/* ---- rows of the report ---- */

static bool met(struct kg_bench_bar bar, double value)
{
    return bar.at_most ? value <= bar.limit : value >= bar.limit;
}

/* Ends a row with its target, in `unit` after multiplication by `scale`. */
static kg_status put_bar(struct kg_bench_report *r, struct kg_bench_bar bar, double value,
                         double scale, const char *unit, struct kg_err *err)
{
    if (bar.limit == 0)
        return kg_str_puts(r->out, r->json ? "}\n" : "\n", err);
    if (r->json)
        return kg_str_printf(r->out, err, ", \"%s\": %.6g, \"met\": %s}\n",
                             bar.at_most ? "at_most" : "at_least", bar.limit,
                             met(bar, value) ? "true" : "false");
    KG_TRY(kg_str_printf(r->out, err, "  [%s %.0f %s: ",
                         bar.at_most ? "at most" : "at least", bar.limit * scale, unit));
    return met(bar, value) ? kg_str_puts(r->out, "met]\n", err)
                           : kg_str_printf(r->out, err, "NOT MET, by %.2g %s]\n",
                                           fabs(value - bar.limit) * scale, unit);
}

kg_status kg_bench_put_rate(struct kg_bench_report *r, const struct kg_bench_rate *rate,
                            const struct kg_bench_timing *t, struct kg_err *err)
{
    double seconds = kg_bench_best(t), best = rate->work / seconds;
    double median = rate->work / kg_bench_median(t);
    bool by_memory = t->memory > 0 && t->memory < t->ceiling;
    double ceiling = by_memory ? t->memory : t->ceiling;
    double share = ceiling > 0 ? best / ceiling : 0;

    if (r->json)
        KG_TRY(kg_str_printf(r->out, err,
                             "{\"name\": \"%s\", \"best\": %.4g, \"median\": %.4g, "
                             "\"unit\": \"%s\", \"seconds\": %.4g",
                             rate->name, best, median, rate->unit, seconds));
    else
        KG_TRY(kg_str_printf(r->out, err, "%-50s %8.1f %-8s (median %.1f)", rate->name,
                             best / 1e9, rate->unit, median / 1e9));
    if (ceiling > 0)
        KG_TRY(kg_str_printf(r->out, err,
                             r->json ? ", \"ceiling\": %.4g, \"share_of_ceiling\": %.4g"
                                     : "  ceiling %.1f: %.1f %%",
                             r->json ? ceiling : ceiling / 1e9,
                             r->json ? share : 100 * share));
    if (by_memory)
        KG_TRY(kg_str_puts(r->out, r->json ? ", \"bound_by\": \"memory\"" : " (memory)",
                           err));
    return put_bar(r, rate->bar, share, 100, "%", err);
}

kg_status kg_bench_put_bytes(struct kg_bench_report *r, const char *name, double bytes,
                             struct kg_bench_bar bar, struct kg_err *err)
{
    KG_TRY(kg_str_printf(
        r->out, err, r->json ? "{\"name\": \"%s\", \"bytes\": %.0f" : "%-50s %8.1f MiB",
        name, r->json ? bytes : bytes / (1 << 20)));
    return put_bar(r, bar, bytes, 1.0 / (1 << 20), "MiB", err);
}

kg_status kg_bench_put_share(struct kg_bench_report *r, const struct kg_bench_share *s,
                             struct kg_err *err)
{
    double share = s->part / s->whole;

    KG_TRY(kg_str_printf(r->out, err,
                         r->json ? "{\"name\": \"%s\", \"share\": %.4g, \"of\": \"%s\", "
                                   "\"part\": %.4g, \"whole\": %.4g, \"unit\": \"%s\""
                                 : "%-50s %8.2f %% of %s (%.4g of %.4g %s)",
                         s->name, r->json ? share : 100 * share, s->of, s->part, s->whole,
                         s->unit));
    return put_bar(r, s->bar, share, 100, "%", err);
}

kg_status kg_bench_put_note(struct kg_bench_report *r, const char *name, const char *text,
                            struct kg_err *err)
{
    return kg_str_printf(
        r->out, err, r->json ? "{\"name\": \"%s\", \"note\": \"%s\"}\n" : "%-50s %s\n",
        name, text);
}

/* ---- ceilings as rows ---- */

static kg_status ceiling_row(struct kg_bench_report *r, const char *name,
                             const char *unit, enum kg_bench_ceiling kind,
                             enum kg_bench_ceiling of, struct kg_err *err)
{
    struct kg_bench_timing t = {.n = 0};
    struct kg_bench_rate rate = {
        .name = name, .work = ceiling_work(r, kind), .unit = unit};

    for (int i = 0; i < 5; i++) {
        double reached = 0;

        KG_TRY(kg_bench_raise(&t.ceiling, r, of, err));
        KG_TRY(kg_bench_raise(&reached, r, kind, err));
        t.seconds[t.n++] = rate.work / reached;
    }
    return kg_bench_put_rate(r, &rate, &t, err);
}

/* Whether the report has this ceiling: not every backend has the loop in registers. */
static bool is_ceiling_of(const struct kg_bench_report *r, enum kg_bench_ceiling kind)
{
    const bool peak = kind == KG_BENCH_PEAK || kind == KG_BENCH_PEAK_FP32;

    return (r->be->peak || !peak) &&
           (r->ct == KG_BF16 || (kind != KG_BENCH_PEAK && kind != KG_BENCH_GEMM));
}

kg_status kg_bench_ceilings(struct kg_bench_report *r, struct kg_err *err)
{
    const char *memory = r->be->host_memory ? "ceiling: memory read"
                                            : "ceiling: memory copied, read and written";
    /* on a device the ceiling is a library's product, on the host kedge's own */
    const bool host = r->be->host_memory;
    const struct {
        const char *name, *unit;
        enum kg_bench_ceiling kind, of;
    } all[] = {
        {"ceiling: multiply-adds fp32 in registers", "GFLOP/s", KG_BENCH_PEAK_FP32, 0},
        {host ? "product fp32, 2,048 cubed" : "ceiling: best product fp32", "GFLOP/s",
         KG_BENCH_GEMM_FP32, host ? KG_BENCH_PEAK_FP32 : 0},
        {"ceiling: multiply-adds bf16 in registers", "GFLOP/s", KG_BENCH_PEAK, 0},
        {host ? "product bf16, 2,048 cubed" : "ceiling: best product bf16", "GFLOP/s",
         KG_BENCH_GEMM, host ? KG_BENCH_PEAK : 0},
        {memory, "GB/s", KG_BENCH_MEMORY, 0},
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (is_ceiling_of(r, all[i].kind))
            KG_TRY(ceiling_row(r, all[i].name, all[i].unit, all[i].kind, all[i].of, err));
    return KG_OK;
}

/* ---- the table ---- */

static const struct kg_bench_row rows[] = {
    {"ceilings",
     "multiply-adds in registers, and a product for comparison, fp32 and bf16; memory "
     "bandwidth",
     false, NULL, kg_bench_ceilings, NULL},
    {"products", "each product of a layer at the 0.5B shape, 1 to 2,048 rows", true, NULL,
     kg_bench_products, NULL},
    {"ops",
     "products, attention, head and optimizer one by one, at shapes of 0.5B and 7B", true,
     "lab", kg_bench_ops, NULL},
    {"decode", "sampling at the 0.5B and 135M shapes, batch 1, 16 and 64", false, NULL,
     kg_bench_decode, kg_bench_decode_parts},
    {"prefill", "a prompt of 512 tokens at the 0.5B and 135M shapes", false, NULL,
     kg_bench_prefill, kg_bench_prefill_parts},
    {"train", "forward, backward and update at D=512 L=8, the 135M and the 0.5B shape",
     false, NULL, kg_bench_train, kg_bench_train_parts},
    {"async",
     "training steps per hour with completions that span versions, compared with "
     "synchronous steps; the same with a tool of 200 ms",
     true, "lab", kg_bench_async, NULL},
    {"encode", "embedding of 64 texts of 128 tokens at the shapes of MiniLM and E5-base",
     false, "retriever", kg_bench_encode, NULL},
    {"search",
     "a pass over the vectors of 100,000 passages, in fp16 and int8, for 1 question and "
     "for 64",
     false, "retriever", kg_bench_search, NULL},
    {"head", "vocabulary head with Top-k, forward and backward, and its memory", false,
     "lab", kg_bench_head, kg_bench_head_parts},
    {0},
};

const struct kg_bench_row *kg_bench_table(void) { return rows; }

/* Runs a benchmark with CPU operations that measure their time. */
static kg_status run_apart(struct kg_bench_report *r, const struct kg_bench_row *row,
                           struct kg_err *err)
{
    const struct kg_backend *be = r->be;

    assert(row->parts);
    if (!be->host_memory)
        return kg_fail(err, KG_EUNSUPPORTED, "%s --parts: expected the CPU, found %s",
                       row->name, be->name);
    r->be = kg_bench_timed(be);
    kg_status status = row->parts(r, err);
    r->be = be;
    return status;
}

bool kg_bench_wants(const struct kg_bench_report *r, const char *name)
{
    const char *at = r->row ? strstr(name, r->row) : NULL;

    return r->row == NULL || (at && !isdigit((unsigned char)at[strlen(r->row)]));
}

kg_status kg_bench_run(struct kg_str *out, const struct kg_bench_opts *opts,
                       struct kg_err *err)
{
    const char *name = opts->name;
    struct kg_bench_report report = {.out = out,
                                     .be = opts->be,
                                     .ranks = opts->ranks,
                                     .json = opts->json,
                                     .ct = opts->ct,
                                     .row = opts->row};
    kg_status status = KG_OK;
    bool found = false;

    for (const struct kg_bench_row *row = rows; row->name && status == KG_OK; row++) {
        if (name ? strcmp(name, row->name) != 0 : row->part || !row->run)
            continue;
        found = true;
        if (!row->run)
            return kg_guest_missing(row->name, row->guest, err);
        kg_log_progress(1000, "bench %s", row->name);
        status = opts->parts ? run_apart(&report, row, err) : row->run(&report, err);
    }
    kg_log_progress_end();
    kg_buf_free(opts->be, report.slab);
    if (found && status == KG_OK && opts->row && out->len == 0)
        return kg_fail(err, KG_ENOTFOUND,
                       "--row: expected part of a row's name, found "
                       "'%s', which no row of %s has (without --row all are printed)",
                       opts->row, name ? name : "any benchmark");
    return found ? status
                 : kg_str_unknown(KG_ENOTFOUND, NULL, name, rows,
                                  sizeof rows / sizeof *rows - 1, sizeof *rows, err);
}
