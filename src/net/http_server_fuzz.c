/* Fuzz target: a client sends the input to a server, in steps that the first byte
 * chooses, and reads or leaves. The server replies in HTTP or closes the connection,
 * serves the next client, and holds no memory at the end. */
#include "net/http_server.h"

#include "base/mem.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int kg_fuzz_http_server(const uint8_t *bytes, size_t n);

enum {
    WAIT_MS = 5000,
    STEP_MS = 5,
    LEAVES = 0x80,
    LOCAL = 0x40,
    STEP = 0x3f,
    HEARD = 1 << 16
};

static _Atomic(struct kg_http_exchange *) fuzz_held;

static void fuzz_echo(void *user, struct kg_http_exchange *x)
{
    size_t n;
    const char *body = kg_http_body(x, &n);
    (void)user;
    kg_http_reply(x, 200, "text/plain", body, n);
}

static void fuzz_stream(void *user, struct kg_http_exchange *x)
{
    struct kg_err err;
    size_t n;
    const char *body = kg_http_body(x, &n);
    (void)user;
    kg_http_stream_begin(x, 200, "text/plain");
    for (size_t i = 0; i < n; i++)
        if (kg_http_stream_write(x, body + i, 1, &err) != KG_OK)
            break;
    kg_http_stream_end(x);
}

/* The first request is kept until another thread answers it. */
static void fuzz_hold(void *user, struct kg_http_exchange *x)
{
    struct kg_http_exchange *none = NULL;
    if (!atomic_compare_exchange_strong(&fuzz_held, &none, x))
        fuzz_echo(user, x);
}

static const struct kg_http_route fuzz_routes[] = {
    {"POST", "/echo", fuzz_echo, ""},
    {"GET", "/echo", fuzz_echo, ""},
    {"POST", "/stream", fuzz_stream, ""},
    {"POST", "/hold", fuzz_hold, ""},
    {"GET", "/hold", fuzz_hold, ""},
    {"GET", "/below/", fuzz_echo, ""},
    {NULL, NULL, NULL, NULL},
};

static struct sockaddr_in fuzz_address(uint32_t host, int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(host)};
}

/* Each client has its own address, 127.1.0.0 and up. Thousands of connections per second
 * from one address would reuse ports that are still in TIME_WAIT, and the kernel would
 * drop their segments. */
static int fuzz_dial(const struct kg_http_server *s)
{
    static uint32_t clients;
    uint32_t host = INADDR_LOOPBACK + 0x10000 + clients++ % 0xf00000;
    struct sockaddr_in from = fuzz_address(host, 0);
    struct sockaddr_in to = fuzz_address(INADDR_LOOPBACK, kg_http_server_port(s));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&from, sizeof from) != 0 ||
        connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        abort();
    return fd;
}

static void fuzz_say(int fd, const char *data, size_t n, size_t step)
{
    while (n > 0) {
        ssize_t sent = send(fd, data, n < step ? n : step, MSG_NOSIGNAL);
        if (sent <= 0)
            return; /* the server has closed already */
        data += sent;
        n -= (size_t)sent;
    }
}

static void fuzz_release_held(void)
{
    struct kg_http_exchange *x = atomic_exchange(&fuzz_held, NULL);
    if (x)
        fuzz_echo(NULL, x);
}

/* Waits until bytes arrive; meanwhile answers requests that the handler kept. */
static void fuzz_wait(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (int ms = 0; poll(&p, 1, STEP_MS) != 1; ms += STEP_MS) {
        fuzz_release_held();
        if (ms > WAIT_MS)
            abort(); /* the server neither answers nor closes */
    }
}

/* Reads until the server closes.   returns the number of bytes in `text` */
static size_t fuzz_hear(int fd, char *text)
{
    size_t n = 0;
    for (;;) {
        char rest[256];
        fuzz_wait(fd);
        ssize_t got = n < HEARD ? recv(fd, text + n, HEARD - n, 0)
                                : recv(fd, rest, sizeof rest, 0);
        if (got <= 0)
            return n;
        n += n < HEARD ? (size_t)got : 0;
        fuzz_release_held();
    }
}

static void fuzz_need_status(const char *text, size_t n)
{
    if (n < 13 || memcmp(text, "HTTP/1.1 ", 9) != 0 || text[9] < '1' || text[9] > '5')
        abort();
}

static void fuzz_client(const struct kg_http_server *s, const uint8_t *bytes, size_t n,
                        char *text)
{
    int how = n > 0 ? bytes[0] : 0;
    int fd = fuzz_dial(s);
    if (n > 1)
        fuzz_say(fd, (const char *)bytes + 1, n - 1,
                 (how & STEP) == STEP ? n : (size_t)(how & STEP) + 1);
    fuzz_release_held();
    if (how & LEAVES) {
        close(fd);
        return;
    }
    shutdown(fd, SHUT_WR);
    size_t heard = fuzz_hear(fd, text);
    if (heard > 0)
        fuzz_need_status(text, heard);
    close(fd);
}

static void fuzz_next_client(const struct kg_http_server *s, char *text)
{
    static const char plain[] =
        "GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    int fd = fuzz_dial(s);
    fuzz_say(fd, plain, sizeof plain - 1, sizeof plain);
    size_t heard = fuzz_hear(fd, text);
    fuzz_need_status(text, heard);
    if (memcmp(text + 9, "200", 3) != 0)
        abort();
    close(fd);
}

static void fuzz_clients(struct kg_http_server *s, const uint8_t *bytes, size_t n)
{
    static char text[HEARD];
    fuzz_client(s, bytes, n, text);
    fuzz_next_client(s, text);
    fuzz_release_held();
    kg_http_server_stop(s, WAIT_MS);
}

/* Blocks libFuzzer's SIGALRM, so that it interrupts no system call; the waits here have
 * their own timeout. */
int kg_fuzz_http_server(const uint8_t *bytes, size_t n)
{
    struct kg_http_server_opts opts = {.max_body_bytes = 4096,
                                       .max_head_bytes = 2048,
                                       .routes = fuzz_routes,
                                       .allow_hosts = n > 0 && bytes[0] & LOCAL ? NULL
                                                                                : "*"};
    const uint64_t held = kg_mem_current_bytes();
    struct kg_http_server *s;
    struct kg_err err;
    sigset_t clock;
    sigset_t before;
    sigemptyset(&clock);
    sigaddset(&clock, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &clock, &before);
    if (kg_http_server_start(&s, &opts, &err) == KG_OK) /* fails if no port is free */
        fuzz_clients(s, bytes, n);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (kg_mem_current_bytes() != held)
        abort();
    return 0;
}
