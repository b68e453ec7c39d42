/* tools/queue from outside: it makes one run after the other and writes a row for each. A
 * restart skips complete runs and finishes interrupted ones. */
#include "base/file.h"
#include "data/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SMALL                                                                            \
    " recipes/digits.yaml sft.steps=0 rollout.prompts=2 rollout.samples=2"               \
    " eval.problems=4 log.rollouts=false"

static char work[] = "/tmp/kedge-queue-XXXXXX";
static struct kg_err err;

static int setup(void **state)
{
    (void)state;
    return mkdtemp(work) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    return kg_file_remove_tree(work, &err) != KG_OK;
}

static void need_kedge(void)
{
    if (access("./kedge", X_OK) == 0)
        return;
    print_message("skip: ./kedge is not built\n");
    skip();
}

/* Runs a shell line, in which each %s is the test's folder.   returns the exit status */
static int shell(const char *fmt)
{
    char line[2048];
    int status;

    snprintf(line, sizeof line, fmt, work, work, work, work);
    status = system(line);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void write_queue(const char *text)
{
    char path[128];

    snprintf(path, sizeof path, "%s/list", work);
    assert_int_equal(kg_file_write_atomic(path, text, strlen(text), &err), KG_OK);
}

/* Reads the rows of results.jsonl; the caller releases each. */
static size_t read_rows(struct kg_json_doc *rows, size_t most, const char *dir)
{
    struct kg_str text = {0};
    char path[160];
    size_t n = 0;

    snprintf(path, sizeof path, "%s/%s/results.jsonl", work, dir);
    assert_int_equal(kg_file_read(&text, path, 1 << 20, &err), KG_OK);
    for (const char *p = kg_str_text(&text); *p; p += strcspn(p, "\n") + 1) {
        assert_true(n < most);
        if (kg_json_parse(&rows[n++], p, strcspn(p, "\n"), path, &err) != KG_OK)
            fail_msg("%s", err.message);
    }
    kg_str_release(&text);
    return n;
}

static void expect_row(const struct kg_json_doc *row, const char *name,
                       const char *status)
{
    const char *found;

    assert_int_equal(kg_json_need_text(&found, row, row->root, "name", &err), KG_OK);
    assert_string_equal(found, name);
    assert_int_equal(kg_json_need_text(&found, row, row->root, "status", &err), KG_OK);
    assert_string_equal(found, status);
}

static void release(struct kg_json_doc *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        kg_json_release(&rows[i]);
}

static void every_run_gets_a_row_and_is_done_once(void **state)
{
    struct kg_json_doc rows[4];

    (void)state;
    need_kedge();
    write_queue("# two seeds of one, and one that cannot start\n"
                "grpo" SMALL " algo.preset=grpo train.steps=2 seeds=3,4"
                " eval.reference=tests/data/verl_digit_llama\n"
                "\n"
                "wrong" SMALL " algo.nothing=1\n");
    assert_int_equal(shell("tools/queue %s/list %s/a 2>%s/said"), 1);
    assert_int_equal(read_rows(rows, 4, "a"), 3);
    expect_row(&rows[0], "grpo-s3", "ok");
    expect_row(&rows[1], "grpo-s4", "ok");
    expect_row(&rows[2], "wrong", "failed with status 1");
    release(rows, 3);
    assert_int_equal(shell("grep -q '^  seed: 4' %s/a/grpo-s4/config.yaml"), 0);
    assert_int_equal(shell("grep -q '\"before\": {\"accuracy\": [0-9.]*, \"stderr\": "
                           "[0-9.]*}, \"after\": {' %s/a/results.jsonl"),
                     0);
    /* at step 0 the policy equals its anchor */
    assert_int_equal(
        shell("grep -q '\"step\": 0,.*\"val/kl\": 0\\.0,' %s/a/grpo-s3/metrics.jsonl"),
        0);
    /* complete runs are skipped, failed ones are retried */
    assert_int_equal(shell("tools/queue %s/list %s/a 2>%s/said"), 1);
    assert_int_equal(shell("grep -q 'grpo-s3 is done' %s/said"), 0);
    assert_int_equal(read_rows(rows, 4, "a"), 3);
    release(rows, 3);
}

/* Sends HUP, as a closed terminal does. env restores its default in case the tests run
 * under nohup. */
static void a_closed_terminal_stops_a_queue(void **state)
{
    struct kg_json_doc rows[2];

    (void)state;
    need_kedge();
    write_queue("long" SMALL " train.steps=60\n");
    assert_int_equal(
        shell("env --default-signal=HUP tools/queue %s/list %s/h 2>%s/said & "
              "q=$!; until [ -s %s/h/long/metrics.jsonl ]; do sleep 0.02; "
              "done; kill -HUP $q; wait $q"),
        130);
    assert_int_equal(read_rows(rows, 2, "h"), 0);
    assert_int_equal(shell("ls %s/h/long/checkpoints/step-* >/dev/null"), 0);
}

static void a_queue_that_was_stopped_goes_on(void **state)
{
    struct kg_json_doc rows[4];

    (void)state;
    need_kedge();
    write_queue("long" SMALL " train.steps=60\n"
                "next" SMALL " train.steps=1\n");
    assert_int_equal(shell("tools/queue %s/list %s/b 2>%s/said & q=$!; "
                           "until [ -s %s/b/long/metrics.jsonl ]; do sleep 0.02; done; "
                           "kill -TERM $q; wait $q"),
                     130);
    assert_int_equal(read_rows(rows, 4, "b"), 0);
    assert_int_equal(shell("tools/queue %s/list %s/b 2>%s/said"), 0);
    assert_int_equal(read_rows(rows, 4, "b"), 2);
    expect_row(&rows[0], "long", "ok");
    expect_row(&rows[1], "next", "ok");
    release(rows, 2);
    assert_int_equal(shell("grep -q 'resuming from' %s/b/long.log"), 0);
}

static void a_list_that_is_wrong_starts_nothing(void **state)
{
    const char *const lists[] = {"a x=1\na x=2\n", "a/b x=1\n", "a run.dir=/tmp/x\n",
                                 "a seeds=1,two\n"};

    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        write_queue(lists[i]);
        assert_int_equal(shell("tools/queue %s/list %s/c 2>%s/said"), 2);
        assert_int_equal(shell("grep -q 'line [12]: expected' %s/said"), 0);
    }
    assert_int_equal(shell("tools/queue %s/list 2>%s/said"), 2);
    assert_int_equal(shell("tools/queue %s/absent %s/c 2>%s/said"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_run_gets_a_row_and_is_done_once),
        cmocka_unit_test(a_closed_terminal_stops_a_queue),
        cmocka_unit_test(a_queue_that_was_stopped_goes_on),
        cmocka_unit_test(a_list_that_is_wrong_starts_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
