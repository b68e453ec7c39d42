/* Finds passages by words: BM25 over FTS5, exact for the topk, at the cost of rare words.
 *
 * FTS5's cost is some microseconds for each passage at which it stops, and a frequent
 * word matches a third of a corpus. So words are taken in groups, the word with the
 * largest possible contribution first. The query for a group G is
 *
 *     ((G) AND ((G) OR (later words))) NOT (earlier words)
 *
 * which stops only at passages with a word of G and no earlier word, and for these has
 * the positions of the later words too: a merge of sorted lists, which costs nanoseconds
 * per entry. A word adds less than idf^power (k1 + 1 + delta) to a score. If the other
 * words together add less than the topk-th best score so far, a passage with only these
 * words cannot be among the topk, and the search ends. (MaxScore: Turtle and Flood 1995.)
 *
 * A score is summed in one order of the words for all groups, so the choice of groups
 * changes no bit of it.
 */
#include "search/index_file.h"

#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "search/dense.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    COLLECT_MAX = 1024,     /* distinct words of a query that are looked up */
    ENOUGH_WORDS = 2,       /* with this many other words, stop words are ignored */
    FIRST_GROUP_ROWS = 400, /* passages of the first group; times 4 for each next */
    WORD_BYTES_MAX = 256,
};

struct word {
    const char *stem; /* the word in the index; in `stems` */
    size_t n_stem;
    size_t from, to; /* bytes of the query, which FTS5 gets */
    int times;       /* occurrences in the query */
    bool stop;
    int64_t passages; /* number of passages with the word */
    double weight;    /* times * idf^power */
};

struct kg_searcher {
    const struct kg_index *index;
    sqlite3 *db;
    sqlite3_stmt *match, *passages_of, *passage;
    fts5_tokenizer tokenizer;
    Fts5Tokenizer *words_of; /* owned */

    /* one query */
    const char *query;
    struct word words[COLLECT_MAX]; /* after `choose`: the ones that count, best first */
    int n_words;
    struct kg_str stems;
    struct kg_str expression;
    bool cut;
    kg_status status; /* of a callback */
    struct kg_err err;

    /* one group, for the ranking function */
    int first, behind; /* the group is words[first .. behind) */
    int64_t rows, rows_max;
    double norm_scale, norm_base; /* base + scale length = k1 (1 - b + b length / mean) */
    double saturated, delta;      /* k1 + 1, delta */

    struct kg_candidate *best; /* (topk) sorted; first by words, finally the result */
    size_t n_best, topk;

    struct kg_seeker *seeker;   /* search by vectors; NULL: by words only */
    struct kg_str valid;        /* the query as UTF-8 */
    struct kg_candidate *fused; /* (topk) */
    size_t fused_capacity;

    struct kg_passage *passages;
    size_t passages_capacity, best_capacity;
    struct kg_str text; /* ids and contents of the answer */
};

/* ---- the ranking function ---- */

static int count_in(const Fts5ExtensionApi *api, Fts5Context *fts, int phrase)
{
    Fts5PhraseIter at;
    int column, offset;
    int n = 0;

    if (api->xPhraseFirst(fts, phrase, &at, &column, &offset) != SQLITE_OK)
        return 0;
    for (; column >= 0; api->xPhraseNext(fts, &at, &column, &offset))
        n++;
    return n;
}

/* Called by FTS5 for each passage at which it stops. Phrases are numbered in the order of
 * the expression: group, group again, later words. */
static void score_row(const Fts5ExtensionApi *api, Fts5Context *fts, sqlite3_context *out,
                      int n, sqlite3_value **args)
{
    struct kg_searcher *s = api->xUserData(fts);
    int64_t row = api->xRowid(fts);
    int group = s->behind - s->first;
    double score = 0;

    (void)n;
    (void)args;
    if (row < 1 || row > s->index->info.passages) {
        sqlite3_result_error_code(out, SQLITE_CORRUPT);
        return;
    }
    double norm = s->norm_base + s->norm_scale * s->index->lengths[row - 1];
    for (int i = s->first; i < s->n_words; i++) {
        int phrase = i < s->behind ? i - s->first : group + i - s->first;
        int tf = count_in(api, fts, phrase);

        if (tf > 0)
            score += s->words[i].weight * (s->saturated * tf / (tf + norm) + s->delta);
    }
    kg_rank_keep(s->best, &s->n_best, s->topk, score, row);
    s->rows++;
    sqlite3_result_int(out, s->rows >= s->rows_max);
}

/* ---- opening ---- */

static kg_status join_fts5(struct kg_searcher *s, struct kg_err *err)
{
    const char *args[] = {"unicode61", "remove_diacritics", "2"};
    bool stemmed = s->index->info.stemmed;
    fts5_api *api = kg_fts5(s->db);
    void *user;

    if (!api)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "expected SQLite %s with FTS5, found it without",
                       sqlite3_libversion());
    int code = api->xCreateFunction(api, "kedge", s, score_row, NULL);
    if (code == SQLITE_OK)
        code = api->xFindTokenizer(api, stemmed ? "porter" : "unicode61", &user,
                                   &s->tokenizer);
    if (code == SQLITE_OK)
        code = s->tokenizer.xCreate(user, stemmed ? args : args + 1, stemmed ? 3 : 2,
                                    &s->words_of);
    return code == SQLITE_OK
               ? KG_OK
               : kg_sql_fail(err, s->db, code, s->index->path, "prepare the ranking");
}

kg_status kg_searcher_open(struct kg_searcher **s, const struct kg_index *index,
                           struct kg_err *err)
{
    struct kg_searcher *fresh = kg_mem_calloc(1, sizeof *fresh, "searcher", err);
    kg_status status;

    *s = NULL;
    if (!fresh)
        return KG_ENOMEM;
    fresh->index = index;
    KG_TRY_GOTO(out, kg_sql_open_index(&fresh->db, index->path, err));
    KG_TRY_GOTO(out, join_fts5(fresh, err));
    const char *path = fresh->index->path;

    /* score_row collects the passages; only a row that reaches rows_max is a result */
    KG_TRY_GOTO(
        out,
        kg_sql_prepare(&fresh->match, fresh->db, path,
                       "SELECT 1 FROM words WHERE words MATCH ?1 AND kedge(words)", err));
    KG_TRY_GOTO(out, kg_sql_prepare(&fresh->passages_of, fresh->db, path,
                                    "SELECT passages FROM term WHERE term = ?1", err));
    KG_TRY_GOTO(out,
                kg_sql_prepare(&fresh->passage, fresh->db, path,
                               "SELECT id, contents FROM passage WHERE n = ?1", err));
    if (index->dense)
        KG_TRY_GOTO(out, kg_seeker_open(&fresh->seeker, index->dense, fresh->db, err));
    *s = fresh;
    return KG_OK;
out:
    kg_searcher_close(fresh);
    return status;
}

void kg_searcher_close(struct kg_searcher *s)
{
    if (!s)
        return;
    if (s->words_of)
        s->tokenizer.xDelete(s->words_of);
    sqlite3_finalize(s->match);
    sqlite3_finalize(s->passages_of);
    sqlite3_finalize(s->passage);
    if (s->seeker)
        kg_seeker_close(s->seeker);
    sqlite3_close(s->db);
    kg_str_release(&s->stems);
    kg_str_release(&s->expression);
    kg_str_release(&s->text);
    kg_str_release(&s->valid);
    kg_mem_free(s->fused);
    kg_mem_free(s->best);
    kg_mem_free(s->passages);
    kg_mem_free(s);
}

/* ---- the words of a query ---- */

static struct word *find_word(struct kg_searcher *s, const char *stem, size_t n)
{
    for (int i = 0; i < s->n_words; i++)
        if (s->words[i].n_stem == n &&
            memcmp(s->stems.data + (size_t)(uintptr_t)s->words[i].stem, stem, n) == 0)
            return &s->words[i];
    return NULL;
}

/* Adds a word. Its stem is an offset until look_up, because `stems` moves as it grows. */
static int take_word(void *context, int flags, const char *stem, int n, int from, int to)
{
    struct kg_searcher *s = context;

    (void)flags;
    if (n > WORD_BYTES_MAX || to - from > WORD_BYTES_MAX)
        return SQLITE_OK; /* no word of any language; the index truncates it anyway */
    struct word *w = find_word(s, stem, (size_t)n);
    if (w) {
        w->times++;
        return SQLITE_OK;
    }
    if (s->n_words == COLLECT_MAX) {
        s->cut = true;
        return SQLITE_OK;
    }
    w = &s->words[s->n_words++];
    *w = (struct word){.stem = (const char *)(uintptr_t)s->stems.len,
                       .n_stem = (size_t)n,
                       .from = (size_t)from,
                       .to = (size_t)to,
                       .times = 1,
                       .stop = kg_stop_word(s->query + from, (size_t)(to - from))};
    s->status = kg_str_append(&s->stems, stem, (size_t)n, &s->err);
    return s->status == KG_OK ? SQLITE_OK : SQLITE_NOMEM;
}

static kg_status collect(struct kg_searcher *s, const char *query, size_t n,
                         struct kg_err *err)
{
    s->query = query;
    s->n_words = 0;
    s->cut = n > KG_QUERY_BYTES_MAX;
    s->status = KG_OK;
    kg_str_clear(&s->stems);
    int code = s->tokenizer.xTokenize(s->words_of, s, FTS5_TOKENIZE_QUERY, query,
                                      (int)(s->cut ? KG_QUERY_BYTES_MAX : n), take_word);
    if (s->status != KG_OK) {
        *err = s->err;
        return s->status;
    }
    return code == SQLITE_OK ? KG_OK
                             : kg_sql_fail(err, NULL, code, s->index->path,
                                           "split the query into words");
}

static kg_status look_up(struct kg_searcher *s, struct word *w, struct kg_err *err)
{
    kg_status status = KG_OK;

    w->stem = s->stems.data + (size_t)(uintptr_t)w->stem;
    sqlite3_bind_text(s->passages_of, 1, w->stem, (int)w->n_stem, SQLITE_STATIC);
    int code = sqlite3_step(s->passages_of);
    w->passages = code == SQLITE_ROW ? sqlite3_column_int64(s->passages_of, 0) : 0;
    if (code != SQLITE_ROW && code != SQLITE_DONE)
        status = kg_sql_fail(err, s->db, code, s->index->path, "look a word up");
    sqlite3_reset(s->passages_of);
    return status;
}

static void drop_words(struct kg_searcher *s, bool (*drop)(const struct word *w))
{
    int n = 0;

    for (int i = 0; i < s->n_words; i++)
        if (!drop(&s->words[i]))
            s->words[n++] = s->words[i];
    s->n_words = n;
}

static bool is_absent(const struct word *w) { return w->passages == 0; }
static bool is_stop(const struct word *w) { return w->stop; }

static int by_weight(const void *a, const void *b)
{
    const struct word *x = a;
    const struct word *y = b;

    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    return x->from < y->from ? -1 : 1; /* no two start at the same byte */
}

static void weigh(struct kg_searcher *s)
{
    double passages = (double)s->index->info.passages;

    for (int i = 0; i < s->n_words; i++) {
        struct word *w = &s->words[i];
        double n = (double)w->passages;
        double idf = log(1 + (passages - n + 0.5) / (n + 0.5));

        w->weight = w->times * pow(idf, s->index->bm25.power);
    }
    qsort(s->words, (size_t)s->n_words, sizeof *s->words, by_weight);
}

/* Keeps the words that count, heaviest first: words of the corpus, stop words only if
 * there is little else, and no more words and passages than the limits allow. */
static kg_status choose(struct kg_searcher *s, struct kg_err *err)
{
    int64_t postings = 0;
    int others = 0;
    int n;

    for (int i = 0; i < s->n_words; i++)
        KG_TRY(look_up(s, &s->words[i], err));
    drop_words(s, is_absent);
    for (int i = 0; i < s->n_words; i++)
        others += !s->words[i].stop;
    if (others >= ENOUGH_WORDS && !s->index->bm25.stop_words)
        drop_words(s, is_stop);
    weigh(s);
    for (n = 0; n < s->n_words && n < KG_QUERY_TERMS_MAX; n++) {
        postings += s->words[n].passages;
        if (n > 0 && postings > KG_QUERY_POSTINGS_MAX)
            break;
    }
    s->cut = s->cut || n < s->n_words;
    s->n_words = n;
    return KG_OK;
}

/* ---- groups ---- */

static kg_status put_words(struct kg_searcher *s, int from, int to, struct kg_err *err)
{
    for (int i = from; i < to; i++) {
        const struct word *w = &s->words[i];

        KG_TRY(kg_str_puts(&s->expression, i == from ? "\"" : " OR \"", err));
        KG_TRY(kg_str_append(&s->expression, s->query + w->from, w->to - w->from, err));
        KG_TRY(kg_str_putc(&s->expression, '"', err));
    }
    return KG_OK;
}

static kg_status put_expression(struct kg_searcher *s, struct kg_err *err)
{
    struct kg_str *e = &s->expression;

    kg_str_clear(e);
    KG_TRY(kg_str_puts(e, "((", err));
    KG_TRY(put_words(s, s->first, s->behind, err));
    KG_TRY(kg_str_puts(e, ")", err));
    if (s->behind < s->n_words) {
        KG_TRY(kg_str_puts(e, " AND (", err));
        KG_TRY(put_words(s, s->first, s->n_words, err));
        KG_TRY(kg_str_puts(e, ")", err));
    }
    KG_TRY(kg_str_puts(e, ")", err));
    if (s->first == 0)
        return KG_OK;
    KG_TRY(kg_str_puts(e, " NOT (", err));
    KG_TRY(put_words(s, 0, s->first, err));
    return kg_str_puts(e, ")", err);
}

static kg_status run_group(struct kg_searcher *s, struct kg_err *err)
{
    kg_status status = KG_OK;

    KG_TRY(put_expression(s, err));
    sqlite3_bind_text(s->match, 1, s->expression.data, (int)s->expression.len,
                      SQLITE_STATIC);
    int code = sqlite3_step(s->match);
    if (code == SQLITE_ROW)
        s->cut = true;
    else if (code != SQLITE_DONE)
        status = kg_sql_fail(err, s->db, code, s->index->path, "search");
    sqlite3_reset(s->match);
    return status;
}

/* Whether the words from `first` on can still change the result. */
static bool worth_it(const struct kg_searcher *s)
{
    double most = 0;

    if (s->first == s->n_words || s->rows >= s->rows_max)
        return false;
    for (int i = s->first; i < s->n_words; i++)
        most += s->words[i].weight * (s->saturated + s->delta);
    return s->n_best < s->topk || most >= s->best[s->n_best - 1].score;
}

static kg_status run_groups(struct kg_searcher *s, struct kg_err *err)
{
    int64_t wanted = FIRST_GROUP_ROWS;

    for (s->first = 0; worth_it(s); s->first = s->behind, wanted *= 4) {
        int64_t rows = 0;

        for (s->behind = s->first; s->behind < s->n_words; s->behind++) {
            rows += s->words[s->behind].passages;
            if (rows > wanted && s->behind > s->first)
                break;
        }
        KG_TRY(run_group(s, err));
    }
    s->cut = s->cut || (s->first < s->n_words && s->rows >= s->rows_max);
    return KG_OK;
}

/* ---- the answer ---- */

/* Copies a column's text. *offset is an offset, because s->text moves as it grows. */
static kg_status take_column(const char **offset, struct kg_searcher *s, int column,
                             struct kg_err *err)
{
    const unsigned char *text = sqlite3_column_text(s->passage, column);
    size_t n = (size_t)sqlite3_column_bytes(s->passage, column);

    if (!text)
        return kg_sql_fail(err, s->db, sqlite3_errcode(s->db), s->index->path,
                           "read a passage");
    *offset = (const char *)(uintptr_t)s->text.len;
    return kg_str_append(&s->text, text, n + 1, err);
}

static kg_status fetch(struct kg_searcher *s, size_t i, struct kg_err *err)
{
    kg_status status;

    sqlite3_bind_int64(s->passage, 1, s->best[i].row);
    int code = sqlite3_step(s->passage);
    if (code != SQLITE_ROW) {
        status = kg_sql_fail(err, s->db, code, s->index->path, "read a passage");
        goto out;
    }
    s->passages[i].score = s->best[i].score;
    KG_TRY_GOTO(out, take_column(&s->passages[i].id, s, 0, err));
    status = take_column(&s->passages[i].contents, s, 1, err);
out:
    sqlite3_reset(s->passage);
    return status;
}

static kg_status begin(struct kg_searcher *s, int topk, struct kg_err *err)
{
    const struct kg_index_info *info = &s->index->info;
    const struct kg_bm25 *bm25 = &s->index->bm25;
    double mean = (double)info->tokens / (double)info->passages;

    KG_TRY(kg_mem_grow(&s->best, &s->best_capacity, (size_t)topk, sizeof *s->best,
                       KG_INDEX_TOPK_MAX, "hits", err));
    KG_TRY(kg_mem_grow(&s->passages, &s->passages_capacity, (size_t)topk,
                       sizeof *s->passages, KG_INDEX_TOPK_MAX, "passages", err));
    s->topk = (size_t)topk;
    s->n_best = 0;
    s->rows = 0;
    s->rows_max = KG_QUERY_ROWS_MAX;
    s->norm_base = bm25->k1 * (1 - bm25->b);
    s->norm_scale = mean > 0 ? bm25->k1 * bm25->b / mean : 0;
    s->saturated = bm25->k1 + 1;
    s->delta = bm25->delta;
    return KG_OK;
}

/* ---- by words, by vectors, by both ---- */

static kg_status by_words(struct kg_searcher *s, const char *query, size_t n,
                          struct kg_err *err)
{
    KG_TRY(collect(s, query, n, err));
    KG_TRY(choose(s, err));
    return run_groups(s, err);
}

/* The first KG_QUERY_BYTES_MAX bytes of the query as UTF-8; U+FFFD for invalid bytes. */
static kg_status make_valid(struct kg_text *text, struct kg_searcher *s,
                            const char *query, size_t n, struct kg_err *err)
{
    n = n < KG_QUERY_BYTES_MAX ? n : KG_QUERY_BYTES_MAX;
    kg_str_clear(&s->valid);
    KG_TRY(kg_str_puts(&s->valid, "", err));
    for (size_t at = 0; at < n;) {
        const size_t good = kg_utf8_valid_prefix(query + at, n - at);

        KG_TRY(kg_str_append(&s->valid, query + at, good, err));
        at += good;
        if (at < n) {
            KG_TRY(kg_str_puts(&s->valid, "\xef\xbf\xbd", err));
            at += kg_utf8_bad_length(query + at, n - at);
        }
    }
    *text = (struct kg_text){kg_str_text(&s->valid), s->valid.len};
    return KG_OK;
}

/* Depth of the rankings that are joined into a result. */
static size_t depth_of(const struct kg_index *index, size_t topk)
{
    return index->by_words && topk < KG_HYBRID_DEPTH ? KG_HYBRID_DEPTH : topk;
}

/* The ranking by vectors is the result, or is fused with that by words in s->best. */
static kg_status join(struct kg_searcher *s, size_t topk, const struct kg_text *text,
                      struct kg_err *err)
{
    const struct kg_index *index = s->index;
    struct kg_ranking words = {s->best, s->n_best, 1 - index->weight}, vectors;

    KG_TRY(kg_seeker_find(&vectors, s->seeker, text, depth_of(index, topk), err));
    s->rows += index->info.passages;
    vectors.weight = index->weight;
    if (index->by_words) {
        s->n_best = kg_rank_fuse(s->fused, topk, &vectors, &words,
                                 (enum kg_fusion)index->fusion);
        memcpy(s->best, s->fused, s->n_best * sizeof *s->best);
        return KG_OK;
    }
    memcpy(s->best, vectors.at, vectors.n * sizeof *s->best);
    s->n_best = vectors.n;
    return KG_OK;
}

static kg_status find_dense(struct kg_searcher *s, const char *query, size_t n, int topk,
                            struct kg_err *err)
{
    struct kg_text text;

    KG_TRY(kg_mem_grow(&s->fused, &s->fused_capacity, (size_t)topk, sizeof *s->fused,
                       KG_INDEX_TOPK_MAX, "hits", err));
    if (s->index->by_words)
        KG_TRY(by_words(s, query, n, err));
    else
        s->cut = n > KG_QUERY_BYTES_MAX;
    KG_TRY(make_valid(&text, s, query, n, err));
    return join(s, (size_t)topk, &text, err);
}

static kg_status check_topk(int topk, struct kg_err *err)
{
    if (topk >= 1 && topk <= KG_INDEX_TOPK_MAX)
        return KG_OK;
    return kg_fail(err, KG_EINVAL, "topk: expected 1 to %d, found %d", KG_INDEX_TOPK_MAX,
                   topk);
}

kg_status kg_searcher_find(struct kg_hits *hits, struct kg_searcher *s, const char *query,
                           size_t n, int topk, struct kg_err *err)
{
    *hits = (struct kg_hits){0};
    KG_TRY(check_topk(topk, err));
    KG_TRY(begin(s, s->seeker ? (int)depth_of(s->index, (size_t)topk) : topk, err));
    KG_TRY(s->seeker ? find_dense(s, query, n, topk, err) : by_words(s, query, n, err));
    kg_str_clear(&s->text);
    for (size_t i = 0; i < s->n_best; i++)
        KG_TRY(fetch(s, i, err));
    for (size_t i = 0; i < s->n_best; i++) {
        struct kg_passage *p = &s->passages[i];

        p->id = s->text.data + (uintptr_t)p->id;
        p->contents = s->text.data + (uintptr_t)p->contents;
    }
    *hits = (struct kg_hits){s->passages, s->n_best, s->rows, s->cut};
    return KG_OK;
}

kg_status kg_searcher_ahead(struct kg_searcher *s, const struct kg_query *queries,
                            size_t n, int topk, struct kg_err *err)
{
    struct kg_text texts[KG_AHEAD_MAX];
    struct kg_str all = {0};
    kg_status status = KG_OK;

    if (!s->seeker)
        return KG_OK;
    KG_TRY(check_topk(topk, err));
    n = n < KG_AHEAD_MAX ? n : KG_AHEAD_MAX;
    for (size_t i = 0; i < n; i++) {
        KG_TRY_GOTO(out, make_valid(&texts[i], s, queries[i].bytes, queries[i].n, err));
        KG_TRY_GOTO(out, kg_str_append(&all, texts[i].bytes, texts[i].n, err));
    }
    for (size_t i = 0, at = 0; i < n; at += texts[i++].n)
        texts[i].bytes = kg_str_text(&all) + at;
    status = kg_seeker_ahead(s->seeker, texts, n, depth_of(s->index, (size_t)topk), err);
out:
    kg_str_release(&all);
    return status;
}
