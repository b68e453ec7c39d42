/* The published grader modes: their peculiarities, their limits, and the collected cases
 * of other projects. */
#include "math/grade_testing.h"
#include "task/task_internal.h"

static const char *const modes[] = {"ema-pg", "mathd", "dapo"};
enum { MODES = sizeof modes / sizeof *modes };

static enum kg_math_verdict in_mode(const char *mode, enum kg_math_form form,
                                    const char *gold, const char *answer)
{
    struct kg_math_opts opts = {.form = form};
    char reason[128];

    ok(kg_math_mode_find(&opts.mode, mode, &err));
    return grade(&opts, gold, answer, reason);
}

static void published_modes_keep_their_oddities(void **state)
{
    const enum kg_math_form bare = KG_MATH_FORM_ANSWER;
    const enum kg_math_form whole = KG_MATH_FORM_RESPONSE;

    (void)state;
    assert_int_equal(in_mode("mathd", bare, "\\frac{1}{2}", "0.5"), KG_MATH_RIGHT);
    assert_int_equal(in_mode("mathd", bare, "\\frac{1}{4}", "0.25"), KG_MATH_WRONG);
    assert_int_equal(in_mode("mathd", bare, "10", "\\$10"), KG_MATH_RIGHT);
    assert_int_equal(in_mode("ema-pg", bare, "\\frac{1}{4}", "0.25"), KG_MATH_RIGHT);
    assert_int_equal(in_mode("ema-pg", bare, "2", "4/2"), KG_MATH_WRONG);
    assert_int_equal(in_mode("ema-pg", whole, "4", "so 4"), KG_MATH_WRONG);
    assert_int_equal(in_mode("ema-pg", whole, "4", "\\boxed{4}"), KG_MATH_RIGHT);
    assert_int_equal(
        in_mode("ema-pg", whole, "4", "a</think>\\boxed{4}</think>\\boxed{5}"),
        KG_MATH_RIGHT);
    assert_int_equal(in_mode("dapo", whole, "25", "So.\nAnswer: 25"), KG_MATH_RIGHT);
    assert_int_equal(in_mode("dapo", whole, "25", "\\boxed{25}"), KG_MATH_WRONG);
    assert_int_equal(in_mode("dapo", whole, "1000", "Answer: $x = 1,000$"),
                     KG_MATH_RIGHT);
}

static void published_modes_know_no_box_without_braces(void **state)
{
    struct kg_math_opts opts = {.form = KG_MATH_FORM_RESPONSE};
    char reason[128];

    (void)state;
    ok(kg_math_mode_find(&opts.mode, "ema-pg", &err));
    assert_int_equal(grade(&opts, "42", "\\boxed 42", reason), KG_MATH_WRONG);
    assert_int_equal(grade(&opts, "42", "<think>a \\boxed{42}", reason), KG_MATH_RIGHT);
}

static void an_answer_with_a_nul_is_never_right(void **state)
{
    static const struct kg_math_text answers[] = {
        {"\\boxed{7\0 or 8}", 16}, {"7\0", 2}, {"7\0 or 8", 7}, {"Answer: 7\0 or 8", 15}};
    struct kg_math_opts opts = {0};
    struct kg_math_text gold = {"7", 1};
    struct kg_math_result r = {0};

    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        ok(kg_math_mode_find(&opts.mode, modes[m], &err));
        for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
            ok(kg_math_grade(&r, &opts, answers[i], &gold, 1, &err));
            if (r.verdict != KG_MATH_WRONG)
                fail_msg("%s, answer %zu: expected wrong, found %s", modes[m], i,
                         kg_math_verdict_name(r.verdict));
        }
    }
    kg_math_result_release(&r);
}

static void long_responses_end_in_time(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODES; m++)
        long_texts_end_in_time(modes[m]);
    assert_int_equal(kg_mem_current_bytes(), 0);
}

/* ---- modes in the task math ---- */

static bool is_correct(const char *grader, bool keep_thinking, const char *response)
{
    const struct kg_task_opts opts = {.grader = grader, .keep_thinking = keep_thinking};
    const struct kg_task_row *row;
    char five[] = "5";
    struct kg_record record = {.ground_truth = five, .line = 1};
    struct kg_grade_item item = {
        .record = &record, .response = response, .n = strlen(response)};
    struct kg_grade g = {0};

    ok(kg_task_find(&row, "math", &err));
    ok(kg_task_grade(&g, row, &opts, &item, 1, &err));
    return g.correct;
}

static void a_task_has_them_as_graders(void **state)
{
    (void)state;
    assert_true(is_correct("dapo", false, "Answer: 5"));
    assert_false(is_correct("dapo", false, "\\boxed{5}"));
    assert_true(is_correct("ema-pg", false, "\\boxed{5}"));
    assert_false(is_correct("ema-pg", false, "<think>\\boxed{5}</think>"));
    assert_true(is_correct("ema-pg", true, "<think>\\boxed{5}</think>"));
}

static void votes_are_by_the_mode(void **state)
{
    struct kg_task_opts opts = {.grader = "dapo"};
    char truth[] = "5";
    struct kg_record record = {.ground_truth = truth, .line = 1};
    static const char response[] = "\\boxed{7}, no. Answer: 0.5";
    struct kg_grade_item item = {
        .record = &record, .response = response, .n = sizeof response - 1};
    struct kg_str out = {0};
    bool same;

    (void)state;
    ok(kg_task_math_extract(&out, &opts, &item, &err));
    assert_string_equal(kg_str_text(&out), "0.5");
    kg_str_release(&out);
    /* mathd compares strings: its normalisation turns 0.5 into \\frac{1}{2}, but not 1+x
     * into x+1 */
    opts.grader = "mathd";
    ok(kg_task_math_same(&same, &opts, "0.5", "\\frac{1}{2}", &err));
    assert_true(same);
    ok(kg_task_math_same(&same, &opts, "1+x", "x+1", &err));
    assert_false(same);
}

/* The check writes the gold answer into a response in the form that the mode reads. */
static void golds_are_checked_in_the_mode(void **state)
{
    static const struct {
        const char *file, *grader;
        size_t n;
        int64_t dropped;
    } sets[] = {{"deepscaler_sub_1209.jsonl", "ema-pg", 1207, 2},
                {"math_train_7474.jsonl", "dapo", 7472, 2},
                {"raw/rpg_amc-23.parquet", "dapo", 1280, 0}};
    const struct kg_task_row *row;

    (void)state;
    if (absent("../shared/data/math"))
        skip();
    ok(kg_task_find(&row, "math", &err));
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        struct kg_task_opts opts = {.drop_golds = true, .grader = sets[i].grader};
        struct kg_dataset d;
        char file[128];

        snprintf(file, sizeof file, "../shared/data/math/%s", sets[i].file);
        ok(kg_task_load(&d, row, &opts, file, &err));
        assert_int_equal(d.n, sets[i].n);
        assert_int_equal(d.dropped_golds, sets[i].dropped);
        kg_dataset_release(&d);
    }
}

/* ---- collected cases ---- */

static void agree(const char *path)
{
    agrees(path, "ema-pg", "rllm", 98);
    agrees(path, "mathd", "rllm_mathd", 98);
    agrees(path, "dapo", "dapo_answer_line", 98);
}

static void the_small_collection_agrees(void **state)
{
    (void)state;
    agree("tests/data/grader/cases.jsonl");
}

static void the_large_collection_agrees(void **state)
{
    static const char cases[] = "../shared/data/grader_cases.jsonl";

    (void)state;
    if (absent(cases))
        skip();
    agree(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_modes_keep_their_oddities),
        cmocka_unit_test(published_modes_know_no_box_without_braces),
        cmocka_unit_test(an_answer_with_a_nul_is_never_right),
        cmocka_unit_test(long_responses_end_in_time),
        cmocka_unit_test(a_task_has_them_as_graders),
        cmocka_unit_test(votes_are_by_the_mode),
        cmocka_unit_test(golds_are_checked_in_the_mode),
        cmocka_unit_test(the_small_collection_agrees),
        cmocka_unit_test(the_large_collection_agrees),
    };

    return cmocka_run_group_tests_name("published modes", tests, NULL, NULL);
}
