/* Splits names of cells at their last comma; cells.c has counted the rows. */
#include "lab/cells.h"

#include "base/mem.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* One cell per setting, in the order of compare_settings. */
struct settings {
    const struct kg_cell **of; /* (n) owned */
    size_t n;
};

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

/* Compares as text, but numbers by value: lr3 before lr10, and lr3e-6 before lr1e-5. */
static int compare_settings(const char *a, const char *b)
{
    while (*a && *b) {
        char *a_end, *b_end;

        if (!isdigit((unsigned char)*a) || !isdigit((unsigned char)*b)) {
            if (*a != *b)
                break;
            a++, b++;
            continue;
        }
        double x = strtod(a, &a_end), y = strtod(b, &b_end);
        if (x != y)
            return (x > y) - (x < y);
        a = a_end;
        b = b_end;
    }
    return strcmp(a, b);
}

static int by_setting(const void *a, const void *b)
{
    const char *x = comma_of(*(const struct kg_cell *const *)a) + 1;
    const char *y = comma_of(*(const struct kg_cell *const *)b) + 1;
    int order = compare_settings(x, y);

    return order ? order : strcmp(x, y);
}

static kg_status settings_of(struct settings *s, const struct kg_cells *c,
                             struct kg_err *err)
{
    *s = (struct settings){0};
    if (c->n == 0)
        return KG_OK;
    KG_TRY(kg_mem_new(&s->of, c->n, sizeof(const struct kg_cell *), "settings", err));
    for (size_t i = 0; i < c->n; i++)
        if (is_first(c, i, same_setting))
            s->of[s->n++] = &c->cell[i];
    qsort(s->of, s->n, sizeof(const struct kg_cell *), by_setting);
    return KG_OK;
}

static bool survives(const struct kg_cell *cell)
{
    return (double)cell->survived >= KG_SURVIVAL_SHARE * (double)cell->rows;
}

static kg_status put_method(struct kg_str *out, const struct kg_cells *c,
                            const struct kg_cell *method, const struct settings *s,
                            struct kg_err *err)
{
    const char *last = cell_of(c, method, s->of[0]) ? "none" : "-";
    bool alive = true;

    KG_TRY(kg_str_printf(out, err, "| `%.*s` |", (int)(comma_of(method) - method->name),
                         method->name));
    for (size_t i = 0; i < s->n; i++) {
        const struct kg_cell *cell = cell_of(c, method, s->of[i]);

        KG_TRY(put_count(out, cell, err));
        alive = alive && cell && survives(cell);
        if (alive)
            last = comma_of(cell) + 1;
    }
    return kg_str_printf(out, err, " %s |\n", last);
}

kg_status kg_survival_table(struct kg_str *out, const struct kg_cells *c,
                            struct kg_err *err)
{
    struct settings s;
    kg_status status = KG_OK;

    for (size_t i = 0; i < c->n; i++)
        if (!comma_of(&c->cell[i]))
            return kg_fail(err, KG_EINVAL, "expected cells METHOD,SETTING, found '%s'",
                           c->cell[i].name);
    KG_TRY(settings_of(&s, c, err));
    KG_TRY_GOTO(out, kg_str_puts(out, "| |", err));
    for (size_t i = 0; i < s.n; i++)
        KG_TRY_GOTO(out, kg_str_printf(out, err, " %s |", comma_of(s.of[i]) + 1));
    KG_TRY_GOTO(out, kg_str_puts(out, " survive up to |\n|---|", err));
    for (size_t i = 0; i < s.n; i++)
        KG_TRY_GOTO(out, kg_str_puts(out, "---|", err));
    KG_TRY_GOTO(out, kg_str_puts(out, "---|\n", err));
    for (size_t i = 0; i < c->n; i++)
        if (is_first(c, i, same_method))
            KG_TRY_GOTO(out, put_method(out, c, &c->cell[i], &s, err));
out:
    kg_mem_free(s.of);
    return status;
}
