/* The server's thread: connections, from the first byte to the last.
 *
 * A connection has phases: it waits for a head, a body, the response, and starts again.
 * Or it lingers: after its last response, such as a refusal, the server drops further
 * bytes of the client for a moment, because closing at once would reset the connection
 * and lose the response. While a response is pending nothing is read, so a client that
 * sends ahead waits.
 */
#define _GNU_SOURCE /* accept4, EPOLLRDHUP */
#include "base/clock.h"
#include "base/mem.h"
#include "net/http_internal.h"
#include "net/http_parse.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 64, ACCEPTS = 64, SWEEP_MS = 200, LINGER_S = 2, KEEP_BYTES = 16 << 10 };
enum { TLS_HANDSHAKE = 0x16 }; /* first byte of a TLS ClientHello */

/* ---- a connection's end ---- */

/* The client left before its response was complete. */
static void lose_exchange(struct kg_http_conn *c)
{
    struct kg_http_exchange *x = c->x;
    struct kg_http_server *s = x->s;
    bool handled = c->phase == KG_HTTP_PHASE_ANSWER;
    c->x = NULL;
    pthread_mutex_lock(&s->lock);
    s->stats.gone++;
    x->conn = NULL;
    x->gone = true;
    bool free_now = !handled || (x->ended && !x->queued);
    pthread_mutex_unlock(&s->lock);
    if (free_now)
        kg_http_exchange_free(x);
}

static void count_closed(struct kg_http_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->stats.connections--;
    pthread_mutex_unlock(&s->lock);
}

static void conn_close(struct kg_http_server *s, struct kg_http_conn *c)
{
    if (c->phase == KG_HTTP_PHASE_CLOSED)
        return;
    if (c->x)
        lose_exchange(c);
    /* if a forked child shares the descriptor, close alone does not end its events */
    (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    close(c->fd);
    c->phase = KG_HTTP_PHASE_CLOSED;
    if (c->prev)
        c->prev->next = c->next;
    else
        s->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->next = s->dead; /* events of this round may still point to it */
    s->dead = c;
    count_closed(s);
}

static void bury(struct kg_http_server *s)
{
    while (s->dead) {
        struct kg_http_conn *c = s->dead;
        s->dead = c->next;
        kg_str_release(&c->in);
        kg_str_release(&c->out);
        kg_mem_free(c);
    }
}

/* The response is sent: stops sending, then lingers for the client to close. */
static void conn_finish(struct kg_http_server *s, struct kg_http_conn *c)
{
    if (c->ended || shutdown(c->fd, SHUT_WR) != 0) {
        conn_close(s, c);
        return;
    }
    c->phase = KG_HTTP_PHASE_LINGER;
    c->began = kg_clock_seconds();
    kg_str_release(&c->in);
    kg_str_release(&c->out);
    c->sent = 0;
}

/* ---- refusing ---- */

static void refuse_with(struct kg_http_server *s, struct kg_http_conn *c, int status,
                        const char *why, const char *extra)
{
    struct kg_err err;
    if (c->x)
        kg_http_exchange_free(c->x);
    c->x = NULL;
    c->phase = KG_HTTP_PHASE_ANSWER;
    if (kg_http_refusal(&c->out, s, status, why, extra, &err) != KG_OK)
        conn_close(s, c);
}

static void refuse(struct kg_http_server *s, struct kg_http_conn *c, int status,
                   const char *why)
{
    refuse_with(s, c, status, why, "");
}

/* ---- reading a request ---- */

static void consume(struct kg_http_conn *c, size_t n)
{
    c->in.len -= n;
    memmove(c->in.data, c->in.data + n, c->in.len);
    c->in.data[c->in.len] = '\0';
    c->seen = 0;
}

static struct kg_http_exchange *exchange_create(struct kg_http_server *s,
                                                struct kg_http_conn *c, size_t head_n)
{
    struct kg_err err;
    struct kg_http_exchange *x = kg_mem_calloc(1, sizeof *x, "HTTP exchange", &err);
    if (x == NULL)
        return NULL;
    if (kg_str_append(&x->raw, c->in.data, head_n, &err) != KG_OK) {
        kg_mem_free(x);
        return NULL;
    }
    x->s = s;
    x->conn = c;
    x->body.max = s->opts.max_body_bytes;
    pthread_mutex_lock(&s->lock);
    s->stats.exchanges++;
    pthread_mutex_unlock(&s->lock);
    return x;
}

/* Checks the request's key.   *user: index of that key, or -1 if none is needed */
static bool may_enter(int *user, const struct kg_http_server *s,
                      const struct kg_http_head *h)
{
    const char *found = kg_http_head_field(h, "x-api-key");
    *user = -1;
    if (s->n_keys == 0 || (s->opts.open_path && strcmp(h->path, s->opts.open_path) == 0))
        return true;
    if (!found || !s->opts.api_key_header) {
        found = kg_http_head_field(h, "authorization");
        if (found == NULL || strncasecmp(found, "Bearer ", 7) != 0)
            return false;
        found += 7 + strspn(found + 7, " ");
    }
    *user = kg_http_keys_find(s->keys, s->n_keys, found);
    return *user >= 0;
}

/* Whether a foreign web page may have made a local browser send this request. Such a page
 * has another Origin, or another Host if its owner's name resolves to 127.0.0.1. */
static bool is_foreign(char *why, size_t why_n, const struct kg_http_server *s,
                       const struct kg_http_head *h)
{
    const char *origin = kg_http_head_field(h, "origin");
    const char *names[] = {h->host, origin ? kg_http_origin_host(origin) : h->host};
    if (!s->local || s->n_keys > 0)
        return false;
    for (int i = 0; i < 2; i++) {
        const char *name = names[i] ? names[i] : i == 1 && origin ? origin : "";
        if (*name == '\0' || kg_http_host_is_local(name) ||
            kg_http_host_is_among(name, s->opts.allow_hosts))
            continue;
        snprintf(why, why_n,
                 "without a key this server accepts only this machine's own names, found "
                 "%s '%.60s' (--allow-host accepts others)",
                 i == 0 ? "Host" : "Origin", name);
        return true;
    }
    return false;
}

static void refuse_method(struct kg_http_server *s, struct kg_http_conn *c,
                          const char *path)
{
    static const char *const methods[] = {"GET", "HEAD", "POST", "PUT", "DELETE"};
    char extra[64] = "Allow: ";
    char why[192];
    bool known;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (kg_http_route_find(s, methods[i], path, &known)) {
            strcat(extra, extra[7] ? ", " : "");
            strcat(extra, methods[i]);
        }
    snprintf(why, sizeof why, "%.90s takes %s", path, extra + 7);
    strcat(extra, "\r\n");
    refuse_with(s, c, 405, why, extra);
}

/* Checks the request that c->x begins, and refuses it if it may not continue. */
static bool check_head(struct kg_http_server *s, struct kg_http_conn *c)
{
    struct kg_http_head *h = &c->x->head;
    const char *why;
    char text[192];
    bool path_known;
    int status = kg_http_head_parse(h, c->x->raw.data, c->x->raw.len, &why);
    if (status != 0) {
        refuse(s, c, status, why);
        return false;
    }
    if (is_foreign(text, sizeof text, s, h)) {
        refuse(s, c, 403, text);
        return false;
    }
    if (!may_enter(&c->x->user, s, h)) {
        refuse(s, c, 401,
               s->opts.api_key_header
                   ? "expected the header 'X-API-Key: KEY' or 'Authorization: Bearer "
                     "KEY' with the key"
                   : "expected the header 'Authorization: Bearer KEY' with the key");
        return false;
    }
    c->x->route = kg_http_route_find(s, h->method, h->path, &path_known);
    if (c->x->route == NULL) {
        snprintf(text, sizeof text, "no such path: %.100s", h->path);
        if (path_known)
            refuse_method(s, c, h->path);
        else
            refuse(s, c, 404, text);
        return false;
    }
    if (!h->chunked && h->length > s->opts.max_body_bytes) {
        snprintf(text, sizeof text, "the body has %llu bytes, this server accepts %zu",
                 (unsigned long long)h->length, s->opts.max_body_bytes);
        refuse(s, c, 413, text);
        return false;
    }
    return true;
}

/* Sends a few bytes past the output buffer. It is empty, so the socket has room. A
 * failure is harmless: a client continues without "100 Continue" after a moment. */
static void say(struct kg_http_conn *c, const char *word)
{
    ssize_t n = send(c->fd, word, strlen(word), MSG_NOSIGNAL);
    (void)n;
}

static void say_continue(struct kg_http_conn *c)
{
    say(c, "HTTP/1.1 100 Continue\r\n\r\n");
}

static void refuse_large_head(struct kg_http_server *s, struct kg_http_conn *c)
{
    bool line = memchr(c->in.data, '\n', s->opts.max_head_bytes) != NULL;
    char why[96];
    snprintf(why, sizeof why, "the %s has more than %zu bytes",
             line ? "header" : "request line", s->opts.max_head_bytes);
    refuse(s, c, line ? 431 : 414, why);
}

static void take_head(struct kg_http_server *s, struct kg_http_conn *c)
{
    while (c->in.len >= 2 && memcmp(c->in.data, "\r\n", 2) == 0)
        consume(c, 2);
    if (c->in.len == 0)
        return;
    if (c->in.data[0] == TLS_HANDSHAKE) { /* or it waits for a ServerHello */
        refuse(s, c, 400, "expected HTTP, found a TLS handshake: use http://");
        return;
    }
    size_t n = kg_http_head_length(c->in.data, c->in.len, &c->seen);
    if (n > s->opts.max_head_bytes || (n == 0 && c->in.len > s->opts.max_head_bytes)) {
        refuse_large_head(s, c);
        return;
    }
    if (n == 0)
        return;
    c->x = exchange_create(s, c, n);
    if (c->x == NULL) {
        refuse(s, c, 503, "out of memory");
        return;
    }
    consume(c, n);
    if (!check_head(s, c))
        return;
    c->x->no_body = strcmp(c->x->head.method, "HEAD") == 0;
    c->chunks = (struct kg_http_chunks){0};
    c->phase = KG_HTTP_PHASE_BODY;
    if (c->x->head.expects_continue && c->in.len == 0)
        say_continue(c);
}

static void dispatch(struct kg_http_server *s, struct kg_http_conn *c)
{
    pthread_mutex_lock(&s->lock);
    s->stats.requests++;
    pthread_mutex_unlock(&s->lock);
    c->phase = KG_HTTP_PHASE_ANSWER;
    c->began = 0;
    c->x->route->handle(s->opts.user, c->x);
}

/* Counts the memory that the body uses now.   returns 0, or 503 and *why */
static int hold_body(struct kg_http_exchange *x, const char **why)
{
    pthread_mutex_lock(&x->s->lock);
    bool held = kg_http_hold(x, &x->body_held, x->body.capacity - x->body_held);
    pthread_mutex_unlock(&x->s->lock);
    *why =
        "bodies of open requests take all the memory reserved for them: try again later";
    return held ? 0 : 503;
}

static void take_body(struct kg_http_server *s, struct kg_http_conn *c)
{
    struct kg_http_exchange *x = c->x;
    struct kg_err err;
    const char *why = "out of memory";
    size_t used = 0;
    int status = 0;
    if (x->head.chunked) {
        status = kg_http_chunks_feed(&c->chunks, &x->body, s->opts.max_body_bytes,
                                     kg_str_text(&c->in), c->in.len, &used, &why);
    } else {
        used = (size_t)x->head.length - x->body.len;
        used = used < c->in.len ? used : c->in.len;
        if (kg_str_append(&x->body, kg_str_text(&c->in), used, &err) != KG_OK)
            status = 503;
    }
    if (status == 0)
        status = hold_body(x, &why);
    if (status != 0) {
        refuse(s, c, status, why);
        return;
    }
    if (used > 0)
        consume(c, used);
    if (x->head.chunked ? c->chunks.state == KG_HTTP_CHUNK_DONE
                        : x->body.len == x->head.length)
        dispatch(s, c);
}

/* ---- sending ---- */

/* Takes over the bytes that the handler wrote.   returns whether the exchange has ended
 * and has nothing left to send */
static bool pull(struct kg_http_conn *c, bool *broken)
{
    struct kg_http_exchange *x = c->x;
    pthread_mutex_lock(&x->s->lock);
    if (c->sent == c->out.len) {
        struct kg_str empty = c->out;
        kg_http_let_go(x, &x->out_held, empty.len);
        kg_str_clear(&empty);
        c->out = x->out;
        x->out = empty;
        c->sent = 0;
        c->spoke |= c->out.len > 0;
    }
    bool complete = x->ended && c->out.len == 0;
    *broken = x->broken;
    pthread_mutex_unlock(&x->s->lock);
    return complete;
}

/* returns whether all is sent; if not, the connection may be closed */
static bool send_out(struct kg_http_server *s, struct kg_http_conn *c)
{
    while (c->sent < c->out.len) {
        ssize_t n = send(c->fd, c->out.data + c->sent, c->out.len - c->sent,
                         MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            if (errno != EAGAIN)
                conn_close(s, c);
            return false;
        }
        c->sent += (size_t)n;
        c->active = kg_clock_seconds();
    }
    return true;
}

/* The response is sent: prepares for the next request, or closes.   returns whether the
 * connection stays open */
static bool end_exchange(struct kg_http_server *s, struct kg_http_conn *c)
{
    struct kg_http_exchange *x = c->x;
    pthread_mutex_lock(&s->lock);
    bool close_after = x->close_after || s->stopping;
    bool queued = x->queued; /* if so, run_woken frees it */
    x->conn = NULL;
    pthread_mutex_unlock(&s->lock);
    c->x = NULL;
    if (!queued)
        kg_http_exchange_free(x);
    if (close_after) {
        conn_finish(s, c);
        return false;
    }
    if (c->out.capacity > KEEP_BYTES)
        kg_str_release(&c->out);
    if (c->in.len == 0 && c->in.capacity > KEEP_BYTES)
        kg_str_release(&c->in);
    c->spoke = c->half = false;
    c->phase = KG_HTTP_PHASE_HEAD;
    c->active = kg_clock_seconds();
    c->began = c->in.len > 0 ? c->active : 0;
    return true;
}

/* Sends what is ready.   returns whether the response is sent and another may follow */
static bool flush(struct kg_http_server *s, struct kg_http_conn *c)
{
    while (c->phase == KG_HTTP_PHASE_ANSWER) {
        bool broken = false;
        bool complete = c->x ? pull(c, &broken) : c->sent == c->out.len;
        if (broken)
            conn_close(s, c);
        else if (complete && c->x)
            return end_exchange(s, c);
        else if (complete)
            conn_finish(s, c);
        else if (c->sent == c->out.len || !send_out(s, c))
            return false;
    }
    return false;
}

/* ---- events ---- */

static uint32_t wanted(const struct kg_http_conn *c)
{
    uint32_t events = 0;
    if (c->phase != KG_HTTP_PHASE_ANSWER)
        return EPOLLIN;
    if (c->sent < c->out.len)
        events |= EPOLLOUT;
    if (c->x && !c->half)
        events |= EPOLLRDHUP;
    return events;
}

static void watch(struct kg_http_server *s, struct kg_http_conn *c)
{
    struct epoll_event e = {.events = wanted(c), .data.ptr = c};
    if (c->phase == KG_HTTP_PHASE_CLOSED || e.events == c->events)
        return;
    if (epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &e) != 0)
        conn_close(s, c);
    c->events = e.events;
}

/* Processes the bytes received so far. */
static void work(struct kg_http_server *s, struct kg_http_conn *c)
{
    do {
        if (c->phase == KG_HTTP_PHASE_HEAD)
            take_head(s, c);
        if (c->phase == KG_HTTP_PHASE_BODY)
            take_body(s, c);
    } while (flush(s, c) && c->in.len > 0);
    watch(s, c);
}

/* The client sends no more; it may still read. */
static void on_end(struct kg_http_server *s, struct kg_http_conn *c)
{
    char why[128] = "the connection ended within the header";
    c->ended = true;
    if (c->phase == KG_HTTP_PHASE_LINGER || c->began == 0) {
        conn_close(s, c);
        return;
    }
    if (c->phase == KG_HTTP_PHASE_BODY && !c->x->head.chunked)
        snprintf(why, sizeof why, "the connection ended after %zu of %llu bytes of body",
                 c->x->body.len, (unsigned long long)c->x->head.length);
    else if (c->phase == KG_HTTP_PHASE_BODY)
        snprintf(why, sizeof why, "the connection ended within the chunked body");
    refuse(s, c, 400, why);
    work(s, c);
}

static void on_readable(struct kg_http_server *s, struct kg_http_conn *c)
{
    struct kg_err err;
    ssize_t n = recv(c->fd, s->buffer, KG_HTTP_READ_BYTES, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n < 0) {
        conn_close(s, c);
        return;
    }
    if (n == 0) {
        on_end(s, c);
        return;
    }
    if (c->phase == KG_HTTP_PHASE_LINGER)
        return;
    c->active = kg_clock_seconds();
    if (c->began == 0)
        c->began = c->active;
    if (kg_str_append(&c->in, s->buffer, (size_t)n, &err) != KG_OK)
        conn_close(s, c);
    else
        work(s, c);
}

/* The client has shut down its sending side: it waits for the response, or has left. A
 * client that has left answers any byte with a reset, so a harmless byte is sent. If none
 * can be sent now, sending the response will show it. */
static void on_half_close(struct kg_http_conn *c)
{
    struct kg_http_exchange *x = c->x;
    c->half = true;
    if (x == NULL || x->head.old || c->sent < c->out.len)
        return;
    pthread_mutex_lock(&x->s->lock);
    bool due = x->out.len > 0 || x->ended;
    bool in_chunks = x->chunked && !x->no_body;
    pthread_mutex_unlock(&x->s->lock);
    if (due)
        return;
    if (!c->spoke)
        say_continue(c);
    else if (in_chunks)
        say(c, "0"); /* a leading zero of the next chunk's size */
}

static void on_event(struct kg_http_server *s, struct kg_http_conn *c, uint32_t events)
{
    if (c->phase == KG_HTTP_PHASE_CLOSED)
        return;
    if (c->phase != KG_HTTP_PHASE_ANSWER) {
        on_readable(s, c);
        return;
    }
    if (events & (EPOLLERR | EPOLLHUP)) {
        conn_close(s, c);
        return;
    }
    if (events & EPOLLRDHUP)
        on_half_close(c);
    work(s, c);
}

static void run_woken(struct kg_http_server *s)
{
    for (;;) {
        pthread_mutex_lock(&s->lock);
        struct kg_http_exchange *x = s->woken;
        if (x) {
            s->woken = x->next_woken;
            x->queued = false;
        }
        bool over = x && x->conn == NULL && x->ended;
        pthread_mutex_unlock(&s->lock);
        if (x == NULL)
            return;
        if (over)
            kg_http_exchange_free(x);
        else if (x->conn)
            work(s, x->conn);
    }
}

/* ---- new connections ---- */

static bool has_room(struct kg_http_server *s)
{
    pthread_mutex_lock(&s->lock);
    bool room = s->stats.connections < s->opts.max_connections;
    s->stats.connections += room;
    s->stats.refused_connections += !room;
    pthread_mutex_unlock(&s->lock);
    return room;
}

/* Refuses a client beyond max_connections without reading its request. */
static void turn_away(struct kg_http_server *s, int fd)
{
    struct kg_str text = {0};
    struct kg_err err;
    if (kg_http_refusal(&text, s, 503, "too many connections", "", &err) == KG_OK) {
        /* a new socket's buffer has room for it; on failure the close must do */
        ssize_t n = send(fd, text.data, text.len, MSG_NOSIGNAL);
        (void)n;
    }
    kg_str_release(&text);
    shutdown(fd, SHUT_WR);
    close(fd);
}

static void conn_open(struct kg_http_server *s, int fd)
{
    struct kg_err err;
    int yes = 1;
    struct epoll_event e = {.events = EPOLLIN};
    if (!has_room(s)) {
        turn_away(s, fd);
        return;
    }
    struct kg_http_conn *c = kg_mem_calloc(1, sizeof *c, "HTTP connection", &err);
    if (c == NULL) {
        close(fd);
        count_closed(s);
        return;
    }
    c->fd = fd;
    c->events = e.events;
    c->active = kg_clock_seconds();
    c->next = s->conns;
    if (s->conns)
        s->conns->prev = c;
    s->conns = c;
    e.data.ptr = c;
    /* send small pieces of a stream at once; a failure is harmless */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &e) != 0)
        conn_close(s, c);
}

static void rest_listener(struct kg_http_server *s, bool rest)
{
    struct epoll_event e = {.events = rest ? 0 : EPOLLIN, .data.ptr = &s->listener};
    s->paused = rest;
    if (s->listener >= 0)
        (void)epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listener, &e);
}

static void on_listener(struct kg_http_server *s)
{
    for (int i = 0; i < ACCEPTS; i++) {
        int fd = accept4(s->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            conn_open(s, fd);
        else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
            rest_listener(s, true);
        if (fd < 0)
            return;
    }
}

/* ---- time ---- */

static void sweep_one(struct kg_http_server *s, struct kg_http_conn *c, double now)
{
    bool silent = now - c->active > s->opts.idle_timeout_s;
    bool late = c->began > 0 && now - c->began > s->opts.request_timeout_s;
    bool slow = false;
    if (c->phase == KG_HTTP_PHASE_LINGER) {
        if (now - c->began > LINGER_S)
            conn_close(s, c);
    } else if (c->phase == KG_HTTP_PHASE_ANSWER) {
        slow = silent && c->sent < c->out.len;
        if (slow)
            conn_close(s, c);
    } else if (c->began == 0) {
        if (silent)
            conn_close(s, c);
    } else if (silent || late) {
        slow = true;
        refuse(s, c, 408, "the request did not arrive in time");
        work(s, c);
    }
    pthread_mutex_lock(&s->lock);
    s->stats.timeouts += slow;
    pthread_mutex_unlock(&s->lock);
}

static void sweep(struct kg_http_server *s)
{
    double now = kg_clock_seconds();
    if (now < s->next_sweep)
        return;
    s->next_sweep = now + SWEEP_MS / 1000.0;
    if (s->paused)
        rest_listener(s, false);
    for (struct kg_http_conn *next, *c = s->conns; c; c = next) {
        next = c->next;
        sweep_one(s, c, now);
    }
}

/* ---- the thread ---- */

/* Stops accepting, and closes connections that have no request in progress. */
static void stop_taking(struct kg_http_server *s)
{
    if (s->listener >= 0) {
        (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, s->listener, NULL);
        close(s->listener);
    }
    s->listener = -1;
    for (struct kg_http_conn *next, *c = s->conns; c; c = next) {
        next = c->next;
        if (c->phase == KG_HTTP_PHASE_HEAD && c->began == 0)
            conn_close(s, c);
    }
}

static void one_round(struct kg_http_server *s)
{
    struct epoll_event events[EVENTS];
    uint64_t count;
    int timeout = s->conns || s->paused ? SWEEP_MS : -1;
    int n = epoll_wait(s->epoll, events, EVENTS, timeout);
    for (int i = 0; i < n; i++) {
        void *mark = events[i].data.ptr;
        if (mark == &s->listener)
            on_listener(s);
        else if (mark != &s->waker)
            on_event(s, mark, events[i].events);
        else if (read(s->waker, &count, sizeof count) < 0)
            continue; /* the counter is already 0 */
    }
    run_woken(s);
    sweep(s);
    bury(s);
}

void *kg_http_server_thread(void *server)
{
    struct kg_http_server *s = server;
    bool leaving = false;
    while (!leaving) {
        one_round(s);
        pthread_mutex_lock(&s->lock);
        bool stopping = s->stopping;
        leaving = s->leaving;
        pthread_mutex_unlock(&s->lock);
        if (stopping)
            stop_taking(s);
        bury(s);
    }
    while (s->conns)
        conn_close(s, s->conns);
    bury(s);
    return NULL;
}
