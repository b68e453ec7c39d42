/* Sums all lanes when each rank has computed its own.
 *
 * A rank first adds its own neighbouring lanes to blocks (kg_tree_cover). Then each rank
 * receives its shard (kg_cut_of) of every block and adds the blocks along the tree, which
 * gives the sum of that shard. With cut it keeps only this; else it sends this to all
 * ranks, which then have the whole sum. The exchange needs no second slab.
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
 * (kg_share_of); sum may be one of its blocks. cut: computes only this rank's shard of
 * the sum (kg_cut_of); the rest of sum is undefined
 * errors: ENOMEM, those of the device and of the ranks; reported on all ranks */
kg_status kg_lane_exchange(struct kg_slab *sum, const struct kg_lane_blocks *own,
                           int lanes, bool cut, struct kg_ranks *ranks,
                           struct kg_err *err) KG_MUST_CHECK;

/* Upper bound for the additional host memory of an exchange of n elements (ranks that
 * lend memory need none); direct: device memory instead, with NCCL (ranks/nccl.h). */
uint64_t kg_lane_exchange_bytes(int64_t n, const struct kg_backend *backend, int lanes,
                                int ranks, bool direct);

#endif
