/* Several rewards of one completion: how their list is read, and how their parts are
 * combined. */
#include "base/mem.h"
#include "data/options.h"
#include "task/task_internal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct kg_err err;

/* Gives the scores 3, null, 3, null, .. */
#define EVERY_OTHER                                                                      \
    "external while read -r l; do n=$((n + 1)); [ $((n % 2)) = 1 ] && "                  \
    "echo '{\"score\": 3, \"correct\": true}' || echo '{\"score\": null}'; done"

static const char *const specs[] = {"right=qa-number", "other=" EVERY_OTHER};
static const double weights[] = {1, 0.5};

static char prompt[] = "p", truth[] = "7", source[] = "s";
static const struct kg_record record = {
    .prompt = prompt, .ground_truth = truth, .data_source = source};

static kg_status grade(struct kg_grade grades[4], struct kg_task_opts *opts)
{
    static const char *const answers[] = {"#### 7", "#### 8", "#### 9", "none"};
    struct kg_grade_item items[4];
    const struct kg_task_row *row;

    for (int i = 0; i < 4; i++)
        items[i] = (struct kg_grade_item){
            .record = &record, .response = answers[i], .n = strlen(answers[i])};
    memset(grades, 0, 4 * sizeof *grades);
    assert_int_equal(kg_task_find(&row, "none", &err), KG_OK);
    return kg_task_grade(grades, row, opts, items, 4, &err);
}

static void parts_are_kept_and_added_by_weight(void **state)
{
    struct kg_task_opts opts = {.timeout_ms = 10000, .wrong_reward = -1};
    struct kg_task_grader_stats stats = {0};
    struct kg_grade g[4];

    (void)state;
    assert_int_equal(kg_task_rewards_open(&opts.rewards, specs, weights, 2, &opts, &err),
                     KG_OK);
    assert_int_equal(kg_task_rewards_n(opts.rewards), 2);
    assert_string_equal(kg_task_rewards_name(opts.rewards, 1), "other");
    assert_true(kg_task_rewards_weight(opts.rewards, 1) == 0.5);
    for (int batch = 0; batch < 3; batch++) {
        if (grade(g, &opts) != KG_OK)
            fail_msg("%s", err.message);
        assert_int_equal(g[0].n_parts, 2);
        assert_true(g[0].part[0] == 1 && g[0].part[1] == 3 && g[0].reward == 2.5);
        assert_true(g[1].part[0] == -1 && isnan(g[1].part[1]) && g[1].reward == -1);
        assert_true(g[2].part[0] == -1 && g[2].part[1] == 3 && g[2].reward == 0.5);
        /* the first reward decides what is correct */
        assert_true(g[0].correct && !g[1].correct && !g[2].correct && !g[3].correct);
        assert_true(g[0].graded && g[1].graded && g[2].graded);
    }
    assert_true(kg_task_rewards_stats(&stats, opts.rewards));
    assert_int_equal(stats.starts, 1); /* one grader process served all */
    assert_int_equal(stats.batches, 3);
    kg_task_rewards_close(opts.rewards);
}

/* A completion that no grader could grade is ungraded. */
static void an_answer_is_graded_where_any_reward_is(void **state)
{
    static const char *const two[] = {"a=" EVERY_OTHER, "b=" EVERY_OTHER};
    struct kg_task_opts opts = {.timeout_ms = 10000};
    struct kg_grade g[4];

    (void)state;
    assert_int_equal(kg_task_rewards_open(&opts.rewards, two, NULL, 2, &opts, &err),
                     KG_OK);
    assert_int_equal(grade(g, &opts), KG_OK);
    assert_true(g[0].graded && g[0].correct && g[0].reward == 6);
    assert_true(!g[1].graded && !g[1].correct && g[1].reward == 0);
    kg_task_rewards_close(opts.rewards);
}

/* One completion that the math grader cannot read, and one that no grader judges. The
 * options of each call decide whether the first counts as wrong, not those with which the
 * rewards were opened. */
static void what_one_grader_cannot_read_is_as_the_call_says(void **state)
{
    static const char *const unreadable[] = {"\\boxed{}", "\\boxed{?}", "\\boxed{1 1}",
                                             "\\boxed{18^}", "\\boxed{=}"};
    static const char *const two[] = {"right=math", "other=" EVERY_OTHER};
    struct kg_task_opts opts = {.timeout_ms = 10000, .wrong_reward = -1};
    struct kg_grade_item items[2];
    const struct kg_task_row *row;
    struct kg_grade g[2];

    (void)state;
    assert_int_equal(kg_task_find(&row, "none", &err), KG_OK);
    assert_int_equal(kg_task_rewards_open(&opts.rewards, two, weights, 2, &opts, &err),
                     KG_OK);
    assert_true(kg_task_judges(row, &opts));
    for (int k = 0; k < 10; k++) {
        const char *answer = unreadable[k / 2];
        bool wrong = k % 2;

        opts.undecided = wrong ? KG_TASK_UNDECIDED_WRONG : KG_TASK_UNDECIDED_UNGRADED;
        memset(g, 0, sizeof g);
        for (int i = 0; i < 2; i++)
            items[i] = (struct kg_grade_item){
                .record = &record, .response = answer, .n = strlen(answer)};
        assert_int_equal(kg_task_grade(g, row, &opts, items, 2, &err), KG_OK);
        assert_true(g[0].undecided && g[1].undecided && !g[0].correct);
        assert_true(isnan(g[0].part[0]) == !wrong && g[0].part[1] == 3);
        assert_true(g[0].graded && g[0].reward == 0.5); /* -1 and half of 3 */
        assert_true(g[1].graded == wrong && isnan(g[1].part[1]));
        assert_true(kg_grade_reward(&g[1]) == -1);
    }
    kg_task_rewards_close(opts.rewards);
    opts.rewards = NULL;
    assert_false(kg_task_judges(row, &opts));
}

/* Two graders report a number of the same name; each gets its reward's name as prefix. */
static void what_graders_say_besides_has_their_names(void **state)
{
    static const char *const two[] = {
        "a=external while read -r l; do echo '{\"score\":1,\"words\":3}'; done",
        "b=external while read -r l; do echo '{\"score\":1,\"words\":5}'; done"};
    struct kg_further_names names = {.n = 0};
    struct kg_task_opts opts = {.timeout_ms = 10000, .further = &names};
    struct kg_grade g[4];

    (void)state;
    assert_int_equal(kg_task_rewards_open(&opts.rewards, two, NULL, 2, &opts, &err),
                     KG_OK);
    assert_int_equal(grade(g, &opts), KG_OK);
    assert_int_equal(names.n, 2);
    assert_string_equal(names.name[0], "a/words");
    assert_string_equal(names.name[1], "b/words");
    assert_int_equal(g[3].further.said, 3);
    assert_true(g[3].further.x[0] == 3 && g[3].further.x[1] == 5);
    kg_task_rewards_close(opts.rewards);
}

static void a_failing_grader_is_named(void **state)
{
    static const char *const two[] = {"right=qa-number", "broken=external exit 3"};
    struct kg_task_opts opts = {.timeout_ms = 10000};
    struct kg_grade g[4];

    (void)state;
    assert_int_equal(kg_task_rewards_open(&opts.rewards, two, NULL, 2, &opts, &err),
                     KG_OK);
    assert_int_equal(grade(g, &opts), KG_EIO);
    assert_non_null(strstr(err.message, "reward broken"));
    assert_non_null(strstr(err.message, "found 3"));
    kg_task_rewards_close(opts.rewards);
}

static void wrong_lists_are_refused(void **state)
{
    static const struct {
        const char *specs[9];
        const char *part;
    } rows[] = {
        {{"qa-number"}, "NAME=GRADER"},
        {{"=qa-number"}, "NAME=GRADER"},
        {{"a="}, "NAME=GRADER"},
        {{"a b=math"}, "NAME=GRADER"},
        {{"a\"=math"}, "NAME=GRADER"},
        {{" a=math"}, "NAME=GRADER"},
        {{"a234567890123456789012345678901234=math"}, "NAME=GRADER"},
        {{"a=math", "a=digits"}, "'a' twice"},
        {{"a=mth"}, "found 'mth'"},
        {{"a=math of all"}, "nothing after task math"},
        {{"a=external"}, "a command after external"},
        {{"a=none", "b=none", "c=none", "d=none", "e=none", "f=none", "g=none", "h=none",
          "i=none"},
         "at most 8"},
    };
    struct kg_task_opts opts = {.timeout_ms = 10000};
    struct kg_task_rewards *r;
    uint64_t before = kg_mem_current_bytes();

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n = 0;

        while (n < 9 && rows[i].specs[n])
            n++;
        assert_int_not_equal(
            kg_task_rewards_open(&r, rows[i].specs, NULL, n, &opts, &err), KG_OK);
        if (!strstr(err.message, rows[i].part))
            fail_msg("message without '%s': %s", rows[i].part, err.message);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
    /* "external" without a command uses the task's command */
    opts.command = "true";
    assert_int_equal(kg_task_rewards_open(&r, (const char *const[]){"a=external"}, NULL,
                                          1, &opts, &err),
                     KG_OK);
    kg_task_rewards_close(r);
    for (uint64_t n = 1; n < 20; n++) {
        kg_mem_fail_at(n);
        kg_status status = kg_task_rewards_open(&r, specs, weights, 2, &opts, &err);
        kg_mem_fail_at(0);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        if (status == KG_OK)
            kg_task_rewards_close(r);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
}

struct said {
    struct kg_opt_list rewards, weights;
};

static void weights_are_as_many_as_rewards(void **state)
{
    static const struct kg_opt_row rows[] = {
        {"x.rewards", KG_OPT_AT(struct said, rewards), "", 0, 0, NULL, "rewards", false},
        {"x.weights", KG_OPT_AT(struct said, weights), "", 0, 0, NULL, "weights", false},
        {0},
    };
    static const struct kg_opt_row *const tables[] = {rows};
    static const struct kg_task_rewards_keys keys = {"x.rewards", "x.weights",
                                                     "x.command"};
    static const struct {
        const char *weights;
        const char *part; /* of the message; NULL: accepted */
    } cases[] = {
        {"x.weights=[]", NULL},
        {"x.weights=[1, 2]", NULL},
        {"x.weights=[1]",
         "x.weights: expected one weight for each reward of x.rewards (2), found 1"},
        {"x.weights=[1, 2, 3]", "(2), found 3"},
        {"x.weights=[1, two]", "x.weights: expected numbers, found 'two'"},
    };
    struct kg_task_opts opts = {.timeout_ms = 10000};
    uint64_t before = kg_mem_current_bytes();

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kg_config *c;
        struct kg_task_rewards *r;
        struct said said;

        assert_int_equal(kg_config_create(&c, tables, 1, &err), KG_OK);
        assert_int_equal(
            kg_config_override(c, "x.rewards=[a=none, b=none]", "test", &err), KG_OK);
        assert_int_equal(kg_config_override(c, cases[i].weights, "test", &err), KG_OK);
        kg_config_fill(&said, c, rows);
        assert_int_equal(
            kg_task_rewards_read(&r, &keys, said.rewards, said.weights, &opts, &err),
            cases[i].part ? KG_EINVAL : KG_OK);
        if (cases[i].part && !strstr(err.message, cases[i].part))
            fail_msg("message without '%s': %s", cases[i].part, err.message);
        kg_task_rewards_close(r);
        kg_config_free(c);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_kept_and_added_by_weight),
        cmocka_unit_test(an_answer_is_graded_where_any_reward_is),
        cmocka_unit_test(what_one_grader_cannot_read_is_as_the_call_says),
        cmocka_unit_test(what_graders_say_besides_has_their_names),
        cmocka_unit_test(a_failing_grader_is_named),
        cmocka_unit_test(wrong_lists_are_refused),
        cmocka_unit_test(weights_are_as_many_as_rewards),
    };

    return cmocka_run_group_tests_name("task/rewards", tests, NULL, NULL);
}
