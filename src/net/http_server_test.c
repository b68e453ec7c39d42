/* Tests of the HTTP server through real sockets: its answers, and the faults that it
 * survives. */
#include "net/http_testing.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#define END "Host: localhost\r\nConnection: close\r\n\r\n"

static void answers_carry_length_and_type(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){0});
    expect("GET /hello HTTP/1.1\r\n" END, 200, "Content-Length: 5\r\n");
    expect("GET /hello?a=b HTTP/1.1\r\n" END, 200, "Content-Type: text/plain\r\n");
    expect("GET /below/any%20thing HTTP/1.1\r\n" END, 200, "\r\n\r\nhello");
    expect("GET /hello HTTP/1.0\r\n\r\n", 200, "Connection: close\r\n");
    stop_server();
}

static void head_gives_the_header_alone(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){0});
    int fd = dial(kg_http_server_port(server));
    say(fd, "HEAD /hello HTTP/1.1\r\n" END);
    const char *answer = hear(fd);
    assert_non_null(strstr(answer, "Content-Length: 5\r\n"));
    assert_null(strstr(answer, "hello"));
    close(fd);
    stop_server();
}

static void wrong_requests_are_answered_in_the_owners_shape(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){.max_body_bytes = 100});
    expect("GET /nothing HTTP/1.1\r\n" END, 404, "{\"error\": \"no such path: /nothing");
    expect("GET /below/ HTTP/1.1\r\n" END, 404, "error");
    expect("GET /echo HTTP/1.1\r\n" END, 405, "Allow: POST\r\n");
    expect("HEAD /echo HTTP/1.1\r\n" END, 405, "");
    expect("DELETE /hello HTTP/1.1\r\n" END, 405, "Allow: GET, HEAD\r\n");
    expect("POST /echo HTTP/1.1\r\nContent-Length: 101\r\n" END, 413, "101 bytes");
    expect("garbage\r\n\r\n", 400, "{\"error\"");
    expect("\x16\x03\x01\x02", 400, "{\"error\": \"expected HTTP, found a TLS handshake");
    expect("GET / HTTP/3.0\r\n\r\n", 505, "{\"error\"");
    assert_int_equal(stats().errors_4xx, 8);
    assert_int_equal(stats().errors_5xx, 1);
    stop_server();
}

static void a_head_has_a_limit(void **state)
{
    char *big = malloc(1 << 20);
    (void)state;
    start_server((struct kg_http_server_opts){.max_head_bytes = 1000});
    memset(big, 'a', 1 << 20);
    memcpy(big, "GET /hello HTTP/1.1\r\nHost: h\r\nX: ", 33);
    big[(1 << 20) - 1] = '\0';
    expect(big, 431, "the header has more than 1000 bytes");
    memcpy(big, "GET /helloHTTP/1.1aaHost: haaX: a", 33);
    expect(big, 414, "the request line has more than 1000 bytes");
    memset(big, 'a', 1000);
    memcpy(big, "GET /", 5);
    memcpy(big + 950, " HTTP/1.1\r\n\r\n", 14); /* and a NUL */
    expect(big, 400, "Host");                   /* 963 bytes are within the limit */
    free(big);
    stop_server();
}

static void a_large_body_is_refused_and_the_refusal_arrives(void **state)
{
    char *big = calloc(1, 4 << 20);
    (void)state;
    start_server((struct kg_http_server_opts){0});
    int fd = dial(kg_http_server_port(server));
    say(fd,
        "POST /echo HTTP/1.1\r\nHost: 127.1.2.3:80\r\nContent-Length: 4194304\r\n\r\n");
    say_n(fd, big, 4 << 20);
    assert_non_null(strstr(hear(fd), "413 Content Too Large"));
    close(fd);
    fd = dial(kg_http_server_port(server));
    say(fd,
        "POST /echo HTTP/1.1\r\nHost: 127.1.2.3:80\r\nTransfer-Encoding: chunked\r\n\r\n"
        "400000\r\n");
    say_n(fd, big, 4 << 20);
    assert_non_null(strstr(hear(fd), "413 Content Too Large"));
    close(fd);
    free(big);
    stop_server();
}

static void bodies_come_in_pieces_and_in_chunks(void **state)
{
    static const char text[] =
        "POST /echo HTTP/1.1\r\nHost: 127.1.2.3:80\r\nContent-Length: 4\r\n\r\nabcd"
        "\r\nPOST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" END
        "2\r\nEF\r\n3\r\nGHI\r\n0\r\n\r\n";
    (void)state;
    start_server((struct kg_http_server_opts){0});
    int fd = dial(kg_http_server_port(server));
    for (const char *c = text; *c; c++) {
        say_n(fd, c, 1);
        if (c - text > 60)
            usleep(100);
    }
    const char *answer = hear(fd);
    assert_non_null(strstr(answer, "\r\n\r\nabcdHTTP/1.1 200"));
    assert_non_null(strstr(answer, "\r\n\r\nEFGHI"));
    close(fd);
    expect(text, 200, "\r\n\r\nabcdHTTP/1.1 200"); /* two requests in one packet */
    stop_server();
}

static void a_client_that_asks_first_is_told_to_continue(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){0});
    int fd = dial(kg_http_server_port(server));
    say(fd, "POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n" END);
    assert_string_equal(hear_until(fd, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    say(fd, "ok");
    assert_non_null(strstr(hear(fd), "\r\n\r\nok"));
    close(fd);
    stop_server();
}

static void half_a_request_is_answered_when_the_sender_ends_it(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){0});
    int fd = dial(kg_http_server_port(server));
    say(fd, "POST /echo HTTP/1.1\r\nHost: 127.1.2.3:80\r\nContent-Length: 10\r\n\r\nabc");
    shutdown(fd, SHUT_WR);
    assert_non_null(strstr(hear(fd), "after 3 of 10 bytes"));
    close(fd);
    fd = dial(kg_http_server_port(server));
    say(fd, "POST /echo HT");
    shutdown(fd, SHUT_WR);
    assert_non_null(strstr(hear(fd), "within the header"));
    close(fd);
    close(dial(kg_http_server_port(server)));
    expect("GET /hello HTTP/1.1\r\n" END, 200, "hello");
    stop_server();
}

static void slow_senders_are_cut_off(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){.idle_timeout_s = 1});
    int silent = dial(kg_http_server_port(server));
    int half = dial(kg_http_server_port(server));
    say(half, "POST /echo HTTP/1.1\r\nHost: 127.1.2.3:80\r\nContent-Length: 10\r\n\r\na");
    assert_non_null(strstr(hear(half), "408 Request Timeout"));
    assert_string_equal(hear(silent), ""); /* no request, so no answer */
    assert_int_equal(stats().timeouts, 1);
    close(silent);
    close(half);
    stop_server();
}

static void a_sender_that_drips_is_cut_off(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){.request_timeout_s = 1});
    int fd = dial(kg_http_server_port(server));
    say(fd, "GET /hello HTTP/1.1\r\nX: ");
    for (int i = 0; i < 15; i++) {
        say(fd, "a");
        usleep(100000);
    }
    assert_non_null(strstr(hear(fd), "408 Request Timeout"));
    close(fd);
    stop_server();
}

static void the_key_is_asked_for_everywhere_but_on_the_open_path(void **state)
{
    (void)state;
    start_server(
        (struct kg_http_server_opts){.bearer_key = "s3cret", .open_path = "/hello"});
    expect("GET /hello HTTP/1.1\r\n" END, 200, "hello");
    expect("POST /echo HTTP/1.1\r\n" END, 401, "WWW-Authenticate: Bearer\r\n");
    expect("POST /nothing HTTP/1.1\r\n" END, 401, "");
    expect("POST /echo HTTP/1.1\r\nAuthorization: Bearer s3cre\r\n" END, 401, "");
    expect("POST /echo HTTP/1.1\r\nAuthorization: Bearer s3crets3cret\r\n" END, 401, "");
    expect("POST /echo HTTP/1.1\r\nAuthorization: s3cret\r\n" END, 401, "");
    expect("POST /echo HTTP/1.1\r\nAuthorization: bearer s3cret\r\n" END, 200, "");
    stop_server();
}

/* Each key admits its user, and the handler sees that user's name. */
static void a_request_is_that_of_its_keys_user(void **state)
{
    static const struct kg_http_key keys[] = {{"ann", "key-of-ann"},
                                              {"bob", "key-of-bob"}};
    static const struct {
        const char *header;
        int status;
        const char *user;
    } cases[] = {
        {"X-API-Key: key-of-ann", 200, "user 0"},
        {"Authorization: Bearer key-of-bob", 200, "user 1"},
        {"X-API-Key: key-of-bob\r\nAuthorization: Bearer key-of-ann", 200, "user 1"},
        {"X-API-Key: key-of-", 401, ""},
        {"X-API-Key: key-of-nobody\r\nAuthorization: Bearer key-of-ann", 401, ""},
        {"X-API-Key:", 401, ""},
        {"X-Other: key-of-ann", 401, ""},
    };
    char text[256];
    (void)state;
    start_server((struct kg_http_server_opts){
        .keys = keys, .n_keys = 2, .api_key_header = true, .open_path = "/hello"});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, "GET /user HTTP/1.1\r\n%s\r\n" END, cases[i].header);
        expect(text, cases[i].status, cases[i].user);
    }
    expect("GET /hello HTTP/1.1\r\n" END, 200, "hello");
    stop_server();
}

static void an_answer_may_come_later_from_another_thread(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){0});
    int fd = dial(kg_http_server_port(server));
    say(fd, "GET /held HTTP/1.1\r\nX-Word: w\r\n" END);
    struct kg_http_exchange *x = wait_held();
    assert_string_equal(kg_http_path(x), "/held");
    assert_int_equal(stats().exchanges, 1);
    assert_false(kg_http_gone(x));
    kg_http_reply_error(x, 429, "later");
    const char *answer = hear(fd);
    assert_non_null(strstr(answer, "Retry-After: 1\r\n"));
    assert_non_null(strstr(answer, "{\"error\": \"later\"}"));
    close(fd);
    stop_server();
}

static void one_connection_takes_one_later_answer_after_the_other(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){0});
    int fd = dial(kg_http_server_port(server));
    for (int i = 0; i < 4; i++) {
        say(fd, "GET /held HTTP/1.1\r\nHost: 127.1.2.3:80\r\n\r\n");
        struct kg_http_exchange *x = wait_held();
        usleep(20000); /* lets the server's thread run first */
        if (i % 2 == 0) {
            kg_http_reply(x, 200, "text/plain", "whole", 5);
            hear_until(fd, "whole");
            continue;
        }
        kg_http_stream_begin(x, 200, "text/plain");
        NEED(kg_http_stream_write(x, "one", 3, err));
        hear_until(fd, "one\r\n"); /* so that the two buffers alternate */
        NEED(kg_http_stream_write(x, "two", 3, err));
        hear_until(fd, "two\r\n");
        kg_http_stream_end(x);
        hear_until(fd, "0\r\n\r\n");
    }
    close(fd);
    stop_server(); /* fails if memory leaked */
}

static void a_stream_arrives_piece_by_piece(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){0});
    int fd = dial(kg_http_server_port(server));
    say(fd, "GET /held HTTP/1.1\r\n" END);
    struct kg_http_exchange *x = wait_held();
    kg_http_stream_begin(x, 200, "text/event-stream");
    NEED(kg_http_stream_write(x, "one", 3, err));
    hear_until(fd, "3\r\none\r\n");
    NEED(kg_http_stream_write(x, "twenty bytes of text", 20, err));
    NEED(kg_http_stream_write(x, "", 0, err));
    kg_http_stream_end(x);
    assert_string_equal(hear(fd), "14\r\ntwenty bytes of text\r\n0\r\n\r\n");
    close(fd);
    stop_server();
}

static void an_old_client_gets_a_stream_without_chunks(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){0});
    int fd = dial(kg_http_server_port(server));
    say(fd, "GET /held HTTP/1.0\r\n\r\n");
    struct kg_http_exchange *x = wait_held();
    kg_http_stream_begin(x, 200, "text/plain");
    NEED(kg_http_stream_write(x, "one", 3, err));
    kg_http_stream_end(x);
    const char *answer = hear(fd);
    assert_null(strstr(answer, "chunked"));
    assert_non_null(strstr(answer, "\r\n\r\none"));
    close(fd);
    stop_server();
}

static void a_client_that_leaves_is_noticed(void **state)
{
    struct kg_err e;
    (void)state;
    start_server((struct kg_http_server_opts){0});
    int fd = dial(kg_http_server_port(server));
    say(fd, "GET /held HTTP/1.1\r\n" END);
    struct kg_http_exchange *x = wait_held();
    close(fd);
    wait_gone(x);
    kg_http_reply(x, 200, "text/plain", "nobody", 6);

    fd = dial(kg_http_server_port(server));
    say(fd, "GET /held HTTP/1.1\r\n" END);
    x = wait_held();
    kg_http_stream_begin(x, 200, "text/plain");
    NEED(kg_http_stream_write(x, "one", 3, err));
    hear_until(fd, "one\r\n");
    close(fd);
    wait_gone(x);
    assert_int_equal(kg_http_stream_write(x, "two", 3, &e), KG_EIO);
    kg_http_stream_end(x);
    assert_int_equal(stats().gone, 2);
    assert_int_equal(stats().errors_5xx, 0);

    /* an error that no client receives is not counted */
    fd = dial(kg_http_server_port(server));
    say(fd, "GET /held HTTP/1.1\r\n" END);
    x = wait_held();
    close(fd);
    wait_gone(x);
    kg_http_reply_error(x, 503, "nobody");
    assert_int_equal(stats().errors_5xx, 0);
    expect("GET /hello HTTP/1.1\r\n" END, 200, "hello");
    stop_server();
}

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A forked child keeps the parent's descriptors open until exec. A connection that ends
 * meanwhile must be removed from epoll explicitly, or its events would repeat. */
static void a_connection_ends_while_a_child_has_it(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){0});
    int fd = dial(kg_http_server_port(server));
    say(fd, "GET /hello HTTP/1.1\r\nHost: 127.1.2.3:80\r\n\r\n");
    hear_until(fd, "hello");
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        pause();
        _exit(0);
    }
    shutdown(fd, SHUT_RDWR);
    for (int i = 0; i < 500 && stats().connections > 0; i++)
        usleep(10000);
    double before = processor_seconds();
    usleep(200000);
    double took = processor_seconds() - before;
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(fd);
    assert_int_equal(stats().connections, 0);
    assert_true(took < 0.1); /* so the server's thread slept */
    stop_server();
}

/* A client that has sent everything shuts down its sending side and waits: for a whole
 * answer, a stream, and answers to requests sent ahead. */
static void a_half_closed_client_gets_its_answer(void **state)
{
    static const char *const versions[] = {"1.1\r\nHost: localhost", "1.0"};
    (void)state;
    start_server((struct kg_http_server_opts){0});
    for (int i = 0; i < 2; i++) {
        char text[256];
        int fd = dial(kg_http_server_port(server));
        snprintf(text, sizeof text, "GET /held HTTP/%s\r\n\r\n", versions[i]);
        say(fd, text);
        shutdown(fd, SHUT_WR);
        struct kg_http_exchange *x = wait_held();
        usleep(50000);
        assert_false(kg_http_gone(x));
        kg_http_reply(x, 200, "text/plain", "late", 4);
        const char *answer = hear(fd);
        const char *first = i == 0 ? "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200"
                                   : "HTTP/1.1 200";
        assert_memory_equal(answer, first, strlen(first));
        assert_non_null(strstr(answer, "\r\n\r\nlate"));
        close(fd);
    }
    int fd = dial(kg_http_server_port(server));
    say(fd, "GET /held HTTP/1.1\r\n" END);
    struct kg_http_exchange *x = wait_held();
    kg_http_stream_begin(x, 200, "text/plain");
    NEED(kg_http_stream_write(x, "one", 3, err));
    hear_until(fd, "3\r\none\r\n");
    shutdown(fd, SHUT_WR);
    usleep(50000);
    NEED(kg_http_stream_write(x, "two", 3, err));
    usleep(50000);
    kg_http_stream_end(x);
    assert_string_equal(hear(fd), "03\r\ntwo\r\n0\r\n\r\n");
    close(fd);
    fd = dial(kg_http_server_port(server));
    say(fd, "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\nPOST /echo HTTP/1.1\r\n"
            "Host: localhost\r\nContent-Length: 2\r\n\r\nab");
    shutdown(fd, SHUT_WR);
    const char *both = hear(fd);
    assert_non_null(strstr(both, "\r\n\r\nhello"));
    assert_non_null(strstr(both, "\r\n\r\nab"));
    close(fd);
    assert_int_equal(stats().gone, 0);
    stop_server();
}

/* Twenty bodies of 400 KB that never end, and a server that may hold 1 MiB. */
static void bodies_of_all_clients_have_one_bound(void **state)
{
    enum { MANY = 20, PART = 400000 };
    static char part[PART];
    int fds[MANY];
    int refused = 0;
    (void)state;
    start_server((struct kg_http_server_opts){.max_body_bytes = 500000,
                                              .max_held_bytes = 1 << 20});
    kg_mem_reset_peak();
    for (int i = 0; i < MANY; i++) {
        fds[i] = dial(kg_http_server_port(server));
        say(fds[i], "POST /echo HTTP/1.1\r\n");
        say(fds[i], i % 2 ? "Content-Length: 500000\r\n" END
                          : "Transfer-Encoding: chunked\r\n" END "7a120\r\n");
        say_n(fds[i], part, PART);
    }
    for (int i = 0; i < 3000 && stats().errors_5xx < MANY - 2; i++)
        usleep(1000);
    expect("POST /echo HTTP/1.1\r\nContent-Length: 2\r\n" END "ab", 200, "ab");
    assert_in_range(stats().held_bytes, PART, 1 << 20);
    assert_in_range(kg_mem_peak_bytes(), PART, (1 << 20) + MANY * (200 << 10));
    for (int i = 0; i < MANY; i++) {
        char text[512] = "";
        refused += recv(fds[i], text, sizeof text - 1, MSG_DONTWAIT) > 0 &&
                   strstr(text, "503 Service Unavailable") != NULL;
        close(fds[i]);
    }
    assert_in_range(refused, MANY - 2, MANY - 1);
    for (int i = 0; i < 2000 && stats().connections > 0; i++)
        usleep(1000);
    assert_int_equal(stats().held_bytes, 0);
    stop_server();
}

/* Answers that wait for clients that do not read are bounded in sum, and freed. */
static void answers_of_all_clients_have_one_bound(void **state)
{
    enum { MANY = 6 };
    static char big[16 << 20];
    int fds[MANY];
    (void)state;
    start_server((struct kg_http_server_opts){.max_held_bytes = 40 << 20});
    for (int i = 0; i < MANY; i++) {
        fds[i] = dial(kg_http_server_port(server));
        say(fds[i], "GET /held HTTP/1.1\r\n" END);
        kg_http_reply(wait_held(), 200, "text/plain", big, sizeof big);
        assert_true(stats().held_bytes <= 40 << 20);
    }
    assert_int_equal(stats().errors_5xx, MANY - 2);
    assert_non_null(strstr(hear(fds[2]), "503 Service Unavailable"));
    expect("GET /hello HTTP/1.1\r\n" END, 200, "hello");
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    for (int i = 0; i < 2000 && stats().connections > 0; i++)
        usleep(1000);
    assert_int_equal(stats().held_bytes, 0);
    stop_server();
}

/* kg_http_reserve tells whether an answer will fit; replying uses the reservation up. */
static void room_for_an_answer_can_be_kept(void **state)
{
    static char big[16 << 20];
    int fds[2];
    (void)state;
    start_server((struct kg_http_server_opts){.max_held_bytes = 20 << 20});
    for (int i = 0; i < 2; i++) {
        fds[i] = dial(kg_http_server_port(server));
        say(fds[i], "GET /held HTTP/1.1\r\n" END);
        struct kg_http_exchange *x = wait_held();
        assert_true(kg_http_reserve(x, sizeof big) == (i == 0));
        assert_true(stats().held_bytes >= (long long)sizeof big);
        kg_http_reply(x, 200, "text/plain", big, sizeof big);
        assert_true(stats().held_bytes <= (long long)sizeof big + 4096);
    }
    assert_int_equal(stats().errors_5xx, 1);
    for (int i = 0; i < 2; i++)
        close(fds[i]);
    for (int i = 0; i < 2000 && stats().connections > 0; i++)
        usleep(1000);
    assert_int_equal(stats().held_bytes, 0);
    stop_server();
}

/* A web page can make a browser send requests to this server, but it cannot choose the
 * Host and Origin headers. */
static void strangers_names_are_refused_by_a_local_server_without_a_key(void **state)
{
    static const char *const local[] = {
        "Host: localhost",      "Host: LOCALHOST:8000",
        "Host: 127.0.0.1:8000", "Host: 127.9.8.7",
        "Host: [::1]:8000",     "Host: a.localhost",
        "Host: example.net:1",  "Host:",
        "Host: x\r\nX: y",
    };
    static const char *const foreign[] = {
        "Host: example.com",
        "Host: localhost.example.com",
        "Host: 127.0.0.1.example.com:80",
        "Host: [::2]",
        "Host: localhost\r\nOrigin: http://example.com",
        "Host: localhost\r\nOrigin: null",
        "Host: examplexnet",
    };
    char text[256];
    (void)state;
    start_server((struct kg_http_server_opts){.allow_hosts = "example.net, x"});
    for (size_t i = 0; i < sizeof local / sizeof *local; i++) {
        snprintf(text, sizeof text, "GET /hello HTTP/1.1\r\n%s\r\n%s\r\n\r\n", local[i],
                 i % 2 ? "Connection: close\r\nOrigin: http://localhost:3000"
                       : "Connection: close");
        expect(text, 200, "hello");
    }
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        snprintf(text, sizeof text, "GET /hello HTTP/1.1\r\n%s\r\n\r\n", foreign[i]);
        expect(text, 403, "this machine's own names");
    }
    expect("GET http://example.com/hello HTTP/1.1\r\n" END, 403, "'example.com'");
    expect("GET http://localhost/hello HTTP/1.1\r\nHost: example.com\r\n"
           "Connection: close\r\n\r\n",
           200, "hello");
    stop_server();
    start_server((struct kg_http_server_opts){.bearer_key = "k"});
    expect("GET /hello HTTP/1.1\r\nHost: example.com\r\nAuthorization: Bearer k\r\n"
           "Connection: close\r\n\r\n",
           200, "hello");
    stop_server();
    start_server((struct kg_http_server_opts){.allow_hosts = "*"});
    expect("GET /hello HTTP/1.1\r\nHost: example.com\r\nOrigin: null\r\n"
           "Connection: close\r\n\r\n",
           200, "hello");
    stop_server();
    start_server((struct kg_http_server_opts){.host = "0.0.0.0"});
    expect("GET /hello HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n", 200,
           "hello");
    stop_server();
}

static void a_client_that_does_not_read_fills_its_own_buffer_alone(void **state)
{
    static char piece[1 << 16];
    struct kg_err err;
    kg_status status = KG_OK;
    (void)state;
    start_server((struct kg_http_server_opts){.max_stream_bytes = 200000});
    int fd = dial(kg_http_server_port(server));
    say(fd, "GET /held HTTP/1.1\r\n" END);
    struct kg_http_exchange *x = wait_held();
    kg_http_stream_begin(x, 200, "text/plain");
    for (int i = 0; i < 1000 && status == KG_OK; i++)
        status = kg_http_stream_write(x, piece, sizeof piece, &err);
    assert_int_equal(status, KG_ENOMEM);
    kg_http_stream_end(x);
    expect("GET /hello HTTP/1.1\r\n" END, 200, "hello");
    close(fd);
    stop_server();
}

static void a_reader_that_takes_nothing_is_cut_off(void **state)
{
    static char big[8 << 20];
    (void)state;
    start_server((struct kg_http_server_opts){.idle_timeout_s = 1});
    int fd = dial(kg_http_server_port(server));
    say(fd, "GET /held HTTP/1.1\r\n" END);
    kg_http_reply(wait_held(), 200, "text/plain", big, sizeof big);
    for (int i = 0; i < 3000 && stats().timeouts == 0; i++)
        usleep(1000);
    assert_int_equal(stats().timeouts, 1);
    assert_int_equal(stats().exchanges, 0);
    close(fd);
    stop_server();
}

static void connections_beyond_the_limit_are_told_and_counted(void **state)
{
    enum { MANY = 300 };
    int fds[MANY];
    int closed = 0;
    (void)state;
    start_server((struct kg_http_server_opts){.max_connections = 100});
    for (int i = 0; i < MANY; i++)
        fds[i] = dial(kg_http_server_port(server));
    for (int i = 0; i < 2000 && stats().refused_connections < MANY - 100; i++)
        usleep(1000);
    assert_int_equal(stats().refused_connections, MANY - 100);
    assert_int_equal(stats().connections, 100);
    for (int i = 0; i < MANY; i++) {
        char text[512] = "";
        closed += recv(fds[i], text, sizeof text - 1, MSG_DONTWAIT) > 0 &&
                  strstr(text, "503 Service Unavailable") != NULL;
        close(fds[i]);
    }
    assert_int_equal(closed, MANY - 100);
    for (int i = 0; i < 2000 && stats().connections > 0; i++)
        usleep(1000);
    expect("GET /hello HTTP/1.1\r\n" END, 200, "hello");
    stop_server();
}

static void connections_are_taken_as_they_come(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){0});
    int open = dial(kg_http_server_port(server));
    double start = kg_clock_seconds();
    for (int i = 0; i < 20; i++)
        expect("GET /hello HTTP/1.1\r\n" END, 200, "hello");
    assert_true(kg_clock_seconds() - start < 2);
    close(open);
    stop_server();
}

/* Without a free descriptor the server retries accept from time to time, and sleeps in
 * between. */
static void a_server_without_descriptors_waits_for_one(void **state)
{
    struct rlimit usual, few;
    (void)state;
    start_server((struct kg_http_server_opts){0});
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    few = usual;
    few.rlim_cur = (rlim_t)fd + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    call(fd, kg_http_server_port(server));
    say(fd, "GET /hello HTTP/1.1\r\n" END);
    clock_t busy = clock();
    usleep(600000);
    busy = clock() - busy;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
    assert_true(busy < CLOCKS_PER_SEC / 5);
    assert_non_null(strstr(hear(fd), "hello"));
    close(fd);
    stop_server();
}

/* As when the parent closed standard input. */
static void a_server_may_listen_at_descriptor_0(void **state)
{
    int input = dup(0);
    (void)state;
    close(0);
    start_server((struct kg_http_server_opts){0});
    expect("GET /hello HTTP/1.1\r\n" END, 200, "hello");
    stop_server();
    dup2(input, 0);
    close(input);
}

static void *stop_later(void *arg)
{
    kg_http_server_stop(arg, 3000);
    return NULL;
}

static void stopping_waits_for_open_answers_and_takes_no_new_ones(void **state)
{
    pthread_t thread;
    (void)state;
    start_server((struct kg_http_server_opts){0});
    int idle = dial(kg_http_server_port(server));
    say(idle, "GET /hello HTTP/1.1\r\nHost: 127.1.2.3:80\r\n\r\n");
    hear_until(idle, "hello");
    int fd = dial(kg_http_server_port(server));
    say(fd, "GET /held HTTP/1.1\r\nHost: 127.1.2.3:80\r\n\r\n");
    struct kg_http_exchange *x = wait_held();
    assert_int_equal(pthread_create(&thread, NULL, stop_later, server), 0);
    assert_string_equal(hear(idle), ""); /* idle: closed at once */
    kg_http_reply(x, 200, "text/plain", "last", 4);
    const char *answer = hear(fd);
    assert_non_null(strstr(answer, "\r\n\r\nlast"));
    assert_non_null(strstr(answer, "Connection: close\r\n"));
    pthread_join(thread, NULL);
    server = NULL;
    close(idle);
    close(fd);
    assert_int_equal(kg_mem_current_bytes(), 0);
}

static void an_answer_may_come_after_the_server_has_gone(void **state)
{
    struct kg_err err;
    (void)state;
    start_server((struct kg_http_server_opts){0});
    int fd = dial(kg_http_server_port(server));
    say(fd, "GET /held HTTP/1.1\r\n" END);
    struct kg_http_exchange *x = wait_held();
    kg_http_server_stop(server, 10);
    server = NULL;
    assert_string_equal(hear(fd), "");
    assert_true(kg_http_gone(x));
    kg_http_stream_begin(x, 200, "text/plain");
    assert_int_equal(kg_http_stream_write(x, "a", 1, &err), KG_EIO);
    kg_http_stream_end(x);
    assert_int_equal(kg_mem_current_bytes(), 0);
    close(fd);
}

static void what_cannot_be_listened_on_is_named(void **state)
{
    struct kg_http_server *second;
    struct kg_http_server_opts opts = {.routes = test_routes};
    struct kg_err err;
    char port[16];
    (void)state;
    start_server((struct kg_http_server_opts){0});
    opts.port = kg_http_server_port(server);
    snprintf(port, sizeof port, "port %d", opts.port);
    assert_int_equal(kg_http_server_start(&second, &opts, &err), KG_EIO);
    assert_non_null(strstr(err.message, port));
    assert_non_null(strstr(err.message, "in use"));
    opts = (struct kg_http_server_opts){.routes = test_routes, .host = "192.0.2.1"};
    assert_int_equal(kg_http_server_start(&second, &opts, &err), KG_EIO);
    assert_non_null(strstr(err.message, "192.0.2.1"));
    opts = (struct kg_http_server_opts){.routes = test_routes, .bearer_key = ""};
    assert_int_equal(kg_http_server_start(&second, &opts, &err), KG_EINVAL);
    opts = (struct kg_http_server_opts){
        .routes = test_routes, .host = "0.0.0.0", .allow_hosts = "x"};
    assert_int_equal(kg_http_server_start(&second, &opts, &err), KG_EINVAL);
    assert_non_null(
        strstr(err.message, "--allow-host applies only to an address of this "));
    stop_server();
}

/* The head of a stream is built in several allocations: whichever fails, nothing of it is
 * sent or kept. */
static void a_stream_that_cannot_begin_leaves_nothing(void **state)
{
    bool began = false;
    (void)state;
    start_server((struct kg_http_server_opts){0});
    for (uint64_t n = 1; !began; n++) {
        struct kg_err err;
        int fd = dial(kg_http_server_port(server));
        say(fd, "GET /held HTTP/1.1\r\n" END);
        struct kg_http_exchange *x = wait_held();
        kg_mem_fail_at(n);
        kg_http_stream_begin(x, 200, "text/plain");
        kg_mem_fail_at(0);
        began = kg_http_stream_write(x, "one", 3, &err) == KG_OK;
        kg_http_stream_end(x);
        close(fd);
        assert_true(n < 20);
    }
    stop_server();
    assert_int_equal(kg_mem_current_bytes(), 0);
}

static void a_server_that_cannot_get_memory_does_not_start(void **state)
{
    struct kg_http_server_opts opts = {.routes = test_routes, .bearer_key = "key"};
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct kg_err err;
        kg_mem_fail_at(n);
        kg_status status = kg_http_server_start(&server, &opts, &err);
        kg_mem_fail_at(0);
        if (status == KG_OK)
            break;
        assert_int_equal(status, KG_ENOMEM);
        assert_int_equal(kg_mem_current_bytes(), 0);
    }
    stop_server();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(answers_carry_length_and_type, stop_left),
        cmocka_unit_test_teardown(a_stream_that_cannot_begin_leaves_nothing, stop_left),
        cmocka_unit_test_teardown(head_gives_the_header_alone, stop_left),
        cmocka_unit_test_teardown(wrong_requests_are_answered_in_the_owners_shape,
                                  stop_left),
        cmocka_unit_test_teardown(a_head_has_a_limit, stop_left),
        cmocka_unit_test_teardown(a_large_body_is_refused_and_the_refusal_arrives,
                                  stop_left),
        cmocka_unit_test_teardown(bodies_come_in_pieces_and_in_chunks, stop_left),
        cmocka_unit_test_teardown(a_client_that_asks_first_is_told_to_continue,
                                  stop_left),
        cmocka_unit_test_teardown(half_a_request_is_answered_when_the_sender_ends_it,
                                  stop_left),
        cmocka_unit_test_teardown(slow_senders_are_cut_off, stop_left),
        cmocka_unit_test_teardown(a_sender_that_drips_is_cut_off, stop_left),
        cmocka_unit_test_teardown(a_request_is_that_of_its_keys_user, stop_left),
        cmocka_unit_test_teardown(the_key_is_asked_for_everywhere_but_on_the_open_path,
                                  stop_left),
        cmocka_unit_test_teardown(an_answer_may_come_later_from_another_thread,
                                  stop_left),
        cmocka_unit_test_teardown(one_connection_takes_one_later_answer_after_the_other,
                                  stop_left),
        cmocka_unit_test_teardown(a_stream_arrives_piece_by_piece, stop_left),
        cmocka_unit_test_teardown(an_old_client_gets_a_stream_without_chunks, stop_left),
        cmocka_unit_test_teardown(a_client_that_leaves_is_noticed, stop_left),
        cmocka_unit_test_teardown(a_connection_ends_while_a_child_has_it, stop_left),
        cmocka_unit_test_teardown(a_half_closed_client_gets_its_answer, stop_left),
        cmocka_unit_test_teardown(bodies_of_all_clients_have_one_bound, stop_left),
        cmocka_unit_test_teardown(answers_of_all_clients_have_one_bound, stop_left),
        cmocka_unit_test_teardown(room_for_an_answer_can_be_kept, stop_left),
        cmocka_unit_test_teardown(
            strangers_names_are_refused_by_a_local_server_without_a_key, stop_left),
        cmocka_unit_test_teardown(a_client_that_does_not_read_fills_its_own_buffer_alone,
                                  stop_left),
        cmocka_unit_test_teardown(a_reader_that_takes_nothing_is_cut_off, stop_left),
        cmocka_unit_test_teardown(connections_beyond_the_limit_are_told_and_counted,
                                  stop_left),
        cmocka_unit_test_teardown(connections_are_taken_as_they_come, stop_left),
        cmocka_unit_test_teardown(a_server_without_descriptors_waits_for_one, stop_left),
        cmocka_unit_test_teardown(a_server_may_listen_at_descriptor_0, stop_left),
        cmocka_unit_test_teardown(stopping_waits_for_open_answers_and_takes_no_new_ones,
                                  stop_left),
        cmocka_unit_test_teardown(an_answer_may_come_after_the_server_has_gone,
                                  stop_left),
        cmocka_unit_test_teardown(what_cannot_be_listened_on_is_named, stop_left),
        cmocka_unit_test_teardown(a_server_that_cannot_get_memory_does_not_start,
                                  stop_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
