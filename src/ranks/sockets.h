/* A transport over stream sockets that are there already, one to every other rank: for
 * ranks that are processes of one machine with one parent. With r->loss, which the parent
 * sets, all ranks name the one that was lost first.
 */
#ifndef KG_RANKS_SOCKETS_H
#define KG_RANKS_SOCKETS_H

#include "ranks/lost.h"

/* fd (n): the socket to each rank, but for `me`; borrowed
 * errors: EINVAL (more than KG_RANKS_SOCKETS ranks) */
kg_status kg_ranks_on_sockets(struct kg_ranks *r, int me, int n, int *fd,
                              struct kg_err *err) KG_MUST_CHECK;

#endif
