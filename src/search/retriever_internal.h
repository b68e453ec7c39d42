/* The interface between the retriever (tickets, cache, queries in flight) and its
 * engines, which answer queries. */
#ifndef KG_SEARCH_RETRIEVER_INTERNAL_H
#define KG_SEARCH_RETRIEVER_INTERNAL_H

#include "search/retriever.h"

struct kg_waiter {
    uint64_t ticket;
    double since; /* seconds */
};

/* One query text, from its first use until its answer is evicted. */
struct kg_question {
    char *text; /* owned */
    size_t n;
    uint64_t hash;

    /* owned by the engine until it returns the question */
    struct kg_question *next;
    struct kg_passage *passages; /* (n_passages) one block with their texts, or NULL */
    size_t n_passages;
    size_t bytes;     /* of that block */
    char *reason;     /* owned; the error, or NULL */
    kg_status status; /* ENOMEM fails the poll that receives the question */

    /* owned by the retriever */
    bool answered, kept;
    struct kg_question *in_bucket;      /* the next of its hash bucket */
    struct kg_question *older, *newer;  /* among cached questions, by last use */
    struct kg_waiter *waiters;          /* (n_waiters) owned; to be notified */
    size_t n_waiters, waiters_capacity; /* */
    size_t owed;                        /* number of deliveries that point here */
};

typedef void (*kg_answered_fn)(void *user, struct kg_question *q);

/* One row per engine. poll passes answered or failed questions to `answered`, and waits
 * at most timeout_ms for the first. */
struct kg_retriever_engine {
    const char *name, *help;
    bool (*takes)(const char *where);
    kg_status (*open)(void **engine, const struct kg_retriever_opts *opts,
                      struct kg_err *err);
    void (*close)(void *engine); /* drops its questions */
    kg_status (*ask)(void *engine, struct kg_question *q, struct kg_err *err);
    kg_status (*poll)(void *engine, int timeout_ms, kg_answered_fn answered, void *user,
                      struct kg_err *err);
    void (*stats)(struct kg_retriever_stats *out, const void *engine);
};
extern const struct kg_retriever_engine kg_retriever_index;
extern const struct kg_retriever_engine kg_retriever_http;

/* server_check.c: compares the kind of search and the number of passages that a server
 * reports by GET /health with opts->how; logs a warning for what it does not report.
 * errors: ECONFLICT */
kg_status kg_retriever_check_server(const struct kg_retriever_opts *opts,
                                    struct kg_err *err) KG_MUST_CHECK;

/* Copies passages and their texts into one block of the question. */
kg_status kg_question_answer(struct kg_question *q, const struct kg_passage *passages,
                             size_t n, struct kg_err *err) KG_MUST_CHECK;
/* Sets q->reason; if there is no memory for it, sets q->status to ENOMEM. */
void kg_question_fail(struct kg_question *q, const char *reason);

#endif
