/* Prometheus' text: one table of plain numbers, one histogram.
 *
 * Counters only rise and hold no time: rates and quantiles are made by who asks, over
 * the span that he wants. The bounds of the histogram are chosen around what a search
 * takes, about doubling, so that a quantile is off by less than the factor between two
 * of them. What each number means stands in its row and is sent with it.
 */
#include "search/service_metrics.h"

static const double bounds[KG_SEARCH_BUCKETS] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05,
                                                 0.1,   0.2,   0.5,   1,    5};

void kg_search_metrics_observe(struct kg_search_metrics *m, double seconds)
{
    int i = 0;

    while (i < KG_SEARCH_BUCKETS && seconds > bounds[i])
        i++;
    m->in_bucket[i]++;
    m->seconds += seconds;
}

static kg_status put_histogram(struct kg_str *out, const struct kg_search_metrics *m,
                               struct kg_err *err)
{
    const char *name = "kedge_search_request_seconds";
    int64_t n = 0;

    KG_TRY(kg_str_printf(out, err,
                         "# HELP %s From the arrival of a request to its answer.\n"
                         "# TYPE %s histogram\n",
                         name, name));
    for (int i = 0; i < KG_SEARCH_BUCKETS; i++) {
        n += m->in_bucket[i];
        KG_TRY(kg_str_printf(out, err, "%s_bucket{le=\"%g\"} %lld\n", name, bounds[i],
                             (long long)n));
    }
    n += m->in_bucket[KG_SEARCH_BUCKETS];
    return kg_str_printf(out, err,
                         "%s_bucket{le=\"+Inf\"} %lld\n%s_sum %.6f\n%s_count %lld\n",
                         name, (long long)n, name, m->seconds, name, (long long)n);
}

kg_status kg_search_metrics_put(struct kg_str *out, const struct kg_search_metrics *m,
                                const struct kg_http_server_stats *http, int64_t passages,
                                struct kg_err *err)
{
    const struct {
        const char *name, *type, *help;
        int64_t value;
    } rows[] = {
        {"requests_total", "counter", "Requests to /retrieve answered with 200.",
         m->requests},
        {"request_errors_total", "counter", "Requests to /retrieve answered otherwise.",
         m->errors},
        {"queries_total", "counter", "Queries answered.", m->queries},
        {"queries_cut_total", "counter", "Queries that a limit touched.", m->cut},
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
        {"held_bytes", "gauge", "Bytes of bodies and of answers that wait.",
         http->held_bytes},
        {"connections", "gauge", "Connections that are open.", http->connections},
        {"connections_refused_total", "counter", "Connections beyond the limit.",
         http->refused_connections},
        {"http_errors_4xx_total", "counter", "Answers with a 4xx status.",
         http->errors_4xx},
        {"http_errors_5xx_total", "counter", "Answers with a 5xx status.",
         http->errors_5xx},
        {"timeouts_total", "counter", "Slow senders and readers that were cut off.",
         http->timeouts},
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
