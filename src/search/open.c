/* Opens an index after checking it. SQLite opens nearly everything and finds a fault only
 * at the damaged page, perhaps hours later. So the checks come first, in this order: the
 * file is a database, as long as its header says, an index, of this version, and its seal
 * (a hash of its pages) matches; of a large index only kg_index_verify checks the seal.
 * Lengths of passages are kept in memory, because the score of every hit needs one. */
#include "search/index_file.h"

#include "base/file.h"
#include "base/mem.h"
#include "search/dense.h"

#include <math.h>
#include <string.h>

enum { VERIFY_UP_TO_BYTES = 1 << 30, HEADER_BYTES = 100 };

static kg_status check_kind(sqlite3 *db, const char *path, struct kg_err *err)
{
    int64_t application, version;

    KG_TRY(kg_sql_int(&application, db, path, "PRAGMA application_id", err));
    if (application != KG_INDEX_APPLICATION)
        return kg_fail(
            err, KG_EFORMAT,
            "%s: expected an index made by `kedge search index`, found another "
            "SQLite database",
            path);
    KG_TRY(kg_sql_int(&version, db, path, "PRAGMA user_version", err));
    if (version != KG_INDEX_VERSION)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "%s: expected an index of version %d, found version %lld: rebuild "
                       "it from its corpus",
                       path, KG_INDEX_VERSION, (long long)version);
    return KG_OK;
}

/* Offsets in the header of an SQLite file. */
enum { AT_PAGES = 28, AT_APPLICATION = 68 };

static uint32_t number_at(const unsigned char *b, size_t at)
{
    return (uint32_t)b[at] << 24 | (uint32_t)b[at + 1] << 16 | (uint32_t)b[at + 2] << 8 |
           b[at + 3];
}

/* A truncated index: SQLite would find out only at the first missing page. A database of
 * another kind passes here; check_kind refuses it. */
static kg_status check_size(const unsigned char *header, const char *path, uint64_t bytes,
                            struct kg_err *err)
{
    uint64_t pages = number_at(header, AT_PAGES);
    uint64_t size = kg_sql_page_size(header);

    if (number_at(header, AT_APPLICATION) != KG_INDEX_APPLICATION ||
        pages * size == bytes)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "%s: expected an index of %llu bytes, found %llu: the file was "
                   "truncated or extended",
                   path, (unsigned long long)(pages * size), (unsigned long long)bytes);
}

static kg_status check_file(sqlite3 **db, uint64_t *bytes, const char *path,
                            struct kg_err *err)
{
    unsigned char header[HEADER_BYTES];
    struct kg_map map;

    if (!kg_file_exists(path))
        return kg_fail(err, KG_ENOTFOUND, "%s: expected an index file, found none", path);
    KG_TRY(kg_file_size(bytes, path, err));
    if (!kg_file_is_regular(path))
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected an index file, found a folder or device", path);
    KG_TRY(kg_map_open(&map, path, err));
    *bytes = map.bytes;
    bool right = map.bytes >= 512 && memcmp(map.data, "SQLite format 3", 16) == 0;
    if (right)
        memcpy(header, map.data, sizeof header);
    kg_map_close(&map);
    if (!right)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected an index made by `kedge search index`, found a file "
                       "that is no SQLite database",
                       path);
    KG_TRY(check_size(header, path, *bytes, err));
    KG_TRY(kg_sql_open_index(db, path, err));
    return check_kind(*db, path, err);
}

static kg_status get_meta(double *out, sqlite3 *db, const char *path, const char *key,
                          struct kg_err *err)
{
    sqlite3_stmt *get;
    kg_status status = KG_OK;

    KG_TRY(kg_sql_prepare(&get, db, path, "SELECT value FROM meta WHERE key = ?1", err));
    sqlite3_bind_text(get, 1, key, -1, SQLITE_STATIC);
    if (sqlite3_step(get) == SQLITE_ROW)
        *out = sqlite3_column_double(get, 0);
    else
        status = kg_fail(err, KG_EFORMAT,
                         "%s: expected an index whose table meta has '%s', found none: "
                         "rebuild the index",
                         path, key);
    sqlite3_finalize(get);
    return status;
}

/* A count is a whole number that a double holds exactly; a file may hold another. */
static kg_status get_count(int64_t *out, sqlite3 *db, const char *path, const char *key,
                           struct kg_err *err)
{
    double value;

    KG_TRY(get_meta(&value, db, path, key, err));
    if (!(value >= 0 && value < 0x1p53 && value == floor(value)))
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a whole number of %s, found %g: "
                       "rebuild the index",
                       path, key, value);
    *out = (int64_t)value;
    return KG_OK;
}

static kg_status read_info(struct kg_index_info *info, sqlite3 *db, const char *path,
                           struct kg_err *err)
{
    double stemmed, stop_words;

    KG_TRY(get_count(&info->passages, db, path, "passages", err));
    KG_TRY(get_count(&info->terms, db, path, "terms", err));
    KG_TRY(get_count(&info->tokens, db, path, "tokens", err));
    KG_TRY(get_meta(&stemmed, db, path, "stemmed", err));
    KG_TRY(get_meta(&info->bm25.k1, db, path, "k1", err));
    KG_TRY(get_meta(&info->bm25.b, db, path, "b", err));
    KG_TRY(get_meta(&info->bm25.delta, db, path, "delta", err));
    KG_TRY(get_meta(&info->bm25.power, db, path, "power", err));
    KG_TRY(get_meta(&stop_words, db, path, "stop_words", err));
    info->version = KG_INDEX_VERSION;
    info->stemmed = stemmed != 0;
    info->bm25.stop_words = stop_words != 0;
    if (info->passages >= 1 && info->passages < UINT32_MAX)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "%s: expected a number of passages from 1 to 2^32 - 1, found %lld: "
                   "rebuild the index",
                   path, (long long)info->passages);
}

static kg_status take_lengths(struct kg_index *index, sqlite3_stmt *get, int64_t *at,
                              struct kg_err *err)
{
    const void *lengths = sqlite3_column_blob(get, 0); /* NULL if it is empty */
    int64_t n = sqlite3_column_bytes(get, 0) / (int64_t)sizeof *index->lengths;

    if (!lengths)
        return KG_OK;
    if (*at + n > index->info.passages)
        return kg_fail(
            err, KG_EFORMAT,
            "%s: expected the lengths of %lld passages, found more: rebuild the index",
            index->path, (long long)index->info.passages);
    memcpy(index->lengths + *at, lengths, (size_t)n * sizeof *index->lengths);
    *at += n;
    return KG_OK;
}

static kg_status read_lengths(struct kg_index *index, sqlite3 *db, struct kg_err *err)
{
    sqlite3_stmt *get = NULL;
    int64_t at = 0;
    kg_status status;

    KG_TRY(kg_mem_new(&index->lengths, (size_t)index->info.passages,
                      sizeof *index->lengths, "lengths of passages", err));
    KG_TRY(kg_sql_prepare(&get, db, index->path,
                          "SELECT words FROM length ORDER BY chunk", err));
    while (sqlite3_step(get) == SQLITE_ROW)
        KG_TRY_GOTO(out, take_lengths(index, get, &at, err));
    status = at == index->info.passages
                 ? KG_OK
                 : kg_fail(err, KG_EFORMAT,
                           "%s: expected the lengths of %lld passages, found %lld: "
                           "rebuild the index",
                           index->path, (long long)index->info.passages, (long long)at);
out:
    sqlite3_finalize(get);
    return status;
}

static kg_status open_file(struct kg_index *index, const char *path,
                           const struct kg_bm25 *bm25, uint64_t verify_up_to,
                           struct kg_err *err)
{
    sqlite3 *db = NULL;
    kg_status status;

    KG_TRY_GOTO(out, check_file(&db, &index->info.bytes, path, err));
    if (index->info.bytes <= verify_up_to)
        KG_TRY_GOTO(out, kg_seal_check(db, path, err));
    KG_TRY_GOTO(out, read_info(&index->info, db, path, err));
    index->bm25 = kg_bm25_merge(bm25 ? bm25 : &kg_bm25_unset, &index->info.bm25);
    KG_TRY_GOTO(out, kg_bm25_check(&index->bm25, err));
    KG_TRY_GOTO(out, kg_seal_read(&index->info.hash, db, path, err));
    KG_TRY_GOTO(out, kg_dense_dim(&index->info.dim, db, path, err));
    KG_TRY_GOTO(out, kg_dense_encoder(&index->info.encoder, db, path, err));
    index->by_words = true;
    index->path = kg_mem_strdup(path, err);
    status = index->path ? read_lengths(index, db, err) : KG_ENOMEM;
out:
    sqlite3_close(db);
    return status;
}

static kg_status open_index(struct kg_index **index, const char *path,
                            const struct kg_bm25 *bm25, uint64_t verify_up_to,
                            struct kg_err *err)
{
    struct kg_index *fresh = kg_mem_calloc(1, sizeof *fresh, "index", err);

    *index = NULL;
    if (!fresh)
        return KG_ENOMEM;
    kg_status status = open_file(fresh, path, bm25, verify_up_to, err);
    if (status != KG_OK) {
        kg_index_close(fresh);
        return status;
    }
    *index = fresh;
    return KG_OK;
}

kg_status kg_index_open(struct kg_index **index, const char *path,
                        const struct kg_bm25 *bm25, struct kg_err *err)
{
    return open_index(index, path, bm25, VERIFY_UP_TO_BYTES, err);
}

kg_status kg_index_open_unsealed(struct kg_index **index, const char *path,
                                 const struct kg_bm25 *bm25, struct kg_err *err)
{
    return open_index(index, path, bm25, 0, err);
}

void kg_index_close(struct kg_index *index)
{
    if (!index)
        return;
    if (index->dense)
        kg_dense_close(index->dense);
    kg_mem_free(index->path);
    kg_mem_free(index->lengths);
    kg_mem_free(index);
}

void kg_index_info(struct kg_index_info *out, const struct kg_index *index)
{
    *out = index->info;
}

kg_status kg_index_verify(const char *path, struct kg_err *err)
{
    sqlite3 *db = NULL;
    uint64_t bytes;
    kg_status status = check_file(&db, &bytes, path, err);

    if (status == KG_OK)
        status = kg_seal_check(db, path, err);
    sqlite3_close(db);
    return status;
}

void kg_search_size(struct kg_search_size *out, int64_t passages, int32_t dim)
{
    const uint64_t n = (uint64_t)passages, d = (uint64_t)dim;

    *out = (struct kg_search_size){.lengths = n * sizeof(uint32_t),
                                   .vectors_fp16 = n * d * sizeof(uint16_t),
                                   .vectors_int8 = dim ? n * (d + 2 * sizeof(float)) : 0};
}
