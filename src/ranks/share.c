/* Integers alone, so that every rank finds the same shares. */
#include "ranks/share.h"

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

/* The first thing before which part/parts of the whole cost lie. */
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
