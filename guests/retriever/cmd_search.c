/* kedge search: an index of passages from a corpus file, queries to it, its server, and
 * its speed.
 *
 * One table of actions. Settings of the score on the command line replace those in the
 * index, so they can be compared without a rebuild. The server is in service.h and
 * answers the queries of episodes.
 */
#include "cli/cli.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/phase.h"
#include "base/printable.h"
#include "base/signal.h"
#include "base/sort.h"
#include "base/status.h"
#include "base/str.h"
#include "data/records.h"
#include "net/http_client.h"
#include "net/http_parse.h"
#include "retriever/build.h"
#include "retriever/cli_encoder.h"
#include "retriever/service.h"
#include "search/protocol.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- bench ---- */

/* Every query of the file is sent in turn, and again until the time is over, so that
 * two versions answer the same. A server is measured with a fixed number of open
 * requests, on which its times depend. Quantiles are printed: a mean would hide waits. */
struct bench_opts {
    const char *where;   /* an index file, or http://HOST:PORT/retrieve */
    const char *queries; /* records {"query"} or {"question"} */
    int topk;
    int clients;    /* concurrent requests to a server */
    double seconds; /* duration; every query is sent at least once */
    struct kg_search_how how;
    const struct kg_bm25 *bm25; /* for an index */
};

enum { MAX_QUERIES = 1 << 24, MAX_SAMPLES = 1 << 28 };

struct bench {
    const struct bench_opts *opts;
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

static kg_status add_query(struct bench *b, const struct kg_json_doc *doc,
                           struct kg_err *err)
{
    const char *key = kg_json_get(doc->root, "query") ? "query" : "question";
    const char *text;

    KG_TRY(kg_json_need_text(&text, doc, doc->root, key, err));
    KG_TRY(kg_mem_grow(&b->queries, &b->capacity, b->n + 1, sizeof *b->queries,
                       MAX_QUERIES, "queries", err));
    char *copy = kg_mem_strdup(text, err);
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
        status = kg_fail(err, KG_EFORMAT, "%s: expected at least one query, found none",
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

    if (a->status != KG_OK)
        return kg_fail(err, a->status, "%s: %s", b->opts->where, a->reason);
    if (a->http_status != 200)
        return kg_fail(err, KG_EIO, "%s: expected HTTP status 200, found %d: %.200s",
                       b->opts->where, a->http_status, a->body);
    KG_TRY(kg_retrieve_answer_read(&answer, a->body, a->body_n, 1, err));
    bool found = answer.first[1] > 0;
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

/* The time, in ms, within which this share of the answers arrived. */
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

/* Appends a line of text. A reply that violates the protocol is an error.
 * errors: those of index, file and server */
static kg_status measure(struct kg_str *out, const struct bench_opts *opts,
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
        status = kg_fail(err, KG_EINTERRUPTED, "stopped before the first result");
out:
    for (size_t i = 0; i < b.n; i++)
        kg_mem_free((char *)(uintptr_t)b.queries[i].bytes);
    kg_mem_free(b.queries);
    kg_mem_free(b.took);
    kg_http_client_close(b.client);
    kg_str_release(&b.body);
    return status;
}

enum { DEFAULT_PORT = 8000, DRAIN_MS = 5000 };

static struct kg_bm25 bm25 = {-1, -1, -1, -1, -1};
static struct kg_search_how how = {.kind = "bm25", .weight = 0.5};
static const char *vectors_from;
static bool all_words;
static bool words_as_are;
static int64_t topk = 3;
static bool as_json;
static const char *host = "127.0.0.1";
static int64_t port = DEFAULT_PORT;
static int64_t workers;
static int64_t max_queries, max_body, max_connections, max_waiting, timeout_s;
static int64_t max_answer, max_held;
static const char *allow_hosts;
static int64_t clients = 1;
static double seconds = 10;

#define SCORING "=index,query,serve,bench"
#define ASKING  "=query,serve,bench"
#define VECTORS "--kind=dense,hybrid"

const struct kg_flag kg_search_flags[] = {
    {"k1", 0, KG_IF(SCORING, bm25.k1), "X",
     "BM25: saturation of a word's count (default 1.2; index: the value is stored; "
     "query, serve, bench: replaces the stored value)",
     0, 1000},
    {"b", 0, KG_IF(SCORING, bm25.b), "X",
     "BM25: strength of length normalisation (default 0.55)", 0, 1},
    {"delta", 0, KG_IF(SCORING, bm25.delta), "X",
     "BM25+: lower bound for a word that occurs; 0: BM25 (default 0.3)", 0, 10},
    {"idf-power", 0, KG_IF(SCORING, bm25.power), "X",
     "exponent of the inverse document frequency; 1: BM25 (default 1.2)", 0, 4},
    {"all-words", 0, KG_IF(SCORING, all_words), NULL,
     "let stop words count like others (default: only if a query has few other words)"},
    {"no-stemming", 0, KG_IF("=index", words_as_are), NULL,
     "do not stem words: 'wings' does not find 'wing'"},
    {"dense", 0, KG_IF(SCORING "&=index|" VECTORS, how.model), KG_MODEL_ARG,
     "folder of an encoder; index: also store a vector of each passage; query, serve, "
     "bench: the encoder of the index"},
    KG_FLAGS_IF("=index&--dense", kg_encoder_flags),
    {"vectors-from", 0, KG_IF("=index&--dense", vectors_from), "FILE",
     "read the passages' vectors, in order, from a flat FAISS index or a .npy instead of "
     "computing them; 16 are recomputed and compared"},
    {"device", 0, KG_IF(SCORING "&--dense", kg_load.device), "DEVICE",
     "device of the encoder, and in query, serve and bench of the vectors: cpu, cuda, "
     "cuda:N, or auto (a GPU if one is usable); results are the same (default: cpu)"},
    {"kind", 0, KG_IF(ASKING, how.kind), "KIND",
     "bm25, dense or hybrid: find by words, by vectors, or by both (default bm25)", 0, 0,
     "bm25|dense|hybrid"},
    {"vectors", 0, KG_IF(ASKING "&" VECTORS, how.vectors), "CODE",
     "kind dense, hybrid: type of vectors in memory, fp16 or int8; results are the same "
     "(default fp16)",
     0, 0, "fp16|int8"},
    {"fusion", 0, KG_IF(ASKING "&--kind=hybrid", how.fusion), "HOW",
     "kind hybrid: combine the rankings by rank, 1 / (60 + rank), or by score (default "
     "rank)",
     0, 0, "rank|score"},
    {"weight", 0, KG_IF(ASKING "&--kind=hybrid", how.weight), "X",
     "kind hybrid: weight of the vectors' ranking; words have the rest (default 0.5)", 0,
     1},
    {"topk", 'k', KG_IF(ASKING, topk), "N", "passages per query (default 3)", 1,
     KG_INDEX_TOPK_MAX},
    {"json", 0, KG_IF("=query", as_json), NULL, "print each result as a line of JSON"},
    {"host", 0, KG_IF("=serve", host), "ADDRESS",
     "address to listen on (default 127.0.0.1: only this machine)"},
    {"port", 'p', KG_IF("=serve", port), "N", "port (default 8000; 0: any free port)", 0,
     65535},
    {"workers", 0, KG_IF("=serve", workers), "N",
     "requests searched concurrently (default: cores)", 1, 256},
    {"max-queries", 0, KG_IF("=serve", max_queries), "N",
     "queries in one request; above: status 400 (default 512)", 1, 1 << 20},
    {"max-waiting", 0, KG_IF("=serve", max_waiting), "N",
     "requests that wait for a worker; above: status 503 (default 1024)", 1, 1 << 20},
    {"max-body", 0, KG_IF("=serve", max_body), "BYTES",
     "size of a request; above: status 413 (default 4 MiB)", 1, 1 << 30},
    {"max-connections", 0, KG_IF("=serve", max_connections), "N",
     "connections; above: status 503 (default 1024)", 1, 1 << 20},
    {"max-answer", 0, KG_IF("=serve", max_answer), "BYTES",
     "size of a response; above: status 400 (default 16 MiB)", 1, 1 << 30},
    {"max-held", 0, KG_IF("=serve", max_held), "BYTES",
     "memory for bodies and responses of all clients; above: status 503 (default 256 "
     "MiB)",
     1 << 20, 1e12},
    {"allow-host", 0, KG_IF("=serve", allow_hosts), "NAMES",
     "further host names, comma-separated, accepted by a local server without a key; *: "
     "any (default: localhost and its addresses)"},
    {"timeout", 0, KG_IF("=serve", timeout_s), "S",
     "timeout of a request in seconds; after it: status 503 (default 30)", 1, 86400},
    {"clients", 0, KG_IF("=bench", clients), "N",
     "concurrent requests to a server (default 1)", 1, 10000},
    {"seconds", 0, KG_IF("=bench", seconds), "S", "duration in seconds (default 10)", 0.1,
     86400},
    {0},
};

static kg_status open_index(struct kg_index **index, const char *path, struct kg_err *err)
{
    KG_TRY(kg_index_open(index, path, &bm25, err));
    if (kg_index_ask(*index, &how, err) == KG_OK)
        return KG_OK;
    kg_index_close(*index);
    *index = NULL;
    return err->code;
}

static kg_status check_how(struct kg_err *err)
{
    KG_TRY(kg_search_how_check(&how, "--", "dense", err));
    return how.model ? kg_load_device(&how.backend, &kg_load, KG_F32, err) : KG_OK;
}

/* ---- index, check ---- */

static kg_status put_vectors(struct kg_str *out, const struct kg_index_info *info,
                             struct kg_err *err)
{
    char fp16[32], int8[32];
    struct kg_search_size size;

    kg_search_size(&size, info->passages, info->dim);
    kg_cli_bytes(fp16, (double)size.vectors_fp16);
    kg_cli_bytes(int8, (double)size.vectors_int8);
    return kg_str_printf(out, err,
                         "; vectors of %d numbers by encoder %016" PRIx64
                         ", in memory %s as fp16 or %s as int8",
                         (int)info->dim, info->encoder, fp16, int8);
}

static kg_status put_info(struct kg_str *out, const struct kg_index_info *info,
                          const char *path, struct kg_err *err)
{
    char size[32];

    kg_cli_bytes(size, (double)info->bytes);
    KG_TRY(kg_str_printf(
        out, err,
        "%s: %lld passages, %lld words (%lld distinct), %s; BM25 k1 %g b %g, %s", path,
        (long long)info->passages, (long long)info->tokens, (long long)info->terms, size,
        info->bm25.k1, info->bm25.b, info->stemmed ? "stemmed" : "not stemmed"));
    if (info->dim > 0)
        KG_TRY(put_vectors(out, info, err));
    return kg_str_printf(out, err, "; hash %016" PRIx64 "\n", info->hash);
}

static kg_status print_info(const struct kg_index_info *info, const char *path,
                            struct kg_err *err)
{
    struct kg_str out = {0};

    return kg_cli_print(put_info(&out, info, path, err), &out, err);
}

static kg_status index_corpus(int argc, char **argv, struct kg_err *err)
{
    struct kg_index_build_opts opts = {.corpus = argv[0],
                                       .path = argv[1],
                                       .words_as_are = words_as_are,
                                       .vectors = vectors_from,
                                       .bm25 = kg_bm25_merge(&bm25, &kg_bm25_default)};
    struct kg_encoder *encoder = NULL;
    struct kg_index_info info;
    double start = kg_clock_seconds();

    (void)argc;
    if (how.model)
        KG_TRY(kg_cli_encoder(&encoder, how.model, err));
    opts.encoder = encoder;
    kg_signal_install();
    kg_status status = kg_index_build(&info, &opts, err);
    if (encoder)
        kg_encoder_close(encoder);
    KG_TRY(status);
    double took = kg_clock_seconds() - start;
    KG_TRY(print_info(&info, argv[1], err));
    fprintf(stderr, "kedge search: %.1f seconds, %.0f passages a second\n", took,
            (double)info.passages / (took > 0 ? took : 1e-9));
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
    kg_index_close(index);
    return print_info(&info, argv[0], err);
}

/* ---- query ---- */

static kg_status put_passage(struct kg_str *out, const struct kg_passage *p,
                             struct kg_err *err)
{
    KG_TRY(kg_json_put_text(out, "{\"id\": ", p->id, err));
    KG_TRY(kg_json_put_text(out, ", \"contents\": ", p->contents, err));
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

        KG_TRY(kg_str_printf(out, err, "%zu. [", i + 1));
        KG_TRY(kg_printable_put(out, p->id, strlen(p->id), false, err));
        KG_TRY(kg_str_printf(out, err, "] score %.4f\n", p->score));
        KG_TRY(kg_printable_put(out, p->contents, strlen(p->contents), true, err));
        KG_TRY(kg_str_puts(out, "\n\n", err));
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
    size_t n;

    KG_TRY(kg_json_need(&query, doc, doc->root, "query", KG_JSON_STRING, err));
    const char *text = kg_json_text(query, &n);
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

    KG_TRY(check_how(err));
    KG_TRY_GOTO(out, open_index(&index, argv[0], err));
    KG_TRY_GOTO(out, kg_searcher_open(&s, index, err));
    status = argc > 1 ? answer_one(s, argv[1], err) : kg_cli_filter(answer_line, s, err);
out:
    kg_searcher_close(s);
    kg_index_close(index);
    return status;
}

/* ---- serve ---- */

static kg_status serve(int argc, char **argv, struct kg_err *err)
{
    const struct timespec pause = {0, 50 * 1000 * 1000};
    struct kg_search_service_opts opts = {.index = argv[0],
                                          .host = host,
                                          .port = (int)port,
                                          .topk = (int)topk,
                                          .workers = (int)workers,
                                          .max_queries = (int)max_queries,
                                          .max_waiting = (int)max_waiting,
                                          .max_body_bytes = (size_t)max_body,
                                          .max_connections = (int)max_connections,
                                          .max_answer_bytes = (size_t)max_answer,
                                          .max_held_bytes = (size_t)max_held,
                                          .allow_hosts = allow_hosts,
                                          .timeout_s = (int)timeout_s};
    struct kg_index_info info;
    struct kg_search_service *s = NULL;
    struct kg_str at = {0};
    kg_status status;

    (void)argc;
    KG_TRY(check_how(err));
    opts.bm25 = &bm25;
    opts.how = how;
    kg_signal_install();
    KG_TRY_GOTO(out, kg_http_put_host(&at, host, err));
    KG_TRY_GOTO(out, kg_search_service_start(&s, &opts, err));
    kg_search_service_info(&info, s);
    kg_log_info("serving %lld passages at http://%s:%d/retrieve",
                (long long)info.passages, at.data, kg_search_service_port(s));
    int phase = kg_phase_idle("serving %s at http://%s:%d/retrieve", argv[0], at.data,
                              kg_search_service_port(s));
    while (!kg_signal_stop_requested())
        nanosleep(&pause, NULL);
    kg_phase_end(phase);
out:
    kg_search_service_stop(s, DRAIN_MS);
    kg_str_release(&at);
    return status;
}

/* ---- bench ---- */

/* A server has its own scoring options; an index has no clients but this process. */
static kg_status check_place(const char *where, struct kg_err *err)
{
    const bool remote = kg_http_is_address(where);
    const bool scoring = bm25.k1 >= 0 || bm25.b >= 0 || bm25.delta >= 0 ||
                         bm25.power >= 0 || bm25.stop_words >= 0;

    if (remote && scoring)
        return kg_fail(err, KG_EINVAL,
                       "%.200s is a server, which has its own scoring options: expected "
                       "none of --k1, --b, --delta, --idf-power and --all-words",
                       where);
    if (remote && (how.model || strcmp(how.kind, "bm25") != 0))
        return kg_fail(err, KG_EINVAL,
                       "%.200s is a server, which has its own search options: expected "
                       "neither --kind nor --dense",
                       where);
    if (!remote && clients > 1)
        return kg_fail(err, KG_EINVAL, "--clients: expected a server, found %.200s",
                       where);
    return KG_OK;
}

static kg_status bench(int argc, char **argv, struct kg_err *err)
{
    const struct bench_opts opts = {.where = argv[0],
                                    .queries = argv[1],
                                    .topk = (int)topk,
                                    .clients = (int)clients,
                                    .seconds = seconds,
                                    .how = how,
                                    .bm25 = &bm25};
    struct kg_str out = {0};

    (void)argc;
    KG_TRY(check_place(argv[0], err));
    KG_TRY(check_how(err));
    KG_TRY(kg_cli_print(measure(&out, &opts, err), &out, err));
    if (kg_signal_stop_requested())
        return kg_fail(err, KG_EINTERRUPTED,
                       "stopped by a signal: the numbers cover the queries until then");
    return KG_OK;
}

/* ---- the command ---- */

static const struct action {
    const char *name;
    int min_args, max_args;
    const char *args;
    kg_status (*run)(int argc, char **argv, struct kg_err *err);
} actions[] = {{"index", 2, 2, "CORPUS INDEX", index_corpus},
               {"query", 1, 2, "INDEX and a query, or lines {\"query\"} on stdin", query},
               {"serve", 1, 1, "INDEX", serve},
               {"bench", 2, 2,
                "an INDEX or http://HOST:PORT/retrieve, and a file of queries", bench},
               {"check", 1, 1, "INDEX", check}};

int kg_cmd_search(int argc, char **argv)
{
    struct kg_err err;

    if (all_words)
        bm25.stop_words = 1;
    for (size_t i = 0; argc > 0 && i < sizeof actions / sizeof *actions; i++) {
        const struct action *a = &actions[i];

        if (strcmp(argv[0], a->name) != 0)
            continue;
        if (argc - 1 < a->min_args || argc - 1 > a->max_args)
            return kg_cli_usage("search %s: expected %s", a->name, a->args);
        return kg_cli_exit(a->run(argc - 1, argv + 1, &err), &err);
    }
    if (argc == 0)
        return kg_cli_usage(
            "expected index, query, serve, bench or check, found nothing");
    return kg_cli_usage_unknown(argv[0], &actions[0].name,
                                sizeof actions / sizeof *actions, sizeof *actions);
}
