/* Differences computed by hand, the bootstrap against all resamples, and folders that
 * cannot be compared. */
#include "eval/compare.h"

#include "base/folder_testing.h"
#include "base/sort.h"

#include <math.h>

static void ok(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

/* Set x has a file, set y generates its problems. */
static const char CONFIG[] = "sets: {x: {data: d.jsonl}, y: {task: countdown}}\n";

/* Writes the folder of a finished evaluation, with these problems. */
static void put_folder(const char *name, const char *problems, const char *inputs)
{
    char file[100], text[400];

    ok(kg_file_make_dirs(in_dir(name), &err));
    snprintf(file, sizeof file, "%s/problems.jsonl", name);
    put(file, problems);
    snprintf(file, sizeof file, "%s/results.json", name);
    put(file, "{}\n");
    snprintf(file, sizeof file, "%s/manifest.json", name);
    snprintf(text, sizeof text, "{\"kedge\": \"0\", \"inputs\": {%s}}\n", inputs);
    put(file, text);
    snprintf(file, sizeof file, "%s/config.yaml", name);
    put(file, CONFIG);
}

static const char INPUTS[] = "\"sets.x.data\": {\"bytes\": 1, \"hash\": \"abc\"}";

static const char A[] = "{\"set\":\"x\",\"problem\":1,\"ground_truth\":\"g\",\"id\":"
                        "\"p\",\"accuracy\":0.5,\"tokens\":10,"
                        "\"pass@4\":1,\"prompt\":\"q\"}\n"
                        "{\"set\":\"x\",\"problem\":2,\"ground_truth\":\"g\","
                        "\"accuracy\":0,\"tokens\":20,\"pass@4\":0}\n"
                        "{\"set\":\"x\",\"problem\":7,\"ground_truth\":\"g\","
                        "\"accuracy\":1,\"tokens\":30,\"pass@4\":1}\n"
                        "{\"set\":\"y\",\"problem\":1,\"ground_truth\":\"g\","
                        "\"accuracy\":0.25,\"tokens\":7}\n"
                        "{\"set\":\"y\",\"problem\":2,\"ground_truth\":\"g\","
                        "\"accuracy\":0.25,\"tokens\":9}\n";
static const char B[] =
    "{\"set\":\"x\",\"problem\":1,\"ground_truth\":\"g\",\"accuracy\":1,\"tokens\":10}\n"
    "{\"set\":\"x\",\"problem\":2,\"ground_truth\":\"g\",\"accuracy\":0.25,\"tokens\":21}"
    "\n"
    "{\"set\":\"x\",\"problem\":7,\"ground_truth\":\"g\",\"accuracy\":0.75,\"tokens\":30}"
    "\n"
    "{\"set\":\"y\",\"problem\":1,\"ground_truth\":\"g\",\"accuracy\":0.5,\"tokens\":7}\n"
    "{\"set\":\"y\",\"problem\":2,\"ground_truth\":\"g\",\"accuracy\":0.5,\"tokens\":9}"
    "\n";

static const struct kg_eval_difference *row(const struct kg_eval_comparison *c,
                                            const char *set, const char *metric)
{
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->rows[i].set, set) == 0 && strcmp(c->rows[i].metric, metric) == 0)
            return &c->rows[i];
    return NULL;
}

/* Differences in x: 1/2, 1/4, -1/4; their mean is 1/6, the sum of squared deviations
 * 7/24. In y both differences are 1/4, so its interval has no width. */
static void differences_are_of_pairs(void **state)
{
    struct kg_eval_comparison c;
    const struct kg_eval_difference *x, *y, *mean;

    (void)state;
    put_folder("a", A, INPUTS);
    put_folder("b", B, INPUTS);
    ok(kg_eval_compare(&c, in_dir("a"), in_dir("b"), &err));
    x = row(&c, "x", "accuracy");
    y = row(&c, "y", "accuracy");
    mean = row(&c, "mean", "accuracy");
    assert_non_null(x);
    assert_non_null(y);
    assert_non_null(mean);
    assert_null(row(&c, "x", "pass@4"));
    assert_int_equal(c.n, 6);
    assert_int_equal(x->problems, 3);
    assert_float_equal(x->a, 0.5, 1e-15);
    assert_float_equal(x->b, 2.0 / 3, 1e-15);
    assert_float_equal(x->difference, 1.0 / 6, 1e-15);
    assert_float_equal(x->stderror, sqrt(7.0 / 24 / 2 / 3), 1e-15);
    assert_int_equal(x->better, 2);
    assert_int_equal(x->worse, 1);
    assert_float_equal(x->low, -0.25, 1e-15); /* 3 times the worst: 1 of 27 */
    assert_float_equal(x->high, 0.5, 1e-15);
    assert_float_equal(y->difference, 0.25, 1e-15);
    assert_float_equal(y->low, 0.25, 1e-15);
    assert_float_equal(y->high, 0.25, 1e-15);
    assert_float_equal(mean->difference, (1.0 / 6 + 0.25) / 2, 1e-15);
    assert_float_equal(mean->stderror, x->stderror / 2, 1e-15);
    assert_float_equal(mean->low, 0, 1e-15);
    assert_float_equal(mean->high, 0.375, 1e-15);
    kg_eval_comparison_release(&c);
}

static void the_same_every_time(void **state)
{
    struct kg_eval_comparison c;
    struct kg_str first = {0}, again = {0}, table = {0};

    (void)state;
    put_folder("a", A, INPUTS);
    put_folder("b", B, INPUTS);
    for (int i = 0; i < 2; i++) {
        ok(kg_eval_compare(&c, in_dir("a"), in_dir("b"), &err));
        ok(kg_eval_comparison_json(i ? &again : &first, &c, &err));
        ok(kg_eval_comparison_table(&table, &c, &err));
        kg_eval_comparison_release(&c);
    }
    assert_string_equal(first.data, again.data);
    assert_non_null(strstr(first.data, "\"resamples\": 10000"));
    assert_non_null(strstr(table.data, "mean"));
    kg_str_release(&first);
    kg_str_release(&again);
    kg_str_release(&table);
}

/* 5 differences have 3,125 resamples. Their mean, variance and quantiles, computed
 * exactly, must agree with those of 10,000 random resamples. */
static void the_bootstrap_is_that_of_all_resamples(void **state)
{
    static const double d[5] = {0.4, -0.1, 0.2, 0.7, -0.3};
    static double all[3125], drawn[KG_EVAL_RESAMPLES];
    double low, high, mean = 0, square = 0, exact = 0;

    (void)state;
    for (int i = 0; i < 3125; i++) {
        for (int j = 0, x = i; j < 5; j++, x /= 5)
            all[i] += d[x % 5] / 5;
        exact += all[i] * all[i] / 3125;
    }
    kg_sort_doubles(all, 3125);
    ok(kg_eval_interval(&low, &high, drawn, d, 5, 3, &err));
    for (int i = 0; i < KG_EVAL_RESAMPLES; i++) {
        mean += drawn[i] / KG_EVAL_RESAMPLES;
        square += drawn[i] * drawn[i] / KG_EVAL_RESAMPLES;
    }
    assert_float_equal(mean, 0.18, 0.006);
    assert_float_equal(square, exact, 0.01 * 0.18 + 0.002);
    assert_float_equal(low, all[(int)(0.025 * 3125)], 0.021);
    assert_float_equal(high, all[(int)(0.975 * 3125)], 0.021);
}

/* For 400 numbers without a heavy tail, the interval must be that of a normal
 * distribution: 1.96 standard errors on each side of the mean. */
static void many_problems_give_the_normal_interval(void **state)
{
    enum { N = 400 };
    double d[N], mean = 0, square = 0, low, high, error;

    (void)state;
    for (int i = 0; i < N; i++) {
        d[i] = sin(i * 12.9898) + 0.1; /* any numbers without a heavy tail */
        mean += d[i] / N;
    }
    for (int i = 0; i < N; i++)
        square += (d[i] - mean) * (d[i] - mean);
    error = sqrt(square / (N - 1) / N);
    ok(kg_eval_interval(&low, &high, NULL, d, N, 0, &err));
    assert_float_equal(low, mean - 1.96 * error, 0.1 * error);
    assert_float_equal(high, mean + 1.96 * error, 0.1 * error);
}

static void other_choice(const char *config, const char *says)
{
    struct kg_eval_comparison c;

    put_folder("b", B, INPUTS);
    put("b/config.yaml", config);
    assert_int_equal(kg_eval_compare(&c, in_dir("a"), in_dir("b"), &err), KG_ECONFLICT);
    if (!strstr(err.message, says))
        fail_msg("expected '%s' in '%s'", says, err.message);
}

static void what_cannot_be_compared_is_refused(void **state)
{
    static const struct {
        const char *problems;
        const char *inputs;
        kg_status status;
        const char *says;
    } rows[] = {
        {"{\"set\":\"x\",\"problem\":1,\"ground_truth\":\"g\",\"accuracy\":1}\n", INPUTS,
         KG_ECONFLICT, "expected the same sets, found 2 in "},
        {"{\"set\":\"x\",\"problem\":1,\"ground_truth\":\"g\"}\n{\"set\":\"z\","
         "\"problem\":1,\"ground_truth\":\"g\"}\n",
         INPUTS, KG_ECONFLICT, "set x: expected the same problems, found 3 in "},
        {"{\"set\":\"z\",\"problem\":1,\"ground_truth\":\"g\"}\n{\"set\":\"x\","
         "\"problem\":1,\"ground_truth\":\"g\"}\n",
         INPUTS, KG_ECONFLICT, "expected the same sets, found x in "},
        {"{\"set\":\"x\",\"problem\":1,\"ground_truth\":\"g\"}\n{\"set\":\"x\","
         "\"problem\":2,\"ground_truth\":\"g\"}\n{\"set\":\"x\","
         "\"problem\":8,\"ground_truth\":\"g\"}\n{\"set\":\"y\",\"problem\":1,\"ground_"
         "truth\":\"g\"}\n{\"set\":\"y\",\"problem\":2,\"ground_truth\":\"g\"}\n",
         INPUTS, KG_ECONFLICT, "found problem 7 in "},
        {B, "\"sets.x.data\": {\"bytes\": 1, \"hash\": \"abd\"}", KG_ECONFLICT,
         "set x: expected the same data, found a file of hash 'abc' in "},
        {"{\"problem\":1,\"ground_truth\":\"g\"}\n", INPUTS, KG_EFORMAT,
         "problems.jsonl line 1"},
        {"{\"set\":\"x\",\"problem\":1,\"ground_truth\":\"g\"}\n{\"set\":\"x\","
         "\"problem\":2,\"ground_truth\":\"g\",\"new\":1}\n",
         INPUTS, KG_EFORMAT, "first problem has, found 'new'"},
        {"{\"set\":\"x\",\"problem\":1,\"ground_truth\":\"g\",\"tokens\":2}\n{\"set\":"
         "\"x\",\"problem\":2,\"ground_truth\":\"g\",\"tokens\":\"nan\"}\n",
         INPUTS, KG_EFORMAT, "line 2: expected a value of 'tokens'"},
        {"{\"set\":\"x\",\"problem\":1}\n", INPUTS, KG_EFORMAT, "ground_truth"},
        {"{\"set\":\"x\",\"problem\":1,\"ground_truth\":\"g\"}\n{\"set\":\"x\","
         "\"problem\":2,\"ground_truth\":\"h\"}\n{\"set\":\"x\",\"problem\":7,"
         "\"ground_truth\":\"g\"}\n{\"set\":\"y\",\"problem\":1,\"ground_truth\":\"g\"}"
         "\n{\"set\":\"y\",\"problem\":2,\"ground_truth\":\"g\"}\n",
         INPUTS, KG_ECONFLICT, "found different ground truths of problem 2 in "},
    };
    struct kg_eval_comparison c;

    (void)state;
    put_folder("a", A, INPUTS);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_folder("b", rows[i].problems, rows[i].inputs);
        assert_int_equal(kg_eval_compare(&c, in_dir("a"), in_dir("b"), &err),
                         rows[i].status);
        if (!strstr(err.message, rows[i].says))
            fail_msg("expected '%s' in '%s'", rows[i].says, err.message);
    }
    other_choice("sets: {x: {data: e.jsonl}, y: {task: countdown, level: hard}}\n",
                 "set y: expected the same problems, found those of task 'countdown', "
                 "level '', seed 1 and of task 'countdown', level 'hard', seed 1");
    other_choice("suite: {seed: 2}\nsets: {x: {data: d}, y: {task: countdown}}\n",
                 "level '', seed 2");
    other_choice("sets: {x: {data: d, prompt_key: q}, y: {task: countdown}}\n",
                 "set x: expected the same problems, found those of prompt_key ''");
    ok(kg_file_remove_tree(in_dir("b/results.json"), &err));
    assert_int_equal(kg_eval_compare(&c, in_dir("a"), in_dir("b"), &err), KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "b: expected a finished evaluation"));
    assert_int_equal(kg_eval_compare(&c, in_dir("none"), in_dir("b"), &err),
                     KG_ENOTFOUND);
}

static void without_memory_it_is_a_status(void **state)
{
    (void)state;
    put_folder("a", A, INPUTS);
    put_folder("b", B, INPUTS);
    for (uint64_t n = 1; n < 200; n++) {
        struct kg_eval_comparison c;
        kg_status status;

        kg_mem_fail_at(n);
        status = kg_eval_compare(&c, in_dir("a"), in_dir("b"), &err);
        kg_mem_fail_at(0);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        kg_eval_comparison_release(&c);
        assert_int_equal(kg_mem_current_bytes(), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(differences_are_of_pairs),
        cmocka_unit_test(the_same_every_time),
        cmocka_unit_test(the_bootstrap_is_that_of_all_resamples),
        cmocka_unit_test(many_problems_give_the_normal_interval),
        cmocka_unit_test(what_cannot_be_compared_is_refused),
        cmocka_unit_test(without_memory_it_is_a_status),
    };

    return cmocka_run_group_tests_name("comparison", tests, make_dir, remove_dir);
}
