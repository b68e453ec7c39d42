/* A plot as inline SVG: lines of several metrics and runs over steps, with gaps where
 * numbers are missing and shading for standard errors, or for the range if there are more
 * steps than pixels.
 *
 * Colours and dashes are classes (c0.., d0..) of the page's style sheet; r0.. is the run
 * of a line.
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

/* Whether the values of a series ever differ. */
bool kg_plot_varies(const struct kg_series *s);

/* The x axis covers steps first .. last. log_allowed: use a logarithmic scale if all
 * numbers are positive and span more than three powers of ten; *is_log out
 * n is at least 1; each line has a number */
kg_status kg_plot_svg(struct kg_str *out, bool *is_log, const struct kg_plot_line *lines,
                      size_t n, int64_t first, int64_t last, bool log_allowed,
                      struct kg_err *err) KG_MUST_CHECK;

/* The classes of a line: "c0 d0 r0". */
kg_status kg_plot_classes(struct kg_str *out, const struct kg_plot_line *line,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
