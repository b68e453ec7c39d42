/* Shared by tests of suites: a suite of four problems, a source of completions that stops
 * early, and a comparison of folders byte by byte.
 *
 * Included by *_test.c only.
 */
#ifndef KG_EVAL_SUITE_TESTING_H
#define KG_EVAL_SUITE_TESTING_H

#include "eval/eval_testing.h"

#include <signal.h>

static inline void says(const char *text)
{
    if (!strstr(err.message, text))
        fail_msg("expected '%s' in '%s'", text, err.message);
}

static const char suite_data[] =
    "{\"id\":\"p\",\"question\":\"1,2,\",\"answer\":\"3\","
    "\"data_source\":\"odd\"}\n"
    "{\"question\":\"4,5,6,\",\"answer\":\"7\"}\n"
    "{\"question\":\"8\",\"answer\":\"9\",\"data_source\":\"odd\"}\n"
    "{\"question\":\"1,1,2\",\"answer\":\"5\"}\n";

static const char suite_yaml[] = "suite:\n"
                                 "  name: trial\n"
                                 "  seed: 5\n"
                                 "defaults:\n"
                                 "  task: qa-number\n"
                                 "  data: data.jsonl\n"
                                 "  max_tokens: 10\n"
                                 "  samples: 4\n"
                                 "  pass_k: [1, 2, 4]\n"
                                 "sets:\n"
                                 "  all:\n"
                                 "    maj_k: [1, 3]\n"
                                 "    group: both\n"
                                 "  odd:\n"
                                 "    only_source: odd\n"
                                 "    temperature: 0.7\n"
                                 "    group: both\n"
                                 "  two:\n"
                                 "    problems: 2\n"
                                 "    samples: 5\n"
                                 "    stops: [\"3\"]\n";

/* The local source, which fails or dies after a number of completions. */
struct breaking {
    struct kg_eval_source source; /* first */
    struct kg_eval_local local;
    int left; /* completions until then; < 0: never */
    bool dies;
    kg_eval_take_fn take;
    void *user;
};

static inline kg_status break_take(void *user, const struct kg_eval_fresh *fresh,
                                   struct kg_err *e)
{
    struct breaking *b = user;

    if (b->left == 0 && b->dies)
        raise(SIGKILL);
    if (b->left == 0)
        return kg_fail(e, KG_EINTERRUPTED, "stopped by the test");
    b->left--;
    return b->take(b->user, fresh, e);
}

static inline kg_status break_answer(struct kg_eval_source *self, struct kg_eval_set *set,
                                     const bool *there, kg_eval_take_fn take, void *user,
                                     struct kg_err *e)
{
    struct breaking *b = (struct breaking *)self;

    b->take = take;
    b->user = user;
    return b->local.source.answer(&b->local.source, set, there, break_take, b, e);
}

static inline kg_status break_prepare(struct kg_eval_source *self,
                                      struct kg_eval_set *set, struct kg_err *e)
{
    struct breaking *b = (struct breaking *)self;

    return b->local.source.prepare(&b->local.source, set, e);
}

static inline kg_status break_inputs(struct kg_eval_source *self, struct kg_str *out,
                                     struct kg_err *e)
{
    struct breaking *b = (struct breaking *)self;

    return b->local.source.put_inputs(&b->local.source, out, e);
}

static inline struct breaking source(int left, int32_t max_batch)
{
    struct breaking b = {
        .source = {break_prepare, break_answer, break_inputs},
        .local = {.model = model, .tok = tok, .model_dir = MODEL, .max_batch = max_batch},
        .left = left};

    kg_eval_local_init(&b.local);
    return b;
}

static inline kg_status run(struct outcome *o, const char *out, const char *assignment,
                            struct breaking b)
{
    struct kg_eval_run run = {.suite = &o->suite,
                              .source = &b.source,
                              .out = out ? in_dir(out) : NULL,
                              .dump = out ? NULL : add_line,
                              .user = o};

    open_outcome(o, "suite.yaml", assignment);
    run.sets = o->sets;
    return kg_eval_suite(&o->report, &run, &err);
}

static inline double metric(const struct kg_eval_score *s, const char *name)
{
    const struct kg_eval_metric *m = kg_eval_metric_find(s, name);

    assert_non_null(m);
    return m->value;
}

static const char *const suite_files[] = {"config.yaml",    "manifest.json",
                                          "problems.jsonl", "samples.jsonl.zst",
                                          "results.json",   "lock"};

static inline void same_folder(const char *a, const char *b)
{
    char **names;
    size_t n;

    ok(kg_file_list(&names, &n, in_dir(b), &err));
    assert_int_equal(n, sizeof suite_files / sizeof *suite_files);
    kg_file_names_free(names, n);
    for (size_t i = 0; i < sizeof suite_files / sizeof *suite_files; i++) {
        struct kg_str x = {0}, y = {0};
        char name[100];

        snprintf(name, sizeof name, "%s/%s", a, suite_files[i]);
        ok(kg_file_read(&x, in_dir(name), 1 << 20, &err));
        snprintf(name, sizeof name, "%s/%s", b, suite_files[i]);
        ok(kg_file_read(&y, in_dir(name), 1 << 20, &err));
        assert_int_equal(x.len, y.len);
        if (x.len)
            assert_memory_equal(x.data, y.data, x.len);
        kg_str_release(&x);
        kg_str_release(&y);
    }
}

static inline void whole(const char *out)
{
    struct outcome o;

    ok(run(&o, out, NULL, source(-1, 8)));
    release(&o);
}

#endif
