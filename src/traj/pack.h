/* Trajectories as bytes, on their way from one process of a run to another: all that a
 * trajectory holds, bit for bit, for a reader of the same build.
 */
#ifndef KG_TRAJ_PACK_H
#define KG_TRAJ_PACK_H

#include "traj/traj.h"

/* appended.   errors: ENOMEM */
kg_status kg_traj_pack(struct kg_str *out, const struct kg_traj *t,
                       struct kg_err *err) KG_MUST_CHECK;

/* Bytes that are read from the front. */
struct kg_traj_bytes {
    const char *at; /* borrowed */
    size_t left;
};
/* The next n bytes; 0 of them are always there.   errors: EFORMAT (fewer are left) */
kg_status kg_traj_bytes_take(void *to, struct kg_traj_bytes *from, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;
/* *t: {0} before; released by the caller, after an error too
 * errors: EFORMAT (they end too early), ENOMEM */
kg_status kg_traj_unpack(struct kg_traj *t, struct kg_traj_bytes *from,
                         struct kg_err *err) KG_MUST_CHECK;

#endif
