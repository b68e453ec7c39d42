/* Groups the results of many runs, which differ in one setting and in their seed, into
 * cells.
 *
 * A row is a JSON object of numbers and texts, a line of a file (written by tools/queue
 * and tools/study). Rows with the same value of `by` form a cell. The rows of a cell
 * differ in `pair`, the seed. A cell's value is the mean, or the interquartile mean, over
 * its rows, with a 95 % bootstrap interval. To compare a cell with cell `against`, the
 * rows are paired by `pair`; the result is the mean (or interquartile mean) of the
 * differences. Both cells must have the same pairs. eval/bootstrap.h has the formulas.
 *
 * Three other ways to aggregate rows:
 * profile   `by` is STRATUM/CELL (a stratum is a task); a cell must have the same number
 *           of rows in each stratum, and each stratum is resampled separately
 * over      compares lines instead of cells: a line NAME joins all cells "NAME,..." over
 *           the logarithm of key `over`; each pair is compared within its common range of
 *           `over` (frontier.h)
 * start     counts rows that reach the mean of this cell's first metric (survived), and
 *           rows below half of it (collapsed)
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
    const char *by;            /* key that selects the cell */
    const char *pair;          /* key that pairs rows of different cells */
    const char *match;         /* use rows whose cell begins with this; "" for all */
    const char *const *metric; /* (n_metrics) keys of numbers, 1 to KG_CELLS_METRICS */
    size_t n_metrics;
    const char *against; /* a cell to compare with, or NULL */
    /* (n_differences) "CELL:AGAINST"; only these are computed, without `against`. Either
     * side may be "LINE,*": the cell of this line with the highest first metric */
    const char *const *difference;
    size_t n_differences;
    bool iqm;
    bool profile;
    const char *over;  /* a key of numbers above 0, or NULL */
    const char *start; /* a cell, read even if it does not match, or NULL */
    size_t at_least;   /* cells with fewer rows are dropped and counted */
};

struct kg_cell {
    char *name; /* owned; for a difference "CELL:AGAINST" */
    size_t rows;
    /* value per metric (with against, the difference); NaN if no pair of lines shares a
     * range */
    struct kg_eval_bounds of[KG_CELLS_METRICS];
    double holm[KG_CELLS_METRICS]; /* with against: adjusted p over all cells */
    double over;                   /* mean of `over`; 0 for a difference */
    size_t apart;                  /* pairs whose lines share no range */
    size_t survived, collapsed;    /* with `start` */
};
struct kg_cells {
    struct kg_cell *cell; /* (n) owned, in order of first occurrence */
    size_t n;
    size_t n_metrics;
    size_t left_out; /* cells with fewer rows than at_least */
};

/* `over` limits n_metrics to KG_CELLS_METRICS - 1. `over` with differences compares
 * lines, and excludes `against` and `profile`.
 * errors: NOTFOUND (a file is missing; there are no rows; a named cell does not exist),
 * EINVAL (a difference without ":"; a line with more than 64 cells), EFORMAT, with file
 * and line (a row lacks a key; two rows have the same cell and pair; with profile, a name
 * without '/'; a value of `over` that is 0 or less), ECONFLICT (the pairs of a cell
 * differ from those of `against`; the strata of a profile have different rows) */
kg_status kg_cells_read(struct kg_cells *out, const struct kg_cells_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;
void kg_cells_release(struct kg_cells *c); /* {0} is allowed */

/* Appends a Markdown table with a line per cell; the interval of a difference is bold if
 * it excludes 0. `start` adds the columns survived and collapsed. The last lines give the
 * number of cells left out, and the pairs of lines without a common range. */
kg_status kg_cells_table(struct kg_str *out, const struct kg_cells *c,
                         const struct kg_cells_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;
/* Appends "\nN cells with fewer than N rows are left out.\n", or nothing. */
kg_status kg_cells_left_out(struct kg_str *out, const struct kg_cells *c,
                            const struct kg_cells_opts *opts,
                            struct kg_err *err) KG_MUST_CHECK;
/* Appends an object per cell: {"cell", "rows", METRIC: {"value", "low", "high", "p",
 * "holm"}}; with at_least each also has "left_out", the number of dropped cells. */
kg_status kg_cells_json(struct kg_str *out, const struct kg_cells *c,
                        const struct kg_cells_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;

#endif
