/* The checks of ranks in kedge doctor. */
#ifndef KG_CLI_DOCTOR_RANKS_H
#define KG_CLI_DOCTOR_RANKS_H

#include "base/str.h"
#include "ranks/ranks.h"
#include "tensor/backend.h"

/* Reports the NCCL that ranks would open here, or why there is none; nothing unless `be`
 * is a GPU. nccl: folder to search; NULL: as for a run
 * errors: those of kg_ranks_nccl_look if a folder was given */
kg_status kg_doctor_nccl(struct kg_str *out, const struct kg_backend *be,
                         const char *nccl, bool json, struct kg_err *err) KG_GUEST;

/* *ok: in, whether this rank passed so far; out, whether all ranks passed, and the checks
 * between them. Appends a line for each rank and check; nothing for a single process. be:
 * this rank's backend; GPUs are joined by NCCL. If no rank has NCCL, that is no failure
 * unless a folder was given. If only some have it, it is one
 * errors: of the ranks, if one is lost */
kg_status kg_doctor_ranks(struct kg_str *out, bool *ok, struct kg_ranks *r,
                          const struct kg_backend *be, const char *nccl, bool json,
                          struct kg_err *err) KG_GUEST;

#endif
