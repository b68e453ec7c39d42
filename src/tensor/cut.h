/* How the outputs of a product are cut into blocks that threads take.
 *
 * A block is some rows by some panels of columns. What an element is does not depend on
 * the cut, so it follows the number of threads: in both directions, so that blocks are as
 * many as they must be for all threads to have the same work, and no smaller.
 */
#ifndef KG_TENSOR_CUT_H
#define KG_TENSOR_CUT_H

#include <stdint.h>

struct kg_cut {
    int64_t rows;
    int64_t panels;
    int64_t unit_rows;   /* blocks begin with a multiple of them */
    int64_t unit_panels; /* and of these: whole tiles, whole lines of memory */
    int64_t row_blocks;
    int64_t col_blocks;
};
struct kg_cut_block {
    int64_t row;
    int64_t rows;
    int64_t panel;
    int64_t panels;
};

/* Fills in row_blocks and col_blocks, for blocks of at most so many rows and panels, as
 * far as units allow. What a block costs is what it multiplies and what it reads for
 * that: the thread that has most blocks ends last, and half a block more is waited for
 * where threads are not alone. */
void kg_cut_for(struct kg_cut *cut, int64_t most_rows, int64_t most_panels,
                int64_t threads);

/* Block i of row_blocks * col_blocks: columns first, so that its rows are those of the
 * block before. */
struct kg_cut_block kg_cut_at(const struct kg_cut *cut, int64_t i);

#endif
