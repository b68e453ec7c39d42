/* Tests of the HTTP parser. */
#include "net/http_parse.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct kg_http_head head;
static char data[1 << 14];

static int parse(const char *text)
{
    const char *why = NULL;
    size_t seen = 0;
    size_t n = strlen(text);
    memcpy(data, text, n + 1);
    assert_int_equal(kg_http_head_length(data, n, &seen), n);
    int status = kg_http_head_parse(&head, data, n, &why);
    if (status != 0)
        assert_non_null(why);
    return status;
}

static void a_head_is_read(void **state)
{
    (void)state;
    assert_int_equal(parse("POST /v1/models/a%2Fb%20c?x=1&y HTTP/1.1\r\nHost: h\r\n"
                           "content-LENGTH:  12 \t\r\nX-Empty:\r\n\r\n"),
                     0);
    assert_string_equal(head.method, "POST");
    assert_string_equal(head.path, "/v1/models/a/b c");
    assert_string_equal(head.query, "x=1&y");
    assert_int_equal(head.length, 12);
    assert_true(head.keep_alive);
    assert_string_equal(kg_http_head_field(&head, "Host"), "h");
    assert_string_equal(kg_http_head_field(&head, "x-empty"), "");
    assert_null(kg_http_head_field(&head, "accept"));
}

static void a_target_may_name_its_host(void **state)
{
    static const struct {
        const char *target, *host, *path, *query;
    } cases[] = {
        {"/x?y", "a", "/x", "y"},
        {"http://b:80/x?y", "b:80", "/x", "y"},
        {"HTTPS://[::1]:8/%41", "[::1]:8", "/A", ""},
        {"http://b", "b", "/", ""},
        {"http://b?y", "b", "/", "y"},
        {"http://b/?http://c/", "b", "/", "http://c/"},
    };
    char text[256];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n",
                 cases[i].target);
        assert_int_equal(parse(text), 0);
        assert_string_equal(head.host, cases[i].host);
        assert_string_equal(head.path, cases[i].path);
        assert_string_equal(head.query, cases[i].query);
    }
    assert_int_equal(parse("GET / HTTP/1.0\r\n\r\n"), 0);
    assert_null(head.host);
}

static void the_connection_field_and_the_version_say_whether_it_goes_on(void **state)
{
    (void)state;
    assert_int_equal(parse("GET / HTTP/1.0\r\n\r\n"), 0);
    assert_true(head.old && !head.keep_alive);
    assert_int_equal(parse("GET / HTTP/1.1\r\nHost:\r\nConnection: x, Close\r\n\r\n"), 0);
    assert_false(head.keep_alive);
    assert_int_equal(parse("GET / HTTP/1.1\r\nHost:\r\nConnection: closed\r\n\r\n"), 0);
    assert_true(head.keep_alive);
}

static const struct refusal {
    int status;
    const char *text;
} refusals[] = {
    {400, "GET / HTTP/1.1\nHost: a\n\n"},
    {400, "GET /\r\nHost: a\r\n\r\n"},
    {400, " / HTTP/1.1\r\nHost: a\r\n\r\n"},
    {400, "G(T / HTTP/1.1\r\nHost: a\r\n\r\n"},
    {400, "GET x HTTP/1.1\r\nHost: a\r\n\r\n"},
    {400, "GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n"},
    {400, "GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n"},
    {400, "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n"},
    {400, "GET http://a\001/ HTTP/1.1\r\nHost: a\r\n\r\n"},
    {400, "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n"},
    {400, "GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n"},
    {400, "GET /%2 HTTP/1.1\r\nHost: a\r\n\r\n"},
    {400, "GET /a\001b HTTP/1.1\r\nHost: a\r\n\r\n"},
    {400, "GET / XTTP/1.1\r\nHost: a\r\n\r\n"},
    {505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\nHost : a\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\nY: b\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n"},
    {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: "
          "chunked\r\n\r\n"},
    {400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"},
    {501, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"},
    {417, "POST / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n"},
};

static void what_could_be_read_in_two_ways_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        int status = parse(refusals[i].text);
        if (status != refusals[i].status)
            fail_msg("expected %d, got %d: %s", refusals[i].status, status,
                     refusals[i].text);
    }
}

static void too_many_fields_are_refused(void **state)
{
    char text[4096] = "GET / HTTP/1.1\r\nHost: a\r\n";
    (void)state;
    for (int i = 0; i < KG_HTTP_MAX_FIELDS; i++)
        strcat(text, "X: y\r\n");
    strcat(text, "\r\n");
    assert_int_equal(parse(text), 431);
}

static void the_end_of_a_head_is_found_in_pieces(void **state)
{
    static const char text[] = "GET / HTTP/1.1\r\nHost: a\r\n\r\nBODY";
    size_t seen = 0;
    size_t n = sizeof text - 1;
    (void)state;
    for (size_t i = 0; i < n - 4; i++)
        assert_int_equal(kg_http_head_length(text, i, &seen), 0);
    assert_int_equal(kg_http_head_length(text, n, &seen), n - 4);
}

/* Mixed and bare line ends too: the end is reported exactly when the last byte
 * arrives. */
static void the_end_of_an_empty_head_is_found_as_it_comes(void **state)
{
    static const char *const heads[] = {"\n\n", "\n\r\n", "\r\n\n", "\r\n\r\n"};
    (void)state;
    for (size_t h = 0; h < sizeof heads / sizeof *heads; h++) {
        size_t n = strlen(heads[h]), seen = 0;
        for (size_t i = 0; i <= n; i++)
            assert_int_equal(kg_http_head_length(heads[h], i, &seen), i == n ? n : 0);
    }
}

/* Feeds the text byte by byte.   returns the status */
static int feed(struct kg_http_chunks *c, struct kg_str *body, const char *text,
                size_t max)
{
    const char *why = NULL;
    size_t used;
    int status = 0;
    *c = (struct kg_http_chunks){0};
    kg_str_clear(body);
    for (; *text && status == 0; text++)
        status = kg_http_chunks_feed(c, body, max, text, 1, &used, &why);
    return status;
}

static void chunks_are_put_together(void **state)
{
    struct kg_http_chunks c;
    struct kg_str body = {0};
    (void)state;
    assert_int_equal(
        feed(&c, &body, "3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nT: x\r\n\r\n", 13), 0);
    assert_int_equal(c.state, KG_HTTP_CHUNK_DONE);
    assert_string_equal(kg_str_text(&body), "abc0123456789");
    assert_int_equal(feed(&c, &body, "3\r\nabc\r\n1\r\nd\r\n", 3), 413);
    assert_int_equal(feed(&c, &body, "fffffffffffffffff\r\n", 3), 413);
    assert_int_equal(feed(&c, &body, "\r\n", 3), 400);
    assert_int_equal(feed(&c, &body, "g\r\n", 3), 400);
    assert_int_equal(feed(&c, &body, "3\nabc\r\n", 3), 400);
    assert_int_equal(feed(&c, &body, "3\r\nabcd\r\n", 9), 400);
    assert_int_equal(feed(&c, &body, "-1\r\n", 3), 400);
    kg_str_release(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_is_read),
        cmocka_unit_test(a_target_may_name_its_host),
        cmocka_unit_test(the_connection_field_and_the_version_say_whether_it_goes_on),
        cmocka_unit_test(what_could_be_read_in_two_ways_is_refused),
        cmocka_unit_test(too_many_fields_are_refused),
        cmocka_unit_test(the_end_of_a_head_is_found_in_pieces),
        cmocka_unit_test(the_end_of_an_empty_head_is_found_as_it_comes),
        cmocka_unit_test(chunks_are_put_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
