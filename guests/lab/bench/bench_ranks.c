/* Exchanges among ranks: every rank sends the same number of bytes to every other, as a
 * gradient's shards go to their owners. All begin together, after an agreement, and an
 * exchange lasts as long as on its slowest rank. seconds = alpha + beta x bytes is fitted
 * so that every size counts by its relative error. Received bytes are compared with sent
 * ones outside of the measured time. */
#include "lab/bench/lab_bench.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/sort.h"
#include "ranks/nccl.h"

#include <math.h>
#include <stdio.h>

enum { SIZES = 6, REPEATS = 9, WORD = 8 };
/* bytes that a rank sends to all others together, at least a word to each */
static const size_t sizes[SIZES] = {1 << 6,  1 << 10, 1 << 14,
                                    1 << 18, 1 << 22, KG_BENCH_EXCHANGE};

/* Sent and received, in words of WORD bytes. */
struct mail {
    struct kg_ranks *ranks;
    const struct kg_backend *gpu; /* exchanges its memory; NULL: host memory */
    uint64_t *out;                /* (most) */
    uint64_t *in;                 /* (ranks, most) */
    uint64_t *sent, *came;        /* out and in, or their copies on the GPU */
    struct kg_ranks_part *parts;  /* (2, ranks): out and in */
    double *seconds;              /* (ranks) */
    size_t most;                  /* words to each rank at the largest size */
    int n_sizes;
};

static size_t words_to_each(const struct kg_ranks *r, size_t sent)
{
    size_t words = sent / WORD / (size_t)(r->n - 1);

    return words > 0 ? words : 1;
}

static uint64_t word_of(int rank, size_t words, size_t i)
{
    return ((uint64_t)rank << 48 ^ words << 24 ^ i) * 0x9e3779b97f4a7c15u;
}

static kg_status take_gpu(struct mail *m, struct kg_err *err)
{
    const uint64_t bytes = m->most * WORD;

    m->sent = m->out;
    m->came = m->in;
    if (!m->gpu)
        return KG_OK;
    m->came = NULL;
    m->sent = kg_buf_alloc(m->gpu, bytes, "bench ranks", err);
    if (m->sent)
        m->came = kg_buf_alloc(m->gpu, (uint64_t)m->ranks->n * bytes, "bench ranks", err);
    return m->came ? KG_OK : err->code;
}

static kg_status open_mail(struct mail *m, struct kg_ranks *r,
                           const struct kg_backend *gpu, size_t most, struct kg_err *err)
{
    size_t n = (size_t)r->n;

    *m = (struct mail){.ranks = r, .gpu = gpu};
    while (m->n_sizes < SIZES && sizes[m->n_sizes] <= most)
        m->n_sizes++;
    m->most = words_to_each(r, sizes[m->n_sizes - 1]);
    m->out = kg_mem_calloc(m->most, WORD, "bench ranks", err);
    if (m->out)
        m->in = kg_mem_calloc(n * m->most, WORD, "bench ranks", err);
    if (m->in)
        m->parts = kg_mem_calloc(2 * n, sizeof *m->parts, "bench ranks", err);
    if (m->parts)
        m->seconds = kg_mem_calloc(n, sizeof *m->seconds, "bench ranks", err);
    return m->seconds ? take_gpu(m, err) : err->code;
}

static kg_status address(struct mail *m, size_t words, struct kg_err *err)
{
    const struct kg_ranks *r = m->ranks;

    for (size_t i = 0; i < words; i++)
        m->out[i] = word_of(r->me, words, i);
    for (int p = 0; p < r->n; p++) {
        size_t n = p == r->me ? 0 : words * WORD;

        m->parts[p] = (struct kg_ranks_part){m->sent, n};
        m->parts[r->n + p] = (struct kg_ranks_part){m->came + (size_t)p * m->most, n};
    }
    return m->gpu ? kg_buf_put(m->gpu, m->sent, m->out, words * WORD, err) : KG_OK;
}

static kg_status check_mail(const struct mail *m, size_t words, struct kg_err *err)
{
    if (m->gpu)
        KG_TRY(kg_buf_get(m->gpu, m->in, m->came, (uint64_t)m->ranks->n * m->most * WORD,
                          err));
    for (int p = 0; p < m->ranks->n; p++)
        for (size_t i = 0; i < words && p != m->ranks->me; i++)
            if (m->in[(size_t)p * m->most + i] != word_of(p, words, i))
                return kg_fail(err, KG_ECONFLICT,
                               "ranks: expected the %zu bytes that rank %d sent, found a "
                               "difference at byte %zu",
                               words * WORD, p, i * WORD);
    return KG_OK;
}

/* *seconds: of the slowest rank */
static kg_status one_exchange(double *seconds, struct mail *m, struct kg_err *err)
{
    struct kg_ranks *r = m->ranks;

    KG_TRY(kg_ranks_agree(r, KG_OK, "bench ranks: begin", err));
    double begin = kg_clock_seconds();
    KG_TRY((m->gpu ? kg_ranks_nccl_exchange : kg_ranks_exchange)(
        r, m->parts, m->parts + r->n, "bench ranks", err));
    m->seconds[r->me] = kg_clock_seconds() - begin;
    KG_TRY(kg_ranks_gather_equal(r, m->seconds, sizeof *m->seconds, "bench ranks", err));
    kg_sort_doubles(m->seconds, (size_t)r->n);
    *seconds = m->seconds[r->n - 1];
    return KG_OK;
}

/* t: exchanges of `words` words to each rank, after one that is not timed */
static kg_status time_size(struct kg_bench_timing *t, struct mail *m, size_t words,
                           struct kg_err *err)
{
    double unused;

    *t = (struct kg_bench_timing){.n = REPEATS};
    KG_TRY(kg_ranks_agree(m->ranks, address(m, words, err), "bench ranks", err));
    KG_TRY(one_exchange(&unused, m, err));
    for (int i = 0; i < REPEATS; i++)
        KG_TRY(one_exchange(&t->seconds[i], m, err));
    return kg_ranks_agree(m->ranks, check_mail(m, words, err), "bench ranks", err);
}

/* ---- the report ---- */

struct kg_bench_line kg_bench_fit(const double *bytes, const double *seconds, int n)
{
    /* least squares of (alpha + beta x - t) / t */
    double w = 0, wx = 0, wxx = 0, wt = 0, wxt = 0;
    struct kg_bench_line line = {0};

    for (int i = 0; i < n; i++) {
        double x = bytes[i], t = seconds[i], weight = 1 / (t * t);

        w += weight;
        wx += weight * x;
        wxx += weight * x * x;
        wt += weight * t;
        wxt += weight * x * t;
    }
    line.beta = (w * wxt - wx * wt) / (w * wxx - wx * wx);
    line.alpha = (wt - line.beta * wx) / w;
    for (int i = 0; i < n; i++)
        line.worst = fmax(line.worst,
                          fabs((line.alpha + line.beta * bytes[i]) / seconds[i] - 1));
    return line;
}

static kg_status put_size(struct kg_bench_report *r, int ranks, size_t bytes,
                          const struct kg_bench_timing *t, struct kg_err *err)
{
    return kg_str_printf(r->out, err,
                         r->json ? "{\"name\": \"exchange\", \"ranks\": %d, \"bytes\": "
                                   "%zu, \"best\": %.4g, \"median\": %.4g, \"unit\": "
                                   "\"s\"}\n"
                                 : "exchange of %d ranks, each sends %11zu bytes:  best "
                                   "%9.3g s  median %9.3g s\n",
                         ranks, bytes, kg_bench_best(t), kg_bench_median(t));
}

static kg_status put_line(struct kg_bench_report *r, const struct mail *m,
                          const struct kg_bench_line *line, struct kg_err *err)
{
    const struct kg_ranks *ranks = m->ranks;
    char over[8 + KG_NCCL_VERSION];

    snprintf(over, sizeof over, m->gpu ? "nccl %s" : "%s",
             m->gpu ? kg_ranks_nccl_version(ranks) : ranks->transport->name);
    return kg_str_printf(r->out, err,
                         r->json ? "{\"name\": \"exchange: alpha + beta x bytes\", "
                                   "\"ranks\": %d, \"over\": \"%s\", \"alpha\": %.4g, "
                                   "\"beta\": %.4g, \"worst\": %.3g}\n"
                                 : "%d ranks over %s: alpha %.3g s, beta %.3g s a byte, "
                                   "every size within %.0f %% of alpha + beta x bytes\n",
                         ranks->n, over, line->alpha, line->beta,
                         r->json ? line->worst : 100 * line->worst);
}

static kg_status all_sizes(struct kg_bench_report *r, struct mail *m, struct kg_err *err)
{
    double bytes[SIZES] = {0}, seconds[SIZES] = {0};

    for (int i = 0; i < m->n_sizes; i++) {
        size_t words = words_to_each(m->ranks, sizes[i]);
        size_t sent = words * WORD * (size_t)(m->ranks->n - 1);
        struct kg_bench_timing t;

        KG_TRY(time_size(&t, m, words, err));
        KG_TRY(kg_ranks_agree(m->ranks, put_size(r, m->ranks->n, sent, &t, err),
                              "bench ranks", err));
        bytes[i] = (double)sent;
        seconds[i] = kg_bench_best(&t);
    }
    struct kg_bench_line line = kg_bench_fit(bytes, seconds, m->n_sizes);
    return kg_ranks_agree(m->ranks, put_line(r, m, &line, err), "bench ranks", err);
}

kg_status kg_bench_ranks(struct kg_str *out, struct kg_ranks *ranks,
                         const struct kg_backend *gpu, size_t most, bool json,
                         struct kg_err *err)
{
    struct kg_bench_report report = {.out = out, .json = json};
    struct mail m;
    kg_status status;

    if (ranks->n < 2)
        return kg_fail(err, KG_EINVAL,
                       "ranks: expected at least 2 processes (--ranks 2, or "
                       "mpirun -n 2 ./kedge bench ranks), found 1");
    status = kg_ranks_agree(ranks, open_mail(&m, ranks, gpu, most, err), "bench ranks",
                            err);
    if (status == KG_OK)
        status = all_sizes(&report, &m, err);
    if (m.gpu) {
        kg_buf_free(m.gpu, m.sent);
        kg_buf_free(m.gpu, m.came);
    }
    kg_mem_free(m.out);
    kg_mem_free(m.in);
    kg_mem_free(m.parts);
    kg_mem_free(m.seconds);
    return status;
}
