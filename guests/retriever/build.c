/* Builds an index: one pass over the corpus into a temporary database, which is sealed,
 * synced and renamed when complete. It is one transaction without journal or syncs; a
 * failure leaves a temporary file. FTS5 collects words in memory and writes them in large
 * sorted runs. The additional lists of the search (number of passages of a word, words of
 * a passage) are made here, because FTS5 would compute them slowly for every query. */
#include "retriever/build.h"
#include "search/index_file.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/phase.h"
#include "base/signal.h"
#include "base/status.h"
#include "base/str.h"
#include "data/records.h"
#include "search/dense.h"
#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- ids seen so far ---- */

struct seen_entry {
    uint64_t hash;   /* 0: free */
    uint32_t row;    /* from 1 */
    uint32_t number; /* number of the record in its file */
};
struct seen {                   /* {0} is empty */
    struct seen_entry *entries; /* (capacity) owned */
    size_t capacity;            /* a power of two, or 0 */
    size_t used;
};

static void release_seen(struct seen *seen)
{
    kg_mem_free(seen->entries);
    *seen = (struct seen){0};
}

/* The next entry with this hash, or NULL. *at: position, SIZE_MAX at first. */
static const struct seen_entry *find_seen(const struct seen *seen, uint64_t hash,
                                          size_t *at)
{
    size_t mask = seen->capacity - 1;

    if (seen->capacity == 0)
        return NULL;
    if (*at == SIZE_MAX)
        *at = hash & mask;
    while (seen->entries[*at & mask].hash != 0) {
        const struct seen_entry *e = &seen->entries[(*at)++ & mask];

        if (e->hash == hash)
            return e;
    }
    return NULL;
}

static void place(struct seen *seen, const struct seen_entry *entry)
{
    size_t mask = seen->capacity - 1;
    size_t at = entry->hash & mask;

    while (seen->entries[at].hash != 0)
        at = (at + 1) & mask;
    seen->entries[at] = *entry;
    seen->used++;
}

static kg_status widen(struct seen *seen, struct kg_err *err)
{
    struct seen wider = {.capacity = seen->capacity ? 2 * seen->capacity : 1024};

    KG_TRY(kg_mem_new(&wider.entries, wider.capacity, sizeof *wider.entries, "ids", err));
    for (size_t i = 0; i < seen->capacity; i++)
        if (seen->entries[i].hash != 0)
            place(&wider, &seen->entries[i]);
    release_seen(seen);
    *seen = wider;
    return KG_OK;
}

static kg_status add_seen(struct seen *seen, const struct seen_entry *entry,
                          struct kg_err *err)
{
    if (3 * (seen->used + 1) > 2 * seen->capacity)
        KG_TRY(widen(seen, err));
    place(seen, entry);
    return KG_OK;
}

enum {
    WORDS_IN_MEMORY_BYTES = 256 << 20, /* before FTS5 writes a run */
    PROGRESS_EVERY = 4096,             /* passages */
    STEPS_BETWEEN_LOOKS = 1 << 14,     /* of SQLite's virtual machine */
    PROGRESS_MS = 5000,
    MAX_PASSAGES = UINT32_MAX - 1,
};

struct counter {
    fts5_tokenizer inner;
    void *inner_user;
    uint32_t words; /* of the passage being indexed */
};

struct builder {
    const struct kg_index_build_opts *opts;
    struct kg_index_info *info;
    struct kg_records *records;
    struct kg_str temporary; /* path */
    bool begun;              /* this call made the temporary file */
    sqlite3 *db;
    sqlite3_stmt *put_passage, *put_words, *put_lengths;
    struct counter counter;
    struct seen seen;
    struct kg_dense_writer *dense; /* NULL: only words */
    struct kg_str contents;        /* made of a record's title and text */
    uint32_t *lengths;             /* (KG_LENGTHS_A_ROW) */
    double start;
    int phase;
};

/* ---- counting words ----
 * FTS5 does not report how many words a passage has. So its tokenizer is wrapped in one
 * that counts, registered under the same name: the index stores the standard name. */

struct counting {
    struct counter *counter;
    Fts5Tokenizer *inner;
};
typedef int (*token_fn)(void *, int, const char *, int, int, int);
struct relay {
    struct counter *counter;
    token_fn give;
    void *context;
};

static int counting_create(void *user, const char **args, int n, Fts5Tokenizer **out)
{
    struct counter *c = user;
    struct kg_err err;
    struct counting *t = kg_mem_calloc(1, sizeof *t, "tokenizer", &err);

    if (!t)
        return SQLITE_NOMEM;
    t->counter = c;
    int code = c->inner.xCreate(c->inner_user, args, n, &t->inner);
    if (code != SQLITE_OK) {
        kg_mem_free(t);
        return code;
    }
    *out = (Fts5Tokenizer *)t;
    return SQLITE_OK;
}

static void counting_delete(Fts5Tokenizer *tokenizer)
{
    struct counting *t = (struct counting *)tokenizer;

    t->counter->inner.xDelete(t->inner);
    kg_mem_free(t);
}

static int count_one(void *context, int flags, const char *word, int n, int from, int to)
{
    struct relay *r = context;

    r->counter->words++;
    return r->give(r->context, flags, word, n, from, to);
}

static int counting_tokenize(Fts5Tokenizer *tokenizer, void *context, int flags,
                             const char *text, int n, token_fn give)
{
    struct counting *t = (struct counting *)tokenizer;
    struct relay relay = {t->counter, give, context};

    return t->counter->inner.xTokenize(t->inner, &relay, flags, text, n, count_one);
}

static kg_status wrap_tokenizer(struct builder *b, struct kg_err *err)
{
    fts5_tokenizer wrapped = {counting_create, counting_delete, counting_tokenize};
    fts5_api *api = kg_fts5(b->db);
    int code = SQLITE_ERROR;

    if (!api)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "expected SQLite with FTS5, found %s without it",
                       sqlite3_libversion());
    code = api->xFindTokenizer(api, "unicode61", &b->counter.inner_user,
                               &b->counter.inner);
    if (code == SQLITE_OK)
        code = api->xCreateTokenizer(api, "unicode61", &b->counter, &wrapped, NULL);
    return code == SQLITE_OK ? KG_OK
                             : kg_sql_fail(err, b->db, code, b->temporary.data,
                                           "prepare the tokenizer");
}

/* ---- the database ---- */

/* `seal` is created first, so that its page is one of the first and never moves */
static const char tables[] =
    "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;PRAGMA locking_mode=EXCLUSIVE; "
    "PRAGMA cache_size=-65536;BEGIN;CREATE TABLE seal (hash INTEGER NOT NULL);INSERT "
    "INTO seal VALUES (0);CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) "
    "WITHOUT ROWID;CREATE TABLE passage (n INTEGER PRIMARY KEY, id TEXT NOT NULL, "
    "contents TEXT NOT NULL);CREATE TABLE length (chunk INTEGER PRIMARY KEY, words BLOB "
    "NOT NULL);CREATE TABLE term (term TEXT PRIMARY KEY, passages INTEGER NOT NULL) "
    "WITHOUT ROWID;";

static kg_status make_tables(struct builder *b, struct kg_err *err)
{
    const char *path = b->temporary.data;
    char sql[512];

    snprintf(sql, sizeof sql, "PRAGMA page_size=%d;", KG_INDEX_PAGE_BYTES);
    KG_TRY(kg_sql_exec(b->db, path, sql, err));
    KG_TRY(kg_sql_exec(b->db, path, tables, err));
    snprintf(sql, sizeof sql,
             "PRAGMA application_id=%d; PRAGMA user_version=%d;CREATE VIRTUAL TABLE "
             "words USING fts5(contents, content='', columnsize=0, tokenize='%sunicode61 "
             "remove_diacritics 2');INSERT INTO words(words, rank) VALUES('pgsz', "
             "8000);INSERT INTO words(words, rank) VALUES('hashsize', %d);",
             KG_INDEX_APPLICATION, KG_INDEX_VERSION,
             b->opts->words_as_are ? "" : "porter ", WORDS_IN_MEMORY_BYTES);
    KG_TRY(kg_sql_exec(b->db, path, sql, err));
    KG_TRY(kg_sql_prepare(&b->put_passage, b->db, path,
                          "INSERT INTO passage VALUES (?1, ?2, ?3)", err));
    KG_TRY(kg_sql_prepare(&b->put_words, b->db, path,
                          "INSERT INTO words(rowid, contents) VALUES (?1, ?2)", err));
    return kg_sql_prepare(&b->put_lengths, b->db, path,
                          "INSERT INTO length VALUES (?1, ?2)", err);
}

/* Removes a file or link. A folder is an error: kedge does not make one here. */
static kg_status remove_file(const char *path, struct kg_err *err)
{
    if (unlink(path) == 0 || errno == ENOENT)
        return KG_OK;
    return kg_fail(err, KG_EIO, "%s: expected a file that can be removed, found: %s",
                   path, strerror(errno));
}

/* Whether the file begins with SQLite's magic and has kedge's application id. */
static bool is_index(const char *path)
{
    enum { NAME = 16, APPLICATION = 68, HEAD = 72 };
    static const char name[NAME] = "SQLite format 3";
    unsigned char head[HEAD] = {0}, *at = head + APPLICATION;
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(head, 1, HEAD, f) : 0;
    uint32_t application = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 |
                           (uint32_t)at[2] << 8 | at[3];

    if (f)
        fclose(f);
    return n == HEAD && memcmp(head, name, NAME) == 0 &&
           application == KG_INDEX_APPLICATION;
}

/* An index may replace only an index. */
static kg_status check_place(const char *path, struct kg_err *err)
{
    struct stat info;

    if (lstat(path, &info) != 0 || (S_ISREG(info.st_mode) && is_index(path)))
        return KG_OK; /* if lstat failed for another reason, writing fails, too */
    return kg_fail(err, KG_EINVAL,
                   "%s: expected nothing or an index to replace, found %s", path,
                   S_ISREG(info.st_mode)   ? "another file"
                   : S_ISDIR(info.st_mode) ? "a folder"
                   : S_ISLNK(info.st_mode) ? "a link"
                                           : "a device, a pipe or a socket");
}

static kg_status builder_open(struct builder *b, struct kg_err *err)
{
    KG_TRY(kg_records_open(&b->records, b->opts->corpus, err));
    KG_TRY(check_place(b->opts->path, err));
    KG_TRY(kg_file_remove_stale(b->opts->path, err));
    KG_TRY(kg_file_temporary(&b->temporary, b->opts->path, err));
    KG_TRY(remove_file(b->temporary.data, err));
    b->begun = true;
    int code = sqlite3_open_v2(
        b->temporary.data, &b->db,
        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    if (code != SQLITE_OK)
        return kg_sql_fail(err, b->db, code, b->temporary.data, "create the index");
    KG_TRY(kg_mem_new(&b->lengths, KG_LENGTHS_A_ROW, sizeof *b->lengths, "lengths", err));
    b->start = kg_clock_seconds();
    KG_TRY(wrap_tokenizer(b, err));
    KG_TRY(make_tables(b, err));
    return b->opts->encoder
               ? kg_dense_writer_open(&b->dense, b->db, b->temporary.data,
                                      b->opts->encoder, b->opts->vectors, err)
               : KG_OK;
}

static void drop_statements(struct builder *b)
{
    sqlite3_finalize(b->put_passage);
    sqlite3_finalize(b->put_words);
    sqlite3_finalize(b->put_lengths);
    if (b->dense)
        kg_dense_writer_close(b->dense);
    b->dense = NULL;
    b->put_passage = b->put_words = b->put_lengths = NULL;
}

/* ---- one record ---- */

struct record {
    char number[24]; /* the id of a record that has none */
    const char *id;
    const char *contents; /* in the document, or in the builder */
    size_t n;             /* of contents */
};

static kg_status read_id(struct record *r, const struct kg_json_doc *doc, bool optional,
                         int64_t number, struct kg_err *err)
{
    const struct kg_json *id = kg_json_get(doc->root, "id");

    r->id = r->number;
    if (kg_json_type(id) == KG_JSON_INT)
        number = kg_json_int(id, 0);
    else if (id || !optional)
        return kg_json_need_text(&r->id, doc, doc->root, "id", err);
    snprintf(r->number, sizeof r->number, "%lld", (long long)number);
    return KG_OK;
}

static kg_status read_record(struct record *r, struct builder *b,
                             const struct kg_json_doc *doc, struct kg_err *err)
{
    bool joined = kg_json_get(doc->root, "contents") == NULL;

    if (joined && !kg_json_get(doc->root, "text"))
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected the keys id and contents, or title and text, found "
                       "neither contents nor text",
                       doc->where);
    KG_TRY(read_id(r, doc, joined, kg_records_number(b->records), err));
    if (joined) {
        /* Search-R1's corpora write the title in quotes on a line of its own. */
        const char *title, *text;

        KG_TRY(kg_json_need_text(&title, doc, doc->root, "title", err));
        KG_TRY(kg_json_need_text(&text, doc, doc->root, "text", err));
        kg_str_clear(&b->contents);
        KG_TRY(kg_str_printf(&b->contents, err, "\"%s\"\n%s", title, text));
        r->contents = b->contents.data;
    } else
        KG_TRY(kg_json_need_text(&r->contents, doc, doc->root, "contents", err));
    r->n = strlen(r->contents);
    return KG_OK;
}

/* *same: the passage of this row has this id, not only the same hash */
static kg_status same_id(bool *same, struct builder *b, uint32_t row, const char *id,
                         struct kg_err *err)
{
    sqlite3_stmt *get;
    const char *found;

    KG_TRY(kg_sql_prepare(&get, b->db, b->temporary.data,
                          "SELECT id FROM passage WHERE n = ?1", err));
    sqlite3_bind_int64(get, 1, row);
    int code = sqlite3_step(get);
    found = code == SQLITE_ROW ? (const char *)sqlite3_column_text(get, 0) : NULL;
    *same = found && strcmp(found, id) == 0;
    sqlite3_finalize(get);
    return found ? KG_OK
                 : kg_sql_fail(err, b->db, code, b->temporary.data, "read an id back");
}

static kg_status check_id(struct builder *b, const struct kg_json_doc *doc,
                          const char *id, struct kg_err *err)
{
    uint64_t hash = kg_hash_bytes(id, strlen(id));
    struct seen_entry entry = {.hash = hash ? hash : 1,
                               .row = (uint32_t)b->info->passages + 1,
                               .number = (uint32_t)kg_records_number(b->records)};
    const struct seen_entry *e;
    size_t at = SIZE_MAX;
    bool same;

    while ((e = find_seen(&b->seen, entry.hash, &at)) != NULL) {
        KG_TRY(same_id(&same, b, e->row, id, err));
        if (same)
            return kg_fail(err, KG_EFORMAT,
                           "%s: the id '%s' was given before, at %s %" PRIu32
                           ": expected every id once",
                           doc->where, id, kg_records_unit(b->records), e->number);
    }
    return add_seen(&b->seen, &entry, err);
}

static kg_status flush_lengths(struct builder *b, struct kg_err *err)
{
    int64_t rest = b->info->passages % KG_LENGTHS_A_ROW;
    int64_t n = rest ? rest : KG_LENGTHS_A_ROW;

    sqlite3_bind_int64(b->put_lengths, 1, (b->info->passages - n) / KG_LENGTHS_A_ROW);
    sqlite3_bind_blob(b->put_lengths, 2, b->lengths,
                      (int)(n * (int64_t)sizeof *b->lengths), SQLITE_STATIC);
    return kg_sql_run(b->put_lengths, b->db, b->temporary.data, err);
}

static kg_status add_record(struct builder *b, const struct record *r, struct kg_err *err)
{
    const char *path = b->temporary.data;
    int64_t row = b->info->passages + 1;

    b->counter.words = 0;
    sqlite3_bind_int64(b->put_passage, 1, row);
    sqlite3_bind_text(b->put_passage, 2, r->id, -1, SQLITE_STATIC);
    sqlite3_bind_text(b->put_passage, 3, r->contents, (int)r->n, SQLITE_STATIC);
    KG_TRY(kg_sql_run(b->put_passage, b->db, path, err));
    sqlite3_bind_int64(b->put_words, 1, row);
    sqlite3_bind_text(b->put_words, 2, r->contents, (int)r->n, SQLITE_STATIC);
    KG_TRY(kg_sql_run(b->put_words, b->db, path, err));
    if (b->dense && kg_dense_writer_add(b->dense, r->contents, r->n, err) != KG_OK)
        return kg_err_prefix(err, "%s", b->opts->corpus);
    b->lengths[(row - 1) % KG_LENGTHS_A_ROW] = b->counter.words;
    b->info->tokens += b->counter.words;
    b->info->passages = row;
    kg_phase_at(b->phase, row);
    return row % KG_LENGTHS_A_ROW == 0 ? flush_lengths(b, err) : KG_OK;
}

/* ---- all records ---- */

/* Embedding a passage takes about a thousand times as long as indexing its words. */
static int64_t progress_every(const struct builder *b)
{
    return b->dense && !b->opts->vectors ? KG_DENSE_ROWS : PROGRESS_EVERY;
}

static kg_status stopped(const struct builder *b, struct kg_err *err)
{
    return kg_fail(err, KG_EINTERRUPTED, "%s: stopped by a signal, nothing written",
                   b->opts->path);
}

static kg_status look_around(const struct builder *b, struct kg_err *err)
{
    double seconds = kg_clock_seconds() - b->start;

    if (kg_signal_stop_requested())
        return stopped(b, err);
    if (b->info->passages % progress_every(b) != 0)
        return KG_OK;
    kg_log_progress(PROGRESS_MS, "indexing: %lld passages, %.0f a second",
                    (long long)b->info->passages,
                    seconds > 0 ? (double)b->info->passages / seconds : 0);
    return KG_OK;
}

static kg_status add_records(struct builder *b, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct record r;
    bool more = true;
    kg_status status;

    for (;;) {
        KG_TRY_GOTO(out, kg_records_next(b->records, &doc, &more, err));
        if (!more)
            break;
        if (b->info->passages >= MAX_PASSAGES) {
            status = kg_fail(err, KG_EUNSUPPORTED, "%s: more than %lld passages",
                             b->opts->corpus, (long long)MAX_PASSAGES);
            goto out;
        }
        KG_TRY_GOTO(out, read_record(&r, b, &doc, err));
        KG_TRY_GOTO(out, check_id(b, &doc, r.id, err));
        KG_TRY_GOTO(out, add_record(b, &r, err));
        KG_TRY_GOTO(out, look_around(b, err));
    }
    if (b->info->passages == 0)
        status = kg_fail(err, KG_EFORMAT, "%s: expected at least one passage, found none",
                         b->opts->corpus);
out:
    kg_json_release(&doc);
    return status;
}

/* ---- the end ---- */

static kg_status put_meta(struct builder *b, const char *key, double value,
                          struct kg_err *err)
{
    sqlite3_stmt *put;

    KG_TRY(kg_sql_prepare(&put, b->db, b->temporary.data,
                          "INSERT INTO meta VALUES (?1, ?2)", err));
    sqlite3_bind_text(put, 1, key, -1, SQLITE_STATIC);
    sqlite3_bind_double(put, 2, value);
    kg_status status = kg_sql_run(put, b->db, b->temporary.data, err);
    sqlite3_finalize(put);
    return status;
}

/* Called by SQLite while it works; it stops on a result other than 0. */
static int is_stopped(void *user)
{
    (void)user;
    return kg_signal_stop_requested();
}

static kg_status finish_tables(struct builder *b, struct kg_err *err)
{
    const char *path = b->temporary.data;

    if (b->info->passages % KG_LENGTHS_A_ROW != 0)
        KG_TRY(flush_lengths(b, err));
    if (b->dense)
        KG_TRY(kg_dense_writer_end(b->dense, err));
    drop_statements(b);
    sqlite3_progress_handler(b->db, STEPS_BETWEEN_LOOKS, is_stopped, NULL);
    kg_phase_begin(0, NULL, "merging the word lists (SQLite reports no progress)");
    kg_log_progress(PROGRESS_MS, "indexing: merging the word lists of %lld passages",
                    (long long)b->info->passages);
    KG_TRY(kg_sql_exec(b->db, path,
                       "INSERT INTO words(words) VALUES('optimize');CREATE VIRTUAL TABLE "
                       "temp.list USING fts5vocab(main, words, row);INSERT INTO term "
                       "SELECT term, doc FROM temp.list;DROP TABLE temp.list;",
                       err));
    KG_TRY(kg_dense_dim(&b->info->dim, b->db, path, err));
    KG_TRY(kg_dense_encoder(&b->info->encoder, b->db, path, err));
    KG_TRY(kg_sql_int(&b->info->terms, b->db, path, "SELECT count(*) FROM term", err));
    KG_TRY(put_meta(b, "passages", (double)b->info->passages, err));
    KG_TRY(put_meta(b, "terms", (double)b->info->terms, err));
    KG_TRY(put_meta(b, "tokens", (double)b->info->tokens, err));
    KG_TRY(put_meta(b, "stemmed", !b->opts->words_as_are, err));
    KG_TRY(put_meta(b, "k1", b->opts->bm25.k1, err));
    KG_TRY(put_meta(b, "b", b->opts->bm25.b, err));
    KG_TRY(put_meta(b, "delta", b->opts->bm25.delta, err));
    KG_TRY(put_meta(b, "power", b->opts->bm25.power, err));
    KG_TRY(put_meta(b, "stop_words", b->opts->bm25.stop_words, err));
    return kg_sql_exec(b->db, path, "COMMIT", err);
}

/* The hash is computed when all other pages are final. Storing it changes its own page
 * and the header's page, which the hash does not cover. */
static kg_status seal(struct builder *b, struct kg_err *err)
{
    const char *path = b->temporary.data;
    uint64_t *hash = &b->info->hash;
    sqlite3_stmt *put;
    int64_t page;

    kg_phase_begin(0, NULL, "sealing the index");
    KG_TRY(kg_sql_int(&page, b->db, path,
                      "SELECT rootpage FROM sqlite_schema WHERE name = 'seal'", err));
    KG_TRY(kg_seal_hash(hash, path, (uint64_t)page, err));
    KG_TRY(kg_sql_prepare(&put, b->db, path, "UPDATE seal SET hash = ?1", err));
    sqlite3_bind_int64(put, 1, (int64_t)*hash);
    kg_status status = kg_sql_run(put, b->db, path, err);
    sqlite3_finalize(put);
    return status;
}

static kg_status finish(struct builder *b, struct kg_err *err)
{
    kg_status status = finish_tables(b, err);

    if (status == KG_EINTERRUPTED)
        return stopped(b, err);
    KG_TRY(status);
    sqlite3_progress_handler(b->db, 0, NULL, NULL);
    KG_TRY(seal(b, err)); /* complete: from here on, signals no longer stop the build */
    int code = sqlite3_close(b->db);
    if (code != SQLITE_OK)
        return kg_sql_fail(err, b->db, code, b->temporary.data, "close the index");
    b->db = NULL;
    KG_TRY(kg_file_size(&b->info->bytes, b->temporary.data, err));
    return kg_file_replace(b->temporary.data, b->opts->path, err);
}

kg_status kg_index_build(struct kg_index_info *info,
                         const struct kg_index_build_opts *opts, struct kg_err *err)
{
    struct builder b = {.opts = opts, .info = info};
    struct kg_err ignored;
    kg_status status;

    *info = (struct kg_index_info){
        .version = KG_INDEX_VERSION, .stemmed = !opts->words_as_are, .bm25 = opts->bm25};
    KG_TRY(kg_bm25_check(&opts->bm25, err));
    b.phase = kg_phase_begin(0, "passages", "indexing %s", opts->corpus);
    KG_TRY_GOTO(out, builder_open(&b, err));
    KG_TRY_GOTO(out, add_records(&b, err));
    KG_TRY_GOTO(out, finish(&b, err));
out:
    kg_log_progress_end();
    drop_statements(&b);
    sqlite3_close(b.db);
    b.db = NULL;
    if (status != KG_OK && b.begun && remove_file(b.temporary.data, &ignored) != KG_OK)
        kg_log_warn("%s", ignored.message);
    drop_statements(&b);
    sqlite3_close(b.db);
    kg_records_close(b.records);
    release_seen(&b.seen);
    kg_str_release(&b.contents);
    kg_str_release(&b.temporary);
    kg_mem_free(b.lengths);
    kg_phase_end(b.phase);
    return status;
}
