/* Retriever: queries in, passages out, asynchronously.
 *
 * Two engines: `index`, an index file searched in this process (search/index.h), and
 * `http`, a server with Search-R1's POST /retrieve. Queries are submitted and answers
 * polled, so that decoding continues while a server works. Equal queries in flight share
 * one request; answers that did not fail are cached.
 *
 * If all tries of a query fail, the answer is `failed` with a reason, and the caller
 * decides whether the run stops or the model is told.
 */
#ifndef KG_SEARCH_RETRIEVER_H
#define KG_SEARCH_RETRIEVER_H

#include "base/status.h"
#include "search/index.h" /* struct kg_passage */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kg_retrieved {
    uint64_t ticket;
    const struct kg_passage *passages; /* (n) best first; borrowed during the callback */
    size_t n;
    bool failed;
    const char *reason; /* if failed; borrowed during the callback */
};
typedef kg_status (*kg_retrieved_fn)(void *user, const struct kg_retrieved *a,
                                     struct kg_err *err);

struct kg_retriever_opts {
    const char *where;        /* an index file, or http://HOST:PORT/retrieve */
    struct kg_search_how how; /* settings for an index; a server has its own */
    int topk;                 /* passages per query; 0: 3 */
    int batch;                /* queries per request; 0: 64 */
    int max_in_flight;        /* requests; 0: 8 */
    int timeout_ms;           /* timeout of one try; 0: 30,000 */
    int tries;                /* of a request to a server; 0: 4 */
    /* most cached answers, the least recently used are evicted; 0: 100,000; -1: none */
    int64_t cache;
    size_t cache_bytes; /* limit of cached answers and their queries; 0: 256 MiB */
};

struct kg_retriever_stats {
    int64_t queries, cached, joined /* merged with an equal query in flight */, requests,
        retries, failed;
    double seconds; /* from submission to delivery, summed over queries */
};

struct kg_retriever; /* opaque */
/* errors: EINVAL (options); of kg_index_open and kg_index_ask, or ECONFLICT (server) */
kg_status kg_retriever_open(struct kg_retriever **r, const struct kg_retriever_opts *opts,
                            struct kg_err *err) KG_MUST_CHECK;
void kg_retriever_close(struct kg_retriever *r);

/* Submits a query of any bytes. A later poll delivers the answer, with `ticket`. */
kg_status kg_retriever_ask(struct kg_retriever *r, const char *query, size_t n,
                           uint64_t ticket, struct kg_err *err) KG_MUST_CHECK;
/* Sends submitted queries and passes available answers to `done`. Returns when an answer
 * was passed, nothing is waiting, or timeout_ms (0: do not wait) has passed. */
kg_status kg_retriever_poll(struct kg_retriever *r, int timeout_ms, kg_retrieved_fn done,
                            void *user, struct kg_err *err) KG_MUST_CHECK;
size_t kg_retriever_waiting(const struct kg_retriever *r); /* queries not delivered */
void kg_retriever_stats(struct kg_retriever_stats *out, const struct kg_retriever *r);

#endif
