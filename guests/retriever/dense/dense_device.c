/* The vectors of an index on a device: see dense_internal.h.
 *
 * A pass is divided into blocks of passages. For each block the queries are copied to the
 * device, one launch computes the products of all of them with the vectors, and the
 * scores are copied back. The code that selects passages is the same as on the CPU, so
 * the result is equal, ties included. There is one copy of the vectors, one encoder and
 * one buffer of scores for all threads; the thread that computes holds the lock, and
 * releases it while it selects.
 *
 * Scores are 4 bytes per query and passage, compared with 2 or 1 per number of a vector:
 * for one query they are 4 / (2 D) of what the device reads, 0.3 % at 768 numbers; for 64
 * they are 17 %, over a bus that is some sixty times as slow as the device's memory. A
 * kernel that selects would save the latter (docs/gpu.md).
 */
#include "retriever/dense/dense_internal.h"

#include "base/log.h"
#include "base/mem.h"

#include <pthread.h>

struct kg_dense_device {
    const struct kg_backend *backend;
    pthread_mutex_t lock; /* guards the fields below, and calls of the backend */
    struct kg_embedder *embedder;
    void *vectors; /* owned: codes.data */
    struct kg_codes codes;
    float *queries; /* (KG_DENSE_QUERIES, D) owned */
    float *scores;  /* (KG_DENSE_SCORES) owned */
    int64_t room;   /* scores of a block, of all queries together */
};

/* ---- the plan ---- */
kg_status kg_dense_plan(struct kg_dense_memory *out, const char *model,
                        const struct kg_backend *be, enum kg_code code, int64_t n,
                        int32_t dim, struct kg_err *err)
{
    struct kg_encoder_memory e;

    KG_TRY(kg_encoder_plan(&e, model, be, err));
    *out = (struct kg_dense_memory){
        .vectors = kg_codes_bytes(code, n, dim),
        .encoder = e.weights,
        .beside = e.pack + (uint64_t)KG_DENSE_QUERIES * (uint64_t)dim * sizeof(float) +
                  (uint64_t)KG_DENSE_SCORES * sizeof(float)};
    uint64_t held = out->vectors + out->beside;
    out->most = out->encoder + (held > e.staged ? held : e.staged);
    return KG_OK;
}

kg_status kg_dense_check_device(const struct kg_dense *d, const struct kg_backend *be,
                                struct kg_err *err)
{
    const bool bytes = d->codes.code == KG_CODE_I8;
    const enum kg_code other = bytes ? KG_CODE_F16 : KG_CODE_I8;
    const struct kg_dense_memory m = d->planned;
    uint64_t total, free;

    if (kg_dense_check_count(d->n, err) != KG_OK)
        return kg_err_prefix(err, "%s", d->path);
    if (!be->memory)
        return KG_OK;
    KG_TRY(be->memory(&total, &free, err));
    if (m.most > free)
        return kg_fail(
            err, KG_ENOMEM,
            "%s: expected %llu bytes on %s, found %llu free: %lld vectors of %d numbers "
            "as %s %.3f GB (as %s %.3f GB), encoder %.3f GB, queries and scores %.3f GB",
            d->path, (unsigned long long)m.most, be->name, (unsigned long long)free,
            (long long)d->n, (int)d->dim, bytes ? "int8" : "fp16",
            (double)m.vectors / 1e9, bytes ? "fp16" : "int8",
            (double)kg_codes_bytes(other, d->n, d->dim) / 1e9, (double)m.encoder / 1e9,
            (double)m.beside / 1e9);
    kg_log_info("%s: on %s, vectors %.3f GB, encoder %.3f GB, queries and scores %.3f "
                "GB, of %.3f GB that are free",
                d->path, be->name, (double)m.vectors / 1e9, (double)m.encoder / 1e9,
                (double)m.beside / 1e9, (double)free / 1e9);
    return KG_OK;
}

/* ---- opening ---- */
static kg_status take_memory(struct kg_dense_device *v, const struct kg_dense *d,
                             struct kg_err *err)
{
    const uint64_t queries = (uint64_t)KG_DENSE_QUERIES * (uint64_t)d->dim;

    v->codes = (struct kg_codes){NULL, d->codes.code, d->n, d->dim};
    v->vectors = kg_buf_alloc(v->backend, kg_codes_bytes(d->codes.code, d->n, d->dim),
                              "vectors of passages", err);
    if (!v->vectors)
        return KG_ENOMEM;
    v->codes.data = v->vectors;
    v->queries = kg_buf_alloc(v->backend, queries * sizeof *v->queries,
                              "vectors of queries", err);
    if (!v->queries)
        return KG_ENOMEM;
    v->scores = kg_buf_alloc(v->backend, KG_DENSE_SCORES * sizeof *v->scores,
                             "a block of scores", err);
    return v->scores ? kg_embedder_open(&v->embedder, d->encoder, err) : KG_ENOMEM;
}

kg_status kg_dense_device_open(struct kg_dense_device **v, const struct kg_backend *be,
                               const struct kg_dense *d, struct kg_err *err)
{
    struct kg_dense_device *fresh = kg_mem_calloc(1, sizeof *fresh, "vectors", err);

    *v = NULL;
    if (!fresh)
        return KG_ENOMEM;
    fresh->backend = be;
    fresh->room = KG_DENSE_SCORES;
    pthread_mutex_init(&fresh->lock, NULL);
    if (take_memory(fresh, d, err) != KG_OK) {
        kg_dense_device_close(fresh);
        return err->code;
    }
    *v = fresh;
    return KG_OK;
}

void kg_dense_device_close(struct kg_dense_device *v)
{
    if (!v)
        return;
    kg_embedder_close(v->embedder);
    kg_buf_free(v->backend, v->scores);
    kg_buf_free(v->backend, v->queries);
    kg_buf_free(v->backend, v->vectors);
    pthread_mutex_destroy(&v->lock);
    kg_mem_free(v);
}

kg_status kg_dense_device_put(struct kg_dense_device *v, int64_t first,
                              const struct kg_codes *block, struct kg_err *err)
{
    const struct kg_codes to = kg_codes_rows(&v->codes, first, block->rows);

    return kg_buf_put(v->backend, to.data, block->data,
                      kg_codes_bytes(block->code, block->rows, block->cols), err);
}

/* ---- asking ---- */
float *kg_dense_device_pin(struct kg_dense_device *v, struct kg_err *err)
{
    float *scores;

    pthread_mutex_lock(&v->lock);
    scores = kg_buf_pin(v->backend, KG_DENSE_SCORES * sizeof *scores, "a block of scores",
                        err);
    pthread_mutex_unlock(&v->lock);
    return scores;
}

void kg_dense_device_unpin(struct kg_dense_device *v, float *scores)
{
    pthread_mutex_lock(&v->lock);
    kg_buf_unpin(v->backend, scores);
    pthread_mutex_unlock(&v->lock);
}

kg_status kg_dense_device_embed(float *out, struct kg_dense_device *v,
                                const struct kg_text *texts, size_t n, struct kg_err *err)
{
    pthread_mutex_lock(&v->lock);
    kg_status status = kg_embed(out, v->embedder, texts, n, KG_TEXT_QUERY, err);
    pthread_mutex_unlock(&v->lock);
    return status;
}

int64_t kg_dense_device_passages(const struct kg_dense_device *v, int64_t queries)
{
    return v->room / queries / KG_PANEL * KG_PANEL;
}

void kg_dense_device_limit(struct kg_dense_device *v, int64_t scores)
{
    v->room = scores < KG_DENSE_SCORES ? scores : KG_DENSE_SCORES;
}

static kg_status scan(struct kg_mat scores, const struct kg_dense_device *v,
                      struct kg_mat queries, int64_t first, struct kg_err *err)
{
    const struct kg_codes part = kg_codes_rows(&v->codes, first, scores.cols);
    const struct kg_mat q = kg_mat(v->queries, KG_F32, queries.rows, queries.cols);
    struct kg_mat there = scores;

    there.data = v->scores;
    KG_TRY(kg_buf_put(v->backend, q.data, queries.data,
                      (uint64_t)(q.rows * q.cols) * sizeof(float), err));
    KG_TRY(kg_op_scan(v->backend, there, q, &part, err));
    return kg_buf_get(v->backend, scores.data, there.data,
                      (uint64_t)(scores.rows * scores.stride) * sizeof(float), err);
}

kg_status kg_dense_device_scan(struct kg_mat scores, struct kg_dense_device *v,
                               struct kg_mat queries, int64_t first, struct kg_err *err)
{
    pthread_mutex_lock(&v->lock);
    kg_status status = scan(scores, v, queries, first, err);
    pthread_mutex_unlock(&v->lock);
    return status;
}

void kg_index_device(struct kg_index_device *out, const struct kg_index *index)
{
    const struct kg_dense *d = index->dense;

    *out = (struct kg_index_device){0};
    if (!d || !d->device)
        return;
    struct kg_traffic t = kg_buf_traffic(d->device->backend);
    *out = (struct kg_index_device){
        d->planned.vectors + d->planned.encoder + d->planned.beside, t.up, t.down};
}
