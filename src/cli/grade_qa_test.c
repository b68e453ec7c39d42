/* kedge grade --kind qa-*: what is read, printed and refused. */
#include "cli/cli.h"

#include "base/mem.h"
#include "base/need_testing.h"

#include <string.h>

static const char ROME[] = "{\"response\":\"<think>x</think><answer> The Rome</answer>\","
                           "\"golden_answers\":[\"Oslo\",\"rome\"]}";

static void expect(const char *kind, int pairs, const char *line, const char *answer)
{
    struct kg_grade_qa g = {
        .pairs = pairs, .scores = {.structure = 0.2, .final = 0.1, .retrieval = 0.05}};
    struct kg_str out = {0};
    struct kg_json_doc doc;

    NEED(kg_json_parse(&doc, line, strlen(line), "stdin line 1", err));
    NEED(kg_grade_qa_init(&g, kind, err));
    NEED(kg_grade_qa_line(&out, &doc, &g, err));
    if (strcmp(out.data, answer) != 0)
        fail_msg("%s of %s: expected %s, found %s", kind, line, answer, out.data);
    kg_json_release(&doc);
    kg_str_release(&out);
    kg_grade_qa_release(&g);
}

static void each_kind_answers(void **state)
{
    (void)state;
    expect("qa-em", 1, ROME, "{\"score\": 1.0, \"answer\": \"The Rome\"}\n");
    expect("qa-em", 2, ROME, "{\"score\": 0.0, \"answer\": null}\n");
    expect("qa-extract", 1, ROME, "{\"score\": 1.0, \"answer\": \"The Rome\"}\n");
    expect("qa-extract", 1, "{\"response\":\"Rome\"}",
           "{\"score\": 0.0, \"answer\": null}\n");
    expect("qa-format", 1, ROME, "{\"score\": 1.0, \"answer\": \"The Rome\"}\n");
    expect("qa-format", 1,
           "{\"response\":\"<think>x</think><search>q</search><information>Bern"
           "</information><think>y</think><answer>Oslo</answer>\","
           "\"golden_answers\":\"Bern\"}",
           "{\"score\": 0.25, \"answer\": \"Oslo\"}\n");
    expect("qa-format", 1, "{\"response\":\"Bern\",\"golden_answers\":\"Bern\"}",
           "{\"score\": 0.0, \"answer\": null}\n");
}

/* A prediction is the answer itself; nothing is extracted from it. */
static void predictions_are_answers(void **state)
{
    (void)state;
    expect("qa-em", 2, "{\"prediction\":\"rome\",\"golden_answers\":\"Rome!\"}",
           "{\"score\": 1.0, \"answer\": \"rome\"}\n");
    expect("qa-subem", 1, "{\"prediction\":\"old rome\",\"golden_answers\":[\"Rome\"]}",
           "{\"score\": 1.0, \"answer\": \"old rome\"}\n");
    expect("qa-f1", 1, "{\"prediction\":\"old rome\",\"golden_answers\":[\"new Rome\"]}",
           "{\"score\": 0.5, \"answer\": \"old rome\"}\n");
    expect("qa-em", 1,
           "{\"prediction\":\"Oslo\",\"golden_answers\":[\"Rome\"],\"format_score\":0.1}",
           "{\"score\": 0.1, \"answer\": \"Oslo\"}\n");
}

static void a_malformed_line_is_refused(void **state)
{
    static const struct {
        const char *line, *says;
    } rows[] = {
        {"{\"golden_answers\":\"x\"}", "expected key 'prediction' or 'response'"},
        {"{\"prediction\":1,\"golden_answers\":\"x\"}", "key 'prediction': expected"},
        {"{\"prediction\":\"x\"}", "key 'golden_answers': expected string, found null"},
        {"{\"prediction\":\"x\",\"golden_answers\":[]}", "at least one"},
        {"{\"prediction\":\"x\",\"golden_answers\":[\"a\",2]}", "found integer"},
    };
    struct kg_grade_qa g = {.pairs = 1};
    struct kg_str out = {0};
    struct kg_err err;

    (void)state;
    assert_int_equal(kg_grade_qa_init(&g, "qa-em", &err), KG_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_json_doc doc;
        size_t n = strlen(rows[i].line);

        assert_int_equal(kg_json_parse(&doc, rows[i].line, n, "stdin line 9", &err),
                         KG_OK);
        assert_int_equal(kg_grade_qa_line(&out, &doc, &g, &err), KG_EFORMAT);
        assert_non_null(strstr(err.message, "stdin line 9"));
        assert_non_null(strstr(err.message, rows[i].says));
        kg_json_release(&doc);
    }
    kg_grade_qa_release(&g);
    kg_str_release(&out);
    assert_int_equal(kg_mem_current_bytes(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_answers),
        cmocka_unit_test(predictions_are_answers),
        cmocka_unit_test(a_malformed_line_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
