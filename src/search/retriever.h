/* Retriever: queries in, passages out, later.
 *
 * Two rows: `index`, an index file searched in this process (search/index.h), and `http`,
 * a server that speaks Search-R1's POST /retrieve. Queries are asked and answers polled,
 * so that a caller goes on decoding while a server thinks; equal queries in flight are
 * asked once, answers are cached.
 *
 * When a server stays down after all tries, an answer comes with `failed` and its reason:
 * the caller decides whether the run stops or the model is told. Never silence.
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
    const char *reason; /* when failed */
};
typedef kg_status (*kg_retrieved_fn)(void *user, const struct kg_retrieved *a,
                                     struct kg_err *err);

struct kg_retriever_opts {
    const char *where;        /* an index file, or http://HOST:PORT/retrieve */
    struct kg_search_how how; /* of an index; a server's is its own */
    int topk;                 /* passages for a query; 0: 3 */
    int batch;                /* queries in one request; 0: 64 */
    int max_in_flight;        /* requests; 0: 8 */
    int timeout_ms;           /* of one try; 0: 30,000 */
    int tries;                /* 0: 4 */
    int64_t cache;      /* answers kept, least recently used go; 0: 100,000; -1: none */
    size_t cache_bytes; /* of the answers kept, with their queries; 0: 256 MiB */
};

struct kg_retriever_stats {
    int64_t queries, cached, joined /* with an equal one in flight */, requests, retries,
        failed;
    double seconds; /* that answers were waited for, summed over queries */
};

struct kg_retriever; /* opaque */
/* errors: ENOTFOUND, EFORMAT (index), EINVAL (neither a file nor an http address) */
kg_status kg_retriever_open(struct kg_retriever **r, const struct kg_retriever_opts *opts,
                            struct kg_err *err) KG_MUST_CHECK;
void kg_retriever_close(struct kg_retriever *r);

/* Any bytes are a query. The answer comes from a later poll, never from here. */
kg_status kg_retriever_ask(struct kg_retriever *r, const char *query, size_t n,
                           uint64_t ticket, struct kg_err *err) KG_MUST_CHECK;
/* Send what was asked; give the answers that are there to `done`; return as soon as one
 * was given, nothing waits, or timeout_ms (0: only what is ready) has passed. */
kg_status kg_retriever_poll(struct kg_retriever *r, int timeout_ms, kg_retrieved_fn done,
                            void *user, struct kg_err *err) KG_MUST_CHECK;
size_t kg_retriever_waiting(const struct kg_retriever *r);
void kg_retriever_stats(struct kg_retriever_stats *out, const struct kg_retriever *r);

#endif
