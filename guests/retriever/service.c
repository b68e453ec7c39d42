/* The server of an index: a queue between the network thread and the workers. The network
 * thread never searches; a worker never waits for a socket. The queue is a ring of fixed
 * length; when it is full, requests are refused at once. A request's timeout counts from
 * its arrival, so a request that waited too long is not searched. Each worker has its own
 * searcher; they share only the file and the vectors, and take turns on a device
 * (dense_device.c). One lock covers queue and counters. */
#include "retriever/service.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/phase.h"
#include "base/str.h"
#include "data/json.h"
#include "net/http_server.h"
#include "search/index.h"
#include "search/protocol.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- metrics ---- */

enum { BUCKETS = 11 };

struct metrics {
    int64_t requests, errors; /* to /retrieve: with status 200, and with any other */
    int64_t queries, cut, found_nothing;
    int64_t rows;                   /* passages scored */
    int64_t waiting;                /* in the queue now */
    int64_t in_bucket[BUCKETS + 1]; /* requests by seconds */
    double seconds;                 /* sum over all, from arrival to response */
    struct kg_index_device device;
};

static const double bounds[BUCKETS] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05,
                                       0.1,   0.2,   0.5,   1,    5};

static kg_status put_histogram(struct kg_str *out, const struct metrics *m,
                               struct kg_err *err)
{
    const char *name = "kedge_search_request_seconds";
    int64_t n = 0;

    KG_TRY(kg_str_printf(out, err,
                         "# HELP %s From the arrival of a request to its answer.\n"
                         "# TYPE %s histogram\n",
                         name, name));
    for (int i = 0; i < BUCKETS; i++) {
        n += m->in_bucket[i];
        KG_TRY(kg_str_printf(out, err, "%s_bucket{le=\"%g\"} %lld\n", name, bounds[i],
                             (long long)n));
    }
    n += m->in_bucket[BUCKETS];
    return kg_str_printf(out, err,
                         "%s_bucket{le=\"+Inf\"} %lld\n%s_sum %.6f\n%s_count %lld\n",
                         name, (long long)n, name, m->seconds, name, (long long)n);
}

/* Appends the exposition format, version 0.0.4. */
static kg_status put_metrics(struct kg_str *out, const struct metrics *m,
                             const struct kg_http_server_stats *http, int64_t passages,
                             struct kg_err *err)
{
    const struct {
        const char *name, *type, *help;
        int64_t value;
    } rows[] = {
        {"requests_total", "counter", "Requests to /retrieve answered with 200.",
         m->requests},
        {"request_errors_total", "counter",
         "Requests to /retrieve answered with another status.", m->errors},
        {"queries_total", "counter", "Queries answered.", m->queries},
        {"queries_cut_total", "counter", "Queries whose result a limit may have changed.",
         m->cut},
        {"queries_empty_total", "counter", "Queries that found nothing.",
         m->found_nothing},
        {"rows_scored_total", "counter", "Passages scored.", m->rows},
        {"waiting", "gauge", "Requests that no worker has taken yet.", m->waiting},
        {"passages", "gauge", "Passages of the index.", passages},
        {"device_bytes", "gauge",
         "Bytes of a device's memory that vectors, their encoder and scores hold; 0: on "
         "the CPU.",
         (int64_t)m->device.bytes},
        {"device_up_bytes_total", "counter", "Bytes that went to the device.",
         (int64_t)m->device.up},
        {"device_down_bytes_total", "counter", "Bytes that came from the device.",
         (int64_t)m->device.down},
        {"held_bytes", "gauge", "Bytes of bodies, and of answers not yet sent.",
         http->held_bytes},
        {"connections", "gauge", "Connections that are open.", http->connections},
        {"connections_refused_total", "counter", "Connections beyond the limit.",
         http->refused_connections},
        {"http_errors_4xx_total", "counter", "Answers with a 4xx status.",
         http->errors_4xx},
        {"http_errors_5xx_total", "counter", "Answers with a 5xx status.",
         http->errors_5xx},
        {"timeouts_total", "counter",
         "Connections closed because the client was too slow.", http->timeouts},
        {"gone_total", "counter", "Clients that left before their answer.", http->gone},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        KG_TRY(kg_str_printf(out, err,
                             "# HELP kedge_search_%s %s\n# TYPE kedge_search_%s %s\n"
                             "kedge_search_%s %lld\n",
                             rows[i].name, rows[i].help, rows[i].name, rows[i].type,
                             rows[i].name, (long long)rows[i].value));
    return put_histogram(out, m, err);
}

enum {
    TOPK = 3,
    MAX_QUERIES = 512,
    MAX_WAITING = 1024,
    MAX_BODY_BYTES = 4 << 20,
    MAX_ANSWER_BYTES = 16 << 20,
    KEEP_BYTES = 1 << 20, /* a worker frees a larger buffer after the answer */
    TIMEOUT_S = 30,
    MAX_WORKERS = 256,
};

struct waiting {
    struct kg_http_exchange *x;
    double since; /* seconds */
};

struct worker {
    struct kg_search_service *service;
    struct kg_searcher *searcher;
    pthread_t thread;
    bool runs;
    struct kg_str out;
    int phase; /* while it answers */
};

struct kg_search_service {
    struct kg_search_service_opts opts; /* filled in */
    struct kg_index *index;
    struct kg_http_server *http;
    struct worker *workers; /* (opts.workers) */
    pthread_mutex_t lock;   /* guards the fields below */
    pthread_cond_t work;
    struct waiting *queue; /* a ring of opts.max_waiting */
    size_t head, n;
    bool stop;
    bool told; /* the first failure of the server's own was logged */
    struct metrics metrics;
};

/* ---- the network thread ---- */

static void take_retrieve(void *user, struct kg_http_exchange *x)
{
    struct kg_search_service *s = user;
    size_t room = (size_t)s->opts.max_waiting;

    pthread_mutex_lock(&s->lock);
    bool taken = s->n < room;
    if (taken) {
        s->queue[(s->head + s->n) % room] = (struct waiting){x, kg_clock_seconds()};
        s->n++;
        pthread_cond_signal(&s->work);
    } else {
        s->metrics.errors++;
    }
    pthread_mutex_unlock(&s->lock);
    if (!taken)
        kg_http_reply_error(x, 503, "too many requests are waiting: try again later");
}

static void reply(struct kg_http_exchange *x, kg_status status, const char *type,
                  struct kg_str *body)
{
    if (status == KG_OK)
        kg_http_reply(x, 200, type, body->data, body->len);
    else
        kg_http_reply_error(x, 500, "out of memory");
    kg_str_release(body);
}

/* Reports the encoder only if queries use it. */
static kg_status put_health(struct kg_str *body, const struct kg_search_service *s,
                            struct kg_err *err)
{
    const char *kind = s->opts.how.kind;
    struct kg_index_info info;

    kg_index_info(&info, s->index);
    KG_TRY(kg_str_printf(body, err,
                         "{\"status\": \"ok\", \"passages\": %lld, \"kind\": \"%s\", "
                         "\"index\": \"%016" PRIx64 "\"",
                         (long long)info.passages, kind && *kind ? kind : "bm25",
                         info.hash));
    if (kg_search_how_dense(&s->opts.how))
        KG_TRY(
            kg_str_printf(body, err, ", \"encoder\": \"%016" PRIx64 "\"", info.encoder));
    return kg_str_puts(body, "}", err);
}

static void answer_health(void *user, struct kg_http_exchange *x)
{
    struct kg_str body = {0};
    struct kg_err err;

    reply(x, put_health(&body, user, &err), "application/json", &body);
}

static void answer_metrics(void *user, struct kg_http_exchange *x)
{
    struct kg_search_service *s = user;
    struct kg_http_server_stats http;
    struct kg_index_info info;
    struct kg_str body = {0};
    struct kg_err err;

    kg_http_server_stats(&http, s->http);
    kg_index_info(&info, s->index);
    pthread_mutex_lock(&s->lock);
    struct metrics m = s->metrics;
    m.waiting = (int64_t)s->n;
    pthread_mutex_unlock(&s->lock);
    if (kg_index_device)
        kg_index_device(&m.device, s->index);
    reply(x, put_metrics(&body, &m, &http, info.passages, &err),
          "text/plain; version=0.0.4", &body);
}

static kg_status error_body(struct kg_str *body, int http_status, const char *message,
                            struct kg_err *err)
{
    (void)http_status;
    KG_TRY(kg_json_put_text(body, "{\"detail\": ", message, err));
    return kg_str_puts(body, "}", err);
}

static const struct kg_http_route routes[] = {
    {"POST", "/retrieve", take_retrieve, "passages for queries"},
    {"GET", "/health", answer_health, "whether it answers"},
    {"GET", "/metrics", answer_metrics, "counters for Prometheus"},
    {NULL, NULL, NULL, NULL},
};

/* ---- workers ---- */

struct tally {
    int64_t queries, cut, found_nothing, rows;
};

/* Without quotes and escapes. */
static size_t text_bytes(const struct kg_hits *hits)
{
    size_t n = 0;

    for (size_t i = 0; i < hits->n; i++)
        n += strlen(hits->passages[i].id) + strlen(hits->passages[i].contents);
    return n;
}

/* Appends the answer to query i if the reply stays within its limit. */
static kg_status put_hits(struct worker *w, const struct kg_retrieve_request *r, size_t i,
                          const struct kg_hits *hits, struct kg_err *err)
{
    size_t max = w->service->opts.max_answer_bytes;
    size_t room = w->out.len < max ? max - w->out.len : 0;

    if (text_bytes(hits) <= room)
        KG_TRY(
            kg_retrieve_answer_put(&w->out, i, hits->passages, hits->n, r->scores, err));
    if (text_bytes(hits) <= room && w->out.len <= max)
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED,
                   "the answer has more than %zu bytes: the passages of %zu of %zu "
                   "queries fit: ask for fewer queries or a smaller topk (--max-answer)",
                   max, i, r->n);
}

/* Prepares the queries from i on together: one pass over the vectors serves them all. */
static kg_status look_ahead(struct worker *w, const struct kg_retrieve_request *r,
                            size_t i, int topk, struct kg_err *err)
{
    const size_t left = r->n - i, n = left < KG_AHEAD_MAX ? left : KG_AHEAD_MAX;
    struct kg_query queries[KG_AHEAD_MAX];

    for (size_t j = 0; j < n; j++)
        queries[j].bytes = kg_retrieve_query(r, i + j, &queries[j].n);
    return kg_searcher_ahead(w->searcher, queries, n, topk, err);
}

static kg_status answer_queries(struct worker *w, const struct kg_retrieve_request *r,
                                double until, struct tally *t, struct kg_err *err)
{
    const struct kg_search_service_opts *o = &w->service->opts;
    const int topk = r->topk ? r->topk : o->topk;
    struct kg_hits hits;

    KG_TRY(kg_retrieve_answer_begin(&w->out, err));
    for (size_t i = 0; i < r->n; i++) {
        size_t n;
        const char *query = kg_retrieve_query(r, i, &n);

        if (kg_clock_seconds() > until)
            return kg_fail(err, KG_ETIMEOUT,
                           "%zu of %zu queries were answered in %d seconds: expected all",
                           i, r->n, o->timeout_s);
        if (i % KG_AHEAD_MAX == 0)
            KG_TRY(look_ahead(w, r, i, topk, err));
        KG_TRY(kg_searcher_find(&hits, w->searcher, query, n, topk, err));
        t->queries++;
        t->cut += hits.cut;
        t->found_nothing += hits.n == 0;
        t->rows += hits.rows;
        KG_TRY(put_hits(w, r, i, &hits, err));
        kg_phase_at(w->phase, (int64_t)i + 1);
    }
    return kg_retrieve_answer_end(&w->out, err);
}

static kg_status answer(struct worker *w, struct kg_http_exchange *x, double until,
                        struct tally *t, struct kg_err *err)
{
    struct kg_retrieve_request r;
    size_t n;
    const char *body = kg_http_body(x, &n);

    KG_TRY(
        kg_retrieve_request_read(&r, body, n, (size_t)w->service->opts.max_queries, err));
    kg_str_clear(&w->out);
    kg_status status = answer_queries(w, &r, until, t, err);
    kg_retrieve_request_release(&r);
    /* the request was valid, so these errors are the server's, not the client's */
    return status == KG_EINVAL || status == KG_EFORMAT
               ? kg_fail(err, KG_EIO, "%s", err->message)
               : status;
}

static int http_status_of(kg_status status)
{
    if (status == KG_EINVAL || status == KG_EFORMAT || status == KG_EUNSUPPORTED)
        return 400;
    return status == KG_ETIMEOUT ? 503 : 500;
}

static void add_up(struct kg_search_service *s, const struct tally *t, kg_status status,
                   double seconds)
{
    struct metrics *m = &s->metrics;

    pthread_mutex_lock(&s->lock);
    m->requests += status == KG_OK;
    m->errors += status != KG_OK;
    m->queries += t->queries;
    m->cut += t->cut;
    m->found_nothing += t->found_nothing;
    m->rows += t->rows;
    int i = 0;

    while (i < BUCKETS && seconds > bounds[i])
        i++;
    m->in_bucket[i]++;
    m->seconds += seconds;
    pthread_mutex_unlock(&s->lock);
}

static void handle(struct worker *w, const struct waiting *job)
{
    struct kg_search_service *s = w->service;
    double until = job->since + s->opts.timeout_s;
    struct tally t = {0};
    struct kg_err err;

    if (kg_http_gone(job->x)) { /* the client left: no error */
        kg_http_drop(job->x);
        return;
    }
    w->phase = kg_phase_begin(0, "queries", "answering a request");
    kg_status status = answer(w, job->x, until, &t, &err);
    if (status == KG_OK && !kg_http_reserve(job->x, w->out.len))
        status = kg_fail(
            &err, KG_ETIMEOUT,
            "unread responses take all the memory reserved for them: try again later");
    /* counted before the reply, so that a client with a reply finds it in the metrics */
    add_up(s, &t, status, kg_clock_seconds() - job->since);
    if (status != KG_OK && http_status_of(status) == 500) {
        /* Logged once: a damaged or removed index fails every request. */
        pthread_mutex_lock(&s->lock);
        bool first = !s->told;
        s->told = true;
        pthread_mutex_unlock(&s->lock);
        if (first)
            kg_log_warn("a request failed: %s", err.message);
    }
    if (status == KG_OK)
        kg_http_reply(job->x, 200, "application/json", w->out.data, w->out.len);
    else
        kg_http_reply_error(job->x, http_status_of(status), err.message);
    if (w->out.capacity > KEEP_BYTES)
        kg_str_release(&w->out);
    kg_phase_end(w->phase);
}

static bool next_job(struct waiting *job, struct kg_search_service *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->n == 0 && !s->stop)
        pthread_cond_wait(&s->work, &s->lock);
    bool there = s->n > 0;
    if (there) {
        *job = s->queue[s->head];
        s->head = (s->head + 1) % (size_t)s->opts.max_waiting;
        s->n--;
    }
    pthread_mutex_unlock(&s->lock);
    return there;
}

static void *work(void *user)
{
    struct worker *w = user;
    struct waiting job;

    kg_threads_set(1); /* there are as many workers as cores */
    while (next_job(&job, w->service))
        handle(w, &job);
    return NULL;
}

/* ---- starting and stopping ---- */

static kg_status fill_in(struct kg_search_service_opts *o, struct kg_err *err)
{
    o->topk = o->topk ? o->topk : TOPK;
    o->workers = o->workers ? o->workers : kg_threads_get();
    o->max_queries = o->max_queries ? o->max_queries : MAX_QUERIES;
    o->max_waiting = o->max_waiting ? o->max_waiting : MAX_WAITING;
    o->max_body_bytes = o->max_body_bytes ? o->max_body_bytes : MAX_BODY_BYTES;
    o->max_answer_bytes = o->max_answer_bytes ? o->max_answer_bytes : MAX_ANSWER_BYTES;
    o->timeout_s = o->timeout_s ? o->timeout_s : TIMEOUT_S;
    if (o->topk < 1 || o->topk > KG_INDEX_TOPK_MAX)
        return kg_fail(err, KG_EINVAL, "topk: expected 1 to %d, found %d",
                       KG_INDEX_TOPK_MAX, o->topk);
    if (o->workers < 1 || o->workers > MAX_WORKERS || o->max_queries < 1 ||
        o->max_waiting < 1 || o->timeout_s < 1)
        return kg_fail(err, KG_EINVAL,
                       "search service: expected 1 to %d workers, and queries, waiting "
                       "requests and seconds of at least 1",
                       MAX_WORKERS);
    return KG_OK;
}

static kg_status start_workers(struct kg_search_service *s, struct kg_err *err)
{
    s->workers = kg_mem_calloc((size_t)s->opts.workers, sizeof *s->workers, "workers",
                               err);
    s->queue = kg_mem_calloc((size_t)s->opts.max_waiting, sizeof *s->queue, "queue", err);
    if (!s->workers || !s->queue)
        return KG_ENOMEM;
    for (int i = 0; i < s->opts.workers; i++) {
        struct worker *w = &s->workers[i];

        w->service = s;
        KG_TRY(kg_searcher_open(&w->searcher, s->index, err));
        if (pthread_create(&w->thread, NULL, work, w) != 0)
            return kg_fail(err, KG_EIO, "cannot start a thread that searches");
        w->runs = true;
    }
    return KG_OK;
}

static kg_status start(struct kg_search_service *s, struct kg_err *err)
{
    const struct kg_http_server_opts http = {.host = s->opts.host,
                                             .port = s->opts.port,
                                             .max_body_bytes = s->opts.max_body_bytes,
                                             .max_connections = s->opts.max_connections,
                                             .max_held_bytes = s->opts.max_held_bytes,
                                             .allow_hosts = s->opts.allow_hosts,
                                             .routes = routes,
                                             .error_body = error_body,
                                             .user = s};

    KG_TRY(kg_index_open(&s->index, s->opts.index, s->opts.bm25, err));
    KG_TRY(kg_index_ask(s->index, &s->opts.how, err));
    KG_TRY(start_workers(s, err));
    return kg_http_server_start(&s->http, &http, err);
}

kg_status kg_search_service_start(struct kg_search_service **s,
                                  const struct kg_search_service_opts *opts,
                                  struct kg_err *err)
{
    struct kg_search_service *fresh = kg_mem_calloc(1, sizeof *fresh, "service", err);

    *s = NULL;
    if (!fresh)
        return KG_ENOMEM;
    fresh->opts = *opts;
    pthread_mutex_init(&fresh->lock, NULL);
    pthread_cond_init(&fresh->work, NULL);
    kg_status status = fill_in(&fresh->opts, err);
    if (status == KG_OK)
        status = start(fresh, err);
    if (status != KG_OK) {
        kg_search_service_stop(fresh, 0);
        return status;
    }
    *s = fresh;
    return KG_OK;
}

int kg_search_service_port(const struct kg_search_service *s)
{
    return kg_http_server_port(s->http);
}

void kg_search_service_info(struct kg_index_info *out, const struct kg_search_service *s)
{
    kg_index_info(out, s->index);
}

void kg_search_service_stop(struct kg_search_service *s, int drain_ms)
{
    if (!s)
        return;
    /* workers reply while the server drains, and then take the rest of the queue */
    kg_http_server_stop(s->http, drain_ms);
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; s->workers && i < s->opts.workers; i++) {
        struct worker *w = &s->workers[i];

        if (w->runs)
            pthread_join(w->thread, NULL);
        kg_searcher_close(w->searcher);
        kg_str_release(&w->out);
    }
    kg_index_close(s->index);
    kg_mem_free(s->workers);
    kg_mem_free(s->queue);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    kg_mem_free(s);
}
