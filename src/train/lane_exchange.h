/* The sum of all lanes, where each rank has made its own.
 *
 * What a rank adds by itself are blocks of neighbouring lanes (kg_tree_cover). A slab is
 * cut among the ranks; each gets its cut of every block, adds along the one tree and has
 * the sum of that cut. Where every rank wants all of it the cuts of the sum go to
 * everybody; where a rank updates its cut alone (a model that is cut) they stay. It is
 * done by pieces, so that it needs no second slab.
 */
#ifndef KG_TRAIN_LANE_EXCHANGE_H
#define KG_TRAIN_LANE_EXCHANGE_H

#include "model/slab.h"
#include "ranks/ranks.h"
#include "ranks/tree.h"

struct kg_lane_blocks {
    const struct kg_slab *block[2 * KG_TREE_LEVELS]; /* in order; borrowed, their elements
                                                      * are added to */
    int n;
};

/* sum = all lanes of all ranks. Every rank has the blocks of its share of `lanes`
 * (kg_share_of); the sum may be one of its blocks.   cut: only this rank's cut of the sum
 * is wanted (kg_cut_of); what stands elsewhere in it is anything
 * errors: ENOMEM, of the device, of the ranks; all ranks hear of each */
kg_status kg_lane_exchange(struct kg_slab *sum, const struct kg_lane_blocks *own,
                           int lanes, bool cut, struct kg_ranks *ranks,
                           struct kg_err *err) KG_MUST_CHECK;

/* Bytes of the host that it takes at most beside the slabs, which are a backend's, of a
 * model of n elements on this rank: none where ranks lend; direct: of the device, by NCCL
 * (ranks/nccl.h). */
uint64_t kg_lane_exchange_bytes(int64_t n, const struct kg_backend *backend, int lanes,
                                int ranks, bool direct);

#endif
