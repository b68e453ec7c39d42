/* Divides the output of a product into blocks for threads.
 *
 * A block is some rows by some panels of columns. The value of an element does not depend
 * on the division. So the number of row and column blocks may depend on the number of
 * threads: threads get equal work in blocks as large as possible.
 */
#ifndef KG_TENSOR_CUT_H
#define KG_TENSOR_CUT_H

#include <stdint.h>

struct kg_tiling {
    int64_t rows;
    int64_t panels;
    int64_t unit_rows;   /* blocks begin at multiples of unit_rows and unit_panels, */
    int64_t unit_panels; /* for whole tiles and cache lines */
    int64_t row_blocks;
    int64_t col_blocks;
};
struct kg_cut_block {
    int64_t row;
    int64_t rows;
    int64_t panel;
    int64_t panels;
};

/* Sets row_blocks and col_blocks, for blocks of at most most_rows and most_panels, as far
 * as the units allow. Minimises the cost of the thread with the most blocks. A block
 * costs its multiplications plus its reads. With several threads, half a block is added,
 * because two may share a core. */
void kg_cut_for(struct kg_tiling *cut, int64_t most_rows, int64_t most_panels,
                int64_t threads);

/* Block i of row_blocks * col_blocks: columns vary first, so consecutive blocks share
 * rows. */
struct kg_cut_block kg_cut_at(const struct kg_tiling *cut, int64_t i);

#endif
