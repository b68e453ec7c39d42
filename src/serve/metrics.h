/* Counters of a server, and their output for Prometheus. */
#ifndef KG_SERVE_METRICS_H
#define KG_SERVE_METRICS_H

#include "base/str.h"
#include "net/http_server.h"
#include "serve/api.h"

enum { KG_SERVE_METRICS_BUCKETS = 16, KG_SERVE_METRICS_STATUSES = 16 };

/* In seconds; all histograms have the same buckets. */
struct kg_serve_metrics_histogram {
    int64_t counts[KG_SERVE_METRICS_BUCKETS + 1]; /* the last: above all bounds */
    double sum;
};
void kg_serve_metrics_observe(struct kg_serve_metrics_histogram *h, double seconds);

/* Responses of one kind with one status. */
struct kg_serve_metrics_count {
    int status; /* 0 ends the list */
    int64_t n;
};

struct kg_serve_metrics {
    struct kg_serve_metrics_count answers[KG_API_KINDS][KG_SERVE_METRICS_STATUSES];
    int64_t prompt_tokens, completion_tokens;
    int64_t steps;         /* engine steps that decoded something */
    int64_t left;          /* requests whose client left before the end */
    int64_t out_of_memory; /* requests failed for lack of memory */
    int64_t open;          /* requests accepted and not finished */
    int64_t running;       /* sequences being decoded */
    int64_t waiting;       /* sequences without a slot, and requests not yet submitted */
    struct kg_serve_metrics_histogram request, first_token, queued;
};
void kg_serve_metrics_count_answer(struct kg_serve_metrics *m, enum kg_api_kind kind,
                                   int status);

/* Appends the exposition format, version 0.0.4. */
kg_status kg_serve_metrics_put(struct kg_str *out, const struct kg_serve_metrics *m,
                               const struct kg_http_server_stats *http,
                               struct kg_err *err) KG_MUST_CHECK;

#endif
