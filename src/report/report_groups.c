/* The plots of a group, each with the meaning of its metrics. Metrics whose rows have the
 * same title share a plot, with a line for each run and metric: colours tell runs apart,
 * and dashes metrics; if there is one run, colours tell metrics apart. Metrics that never
 * changed are a table after the plots. A metric without a row is plotted at the end. */
#include "report/report_internal.h"

#include "base/mem.h"

#include <string.h>

enum { MOST_LINES = 1 << 14 };

/* What a plot contains: rows of one group, phase and title, or a metric without a row. */
struct key {
    enum kg_metric_group group;
    const char *phase;
    const char *title;
};

/* The lines of a plot; lines of one metric are neighbours. */
struct lines {
    struct kg_plot_line *line; /* (n) owned */
    size_t n, capacity;
};

/* ---- which lines ---- */

static bool belongs(const struct kg_series *s, const struct key *key)
{
    if (!s->row)
        return key->group == KG_METRICS_GROUPS && strcmp(s->name, key->title) == 0;
    return s->row->plot && s->row->group == key->group &&
           strcmp(s->row->plot, key->title) == 0;
}

static kg_status add_line(struct kg_report *r, struct lines *l, int run,
                          const struct kg_history_phase *phase, const struct kg_series *s)
{
    KG_TRY(kg_mem_grow(&l->line, &l->capacity, l->n + 1, sizeof *l->line, MOST_LINES,
                       "lines of a plot", r->err));
    l->line[l->n++] = (struct kg_plot_line){.phase = phase, .series = s, .run = run};
    return KG_OK;
}

static bool same_metric(const struct kg_plot_line *a, const struct kg_plot_line *b)
{
    return strcmp(a->series->name, b->series->name) == 0;
}

/* Moves the last line next to the other lines of its metric. */
static void settle(struct lines *l)
{
    struct kg_plot_line last = l->line[l->n - 1];
    size_t at = l->n - 1;

    for (size_t i = 0; i + 1 < l->n; i++)
        if (same_metric(&l->line[i], &last))
            at = i + 1;
    memmove(&l->line[at + 1], &l->line[at], (l->n - 1 - at) * sizeof last);
    l->line[at] = last;
}

static kg_status find_lines(struct kg_report *r, struct lines *l, const struct key *key)
{
    l->n = 0;
    for (size_t run = 0; run < r->n; run++) {
        const struct kg_history_phase *p = kg_history_phase(&r->runs[run]->history,
                                                            key->phase);

        for (size_t i = 0; i < p->n_series; i++) {
            if (p->series[i].n == 0 || !belongs(&p->series[i], key))
                continue;
            KG_TRY(add_line(r, l, (int)run, p, &p->series[i]));
            settle(l);
        }
    }
    /* colours by run if there are several, else by metric; dashes by the other */
    int metric = -1;

    for (size_t i = 0; i < l->n; i++) {
        struct kg_plot_line *line = &l->line[i];
        int first, second;

        metric += i == 0 || !same_metric(line, line - 1);
        first = r->n > 1 ? line->run : metric;
        second = r->n > 1 ? metric : metric / KG_PLOT_COLOURS;
        line->colour = first % KG_PLOT_COLOURS;
        line->dash = second % KG_PLOT_DASHES;
    }
    return KG_OK;
}

/* ---- captions ---- */

/* The data source in the metric's name; NULL: none. */
static const char *source_of(const struct kg_series *s)
{
    const char *at = strstr(s->name, "/source/");

    return at ? at + strlen("/source/") : NULL;
}

static kg_status put_last(struct kg_report *r, const struct kg_plot_line *line)
{
    const struct kg_series *s = line->series;

    KG_TRY(kg_str_printf(r->out, r->err, "<span class=\"n r%d\">", line->run));
    /* a sample of the line's colour and dashes */
    KG_TRY(kg_str_puts(r->out, "<svg class=\"k\"><path class=\"l ", r->err));
    KG_TRY(kg_plot_classes(r->out, line, r->err));
    KG_TRY(kg_str_puts(r->out, "\" d=\"M1 5H21\"/></svg>", r->err));
    if (source_of(s)) {
        KG_TRY(kg_report_text(r, source_of(s)));
        KG_TRY(kg_str_putc(r->out, ' ', r->err));
    }
    KG_TRY(kg_report_number(r, s->last, s->last_error));
    if (s->not_finite > 0)
        KG_TRY(kg_str_printf(r->out, r->err, " (%lld not finite)",
                             (long long)s->not_finite));
    return kg_str_puts(r->out, "</span> ", r->err);
}

/* Whether a line before has named this metric; sources of one row are one metric. */
static bool is_named(const struct lines *l, size_t i)
{
    const struct kg_plot_line *line = &l->line[i];

    if (i == 0)
        return false;
    return same_metric(line, line - 1) ||
           (source_of(line->series) && line->series->row == line[-1].series->row);
}

static kg_status put_caption(struct kg_report *r, const struct lines *l)
{
    KG_TRY(kg_str_puts(r->out, "<figcaption>", r->err));
    for (size_t i = 0; i < l->n; i++) {
        const struct kg_series *s = l->line[i].series;

        if (!is_named(l, i)) {
            KG_TRY(kg_str_puts(r->out, i ? "<p><b>" : "<b>", r->err));
            KG_TRY(kg_report_text(r, s->row && source_of(s) ? s->row->name : s->name));
            KG_TRY(kg_str_puts(r->out, "</b> ", r->err));
            KG_TRY(kg_report_meaning(r, s->name, s->row));
            KG_TRY(kg_str_puts(r->out, " &middot; last ", r->err));
        }
        KG_TRY(put_last(r, &l->line[i]));
    }
    return kg_str_puts(r->out, "</figcaption>", r->err);
}

/* ---- plots ---- */

/* First and last step of all runs in phases that share an axis; SFT has its own. */
static void steps_of(const struct kg_report *r, const char *phase, int64_t *first,
                     int64_t *last)
{
    bool sft = strcmp(phase, "sft") == 0;

    *first = INT64_MAX;
    *last = 0;
    for (size_t i = 0; i < r->n; i++)
        for (int p = 0; p < KG_HISTORY_PHASES; p++) {
            const struct kg_history_phase *h = &r->runs[i]->history.phase[p];

            if (h->lines == 0 || sft != (strcmp(h->name, "sft") == 0))
                continue;
            *first = h->first_step < *first ? h->first_step : *first;
            *last = h->last_step > *last ? h->last_step : *last;
        }
}

static bool may_be_logarithmic(enum kg_metric_group group)
{
    return group == KG_METRICS_KL || group == KG_METRICS_POLICY ||
           group == KG_METRICS_OPTIM || group == KG_METRICS_REGION ||
           group == KG_METRICS_MISMATCH || group == KG_METRICS_SFT;
}

static kg_status put_plot(struct kg_report *r, const struct key *key,
                          const struct lines *l)
{
    int64_t first, last;
    bool is_log;

    steps_of(r, key->phase, &first, &last);
    KG_TRY(kg_str_puts(r->out, "<figure><h3>", r->err));
    KG_TRY(kg_report_text(r, key->title));
    KG_TRY(kg_str_puts(r->out, "</h3>", r->err));
    KG_TRY(kg_plot_svg(r->out, &is_log, l->line, l->n, first, last,
                       may_be_logarithmic(key->group), r->err));
    KG_TRY(put_caption(r, l));
    if (is_log)
        KG_TRY(kg_str_puts(r->out, "<small>logarithmic scale</small>", r->err));
    return kg_str_puts(r->out, "</figure>\n", r->err);
}

static bool varies(const struct lines *l)
{
    for (size_t i = 0; i < l->n; i++)
        if (kg_plot_varies(l->line[i].series))
            return true;
    return false;
}

/* ---- metrics that never changed ---- */

/* One row per metric, one cell per run. */
static kg_status put_constants(struct kg_report *r, const struct lines *l)
{
    for (size_t i = 0; i < l->n;) {
        const struct kg_plot_line *line = &l->line[i];

        KG_TRY(kg_report_row(r, line->series->name));
        for (size_t run = 0; run < r->n; run++) {
            KG_TRY(kg_str_puts(r->out, "<td class=\"n\">", r->err));
            if (i < l->n && same_metric(&l->line[i], line) &&
                l->line[i].run == (int)run) {
                KG_TRY(kg_report_number(r, l->line[i].series->last,
                                        l->line[i].series->last_error));
                i++;
            }
        }
        KG_TRY(kg_report_last_cell(r));
        KG_TRY(kg_report_meaning(r, line->series->name, line->series->row));
    }
    return KG_OK;
}

/* ---- a group ---- */

typedef kg_status plot_fn(struct kg_report *r, const struct key *key,
                          const struct lines *l, size_t *n);

static kg_status if_it_varies(struct kg_report *r, const struct key *key,
                              const struct lines *l, size_t *n)
{
    if (!varies(l))
        return KG_OK;
    if ((*n)++ == 0)
        KG_TRY(kg_str_puts(r->out, "<div class=\"grid\">\n", r->err));
    return put_plot(r, key, l);
}

static kg_status if_it_does_not(struct kg_report *r, const struct key *key,
                                const struct lines *l, size_t *n)
{
    (void)key;
    if (varies(l))
        return KG_OK;
    if ((*n)++ == 0)
        KG_TRY(kg_report_table(r, "one value throughout"));
    return put_constants(r, l);
}

/* Whether an earlier row has the same plot. */
static bool is_opened(size_t row)
{
    const struct kg_metric_row *this = kg_metric_at(row);

    for (size_t i = 0; i < row; i++) {
        const struct kg_metric_row *other = kg_metric_at(i);

        if (other->plot && other->group == this->group &&
            strcmp(other->phase, this->phase) == 0 &&
            strcmp(other->plot, this->plot) == 0)
            return true;
    }
    return false;
}

static kg_status with_lines(struct kg_report *r, const struct key *key, plot_fn *put,
                            size_t *n)
{
    struct lines l = {0};
    kg_status status = find_lines(r, &l, key);

    if (status == KG_OK && l.n > 0)
        status = put(r, key, &l, n);
    kg_mem_free(l.line);
    return status;
}

static kg_status each_known(struct kg_report *r, enum kg_metric_group group, plot_fn *put,
                            size_t *n)
{
    for (size_t i = 0; kg_metric_at(i); i++) {
        const struct kg_metric_row *row = kg_metric_at(i);
        struct key key = {group, row->phase, row->plot};

        if (row->group != group || !row->plot || is_opened(i))
            continue;
        KG_TRY(with_lines(r, &key, put, n));
    }
    return KG_OK;
}

/* Whether no earlier run has this metric. */
static bool is_first(const struct kg_report *r, size_t run, const char *phase,
                     const char *name)
{
    for (size_t i = 0; i < run; i++)
        if (kg_history_find(&r->runs[i]->history, phase, name))
            return false;
    return true;
}

static kg_status each_unknown(struct kg_report *r, plot_fn *put, size_t *n)
{
    for (size_t run = 0; run < r->n; run++)
        for (int p = 0; p < KG_HISTORY_PHASES; p++) {
            const struct kg_history_phase *phase = &r->runs[run]->history.phase[p];

            for (size_t i = 0; i < phase->n_series; i++) {
                const struct kg_series *s = &phase->series[i];
                struct key key = {KG_METRICS_GROUPS, phase->name, s->name};

                if (!s->row && is_first(r, run, phase->name, s->name))
                    KG_TRY(with_lines(r, &key, put, n));
            }
        }
    return KG_OK;
}

static kg_status each(struct kg_report *r, enum kg_metric_group group, plot_fn *put,
                      const char *end)
{
    size_t n = 0;

    KG_TRY(group == KG_METRICS_GROUPS ? each_unknown(r, put, &n)
                                      : each_known(r, group, put, &n));
    return n > 0 ? kg_str_puts(r->out, end, r->err) : KG_OK;
}

bool kg_report_has_group(const struct kg_report *r, enum kg_metric_group group)
{
    for (size_t run = 0; run < r->n; run++)
        for (int p = 0; p < KG_HISTORY_PHASES; p++) {
            const struct kg_history_phase *phase = &r->runs[run]->history.phase[p];

            for (size_t i = 0; i < phase->n_series; i++) {
                const struct kg_metric_row *row = phase->series[i].row;

                if (phase->series[i].n > 0 &&
                    (row ? row->group : KG_METRICS_GROUPS) == group)
                    return true;
            }
        }
    return false;
}

kg_status kg_report_group(struct kg_report *r, enum kg_metric_group group)
{
    const char *title = group < KG_METRICS_GROUPS ? kg_metric_group_title(group)
                                                  : "Other numbers";

    KG_TRY(
        kg_str_printf(r->out, r->err, "<details open id=\"g%d\"><summary>", (int)group));
    KG_TRY(kg_report_text(r, title));
    KG_TRY(kg_str_puts(r->out, "</summary>\n", r->err));
    KG_TRY(each(r, group, if_it_varies, "</div>\n"));
    KG_TRY(each(r, group, if_it_does_not, "</table></div>\n"));
    return kg_str_puts(r->out, "</details>\n", r->err);
}
