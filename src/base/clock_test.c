/* Tests of clocks and thread counts. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "base/clock.h"

#include <omp.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>

#include <cmocka.h>

static void time_goes_forward(void **state)
{
    double a = kg_clock_seconds();
    double b = kg_clock_seconds();

    (void)state;
    assert_true(b >= a);
    assert_true(kg_clock_unix_seconds() > 1.6e9);
}

static void a_thread_that_sleeps_uses_no_processor(void **state)
{
    const struct timespec nap = {.tv_nsec = 30000000};
    double wall = kg_clock_seconds();
    double used = kg_clock_thread_seconds();
    volatile double sum = 0;

    (void)state;
    assert_int_equal(nanosleep(&nap, NULL), 0);
    wall = kg_clock_seconds() - wall;
    assert_true(kg_clock_thread_seconds() - used < wall / 2);
    used = kg_clock_thread_seconds();
    for (int i = 0; i < 100000; i++)
        sum = sum + i;
    assert_true(kg_clock_thread_seconds() > used);
}

static void zero_threads_means_the_usable_cores(void **state)
{
    cpu_set_t set;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    kg_threads_set(0);
    assert_int_equal(kg_threads_get(), CPU_COUNT(&set));
}

static void parallel_regions_use_the_count(void **state)
{
    (void)state;
    for (int want = 1; want <= 4; want++) {
        int team = 0;
        int nested = 0;
        kg_threads_set(want);
        assert_int_equal(kg_threads_get(), want);
#pragma omp parallel
        {
#pragma omp single
            team = omp_get_num_threads();
#pragma omp parallel
            {
#pragma omp atomic
                nested++;
            }
        }
        assert_int_equal(team, want);
        assert_int_equal(nested,
                         want); /* one level: the inner region has one thread each */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_goes_forward),
        cmocka_unit_test(a_thread_that_sleeps_uses_no_processor),
        cmocka_unit_test(zero_threads_means_the_usable_cores),
        cmocka_unit_test(parallel_regions_use_the_count),
    };

    return cmocka_run_group_tests_name("clock", tests, NULL, NULL);
}
