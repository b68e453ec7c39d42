/* Time and threads of the process.
 *
 * Seconds are for measuring and for saying when; no result depends on them. The number of
 * threads is set once by the program; results do not depend on it either.
 */
#ifndef KG_BASE_CLOCK_H
#define KG_BASE_CLOCK_H

#include <stdint.h>

double kg_clock_seconds(void); /* monotonic */
double kg_clock_unix_seconds(void);
double kg_clock_thread_seconds(void); /* of a processor, used by the calling thread */

/* Threads that parallel regions use. 0: as many as the cores this process may run on. */
void kg_threads_set(int n);
int kg_threads_get(void);
/* For a guest in another program: n for the parallel regions that the calling thread
 * opens from now on (0: no change).   returns the number before, to be put back */
int kg_threads_swap(int n);

#endif
