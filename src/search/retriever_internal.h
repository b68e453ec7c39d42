/* Between the retriever, which keeps tickets, cache and what is in flight, and its
 * engines, which answer questions. */
#ifndef KG_SEARCH_RETRIEVER_INTERNAL_H
#define KG_SEARCH_RETRIEVER_INTERNAL_H

#include "search/retriever.h"

struct kg_waiter {
    uint64_t ticket;
    double since; /* seconds */
};

/* One query text, from the first who asks it until its answer leaves the cache. */
struct kg_question {
    char *text; /* owned */
    size_t n;
    uint64_t hash;

    /* the engine's: until it gives the question back it owns these */
    struct kg_question *next;
    struct kg_passage *passages; /* (n_passages) one block with their texts, or NULL */
    size_t n_passages;
    size_t bytes;     /* of that block */
    char *reason;     /* owned; why there is no answer, or NULL */
    kg_status status; /* ENOMEM ends the poll that takes the question back */

    /* the retriever's */
    bool answered, kept;
    struct kg_question *in_bucket;      /* the next one */
    struct kg_question *older, *newer;  /* of the answered ones */
    struct kg_waiter *waiters;          /* (n_waiters) owned; to be told */
    size_t n_waiters, waiters_capacity; /* */
    size_t owed;                        /* deliveries that point here */
};

typedef void (*kg_answered_fn)(void *user, struct kg_question *q);

/* One row an engine. poll gives back questions that are answered or failed, waits at most
 * timeout_ms for the first. */
struct kg_retriever_engine {
    const char *name, *help;
    bool (*takes)(const char *where);
    kg_status (*open)(void **engine, const struct kg_retriever_opts *opts,
                      struct kg_err *err);
    void (*close)(void *engine); /* forgets the questions it has */
    kg_status (*ask)(void *engine, struct kg_question *q, struct kg_err *err);
    kg_status (*poll)(void *engine, int timeout_ms, kg_answered_fn answered, void *user,
                      struct kg_err *err);
    void (*stats)(struct kg_retriever_stats *out, const void *engine);
};
extern const struct kg_retriever_engine kg_retriever_index;
extern const struct kg_retriever_engine kg_retriever_http;

/* server_check.c: whether a server has what opts->how expects of it, where it says so
 * (GET /health of `kedge search serve`); what cannot be known is logged.
 * errors: ECONFLICT */
kg_status kg_retriever_check_server(const struct kg_retriever_opts *opts,
                                    struct kg_err *err) KG_MUST_CHECK;

/* Copy passages and their texts into one block of the question. */
kg_status kg_question_answer(struct kg_question *q, const struct kg_passage *passages,
                             size_t n, struct kg_err *err) KG_MUST_CHECK;
/* Why there is none; without memory for the text its status is ENOMEM. */
void kg_question_fail(struct kg_question *q, const char *reason);

#endif
