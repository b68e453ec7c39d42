/* The order in which lanes are added: a binary tree that depends only on their number.
 *
 *   C = 8:  ((l0+l1)+(l2+l3)) + ((l4+l5)+(l6+l7))
 *
 * Lanes arrive in order, and a binary counter decides what is added. Level k holds a sum
 * of 2^k neighbours; a lane that meets a full level is added to it, and the sum moves up.
 * If C is not a power of two, the remaining levels are added from the newest up: C = 6 is
 * ((l0+l1)+(l2+l3)) + (l4+l5). Every subtree adds the same numbers on every machine, so
 * the sum has the same bits.
 */
#ifndef KG_RANKS_TREE_H
#define KG_RANKS_TREE_H

#include <stdint.h>

enum { KG_TREE_LEVELS = 31 };

/* {0}: no lane yet. */
struct kg_tree {
    uint32_t held; /* bit k: level k is full */
};

/* Adds a lane.   returns the level where its sum is stored. All levels below were full:
 * add the lane to level 0, the sum to level 1, ... (the level's value on the left); they
 * are empty now */
int kg_tree_push(struct kg_tree *t);

/* Adds the sum of 2^level neighbours whose first index is a multiple of 2^level, with the
 * same effect as adding them one by one. */
int kg_tree_push_block(struct kg_tree *t, int level);

/* The remaining levels, from the newest up, into levels[KG_TREE_LEVELS]: the total is (..
 * levels[2] + (levels[1] + levels[0])).   returns their number; t is empty then */
int kg_tree_finish(struct kg_tree *t, int *levels);

/* Splits lanes [first, end) into blocks that can be added independently: 2^levels[i]
 * lanes each, in order, as large as the tree allows. levels: (2 KG_TREE_LEVELS)   returns
 * the number of blocks */
int kg_tree_cover(int *levels, int first, int end);

/* Maximum number of levels held by C lanes, besides the newest lane: room for sums. */
int kg_tree_room(int lanes);

#endif
