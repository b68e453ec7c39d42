/* Searching the vectors of an index: see dense.h.
 *
 * The vectors stay fp16 in memory, 2 bytes a number; a block of them becomes fp32 when it
 * is multiplied, once for all queries of a pass.
 */
#include "search/dense.h"

#include "base/columns.h"
#include "base/mem.h"
#include "base/half.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1024 }; /* passages that are fp32 at once */

struct kg_dense {
    const char *path; /* borrowed from the index */
    const struct kg_backend *backend;
    struct kg_encoder *encoder;
    uint16_t *halves; /* (n, D) owned */
    int64_t n;
    int32_t dim;
};

/* ---- opening ---- */
/* *value: owned, NULL where there is none. */
static kg_status get_text(char **value, sqlite3 *db, const char *path, const char *key,
                          struct kg_err *err)
{
    sqlite3_stmt *get;
    kg_status status = KG_OK;

    *value = NULL;
    KG_TRY(kg_sql_prepare(&get, db, path, "SELECT value FROM meta WHERE key = ?1", err));
    sqlite3_bind_text(get, 1, key, -1, SQLITE_STATIC);
    if (sqlite3_step(get) == SQLITE_ROW && sqlite3_column_text(get, 0)) {
        *value = kg_mem_strdup((const char *)sqlite3_column_text(get, 0), err);
        status = *value ? KG_OK : KG_ENOMEM;
    }
    sqlite3_finalize(get);
    return status;
}

/* Between min and max, in this base; 0 where there is no such value. */
static kg_status get_number(uint64_t *out, sqlite3 *db, const char *path, const char *key,
                            int base, uint64_t max, struct kg_err *err)
{
    kg_status status = KG_OK;
    char *text, *end;

    *out = 0;
    KG_TRY(get_text(&text, db, path, key, err));
    if (!text)
        return KG_OK;
    *out = strtoull(text, &end, base);
    if (*end || end == text || *out > max)
        status = kg_fail(err, KG_EFORMAT, "%s: expected a number as %s, found '%.40s'",
                         path, key, text);
    kg_mem_free(text);
    return status;
}

kg_status kg_dense_dim(int32_t *dim, sqlite3 *db, const char *path, struct kg_err *err)
{
    uint64_t n;

    KG_TRY(get_number(&n, db, path, "dense_dim", 10, 1 << 24, err));
    *dim = (int32_t)n;
    return KG_OK;
}

/* As it was asked for when the index was made. */
struct asked {
    char *pooling, *query_prefix, *passage_prefix; /* owned */
    uint64_t max_tokens, hash;
};

static kg_status read_asked(struct asked *a, sqlite3 *db, const char *path,
                            struct kg_err *err)
{
    KG_TRY(get_text(&a->pooling, db, path, "dense_pooling", err));
    KG_TRY(get_text(&a->query_prefix, db, path, "dense_query_prefix", err));
    KG_TRY(get_text(&a->passage_prefix, db, path, "dense_passage_prefix", err));
    KG_TRY(get_number(&a->max_tokens, db, path, "dense_tokens", 10, 1 << 24, err));
    return get_number(&a->hash, db, path, "dense_encoder", 16, UINT64_MAX, err);
}

static kg_status check_encoder(const struct kg_dense *d, const struct asked *a,
                               const char *model, struct kg_err *err)
{
    struct kg_encoder_info info;

    kg_encoder_info(&info, d->encoder);
    if (info.hash == a->hash && info.dim == d->dim)
        return KG_OK;
    return kg_fail(err, KG_ECONFLICT,
                   "%s: expected the encoder of its vectors (hash %016" PRIx64
                   ", %d dimensions), found another in %s (hash %016" PRIx64
                   ", %d dimensions)",
                   d->path, a->hash, (int)d->dim, model, info.hash, (int)info.dim);
}

static kg_status open_encoder(struct kg_dense *d, sqlite3 *db, const char *model,
                              struct kg_err *err)
{
    struct asked a = {0};
    kg_status status;

    KG_TRY_GOTO(out, read_asked(&a, db, d->path, err));
    const struct kg_encoder_opts opts = {.pooling = a.pooling,
                                         .max_tokens = (int32_t)a.max_tokens,
                                         .query_prefix = a.query_prefix,
                                         .passage_prefix = a.passage_prefix};
    if (kg_encoder_open(&d->encoder, model, &opts, err) != KG_OK) {
        /* asked for by the index, which another model's positions do not reach */
        status = kg_err_prefix(err, "%s: its encoder", d->path);
        goto out;
    }
    status = check_encoder(d, &a, model, err);
out:
    kg_mem_free(a.pooling);
    kg_mem_free(a.query_prefix);
    kg_mem_free(a.passage_prefix);
    return status;
}

static kg_status take_chunk(struct kg_dense *d, sqlite3_stmt *get, int64_t *at,
                            struct kg_err *err)
{
    const void *halves = sqlite3_column_blob(get, 0); /* NULL for none */
    const int64_t row = d->dim * (int64_t)sizeof *d->halves;
    const int64_t n = sqlite3_column_bytes(get, 0) / row;

    if (!halves || n * row != sqlite3_column_bytes(get, 0) || *at + n > d->n)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected %lld vectors of %d numbers, found others", d->path,
                       (long long)d->n, (int)d->dim);
    memcpy(d->halves + *at * d->dim, halves, (size_t)(n * row));
    *at += n;
    return KG_OK;
}

static kg_status read_vectors(struct kg_dense *d, sqlite3 *db, struct kg_err *err)
{
    sqlite3_stmt *get = NULL;
    int64_t at = 0;
    kg_status status;

    d->halves = kg_mem_calloc((size_t)(d->n * d->dim), sizeof *d->halves,
                              "vectors of passages", err);
    if (!d->halves)
        return KG_ENOMEM;
    KG_TRY(kg_sql_prepare(&get, db, d->path, "SELECT halves FROM vector ORDER BY chunk",
                          err));
    while (sqlite3_step(get) == SQLITE_ROW)
        KG_TRY_GOTO(out, take_chunk(d, get, &at, err));
    status = at == d->n
                 ? KG_OK
                 : kg_fail(err, KG_EFORMAT, "%s: expected %lld vectors, found %lld",
                           d->path, (long long)d->n, (long long)at);
out:
    sqlite3_finalize(get);
    return status;
}

static kg_status fill(struct kg_dense *d, sqlite3 *db, const char *model,
                      struct kg_err *err)
{
    KG_TRY(kg_dense_dim(&d->dim, db, d->path, err));
    if (d->dim == 0)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected an index with vectors (`kedge search index --dense "
                       "MODEL`), found one of words alone",
                       d->path);
    KG_TRY(kg_backend_open(&d->backend, "cpu", err));
    KG_TRY(open_encoder(d, db, model, err));
    return read_vectors(d, db, err);
}

kg_status kg_dense_open(struct kg_dense **d, sqlite3 *db, const struct kg_index *index,
                        const char *model, struct kg_err *err)
{
    struct kg_dense *fresh = kg_mem_calloc(1, sizeof *fresh, "vectors", err);
    kg_status status;

    *d = NULL;
    if (!fresh)
        return KG_ENOMEM;
    fresh->path = index->path;
    fresh->n = index->info.passages;
    status = fill(fresh, db, model, err);
    if (status != KG_OK) {
        kg_dense_close(fresh);
        return status;
    }
    *d = fresh;
    return KG_OK;
}

void kg_dense_close(struct kg_dense *d)
{
    if (!d)
        return;
    kg_encoder_close(d->encoder);
    kg_mem_free(d->halves);
    kg_mem_free(d);
}

/* ---- a seeker ---- */
struct kg_seeker {
    const struct kg_dense *d;
    struct kg_embedder *embedder;
    struct kg_block memory;
    float *queries; /* (KG_DENSE_QUERIES, D) */
    float *block;   /* (BLOCK, D) */
    float *scores;  /* (KG_DENSE_QUERIES, BLOCK) */

    struct kg_candidate *best; /* (KG_DENSE_QUERIES, depth) owned */
    size_t capacity;           /* of best */
    size_t depth;
    size_t kept[KG_DENSE_QUERIES];

    /* the pass */
    struct kg_str texts; /* of its queries, one behind the other */
    size_t ends[KG_DENSE_QUERIES];
    size_t n, next;
};

enum { QUERIES, PASSAGES, SCORES, COUNTS };
static const struct kg_column columns[] = {
    KG_COLUMN(struct kg_seeker, queries, QUERIES),
    KG_COLUMN(struct kg_seeker, block, PASSAGES),
    KG_COLUMN(struct kg_seeker, scores, SCORES),
    {0},
};

kg_status kg_seeker_open(struct kg_seeker **k, const struct kg_dense *d,
                         struct kg_err *err)
{
    const size_t counts[COUNTS] = {(size_t)KG_DENSE_QUERIES * (size_t)d->dim,
                                   (size_t)BLOCK * (size_t)d->dim,
                                   (size_t)KG_DENSE_QUERIES * BLOCK};
    struct kg_seeker *fresh = kg_mem_calloc(1, sizeof *fresh, "seeker", err);
    kg_status status;

    *k = NULL;
    if (!fresh)
        return KG_ENOMEM;
    fresh->d = d;
    KG_TRY_GOTO(out, kg_columns_take(&fresh->memory, fresh, columns, counts,
                                     "a block of vectors", err));
    status = kg_embedder_open(&fresh->embedder, d->encoder, err);
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
    kg_columns_free(&k->memory, k, columns);
    kg_mem_free(k->best);
    kg_str_release(&k->texts);
    kg_mem_free(k);
}

/* ---- one pass ---- */
static void widen(float *to, const uint16_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = kg_half_float(from[i]);
}

/* Passages first..first + n against all queries. */
static kg_status score_block(struct kg_seeker *k, int64_t first, int64_t n,
                             struct kg_err *err)
{
    const int32_t D = k->d->dim;
    const int64_t q = (int64_t)k->n;
    const struct kg_mat scores = kg_mat(k->scores, KG_F32, q, n);

    widen(k->block, k->d->halves + first * D, n * D);
    KG_TRY(kg_op_matmul(k->d->backend, scores, kg_mat(k->queries, KG_F32, q, D),
                        kg_mat(k->block, KG_F32, n, D), KG_MATMUL_NT, false, err));
    for (int64_t i = 0; i < q; i++)
        for (int64_t j = 0; j < n; j++)
            kg_rank_keep(k->best + (size_t)i * k->depth, &k->kept[i], k->depth,
                         (double)k->scores[i * n + j], first + j + 1);
    return KG_OK;
}

static kg_status take_queries(struct kg_seeker *k, const struct kg_text *queries,
                              size_t n, size_t depth, struct kg_err *err)
{
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
    return kg_embed(k->queries, k->embedder, queries, n, KG_TEXT_QUERY, err);
}

kg_status kg_seeker_ahead(struct kg_seeker *k, const struct kg_text *queries, size_t n,
                          size_t depth, struct kg_err *err)
{
    KG_TRY(take_queries(k, queries, n, depth, err));
    k->n = n;
    for (int64_t first = 0; first < k->d->n; first += BLOCK) {
        const int64_t left = k->d->n - first;
        const kg_status status = score_block(k, first, left < BLOCK ? left : BLOCK, err);

        if (status != KG_OK) {
            k->n = 0;
            return status;
        }
    }
    return KG_OK;
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
