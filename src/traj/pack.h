/* Serializes trajectories for transfer between processes of a run: all fields, bit for
 * bit, for a reader of the same build. */
#ifndef KG_TRAJ_PACK_H
#define KG_TRAJ_PACK_H

#include "traj/traj.h"

/* Appends t.   errors: ENOMEM */
kg_status kg_traj_pack(struct kg_str *out, const struct kg_traj *t,
                       struct kg_err *err) KG_MUST_CHECK;

/* Input bytes, consumed from the front. */
struct kg_traj_bytes {
    const char *at; /* borrowed */
    size_t left;
};
/* Copies the next n bytes; n = 0 always succeeds.   errors: EFORMAT (fewer are left) */
kg_status kg_traj_bytes_take(void *to, struct kg_traj_bytes *from, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;
/* *t: {0} before; the caller releases it, also after an error
 * errors: EFORMAT (the bytes end early), ENOMEM */
kg_status kg_traj_unpack(struct kg_traj *t, struct kg_traj_bytes *from,
                         struct kg_err *err) KG_MUST_CHECK;

#endif
