/* Opens the vectors of an index: its encoder, and the vectors in the codes that passes
 * read, in host memory or copied in blocks to a device.
 *
 * The file has fp16. As int8, a vector x becomes x' = scale code, with the nearest
 * integers of -127 to 127, and the error of a product has a known bound:
 *
 *     |q.x - q.x'| <= |q| |x - x'|       (Cauchy and Schwarz)
 *
 * and so has the error of fp32 sums: at most n 2^-24 |q| |x| for n terms, for x and for
 * x'. `bound` is the sum of both bounds for |q| = 1, the second more than doubled, which
 * covers the few roundings of the code that uses `bound`.
 */
#include "retriever/dense/dense_internal.h"

#include "base/cgroup.h"
#include "base/half.h"
#include "base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SPARE_TERMS = 32 }; /* added to a sum's terms: other roundings near it */

/* ---- opening ---- */
/* Options of the encoder when the index was built. */
struct asked {
    char *pooling, *query_prefix, *passage_prefix; /* owned */
    uint64_t max_tokens, hash;
};

static kg_status read_asked(struct asked *a, sqlite3 *db, const char *path,
                            struct kg_err *err)
{
    KG_TRY(kg_meta_text(&a->pooling, db, path, "dense_pooling", err));
    KG_TRY(kg_meta_text(&a->query_prefix, db, path, "dense_query_prefix", err));
    KG_TRY(kg_meta_text(&a->passage_prefix, db, path, "dense_passage_prefix", err));
    KG_TRY(kg_meta_number(&a->max_tokens, db, path, "dense_tokens", 10, 1 << 24, err));
    return kg_dense_encoder(&a->hash, db, path, err);
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
                   ", %d dimensions), found another encoder in %s (hash %016" PRIx64
                   ", %d dimensions); pass the one that built the index, or rebuild it",
                   d->path, a->hash, (int)d->dim, model, info.hash, (int)info.dim);
}

static kg_status open_encoder(struct kg_dense *d, sqlite3 *db,
                              const struct kg_search_how *how, struct kg_err *err)
{
    struct asked a = {0};
    kg_status status;

    KG_TRY_GOTO(out, read_asked(&a, db, d->path, err));
    const struct kg_encoder_opts opts = {.backend = how->backend,
                                         .pooling = a.pooling,
                                         .max_tokens = (int32_t)a.max_tokens,
                                         .query_prefix = a.query_prefix,
                                         .passage_prefix = a.passage_prefix};
    if (kg_encoder_open(&d->encoder, how->model, &opts, err) != KG_OK) {
        /* the options are the index's: another model may have too few positions */
        status = kg_err_prefix(err, "%s: its encoder", d->path);
        goto out;
    }
    status = check_encoder(d, &a, how->model, err);
out:
    kg_mem_free(a.pooling);
    kg_mem_free(a.query_prefix);
    kg_mem_free(a.passage_prefix);
    return status;
}

/* ---- codes ---- */
void kg_dense_shrink(int8_t *codes, float *scale, float *bound, const uint16_t *halves,
                     int32_t dim)
{
    double most = 0, lost = 0, squares = 0, kept = 0;

    for (int32_t d = 0; d < dim; d++)
        most = fmax(most, fabs((double)kg_half_float(halves[d])));
    *scale = (float)(most / 127);
    for (int32_t d = 0; d < dim; d++) {
        const double x = (double)kg_half_float(halves[d]);
        const double code = *scale > 0 ? fmin(fmax(rint(x / (double)*scale), -127), 127)
                                       : 0;
        const double y = code * (double)*scale;

        codes[d] = (int8_t)code;
        lost += (x - y) * (x - y);
        squares += x * x;
        kept += y * y;
    }
    *bound = (float)(1.0001 * (sqrt(lost) + (dim + SPARE_TERMS) * 0x1p-23 *
                                                (sqrt(squares) + sqrt(kept))));
}

/* A vector's row in d->codes: among all, or in the block that is copied to a device. */
static int64_t place_of(const struct kg_dense *d, int64_t at)
{
    return d->device ? at % KG_DENSE_BLOCK : at;
}

static bool is_number(uint16_t half) { return (half & 0x7c00u) != 0x7c00u; }

/* Stores vector `at` (0-based) of the index in d->codes. */
static kg_status take_vector(struct kg_dense *d, int64_t at, const uint16_t *halves,
                             int8_t *bytes, struct kg_err *err)
{
    for (int32_t i = 0; i < d->dim; i++)
        if (!is_number(halves[i]))
            return kg_fail(err, KG_EFORMAT,
                           "%s: expected finite vectors, found NaN or infinity in the "
                           "vector of passage %lld",
                           d->path, (long long)at + 1);
    if (d->codes.code == KG_CODE_F16) {
        kg_codes_put(&d->codes, place_of(d, at), halves);
        return KG_OK;
    }
    kg_dense_shrink(bytes, &d->scale[at], &d->bound[at], halves, d->dim);
    kg_codes_put(&d->codes, place_of(d, at), bytes);
    return KG_OK;
}

kg_status kg_dense_chunk(const uint16_t **halves, int64_t *n, const struct kg_dense *d,
                         sqlite3_stmt *get, struct kg_err *err)
{
    const int64_t row = d->dim * (int64_t)sizeof **halves;
    const int64_t bytes = sqlite3_column_bytes(get, 0);

    *halves = sqlite3_column_blob(get, 0); /* NULL if empty */
    *n = bytes / row;
    if (*halves && *n * row == bytes)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "%s: expected each block of vectors to have whole vectors of %d "
                   "numbers, found a block of %lld bytes: rebuild the vectors",
                   d->path, (int)d->dim, (long long)bytes);
}

static kg_status take_chunk(struct kg_dense *d, sqlite3_stmt *get, int64_t *at,
                            int8_t *bytes, struct kg_err *err)
{
    const uint16_t *halves;
    int64_t n;

    const int64_t left = d->n - *at, chunk = sqlite3_column_int64(get, 1);
    const int64_t expected = left < KG_DENSE_ROWS ? left : KG_DENSE_ROWS;

    KG_TRY(kg_dense_chunk(&halves, &n, d, get, err));
    if (chunk != *at / KG_DENSE_ROWS || n != expected)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected block %lld of its vectors, with %lld vectors, found "
                       "block %lld with %lld: rebuild the vectors",
                       d->path, (long long)(*at / KG_DENSE_ROWS), (long long)expected,
                       (long long)chunk, (long long)n);
    for (int64_t i = 0; i < n; i++)
        KG_TRY(take_vector(d, (*at)++, halves + i * d->dim, bytes, err));
    return KG_OK;
}

static kg_status take_memory(struct kg_dense *d, struct kg_err *err)
{
    d->codes.rows = d->device ? KG_DENSE_BLOCK : d->n;
    d->codes.cols = d->dim;
    KG_TRY(kg_mem_new(&d->codes.data, 1,
                      kg_codes_bytes(d->codes.code, d->codes.rows, d->dim),
                      "vectors of passages", err));
    if (d->codes.code == KG_CODE_F16)
        return KG_OK;
    KG_TRY(kg_mem_new(&d->scale, (size_t)d->n, sizeof *d->scale, "vectors of passages",
                      err));
    return kg_mem_new(&d->bound, (size_t)d->n, sizeof *d->bound, "vectors of passages",
                      err);
}

/* Copies a full block, or the last one, to the device, and zeroes it, so that the rest of
 * a shorter block is zero. behind: number of vectors read so far */
static kg_status send_block(struct kg_dense *d, int64_t behind, struct kg_err *err)
{
    const int64_t n = (behind - 1) % KG_DENSE_BLOCK + 1;
    const struct kg_codes block = kg_codes_rows(&d->codes, 0, n);

    if (!d->device || (n < KG_DENSE_BLOCK && behind < d->n))
        return KG_OK;
    KG_TRY(kg_dense_device_put(d->device, behind - n, &block, err));
    memset(d->codes.data, 0, kg_codes_bytes(block.code, n, d->dim));
    return KG_OK;
}

static kg_status read_all(struct kg_dense *d, sqlite3_stmt *get, struct kg_err *err)
{
    int8_t *bytes = kg_mem_calloc((size_t)d->dim, sizeof *bytes, "a vector", err);
    int64_t at = 0;
    kg_status status = bytes ? KG_OK : KG_ENOMEM;
    int code = SQLITE_DONE;

    while (status == KG_OK && (code = sqlite3_step(get)) == SQLITE_ROW) {
        status = take_chunk(d, get, &at, bytes, err);
        if (status == KG_OK)
            status = send_block(d, at, err);
    }
    kg_mem_free(bytes);
    KG_TRY(status);
    if (code != SQLITE_DONE)
        return kg_sql_fail(err, sqlite3_db_handle(get), code, d->path, "read vectors");
    return at == d->n ? KG_OK
                      : kg_fail(err, KG_EFORMAT, "%s: expected %lld vectors, found %lld",
                                d->path, (long long)d->n, (long long)at);
}

static kg_status read_vectors(struct kg_dense *d, sqlite3 *db, struct kg_err *err)
{
    sqlite3_stmt *get = NULL;

    KG_TRY(take_memory(d, err));
    KG_TRY(kg_sql_prepare(&get, db, d->path,
                          "SELECT halves, chunk FROM vector ORDER BY chunk", err));
    kg_status status = read_all(d, get, err);
    sqlite3_finalize(get);
    if (d->device) { /* the device has a copy */
        kg_mem_free(d->codes.data);
        d->codes.data = NULL;
    }
    return status;
}

kg_status kg_dense_check_memory(const struct kg_dense *d, uint64_t machine,
                                struct kg_err *err)
{
    const bool bytes = d->codes.code == KG_CODE_I8;
    struct kg_search_size size;
    uint64_t need, other;

    if (kg_dense_check_count(d->n, err) != KG_OK)
        return kg_err_prefix(err, "%s", d->path);
    kg_search_size(&size, d->n, d->dim);
    need = bytes ? size.vectors_int8 : size.vectors_fp16;
    other = bytes ? size.vectors_fp16 : size.vectors_int8;
    if (machine == 0 || need <= machine)
        return KG_OK;
    return kg_fail(err, KG_ENOMEM,
                   "%s: expected memory for %lld vectors of %d numbers, %.3f GB as %s "
                   "(%.3f GB as %s), found a machine or control group of %.3f GB",
                   d->path, (long long)d->n, (int)d->dim, (double)need / 1e9,
                   bytes ? "int8" : "fp16", (double)other / 1e9, bytes ? "fp16" : "int8",
                   (double)machine / 1e9);
}

static kg_status check_memory(struct kg_dense *d, const struct kg_search_how *how,
                              bool far, struct kg_err *err)
{
    if (!far)
        return kg_dense_check_memory(d, kg_cgroup_machine_bytes(), err);
    KG_TRY(kg_dense_plan(&d->planned, how->model, how->backend, d->codes.code, d->n,
                         d->dim, err));
    return kg_dense_check_device(d, how->backend, err);
}

static bool is_far(const struct kg_search_how *how)
{
    return how->backend && !how->backend->host_memory;
}

static kg_status fill(struct kg_dense *d, sqlite3 *db, const struct kg_search_how *how,
                      struct kg_err *err)
{
    const bool far = is_far(how);

    KG_TRY(kg_dense_dim(&d->dim, db, d->path, err));
    if (d->dim == 0)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected an index with vectors (`kedge search index --dense "
                       "MODEL`), found one with words only",
                       d->path);
    KG_TRY(check_memory(d, how, far, err));
    KG_TRY(kg_backend_open(&d->host, "cpu", err));
    KG_TRY(open_encoder(d, db, how, err));
    if (far)
        KG_TRY(kg_dense_device_open(&d->device, how->backend, d, err));
    return read_vectors(d, db, err);
}

kg_status kg_index_device_plan(uint64_t *bytes, const struct kg_index *index,
                               const struct kg_search_how *how, struct kg_err *err)
{
    const bool narrow = how->vectors && strcmp(how->vectors, "int8") == 0;
    struct kg_dense_memory m;
    sqlite3 *db = NULL;
    int32_t dim;

    *bytes = 0;
    if (!is_far(how))
        return KG_OK;
    kg_status status = kg_sql_open_index(&db, index->path, err);
    if (status == KG_OK)
        status = kg_dense_dim(&dim, db, index->path, err);
    sqlite3_close(db);
    if (status != KG_OK)
        return status;
    KG_TRY(kg_dense_plan(&m, how->model, how->backend, narrow ? KG_CODE_I8 : KG_CODE_F16,
                         index->info.passages, dim, err));
    *bytes = m.vectors + m.encoder + m.beside;
    return KG_OK;
}

kg_status kg_dense_open(struct kg_dense **d, sqlite3 *db, const struct kg_index *index,
                        const struct kg_search_how *how, enum kg_code code,
                        struct kg_err *err)
{
    struct kg_dense *fresh = kg_mem_calloc(1, sizeof *fresh, "vectors", err);

    *d = NULL;
    if (!fresh)
        return KG_ENOMEM;
    fresh->path = index->path;
    fresh->n = index->info.passages;
    fresh->codes.code = code;
    kg_status status = fill(fresh, db, how, err);
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
    kg_dense_device_close(d->device);
    kg_encoder_close(d->encoder);
    kg_mem_free(d->codes.data);
    kg_mem_free(d->scale);
    kg_mem_free(d->bound);
    kg_mem_free(d);
}
