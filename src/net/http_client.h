/* HTTP client: many concurrent requests from one thread, with timeouts, retries and
 * bounded responses.
 *
 * Submit, then poll: callbacks run inside kg_http_client_poll, which blocks at most for
 * the given time; nothing else blocks. A request is retried if its failure may be
 * temporary: host not resolved, connection refused, reset or closed early, timeout, 408,
 * 429, 5xx. The pause between tries doubles, or is the server's Retry-After, but is at
 * most 60 s. Retries end when the tries or the deadline are used up.
 *
 * The client uses no signals, no .netrc, and no proxy unless `surroundings` is set: only
 * the options decide what is sent. Redirects are returned, not followed. A client may be
 * used by one thread at a time.
 */
#ifndef KG_NET_HTTP_CLIENT_H
#define KG_NET_HTTP_CLIENT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A status other than OK ends the request; its answer carries the error. */
typedef kg_status (*kg_http_piece_fn)(void *user, uint64_t ticket, const char *data,
                                      size_t n, struct kg_err *err);

struct kg_http_request; /* opaque */
struct kg_http_answer {
    uint64_t ticket;
    kg_status status;   /* OK: a response arrived, with any HTTP status */
    const char *reason; /* error text: expected and found; the caller adds the URL */
    int http_status;
    const char *body; /* borrowed during the callback; NUL terminated */
    size_t body_n;
    const char *redirect; /* absolute URL of a 3xx; NULL: none */
    int tries;            /* used */
    double seconds;
    const struct kg_http_request *of; /* for kg_http_answer_header */
};
typedef kg_status (*kg_http_answer_fn)(void *user, const struct kg_http_answer *a,
                                       struct kg_err *err);

struct kg_http_client_opts {
    int max_in_flight;         /* 0: 16 connections; further requests queue */
    int connect_timeout_ms;    /* 0: 5,000 */
    int timeout_ms;            /* limit per try; 0: 30,000 */
    int deadline_ms;           /* limit for all tries, pauses and queueing; 0: none */
    int tries;                 /* 0: 4 */
    int backoff_ms;            /* pause before a retry, doubled each time; 0: 250 */
    size_t max_response_bytes; /* 0: 64 MiB; a larger body is a failure */
    const char *bearer_key;    /* NULL: none; copied */
    /* Use the proxies in http_proxy, https_proxy and all_proxy except for hosts in
     * no_proxy, as libcurl does; the key is not sent to a proxy of an https URL.
     * SSL_CERT_FILE, if set, names the file of trusted certificates, instead of the
     * system's. Set this for hosts on the internet. */
    bool surroundings;
    /* if not 0, replaces timeout_ms: a try ends after this time without data */
    int stall_timeout_s;
    /* NULL, or called with each piece of a 2xx body as it arrives, for streaming; a try
     * that fails after a piece is not retried */
    kg_http_piece_fn piece;
    /* NULL, or called before the first piece, once status and headers are known; a status
     * other than OK ends the request */
    kg_http_answer_fn head;
    void *piece_user; /* for both callbacks */
    /* a 2xx body is not kept; max_response_bytes then limits other bodies only */
    bool pieces_alone;
};

struct kg_http_client_stats {
    long long requests, retries, failures;
};

struct kg_http_client; /* opaque */
kg_status kg_http_client_open(struct kg_http_client **out,
                              const struct kg_http_client_opts *opts,
                              struct kg_err *err) KG_MUST_CHECK;
void kg_http_client_close(struct kg_http_client *c); /* drops requests in flight */

/* http://... or https://... */
bool kg_http_is_address(const char *where);
/* Whether an address has a host, perhaps with a port of 1 to 65535, and no user. */
bool kg_http_has_host(const char *url);
/* Whether two URLs have the same scheme, host and port, so that they may share a key. */
bool kg_http_same_origin(const char *url, const char *other);

/* The value of a response header field, or NULL.   borrowed during the callback */
const char *kg_http_answer_header(const struct kg_http_answer *a, const char *field);

/* Full request; kg_http_client_submit is the short form. */
struct kg_http_ask {
    const char *url;
    const char *body; /* NULL: GET; else POST; copied */
    size_t body_n;
    uint64_t ticket;
    const char *range; /* NULL, or a byte range: "FIRST-LAST" or "FIRST-" */
    bool no_key;       /* do not send the key */
};
kg_status kg_http_client_ask(struct kg_http_client *c, const struct kg_http_ask *ask,
                             struct kg_err *err) KG_MUST_CHECK;

/* POST a JSON body (copied), or GET if body is NULL. ticket: returned in the answer */
kg_status kg_http_client_submit(struct kg_http_client *c, const char *url,
                                const char *body, size_t body_n, uint64_t ticket,
                                struct kg_err *err) KG_MUST_CHECK;
/* Works on the requests. Returns when `done` has been called at least once, no request is
 * left, or timeout_ms has passed (0: only handle what is ready).
 * errors: those of `done`; EIO, ENOMEM (libcurl) */
kg_status kg_http_client_poll(struct kg_http_client *c, int timeout_ms,
                              kg_http_answer_fn done, void *user,
                              struct kg_err *err) KG_MUST_CHECK;
size_t kg_http_client_waiting(const struct kg_http_client *c); /* not yet reported */
void kg_http_client_stats(struct kg_http_client_stats *out,
                          const struct kg_http_client *c);

#endif
