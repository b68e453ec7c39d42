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

/* lane[i] of sequence i with tokens[i] tokens, 1 <= lanes <= KG_LANES_MAX: the longest
 * first, each onto the lane of least cost so far; ties go to the smaller index. One lane
 * is all of them. A sequence of 0 tokens gets lane -1: it is not computed.
 * errors: ENOMEM */
kg_status kg_lanes_deal(int32_t *lane, const int64_t *tokens, int64_t n, int lanes,
                        struct kg_err *err) KG_MUST_CHECK;

/* How many of the sequences of list[0..n) are computed at once: neighbours of at most
 * `budget` tokens together, or one. Sequence list[i] has tokens[list[i] - base]. So a
 * lane is cut the same way whoever makes it, and its sums have the same order. */
size_t kg_lanes_fit(const int64_t *tokens, const size_t *list, size_t n, size_t base,
                    int64_t budget);

#endif
