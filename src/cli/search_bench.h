/* kedge search bench: how fast an index or a server answers the questions of a file. */
#ifndef KG_CLI_SEARCH_BENCH_H
#define KG_CLI_SEARCH_BENCH_H

#include "base/str.h"
#include "search/index.h"

struct kg_search_bench_opts {
    const char *where;   /* an index file, or http://HOST:PORT/retrieve */
    const char *queries; /* records {"query"} or {"question"} */
    int topk;
    int clients;    /* concurrent requests to a server */
    double seconds; /* duration; every question is asked at least once */
    struct kg_search_how how;
    const struct kg_bm25 *bm25; /* for an index */
};
/* Appends a line of text. A reply that violates the protocol is an error.
 * errors: those of index, file and server */
kg_status kg_search_bench(struct kg_str *out, const struct kg_search_bench_opts *opts,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
