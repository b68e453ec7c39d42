/* Recomputes the kept sets of truncated sampling. The weights that sampled a trajectory
 * reproduce its sets exactly, so a dump need not store them. */
#ifndef KG_ROLLOUT_KEEP_H
#define KG_ROLLOUT_KEEP_H

#include "model/rows.h"
#include "rollout/rollout.h"

/* Records the kept set of every MODEL token of t under s, as a rollout with record_kept
 * does. t must not have sets yet; a pack of rows must have room for the longest part.
 * errors: of the model, ENONFINITE, ENOMEM */
kg_status kg_rollout_keep(struct kg_traj *t, const struct kg_model *m,
                          struct kg_rows *rows, const struct kg_sampling *s,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
