/* Gathers strings of different lengths from all ranks, on every rank or on rank 0. */
#ifndef KG_RANKS_GATHER_H
#define KG_RANKS_GATHER_H

#include "base/str.h"
#include "ranks/ranks.h"

/* The strings of all ranks, concatenated: rank r's ends at ends[r]. */
struct kg_ranks_bytes {
    char *bytes;    /* owned */
    uint64_t *ends; /* (n of the ranks) owned */
};
/* errors: of any rank, ENOMEM; the caller releases *all also after an error */
kg_status kg_ranks_bytes_gather(struct kg_ranks_bytes *all, const struct kg_str *own,
                                struct kg_ranks *r, const char *what,
                                struct kg_err *err) KG_MUST_CHECK;
/* The same on rank 0 only; on the others *all stays empty. */
kg_status kg_ranks_bytes_collect(struct kg_ranks_bytes *all, const struct kg_str *own,
                                 struct kg_ranks *r, const char *what,
                                 struct kg_err *err) KG_MUST_CHECK;
/* Replaces each rank's *said by the concatenation of all.
 * errors: as above; reported on all ranks */
kg_status kg_ranks_str_gather(struct kg_str *said, struct kg_ranks *r, const char *what,
                              struct kg_err *err) KG_MUST_CHECK;
void kg_ranks_bytes_release(struct kg_ranks_bytes *all); /* {0} is allowed */

#endif
