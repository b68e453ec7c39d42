/* Tests of the HTTP client against kedge's own server, and against raw sockets that
 * violate the protocol. */
#include "net/http_testing.h"

#include "base/log.h"
#include "net/http_client.h"
#include "net/stuck_testing.h"

#include <curl/curl.h>
#include <pthread.h>

struct seen {
    int answers;
    int http_status, tries;
    kg_status status;
    uint64_t tickets; /* sum of all tickets */
    char reason[512], body[4096], pieces[4096];
    struct kg_http_client *again; /* submit one more from the callback */
};
static struct seen seen;
static struct kg_http_client *client;
static char url[128];

static kg_status take(void *user, const struct kg_http_answer *a, struct kg_err *err)
{
    struct kg_http_client *again = seen.again;
    (void)user;
    seen.answers++;
    seen.http_status = a->http_status;
    seen.tries = a->tries;
    seen.status = a->status;
    seen.tickets += a->ticket;
    snprintf(seen.reason, sizeof seen.reason, "%s", a->reason);
    snprintf(seen.body, sizeof seen.body, "%s", a->body);
    seen.again = NULL;
    return again ? kg_http_client_submit(again, url, NULL, 0, 7, err) : KG_OK;
}

static kg_status take_piece(void *user, uint64_t ticket, const char *data, size_t n,
                            struct kg_err *err)
{
    struct seen *to = user;
    size_t len = strlen(to->pieces);
    assert_int_equal(ticket, 3);
    snprintf(to->pieces + len, sizeof to->pieces - len, "%.*s|", (int)n, data);
    return strstr(to->pieces, "stop") ? kg_fail(err, KG_EINVAL, "heard enough") : KG_OK;
}

static const char *at(int port, const char *path)
{
    snprintf(url, sizeof url, "http://127.0.0.1:%d%s", port, path);
    return url;
}

static void open_client(struct kg_http_client_opts opts)
{
    memset(&seen, 0, sizeof seen);
    opts.backoff_ms = opts.backoff_ms > 0 ? opts.backoff_ms : 5;
    NEED(kg_http_client_open(&client, &opts, err));
}

static void ask(const char *where, const char *body)
{
    NEED(kg_http_client_submit(client, where, body, body ? strlen(body) : 0, 3, err));
}

/* Polls until the server holds the request. */
static struct kg_http_exchange *poll_held(void)
{
    held = NULL;
    for (int i = 0; i < 200 && held == NULL; i++)
        NEED(kg_http_client_poll(client, 10, take, NULL, err));
    return wait_held();
}

static void poll_all(void)
{
    double until = kg_clock_seconds() + 10;
    while (kg_http_client_waiting(client) > 0 && kg_clock_seconds() < until)
        NEED(kg_http_client_poll(client, 1000, take, NULL, err));
    assert_int_equal(kg_http_client_waiting(client), 0);
}

static void close_client(void)
{
    kg_http_client_close(client);
    client = NULL;
}

static int clean(void **state)
{
    close_client();
    return stop_left(state);
}

static void many_requests_are_in_flight_and_each_is_answered(void **state)
{
    struct kg_http_client_stats s;
    (void)state;
    start_server((struct kg_http_server_opts){0});
    open_client((struct kg_http_client_opts){.max_in_flight = 8});
    for (uint64_t i = 1; i <= 100; i++)
        NEED(kg_http_client_submit(client, at(kg_http_server_port(server), "/echo"),
                                   "{\"a\":1}", 7, i, err));
    poll_all();
    assert_int_equal(seen.answers, 100);
    assert_int_equal(seen.tickets, 5050);
    assert_int_equal(seen.http_status, 200);
    assert_string_equal(seen.body, "{\"a\":1}");
    assert_true(stats().connections <= 8);
    kg_http_client_stats(&s, client);
    assert_int_equal(s.requests, 100);
    assert_int_equal(s.retries + s.failures, 0);
    close_client();
    stop_server();
}

static void a_callback_may_ask_again(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){0});
    open_client((struct kg_http_client_opts){0});
    seen.again = client;
    ask(at(kg_http_server_port(server), "/hello"), NULL);
    poll_all();
    assert_int_equal(seen.answers, 2);
    assert_int_equal(seen.tickets, 10);
    close_client();
    stop_server();
}

static void the_key_is_sent(void **state)
{
    struct kg_err err;
    (void)state;
    start_server((struct kg_http_server_opts){.bearer_key = "k"});
    open_client((struct kg_http_client_opts){.bearer_key = "k"});
    ask(at(kg_http_server_port(server), "/hello"), NULL);
    poll_all();
    assert_int_equal(seen.http_status, 200);
    close_client();
    open_client((struct kg_http_client_opts){0});
    ask(at(kg_http_server_port(server), "/hello"), NULL);
    poll_all();
    assert_int_equal(seen.http_status, 401);
    assert_int_equal(seen.tries, 1);
    close_client();
    struct kg_http_client_opts bad = {.bearer_key = "a\r\nX: y"};
    assert_int_equal(kg_http_client_open(&client, &bad, &err), KG_EINVAL);
    stop_server();
}

static void what_may_pass_is_tried_again_after_the_pause_asked_for(void **state)
{
    double start = kg_clock_seconds();
    (void)state;
    start_server((struct kg_http_server_opts){0});
    open_client((struct kg_http_client_opts){0});
    fails_left = 1;
    ask(at(kg_http_server_port(server), "/flaky"), NULL);
    poll_all();
    assert_string_equal(seen.body, "at last");
    assert_int_equal(seen.tries, 2);
    assert_true(kg_clock_seconds() - start >= 1); /* Retry-After: 1 */
    close_client();
    open_client((struct kg_http_client_opts){.tries = 1});
    fails_left = 1;
    ask(at(kg_http_server_port(server), "/flaky"), NULL);
    poll_all();
    assert_int_equal(seen.status, KG_OK);
    assert_int_equal(seen.http_status, 503);
    close_client();
    stop_server();
}

static void a_server_that_is_not_there_is_named_after_all_tries(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){0});
    int port = kg_http_server_port(server);
    stop_server();
    open_client((struct kg_http_client_opts){.tries = 3});
    ask(at(port, "/hello"), NULL);
    poll_all();
    assert_int_equal(seen.status, KG_EIO);
    assert_int_equal(seen.tries, 3);
    assert_null(strstr(seen.reason, url)); /* the caller adds it, once */
    assert_non_null(strstr(seen.reason, "3 tries"));
    close_client();
}

/* Runs the current request; text gets what was logged meanwhile. */
static void poll_all_into(char *text, size_t n)
{
    FILE *f = tmpfile();

    assert_non_null(f);
    kg_log_set_stream(f, false);
    poll_all();
    kg_log_set_stream(NULL, false);
    rewind(f);
    text[fread(text, 1, n - 1, f)] = '\0';
    fclose(f);
}

static void the_first_try_that_fails_is_told(void **state)
{
    char text[1024];
    const char *said;

    (void)state;
    start_server((struct kg_http_server_opts){0});
    int port = kg_http_server_port(server);
    stop_server();
    open_client((struct kg_http_client_opts){.tries = 3});
    ask(at(port, "/hello"), NULL);
    poll_all_into(text, sizeof text);
    said = strstr(text, "/hello: Failed to connect");
    assert_non_null(said);
    assert_non_null(strstr(said, "retrying (2 of 3)"));
    assert_null(strstr(said, "3 of 3"));
    close_client();
}

/* libcurl reads the certificates before it connects. */
static void need_certificates(void)
{
    const char *file = curl_version_info(CURLVERSION_NOW)->cainfo;

    if (!file || access(file, R_OK) == 0)
        return;
    print_message("skip: no %s (ca-certificates)\n", file);
    skip();
}

static void https_of_a_plain_port_says_so(void **state)
{
    double start = kg_clock_seconds();

    (void)state;
    need_certificates();
    start_server((struct kg_http_server_opts){0});
    open_client((struct kg_http_client_opts){.tries = 1});
    snprintf(url, sizeof url, "https://127.0.0.1:%d/hello", kg_http_server_port(server));
    ask(url, NULL);
    poll_all();
    assert_int_equal(seen.status, KG_EIO);
    if (!strstr(seen.reason, "expected a TLS handshake, found ") ||
        !strstr(seen.reason, "the answer is not TLS, is it a port of http://? (1 try)"))
        fail_msg("%s", seen.reason);
    assert_true(kg_clock_seconds() - start < 3);
    close_client();
    stop_server();
}

static void a_handshake_without_an_answer_names_its_timeout(void **state)
{
    int port, fd;

    (void)state;
    need_certificates();
    fd = open_stuck(&port);
    open_client((struct kg_http_client_opts){.tries = 1, .connect_timeout_ms = 250});
    snprintf(url, sizeof url, "https://127.0.0.1:%d/hello", port);
    ask(url, NULL);
    poll_all();
    assert_int_equal(seen.status, KG_ETIMEOUT);
    assert_string_equal(seen.reason,
                        "expected an answer to the TLS handshake within 0.25 s, found "
                        "none: is it a port of http://? (1 try)");
    close_client();
    close(fd);
}

static void a_poll_without_time_gives_what_is_ready(void **state)
{
    double start = kg_clock_seconds();
    (void)state;
    start_server((struct kg_http_server_opts){0});
    open_client((struct kg_http_client_opts){0});
    ask(at(kg_http_server_port(server), "/held"), NULL);
    NEED(kg_http_client_poll(client, 0, take, NULL, err));
    struct kg_http_exchange *x = poll_held();
    NEED(kg_http_client_poll(client, 30, take, NULL, err));
    assert_int_equal(seen.answers, 0);
    assert_true(kg_clock_seconds() - start < 2);
    kg_http_reply(x, 200, "text/plain", "x", 1);
    poll_all();
    assert_int_equal(seen.answers, 1);
    close_client();
    stop_server();
}

static void an_answer_that_is_too_large_is_a_failure(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){0});
    open_client((struct kg_http_client_opts){.max_response_bytes = 4});
    ask(at(kg_http_server_port(server), "/hello"), NULL);
    poll_all();
    assert_int_equal(seen.status, KG_EFORMAT);
    assert_int_equal(seen.tries, 1);
    assert_non_null(strstr(seen.reason, "larger than 4 bytes"));
    close_client();
    stop_server();
}

/* ---- servers that misbehave: each connection gets the same text ---- */

struct bad_server {
    int fd, port;
    const char *text;
    pthread_t thread;
};

static void *serve_badly(void *arg)
{
    struct bad_server *b = arg;
    for (;;) {
        char request[4096];
        int fd = accept(b->fd, NULL, NULL);
        if (fd < 0)
            return NULL;
        if (recv(fd, request, sizeof request, 0) > 0)
            say(fd, b->text);
        close(fd);
    }
}

static int listen_on(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static void bad_start(struct bad_server *b, const char *text)
{
    b->text = text;
    b->fd = listen_on(&b->port);
    assert_int_equal(pthread_create(&b->thread, NULL, serve_badly, b), 0);
}

static void bad_stop(struct bad_server *b)
{
    shutdown(b->fd, SHUT_RDWR);
    pthread_join(b->thread, NULL);
    close(b->fd);
}

static void a_silent_server_meets_the_timeout_and_the_deadline(void **state)
{
    double start = kg_clock_seconds();
    struct bad_server b;
    (void)state;
    b.fd = listen_on(&b.port); /* connections queue there; nobody accepts them */
    open_client((struct kg_http_client_opts){.timeout_ms = 100, .tries = 2});
    ask(at(b.port, "/"), NULL);
    poll_all();
    assert_int_equal(seen.status, KG_ETIMEOUT);
    assert_int_equal(seen.tries, 2);
    close_client();
    open_client((struct kg_http_client_opts){
        .timeout_ms = 60, .deadline_ms = 150, .tries = 100, .backoff_ms = 10});
    ask(at(b.port, "/"), NULL);
    poll_all();
    assert_int_equal(seen.status, KG_ETIMEOUT);
    assert_true(seen.tries < 4);
    assert_true(kg_clock_seconds() - start < 3);
    close_client();
    close(b.fd);
}

static void half_answers_and_garbage_are_failures(void **state)
{
    static const struct {
        const char *text;
        int tries;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", 2},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", 2},
        {"", 2},
        {"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", 1},
        {"no HTTP at all\r\n\r\n", 1},
    };
    struct bad_server b;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bad_start(&b, cases[i].text);
        open_client((struct kg_http_client_opts){.tries = 2});
        ask(at(b.port, "/"), "{}");
        poll_all();
        if (seen.status != KG_EIO || seen.tries != cases[i].tries)
            fail_msg("case %zu: status %d, %d tries: %s", i, seen.status, seen.tries,
                     seen.reason);
        close_client();
        bad_stop(&b);
    }
}

static void the_environment_changes_nothing(void **state)
{
    (void)state;
    setenv("http_proxy", "http://127.0.0.1:1", 1);
    setenv("ALL_PROXY", "http://127.0.0.1:1", 1);
    start_server((struct kg_http_server_opts){0});
    open_client((struct kg_http_client_opts){.tries = 1});
    ask(at(kg_http_server_port(server), "/hello"), NULL);
    poll_all();
    assert_string_equal(seen.body, "hello");
    close_client();
    stop_server();
}

static void one_asks_by_the_proxy_of_the_environment(void **state)
{
    const struct kg_http_client_opts opts = {
        .tries = 1, .surroundings = true, .bearer_key = "secret"};
    struct bad_server b;
    char proxy[64];
    (void)state;
    unsetenv("ALL_PROXY");
    bad_start(&b, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
    snprintf(proxy, sizeof proxy, "http://127.0.0.1:%d", b.port);
    setenv("http_proxy", proxy, 1);
    open_client(opts);
    ask("http://hub.invalid/x", NULL);
    poll_all();
    assert_string_equal(seen.body, "hi");
    setenv("no_proxy", "hub.invalid", 1);
    ask("http://hub.invalid/x", NULL);
    poll_all();
    assert_int_equal(seen.status, KG_EIO);
    close_client();
    bad_stop(&b);
    unsetenv("http_proxy");
    unsetenv("no_proxy");
}

/* Without certificates to verify a server, the client does not connect to it. */
static void certificates_are_where_the_environment_says(void **state)
{
    struct bad_server b;
    char address[64];
    (void)state;
    setenv("SSL_CERT_FILE", "/no/such/certificates.pem", 1);
    bad_start(&b, "");
    snprintf(address, sizeof address, "https://127.0.0.1:%d/", b.port);
    open_client((struct kg_http_client_opts){.tries = 1, .surroundings = true});
    ask(address, NULL);
    poll_all();
    assert_int_equal(seen.status, KG_EIO);
    if (!strstr(seen.reason, "/no/such/certificates.pem"))
        fail_msg("%s", seen.reason);
    close_client();
    bad_stop(&b);
    unsetenv("SSL_CERT_FILE");
}

static void a_stream_is_told_in_pieces(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){0});
    open_client((struct kg_http_client_opts){.piece = take_piece, .piece_user = &seen});
    ask(at(kg_http_server_port(server), "/held"), NULL);
    struct kg_http_exchange *x = poll_held();
    kg_http_stream_begin(x, 200, "text/event-stream");
    NEED(kg_http_stream_write(x, "one", 3, err));
    for (int i = 0; i < 200 && seen.pieces[0] == '\0'; i++)
        NEED(kg_http_client_poll(client, 10, take, NULL, err));
    assert_string_equal(seen.pieces, "one|");
    NEED(kg_http_stream_write(x, "two", 3, err));
    kg_http_stream_end(x);
    poll_all();
    assert_string_equal(seen.pieces, "one|two|");
    assert_string_equal(seen.body, "onetwo");

    ask(url, NULL);
    x = poll_held();
    kg_http_stream_begin(x, 200, "text/event-stream");
    NEED(kg_http_stream_write(x, "stop", 4, err));
    poll_all();
    assert_int_equal(seen.status, KG_EINVAL);
    assert_string_equal(seen.reason, "heard enough");
    wait_gone(x);
    kg_http_stream_end(x);
    close_client();
    stop_server();
}

static void closing_drops_what_is_in_flight(void **state)
{
    (void)state;
    start_server((struct kg_http_server_opts){0});
    open_client((struct kg_http_client_opts){0});
    ask(at(kg_http_server_port(server), "/held"), NULL);
    ask(at(kg_http_server_port(server), "/hello"), "x");
    struct kg_http_exchange *x = poll_held();
    close_client();
    wait_gone(x);
    kg_http_reply(x, 200, "text/plain", "", 0);
    stop_server();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(many_requests_are_in_flight_and_each_is_answered,
                                  clean),
        cmocka_unit_test_teardown(a_callback_may_ask_again, clean),
        cmocka_unit_test_teardown(the_key_is_sent, clean),
        cmocka_unit_test_teardown(what_may_pass_is_tried_again_after_the_pause_asked_for,
                                  clean),
        cmocka_unit_test_teardown(the_first_try_that_fails_is_told, clean),
        cmocka_unit_test_teardown(https_of_a_plain_port_says_so, clean),
        cmocka_unit_test_teardown(a_handshake_without_an_answer_names_its_timeout, clean),
        cmocka_unit_test_teardown(a_server_that_is_not_there_is_named_after_all_tries,
                                  clean),
        cmocka_unit_test_teardown(a_silent_server_meets_the_timeout_and_the_deadline,
                                  clean),
        cmocka_unit_test_teardown(a_poll_without_time_gives_what_is_ready, clean),
        cmocka_unit_test_teardown(an_answer_that_is_too_large_is_a_failure, clean),
        cmocka_unit_test_teardown(half_answers_and_garbage_are_failures, clean),
        cmocka_unit_test_teardown(the_environment_changes_nothing, clean),
        cmocka_unit_test_teardown(one_asks_by_the_proxy_of_the_environment, clean),
        cmocka_unit_test_teardown(certificates_are_where_the_environment_says, clean),
        cmocka_unit_test_teardown(a_stream_is_told_in_pieces, clean),
        cmocka_unit_test_teardown(closing_drops_what_is_in_flight, clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
