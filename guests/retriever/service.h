/* A server of one index: Search-R1's POST /retrieve, GET /health, GET /metrics.
 *
 * The network thread reads whole requests into a queue; workers, each with its own
 * searcher, parse, search and respond. A request gets a 503 if the queue is full, or if
 * it waited or searched too long. Errors are {"detail": message}, as in FastAPI.
 */
#ifndef KG_RETRIEVER_SERVICE_H
#define KG_RETRIEVER_SERVICE_H

#include "search/index.h"

struct kg_search_service_opts {
    const char *index;          /* file */
    const char *host;           /* NULL: 127.0.0.1 */
    int port;                   /* 0: any free port */
    const struct kg_bm25 *bm25; /* NULL: the index's own */
    struct kg_search_how how;
    int topk;                /* passages per query if a request has no topk; 0: 3 */
    int workers;             /* 0: one per core */
    int max_queries;         /* limit per request; 0: 512; beyond: 400 */
    int max_waiting;         /* requests in the queue; 0: 1024; beyond: 503 */
    size_t max_body_bytes;   /* limit of a body; 0: 4 MiB; beyond: 413 */
    int max_connections;     /* 0: 1024 */
    size_t max_answer_bytes; /* limit of a response; 0: 16 MiB; beyond: 400 */
    size_t max_held_bytes;   /* all bodies together; 0: 256 MiB; beyond: 503 */
    const char *allow_hosts; /* as in struct kg_http_server_opts */
    int timeout_s;           /* of a request, from its arrival; 0: 30; beyond: 503 */
};

struct kg_search_service; /* opaque */
/* errors: those of kg_index_open, EINVAL (options), EIO (port in use) */
kg_status kg_search_service_start(struct kg_search_service **s,
                                  const struct kg_search_service_opts *opts,
                                  struct kg_err *err) KG_MUST_CHECK;
int kg_search_service_port(const struct kg_search_service *s);
void kg_search_service_info(struct kg_index_info *out, const struct kg_search_service *s);
/* Finishes accepted requests within drain_ms, then ends. NULL allowed */
void kg_search_service_stop(struct kg_search_service *s, int drain_ms);

#endif
