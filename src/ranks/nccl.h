/* What ranks on GPUs send each other from device to device: NCCL, a library of NVIDIA's
 * that is found when kedge runs and moves bytes, nothing else. Whoever adds them does it
 * in an order of his own, so the bits are those of the way through the host.
 *
 * A library's collective has no name for a rank that does not come. So ranks meet in
 * the transport that is there before they wait for what the device moves: who is lost is
 * known and named there. What all have begun moves within half of r->wait_s, or is given
 * up: then all hear of it.
 */
#ifndef KG_RANKS_NCCL_H
#define KG_RANKS_NCCL_H

#include "ranks/ranks.h"
#include "tensor/backend.h"

#define KG_NCCL_LIBRARY "libnccl.so.2"
enum { KG_NCCL_OLDEST = 21400 }; /* 2.14.0: the first whose calls need not wait */
enum { KG_NCCL_VERSION = 32 };   /* bytes of one in words */

/* path (PATH_MAX) <- the library's file: in `folder`, or where that is NULL in the first
 * of CUDA's folder, the loader's path, and the folders of Python's wheels.
 * errors: NOTFOUND (places listed) */
kg_status kg_ranks_nccl_find(char *path, const char *folder,
                             struct kg_err *err) KG_MUST_CHECK;

/* What a rank would open.   path (PATH_MAX); version (KG_NCCL_VERSION)
 * errors: NOTFOUND, EFORMAT, ECONFLICT of those below */
kg_status kg_ranks_nccl_look(char *path, char *version, const char *folder,
                             struct kg_err *err) KG_MUST_CHECK;

/* Open it on each rank, which computes on `be` (borrowed as long as r is open), and join
 * all: r->nccl. Alone nothing is done, and nothing where it is open. All ranks call it.
 * errors: NOTFOUND, EFORMAT (no library, a symbol missing), ECONFLICT (an old version,
 * or not the one of rank 0), EINVAL (its memory is the host's), EDEVICE (it does not
 * start), ETIMEOUT (not all joined); all hear of each */
kg_status kg_ranks_nccl_open(struct kg_ranks *r, const struct kg_backend *be,
                             const char *folder, struct kg_err *err) KG_MUST_CHECK;
/* Of a part nothing is done. Of ranks without it, too. */
void kg_ranks_nccl_close(struct kg_ranks *r);

/* "2.28.9", of its life; NULL: there is none. */
const char *kg_ranks_nccl_version(const struct kg_ranks *r);
/* The file it was opened from; NULL: there is none. */
const char *kg_ranks_nccl_path(const struct kg_ranks *r);

/* As kg_ranks_exchange, of memory of the device: behind what was launched before; when it
 * returns all is there.   r->nccl: open
 * errors: those of kg_ranks_agree, EDEVICE, ETIMEOUT; all hear of each, and no later
 * exchange is made */
kg_status kg_ranks_nccl_exchange(struct kg_ranks *r, const struct kg_ranks_part *out,
                                 const struct kg_ranks_part *in, const char *what,
                                 struct kg_err *err) KG_MUST_CHECK;

#endif
