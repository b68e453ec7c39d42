/* Plots cells named "LINE,SETTING" as a standalone SVG. y: mean of the first metric, with
 * its interval. x, logarithmic: mean of `over`. The points of each LINE are joined in
 * order of `over`. */
#ifndef KG_LAB_CELLS_PLOT_H
#define KG_LAB_CELLS_PLOT_H

#include "lab/cells.h"

/* Appends a complete SVG file. c must have been read with `over` and without differences.
 * errors: EINVAL (more lines than colours times dashes), ENOTFOUND (no cell) */
kg_status kg_cells_svg(struct kg_str *out, const struct kg_cells *c,
                       const struct kg_cells_opts *opts,
                       struct kg_err *err) KG_MUST_CHECK;

#endif
