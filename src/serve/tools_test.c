/* Tests of tool calls: what counts as one, what a stream may send before that is known,
 * and which templates use this form of calls. */
#include "serve/tools.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define TEMPLATES "tests/data/chat_templates/"
#define CALL                                                                             \
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"1\"}}\n"                    \
    "</tool_call>"

static struct kg_err err;

static void need(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

/* ---- answers ---- */

/* Read byte by byte, the content only grows and ends as that of the whole text, and so do
 * the calls. */
static void check_stream(const char *text, size_t content_n, size_t calls)
{
    struct kg_tool_calls c = {0};
    size_t settled = 0;
    size_t n = strlen(text);
    for (size_t seen = 0; seen <= n; seen++) {
        need(kg_tool_calls_read(&c, text, seen, &err));
        assert_in_range(c.content_n, settled, content_n);
        settled = c.content_n;
    }
    need(kg_tool_calls_end(&c, text, n, &err));
    assert_int_equal(c.n, calls);
    assert_int_equal(c.content_n, content_n);
    kg_tool_calls_release(&c);
}

static void answer_has(const char *text, const char *content, size_t calls)
{
    struct kg_tool_calls c = {0};
    need(kg_tool_calls_end(&c, text, strlen(text), &err));
    if (c.n != calls || c.content_n != strlen(content) ||
        memcmp(text, content, c.content_n) != 0)
        fail_msg("%s: expected %zu calls behind '%s', found %zu behind %.*s", text, calls,
                 content, c.n, (int)c.content_n, text);
    for (size_t i = 0; i < c.n; i++) {
        assert_string_equal(kg_tool_call_name(&c, i), "f");
        assert_string_equal(
            kg_json_text(kg_json_get(kg_tool_call_arguments(&c, i), "a"), NULL), "1");
    }
    kg_tool_calls_release(&c);
    check_stream(text, strlen(content), calls);
}

static void an_answer_that_ends_with_calls_makes_them(void **state)
{
    (void)state;
    answer_has(CALL, "", 1);
    answer_has("Let me look.\n\n" CALL "\n" CALL " \n", "Let me look.", 2);
    answer_has(CALL CALL, "", 2);
    answer_has("  " CALL, "", 1);
    answer_has("<tool_call>{\"arguments\":{\"a\":\"1\"},\"name\":\"f\"}</tool_call>", "",
               1);
    /* text that is no call is content, with everything before it */
    answer_has("<tool_call>no</tool_call> " CALL, "<tool_call>no</tool_call>", 1);
    answer_has(CALL " hm " CALL, CALL " hm", 1);
    answer_has("a <b <tool_call> " CALL, "a <b <tool_call>", 1);
    answer_has("<tool_call>{<tool_call>{}</tool_call>" CALL,
               "<tool_call>{<tool_call>{}</tool_call>", 1);
    answer_has("<tool_call>" CALL, "<tool_call>", 1);
}

static void any_other_answer_stays_text(void **state)
{
    static const char *const texts[] = {
        "",
        " \n",
        "a < b",
        "two  spaces and <tool",
        CALL ".",
        CALL "\n<tool_call>\n{\"name\": \"f\"",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}",
        "<tool_call>{\"name\": \"f\"}</tool_call>",
        "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\\u0000g\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"id\": 1}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}},</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=a>1</parameter></function></tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": "
        "\"</tool_call>\"}}</tool_call>",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        answer_has(texts[i], texts[i], 0);
}

/* Work is linear in the length of the answer, however the answer ends. The time limit
 * allows far more than one look at each byte, and far less than one look at each call for
 * each token. */
static void many_calls_are_read_in_linear_time(void **state)
{
    enum { CALLS = 10000, TOKEN = 4 };
    struct kg_str text = {0};
    struct kg_tool_calls c = {0};
    clock_t before = clock();
    (void)state;
    for (int i = 0; i < CALLS; i++)
        need(kg_str_puts(&text, CALL " ", &err));
    for (size_t seen = 0; seen <= text.len; seen += TOKEN)
        need(kg_tool_calls_read(&c, text.data, seen, &err));
    need(kg_tool_calls_read(&c, text.data, text.len, &err));
    assert_int_equal(c.n, CALLS);
    need(kg_str_puts(&text, "and words, <tool_call> {", &err));
    need(kg_tool_calls_read(&c, text.data, text.len, &err));
    assert_int_equal(c.n, 0);
    for (int i = 0; i < CALLS; i++) {
        need(kg_str_puts(&text, "{<tool_call>{\"", &err));
        need(kg_tool_calls_read(&c, text.data, text.len, &err));
    }
    need(kg_tool_calls_end(&c, text.data, text.len, &err));
    assert_int_equal(c.content_n, text.len);
    assert_true((double)(clock() - before) / CLOCKS_PER_SEC < 5);
    kg_tool_calls_release(&c);
    kg_str_release(&text);
}

/* ---- templates ---- */

static bool known(const char *path)
{
    struct kg_chat_template *chat = NULL;
    struct kg_tokenizer *tok = NULL;
    bool yes;
    if (path)
        need(kg_chat_template_open(&chat, path, NULL, &err));
    need(kg_tokenizer_open(&tok, "tests/data/verl_digit_llama", &err));
    need(kg_tool_calls_known(&yes, chat, tok, &err));
    kg_chat_template_close(chat);
    kg_tokenizer_close(tok);
    return yes;
}

static void the_form_is_known_by_rendering_a_call(void **state)
{
    (void)state;
    assert_true(known(TEMPLATES "Qwen-Qwen2.5-7B-Instruct.jinja"));
    assert_true(known(TEMPLATES "Qwen-Qwen3-0.6B.jinja"));
    assert_true(known(TEMPLATES "Qwen-Qwen3-30B-A3B.jinja"));
    assert_false(known(TEMPLATES "Qwen-Qwen1.5-72B-Chat.jinja"));
    assert_false(known(TEMPLATES "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja"));
    assert_false(known(NULL));
}

/* ---- messages ---- */

static kg_status put(struct kg_str *out, const char *json)
{
    struct kg_json_doc doc = {0};
    need(kg_json_parse(&doc, json, strlen(json), "calls", &err));
    kg_str_clear(out);
    kg_status status = kg_tool_calls_put(out, doc.root, &err);
    kg_json_release(&doc);
    return status;
}

static void arguments_become_objects(void **state)
{
    struct kg_str out = {0};
    static const char expected[] =
        "[{\"id\":\"x\",\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"arguments\":{\"a\":[1,\"\xc3\xa9\"]}}}]";
    (void)state;
    need(put(&out, "[{\"id\":\"x\",\"type\":\"function\",\"function\":{\"name\":\"f\","
                   "\"arguments\":\"{\\\"a\\\": [1, \\\"\\u00e9\\\"]}\"}}]"));
    assert_string_equal(kg_str_text(&out), expected);
    need(put(&out, expected));
    assert_string_equal(kg_str_text(&out), expected);
    assert_int_equal(put(&out, "{}"), KG_EINVAL);
    assert_int_equal(put(&out, "[{}]"), KG_EINVAL);
    assert_int_equal(put(&out, "[7]"), KG_EINVAL);
    assert_int_equal(put(&out, "[{\"function\":{\"arguments\":\"{}\"}}]"), KG_EINVAL);
    assert_int_equal(put(&out, "[{\"function\":{\"name\":\"f\\u0000\"}}]"), KG_EINVAL);
    kg_str_release(&out);
}

/* vLLM since pull request 48922 handles arguments in a history in this way. */
static void arguments_of_no_use_are_none(void **state)
{
    static const struct {
        const char *given, *taken; /* taken: NULL if refused */
    } rows[] = {
        {"\"\"", "{}"},
        {"\" \\n\"", "{}"},
        {"null", "{}"},
        {"\"null\"", "{}"},
        {"\"{\"", "{}"},
        {"\"{\\\"path\\\": \\\"/var/a\"", "{}"},
        {"\"{\\\"a\\\": 1} and more\"", "{}"},
        {"\"{'a': 1}\"", "{}"},
        {"\"{\\\"a\\\": \\\"x\\ny\\\"}\"", "{}"}, /* a line break in a string */
        {"\"get_weather\"", "{}"},
        {"\"{}\"", "{}"},
        {"{}", "{}"},
        {"\"{\\\"a\\\": 1}\"", "{\"a\":1}"},
        {"{\"a\": null}", "{\"a\":null}"},
        {"\"[1]\"", NULL},
        {"\"\\\"Bern\\\"\"", NULL},
        {"\"7\"", NULL},
        {"[1]", NULL},
        {"true", NULL},
    };
    struct kg_str out = {0};
    char call[128], expected[128];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(call, sizeof call, "[{\"function\":{\"name\":\"f\",\"arguments\":%s}}]",
                 rows[i].given);
        kg_status status = put(&out, call);

        assert_int_equal(status, rows[i].taken ? KG_OK : KG_EINVAL);
        if (!rows[i].taken) {
            assert_non_null(strstr(err.message, "call 0: arguments: expected an object"));
            continue;
        }
        snprintf(expected, sizeof expected,
                 "[{\"function\":{\"name\":\"f\",\"arguments\":%s}}]", rows[i].taken);
        assert_string_equal(kg_str_text(&out), expected);
    }
    need(put(&out, "[{\"function\":{\"name\":\"f\"}}]"));
    assert_string_equal(kg_str_text(&out),
                        "[{\"function\":{\"name\":\"f\",\"arguments\":{}}}]");
    kg_str_release(&out);
}

static void memory_that_runs_out_is_a_status(void **state)
{
    uint64_t before = kg_mem_current_bytes();
    kg_status status = KG_ENOMEM;
    (void)state;
    for (uint64_t n = 1; status == KG_ENOMEM; n++) {
        struct kg_tool_calls c = {0};
        kg_mem_fail_at(n);
        status = kg_tool_calls_end(&c, CALL CALL, 2 * (sizeof CALL - 1), &err);
        kg_mem_fail_at(0);
        assert_int_equal(c.n, status == KG_OK ? 2 : 0);
        kg_tool_calls_release(&c);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
    need(status);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_that_ends_with_calls_makes_them),
        cmocka_unit_test(any_other_answer_stays_text),
        cmocka_unit_test(many_calls_are_read_in_linear_time),
        cmocka_unit_test(the_form_is_known_by_rendering_a_call),
        cmocka_unit_test(arguments_become_objects),
        cmocka_unit_test(arguments_of_no_use_are_none),
        cmocka_unit_test(memory_that_runs_out_is_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
