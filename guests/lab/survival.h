/* Measures how robust each method is. For cells "METHOD,SETTING", counts the rows whose
 * trained model still reaches its starting value (cells.h, `start`), and finds the last
 * setting at which KG_SURVIVAL_SHARE of the rows survive. */
#ifndef KG_LAB_SURVIVAL_H
#define KG_LAB_SURVIVAL_H

#include "lab/cells.h"

#define KG_SURVIVAL_SHARE 0.8

/* Appends a Markdown table with a line per METHOD and a column per SETTING, sorted by the
 * numbers in SETTING. A cell "8 of 10 (1)" has the rows that survived, all rows, and
 * those that collapsed, if any. The last column has the last setting before the first
 * that fails (fewer rows survive) or is missing: "none" if the very first fails, "-" if
 * it is missing.
 * errors: EINVAL (a name without a comma), ENOMEM */
kg_status kg_survival_table(struct kg_str *out, const struct kg_cells *c,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
