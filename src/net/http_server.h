/* HTTP/1.1 server core: routes, limits, answers at once, later or in pieces.
 *
 * One thread of its own waits on all sockets. A request is read whole (within the limits)
 * and then given to its route's handler on that thread, which must not block: it answers
 * at once, or keeps the exchange and answers later from any thread. Errors that the core
 * finds itself (no such route, body too large, header too large, a sender too slow) are
 * answered in the shape that the owner of the server gives, and the connection is closed
 * so that the answer arrives. Knows nothing of models.
 *
 * A client may end its sending side and wait for the answer. One that has closed its
 * connection looks the same until something is sent: so a word that means nothing is sent
 * when the sending side ends (100 Continue; within a stream in chunks a zero in front of
 * the next chunk's size), which who has left answers with a reset. HTTP/1.0 has no such
 * word: there the answer itself tells.
 *
 * What requests and answers hold together is bounded (max_held_bytes): beyond it, a large
 * body or answer gives way to a 503, a small one goes through.
 */
#ifndef KG_NET_HTTP_SERVER_H
#define KG_NET_HTTP_SERVER_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

struct kg_http_exchange; /* opaque: one request and its answer */

/* A handler ends in exactly one of: kg_http_reply, or kg_http_stream_begin and later
 * kg_http_stream_end; now or later, from any thread. */
typedef void (*kg_http_handler)(void *user, struct kg_http_exchange *x);

struct kg_http_route {
    const char *method; /* "GET", "POST" */
    const char *path;   /* "/v1/models"; one that ends in a slash takes what lies below */
    kg_http_handler handle;
    const char *help;
};

/* Append the body of an error answer; its content type is application/json. */
typedef kg_status (*kg_http_error_fn)(struct kg_str *body, int http_status,
                                      const char *message, struct kg_err *err);

struct kg_http_server_opts {
    const char *host;        /* NULL: 127.0.0.1 */
    int port;                /* 0: one that is free */
    size_t max_body_bytes;   /* 0: 1 MiB; beyond: 413 */
    size_t max_head_bytes;   /* request line and header; 0: 32 KiB; beyond: 414, 431 */
    size_t max_stream_bytes; /* written and not yet taken by the client; 0: 1 MiB */
    int max_connections;     /* 0: 1024; further ones get 503 and are counted */
    /* Bodies, of which some may be unfinished, and answers that wait for their readers,
     * of all clients; 0: 256 MiB. Beyond it, one body or answer may have 64 KiB. */
    size_t max_held_bytes;
    /* 0: 30. Cut off: a sender that is silent for so long (408 when it had begun), a
     * reader that takes nothing of an answer for so long. */
    int idle_timeout_s;
    int request_timeout_s;  /* 0: 60; a request takes longer to arrive: 408 */
    const char *bearer_key; /* NULL: no key asked for; copied */
    const char *open_path;  /* NULL or a path that needs no key, "/health"; borrowed */
    /* A server without a key that listens on this machine alone answers requests whose
     * Host, and Origin if there is one, is a name of this machine, or one of these: names
     * separated by commas, "*" for any. Others get 403.   borrowed */
    const char *allow_hosts;
    const struct kg_http_route *routes; /* ended by method NULL; borrowed */
    kg_http_error_fn error_body;        /* NULL: {"error": message} */
    void *user;                         /* given to handlers */
};

struct kg_http_server_stats {
    long long requests, refused_connections, errors_4xx, errors_5xx;
    long long timeouts;    /* slow senders and readers that were cut off */
    long long gone;        /* clients that left before their answer was complete */
    long long connections; /* open now */
    long long exchanges;   /* not answered yet */
    long long held_bytes;  /* of bodies and answers */
};

struct kg_http_server; /* opaque */
/* errors: EINVAL (options), EIO (port in use, host not of this machine: named) */
kg_status kg_http_server_start(struct kg_http_server **out,
                               const struct kg_http_server_opts *opts,
                               struct kg_err *err) KG_MUST_CHECK;
int kg_http_server_port(const struct kg_http_server *s);
void kg_http_server_stats(struct kg_http_server_stats *out, struct kg_http_server *s);
/* Take no new connection; wait for the open exchanges, at most drain_ms; close. The
 * owner must go on answering from another thread while it waits. An exchange that is
 * still open then has lost its client, and must be ended all the same.
 * s NULL allowed */
void kg_http_server_stop(struct kg_http_server *s, int drain_ms);

/* The request; all borrowed until the exchange is ended. */
const char *kg_http_path(const struct kg_http_exchange *x); /* %XX decoded, no query */
const char *kg_http_body(const struct kg_http_exchange *x, size_t *n); /* NUL behind it */

/* Answer whole. body is copied.   Never fails towards the caller: without memory the
 * connection is closed and counted. 429 and 503 carry Retry-After: 1. An answer for which
 * the server has no room (max_held_bytes) becomes a 503. */
void kg_http_reply(struct kg_http_exchange *x, int http_status, const char *content_type,
                   const char *body, size_t n);
/* Keep room for an answer of n bytes, for who must know what becomes of it before it is
 * sent: false, and that answer would become a 503. */
bool kg_http_reserve(struct kg_http_exchange *x, size_t n);
/* The error shape of the server. */
void kg_http_reply_error(struct kg_http_exchange *x, int http_status,
                         const char *message);

/* End without an answer, and close the connection: for a client that has left. */
void kg_http_drop(struct kg_http_exchange *x);

/* Answer in pieces: begin, write any number of times, end. Pieces are copied and wait in
 * a buffer for the client.
 * write errors: EIO (the client has left), ENOMEM (it does not read
 * and its buffer is full); both end with kg_http_stream_end all the same. */
void kg_http_stream_begin(struct kg_http_exchange *x, int http_status,
                          const char *content_type);
kg_status kg_http_stream_write(struct kg_http_exchange *x, const char *data, size_t n,
                               struct kg_err *err) KG_MUST_CHECK;
void kg_http_stream_end(struct kg_http_exchange *x);
/* Whether the client has closed its connection. The exchange must still be ended. */
bool kg_http_gone(const struct kg_http_exchange *x);

#endif
