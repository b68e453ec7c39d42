/* What kedge doctor checks of ranks: of guests/lab. */
#ifndef KG_CLI_DOCTOR_RANKS_H
#define KG_CLI_DOCTOR_RANKS_H

#include "base/str.h"
#include "ranks/ranks.h"
#include "tensor/backend.h"

/* The NCCL that ranks would open here, or why none: of a GPU; of what is none nothing.
 * nccl: folder to look in; NULL: where a run looks
 * errors: those of kg_ranks_nccl_look where a folder was named */
kg_status kg_doctor_nccl(struct kg_str *out, const struct kg_backend *be,
                         const char *nccl, bool json, struct kg_err *err) KG_GUEST;

/* *ok: in, whether all held on this rank; out, whether all holds on every rank and
 * between them. Appends a line for each rank and check; alone nothing. be: what this rank
 * computes on, which on GPUs NCCL joins; that no rank has one breaks no promise, unless a
 * folder is named: one that some lack does, since it joins all or none
 * errors: of the ranks, when one is lost */
kg_status kg_doctor_ranks(struct kg_str *out, bool *ok, struct kg_ranks *r,
                          const struct kg_backend *be, const char *nccl, bool json,
                          struct kg_err *err) KG_GUEST;

#endif
