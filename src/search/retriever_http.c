/* The engine `http`: a server with Search-R1's protocol, queried in batches.
 *
 * Queries wait until poll and are then sent together, up to the limits of queries per
 * request and of requests at a time; when a request ends, the next one is sent. A
 * response that cannot be read fails all of its queries, with what was expected and what
 * was found; a document that cannot be read fails its query.
 */
#include "search/retriever_internal.h"

#include "base/mem.h"
#include "base/str.h"
#include "net/http_client.h"
#include "search/protocol.h"

enum {
    QUOTED_BYTES = 200,                /* of an answer, in a message */
    REQUEST_TEXT_BYTES = 512 << 10,    /* of queries in one request */
    PASSAGE_ALLOWANCE_BYTES = 1 << 20, /* of an answer, per requested passage */
    ANSWER_MIN_BYTES = 16 << 20,
    ANSWER_MAX_BYTES = 256 << 20,
};

struct request {
    struct kg_question **questions; /* (batch) owned array */
    size_t n;                       /* 0: free */
};

struct engine {
    char *url; /* owned */
    int topk;
    size_t batch, max_in_flight;
    struct kg_http_client *client;
    struct request *requests;         /* (max_in_flight) */
    struct kg_retrieve_text *texts;   /* (batch) */
    struct kg_str body;               /* of a request being written */
    struct kg_question *first, **end; /* not sent yet */
    kg_answered_fn answered;          /* during poll */
    void *user;
};

static void http_close(void *engine)
{
    struct engine *e = engine;

    kg_http_client_close(e->client);
    for (size_t i = 0; e->requests && i < e->max_in_flight; i++)
        kg_mem_free(e->requests[i].questions);
    kg_mem_free(e->requests);
    kg_mem_free(e->texts);
    kg_mem_free(e->url);
    kg_str_release(&e->body);
    kg_mem_free(e);
}

static kg_status begin(struct engine *e, const struct kg_retriever_opts *opts,
                       struct kg_err *err)
{
    size_t answer = (size_t)opts->batch * (size_t)opts->topk * PASSAGE_ALLOWANCE_BYTES;
    struct kg_http_client_opts http = {.max_in_flight = opts->max_in_flight,
                                       .timeout_ms = opts->timeout_ms,
                                       .tries = opts->tries};

    http.max_response_bytes = answer < ANSWER_MIN_BYTES   ? ANSWER_MIN_BYTES
                              : answer > ANSWER_MAX_BYTES ? ANSWER_MAX_BYTES
                                                          : answer;
    e->topk = opts->topk;
    e->batch = (size_t)opts->batch;
    e->max_in_flight = (size_t)opts->max_in_flight;
    e->end = &e->first;
    e->url = kg_mem_strdup(opts->where, err);
    e->requests = kg_mem_calloc(e->max_in_flight, sizeof *e->requests, "requests", err);
    e->texts = kg_mem_calloc(e->batch, sizeof *e->texts, "requests", err);
    if (!e->url || !e->requests || !e->texts)
        return KG_ENOMEM;
    for (size_t i = 0; i < e->max_in_flight; i++) {
        struct request *r = &e->requests[i];

        KG_TRY(kg_mem_new(&r->questions, e->batch, sizeof(struct kg_question *),
                          "requests", err));
    }
    return kg_http_client_open(&e->client, &http, err);
}

static kg_status http_open(void **engine, const struct kg_retriever_opts *opts,
                           struct kg_err *err)
{
    KG_TRY(kg_retriever_check_server(opts, err));
    struct engine *e = kg_mem_calloc(1, sizeof *e, "retriever", err);
    if (!e)
        return KG_ENOMEM;
    kg_status status = begin(e, opts, err);
    if (status != KG_OK) {
        http_close(e);
        return status;
    }
    *engine = e;
    return KG_OK;
}

static kg_status http_ask(void *engine, struct kg_question *q, struct kg_err *err)
{
    struct engine *e = engine;

    (void)err;
    q->next = NULL;
    *e->end = q;
    e->end = &q->next;
    return KG_OK;
}

/* ---- sending ---- */

/* Takes the first waiting questions, as many as fit into one request. */
static void fill(struct engine *e, struct request *r)
{
    size_t bytes = 0;

    while (e->first && r->n < e->batch) {
        struct kg_question *q = e->first;
        size_t n = q->n < KG_QUERY_BYTES_MAX ? q->n : KG_QUERY_BYTES_MAX;

        if (r->n > 0 && bytes + n > REQUEST_TEXT_BYTES)
            break;
        bytes += n;
        e->texts[r->n] = (struct kg_retrieve_text){q->text, n};
        r->questions[r->n++] = q;
        e->first = q->next;
        if (!e->first)
            e->end = &e->first;
    }
}

/* Puts back what could not be sent, in the old order. */
static void put_back(struct engine *e, struct request *r)
{
    while (r->n > 0) {
        struct kg_question *q = r->questions[--r->n];

        q->next = e->first;
        e->first = q;
        if (!q->next)
            e->end = &q->next;
    }
}

static kg_status send_one(struct engine *e, size_t slot, struct kg_err *err)
{
    struct request *r = &e->requests[slot];
    kg_status status;

    fill(e, r);
    kg_str_clear(&e->body);
    KG_TRY_GOTO(out, kg_retrieve_request_write(&e->body, e->texts, r->n, e->topk, err));
    KG_TRY_GOTO(out, kg_http_client_submit(e->client, e->url, e->body.data, e->body.len,
                                           slot, err));
    return KG_OK;
out:
    put_back(e, r);
    return status;
}

static kg_status send_all(struct engine *e, struct kg_err *err)
{
    for (size_t slot = 0; slot < e->max_in_flight && e->first; slot++)
        if (e->requests[slot].n == 0)
            KG_TRY(send_one(e, slot, err));
    return KG_OK;
}

/* ---- answers ---- */

static void give_back(struct engine *e, struct request *r)
{
    size_t n = r->n;

    r->n = 0;
    for (size_t i = 0; i < n; i++)
        e->answered(e->user, r->questions[i]);
}

static void fail_all(struct engine *e, struct request *r, const char *reason)
{
    for (size_t i = 0; i < r->n; i++)
        kg_question_fail(r->questions[i], reason);
    give_back(e, r);
}

/* Lack of memory is not an answer of the server: it ends the poll. */
static void give_up(struct engine *e, struct request *r)
{
    for (size_t i = 0; i < r->n; i++)
        r->questions[i]->status = KG_ENOMEM;
    give_back(e, r);
}

/* Quotes the beginning of a server's answer as one printable line. */
static void quote(char out[QUOTED_BYTES + 1], const char *body, size_t n)
{
    size_t m = n < QUOTED_BYTES ? n : QUOTED_BYTES;

    for (size_t i = 0; i < m; i++)
        out[i] = (char)(body[i] >= ' ' && body[i] <= '~' ? body[i] : '.');
    out[m] = 0;
}

/* Keeps the best topk: a server may send more than was requested. */
static void take_passages(const struct engine *e, struct kg_question *q,
                          const struct kg_retrieve_answer *a, size_t i)
{
    size_t n = a->first[i + 1] - a->first[i];
    struct kg_err why;

    if (n > (size_t)e->topk)
        n = (size_t)e->topk;
    if (!a->wrong[i]) {
        q->status = kg_question_answer(q, a->passages + a->first[i], n, &why);
        return;
    }
    kg_fail(&why, KG_EFORMAT, "%s: %s", e->url, a->wrong[i]);
    kg_question_fail(q, why.message);
}

static kg_status read_answer(struct engine *e, struct request *r,
                             const struct kg_http_answer *a, struct kg_err *err)
{
    struct kg_retrieve_answer answer;

    if (a->status != KG_OK)
        return kg_fail(err, a->status, "%s: %s", e->url, a->reason);
    if (a->http_status != 200) {
        char said[QUOTED_BYTES + 1];

        quote(said, a->body, a->body_n);
        return kg_fail(err, KG_EIO,
                       "%s: expected HTTP status 200, found %d after %d %s: %s", e->url,
                       a->http_status, a->tries, a->tries == 1 ? "try" : "tries", said);
    }
    if (kg_retrieve_answer_read(&answer, a->body, a->body_n, r->n, err) != KG_OK)
        return kg_err_prefix(err, "%s", e->url);
    for (size_t i = 0; i < r->n; i++)
        take_passages(e, r->questions[i], &answer, i);
    kg_retrieve_answer_release(&answer);
    return KG_OK;
}

static kg_status on_http(void *user, const struct kg_http_answer *a, struct kg_err *err)
{
    struct engine *e = user;
    struct request *r = &e->requests[a->ticket];
    struct kg_err why;
    kg_status status = read_answer(e, r, a, &why);

    (void)err;
    if (status == KG_OK)
        give_back(e, r);
    else if (status == KG_ENOMEM)
        give_up(e, r);
    else
        fail_all(e, r, why.message);
    return KG_OK;
}

static kg_status http_poll(void *engine, int timeout_ms, kg_answered_fn answered,
                           void *user, struct kg_err *err)
{
    struct engine *e = engine;

    e->answered = answered;
    e->user = user;
    KG_TRY(send_all(e, err));
    KG_TRY(kg_http_client_poll(e->client, timeout_ms, on_http, e, err));
    KG_TRY(send_all(e, err));
    return KG_OK;
}

static void http_stats(struct kg_retriever_stats *out, const void *engine)
{
    const struct engine *e = engine;
    struct kg_http_client_stats s;

    kg_http_client_stats(&s, e->client);
    out->requests = s.requests;
    out->retries = s.retries;
}

const struct kg_retriever_engine kg_retriever_http = {
    "http",
    "a server with Search-R1's POST /retrieve",
    kg_http_is_address,
    http_open,
    http_close,
    http_ask,
    http_poll,
    http_stats};
