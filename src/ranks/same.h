/* Whether ranks are to make the same run.
 *
 * What a rank is and has been told is a text of facts: lines NAME<tab>VALUE, no name
 * twice. Every rank compares its own with that of rank 0, and the first difference is
 * named in words, before anything of the run is exchanged.
 */
#ifndef KG_RANKS_SAME_H
#define KG_RANKS_SAME_H

#include "base/str.h"
#include "ranks/ranks.h"

/* A line more.   value: in one line */
kg_status kg_ranks_fact(struct kg_str *facts, const char *name, const char *value,
                        struct kg_err *err) KG_MUST_CHECK;

/* made: whether the facts of this rank could be made; what: they are of
 * errors: ECONFLICT on all, "rank 1 (host): NAME is 5, rank 0 has 4", and r->unlike is
 * set; those of making them on any rank */
kg_status kg_ranks_check_same(struct kg_ranks *r, kg_status made,
                              const struct kg_str *facts, const char *what,
                              struct kg_err *err) KG_MUST_CHECK;

#endif
