/* Rows of results as cells: what many runs that differ in one thing, and in their seed,
 * say together.
 *
 * A row is an object of numbers and words, a line of a file (tools/queue and tools/study
 * write such). Rows with the same text under `by` are a cell; within a cell each has its
 * own text under `pair`, its seed. A cell's number is the mean, or the interquartile
 * mean, over its rows with a 95 % bootstrap interval; two cells are compared by that
 * statistic of x_pair (cell) - x_pair (against), over the pairs that both have, which
 * must be the same. eval/bootstrap.h has the formulas.
 *
 * Three more ways to put rows together:
 * profile   a cell is what stands behind the first '/' of `by`, over the strata (tasks)
 *           before it, as many rows in each, which are drawn anew by themselves
 * over      the sides of a difference are lines: all cells whose names are theirs and a
 *           ',', joined over log of the number under `over`, compared pair by pair where
 *           that is the same (frontier.h)
 * start     rows are counted that reach the mean of this cell's first metric (survive),
 *           and those below half of it (collapse)
 */
#ifndef KG_LAB_CELLS_H
#define KG_LAB_CELLS_H

#include "base/status.h"
#include "base/str.h"
#include "eval/bootstrap.h"

#include <stdbool.h>
#include <stddef.h>

enum { KG_CELLS_METRICS = 16 };

struct kg_cells_opts {
    const char *const *files; /* (n_files) */
    size_t n_files;
    const char *by;            /* key of the cell */
    const char *pair;          /* key of what is the same in other cells */
    const char *match;         /* rows whose cell begins with it; "" for all */
    const char *const *metric; /* (n_metrics) keys of numbers, 1 to KG_CELLS_METRICS */
    size_t n_metrics;
    const char *against; /* a cell, or NULL: cells by themselves */
    /* (n_differences) "CELL:AGAINST", in the place of `against` and of all cells; either
     * may be "LINE,*", the cell of this line whose first metric is highest */
    const char *const *difference;
    size_t n_differences;
    bool iqm;
    bool profile;
    const char *over;  /* a key of numbers above 0, or NULL */
    const char *start; /* a cell, read whatever `match` says, or NULL */
    size_t at_least;   /* cells with fewer rows are left out, and counted */
};

struct kg_cell {
    char *name; /* owned; of a difference "CELL:AGAINST" */
    size_t rows;
    struct kg_eval_bounds of[KG_CELLS_METRICS]; /* a difference, with against; NaN if no
                                                   pair of two lines has a range */
    double holm[KG_CELLS_METRICS];              /* with against: p over all cells */
    double over;                                /* mean of `over`; of a difference 0 */
    size_t apart;               /* pairs whose lines have no range in common */
    size_t survived, collapsed; /* with `start` */
};
struct kg_cells {
    struct kg_cell *cell; /* (n) owned, in order of first mention */
    size_t n;
    size_t n_metrics;
    size_t left_out; /* cells with fewer rows than at_least */
};

/* n_metrics is below KG_CELLS_METRICS with `over`; `over` with differences is that of
 * lines, and goes with neither `against` nor `profile`.
 * errors: NOTFOUND (a file, no row, no such cell), EINVAL (a difference without its
 * colon, a line of more than 64 cells), EFORMAT (a row without a key, two rows of one
 * cell and pair, in file and line; a name without '/' in a profile, 0 or less under
 * `over`), ECONFLICT (other pairs than in against, strata of a profile
 * that differ in their rows) */
kg_status kg_cells_read(struct kg_cells *out, const struct kg_cells_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;
void kg_cells_release(struct kg_cells *c); /* {0} is allowed */

/* A table in Markdown: a line for each cell; an interval that does not hold 0 of a
 * difference is bold. With `start` two more columns, survived and collapsed. Last lines
 * say how many cells were left out, and which pairs of lines had no range in common. */
kg_status kg_cells_table(struct kg_str *out, const struct kg_cells *c,
                         const struct kg_cells_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;
/* "\nN cells with fewer than N rows are left out.\n"; nothing where none is. */
kg_status kg_cells_left_out(struct kg_str *out, const struct kg_cells *c,
                            const struct kg_cells_opts *opts,
                            struct kg_err *err) KG_MUST_CHECK;
/* An object a cell: {"cell", "rows", METRIC: {"value", "low", "high", "p", "holm"}}; with
 * at_least each has "left_out", too, how many cells have no object. */
kg_status kg_cells_json(struct kg_str *out, const struct kg_cells *c,
                        const struct kg_cells_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;

#endif
