/* Fuzz target: a request's head and body parse to the same result whether they are fed
 * whole or byte by byte. */
#include "net/http_parse.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

int kg_fuzz_http_parse(const uint8_t *bytes, size_t n);

enum { FUZZ_BODY = 4096 };

/* Feeds the body in steps of `step` bytes.   returns the status of the last step */
static int fuzz_feed(struct kg_http_chunks *c, struct kg_str *body, const char *data,
                     size_t n, size_t step)
{
    const char *why;
    for (size_t at = 0; at < n && c->state != KG_HTTP_CHUNK_DONE;) {
        size_t used;
        size_t take = n - at < step ? n - at : step;
        int status = kg_http_chunks_feed(c, body, FUZZ_BODY, data + at, take, &used,
                                         &why);
        if (status != 0)
            return status;
        if (used == 0 || used > take || body->len > FUZZ_BODY)
            abort();
        at += used;
    }
    return 0;
}

static void fuzz_body(const char *data, size_t n)
{
    struct kg_http_chunks a = {0};
    struct kg_http_chunks b = {0};
    struct kg_str one = {0};
    struct kg_str two = {0};
    int first = fuzz_feed(&a, &one, data, n, n + 1);
    int second = fuzz_feed(&b, &two, data, n, 1);
    if (first != second || (first == 0 && (a.state != b.state || one.len != two.len)))
        abort();
    if (first == 0 && memcmp(kg_str_text(&one), kg_str_text(&two), one.len) != 0)
        abort();
    kg_str_release(&one);
    kg_str_release(&two);
}

static size_t fuzz_length(const char *data, size_t n)
{
    size_t seen = 0;
    for (size_t i = 0; i <= n; i++) {
        size_t length = kg_http_head_length(data, i, &seen);
        if (length > 0)
            return length;
    }
    return 0;
}

int kg_fuzz_http_parse(const uint8_t *bytes, size_t n)
{
    struct kg_http_head h;
    struct kg_err err;
    const char *why = NULL;
    size_t seen = 0;
    char *data = kg_mem_copy(bytes, n, "input", &err);
    if (data == NULL)
        return 0;
    size_t length = kg_http_head_length(data, n, &seen);
    if (length != fuzz_length(data, n))
        abort();
    int status = length > 0 ? kg_http_head_parse(&h, data, length, &why) : 0;
    if (status != 0 && (status < 400 || status > 599 || why == NULL))
        abort();
    if (length > 0 && status == 0 && (h.path[0] != '/' || h.method[0] == '\0'))
        abort();
    fuzz_body(data + length, n - length);
    kg_mem_free(data);
    return 0;
}
