/* A pass over trajectories that stand in a row, dealt to the ranks: each asks about its
 * stretch, and what was answered is put together by token.
 *
 * A row of a forward does not depend on what stands beside it, so how a pass is dealt
 * changes no bit.
 */
#ifndef KG_TRAIN_RL_DEAL_H
#define KG_TRAIN_RL_DEAL_H

#include "ranks/share.h"
#include "train/rl_batch.h"

struct kg_rl_deal {
    struct kg_share mine; /* of the trajectories, counted from the first of the row */
    uint64_t *ends;       /* (ranks) owned: loss tokens of all shares up to a rank's */
};

/* tokens (last - first): what each of trajectories [first, last) takes; 0: nothing is
 * asked about it.   errors: ENOMEM */
kg_status kg_rl_deal(struct kg_rl_deal *d, const struct kg_rl_batch *b, size_t first,
                     size_t last, const int64_t *tokens, const struct kg_ranks *ranks,
                     struct kg_err *err) KG_MUST_CHECK;
void kg_rl_deal_release(struct kg_rl_deal *d);

/* array: of `size` bytes a loss token, from that of the first trajectory on, of which
 * each rank has its share; NULL: nothing to do
 * errors: of the ranks, ENOMEM */
kg_status kg_rl_deal_gather(void *array, size_t size, const struct kg_rl_deal *d,
                            struct kg_ranks *ranks, const char *what,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
