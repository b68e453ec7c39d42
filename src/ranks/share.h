/* Sharing: which of n things that stand in a row are whose.
 *
 * A share is a stretch, and shares lie in the order of the ranks: what all ranks made,
 * laid one behind the other, is in the order of the row. And who is first in the row to
 * fail is on the lowest rank that fails. Alone, everything is one's own.
 */
#ifndef KG_RANKS_SHARE_H
#define KG_RANKS_SHARE_H

#include <stdint.h>

struct kg_share {
    int64_t first, end;
};

/* The share of `rank` among `ranks` (0: alone), as even as whole things allow. */
struct kg_share kg_share_of(int64_t n, int rank, int ranks);

/* The same of things of unlike cost: a share begins with the first thing before which its
 * part of the sum of cost[0..n) lies. */
struct kg_share kg_share_by_cost(const uint64_t *cost, int64_t n, int rank, int ranks);

#endif
