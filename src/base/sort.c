/* Putting numbers in order.
 *
 * NaN is equal to everything for qsort's comparison, so an array that holds one has no
 * defined order: callers have none, they are metrics and times that were checked.
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
