/* Counters and histograms, and their text. A request is counted before its response is
 * sent, so a client that has a response finds it in the metrics. Counters only rise; open
 * requests are gauges. Bounds of histograms are fixed, so the histograms of several
 * servers can be added. All are plain numbers under the server's lock. */
#include "serve/serve_internal.h"

static const double bounds[KG_SERVE_METRICS_BUCKETS] = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};
static const char *const kinds[KG_API_KINDS] = {"completions", "chat", "generate",
                                                "tokenize", "detokenize"};

void kg_serve_metrics_observe(struct kg_serve_metrics_histogram *h, double seconds)
{
    int i = 0;
    while (i < KG_SERVE_METRICS_BUCKETS && seconds > bounds[i])
        i++;
    h->counts[i]++;
    h->sum += seconds;
}

void kg_serve_metrics_count_answer(struct kg_serve_metrics *m, enum kg_api_kind kind,
                                   int status)
{
    struct kg_serve_metrics_count *c = m->answers[kind];
    int i = 0;
    while (i < KG_SERVE_METRICS_STATUSES - 1 && c[i].status != 0 && c[i].status != status)
        i++;
    c[i].status = status;
    c[i].n++;
}

static kg_status put_help(struct kg_str *out, const char *name, const char *type,
                          const char *help, struct kg_err *err)
{
    return kg_str_printf(out, err, "# HELP kedge_%s %s\n# TYPE kedge_%s %s\n", name, help,
                         name, type);
}

static kg_status put_answers(struct kg_str *out, const struct kg_serve_metrics *m,
                             struct kg_err *err)
{
    KG_TRY(put_help(out, "requests_total", "counter", "answers by endpoint and status",
                    err));
    for (int k = 0; k < KG_API_KINDS; k++)
        for (int i = 0; i < KG_SERVE_METRICS_STATUSES && m->answers[k][i].status != 0;
             i++)
            KG_TRY(kg_str_printf(
                out, err, "kedge_requests_total{endpoint=\"%s\",status=\"%d\"} %lld\n",
                kinds[k], m->answers[k][i].status, (long long)m->answers[k][i].n));
    return KG_OK;
}

static kg_status put_histogram(struct kg_str *out, const char *name, const char *help,
                               const struct kg_serve_metrics_histogram *h,
                               struct kg_err *err)
{
    int64_t total = 0;
    KG_TRY(put_help(out, name, "histogram", help, err));
    for (int i = 0; i < KG_SERVE_METRICS_BUCKETS; i++) {
        total += h->counts[i];
        KG_TRY(kg_str_printf(out, err, "kedge_%s_bucket{le=\"%g\"} %lld\n", name,
                             bounds[i], (long long)total));
    }
    total += h->counts[KG_SERVE_METRICS_BUCKETS];
    return kg_str_printf(out, err,
                         "kedge_%s_bucket{le=\"+Inf\"} %lld\nkedge_%s_sum "
                         "%.9g\nkedge_%s_count %lld\n",
                         name, (long long)total, name, h->sum, name, (long long)total);
}

kg_status kg_serve_metrics_put(struct kg_str *out, const struct kg_serve_metrics *m,
                               const struct kg_http_server_stats *http,
                               struct kg_err *err)
{
    const struct {
        const char *name, *type, *help;
        long long value;
    } rows[] = {
        {"prompt_tokens_total", "counter", "tokens of prompts taken", m->prompt_tokens},
        {"completion_tokens_total", "counter", "tokens sampled", m->completion_tokens},
        {"steps_total", "counter", "steps of the engine", m->steps},
        {"clients_left_total", "counter", "requests whose client left before the end",
         m->left},
        {"out_of_memory_total", "counter",
         "requests failed and turns not kept for lack of memory", m->out_of_memory},
        {"requests_open", "gauge", "requests that have no answer yet", m->open},
        {"sequences_running", "gauge", "sequences that decode now", m->running},
        {"sequences_waiting", "gauge", "sequences that wait for a slot", m->waiting},
        {"session_turns_continued_total", "counter",
         "turns of sessions whose prompt begins with ids that were kept",
         m->sessions.continued},
        {"session_branches_total", "counter",
         "turns of a kept session, or with an answer, that continue no kept ids",
         m->sessions.branches},
        {"sessions_evicted_total", "counter", "sessions dropped for lack of room",
         m->sessions.evicted},
        {"sessions_kept", "gauge", "sessions whose ids are kept", m->sessions.kept},
        {"session_bytes", "gauge", "bytes of kept sessions", m->sessions.bytes},
        {"http_requests_total", "counter", "requests of all paths", http->requests},
        {"http_errors_4xx_total", "counter", "answers with a 4xx status",
         http->errors_4xx},
        {"http_errors_5xx_total", "counter", "answers with a 5xx status",
         http->errors_5xx},
        {"http_timeouts_total", "counter", "connections closed: the client was too slow",
         http->timeouts},
        {"http_refused_connections_total", "counter", "connections beyond the limit",
         http->refused_connections},
        {"http_held_bytes", "gauge", "bytes of bodies, and of answers not yet sent",
         http->held_bytes},
        {"http_connections", "gauge", "connections open now", http->connections},
    };
    KG_TRY(put_answers(out, m, err));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        KG_TRY(put_help(out, rows[i].name, rows[i].type, rows[i].help, err));
        KG_TRY(kg_str_printf(out, err, "kedge_%s %lld\n", rows[i].name, rows[i].value));
    }
    KG_TRY(put_histogram(out, "request_seconds",
                         "from a request to the end of its answer", &m->request, err));
    KG_TRY(put_histogram(out, "first_token_seconds",
                         "from a request to the first token of its answer",
                         &m->first_token, err));
    return put_histogram(out, "queue_seconds", "from a request to the engine's queue",
                         &m->queued, err);
}
