/* The HTTP server from inside: what http_server.c (its life, and answers from any thread)
 * and http_conn.c (sockets, on the server's thread alone) share.
 *
 * An exchange outlives neither its handler nor its connection: it is freed by the
 * server's thread once it is ended and sent or its client has left; after the server has
 * stopped, by whoever ends it. What an answering thread may touch stands under the
 * server's lock; all else belongs to the server's thread.
 */
#ifndef KG_NET_HTTP_INTERNAL_H
#define KG_NET_HTTP_INTERNAL_H

#include "net/http_parse.h"
#include "net/http_server.h"

#include <pthread.h>
#include <stdatomic.h>

struct kg_http_exchange {
    struct kg_http_server *s;
    struct kg_http_conn *conn; /* NULL when the client has left */
    struct kg_str raw;         /* owned; what head borrows from */
    struct kg_http_head head;
    struct kg_str body; /* owned */
    bool no_body;       /* HEAD */
    bool close_after;   /* the answer said so; set when it begins */
    size_t body_held;   /* of the server's held_bytes; under the lock, as the next */
    size_t out_held;
    size_t reserved; /* of out_held: for the answer that is to come */

    /* under the lock */
    struct kg_str out; /* owned; to be sent */
    bool ended;
    bool chunked;     /* out is a stream in chunks */
    bool broken;      /* cannot be completed: close the connection */
    atomic_bool gone; /* read without the lock too */
    bool queued;      /* in the list of the woken */
    struct kg_http_exchange *next_woken;
};

enum kg_http_phase {
    KG_HTTP_PHASE_HEAD,   /* a head is due */
    KG_HTTP_PHASE_BODY,   /* x's body is due */
    KG_HTTP_PHASE_ANSWER, /* x's answer, or without x a refusal, is due */
    KG_HTTP_PHASE_LINGER, /* all is said; what still comes is dropped */
    KG_HTTP_PHASE_CLOSED  /* freed at the end of the round */
};

struct kg_http_conn {
    int fd;
    enum kg_http_phase phase;
    uint32_t events;  /* what epoll waits for */
    struct kg_str in; /* owned; read and not yet part of a request */
    size_t seen;      /* of in, by the search for a head's end */
    struct kg_http_chunks chunks;
    struct kg_http_exchange *x; /* owned together with its handler */
    struct kg_str out;          /* owned; being sent */
    size_t sent;                /* of out */
    bool close_after;
    bool spoke;    /* bytes of x's answer have been sent, or are in out */
    bool half;     /* the client has ended its side while x's answer is due */
    bool ended;    /* and all that it has sent has been read */
    double began;  /* first byte of the request that is due; 0 for none */
    double active; /* the last byte that came or went */
    struct kg_http_conn *prev, *next;
};

struct kg_http_server {
    struct kg_http_server_opts opts; /* defaults filled in */
    char *key;                       /* owned; NULL for none */
    int listener, epoll, waker;      /* -1 when closed */
    int port;
    bool local; /* whoever is on this machine may ask, and nobody else */
    pthread_t thread;
    struct kg_http_conn *conns; /* owned list */
    struct kg_http_conn *dead;  /* closed in this round */
    char *buffer;               /* owned; KG_HTTP_READ_BYTES of the server's thread */
    bool paused;                /* out of descriptors: the listener rests until a sweep */
    double next_sweep;

    pthread_mutex_t lock;
    pthread_cond_t idle; /* no exchange is open any more */
    struct kg_http_exchange *woken, *last_woken;
    bool stopping; /* no new connections */
    bool leaving;  /* the thread closes all and ends */
    bool ended;    /* the thread is gone; the last exchange frees the server */
    struct kg_http_server_stats stats;
};

enum { KG_HTTP_READ_BYTES = 1 << 16, KG_HTTP_SMALL_BYTES = 64 << 10 };

/* http_conn.c: the server's thread. */
void *kg_http_server_thread(void *server);

/* http_server.c */
/* The route of a request, or NULL; *path_known: it has other methods. */
const struct kg_http_route *kg_http_route_find(const struct kg_http_server *s,
                                               const char *method, const char *path,
                                               bool *path_known);
/* Append a whole error answer of the core's own, after which the connection is closed.
 * extra: further header lines, or "" */
kg_status kg_http_refusal(struct kg_str *out, struct kg_http_server *s, int status,
                          const char *why, const char *extra,
                          struct kg_err *err) KG_MUST_CHECK;
/* Under the lock: count n bytes more, if there is room for them.   held: x's body_held or
 * out_held */
bool kg_http_hold(struct kg_http_exchange *x, size_t *held, size_t n);
/* Under the lock: n bytes less. */
void kg_http_let_go(struct kg_http_exchange *x, size_t *held, size_t n);
/* Frees it, and the server with the last one of a server that has stopped. */
void kg_http_exchange_free(struct kg_http_exchange *x);

#endif
