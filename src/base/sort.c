/* Sorts numbers.
 *
 * For qsort's comparison NaN equals everything, so an array with NaN has no defined
 * order. Callers have none: they sort metrics and times that were checked.
 */
#include "base/sort.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void kg_sort_doubles(double *values, size_t n)
{
    if (n > 0)
        qsort(values, n, sizeof *values, by_value);
}
