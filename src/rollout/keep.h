/* What truncated sampling kept, once more: the weights that sampled give the sets of a
 * trajectory again, to the bit, so a dump need not hold them.
 */
#ifndef KG_ROLLOUT_KEEP_H
#define KG_ROLLOUT_KEEP_H

#include "model/rows.h"
#include "rollout/rollout.h"

/* Record with every MODEL token of t what drawing it under s kept, as a rollout with
 * record_kept does. t has no sets yet; a pack of rows holds the longest part's tokens.
 * errors: of the model, ENONFINITE, ENOMEM */
kg_status kg_rollout_keep(struct kg_traj *t, const struct kg_model *m,
                          struct kg_rows *rows, const struct kg_sampling *s,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
