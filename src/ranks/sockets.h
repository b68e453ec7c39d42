/* A transport between forked processes of one machine, through shared memory. A socket
 * per pair wakes sleeping processes, and its end of file reports a process that is gone.
 * With r->loss, set by the parent, all ranks name the rank that was lost first. */
#ifndef KG_RANKS_SOCKETS_H
#define KG_RANKS_SOCKETS_H

#include "base/status.h"
#include "ranks/lost.h"

#include <stdbool.h>
#include <stddef.h>

/* Ring buffers in shared memory, one for each ordered pair of processes of one machine.
 *
 * A ring has one writer and one reader. Each side owns its counter and never waits: a
 * call moves at most the bytes that the ring has room for or holds. An idle process may
 * announce that it sleeps; the other side wakes it, over a socket, after moving bytes.
 *
 * Both sides know the sizes of the parts that pass through a ring. Each part begins on
 * its own cache line, so parts used in place are aligned.
 */

/* Maximum number of processes; bytes of a line. */
enum { KG_RINGS_MOST = 64, KG_RINGS_LINE = 64 };

struct kg_rings;

/* Call before forking n processes; each of them then has the memory.
 * errors: ENOMEM (no shared memory) */
kg_status kg_rings_create(struct kg_rings **rings, int n,
                          struct kg_err *err) KG_MUST_CHECK;
void kg_rings_free(
    struct kg_rings *rings); /* unmaps the caller's view; NULL is allowed */

/* fd (n): the sockets of process `me` to the others; borrowed */
void kg_rings_set_sockets(struct kg_rings *rings, int me, int *fd);
int *kg_rings_sockets(const struct kg_rings *rings, int me);

/* Moves some of the n bytes left of a part: at most what the ring has room for (put) or
 * holds (take), and at most a small piece, so that the other side begins early.
 * returns the number of bytes: whole lines, except at the part's end */
size_t kg_rings_put(struct kg_rings *rings, int from, int to, const void *bytes,
                    size_t n);
size_t kg_rings_take(struct kg_rings *rings, int from, int to, void *bytes, size_t n);
/* kg_rings_take without a copy: *bytes points into the ring (aligned to KG_RINGS_LINE).
 * The reader may write to these bytes until it calls kg_rings_give_back with their
 * number, or with a smaller number of whole lines. */
size_t kg_rings_see(struct kg_rings *rings, int from, int to, void **bytes, size_t n);
void kg_rings_give_back(struct kg_rings *rings, int from, int to, size_t n);
/* True if kg_rings_put (has_room) or kg_rings_take (has_bytes) would move at least one
 * byte now. */
bool kg_rings_has_room(const struct kg_rings *rings, int from, int to);
bool kg_rings_has_bytes(const struct kg_rings *rings, int from, int to);

/* on: others wake `me` from now on; the caller then checks for bytes moved before this
 * call. off: `me` polls again */
void kg_rings_sleep(struct kg_rings *rings, int me, bool on);
/* Call after moving bytes.   returns whether process `rank` sleeps and must be woken;
 * true for one caller only */
bool kg_rings_must_wake(struct kg_rings *rings, int rank);

/* ---- the transport ---- */
/* fd (n): the socket to each rank except `me`; rings: made for n processes; borrowed
 * errors: EINVAL (more than KG_RANKS_SOCKETS ranks) */
kg_status kg_ranks_on_sockets(struct kg_ranks *r, int me, int n, int *fd,
                              struct kg_rings *rings, struct kg_err *err) KG_MUST_CHECK;

#endif
