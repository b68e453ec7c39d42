/* Time and threads of the process.
 *
 * Times are for measurements and logs; no result depends on them. The number of threads
 * is set once by the program; results do not depend on it either.
 */
#ifndef KG_BASE_CLOCK_H
#define KG_BASE_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

double kg_clock_seconds(void); /* monotonic */
double kg_clock_unix_seconds(void);
double kg_clock_thread_seconds(void); /* processor time of the calling thread */

/* Initialises a condition variable for waits on the monotonic clock, so that setting the
 * wall clock changes no wait. kg_clock_deadline: that clock's time `ms` ms from now. */
void kg_clock_cond(pthread_cond_t *cond);
struct timespec kg_clock_deadline(int ms);

/* Number of threads of parallel regions. 0: one per core that this process may run on. */
void kg_threads_set(int n);
int kg_threads_get(void);
/* For kedge as a library: sets the number of threads for the parallel regions that the
 * calling thread opens from now on (0: no change).   returns the previous number, to
 * restore */
int kg_threads_swap(int n);

#endif
