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
    /* (n) length of the prefix in common with the previous computed sequence, which a
     * pack of both stores once; NULL: sequences share nothing */
    const int64_t *shared;
    /* consecutive sequences that share most: those with the same i / group; 0 or 1: none
     */
    size_t group;
    int64_t budget;   /* tokens of a pack; a shared prefix counts once */
    int64_t max_keys; /* the same, counting it each time; 0: no limit */
};

/* lane[i] of sequence i, 1 <= lanes <= KG_LANES_MAX. Highest cost first, each to the lane
 * of least cost so far; ties go to the smaller index. Groups that share stay together, or
 * are split into equal pieces if there would be fewer than four per lane. A sequence of 0
 * tokens gets lane -1.
 * errors: ENOMEM */
kg_status kg_lanes_deal(int32_t *lane, const struct kg_lane_lengths *l, int64_t n,
                        int lanes, struct kg_err *err) KG_MUST_CHECK;

/* How many sequences of list[0..n) form the next micro-batch: consecutive ones that fit
 * in a pack together, or a single one. Sequence list[i] has tokens[list[i] - base]. Every
 * process splits a lane alike, so its sums have the same order. */
size_t kg_lanes_fit(const struct kg_lane_lengths *l, const size_t *list, size_t n,
                    size_t base);

#endif
