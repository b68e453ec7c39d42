/* The binary counter of tree.h.
 *
 * It holds no sums: it only tells its caller which levels to add next. The answer
 * depends only on the number of lanes so far, not on ranks or machines, so every
 * distribution of the lanes gives the same sum, bit for bit.
 */
#include "ranks/tree.h"

#include <assert.h>

int kg_tree_push_block(struct kg_tree *t, int level)
{
    int rest = level;

    assert((t->held & ((1u << level) - 1)) == 0);
    while (t->held >> rest & 1)
        rest++;
    assert(rest < KG_TREE_LEVELS);
    /* adding to the counter: the full levels from here on carry into the next */
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
