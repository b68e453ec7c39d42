/* Reads rows into cells, pairs them, and writes the results in two forms.
 *
 * A comparison needs the same pairs on both sides, so a missing pair is an error and is
 * not skipped. The numbers of a cell are stored by pair, so the order of rows in the
 * file changes nothing but the order of cells.
 */
#include "lab/cells.h"

#include "base/mem.h"
#include "data/json.h"
#include "data/jsonl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CELLS = 1 << 16, MOST_ROWS = 1 << 20, MOST_POINTS = 64 };

struct row {
    char *pair;                 /* owned */
    double x[KG_CELLS_METRICS]; /* the metrics, then the value of `over` */
};
struct group {
    char *name; /* owned */
    struct row *row;
    size_t n, room;
};
struct reading {
    const struct kg_cells_opts *opts;
    struct group *group;
    size_t n, room;
    double start_sum; /* of the first metric, over the rows of cell `start` */
    size_t start_rows;
};

void kg_cells_release(struct kg_cells *c)
{
    for (size_t i = 0; i < c->n; i++)
        kg_mem_free(c->cell[i].name);
    kg_mem_free(c->cell);
    *c = (struct kg_cells){0};
}

/* ---- rows ---- */

/* The key's value as text: a string, or a number as it is in the file. */
static kg_status key_text(struct kg_str *out, const struct kg_json_doc *line,
                          const char *key, struct kg_err *err)
{
    const struct kg_json *v = kg_json_get(line->root, key);
    const char *text = kg_json_text(v, NULL);

    kg_str_clear(out);
    if (text)
        return kg_str_puts(out, text, err);
    if (!kg_json_is_number(v))
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected text or a number under '%s', found none",
                       line->where, key);
    return kg_json_put_value(out, v, err);
}

static struct group *find_group(const struct reading *r, const char *name)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->group[i].name, name) == 0)
            return &r->group[i];
    return NULL;
}

static const struct row *find_row(const struct group *g, const char *pair)
{
    for (size_t i = 0; i < g->n; i++)
        if (strcmp(g->row[i].pair, pair) == 0)
            return &g->row[i];
    return NULL;
}

static kg_status group_for(struct group **g, struct reading *r, const char *name,
                           struct kg_err *err)
{
    *g = find_group(r, name);
    if (*g)
        return KG_OK;
    KG_TRY(kg_mem_grow(&r->group, &r->room, r->n + 1, sizeof *r->group, MOST_CELLS,
                       "cells", err));
    *g = &r->group[r->n];
    **g = (struct group){.name = kg_mem_strdup(name, err)};
    if (!(*g)->name)
        return err->code;
    r->n++;
    return KG_OK;
}

static kg_status read_number(double *x, const struct kg_json_doc *line, const char *key,
                             struct kg_err *err)
{
    const struct kg_json *v = kg_json_get(line->root, key);

    if (!kg_json_is_number(v))
        return kg_fail(err, KG_EFORMAT, "%s: expected a number under '%s', found none",
                       line->where, key);
    *x = kg_json_real(v, NAN);
    return KG_OK;
}

static kg_status read_numbers(struct row *row, const struct reading *r,
                              const struct kg_json_doc *line, struct kg_err *err)
{
    const struct kg_cells_opts *opts = r->opts;
    double *over = &row->x[opts->n_metrics];

    for (size_t m = 0; m < opts->n_metrics; m++)
        KG_TRY(read_number(&row->x[m], line, opts->metric[m], err));
    if (!opts->over)
        return KG_OK;
    KG_TRY(read_number(over, line, opts->over, err));
    if (!(*over > 0))
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a number above 0 under '%s', found %g", line->where,
                       opts->over, *over);
    return KG_OK;
}

static kg_status add_row(struct reading *r, const char *cell, const char *pair,
                         const struct kg_json_doc *line, struct kg_err *err)
{
    struct group *g;
    struct row *row;

    KG_TRY(group_for(&g, r, cell, err));
    if (find_row(g, pair))
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected one row of %s '%s' and %s '%s', found a second",
                       line->where, r->opts->by, cell, r->opts->pair, pair);
    KG_TRY(kg_mem_grow(&g->row, &g->room, g->n + 1, sizeof *g->row, MOST_ROWS,
                       "rows of a cell", err));
    row = &g->row[g->n];
    *row = (struct row){.pair = kg_mem_strdup(pair, err)};
    if (!row->pair)
        return err->code;
    g->n++;
    return read_numbers(row, r, line, err);
}

static kg_status add_start(struct reading *r, const struct kg_json_doc *line,
                           struct kg_err *err)
{
    double x;

    KG_TRY(read_number(&x, line, r->opts->metric[0], err));
    r->start_sum += x;
    r->start_rows++;
    return KG_OK;
}

/* From name "TASK/CELL" and pair "SEED": adds a row to CELL with pair "TASK/SEED". */
static kg_status add_profile_row(struct reading *r, const char *name, const char *pair,
                                 const struct kg_json_doc *line, struct kg_err *err)
{
    const char *slash = strchr(name, '/');
    struct kg_str in_stratum = {0};
    kg_status status;

    if (!slash)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected STRATUM/CELL under '%s', found '%s'", line->where,
                       r->opts->by, name);
    KG_TRY_GOTO(out, kg_str_append(&in_stratum, name, (size_t)(slash + 1 - name), err));
    KG_TRY_GOTO(out, kg_str_puts(&in_stratum, pair, err));
    status = add_row(r, slash + 1, kg_str_text(&in_stratum), line, err);
out:
    kg_str_release(&in_stratum);
    return status;
}

static kg_status read_line(struct reading *r, const struct kg_json_doc *line,
                           struct kg_err *err)
{
    const struct kg_cells_opts *opts = r->opts;
    struct kg_str cell = {0}, pair = {0};
    kg_status status;

    KG_TRY_GOTO(out, key_text(&cell, line, opts->by, err));
    const char *name = kg_str_text(&cell);
    if (opts->start && strcmp(name, opts->start) == 0) {
        status = add_start(r, line, err);
        goto out;
    }
    if (strncmp(name, opts->match, strlen(opts->match)) != 0)
        goto out;
    KG_TRY_GOTO(out, key_text(&pair, line, opts->pair, err));
    status = opts->profile ? add_profile_row(r, name, kg_str_text(&pair), line, err)
                           : add_row(r, name, kg_str_text(&pair), line, err);
out:
    kg_str_release(&cell);
    kg_str_release(&pair);
    return status;
}

static kg_status read_file(struct reading *r, const char *path, struct kg_err *err)
{
    struct kg_json_doc line = {0};
    struct kg_jsonl *file;
    bool more = true;
    kg_status status;

    KG_TRY(kg_jsonl_open(&file, path, err));
    while (more) {
        KG_TRY_GOTO(out, kg_jsonl_next(file, &line, &more, err));
        if (more)
            KG_TRY_GOTO(out, read_line(r, &line, err));
    }
out:
    kg_json_release(&line);
    kg_jsonl_close(file);
    return status;
}

/* ---- statistics ---- */

/* A pair occurs once in a cell. So if both cells have the same number of rows, and every
 * pair of g is found in `against`, the pairs are the same. */
static kg_status need_as_many(const struct group *g, const struct group *against,
                              const struct kg_cells_opts *opts, struct kg_err *err)
{
    if (against->n == g->n)
        return KG_OK;
    return kg_fail(err, KG_ECONFLICT,
                   "expected the same %ss in every cell, found %zu in '%s' and %zu in "
                   "'%s'",
                   opts->pair, g->n, g->name, against->n, against->name);
}

static kg_status values_of(double *x, const struct group *g, const struct group *against,
                           size_t m, const struct kg_cells_opts *opts, struct kg_err *err)
{
    if (against)
        KG_TRY(need_as_many(g, against, opts, err));
    for (size_t i = 0; i < g->n; i++) {
        const struct row *other = against ? find_row(against, g->row[i].pair) : NULL;

        if (against && !other)
            return kg_fail(err, KG_ECONFLICT,
                           "expected the same %ss in every cell, found %s in '%s' and "
                           "not in '%s'",
                           opts->pair, g->row[i].pair, g->name, against->name);
        x[i] = g->row[i].x[m] - (other ? other->x[m] : 0);
    }
    return KG_OK;
}

static int by_pair(const void *a, const void *b)
{
    const struct row *x = a, *y = b;

    return strcmp(x->pair, y->pair);
}

static kg_eval_statistic statistic_of(const struct kg_cells_opts *opts)
{
    return opts->iqm ? kg_eval_iqm : kg_eval_mean;
}

/* Length of a pair's stratum, the part before '/'; 0 without '/'. */
static size_t stratum_length(const char *pair)
{
    const char *slash = strchr(pair, '/');

    return slash ? (size_t)(slash - pair) : 0;
}

/* Rows are sorted by pair, so the rows of a stratum are adjacent.   size: rows of each
 * returns the number of strata */
static size_t strata_of(size_t *size, const struct group *g,
                        const struct kg_cells_opts *opts)
{
    size_t n = 0;

    for (size_t i = 0; i < g->n; i++) {
        const char *last = i > 0 ? g->row[i - 1].pair : "";
        size_t length = opts->profile ? stratum_length(g->row[i].pair) + 1 : 0;

        if (n == 0 || strncmp(last, g->row[i].pair, length) != 0)
            size[n++] = 0;
        size[n - 1]++;
    }
    return n;
}

/* With strata of different sizes, a comparison would also compare the mix of tasks. */
static kg_status need_equal_strata(const size_t *size, size_t n, const struct group *g,
                                   const struct kg_cells_opts *opts, struct kg_err *err)
{
    for (size_t i = 1, row = size[0]; i < n; row += size[i++]) {
        const char *first = g->row[0].pair, *pair = g->row[row].pair;

        if (size[i] != size[0])
            return kg_fail(err, KG_ECONFLICT,
                           "expected the same number of %ss of '%s' in every stratum, "
                           "found %zu in '%.*s' and %zu in '%.*s'",
                           opts->pair, g->name, size[0], (int)stratum_length(first),
                           first, size[i], (int)stratum_length(pair), pair);
    }
    return KG_OK;
}

static kg_status fill_cell(struct kg_cell *cell, const struct group *g,
                           const struct group *against, const struct kg_cells_opts *opts,
                           struct kg_err *err)
{
    double *x = kg_mem_calloc(g->n, sizeof *x, "values of a cell", err);
    size_t *size = x ? kg_mem_calloc(g->n, sizeof *size, "strata of a cell", err) : NULL;
    kg_status status = KG_OK;

    if (!size) {
        kg_mem_free(x);
        return err->code;
    }
    size_t n_strata = strata_of(size, g, opts);
    cell->rows = g->n;
    KG_TRY_GOTO(out, need_equal_strata(size, n_strata, g, opts, err));
    for (size_t m = 0; m < opts->n_metrics; m++) {
        KG_TRY_GOTO(out, values_of(x, g, against, m, opts, err));
        KG_TRY_GOTO(out, kg_eval_bootstrap_strata(&cell->of[m], statistic_of(opts), x,
                                                  size, n_strata, err));
    }
out:
    kg_mem_free(size);
    kg_mem_free(x);
    return status;
}

static double mean_over(const struct group *g, const struct kg_cells_opts *opts)
{
    double sum = 0;

    for (size_t i = 0; i < g->n && opts->over; i++)
        sum += g->row[i].x[opts->n_metrics];
    return sum / (double)g->n;
}

/* ---- frontiers ---- */

/* Orders points by x, then by y, so that the result does not depend on the order of the
 * input. */
static int by_x(const void *a, const void *b)
{
    const struct kg_frontier_point *p = a, *q = b;

    if (p->x != q->x)
        return (p->x > q->x) - (p->x < q->x);
    return (p->y > q->y) - (p->y < q->y);
}

/* y at log x = `at`, which is in the range of p (n), sorted by x */
static double height(const struct kg_frontier_point *p, size_t n, double at)
{
    size_t i = 0;

    while (i + 2 < n && log(p[i + 1].x) < at)
        i++;
    double low = log(p[i].x);
    double high = log(p[n > 1 ? i + 1 : i].x);
    double share = high > low ? fmin(fmax((at - low) / (high - low), 0), 1) : 0;
    return share == 0 ? p[i].y : p[i].y + share * (p[i + 1].y - p[i].y);
}

bool kg_frontier_gap(double *gap, struct kg_frontier_point *a, size_t n_a,
                     struct kg_frontier_point *b, size_t n_b)
{
    qsort(a, n_a, sizeof *a, by_x);
    qsort(b, n_b, sizeof *b, by_x);
    double low = fmax(a[0].x, b[0].x);
    double high = fmin(a[n_a - 1].x, b[n_b - 1].x);
    if (!(low <= high))
        return false;
    double at = (log(low) + log(high)) / 2;
    *gap = height(a, n_a, at) - height(b, n_b, at);
    return true;
}

/* ---- lines of cells ---- */

struct line {
    const struct group *point[MOST_POINTS];
    size_t n;
};

/* Collects all cells "NAME,...". */
static kg_status find_line(struct line *line, const struct reading *r, const char *name,
                           struct kg_err *err)
{
    size_t length = strlen(name);

    line->n = 0;
    for (size_t i = 0; i < r->n; i++) {
        const char *cell = r->group[i].name;

        if (strncmp(cell, name, length) != 0 || cell[length] != ',')
            continue;
        if (line->n == MOST_POINTS)
            return kg_fail(err, KG_EINVAL,
                           "expected at most %d cells '%s,...', found '%s' after them",
                           MOST_POINTS, name, cell);
        line->point[line->n++] = &r->group[i];
    }
    if (line->n == 0)
        return kg_fail(err, KG_ENOTFOUND,
                       "expected a cell '%s,...' to compare with, found none", name);
    return KG_OK;
}

static bool line_is_whole(const struct line *line, size_t at_least)
{
    for (size_t i = 0; i < line->n; i++)
        if (line->point[i]->n < at_least)
            return false;
    return true;
}

static kg_status points_of(struct kg_frontier_point points[MOST_POINTS],
                           const struct line *line, const char *pair, size_t m,
                           const struct kg_cells_opts *opts, struct kg_err *err)
{
    for (size_t i = 0; i < line->n; i++) {
        const struct row *row = find_row(line->point[i], pair);

        if (!row)
            return kg_fail(err, KG_ECONFLICT,
                           "expected the same %ss in every cell, found %s not in '%s'",
                           opts->pair, pair, line->point[i]->name);
        points[i] = (struct kg_frontier_point){row->x[opts->n_metrics], row->x[m]};
    }
    return KG_OK;
}

static kg_status need_points_as_many(const struct line *line, const struct group *g,
                                     const struct kg_cells_opts *opts, struct kg_err *err)
{
    for (size_t i = 0; i < line->n; i++)
        KG_TRY(need_as_many(g, line->point[i], opts, err));
    return KG_OK;
}

/* x: the gap of each of the *n pairs whose two lines share a range */
static kg_status gaps_of(double *x, size_t *n, const struct line *a, const struct line *b,
                         size_t m, const struct kg_cells_opts *opts, struct kg_err *err)
{
    struct kg_frontier_point p[MOST_POINTS], q[MOST_POINTS];

    *n = 0;
    for (size_t i = 0; i < a->point[0]->n; i++) {
        const char *pair = a->point[0]->row[i].pair;

        KG_TRY(points_of(p, a, pair, m, opts, err));
        KG_TRY(points_of(q, b, pair, m, opts, err));
        *n += kg_frontier_gap(&x[*n], p, a->n, q, b->n);
    }
    return KG_OK;
}

static kg_status fill_gap(struct kg_cell *cell, const struct line *a,
                          const struct line *b, const struct kg_cells_opts *opts,
                          struct kg_err *err)
{
    size_t pairs = a->point[0]->n;
    double *x = kg_mem_calloc(pairs, sizeof *x, "values of a cell", err);
    kg_status status = KG_OK;

    if (!x)
        return err->code;
    for (size_t m = 0; m < opts->n_metrics; m++) {
        KG_TRY_GOTO(out, gaps_of(x, &cell->rows, a, b, m, opts, err));
        cell->of[m] = (struct kg_eval_bounds){NAN, NAN, NAN, 1};
        if (cell->rows > 0)
            KG_TRY_GOTO(out, kg_eval_bootstrap(&cell->of[m], NULL, statistic_of(opts), x,
                                               cell->rows, 0, err));
    }
    cell->apart = pairs - cell->rows;
out:
    kg_mem_free(x);
    return status;
}

/* Holm's correction, over all cells of c; the cell `against` is not one of them. */
static kg_status adjust(struct kg_cells *c, struct kg_err *err)
{
    double *p = kg_mem_calloc(c->n, sizeof *p, "p-values", err);
    kg_status status = KG_OK;

    if (!p)
        return err->code;
    for (size_t m = 0; m < c->n_metrics; m++) {
        for (size_t i = 0; i < c->n; i++)
            p[i] = c->cell[i].of[m].p;
        KG_TRY_GOTO(out, kg_eval_holm(p, c->n, err));
        for (size_t i = 0; i < c->n; i++)
            c->cell[i].holm[m] = p[i];
    }
out:
    kg_mem_free(p);
    return status;
}

static bool compares(const struct kg_cells_opts *opts)
{
    return opts->against || opts->n_differences > 0;
}

static kg_status need_group(const struct group **g, const struct reading *r,
                            const char *name, struct kg_err *err)
{
    *g = find_group(r, name);
    if (*g)
        return KG_OK;
    return kg_fail(err, KG_ENOTFOUND, "expected a cell '%s' to compare with, found none",
                   name);
}

static kg_status new_cell(struct kg_cell **cell, struct kg_cells *out, const char *name,
                          struct kg_err *err)
{
    *cell = &out->cell[out->n];
    (*cell)->name = kg_mem_strdup(name, err);
    if (!(*cell)->name)
        return err->code;
    out->n++;
    return KG_OK;
}

static kg_status add_cell(struct kg_cells *out, const struct reading *r, const char *name,
                          const struct group *g, const struct group *against,
                          struct kg_err *err)
{
    const struct kg_cells_opts *opts = r->opts;
    struct kg_cell *cell;

    if (g->n < opts->at_least || (against && against->n < opts->at_least)) {
        out->left_out++;
        return KG_OK;
    }
    KG_TRY(new_cell(&cell, out, name, err));
    cell->over = mean_over(g, opts);
    double start = r->start_sum / (double)r->start_rows;

    for (size_t i = 0; i < g->n && r->opts->start; i++) {
        cell->survived += g->row[i].x[0] >= start;
        cell->collapsed += !(g->row[i].x[0] >= start / 2);
    }
    return fill_cell(cell, g, against, opts, err);
}

static kg_status add_all(struct kg_cells *out, struct reading *r, struct kg_err *err)
{
    const struct group *against = NULL;

    if (r->opts->against)
        KG_TRY(need_group(&against, r, r->opts->against, err));
    for (size_t i = 0; i < r->n; i++)
        if (&r->group[i] != against)
            KG_TRY(add_cell(out, r, r->group[i].name, &r->group[i], against, err));
    return KG_OK;
}

static double first_mean(const struct group *g)
{
    double sum = 0;

    for (size_t i = 0; i < g->n; i++)
        sum += g->row[i].x[0];
    return sum / (double)g->n;
}

/* "LINE,*" is the line's first cell with the highest mean of the first metric. */
static kg_status side_of(const struct group **g, const struct reading *r,
                         const char *name, struct kg_err *err)
{
    size_t n = strlen(name);
    struct kg_str line = {0};
    struct line cells;
    kg_status status;

    if (n < 2 || strcmp(name + n - 2, ",*") != 0)
        return need_group(g, r, name, err);
    KG_TRY_GOTO(out, kg_str_append(&line, name, n - 2, err));
    KG_TRY_GOTO(out, find_line(&cells, r, kg_str_text(&line), err));
    *g = cells.point[0];
    for (size_t i = 1; i < cells.n; i++)
        if (first_mean(cells.point[i]) > first_mean(*g))
            *g = cells.point[i];
    status = KG_OK;
out:
    kg_str_release(&line);
    return status;
}

static kg_status add_cell_difference(struct kg_cells *out, const struct reading *r,
                                     const char *name, const char *other,
                                     struct kg_err *err)
{
    const struct group *g, *against;
    struct kg_str text = {0};
    kg_status status;

    KG_TRY(side_of(&g, r, name, err));
    KG_TRY(side_of(&against, r, other, err));
    KG_TRY_GOTO(out, kg_str_printf(&text, err, "%s:%s", g->name, against->name));
    status = add_cell(out, r, kg_str_text(&text), g, against, err);
out:
    kg_str_release(&text);
    return status;
}

static kg_status add_line_difference(struct kg_cells *out, const struct reading *r,
                                     const char *name, const char *other,
                                     struct kg_err *err)
{
    struct line a, b;
    struct kg_cell *cell;
    struct kg_str text = {0};
    kg_status status;

    KG_TRY(find_line(&a, r, name, err));
    KG_TRY(find_line(&b, r, other, err));
    if (!line_is_whole(&a, r->opts->at_least) || !line_is_whole(&b, r->opts->at_least)) {
        out->left_out++;
        return KG_OK;
    }
    KG_TRY(need_points_as_many(&a, a.point[0], r->opts, err));
    KG_TRY(need_points_as_many(&b, a.point[0], r->opts, err));
    KG_TRY_GOTO(out, kg_str_printf(&text, err, "%s:%s", name, other));
    KG_TRY_GOTO(out, new_cell(&cell, out, kg_str_text(&text), err));
    status = fill_gap(cell, &a, &b, r->opts, err);
out:
    kg_str_release(&text);
    return status;
}

static kg_status add_difference(struct kg_cells *out, const struct reading *r,
                                const char *text, struct kg_err *err)
{
    const char *colon = strchr(text, ':');
    struct kg_str name = {0};
    kg_status status;

    if (!colon)
        return kg_fail(err, KG_EINVAL, "expected a difference CELL:AGAINST, found '%s'",
                       text);
    KG_TRY_GOTO(out, kg_str_append(&name, text, (size_t)(colon - text), err));
    status = (r->opts->over ? add_line_difference : add_cell_difference)(
        out, r, kg_str_text(&name), colon + 1, err);
out:
    kg_str_release(&name);
    return status;
}

/* Sorts rows by pair: bootstrap draws must not depend on the order of the file. */
static kg_status make_cells(struct kg_cells *out, struct reading *r, struct kg_err *err)
{
    const struct kg_cells_opts *opts = r->opts;

    if (r->n == 0)
        return kg_fail(err, KG_ENOTFOUND,
                       "expected rows whose %s begins with '%s', found none", opts->by,
                       opts->match);
    if (opts->start && r->start_rows == 0)
        return kg_fail(err, KG_ENOTFOUND,
                       "expected a cell '%s' to count from, found none", opts->start);
    out->n_metrics = opts->n_metrics;
    KG_TRY(kg_mem_new(&out->cell, r->n + opts->n_differences, sizeof *out->cell, "cells",
                      err));
    for (size_t i = 0; i < r->n; i++)
        qsort(r->group[i].row, r->group[i].n, sizeof *r->group[i].row, by_pair);
    for (size_t i = 0; i < opts->n_differences; i++)
        KG_TRY(add_difference(out, r, opts->difference[i], err));
    if (opts->n_differences == 0)
        KG_TRY(add_all(out, r, err));
    return compares(opts) && out->n > 0 ? adjust(out, err) : KG_OK;
}

kg_status kg_cells_read(struct kg_cells *out, const struct kg_cells_opts *opts,
                        struct kg_err *err)
{
    struct reading r = {.opts = opts};
    kg_status status = KG_OK;

    *out = (struct kg_cells){0};
    for (size_t i = 0; i < opts->n_files && status == KG_OK; i++)
        status = read_file(&r, opts->files[i], err);
    if (status == KG_OK)
        status = make_cells(out, &r, err);
    for (size_t i = 0; i < r.n; i++) {
        for (size_t j = 0; j < r.group[i].n; j++)
            kg_mem_free(r.group[i].row[j].pair);
        kg_mem_free(r.group[i].row);
        kg_mem_free(r.group[i].name);
    }
    kg_mem_free(r.group);
    if (status != KG_OK)
        kg_cells_release(out);
    return status;
}

/* ---- writing ---- */

/* If differences cancel, their mean is only rounding error: shows 0. */
static double shown(double x, const struct kg_eval_bounds *b)
{
    return fabs(x) < 1e-12 * fmax(fabs(b->low), fabs(b->high)) ? 0 : x;
}

static kg_status put_bounds(struct kg_str *out, const struct kg_eval_bounds *b, bool sure,
                            struct kg_err *err)
{
    const char *mark = sure ? "**" : "";

    if (isnan(b->value))
        return kg_str_puts(out, " - |", err);
    return kg_str_printf(out, err, " %s%.4g%s [%.4g, %.4g] |", mark, shown(b->value, b),
                         mark, shown(b->low, b), shown(b->high, b));
}

static kg_status put_cell(struct kg_str *out, const struct kg_cell *cell,
                          size_t n_metrics, const struct kg_cells_opts *opts,
                          struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "| `%s` | %zu |", cell->name, cell->rows));
    for (size_t m = 0; m < n_metrics; m++) {
        const struct kg_eval_bounds *b = &cell->of[m];

        KG_TRY(put_bounds(out, b, compares(opts) && (b->low > 0 || b->high < 0), err));
        if (compares(opts))
            KG_TRY(kg_str_printf(out, err, " %.2g |", cell->holm[m]));
    }
    if (opts->start)
        KG_TRY(kg_str_printf(out, err, " %zu | %zu |", cell->survived, cell->collapsed));
    return kg_str_putc(out, '\n', err);
}

kg_status kg_cells_left_out(struct kg_str *out, const struct kg_cells *c,
                            const struct kg_cells_opts *opts, struct kg_err *err)
{
    bool one = c->left_out == 1;

    if (c->left_out == 0)
        return KG_OK;
    return kg_str_printf(out, err, "\n%zu cell%s with fewer than %zu rows %s left out.\n",
                         c->left_out, one ? "" : "s", opts->at_least, one ? "is" : "are");
}

kg_status kg_cells_table(struct kg_str *out, const struct kg_cells *c,
                         const struct kg_cells_opts *opts, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "| %s | rows |", opts->by));
    for (size_t m = 0; m < c->n_metrics; m++)
        KG_TRY(kg_str_printf(out, err, " %s |%s", opts->metric[m],
                             compares(opts) ? " p (Holm) |" : ""));
    KG_TRY(kg_str_puts(out, opts->start ? " survived | collapsed |\n" : "\n", err));
    KG_TRY(kg_str_puts(out, "|---|---|", err));
    for (size_t m = 0; m < c->n_metrics; m++)
        KG_TRY(kg_str_puts(out, compares(opts) ? "---|---|" : "---|", err));
    KG_TRY(kg_str_puts(out, opts->start ? "---|---|\n" : "\n", err));
    for (size_t i = 0; i < c->n; i++)
        KG_TRY(put_cell(out, &c->cell[i], c->n_metrics, opts, err));
    for (size_t i = 0; i < c->n; i++)
        if (c->cell[i].apart > 0)
            KG_TRY(kg_str_printf(out, err,
                                 "\n`%s`: %zu %s%s without a range of %s in common.\n",
                                 c->cell[i].name, c->cell[i].apart, opts->pair,
                                 c->cell[i].apart == 1 ? "" : "s", opts->over));
    return kg_cells_left_out(out, c, opts, err);
}

static kg_status put_number(struct kg_str *out, const char *name, double x,
                            struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "%s: ", name));
    return kg_json_put_double(out, x, err);
}

kg_status kg_cells_json(struct kg_str *out, const struct kg_cells *c,
                        const struct kg_cells_opts *opts, struct kg_err *err)
{
    for (size_t i = 0; i < c->n; i++) {
        const struct kg_cell *cell = &c->cell[i];

        KG_TRY(kg_json_put_text(out, "{\"cell\": ", cell->name, err));
        KG_TRY(kg_str_printf(out, err, ", \"rows\": %zu", cell->rows));
        for (size_t m = 0; m < c->n_metrics; m++) {
            KG_TRY(kg_json_put_text(out, ", ", opts->metric[m], err));
            KG_TRY(put_number(out, ": {\"value\"", cell->of[m].value, err));
            KG_TRY(put_number(out, ", \"low\"", cell->of[m].low, err));
            KG_TRY(put_number(out, ", \"high\"", cell->of[m].high, err));
            KG_TRY(put_number(out, ", \"p\"", cell->of[m].p, err));
            if (compares(opts))
                KG_TRY(put_number(out, ", \"holm\"", cell->holm[m], err));
            KG_TRY(kg_str_putc(out, '}', err));
        }
        if (opts->start)
            KG_TRY(kg_str_printf(out, err, ", \"survived\": %zu, \"collapsed\": %zu",
                                 cell->survived, cell->collapsed));
        if (opts->over && compares(opts))
            KG_TRY(kg_str_printf(out, err, ", \"apart\": %zu", cell->apart));
        if (opts->at_least > 0)
            KG_TRY(kg_str_printf(out, err, ", \"left_out\": %zu", c->left_out));
        KG_TRY(kg_str_puts(out, "}\n", err));
    }
    return KG_OK;
}
