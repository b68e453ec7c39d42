/* Shares of n items cover all items in order, and their sizes differ by at most one. */
#include "ranks/lanes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MOST = 40 };

static void shares_are_the_row(void **state)
{
    (void)state;
    for (int64_t n = 0; n <= MOST; n++)
        for (int ranks = 1; ranks <= MOST; ranks++) {
            int64_t at = 0;

            for (int r = 0; r < ranks; r++) {
                struct kg_share s = kg_share_of(n, r, ranks);

                assert_int_equal(s.first, at);
                assert_in_range(s.end - s.first, n / ranks, (n + ranks - 1) / ranks);
                at = s.end;
            }
            assert_int_equal(at, n);
        }
    assert_int_equal(kg_share_of(7, 0, 0).end, 7); /* 0 ranks: one process */
}

static void shares_by_cost_are_the_row(void **state)
{
    uint64_t cost[MOST];
    uint64_t most = 0, whole = 0;

    (void)state;
    for (int64_t i = 0; i < MOST; i++) {
        cost[i] = (uint64_t)(i * i * 37 % 101);
        most = cost[i] > most ? cost[i] : most;
        whole += cost[i];
    }
    for (int ranks = 1; ranks <= MOST; ranks++) {
        int64_t at = 0;

        for (int r = 0; r < ranks; r++) {
            struct kg_share s = kg_share_by_cost(cost, MOST, r, ranks);
            uint64_t sum = 0;

            assert_int_equal(s.first, at);
            assert_true(s.end >= s.first);
            for (int64_t i = s.first; i < s.end; i++)
                sum += cost[i];
            assert_true(sum <= whole / (uint64_t)ranks + 1 + most);
            at = s.end;
        }
        assert_int_equal(at, MOST);
    }
    assert_int_equal(kg_share_by_cost(cost, MOST, 0, 0).end, MOST);
    assert_int_equal(kg_share_by_cost(cost, 0, 1, 3).end, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_the_row),
        cmocka_unit_test(shares_by_cost_are_the_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
