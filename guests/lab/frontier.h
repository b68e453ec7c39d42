/* What one frontier gains over another at the same price.
 *
 * A frontier is what a method reaches (y) at what it costs (x > 0), one point for each
 * setting of it; between neighbours in x it is a straight line over log x. Two are
 * compared in the middle of the range that both have,
 *     log x = (max of the least + min of the largest log x) / 2.
 */
#ifndef KG_LAB_FRONTIER_H
#define KG_LAB_FRONTIER_H

#include <stdbool.h>
#include <stddef.h>

struct kg_frontier_point {
    double x, y; /* x > 0 */
};

/* *gap: y of a less that of b, each of 1 or more points, which are sorted
 * returns whether they have a range in common; one point in common is one */
bool kg_frontier_gap(double *gap, struct kg_frontier_point *a, size_t n_a,
                     struct kg_frontier_point *b, size_t n_b);

#endif
