/* Sorting of numbers. */
#ifndef KG_BASE_SORT_H
#define KG_BASE_SORT_H

#include <stddef.h>

/* Sorts in place, ascending. No value may be NaN. */
void kg_sort_doubles(double *values, size_t n);

#endif
