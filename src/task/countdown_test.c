/* Tests of countdown: exact fractions, each number once, problems from a file. */
#include "task/task.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct kg_err err;
static char path[64];

static const struct kg_task_row *row(void)
{
    const struct kg_task_row *row = NULL;

    assert_int_equal(kg_task_find(&row, "countdown", &err), KG_OK);
    return row;
}

static void write_file(const char *text)
{
    int fd;

    snprintf(path, sizeof path, "/tmp/kg_countdown_test_XXXXXX");
    fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void expect(const char *truth, const char *response, bool correct)
{
    char *copy = kg_mem_strdup(truth, &err);
    struct kg_record r = {.ground_truth = copy};
    struct kg_grade_item item = {
        .record = &r, .response = response, .n = strlen(response)};
    struct kg_task_opts opts = {0};
    struct kg_grade g = {0};

    if (kg_task_grade(&g, row(), &opts, &item, 1, &err) != KG_OK)
        fail_msg("%s", err.message);
    if (!g.graded || g.correct != correct)
        fail_msg("truth '%s' response '%s': expected %s", truth, response,
                 correct ? "right" : "wrong");
    kg_mem_free(copy);
}

static void countdown_evaluates_exactly_and_uses_each_number_once(void **state)
{
    static const char truth[] = "{\"target\":46,\"numbers\":[3,7,25]}";
    static const char thirds[] = "{\"target\":24,\"numbers\":[3,3,8,8]}";
    static const char big[] = "{\"target\":1,\"numbers\":[999999999,999999999,3,3]}";

    (void)state;
    expect(truth, "7*3=21; 25+21=46 #### 25+7*3", true);
    expect(truth, "25 + (7*3)", true);
    /* intermediate results may be as large as the largest given number, of either sign */
    expect("{\"target\":7,\"numbers\":[0,1000000000,1000000000,7]}",
           "0-1000000000+1000000000+7", true);
    expect("{\"target\":7,\"numbers\":[0,1000000000,1000000000,7]}",
           "0+1000000000-1000000000+7", true);
    expect("{\"target\":7,\"numbers\":[1,1000000000,1000000000,8]}",
           "8-1-1000000000-1000000000", false);
    expect(truth, "thinking\n((25)+7*3) = 46\n\n", true);
    expect(truth, "#### 25+7*3=47", true);
    expect(truth, "#### 46", false);
    expect(truth, "#### 25+7+7+7", false);
    expect(truth, "#### 25+21", false);
    expect(truth, "#### 25+7*3 apples", false);
    expect(truth, "#### 25+7*3)", false);
    expect(truth, "#### (25+7*3", false);
    expect(truth, "#### 25+7*", false);
    expect(truth, "#### +25+7*3", false);
    expect(truth, "#### 25+7*3+", false);
    expect(truth, "#### 25+7*3-)", false);
    expect(truth, "#### 25-7/0", false);
    expect(truth, "####", false);
    expect(truth, "", false);
    expect(thirds, "#### 8/(3-8/3)", true);
    expect(big, "#### 999999999/999999999+3-3", true);
    expect(big, "#### 999999999*999999999*3*3", false);
    expect("{\"target\":1,\"numbers\":[]}", "1", false);
}

/* Intermediate results may be any fraction. */
static void countdown_adds_and_divides_fractions(void **state)
{
    (void)state;
    expect("{\"target\":5,\"numbers\":[1,2,1,3,6]}", "(1/2+1/3)*6", true);
    expect("{\"target\":1,\"numbers\":[1,2,1,3,6]}", "(1/2-1/3)*6", true);
    expect("{\"target\":1,\"numbers\":[2,3,3,4,2]}", "2/3*(3/4)*2", true);
    expect("{\"target\":3,\"numbers\":[2,3,4,9,2]}", "2/3/(4/9)*2", true);
    expect("{\"target\":2,\"numbers\":[1,2,3,2]}", "1/2+3/2", true);
    expect("{\"target\":4,\"numbers\":[1,3,5,3,6]}", "6*(1/3-5/3)", false);
    expect("{\"target\":8,\"numbers\":[1,3,5,3,6]}", "6*(5/3-1/3)", true);
    expect("{\"target\":6,\"numbers\":[6,1,2,3,2]}", "6/(1/2-3/2)", false);
    expect("{\"target\":1,\"numbers\":[1,2]}", "1/2", false);
}

static void countdown_problems_are_read_from_a_file(void **state)
{
    static const char good[] = "{\"prompt\":\"a\",\"answer\":{\"target\":3,"
                               "\"numbers\":[1,2]}}\n";
    char bad[256];
    struct kg_task_opts opts = {0};
    struct kg_dataset d;

    (void)state;
    snprintf(bad, sizeof bad, "%s%s%s", good, good, good);
    write_file(bad);
    assert_int_equal(kg_task_load(&d, row(), &opts, path, &err), KG_OK);
    assert_int_equal(d.n, 3);
    kg_dataset_release(&d);
    unlink(path);
    snprintf(bad, sizeof bad, "%s{\"prompt\":\"b\",\"answer\":\"46\"}\n%s", good, good);
    write_file(bad);
    assert_int_equal(kg_task_load(&d, row(), &opts, path, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, path));
    assert_non_null(strstr(err.message, "line 2"));
    assert_null(d.records);
    unlink(path);
}

static void countdown_survives_deep_and_long_text(void **state)
{
    char text[5000];

    (void)state;
    memset(text, '(', sizeof text - 1);
    text[sizeof text - 1] = 0;
    expect("{\"target\":1,\"numbers\":[1]}", text, false);
    text[200] = 0;
    expect("{\"target\":1,\"numbers\":[1]}", text, false);
    memset(text, '9', 200);
    expect("{\"target\":1,\"numbers\":[1]}", text, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(countdown_evaluates_exactly_and_uses_each_number_once),
        cmocka_unit_test(countdown_adds_and_divides_fractions),
        cmocka_unit_test(countdown_problems_are_read_from_a_file),
        cmocka_unit_test(countdown_survives_deep_and_long_text),
    };

    return cmocka_run_group_tests_name("task/countdown", tests, NULL, NULL);
}
