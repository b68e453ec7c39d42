/* SQLite with errors that name the file and the purpose: all calls go through these
 * functions. An index is opened read-only and immutable, so it needs no locks and may be
 * in a read-only folder. The seal is a hash over the pages, except that of the header and
 * its own, written last; a truncated or changed file does not match it. */
#include "search/index_file.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static kg_status status_of(int code)
{
    switch (code & 0xff) {
    case SQLITE_NOMEM:
        return KG_ENOMEM;
    case SQLITE_FULL:
        return KG_ENOSPACE;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_ERROR: /* a missing table, a value that FTS5 cannot read */
        return KG_EFORMAT;
    case SQLITE_INTERRUPT:
        return KG_EINTERRUPTED;
    default:
        return KG_EIO;
    }
}

kg_status kg_sql_fail(struct kg_err *err, sqlite3 *db, int code, const char *path,
                      const char *doing)
{
    const char *why = db ? sqlite3_errmsg(db) : sqlite3_errstr(code);

    if ((code & 0xff) == SQLITE_CORRUPT)
        return kg_fail(err, status_of(code),
                       "%s: expected an intact index, found a damaged file (%s): rebuild "
                       "it from its corpus",
                       path, why);
    return kg_fail(err, status_of(code), "%s: cannot %s: %s", path, doing, why);
}

kg_status kg_sql_exec(sqlite3 *db, const char *path, const char *sql, struct kg_err *err)
{
    int code = sqlite3_exec(db, sql, NULL, NULL, NULL);

    return code == SQLITE_OK ? KG_OK : kg_sql_fail(err, db, code, path, sql);
}

kg_status kg_sql_prepare(sqlite3_stmt **statement, sqlite3 *db, const char *path,
                         const char *sql, struct kg_err *err)
{
    int code = sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, statement,
                                  NULL);

    return code == SQLITE_OK ? KG_OK : kg_sql_fail(err, db, code, path, sql);
}

kg_status kg_sql_run(sqlite3_stmt *statement, sqlite3 *db, const char *path,
                     struct kg_err *err)
{
    kg_status status = KG_OK;
    int code = sqlite3_step(statement);

    if (code != SQLITE_DONE)
        status = kg_sql_fail(err, db, code, path, sqlite3_sql(statement));
    sqlite3_reset(statement);
    return status;
}

kg_status kg_sql_int(int64_t *out, sqlite3 *db, const char *path, const char *sql,
                     struct kg_err *err)
{
    sqlite3_stmt *statement;
    kg_status status = KG_OK;

    KG_TRY(kg_sql_prepare(&statement, db, path, sql, err));
    int code = sqlite3_step(statement);
    if (code == SQLITE_ROW)
        *out = sqlite3_column_int64(statement, 0);
    else
        status = code == SQLITE_DONE
                     ? kg_fail(err, KG_EFORMAT, "%s: expected a row from: %s, found none",
                               path, sql)
                     : kg_sql_fail(err, db, code, path, sql);
    sqlite3_finalize(statement);
    return status;
}

/* 32 MiB per reader: the inner pages of every tree, and those of frequent words. */
#define PAGES_IN_MEMORY "PRAGMA cache_size=-32768"

/* A path as a URI: characters that have a meaning there become %XX. */
static kg_status put_uri(struct kg_str *uri, const char *path, struct kg_err *err)
{
    KG_TRY(kg_str_puts(uri, "file:", err));
    for (const char *p = path; *p; p++) {
        if (kg_char_in("%?# ", *p))
            KG_TRY(kg_str_printf(uri, err, "%%%02X", (unsigned char)*p));
        else
            KG_TRY(kg_str_putc(uri, *p, err));
    }
    return kg_str_puts(uri, "?immutable=1", err);
}

kg_status kg_sql_open_index(sqlite3 **db, const char *path, struct kg_err *err)
{
    const int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX;
    struct kg_str uri = {0};
    kg_status status;

    *db = NULL;
    KG_TRY_GOTO(out, put_uri(&uri, path, err));
    int code = kg_sql_strict() ? sqlite3_open_v2(uri.data, db, flags, kg_sql_strict())
                               : SQLITE_NOMEM;
    status = code == SQLITE_OK ? kg_sql_exec(*db, path, PAGES_IN_MEMORY, err)
                               : kg_sql_fail(err, *db, code, path, "open the index");
    if (status != KG_OK) {
        sqlite3_close(*db);
        *db = NULL;
    }
out:
    kg_str_release(&uri);
    return status;
}

struct fts5_api *kg_fts5(sqlite3 *db)
{
    struct fts5_api *api = NULL;
    sqlite3_stmt *statement = NULL;

    if (sqlite3_prepare_v2(db, "SELECT fts5(?1)", -1, &statement, NULL) == SQLITE_OK) {
        sqlite3_bind_pointer(statement, 1, &api, "fts5_api_ptr", NULL);
        sqlite3_step(statement);
    }
    sqlite3_finalize(statement);
    return api;
}

/* ---- the seal ---- */

unsigned kg_sql_page_size(const unsigned char *header)
{
    unsigned size = header[16] * 256u + header[17];

    return size == 1 ? 65536 : size; /* the format's code, as 65536 needs three bytes */
}

kg_status kg_seal_hash(uint64_t *hash, const char *path, uint64_t page,
                       struct kg_err *err)
{
    struct kg_map map;
    uint64_t size, parts[2];
    kg_status status = KG_OK;

    KG_TRY(kg_map_open(&map, path, err));
    size = map.bytes < 100 ? 0 : kg_sql_page_size(map.data);
    if (size < 512 || page < 2 || map.bytes < page * size)
        status = kg_fail(err, KG_EFORMAT,
                         "%s: expected at least %" PRIu64 " pages of an index, found "
                         "%" PRIu64 " bytes",
                         path, page, map.bytes);
    else {
        parts[0] = kg_hash_bytes(map.data + size, (page - 2) * size);
        parts[1] = kg_hash_bytes(map.data + page * size, map.bytes - page * size);
        *hash = kg_hash_bytes(parts, sizeof parts);
    }
    kg_map_close(&map);
    return status;
}

kg_status kg_seal_read(uint64_t *hash, sqlite3 *db, const char *path, struct kg_err *err)
{
    int64_t sealed;

    KG_TRY(kg_sql_int(&sealed, db, path, "SELECT hash FROM seal", err));
    *hash = (uint64_t)sealed;
    return KG_OK;
}

kg_status kg_seal_check(sqlite3 *db, const char *path, struct kg_err *err)
{
    uint64_t found, sealed;
    int64_t page;

    KG_TRY(kg_sql_int(&page, db, path,
                      "SELECT rootpage FROM sqlite_schema WHERE name = 'seal'", err));
    KG_TRY(kg_seal_read(&sealed, db, path, err));
    KG_TRY(kg_seal_hash(&found, path, (uint64_t)page, err));
    if (found == sealed)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "%s: the file is damaged: expected the hash %016" PRIx64 ", found "
                   "%016" PRIx64 "; rebuild the index",
                   path, sealed, found);
}

/* ---- values of the table `meta` ---- */
kg_status kg_meta_text(char **value, sqlite3 *db, const char *path, const char *key,
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

kg_status kg_meta_number(uint64_t *out, sqlite3 *db, const char *path, const char *key,
                         int base, uint64_t max, struct kg_err *err)
{
    kg_status status = KG_OK;
    char *text, *end;

    *out = 0;
    KG_TRY(kg_meta_text(&text, db, path, key, err));
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

    KG_TRY(kg_meta_number(&n, db, path, "dense_dim", 10, 1 << 24, err));
    *dim = (int32_t)n;
    return KG_OK;
}

kg_status kg_dense_encoder(uint64_t *hash, sqlite3 *db, const char *path,
                           struct kg_err *err)
{
    return kg_meta_number(hash, db, path, "dense_encoder", 16, UINT64_MAX, err);
}
