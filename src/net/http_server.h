/* HTTP/1.1 server core: routes, limits, and responses sent at once, later or as a stream.
 * It does not depend on models.
 *
 * One thread waits on all sockets. It reads a whole request (within the limits) and calls
 * the route's handler. A handler must not block: it responds at once, or keeps the
 * exchange and responds later from any thread. Errors that the core finds (no such route,
 * body or header too large, sender too slow) are formatted by the owner's error_body. The
 * connection is then closed, but not before the client can have read the response.
 *
 * A client may shut down its sending side and wait for the response. A client that
 * closed its connection looks the same until the server sends something. So when the
 * sending side ends, the server sends bytes without meaning (100 Continue; in a chunked
 * stream, a leading zero of the next chunk size); a client that has left replies with a
 * reset. HTTP/1.0 has no such bytes; there a client's departure shows only when the
 * response is sent.
 *
 * max_held_bytes limits the memory of all requests and responses together. Above it,
 * large requests get a 503; small ones are accepted.
 */
#ifndef KG_NET_HTTP_SERVER_H
#define KG_NET_HTTP_SERVER_H

#include "base/status.h"
#include "base/str.h"
#include "net/http_keys.h"

#include <stdbool.h>
#include <stddef.h>

struct kg_http_exchange; /* opaque: one request and its response */

/* A handler ends the exchange exactly once: kg_http_reply, kg_http_drop, or
 * kg_http_stream_begin and later kg_http_stream_end; now or later, from any thread. */
typedef void (*kg_http_handler)(void *user, struct kg_http_exchange *x);

struct kg_http_route {
    const char *method; /* "GET", "POST" */
    const char *path;   /* "/v1/models"; with a final slash: all paths below it */
    kg_http_handler handle;
    const char *help;
};

/* Appends the body of an error response; its content type is application/json. */
typedef kg_status (*kg_http_error_fn)(struct kg_str *body, int http_status,
                                      const char *message, struct kg_err *err);

struct kg_http_server_opts {
    const char *host;        /* NULL: 127.0.0.1 */
    int port;                /* 0: any free port */
    size_t max_body_bytes;   /* 0: 1 MiB; a longer body gets a 413 */
    size_t max_head_bytes;   /* request line and header; 0: 32 KiB; beyond: 414, 431 */
    size_t max_stream_bytes; /* of a stream, written but not yet sent; 0: 1 MiB */
    int max_connections;     /* 0: 1024; further ones get a 503 and are counted */
    /* Limit over all clients: bodies, also incomplete ones, and responses not yet sent;
     * 0: 256 MiB. Beyond it each body or response may still have 64 KiB. */
    size_t max_held_bytes;
    /* 0: 30. Closes a connection if its sender is silent this long (408 if a request had
     * begun), or if its reader takes no byte of a response this long. */
    int idle_timeout_s;
    int request_timeout_s;  /* 0: 60; a request that takes longer to arrive gets a 408 */
    const char *bearer_key; /* NULL: no key needed; copied */
    /* (n_keys) borrowed: a key for each user, instead of bearer_key */
    const struct kg_http_key *keys;
    size_t n_keys;
    bool api_key_header;   /* the key may also be in the header X-API-Key: KEY */
    const char *open_path; /* NULL or a path that needs no key, "/health"; borrowed */
    /* If the server has no key and a local address, a request gets a 403 unless its Host,
     * and its Origin if present, names this machine or is in this list ("a,b"; "*": any).
     * Must be NULL for other addresses. borrowed */
    const char *allow_hosts;
    const struct kg_http_route *routes; /* ended by method NULL; borrowed */
    kg_http_error_fn error_body;        /* NULL: {"error": message} */
    void *user;                         /* passed to handlers */
};

struct kg_http_server_stats {
    long long requests, refused_connections, errors_4xx, errors_5xx;
    long long timeouts;    /* clients disconnected because they were slow */
    long long gone;        /* clients that left before their response was complete */
    long long connections; /* open now */
    long long exchanges;   /* open now */
    long long held_bytes;  /* held by bodies and responses */
};

struct kg_http_server; /* opaque */
/* errors: EINVAL (options), EIO (port in use, host not an address of this machine) */
kg_status kg_http_server_start(struct kg_http_server **out,
                               const struct kg_http_server_opts *opts,
                               struct kg_err *err) KG_MUST_CHECK;
int kg_http_server_port(const struct kg_http_server *s);
void kg_http_server_stats(struct kg_http_server_stats *out, struct kg_http_server *s);
/* Stops accepting, waits at most drain_ms for the open exchanges, then closes. Other
 * threads must keep responding while this waits. Exchanges still open then have lost
 * their client but must still be ended.
 * s: NULL allowed */
void kg_http_server_stop(struct kg_http_server *s, int drain_ms);

/* The request. All pointers are borrowed until the exchange ends. */
/* The index in opts.keys of the request's key (0: bearer_key); -1: no key was needed. */
int kg_http_user(const struct kg_http_exchange *x);
const char *kg_http_path(const struct kg_http_exchange *x); /* %XX decoded, no query */
const struct kg_http_route *kg_http_route_of(const struct kg_http_exchange *x);
/* The value of a header field, without case of its name; NULL: none. */
const char *kg_http_header(const struct kg_http_exchange *x, const char *name);
const char *kg_http_body(const struct kg_http_exchange *x,
                         size_t *n); /* NUL terminated */

/* Sends a whole response; body is copied. Never fails for the caller: without memory the
 * connection is closed and counted in `gone`. 429 and 503 carry Retry-After: 1. A
 * response that exceeds max_held_bytes becomes a 503. */
void kg_http_reply(struct kg_http_exchange *x, int http_status, const char *content_type,
                   const char *body, size_t n);
/* Reserves memory for a response of n bytes, for callers that must know before sending.
 * false: the response would become a 503. */
bool kg_http_reserve(struct kg_http_exchange *x, size_t n);
/* A response in the server's error format. */
void kg_http_reply_error(struct kg_http_exchange *x, int http_status,
                         const char *message);

/* Ends without a response and closes the connection: for a client that has left. */
void kg_http_drop(struct kg_http_exchange *x);

/* A streamed response: begin, write any number of times, end. Pieces are copied into a
 * buffer for the client.
 * write errors: EIO (the client has left), ENOMEM (the client does not read and its
 * buffer is full). After an error kg_http_stream_end must still be called. */
void kg_http_stream_begin(struct kg_http_exchange *x, int http_status,
                          const char *content_type);
kg_status kg_http_stream_write(struct kg_http_exchange *x, const char *data, size_t n,
                               struct kg_err *err) KG_MUST_CHECK;
void kg_http_stream_end(struct kg_http_exchange *x);
/* Whether the client has closed its connection. The exchange must still be ended. */
bool kg_http_gone(const struct kg_http_exchange *x);

#endif
