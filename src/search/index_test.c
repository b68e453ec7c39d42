/* Tests of building an index, opening it, and searching it. */
#include "retriever/build.h"
#include "search/index_file.h"

#include "base/folder_testing.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

/* BM25 without extensions */
static const struct kg_bm25 plain = {.k1 = 1.2, .b = 0.75, .power = 1};

static struct kg_index_info build_with(const char *corpus,
                                       const struct kg_index_build_opts *opts)
{
    struct kg_index_build_opts o = *opts;
    struct kg_index_info info;

    put("corpus", corpus);
    o.corpus = in_dir("corpus");
    o.path = in_dir("index");
    must(kg_index_build(&info, &o, &err));
    return info;
}

static struct kg_index_info build(const char *corpus)
{
    struct kg_index_build_opts o = {.bm25 = plain};

    return build_with(corpus, &o);
}

static kg_status build_again(void)
{
    struct kg_index_build_opts o = {.bm25 = kg_bm25_default};
    struct kg_index_info info;

    o.corpus = in_dir("corpus");
    o.path = in_dir("index");
    return kg_index_build(&info, &o, &err);
}

static kg_status try_build(const char *corpus)
{
    put("corpus", corpus);
    return build_again();
}

static void nothing_temporary(void)
{
    char **names;
    size_t n;

    must(kg_file_list(&names, &n, dir, &err));
    for (size_t i = 0; i < n; i++)
        if (strstr(names[i], ".tmp"))
            fail_msg("left behind: %s", names[i]);
    kg_file_names_free(names, n);
}

struct engine {
    struct kg_index *index;
    struct kg_searcher *searcher;
    struct kg_hits hits;
};

static void start(struct engine *e, const struct kg_bm25 *bm25)
{
    must(kg_index_open(&e->index, in_dir("index"), bm25, &err));
    must(kg_searcher_open(&e->searcher, e->index, &err));
}

static void stop(struct engine *e)
{
    kg_searcher_close(e->searcher);
    kg_index_close(e->index);
}

static void find(struct engine *e, const char *query, size_t n, int topk)
{
    must(kg_searcher_find(&e->hits, e->searcher, query, n, topk, &err));
}

/* Searches.   returns the ids in order, separated by spaces */
static const char *found(struct engine *e, const char *query, int topk)
{
    static char ids[4096];

    find(e, query, strlen(query), topk);
    ids[0] = 0;
    for (size_t i = 0; i < e->hits.n; i++) {
        size_t n = strlen(ids);

        snprintf(ids + n, sizeof ids - n, "%s%s", i ? " " : "", e->hits.passages[i].id);
    }
    return ids;
}

static const char animals[] =
    "{\"id\": \"cat\", \"contents\": \"\\\"Cat\\\"\\nThe cat sat on the mat.\"}\n"
    "{\"id\": \"dog\", \"contents\": \"\\\"Dog\\\"\\nDogs chase the cats of Łódź.\"}\n"
    "\n"
    "{\"id\": 7, \"contents\": \"\\\"Wing\\\"\\nA wing in a slipstream.\"}\n"
    "{\"title\": \"Caf\\u00e9\", \"text\": \"A house for coffee.\", \"more\": [1]}\n";

/* ---- building ---- */

static void a_corpus_becomes_an_index(void **state)
{
    struct kg_index_info info = build(animals);
    struct engine e;

    (void)state;
    assert_int_equal(info.passages, 4);
    assert_int_equal(info.tokens, 7 + 7 + 6 + 5);
    assert_true(info.stemmed);
    start(&e, NULL);
    assert_string_equal(found(&e, "cats", 3), "cat dog");
    assert_string_equal(e.hits.passages[0].contents, "\"Cat\"\nThe cat sat on the mat.");
    assert_string_equal(found(&e, "WINGS", 3), "7");
    assert_string_equal(found(&e, "cafe", 3), "5"); /* its line is its id */
    assert_string_equal(e.hits.passages[0].contents, "\"Café\"\nA house for coffee.");
    stop(&e);
    nothing_temporary();
}

static void without_stemming_words_are_as_they_are(void **state)
{
    struct kg_index_build_opts o = {.words_as_are = true, .bm25 = plain};
    struct engine e;

    (void)state;
    build_with(animals, &o);
    start(&e, NULL);
    assert_string_equal(found(&e, "cats", 3), "dog");
    assert_string_equal(found(&e, "wings", 3), "");
    stop(&e);
}

static void refused(const char *corpus, const char *message)
{
    assert_int_equal(try_build(corpus), KG_EFORMAT);
    if (!strstr(err.message, message))
        fail_msg("expected '%s' in '%s'", message, err.message);
    assert_false(kg_file_exists(in_dir("index")));
    nothing_temporary();
}

static void bad_corpora_are_refused(void **state)
{
    (void)state;
    refused("", "expected at least one passage, found none");
    refused("\n\n", "expected at least one passage, found none");
    refused(
        "{\"id\": \"a\", \"contents\": \"x\"}\n\n{\"id\": \"b\", \"contents\": \"y\"}\n"
        "{\"id\": \"a\", \"contents\": \"z\"}\n",
        "line 4: the id 'a' was given before, at line 1");
    refused("{\"id\": 5, \"contents\": \"x\"}\n{\"id\": \"5\", \"contents\": \"y\"}\n",
            "line 2: the id '5' was given before, at line 1");
    refused("{\"id\": \"a\"}\n", "found neither contents nor text");
    refused("{\"contents\": \"x\"}\n", "key 'id'");
    refused("{\"id\": \"a\", \"contents\": 5}\n", "expected string, found integer");
    refused("{\"id\": \"a\", \"text\": \"x\"}\n", "key 'title'");
    refused("{\"id\": \"a\", \"contents\": \"x\\u0000y\"}\n", "without NUL");
    refused("{\"id\": \"a\", \"contents\": \"\xff\"}\n", "line 1");
    refused("not json\n", "line 1");
}

static void a_failed_build_keeps_the_old_index(void **state)
{
    struct engine e;

    (void)state;
    build(animals);
    assert_int_equal(try_build("{\"id\": \"a\"}\n"), KG_EFORMAT);
    start(&e, NULL);
    assert_string_equal(found(&e, "cats", 3), "cat dog");
    stop(&e);
}

/* Name of the temporary file that the build will use after `ahead` other files. */
static void next_temporary(char name[64], unsigned ahead)
{
    struct kg_str one = {0};

    must(kg_file_temporary(&one, "index", &err));
    snprintf(name, 64, "index.tmp-%ld-%u", (long)getpid(),
             (unsigned)atoi(strrchr(one.data, '-') + 1) + ahead);
    kg_str_release(&one);
}

/* A folder under the temporary name is not the build's, so it is kept and the build
 * fails. */
static void folders_are_left_alone(void **state)
{
    char name[64], inside[80];

    (void)state;
    put("corpus", animals);
    next_temporary(name, 2); /* 1: put() takes one name */
    snprintf(inside, sizeof inside, "%s/mine", name);
    must(kg_file_make_dirs(in_dir(name), &err));
    put(inside, "kept");
    assert_int_equal(build_again(), KG_EIO);
    assert_non_null(strstr(err.message, name));
    holds(inside, "kept");
    must(kg_file_remove_tree(in_dir(name), &err));
    must(kg_file_make_dirs(in_dir("index.tmp"), &err));
    put("index.tmp/mine", "kept");
    must(try_build(animals));
    holds("index.tmp/mine", "kept");
    must(kg_file_remove_tree(in_dir("index.tmp"), &err));
    next_temporary(name, 2);
    put(name, "of a process that had this number and died");
    must(build_again());
    nothing_temporary();
}

/* A build replaces an index, and nothing else. */
static void what_is_no_index_is_not_replaced(void **state)
{
    (void)state;
    put("corpus", animals);
    must(build_again());
    must(build_again());
    put("index", "mine");
    assert_int_equal(build_again(), KG_EINVAL);
    assert_non_null(strstr(err.message, "an index to replace, found another file"));
    holds("index", "mine");
    assert_int_equal(unlink(in_dir("index")), 0);
    assert_int_equal(symlink("elsewhere", in_dir("index")), 0);
    assert_int_equal(build_again(), KG_EINVAL);
    assert_non_null(strstr(err.message, "found a link"));
    assert_int_equal(unlink(in_dir("index")), 0);
    assert_int_equal(mkfifo(in_dir("index"), 0600), 0);
    assert_int_equal(build_again(), KG_EINVAL);
    assert_non_null(strstr(err.message, "found a device, a pipe or a socket"));
    nothing_temporary();
}

static bool has_temporary_of(pid_t child)
{
    char prefix[64], **names;
    size_t n;
    bool has = false;

    snprintf(prefix, sizeof prefix, "index.tmp-%ld-", (long)child);
    must(kg_file_list(&names, &n, dir, &err));
    for (size_t i = 0; i < n; i++)
        has = has || strncmp(names[i], prefix, strlen(prefix)) == 0;
    kg_file_names_free(names, n);
    return has;
}

/* Builds in a child that waits for the rest of its corpus, then kills it. */
static void kill_a_build(void)
{
    struct kg_index_info info;
    struct kg_index_build_opts o = {.bm25 = kg_bm25_default};
    struct kg_err e;
    int fd, status;
    pid_t child;

    o.corpus = in_dir("pipe");
    o.path = in_dir("index");
    assert_int_equal(mkfifo(o.corpus, 0600), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(kg_index_build(&info, &o, &e) == KG_OK ? 0 : 1);
    fd = open(o.corpus, O_WRONLY); /* returns when the child opens its end */
    assert_true(fd >= 0);
    for (int i = 0; i < 2000; i++) /* more than is read ahead */
        assert_true(dprintf(fd,
                            "{\"title\": \"%d\", \"text\": \"a passage of some "
                            "words that goes on and on\"}\n",
                            i) > 0);
    for (int i = 0; i < 2000 && !has_temporary_of(child); i++)
        usleep(5000);
    assert_true(has_temporary_of(child));
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_true(has_temporary_of(child));
    close(fd);
}

static void what_a_killed_build_left_goes_with_the_next(void **state)
{
    (void)state;
    kill_a_build();
    put("other.tmp-1-0", "of somebody else");
    must(try_build(animals));
    must(kg_index_verify(in_dir("index"), &err));
    holds("other.tmp-1-0", "of somebody else");
    must(kg_file_remove_tree(in_dir("other.tmp-1-0"), &err));
    nothing_temporary();
}

static void bad_settings_are_refused(void **state)
{
    struct kg_index_build_opts o = {.bm25 = {-1, 0.5, 0, 1, 0}};
    struct kg_bm25 wrong = {1, 1.5, 0, 1, 0};
    struct kg_index_info info;
    struct kg_index *index;

    (void)state;
    build(animals);
    o.corpus = in_dir("corpus");
    o.path = in_dir("other");
    assert_int_equal(kg_index_build(&info, &o, &err), KG_EINVAL);
    assert_string_equal(err.message, "k1: expected 0 to 1000, found -1");
    assert_int_equal(kg_index_open(&index, in_dir("index"), &wrong, &err), KG_EINVAL);
    assert_string_equal(err.message, "b: expected 0 to 1, found 1.5");
}

static void settings_at_their_bounds_are_taken(void **state)
{
    static const struct kg_bm25 least = {0, 0, 0, 0, 0}, most = {1000, 1, 10, 4, 0};

    (void)state;
    must(kg_bm25_check(&least, &err));
    must(kg_bm25_check(&most, &err));
}

/* SQLite's extended codes add detail above the lowest 8 bits; all kinds of corruption are
 * EFORMAT. */
static void damage_met_while_reading_is_named(void **state)
{
    (void)state;
    assert_int_equal(kg_sql_fail(&err, NULL, SQLITE_CORRUPT_VTAB, "x.index", "read"),
                     KG_EFORMAT);
    assert_non_null(strstr(err.message, "x.index: expected an intact index"));
    assert_int_equal(kg_sql_fail(&err, NULL, SQLITE_IOERR_READ, "x.index", "read"),
                     KG_EIO);
    assert_non_null(strstr(err.message, "x.index: cannot read: "));
}

/* Ids with equal hashes are not duplicates: the hash only finds candidates, whose ids are
 * compared. There are enough ids for the set to grow. */
static void many_ids_fit(void **state)
{
    struct kg_str corpus = {0};
    struct engine e;

    (void)state;
    for (int i = 0; i < 5000; i++)
        must(kg_str_printf(&corpus, &err,
                           "{\"id\": \"p%d\", \"contents\": \"w%d x%d\"}\n", i, i,
                           i % 7));
    assert_int_equal(build(corpus.data).passages, 5000);
    start(&e, NULL);
    assert_string_equal(found(&e, "w4321", 3), "p4321");
    assert_string_equal(found(&e, "x3", 3), "p3 p10 p17");
    stop(&e);
    kg_str_release(&corpus);
}

/* ---- opening ---- */

static void not_opened(kg_status status, const char *message)
{
    struct kg_index *index;

    assert_int_equal(kg_index_open(&index, in_dir("index"), NULL, &err), status);
    if (!strstr(err.message, message))
        fail_msg("expected '%s' in '%s'", message, err.message);
    assert_null(index);
}

static void flip(const char *name, size_t at)
{
    struct kg_str bytes = {0};

    must(kg_file_read(&bytes, in_dir(name), 1 << 26, &err));
    assert_true(at < bytes.len);
    bytes.data[at] ^= 0x10;
    must(kg_file_write_atomic(in_dir(name), bytes.data, bytes.len, &err));
    kg_str_release(&bytes);
}

static void what_is_no_index_is_named(void **state)
{
    sqlite3 *db;

    (void)state;
    not_opened(KG_ENOTFOUND, "expected an index file, found none");
    put("index", "");
    not_opened(KG_EFORMAT, "no SQLite database");
    put("index", "{\"id\": 1}\n");
    not_opened(KG_EFORMAT, "no SQLite database");
    must(kg_file_make_dirs(in_dir("folder"), &err));
    assert_int_equal(sqlite3_open(in_dir("other"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "CREATE TABLE t (x)", 0, 0, 0), SQLITE_OK);
    sqlite3_close(db);
    must(kg_file_replace(in_dir("other"), in_dir("index"), &err));
    not_opened(KG_EFORMAT, "found another SQLite database");
}

static void another_version_is_named(void **state)
{
    sqlite3 *db;

    (void)state;
    build(animals);
    assert_int_equal(sqlite3_open(in_dir("index"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version=99", 0, 0, 0), SQLITE_OK);
    sqlite3_close(db);
    not_opened(KG_EUNSUPPORTED, "expected an index of version 1, found version 99");
}

static void damage_is_found(void **state)
{
    struct kg_str bytes = {0};

    (void)state;
    build(animals);
    must(kg_file_read(&bytes, in_dir("index"), 1 << 26, &err));
    for (size_t at = 20000; at < bytes.len; at += bytes.len / 7) {
        flip("index", at);
        not_opened(KG_EFORMAT, "the file is damaged");
        flip("index", at);
    }
    must(kg_file_write_atomic(in_dir("index"), bytes.data, bytes.len - 100, &err));
    not_opened(KG_EFORMAT, "the file was truncated");
    must(kg_file_write_atomic(in_dir("index"), bytes.data, bytes.len / 2, &err));
    not_opened(KG_EFORMAT, "the file was truncated or extended");
    must(kg_file_write_atomic(in_dir("index"), bytes.data, 600, &err));
    not_opened(KG_EFORMAT, "");
    kg_str_release(&bytes);
}

/* Counts that are no integers or are out of range, in a file whose seal is not
 * checked. */
static void a_count_that_is_none_is_found(void **state)
{
    static const char *const change[] = {
        "UPDATE meta SET value = -3e174 WHERE key = 'terms'",
        "UPDATE meta SET value = 1e300 WHERE key = 'tokens'",
        "UPDATE meta SET value = 2.5 WHERE key = 'tokens'",
        "UPDATE meta SET value = -1 WHERE key = 'passages'",
        "UPDATE meta SET value = 0 WHERE key = 'passages'",
        "UPDATE meta SET value = 4294967295 WHERE key = 'passages'",
    };

    (void)state;
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        struct kg_index *index;
        sqlite3 *db;

        build(animals);
        assert_int_equal(sqlite3_open(in_dir("index"), &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, change[i], 0, 0, 0), SQLITE_OK);
        assert_int_equal(sqlite3_changes(db), 1);
        sqlite3_close(db);
        assert_int_equal(kg_index_open_unsealed(&index, in_dir("index"), NULL, &err),
                         KG_EFORMAT);
        assert_non_null(strstr(err.message, " number of "));
    }
}

/* Whatever a damaged header page is read as: an error, or an answer that is
 * well-formed. */
static void damage_of_the_header_never_crashes(void **state)
{
    (void)state;
    build(animals);
    for (size_t at = 0; at < 8192; at += 61) {
        struct kg_index *index;
        struct kg_searcher *s = NULL;
        struct kg_hits hits;

        flip("index", at);
        if (kg_index_open(&index, in_dir("index"), NULL, &err) == KG_OK &&
            kg_searcher_open(&s, index, &err) == KG_OK &&
            kg_searcher_find(&hits, s, "cat", 3, 3, &err) == KG_OK)
            assert_true(hits.n <= 3);
        kg_searcher_close(s);
        kg_index_close(index);
        flip("index", at);
    }
}

/* The file is truncated while a searcher has it open. A search that needs a missing part
 * fails with the file's name; the others give the right answer. */
static void an_index_that_is_cut_off_answers_what_it_can(void **state)
{
    enum { MANY = 5000 };
    struct kg_index_info info;
    struct kg_str corpus = {0};
    struct engine e;
    int answered = 0;
    int failed = 0;

    (void)state;
    for (int i = 0; i < MANY; i++)
        must(kg_str_printf(&corpus, &err, "{\"id\": \"p%d\", \"contents\": \"w%d\"}\n", i,
                           i));
    info = build(corpus.data);
    kg_str_release(&corpus);
    start(&e, NULL);
    assert_string_equal(found(&e, "w1", 3), "p1");
    assert_int_equal(truncate(in_dir("index"), (off_t)(info.bytes / 4 * 3)), 0);
    for (int i = 0; i < MANY; i += 25) {
        char word[16], id[16];

        snprintf(word, sizeof word, "w%d", i);
        snprintf(id, sizeof id, "p%d", i);
        if (kg_searcher_find(&e.hits, e.searcher, word, strlen(word), 3, &err) == KG_OK) {
            answered++;
            assert_int_equal(e.hits.n, 1);
            assert_string_equal(e.hits.passages[0].id, id);
            continue;
        }
        failed++;
        assert_int_equal(err.code, KG_EIO);
        assert_non_null(strstr(err.message, in_dir("index")));
    }
    assert_true(answered > 0);
    assert_true(failed > 0);
    stop(&e);
}

/* ---- finding ---- */

static void no_text_is_a_syntax_error(void **state)
{
    static const char *const queries[] = {"",
                                          " ",
                                          "\"",
                                          "cat\"",
                                          "cat AND",
                                          "NOT cat",
                                          "NEAR(cat, 2)",
                                          "(",
                                          "cat*",
                                          "^cat",
                                          "-cat",
                                          "x:cat",
                                          "{x y}:cat",
                                          "cat + dog",
                                          "words:",
                                          "'; DROP --",
                                          "\xff\xfe",
                                          "\xc3",
                                          "cat \xaa",
                                          "\\",
                                          "cat\nOR",
                                          "\xf0\x9f\x98\x80",
                                          "%s%n",
                                          "\xed\xa0\x80 cat"};
    struct engine e;

    (void)state;
    build(animals);
    start(&e, NULL);
    for (size_t i = 0; i < sizeof queries / sizeof *queries; i++) {
        const char *ids = found(&e, queries[i], 3);

        assert_int_equal(strstr(ids, "cat") != NULL, strstr(queries[i], "cat") != NULL);
    }
    find(&e, "mat\0cat", 7, 3);
    assert_int_equal(e.hits.n, 2);
    for (int c = 0; c < 256; c++) {
        char bytes[6] = {'c', 'a', 't', ' ', (char)c, (char)c};

        find(&e, bytes, sizeof bytes, 3);
        assert_string_equal(e.hits.passages[0].id, "cat");
        find(&e, bytes + 3, 3, 3);
    }
    stop(&e);
}

static void a_megabyte_is_a_query(void **state)
{
    size_t n = 1 << 20;
    char *query = malloc(n);
    struct engine e;

    (void)state;
    build(animals);
    start(&e, NULL);
    memset(query, 'x', n);
    find(&e, query, n, 3);
    assert_int_equal(e.hits.n, 0);
    for (size_t i = 0; i < n; i++)
        query[i] = i % 4 == 3 ? ' ' : (char)('a' + (i * 2654435761u >> 7) % 26);
    memcpy(query, "slipstream ", 11);
    find(&e, query, n, 3);
    assert_string_equal(e.hits.passages[0].id, "7");
    assert_true(e.hits.cut);
    stop(&e);
    free(query);
}

static void stop_words_count_where_there_is_little_else(void **state)
{
    struct engine e;

    (void)state;
    build("{\"id\": \"who\", \"contents\": \"The Who\"}\n"
          "{\"id\": \"band\", \"contents\": \"A band of the town, who who who\"}\n"
          "{\"id\": \"town\", \"contents\": \"Town\"}\n");
    start(&e, NULL);
    assert_string_equal(found(&e, "the who", 3), "who band");
    assert_string_equal(found(&e, "who was a band in town", 3), "band town");
    stop(&e);
}

static void bm25_is_the_formula(void **state)
{
    const struct kg_bm25 bm25 = {2, 0.5, 0, 1, 0};
    struct engine e;
    /* 4 passages of 25/4 words on average; 'cat' is in 2 of them, twice in the first,
     * which has 7 */
    double idf = log(1 + (4 - 2 + 0.5) / (2 + 0.5));
    double norm = 2 * (1 - 0.5 + 0.5 * 7 / (25.0 / 4));

    (void)state;
    build(animals);
    start(&e, &bm25);
    assert_string_equal(found(&e, "cat", 3), "cat dog");
    assert_float_equal(e.hits.passages[0].score, idf * 3 * 2 / (2 + norm), 1e-12);
    assert_float_equal(e.hits.passages[1].score, idf * 3 * 1 / (1 + norm), 1e-12);
    found(&e, "cat cat cat", 3);
    assert_float_equal(e.hits.passages[0].score, 3 * idf * 3 * 2 / (2 + norm), 1e-12);
    stop(&e);
}

static void its_additions_are_the_formula(void **state)
{
    const struct kg_bm25 over = {.k1 = -1, .b = -1, .delta = 0.5, .power = 2};
    struct engine e;
    double idf = log(1 + (4 - 2 + 0.5) / (2 + 0.5));
    double norm = 1.2 * (0.25 + 0.75 * 7 / (25.0 / 4));

    (void)state;
    build(animals);
    start(&e, &over);
    assert_string_equal(found(&e, "cat", 3), "cat dog");
    assert_float_equal(e.hits.passages[1].score, idf * idf * (2.2 * 1 / (1 + norm) + 0.5),
                       1e-12);
    stop(&e);
}

/* ---- pruning does not change results ---- */

enum { RANDOM_PASSAGES = 3000, RANDOM_WORDS = 400, PASSAGE_WORDS = 12 };
static uint8_t tf_of[RANDOM_PASSAGES][RANDOM_WORDS];
static int length_of[RANDOM_PASSAGES];

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Word number w, with roughly the frequency of the w-th word of natural text. */
static int draw_word(uint32_t *seed)
{
    double u = next_random(seed) / (double)(1 << 24);

    return (int)(exp(u * log(RANDOM_WORDS)) - 1e-9) % RANDOM_WORDS;
}

static void random_corpus(struct kg_str *corpus)
{
    uint32_t seed = 7;

    memset(tf_of, 0, sizeof tf_of);
    for (int i = 0; i < RANDOM_PASSAGES; i++) {
        length_of[i] = PASSAGE_WORDS + (int)(next_random(&seed) % PASSAGE_WORDS);
        must(kg_str_printf(corpus, &err, "{\"id\": \"%d\", \"contents\": \"", i));
        for (int j = 0; j < length_of[i]; j++) {
            int w = draw_word(&seed);

            tf_of[i][w]++;
            must(kg_str_printf(corpus, &err, "q%dz ", w));
        }
        must(kg_str_puts(corpus, "\"}\n", &err));
    }
}

static double plain_score(const int *query, int n, int passage, double mean)
{
    double score = 0;

    for (int j = 0; j < n; j++) {
        int df = 0;
        double tf = tf_of[passage][query[j]];

        for (int i = 0; i < RANDOM_PASSAGES; i++)
            df += tf_of[i][query[j]] > 0;
        score += log(1 + (RANDOM_PASSAGES - df + 0.5) / (df + 0.5)) * 2.2 * tf /
                 (tf + 1.2 * (0.25 + 0.75 * length_of[passage] / mean));
    }
    return score;
}

/* Scores equal those computed without an index, and no other passage has a better score
 * than the last hit. */
static void check_against_plain(const struct kg_hits *hits, const int *query, int n,
                                double mean)
{
    double worst = hits->passages[hits->n - 1].score;
    int better = 0;

    for (size_t i = 0; i < hits->n; i++) {
        int id = atoi(hits->passages[i].id);

        assert_float_equal(hits->passages[i].score, plain_score(query, n, id, mean),
                           1e-9);
        if (i > 0)
            assert_true(hits->passages[i - 1].score >= hits->passages[i].score);
    }
    for (int i = 0; i < RANDOM_PASSAGES; i++)
        better += plain_score(query, n, i, mean) > worst + 1e-9;
    assert_true(better < (int)hits->n);
}

static void pruned_search_finds_the_best(void **state)
{
    struct kg_str corpus = {0};
    struct engine e;
    double mean = 0;
    uint32_t seed = 99;
    int64_t rows = 0;

    (void)state;
    random_corpus(&corpus);
    build(corpus.data);
    start(&e, NULL);
    for (int i = 0; i < RANDOM_PASSAGES; i++)
        mean += length_of[i] / (double)RANDOM_PASSAGES;
    for (int t = 0; t < 20; t++) {
        int n = 1 + (int)(next_random(&seed) % 5);
        int query[5];
        char text[64] = "";

        for (int j = 0; j < n; j++) {
            query[j] = draw_word(&seed);
            sprintf(text + strlen(text), "q%dz ", query[j]);
        }
        find(&e, text, strlen(text), 1 + t % 10);
        assert_int_equal(e.hits.n, 1 + t % 10);
        check_against_plain(&e.hits, query, n, mean);
        rows += e.hits.rows;
    }
    assert_true(rows > 0);
    stop(&e);
    kg_str_release(&corpus);
}

/* Earlier queries, with whatever topk, do not change a bit. */
static void answers_do_not_depend_on_what_was_asked_before(void **state)
{
    struct kg_str corpus = {0};
    struct engine e;
    double scores[10];
    char ids[10][8];

    (void)state;
    random_corpus(&corpus);
    build(corpus.data);
    start(&e, NULL);
    find(&e, "q1z q5z q300z q17z", 18, 10);
    for (int i = 0; i < 10; i++) {
        scores[i] = e.hits.passages[i].score;
        strcpy(ids[i], e.hits.passages[i].id);
    }
    for (int k = 1; k <= 10; k++) {
        found(&e, "q2z q300z other", 1000);
        find(&e, "q1z q5z q300z q17z", 18, k);
        for (int i = 0; i < k; i++) {
            assert_memory_equal(&scores[i], &e.hits.passages[i].score, sizeof *scores);
            assert_string_equal(ids[i], e.hits.passages[i].id);
        }
    }
    stop(&e);
    kg_str_release(&corpus);
}

/* ---- failures leave nothing ---- */

static void without_memory_nothing_is_left(void **state)
{
    kg_status status = KG_ENOMEM;

    (void)state;
    for (uint64_t n = 1; status != KG_OK; n++) {
        assert_true(n < 500);
        put("corpus", animals);
        kg_mem_fail_at(n);
        status = build_again();
        kg_mem_fail_at(0);
        /* after the rename the index exists and is complete */
        if (kg_file_exists(in_dir("index")))
            must(kg_index_verify(in_dir("index"), &err));
        nothing_temporary();
        assert_int_equal(kg_mem_current_bytes(), 0);
    }
    for (uint64_t n = 1, ok = 0; !ok; n++) {
        struct kg_index *index = NULL;
        struct kg_searcher *s = NULL;
        struct kg_hits hits;

        assert_true(n < 500);
        kg_mem_fail_at(n);
        ok = kg_index_open(&index, in_dir("index"), NULL, &err) == KG_OK &&
             kg_searcher_open(&s, index, &err) == KG_OK &&
             kg_searcher_find(&hits, s, "cat dog", 7, 3, &err) == KG_OK;
        kg_mem_fail_at(0);
        kg_searcher_close(s);
        kg_index_close(index);
        assert_int_equal(kg_mem_current_bytes(), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_corpus_becomes_an_index, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(without_stemming_words_are_as_they_are, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(bad_corpora_are_refused, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_failed_build_keeps_the_old_index, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(what_is_no_index_is_not_replaced, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(folders_are_left_alone, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(what_a_killed_build_left_goes_with_the_next,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(bad_settings_are_refused, make_dir, remove_dir),
        cmocka_unit_test(settings_at_their_bounds_are_taken),
        cmocka_unit_test(damage_met_while_reading_is_named),
        cmocka_unit_test_setup_teardown(many_ids_fit, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(what_is_no_index_is_named, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(another_version_is_named, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(damage_is_found, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_count_that_is_none_is_found, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(damage_of_the_header_never_crashes, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(an_index_that_is_cut_off_answers_what_it_can,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(no_text_is_a_syntax_error, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_megabyte_is_a_query, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(stop_words_count_where_there_is_little_else,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(bm25_is_the_formula, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(its_additions_are_the_formula, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(pruned_search_finds_the_best, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(answers_do_not_depend_on_what_was_asked_before,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(without_memory_nothing_is_left, make_dir,
                                        remove_dir),
    };
    kg_file_skip_syncs(true); /* hundreds of builds; power loss is not tested */
    return cmocka_run_group_tests_name("search index", tests, NULL, NULL);
}
