/* kedge show: how a line of a dump appears in the terminal. */
#include "cli/show.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/need_testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS "tests/data/verl_digit_llama"

static const struct kg_show_columns none;
static const struct kg_show_columns all = {true, true, true};

static struct kg_tokenizer *tokenizer(void)
{
    struct kg_tokenizer *tok;

    NEED(kg_tokenizer_open(&tok, DIGITS, err));
    return tok;
}

static void read_line(struct kg_shown *s, const char *json, struct kg_tokenizer *tok)
{
    struct kg_json_doc doc;

    NEED(kg_json_parse(&doc, json, strlen(json), "dump line 1", err));
    s->line = 1;
    NEED(kg_show_read(s, &doc, tok, err));
    kg_json_release(&doc);
}

static void expect_text(const struct kg_shown *s, const struct kg_show_columns *c,
                        bool colour, const char *text)
{
    struct kg_str out = {0};

    NEED(kg_show_text(&out, s, c, colour, err));
    assert_string_equal(out.data, text);
    kg_str_release(&out);
}

static const char DUMP[] =
    "{\"draw\":3,\"reward\":0.5,\"advantage\":-1.5,\"tokens\":[13,0,4,5,1],"
    "\"source\":\"ppmtm\",\"logp\":[null,null,-0.25,null,-2],"
    "\"anchor_logp\":[null,null,-0.5,null,-1]}";

static void what_graders_said_stands_in_the_heading(void **state)
{
    struct kg_tokenizer *tok = tokenizer();
    struct kg_shown s = {0};

    (void)state;
    read_line(
        &s,
        "{\"draw\":3,\"rewards\":{\"a\":0.5,\"b\":null},\"further\":{\"a/x\":2.0},"
        "\"other\":{\"c\":1},\"tokens\":[13,1],\"source\":\"pm\",\"logp\":[null,-1]}",
        tok);
    assert_non_null(strstr(s.heading.data, "draw 3, rewards {"));
    assert_non_null(strstr(s.heading.data, "further {\"a/x\""));
    assert_null(strstr(s.heading.data, "other"));
    kg_shown_release(&s);
    kg_tokenizer_close(tok);
}

static void tokens_become_pieces_with_their_numbers(void **state)
{
    struct kg_tokenizer *tok = tokenizer();
    struct kg_shown s = {0};

    (void)state;
    read_line(&s, DUMP, tok);
    assert_int_equal(s.n, 5);
    assert_int_equal(s.pieces[2].source, KG_SOURCE_MODEL);
    assert_true(s.pieces[2].sampled && s.pieces[2].logp == -0.25);
    assert_true(s.pieces[2].compared && s.pieces[2].divergence == 0.25);
    assert_true(s.pieces[4].divergence == -1);
    assert_false(s.pieces[3].sampled || s.pieces[3].compared);
    assert_string_equal(s.heading.data, "draw 3, reward 0.5, advantage -1.5");
    expect_text(&s, &none, false,
                "line 1: draw 3, reward 0.5, advantage -1.5\n"
                "[prompt]\n9S\n[model]\n0\n[tool]\n1\n[model]\nE\n");
    expect_text(&s, &none, true,
                "line 1: draw 3, reward 0.5, advantage -1.5\n"
                "\x1b[90m9S\x1b[0m\x1b[32m0\x1b[0m\x1b[36m1\x1b[0m\x1b[32mE\x1b[0m\n");
    expect_text(&s, &all, false,
                "line 1: draw 3, reward 0.5, advantage -1.5\n"
                "[prompt]\n9S\n[model]\n"
                "  token       log p   advantage     log p/q\n"
                "      2   -0.250000   -1.500000    0.250000  |0|\n"
                "[tool]\n1\n[model]\n"
                "  token       log p   advantage     log p/q\n"
                "      4   -2.000000   -1.500000   -1.000000  |E|\n");
    kg_shown_release(&s);
    kg_tokenizer_close(tok);
    assert_int_equal(kg_mem_current_bytes(), 0);
}

/* A model may have more rows than its tokenizer has tokens, and may sample their ids. */
static void an_id_without_a_token_is_shown_by_its_number(void **state)
{
    static const char sampled[] = "{\"tokens\":[13,17,4],\"source\":\"pmm\",\"logp\":["
                                  "null,-1,-2],\"reward\":0.0}";
    char dir[] = "/tmp/kedge-test-XXXXXX";
    char path[64];
    struct kg_str ids = {0};
    struct kg_tokenizer *tok;
    struct kg_shown s = {0};

    (void)state;
    assert_non_null(mkdtemp(dir));
    NEED(kg_file_read(&ids, DIGITS "/token_ids.json", 1 << 20, err));
    snprintf(path, sizeof path, "%s/token_ids.json", dir);
    NEED(kg_file_write_atomic(path, ids.data, ids.len, err));
    snprintf(path, sizeof path, "%s/config.json", dir);
    NEED(kg_file_write_atomic(path, "{\"vocab_size\": 20}", 18, err));
    NEED(kg_tokenizer_open(&tok, dir, err));
    assert_int_equal(kg_tokenizer_n_ids(tok), 20);
    assert_true(kg_tokenizer_has(tok, 15) && !kg_tokenizer_has(tok, 16));
    read_line(&s, sampled, tok);
    expect_text(&s, &none, false, "line 1: reward 0\n[prompt]\n9\n[model]\n<id 17>0\n");
    kg_shown_release(&s);
    kg_tokenizer_close(tok);
    kg_str_release(&ids);
    NEED(kg_file_remove_tree(dir, err));
}

static void the_legend_has_the_colours_of_the_sources(void **state)
{
    struct kg_str out = {0};

    (void)state;
    NEED(kg_show_legend(&out, err));
    assert_string_equal(out.data, "\x1b[90mprompt\x1b[0m, \x1b[32mmodel\x1b[0m, "
                                  "\x1b[36mtool\x1b[0m\n");
    kg_str_release(&out);
}

static void text_is_shown_by_who_wrote_it(void **state)
{
    struct kg_shown s = {0};

    (void)state;
    read_line(&s,
              "{\"prompt\":\"Q\",\"segments\":[{\"source\":\"model\",\"text\":\"a\"},"
              "{\"source\":\"tool\",\"text\":\"b\\n\"}],\"id\":\"x\"}",
              NULL);
    expect_text(&s, &all, false,
                "line 1: id \"x\"\n[prompt]\nQ\n[model]\na\n[tool]\nb\n");
    read_line(&s, "{\"prompt\":\"Q\",\"response\":\"a\",\"correct\":true}", NULL);
    expect_text(&s, &none, false, "line 1: correct true\n[prompt]\nQ\n[model]\na\n");
    kg_shown_release(&s);
}

/* Text from a tool must not control the terminal. */
static void hostile_text_is_made_harmless(void **state)
{
    struct kg_shown s = {0};

    (void)state;
    read_line(&s,
              "{\"segments\":[{\"source\":\"tool\",\"text\":\"\\u001b[31m\\u0007\\u009b"
              "<script>'\\\"&\\r\"}]}",
              NULL);
    expect_text(&s, &none, false,
                "line 1: \n[tool]\n\\x1b[31m\\x07\\xc2\\x9b<script>'\"&\\x0d\n");
    kg_shown_release(&s);
}

static void a_malformed_line_says_what_is_wrong(void **state)
{
    static const struct {
        const char *json, *says;
    } rows[] = {
        {"{\"x\":1}", "expected tokens, segments"},
        {"{\"response\":1}", "key 'response': expected string, found integer"},
        {"{\"segments\":[{\"source\":\"me\",\"text\":\"\"}]}", "found me"},
        {"{\"segments\":[1]}", "prompt, model or tool"},
        {"{\"tokens\":[0],\"source\":\"p\",\"logp\":[]}", "found 1, 0 and 1"},
        {"{\"tokens\":[0],\"source\":\"x\",\"logp\":[null]}", "found 'x'"},
        {"{\"tokens\":[16],\"source\":\"p\",\"logp\":[null]}", "found 16"},
        {"{\"tokens\":[\"a\"],\"source\":\"p\",\"logp\":[null]}", "found -1"},
    };
    struct kg_tokenizer *tok = tokenizer();
    struct kg_shown s = {0};
    struct kg_json_doc doc;
    struct kg_err err;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *json = rows[i].json;

        assert_int_equal(kg_json_parse(&doc, json, strlen(json), "dump line 9", &err),
                         KG_OK);
        assert_int_equal(kg_show_read(&s, &doc, tok, &err), KG_EFORMAT);
        assert_non_null(strstr(err.message, "dump line 9"));
        if (!strstr(err.message, rows[i].says))
            fail_msg("%s: expected '%s', found '%s'", json, rows[i].says, err.message);
        kg_json_release(&doc);
    }
    assert_int_equal(kg_json_parse(&doc, DUMP, strlen(DUMP), "dump", &err), KG_OK);
    assert_int_equal(kg_show_read(&s, &doc, NULL, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "--model DIR"));
    kg_json_release(&doc);
    kg_shown_release(&s);
    kg_tokenizer_close(tok);
}

/* The second window gives token 6 the context that begins at token 3. */
static void a_line_is_a_trace_of_its_turns(void **state)
{
    static const char line[] =
        "{\"draw\":3,\"sample\":1,\"reward\":0.5,\"tokens\":[13,0,4,5,1,7,9],"
        "\"source\":\"ppmtmtm\",\"logp\":[null,null,-0.25,null,-2,null,-0.1],"
        "\"windows\":[[6,3]]}";
    static const struct {
        const char *from, *to, *says;
    } rows[] = {{"-2", "null", "per_token_logps: expected a number for token 4"},
                {"\"ppmtmtm\"", "\"ppm\"", "source and logp of 7 tokens, found 3 and 7"},
                {"[6,3]", "[6,7]", "key 'windows'"}};
    struct kg_str out = {0};
    struct kg_json_doc doc;
    struct kg_err e;

    (void)state;
    NEED(kg_json_parse(&doc, line, strlen(line), "dump", err));
    NEED(kg_show_trace(&out, &doc, err));
    kg_json_release(&doc);
    assert_string_equal(
        out.data,
        "{\"draw\": 3, \"sample\": 1, \"reward\": 0.5, \"trace\": {\"schema_version\": "
        "1, "
        "\"turns\": [{\"node_id\": \"n0\", \"prompt_token_ids\": [13,0], "
        "\"completion_token_ids\": [4], \"per_token_logps\": [-0.25], "
        "\"loss_mask\": [0,0,1]}, {\"node_id\": \"n1\", \"prompt_token_ids\": "
        "[13,0,4,5], \"completion_token_ids\": [1], \"per_token_logps\": [-2], "
        "\"loss_mask\": [0,0,0,0,1]}, {\"node_id\": \"n2\", \"prompt_token_ids\": "
        "[5,1,7], \"completion_token_ids\": [9], \"per_token_logps\": [-0.1], "
        "\"loss_mask\": [0,0,0,1]}]}}\n");
    for (size_t i = 0; i < 3; i++) {
        const char *at = strstr(line, rows[i].from);

        kg_str_clear(&out);
        NEED(kg_str_append(&out, line, (size_t)(at - line), err));
        NEED(kg_str_puts(&out, rows[i].to, err));
        NEED(kg_str_puts(&out, at + strlen(rows[i].from), err));
        NEED(kg_json_parse(&doc, out.data, out.len, "dump", err));
        assert_int_equal(kg_show_trace(&out, &doc, &e), KG_EFORMAT);
        if (!strstr(e.message, rows[i].says))
            fail_msg("expected '%s', found '%s'", rows[i].says, e.message);
        kg_json_release(&doc);
    }
    kg_str_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_graders_said_stands_in_the_heading),
        cmocka_unit_test(tokens_become_pieces_with_their_numbers),
        cmocka_unit_test(an_id_without_a_token_is_shown_by_its_number),
        cmocka_unit_test(the_legend_has_the_colours_of_the_sources),
        cmocka_unit_test(text_is_shown_by_who_wrote_it),
        cmocka_unit_test(hostile_text_is_made_harmless),
        cmocka_unit_test(a_malformed_line_says_what_is_wrong),
        cmocka_unit_test(a_line_is_a_trace_of_its_turns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
