/* Collective computations on slabs that are sharded over ranks. */
#ifndef KG_MODEL_CUT_H
#define KG_MODEL_CUT_H

#include "model/slab.h"
#include "ranks/ranks.h"

/* *out = sum_i (x_i - minus_i)^2 over n elements; x and minus (NULL for 0) hold this
 * rank's shard. Ranks exchange the sums of their pieces and add them in order, so the
 * bits equal kg_slab_sum_squares of the whole. Collective; ranks NULL: x is the whole.
 * errors: ENOMEM, ESHAPE, those of the ranks */
kg_status kg_cut_sum_squares(double *out, struct kg_ranks *ranks, int64_t n,
                             const struct kg_slab *x, const struct kg_slab *minus,
                             struct kg_err *err) KG_MUST_CHECK;

#endif
