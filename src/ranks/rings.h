/* Rings: bytes from each process of one machine to each other, through memory that all of
 * them see.
 *
 * One writes to a ring and one reads from it, each has a counter of its own, and neither
 * waits: what has no room or is not there yet is left for the next call. Who has nothing
 * to do may sleep, and says so first: whoever moves bytes then wakes it, by a byte over
 * a socket.
 *
 * What goes through a ring are parts, whose sizes both sides know, and each begins at a
 * line of its own: so what is used where it lies is aligned.
 */
#ifndef KG_RANKS_RINGS_H
#define KG_RANKS_RINGS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Processes at most; bytes of a line. */
enum { KG_RINGS_MOST = 64, KG_RINGS_LINE = 64 };

struct kg_rings;

/* Of n processes, which are made afterwards: each has the memory then.
 * errors: ENOMEM (the system has none that processes share) */
kg_status kg_rings_create(struct kg_rings **rings, int n,
                          struct kg_err *err) KG_MUST_CHECK;
void kg_rings_free(struct kg_rings *rings); /* the caller's view; NULL is allowed */

/* fd (n): sockets to the others, of process `me` alone; borrowed */
void kg_rings_set_sockets(struct kg_rings *rings, int me, int *fd);
int *kg_rings_sockets(const struct kg_rings *rings, int me);

/* Of the n bytes that are left of a part as many as there is room for, or are there; a
 * small piece at most, so that the other side begins early.   returns how many: whole
 * lines, but for the part's last */
size_t kg_rings_put(struct kg_rings *rings, int from, int to, const void *bytes,
                    size_t n);
size_t kg_rings_take(struct kg_rings *rings, int from, int to, void *bytes, size_t n);
/* The same without a copy: where they lie (aligned to KG_RINGS_LINE), which the reader
 * may write to, until it gives them back; n: as many, or less by whole lines. */
size_t kg_rings_see(struct kg_rings *rings, int from, int to, void **bytes, size_t n);
void kg_rings_give_back(struct kg_rings *rings, int from, int to, size_t n);
/* Whether a call would move some. */
bool kg_rings_has_room(const struct kg_rings *rings, int from, int to);
bool kg_rings_has_bytes(const struct kg_rings *rings, int from, int to);

/* From now on others wake `me`: what they moved before is to be looked for behind this.
 * on false: it looks by itself again */
void kg_rings_sleep(struct kg_rings *rings, int me, bool on);
/* Behind what was moved.   returns whether that one sleeps; for one caller of all */
bool kg_rings_must_wake(struct kg_rings *rings, int rank);

#endif
