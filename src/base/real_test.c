/* Elementary functions: at most 1 ulp from the true value, exact where it matters, and
 * one hash of their bits for every machine and compiler. */
#include "base/real.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { POINTS = 200000 };

static uint64_t state = 1;

static double uniform(double low, double high)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return low + (high - low) * (double)(state >> 11) * 0x1p-53;
}

/* Distance in ulps of `want`; long double has 11 bits more than double. */
static double ulps(double got, long double want)
{
    int e;
    (void)frexp((double)want, &e);
    return fabs((double)(((long double)got - want) / ldexpl(1.0L, e - 53)));
}

static const struct function {
    const char *name;
    double (*own)(double);
    long double (*wide)(long double);
    double low;
    double high;
} functions[] = {
    {"exp", kg_exp, expl, -700, 700},
    {"exp", kg_exp, expl, -1, 1},
    {"expm1", kg_expm1, expm1l, -3, 3},
    {"expm1", kg_expm1, expm1l, -60, 60},
    {"expm1", kg_expm1, expm1l, -1e-5, 1e-5},
    {"log", kg_log, logl, 0, 4},
    {"log", kg_log, logl, 0.9, 1.1},
    {"log", kg_log, logl, 0, 1e300},
    {"log1p", kg_log1p, log1pl, -1, 3},
    {"log1p", kg_log1p, log1pl, -1e-4, 1e-4},
    {"sin", kg_sin, sinl, -7, 7},
    {"cos", kg_cos, cosl, -7, 7},
    {"sin", kg_sin, sinl, -1e6, 1e6},
    {"cos", kg_cos, cosl, -1e6, 1e6},
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

static void at_most_one_ulp_from_the_truth(void **unused)
{
    (void)unused;
    if (sizeof(long double) == sizeof(double)) {
        print_message("skip: no type with more digits\n");
        skip();
    }
    for (size_t f = 0; f < FUNCTIONS; f++) {
        double worst = 0, where = 0;
        for (int i = 0; i < POINTS; i++) {
            double x = uniform(functions[f].low, functions[f].high);
            double u = ulps(functions[f].own(x), functions[f].wide((long double)x));
            if (u > worst)
                worst = u, where = x;
        }
        if (!(worst < 1.0))
            fail_msg("%s: %.3f ulp at %.17g", functions[f].name, worst, where);
    }
}

static void the_ends_are_right(void **unused)
{
    (void)unused;
    assert_true(kg_exp(0) == 1 && kg_expm1(0) == 0 && kg_log(1) == 0 && kg_log1p(0) == 0);
    assert_true(kg_sin(0) == 0 && kg_cos(0) == 1);
    assert_true(kg_exp(-INFINITY) == 0 && kg_exp(INFINITY) == INFINITY);
    assert_true(kg_exp(-746) == 0 && kg_exp(711) == INFINITY);
    assert_true(kg_exp(-745) == 0x1p-1074 && kg_exp(709.7) > 1e308);
    assert_true(kg_expm1(-INFINITY) == -1 && kg_expm1(INFINITY) == INFINITY);
    assert_true(kg_log(0) == -INFINITY && kg_log(INFINITY) == INFINITY);
    assert_true(kg_log(0x1p-1074) < -744 && kg_log1p(-1) == -INFINITY);
    assert_true(kg_log1p(INFINITY) == INFINITY && kg_log1p(0x1p-60) == 0x1p-60);
    assert_true(isnan(kg_log(-1)) && isnan(kg_log1p(-2)));
    double (*all[])(double) = {kg_exp, kg_expm1, kg_log, kg_log1p};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_true(isnan(all[i](NAN)));
    assert_true(kg_power(0.5, 10) == 0x1p-10 && kg_power(0.999, 1) == 0.999);
    assert_true(kg_power(7, 0) == 1 &&
                fabs(kg_power(0.999, 5000) / pow(0.999, 5000) - 1) < 1e-12);
}

/* The bits of all functions are the same on every machine, compiler and optimization
 * level. */
static void the_bits_are_these(void **unused)
{
    (void)unused;
    uint64_t hash = 0xcbf29ce484222325u;
    state = 7;
    for (size_t f = 0; f < FUNCTIONS; f++)
        for (int i = 0; i < POINTS / 10; i++) {
            double y = functions[f].own(uniform(functions[f].low, functions[f].high));
            uint64_t u;
            memcpy(&u, &y, sizeof u);
            hash = (hash ^ u) * 0x100000001b3u;
        }
    assert_true(hash == 0xb4da16eeec70d91fu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_most_one_ulp_from_the_truth),
        cmocka_unit_test(the_ends_are_right),
        cmocka_unit_test(the_bits_are_these),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
