/* What kedge doctor checks of ranks. */
#ifndef KG_CLI_DOCTOR_RANKS_H
#define KG_CLI_DOCTOR_RANKS_H

#include "base/str.h"
#include "ranks/ranks.h"

/* *ok: in, whether all held on this rank; out, whether all holds on every rank and
 * between them. Appends a line for each rank and check; alone nothing.
 * errors: of the ranks, when one is lost */
kg_status kg_doctor_ranks(struct kg_str *out, bool *ok, struct kg_ranks *r, bool json,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
