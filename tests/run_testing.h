/* Helpers of tests of whole runs: the digit checkpoint as a base, training in this
 * process, files compared byte by byte, numbers from metrics.jsonl.
 *
 * Include it after ROOT, the folder of the test's runs, is defined.
 */
#ifndef KG_TESTS_RUN_TESTING_H
#define KG_TESTS_RUN_TESTING_H

#include "base/file.h"
#include "base/library.h"
#include "data/options.h"
#include "recipe/config_testing.h"
#include "train/run.h"
#include "train/same_testing.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define DIGITS     "tests/data/verl_digit_llama"
#define RUN_UNUSED __attribute__((unused))

static const char *const run_base[] = {
    "model.path=" DIGITS,
    "task.name=digits",
    "data.train=" DIGITS "/train.jsonl",
    "data.val=" DIGITS "/test.jsonl",
    "rollout.prompts=4",
    "rollout.samples=4",
    "rollout.max_tokens=12",
    "train.steps=4",
    "train.updates_per_step=2",
    "optim.lr=1e-3",
    "checkpoint.every=1",
    "checkpoint.dtype=fp32",
    "eval.problems=5",
    NULL,
};

/* Assignments for all runs of a test, after run_base; ends with NULL; set by its main. */
RUN_UNUSED static const char *const *run_also;

RUN_UNUSED static void fresh(const char *dir)
{
    NEED(kg_file_remove_tree(dir, err));
    NEED(kg_file_make_dirs(ROOT, err));
}

/* Config of run_base, run_also, run.dir and the assignments in `extra` (ends with
 * NULL). */
RUN_UNUSED static struct kg_config *config_of(const char *dir, const char *const *extra)
{
    const char *const *const lists[] = {run_base, run_also, extra};

    return config_from(dir, lists, 3);
}

RUN_UNUSED static kg_status train(const char *dir, bool resume, const char *const *extra,
                                  struct kg_err *err)
{
    struct kg_config *config = config_of(dir, extra);
    kg_status status = kg_train_run(config, resume, false, err);

    kg_config_free(config);
    return status;
}

/* The program that computes like this test: if KEDGE_TEST_BACKEND is set, the tests' own
 * build, which reads the tests' switches. */
RUN_UNUSED static const char *run_program(void)
{
    static char path[PATH_MAX + 16];
    struct kg_program_folders own;

    if (!getenv("KEDGE_TEST_BACKEND"))
        return "./kedge";
    NEED(kg_program_folders(&own, err));
    snprintf(path, sizeof path, "%s/../kedge", own.list[0]);
    return path;
}

/* Starts `kedge train` with the same config in a child process, without output. */
RUN_UNUSED static pid_t start_kedge(const char *dir, bool resume,
                                    const char *const *extra)
{
    const char *const *const lists[] = {run_base, run_also, extra};
    const char *argv[96] = {run_program(), "train"};
    char run_dir[256];
    int n = 2;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child > 0)
        return child;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (const char *const *a = lists[i]; a && *a; a++)
            argv[n++] = *a;
    snprintf(run_dir, sizeof run_dir, "run.dir=%s", dir);
    argv[n++] = run_dir;
    if (resume)
        argv[n++] = "--resume";
    if (freopen("/dev/null", "w", stderr))
        execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

RUN_UNUSED static void must_train(const char *dir, bool resume, const char *const *extra)
{
    NEED(train(dir, resume, extra, err));
}

/* out <- every value of a metric, in order.   returns their number */
RUN_UNUSED static int metrics_of(double *out, int most, const char *dir, const char *name)
{
    struct kg_str text = {0};
    char key[96];
    int n = 0;

    snprintf(key, sizeof key, "\"%s\": ", name);
    read_in(&text, dir, "metrics.jsonl");
    for (const char *at = kg_str_text(&text); (at = strstr(at, key)); n++) {
        at += strlen(key);
        assert_true(n < most);
        out[n] = strtod(at, NULL);
    }
    kg_str_release(&text);
    return n;
}

RUN_UNUSED static void killed_at(const char *dir, bool resume, useconds_t after_us)
{
    pid_t child = start_kedge(dir, resume, NULL);

    usleep(after_us);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* For each of n times: starts a run in `dir`, kills it after that time, resumes it, kills
 * it again and resumes it to its end. It must equal the run of 4 steps in `whole`. Skips
 * the test if the program is not built. */
RUN_UNUSED static void assert_kills_leave_no_trace(const char *whole, const char *dir,
                                                   const useconds_t *times, size_t n)
{
    char begun[256];

    if (!kg_file_exists(run_program())) {
        print_message("skip: %s is not built\n", run_program());
        skip();
    }
    snprintf(begun, sizeof begun, "%s/config.yaml", dir);
    for (size_t i = 0; i < n; i++) {
        fresh(dir);
        killed_at(dir, false, times[i]);
        if (!kg_file_exists(begun))
            continue; /* killed before the run began */
        killed_at(dir, true, times[i] / 2);
        must_train(dir, true, NULL);
        assert_same_run(whole, dir, 4);
    }
}

#endif
