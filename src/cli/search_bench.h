/* kedge search bench: how fast an index, or a server, answers the questions of a file. */
#ifndef KG_CLI_SEARCH_BENCH_H
#define KG_CLI_SEARCH_BENCH_H

#include "base/str.h"
#include "search/index.h"

struct kg_search_bench_opts {
    const char *where;   /* an index file, or http://HOST:PORT/retrieve */
    const char *queries; /* records {"query"} or {"question"} */
    int topk;
    int clients;    /* requests that are open at once, of a server */
    double seconds; /* for so long; every question at least once */
    struct kg_search_how how;
    const struct kg_bm25 *bm25; /* of an index */
};
/* One line of text. An answer that is not what the protocol says is an error.
 * errors: those of index, file and server */
kg_status kg_search_bench(struct kg_str *out, const struct kg_search_bench_opts *opts,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
