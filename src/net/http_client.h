/* HTTP client: many requests in flight from one thread, with deadline, retries and a
 * bounded answer.
 *
 * Submit, then poll: callbacks run inside kg_http_client_poll. A request that fails in a
 * way that may pass (connection refused, reset, cut short, timeout, 408, 429, 5xx) is
 * tried again after a growing pause, or the one that the server asks for (Retry-After),
 * until its tries or its deadline are used up. Nothing blocks but poll, and that at most
 * for the time given.
 *
 * No signals, no .netrc, and without `surroundings` no proxy: nothing outside the options
 * changes what is asked. A redirection is an answer like any other. One thread at a time
 * may use a client.
 */
#ifndef KG_NET_HTTP_CLIENT_H
#define KG_NET_HTTP_CLIENT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A status other than OK ends the request: its answer carries the reason. */
typedef kg_status (*kg_http_piece_fn)(void *user, uint64_t ticket, const char *data,
                                      size_t n, struct kg_err *err);

struct kg_http_request; /* opaque */
struct kg_http_answer {
    uint64_t ticket;
    kg_status status;   /* OK: an HTTP answer came, whatever its code */
    const char *reason; /* when status is not OK: what was expected, what was found;
                         * the caller knows the URL */
    int http_status;
    const char *body; /* borrowed during the callback; NUL behind it */
    size_t body_n;
    const char *redirect; /* where a 3xx sends the client, absolute; NULL: nowhere */
    int tries;            /* used */
    double seconds;
    const struct kg_http_request *of; /* for kg_http_answer_header */
};
typedef kg_status (*kg_http_answer_fn)(void *user, const struct kg_http_answer *a,
                                       struct kg_err *err);

struct kg_http_client_opts {
    int max_in_flight;         /* 0: 16 connections; what is beyond waits its turn */
    int connect_timeout_ms;    /* 0: 5,000 */
    int timeout_ms;            /* of one try; 0: 30,000 */
    int deadline_ms;           /* of all tries and pauses, waiting included; 0: none */
    int tries;                 /* 0: 4 */
    int backoff_ms;            /* before the second try, doubled each time; 0: 250 */
    size_t max_response_bytes; /* 0: 64 MiB; a larger answer is a failure */
    const char *bearer_key;    /* NULL: none; copied */
    /* By proxies of http_proxy, https_proxy, all_proxy but for the hosts of no_proxy, as
     * libcurl reads them, which are not told the key of an https address; certificates
     * are checked against SSL_CERT_FILE, if that is set. For hosts of the wide world. */
    bool surroundings;
    /* 0, or in the place of timeout_ms: a try ends when nothing came for so long */
    int stall_timeout_s;
    /* NULL, or told of each piece of a 2xx body as it comes, for streamed answers; a try
     * that fails on the way is then final */
    kg_http_piece_fn piece;
    /* NULL, or told before the first piece, when status and header are there; a status
     * other than OK ends the request */
    kg_http_answer_fn head;
    void *piece_user; /* of both */
    /* what was told is not kept: max_response_bytes is of other bodies */
    bool pieces_alone;
};

struct kg_http_client_stats {
    long long requests, retries, failures;
};

struct kg_http_client; /* opaque */
kg_status kg_http_client_open(struct kg_http_client **out,
                              const struct kg_http_client_opts *opts,
                              struct kg_err *err) KG_MUST_CHECK;
void kg_http_client_close(struct kg_http_client *c); /* drops what is in flight */

/* http://... or https://... */
bool kg_http_is_address(const char *where);
/* Whether scheme, host and port of both are the same: what one may be told, the other
 * may. */
bool kg_http_same_origin(const char *url, const char *other);

/* The value of a field of the answer's header, NULL where it has none.   borrowed during
 * the callback */
const char *kg_http_answer_header(const struct kg_http_answer *a, const char *field);

/* A request, for who says more of it than URL and body. */
struct kg_http_ask {
    const char *url;
    const char *body; /* NULL: GET; else POST; copied */
    size_t body_n;
    uint64_t ticket;
    const char *range; /* NULL, or "FIRST-LAST" of the bytes */
    bool no_key;       /* whoever is asked is not told the key */
};
kg_status kg_http_client_ask(struct kg_http_client *c, const struct kg_http_ask *ask,
                             struct kg_err *err) KG_MUST_CHECK;

/* POST a JSON body (copied), or GET when body is NULL.   ticket: given back */
kg_status kg_http_client_submit(struct kg_http_client *c, const char *url,
                                const char *body, size_t body_n, uint64_t ticket,
                                struct kg_err *err) KG_MUST_CHECK;
/* Work on what is in flight; returns as soon as at least one answer has been given to
 * `done`, nothing is in flight, or timeout_ms (0: only what is ready) has passed.
 * errors: those of `done` */
kg_status kg_http_client_poll(struct kg_http_client *c, int timeout_ms,
                              kg_http_answer_fn done, void *user,
                              struct kg_err *err) KG_MUST_CHECK;
size_t kg_http_client_waiting(const struct kg_http_client *c);
void kg_http_client_stats(struct kg_http_client_stats *out,
                          const struct kg_http_client *c);

#endif
