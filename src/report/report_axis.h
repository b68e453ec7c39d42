/* An axis of a plot: where a number stands on it, and at which numbers it has labels.
 */
#ifndef KG_REPORT_REPORT_AXIS_H
#define KG_REPORT_REPORT_AXIS_H

#include <stdbool.h>

enum { KG_AXIS_TICKS = 12, KG_AXIS_LABEL = 40 };

struct kg_axis {
    double low, high; /* numbers at the ends, log10 of them where log is set */
    double from, to;  /* units of the plot at the ends */
    bool log;
};

struct kg_axis_tick {
    double value;
    char text[KG_AXIS_LABEL];
};

/* Units at which a number stands; one outside stands at the end. */
double kg_axis_place(const struct kg_axis *a, double value);

/* 1, 2 or 5 times a power of ten, near the range over `parts`. */
double kg_axis_step(double range, int parts);

/* About five ticks within the axis; of a logarithmic one powers of ten, and 2 and 5 times
 * those where it spans less than two; where fewer than two of these are left, as between
 * 2 and 5, those of a linear one.   returns how many */
int kg_axis_ticks(struct kg_axis_tick tick[KG_AXIS_TICKS], const struct kg_axis *a);

#endif
