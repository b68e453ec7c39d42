/* Tests of the retriever: answers, joining of equal queries, cache, and faults of a
 * server. */
#define _GNU_SOURCE /* strcasestr */
#include "retriever/build.h"
#include "search/retriever.h"

#include "base/clock.h"
#include "base/folder_testing.h"
#include "base/str.h"
#include "data/json.h"
#include "net/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void must(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

static const char animals[] =
    "{\"id\": \"cat\", \"contents\": \"\\\"Cat\\\"\\nThe cat sat on the mat.\"}\n"
    "{\"id\": \"dog\", \"contents\": \"\\\"Dog\\\"\\nDogs chase the cats of Łódź.\"}\n"
    "{\"id\": \"wing\", \"contents\": \"\\\"Wing\\\"\\nA wing in a slipstream.\"}\n";

static void make_index(void)
{
    struct kg_index_build_opts o = {.bm25 = kg_bm25_default};
    struct kg_index_info info;

    put("corpus", animals);
    o.corpus = in_dir("corpus");
    o.path = in_dir("index");
    must(kg_index_build(&info, &o, &err));
}

/* ---- collecting answers ---- */

enum { MAX_ANSWERS = 4096 };
struct answers {
    size_t n;
    uint64_t ticket[MAX_ANSWERS];
    char text[MAX_ANSWERS][160]; /* ids, or the reason of a failure */
    bool failed[MAX_ANSWERS];
    struct kg_retriever *ask; /* the callback asks once more */
};
static struct answers got;

static kg_status collect(void *user, const struct kg_retrieved *a, struct kg_err *e)
{
    struct answers *g = user;
    size_t i = g->n++;

    (void)e;
    assert_true(i < MAX_ANSWERS);
    g->ticket[i] = a->ticket;
    g->failed[i] = a->failed;
    g->text[i][0] = 0;
    if (a->failed)
        snprintf(g->text[i], sizeof g->text[i], "%s", a->reason);
    for (size_t j = 0; j < a->n; j++) {
        size_t n = strlen(g->text[i]);

        snprintf(g->text[i] + n, sizeof g->text[i] - n, "%s%s", j ? " " : "",
                 a->passages[j].id);
    }
    return KG_OK;
}

static void ask(struct kg_retriever *r, const char *query, uint64_t ticket)
{
    must(kg_retriever_ask(r, query, strlen(query), ticket, &err));
}

/* Counts polls without an answer, because a poll returns as soon as one answer
 * arrives. */
static void collect_all(struct kg_retriever *r)
{
    got.n = 0;
    for (int idle = 0; idle < 400 && kg_retriever_waiting(r) > 0;) {
        size_t before = got.n;

        must(kg_retriever_poll(r, 50, collect, &got, &err));
        idle = got.n == before ? idle + 1 : 0;
    }
    assert_int_equal(kg_retriever_waiting(r), 0);
}

static const char *answer_to(uint64_t ticket)
{
    for (size_t i = 0; i < got.n; i++)
        if (got.ticket[i] == ticket)
            return got.text[i];
    fail_msg("no answer to %llu", (unsigned long long)ticket);
    return NULL;
}

static struct kg_retriever_stats stats_of(const struct kg_retriever *r)
{
    struct kg_retriever_stats s;

    kg_retriever_stats(&s, r);
    return s;
}

static struct kg_retriever *open_with(struct kg_retriever_opts o)
{
    struct kg_retriever *r;

    must(kg_retriever_open(&r, &o, &err));
    return r;
}

/* ---- a local index ---- */

static struct kg_retriever *open_index(int64_t cache)
{
    make_index();
    return open_with(
        (struct kg_retriever_opts){.where = in_dir("index"), .cache = cache});
}

static void an_index_answers(void **state)
{
    struct kg_retriever *r = open_index(0);

    (void)state;
    ask(r, "cats", 1);
    ask(r, "wings \xff\"", 2);
    ask(r, "", 3);
    assert_int_equal(kg_retriever_waiting(r), 3);
    collect_all(r);
    assert_int_equal(got.n, 3);
    assert_string_equal(answer_to(1), "cat dog");
    assert_string_equal(answer_to(2), "wing");
    assert_string_equal(answer_to(3), "");
    assert_int_equal(stats_of(r).queries, 3);
    assert_int_equal(stats_of(r).failed, 0);
    kg_retriever_close(r);
}

static void equal_queries_are_asked_once(void **state)
{
    struct kg_retriever *r = open_index(0);

    (void)state;
    for (uint64_t t = 0; t < 100; t++)
        ask(r, t % 2 ? "cats" : "wings", t);
    collect_all(r);
    assert_int_equal(got.n, 100);
    for (uint64_t t = 0; t < 100; t++)
        assert_string_equal(answer_to(t), t % 2 ? "cat dog" : "wing");
    assert_int_equal(stats_of(r).joined, 98);
    ask(r, "cats", 7);
    collect_all(r);
    assert_string_equal(answer_to(7), "cat dog");
    assert_int_equal(stats_of(r).cached, 1);
    kg_retriever_close(r);
}

static void the_oldest_answers_leave_the_cache(void **state)
{
    struct kg_retriever *r = open_index(2);

    (void)state;
    ask(r, "cats", 1);
    collect_all(r);
    ask(r, "wings", 2);
    collect_all(r);
    ask(r, "cats", 3); /* is now the younger one */
    collect_all(r);
    ask(r, "mat", 4);
    collect_all(r);
    assert_int_equal(stats_of(r).cached, 1);
    ask(r, "cats", 5);
    ask(r, "mat", 6);
    collect_all(r);
    assert_int_equal(stats_of(r).cached, 3);
    ask(r, "wings", 7);
    collect_all(r);
    assert_int_equal(stats_of(r).cached, 3);
    assert_string_equal(answer_to(7), "wing");
    kg_retriever_close(r);
}

/* Room for one and a half answers, so two queries that alternate always evict each
 * other. */
static void the_cache_is_bounded_in_bytes(void **state)
{
    struct kg_retriever *r;

    (void)state;
    make_index();
    r = open_with(
        (struct kg_retriever_opts){.where = in_dir("index"), .cache_bytes = 350});
    for (uint64_t t = 0; t < 6; t++) {
        ask(r, t % 2 ? "slipstream" : "mat", t);
        collect_all(r);
        assert_string_equal(answer_to(t), t % 2 ? "wing" : "cat");
    }
    assert_int_equal(stats_of(r).cached, 0);
    ask(r, "slipstream", 6);
    collect_all(r);
    assert_int_equal(stats_of(r).cached, 1);
    kg_retriever_close(r);
}

static void without_a_cache_nothing_is_kept(void **state)
{
    struct kg_retriever *r = open_index(-1);

    (void)state;
    for (uint64_t t = 0; t < 10; t++) {
        ask(r, "cats", t);
        collect_all(r);
        assert_string_equal(answer_to(t), "cat dog");
    }
    assert_int_equal(stats_of(r).cached, 0);
    kg_retriever_close(r);
}

static void many_queries_fit(void **state)
{
    struct kg_retriever *r = open_index(1000);
    char query[40];

    (void)state;
    for (uint64_t t = 0; t < 4000; t++) {
        snprintf(query, sizeof query, "%s %llu", t % 2 ? "cats" : "wings",
                 (unsigned long long)t % 3000);
        ask(r, query, t);
    }
    collect_all(r);
    assert_int_equal(got.n, 4000);
    for (uint64_t t = 0; t < 4000; t += 7)
        assert_string_equal(answer_to(t), t % 2 ? "cat dog" : "wing");
    kg_retriever_close(r);
}

static kg_status ask_again(void *user, const struct kg_retrieved *a, struct kg_err *e)
{
    struct answers *g = user;

    (void)e;
    if (g->ask && a->ticket < 5)
        ask(g->ask, "cats", a->ticket + 1);
    return collect(g, a, e);
}

static void an_answer_may_ask(void **state)
{
    struct kg_retriever *r = open_index(0);

    (void)state;
    got.n = 0;
    got.ask = r;
    ask(r, "wings", 1);
    for (int i = 0; i < 200 && kg_retriever_waiting(r) > 0; i++)
        must(kg_retriever_poll(r, 50, ask_again, &got, &err));
    assert_int_equal(got.n, 5);
    assert_string_equal(answer_to(5), "cat dog");
    got.ask = NULL;
    kg_retriever_close(r);
}

static void closing_drops_what_waits(void **state)
{
    struct kg_retriever *r = open_index(0);

    (void)state;
    for (uint64_t t = 0; t < 50; t++)
        ask(r, t % 3 ? "cats" : "wings", t);
    kg_retriever_close(r);
}

static void not_opened(const char *where, kg_status status, const char *message)
{
    struct kg_retriever_opts o = {.where = where};
    struct kg_retriever *r;

    assert_int_equal(kg_retriever_open(&r, &o, &err), status);
    if (!strstr(err.message, message))
        fail_msg("expected '%s' in '%s'", message, err.message);
    assert_null(r);
}

static void what_cannot_be_opened_is_named(void **state)
{
    struct kg_retriever_opts o = {.where = "http://127.0.0.1:1/retrieve", .topk = 5000};
    struct kg_retriever *r;

    (void)state;
    not_opened(in_dir("none"), KG_ENOTFOUND, "expected an index file, found none");
    not_opened("ftp://x/y", KG_EINVAL, "found 'ftp://x/y'");
    not_opened("", KG_EINVAL, "found nothing");
    put("text", "no index");
    not_opened(in_dir("text"), KG_EFORMAT, "no SQLite database");
    assert_int_equal(kg_retriever_open(&r, &o, &err), KG_EINVAL);
}

static void an_index_has_as_many_passages_as_are_expected(void **state)
{
    struct kg_retriever_opts o = {.where = in_dir("index"), .how.passages = 4};
    struct kg_retriever *r;

    (void)state;
    make_index();
    assert_int_equal(kg_retriever_open(&r, &o, &err), KG_ECONFLICT);
    assert_non_null(strstr(err.message, "expected 4 passages, as configured, found 3"));
    o.how.passages = 3;
    must(kg_retriever_open(&r, &o, &err));
    kg_retriever_close(r);
}

/* ---- a scripted server ----
 * Raw sockets, so that it can send invalid HTTP; one connection after another. */

struct faulty {
    int listener, port;
    pthread_t thread;
    const char *say;    /* after a whole request; NULL: close at once */
    size_t say_n;       /* 0: strlen */
    int wait_ms;        /* before the reply */
    _Atomic int served; /* connections */
    _Atomic bool stop;
    char request[1 << 16]; /* of the last connection */
};
static struct faulty server;

static void read_request(struct faulty *f, int fd)
{
    size_t n = 0, length = 0;
    char *body = NULL;

    for (;;) {
        ssize_t k = recv(fd, f->request + n, sizeof f->request - 1 - n, 0);

        if (k <= 0)
            return;
        n += (size_t)k;
        f->request[n] = 0;
        body = strstr(f->request, "\r\n\r\n");
        if (!body)
            continue;
        if (strcasestr(f->request, "content-length: "))
            length = strtoul(strcasestr(f->request, "content-length: ") + 16, NULL, 10);
        if (n >= (size_t)(body + 4 - f->request) + length)
            return;
    }
}

static void *serve_faulty(void *user)
{
    struct faulty *f = user;

    for (;;) {
        int fd = accept(f->listener, NULL, NULL);

        if (fd < 0)
            return NULL;
        if (f->stop) {
            close(fd);
            return NULL;
        }
        f->served++;
        read_request(f, fd);
        usleep((useconds_t)f->wait_ms * 1000);
        if (f->say) {
            size_t n = f->say_n ? f->say_n : strlen(f->say);

            for (size_t at = 0; at < n;) {
                ssize_t k = send(fd, f->say + at, n - at, MSG_NOSIGNAL);

                if (k <= 0)
                    break;
                at += (size_t)k;
            }
        }
        close(fd);
    }
}

static void faulty_start(const char *say, size_t say_n, int wait_ms)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;

    server = (struct faulty){.say = say, .say_n = say_n, .wait_ms = wait_ms};
    server.listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(server.listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(server.listener, 64), 0);
    assert_int_equal(getsockname(server.listener, (struct sockaddr *)&a, &n), 0);
    server.port = ntohs(a.sin_port);
    assert_int_equal(pthread_create(&server.thread, NULL, serve_faulty, &server), 0);
}

static void faulty_stop(void)
{
    server.stop = true;
    shutdown(server.listener, SHUT_RDWR);
    close(server.listener);
    pthread_join(server.thread, NULL);
}

static struct kg_retriever *open_http(int timeout_ms, int tries)
{
    static char url[64];

    snprintf(url, sizeof url, "http://127.0.0.1:%d/retrieve", server.port);
    return open_with((struct kg_retriever_opts){
        .where = url, .timeout_ms = timeout_ms, .tries = tries, .topk = 2});
}

/* Asks such a server twice: both answers fail, with `message` in the reason. */
static void fails(const char *say, size_t n, const char *message)
{
    struct kg_retriever *r;

    faulty_start(say, n, 0);
    r = open_http(2000, 1);
    ask(r, "cats", 1);
    ask(r, "dogs", 2);
    collect_all(r);
    assert_int_equal(got.n, 2);
    for (int i = 0; i < 2; i++) {
        assert_true(got.failed[i]);
        if (!strstr(got.text[i], message))
            fail_msg("expected '%s' in '%s'", message, got.text[i]);
    }
    assert_int_equal(stats_of(r).failed, 2);
    kg_retriever_close(r);
    faulty_stop();
}

#define HTTP(body) "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" body

static void wrong_answers_fail_with_what_was_found(void **state)
{
    (void)state;
    fails(HTTP("garbage"), 0, "/retrieve: answer");
    fails(HTTP(""), 0, "answer");
    fails(HTTP("[]"), 0, "expected {\"result\": [...]}, found array");
    fails(HTTP("{}"), 0, "expected {\"result\": [...]}, found object");
    fails(HTTP("{\"result\": 5}"), 0, "found a result that is integer");
    fails(HTTP("{\"result\": [[]]}"), 0, "expected 2 lists");
    fails(HTTP("{\"result\": [[], [], []]}"), 0, "expected 2 lists");
    fails(HTTP("{\"result\": [[], 5]}"), 0, "result[1]: expected a list");
    fails(HTTP("{\"result\": [[], []"), 0, "answer");
    fails(HTTP("{\"result\": [[\"\\ud800\"], []]}"), 0, "answer");
    fails("HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\n\r\noh no", 0,
          "found 500 after 1 try: oh no");
    fails("HTTP/1.1 422 Unprocessable\r\nConnection: close\r\n\r\n{\"detail\": 1}", 0,
          "found 422");
}

/* Asks two queries: the first fails with `message`, the second is answered. */
static void the_first_fails(const char *say, const char *message)
{
    struct kg_retriever *r;

    faulty_start(say, 0, 0);
    r = open_http(2000, 1);
    ask(r, "cats", 1);
    ask(r, "dogs", 2);
    collect_all(r);
    assert_string_equal(answer_to(2), "b");
    if (!strstr(answer_to(1), message))
        fail_msg("expected '%s' in '%s'", message, answer_to(1));
    assert_int_equal(stats_of(r).failed, 1);
    kg_retriever_close(r);
    faulty_stop();
}

static void a_wrong_document_fails_its_query_alone(void **state)
{
#define AND_B ", [{\"id\": \"b\", \"contents\": \"y\"}]]}"
    (void)state;
    the_first_fails(HTTP("{\"result\": [[5]" AND_B), "result[0][0]: expected a document");
    the_first_fails(HTTP("{\"result\": [[\"x\", {}]" AND_B), "'contents', found null");
    the_first_fails(HTTP("{\"result\": [[{\"document\": {\"contents\": 1}}]" AND_B),
                    "'contents', found integer");
    the_first_fails(HTTP("{\"result\": [[{\"document\": {\"contents\": \"x\"}, "
                         "\"score\": \"y\"}]" AND_B),
                    "a number as score, found string");
    the_first_fails(HTTP("{\"result\": [[\"a\\u0000b\"]" AND_B), "without NUL");
}

static void half_answers_and_none_fail(void **state)
{
    (void)state;
    fails("HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{\"result\": [[", 0, "http://");
    fails("HTTP/1.1 200 OK\r\nContent-Le", 0, "http://");
    fails("\0\xff\x01 no http", 12, "http://");
    fails(NULL, 0, "http://");
}

static void a_huge_answer_fails(void **state)
{
    const char *head = HTTP("{\"result\": [[\"");
    size_t n = (size_t)300 << 20;
    char *text = malloc(n);

    (void)state;
    memset(text, 'x', n);
    memcpy(text, head, strlen(head));
    fails(text, n, "http://");
    free(text);
}

static void a_slow_server_fails_in_time(void **state)
{
    double start = kg_clock_seconds();
    struct kg_retriever *r;

    (void)state;
    faulty_start(HTTP("{\"result\": [[]]}"), 0, 900);
    r = open_http(200, 2);
    ask(r, "cats", 1);
    collect_all(r);
    assert_true(got.failed[0]);
    assert_true(kg_clock_seconds() - start < 0.9);
    assert_int_equal(stats_of(r).retries, 1);
    kg_retriever_close(r);
    faulty_stop();
}

static void no_server_fails(void **state)
{
    struct kg_retriever *r;

    (void)state;
    faulty_start(NULL, 0, 0);
    faulty_stop();
    r = open_http(500, 2);
    ask(r, "cats", 1);
    collect_all(r);
    assert_true(got.failed[0]);
    assert_int_equal(stats_of(r).retries, 1);
    /* failures are not cached: the query is tried again */
    ask(r, "cats", 2);
    collect_all(r);
    assert_true(got.failed[0]);
    assert_int_equal(stats_of(r).retries, 2);
    kg_retriever_close(r);
}

/* Whichever allocation fails while an answer is read: the poll returns the error, and no
 * query counts as failed. */
static void no_memory_is_no_failed_search(void **state)
{
    kg_status status = KG_ENOMEM;

    (void)state;
    faulty_start(HTTP("{\"result\": [[{\"id\": \"a\", \"contents\": \"x\"}]]}"), 0, 0);
    for (uint64_t n = 1; status != KG_OK && n < 100; n++) {
        struct kg_retriever *r = open_http(2000, 1);

        got.n = 0;
        ask(r, "cats", 1);
        must(kg_retriever_poll(r, 0, collect, &got, &err)); /* sends it */
        kg_mem_fail_at(n);
        status = kg_retriever_poll(r, 2000, collect, &got, &err);
        kg_mem_fail_at(0);
        if (status != KG_OK)
            assert_int_equal(status, KG_ENOMEM);
        else
            assert_string_equal(answer_to(1), "a");
        assert_false(got.n > 0 && got.failed[0]);
        kg_retriever_close(r);
    }
    assert_int_equal(status, KG_OK);
    faulty_stop();
}

static void more_than_was_asked_for_is_not_kept(void **state)
{
    struct kg_retriever *r;

    (void)state;
    faulty_start(HTTP("{\"result\": [[{\"id\": \"a\", \"contents\": \"x\"}, "
                      "{\"id\": \"b\", \"contents\": \"y\"}, "
                      "{\"id\": \"c\", \"contents\": \"z\"}]]}"),
                 0, 0);
    r = open_http(2000, 1);
    ask(r, "cats", 1);
    collect_all(r);
    assert_string_equal(answer_to(1), "a b");
    kg_retriever_close(r);
    faulty_stop();
}

/* ---- both forms of answers, and requests ---- */

static void both_shapes_of_answers_are_read(void **state)
{
    struct kg_retriever *r;

    (void)state;
    faulty_start(
        HTTP("{\"result\":[[{\"document\":{\"id\":\"9\",\"contents\":\"\\\"T\\\"\\nx\","
             "\"more\":1},\"score\":0.83},{\"document\":\"bare\"}]]}"),
        0, 0);
    r = open_http(2000, 1);
    ask(r, "cats", 1);
    collect_all(r);
    assert_string_equal(answer_to(1), "9 ");
    assert_non_null(
        strstr(server.request,
               "{\"queries\": [\"cats\"], \"topk\": 2, \"return_scores\": true}"));
    assert_non_null(strstr(server.request, "POST /retrieve HTTP/1.1\r\n"));
    assert_non_null(strcasestr(server.request, "content-type: application/json\r\n"));
    kg_retriever_close(r);
    faulty_stop();
    faulty_start(
        HTTP("{\"result\": [[{\"id\": \"a\", \"contents\": \"x\"}, {\"contents\": "
             "\"y\", \"id\": 5}]]}"),
        0, 0);
    r = open_http(2000, 1);
    ask(r, "d\xff\n\"\0", 1);
    collect_all(r);
    assert_string_equal(answer_to(1), "a ");
    assert_non_null(strstr(server.request, "[\"d\xef\xbf\xbd\\n\\\"\"]"));
    kg_retriever_close(r);
    faulty_stop();
}

/* ---- batches ---- */

static _Atomic int requests_seen, largest;

static void answer_all(void *user, struct kg_http_exchange *x)
{
    struct kg_json_doc doc;
    struct kg_str out = {0};
    struct kg_err e;
    size_t n;
    const char *body = kg_http_body(x, &n);

    (void)user;
    assert_int_equal(kg_json_parse(&doc, body, n, "test", &e), KG_OK);
    n = kg_json_size(kg_json_get(doc.root, "queries"));
    requests_seen++;
    if ((int)n > largest)
        largest = (int)n;
    assert_int_equal(kg_str_puts(&out, "{\"result\": [", &e), KG_OK);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(
            kg_str_printf(
                &out, &e,
                "%s[{\"document\": {\"id\": \"%s\", \"contents\": "
                "\"c\"}, \"score\": 1}]",
                i ? ", " : "",
                kg_json_text(kg_json_at(kg_json_get(doc.root, "queries"), i), NULL)),
            KG_OK);
    assert_int_equal(kg_str_puts(&out, "]}", &e), KG_OK);
    kg_http_reply(x, 200, "application/json", out.data, out.len);
    kg_str_release(&out);
    kg_json_release(&doc);
}

static void queries_go_out_in_batches(void **state)
{
    static const struct kg_http_route routes[] = {{"POST", "/retrieve", answer_all, "x"},
                                                  {NULL, NULL, NULL, NULL}};
    struct kg_http_server_opts o = {.routes = routes};
    struct kg_http_server *s;
    struct kg_retriever *r;
    char url[64];
    char query[16];

    (void)state;
    must(kg_http_server_start(&s, &o, &err));
    snprintf(url, sizeof url, "http://127.0.0.1:%d/retrieve", kg_http_server_port(s));
    r = open_with(
        (struct kg_retriever_opts){.where = url, .batch = 10, .max_in_flight = 2});
    requests_seen = largest = 0;
    for (uint64_t t = 0; t < 95; t++) {
        snprintf(query, sizeof query, "q%d", (int)t);
        ask(r, query, t);
    }
    collect_all(r);
    assert_int_equal(requests_seen, 10);
    assert_int_equal(largest, 10);
    assert_int_equal(stats_of(r).requests, 10);
    for (uint64_t t = 0; t < 95; t++) {
        snprintf(query, sizeof query, "q%d", (int)t);
        assert_string_equal(answer_to(t), query);
    }
    kg_retriever_close(r);
    kg_http_server_stop(s, 1000);
}

/* Opens a retriever at a server whose every answer is `says`. */
static kg_status opened(const char *says, struct kg_search_how how)
{
    struct kg_retriever *r = NULL;
    kg_status status;
    char url[64];

    faulty_start(says, 0, 0);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/retrieve", server.port);
    status = kg_retriever_open(&r, &(struct kg_retriever_opts){.where = url, .how = how},
                               &err);
    kg_retriever_close(r);
    faulty_stop();
    return status;
}

#define SAYS(kind, n) HTTP("{\"passages\": " n ", \"kind\": \"" kind "\"}")

static void a_server_is_what_was_expected(void **state)
{
    const struct kg_search_how dense = {.kind = "dense", .model = "m", .passages = 3};
    const struct kg_search_how words = {.passages = 3}, any = {0};

    (void)state;
    assert_int_equal(opened(SAYS("dense", "3"), dense), KG_OK);
    assert_non_null(strstr(server.request, "GET /health HTTP/1.1\r\n"));
    assert_int_equal(opened(SAYS("bm25", "3"), dense), KG_ECONFLICT);
    assert_non_null(strstr(err.message,
                           "expected a server that searches by dense (kind of the "
                           "search), found one that searches by bm25"));
    assert_int_equal(opened(SAYS("dense", "4"), dense), KG_ECONFLICT);
    assert_non_null(strstr(err.message,
                           "expected a server with 3 passages, as the search "
                           "is configured, found one with 4"));
    assert_int_equal(opened(SAYS("hybrid", "3"), words), KG_ECONFLICT);
    /* fields that the server reports are compared, even if others are missing */
    assert_int_equal(opened(HTTP("{\"passages\": 4}"), dense), KG_ECONFLICT);
    assert_int_equal(opened(HTTP("{\"kind\": \"bm25\"}"), dense), KG_ECONFLICT);
    assert_int_equal(opened(SAYS("hybrid", "3"), any), KG_OK); /* not requested */
    assert_int_equal(server.served, 0);
}

/* A server of another program, one with invalid answers, or none: opening succeeds, and
 * the log says that the server could not be checked. */
static void a_server_that_does_not_say_is_taken(void **state)
{
    static const char *const answers[] = {
        HTTP("{\"status\": \"ok\"}"),
        HTTP("<html>"),
        HTTP("{\"kind\": 5, \"passages\": 3}"),
        HTTP("{\"kind\": \"dense\", \"passages\": -3}"),
        "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n",
        NULL,
    };
    const struct kg_search_how dense = {.kind = "dense", .model = "m", .passages = 3};

    (void)state;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        assert_int_equal(opened(answers[i], dense), KG_OK);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, make_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        T(an_index_answers),
        T(equal_queries_are_asked_once),
        T(the_oldest_answers_leave_the_cache),
        T(the_cache_is_bounded_in_bytes),
        T(without_a_cache_nothing_is_kept),
        T(many_queries_fit),
        T(an_answer_may_ask),
        T(closing_drops_what_waits),
        T(what_cannot_be_opened_is_named),
        T(wrong_answers_fail_with_what_was_found),
        T(a_wrong_document_fails_its_query_alone),
        T(half_answers_and_none_fail),
        T(a_huge_answer_fails),
        T(a_slow_server_fails_in_time),
        T(no_server_fails),
        T(no_memory_is_no_failed_search),
        T(more_than_was_asked_for_is_not_kept),
        T(both_shapes_of_answers_are_read),
        T(queries_go_out_in_batches),
        T(an_index_has_as_many_passages_as_are_expected),
        T(a_server_is_what_was_expected),
        T(a_server_that_does_not_say_is_taken),
    };
    return cmocka_run_group_tests_name("retriever", tests, NULL, NULL);
}
