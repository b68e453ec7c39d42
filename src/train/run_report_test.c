/* report.html of a run: written at every checkpoint and at the end, equal to the page of
 * `kedge report`, absent if switched off, and never a reason to end a run. */
#include "train/rl_testing.h"

#include "report/report.h"

#define ROOT "build/test-runs/report"

static const char *const base[] = {"train.steps=3", "checkpoint.every=1",
                                   "rollout.max_tokens=4", NULL};

static void train(const char *dir, bool resume, const char *const *extra)
{
    const char *const *const lists[] = {rl_base, base, extra};
    struct kg_config *config = config_from(dir, lists, 3);

    NEED(kg_train_run(config, resume, false, err));
    kg_config_free(config);
}

/* report.html must be the page of what the run directory holds now. */
static void the_page_is_current(const char *dir)
{
    struct kg_report_run *run;
    struct kg_str want = {0}, found = {0};
    char path[256];

    snprintf(path, sizeof path, "%s/report.html", dir);
    NEED(kg_file_read(&found, path, 1 << 26, err));
    NEED(kg_report_run_open(&run, dir, err));
    NEED(kg_report_page(&want, &run, 1, err));
    assert_int_equal(found.len, want.len);
    assert_memory_equal(found.data, want.data, want.len);
    kg_report_run_free(run);
    kg_str_release(&want);
    kg_str_release(&found);
}

static void a_run_leaves_its_page(void **state)
{
    static const char *const more[] = {"train.steps=5", NULL};

    (void)state;
    fresh(ROOT "/a");
    train(ROOT "/a", false, NULL);
    the_page_is_current(ROOT "/a");
    train(ROOT "/a", true, more);
    the_page_is_current(ROOT "/a");
}

/* The grader fails in the third step: the page of the second step remains. */
static void a_run_that_fails_leaves_its_page(void **state)
{
    static const char *const extra[] = {
        "task.name=external",
        "task.life=batch",
        "task.command=echo >> " ROOT "/calls; [ $(wc -l < " ROOT "/calls) -lt 3 ] || "
        "exit 7; while read -r l; do echo '{\"score\": 1}'; done",
        "data.val=",
        "train.steps=9",
        "checkpoint.every=2",
        NULL};
    const char *const *const lists[] = {rl_base, base, extra};
    struct kg_config *config;
    struct kg_err why;

    (void)state;
    fresh(ROOT "/fails");
    NEED(kg_file_write_atomic(ROOT "/calls", "", 0, err));
    config = config_from(ROOT "/fails", lists, 3);
    assert_int_not_equal(kg_train_run(config, false, false, &why), KG_OK);
    kg_config_free(config);
    assert_true(last_metric(ROOT "/fails", "reward/mean") == 1);
    the_page_is_current(ROOT "/fails");
}

static void there_is_none_where_it_is_not_asked_for(void **state)
{
    static const char *const off[] = {"log.report=false", NULL};

    (void)state;
    fresh(ROOT "/off");
    train(ROOT "/off", false, off);
    assert_false(kg_file_exists(ROOT "/off/report.html"));
}

static void a_page_that_cannot_be_written_does_not_end_the_run(void **state)
{
    static const char *const more[] = {"train.steps=4", NULL};

    (void)state;
    fresh(ROOT "/folder");
    train(ROOT "/folder", false, NULL);
    NEED(kg_file_remove_tree(ROOT "/folder/report.html", err));
    NEED(kg_file_make_dirs(ROOT "/folder/report.html/x", err));
    train(ROOT "/folder", true, more);
    assert_true(kg_file_exists(ROOT "/folder/checkpoints/step-000004"));
    assert_true(kg_file_is_dir(ROOT "/folder/report.html"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_leaves_its_page),
        cmocka_unit_test(a_run_that_fails_leaves_its_page),
        cmocka_unit_test(there_is_none_where_it_is_not_asked_for),
        cmocka_unit_test(a_page_that_cannot_be_written_does_not_end_the_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
