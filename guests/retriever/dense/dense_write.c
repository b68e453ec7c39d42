/* Writes the vectors of an index: texts are gathered, embedded together, rounded to fp16
 * and stored as one row. If vectors are given, only a sample of texts is embedded, to
 * check that the vectors belong to this encoder and these passages.
 */
#include "retriever/dense/dense_internal.h"

#include "base/half.h"
#include "base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

struct kg_dense_writer {
    sqlite3 *db;      /* borrowed */
    const char *path; /* borrowed */
    struct kg_encoder_info info;
    struct kg_vectors given; /* {0}: the encoder computes them */
    const char *given_path;  /* borrowed */
    struct kg_embedder *embedder;
    sqlite3_stmt *put;
    struct kg_str texts;        /* concatenated */
    size_t ends[KG_DENSE_ROWS]; /* of each text */
    int n;
    float *vectors;   /* (KG_DENSE_ROWS, D) owned */
    uint16_t *halves; /* (KG_DENSE_ROWS, D) owned */
    int64_t rows;     /* of the table */
};

static kg_status take_memory(struct kg_dense_writer *w, struct kg_err *err)
{
    const size_t n = (size_t)KG_DENSE_ROWS * (size_t)w->info.dim;

    if (w->info.dim > KG_DENSE_DIM_MAX)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "expected vectors of at most %d numbers, found %d",
                       (int)KG_DENSE_DIM_MAX, (int)w->info.dim);
    KG_TRY(kg_mem_new(&w->vectors, n, sizeof *w->vectors, "vectors", err));
    return kg_mem_new(&w->halves, n, sizeof *w->halves, "vectors", err);
}

static kg_status prepare(struct kg_dense_writer *w, const struct kg_encoder *encoder,
                         struct kg_err *err)
{
    KG_TRY(take_memory(w, err));
    if (w->given_path)
        KG_TRY(kg_given_open(&w->given, w->given_path, &w->info, err));
    KG_TRY(kg_embedder_open(&w->embedder, encoder, err));
    KG_TRY(kg_sql_exec(w->db, w->path,
                       "CREATE TABLE vector (chunk INTEGER PRIMARY KEY, halves BLOB NOT "
                       "NULL);",
                       err));
    return kg_sql_prepare(&w->put, w->db, w->path, "INSERT INTO vector VALUES (?1, ?2)",
                          err);
}

kg_status kg_dense_writer_open(struct kg_dense_writer **w, sqlite3 *db, const char *path,
                               const struct kg_encoder *encoder, const char *vectors,
                               struct kg_err *err)
{
    struct kg_dense_writer *fresh = kg_mem_calloc(1, sizeof *fresh, "vectors", err);

    *w = NULL;
    if (!fresh)
        return KG_ENOMEM;
    fresh->db = db;
    fresh->path = path;
    fresh->given_path = vectors;
    kg_encoder_info(&fresh->info, encoder);
    kg_status status = prepare(fresh, encoder, err);
    if (status != KG_OK) {
        kg_dense_writer_close(fresh);
        return status;
    }
    *w = fresh;
    return KG_OK;
}

void kg_dense_writer_close(struct kg_dense_writer *w)
{
    if (!w)
        return;
    sqlite3_finalize(w->put);
    kg_embedder_close(w->embedder);
    kg_str_release(&w->texts);
    kg_vectors_close(&w->given);
    kg_mem_free(w->vectors);
    kg_mem_free(w->halves);
    kg_mem_free(w);
}

static kg_status embed(struct kg_dense_writer *w, struct kg_err *err)
{
    struct kg_text texts[KG_DENSE_ROWS];
    size_t from = 0;

    for (int i = 0; i < w->n; i++) {
        texts[i] = (struct kg_text){kg_str_text(&w->texts) + from, w->ends[i] - from};
        from = w->ends[i];
    }
    if (kg_embed(w->vectors, w->embedder, texts, (size_t)w->n, KG_TEXT_PASSAGE, err) !=
        KG_OK)
        return kg_err_prefix(err, "passages from number %" PRId64 " on",
                             w->rows * KG_DENSE_ROWS + 1);
    return KG_OK;
}

static kg_status flush(struct kg_dense_writer *w, struct kg_err *err)
{
    if (w->n == 0)
        return KG_OK;
    KG_TRY(w->given_path ? kg_given_take(w->vectors, &w->given, w->given_path, &w->info,
                                         w->rows * KG_DENSE_ROWS, w->n, err)
                         : embed(w, err));
    for (int i = 0; i < w->n * w->info.dim; i++) {
        if (fabsf(w->vectors[i]) > KG_HALF_MAX)
            return kg_fail(err, KG_ENONFINITE,
                           "passage %" PRId64 ": expected a vector within fp16, found %g "
                           "in it",
                           w->rows * KG_DENSE_ROWS + i / w->info.dim + 1,
                           (double)w->vectors[i]);
        w->halves[i] = kg_half_of(w->vectors[i]);
    }
    sqlite3_bind_int64(w->put, 1, w->rows);
    sqlite3_bind_blob(w->put, 2, w->halves, w->n * w->info.dim * (int)sizeof *w->halves,
                      SQLITE_STATIC);
    KG_TRY(kg_sql_run(w->put, w->db, w->path, err));
    w->rows++;
    w->n = 0;
    kg_str_clear(&w->texts);
    return KG_OK;
}

kg_status kg_dense_check_count(int64_t passages, struct kg_err *err)
{
    if (passages <= KG_DENSE_PASSAGES_MAX)
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED,
                   "expected at most %d passages for exhaustive search by vectors, found "
                   "more: use another engine (docs/search-at-scale.md)",
                   (int)KG_DENSE_PASSAGES_MAX);
}

/* Compares the given vector of a sampled passage with the encoder's. */
static kg_status check_given(struct kg_dense_writer *w, int64_t row,
                             const struct kg_text *text, struct kg_err *err)
{
    float *made = w->vectors, *found = w->vectors + w->info.dim;

    if (kg_embed(made, w->embedder, text, 1, KG_TEXT_PASSAGE, err) != KG_OK)
        return kg_err_prefix(err, "passage %" PRId64, row + 1);
    KG_TRY(kg_given_take(found, &w->given, w->given_path, &w->info, row, 1, err));
    return kg_given_compare(made, found, w->info.dim, w->given_path, row, err);
}

static kg_status add_given(struct kg_dense_writer *w, const struct kg_text *text,
                           struct kg_err *err)
{
    const int64_t row = w->rows * KG_DENSE_ROWS + w->n;

    if (row >= w->given.rows)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a vector of each passage, found %" PRId64
                       " vectors for more passages",
                       w->given_path, w->given.rows);
    if (kg_given_sampled(&w->given, row))
        KG_TRY(check_given(w, row, text, err));
    w->n++;
    return KG_OK;
}

static kg_status add_text(struct kg_dense_writer *w, const struct kg_text *text,
                          struct kg_err *err)
{
    KG_TRY(kg_str_append(&w->texts, text->bytes, text->n, err));
    w->ends[w->n++] = w->texts.len;
    return KG_OK;
}

kg_status kg_dense_writer_add(struct kg_dense_writer *w, const char *contents, size_t n,
                              struct kg_err *err)
{
    const struct kg_text text = {contents, n};

    KG_TRY(kg_dense_check_count(w->rows * KG_DENSE_ROWS + w->n + 1, err));
    KG_TRY(w->given_path ? add_given(w, &text, err) : add_text(w, &text, err));
    return w->n == KG_DENSE_ROWS ? flush(w, err) : KG_OK;
}

/* ---- options of the encoder ---- */
static kg_status put_text(struct kg_dense_writer *w, const char *key, const char *value,
                          struct kg_err *err)
{
    sqlite3_stmt *put;

    KG_TRY(kg_sql_prepare(&put, w->db, w->path, "INSERT INTO meta VALUES (?1, ?2)", err));
    sqlite3_bind_text(put, 1, key, -1, SQLITE_STATIC);
    sqlite3_bind_text(put, 2, value, -1, SQLITE_STATIC);
    kg_status status = kg_sql_run(put, w->db, w->path, err);
    sqlite3_finalize(put);
    return status;
}

static kg_status put_number(struct kg_dense_writer *w, const char *key, uint64_t value,
                            bool hexadecimal, struct kg_err *err)
{
    char text[32];

    if (hexadecimal)
        snprintf(text, sizeof text, "%016" PRIx64, value);
    else
        snprintf(text, sizeof text, "%" PRIu64, value);
    return put_text(w, key, text, err);
}

kg_status kg_dense_writer_end(struct kg_dense_writer *w, struct kg_err *err)
{
    const struct kg_encoder_info *i = &w->info;
    const int64_t passages = w->rows * KG_DENSE_ROWS + w->n;

    if (w->given_path && passages != w->given.rows)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a vector of each of %" PRId64
                       " passages, found %" PRId64,
                       w->given_path, passages, w->given.rows);
    KG_TRY(flush(w, err));
    KG_TRY(put_number(w, "dense_dim", (uint64_t)i->dim, false, err));
    KG_TRY(put_number(w, "dense_tokens", (uint64_t)i->max_tokens, false, err));
    KG_TRY(put_number(w, "dense_encoder", i->hash, true, err));
    KG_TRY(put_text(w, "dense_pooling", kg_pooling_names[i->pooling], err));
    KG_TRY(put_text(w, "dense_query_prefix", i->query_prefix, err));
    KG_TRY(put_text(w, "dense_passage_prefix", i->passage_prefix, err));
    sqlite3_finalize(w->put); /* no statement may be open at COMMIT */
    w->put = NULL;
    return KG_OK;
}
