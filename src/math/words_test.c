/* Answers that repeat the gold answer in words, contain a NUL, or have more digits than
 * are read. */
#include "math/math.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct kg_err err;

static void ok(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

static enum kg_math_verdict grade(const char *gold, const char *answer)
{
    struct kg_math_opts opts = {0};
    struct kg_math_result r = {0};
    struct kg_math_text g = {gold, strlen(gold)};
    enum kg_math_verdict v;

    ok(kg_math_grade(&r, &opts, (struct kg_math_text){answer, strlen(answer)}, &g, 1,
                     &err));
    v = r.verdict;
    kg_math_result_release(&r);
    return v;
}

static void expect(enum kg_math_verdict want, const char *gold, const char *answer)
{
    enum kg_math_verdict v = grade(gold, answer);

    if (v != want)
        fail_msg("gold '%s', answer '%s': expected %s, found %s", gold, answer,
                 kg_math_verdict_name(want), kg_math_verdict_name(v));
}

static void right(const char *gold, const char *answer)
{
    expect(KG_MATH_RIGHT, gold, answer);
}

static void undecided(const char *gold, const char *answer)
{
    expect(KG_MATH_UNDECIDED, gold, answer);
}

static void not_right(const char *gold, const char *answer)
{
    if (grade(gold, answer) == KG_MATH_RIGHT)
        fail_msg("gold '%s', answer '%s': found right", gold, answer);
}

/* Identical text is right, whatever formulas could be read in it. */
static void identical_text_is_right(void **state)
{
    static const char *const texts[] = {
        "converges absolutely",
        "does not exist",
        "The series converges absolutely for |x| < 1 only",
        "the answer is not (A)",
        "f is continuous, but not differentiable at 0",
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        right(texts[i], texts[i]);
    right("\\text{converges absolutely}", "Converges absolutely.");
    right("does not exist", "The answer is: does not exist");
    right("does not exist", "We look at both sides.\nAnswer: does not exist.");
    not_right("does not exist", "does exist");
    not_right("converges absolutely", "converges");
    not_right("converges absolutely", "The answer is: it converges");
}

/* Readers of formulas would take a NUL for the end of the text. */
static void an_answer_with_a_nul_is_never_right(void **state)
{
    static const struct kg_math_text answers[] = {
        {"\\boxed{7\0 or 8}", 16}, {"7\0", 2}, {"7\0 or 8", 7}, {"Answer: 7\0 or 8", 15}};
    struct kg_math_opts opts = {0};
    struct kg_math_text gold = {"7", 1};
    struct kg_math_result r = {0};

    (void)state;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        ok(kg_math_grade(&r, &opts, answers[i], &gold, 1, &err));
        if (r.verdict != KG_MATH_WRONG)
            fail_msg("answer %zu: expected wrong, found %s", i,
                     kg_math_verdict_name(r.verdict));
    }
    opts.form = KG_MATH_FORM_CHOICE;
    gold = (struct kg_math_text){"B", 1};
    ok(kg_math_grade(&r, &opts, (struct kg_math_text){"B\0", 2}, &gold, 1, &err));
    assert_int_equal(r.verdict, KG_MATH_WRONG);
    kg_math_result_release(&r);
}

static void repeating_digits_have_a_limit(void **state)
{
    char answer[4096] = "0.\\overline{";

    (void)state;
    for (int i = 0; i < 20; i++)
        strcat(answer, "142857");
    right("1/7", strcat(answer, "}"));
    answer[strlen(answer) - 1] = 0;
    for (int i = 0; i < 200; i++)
        strcat(answer, "142857");
    undecided("1/7", strcat(answer, "}"));
    undecided("1/3", strcat(answer, " "));
    memmove(answer + 3, answer + 12, strlen(answer + 12) + 1);
    answer[2] = '(';
    answer[strlen(answer) - 2] = ')';
    undecided("1/7", answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identical_text_is_right),
        cmocka_unit_test(an_answer_with_a_nul_is_never_right),
        cmocka_unit_test(repeating_digits_have_a_limit),
    };

    return cmocka_run_group_tests_name("words", tests, NULL, NULL);
}
