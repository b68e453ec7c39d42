/* kedge search: an index of passages from a corpus file, questions to it, its server, and
 * how fast it answers.
 */
#include "cli/cli.h"

#include "base/clock.h"
#include "base/mem.h"
#include "data/jsonl.h"
#include "search/index.h"

#include <stdio.h>
#include <string.h>

static double k1 = -1, b = -1;
static bool words_as_are;
static int64_t topk = 3;
static bool as_json;

const struct kg_flag kg_search_flags[] = {
    {"k1", 0, KG_FLAG_REAL, &k1, "X",
     "BM25: how soon further occurrences of a word stop counting (default 1.2; index: "
     "kept in it; query, serve, bench: instead of the index's)",
     0, 1000, NULL},
    {"b", 0, KG_FLAG_REAL, &b, "X",
     "BM25: how much long passages pay for their length (default 0.75)", 0, 1, NULL},
    {"no-stemming", 0, KG_FLAG_TRUE, &words_as_are, NULL,
     "index: words as they are, 'wings' does not find 'wing'", 0, 0, NULL},
    {"topk", 'k', KG_FLAG_INT, &topk, "N", "passages for a query (default 3)", 1,
     KG_INDEX_TOPK_MAX, NULL},
    {"json", 0, KG_FLAG_TRUE, &as_json, NULL, "query: the answer as a line of JSON", 0, 0,
     NULL},
    {0},
};

static kg_status open_index(struct kg_index **index, const char *path, struct kg_err *err)
{
    struct kg_index_info info;
    struct kg_bm25 bm25;

    KG_TRY(kg_index_open(index, path, NULL, err));
    if (k1 < 0 && b < 0)
        return KG_OK;
    kg_index_info(&info, *index);
    bm25 = (struct kg_bm25){k1 < 0 ? info.bm25.k1 : k1, b < 0 ? info.bm25.b : b};
    kg_index_close(*index);
    return kg_index_open(index, path, &bm25, err);
}

/* ---- index, check ---- */

static void print_info(const struct kg_index_info *info, const char *path)
{
    char size[32];

    kg_cli_bytes(size, (double)info->bytes);
    printf(
        "%s: %lld passages, %lld words of which %lld differ, %s; BM25 k1 %g b %g, %s\n",
        path, (long long)info->passages, (long long)info->tokens, (long long)info->terms,
        size, info->bm25.k1, info->bm25.b,
        info->stemmed ? "stemmed" : "words as they are");
}

static kg_status index_corpus(int argc, char **argv, struct kg_err *err)
{
    struct kg_index_build_opts opts = {.corpus = argv[0],
                                       .path = argv[1],
                                       .words_as_are = words_as_are,
                                       .bm25 = kg_bm25_default};
    struct kg_index_info info;
    double start = kg_clock_seconds();
    double seconds;

    (void)argc;
    if (k1 >= 0)
        opts.bm25.k1 = k1;
    if (b >= 0)
        opts.bm25.b = b;
    KG_TRY(kg_index_build(&info, &opts, err));
    seconds = kg_clock_seconds() - start;
    print_info(&info, argv[1]);
    fprintf(stderr, "kedge search: %.1f seconds, %.0f passages a second\n", seconds,
            (double)info.passages / (seconds > 0 ? seconds : 1e-9));
    return KG_OK;
}

static kg_status check(int argc, char **argv, struct kg_err *err)
{
    struct kg_index_info info;
    struct kg_index *index;

    (void)argc;
    KG_TRY(kg_index_verify(argv[0], err));
    KG_TRY(kg_index_open(&index, argv[0], NULL, err));
    kg_index_info(&info, index);
    print_info(&info, argv[0]);
    kg_index_close(index);
    return KG_OK;
}

/* ---- query ---- */

static kg_status put_passage(struct kg_str *out, const struct kg_passage *p,
                             struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "{\"id\": ", err));
    KG_TRY(kg_json_put_string(out, p->id, strlen(p->id), err));
    KG_TRY(kg_str_puts(out, ", \"contents\": ", err));
    KG_TRY(kg_json_put_string(out, p->contents, strlen(p->contents), err));
    KG_TRY(kg_str_puts(out, ", \"score\": ", err));
    KG_TRY(kg_json_put_double(out, p->score, err));
    return kg_str_puts(out, "}", err);
}

static kg_status put_json(struct kg_str *out, const struct kg_hits *hits,
                          struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "{\"passages\": [", err));
    for (size_t i = 0; i < hits->n; i++) {
        KG_TRY(kg_str_puts(out, i ? ", " : "", err));
        KG_TRY(put_passage(out, &hits->passages[i], err));
    }
    return kg_str_printf(out, err, "], \"scored\": %lld, \"cut\": %s}\n",
                         (long long)hits->rows, hits->cut ? "true" : "false");
}

static kg_status put_text(struct kg_str *out, const struct kg_hits *hits,
                          struct kg_err *err)
{
    for (size_t i = 0; i < hits->n; i++) {
        const struct kg_passage *p = &hits->passages[i];

        KG_TRY(kg_str_printf(out, err, "%zu. [%s] score %.4f\n%s\n\n", i + 1, p->id,
                             p->score, p->contents));
    }
    if (hits->n == 0)
        return kg_str_puts(out, "nothing found\n", err);
    return KG_OK;
}

static kg_status answer_line(struct kg_str *out, const struct kg_json_doc *doc,
                             void *context, struct kg_err *err)
{
    const struct kg_json *query;
    struct kg_hits hits;
    const char *text;
    size_t n;

    KG_TRY(kg_json_need(&query, doc, doc->root, "query", KG_JSON_STRING, err));
    text = kg_json_text(query, &n);
    KG_TRY(kg_searcher_find(&hits, context, text, n, (int)topk, err));
    return put_json(out, &hits, err);
}

static kg_status answer_one(struct kg_searcher *s, const char *query, struct kg_err *err)
{
    struct kg_str out = {0};
    struct kg_hits hits;
    kg_status status;

    KG_TRY_GOTO(out, kg_searcher_find(&hits, s, query, strlen(query), (int)topk, err));
    KG_TRY_GOTO(out, as_json ? put_json(&out, &hits, err) : put_text(&out, &hits, err));
    status = kg_cli_put(&out, err);
out:
    kg_str_release(&out);
    return status;
}

static kg_status query(int argc, char **argv, struct kg_err *err)
{
    struct kg_searcher *s = NULL;
    struct kg_index *index = NULL;
    kg_status status;

    KG_TRY_GOTO(out, open_index(&index, argv[0], err));
    KG_TRY_GOTO(out, kg_searcher_open(&s, index, err));
    status = argc > 1 ? answer_one(s, argv[1], err) : kg_cli_filter(answer_line, s, err);
out:
    kg_searcher_close(s);
    kg_index_close(index);
    return status;
}

/* ---- the command ---- */

static const struct action {
    const char *name;
    int min_args, max_args;
    const char *args;
    kg_status (*run)(int argc, char **argv, struct kg_err *err);
} actions[] = {{"index", 2, 2, "CORPUS INDEX", index_corpus},
               {"query", 1, 2, "INDEX and a query, or lines {\"query\"} on stdin", query},
               {"check", 1, 1, "INDEX", check}};

int kg_cmd_search(int argc, char **argv)
{
    struct kg_err err;

    for (size_t i = 0; argc > 0 && i < sizeof actions / sizeof *actions; i++) {
        const struct action *a = &actions[i];

        if (strcmp(argv[0], a->name) != 0)
            continue;
        if (argc - 1 < a->min_args || argc - 1 > a->max_args)
            return kg_cli_usage("search %s: expected %s", a->name, a->args);
        return kg_cli_exit(a->run(argc - 1, argv + 1, &err), &err);
    }
    return kg_cli_usage("expected index, query or check, found %s%s%s",
                        argc > 0 ? "'" : "", argc > 0 ? argv[0] : "nothing",
                        argc > 0 ? "'" : "");
}
