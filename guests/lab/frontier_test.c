/* The gap of two frontiers of made-up points with a known difference. */
#include "lab/cells.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static void near(double a, double b) { assert_true(fabs(a - b) < 1e-12); }

/* a goes from 0 at x = 1 to 1 at x = 100; b is 0.5 from 10 to 1000. They share 10 .. 100,
 * whose geometric middle is the root of 1000, where a is at 0.75. */
static void the_gap_is_taken_in_the_middle_of_what_both_have(void **state)
{
    struct kg_frontier_point a[] = {{100, 1}, {1, 0}}, b[] = {{10, 0.5}, {1000, 0.5}};
    double gap = 0;

    (void)state;
    assert_true(kg_frontier_gap(&gap, a, 2, b, 2));
    near(gap, 0.25);
    assert_true(kg_frontier_gap(&gap, b, 2, a, 2));
    near(gap, -0.25);
}

/* With three points, only the segment that contains the middle counts. */
static void lines_join_neighbours_alone(void **state)
{
    struct kg_frontier_point a[] = {{1, 0}, {10, 8}, {100, 9}},
                             b[] = {{1, 1}, {10000, 1}};
    double gap = 0;

    (void)state;
    assert_true(kg_frontier_gap(&gap, a, 3, b, 2));
    near(gap, 7);
    b[0].x = 10; /* now they share 10 .. 100 */
    assert_true(kg_frontier_gap(&gap, a, 3, b, 2));
    near(gap, 7.5);
}

static void what_has_nothing_in_common_has_no_gap(void **state)
{
    struct kg_frontier_point a[] = {{1, 0}, {2, 1}}, b[] = {{3, 0}, {4, 1}},
                             point[] = {{2, 5}};
    double gap = 0;

    (void)state;
    assert_false(kg_frontier_gap(&gap, a, 2, b, 2));
    assert_true(kg_frontier_gap(&gap, point, 1, a, 2));
    near(gap, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gap_is_taken_in_the_middle_of_what_both_have),
        cmocka_unit_test(lines_join_neighbours_alone),
        cmocka_unit_test(what_has_nothing_in_common_has_no_gap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
