/* pass@k and maj@k against all subsets, errors against values computed by hand, and
 * classes of completions as the graders define them. */
#include "eval/metrics.h"

#include "base/mem.h"
#include "base/need_testing.h"

#include <math.h>
#include <string.h>

static struct kg_err failure;

/* ---- every subset ---- */

static int bits(unsigned x) { return __builtin_popcount(x); }

/* The share of the k-subsets of n completions that contain one of the first c. */
static double pass_by_subsets(int n, int c, int k)
{
    double hits = 0, all = 0;

    for (unsigned s = 0; s < 1u << n; s++) {
        if (bits(s) != k)
            continue;
        all++;
        hits += (s & ((1u << c) - 1)) != 0;
    }
    return hits / all;
}

static void pass_at_k_is_the_share_of_subsets(void **state)
{
    (void)state;
    for (int n = 1; n <= 9; n++)
        for (int c = 0; c <= n; c++)
            for (int k = 1; k <= n; k++)
                assert_float_equal(kg_eval_pass_at_k(n, c, k), pass_by_subsets(n, c, k),
                                   1e-12);
    assert_float_equal(kg_eval_pass_at_k(32, 5, 1), 5.0 / 32, 1e-15);
    assert_float_equal(kg_eval_pass_at_k(4096, 1, 2048), 0.5, 1e-12);
}

enum { CLASSES = 4 };

/* The vote of subset s: completion i has class of[i], -1 for none. */
static double vote(const int *of, int n, unsigned s, const bool *right)
{
    int count[CLASSES] = {0}, most = 0, tied = 0, good = 0;

    for (int i = 0; i < n; i++)
        if (s >> i & 1 && of[i] >= 0)
            count[of[i]]++;
    for (int c = 0; c < CLASSES; c++)
        most = count[c] > most ? count[c] : most;
    if (most == 0)
        return 0;
    for (int c = 0; c < CLASSES; c++) {
        tied += count[c] == most;
        good += count[c] == most && right[c];
    }
    return (double)good / tied;
}

static double maj_by_subsets(const int *of, int n, int k, const bool *right)
{
    double sum = 0, all = 0;

    for (unsigned s = 0; s < 1u << n; s++) {
        if (bits(s) != k)
            continue;
        all++;
        sum += vote(of, n, s, right);
    }
    return sum / all;
}

static double maj(const int *of, int n, int k, const bool *right)
{
    int32_t count[CLASSES] = {0};
    double x = -1;

    for (int i = 0; i < n; i++)
        if (of[i] >= 0)
            count[of[i]]++;
    NEED(kg_eval_maj_at_k(&x, count, right, CLASSES, n, k, err));
    return x;
}

static void maj_at_k_is_the_mean_vote_of_subsets(void **state)
{
    static const int answers[][8] = {
        {0, 0, 1, 1, 2, 3, -1, -1},     {0, 1, 2, 3, 0, 1, 2, 3},
        {0, 0, 0, 0, 0, 0, 0, 0},       {-1, -1, -1, -1, -1, -1, -1, -1},
        {0, 0, 0, 1, 1, 1, 1, 2},       {1, 1, 1, 1, 1, 0, 0, 0},
        {-1, -1, -1, -1, -1, -1, -1, 0}};
    static const bool rights[][CLASSES] = {
        {true, false, false, false}, {false, true, false, true}, {false}};

    (void)state;
    for (size_t a = 0; a < sizeof answers / sizeof *answers; a++)
        for (size_t r = 0; r < 3; r++)
            for (int k = 1; k <= 8; k++)
                assert_float_equal(maj(answers[a], 8, k, rights[r]),
                                   maj_by_subsets(answers[a], 8, k, rights[r]), 1e-12);
}

/* 600 of 1,000 completions are right and 400 give the same wrong answer. The vote of 501
 * of them is right with a probability near 1, the vote of one with 0.6. A tie of two
 * classes is right with 1/2. */
static void many_answers_are_counted_too(void **state)
{
    int32_t count[2] = {600, 400};
    bool right[2] = {true, false};
    double x;

    (void)state;
    NEED(kg_eval_maj_at_k(&x, count, right, 2, 1000, 1, err));
    assert_float_equal(x, 0.6, 1e-12);
    NEED(kg_eval_maj_at_k(&x, count, right, 2, 1000, 501, err));
    assert_true(x > 1 - 1e-9 && x <= 1 + 1e-9);
    count[0] = count[1] = 2048;
    NEED(kg_eval_maj_at_k(&x, count, right, 2, 4096, 512, err));
    assert_float_equal(x, 0.5, 1e-9);
}

/* ---- scores ---- */

static struct kg_eval_answer answer(bool right, int64_t tokens)
{
    return (struct kg_eval_answer){
        .there = true,
        .grade = {.graded = true, .correct = right, .reward = right},
        .tokens = tokens,
        .finish = KG_FINISH_STOP};
}

static double value(const struct kg_eval_score *s, const char *name)
{
    const struct kg_eval_metric *m = kg_eval_metric_find(s, name);

    assert_non_null(m);
    return m->value;
}

static double stderror(const struct kg_eval_score *s, const char *name)
{
    const struct kg_eval_metric *m = kg_eval_metric_find(s, name);

    assert_non_null(m);
    return m->stderror;
}

/* Shares of right completions per problem: 1/2, 1, 0, 1/2. Mean 1/2 and sample variance
 * 1/6 give the error sqrt(1/6 / 4). */
static void errors_are_over_problems(void **state)
{
    struct kg_eval_answer a[8];
    static const int right[] = {1, 0, 1, 1, 0, 0, 0, 1};
    static const char *const names[] = {"searches"};
    struct kg_eval_ks ks = {.pass = {1, 2}, .n_pass = 2, .extra = names, .n_extra = 1};
    struct kg_eval_score s;

    (void)state;
    for (int i = 0; i < 8; i++) {
        a[i] = answer(right[i], 10 + i);
        a[i].extra[0] = i;
    }
    a[5].grade = (struct kg_grade){.reward = 7}; /* not graded: the reward is ignored */
    a[7].finish = KG_FINISH_LENGTH;
    NEED(kg_eval_score_init(&s, a, NULL, 4, 2, &ks, err));
    assert_float_equal(value(&s, "accuracy"), 0.5, 1e-15);
    assert_float_equal(stderror(&s, "accuracy"), sqrt(1.0 / 24), 1e-15);
    assert_float_equal(value(&s, "pass@1"), 0.5, 1e-15);
    assert_float_equal(value(&s, "pass@2"), 0.75, 1e-15);
    assert_float_equal(stderror(&s, "pass@2"), 0.25, 1e-15);
    assert_float_equal(value(&s, "reward"), 0.5, 1e-15);
    assert_float_equal(value(&s, "undecided"), 1.0 / 8, 1e-15);
    assert_float_equal(value(&s, "truncated"), 1.0 / 8, 1e-15);
    assert_float_equal(value(&s, "tokens"), 13.5, 1e-15);
    assert_float_equal(value(&s, "searches"), 3.5, 1e-15);
    assert_null(kg_eval_metric_find(&s, "pass@3"));
    kg_eval_score_release(&s);
    NEED(kg_eval_score_init(&s, a, NULL, 1, 8, &ks, err));
    assert_float_equal(stderror(&s, "accuracy"), 0, 0);
    kg_eval_score_release(&s);
}

static void a_mean_over_sets_is_unweighted(void **state)
{
    struct kg_eval_answer a[6] = {answer(true, 1),  answer(false, 1), answer(true, 1),
                                  answer(false, 1), answer(true, 1),  answer(true, 1)};
    struct kg_eval_ks some = {.pass = {1}, .n_pass = 1}, none = {.n_pass = 0};
    struct kg_eval_score x, y, mean;
    const struct kg_eval_score *both[] = {&x, &y};

    (void)state;
    NEED(kg_eval_score_init(&x, a, NULL, 2, 1, &some, err));
    NEED(kg_eval_score_init(&y, a + 2, NULL, 4, 1, &none, err));
    NEED(kg_eval_score_mean(&mean, both, 2, err));
    assert_int_equal(mean.problems, 6);
    assert_float_equal(value(&mean, "accuracy"), (0.5 + 0.75) / 2, 1e-15);
    assert_float_equal(stderror(&mean, "accuracy"), sqrt(0.25 + 0.0625) / 2, 1e-15);
    assert_null(kg_eval_metric_find(&mean, "pass@1"));
    kg_eval_score_release(&mean);
    kg_eval_score_release(&y);
    kg_eval_score_release(&x);
}

static void a_k_over_the_samples_is_refused(void **state)
{
    struct kg_eval_answer a[2] = {answer(true, 1), answer(false, 1)};
    struct kg_eval_ks pass = {.pass = {3}, .n_pass = 1}, votes = {.maj = {0}, .n_maj = 1};
    struct kg_eval_score s;

    (void)state;
    assert_int_equal(kg_eval_score_init(&s, a, NULL, 1, 2, &pass, &failure), KG_EINVAL);
    assert_string_equal(failure.message,
                        "pass@3: expected k from 1 to the number of samples, 2");
    assert_int_equal(kg_eval_score_init(&s, a, NULL, 1, 2, &votes, &failure), KG_EINVAL);
    assert_non_null(strstr(failure.message, "maj@0: expected k from 1"));
}

/* ---- classes ---- */

static void classes_are_those_of_the_grader(void **state)
{
    static const char *const said[] = {"\\frac{1}{2}", "0.5", "",    "x+1",
                                       "1+x",          "3",   "0.50"};
    static const int32_t expected[] = {0, 0, -1, 1, 1, 2, 0};
    enum { N = 7 };
    struct kg_eval_answer a[N];
    const struct kg_task_row *math, *countdown;
    struct kg_task_opts opts = {.grader = "default"};
    int32_t class_of[N];

    (void)state;
    NEED(kg_task_find(&math, "math", err));
    NEED(kg_task_find(&countdown, "countdown", err));
    memset(a, 0, sizeof a);
    for (int i = 0; i < N; i++) {
        a[i] = answer(i < 2, 1);
        NEED((a[i].extracted = kg_mem_strdup(said[i], err)) ? KG_OK : KG_ENOMEM);
    }
    NEED(kg_eval_classes(class_of, a, 1, N, math, &opts, err));
    assert_memory_equal(class_of, expected, sizeof expected);
    assert_int_equal(kg_eval_classes(class_of, a, 1, N, countdown, &opts, &failure),
                     KG_EUNSUPPORTED);
    kg_eval_answers_release(a, N);
    assert_int_equal(kg_mem_current_bytes(), 0);
}

/* Three of six completions are of class 0, which is right: it wins the vote of all six,
 * and one completion is right with probability 1/2. */
static void votes_count_classes(void **state)
{
    struct kg_eval_answer a[6];
    int32_t class_of[6] = {0, 1, 0, 2, 0, -1};
    struct kg_eval_ks ks = {.maj = {1, 6}, .n_maj = 2};
    struct kg_eval_score s;

    (void)state;
    for (int i = 0; i < 6; i++)
        a[i] = answer(class_of[i] == 0, 1);
    NEED(kg_eval_score_init(&s, a, class_of, 1, 6, &ks, err));
    assert_float_equal(value(&s, "maj@1"), 0.5, 1e-12);
    assert_float_equal(value(&s, "maj@6"), 1, 1e-12);
    kg_eval_score_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pass_at_k_is_the_share_of_subsets),
        cmocka_unit_test(maj_at_k_is_the_mean_vote_of_subsets),
        cmocka_unit_test(many_answers_are_counted_too),
        cmocka_unit_test(errors_are_over_problems),
        cmocka_unit_test(a_mean_over_sets_is_unweighted),
        cmocka_unit_test(a_k_over_the_samples_is_refused),
        cmocka_unit_test(classes_are_those_of_the_grader),
        cmocka_unit_test(votes_count_classes),
    };

    return cmocka_run_group_tests_name("metrics of evaluation", tests, NULL, NULL);
}
