/* A plot as inline SVG: lines of several metrics and runs over steps, with gaps where
 * numbers are missing and shading for standard errors, or for the range if there are more
 * steps than pixels.
 *
 * Colours and dashes are classes (c0.., d0..) of the page's style sheet; class r0.. tells
 * a line's run.
 */
#ifndef KG_REPORT_REPORT_PLOT_H
#define KG_REPORT_REPORT_PLOT_H

#include "report/history.h"

#include <stdbool.h>

enum { KG_PLOT_COLOURS = 8, KG_PLOT_DASHES = 4 };

struct kg_plot_colour {
    const char *light, *dark; /* colour on white, and on black */
};
extern const struct kg_plot_colour kg_plot_colours[KG_PLOT_COLOURS];

struct kg_plot_line {
    const struct kg_history_phase *phase; /* borrowed, like series */
    const struct kg_series *series;
    int run, colour, dash;
};

/* Whether the values of a series are not all equal. */
bool kg_plot_varies(const struct kg_series *s);

/* The x axis covers steps first .. last. log_allowed: use a logarithmic scale if all
 * numbers are positive and span more than three powers of ten; *is_log out. n is at least
 * 1, and each line has a finite number */
kg_status kg_plot_svg(struct kg_str *out, bool *is_log, const struct kg_plot_line *lines,
                      size_t n, int64_t first, int64_t last, bool log_allowed,
                      struct kg_err *err) KG_MUST_CHECK;

/* The classes of a line: "c0 d0 r0". */
kg_status kg_plot_classes(struct kg_str *out, const struct kg_plot_line *line,
                          struct kg_err *err) KG_MUST_CHECK;

/* An axis of a plot: the position of a number, and the ticks. */

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

/* About five ticks within the axis. A logarithmic axis has them at powers of ten, and at
 * 2 and 5 times these if it spans less than two powers; if these are fewer than two, as
 * between 2 and 5, at the positions of a linear axis.   returns their number */
int kg_axis_ticks(struct kg_axis_tick tick[KG_AXIS_TICKS], const struct kg_axis *a);

#endif
