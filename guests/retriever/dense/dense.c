/* Searches the vectors of an index: see dense.h. A pass over fp16 keeps the best
 * products. A pass over int8 knows a lower and an upper bound of each product
 * (dense_open.c). It keeps the candidates whose upper bound is at least the depth-th
 * largest lower bound, and computes those again from the fp16 of the file. So the result
 * has the bits of fp16; int8 saves memory and traffic and costs some reads of the file.
 */
#include "retriever/dense/dense_internal.h"

#include "base/columns.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { AGAIN = 64 }; /* products recomputed in one call */

/* Passages that may be among the best of a query, in a pass over int8. */
struct possible {
    struct kg_candidate *at; /* (n) owned: row, and upper bound of its score */
    size_t n, capacity;
};

struct kg_seeker {
    const struct kg_dense *d;
    struct kg_embedder *embedder; /* NULL: the device's */
    sqlite3_stmt *get;            /* a row of vectors; NULL: passes are over fp16 */
    struct kg_block memory;
    float *queries;         /* (KG_DENSE_QUERIES, D) */
    float *host_scores;     /* (KG_DENSE_QUERIES, KG_DENSE_BLOCK); NULL with a device */
    float *pinned;          /* (KG_DENSE_SCORES) owned; NULL without a device */
    struct kg_mat scores;   /* (Q, passages) of a block, in one of these two */
    struct kg_codes halves; /* (AGAIN, D) */
    uint16_t *halves_data;  /* data of halves */

    struct kg_candidate *best; /* (KG_DENSE_QUERIES, depth) owned */
    size_t capacity;           /* of best */
    size_t depth;
    size_t kept[KG_DENSE_QUERIES];

    /* only over int8, where `best` has lower bounds of scores */
    float length[KG_DENSE_QUERIES]; /* |q| */
    struct possible possible[KG_DENSE_QUERIES];

    /* the pass */
    struct kg_str texts; /* its queries, concatenated */
    size_t ends[KG_DENSE_QUERIES];
    size_t n, next;
};

enum { QUERIES, SCORES, HALVES, COUNTS };
static const struct kg_column columns[] = {
    KG_COLUMN(struct kg_seeker, queries, QUERIES),
    KG_COLUMN(struct kg_seeker, host_scores, SCORES),
    KG_COLUMN(struct kg_seeker, halves_data, HALVES),
    {0},
};

static kg_status take_memory(struct kg_seeker *k, struct kg_err *err)
{
    const int32_t D = k->d->dim;
    const bool bytes = k->d->codes.code == KG_CODE_I8;
    const bool far = k->d->device;
    const size_t scores = (size_t)KG_DENSE_QUERIES * KG_DENSE_BLOCK;
    const size_t counts[COUNTS] = {(size_t)KG_DENSE_QUERIES * (size_t)D,
                                   far ? KG_COLUMN_ABSENT : scores,
                                   bytes ? (size_t)AGAIN * (size_t)D : KG_COLUMN_ABSENT};

    KG_TRY(kg_columns_take(&k->memory, k, columns, counts, "a block of scores", err));
    k->halves = (struct kg_codes){k->halves_data, KG_CODE_F16, AGAIN, D};
    if (far)
        k->pinned = kg_dense_device_pin(k->d->device, err);
    return far && !k->pinned ? KG_ENOMEM : KG_OK;
}

kg_status kg_seeker_open(struct kg_seeker **k, const struct kg_dense *d, sqlite3 *db,
                         struct kg_err *err)
{
    struct kg_seeker *fresh = kg_mem_calloc(1, sizeof *fresh, "seeker", err);
    kg_status status;

    *k = NULL;
    if (!fresh)
        return KG_ENOMEM;
    fresh->d = d;
    KG_TRY_GOTO(out, take_memory(fresh, err));
    if (d->codes.code == KG_CODE_I8)
        KG_TRY_GOTO(out,
                    kg_sql_prepare(&fresh->get, db, d->path,
                                   "SELECT halves FROM vector WHERE chunk = ?1", err));
    status = d->device ? KG_OK : kg_embedder_open(&fresh->embedder, d->encoder, err);
out:
    if (status != KG_OK) {
        kg_seeker_close(fresh);
        return status;
    }
    *k = fresh;
    return KG_OK;
}

void kg_seeker_close(struct kg_seeker *k)
{
    if (!k)
        return;
    kg_embedder_close(k->embedder);
    sqlite3_finalize(k->get);
    if (k->d->device)
        kg_dense_device_unpin(k->d->device, k->pinned);
    kg_columns_free(&k->memory, k, columns);
    for (size_t i = 0; i < KG_DENSE_QUERIES; i++)
        kg_mem_free(k->possible[i].at);
    kg_mem_free(k->best);
    kg_str_release(&k->texts);
    kg_mem_free(k);
}

/* ---- selecting from a block of scores ---- */
/* The score below which a passage is not kept. */
static float least_of(const struct kg_seeker *k, size_t q)
{
    return k->kept[q] < k->depth ? -INFINITY
                                 : (float)k->best[(q + 1) * k->depth - 1].score;
}

static const float *scores_of(const struct kg_seeker *k, size_t q)
{
    return (const float *)k->scores.data + (int64_t)q * k->scores.stride;
}

static void keep_best(struct kg_seeker *k, size_t q, int64_t first, int64_t n)
{
    const float *scores = scores_of(k, q);
    float least = least_of(k, q);

    for (int64_t j = 0; j < n; j++) {
        if (scores[j] <= least && k->kept[q] == k->depth)
            continue; /* ties: the earlier passage stays */
        kg_rank_keep(k->best + q * k->depth, &k->kept[q], k->depth, (double)scores[j],
                     first + j + 1);
        least = least_of(k, q);
    }
}

/* Drops passages whose upper bound is below `least`. */
static void drop(struct possible *p, double least)
{
    size_t n = 0;

    for (size_t i = 0; i < p->n; i++)
        if (p->at[i].score >= least)
            p->at[n++] = p->at[i];
    p->n = n;
}

static kg_status make_room(struct kg_seeker *k, size_t q, struct kg_err *err)
{
    struct possible *p = &k->possible[q];

    if (p->n < p->capacity)
        return KG_OK;
    drop(p, (double)least_of(k, q));
    return kg_mem_grow(&p->at, &p->capacity, p->n + p->n / 2 + 1, sizeof *p->at,
                       (size_t)k->d->n * 2, "vectors to look at again", err);
}

static kg_status keep_possible(struct kg_seeker *k, size_t q, int64_t first, int64_t n,
                               struct kg_err *err)
{
    const float *scores = scores_of(k, q), length = k->length[q];
    const float *scale = k->d->scale + first, *bound = k->d->bound + first;
    struct possible *p = &k->possible[q];
    float least = least_of(k, q);

    for (int64_t j = 0; j < n; j++) {
        const float score = scale[j] * scores[j], off = length * bound[j];

        if (score + off < least)
            continue;
        KG_TRY(make_room(k, q, err));
        p->at[p->n++] = (struct kg_candidate){(double)(score + off), first + j + 1};
        kg_rank_keep(k->best + q * k->depth, &k->kept[q], k->depth, (double)(score - off),
                     first + j + 1);
        least = least_of(k, q);
    }
    return KG_OK;
}

/* k->scores: products of passages [first, first + n) and all queries */
static kg_status multiply(struct kg_seeker *k, int64_t first, int64_t n,
                          struct kg_err *err)
{
    const struct kg_dense *d = k->d;
    const struct kg_mat queries = kg_mat(k->queries, KG_F32, (int64_t)k->n, d->dim);
    float *at = d->device ? k->pinned : k->host_scores;

    k->scores = kg_mat(at, KG_F32, queries.rows, n);
    k->scores.stride = (n + KG_PANEL - 1) / KG_PANEL * KG_PANEL;
    if (d->device)
        return kg_dense_device_scan(k->scores, d->device, queries, first, err);
    struct kg_codes part = kg_codes_rows(&d->codes, first, n);
    return kg_op_scan(d->host, k->scores, queries, &part, err);
}

/* Scores passages [first, first + n) for all queries. Each query has one thread. */
static kg_status score_block(struct kg_seeker *k, int64_t first, int64_t n,
                             struct kg_err *err)
{
    const int64_t Q = (int64_t)k->n;
    kg_status status = KG_OK;

    KG_TRY(multiply(k, first, n, err));
#pragma omp parallel for schedule(dynamic) if (Q > 1)
    for (int64_t q = 0; q < Q; q++) {
        struct kg_err mine;

        if (k->d->codes.code == KG_CODE_F16) {
            keep_best(k, (size_t)q, first, n);
        } else if (keep_possible(k, (size_t)q, first, n, &mine) != KG_OK) {
#pragma omp critical(kg_dense_failed)
            {
                *err = mine;
                status = mine.code;
            }
        }
    }
    return status;
}

/* ---- recomputed products ---- */
/* Steps k->get to the row of the table that contains passage `row` (0-based). */
static kg_status step_to(struct kg_seeker *k, int64_t row, struct kg_err *err)
{
    sqlite3_reset(k->get);
    sqlite3_bind_int64(k->get, 1, row / KG_DENSE_ROWS);
    int code = sqlite3_step(k->get);
    if (code == SQLITE_ROW)
        return KG_OK;
    if (code != SQLITE_DONE)
        return kg_sql_fail(err, sqlite3_db_handle(k->get), code, k->d->path,
                           "read vectors");
    return kg_fail(err, KG_EFORMAT, "%s: expected the vector of passage %lld, found none",
                   k->d->path, (long long)row + 1);
}

/* k->halves: the vectors of n passages. A row of the table is read once for consecutive
 * passages in it. */
static kg_status read_again(struct kg_seeker *k, const struct kg_candidate *at, int64_t n,
                            struct kg_err *err)
{
    const uint16_t *halves = NULL;
    int64_t chunk = -1, rows = 0;

    for (int64_t i = 0; i < n; i++) {
        const int64_t row = at[i].row - 1;

        if (row / KG_DENSE_ROWS != chunk) {
            chunk = row / KG_DENSE_ROWS;
            KG_TRY(step_to(k, row, err));
            KG_TRY(kg_dense_chunk(&halves, &rows, k->d, k->get, err));
        }
        if (row % KG_DENSE_ROWS >= rows)
            return kg_fail(err, KG_EFORMAT,
                           "%s: expected the vector of passage %lld, found only %lld "
                           "vectors in its block",
                           k->d->path, (long long)row + 1, (long long)rows);
        kg_codes_put(&k->halves, i, halves + row % KG_DENSE_ROWS * k->d->dim);
    }
    return KG_OK;
}

/* The best passages of query q: ranks the possible ones by their products in fp16. */
static kg_status rank_again(struct kg_seeker *k, size_t q, struct kg_err *err)
{
    struct possible *p = &k->possible[q];
    const struct kg_mat query = kg_mat(k->queries + q * (size_t)k->d->dim, KG_F32, 1,
                                       k->d->dim);

    drop(p, (double)least_of(k, q));
    k->kept[q] = 0;
    for (size_t at = 0; at < p->n; at += AGAIN) {
        const int64_t n = p->n - at < AGAIN ? (int64_t)(p->n - at) : AGAIN;
        const struct kg_codes part = kg_codes_rows(&k->halves, 0, n);
        _Alignas(64) float scores[AGAIN];
        struct kg_mat out = kg_mat(scores, KG_F32, 1, n);

        out.stride = AGAIN;
        KG_TRY(read_again(k, p->at + at, n, err));
        KG_TRY(kg_op_scan(k->d->host, out, query, &part, err));
        for (int64_t i = 0; i < n; i++)
            kg_rank_keep(k->best + q * k->depth, &k->kept[q], k->depth, (double)scores[i],
                         p->at[at + (size_t)i].row);
    }
    return KG_OK;
}

static kg_status rank_all_again(struct kg_seeker *k, struct kg_err *err)
{
    kg_status status = KG_OK;

    for (size_t q = 0; q < k->n && status == KG_OK; q++)
        status = rank_again(k, q, err);
    sqlite3_reset(k->get);
    return status;
}

/* ---- a pass ---- */
static float length_rounded_up(const float *x, int32_t n)
{
    double squares = 0;

    for (int32_t i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    return (float)(sqrt(squares) * (1 + 0x1p-22));
}

static kg_status take_queries(struct kg_seeker *k, const struct kg_text *queries,
                              size_t n, size_t depth, struct kg_err *err)
{
    const int32_t D = k->d->dim;

    k->n = k->next = 0;
    k->depth = depth;
    memset(k->kept, 0, sizeof k->kept);
    kg_str_clear(&k->texts);
    KG_TRY(kg_mem_grow(&k->best, &k->capacity, KG_DENSE_QUERIES * depth, sizeof *k->best,
                       (size_t)KG_DENSE_QUERIES * KG_INDEX_TOPK_MAX, "hits", err));
    for (size_t i = 0; i < n; i++) {
        KG_TRY(kg_str_append(&k->texts, queries[i].bytes, queries[i].n, err));
        k->ends[i] = k->texts.len;
    }
    KG_TRY(k->embedder
               ? kg_embed(k->queries, k->embedder, queries, n, KG_TEXT_QUERY, err)
               : kg_dense_device_embed(k->queries, k->d->device, queries, n, err));
    for (size_t i = 0; i < n; i++) {
        k->length[i] = length_rounded_up(k->queries + i * (size_t)D, D);
        k->possible[i].n = 0;
    }
    return KG_OK;
}

static kg_status run_pass(struct kg_seeker *k, struct kg_err *err)
{
    const struct kg_dense *d = k->d;
    const int64_t Q = k->n > 0 ? (int64_t)k->n : 1;
    const int64_t most = d->device ? kg_dense_device_passages(d->device, Q)
                                   : KG_DENSE_BLOCK;

    for (int64_t first = 0; first < d->n; first += most) {
        const int64_t left = d->n - first;

        KG_TRY(score_block(k, first, left < most ? left : most, err));
    }
    return k->get ? rank_all_again(k, err) : KG_OK;
}

kg_status kg_seeker_ahead(struct kg_seeker *k, const struct kg_text *queries, size_t n,
                          size_t depth, struct kg_err *err)
{
    KG_TRY(take_queries(k, queries, n, depth, err));
    k->n = n;
    kg_status status = run_pass(k, err);
    if (status != KG_OK)
        k->n = 0;
    return status;
}

/* Whether the next query of the pass is this one. */
static bool is_next(const struct kg_seeker *k, const struct kg_text *query, size_t depth)
{
    const size_t from = k->next > 0 ? k->ends[k->next - 1] : 0;

    return k->next < k->n && k->depth == depth && k->ends[k->next] - from == query->n &&
           memcmp(kg_str_text(&k->texts) + from, query->bytes, query->n) == 0;
}

kg_status kg_seeker_find(struct kg_ranking *found, struct kg_seeker *k,
                         const struct kg_text *query, size_t depth, struct kg_err *err)
{
    if (!is_next(k, query, depth))
        KG_TRY(kg_seeker_ahead(k, query, 1, depth, err));
    *found = (struct kg_ranking){k->best + k->next * k->depth, k->kept[k->next], 1};
    k->next++;
    return KG_OK;
}
