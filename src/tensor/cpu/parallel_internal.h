/* Helpers of parallel kernels: taking units from a shared list, and reporting the failure
 * of one thread.
 *
 * Units are independent, and each is computed the same way by any thread, so dynamic
 * scheduling changes no bit. It keeps all threads busy when other processes take a core.
 */
#ifndef KG_TENSOR_CPU_PARALLEL_INTERNAL_H
#define KG_TENSOR_CPU_PARALLEL_INTERNAL_H

#include "base/status.h"

#include <stdint.h>

/* The next unit of a shared list. */
static inline int64_t kg_cpu_take(int64_t *next)
{
    int64_t i;
#pragma omp atomic capture
    i = (*next)++;
    return i;
}

/* Passes a thread's error to the caller of the region; the first one is kept. */
static inline void kg_cpu_report(kg_status *status, struct kg_err *err,
                                 const struct kg_err *mine)
{
#pragma omp critical(kg_cpu_report)
    if (*status == KG_OK) {
        *err = *mine;
        *status = mine->code;
    }
}

#endif
