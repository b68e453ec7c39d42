/* The order in which lanes are added: one binary tree, fixed by their number alone.
 *
 *   C = 8:  ((l0+l1)+(l2+l3)) + ((l4+l5)+(l6+l7))
 *
 * Lanes come in order and a binary counter says what is added when: level k holds the sum
 * of 2^k neighbours, and a lane that meets a full level is added to it and goes on as
 * their sum. What is left for a C that is no power of two is added from the newest level
 * up: C = 6 is ((l0+l1)+(l2+l3)) + (l4+l5). Whoever adds a subtree, on whatever machine,
 * adds the same two numbers, so the sum has the same bits.
 */
#ifndef KG_RANKS_TREE_H
#define KG_RANKS_TREE_H

#include <stdint.h>

enum { KG_TREE_LEVELS = 31 };

/* {0}: nothing has come. */
struct kg_tree {
    uint32_t held; /* bit k: level k is full */
};

/* A lane comes.   returns the level where it rests; all levels below it were full: add it
 * to level 0, the sum to level 1, ... (the level's value on the left); they are empty
 * now */
int kg_tree_push(struct kg_tree *t);

/* The sum of 2^level neighbours comes, the first of which is a multiple of 2^level: as if
 * they had come one by one. */
int kg_tree_push_block(struct kg_tree *t, int level);

/* The levels that are left, from the newest up, into levels[KG_TREE_LEVELS]: the sum of
 * all is (.. levels[2] + (levels[1] + levels[0])).   returns how many; t is empty then */
int kg_tree_finish(struct kg_tree *t, int *levels);

/* Lanes [first, end) as blocks of neighbours that whoever has them may add by himself: of
 * 2^levels[i] lanes each, in order, as large as the tree allows.   levels: (2
 * KG_TREE_LEVELS)   returns how many */
int kg_tree_cover(int *levels, int first, int end);

/* Levels that C lanes fill at most, the one that just came apart: room for a sum. */
int kg_tree_room(int lanes);

#endif
