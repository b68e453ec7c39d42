/* Grading by kinds: answers that a policy may find to be led right. Each line of
 * tests/data/grader/kinds.jsonl is an answer with its verdict; "wrong" is kept by an
 * undecided answer too, since neither is rewarded. */
#include "data/jsonl.h"
#include "math/math.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct kg_err err;

static void ok(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

static enum kg_math_verdict grade(struct kg_math_opts opts, const char *gold,
                                  const char *answer, char reason[128])
{
    struct kg_math_result r = {0};
    struct kg_math_text g = {gold, strlen(gold)};
    struct kg_math_text a = {answer, strlen(answer)};
    enum kg_math_verdict v;

    ok(kg_math_grade(&r, &opts, a, &g, 1, &err));
    v = r.verdict;
    snprintf(reason, 128, "%s", r.reason);
    kg_math_result_release(&r);
    return v;
}

/* ---- the lines of a file ---- */

struct count {
    int right, wrong, undecided, failed;
};

static void check_line(struct count *n, const struct kg_json *line)
{
    const char *gold = kg_json_text(kg_json_get(line, "gold"), NULL);
    const char *answer = kg_json_text(kg_json_get(line, "answer"), NULL);
    const char *want = kg_json_text(kg_json_get(line, "expected"), NULL);
    struct kg_math_opts opts = {.form = KG_MATH_FORM_AUTO};
    enum kg_math_verdict v;
    char reason[128];

    if (!answer) {
        answer = kg_json_text(kg_json_get(line, "response"), NULL);
        opts.form = KG_MATH_FORM_RESPONSE;
    }
    v = grade(opts, gold, answer, reason);
    n->right += strcmp(want, "right") == 0;
    n->wrong += strcmp(want, "wrong") == 0;
    n->undecided += strcmp(want, "undecided") == 0;
    if (strcmp(kg_math_verdict_name(v), want) == 0 ||
        (strcmp(want, "wrong") == 0 && v == KG_MATH_UNDECIDED))
        return;
    n->failed++;
    print_message("gold '%s', answer '%s': expected %s, found %s: %s\n", gold, answer,
                  want, kg_math_verdict_name(v), reason);
}

static struct count check_file(const char *path)
{
    struct count n = {0};
    struct kg_jsonl *lines;
    struct kg_json_doc doc = {0};
    bool more = true;

    ok(kg_jsonl_open(&lines, path, &err));
    for (;;) {
        ok(kg_jsonl_next(lines, &doc, &more, &err));
        if (!more)
            break;
        check_line(&n, doc.root);
    }
    kg_json_release(&doc);
    kg_jsonl_close(lines);
    assert_int_equal(n.failed, 0);
    return n;
}

static void every_kind_has_its_verdict(void **state)
{
    struct count n = check_file("tests/data/grader/kinds.jsonl");

    (void)state;
    assert_true(n.right > 15 && n.wrong > 15 && n.undecided >= 4);
}

/* ---- what is not in lines ---- */

static void thoughts_are_read_where_that_is_asked_for(void **state)
{
    struct kg_math_opts opts = {.form = KG_MATH_FORM_RESPONSE, .keep_thinking = true};
    char reason[128];

    (void)state;
    assert_int_equal(grade(opts, "42", "<think>\\boxed{42}", reason), KG_MATH_RIGHT);
    opts.keep_thinking = false;
    assert_int_equal(grade(opts, "42", "<think>\\boxed{42}", reason), KG_MATH_UNDECIDED);
    assert_string_equal(reason, "the thinking does not end");
}

static void published_modes_know_no_box_without_braces(void **state)
{
    struct kg_math_opts opts = {.form = KG_MATH_FORM_RESPONSE};
    char reason[128];

    (void)state;
    ok(kg_math_mode_find(&opts.mode, "ema-pg", &err));
    assert_int_equal(grade(opts, "42", "\\boxed 42", reason), KG_MATH_WRONG);
    assert_int_equal(grade(opts, "42", "<think>a \\boxed{42}", reason), KG_MATH_RIGHT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_has_its_verdict),
        cmocka_unit_test(thoughts_are_read_where_that_is_asked_for),
        cmocka_unit_test(published_modes_know_no_box_without_braces),
    };

    return cmocka_run_group_tests_name("kinds", tests, NULL, NULL);
}
