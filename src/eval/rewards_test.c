/* Several rewards in a suite: their metrics, further numbers from graders, and continuing
 * an interrupted folder. */
#include "eval/suite_testing.h"

static int make_all(void **state)
{
    if (open_digit_model(state))
        return 1;
    put("data.jsonl", suite_data);
    return 0;
}

/* Besides the task's reward, a program scores completions with a 7. It returns the number
 * `z` for every completion and `at` only for those with a 7. */
static const char SEVERAL[] =
    "suite: {name: t}\n"
    "defaults: {task: qa-number, data: data.jsonl, max_tokens: 9, samples: 3,\n"
    "  reward_weights: [1, 0.5]}\n"
    "sets:\n"
    "  all: {rewards: [right=qa-number, 'seven=external sed -u -f %s'], group: g}\n"
    "  half: {problems: 2, rewards: [right=qa-number, none=none], group: g}\n";

static void put_several(void)
{
    char text[sizeof SEVERAL + 300];

    put("seven.sed", "s/.*\"response\":\"[^\"]*7.*/{\"score\": 2, \"z\": 1, \"at\": "
                     "7}/\nt\ns/.*/{\"score\": 0, \"z\": 0}/\n");
    snprintf(text, sizeof text, SEVERAL, in_dir("seven.sed"));
    put("suite.yaml", text);
}

static void several_rewards_are_evaluated(void **state)
{
    const struct kg_eval_score *all, *half;
    double sevens = 0;
    struct outcome o;

    (void)state;
    put_several();
    ok(run(&o, "several", NULL, source(-1, 8)));
    all = &o.report.sets[0].score;
    half = &o.report.sets[1].score;
    for (size_t i = 0; i < o.report.sets[0].n; i++)
        sevens += o.report.sets[0].answers[i].grade.part[1] == 2;
    assert_true(sevens > 0 && sevens < 12);
    assert_float_equal(metric(all, "part/seven"), 2 * sevens / 12, 1e-12);
    assert_float_equal(metric(all, "further/seven/z"), sevens / 12, 1e-12);
    assert_true(metric(all, "further/seven/at") == 7);
    assert_true(metric(all, "part/right") == metric(all, "accuracy"));
    assert_float_equal(metric(all, "reward"),
                       metric(all, "part/right") + metric(all, "part/seven") / 2, 1e-12);
    assert_true(metric(all, "part_ungraded/seven") == 0);
    assert_true(metric(half, "part_ungraded/none") == 1);
    assert_null(kg_eval_metric_find(half, "part/none")); /* it is never graded */
    assert_true(metric(half, "undecided") == 0);
    assert_non_null(kg_eval_metric_find(&o.report.groups[0].mean, "part/right"));
    release(&o);
}

static void several_rewards_are_taken_up_again(void **state)
{
    struct outcome o;

    (void)state;
    put_several();
    assert_int_equal(run(&o, "broken", NULL, source(11, 3)), KG_EINTERRUPTED);
    release(&o);
    whole("broken");
    same_folder("several", "broken");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_rewards_are_evaluated),
        cmocka_unit_test(several_rewards_are_taken_up_again),
    };

    return cmocka_run_group_tests_name("rewards of suites", tests, make_all,
                                       close_digit_model);
}
