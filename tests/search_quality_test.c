/* How well the embedded engine finds, on real collections with real relevance judgements.
 *
 * Cranfield: mean average precision over 225 queries. joined_multihop: a supporting
 * paragraph in the top three. wiki_passages: a passage with the answer's text in the top
 * three, over the questions that the passages can answer. The bars are the lower bounds
 * for the engine's defaults; the measured numbers are printed.
 */
#include "base/folder_testing.h"
#include "base/str.h"
#include "data/records.h"
#include "retriever/build.h"
#include "task/qa.h"

#include <math.h>

#define DATA "../shared/data/search/"

static void must(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

static void need_data(void)
{
    if (kg_file_exists(DATA "cranfield/cran.qry.xml"))
        return;
    print_message("skip: " DATA " is not there\n");
    skip();
}

struct engine {
    struct kg_index *index;
    struct kg_searcher *searcher;
    struct kg_hits hits;
};

static void start_with(struct engine *e, const char *corpus, bool words_as_are,
                       const struct kg_bm25 *bm25)
{
    struct kg_index_build_opts o = {.corpus = corpus,
                                    .path = in_dir("index"),
                                    .words_as_are = words_as_are,
                                    .bm25 = *bm25};
    struct kg_index_info info;

    must(kg_index_build(&info, &o, &err));
    must(kg_index_open(&e->index, in_dir("index"), NULL, &err));
    must(kg_searcher_open(&e->searcher, e->index, &err));
}

static void start(struct engine *e, const char *corpus, bool words_as_are)
{
    start_with(e, corpus, words_as_are, &kg_bm25_default);
}

static void stop(struct engine *e)
{
    kg_searcher_close(e->searcher);
    kg_index_close(e->index);
}

/* ---- Cranfield ---- */

enum { DOCUMENTS = 1400, QUERIES = 225 };
static bool relevant[QUERIES + 1][DOCUMENTS + 1];
static int n_relevant[QUERIES + 1];

/* from (n) <- the text between <tag> and </tag> after *at, which moves past it */
static bool between(const char **from, size_t *n, const char **at, const char *tag)
{
    char open[32], close[32];
    const char *start, *end;

    snprintf(open, sizeof open, "<%s>", tag);
    snprintf(close, sizeof close, "</%s>", tag);
    start = strstr(*at, open);
    if (!start)
        return false;
    start += strlen(open);
    end = strstr(start, close);
    assert_non_null(end);
    *from = start;
    *n = (size_t)(end - start);
    *at = end;
    return true;
}

static void put_field(struct kg_str *out, const char **at, const char *tag)
{
    const char *text = "";
    size_t n = 0;

    assert_true(between(&text, &n, at, tag));
    must(kg_json_put_string(out, text, n, &err));
}

static void write_cranfield(void)
{
    struct kg_str xml = {0};
    struct kg_str out = {0};
    const char *at;

    must(kg_file_read(&xml, DATA "cranfield/cran.all.1400.xml", 1 << 24, &err));
    at = xml.data;
    for (int i = 1; i <= DOCUMENTS; i++) {
        must(kg_str_printf(&out, &err, "{\"id\": %d, \"title\": ", i));
        put_field(&out, &at, "title");
        must(kg_str_puts(&out, ", \"text\": ", &err));
        put_field(&out, &at, "text");
        must(kg_str_puts(&out, "}\n", &err));
    }
    put("cranfield", out.data);
    kg_str_release(&xml);
    kg_str_release(&out);
}

static void read_judgements(void)
{
    struct kg_str text = {0};

    must(kg_file_read(&text, DATA "cranfield/cranqrel.trec.txt", 1 << 24, &err));
    for (char *line = strtok(text.data, "\n"); line; line = strtok(NULL, "\n")) {
        int query, zero, document, value;

        if (sscanf(line, "%d %d %d %d", &query, &zero, &document, &value) != 4)
            continue;
        assert_in_range(query, 1, QUERIES);
        assert_in_range(document, 1, DOCUMENTS);
        if (value <= 0 || relevant[query][document])
            continue;
        relevant[query][document] = true;
        n_relevant[query]++;
    }
    kg_str_release(&text);
}

static double average_precision(const struct kg_hits *hits, int query)
{
    double sum = 0;
    int found = 0;

    for (size_t i = 0; i < hits->n; i++)
        if (relevant[query][atoi(hits->passages[i].id)])
            sum += ++found / (double)(i + 1);
    return sum / n_relevant[query];
}

static double cranfield_map(struct engine *e)
{
    struct kg_str xml = {0};
    const char *at, *text;
    double sum = 0;
    size_t n;
    int judged = 0;

    must(kg_file_read(&xml, DATA "cranfield/cran.qry.xml", 1 << 24, &err));
    at = xml.data;
    for (int q = 1; q <= QUERIES; q++) {
        assert_true(between(&text, &n, &at, "title"));
        if (n_relevant[q] == 0)
            continue;
        must(kg_searcher_find(&e->hits, e->searcher, text, n, KG_INDEX_TOPK_MAX, &err));
        sum += average_precision(&e->hits, q);
        judged++;
    }
    kg_str_release(&xml);
    return sum / judged;
}

static void cranfield(void **state)
{
    static const double bars[] = {0.30, 0.28}; /* with stemming, without */

    (void)state;
    need_data();
    memset(relevant, 0, sizeof relevant);
    memset(n_relevant, 0, sizeof n_relevant);
    write_cranfield();
    read_judgements();
    for (int as_are = 0; as_are < 2; as_are++) {
        struct engine e;
        double map;

        start(&e, in_dir("cranfield"), as_are);
        map = cranfield_map(&e);
        stop(&e);
        print_message("Cranfield MAP %s stems: %.4f\n", as_are ? "without" : "with", map);
        assert_true(map >= bars[as_are]);
    }
}

/* ---- questions ---- */

struct share {
    int right, all;
};
typedef bool (*judge_fn)(const struct kg_hits *hits, const struct kg_json *question);

static struct share ask_all(struct engine *e, const char *path, judge_fn applies,
                            judge_fn right)
{
    struct share s = {0};
    struct kg_json_doc doc = {0};
    struct kg_records *r;
    bool more;

    must(kg_records_open(&r, path, &err));
    for (;;) {
        const char *question;

        must(kg_records_next(r, &doc, &more, &err));
        if (!more)
            break;
        if (!applies(NULL, doc.root))
            continue;
        must(kg_json_need_text(&question, &doc, doc.root, "question", &err));
        must(
            kg_searcher_find(&e->hits, e->searcher, question, strlen(question), 3, &err));
        s.right += right(&e->hits, doc.root);
        s.all++;
    }
    kg_records_close(r);
    kg_json_release(&doc);
    return s;
}

static bool always(const struct kg_hits *hits, const struct kg_json *question)
{
    (void)hits;
    (void)question;
    return true;
}

static bool has_support(const struct kg_hits *hits, const struct kg_json *question)
{
    const struct kg_json *docs = kg_json_get(question, "supporting_docs");

    for (size_t i = 0; i < hits->n; i++)
        for (size_t j = 0; j < kg_json_size(docs); j++)
            if (strcmp(hits->passages[i].id, kg_json_text(kg_json_at(docs, j), NULL)) ==
                0)
                return true;
    return false;
}

static bool is_answerable(const struct kg_hits *hits, const struct kg_json *question)
{
    (void)hits;
    return kg_json_bool(kg_json_get(question, "answer_in_retrieved_docs"), false);
}

static bool has_answer(const struct kg_hits *hits, const struct kg_json *question)
{
    const struct kg_json *golds = kg_json_get(question, "golden_answers");
    const struct kg_qa_metric *metric;
    double best = 0;

    must(kg_qa_metric_find(&metric, "subem", &err));
    for (size_t i = 0; i < hits->n; i++)
        for (size_t j = 0; j < kg_json_size(golds); j++) {
            struct kg_qa_text passage = {hits->passages[i].contents,
                                         strlen(hits->passages[i].contents)};
            struct kg_qa_text gold;
            double score;

            gold.text = kg_json_text(kg_json_at(golds, j), &gold.n);
            must(kg_qa_score(&score, metric, passage, &gold, 1, &err));
            best = score > best ? score : best;
        }
    return best == 1;
}

static void bar(const char *what, const struct share *s, double least)
{
    double share = s->right / (double)s->all;

    print_message("%s: %d of %d, %.4f\n", what, s->right, s->all, share);
    assert_true(share >= least);
}

static void joined_multihop(void **state)
{
    struct engine e;
    struct share s;

    (void)state;
    need_data();
    start(&e, DATA "joined_multihop/corpus.jsonl", false);
    s = ask_all(&e, DATA "joined_multihop/questions.jsonl", always, has_support);
    stop(&e);
    bar("joined_multihop, a support among the first 3", &s, 0.92);
}

static void wiki_passages(void **state)
{
    struct engine e;
    struct share s;

    (void)state;
    need_data();
    start(&e, DATA "wiki_passages/corpus.jsonl", false);
    s = ask_all(&e, DATA "wiki_passages/questions.jsonl", is_answerable, has_answer);
    stop(&e);
    bar("wiki_passages, the answer among the first 3", &s, 0.58);
}

/* ---- textbook BM25 against the scores of another program ---- */

struct agreement {
    int hits, close, first;
};

static void compare_top(struct agreement *a, const struct kg_hits *hits,
                        const struct kg_json *top)
{
    assert_int_equal(hits->n, kg_json_size(top));
    for (size_t i = 0; i < hits->n; i++) {
        const struct kg_json *pair = kg_json_at(top, i);
        double score = kg_json_real(kg_json_at(pair, 1), 0);

        a->hits++;
        a->close += fabs(hits->passages[i].score - score) < 0.02 * score;
        a->first += i == 0 && strcmp(hits->passages[i].id,
                                     kg_json_text(kg_json_at(pair, 0), NULL)) == 0;
    }
}

/* That program's words are runs of a-z and 0-9, so scores of texts with accents differ
 * slightly. */
static void textbook_bm25_agrees(void **state)
{
    struct kg_json_doc question = {0};
    struct kg_json_doc top = {0};
    struct kg_records *questions, *tops;
    struct agreement a = {0};
    struct engine e;

    (void)state;
    need_data();
    start_with(&e, DATA "joined_multihop/corpus.jsonl", true,
               &(struct kg_bm25){0.9, 0.4, 0, 1, 1});
    must(kg_records_open(&questions, DATA "joined_multihop/questions.jsonl", &err));
    must(kg_records_open(&tops, DATA "joined_multihop/bm25_top10.jsonl", &err));
    for (;;) {
        const char *text;
        bool more;

        must(kg_records_next(questions, &question, &more, &err));
        must(kg_records_next(tops, &top, &more, &err));
        if (!more)
            break;
        must(kg_json_need_text(&text, &question, question.root, "question", &err));
        must(kg_searcher_find(&e.hits, e.searcher, text, strlen(text), 10, &err));
        compare_top(&a, &e.hits, kg_json_get(top.root, "top10"));
    }
    print_message("textbook BM25: %d of %d scores within 2 %%, %d first hits equal\n",
                  a.close, a.hits, a.first);
    assert_true(a.close >= 0.94 * a.hits);
    assert_true(a.first >= 118);
    kg_json_release(&question);
    kg_json_release(&top);
    kg_records_close(questions);
    kg_records_close(tops);
    stop(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(cranfield, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(joined_multihop, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(wiki_passages, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(textbook_bm25_agrees, make_dir, remove_dir),
    };
    return cmocka_run_group_tests_name("search quality", tests, NULL, NULL);
}
