/* Shared by tests of the network: a server on a free port, and a client that violates the
 * protocol.
 *
 * Routes: POST /echo gives the body back; GET /hello; GET /held keeps the exchange in
 * `held` until the test answers. Included by *_test.c only.
 */
#ifndef KG_NET_HTTP_TESTING_H
#define KG_NET_HTTP_TESTING_H

#include "base/clock.h"
#include "base/mem.h"
#include "base/need_testing.h"
#include "net/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct kg_http_server *server;
static _Atomic(struct kg_http_exchange *) held;
static int fails_left; /* number of 503 replies left for GET /flaky */

static inline void handle_echo(void *user, struct kg_http_exchange *x)
{
    size_t n;
    const char *body = kg_http_body(x, &n);
    (void)user;
    kg_http_reply(x, 200, "text/plain", body, n);
}

static inline void handle_hello(void *user, struct kg_http_exchange *x)
{
    (void)user;
    kg_http_reply(x, 200, "text/plain", "hello", 5);
}

static inline void handle_held(void *user, struct kg_http_exchange *x)
{
    (void)user;
    held = x;
}

static inline void handle_flaky(void *user, struct kg_http_exchange *x)
{
    (void)user;
    if (fails_left-- > 0)
        kg_http_reply_error(x, 503, "not now");
    else
        kg_http_reply(x, 200, "text/plain", "at last", 7);
}

static void handle_user(void *user, struct kg_http_exchange *x)
{
    char text[32];
    const int n = snprintf(text, sizeof text, "user %d", kg_http_user(x));
    (void)user;
    kg_http_reply(x, 200, "text/plain", text, (size_t)n);
}

static const struct kg_http_route test_routes[] = {
    {"POST", "/echo", handle_echo, "the body"},
    {"GET", "/hello", handle_hello, "hello"},
    {"GET", "/held", handle_held, "an answer later"},
    {"GET", "/flaky", handle_flaky, "errors first"},
    {"GET", "/user", handle_user, "whose key it is"},
    {"GET", "/below/", handle_hello, "whatever lies below"},
    {NULL, NULL, NULL, NULL},
};

static inline void start_server(struct kg_http_server_opts opts)
{
    opts.routes = test_routes;
    held = NULL;
    NEED(kg_http_server_start(&server, &opts, err));
}

static inline void stop_server(void)
{
    kg_http_server_stop(server, 2000);
    server = NULL;
    assert_int_equal(kg_mem_current_bytes(), 0);
}

/* Cleans up after a failed test, so that the next one starts without its server. */
static inline int stop_left(void **state)
{
    (void)state;
    kg_http_server_stop(server, 0);
    server = NULL;
    return 0;
}

static inline struct kg_http_server_stats stats(void)
{
    struct kg_http_server_stats s;
    kg_http_server_stats(&s, server);
    return s;
}

/* Wait until an exchange is held, and take it. */
static inline struct kg_http_exchange *wait_held(void)
{
    for (int i = 0; i < 2000 && held == NULL; i++)
        usleep(1000);
    struct kg_http_exchange *x = atomic_exchange(&held, NULL);
    assert_non_null(x);
    return x;
}

static inline void wait_gone(struct kg_http_exchange *x)
{
    for (int i = 0; i < 2000 && !kg_http_gone(x); i++)
        usleep(1000);
    assert_true(kg_http_gone(x));
}

static inline void call(int fd, int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0)
        fail_msg("connect to port %d", port);
}

static inline int dial(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    call(fd, port);
    return fd;
}

static inline void say_n(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return; /* the server has closed the connection; its answer has the reason */
        text += sent;
        n -= (size_t)sent;
    }
}
static inline void say(int fd, const char *text) { say_n(fd, text, strlen(text)); }

/* Everything received until the server closes or `part` arrives, within 5 s. */
static inline const char *hear_until(int fd, const char *part)
{
    static char text[1 << 16];
    size_t n = 0;
    text[0] = '\0';
    while (n < sizeof text - 1 && (part == NULL || strstr(text, part) == NULL)) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 5000) != 1)
            fail_msg("nothing came for 5 s after: %s", text);
        ssize_t got = recv(fd, text + n, sizeof text - 1 - n, 0);
        if (got <= 0)
            break;
        n += (size_t)got;
        text[n] = '\0';
    }
    return text;
}
static inline const char *hear(int fd) { return hear_until(fd, NULL); }

/* Sends bytes and expects an answer of this status that contains `part`. */
static inline void expect(const char *request, int status, const char *part)
{
    char line[32];
    int fd = dial(kg_http_server_port(server));
    say(fd, request);
    snprintf(line, sizeof line, "HTTP/1.1 %d ", status);
    const char *answer = hear(fd);
    if (strncmp(answer, line, strlen(line)) != 0 || strstr(answer, part) == NULL)
        fail_msg("expected %d with '%s', got: %s", status, part, answer);
    close(fd);
}

#endif
