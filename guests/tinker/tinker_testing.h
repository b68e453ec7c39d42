/* Shared by the tests of Tinker's API: a server for the digit model in this process, and
 * requests to it.
 *
 * Included by *_test.c only. Failing helpers fail the test.
 */
#ifndef KG_TINKER_TESTING_H
#define KG_TINKER_TESTING_H

#include "tinker/tinker.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/need_testing.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DIGITS      "tests/data/verl_digit_llama"
#define TEST_UNUSED __attribute__((unused))

static struct kg_model *model;
static struct kg_tokenizer *tok;
static struct kg_tinker *server;

TEST_UNUSED static int load_digits(void **state)
{
    const struct kg_model_opts opts = {.ct = KG_F32};
    (void)state;
    NEED(kg_model_open(&model, DIGITS, &opts, err));
    NEED(kg_tokenizer_open(&tok, DIGITS, err));
    NEED(kg_model_config_add_eos(&model->config, kg_tokenizer_eos(tok), err));
    return 0;
}

TEST_UNUSED static int free_digits(void **state)
{
    (void)state;
    kg_model_free(model);
    kg_tokenizer_close(tok);
    return 0;
}

TEST_UNUSED static void start(const char *dir, const char *key)
{
    const struct kg_serve_opts opts = {
        .model = model, .tok = tok, .name = "digits", .max_len = 64, .bearer_key = key};
    NEED(kg_file_remove_tree(dir, err));
    NEED(kg_tinker_open(&server, &opts, dir, err));
}

/* Header line with a user's key, for all requests without their own header. */
static const char *whose = "";

struct answer {
    int status;
    struct kg_str body;
};

/* Sends a request; header: a line, or "".   returns the connection */
TEST_UNUSED static int send_with(const char *header, const char *method, const char *path,
                                 const void *body, size_t n)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)kg_tinker_port(server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct kg_str text = {0};
    ssize_t more;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    NEED(kg_str_printf(&text, err,
                       "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s"
                       "Content-Length: %zu\r\n\r\n",
                       method, path, header, n));
    NEED(kg_str_append(&text, body, n, err));
    for (size_t sent = 0; sent < text.len; sent += (size_t)more) {
        more = send(fd, text.data + sent, text.len - sent, 0);
        assert_true(more > 0);
    }
    kg_str_release(&text);
    return fd;
}

/* Reads the reply until the server closes. */
TEST_UNUSED static void hear(struct answer *a, int fd)
{
    struct kg_str got = {0};
    char piece[4096];
    ssize_t more;
    while ((more = recv(fd, piece, sizeof piece, 0)) > 0)
        NEED(kg_str_append(&got, piece, (size_t)more, err));
    close(fd);
    const char *end = strstr(kg_str_text(&got), "\r\n\r\n");
    assert_non_null(end);
    a->status = atoi(got.data + strlen("HTTP/1.1 "));
    kg_str_clear(&a->body);
    NEED(kg_str_append(&a->body, end + 4, got.len - (size_t)(end + 4 - got.data), err));
    kg_str_release(&got);
}

TEST_UNUSED static void ask_with(struct answer *a, const char *header, const char *method,
                                 const char *path, const void *body, size_t n)
{
    hear(a, send_with(header, method, path, body, n));
}

TEST_UNUSED static void ask(struct answer *a, const char *method, const char *path,
                            const void *body, size_t n)
{
    ask_with(a, whose, method, path, body, n);
}

/* Sends a POST below /api/v1/. */
TEST_UNUSED static void post(struct answer *a, const char *path, const char *body)
{
    char whole[128];
    snprintf(whole, sizeof whole, "/api/v1/%s", path);
    ask(a, "POST", whole, body, strlen(body));
}

/* The value of a string member of a JSON object. */
TEST_UNUSED static void text_of(char *to, size_t n, const struct answer *a,
                                const char *key)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\": \"", key);
    const char *at = strstr(kg_str_text(&a->body), quoted);
    if (!at) {
        fail_msg("expected %s in %s", key, kg_str_text(&a->body));
        return;
    }
    snprintf(to, n, "%.*s", (int)strcspn(at + strlen(quoted), "\""), at + strlen(quoted));
}

/* Waits for the result of a future. */
TEST_UNUSED static void retrieve(struct answer *a, const char *id)
{
    char body[64];
    snprintf(body, sizeof body, "{\"request_id\": \"%s\"}", id);
    do
        post(a, "retrieve_future", body);
    while (a->status == 408);
}

#endif
