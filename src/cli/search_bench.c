/* One loop, two ways to answer: a searcher of this process, or requests to a server of
 * which so many are always open.
 *
 * Questions come from a file and are asked in turn, every one of them, and on until the
 * time is over, so that both ways, and two versions, answer the same. A server is
 * measured with a fixed number of requests open: how long one takes depends on that
 * number, which is why it is said. Reported are answers a second, and the times below
 * which a half, 95, 99 and all of a hundred answers stayed: a mean would hide what
 * waits.
 */
#include "cli/search_bench.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/signal.h"
#include "base/sort.h"
#include "data/records.h"
#include "net/http_client.h"
#include "search/index.h"
#include "search/protocol.h"

#include <string.h>

enum { MAX_QUERIES = 1 << 24, MAX_SAMPLES = 1 << 28 };

struct bench {
    const struct kg_search_bench_opts *opts;
    struct kg_retrieve_text *queries; /* (n) texts owned */
    size_t n, capacity;
    double *took; /* (n_took) seconds of each answer */
    size_t n_took, took_capacity;
    size_t next; /* query */
    size_t found;
    double start, end;
    struct kg_http_client *client;
    struct kg_str body;
};

static void release(struct bench *b)
{
    for (size_t i = 0; i < b->n; i++)
        kg_mem_free((char *)(uintptr_t)b->queries[i].bytes);
    kg_mem_free(b->queries);
    kg_mem_free(b->took);
    kg_http_client_close(b->client);
    kg_str_release(&b->body);
}

static kg_status add_query(struct bench *b, const struct kg_json_doc *doc,
                           struct kg_err *err)
{
    const char *key = kg_json_get(doc->root, "query") ? "query" : "question";
    const char *text;
    char *copy;

    KG_TRY(kg_json_need_text(&text, doc, doc->root, key, err));
    KG_TRY(kg_mem_grow(&b->queries, &b->capacity, b->n + 1, sizeof *b->queries,
                       MAX_QUERIES, "queries", err));
    copy = kg_mem_strdup(text, err);
    if (!copy)
        return KG_ENOMEM;
    b->queries[b->n++] = (struct kg_retrieve_text){copy, strlen(copy)};
    return KG_OK;
}

static kg_status read_queries(struct bench *b, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_records *r;
    bool more = true;
    kg_status status;

    KG_TRY(kg_records_open(&r, b->opts->queries, err));
    for (;;) {
        KG_TRY_GOTO(out, kg_records_next(r, &doc, &more, err));
        if (!more)
            break;
        KG_TRY_GOTO(out, add_query(b, &doc, err));
    }
    if (b->n == 0)
        status = kg_fail(err, KG_EFORMAT,
                         "%s: expected at least one question, found none",
                         b->opts->queries);
out:
    kg_json_release(&doc);
    kg_records_close(r);
    return status;
}

static kg_status count(struct bench *b, double seconds, bool found, struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&b->took, &b->took_capacity, b->n_took + 1, sizeof *b->took,
                       MAX_SAMPLES, "times", err));
    b->took[b->n_took++] = seconds;
    b->found += found;
    return KG_OK;
}

static bool goes_on(const struct bench *b)
{
    return !kg_signal_stop_requested() && (b->next < b->n || kg_clock_seconds() < b->end);
}

/* ---- an index ---- */

static kg_status ask_searcher(struct bench *b, struct kg_searcher *s, struct kg_err *err)
{
    struct kg_hits hits;

    for (; goes_on(b); b->next++) {
        const struct kg_retrieve_text *q = &b->queries[b->next % b->n];
        double start = kg_clock_seconds();

        KG_TRY(kg_searcher_find(&hits, s, q->bytes, q->n, b->opts->topk, err));
        KG_TRY(count(b, kg_clock_seconds() - start, hits.n > 0, err));
    }
    return KG_OK;
}

static kg_status ask_index(struct bench *b, struct kg_err *err)
{
    struct kg_searcher *s = NULL;
    struct kg_index *index = NULL;
    kg_status status;

    KG_TRY_GOTO(out, kg_index_open(&index, b->opts->where, b->opts->bm25, err));
    KG_TRY_GOTO(out, kg_index_ask(index, &b->opts->how, err));
    KG_TRY_GOTO(out, kg_searcher_open(&s, index, err));
    status = ask_searcher(b, s, err);
out:
    kg_searcher_close(s);
    kg_index_close(index);
    return status;
}

/* ---- a server ---- */

static kg_status send_next(struct bench *b, struct kg_err *err)
{
    kg_str_clear(&b->body);
    KG_TRY(kg_retrieve_request_write(&b->body, &b->queries[b->next++ % b->n], 1,
                                     b->opts->topk, err));
    return kg_http_client_submit(b->client, b->opts->where, b->body.data, b->body.len, 0,
                                 err);
}

static kg_status on_answer(void *user, const struct kg_http_answer *a, struct kg_err *err)
{
    struct kg_retrieve_answer answer;
    struct bench *b = user;
    kg_status status = KG_OK;
    bool found;

    if (a->status != KG_OK)
        return kg_fail(err, a->status, "%s: %s", b->opts->where, a->reason);
    if (a->http_status != 200)
        return kg_fail(err, KG_EIO, "%s: expected HTTP status 200, found %d: %.200s",
                       b->opts->where, a->http_status, a->body);
    KG_TRY(kg_retrieve_answer_read(&answer, a->body, a->body_n, 1, err));
    found = answer.first[1] > 0;
    if (answer.wrong[0])
        status = kg_fail(err, KG_EFORMAT, "%s: %s", b->opts->where, answer.wrong[0]);
    kg_retrieve_answer_release(&answer);
    KG_TRY(status);
    KG_TRY(count(b, a->seconds, found, err));
    return goes_on(b) ? send_next(b, err) : KG_OK;
}

static kg_status ask_server(struct bench *b, struct kg_err *err)
{
    struct kg_http_client_opts opts = {.max_in_flight = b->opts->clients, .tries = 1};

    KG_TRY(kg_http_client_open(&b->client, &opts, err));
    for (int i = 0; i < b->opts->clients; i++)
        KG_TRY(send_next(b, err));
    while (kg_http_client_waiting(b->client) > 0)
        KG_TRY(kg_http_client_poll(b->client, 1000, on_answer, b, err));
    return KG_OK;
}

/* ---- the result ---- */

/* In ms: the smallest time that at least this share of the answers took at most. */
static double percentile(const struct bench *b, double share)
{
    size_t i = (size_t)(share * (double)b->n_took);

    return 1e3 * b->took[i < b->n_took ? i : b->n_took - 1];
}

static kg_status print(struct kg_str *out, struct bench *b, double seconds,
                       struct kg_err *err)
{
    kg_sort_doubles(b->took, b->n_took);
    return kg_str_printf(
        out, err,
        "%s: %zu answers in %.1f s, %.1f a second; ms: median %.2f, 95 %% "
        "%.2f, 99 %% %.2f, longest %.2f; %zu found nothing\n",
        b->opts->where, b->n_took, seconds,
        (double)b->n_took / (seconds > 0 ? seconds : 1e-9), percentile(b, 0.5),
        percentile(b, 0.95), percentile(b, 0.99), percentile(b, 1), b->n_took - b->found);
}

kg_status kg_search_bench(struct kg_str *out, const struct kg_search_bench_opts *opts,
                          struct kg_err *err)
{
    bool remote = kg_http_is_address(opts->where);
    struct bench b = {.opts = opts};
    kg_status status;

    KG_TRY_GOTO(out, read_queries(&b, err));
    kg_signal_install();
    b.start = kg_clock_seconds();
    b.end = b.start + opts->seconds;
    KG_TRY_GOTO(out, remote ? ask_server(&b, err) : ask_index(&b, err));
    if (b.n_took > 0)
        status = print(out, &b, kg_clock_seconds() - b.start, err);
    else
        status = kg_fail(err, KG_EINTERRUPTED, "stopped before the first answer");
out:
    release(&b);
    return status;
}
