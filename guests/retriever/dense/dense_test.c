/* Tests of vectors in an index: they are found as by a plain loop over the encoder's
 * vectors, alone and fused with words, and invalid ones are refused.
 */
#include "retriever/dense/dense_internal.h"

#include "base/clock.h"
#include "base/folder_testing.h"
#include "base/half.h"

#include <math.h>
#include <omp.h>
#include <unistd.h>

#define MODEL "tests/data/encoder/bert"
#define OTHER "tests/data/encoder/xlm-roberta"

enum {
    FEW = 1500, /* all in one block of scores */
    DIM = 8,
    QUERIES = 70,
    TOPK = 5,
    PASSAGES = KG_DENSE_BLOCK + QUERIES, /* in two blocks */
};

static const struct kg_search_how dense = {
    .kind = "dense", .model = MODEL, .weight = 0.5};
static const struct kg_search_how hybrid = {
    .kind = "hybrid", .model = MODEL, .weight = 0.5};

static const struct kg_search_how dense_bytes = {
    .kind = "dense", .model = MODEL, .vectors = "int8", .weight = 0.5};
static const struct kg_search_how hybrid_bytes = {
    .kind = "hybrid", .model = MODEL, .vectors = "int8", .weight = 0.5};

static char texts[PASSAGES][96];
static float vectors[PASSAGES][DIM]; /* of the passages, as the index has them */
static float queries[QUERIES][DIM];  /* of the last texts, as queries */

static void must(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

/* Does not check for leaks: pool threads keep scratch of the CPU's operations. Memory is
 * counted where only one thread works. */
static int end(void **state)
{
    (void)state;
    kg_mem_fail_at(0);
    return kg_file_remove_tree(dir, &err) != KG_OK;
}

/* ---- a corpus ---- */
static void make_texts(void)
{
    static const char *const words[] = {"cat",  "dog", "mat",  "house", "king", "queen",
                                        "play", "ran", "blue", "zebra", "fish", "tree"};
    uint32_t seed = 5;

    for (int i = 0; i < PASSAGES; i++) {
        texts[i][0] = '\0';
        for (int j = 0; j < 3 + i % 5; j++) {
            seed = seed * 1664525u + 1013904223u;
            strcat(strcat(texts[i], words[(seed >> 16) % 12]), " ");
        }
        snprintf(texts[i] + strlen(texts[i]), 16, "%d", i);
    }
}

static struct kg_encoder *encoder_of(const char *folder)
{
    const struct kg_encoder_opts opts = {.query_prefix = "query: "};
    struct kg_encoder *e;

    must(kg_encoder_open(&e, folder, &opts, &err));
    return e;
}

static void embed_all(float *out, struct kg_encoder *e, char (*of)[96], int n,
                      enum kg_text_side side)
{
    struct kg_text *in = calloc((size_t)n, sizeof *in);
    struct kg_embedder *m;

    for (int i = 0; i < n; i++)
        in[i] = (struct kg_text){of[i], strlen(of[i])};
    must(kg_embedder_open(&m, e, &err));
    must(kg_embed(out, m, in, (size_t)n, side, &err));
    kg_embedder_close(m);
    free(in);
}

/* Builds an index of the corpus file. */
static kg_status build_again(const char *folder, struct kg_index_info *info)
{
    const struct kg_encoder_opts opts = {.query_prefix = "query: "};
    struct kg_index_build_opts o = {.bm25 = kg_bm25_default};
    struct kg_encoder *e;
    kg_status status;

    KG_TRY(kg_encoder_open(&e, folder, &opts, &err));
    o.corpus = in_dir("corpus");
    o.path = in_dir("index");
    o.encoder = e;
    status = kg_index_build(info, &o, &err);
    kg_encoder_close(e);
    return status;
}

static kg_status try_build(const char *folder, int n, struct kg_index_info *info)
{
    struct kg_str corpus = {0};

    for (int i = 0; i < n; i++)
        must(kg_str_printf(&corpus, &err, "{\"id\": %d, \"contents\": \"%s\"}\n", i,
                           texts[i]));
    put("corpus", corpus.data);
    kg_str_release(&corpus);
    return build_again(folder, info);
}

static void build(int n)
{
    struct kg_index_info info;

    make_texts();
    must(try_build(MODEL, n, &info));
    assert_int_equal(info.dim, DIM);
    assert_int_equal(info.passages, n);
}

struct engine {
    struct kg_index *index;
    struct kg_searcher *s;
};

static void start(struct engine *e, const struct kg_search_how *how)
{
    must(kg_index_open(&e->index, in_dir("index"), NULL, &err));
    must(kg_index_ask(e->index, how, &err));
    must(kg_searcher_open(&e->s, e->index, &err));
}

static void stop(struct engine *e)
{
    kg_searcher_close(e->s);
    kg_index_close(e->index);
}

/* ---- the plain loop ---- */
static void make_vectors(void)
{
    struct kg_encoder *e = encoder_of(MODEL);

    embed_all(vectors[0], e, texts, PASSAGES, KG_TEXT_PASSAGE);
    embed_all(queries[0], e, texts + KG_DENSE_BLOCK, QUERIES, KG_TEXT_QUERY);
    kg_encoder_close(e);
    for (int i = 0; i < PASSAGES; i++)
        for (int d = 0; d < DIM; d++)
            vectors[i][d] = kg_half_float(kg_half_of(vectors[i][d]));
}

static double plain_score(int query, int passage)
{
    double sum = 0;

    for (int d = 0; d < DIM; d++)
        sum += (double)queries[query][d] * (double)vectors[passage][d];
    return sum;
}

/* The hits are the topk best passages by scores that are computed without an index. */
static void check_plain(const struct kg_hits *hits, int query)
{
    double worst = hits->passages[hits->n - 1].score;
    int better = 0;

    assert_int_equal(hits->n, TOPK);
    for (size_t i = 0; i < hits->n; i++) {
        const int id = atoi(hits->passages[i].id);

        assert_float_equal(hits->passages[i].score, plain_score(query, id), 1e-6);
        if (i > 0)
            assert_true(hits->passages[i - 1].score >= hits->passages[i].score);
    }
    for (int i = 0; i < PASSAGES; i++)
        better += plain_score(query, i) > worst + 1e-6;
    assert_true(better < TOPK);
}

static void find(struct kg_hits *hits, const struct engine *e, const char *query,
                 int topk)
{
    must(kg_searcher_find(hits, e->s, query, strlen(query), topk, &err));
}

static void check_nearest(const struct kg_search_how *how)
{
    struct kg_hits hits;
    struct engine e;

    start(&e, how);
    for (int i = 0; i < QUERIES; i += 7) {
        find(&hits, &e, texts[KG_DENSE_BLOCK + i], TOPK);
        check_plain(&hits, i);
        assert_int_equal(hits.rows, PASSAGES);
    }
    stop(&e);
}

/* With more passages than one block has scores for, and nearest vectors in the last
 * block. */
static void the_nearest_vectors_are_found(void **state)
{
    (void)state;
    build(PASSAGES);
    make_vectors();
    check_nearest(&dense);
    check_nearest(&dense_bytes);
}

/* ---- many queries, one pass ---- */
struct answer {
    char id[8];
    double score;
};

static void keep_answers(struct answer *to, const struct kg_hits *hits)
{
    for (size_t i = 0; i < TOPK; i++) {
        memset(&to[i], 0, sizeof *to);
        if (i < hits->n) {
            strcpy(to[i].id, hits->passages[i].id);
            to[i].score = hits->passages[i].score;
        }
    }
}

/* What was looked ahead must not answer another query: another text of the same length,
 * or another topk. */
static void ask_otherwise(const struct engine *e, const struct kg_search_how *how,
                          const char *said)
{
    const struct kg_query ahead = {said, strlen(said)};
    struct answer want[TOPK], got[TOPK];
    struct kg_hits hits;
    struct engine alone;
    char other[96];

    strcpy(other, said);
    memcpy(other, "xyz", 3);
    start(&alone, how);
    find(&hits, &alone, other, TOPK);
    keep_answers(want, &hits);
    stop(&alone);
    must(kg_searcher_ahead(e->s, &ahead, 1, TOPK, &err));
    find(&hits, e, other, TOPK);
    keep_answers(got, &hits);
    assert_memory_equal(got, want, sizeof got);
    must(kg_searcher_ahead(e->s, &ahead, 1, TOPK, &err));
    find(&hits, e, said, TOPK + 1);
    assert_int_equal(hits.n, TOPK + 1);
}

/* A query has the same answer with and without look-ahead, in any order, on any number of
 * threads. */
static void check_shared(const struct kg_search_how *how)
{
    static struct answer want[QUERIES][TOPK], got[TOPK];
    const int threads = omp_get_max_threads();
    struct kg_query ahead[KG_AHEAD_MAX];
    struct kg_hits hits;
    struct engine e;

    start(&e, how);
    omp_set_num_threads(1);
    for (int i = 0; i < QUERIES; i++) {
        find(&hits, &e, texts[i], TOPK);
        keep_answers(want[i], &hits);
    }
    omp_set_num_threads(3);
    for (int i = 0; i < KG_AHEAD_MAX; i++)
        ahead[i] = (struct kg_query){texts[i], strlen(texts[i])};
    must(kg_searcher_ahead(e.s, ahead, KG_AHEAD_MAX, TOPK, &err));
    for (int i = 0; i < KG_AHEAD_MAX; i++) {
        if (i == 40)
            ask_otherwise(&e, how, texts[i]);
        find(&hits, &e, texts[i], TOPK);
        keep_answers(got, &hits);
        assert_memory_equal(got, want[i], sizeof got);
    }
    omp_set_num_threads(threads);
    stop(&e);
}

static void queries_of_one_pass_have_their_own_answers(void **state)
{
    (void)state;
    build(FEW);
    check_shared(&dense);
    check_shared(&hybrid);
    check_shared(&dense_bytes);
}

/* ---- one byte per number ---- */
static void same_answers(const struct kg_search_how *halves,
                         const struct kg_search_how *bytes, int topk)
{
    struct engine a, b;
    struct kg_hits x, y;

    start(&a, halves);
    start(&b, bytes);
    for (int i = 0; i < QUERIES; i += 3) {
        find(&x, &a, texts[i], topk);
        find(&y, &b, texts[i], topk);
        assert_int_equal(x.n, y.n);
        for (size_t j = 0; j < x.n; j++) {
            assert_string_equal(x.passages[j].id, y.passages[j].id);
            assert_true(x.passages[j].score == y.passages[j].score);
        }
    }
    stop(&b);
    stop(&a);
}

static void bytes_find_what_halves_find(void **state)
{
    (void)state;
    build(FEW);
    same_answers(&dense, &dense_bytes, TOPK);
    same_answers(&dense, &dense_bytes, 1);
    same_answers(&dense, &dense_bytes, KG_INDEX_TOPK_MAX);
    same_answers(&hybrid, &hybrid_bytes, TOPK);
    build(3); /* fewer than topk */
    same_answers(&dense, &dense_bytes, TOPK);
}

/* The error of a product with the codes of x is within the bound, and the bound is at
 * most 1/0.9 of what the worst query needs. */
static void a_bound_holds_and_is_close(void **state)
{
    enum { N = 96 };
    uint32_t seed = 3;

    (void)state;
    for (int trial = 0; trial < 200; trial++) {
        double squares = 0, dot = 0, by_codes = 0;
        float scale, bound, x[N];
        uint16_t halves[N];
        int8_t codes[N];

        for (int d = 0; d < N; d++) {
            seed = seed * 1664525u + 1013904223u;
            x[d] = ldexpf((float)(int32_t)seed, -31 - trial % 12);
            halves[d] = kg_half_of(x[d]);
        }
        kg_dense_shrink(codes, &scale, &bound, halves, N);
        /* the worst query is parallel to the rounding error */
        for (int d = 0; d < N; d++) {
            const double kept = (double)scale * codes[d];
            const double q = (double)kg_half_float(halves[d]) - kept;

            squares += q * q;
            dot += q * (double)kg_half_float(halves[d]);
            by_codes += q * kept;
        }
        assert_true(fabs(dot - by_codes) <= sqrt(squares) * (double)bound);
        assert_true(fabs(dot - by_codes) >= sqrt(squares) * (double)bound * 0.9);
    }
}

static void a_vector_of_zeros_has_codes(void **state)
{
    const uint16_t zeros[4] = {0, 0x8000u, 0, 0};
    float scale = 1, bound = 1;
    int8_t codes[4];

    (void)state;
    kg_dense_shrink(codes, &scale, &bound, zeros, 4);
    assert_true(scale == 0 && bound == 0 && codes[0] == 0 && codes[1] == 0);
}

/* ---- both rankings ---- */
static void rank_of(size_t *rank, const struct kg_hits *hits, const char *id)
{
    for (*rank = 0; *rank < hits->n; ++*rank)
        if (strcmp(hits->passages[*rank].id, id) == 0)
            return;
}

/* A hybrid score depends only on the passage's ranks in both rankings. */
static void hybrid_joins_places(void **state)
{
    static struct answer words[KG_HYBRID_DEPTH];
    struct engine by_words, by_vectors, both;
    struct kg_hits a, b, c;
    size_t n_words;

    (void)state;
    build(FEW);
    start(&by_words, &(struct kg_search_how){0});
    start(&by_vectors, &dense);
    start(&both, &hybrid);
    find(&a, &by_words, "cat dog", KG_HYBRID_DEPTH);
    n_words = a.n;
    for (size_t i = 0; i < a.n; i++)
        strcpy(words[i].id, a.passages[i].id);
    find(&b, &by_vectors, "cat dog", KG_HYBRID_DEPTH);
    find(&c, &both, "cat dog", TOPK);
    assert_int_equal(c.n, TOPK);
    for (size_t i = 0; i < c.n; i++) {
        double want = 0;
        size_t at;

        rank_of(&at, &b, c.passages[i].id);
        want += at < b.n ? 0.5 / (60 + (double)at + 1) : 0;
        for (at = 0; at < n_words && strcmp(words[at].id, c.passages[i].id) != 0; at++)
            ;
        want += at < n_words ? 0.5 / (60 + (double)at + 1) : 0;
        assert_float_equal(c.passages[i].score, want, 1e-15);
    }
    stop(&both);
    stop(&by_vectors);
    stop(&by_words);
}

static void rankings_are_fused(void **state)
{
    const struct kg_candidate x[] = {{9, 4}, {5, 1}, {1, 2}}, y[] = {{0.5, 2}, {0.25, 7}};
    struct kg_ranking a = {x, 3, 0.75}, b = {y, 2, 0.25}, none = {NULL, 0, 0.25};
    struct kg_candidate best[3];

    (void)state;
    assert_int_equal(kg_rank_fuse(best, 3, &a, &b, KG_FUSION_RANK), 3);
    assert_int_equal(best[0].row, 2); /* in both */
    assert_float_equal(best[0].score, 0.75 / 63 + 0.25 / 61, 1e-15);
    assert_int_equal(best[1].row, 4);
    assert_int_equal(best[2].row, 1);
    assert_int_equal(kg_rank_fuse(best, 3, &a, &b, KG_FUSION_SCORE), 3);
    assert_int_equal(best[0].row, 4);
    assert_float_equal(best[0].score, 0.75, 1e-15);
    assert_int_equal(best[1].row, 1);
    assert_float_equal(best[1].score, 0.375, 1e-15);
    assert_int_equal(best[2].row, 2); /* the lowest of x, the highest of y */
    assert_float_equal(best[2].score, 0.25, 1e-15);
    assert_int_equal(kg_rank_fuse(best, 1, &a, &none, KG_FUSION_RANK), 1);
    assert_int_equal(best[0].row, 4);
    assert_int_equal(kg_rank_fuse(best, 3, &none, &none, KG_FUSION_SCORE), 0);
}

/* ---- any bytes ---- */
static void any_bytes_are_a_query(void **state)
{
    static const char *const bytes[] = {"",   " ", "\xff\xfe", "cat \xc3", "\xed\xa0\x80",
                                        "'\""};
    struct engine e;
    struct kg_hits hits;

    (void)state;
    build(20);
    start(&e, &hybrid);
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        find(&hits, &e, bytes[i], TOPK);
        assert_int_equal(hits.n, TOPK);
    }
    stop(&e);
}

/* ---- what is refused ---- */
static void refuses(const struct kg_search_how *how, kg_status status, const char *part)
{
    struct kg_index *index;

    must(kg_index_open(&index, in_dir("index"), NULL, &err));
    assert_int_equal(kg_index_ask(index, how, &err), status);
    if (!strstr(err.message, part))
        fail_msg("expected \"%s\" in \"%s\"", part, err.message);
    kg_index_close(index);
}

static void an_index_has_one_encoder(void **state)
{
    (void)state;
    build(20);
    refuses(&(struct kg_search_how){.kind = "dense", .model = OTHER, .weight = 0.5},
            KG_ECONFLICT, "expected the encoder of its vectors (hash ");
    refuses(
        &(struct kg_search_how){.kind = "dense", .model = in_dir("none"), .weight = 0.5},
        KG_ENOTFOUND, "its encoder");
    refuses(&(struct kg_search_how){.kind = "dense"}, KG_EINVAL,
            "search.model: expected the folder of the encoder for search.kind dense");
    refuses(&(struct kg_search_how){.kind = "both"}, KG_EINVAL,
            "search.kind: expected one of bm25, dense, hybrid; found 'both'");
    refuses(&(struct kg_search_how){.kind = "dense", .model = MODEL, .vectors = "int4"},
            KG_EINVAL, "search.vectors: expected one of fp16, int8; found 'int4'");
}

static void an_index_of_words_has_no_vectors(void **state)
{
    struct kg_index_build_opts o = {.bm25 = kg_bm25_default};
    struct kg_index_info info;

    (void)state;
    put("corpus", "{\"id\": 1, \"contents\": \"a cat\"}\n");
    o.corpus = in_dir("corpus");
    o.path = in_dir("index");
    must(kg_index_build(&info, &o, &err));
    assert_int_equal(info.dim, 0);
    refuses(&dense, KG_EINVAL, "expected an index with vectors");
}

/* The last tensor of a copy of the encoder is filled with NaN. */
static void what_is_no_vector_leaves_no_index(void **state)
{
    static const char *const files[] = {"config.json", "modules.json", "tokenizer.json"};
    struct kg_index_info info;
    struct kg_str file = {0};

    (void)state;
    make_texts();
    for (size_t i = 0; i < 3; i++)
        must(kg_file_copy(kg_path_in(MODEL, files[i]).text, in_dir(files[i]), &err));
    must(kg_file_make_dirs(in_dir("1_Pooling"), &err));
    must(kg_file_copy(MODEL "/1_Pooling/config.json", in_dir("1_Pooling/config.json"),
                      &err));
    must(kg_file_read(&file, MODEL "/model.safetensors", 1 << 20, &err));
    memset(file.data + file.len - 64, 0xff, 64);
    must(kg_file_write_atomic(in_dir("model.safetensors"), file.data, file.len, &err));
    kg_str_release(&file);
    assert_int_equal(try_build(dir, 20, &info), KG_ENONFINITE);
    assert_non_null(strstr(err.message, "passages from number 1 on: text "));
    assert_false(kg_file_exists(in_dir("index")));
}

/* One number of passage 18's vector becomes NaN in an index whose seal is not checked. */
static void a_file_with_nan_in_a_vector_is_refused(void **state)
{
    struct kg_index *index;
    sqlite3 *db;

    (void)state;
    build(20);
    assert_int_equal(sqlite3_open(in_dir("index"), &db), SQLITE_OK);
    must(kg_sql_exec(db, "index",
                     "UPDATE vector SET halves = CAST(substr(halves, 1, 17 * 16) || "
                     "x'ff7f' || substr(halves, 17 * 16 + 3) AS BLOB)",
                     &err));
    sqlite3_close(db);
    must(kg_index_open_unsealed(&index, in_dir("index"), NULL, &err));
    assert_int_equal(kg_index_ask(index, &dense_bytes, &err), KG_EFORMAT);
    assert_non_null(strstr(
        err.message,
        "expected finite vectors, found NaN or infinity in the vector of passage 18"));
    kg_index_close(index);
}

/* Changes an index of 70 passages with `sql`; opened without its seal, it is refused with
 * `part`. */
static void is_refused_after(const char *sql, const char *part)
{
    struct kg_index *index;
    sqlite3 *db;

    build(70);
    assert_int_equal(sqlite3_open(in_dir("index"), &db), SQLITE_OK);
    must(kg_sql_exec(db, "index", sql, &err));
    sqlite3_close(db);
    must(kg_index_open_unsealed(&index, in_dir("index"), NULL, &err));
    assert_int_equal(kg_index_ask(index, &dense_bytes, &err), KG_EFORMAT);
    if (!strstr(err.message, part))
        fail_msg("expected \"%s\" in \"%s\"", part, err.message);
    kg_index_close(index);
}

static void rows_of_vectors_are_where_they_belong(void **state)
{
    (void)state;
    is_refused_after(
        "UPDATE vector SET chunk = 2 WHERE chunk = 1",
        "expected block 1 of its vectors, with 6 vectors, found block 2 with 6");
    is_refused_after(
        "UPDATE vector SET halves = CAST(halves || (SELECT halves FROM "
        "vector WHERE chunk = 1) AS BLOB) WHERE chunk = 0; "
        "DELETE FROM vector WHERE chunk = 1",
        "expected block 0 of its vectors, with 64 vectors, found block 0 with 70");
    is_refused_after("DELETE FROM vector WHERE chunk = 1",
                     "expected 70 vectors, found 64");
}

/* If SQLite cannot read a row, its error is reported, and not a missing row. */
static void a_damaged_row_is_not_a_missing_one(void **state)
{
    int64_t page, size;
    struct kg_index *index;
    sqlite3 *db;
    FILE *f;

    (void)state;
    build(20);
    assert_int_equal(sqlite3_open(in_dir("index"), &db), SQLITE_OK);
    must(kg_sql_int(&page, db, "index",
                    "SELECT rootpage FROM sqlite_schema WHERE name = 'vector'", &err));
    must(kg_sql_int(&size, db, "index", "PRAGMA page_size", &err));
    sqlite3_close(db);
    f = fopen(in_dir("index"), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)((page - 1) * size), SEEK_SET), 0);
    assert_int_equal(fputc(0xff, f), 0xff);
    assert_int_equal(fclose(f), 0);
    must(kg_index_open_unsealed(&index, in_dir("index"), NULL, &err));
    assert_int_equal(kg_index_ask(index, &dense, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "found a damaged file"));
    kg_index_close(index);
}

static void more_than_can_be_searched_one_by_one_is_refused(void **state)
{
    (void)state;
    must(kg_dense_check_count(KG_DENSE_PASSAGES_MAX, &err));
    assert_int_equal(kg_dense_check_count(KG_DENSE_PASSAGES_MAX + 1, &err),
                     KG_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "expected at most 67108864 passages"));
    assert_non_null(strstr(err.message, "docs/search-at-scale.md"));
}

/* The size of Wikipedia 2018 with E5, and the largest size allowed. The check allocates
 * nothing. */
static void a_machine_without_room_is_told(void **state)
{
    struct kg_dense d = {
        .path = "wiki.db", .n = 21015324, .dim = 768, .codes = {.code = KG_CODE_F16}};

    (void)state;
    must(kg_dense_check_memory(&d, 33ull << 30, &err));
    must(kg_dense_check_memory(&d, 0, &err));
    assert_int_equal(kg_dense_check_memory(&d, 16ull << 30, &err), KG_ENOMEM);
    assert_non_null(strstr(
        err.message, "wiki.db: expected memory for 21015324 vectors of 768 numbers, "
                     "32.280 GB as fp16 (16.308 GB as int8), found a machine or control "
                     "group of 17.180 GB"));
    d.codes.code = KG_CODE_I8;
    must(kg_dense_check_memory(&d, 16ull << 30, &err));
    assert_int_equal(kg_dense_check_memory(&d, 15ull << 30, &err), KG_ENOMEM);
    assert_non_null(strstr(err.message, "16.308 GB as int8 (32.280 GB as fp16), found"));
    d.n = KG_DENSE_PASSAGES_MAX;
    d.dim = KG_DENSE_DIM_MAX;
    assert_int_equal(kg_dense_check_memory(&d, UINT64_MAX >> 8, &err), KG_OK);
    d.n++;
    assert_int_equal(kg_dense_check_memory(&d, 0, &err), KG_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "wiki.db: expected at most 67108864 passages"));
}

/* ---- fp16 ---- */
static void halves_are_nearest(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00u; h++) {
        const float x = kg_half_float((uint16_t)h);
        const float y = kg_half_float((uint16_t)(h + 1 < 0x7c00u ? h + 1 : h));

        assert_int_equal(kg_half_of(x), h);
        assert_int_equal(kg_half_of(-x), h | 0x8000u);
        assert_int_equal(kg_half_of(x + (y - x) * 0.25f), h);
        if (y > x) /* ties go to even */
            assert_int_equal(kg_half_of(x + (y - x) * 0.5f), h + (h & 1u));
    }
    assert_float_equal(kg_half_float(0x3c00), 1, 0);
    assert_float_equal(kg_half_float(0x7bff), 65504, 0);
    assert_float_equal(kg_half_float(0x0001), 0x1p-24f, 0);
}

/* ---- memory ---- */
static void without_memory_nothing_is_left(void **state)
{
    const uint64_t before = kg_mem_current_bytes();
    struct kg_index_info info;
    bool done = false;

    (void)state;
    build(3);
    for (uint64_t n = 1; !done; n += 3) {
        struct kg_index *index = NULL;
        struct kg_searcher *s = NULL;
        struct kg_hits hits;

        assert_true(n < 3000);
        kg_mem_fail_at(n);
        done = build_again(MODEL, &info) == KG_OK &&
               kg_index_open(&index, in_dir("index"), NULL, &err) == KG_OK &&
               kg_index_ask(index, &hybrid_bytes, &err) == KG_OK &&
               kg_searcher_open(&s, index, &err) == KG_OK &&
               kg_searcher_find(&hits, s, "cat", 3, 3, &err) == KG_OK;
        kg_mem_fail_at(0);
        kg_searcher_close(s);
        kg_index_close(index);
        assert_true(kg_mem_current_bytes() == before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_nearest_vectors_are_found, make_dir, end),
        cmocka_unit_test_setup_teardown(queries_of_one_pass_have_their_own_answers,
                                        make_dir, end),
        cmocka_unit_test_setup_teardown(bytes_find_what_halves_find, make_dir, end),
        cmocka_unit_test(a_bound_holds_and_is_close),
        cmocka_unit_test(a_vector_of_zeros_has_codes),
        cmocka_unit_test_setup_teardown(hybrid_joins_places, make_dir, end),
        cmocka_unit_test(rankings_are_fused),
        cmocka_unit_test_setup_teardown(any_bytes_are_a_query, make_dir, end),
        cmocka_unit_test_setup_teardown(an_index_has_one_encoder, make_dir, end),
        cmocka_unit_test_setup_teardown(an_index_of_words_has_no_vectors, make_dir, end),
        cmocka_unit_test_setup_teardown(what_is_no_vector_leaves_no_index, make_dir, end),
        cmocka_unit_test_setup_teardown(a_file_with_nan_in_a_vector_is_refused, make_dir,
                                        end),
        cmocka_unit_test_setup_teardown(rows_of_vectors_are_where_they_belong, make_dir,
                                        end),
        cmocka_unit_test_setup_teardown(a_damaged_row_is_not_a_missing_one, make_dir,
                                        end),
        cmocka_unit_test(more_than_can_be_searched_one_by_one_is_refused),
        cmocka_unit_test(a_machine_without_room_is_told),
        cmocka_unit_test(halves_are_nearest),
        cmocka_unit_test_setup_teardown(without_memory_nothing_is_left, make_dir, end),
    };

    kg_file_skip_syncs(true);
    return cmocka_run_group_tests_name("vectors of an index", tests, NULL, NULL);
}
