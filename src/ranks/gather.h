/* What every rank has to say, on every rank or on the first. */
#ifndef KG_RANKS_GATHER_H
#define KG_RANKS_GATHER_H

#include "base/str.h"
#include "ranks/ranks.h"

/* What all ranks said, one behind the other: rank r's ends at ends[r]. */
struct kg_ranks_bytes {
    char *bytes;    /* owned */
    uint64_t *ends; /* (n of the ranks) owned */
};
/* errors: of any rank, ENOMEM; *all is released by the caller all the same */
kg_status kg_ranks_bytes_gather(struct kg_ranks_bytes *all, const struct kg_str *own,
                                struct kg_ranks *r, const char *what,
                                struct kg_err *err) KG_MUST_CHECK;
/* The same, to rank 0 alone: of the others *all stays without bytes. */
kg_status kg_ranks_bytes_collect(struct kg_ranks_bytes *all, const struct kg_str *own,
                                 struct kg_ranks *r, const char *what,
                                 struct kg_err *err) KG_MUST_CHECK;
/* *said, of each rank its own, becomes that of all, one behind the other.
 * errors: as above; all hear of each */
kg_status kg_ranks_str_gather(struct kg_str *said, struct kg_ranks *r, const char *what,
                              struct kg_err *err) KG_MUST_CHECK;
void kg_ranks_bytes_release(struct kg_ranks_bytes *all); /* {0} is allowed */

#endif
