/* Dealing: which sequence of an update belongs to which lane.
 *
 * A lane is the part of a gradient that one process sums in place. The deal depends on
 * the lengths and the number of lanes, never on how many processes there are or how fast
 * they are, so it is the same wherever the lanes are computed.
 */
#ifndef KG_RANKS_LANES_H
#define KG_RANKS_LANES_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Lanes of an update at most. */
enum { KG_LANES_MAX = 4096 };

/* What a sequence of n tokens costs, in units of no meaning: its products grow as n, its
 * attention as n^2.   source: verl, verl/utils/seqlen_balancing.py (24,576 n + n^2) */
uint64_t kg_lanes_cost(int64_t tokens);

/* What is dealt, and what is computed at once. */
struct kg_lane_lengths {
    const int64_t *tokens; /* (n) of each sequence; 0: it is not computed */
    /* (n) tokens that a sequence begins with and so does the computed one before it: a
     * pack of both has them once; NULL: sequences share nothing */
    const int64_t *shared;
    size_t group;   /* neighbours that share most: i / group is the same; 0 or 1: none */
    int64_t budget; /* tokens of a pack */
    int64_t max_keys; /* the same, shared ones counted each time; 0: any number */
};

/* lane[i] of sequence i, 1 <= lanes <= KG_LANES_MAX: what costs most first, each onto the
 * lane of least cost so far; ties go to the smaller index. One lane is all of them.
 * Groups that share are dealt whole, or in equal pieces where there would be fewer than
 * four for each lane. A sequence of 0 tokens gets lane -1.
 * errors: ENOMEM */
kg_status kg_lanes_deal(int32_t *lane, const struct kg_lane_lengths *l, int64_t n,
                        int lanes, struct kg_err *err) KG_MUST_CHECK;

/* How many of the sequences of list[0..n) are computed at once: neighbours that have
 * room together in a pack, or one. Sequence list[i] has tokens[list[i] - base]. So a
 * lane is cut the same way whoever makes it, and its sums have the same order. */
size_t kg_lanes_fit(const struct kg_lane_lengths *l, const size_t *list, size_t n,
                    size_t base);

#endif
