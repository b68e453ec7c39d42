/* Tests of the search server, as its clients see it: bytes in, bytes out. */
#define _GNU_SOURCE /* strcasestr */
#include "retriever/service.h"

#include "base/folder_testing.h"
#include "base/str.h"
#include "data/json.h"
#include "retriever/build.h"
#include "search/protocol.h"
#include "search/retriever.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

static struct kg_search_service *service;

static void must(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

static void make_index(void)
{
    static const char corpus[] =
        "{\"id\": \"0\", \"contents\": \"\\\"Evan Morris\\\"\\nEvan Morris was a "
        "lobbyist "
        "for Genentech.\"}\n"
        "{\"id\": \"1\", \"contents\": \"\\\"Horatio Hale\\\"\\nAn Algonkin vocabulary "
        "of "
        "Łódź \\\\ \\\"x\\\".\"}\n"
        "{\"id\": \"2\", \"contents\": \"\\\"Genentech\\\"\\nGenentech Genentech is a "
        "company.\"}\n";
    struct kg_index_build_opts o = {.bm25 = kg_bm25_default};
    struct kg_index_info info;

    put("corpus", corpus);
    o.corpus = in_dir("corpus");
    o.path = in_dir("index");
    must(kg_index_build(&info, &o, &err));
}

static void start(struct kg_search_service_opts o)
{
    make_index();
    o.index = in_dir("index");
    o.workers = o.workers ? o.workers : 2;
    must(kg_search_service_start(&service, &o, &err));
}

static int stop_and_remove(void **state)
{
    kg_search_service_stop(service, 1000);
    service = NULL;
    return remove_dir(state);
}

static int dial(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)kg_search_service_port(service)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void say(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, bytes, n, MSG_NOSIGNAL);

        if (k <= 0)
            return;
        bytes += k;
        n -= (size_t)k;
    }
}

/* Reads one reply: its head, and as many bytes of body as the head says. */
static const char *hear(int fd)
{
    static char text[1 << 20];
    size_t n = 0;
    const char *body;

    text[0] = 0;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t k;

        if (poll(&p, 1, 5000) != 1)
            fail_msg("nothing came for 5 s after: %s", text);
        k = recv(fd, text + n, sizeof text - 1 - n, 0);
        if (k <= 0)
            return text;
        n += (size_t)k;
        text[n] = 0;
        body = strstr(text, "\r\n\r\n");
        if (body && strcasestr(text, "content-length: ") &&
            strlen(body + 4) >=
                strtoul(strcasestr(text, "content-length: ") + 16, NULL, 10))
            return text;
    }
}

/* Posts a body as Python's requests does.   returns the reply with its head */
static const char *post_n(const char *body, size_t n)
{
    char head[400];
    const char *answer;
    int fd = dial();

    snprintf(head, sizeof head,
             "POST /retrieve HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: "
             "python-requests/2.32.3\r\nAccept-Encoding: gzip, deflate\r\nAccept: "
             "*/*\r\nConnection: keep-alive\r\nContent-Length: %zu\r\nContent-Type: "
             "application/json\r\n\r\n",
             n);
    say(fd, head, strlen(head));
    say(fd, body, n);
    answer = hear(fd);
    close(fd);
    return answer;
}

static const char *body_of(const char *answer)
{
    const char *body = strstr(answer, "\r\n\r\n");

    return body ? body + 4 : "";
}

static void answers_200(const char *body, const char *expected)
{
    const char *answer = post_n(body, strlen(body));

    assert_memory_equal(answer, "HTTP/1.1 200 OK\r\n", 17);
    assert_non_null(strcasestr(answer, "content-type: application/json\r\n"));
    assert_string_equal(body_of(answer), expected);
}

static void refuses(const char *body, size_t n, const char *status, const char *message)
{
    const char *answer = post_n(body, n);

    if (strncmp(answer, "HTTP/1.1 ", 9) != 0 || strncmp(answer + 9, status, 3) != 0 ||
        !strstr(body_of(answer), message))
        fail_msg("expected %s with '%s', found: %s", status, message, answer);
    assert_memory_equal(body_of(answer), "{\"detail\": \"", 12);
}

/* ---- the protocol ---- */

/* Requests as json.dumps writes them in Search-R1's client, in its test client, and in
 * other clients. */
static void the_requests_of_real_clients_are_answered(void **state)
{
    static const char evan[] = "{\"id\":\"0\",\"contents\":\"\\\"Evan Morris\\\"\\nEvan "
                               "Morris was a lobbyist for Genentech.\"}";
    static const char hale[] = "{\"id\":\"1\",\"contents\":\"\\\"Horatio Hale\\\"\\nAn "
                               "Algonkin vocabulary of Łódź \\\\ \\\"x\\\".\"}";
    char expected[1024];

    (void)state;
    start((struct kg_search_service_opts){0});
    snprintf(expected, sizeof expected, "{\"result\":[[%s],[%s],[]]}", evan, hale);
    answers_200("{\"queries\": [\"evan morris\", \"algonkin \\u0141\\u00f3d\\u017a\", "
                "\"zebra\"], \"topk\": 3, \"return_scores\": false}",
                expected);
    answers_200("{\"queries\":[\"evan morris\",\"algonkin\",\"zebra\"]}", expected);
    answers_200("{\"queries\":[\"evan morris\",\"algonkin\",\"\"],\"topk\":null}",
                expected);
}

static void scores_come_when_they_are_asked_for(void **state)
{
    struct kg_retrieve_answer a;
    const char *body = "{\"queries\": [\"What is Genentech?\"], \"topk\": 3, "
                       "\"return_scores\": true}";
    const char *text;

    (void)state;
    start((struct kg_search_service_opts){0});
    text = body_of(post_n(body, strlen(body)));
    assert_memory_equal(text,
                        "{\"result\":[[{\"document\":{\"id\":\"2\",\"contents\":", 45);
    must(kg_retrieve_answer_read(&a, text, strlen(text), 1, &err));
    assert_int_equal(a.first[1], 2);
    assert_true(a.passages[0].score > a.passages[1].score);
    assert_true(a.passages[1].score > 0);
    kg_retrieve_answer_release(&a);
}

static void topk_is_kept(void **state)
{
    (void)state;
    start((struct kg_search_service_opts){.topk = 1});
    answers_200(
        "{\"queries\": [\"genentech\"]}",
        "{\"result\":[[{\"id\":\"2\",\"contents\":\"\\\"Genentech\\\"\\nGenentech "
        "Genentech is a company.\"}]]}");
}

static void wrong_requests_are_refused_with_the_reason(void **state)
{
    static const struct {
        const char *body, *message;
    } cases[] = {
        {"", "request"},
        {"{", "request"},
        {"[]", "expected an object, found array"},
        {"{}", "key 'queries'"},
        {"{\"queries\": \"x\"}", "key 'queries': expected array, found string"},
        {"{\"queries\": []}", "expected 1 to 512 queries, found 0"},
        {"{\"queries\": [\"x\", 5]}", "expected strings, found integer at index 1"},
        {"{\"queries\": [null]}", "expected strings, found null at index 0"},
        {"{\"queries\": [\"x\"], \"topk\": 0}", "key 'topk'"},
        {"{\"queries\": [\"x\"], \"topk\": -3}", "key 'topk'"},
        {"{\"queries\": [\"x\"], \"topk\": 1e9}", "key 'topk'"},
        {"{\"queries\": [\"x\"], \"topk\": \"3\"}", "key 'topk'"},
        {"{\"queries\": [\"x\"], \"topk\": 2.5}", "key 'topk'"},
        {"{\"queries\": [\"x\"], \"return_scores\": 1}", "expected bool, found integer"},
        {"{\"queries\": [\"x\"], \"top_k\": 3}", "found 'top_k', did you mean 'topk'?"},
        {"{\"queries\": [\"x\"], \"unheard of\": 3}", "found 'unheard of'"},
        {"{\"queries\": [\"x\"], \"queries\": [\"y\"]}", "queries"},
        {"{\"queries\": [\"\xff\"]}", "request"},
        {"{\"queries\": [\"\\ud800\"]}", "request"},
    };

    (void)state;
    start((struct kg_search_service_opts){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuses(cases[i].body, strlen(cases[i].body), "400", cases[i].message);
    refuses("{\"queries\": [\"x\"]}\0", 19, "400", "request");
}

static void limits_hold(void **state)
{
    const char *three = "{\"queries\": [\"a\", \"b\", \"c\"]}";
    struct kg_str body = {0};

    (void)state;
    start((struct kg_search_service_opts){.max_queries = 2, .max_body_bytes = 2 << 20});
    refuses(three, strlen(three), "400", "expected 1 to 2 queries, found 3");
    must(kg_str_puts(&body, "{\"queries\": [\"", &err));
    for (int i = 0; i < 1 << 17; i++)
        must(kg_str_puts(&body, "evan x1 ", &err));
    must(kg_str_puts(&body, "\"], \"topk\": 1}", &err));
    assert_non_null(strstr(post_n(body.data, body.len), "Evan Morris")); /* 1 MB */
    kg_str_clear(&body);
    for (int i = 0; i < 3 << 20; i++)
        must(kg_str_putc(&body, 'x', &err));
    refuses(body.data, body.len, "413", "");
    kg_str_release(&body);
}

/* A short request may ask for a long answer. */
static void an_answer_has_a_bound(void **state)
{
    const char *one = "{\"queries\": [\"evan\"], \"topk\": 1}";
    struct kg_str body = {0};

    (void)state;
    start((struct kg_search_service_opts){.max_answer_bytes = 3000});
    must(kg_str_puts(&body, "{\"queries\": [\"genentech\"", &err));
    for (int i = 0; i < 499; i++)
        must(kg_str_puts(&body, ",\"genentech\"", &err));
    must(kg_str_puts(&body, "], \"topk\": 1000}", &err));
    refuses(body.data, body.len, "400", "the answer has more than 3000 bytes: the ");
    refuses(body.data, body.len, "400", "ask for fewer queries or a smaller topk");
    assert_non_null(strstr(post_n(one, strlen(one)), "Evan Morris"));
    kg_str_release(&body);
}

static const char *get(const char *path)
{
    char head[200];
    const char *answer;
    int fd = dial();

    snprintf(head, sizeof head,
             "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    say(fd, head, strlen(head));
    answer = hear(fd);
    close(fd);
    return answer;
}

static void health_and_metrics_are_there(void **state)
{
    struct kg_index_info info;
    const char *text;
    char health[160];

    (void)state;
    start((struct kg_search_service_opts){0});
    kg_search_service_info(&info, service);
    assert_true(info.hash != 0);
    snprintf(health, sizeof health,
             "{\"status\": \"ok\", \"passages\": 3, \"kind\": \"bm25\", \"index\": "
             "\"%016" PRIx64 "\"}",
             info.hash);
    assert_string_equal(body_of(get("/health")), health);
    post_n("{\"queries\": [\"evan\", \"zebra\"]}", 30);
    post_n("nonsense", 8);
    text = body_of(get("/metrics"));
    assert_non_null(strstr(text, "# TYPE kedge_search_queries_total counter\n"
                                 "kedge_search_queries_total 2\n"));
    assert_non_null(strstr(text, "\nkedge_search_queries_empty_total 1\n"));
    assert_non_null(strstr(text, "\nkedge_search_requests_total 1\n"));
    assert_non_null(strstr(text, "\nkedge_search_request_errors_total 1\n"));
    assert_non_null(strstr(text, "\nkedge_search_passages 3\n"));
    assert_non_null(strstr(text, "\nkedge_search_device_bytes 0\n"));
    assert_non_null(strstr(text, "_seconds_bucket{le=\"+Inf\"} 2\n"));
    assert_non_null(strstr(get("/retrieve"), "HTTP/1.1 405"));
    assert_non_null(strstr(get("/other"), "HTTP/1.1 404"));
}

/* ---- kedge's own retriever as the client ---- */

struct asker {
    pthread_t thread;
    int port, answers, wrong;
};

static kg_status check_answer(void *user, const struct kg_retrieved *a, struct kg_err *e)
{
    struct asker *k = user;
    const char *expected = a->ticket % 2 ? "2" : "1";

    (void)e;
    k->answers++;
    k->wrong += a->failed || a->n == 0 || strcmp(a->passages[0].id, expected) != 0;
    return KG_OK;
}

static void *ask_often(void *user)
{
    struct asker *k = user;
    struct kg_retriever *r;
    struct kg_err e;
    char url[64];
    struct kg_retriever_opts o = {.where = url, .batch = 3, .cache = -1};

    snprintf(url, sizeof url, "http://127.0.0.1:%d/retrieve", k->port);
    if (kg_retriever_open(&r, &o, &e) != KG_OK)
        return NULL;
    for (uint64_t t = 0; t < 50; t++) {
        char query[64];

        snprintf(query, sizeof query, "%s %llu", t % 2 ? "genentech" : "algonkin",
                 (unsigned long long)t);
        if (kg_retriever_ask(r, query, strlen(query), t, &e) != KG_OK)
            k->wrong++;
    }
    while (kg_retriever_waiting(r) > 0)
        if (kg_retriever_poll(r, 1000, check_answer, k, &e) != KG_OK)
            break;
    kg_retriever_close(r);
    return NULL;
}

static void many_clients_are_answered(void **state)
{
    enum { ASKERS = 16 };
    static struct asker askers[ASKERS];

    (void)state;
    start((struct kg_search_service_opts){0});
    for (int i = 0; i < ASKERS; i++) {
        askers[i] = (struct asker){.port = kg_search_service_port(service)};
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask_often, &askers[i]),
                         0);
    }
    for (int i = 0; i < ASKERS; i++) {
        pthread_join(askers[i].thread, NULL);
        assert_int_equal(askers[i].answers, 50);
        assert_int_equal(askers[i].wrong, 0);
    }
}

/* More requests than the queue holds: some are refused with a reason, and all get a
 * reply. */
static void a_full_queue_says_so(void **state)
{
    enum { CLIENTS = 40 };
    int fd[CLIENTS];
    int answered = 0, refused = 0;
    struct kg_str body = {0};
    struct kg_str head = {0};

    (void)state;
    start((struct kg_search_service_opts){.workers = 1, .max_waiting = 2});
    must(kg_str_puts(&body, "{\"queries\": [\"evan\"", &err));
    for (int i = 0; i < 500; i++)
        must(kg_str_printf(&body, &err, ", \"evan morris genentech company %d\"", i));
    must(kg_str_puts(&body, "]}", &err));
    must(kg_str_printf(
        &head, &err,
        "POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
        body.len));
    for (int i = 0; i < CLIENTS; i++) {
        fd[i] = dial();
        say(fd[i], head.data, head.len);
        say(fd[i], body.data, body.len);
    }
    for (int i = 0; i < CLIENTS; i++) {
        const char *answer = hear(fd[i]);

        answered += strncmp(answer, "HTTP/1.1 200", 12) == 0;
        refused += strncmp(answer, "HTTP/1.1 503", 12) == 0 &&
                   strstr(answer, "too many requests") != NULL;
        close(fd[i]);
    }
    assert_int_equal(answered + refused, CLIENTS);
    assert_true(answered >= 1);
    assert_true(refused >= 1);
    kg_str_release(&body);
    kg_str_release(&head);
}

static void a_client_that_leaves_harms_nobody(void **state)
{
    const char *request = "POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                          "24\r\n\r\n{\"queries\": [\"evan\"   ]}";

    (void)state;
    start((struct kg_search_service_opts){.workers = 1});
    for (int i = 0; i < 30; i++) {
        int fd = dial();

        say(fd, request, strlen(request) - (size_t)(i % 5));
        close(fd);
    }
    assert_non_null(strstr(get("/health"), "HTTP/1.1 200 OK"));
    answers_200("{\"queries\": [\"zebra\"]}", "{\"result\":[[]]}");
    assert_non_null(strstr(get("/metrics"), "\nkedge_search_http_errors_5xx_total 0\n"));
    assert_non_null(strstr(get("/metrics"), "\nkedge_search_request_errors_total 0\n"));
}

static void stopping_answers_what_was_taken(void **state)
{
    const char *request = "POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                          "25\r\n\r\n{\"queries\": [\"zebra\"   ]}";
    int fd;

    (void)state;
    start((struct kg_search_service_opts){.workers = 1});
    fd = dial();
    say(fd, request, strlen(request));
    assert_non_null(strstr(hear(fd), "{\"result\":[[]]}"));
    kg_search_service_stop(service, 1000);
    service = NULL;
    close(fd);
}

/* ---- what cannot be served ---- */

static void what_cannot_be_served_is_named(void **state)
{
    struct kg_search_service_opts o = {0};
    struct kg_search_service *second;

    (void)state;
    start((struct kg_search_service_opts){0});
    o.index = in_dir("index");
    o.port = kg_search_service_port(service);
    assert_int_equal(kg_search_service_start(&second, &o, &err), KG_EIO);
    assert_non_null(strstr(err.message, "Address already in use"));
    o = (struct kg_search_service_opts){.index = in_dir("corpus")};
    assert_int_equal(kg_search_service_start(&second, &o, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "no SQLite database"));
    o = (struct kg_search_service_opts){.index = in_dir("none")};
    assert_int_equal(kg_search_service_start(&second, &o, &err), KG_ENOTFOUND);
    o = (struct kg_search_service_opts){.index = in_dir("index"), .topk = 5000};
    assert_int_equal(kg_search_service_start(&second, &o, &err), KG_EINVAL);
}

/* An answer that finds no room in memory becomes an error, and is counted as one. */
static void an_answer_without_room_is_an_error_in_the_metrics(void **state)
{
    struct kg_str body = {0};
    const char *text;

    (void)state;
    start((struct kg_search_service_opts){.max_held_bytes = 1});
    must(kg_str_puts(&body, "{\"queries\": [\"evan\"", &err));
    for (int i = 0; i < 500; i++)
        must(kg_str_puts(&body, ", \"genentech\"", &err));
    must(kg_str_puts(&body, "]}", &err));
    text = post_n(body.data, body.len);
    assert_non_null(strstr(text, "HTTP/1.1 503"));
    assert_non_null(strstr(text, "unread responses take all the memory"));
    kg_str_release(&body);
    post_n("{\"queries\": [\"evan\"]}", 21);
    text = body_of(get("/metrics"));
    assert_non_null(strstr(text, "\nkedge_search_requests_total 1\n"));
    assert_non_null(strstr(text, "\nkedge_search_request_errors_total 1\n"));
    assert_non_null(strstr(text, "\nkedge_search_http_errors_5xx_total 1\n"));
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, make_dir, stop_and_remove)
    const struct CMUnitTest tests[] = {
        T(the_requests_of_real_clients_are_answered),
        T(scores_come_when_they_are_asked_for),
        T(topk_is_kept),
        T(wrong_requests_are_refused_with_the_reason),
        T(limits_hold),
        T(an_answer_has_a_bound),
        T(an_answer_without_room_is_an_error_in_the_metrics),
        T(health_and_metrics_are_there),
        T(many_clients_are_answered),
        T(a_full_queue_says_so),
        T(a_client_that_leaves_harms_nobody),
        T(stopping_answers_what_was_taken),
        T(what_cannot_be_served_is_named),
    };
    return cmocka_run_group_tests_name("search service", tests, NULL, NULL);
}
