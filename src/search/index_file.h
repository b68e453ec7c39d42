/* The tables of an index, and SQLite calls whose errors name the file. Code that builds,
 * opens or searches an index includes this file. */
#ifndef KG_SEARCH_INDEX_FILE_H
#define KG_SEARCH_INDEX_FILE_H

#include "search/index.h"

#include <sqlite3.h>

enum {
    KG_INDEX_APPLICATION = 0x6b646769, /* "kdgi", SQLite's application id */
    KG_LENGTHS_A_ROW = 1 << 16,        /* lengths per row of table `length` */
    KG_INDEX_PAGE_BYTES = 8192,
};

struct kg_index {
    struct kg_dense *dense; /* owned; NULL: words only */
    bool by_words;          /* false: vectors only */
    int fusion;             /* enum kg_fusion */
    double weight;          /* weight of the ranking by vectors */
    char *path;             /* owned */
    struct kg_index_info info;
    struct kg_bm25 bm25;
    uint32_t *lengths; /* (passages) owned: number of words of each */
};

/* Fails with "PATH: cannot DOING: reason" for SQLite's code. db may be NULL. */
kg_status kg_sql_fail(struct kg_err *err, sqlite3 *db, int code, const char *path,
                      const char *doing);
kg_status kg_sql_exec(sqlite3 *db, const char *path, const char *sql,
                      struct kg_err *err) KG_MUST_CHECK;
kg_status kg_sql_prepare(sqlite3_stmt **statement, sqlite3 *db, const char *path,
                         const char *sql, struct kg_err *err) KG_MUST_CHECK;
/* Runs a statement without result rows and resets it. */
kg_status kg_sql_run(sqlite3_stmt *statement, sqlite3 *db, const char *path,
                     struct kg_err *err) KG_MUST_CHECK;
/* Runs an SQL query that returns a single integer. */
kg_status kg_sql_int(int64_t *out, sqlite3 *db, const char *path, const char *sql,
                     struct kg_err *err) KG_MUST_CHECK;
/* Reads a value of table `meta`.   *value: owned, NULL if there is none
 * errors: ENOMEM */
kg_status kg_meta_text(char **value, sqlite3 *db, const char *path, const char *key,
                       struct kg_err *err) KG_MUST_CHECK;
/* Reads a number from 0 to max in `base`; 0 if table `meta` has no such value.   errors:
 * EFORMAT */
kg_status kg_meta_number(uint64_t *out, sqlite3 *db, const char *path, const char *key,
                         int base, uint64_t max, struct kg_err *err) KG_MUST_CHECK;
/* Dimension of the index's vectors; 0: it has none.   errors: EFORMAT */
kg_status kg_dense_dim(int32_t *dim, sqlite3 *db, const char *path,
                       struct kg_err *err) KG_MUST_CHECK;
/* The hash of the encoder that made the vectors; 0: none.   errors: EFORMAT */
kg_status kg_dense_encoder(uint64_t *hash, sqlite3 *db, const char *path,
                           struct kg_err *err) KG_MUST_CHECK;
/* vfs.c: registers a file layer for SQLite that reports a short read as an error.
 * returns its name; NULL if out of memory */
const char *kg_sql_strict(void);
/* Opens an index read-only, without locks: an index never changes in place. */
kg_status kg_sql_open_index(sqlite3 **db, const char *path,
                            struct kg_err *err) KG_MUST_CHECK;

/* Page size, from the first 100 bytes of a database. */
unsigned kg_sql_page_size(const unsigned char *header);

/* FTS5's interface for tokenizers and ranking functions; NULL if SQLite lacks FTS5. */
struct fts5_api;
struct fts5_api *kg_fts5(sqlite3 *db);

/* kg_index_open without verifying the file. */
kg_status kg_index_open_unsealed(struct kg_index **index, const char *path,
                                 const struct kg_bm25 *bm25,
                                 struct kg_err *err) KG_MUST_CHECK;

/* The seal: a hash of the whole file except two pages, the header's and the seal's.
 * page: number of the page with the table `seal`   errors: EIO, ENOTFOUND, EFORMAT (file
 * too short) */
kg_status kg_seal_hash(uint64_t *hash, const char *path, uint64_t page,
                       struct kg_err *err) KG_MUST_CHECK;
/* Reads the stored seal. */
kg_status kg_seal_read(uint64_t *hash, sqlite3 *db, const char *path,
                       struct kg_err *err) KG_MUST_CHECK;
kg_status kg_seal_check(sqlite3 *db, const char *path, struct kg_err *err) KG_MUST_CHECK;

/* Whether an English word is a stop word: left out of queries with enough other words. */
bool kg_stop_word(const char *word, size_t n);

#endif
