/* Clocks and the number of threads.
 *
 * The one idea: kedge sets the thread count itself, by default to the number of cores
 * that the process may run on, and never takes it from an environment variable.
 */
#define _GNU_SOURCE /* sched_getaffinity */
#include "base/clock.h"

#include <omp.h>
#include <sched.h>

static double seconds_of(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double kg_clock_seconds(void) { return seconds_of(CLOCK_MONOTONIC); }
double kg_clock_unix_seconds(void) { return seconds_of(CLOCK_REALTIME); }
double kg_clock_thread_seconds(void) { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }

void kg_clock_cond(pthread_cond_t *cond)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

struct timespec kg_clock_deadline(int ms)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += ms % 1000 * 1000000L;
    t.tv_sec += ms / 1000 + t.tv_nsec / 1000000000L;
    t.tv_nsec %= 1000000000L;
    return t;
}

/* cpu_set_t holds 1024 cores; on machines with more, OpenMP's count is used. */
static int usable_cores(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return omp_get_num_procs();
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

void kg_threads_set(int n)
{
    omp_set_dynamic(0);
    omp_set_max_active_levels(1);
    omp_set_num_threads(n > 0 ? n : usable_cores());
}

int kg_threads_get(void) { return omp_get_max_threads(); }

int kg_threads_swap(int n)
{
    int before = omp_get_max_threads();

    if (n > 0)
        omp_set_num_threads(n);
    return before;
}
