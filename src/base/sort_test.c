/* Tests of sorting numbers. */
#include "base/sort.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

static void numbers_rise(void **state)
{
    double x[] = {3, -INFINITY, 1e-300, 3, -0.5, INFINITY, 0};
    const double sorted[] = {-INFINITY, -0.5, 0, 1e-300, 3, 3, INFINITY};

    (void)state;
    kg_sort_doubles(x, 7);
    assert_memory_equal(x, sorted, sizeof x);
    kg_sort_doubles(NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_rise)};

    return cmocka_run_group_tests_name("sort", tests, NULL, NULL);
}
