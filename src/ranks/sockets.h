/* A transport between forked processes of one machine, through shared memory
 * (ranks/rings.h). A socket per pair wakes sleeping processes, and its end of file
 * reports a process that is gone. With r->loss, set by the parent, all ranks name the
 * rank that was lost first. */
#ifndef KG_RANKS_SOCKETS_H
#define KG_RANKS_SOCKETS_H

#include "ranks/lost.h"
#include "ranks/rings.h"

/* fd (n): the socket to each rank except `me`; borrowed, as the rings for n
 * errors: EINVAL (more than KG_RANKS_SOCKETS ranks) */
kg_status kg_ranks_on_sockets(struct kg_ranks *r, int me, int n, int *fd,
                              struct kg_rings *rings, struct kg_err *err) KG_MUST_CHECK;

#endif
