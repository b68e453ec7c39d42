/* Putting numbers in order. */
#ifndef KG_BASE_SORT_H
#define KG_BASE_SORT_H

#include <stddef.h>

/* Rising, in place; none is NaN. */
void kg_sort_doubles(double *values, size_t n);

#endif
