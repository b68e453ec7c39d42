/* Deals a pass over consecutive trajectories to the ranks: each computes its range, and
 * the results are gathered by token.
 *
 * A row of a forward does not depend on other rows, so the split does not change any bit.
 */
#ifndef KG_TRAIN_RL_DEAL_H
#define KG_TRAIN_RL_DEAL_H

#include "ranks/lanes.h"
#include "train/step/rl_batch.h"

struct kg_rl_deal {
    struct kg_share mine; /* range of trajectories, relative to the first */
    /* (ranks) owned: cumulative number of loss tokens up to each rank's share */
    uint64_t *ends;
};

/* tokens (last - first): cost of each of trajectories [first, last); 0: skipped.
 * errors: ENOMEM */
kg_status kg_rl_deal(struct kg_rl_deal *d, const struct kg_rl_batch *b, size_t first,
                     size_t last, const int64_t *tokens, const struct kg_ranks *ranks,
                     struct kg_err *err) KG_MUST_CHECK;
void kg_rl_deal_release(struct kg_rl_deal *d);

/* array: `size` bytes per loss token, starting at the first trajectory's; each rank has
 * filled its share; NULL: nothing to do
 * errors: those of the ranks, ENOMEM */
kg_status kg_rl_deal_gather(void *array, size_t size, const struct kg_rl_deal *d,
                            struct kg_ranks *ranks, const char *what,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
