/* Reading rows into cells, pairing them, and the two ways to write what came of it.
 *
 * A comparison of what is not the same pair by pair says nothing, so other pairs are an
 * error and not left out. All numbers of a cell are kept by pair in the order of the
 * file, which therefore has no part in what comes out but for the order of cells.
 */
#include "report/cells.h"

#include "base/mem.h"
#include "data/json.h"
#include "data/jsonl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CELLS = 1 << 16, MOST_ROWS = 1 << 20 };

struct row {
    char *pair; /* owned */
    double x[KG_CELLS_METRICS];
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
};

static void reading_release(struct reading *r)
{
    for (size_t i = 0; i < r->n; i++) {
        for (size_t j = 0; j < r->group[i].n; j++)
            kg_mem_free(r->group[i].row[j].pair);
        kg_mem_free(r->group[i].row);
        kg_mem_free(r->group[i].name);
    }
    kg_mem_free(r->group);
}

void kg_cells_release(struct kg_cells *c)
{
    for (size_t i = 0; i < c->n; i++)
        kg_mem_free(c->cell[i].name);
    kg_mem_free(c->cell);
    *c = (struct kg_cells){0};
}

/* ---- rows ---- */

/* Text, or a number as it is written. */
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

static kg_status read_numbers(struct row *row, const struct reading *r,
                              const struct kg_json_doc *line, struct kg_err *err)
{
    for (size_t m = 0; m < r->opts->n_metrics; m++) {
        const char *key = r->opts->metric[m];
        const struct kg_json *v = kg_json_get(line->root, key);

        if (!kg_json_is_number(v))
            return kg_fail(err, KG_EFORMAT,
                           "%s: expected a number under '%s', found none", line->where,
                           key);
        row->x[m] = kg_json_real(v, NAN);
    }
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

static kg_status read_line(struct reading *r, const struct kg_json_doc *line,
                           struct kg_err *err)
{
    struct kg_str cell = {0}, pair = {0};
    const char *match = r->opts->match;
    kg_status status;

    KG_TRY_GOTO(out, key_text(&cell, line, r->opts->by, err));
    if (strncmp(kg_str_text(&cell), match, strlen(match)) != 0)
        goto out;
    KG_TRY_GOTO(out, key_text(&pair, line, r->opts->pair, err));
    status = add_row(r, kg_str_text(&cell), kg_str_text(&pair), line, err);
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

static kg_status values_of(double *x, const struct group *g, const struct group *against,
                           size_t m, const struct kg_cells_opts *opts, struct kg_err *err)
{
    if (against && against->n != g->n)
        return kg_fail(
            err, KG_ECONFLICT,
            "expected the same %ss in every cell, found %zu in '%s' and %zu in "
            "'%s'",
            opts->pair, g->n, g->name, against->n, against->name);
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

static kg_status fill_cell(struct kg_cell *cell, struct group *g,
                           const struct group *against, const struct kg_cells_opts *opts,
                           struct kg_err *err)
{
    kg_eval_statistic statistic = opts->iqm ? kg_eval_iqm : kg_eval_mean;
    double *x = kg_mem_calloc(g->n, sizeof *x, "values of a cell", err);
    kg_status status = KG_OK;

    if (!x)
        return err->code;
    cell->rows = g->n;
    for (size_t m = 0; m < opts->n_metrics; m++) {
        KG_TRY_GOTO(out, values_of(x, g, against, m, opts, err));
        KG_TRY_GOTO(out,
                    kg_eval_bootstrap(&cell->of[m], NULL, statistic, x, g->n, 0, err));
    }
out:
    kg_mem_free(x);
    return status;
}

/* Over all cells but the one that they are compared with. */
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

static kg_status need_group(struct group **g, const struct reading *r, const char *name,
                            struct kg_err *err)
{
    *g = find_group(r, name);
    if (*g)
        return KG_OK;
    return kg_fail(err, KG_ENOTFOUND, "expected a cell '%s' to compare with, found none",
                   name);
}

static kg_status add_cell(struct kg_cells *out, const char *name, struct group *g,
                          const struct group *against, const struct kg_cells_opts *opts,
                          struct kg_err *err)
{
    struct kg_cell *cell = &out->cell[out->n];

    if (g->n < opts->at_least || (against && against->n < opts->at_least)) {
        out->left_out++;
        return KG_OK;
    }
    cell->name = kg_mem_strdup(name, err);
    if (!cell->name)
        return err->code;
    out->n++;
    return fill_cell(cell, g, against, opts, err);
}

static kg_status add_all(struct kg_cells *out, struct reading *r, struct kg_err *err)
{
    struct group *against = NULL;

    if (r->opts->against)
        KG_TRY(need_group(&against, r, r->opts->against, err));
    for (size_t i = 0; i < r->n; i++)
        if (&r->group[i] != against)
            KG_TRY(add_cell(out, r->group[i].name, &r->group[i], against, r->opts, err));
    return KG_OK;
}

static kg_status add_difference(struct kg_cells *out, const struct reading *r,
                                const char *text, struct kg_err *err)
{
    const char *colon = strchr(text, ':');
    struct group *g, *against;
    struct kg_str name = {0};
    kg_status status;

    if (!colon)
        return kg_fail(err, KG_EINVAL, "expected a difference CELL:AGAINST, found '%s'",
                       text);
    KG_TRY_GOTO(out, kg_str_append(&name, text, (size_t)(colon - text), err));
    KG_TRY_GOTO(out, need_group(&g, r, kg_str_text(&name), err));
    KG_TRY_GOTO(out, need_group(&against, r, colon + 1, err));
    status = add_cell(out, text, g, against, r->opts, err);
out:
    kg_str_release(&name);
    return status;
}

/* The order of draws is that of pairs. */
static kg_status make_cells(struct kg_cells *out, struct reading *r, struct kg_err *err)
{
    const struct kg_cells_opts *opts = r->opts;

    if (r->n == 0)
        return kg_fail(err, KG_ENOTFOUND,
                       "expected rows whose %s begins with '%s', found none", opts->by,
                       opts->match);
    out->n_metrics = opts->n_metrics;
    out->cell = kg_mem_calloc(r->n + opts->n_differences, sizeof *out->cell, "cells",
                              err);
    if (!out->cell)
        return err->code;
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
    reading_release(&r);
    if (status != KG_OK)
        kg_cells_release(out);
    return status;
}

/* ---- writing ---- */

static kg_status put_bounds(struct kg_str *out, const struct kg_eval_bounds *b, bool sure,
                            struct kg_err *err)
{
    const char *mark = sure ? "**" : "";

    return kg_str_printf(out, err, " %s%.4g%s [%.4g, %.4g] |", mark, b->value, mark,
                         b->low, b->high);
}

kg_status kg_cells_table(struct kg_str *out, const struct kg_cells *c,
                         const struct kg_cells_opts *opts, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "| %s | rows |", opts->by));
    for (size_t m = 0; m < c->n_metrics; m++)
        KG_TRY(kg_str_printf(out, err, " %s |%s", opts->metric[m],
                             compares(opts) ? " p (Holm) |" : ""));
    KG_TRY(kg_str_puts(out, "\n|---|---|", err));
    for (size_t m = 0; m < c->n_metrics; m++)
        KG_TRY(kg_str_puts(out, compares(opts) ? "---|---|" : "---|", err));
    KG_TRY(kg_str_putc(out, '\n', err));
    for (size_t i = 0; i < c->n; i++) {
        const struct kg_cell *cell = &c->cell[i];

        KG_TRY(kg_str_printf(out, err, "| `%s` | %zu |", cell->name, cell->rows));
        for (size_t m = 0; m < c->n_metrics; m++) {
            const struct kg_eval_bounds *b = &cell->of[m];

            KG_TRY(
                put_bounds(out, b, compares(opts) && (b->low > 0 || b->high < 0), err));
            if (compares(opts))
                KG_TRY(kg_str_printf(out, err, " %.2g |", cell->holm[m]));
        }
        KG_TRY(kg_str_putc(out, '\n', err));
    }
    if (c->left_out > 0)
        KG_TRY(kg_str_printf(out, err,
                             "\n%zu cell%s with fewer than %zu rows %s left out.\n",
                             c->left_out, c->left_out == 1 ? "" : "s", opts->at_least,
                             c->left_out == 1 ? "is" : "are"));
    return KG_OK;
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
        KG_TRY(kg_str_puts(out, "}\n", err));
    }
    return KG_OK;
}
