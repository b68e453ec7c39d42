/* Blocks of a product: see cut.h. */
#include "tensor/cut.h"

enum {
    LEAST_ROWS = 16,
    MOST_TURNS = 24,
    /* Cost of one panel or row, relative to one row times one panel, in halves: panels
     * come from a cache that all threads share, and rows are packed. */
    PANEL_COST = 12,
    ROW_COST = 1,
    BLOCK_COST = 16
};

static int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
static int64_t min64(int64_t x, int64_t y) { return x < y ? x : y; }

/* Time of the thread that finishes last. */
static int64_t cost_of(const struct kg_tiling *c, int64_t threads)
{
    int64_t rows = ceil_div(ceil_div(c->rows, c->unit_rows), c->row_blocks);
    int64_t panels = ceil_div(ceil_div(c->panels, c->unit_panels), c->col_blocks);
    int64_t turns = 2 * ceil_div(c->row_blocks * c->col_blocks, threads);
    rows *= c->unit_rows;
    panels *= c->unit_panels;
    return (turns + (threads > 1)) *
           (2 * rows * panels + PANEL_COST * panels + ROW_COST * rows + BLOCK_COST);
}

/* Tries each number of turns (blocks per thread) for several numbers of row blocks. */
void kg_cut_for(struct kg_tiling *cut, int64_t most_rows, int64_t most_panels,
                int64_t threads)
{
    const int64_t row_units = ceil_div(cut->rows, cut->unit_rows);
    const int64_t col_units = ceil_div(cut->panels, cut->unit_panels);
    const int64_t least = min64(ceil_div(cut->rows, most_rows), row_units);
    const int64_t narrow = ceil_div(cut->panels, most_panels);
    const int64_t most = min64(ceil_div(cut->rows, LEAST_ROWS), row_units);
    struct kg_tiling best = *cut, at = *cut;
    int64_t lowest = INT64_MAX;
    for (int64_t r = least; r <= (most > least ? most : least); r += (r + 2) / 3)
        for (int64_t turns = 1; turns <= MOST_TURNS; turns++) {
            const int64_t wanted = ceil_div(turns * threads, r);
            at.row_blocks = r;
            at.col_blocks = min64(wanted > narrow ? wanted : narrow, col_units);
            const int64_t cost = cost_of(&at, threads);
            if (cost < lowest)
                best = at;
            lowest = min64(lowest, cost);
        }
    *cut = best;
}

struct kg_cut_block kg_cut_at(const struct kg_tiling *c, int64_t i)
{
    const int64_t row_units = ceil_div(c->rows, c->unit_rows);
    const int64_t col_units = ceil_div(c->panels, c->unit_panels);
    const int64_t down = i / c->col_blocks, right = i % c->col_blocks;
    struct kg_cut_block b = {.row = row_units * down / c->row_blocks * c->unit_rows,
                             .panel = col_units * right / c->col_blocks * c->unit_panels};
    b.rows = min64(row_units * (down + 1) / c->row_blocks * c->unit_rows, c->rows) -
             b.row;
    b.panels = min64(col_units * (right + 1) / c->col_blocks * c->unit_panels,
                     c->panels) -
               b.panel;
    return b;
}
