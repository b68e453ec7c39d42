/* Highest cost first, onto the least loaded lane (Graham 1969: the largest load is at
 * most 4/3 of the optimum).
 *
 * Costs are integers, so no rounding decides a tie; sorting is by (cost, index), so it
 * has one result.
 */
#include "ranks/lanes.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>

uint64_t kg_lanes_cost(int64_t tokens)
{
    const uint64_t n = (uint64_t)tokens;

    return 24576 * n + n * n;
}

/* A unit of dealing: one sequence, or neighbours that share a prefix. */
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

/* The most sequences of a unit. Groups are split until there are four units per lane, if
 * that is possible. */
static int64_t unit_size(const struct kg_lane_lengths *l, int64_t n, int lanes)
{
    int64_t size = l->shared && l->group > 1 ? (int64_t)l->group : 1;

    while (size > 1 && n / size < 4 * (int64_t)lanes)
        size = (size + 1) / 2;
    return size;
}

/* The end of the unit that begins with sequence `first`; no unit crosses a group. */
static int64_t unit_end(const struct kg_lane_lengths *l, int64_t first, int64_t size,
                        int64_t n)
{
    int64_t group = l->group > 1 ? (int64_t)l->group : 1;
    int64_t end = first / group * group + group;

    end = size < end - first ? first + size : end;
    return end < n ? end : n;
}

/* Products skip tokens of a shared prefix; attention does not. */
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

/* Tokens that sequence b shares with a, its predecessor in a pack; 0 if a sequence
 * between them is computed. */
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

/* ---- shares: integer arithmetic, so that every rank computes the same shares ---- */

static int64_t even(int64_t n, int rank, int ranks)
{
    return n / ranks * rank + n % ranks * rank / ranks;
}

struct kg_share kg_share_of(int64_t n, int rank, int ranks)
{
    if (ranks < 2)
        return (struct kg_share){0, n};
    return (struct kg_share){even(n, rank, ranks), even(n, rank + 1, ranks)};
}

/* The first index before which at least part/parts of the whole cost are. */
static int64_t border(const uint64_t *cost, int64_t n, uint64_t whole, int part,
                      int parts)
{
    uint64_t wanted = whole / (uint64_t)parts * (uint64_t)part +
                      whole % (uint64_t)parts * (uint64_t)part / (uint64_t)parts;
    uint64_t before = 0;
    int64_t i = 0;

    if (part == parts)
        return n;
    while (i < n && before < wanted)
        before += cost[i++];
    return i;
}

struct kg_share kg_share_by_cost(const uint64_t *cost, int64_t n, int rank, int ranks)
{
    uint64_t whole = 0;

    if (ranks < 2)
        return (struct kg_share){0, n};
    for (int64_t i = 0; i < n; i++)
        whole += cost[i];
    return (struct kg_share){border(cost, n, whole, rank, ranks),
                             border(cost, n, whole, rank + 1, ranks)};
}

/* The tree is a binary counter: it holds no sums and only says which levels to add next.
 * It depends only on the number of lanes so far, not on ranks or machines, so every
 * distribution of the lanes gives the same sum, bit for bit. */

int kg_tree_push_block(struct kg_tree *t, int level)
{
    int rest = level;

    assert((t->held & ((1u << level) - 1)) == 0);
    while (t->held >> rest & 1)
        rest++;
    assert(rest < KG_TREE_LEVELS);
    /* a carry of the counter: full levels from here on are added to the next one */
    t->held += 1u << level;
    return rest;
}

int kg_tree_push(struct kg_tree *t) { return kg_tree_push_block(t, 0); }

int kg_tree_cover(int *levels, int first, int end)
{
    int n = 0;

    while (first < end) {
        int level = 0;

        while (first % (2 << level) == 0 && first + (2 << level) <= end)
            level++;
        levels[n++] = level;
        first += 1 << level;
    }
    return n;
}

int kg_tree_finish(struct kg_tree *t, int *levels)
{
    int n = 0;

    for (int level = 0; level < KG_TREE_LEVELS; level++)
        if (t->held >> level & 1)
            levels[n++] = level;
    t->held = 0;
    return n;
}

int kg_tree_room(int lanes)
{
    int levels = 0;

    while (lanes >> levels)
        levels++;
    return levels;
}
