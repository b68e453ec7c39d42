/* Counters of the search server, and their output for Prometheus. */
#ifndef KG_SEARCH_SERVICE_METRICS_H
#define KG_SEARCH_SERVICE_METRICS_H

#include "base/str.h"
#include "net/http_server.h"
#include "search/index.h"

enum { KG_SEARCH_BUCKETS = 11 };

struct kg_search_metrics {
    int64_t requests, errors; /* to /retrieve: with status 200, and with any other */
    int64_t queries, cut, found_nothing;
    int64_t rows;                             /* passages scored */
    int64_t waiting;                          /* in the queue now */
    int64_t in_bucket[KG_SEARCH_BUCKETS + 1]; /* requests by seconds */
    double seconds;                           /* sum over all, from arrival to response */
    struct kg_index_device device;
};
void kg_search_metrics_observe(struct kg_search_metrics *m, double seconds);
/* Appends the exposition format, version 0.0.4. */
kg_status kg_search_metrics_put(struct kg_str *out, const struct kg_search_metrics *m,
                                const struct kg_http_server_stats *http, int64_t passages,
                                struct kg_err *err) KG_MUST_CHECK;

#endif
