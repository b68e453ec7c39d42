/* Checks that all ranks are about to make the same run.
 *
 * The state and configuration of a rank are written as facts: lines NAME<tab>VALUE with
 * unique names. Every rank compares its facts with rank 0's before any other exchange,
 * and the error names the first difference.
 */
#ifndef KG_RANKS_SAME_H
#define KG_RANKS_SAME_H

#include "base/str.h"
#include "ranks/ranks.h"

/* Appends a fact. value: one line */
kg_status kg_ranks_fact(struct kg_str *facts, const char *name, const char *value,
                        struct kg_err *err) KG_MUST_CHECK;

/* made: status of making this rank's facts; what: their subject
 * errors: ECONFLICT on all ranks, "rank 1 (host): NAME is 5, rank 0 has 4", with
 * r->unlike set; any rank's `made` */
kg_status kg_ranks_check_same(struct kg_ranks *r, kg_status made,
                              const struct kg_str *facts, const char *what,
                              struct kg_err *err) KG_MUST_CHECK;

#endif
