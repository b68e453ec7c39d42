/* Searching vectors: the products of a pass over 100,000 passages of 384 numbers, for one
 * question and for 64, beside what bounds them.
 *
 * One question waits for memory, 64 for multiply-adds. The time has all of a pass in it,
 * the best passages of each question too; making a question's vector is `encode`'s. Of a
 * pass over bytes only the products are measured, and the best of these: not the scales,
 * bounds and candidates of search/dense.c.
 */
#include "bench/bench_internal.h"

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
    BLOCK = 4096, /* passages of one call, as in search/dense.c */
    REPEATS = 8
};
static const double ONE_SECONDS = 0.010; /* asked of one question */

struct pass {
    const struct kg_backend *be;
    int64_t passages;
    int repeats;
    struct kg_codes codes;
    struct kg_mat questions; /* (QUESTIONS, NUMBERS) */
    struct kg_mat scores;    /* (QUESTIONS, BLOCK) */
    struct kg_candidate best[QUESTIONS][TOPK];
    size_t kept[QUESTIONS];
};

static void keep(struct pass *p, int64_t first)
{
#pragma omp parallel for schedule(dynamic) if (p->scores.rows > 1)
    for (int64_t q = 0; q < p->scores.rows; q++) {
        const float *scores = (const float *)p->scores.data + q * p->scores.stride;
        struct kg_candidate *best = p->best[q];

        for (int64_t i = 0; i < p->scores.cols; i++)
            if (p->kept[q] < TOPK || (double)scores[i] > best[TOPK - 1].score)
                kg_rank_keep(best, &p->kept[q], TOPK, (double)scores[i], first + i + 1);
    }
}

/* *seconds of a pass. */
static kg_status run(double *seconds, void *user, struct kg_err *err)
{
    struct pass *p = user;
    const double start = kg_clock_seconds();

    memset(p->kept, 0, sizeof p->kept);
    for (int64_t first = 0; first < p->passages; first += BLOCK) {
        const int64_t left = p->passages - first, n = left < BLOCK ? left : BLOCK;
        const struct kg_codes part = kg_codes_rows(&p->codes, first, n);

        p->scores.rows = p->questions.rows;
        p->scores.cols = n;
        KG_TRY(kg_op_scan(p->be, p->scores, p->questions, &part, err));
        keep(p, first);
    }
    *seconds = kg_clock_seconds() - start;
    return KG_OK;
}

/* Numbers of every size below 1, as vectors have them. */
static void fill(struct pass *p)
{
    uint16_t halves[NUMBERS];
    int8_t bytes[NUMBERS];
    uint32_t seed = 1;

    for (int64_t r = 0; r < p->passages; r++) {
        for (int d = 0; d < NUMBERS; d++) {
            seed = seed * 1664525u + 1013904223u;
            bytes[d] = (int8_t)((int)(seed >> 24) - 128);
            halves[d] = kg_half_of((float)bytes[d] * 0x1p-11f);
        }
        kg_codes_put(&p->codes, r,
                     p->codes.code == KG_CODE_F16 ? (void *)halves : (void *)bytes);
    }
    for (int64_t i = 0; i < (int64_t)QUESTIONS * NUMBERS; i++) {
        seed = seed * 1664525u + 1013904223u;
        ((float *)p->questions.data)[i] = (float)(int32_t)seed * 0x1p-35f;
    }
}

static kg_status take(struct pass *p, enum kg_code code, struct kg_err *err)
{
    float *floats;

    p->codes = (struct kg_codes){.code = code, .rows = p->passages, .cols = NUMBERS};
    p->codes.data = kg_mem_calloc(1, kg_codes_bytes(code, p->passages, NUMBERS),
                                  "vectors", err);
    if (!p->codes.data)
        return KG_ENOMEM;
    floats = kg_mem_calloc((size_t)QUESTIONS * (NUMBERS + BLOCK), sizeof *floats,
                           "questions", err);
    if (!floats)
        return KG_ENOMEM;
    p->questions = kg_mat(floats, KG_F32, QUESTIONS, NUMBERS);
    p->scores = kg_mat(floats + (size_t)QUESTIONS * NUMBERS, KG_F32, QUESTIONS, BLOCK);
    fill(p);
    return KG_OK;
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
                                   .of = "what is asked",
                                   .bar = {.limit = 1, .at_most = true}};
    struct kg_bench_timing t;

    snprintf(name, sizeof name, "search, 1 question, %lld x %d %s",
             (long long)p->passages, (int)NUMBERS, code);
    snprintf(limit, sizeof limit, "%s, time", name);
    p->questions.rows = 1;
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
                                     .ceiling = KG_BENCH_GEMM_FP32};
    char name[80];
    const struct kg_bench_rate rate = {.name = name,
                                       .work = 2.0 * QUESTIONS * (double)p->passages *
                                               NUMBERS,
                                       .unit = "GFLOP/s",
                                       .bar = {.limit = 0.5, .at_most = false}};
    struct kg_bench_timing t;

    snprintf(name, sizeof name, "search, 64 questions, %lld x %d %s",
             (long long)p->passages, (int)NUMBERS, code);
    p->questions.rows = QUESTIONS;
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
        kg_mem_free(p.questions.data);
        kg_mem_free(p.codes.data);
    }
    return status;
}

kg_status kg_bench_search(struct kg_bench_report *r, struct kg_err *err)
{
    return kg_bench_search_of(r, PASSAGES, REPEATS, err);
}
