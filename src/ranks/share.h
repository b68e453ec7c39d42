/* Divides n items among ranks.
 *
 * A share is a contiguous range, in the order of the ranks. So the concatenated results
 * of all ranks are in the order of the items, and the first item that fails is on the
 * lowest rank that fails. A single process has all items.
 */
#ifndef KG_RANKS_SHARE_H
#define KG_RANKS_SHARE_H

#include <stdint.h>

struct kg_share {
    int64_t first, end;
};

/* The share of `rank` among `ranks` (0: a single process), as even as possible. */
struct kg_share kg_share_of(int64_t n, int rank, int ranks);

/* The same for items of different cost: rank r's share begins at the first item whose
 * preceding cost is at least r/ranks of the sum of cost[0..n). */
struct kg_share kg_share_by_cost(const uint64_t *cost, int64_t n, int rank, int ranks);

#endif
