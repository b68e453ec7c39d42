/* `kedge algorithms`: prints the tables, and checks their rows, with the same cells. */
#ifndef KG_LAB_ALGORITHMS_H
#define KG_LAB_ALGORITHMS_H

#include "base/str.h"
#include "policy/algo.h"

/* Appends text as a cell of a Markdown table; escapes '|', which would end the cell. */
kg_status kg_algorithms_put_cell(struct kg_str *out, const char *text,
                                 struct kg_err *err) KG_MUST_CHECK;
kg_status kg_algorithms_put_needs(struct kg_str *out, const struct kg_policy_about *a,
                                  struct kg_err *err) KG_MUST_CHECK;
const char *kg_algorithms_target(enum kg_target target);

/* docs/algorithms.md: the tables of policy/ with formula and source. */
kg_status kg_cli_algorithms(struct kg_str *out, struct kg_err *err) KG_MUST_CHECK;

/* `kedge algorithms check`: tables, or one JSON line per row and divergence (exact.h).
 * args: names of rows (none: all) and KEY=VALUE.   errors: ENOTFOUND (no such row in a
 * table that can be checked), EINVAL (a key that no checked row reads), ENOMEM */
kg_status kg_algorithms_check(struct kg_str *out, char *const *args, size_t n, bool json,
                              struct kg_err *err) KG_MUST_CHECK;

#endif
