/* Names of cells are cut at their last comma; nothing is counted here. */
#include "report/survival.h"

#include <string.h>

static const char *comma_of(const struct kg_cell *cell)
{
    return strrchr(cell->name, ',');
}

static bool same_method(const struct kg_cell *a, const struct kg_cell *b)
{
    size_t n = (size_t)(comma_of(a) - a->name);

    return (size_t)(comma_of(b) - b->name) == n && strncmp(a->name, b->name, n) == 0;
}

static bool same_setting(const struct kg_cell *a, const struct kg_cell *b)
{
    return strcmp(comma_of(a), comma_of(b)) == 0;
}

typedef bool (*same)(const struct kg_cell *a, const struct kg_cell *b);

static bool is_first(const struct kg_cells *c, size_t i, same alike)
{
    for (size_t j = 0; j < i; j++)
        if (alike(&c->cell[i], &c->cell[j]))
            return false;
    return true;
}

static const struct kg_cell *cell_of(const struct kg_cells *c,
                                     const struct kg_cell *method,
                                     const struct kg_cell *setting)
{
    for (size_t i = 0; i < c->n; i++)
        if (same_method(&c->cell[i], method) && same_setting(&c->cell[i], setting))
            return &c->cell[i];
    return NULL;
}

static kg_status put_count(struct kg_str *out, const struct kg_cell *cell,
                           struct kg_err *err)
{
    if (!cell)
        return kg_str_puts(out, " - |", err);
    KG_TRY(kg_str_printf(out, err, " %zu of %zu", cell->survived, cell->rows));
    if (cell->collapsed > 0)
        KG_TRY(kg_str_printf(out, err, " (%zu)", cell->collapsed));
    return kg_str_puts(out, " |", err);
}

static kg_status put_method(struct kg_str *out, const struct kg_cells *c,
                            const struct kg_cell *method, struct kg_err *err)
{
    const char *last = "none";

    KG_TRY(kg_str_printf(out, err, "| `%.*s` |", (int)(comma_of(method) - method->name),
                         method->name));
    for (size_t i = 0; i < c->n; i++) {
        if (!is_first(c, i, same_setting))
            continue;
        const struct kg_cell *cell = cell_of(c, method, &c->cell[i]);
        KG_TRY(put_count(out, cell, err));
        if (cell && (double)cell->survived >= KG_SURVIVAL_SHARE * (double)cell->rows)
            last = comma_of(cell) + 1;
    }
    return kg_str_printf(out, err, " %s |\n", last);
}

static kg_status put_head(struct kg_str *out, const struct kg_cells *c,
                          struct kg_err *err)
{
    struct kg_str line = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_str_puts(out, "| |", err));
    for (size_t i = 0; i < c->n; i++)
        if (is_first(c, i, same_setting)) {
            KG_TRY_GOTO(out, kg_str_printf(out, err, " %s |", comma_of(&c->cell[i]) + 1));
            KG_TRY_GOTO(out, kg_str_puts(&line, "---|", err));
        }
    status = kg_str_printf(out, err, " survive up to |\n|---|%s---|\n",
                           kg_str_text(&line));
out:
    kg_str_release(&line);
    return status;
}

kg_status kg_survival_table(struct kg_str *out, const struct kg_cells *c,
                            struct kg_err *err)
{
    for (size_t i = 0; i < c->n; i++)
        if (!comma_of(&c->cell[i]))
            return kg_fail(err, KG_EINVAL, "expected cells METHOD,SETTING, found '%s'",
                           c->cell[i].name);
    KG_TRY(put_head(out, c, err));
    for (size_t i = 0; i < c->n; i++)
        if (is_first(c, i, same_method))
            KG_TRY(put_method(out, c, &c->cell[i], err));
    return KG_OK;
}
