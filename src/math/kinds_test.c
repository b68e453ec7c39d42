/* Grading by kinds: wrong answers that a policy may find to be graded right, and right
 * answers in other notations. Each line of tests/data/grader/kinds.jsonl and
 * computed.jsonl is an answer with its verdict; undecided also satisfies "wrong", since
 * neither is rewarded. Also tests that computing an answer ends in time. */
#include "base/clock.h"
#include "base/mem.h"
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
    assert_true(n.right > 200 && n.wrong > 200 && n.undecided >= 10);
}

static void derivatives_integrals_limits_and_sums_are_computed(void **state)
{
    struct count n = check_file("tests/data/grader/computed.jsonl");

    (void)state;
    assert_true(n.right > 180 && n.wrong > 400);
}

/* ---- cases that are not in the files ---- */

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

/* Each tanh uses its argument four times, so without sharing the work would grow by
 * 4^depth. */
static void shared_arguments_end_in_time(void **state)
{
    char text[512];
    char more[520];

    (void)state;
    for (int depth = 1; depth < 40; depth++) {
        struct kg_math_opts opts = {0};
        char reason[128];
        double start = kg_clock_thread_seconds();
        size_t n = 0;

        for (int i = 0; i < depth; i++)
            n += (size_t)snprintf(text + n, sizeof text - n, "\\tanh(");
        n += (size_t)snprintf(text + n, sizeof text - n, "x");
        for (int i = 0; i < depth; i++)
            text[n++] = ')';
        text[n] = 0;
        snprintf(more, sizeof more, "%s+0", text);
        grade(opts, text, more, reason);
        if (kg_clock_thread_seconds() - start > 1.5)
            fail_msg("%d deep: %.1f s: %s", depth, kg_clock_thread_seconds() - start,
                     reason);
    }
}

static void what_is_computed_ends_in_time(void **state)
{
    static const char *const hostile[] = {
        "\\sum_{k=1}^{1000000}\\frac1k",
        "\\sum_{k=1}^{20000}\\frac1k",
        "\\sum_{i=1}^{5000}\\sum_{j=1}^{5000}\\sum_{k=1}^{5000} ijk",
        "\\prod_{k=1}^{20000}k^k",
        "\\sum_{k=1}^{10000}\\sqrt{k}",
        "\\sum_{n=0}^{\\infty}\\frac{n^{40}}{3^n}",
        "\\sum_{n=1}^{\\infty}\\frac{n^{9}}{(2n)!}",
        "\\int_0^1 (x^2+1)^2(x^3+1)^2(x^4+1)^2(x^5+1)^2 e^x \\sin x\\,dx",
        "\\int_0^1 \\int_0^1 \\int_0^1 \\int_0^1 xyzw\\,dx\\,dy\\,dz\\,dw",
        "\\frac{d^4}{dx^4}\\sin(\\cos(\\tan(e^{x^2}\\sqrt{x^3+1})))^{x^x}",
        "\\lim_{x\\to0}\\frac{(\\sin x)^{40}-x^{40}}{(1-\\cos x)^{40}}",
        "\\lim_{x\\to0}\\frac{\\sin\\tan\\sin\\tan x-\\tan\\sin\\tan\\sin x}{x^7}",
        "\\lim_{n\\to\\infty}\\left(1+\\frac1n\\right)^{n^{n^n}}",
        "\\lim_{n\\to\\infty}\\sum_{k=1}^{n}\\frac{1}{k^2}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        struct kg_math_opts opts = {0};
        char reason[128];
        double start = kg_clock_thread_seconds();

        grade(opts, hostile[i], "\\sqrt{2}+1", reason);
        if (kg_clock_thread_seconds() - start > 1.5)
            fail_msg("'%s' takes %.1f s: %s", hostile[i],
                     kg_clock_thread_seconds() - start, reason);
    }
    assert_int_equal(kg_mem_current_bytes(), 0);
}

static void failed_allocations_are_reported(void **state)
{
    static const struct {
        const char *gold, *answer;
    } rows[] = {{"\\int_0^1 x^2\\,dx", "\\frac13"},
                {"\\sum_{n=1}^{\\infty}\\frac{n}{2^n}", "2"},
                {"x̂+\\sqrt{2}", "\\hat{x}+\\frac{2}{\\sqrt2}"}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_math_text gold = {rows[i].gold, strlen(rows[i].gold)};
        struct kg_math_text answer = {rows[i].answer, strlen(rows[i].answer)};
        struct kg_math_opts opts = {0};
        bool done = false;

        for (uint64_t n = 1; !done && n < 100000; n += 1 + n / 20) {
            struct kg_math_result r = {0};
            kg_status status;

            kg_mem_fail_at(n);
            status = kg_math_grade(&r, &opts, answer, &gold, 1, &err);
            kg_mem_fail_at(0);
            done = status == KG_OK;
            assert_true(done ? r.verdict == KG_MATH_RIGHT : status == KG_ENOMEM);
            kg_math_result_release(&r);
            assert_int_equal(kg_mem_current_bytes(), 0);
        }
        assert_true(done);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_has_its_verdict),
        cmocka_unit_test(derivatives_integrals_limits_and_sums_are_computed),
        cmocka_unit_test(thoughts_are_read_where_that_is_asked_for),
        cmocka_unit_test(shared_arguments_end_in_time),
        cmocka_unit_test(what_is_computed_ends_in_time),
        cmocka_unit_test(failed_allocations_are_reported),
    };

    return cmocka_run_group_tests_name("kinds", tests, NULL, NULL);
}
