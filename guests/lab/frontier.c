/* Points in order of x; those of one x have y in order too, so that what comes out does
 * not depend on the order they came in. */
#include "lab/frontier.h"

#include <math.h>
#include <stdlib.h>

static int by_x(const void *a, const void *b)
{
    const struct kg_frontier_point *p = a, *q = b;

    if (p->x != q->x)
        return (p->x > q->x) - (p->x < q->x);
    return (p->y > q->y) - (p->y < q->y);
}

/* p (n) is sorted and has `at`, a log x, in its range */
static double height(const struct kg_frontier_point *p, size_t n, double at)
{
    size_t i = 0;

    while (i + 2 < n && log(p[i + 1].x) < at)
        i++;
    double low = log(p[i].x);
    double high = log(p[n > 1 ? i + 1 : i].x);
    double share = high > low ? fmin(fmax((at - low) / (high - low), 0), 1) : 0;
    return share == 0 ? p[i].y : p[i].y + share * (p[i + 1].y - p[i].y);
}

bool kg_frontier_gap(double *gap, struct kg_frontier_point *a, size_t n_a,
                     struct kg_frontier_point *b, size_t n_b)
{
    qsort(a, n_a, sizeof *a, by_x);
    qsort(b, n_b, sizeof *b, by_x);
    double low = fmax(a[0].x, b[0].x);
    double high = fmin(a[n_a - 1].x, b[n_b - 1].x);
    if (!(low <= high))
        return false;
    double at = (log(low) + log(high)) / 2;
    *gap = height(a, n_a, at) - height(b, n_b, at);
    return true;
}
