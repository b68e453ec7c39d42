/* Searching vectors: the products of a pass over 100,000 passages of 384 numbers, for one
 * query and for 64, compared with the ceiling that bounds them.
 *
 * Memory bounds one query, multiply-adds bound 64. The time is that of a whole pass with
 * the selection of each query's best passages; `encode` measures the vector of a query.
 * A pass over int8 is measured without the scales, bounds and candidates of
 * dense/dense.c. On a device, queries are copied to it and scores back to the host in
 * blocks, as in dense/dense_device.c.
 */
#include "retriever/bench/retriever_bench.h"

#include "base/clock.h"
#include "base/half.h"
#include "base/mem.h"
#include "search/rank.h"
#include "tensor/codes.h"

#include <stdio.h>
#include <string.h>

enum {
    PASSAGES = 100000,
    NUMBERS = 384,
    QUESTIONS = 64,
    TOPK = 3,
    BLOCK = 4096,     /* passages of one call, as in dense/dense.c */
    SCORES = 1 << 20, /* of one call, as in dense/dense_device.c */
    REPEATS = 8
};
static const double ONE_SECONDS = 0.010; /* target for one query */

struct pass {
    const struct kg_backend *be;
    int64_t passages;
    int repeats;
    int64_t n;             /* queries */
    struct kg_codes codes; /* in the backend's memory, as are the next two */
    float *questions;      /* (QUESTIONS, NUMBERS) */
    float *scores;         /* (SCORES) */
    float *asked;          /* (QUESTIONS, NUMBERS) in host memory */
    float *down; /* (SCORES) in host memory; NULL: the host reads `scores` itself */
    struct kg_candidate best[QUESTIONS][TOPK];
    size_t kept[QUESTIONS];
};

static void keep(struct pass *p, struct kg_mat of, int64_t first)
{
#pragma omp parallel for schedule(dynamic) if (of.rows > 1)
    for (int64_t q = 0; q < of.rows; q++) {
        const float *scores = (const float *)of.data + q * of.stride;
        struct kg_candidate *best = p->best[q];

        for (int64_t i = 0; i < of.cols; i++)
            if (p->kept[q] < TOPK || (double)scores[i] > best[TOPK - 1].score)
                kg_rank_keep(best, &p->kept[q], TOPK, (double)scores[i], first + i + 1);
    }
}

static kg_status put_questions(const struct pass *p, struct kg_err *err)
{
    return kg_buf_put(p->be, p->questions, p->asked,
                      (uint64_t)p->n * NUMBERS * sizeof(float), err);
}

static kg_status run_block(struct pass *p, int64_t first, int64_t n, struct kg_err *err)
{
    const struct kg_codes part = kg_codes_rows(&p->codes, first, n);
    struct kg_mat scores = kg_mat(p->scores, KG_F32, p->n, n);

    scores.stride = (n + KG_PANEL - 1) / KG_PANEL * KG_PANEL;
    if (p->down)
        KG_TRY(put_questions(p, err));
    KG_TRY(kg_op_scan(p->be, scores, kg_mat(p->questions, KG_F32, p->n, NUMBERS), &part,
                      err));
    if (p->down) {
        KG_TRY(kg_buf_get(p->be, p->down, p->scores,
                          (uint64_t)(p->n * scores.stride) * sizeof(float), err));
        scores.data = p->down;
    }
    keep(p, scores, first);
    return KG_OK;
}

/* *seconds: of one pass */
static kg_status run(double *seconds, void *user, struct kg_err *err)
{
    struct pass *p = user;
    const int64_t most = p->down ? SCORES / p->n / KG_PANEL * KG_PANEL : BLOCK;
    const double start = kg_clock_seconds();

    memset(p->kept, 0, sizeof p->kept);
    for (int64_t first = 0; first < p->passages; first += most) {
        const int64_t left = p->passages - first;

        KG_TRY(run_block(p, first, left < most ? left : most, err));
    }
    *seconds = kg_clock_seconds() - start;
    return KG_OK;
}

/* Numbers of every size below 1, as vectors have them. */
static void draw(const struct kg_codes *to, uint32_t *state)
{
    uint16_t halves[NUMBERS];
    int8_t bytes[NUMBERS];
    uint32_t seed = *state;

    for (int64_t r = 0; r < to->rows; r++) {
        for (int d = 0; d < NUMBERS; d++) {
            seed = seed * 1664525u + 1013904223u;
            bytes[d] = (int8_t)((int)(seed >> 24) - 128);
            halves[d] = kg_half_of((float)bytes[d] * 0x1p-11f);
        }
        kg_codes_put(to, r, to->code == KG_CODE_F16 ? (void *)halves : (void *)bytes);
    }
    *state = seed;
}

/* Fills the vectors in blocks, through host memory. */
static kg_status fill(struct pass *p, struct kg_err *err)
{
    struct kg_codes block = {.code = p->codes.code, .cols = NUMBERS};
    uint32_t seed = 1;
    kg_status status = KG_OK;

    KG_TRY(kg_mem_new(&block.data, 1, kg_codes_bytes(block.code, BLOCK, NUMBERS),
                      "vectors", err));
    for (int64_t first = 0; first < p->passages && status == KG_OK; first += BLOCK) {
        const int64_t left = p->passages - first;

        block.rows = left < BLOCK ? left : BLOCK;
        draw(&block, &seed);
        status = kg_buf_put(p->be, kg_codes_rows(&p->codes, first, block.rows).data,
                            block.data, kg_codes_bytes(block.code, block.rows, NUMBERS),
                            err);
    }
    kg_mem_free(block.data);
    for (int64_t i = 0; i < (int64_t)QUESTIONS * NUMBERS; i++) {
        seed = seed * 1664525u + 1013904223u;
        p->asked[i] = (float)(int32_t)seed * 0x1p-35f;
    }
    return status;
}

static kg_status take(struct pass *p, enum kg_code code, struct kg_err *err)
{
    const size_t asked = (size_t)QUESTIONS * NUMBERS;

    p->codes = (struct kg_codes){.code = code, .rows = p->passages, .cols = NUMBERS};
    p->codes.data = kg_buf_alloc(p->be, kg_codes_bytes(code, p->passages, NUMBERS),
                                 "vectors", err);
    if (!p->codes.data)
        return KG_ENOMEM;
    p->questions = kg_buf_alloc(p->be, (asked + SCORES) * sizeof *p->questions,
                                "questions", err);
    if (!p->questions)
        return KG_ENOMEM;
    p->scores = p->questions + asked;
    KG_TRY(kg_mem_new(&p->asked, asked, sizeof *p->asked, "questions", err));
    if (!p->be->host_memory)
        p->down = kg_buf_pin(p->be, SCORES * sizeof *p->down, "scores", err);
    if (!p->be->host_memory && !p->down)
        return KG_ENOMEM;
    KG_TRY(fill(p, err));
    p->n = QUESTIONS;
    return put_questions(p, err);
}

static kg_status bench_one(struct kg_bench_report *r, struct pass *p, const char *code,
                           struct kg_err *err)
{
    const struct kg_bench_job job = {.run = run,
                                     .user = p,
                                     .repeats = p->repeats,
                                     .warm = true,
                                     .ceiling = KG_BENCH_MEMORY};
    const double bytes = (double)kg_codes_bytes(p->codes.code, p->passages, NUMBERS);
    char name[80], limit[96];
    struct kg_bench_rate rate = {.name = name, .work = bytes, .unit = "GB/s"};
    struct kg_bench_share share = {.name = limit,
                                   .whole = ONE_SECONDS * 1e3,
                                   .unit = "ms",
                                   .of = "the target",
                                   .bar = {.limit = 1, .at_most = true}};
    struct kg_bench_timing t;

    snprintf(name, sizeof name, "search, 1 question, %lld x %d %s",
             (long long)p->passages, (int)NUMBERS, code);
    snprintf(limit, sizeof limit, "%s, time", name);
    p->n = 1;
    KG_TRY(kg_bench_time(&t, r, &job, err));
    KG_TRY(kg_bench_put_rate(r, &rate, &t, err));
    share.part = kg_bench_best(&t) * 1e3;
    return kg_bench_put_share(r, &share, err);
}

static kg_status bench_many(struct kg_bench_report *r, struct pass *p, const char *code,
                            struct kg_err *err)
{
    const struct kg_bench_job job = {.run = run,
                                     .user = p,
                                     .repeats = p->repeats,
                                     .warm = true,
                                     .ceiling = kg_bench_compute(r, true)};
    char name[80];
    const struct kg_bench_rate rate = {.name = name,
                                       .work = 2.0 * QUESTIONS * (double)p->passages *
                                               NUMBERS,
                                       .unit = "GFLOP/s",
                                       .bar = {.limit = 0.5, .at_most = false}};
    struct kg_bench_timing t;

    snprintf(name, sizeof name, "search, 64 questions, %lld x %d %s",
             (long long)p->passages, (int)NUMBERS, code);
    p->n = QUESTIONS;
    KG_TRY(kg_bench_time(&t, r, &job, err));
    return kg_bench_put_rate(r, &rate, &t, err);
}

kg_status kg_bench_search_of(struct kg_bench_report *r, int64_t passages, int repeats,
                             struct kg_err *err)
{
    static const char *const names[KG_CODES] = {"fp16", "int8"};
    kg_status status = KG_OK;

    for (int code = 0; code < KG_CODES && status == KG_OK; code++) {
        struct pass p = {.be = r->be, .passages = passages, .repeats = repeats};

        status = take(&p, (enum kg_code)code, err);
        if (status == KG_OK)
            status = bench_one(r, &p, names[code], err);
        if (status == KG_OK)
            status = bench_many(r, &p, names[code], err);
        kg_buf_unpin(p.be, p.down);
        kg_mem_free(p.asked);
        kg_buf_free(p.be, p.questions);
        kg_buf_free(p.be, p.codes.data);
    }
    return status;
}

kg_status kg_bench_search(struct kg_bench_report *r, struct kg_err *err)
{
    return kg_bench_search_of(r, PASSAGES, REPEATS, err);
}
