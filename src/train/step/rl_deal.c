/* A share is a contiguous range of trajectories, so it is a contiguous range of every
 * array over tokens, and is gathered in place. */
#include "train/step/rl_deal.h"

#include "base/mem.h"
#include "ranks/lanes.h"

static void fill(struct kg_rl_deal *d, const struct kg_rl_batch *b, size_t first,
                 const uint64_t *cost, int64_t n, const struct kg_ranks *ranks)
{
    d->mine = kg_share_by_cost(cost, n, ranks->me, ranks->n);
    for (int r = 0; r < ranks->n; r++) {
        struct kg_share s = kg_share_by_cost(cost, n, r, ranks->n);

        d->ends[r] = (uint64_t)(b->begin[first + (size_t)s.end] - b->begin[first]);
    }
}

kg_status kg_rl_deal(struct kg_rl_deal *d, const struct kg_rl_batch *b, size_t first,
                     size_t last, const int64_t *tokens, const struct kg_ranks *ranks,
                     struct kg_err *err)
{
    size_t n = last - first;
    uint64_t *cost = kg_mem_calloc(n + 1, sizeof *cost, "shares of a pass", err);

    *d = (struct kg_rl_deal){0};
    d->ends = kg_mem_calloc((size_t)ranks->n + 1, sizeof *d->ends, "shares of a pass",
                            err);
    for (size_t i = 0; cost && i < n; i++)
        cost[i] = kg_lanes_cost(tokens[i]);
    if (cost && d->ends)
        fill(d, b, first, cost, (int64_t)n, ranks);
    kg_mem_free(cost);
    return cost && d->ends ? KG_OK : KG_ENOMEM;
}

void kg_rl_deal_release(struct kg_rl_deal *d)
{
    kg_mem_free(d->ends);
    *d = (struct kg_rl_deal){0};
}

kg_status kg_rl_deal_gather(void *array, size_t size, const struct kg_rl_deal *d,
                            struct kg_ranks *ranks, const char *what, struct kg_err *err)
{
    if (!array || size == 0 || ranks->n < 2)
        return KG_OK;
    uint64_t *ends = kg_mem_calloc((size_t)ranks->n, sizeof *ends, what, err);
    KG_TRY(kg_ranks_agree(ranks, ends ? KG_OK : err->code, what, err));
    for (int r = 0; r < ranks->n; r++)
        ends[r] = d->ends[r] * size;
    kg_status status = kg_ranks_gather(ranks, array, ends, what, err);
    kg_mem_free(ends);
    return status;
}
