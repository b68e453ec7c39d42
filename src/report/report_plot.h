/* A plot as inline SVG: lines of several metrics and runs over their steps, with gaps
 * where there is no number and a shade where there is an error or more steps than pixels.
 *
 * Colours and dashes are classes (c0.., d0..) of the page's style sheet, and r0.. is the
 * run that a line belongs to.
 */
#ifndef KG_REPORT_REPORT_PLOT_H
#define KG_REPORT_REPORT_PLOT_H

#include "report/history.h"

enum { KG_PLOT_COLOURS = 8, KG_PLOT_DASHES = 4 };

struct kg_plot_colour {
    const char *light, *dark; /* on white, on black */
};
extern const struct kg_plot_colour kg_plot_colours[KG_PLOT_COLOURS];

struct kg_plot_line {
    const struct kg_history_phase *phase; /* borrowed, as series */
    const struct kg_series *series;
    int run, colour, dash;
};

/* Whether a number of a series ever changed. */
bool kg_plot_varies(const struct kg_series *s);

/* Steps first .. last are the width.   log_allowed: a logarithmic scale where numbers are
 * positive and spread over more than three powers of ten; *is_log out
 * n is 1 or more, each line with a number */
kg_status kg_plot_svg(struct kg_str *out, bool *is_log, const struct kg_plot_line *lines,
                      size_t n, int64_t first, int64_t last, bool log_allowed,
                      struct kg_err *err) KG_MUST_CHECK;

/* The classes of a line: "c0 d0 r0". */
kg_status kg_plot_classes(struct kg_str *out, const struct kg_plot_line *line,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
