/* The server's life, and responses from any thread.
 *
 * The bytes are read and sent by http_conn.c on the server's own thread; this file writes
 * into the exchange's buffer under the lock, and wakes the thread.
 *
 * It uses sockets and epoll, not libmicrohttpd: that library sends its own pages for
 * requests that it refuses (header too large, malformed request), and disconnects a slow
 * sender without a response. It does not notice that a client leaves while its request is
 * suspended. It closes before a refused body is read, so the response is lost.
 */
#define _GNU_SOURCE /* accept4, EPOLLRDHUP */
#include "base/clock.h"
#include "base/mem.h"
#include "data/json.h"
#include "net/http_internal.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SPARE_DESCRIPTORS = 64 };

/* ---- heads of responses ---- */

static const struct phrase {
    int status;
    const char *text;
    const char *extra; /* a header that belongs to the status, or "" */
} phrases[] = {
    {200, "OK", ""},
    {400, "Bad Request", ""},
    {401, "Unauthorized", "WWW-Authenticate: Bearer\r\n"},
    {403, "Forbidden", ""},
    {404, "Not Found", ""},
    {405, "Method Not Allowed", ""},
    {408, "Request Timeout", ""},
    {413, "Content Too Large", ""},
    {414, "URI Too Long", ""},
    {415, "Unsupported Media Type", ""},
    {417, "Expectation Failed", ""},
    {422, "Unprocessable Content", ""},
    {429, "Too Many Requests", "Retry-After: 1\r\n"},
    {431, "Request Header Fields Too Large", ""},
    {500, "Internal Server Error", ""},
    {501, "Not Implemented", ""},
    {502, "Bad Gateway", ""},
    {503, "Service Unavailable", "Retry-After: 1\r\n"},
    {504, "Gateway Timeout", ""},
    {505, "HTTP Version Not Supported", ""},
};

static const struct phrase *phrase_of(int status)
{
    static const struct phrase other = {0, "Other", ""};
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++)
        if (phrases[i].status == status)
            return &phrases[i];
    return &other;
}

/* Not strftime: its names follow the locale. */
static kg_status put_date(struct kg_str *out, struct kg_err *err)
{
    static const char days[] = "SunMonTueWedThuFriSat";
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    time_t now = (time_t)kg_clock_unix_seconds();
    struct tm t;
    gmtime_r(&now, &t);
    return kg_str_printf(out, err, "Date: %.3s, %02d %.3s %d %02d:%02d:%02d GMT\r\n",
                         days + 3 * t.tm_wday, t.tm_mday, months + 3 * t.tm_mon,
                         t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

struct answer {
    int status;
    const char *type;
    long long length; /* -1: not known */
    bool chunked;     /* when the length is not known */
    bool close_after;
    const char *extra; /* header lines */
};

static kg_status put_head(struct kg_str *out, const struct answer *a, struct kg_err *err)
{
    const struct phrase *p = phrase_of(a->status);
    KG_TRY(kg_str_printf(out, err, "HTTP/1.1 %d %s\r\n", a->status, p->text));
    KG_TRY(put_date(out, err));
    KG_TRY(kg_str_printf(out, err, "Content-Type: %s\r\nCache-Control: no-store\r\n",
                         a->type));
    if (a->length >= 0)
        KG_TRY(kg_str_printf(out, err, "Content-Length: %lld\r\n", a->length));
    else if (a->chunked)
        KG_TRY(kg_str_puts(out, "Transfer-Encoding: chunked\r\n", err));
    if (a->close_after)
        KG_TRY(kg_str_puts(out, "Connection: close\r\n", err));
    return kg_str_printf(out, err, "%s%s\r\n", p->extra, a->extra);
}

static kg_status put_error_body(struct kg_str *body, const struct kg_http_server *s,
                                int status, const char *message, struct kg_err *err)
{
    if (s->opts.error_body)
        return s->opts.error_body(body, status, message, err);
    KG_TRY(kg_json_put_text(body, "{\"error\": ", message, err));
    return kg_str_putc(body, '}', err);
}

/* Called under the lock. */
static void count_status(struct kg_http_server *s, int status)
{
    s->stats.errors_4xx += status >= 400 && status < 500;
    s->stats.errors_5xx += status >= 500;
}

kg_status kg_http_refusal(struct kg_str *out, struct kg_http_server *s, int status,
                          const char *why, const char *extra, struct kg_err *err)
{
    struct kg_str body = {0};
    struct answer a = {status, "application/json", 0, false, true, extra};
    pthread_mutex_lock(&s->lock);
    s->stats.requests++;
    count_status(s, status);
    pthread_mutex_unlock(&s->lock);
    kg_status made = put_error_body(&body, s, status, why, err);
    a.length = (long long)body.len;
    if (made == KG_OK)
        made = put_head(out, &a, err);
    if (made == KG_OK)
        made = kg_str_append(out, kg_str_text(&body), body.len, err);
    kg_str_release(&body);
    return made;
}

/* ---- routes ---- */

static bool path_matches(const char *route, const char *path)
{
    size_t n = strlen(route);
    if (n > 1 && route[n - 1] == '/')
        return strncmp(route, path, n) == 0 && path[n] != '\0';
    return strcmp(route, path) == 0;
}

const struct kg_http_route *kg_http_route_find(const struct kg_http_server *s,
                                               const char *method, const char *path,
                                               bool *path_known)
{
    *path_known = false;
    if (strcmp(method, "HEAD") == 0)
        method = "GET";
    for (const struct kg_http_route *r = s->opts.routes; r->method; r++) {
        if (!path_matches(r->path, path))
            continue;
        *path_known = true;
        if (strcmp(r->method, method) == 0)
            return r;
    }
    return NULL;
}

/* ---- memory held by exchanges ---- */

/* Small exchanges pass even when large ones have used up the limit, so that a few clients
 * with large bodies cannot lock out all others. */
bool kg_http_hold(struct kg_http_exchange *x, size_t *held, size_t n)
{
    struct kg_http_server *s = x->s;
    size_t all = (size_t)s->stats.held_bytes;
    bool small = n <= KG_HTTP_SMALL_BYTES && *held <= KG_HTTP_SMALL_BYTES - n;
    bool room = all <= s->opts.max_held_bytes && n <= s->opts.max_held_bytes - all;
    if (!small && !room)
        return false;
    s->stats.held_bytes += (long long)n;
    *held += n;
    return true;
}

void kg_http_let_go(struct kg_http_exchange *x, size_t *held, size_t n)
{
    n = n < *held ? n : *held;
    *held -= n;
    x->s->stats.held_bytes -= (long long)n;
}

/* ---- exchanges: called from any thread ---- */

static void server_free(struct kg_http_server *s)
{
    if (s->listener >= 0)
        close(s->listener);
    if (s->epoll >= 0)
        close(s->epoll);
    if (s->waker >= 0)
        close(s->waker);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->lock);
    kg_mem_free(s->buffer);
    kg_mem_free((char *)(uintptr_t)s->key.key);
    kg_mem_free(s);
}

void kg_http_exchange_free(struct kg_http_exchange *x)
{
    struct kg_http_server *s = x->s;
    pthread_mutex_lock(&s->lock);
    kg_http_let_go(x, &x->body_held, x->body_held);
    kg_http_let_go(x, &x->out_held, x->out_held);
    pthread_mutex_unlock(&s->lock);
    kg_str_release(&x->raw);
    kg_str_release(&x->body);
    kg_str_release(&x->out);
    kg_mem_free(x);
    pthread_mutex_lock(&s->lock);
    bool last = --s->stats.exchanges == 0;
    bool orphan = last && s->ended;
    if (last)
        pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->lock);
    if (orphan)
        server_free(s);
}

static void wake(struct kg_http_server *s)
{
    uint64_t one = 1;
    /* it fails only if the counter is full, and then the thread is awake anyway */
    ssize_t n = write(s->waker, &one, sizeof one);
    (void)n;
}

/* Called under the lock: queues x for the server's thread. */
static void push_woken(struct kg_http_exchange *x)
{
    struct kg_http_server *s = x->s;
    bool first = s->woken == NULL;
    if (x->queued || s->ended)
        return;
    x->queued = true;
    x->next_woken = NULL;
    if (first)
        s->woken = x;
    else
        s->last_woken->next_woken = x;
    s->last_woken = x;
    if (first)
        wake(s);
}

/* Ends x, frees its body and releases the lock. The caller may not use x again. */
static void end_and_unlock(struct kg_http_exchange *x)
{
    struct kg_http_server *s = x->s;
    bool orphan = s->ended;
    kg_str_release(&x->body);
    kg_http_let_go(x, &x->body_held, x->body_held);
    x->ended = true;
    push_woken(x);
    pthread_mutex_unlock(&s->lock);
    if (orphan)
        kg_http_exchange_free(x);
}

/* The head with which a response to x starts. */
static struct answer answer_to(struct kg_http_exchange *x, int status, const char *type)
{
    struct kg_http_server *s = x->s;
    pthread_mutex_lock(&s->lock);
    x->close_after = !x->head.keep_alive || s->stopping;
    pthread_mutex_unlock(&s->lock);
    return (struct answer){status, type, -1, false, x->close_after, ""};
}

/* Called under the lock: makes `text` the start of the response. x->out holds only the
 * empty buffer that the server's thread left. No error is counted if the client has left.
 * returns false if the memory limit allows no more */
static bool take_text(struct kg_http_exchange *x, const struct kg_str *text, int status)
{
    kg_http_let_go(x, &x->out_held, x->reserved);
    x->reserved = 0;
    if (!kg_http_hold(x, &x->out_held, text->len))
        return false;
    if (!x->gone)
        count_status(x->s, status);
    kg_str_release(&x->out);
    x->out = *text;
    return true;
}

static bool reply(struct kg_http_exchange *x, int http_status, const char *content_type,
                  const char *body, size_t n)
{
    struct kg_err err;
    struct kg_str text = {0};
    struct answer a = answer_to(x, http_status, content_type);
    a.length = (long long)n;
    kg_status status = put_head(&text, &a, &err);
    if (status == KG_OK && !x->no_body)
        status = kg_str_append(&text, body, n, &err);
    pthread_mutex_lock(&x->s->lock);
    if (!take_text(x, &text, http_status)) {
        pthread_mutex_unlock(&x->s->lock);
        kg_str_release(&text);
        return false;
    }
    x->broken = status != KG_OK;
    end_and_unlock(x);
    return true;
}

bool kg_http_reserve(struct kg_http_exchange *x, size_t n)
{
    enum { HEAD_BYTES = 512 }; /* upper bound of the head */
    pthread_mutex_lock(&x->s->lock);
    bool held = kg_http_hold(x, &x->out_held, n + HEAD_BYTES);
    x->reserved += held ? n + HEAD_BYTES : 0;
    pthread_mutex_unlock(&x->s->lock);
    return held;
}

void kg_http_reply(struct kg_http_exchange *x, int http_status, const char *content_type,
                   const char *body, size_t n)
{
    if (!reply(x, http_status, content_type, body, n)) /* an error always fits */
        kg_http_reply_error(
            x, 503,
            "unread responses take all the memory reserved for them: try again later");
}

void kg_http_drop(struct kg_http_exchange *x)
{
    pthread_mutex_lock(&x->s->lock);
    x->broken = true;
    end_and_unlock(x);
}

void kg_http_reply_error(struct kg_http_exchange *x, int http_status, const char *message)
{
    struct kg_err err;
    struct kg_str body = {0};
    if (put_error_body(&body, x->s, http_status, message, &err) != KG_OK)
        kg_str_clear(&body);
    kg_http_reply(x, http_status, "application/json", kg_str_text(&body), body.len);
    kg_str_release(&body);
}

void kg_http_stream_begin(struct kg_http_exchange *x, int http_status,
                          const char *content_type)
{
    struct kg_err err;
    struct kg_str text = {0};
    struct answer a = answer_to(x, http_status, content_type);
    a.chunked = !x->head.old;
    kg_status status = put_head(&text, &a, &err);
    pthread_mutex_lock(&x->s->lock);
    x->chunked = a.chunked;
    bool taken = status == KG_OK && take_text(x, &text, http_status);
    x->broken = !taken;
    push_woken(x);
    pthread_mutex_unlock(&x->s->lock);
    if (!taken)
        kg_str_release(&text);
}

/* Called under the lock. */
static kg_status put_piece(struct kg_http_exchange *x, const char *data, size_t n,
                           struct kg_err *err)
{
    if (x->gone)
        return kg_fail(err, KG_EIO, "the client has left");
    if (x->broken || n > x->s->opts.max_stream_bytes ||
        x->out.len > x->s->opts.max_stream_bytes - n) {
        x->broken = true;
        return kg_fail(err, KG_ENOMEM, "the client does not read: %zu bytes are waiting",
                       x->out.len);
    }
    size_t before = x->out.len;
    if (x->chunked)
        KG_TRY(kg_str_printf(&x->out, err, "%zx\r\n", n));
    KG_TRY(kg_str_append(&x->out, data, n, err));
    if (x->chunked)
        KG_TRY(kg_str_puts(&x->out, "\r\n", err));
    if (!kg_http_hold(x, &x->out_held, x->out.len - before))
        return kg_fail(err, KG_ENOMEM,
                       "too much data is waiting for clients that do not read");
    return KG_OK;
}

kg_status kg_http_stream_write(struct kg_http_exchange *x, const char *data, size_t n,
                               struct kg_err *err)
{
    kg_status status = KG_OK;
    if (n == 0 || x->no_body)
        return KG_OK;
    pthread_mutex_lock(&x->s->lock);
    status = put_piece(x, data, n, err);
    x->broken |= status == KG_ENOMEM;
    push_woken(x);
    pthread_mutex_unlock(&x->s->lock);
    return status;
}

void kg_http_stream_end(struct kg_http_exchange *x)
{
    struct kg_err err;
    pthread_mutex_lock(&x->s->lock);
    if (x->chunked && !x->no_body && !x->broken &&
        kg_str_puts(&x->out, "0\r\n\r\n", &err) != KG_OK)
        x->broken = true;
    end_and_unlock(x);
}

bool kg_http_gone(const struct kg_http_exchange *x) { return atomic_load(&x->gone); }

int kg_http_user(const struct kg_http_exchange *x) { return x->user; }

const struct kg_http_route *kg_http_route_of(const struct kg_http_exchange *x)
{
    return x->route;
}
const char *kg_http_path(const struct kg_http_exchange *x) { return x->head.path; }

const char *kg_http_header(const struct kg_http_exchange *x, const char *name)
{
    return kg_http_head_field(&x->head, name);
}

const char *kg_http_body(const struct kg_http_exchange *x, size_t *n)
{
    *n = x->body.len;
    return kg_str_text(&x->body);
}

/* ---- start and stop ---- */

static size_t or_default(size_t value, size_t otherwise)
{
    return value > 0 ? value : otherwise;
}

static kg_status take_opts(struct kg_http_server *s,
                           const struct kg_http_server_opts *opts, struct kg_err *err)
{
    struct kg_http_server_opts *o = &s->opts;
    *o = *opts;
    o->host = opts->host ? opts->host : "127.0.0.1";
    o->max_body_bytes = or_default(o->max_body_bytes, 1 << 20);
    o->max_head_bytes = or_default(o->max_head_bytes, 32 << 10);
    o->max_stream_bytes = or_default(o->max_stream_bytes, 1 << 20);
    o->max_held_bytes = or_default(o->max_held_bytes, 256 << 20);
    o->max_connections = (int)or_default((size_t)o->max_connections, 1024);
    o->idle_timeout_s = (int)or_default((size_t)o->idle_timeout_s, 30);
    o->request_timeout_s = (int)or_default((size_t)o->request_timeout_s, 60);
    if (o->port < 0 || o->port > 65535)
        return kg_fail(err, KG_EINVAL, "port: expected 0 to 65535, found %d", o->port);
    s->keys = o->keys;
    s->n_keys = o->n_keys;
    if (o->bearer_key == NULL)
        return KG_OK;
    if (o->bearer_key[0] == '\0' || o->n_keys > 0)
        return kg_fail(err, KG_EINVAL, "key: expected text and no key file");
    s->key.key = kg_mem_strdup(o->bearer_key, err);
    s->keys = &s->key;
    s->n_keys = 1;
    return s->key.key ? KG_OK : err->code;
}

/* Raises the soft limit of open files to what the connections need. */
static kg_status need_descriptors(int connections, struct kg_err *err)
{
    struct rlimit limit;
    rlim_t need = (rlim_t)connections + SPARE_DESCRIPTORS;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= need)
        return KG_OK;
    rlim_t old = limit.rlim_cur;
    limit.rlim_cur = need;
    if (need > limit.rlim_max || setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return kg_fail(err, KG_EINVAL,
                       "%d connections need %llu open files, the system allows %llu "
                       "(ulimit -n)",
                       connections, (unsigned long long)need, (unsigned long long)old);
    return KG_OK;
}

static int try_listen(const struct addrinfo *a)
{
    int yes = 1;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                    a->ai_protocol);
    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
        bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static bool is_loopback(const struct sockaddr_storage *a)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)a;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)a;
    if (a->ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
    return a->ss_family == AF_INET &&
           ntohl(four->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

static kg_status open_listener(struct kg_http_server *s, struct kg_err *err)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    char port[16];
    snprintf(port, sizeof port, "%d", s->opts.port);
    int code = getaddrinfo(s->opts.host, port, &hints, &list);
    if (code != 0)
        return kg_fail(err, KG_EIO, "%s: no address to listen on: %s", s->opts.host,
                       gai_strerror(code));
    for (struct addrinfo *a = list; a && s->listener < 0; a = a->ai_next)
        s->listener = try_listen(a);
    int why = errno;
    freeaddrinfo(list);
    if (s->listener < 0)
        return kg_fail(err, KG_EIO, "cannot listen on %s port %d: %s", s->opts.host,
                       s->opts.port, strerror(why));
    if (getsockname(s->listener, (struct sockaddr *)&bound, &n) != 0)
        return kg_fail(err, KG_EIO, "cannot read the port that was opened: %s",
                       strerror(errno));
    /* the port is at the same offset in IPv4 and IPv6 addresses */
    s->port = ntohs(((struct sockaddr_in *)&bound)->sin_port);
    s->local = is_loopback(&bound);
    if (!s->local && s->opts.allow_hosts)
        return kg_fail(err, KG_EINVAL,
                       "--allow-host applies only to an address of this machine, found "
                       "%s; remove it",
                       s->opts.host);
    return KG_OK;
}

static kg_status watch_own(struct kg_http_server *s, int fd, void *mark,
                           struct kg_err *err)
{
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = mark};
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &e) != 0)
        return kg_fail(err, KG_EIO, "cannot watch the listening socket (epoll_ctl): %s",
                       strerror(errno));
    return KG_OK;
}

static kg_status open_all(struct kg_http_server *s, struct kg_err *err)
{
    KG_TRY(need_descriptors(s->opts.max_connections, err));
    KG_TRY(open_listener(s, err));
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->waker = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->epoll < 0 || s->waker < 0)
        return kg_fail(err, KG_EIO, "cannot watch connections (epoll): %s",
                       strerror(errno));
    KG_TRY(watch_own(s, s->listener, &s->listener, err));
    KG_TRY(watch_own(s, s->waker, &s->waker, err));
    return kg_mem_new(&s->buffer, KG_HTTP_READ_BYTES, 1, "read buffer", err);
}

/* Blocks all signals in the server's thread: other threads handle them. */
static kg_status start_thread(struct kg_http_server *s, struct kg_err *err)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&s->thread, NULL, kg_http_server_thread, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code == 0
               ? KG_OK
               : kg_fail(err, KG_EIO, "cannot start the thread of the HTTP server: %s",
                         strerror(code));
}

kg_status kg_http_server_start(struct kg_http_server **out,
                               const struct kg_http_server_opts *opts, struct kg_err *err)
{
    struct kg_http_server *s = kg_mem_calloc(1, sizeof *s, "HTTP server", err);
    *out = NULL;
    if (s == NULL)
        return err->code;
    s->listener = s->epoll = s->waker = -1;
    pthread_mutex_init(&s->lock, NULL);
    kg_clock_cond(&s->idle);
    kg_status status = take_opts(s, opts, err);
    if (status == KG_OK)
        status = open_all(s, err);
    *out = s; /* set before a handler can run */
    if (status == KG_OK)
        status = start_thread(s, err);
    if (status == KG_OK)
        return KG_OK;
    *out = NULL;
    server_free(s);
    return status;
}

int kg_http_server_port(const struct kg_http_server *s) { return s->port; }

void kg_http_server_stats(struct kg_http_server_stats *out, struct kg_http_server *s)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    pthread_mutex_unlock(&s->lock);
}

/* Called under the lock: takes the ended exchanges that the thread has not fetched.
 * Exchanges that have not ended are freed when their owners end them. */
static struct kg_http_exchange *take_ended(struct kg_http_server *s)
{
    struct kg_http_exchange *ended = NULL;
    for (struct kg_http_exchange *next, *x = s->woken; x; x = next) {
        next = x->next_woken;
        x->queued = false;
        if (x->ended) {
            x->next_woken = ended;
            ended = x;
        }
    }
    s->woken = NULL;
    return ended;
}

void kg_http_server_stop(struct kg_http_server *s, int drain_ms)
{
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    wake(s);
    const struct timespec until = kg_clock_deadline(drain_ms);
    int code = 0;
    while (s->stats.exchanges > 0 && code == 0)
        code = pthread_cond_timedwait(&s->idle, &s->lock, &until);
    s->leaving = true;
    wake(s);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_lock(&s->lock);
    s->stats.exchanges++; /* for this function, so that the server outlives it */
    s->ended = true;
    struct kg_http_exchange *x = take_ended(s);
    pthread_mutex_unlock(&s->lock);
    while (x) {
        struct kg_http_exchange *next = x->next_woken;
        kg_http_exchange_free(x);
        x = next;
    }
    pthread_mutex_lock(&s->lock);
    bool last = --s->stats.exchanges == 0;
    pthread_mutex_unlock(&s->lock);
    if (last)
        server_free(s);
}
