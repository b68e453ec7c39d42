/* Transfers between the GPUs of ranks by NVIDIA's NCCL, which is loaded at run time. It
 * only moves bytes; the receivers add them in kedge's own order, so the bits are the same
 * as through the host.
 *
 * A collective of the library cannot say which rank is missing. So ranks first meet in
 * the host transport, which detects and names lost ranks, and only then wait for the
 * device. A transfer that all ranks have begun must complete within half of r->wait_s;
 * else it is aborted, and all ranks report it.
 */
#ifndef KG_RANKS_NCCL_H
#define KG_RANKS_NCCL_H

#include "ranks/ranks.h"
#include "tensor/backend.h"

#define KG_NCCL_LIBRARY "libnccl.so.2"
enum { KG_NCCL_OLDEST = 21400 }; /* 2.14.0: the first with non-blocking calls */
enum { KG_NCCL_VERSION = 32 };   /* bytes of a version as text */

/* path (PATH_MAX) <- the library's file: in `folder`, or if NULL in the first of CUDA's
 * folder, the loader's path, and Python's wheels.
 * errors: ENOTFOUND (lists the places) */
kg_status kg_ranks_nccl_find(char *path, const char *folder,
                             struct kg_err *err) KG_MUST_CHECK;

/* The library that a rank would open. path (PATH_MAX); version (KG_NCCL_VERSION)
 * errors: ENOTFOUND, EFORMAT, ECONFLICT as in kg_ranks_nccl_open */
kg_status kg_ranks_nccl_look(char *path, char *version, const char *folder,
                             struct kg_err *err) KG_MUST_CHECK;

/* Opens NCCL on each rank, whose backend is `be` (borrowed while r is open), and joins
 * all: r->nccl. Does nothing for a single process, or if r->nccl is open. Collective.
 * errors: ENOTFOUND, EFORMAT (not a library, a missing symbol), ECONFLICT (old version,
 * or not rank 0's), EINVAL (the backend's memory is on the host), EDEVICE (NCCL does not
 * start), ETIMEOUT (not all joined); reported on all ranks */
kg_status kg_ranks_nccl_open(struct kg_ranks *r, const struct kg_backend *be,
                             const char *folder, struct kg_err *err) KG_MUST_CHECK;
/* Does nothing for a part (kg_ranks_split), or without NCCL. */
void kg_ranks_nccl_close(struct kg_ranks *r);

/* "2.28.9", borrowed; NULL: none. */
const char *kg_ranks_nccl_version(const struct kg_ranks *r);
/* The file that NCCL was loaded from; NULL: none. */
const char *kg_ranks_nccl_path(const struct kg_ranks *r);

/* As kg_ranks_exchange for device memory: begins after earlier kernels of the backend, is
 * complete on return. r->nccl must be open.
 * errors: those of kg_ranks_agree, EDEVICE, ETIMEOUT; reported on all ranks, and later
 * exchanges fail */
kg_status kg_ranks_nccl_exchange(struct kg_ranks *r, const struct kg_ranks_part *out,
                                 const struct kg_ranks_part *in, const char *what,
                                 struct kg_err *err) KG_MUST_CHECK;

#endif
