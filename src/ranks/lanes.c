/* Highest cost first, onto the least loaded lane (Graham 1969: the largest load is at
 * most 4/3 of the optimum).
 *
 * Costs are integers, so no rounding decides a tie; sorting is by (cost, index), so it
 * has one result.
 */
#include "ranks/lanes.h"

#include "base/mem.h"

#include <stdlib.h>

uint64_t kg_lanes_cost(int64_t tokens)
{
    const uint64_t n = (uint64_t)tokens;

    return 24576 * n + n * n;
}

/* A unit of dealing: a sequence, or neighbours that share. */
struct item {
    uint64_t cost;
    int64_t first;
};

static int costliest_first(const void *a, const void *b)
{
    const struct item *x = a, *y = b;

    if (x->cost != y->cost)
        return x->cost < y->cost ? 1 : -1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static int least(const uint64_t *cost, int lanes)
{
    int best = 0;

    for (int l = 1; l < lanes; l++)
        if (cost[l] < cost[best])
            best = l;
    return best;
}

/* Sequences of a unit, at most: pieces of a group are as large as leave each lane four of
 * them. */
static int64_t unit_size(const struct kg_lane_lengths *l, int64_t n, int lanes)
{
    int64_t size = l->shared && l->group > 1 ? (int64_t)l->group : 1;

    while (size > 1 && n / size < 4 * (int64_t)lanes)
        size = (size + 1) / 2;
    return size;
}

/* Where the unit ends that begins with sequence `first`. */
static int64_t unit_end(const struct kg_lane_lengths *l, int64_t first, int64_t size,
                        int64_t n)
{
    int64_t group = l->group > 1 ? (int64_t)l->group : 1;
    int64_t end = first / group * group + group;

    end = size < end - first ? first + size : end;
    return end < n ? end : n;
}

/* Products are made of what is not shared, attention of all. */
static uint64_t unit_cost(const struct kg_lane_lengths *l, int64_t first, int64_t end)
{
    uint64_t cost = 0;

    for (int64_t i = first; i < end; i++) {
        cost += l->tokens[i] > 0 ? kg_lanes_cost(l->tokens[i]) : 0;
        if (i > first && l->tokens[i] > 0 && l->shared)
            cost -= 24576 * (uint64_t)l->shared[i];
    }
    return cost;
}

static int64_t list_units(struct item *items, const struct kg_lane_lengths *l, int64_t n,
                          int64_t size)
{
    int64_t units = 0;

    for (int64_t i = 0, end; i < n; i = end) {
        end = unit_end(l, i, size, n);
        items[units++] = (struct item){unit_cost(l, i, end), i};
    }
    return units;
}

kg_status kg_lanes_deal(int32_t *lane, const struct kg_lane_lengths *l, int64_t n,
                        int lanes, struct kg_err *err)
{
    uint64_t cost[KG_LANES_MAX] = {0};
    struct item *items = kg_mem_calloc((size_t)n + 1, sizeof *items, "lanes", err);
    const int64_t size = unit_size(l, n, lanes);

    if (!items)
        return err->code;
    int64_t units = list_units(items, l, n, size);
    qsort(items, (size_t)units, sizeof *items, costliest_first);
    for (int64_t u = 0; u < units; u++) {
        const int to = least(cost, lanes);
        const int64_t end = unit_end(l, items[u].first, size, n);

        cost[to] += items[u].cost;
        for (int64_t i = items[u].first; i < end; i++)
            lane[i] = l->tokens[i] > 0 ? to : -1;
    }
    kg_mem_free(items);
    return KG_OK;
}

/* Of sequence b, behind a in a pack: what stands there where only sequences that are not
 * computed are between them. */
static int64_t shared_of(const struct kg_lane_lengths *l, size_t a, size_t b)
{
    if (!l->shared || a >= b)
        return 0;
    for (size_t i = a + 1; i < b; i++)
        if (l->tokens[i] > 0)
            return 0;
    return l->shared[b];
}

size_t kg_lanes_fit(const struct kg_lane_lengths *l, const size_t *list, size_t n,
                    size_t base)
{
    int64_t rows = 0, keys = 0;
    size_t i = 0;

    for (; i < n; i++) {
        const size_t at = list[i] - base;

        keys += l->tokens[at];
        rows += l->tokens[at] - (i > 0 ? shared_of(l, list[i - 1] - base, at) : 0);
        if (i > 0 && (rows > l->budget || (l->max_keys > 0 && keys > l->max_keys)))
            break;
    }
    return i;
}
