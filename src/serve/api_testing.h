/* Shared by tests of the API without a server: a model whose tokens are digits, a
 * request, and checks that a request is accepted or refused.
 *
 * Included by *_test.c only. Failing helpers fail the test.
 */
#ifndef KG_SERVE_API_TESTING_H
#define KG_SERVE_API_TESTING_H

#include "serve/api.h"

#include "base/file.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define TEST_UNUSED __attribute__((unused))
#define DIGITS      "tests/data/verl_digit_llama"

static struct kg_api_request r;
static struct kg_api_fault fault;
static struct kg_err err;
static struct kg_tokenizer *tok;
static struct kg_chat_template *chat;

TEST_UNUSED static void need(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

TEST_UNUSED static int setup(void **state)
{
    (void)state;
    need(kg_tokenizer_open(&tok, DIGITS, &err));
    need(kg_chat_template_open(&chat, DIGITS, NULL, &err));
    return 0;
}

TEST_UNUSED static int teardown(void **state)
{
    (void)state;
    kg_tokenizer_close(tok);
    kg_chat_template_close(chat);
    return kg_mem_current_bytes() != 0;
}

TEST_UNUSED static int release(void **state)
{
    (void)state;
    kg_api_release(&r);
    return 0;
}

TEST_UNUSED static struct kg_api_model model(void)
{
    return (struct kg_api_model){
        .name = "digits", .tok = tok, .chat = chat, .vocab = 16, .max_len = 64};
}

TEST_UNUSED static kg_status parse(enum kg_api_kind kind, const char *body)
{
    kg_api_release(&r);
    return kg_api_parse(&r, &fault, kind, body, strlen(body), &err);
}

TEST_UNUSED static kg_status encode(enum kg_api_kind kind, const char *body)
{
    struct kg_api_model m = model();
    if (parse(kind, body) != KG_OK)
        fail_msg("%s: %s", body, err.message);
    return kg_api_encode(&r, &fault, &m, &err);
}

/* The request is refused; the error names this field and contains `part`. */
TEST_UNUSED static void refused(kg_status status, const char *param, const char *part)
{
    struct kg_str body = {0};
    struct kg_json_doc doc = {0};
    if (status == KG_OK || strstr(err.message, part) == NULL)
        fail_msg("expected '%s', got: %s", part, err.message);
    if (param && (fault.param == NULL || strcmp(fault.param, param) != 0))
        fail_msg("expected param %s, got %s: %s", param, fault.param, err.message);
    need(kg_api_put_error(&body, &fault, err.message, &err));
    need(kg_json_parse(&doc, body.data, body.len, "error", &err));
    assert_int_equal(kg_json_size(kg_json_get(doc.root, "error")), 4);
    kg_json_release(&doc);
    kg_str_release(&body);
}

TEST_UNUSED static void with_template(const char *text)
{
    kg_chat_template_close(chat);
    if (text)
        need(kg_chat_template_parse(&chat, text, strlen(text), "test", &err));
    else
        need(kg_chat_template_open(&chat, DIGITS, NULL, &err));
}

#endif
