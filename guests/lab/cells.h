/* Groups the results of many runs, which differ in one setting and in their seed, into
 * cells.
 *
 * A row is one line of a file of tools/queue or tools/study: a JSON object of numbers and
 * strings. Rows with the same value of `by` form a cell. The rows of a cell differ in
 * `pair`, the seed. A cell's value is the mean, or the interquartile mean, over its rows,
 * with a 95 % bootstrap interval. To compare a cell with cell `against`, the rows are
 * paired by `pair`; the result is the mean (or interquartile mean) of the differences.
 * Both cells must have the same pairs. eval/bootstrap.h has the formulas.
 *
 * Three options change this:
 * profile   `by` is STRATUM/CELL (a stratum is a task); a cell must have the same number
 *           of rows in each stratum, and each stratum is resampled separately
 * over      differences compare lines instead of cells: a line NAME joins all cells
 *           "NAME,..." over the logarithm of key `over`; for each pair, two lines are
 *           compared in the middle of their common range (kg_frontier_gap)
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
    const char *start; /* a cell, read even without `match`, not printed; or NULL */
    size_t at_least;   /* cells with fewer rows are dropped and counted */
};

struct kg_cell {
    char *name; /* owned; for a difference "CELL:AGAINST" */
    size_t rows;
    /* value (or difference) per metric; NaN if the two lines share a range in no pair */
    struct kg_eval_bounds of[KG_CELLS_METRICS];
    double holm[KG_CELLS_METRICS]; /* of differences: p adjusted over all of them */
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
 * errors: ENOTFOUND (a file is missing; there are no rows; a named cell does not exist),
 * EINVAL (a difference without ":"; a line with more than 64 cells), EFORMAT, with file
 * and line (a row lacks a key; two rows have the same cell and pair; with profile, a name
 * without '/'; a value of `over` that is 0 or less), ECONFLICT (the pairs of a cell
 * differ from those of `against`; the strata of a profile have different rows) */
kg_status kg_cells_read(struct kg_cells *out, const struct kg_cells_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;
void kg_cells_release(struct kg_cells *c); /* {0} is allowed */

/* Appends a Markdown table with a line per cell; the interval of a difference is bold if
 * it excludes 0. `start` adds the columns survived and collapsed. The last lines give the
 * number of cells left out, and of pairs in which lines have no common range. */
kg_status kg_cells_table(struct kg_str *out, const struct kg_cells *c,
                         const struct kg_cells_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;
/* Appends "\nM cells with fewer than N rows are left out.\n"; nothing if M is 0. */
kg_status kg_cells_left_out(struct kg_str *out, const struct kg_cells *c,
                            const struct kg_cells_opts *opts,
                            struct kg_err *err) KG_MUST_CHECK;
/* Appends an object per cell: {"cell", "rows", METRIC: {"value", "low", "high", "p",
 * "holm"}}; with at_least each also has "left_out", the number of dropped cells. */
kg_status kg_cells_json(struct kg_str *out, const struct kg_cells *c,
                        const struct kg_cells_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;

/* ---- frontiers (cells.c) ---- */

/* The gain of one frontier over another at the same cost.
 *
 * A frontier gives what a method reaches (y) at a cost (x > 0), one point per setting,
 * with straight lines over log x between neighbours. Two frontiers are compared in the
 * middle of their common range,
 *   log x = (max of the smallest + min of the largest log x) / 2.
 */
struct kg_frontier_point {
    double x, y; /* x > 0 */
};
/* *gap: y of a minus y of b in the middle of their common range; unchanged if there is
 * none. Sorts a and b by x; each has 1 or more points.
 * returns whether they share a range (a single common point is enough) */
bool kg_frontier_gap(double *gap, struct kg_frontier_point *a, size_t n_a,
                     struct kg_frontier_point *b, size_t n_b);

/* ---- how robust each method is (survival.c) ---- */

/* A method survives a setting if at least this share of the rows of cell "METHOD,SETTING"
 * did: their models, once trained, still reach the starting value (`start`). */
#define KG_SURVIVAL_SHARE 0.8

/* Appends a Markdown table with a line per METHOD and a column per SETTING,
 * ordered by the numbers in SETTING. A cell "8 of 10 (1)" has the rows that survived,
 * all rows, and those that collapsed, if any. The last column has the last setting up to
 * which the method survives without a gap: "none" if it does not survive the first one,
 * "-" if it lacks that one.
 * errors: EINVAL (a name without a comma), ENOMEM */
kg_status kg_survival_table(struct kg_str *out, const struct kg_cells *c,
                            struct kg_err *err) KG_MUST_CHECK;

/* ---- a plot (cells_plot.c) ---- */

/* Appends a complete SVG file of cells named "LINE,SETTING". y: mean of the first metric,
 * with its interval. x, logarithmic: mean of `over`. The points of each LINE are joined
 * in order of `over`. c must have been read with `over` and without differences.
 * errors: EINVAL (more lines than colours times dashes), ENOTFOUND (no cell) */
kg_status kg_cells_svg(struct kg_str *out, const struct kg_cells *c,
                       const struct kg_cells_opts *opts,
                       struct kg_err *err) KG_MUST_CHECK;

#endif
