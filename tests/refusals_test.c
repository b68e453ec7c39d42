/* A setting without effect is refused or reported, with the reason. ./kedge is run in a
 * shell.
 */
#include "base/file.h"
#include "base/need_testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DIGITS "tests/data/verl_digit_llama"
#define ROOT   "build/test-refusals"

static struct kg_str said; /* output of the last command */

static int set_up(void **state)
{
    (void)state;
    NEED(kg_file_remove_tree(ROOT, err));
    NEED(kg_file_make_dirs(ROOT, err));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kg_str_release(&said);
    return 0;
}

static void need_kedge(void)
{
    if (access("./kedge", X_OK) == 0)
        return;
    print_message("skip: ./kedge is not built\n");
    skip();
}

/* `INPUT | ./kedge LINE` must fail with a message that contains `says`. */
static void refused(const char *input, const char *line, const char *says)
{
    char command[1024];
    int status;

    snprintf(command, sizeof command,
             "printf '%s' | timeout 60 ./kedge %s >" ROOT "/out 2>" ROOT "/err", input,
             line);
    status = system(command);
    assert_true(WIFEXITED(status));
    kg_str_clear(&said);
    NEED(kg_file_read(&said, ROOT "/err", 1 << 20, err));
    if (WEXITSTATUS(status) < 1 || WEXITSTATUS(status) > 2 ||
        !strstr(kg_str_text(&said), says))
        fail_msg("%s: expected '%s', found status %d, '%s'", line, says,
                 WEXITSTATUS(status), kg_str_text(&said));
}

static void a_length_beyond_the_model_is_refused(void **state)
{
    (void)state;
    need_kedge();
    refused("", "serve -m " DIGITS " --port 0 --chat-template none --max-len 1000000",
            "--max-len: expected at most the ");
    refused("hi",
            "chat -m " DIGITS " --max-len 1000000 --chat-template "
            "tests/data/chat_templates/Qwen-Qwen3-0.6B.jinja",
            "--max-len: expected at most the ");
}

static void what_is_no_action_is_told_with_the_nearest(void **state)
{
    (void)state;
    need_kedge();
    refused("", "search indx a b", "found 'indx'; did you mean 'index'?");
    refused("", "data convrt a", "found 'convrt'; did you mean 'convert'?");
    refused("", "eval -m " DIGITS " suites/ema-pg-math.yaml --sets amc2 --dry-run",
            "--sets: expected one of aime24, amc, math500, minerva, olympiadbench, "
            "aime25, amc25; found 'amc2'; did you mean 'amc'?");
}

static void an_index_of_another_world_is_refused(void **state)
{
    (void)state;
    need_kedge();
    if (system("./kedge wiki corpus " ROOT "/w --works 20 2>/dev/null && "
               "./kedge search index " ROOT "/w/corpus.jsonl " ROOT "/w.db 2>/dev/null"))
        fail_msg("no index");
    refused(
        "", "wiki episodes " ROOT "/w.db " ROOT "/e.jsonl --works 20 --seed 2",
        "w.db, and the world of --seed 2 --works 20: episode 1: expected a search for");
}

static void how_to_sample_is_not_said_by_a_line(void **state)
{
    (void)state;
    need_kedge();
    refused("{\"ids\": [1]}\n{\"ids\": [1], \"max_tokens\": 2}\n",
            "generate --jsonl -m " DIGITS,
            "stdin line 2: max_tokens: expected no such key, because flags set");
    refused("{\"prompt\": \"1\", \"tools\": []}", "generate --jsonl -m " DIGITS,
            "stdin line 1: tools: expected messages as prompt");
    assert_int_equal(system("echo '{\"ids\": [1], \"ground_truth\": \"4\"}' | ./kedge "
                            "generate --jsonl --max-tokens 1 -m " DIGITS " >" ROOT
                            "/out"),
                     0);
}

/* The switches of the tests' own build (tests/emu/backends.c) have no effect on
 * ./kedge. */
static void what_tests_set_is_not_read(void **state)
{
    const char *const line = " generate -m " DIGITS " --max-tokens 1 1 >" ROOT
                             "/out 2>" ROOT "/err";
    char command[512];

    (void)state;
    need_kedge();
    for (int tested = 0; tested < 2; tested++) {
        snprintf(command, sizeof command, "KEDGE_TEST_BACKEND=far %s%s",
                 tested ? KG_TEST_KEDGE : "./kedge", line);
        assert_int_equal(system(command), 0);
        kg_str_clear(&said);
        NEED(kg_file_read(&said, ROOT "/err", 1 << 20, err));
        assert_int_equal(strstr(kg_str_text(&said), "KEDGE_TEST_BACKEND") != NULL,
                         tested);
    }
}

/* `./kedge table LINE` of ROWS must succeed and print `says`, on stdout or stderr. */
static void table_says(const char *rows, const char *line, const char *says)
{
    char command[512];

    NEED(kg_file_write_atomic(ROOT "/rows", rows, strlen(rows), err));
    snprintf(command, sizeof command,
             "./kedge table -m x %s " ROOT "/rows >" ROOT "/out 2>&1", line);
    assert_int_equal(system(command), 0);
    kg_str_clear(&said);
    NEED(kg_file_read(&said, ROOT "/out", 1 << 20, err));
    if (!strstr(kg_str_text(&said), says))
        fail_msg("%s: expected '%s', found '%s'", line, says, kg_str_text(&said));
}

/* In every format of a table. */
static void cells_left_out_are_said(void **state)
{
    static const char rows[] = "{\"cell\": \"m,1\", \"seed\": 1, \"x\": 1, \"kl\": 1}\n"
                               "{\"cell\": \"m,1\", \"seed\": 2, \"x\": 1, \"kl\": 1}\n"
                               "{\"cell\": \"m,2\", \"seed\": 1, \"x\": 1, \"kl\": 2}\n";

    (void)state;
    need_kedge();
    table_says(rows, "--at-least 2", "1 cell with fewer than 2 rows is left out.\n");
    table_says(rows, "--at-least 2 --survival --start m,1",
               "1 cell with fewer than 2 rows is left out.\n");
    table_says(rows, "--at-least 2 --json", "\"left_out\": 1}\n");
    table_says(rows, "--at-least 2 --json",
               "cells left out, with fewer than 2 rows: 1\n");
    table_says(rows, "--at-least 2 --svg --over kl",
               "cells left out, with fewer than 2 rows: 1\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_length_beyond_the_model_is_refused),
        cmocka_unit_test(what_is_no_action_is_told_with_the_nearest),
        cmocka_unit_test(an_index_of_another_world_is_refused),
        cmocka_unit_test(how_to_sample_is_not_said_by_a_line),
        cmocka_unit_test(what_tests_set_is_not_read),
        cmocka_unit_test(cells_left_out_are_said),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
