/* Two habits of the parallel kernels: units taken from a shared list, and the failure of
 * one thread.
 *
 * Units are independent and each is computed the same way by whoever takes it, so a
 * dynamic order changes no bit; it keeps all threads busy beside a neighbour that takes a
 * core away.
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

/* Hand a thread's error to the caller of the region; the first one stays. */
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
