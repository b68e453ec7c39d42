/* Tests of how a record becomes its prompt: each setting applies or is refused, special
 * tokens follow one rule, and prompts of real templates equal those of
 * apply_chat_template. */
#define _GNU_SOURCE /* mkdtemp */
#include "text/prompt.h"

#include "base/file.h"
#include "base/need_testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENIZERS "../shared/data/tokenizers/"
#define TEMPLATES  "../shared/data/chat_templates/"

static const char TURNS[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
                            "{% endfor %}"
                            "{% if add_generation_prompt %}[assistant]{% endif %}";
static const char PAIR[] = "[{\"role\": \"system\", \"content\": \"be brief\"}, "
                           "{\"role\": \"user\", \"content\": \"1+1\"}]";
static const char SINGLE[] = "[{\"role\": \"user\", \"content\": \"1+1\"}]";

static struct kg_chat_template *chat;
static struct kg_err failed;

static int set_up(void **state)
{
    (void)state;
    return kg_chat_template_parse(&chat, TURNS, sizeof TURNS - 1, "t", &failed);
}

static int tear_down(void **state)
{
    (void)state;
    kg_chat_template_close(chat);
    return 0;
}

/* A prompt that begins with [ is a list of messages. */
static kg_status make(struct kg_str *out, bool *rendered, const char *prompt,
                      const struct kg_prompt_opts *how)
{
    struct kg_prompt_source from = {.text = prompt, .n = strlen(prompt)};
    struct kg_json_doc doc = {0};
    kg_status status;

    kg_str_clear(out);
    if (*prompt == '[') {
        assert_int_equal(kg_json_parse(&doc, prompt, strlen(prompt), "p", &failed),
                         KG_OK);
        from = (struct kg_prompt_source){.messages = doc.root};
    }
    status = kg_prompt_put(out, rendered, &from, how, &failed);
    kg_json_release(&doc);
    return status;
}

/* prefix: not NULL uses `chat` as the chat template */
static const struct setting {
    const char *prompt;
    struct kg_prompt_opts how;
    const char *text; /* NULL: refused with `why` */
    const char *why;
    bool rendered;
} settings[] = {
    {"1+1", {0}, "1+1", NULL, false},
    {"1+1", {.template_text = "Q: {prompt}!"}, "Q: 1+1!", NULL, false},
    {"1+1", {.template_text = "Q"}, NULL, "p.template: expected a text", false},
    {"1+1", {.prefix = "t"}, "1+1", NULL, false},
    {"1+1", {.prefix = "t", .user_turn = true}, "[user]1+1[assistant]", NULL, true},
    {"1+1", {.user_turn = true}, NULL, "p.user_turn: expected a chat template", false},
    {"1+1",
     {.prefix = "t", .user_turn = true, .template_text = "<{prompt}>", .system = "s"},
     "[system]s[user]<1+1>[assistant]",
     NULL,
     true},
    {"1+1",
     {.prefix = "t", .chat_named = true},
     NULL,
     "p.chat_template: expected a list of messages as prompt, found text; "
     "p.user_turn=true",
     false},
    {"1+1", {.prefix = "t", .system = "s"}, NULL, "p.system: expected a list", false},
    {"1+1", {.prefix = "t", .opening = "o"}, NULL, "p.opening: expected a list", false},
    {"1+1", {.system = "s"}, NULL, "p.system: expected a chat template", false},
    {"1+1", {.opening = "s"}, NULL, "p.opening: expected a chat template", false},
    {"1+1",
     {.prefix = "t", .user_turn = true, .opening = "<think>"},
     "[user]1+1[assistant]<think>",
     NULL,
     true},
    {"1+1",
     {.prefix = "t", .user_turn = true, .opening = "[assistant]"},
     "[user]1+1[assistant]",
     NULL,
     true},
    {SINGLE, {0}, "1+1", NULL, false},
    {SINGLE, {.prefix = "t"}, "[user]1+1[assistant]", NULL, true},
    {SINGLE, {.prefix = "t", .template_text = "Q: {prompt}!"}, "Q: 1+1!", NULL, false},
    {SINGLE,
     {.prefix = "t", .template_text = "Q: {prompt}!", .user_turn = true},
     "[user]Q: 1+1![assistant]",
     NULL,
     true},
    {SINGLE,
     {.prefix = "t", .system = "s", .chat_named = true},
     "[system]s[user]1+1[assistant]",
     NULL,
     true},
    {PAIR, {0}, NULL, "found 2 messages and no template", false},
    {PAIR, {.prefix = "t"}, "[system]be brief[user]1+1[assistant]", NULL, true},
    {PAIR,
     {.prefix = "t", .user_turn = true},
     "[system]be brief[user]1+1[assistant]",
     NULL,
     true},
    {PAIR, {.prefix = "t", .system = "s"}, NULL, "a system prompt of their own", false},
    {PAIR,
     {.prefix = "t", .template_text = "{prompt}?"},
     NULL,
     "p.template: expected one prompt",
     false},
    {"[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"1\"}, "
     "{\"type\": \"text\", \"text\": \"2\"}]}]",
     {.prefix = "t"},
     "[user]1\n2[assistant]",
     NULL,
     true},
    {"[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"1\"}]}]",
     {0},
     "1",
     NULL,
     false},
    {"[{\"role\": \"user\", \"content\": \"a\\u0000b\"}]",
     {.prefix = "t"},
     NULL,
     "without NUL",
     false},
};

static void every_setting_applies_or_is_refused(void **state)
{
    struct kg_str out = {0};

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const struct setting *row = &settings[i];
        struct kg_prompt_opts how = row->how;
        bool rendered = false;
        kg_status status;

        how.chat = how.prefix ? chat : NULL;
        how.prefix = "p.";
        status = make(&out, &rendered, row->prompt, &how);
        if (!row->text) {
            assert_int_not_equal(status, KG_OK);
            assert_non_null(strstr(failed.message, row->why));
            continue;
        }
        assert_int_equal(status, KG_OK);
        assert_string_equal(kg_str_text(&out), row->text);
        assert_int_equal(rendered, row->rendered);
    }
    kg_str_release(&out);
}

static void the_chat_template_is_chosen(void **state)
{
    static const char file[] = "tests/data/chat_templates/Qwen-Qwen3-0.6B.jinja";
    struct kg_prompt_opts how = {0}, text = {.template_text = "Q: {prompt}"};
    struct kg_chat_template *t;

    (void)state;
    NEED(kg_prompt_choose(&t, &how, "auto", "tests/data/models", err));
    assert_null(t); /* a folder without a template */
    NEED(kg_prompt_choose(&t, &how, "none", "absent", err));
    assert_null(t);
    assert_false(how.chat_named);
    NEED(kg_prompt_choose(&t, &text, "auto", "absent", err));
    assert_null(t); /* all prompts are text, so none is searched for */
    assert_int_equal(kg_prompt_choose(&t, &how, "absent.jinja", ".", &failed),
                     KG_ENOTFOUND);
    NEED(kg_prompt_choose(&t, &how, file, ".", err));
    assert_non_null(t);
    assert_true(how.chat == t && how.chat_named);
    kg_chat_template_close(t);
}

/* A template from a separate file uses the model's special tokens, such as BOS. */
static void a_template_from_a_file_knows_the_special_tokens(void **state)
{
    const struct kg_prompt_source from = {.text = "q", .n = 1};
    struct kg_prompt_opts how = {.user_turn = true};
    struct kg_chat_template *t;
    struct kg_str out = {0};
    char dir[] = "/tmp/kedge-prompt-XXXXXX", file[64];
    bool rendered;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/tokenizer_config.json", dir);
    NEED(kg_file_write_atomic(file, "{\"bos_token\": \"<s>\"}", 20, err));
    snprintf(file, sizeof file, "%s/x.jinja", dir);
    NEED(kg_file_write_atomic(file, "{{ bos_token }}{{ messages[0].content }}", 40, err));
    NEED(kg_prompt_choose(&t, &how, file, dir, err));
    NEED(kg_prompt_put(&out, &rendered, &from, &how, err));
    assert_string_equal(kg_str_text(&out), "<s>q");
    kg_chat_template_close(t);
    kg_str_release(&out);
    NEED(kg_file_remove_tree(dir, err));
}

/* ---- tokens ---- */

/* A template that uses the day gets the given day, or the clock's if none is given. With
 * a template that does not use the day, a given day is refused. */
static void a_prompt_has_the_day_that_is_given(void **state)
{
    static const char dated[] = "{% if strftime_now is defined %}{{ strftime_now('%d %b "
                                "%Y') }}{% else %}never{% endif %}: {{ "
                                "messages[-1].content }}";
    struct kg_prompt_opts how = {.prefix = "data.", .user_turn = true};
    const struct kg_chat_day today = kg_chat_today();
    struct kg_chat_template *t;
    struct kg_str out = {0};
    bool rendered;

    (void)state;
    NEED(kg_chat_template_parse(&t, dated, sizeof dated - 1, "t", err));
    how.chat = t;
    how.date = "2026-11-29";
    assert_int_equal(make(&out, &rendered, "1+1", &how), KG_OK);
    assert_string_equal(kg_str_text(&out), "29 Nov 2026: 1+1");
    assert_int_equal(make(&out, &rendered, SINGLE, &how), KG_OK);
    assert_string_equal(kg_str_text(&out), "29 Nov 2026: 1+1");
    how.date = "";
    assert_int_equal(make(&out, &rendered, "1+1", &how), KG_OK);
    assert_null(strstr(kg_str_text(&out), "never"));
    assert_int_equal(strlen(today.text), 10);
    how.date = "29.11.2026";
    assert_int_equal(make(&out, &rendered, "1+1", &how), KG_EINVAL);
    assert_string_equal(failed.message,
                        "data.date: expected a day as YYYY-MM-DD, found '29.11.2026'");
    how.date = "2026-11-29";
    how.chat = chat;
    assert_int_equal(make(&out, &rendered, "1+1", &how), KG_EINVAL);
    assert_string_equal(failed.message,
                        "data.date: expected a chat template that uses the date "
                        "(strftime_now), found one that does not");
    how = (struct kg_prompt_opts){.prefix = "--", .date = "2026-11-29"};
    assert_int_equal(make(&out, &rendered, "1+1", &how), KG_EINVAL);
    assert_non_null(strstr(failed.message, "--date: expected a chat template that uses"));
    kg_chat_template_close(t);
    kg_str_release(&out);
}

static void special_tokens_go_to_text_alone_unless_said(void **state)
{
    (void)state;
    assert_int_equal(kg_special_named("auto"), KG_SPECIAL_AUTO);
    assert_int_equal(kg_special_named("true"), KG_SPECIAL_ADD);
    assert_int_equal(kg_special_named("false"), KG_SPECIAL_NONE);
    assert_true(kg_special_adds(KG_SPECIAL_AUTO, false));
    assert_false(kg_special_adds(KG_SPECIAL_AUTO, true));
    assert_true(kg_special_adds(KG_SPECIAL_ADD, true));
    assert_false(kg_special_adds(KG_SPECIAL_NONE, false));
}

static void a_prompt_is_shown_with_what_was_added(void **state)
{
    static const char text[] = "What is\n1+1?";
    struct kg_tokenizer *tok;
    struct kg_ids ids = {0};
    struct kg_str out = {0};

    (void)state;
    if (!kg_file_exists(TOKENIZERS "llama3/tokenizer.model")) {
        print_message("no tokenizer of Llama 3 at " TOKENIZERS "\n");
        skip();
    }
    NEED(kg_tokenizer_open(&tok, TOKENIZERS "llama3", err));
    NEED(kg_prompt_encode(&ids, tok, text, sizeof text - 1, false, KG_SPECIAL_AUTO, err));
    NEED(kg_prompt_show(&out, tok, &ids, false, KG_SPECIAL_AUTO, "  ", 1000, err));
    assert_string_equal(kg_str_text(&out), "8 tokens, text, <|begin_of_text|> added\n"
                                           "  | <|begin_of_text|>What is\n  | 1+1?");
    kg_str_clear(&out);
    NEED(kg_prompt_show(&out, tok, &ids, true, KG_SPECIAL_AUTO, "  ", 20, err));
    assert_string_equal(kg_str_text(&out),
                        "8 tokens, rendered by the chat template\n"
                        "  | <|begin_of\n  .. 9 bytes ..\n  | at is\n  | 1+1?");
    kg_ids_release(&ids);
    kg_str_release(&out);
    kg_tokenizer_close(tok);
}

/* ---- real templates ---- */

/* Expected texts are those of apply_chat_template for one user turn, with the opening
 * added where the template writes none. */
static void prompts_of_real_templates(void **state)
{
    static const struct {
        const char *file, *system, *opening, *text;
    } rows[] = {
        {"Qwen-Qwen2.5-7B-Instruct.jinja", "", "",
         "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
         "assistant.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant"
         "\n"},
        {"Qwen-Qwen2.5-7B-Instruct.jinja", "Be brief.", "",
         "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
         "<|im_start|>assistant\n"},
        {"DeepSeek-R1-Distill-Qwen-14B.jinja", "", "<think>\n",
         "<｜User｜>1+1?<｜Assistant｜><think>\n"},
        {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja", "", "<think>\n",
         "<｜User｜>1+1?<｜Assistant｜><think>\n"},
    };
    struct kg_str out = {0};

    (void)state;
    if (!kg_file_exists(TEMPLATES "Qwen-Qwen2.5-7B-Instruct.jinja")) {
        print_message("no chat templates at " TEMPLATES "\n");
        skip();
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_prompt_opts how = {
            .user_turn = true, .system = rows[i].system, .opening = rows[i].opening};
        struct kg_chat_template *t;
        char path[200];
        bool rendered;

        snprintf(path, sizeof path, "%s%s", TEMPLATES, rows[i].file);
        NEED(kg_prompt_choose(&t, &how, path, ".", err));
        assert_int_equal(make(&out, &rendered, "1+1?", &how), KG_OK);
        assert_string_equal(kg_str_text(&out), rows[i].text);
        kg_chat_template_close(t);
    }
    kg_str_release(&out);
}

/* ---- messages ---- */

/* Like Qwen3's template: a message with a role that it does not know is left out. */
static const char KNOWS[] =
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant', 'tool'] %}"
    "[{{ m.role }}]{{ m.content if m.content is string else '' }}"
    "{% for c in m.tool_calls %}({{ c.function.name }}){% endfor %}"
    "{% endif %}{% endfor %}{% if tools %}{{ tools | length }} tools{% endif %}";
static const char DEAF[] =
    "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}"
    "[{{ m.role }}]{{ m.content.split('</think>')[-1] }}"
    "{% endif %}{% endfor %}";

static kg_status talk(struct kg_str *out, const char *template_text, const char *json,
                      const char *system)
{
    struct kg_chat_template *t = NULL;
    struct kg_json_doc doc = {0};
    struct kg_conversation c = {.system = system};
    kg_status status;

    kg_str_clear(out);
    NEED(kg_chat_template_parse(&t, template_text, strlen(template_text), "t", err));
    NEED(kg_json_parse(&doc, json, strlen(json), "p", err));
    c.messages = kg_json_get(doc.root, "m");
    c.tools = kg_json_get(doc.root, "tools");
    c.n = kg_json_size(c.messages);
    status = kg_conversation_render(out, &c, t, &failed);
    kg_json_release(&doc);
    kg_chat_template_close(t);
    return status;
}

static const struct said {
    const char *template_text;
    const char *system;
    const char *json;
    const char *text; /* NULL: refused with `why` */
    const char *why;
} said[] = {
    {KNOWS, NULL, "{\"m\": [5]}", NULL, "message 0: expected an object, found integer"},
    {KNOWS, NULL, "{\"m\": [{\"rol\": \"user\", \"content\": \"q\"}]}", NULL,
     "message 0: role: expected a string, found null"},
    {KNOWS, NULL, "{\"m\": [{\"role\": \"user\", \"content\": null}]}", NULL,
     "content: expected a string or an array of text parts, found null"},
    {KNOWS, NULL, "{\"m\": [{\"role\": \"user\", \"content\": 7}]}", NULL,
     "found integer"},
    {KNOWS, NULL, "{\"m\": [{\"role\": \"user\", \"content\": {}}]}", NULL,
     "found object"},
    {KNOWS, NULL, "{\"m\": [{\"role\": \"user\", \"content\": []}]}", NULL,
     "found an empty one"},
    {KNOWS, NULL, "{\"m\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
     NULL,
     "message 0: content part 0: expected {\"type\": \"text\", \"text\": ...}, found "
     "type "
     "image"},
    {KNOWS, NULL,
     "{\"m\": [{\"role\": \"user\", \"content\": \"q\"}, "
     "{\"role\": \"usr\", \"content\": \"What is 2+2?\"}]}",
     NULL,
     "message 1: expected a chat template that writes the text of role 'usr', found one "
     "that leaves it out"},
    /* a message is found by its own marks, even if another has the same text */
    {KNOWS, NULL,
     "{\"m\": [{\"role\": \"user\", \"content\": \"q\"}, "
     "{\"role\": \"usr\", \"content\": \"q\"}]}",
     NULL, "message 1: expected"},
    {KNOWS, "s", "{\"m\": [{\"role\": \"usr\", \"content\": \"q\"}]}", NULL,
     "message 0: expected"},
    {KNOWS, NULL, "{\"m\": [{\"role\": \"usr\", \"content\": \" \"}]}", "", NULL},
    {KNOWS, NULL, "{\"m\": [{\"role\": \"developer\", \"content\": \"d\"}]}", "[system]d",
     NULL},
    {"{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", NULL,
     "{\"m\": [{\"role\": \"developer\", \"content\": \"d\"}]}", "[developer]d", NULL},
    {DEAF, NULL, "{\"m\": [{\"role\": \"developer\", \"content\": \"d\"}]}", NULL,
     "message 0: expected a chat template that writes the text of role 'developer'"},
    {DEAF, "s", "{\"m\": [{\"role\": \"user\", \"content\": \"q\"}]}", NULL,
     "expected a chat template with a place for a system prompt"},
    /* a text that the template writes in part is accepted */
    {DEAF, NULL,
     "{\"m\": [{\"role\": \"assistant\", \"content\": \"<think>x</think>y\"}]}",
     "[assistant]y", NULL},
    {DEAF, NULL,
     "{\"m\": [{\"role\": \"assistant\", \"content\": \"<think>x</think>\"}]}",
     "[assistant]", NULL},
    {KNOWS, NULL,
     "{\"m\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": "
     "[{\"function\": {\"name\": \"f\"}}]}], \"tools\": [1]}",
     "[assistant](f)1 tools", NULL},
    {DEAF, NULL,
     "{\"m\": [{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": "
     "[{\"function\": {\"name\": \"f\"}}]}]}",
     NULL, "tool_calls: expected a chat template"},
    {DEAF, NULL, "{\"m\": [{\"role\": \"user\", \"content\": \"q\"}], \"tools\": [1]}",
     NULL, "tools: the model's chat template does not support tools"},
    {DEAF, NULL, "{\"m\": [{\"role\": \"user\", \"content\": \"q\"}], \"tools\": []}",
     "[user]q", NULL},
    {KNOWS, NULL, "{\"m\": [{\"role\": \"user\", \"content\": \"q\"}], \"tools\": []}",
     "[user]q", NULL},
    /* a template that compares a text uses it */
    {"{% if messages[0].content != 'q' %}{{ raise_exception('no') }}{% endif %}r", NULL,
     "{\"m\": [{\"role\": \"user\", \"content\": \"q\"}]}", "r", NULL},
};

/* tools may be an array, or its JSON text, as in Parquet files. */
static void tools_come_as_an_array_or_as_its_text(void **state)
{
    static const struct {
        const char *tools, *text; /* text: NULL if refused with `why` */
        const char *why;
    } rows[] = {
        {"[{\"name\": \"f\"}]", "f;1+1", NULL},
        {"\"[{\\\"name\\\": \\\"f\\\"}]\"", "f;1+1", NULL},
        {"\" [{\\\"name\\\": \\\"f\\\"}, {\\\"name\\\": \\\"g\\\"}]\"", "f;g;1+1", NULL},
        {"null", "1+1", NULL},
        {"\"\"", "1+1", NULL},
        {"\"null\"", "1+1", NULL},
        {"[]", "1+1", NULL},
        {"\"[]\"", "1+1", NULL},
        {"{\"name\": \"f\"}", NULL,
         "tools: expected an array, or its JSON "
         "text, found object"},
        {"\"{}\"", NULL, "found object"},
        {"\"f\"", NULL, "tools: column 1: expected JSON"},
        {"true", NULL, "found bool"},
        {"\"7\"", NULL, "found int"},
        {"1.5", NULL, "found"},
    };
    static const char listing[] = "{% for t in tools or [] %}{{ t.name }};{% endfor %}"
                                  "{{ messages[0].content }}";
    struct kg_chat_template *t;

    (void)state;
    NEED(kg_chat_template_parse(&t, listing, sizeof listing - 1, "t", err));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct kg_prompt_opts how = {.chat = t};
        struct kg_json_doc messages = {0}, tools = {0};
        struct kg_str out = {0};
        bool rendered;

        NEED(kg_json_parse(&messages, SINGLE, sizeof SINGLE - 1, "m", err));
        NEED(kg_json_parse(&tools, rows[i].tools, strlen(rows[i].tools), "t", err));
        const struct kg_prompt_source from = {.messages = messages.root,
                                              .tools = tools.root};
        kg_status status = kg_prompt_put(&out, &rendered, &from, &how, &failed);

        if (rows[i].text) {
            assert_int_equal(status, KG_OK);
            assert_string_equal(kg_str_text(&out), rows[i].text);
        } else {
            assert_int_equal(status, KG_EFORMAT);
            if (!strstr(failed.message, rows[i].why))
                fail_msg("expected '%s', found '%s'", rows[i].why, failed.message);
        }
        kg_str_release(&out);
        kg_json_release(&messages);
        kg_json_release(&tools);
    }
    kg_chat_template_close(t);
}

static void what_a_template_leaves_out_is_refused(void **state)
{
    struct kg_str out = {0};

    (void)state;
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        const struct said *row = &said[i];
        kg_status status = talk(&out, row->template_text, row->json, row->system);

        if ((status == KG_OK) != (row->text != NULL))
            fail_msg("row %zu: %s", i,
                     status == KG_OK ? kg_str_text(&out) : failed.message);
        if (row->text)
            assert_string_equal(kg_str_text(&out), row->text);
        else if (!strstr(failed.message, row->why))
            fail_msg("row %zu: expected '%s', found: %s", i, row->why, failed.message);
    }
    kg_str_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_setting_applies_or_is_refused),
        cmocka_unit_test(what_a_template_leaves_out_is_refused),
        cmocka_unit_test(tools_come_as_an_array_or_as_its_text),
        cmocka_unit_test(the_chat_template_is_chosen),
        cmocka_unit_test(a_template_from_a_file_knows_the_special_tokens),
        cmocka_unit_test(a_prompt_has_the_day_that_is_given),
        cmocka_unit_test(special_tokens_go_to_text_alone_unless_said),
        cmocka_unit_test(a_prompt_is_shown_with_what_was_added),
        cmocka_unit_test(prompts_of_real_templates),
    };

    return cmocka_run_group_tests_name("prompt", tests, set_up, tear_down);
}
