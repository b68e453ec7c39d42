/* Sums all lanes when each rank has computed its own.
 *
 * A rank adds its blocks of neighbouring lanes (kg_tree_cover) by itself. Then slabs are
 * cut among the ranks: each rank receives its cut of every block and adds the blocks
 * along the tree, which gives the sum of that cut. If every rank needs the whole sum, the
 * cuts are sent to all; if a rank updates only its cut (a cut model), they stay. The
 * exchange works in pieces, so it needs no second slab.
 */
#ifndef KG_TRAIN_LANE_EXCHANGE_H
#define KG_TRAIN_LANE_EXCHANGE_H

#include "model/slab.h"
#include "ranks/lanes.h"
#include "ranks/ranks.h"

struct kg_lane_blocks {
    const struct kg_slab *block[2 * KG_TREE_LEVELS]; /* in order; borrowed, modified */
    int n;
};

/* sum = all lanes of all ranks. Every rank has the blocks of its share of `lanes`
 * (kg_share_of); sum may be one of its blocks. cut: only this rank's cut of the sum is
 * computed (kg_cut_of); the rest of sum is undefined
 * errors: ENOMEM, of the device, of the ranks; reported on all ranks */
kg_status kg_lane_exchange(struct kg_slab *sum, const struct kg_lane_blocks *own,
                           int lanes, bool cut, struct kg_ranks *ranks,
                           struct kg_err *err) KG_MUST_CHECK;

/* Maximum additional host memory for slabs of n elements of a backend: 0 if ranks lend
 * memory; direct: device memory instead, with NCCL (ranks/nccl.h). */
uint64_t kg_lane_exchange_bytes(int64_t n, const struct kg_backend *backend, int lanes,
                                int ranks, bool direct);

#endif
