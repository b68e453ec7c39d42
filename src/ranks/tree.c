/* The binary counter of tree.h.
 *
 * It knows no numbers and no lanes: whoever holds the levels adds them, on one machine or
 * on many, and asks here only what is due. That is what makes the sum the same
 * everywhere.
 */
#include "ranks/tree.h"

#include <assert.h>

int kg_tree_push(struct kg_tree *t)
{
    int level = 0;

    while (t->held >> level & 1)
        level++;
    assert(level < KG_TREE_LEVELS);
    /* adding one to the counter: the full levels below carry into this one */
    t->held++;
    return level;
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
