/* The retriever of the search environment.
 *
 * The environment calls four functions and does not know their implementation: here they
 * are those of search/retriever.h. Answers arrive by ticket, in any order, while other
 * episodes decode. This is a separate file so that the environment can be linked and
 * tested without a network.
 */
#include "task/env_internal.h"

static kg_status ask(void *self, const char *query, size_t n, uint64_t ticket,
                     struct kg_err *err)
{
    return kg_retriever_ask(self, query, n, ticket, err);
}

static kg_status poll(void *self, int timeout_ms, kg_retrieved_fn done, void *user,
                      struct kg_err *err)
{
    return kg_retriever_poll(self, timeout_ms, done, user, err);
}

static void stats(struct kg_retriever_stats *out, const void *self)
{
    kg_retriever_stats(out, self);
}

static void close_retriever(void *self) { kg_retriever_close(self); }

kg_status kg_env_search_open(void **state, const struct kg_env_opts *opts,
                             struct kg_err *err)
{
    struct kg_env_source source = {
        .ask = ask, .poll = poll, .stats = stats, .close = close_retriever};
    struct kg_retriever_opts how = {.where = opts->retriever,
                                    .how = opts->how,
                                    .topk = opts->topk,
                                    .timeout_ms = opts->timeout_ms,
                                    .tries = opts->tries};
    struct kg_retriever *r;

    if (!opts->retriever || !*opts->retriever)
        return kg_fail(err, KG_EINVAL,
                       "environment search: expected a retriever (an index file or "
                       "http://HOST:PORT/retrieve), found none");
    KG_TRY(kg_retriever_open(&r, &how, err));
    source.self = r;
    return kg_env_search_create(state, &source, opts, err);
}
