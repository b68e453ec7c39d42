/* Reading and thinning. Point i of a metric covers the lines of point i of its phase, so
 * a metric missing from these lines has a gap. Every point covers the same number of
 * lines. When all points are used, neighbours are merged and that number doubles. A point
 * holds sum, count and extremes, so a merged point equals one made from the lines,
 * wherever a reading was interrupted. Unreadable lines are counted and skipped. */
#include "report/history.h"

#include "base/file.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const names[KG_HISTORY_PHASES] = {"sft", "rl", "validation"};

void kg_history_init(struct kg_history *h)
{
    memset(h, 0, sizeof *h);
    for (int i = 0; i < KG_HISTORY_PHASES; i++) {
        h->phase[i].name = names[i];
        h->phase[i].width = 1;
    }
}

void kg_history_release(struct kg_history *h)
{
    for (int i = 0; i < KG_HISTORY_PHASES; i++) {
        for (size_t s = 0; s < h->phase[i].n_series; s++)
            kg_mem_free(h->phase[i].series[s].points);
        kg_mem_free(h->phase[i].series);
    }
    kg_history_init(h);
}

/* ---- series ---- */

static bool is_error_of(const struct kg_series *error, const struct kg_series *s)
{
    char name[KG_METRIC_NAME];

    return kg_metric_stderr(name, sizeof name, s->name) && strcmp(name, error->name) == 0;
}

static kg_status add_series(struct kg_history_phase *p, const char *name,
                            struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&p->series, &p->capacity, p->n_series + 1, sizeof *p->series,
                       KG_HISTORY_SERIES, "metrics", err));
    struct kg_series *s = &p->series[p->n_series];
    *s = (struct kg_series){.row = kg_metric_find(p->name, name),
                            .error = -1,
                            .first_error = NAN,
                            .last_error = NAN,
                            .now = NAN};
    strcpy(s->name, name);
    for (size_t i = 0; i < p->n_series; i++) {
        if (is_error_of(s, &p->series[i]))
            p->series[i].error = (int)p->n_series;
        else if (is_error_of(&p->series[i], s))
            s->error = (int)i;
    }
    p->n_series++;
    return KG_OK;
}

/* Finds or adds a series. Lines of a phase mostly have the same metrics in the same
 * order, so *at is the first place to look. *found: NULL if there is no room. */
static kg_status series_named(struct kg_series **found, size_t *at,
                              struct kg_history_phase *p, const char *name,
                              struct kg_err *err)
{
    const size_t n = p->n_series;
    size_t i = 0;

    while (i < n && strcmp(p->series[(*at + i) % n].name, name) != 0)
        i++;
    *found = NULL;
    if (i == KG_HISTORY_SERIES)
        return KG_OK;
    if (i == n)
        KG_TRY(add_series(p, name, err));
    i = i == n ? n : (*at + i) % n;
    *found = &p->series[i];
    *at = i + 1;
    return KG_OK;
}

/* ---- points ---- */

static void merge(struct kg_history_point *a, const struct kg_history_point *b)
{
    if (a->n == 0) {
        *a = *b;
        return;
    }
    if (b->n == 0)
        return;
    a->n += b->n;
    a->sum += b->sum;
    a->low = fmin(a->low, b->low);
    a->high = fmax(a->high, b->high);
    a->below = fmin(a->below, b->below);
    a->above = fmax(a->above, b->above);
}

/* Merges neighbouring points in pairs. */
static void halve_series(struct kg_series *s)
{
    static const struct kg_history_point none = {0};

    for (size_t i = 0; i < s->n_points; i += 2) {
        struct kg_history_point one = s->points[i];

        merge(&one, i + 1 < s->n_points ? &s->points[i + 1] : &none);
        s->points[i / 2] = one;
    }
    s->n_points = (s->n_points + 1) / 2;
}

static void halve(struct kg_history_phase *p)
{
    for (size_t i = 0; i < p->n_ticks; i += 2)
        p->ticks[i / 2] = (struct kg_history_tick){p->ticks[i].first_step,
                                                   p->ticks[i + 1].last_step};
    p->n_ticks /= 2;
    for (size_t i = 0; i < p->n_series; i++)
        halve_series(&p->series[i]);
    p->width *= 2;
}

static void begin_line(struct kg_history_phase *p, int64_t step)
{
    if (p->lines % p->width == 0) {
        if (p->n_ticks == KG_HISTORY_POINTS)
            halve(p); /* POINTS is even, so this line still begins a point */
        p->ticks[p->n_ticks++].first_step = step;
    }
    p->ticks[p->n_ticks - 1].last_step = step;
    p->first_step = p->lines == 0 ? step : p->first_step;
    p->last_step = step;
    p->lines++;
}

/* Adds points up to the current one; points without a value are gaps. */
static kg_status grow_points(struct kg_series *s, size_t n, struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&s->points, &s->capacity, n, sizeof *s->points, KG_HISTORY_POINTS,
                       "points", err));
    while (s->n_points < n)
        s->points[s->n_points++] = (struct kg_history_point){0};
    return KG_OK;
}

static kg_status add_number(struct kg_history_phase *p, struct kg_series *s, int64_t step,
                            struct kg_err *err)
{
    double x = s->now, error = s->error < 0 ? NAN : p->series[s->error].now;
    double spread = isfinite(error) ? error : 0;
    struct kg_history_point one = {1, x, x, x, x - spread, x + spread};

    KG_TRY(grow_points(s, p->n_ticks, err));
    merge(&s->points[p->n_ticks - 1], &one);
    if (s->n == 0) {
        s->low = s->high = s->first = x;
        s->first_error = error;
    }
    s->n++;
    s->sum += x;
    s->low = fmin(s->low, x);
    s->high = fmax(s->high, x);
    s->last = x;
    s->last_error = error;
    s->last_step = step;
    return KG_OK;
}

/* ---- lines ---- */

static kg_status add_line(struct kg_history_phase *p, const struct kg_metrics *m,
                          int64_t step, struct kg_err *err)
{
    size_t at = 0;

    begin_line(p, step);
    for (size_t i = 0; i < p->n_series; i++)
        p->series[i].now = NAN;
    for (int i = 0; i < m->n; i++) {
        struct kg_series *s;

        KG_TRY(series_named(&s, &at, p, m->row[i].name, err));
        if (!s) {
            p->beyond++;
            continue;
        }
        s->now = m->row[i].value;
        s->not_finite += !isfinite(m->row[i].value);
    }
    for (size_t i = 0; i < p->n_series; i++)
        if (isfinite(p->series[i].now))
            KG_TRY(add_number(p, &p->series[i], step, err));
    return KG_OK;
}

static kg_status read_line(struct kg_history *h, const char *text, size_t n,
                           const char *where, struct kg_err *err)
{
    struct kg_metrics m;
    struct kg_json_doc doc;
    struct kg_history_phase *p = NULL;
    const char *phase;
    int64_t step;

    KG_TRY(kg_json_parse(&doc, text, n, where, err));
    kg_status status = kg_metrics_parse(&m, &phase, &step, &doc, err);
    for (int i = 0; status == KG_OK && i < KG_HISTORY_PHASES; i++)
        if (strcmp(phase, names[i]) == 0)
            p = &h->phase[i];
    if (status == KG_OK && !p)
        status = kg_fail(err, KG_EFORMAT,
                         "%s: expected phase sft, rl or validation, found '%.40s'", where,
                         phase);
    if (status == KG_OK)
        status = add_line(p, &m, step, err);
    kg_json_release(&doc);
    return status;
}

static kg_status read_lines(struct kg_history *h, const char *text, uint64_t n,
                            const char *path, struct kg_err *err)
{
    while (h->offset < n) {
        const char *line = text + h->offset;
        const char *end = memchr(line, '\n', n - h->offset);
        char where[512];

        if (!end)
            return KG_OK;
        snprintf(where, sizeof where, "%.480s line %lld", path, (long long)h->lines + 1);
        kg_status status = read_line(h, line, (size_t)(end - line), where, err);
        if (status == KG_EFORMAT) {
            if (h->unreadable++ == 0)
                h->first_unreadable = h->lines + 1;
            h->why = *err;
        } else
            KG_TRY(status);
        h->offset += (uint64_t)(end - line) + 1;
        h->lines++;
    }
    return KG_OK;
}

kg_status kg_history_read(struct kg_history *h, const char *path, struct kg_err *err)
{
    struct kg_map map;

    KG_TRY(kg_map_open(&map, path, err));
    kg_status status = read_lines(h, (const char *)map.data, map.bytes, path, err);
    kg_map_close(&map);
    return status;
}

/* ---- look-up ---- */

const struct kg_history_phase *kg_history_phase(const struct kg_history *h,
                                                const char *name)
{
    for (int i = 0; i < KG_HISTORY_PHASES; i++)
        if (strcmp(names[i], name) == 0)
            return &h->phase[i];
    return NULL;
}

const struct kg_series *kg_history_find(const struct kg_history *h, const char *phase,
                                        const char *name)
{
    const struct kg_history_phase *p = kg_history_phase(h, phase);

    for (size_t i = 0; p && i < p->n_series; i++)
        if (strcmp(p->series[i].name, name) == 0)
            return &p->series[i];
    return NULL;
}
