/* An axis of a plot: the position of a number, and the ticks. */
#ifndef KG_REPORT_REPORT_AXIS_H
#define KG_REPORT_REPORT_AXIS_H

#include <stdbool.h>

enum { KG_AXIS_TICKS = 12, KG_AXIS_LABEL = 40 };

struct kg_axis {
    double low, high; /* range of numbers; log10 of them if log is set */
    double from, to;  /* plot units at both ends */
    bool log;
};

struct kg_axis_tick {
    double value;
    char text[KG_AXIS_LABEL];
};

/* The position of a number in plot units, clamped to the axis. */
double kg_axis_place(const struct kg_axis *a, double value);

/* A step of 1, 2 or 5 times a power of ten, near range / parts. */
double kg_axis_step(double range, int parts);

/* About five ticks within the axis. A logarithmic axis has powers of ten, and 2 and 5
 * times these if it spans less than two; if fewer than two remain, as between 2 and 5, it
 * has those of a linear axis.   returns their number */
int kg_axis_ticks(struct kg_axis_tick tick[KG_AXIS_TICKS], const struct kg_axis *a);

#endif
