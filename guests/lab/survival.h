/* How far each method goes: of cells "METHOD,SETTING", in how many rows what was trained
 * still reaches where it began (lab/cells.h, `start`), setting by setting, and up to
 * which setting KG_SURVIVAL_SHARE of the rows survive.
 */
#ifndef KG_LAB_SURVIVAL_H
#define KG_LAB_SURVIVAL_H

#include "lab/cells.h"

#define KG_SURVIVAL_SHARE 0.8

/* A table in Markdown: a line for each METHOD, a column for each SETTING, numbers in them
 * in order, in which "8 of 10 (1)" are rows that survived, all, and (where there are any)
 * those that collapsed. The last column has the last setting before the first that fewer
 * survive or that the method lacks: "none" if the first failed, "-" if it is lacking.
 * errors: EINVAL (a name without a comma), ENOMEM */
kg_status kg_survival_table(struct kg_str *out, const struct kg_cells *c,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
