/* Internals of the HTTP server, shared by http_server.c (lifecycle, and responses from
 * any thread) and http_conn.c (sockets, on the server's thread only).
 *
 * The server's thread frees an exchange when it has ended and was sent, or when its
 * client has left. After the server has stopped, the thread that ends the exchange frees
 * it. Fields that responding threads may touch are guarded by the server's lock; all
 * others belong to the server's thread.
 */
#ifndef KG_NET_HTTP_INTERNAL_H
#define KG_NET_HTTP_INTERNAL_H

#include "net/http_parse.h"
#include "net/http_server.h"

#include <pthread.h>
#include <stdatomic.h>

struct kg_http_exchange {
    struct kg_http_server *s;
    struct kg_http_conn *conn; /* NULL after the client has left */
    struct kg_str raw;         /* owned; head points into it */
    struct kg_http_head head;
    struct kg_str body; /* owned */
    int user;           /* as kg_http_user */
    const struct kg_http_route *route;
    bool no_body;     /* HEAD */
    bool close_after; /* close after this response; set when it begins */
    size_t body_held; /* part of the server's held_bytes; under the lock, as out_held */
    size_t out_held;
    size_t reserved; /* part of out_held: reserved for the response */

    /* under the lock */
    struct kg_str out; /* owned; bytes to send */
    bool ended;
    bool chunked;     /* out is sent in chunks */
    bool broken;      /* cannot be completed: close the connection */
    atomic_bool gone; /* read without the lock too */
    bool queued;      /* the exchange is in the woken list */
    struct kg_http_exchange *next_woken;
};

enum kg_http_phase {
    KG_HTTP_PHASE_HEAD,   /* waiting for a head */
    KG_HTTP_PHASE_BODY,   /* waiting for x's body */
    KG_HTTP_PHASE_ANSWER, /* waiting for x's response, or sending a refusal (no x) */
    KG_HTTP_PHASE_LINGER, /* everything is sent; further input is dropped */
    KG_HTTP_PHASE_CLOSED  /* freed at the end of the round */
};

struct kg_http_conn {
    int fd;
    enum kg_http_phase phase;
    uint32_t events;  /* what epoll waits for */
    struct kg_str in; /* owned; received, not yet part of a request */
    size_t seen;      /* bytes of `in` searched for the end of a head */
    struct kg_http_chunks chunks;
    struct kg_http_exchange *x; /* owned together with its handler */
    struct kg_str out;          /* owned; being sent */
    size_t sent;                /* bytes of out */
    bool close_after;
    bool spoke;    /* bytes of x's answer have been sent, or are in out */
    bool half;     /* the client shut down its sending side while x was open */
    bool ended;    /* half, and all input has been read */
    double began;  /* time of the current request's first byte; 0: none */
    double active; /* time of the last byte received or sent */
    struct kg_http_conn *prev, *next;
};

struct kg_http_server {
    struct kg_http_server_opts opts; /* defaults filled in */
    struct kg_http_key key;          /* opts.bearer_key: a copy, owned; NULL for none */
    const struct kg_http_key *keys;  /* (n_keys) &key, or opts.keys */
    size_t n_keys;                   /* 0: no key needed */
    int listener, epoll, waker;      /* -1 when closed */
    int port;
    bool local; /* listens on a loopback address: see opts.allow_hosts */
    pthread_t thread;
    struct kg_http_conn *conns; /* owned list */
    struct kg_http_conn *dead;  /* closed in this round */
    char *buffer;               /* owned; KG_HTTP_READ_BYTES of the server's thread */
    bool paused;                /* out of descriptors: no accepts until the next sweep */
    double next_sweep;

    pthread_mutex_t lock;
    pthread_cond_t idle; /* signalled when no exchange is open */
    struct kg_http_exchange *woken, *last_woken;
    bool stopping; /* no new connections */
    bool leaving;  /* the thread closes all connections and ends */
    bool ended;    /* the thread has ended; the last exchange frees the server */
    struct kg_http_server_stats stats;
};

enum { KG_HTTP_READ_BYTES = 1 << 16, KG_HTTP_SMALL_BYTES = 64 << 10 };

/* http_conn.c: the server's thread. */
void *kg_http_server_thread(void *server);

/* http_server.c */
/* The route of a request, or NULL; *path_known: the path has routes for other methods. */
const struct kg_http_route *kg_http_route_find(const struct kg_http_server *s,
                                               const char *method, const char *path,
                                               bool *path_known);
/* Appends a complete error response made by the core, which closes the connection. extra:
 * further header lines, or "" */
kg_status kg_http_refusal(struct kg_str *out, struct kg_http_server *s, int status,
                          const char *why, const char *extra,
                          struct kg_err *err) KG_MUST_CHECK;
/* Under the lock: counts n more bytes; false if they exceed the limit. held: x's
 * body_held or out_held */
bool kg_http_hold(struct kg_http_exchange *x, size_t *held, size_t n);
/* Under the lock: counts n bytes fewer. */
void kg_http_let_go(struct kg_http_exchange *x, size_t *held, size_t n);
/* Frees x, and the server too if it has stopped and x was its last exchange. */
void kg_http_exchange_free(struct kg_http_exchange *x);

#endif
