/* What tests of whole runs share: the digit checkpoint as a base, training in this
 * process, files compared byte by byte, numbers out of metrics.jsonl.
 *
 * Include it after ROOT, the folder of the test's runs, is defined.
 */
#ifndef KG_TESTS_RUN_TESTING_H
#define KG_TESTS_RUN_TESTING_H

#include "base/file.h"
#include "data/options.h"
#include "train/config_testing.h"
#include "train/run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Assignments of all runs of a test beside run_base, ended by NULL; set by its main. */
RUN_UNUSED static const char *const *run_also;

RUN_UNUSED static void fresh(const char *dir)
{
    NEED(kg_file_remove_tree(dir, err));
    NEED(kg_file_make_dirs(ROOT, err));
}

/* Config of run_base, run_also, run.dir and the extra assignments (ended by NULL). */
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

RUN_UNUSED static void must_train(const char *dir, bool resume, const char *const *extra)
{
    NEED(train(dir, resume, extra, err));
}

RUN_UNUSED static void read_in(struct kg_str *out, const char *dir, const char *name)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    NEED(kg_file_read(out, path, 1u << 30, err));
}

RUN_UNUSED static bool same_file(const char *a_dir, const char *b_dir, const char *name)
{
    struct kg_str a = {0}, b = {0};
    bool same;

    read_in(&a, a_dir, name);
    read_in(&b, b_dir, name);
    assert_true(a.len > 0);
    same = a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
    kg_str_release(&a);
    kg_str_release(&b);
    return same;
}

RUN_UNUSED static void assert_same_file(const char *a_dir, const char *b_dir,
                                        const char *name)
{
    if (!same_file(a_dir, b_dir, name))
        fail_msg("%s differs in %s and %s", name, a_dir, b_dir);
}

/* Every value of a metric, in order.   returns how many */
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

#endif
