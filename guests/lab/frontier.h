/* The gain of one frontier over another at the same cost.
 *
 * A frontier is the score y that a method reaches at cost x > 0: one point per setting,
 * and straight lines over log x between neighbours. Two frontiers are compared in the
 * middle of their common range,
 *   log x = (max of the smallest + min of the largest log x) / 2.
 */
#ifndef KG_LAB_FRONTIER_H
#define KG_LAB_FRONTIER_H

#include <stdbool.h>
#include <stddef.h>

struct kg_frontier_point {
    double x, y; /* x > 0 */
};

/* *gap: y of a minus y of b; each has 1 or more points, which are sorted.
 * returns whether they share a range (a single common point is enough) */
bool kg_frontier_gap(double *gap, struct kg_frontier_point *a, size_t n_a,
                     struct kg_frontier_point *b, size_t n_b);

#endif
