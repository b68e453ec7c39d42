/* Longest first onto the least loaded lane (Graham 1969: at most 4/3 of the best deal).
 *
 * Costs are integers, so that no rounding decides a tie, and sorting is by (length,
 * index), so that it has one result.
 */
#include "ranks/lanes.h"

#include "base/mem.h"

#include <stdlib.h>

uint64_t kg_lanes_cost(int64_t tokens)
{
    const uint64_t n = (uint64_t)tokens;

    return 24576 * n + n * n;
}

struct item {
    int64_t tokens, index;
};

static int longest_first(const void *a, const void *b)
{
    const struct item *x = a, *y = b;

    if (x->tokens != y->tokens)
        return x->tokens < y->tokens ? 1 : -1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static int least(const uint64_t *cost, int lanes)
{
    int best = 0;

    for (int l = 1; l < lanes; l++)
        if (cost[l] < cost[best])
            best = l;
    return best;
}

kg_status kg_lanes_deal(int32_t *lane, const int64_t *tokens, int64_t n, int lanes,
                        struct kg_err *err)
{
    uint64_t cost[KG_LANES_MAX] = {0};
    struct item *items = kg_mem_calloc((size_t)n + 1, sizeof *items, "lanes", err);

    if (!items)
        return err->code;
    for (int64_t i = 0; i < n; i++)
        items[i] = (struct item){tokens[i], i};
    qsort(items, (size_t)n, sizeof *items, longest_first);
    for (int64_t i = 0; i < n; i++) {
        const struct item *it = &items[i];
        int to = it->tokens > 0 ? least(cost, lanes) : -1;

        lane[it->index] = to;
        if (to >= 0)
            cost[to] += kg_lanes_cost(it->tokens);
    }
    kg_mem_free(items);
    return KG_OK;
}

size_t kg_lanes_fit(const int64_t *tokens, const size_t *list, size_t n, size_t base,
                    int64_t budget)
{
    size_t i = 0;

    for (int64_t sum = 0; i < n; i++) {
        sum += tokens[list[i] - base];
        if (i > 0 && sum > budget)
            break;
    }
    return i;
}
