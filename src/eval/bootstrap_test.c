/* Statistics of small sets, computed by hand, and intervals that are the same every time.
 */
#include "eval/bootstrap.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct kg_err err;

static void near(double found, double want)
{
    if (!(fabs(found - want) <= 1e-12 * (1 + fabs(want))))
        fail_msg("expected %.17g, found %.17g", want, found);
}

static double iqm(const double *x, size_t n)
{
    double copy[16];

    memcpy(copy, x, n * sizeof *x);
    return kg_eval_iqm(copy, n);
}

/* Of 4 numbers the middle two count, of 10 the middle four and half of each of their two
 * neighbours, of 1 the number itself. */
static void the_interquartile_mean_is_that_of_the_middle_half(void **state)
{
    static const double four[] = {9, -50, 3, 1000};
    static const double ten[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1000};
    static const double skew[] = {0, 0, 8, 1, 1, 1, 1, 1, 9, 4};

    (void)state;
    near(iqm(four, 4), 6);
    near(iqm(ten, 10), (1.5 + 4 + 5 + 6 + 7 + 4) / 5);
    near(iqm(skew, 10), (0.5 + 1 + 1 + 1 + 1 + 2) / 5);
    near(iqm(four, 1), 9);
}

static void an_interval_is_the_same_every_time(void **state)
{
    static const double x[] = {0.4, -0.1, 0.2, 0.7, -0.3, 0.5, 0.6, 0.1, 0.3, 0.2};
    struct kg_eval_bounds a, b, other;

    (void)state;
    for (int i = 0; i < 2; i++) {
        kg_eval_statistic statistic = i ? kg_eval_iqm : kg_eval_mean;

        assert_int_equal(kg_eval_bootstrap(&a, NULL, statistic, x, 10, 0, &err), KG_OK);
        assert_int_equal(kg_eval_bootstrap(&b, NULL, statistic, x, 10, 0, &err), KG_OK);
        assert_int_equal(kg_eval_bootstrap(&other, NULL, statistic, x, 10, 1, &err),
                         KG_OK);
        assert_memory_equal(&a, &b, sizeof a);
        assert_true(a.low != other.low || a.p != other.p);
        assert_true(a.low < a.value && a.value < a.high);
    }
    assert_int_equal(kg_eval_bootstrap(&a, NULL, kg_eval_mean, x, 10, 0, &err), KG_OK);
    near(a.value, 0.26);
}

/* p is the smallest possible, 1/resamples, if all numbers are on one side of 0; near 1 if
 * they are symmetric about 0; exactly 1 if all are 0. */
static void p_is_about_zero(void **state)
{
    static const double above[] = {1, 2, 3, 4}, even[] = {-1, 1, -2, 2, -3, 3},
                        nothing[] = {0, 0, 0};
    struct kg_eval_bounds a;

    (void)state;
    assert_int_equal(kg_eval_bootstrap(&a, NULL, kg_eval_mean, above, 4, 0, &err), KG_OK);
    near(a.p, 1.0 / KG_EVAL_RESAMPLES);
    assert_int_equal(kg_eval_bootstrap(&a, NULL, kg_eval_mean, even, 6, 0, &err), KG_OK);
    assert_true(a.p > 0.9);
    assert_int_equal(kg_eval_bootstrap(&a, NULL, kg_eval_mean, nothing, 3, 0, &err),
                     KG_OK);
    near(a.p, 1);
}

/* Each of the two strata has equal numbers. Resampled within the strata the mean never
 * changes; resampled over all it would. One stratum is the same as none. */
static void strata_are_drawn_by_themselves(void **state)
{
    static const double two[] = {1, 1, 1, 5, 5}, some[] = {1, 2, 4, 8, 16};
    struct kg_eval_bounds a, b;

    (void)state;
    assert_int_equal(
        kg_eval_bootstrap_strata(&a, kg_eval_mean, two, (const size_t[]){3, 2}, 2, &err),
        KG_OK);
    near(a.value, 2.6);
    assert_true(a.low == a.value && a.high == a.value);
    assert_int_equal(
        kg_eval_bootstrap_strata(&a, kg_eval_mean, some, (const size_t[]){5}, 1, &err),
        KG_OK);
    assert_int_equal(kg_eval_bootstrap(&b, NULL, kg_eval_mean, some, 5, 0, &err), KG_OK);
    assert_memory_equal(&a, &b, sizeof a);
}

/* A textbook example of Holm's procedure: 0.01, 0.04, 0.03, 0.005 become 0.03, 0.06,
 * 0.06, 0.02. Equal p stay equal. */
static void holm_multiplies_the_smallest_most(void **state)
{
    double p[] = {0.01, 0.04, 0.03, 0.005}, ties[] = {0.02, 0.02, 0.9, 0.8};
    static const double want[] = {0.03, 0.06, 0.06, 0.02}, tied[] = {0.08, 0.08, 1, 1};

    (void)state;
    assert_int_equal(kg_eval_holm(p, 4, &err), KG_OK);
    assert_int_equal(kg_eval_holm(ties, 4, &err), KG_OK);
    for (int i = 0; i < 4; i++) {
        near(p[i], want[i]);
        near(ties[i], tied[i]);
    }
    assert_int_equal(kg_eval_holm(NULL, 0, &err), KG_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_interquartile_mean_is_that_of_the_middle_half),
        cmocka_unit_test(an_interval_is_the_same_every_time),
        cmocka_unit_test(p_is_about_zero),
        cmocka_unit_test(strata_are_drawn_by_themselves),
        cmocka_unit_test(holm_multiplies_the_smallest_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
