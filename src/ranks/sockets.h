/* A transport among processes of one machine with one parent: bytes go through memory
 * that they share (ranks/rings.h). A socket for every two of them, which is there
 * already, wakes who sleeps, and its end tells of one that is gone. With r->loss, which
 * the parent sets, all ranks name the one that was lost first.
 */
#ifndef KG_RANKS_SOCKETS_H
#define KG_RANKS_SOCKETS_H

#include "ranks/lost.h"
#include "ranks/rings.h"

/* fd (n): the socket to each rank, but for `me`; borrowed, as the rings of n
 * errors: EINVAL (more than KG_RANKS_SOCKETS ranks) */
kg_status kg_ranks_on_sockets(struct kg_ranks *r, int me, int n, int *fd,
                              struct kg_rings *rings, struct kg_err *err) KG_MUST_CHECK;

#endif
