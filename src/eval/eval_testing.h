/* Shared by tests of evaluation: the digit model on one thread, a folder, and the results
 * of a suite.
 *
 * Included by *_test.c only.
 */
#ifndef KG_EVAL_EVAL_TESTING_H
#define KG_EVAL_EVAL_TESTING_H

#include "base/clock.h"
#include "base/folder_testing.h"
#include "eval/runner.h"
#include "eval/suite.h"

#define MODEL "tests/data/verl_digit_llama"

static struct kg_model *model;
static struct kg_tokenizer *tok;

static inline void ok(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

/* returns 0, or 1 if the set-up failed */
static inline int open_digit_model(void **state)
{
    const struct kg_model_opts opts = {.ct = KG_F32, .trainable = false};

    kg_threads_set(1);
    return kg_model_open(&model, MODEL, &opts, &err) != KG_OK ||
           kg_tokenizer_open(&tok, MODEL, &err) != KG_OK || make_dir(state);
}

/* Kernels keep their scratch memory, so tests measure leaks around a run, not here. */
static inline int close_digit_model(void **state)
{
    kg_model_free(model);
    kg_tokenizer_close(tok);
    (void)remove_dir(state);
    return 0;
}

struct outcome {
    struct kg_suite suite;
    struct kg_eval_set *sets;
    struct kg_eval_report report;
    struct kg_str lines;
};

/* assignment: NULL for none */
static inline void open_outcome(struct outcome *o, const char *yaml,
                                const char *assignment)
{
    memset(o, 0, sizeof *o);
    ok(kg_suite_open(&o->suite, in_dir(yaml), &err));
    if (assignment)
        ok(kg_config_override(o->suite.config, assignment, "test", &err));
    ok(kg_suite_resolve(&o->suite, &err));
    ok(kg_suite_sets(&o->sets, &o->suite, dir, &err));
}

static inline kg_status add_line(void *user, const char *line, size_t n, struct kg_err *e)
{
    return kg_str_append(&((struct outcome *)user)->lines, line, n, e);
}

static inline void release(struct outcome *o)
{
    kg_eval_report_release(&o->report);
    kg_suite_sets_free(o->sets, o->suite.n);
    kg_suite_release(&o->suite);
    kg_str_release(&o->lines);
}

#endif
