/* Assigns the sequences of an update to gradient lanes.
 *
 * A gradient lane is the part of a gradient that one process sums in place. The
 * assignment depends on the lengths and the number of lanes, never on the number or speed
 * of processes, so it is the same wherever the lanes are computed.
 */
#ifndef KG_RANKS_LANES_H
#define KG_RANKS_LANES_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Maximum number of lanes in an update. */
enum { KG_LANES_MAX = 4096 };

/* Relative cost of a sequence of n tokens: matrix products grow as n, attention as n^2.
 * source: verl, verl/utils/seqlen_balancing.py (24,576 n + n^2) */
uint64_t kg_lanes_cost(int64_t tokens);

/* The sequences to distribute, and the limits of a micro-batch. */
struct kg_lane_lengths {
    const int64_t *tokens; /* (n) length of each sequence; 0: it is not computed */
    /* (n) length of the prefix in common with the previous computed sequence; a pack that
     * holds both stores it once. NULL: sequences share nothing */
    const int64_t *shared;
    /* sequences i of equal i / group share long prefixes; 0 or 1: none do */
    size_t group;
    int64_t budget;   /* most tokens of a pack; a shared prefix counts once */
    int64_t max_keys; /* the same, counting a shared prefix each time; 0: no limit */
};

/* lane[i] of sequence i, 1 <= lanes <= KG_LANES_MAX. Deals sequences by falling cost,
 * each to the lane of least cost so far; ties go to the smaller index. Groups that share
 * are dealt whole, or in pieces of half the size (a quarter, ...) if there would be fewer
 * than four pieces per lane. A sequence of 0 tokens gets lane -1.
 * errors: ENOMEM */
kg_status kg_lanes_deal(int32_t *lane, const struct kg_lane_lengths *l, int64_t n,
                        int lanes, struct kg_err *err) KG_MUST_CHECK;

/* Number of sequences of list[0..n) in the next micro-batch: consecutive ones that fit in
 * a pack together, or a single one. Sequence list[i] has tokens[list[i] - base]. Every
 * process splits a lane alike, so the lane's sums have the same order. */
size_t kg_lanes_fit(const struct kg_lane_lengths *l, const size_t *list, size_t n,
                    size_t base);

/* Divides n items among ranks.
 *
 * A share is a contiguous range; shares are in the order of the ranks. So all ranks'
 * results, concatenated, are in the order of the items, and the first item that fails is
 * on the lowest rank that fails. A single process has all items. */
struct kg_share {
    int64_t first, end;
};

/* The share of `rank` among `ranks` (0: a single process), as even as possible. */
struct kg_share kg_share_of(int64_t n, int rank, int ranks);

/* kg_share_of for items of different cost: rank r's share begins at the first item whose
 * preceding cost is at least r/ranks of the sum of cost[0..n). */
struct kg_share kg_share_by_cost(const uint64_t *cost, int64_t n, int rank, int ranks);

/* The order in which lanes are added: a binary tree that depends only on their number.
 *
 *   C = 8:  ((l0+l1)+(l2+l3)) + ((l4+l5)+(l6+l7))
 *
 * Lanes arrive in order, and a binary counter decides which sums are added. Level k holds
 * a sum of 2^k neighbours; a sum that meets a full level is added to it and moves up one
 * level. If C is not a power of two, the remaining levels are added from the newest up:
 * C = 6 is ((l0+l1)+(l2+l3)) + (l4+l5). Every subtree adds the same numbers on every
 * machine, so the sum has the same bits. */
enum { KG_TREE_LEVELS = 31 };

/* {0}: no lane yet. */
struct kg_tree {
    uint32_t held; /* bit k: level k is full */
};

/* Adds a lane.   returns the level where the caller must store the sum: the lane added to
 * level 0, that sum to level 1, and so on through all levels below the returned one (the
 * level's value is the left operand), which are empty afterwards */
int kg_tree_push(struct kg_tree *t);

/* Adds the sum of 2^level neighbours whose first index is a multiple of 2^level, as if
 * they were added one by one.   returns as kg_tree_push; the sums begin at `level` */
int kg_tree_push_block(struct kg_tree *t, int level);

/* Lists the remaining levels, from the newest up, in levels[KG_TREE_LEVELS]: the total is
 * (.. levels[2] + (levels[1] + levels[0])).   returns their number; t is empty then */
int kg_tree_finish(struct kg_tree *t, int *levels);

/* Splits lanes [first, end) into blocks that can be added independently: 2^levels[i]
 * lanes each, in order, as large as the tree allows. levels (2 KG_TREE_LEVELS) out.
 * returns the number of blocks */
int kg_tree_cover(int *levels, int first, int end);

/* Maximum number of sums held at once for C lanes, besides the newest lane. */
int kg_tree_room(int lanes);

#endif
