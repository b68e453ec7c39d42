/* From thinned series to paths.
 *
 * The width is divided into columns of two units. The points of a series that fall into
 * one become one vertex of its line, their mean, and one vertex of its shade, their
 * extremes; so a plot has at most COLUMNS of each, however long the run.
 */
#include "report/report_plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    WIDTH = 640,
    HEIGHT = 250,
    LEFT = 96,
    RIGHT = 630,
    TOP = 10,
    BOTTOM = 212,
    COLUMN = 2,
    COLUMNS = (RIGHT - LEFT) / COLUMN + 1,
    FEW = 40 /* vertices up to which each gets a dot */
};

static const double huge = 1e300; /* the difference of two such numbers is finite */

struct column {
    double x_sum, sum, n; /* sum of x over points; sum and number of values */
    double points;
    double below, above;
    bool gap; /* a point without a value */
};

const struct kg_plot_colour kg_plot_colours[KG_PLOT_COLOURS] = {
    {"#0b62b8", "#5aa9f5"}, {"#c8500a", "#ff9a52"}, {"#1d7f43", "#57c785"},
    {"#b0246b", "#f07fb8"}, {"#6a48c0", "#b09af5"}, {"#8a6d00", "#e0c14a"},
    {"#007c85", "#4fd0da"}, {"#555555", "#bbbbbb"}};

bool kg_plot_varies(const struct kg_series *s) { return s->n > 1 && s->low < s->high; }

/* ---- axes ---- */

/* The range includes the shade, as far as a logarithmic axis can show it. */
static struct kg_axis value_axis(const struct kg_plot_line *lines, size_t n, bool log)
{
    struct kg_axis a = {INFINITY, -INFINITY, BOTTOM, TOP, false};
    double least = INFINITY, most = -INFINITY, margin;

    for (size_t i = 0; i < n; i++) {
        const struct kg_series *s = lines[i].series;

        least = fmin(least, s->low);
        most = fmax(most, s->high);
        for (size_t j = 0; j < s->n_points; j++)
            if (s->points[j].n > 0) {
                a.low = fmin(a.low, s->points[j].below);
                a.high = fmax(a.high, s->points[j].above);
            }
    }
    a.log = log && least > 0 && most > 1000 * least;
    if (a.log) {
        a.low = log10(least);
        a.high = log10(a.high);
    }
    a.low = fmax(a.low, -huge);
    a.high = fmin(a.high, huge);
    margin = a.high > a.low ? 0.04 * (a.high - a.low) : fmax(fabs(a.low) * 0.1, 1e-12);
    a.low -= margin;
    a.high += margin;
    return a;
}

/* One label and its grid line. */
static kg_status put_tick(struct kg_str *grid, struct kg_str *labels, double y,
                          const char *text, struct kg_err *err)
{
    KG_TRY(kg_str_printf(grid, err, "M%d %.1fH%d", LEFT, y, RIGHT));
    return kg_str_printf(labels, err, "<text x=\"%d\" y=\"%.1f\">%s</text>", LEFT - 8,
                         y + 6, text);
}

static kg_status put_value_ticks(struct kg_str *grid, struct kg_str *labels,
                                 const struct kg_axis *a, struct kg_err *err)
{
    struct kg_axis_tick ticks[KG_AXIS_TICKS];
    int n = kg_axis_ticks(ticks, a);

    for (int i = 0; i < n; i++)
        KG_TRY(
            put_tick(grid, labels, kg_axis_place(a, ticks[i].value), ticks[i].text, err));
    return KG_OK;
}

static kg_status put_step_labels(struct kg_str *labels, const struct kg_axis *x,
                                 struct kg_err *err)
{
    double step = fmax(1, kg_axis_step(fmax(x->high - x->low, 1), 5));
    double first = ceil(x->low / step);

    for (int i = 0; i < KG_AXIS_TICKS && (first + i) * step <= x->high; i++) {
        double at = kg_axis_place(x, (first + i) * step);
        bool fits = at < RIGHT - 40; /* else its text ends at the edge */

        KG_TRY(kg_str_printf(labels, err, "<text%s x=\"%.1f\" y=\"%d\">%.0f</text>",
                             fits ? " class=\"x\"" : "", fits ? at : RIGHT, BOTTOM + 26,
                             (first + i) * step));
    }
    return KG_OK;
}

static kg_status put_axes(struct kg_str *out, const struct kg_axis *x,
                          const struct kg_axis *y, struct kg_err *err)
{
    struct kg_str grid = {0}, labels = {0};
    kg_status status;

    KG_TRY_GOTO(out, put_value_ticks(&grid, &labels, y, err));
    KG_TRY_GOTO(out, put_step_labels(&labels, x, err));
    KG_TRY_GOTO(out, kg_str_printf(out, err, "<path class=\"g\" d=\"%sM%d %dH%d\"/>",
                                   kg_str_text(&grid), LEFT, BOTTOM, RIGHT));
    status = kg_str_puts(out, kg_str_text(&labels), err);
out:
    kg_str_release(&grid);
    kg_str_release(&labels);
    return status;
}

/* ---- lines ---- */

static void add_point(struct column *c, const struct kg_history_point *p, double x)
{
    if (p->n == 0) {
        c->gap = true;
        return;
    }
    c->below = c->points > 0 ? fmin(c->below, p->below) : p->below;
    c->above = c->points > 0 ? fmax(c->above, p->above) : p->above;
    c->x_sum += x;
    c->points++;
    c->sum += p->sum;
    c->n += p->n;
}

static void collect(struct column columns[COLUMNS], const struct kg_plot_line *line,
                    const struct kg_axis *x)
{
    memset(columns, 0, COLUMNS * sizeof *columns);
    for (size_t i = 0; i < line->series->n_points; i++) {
        const struct kg_history_tick *t = &line->phase->ticks[i];
        double at = kg_axis_place(x, ((double)t->first_step + (double)t->last_step) / 2);

        add_point(&columns[(int)((at - LEFT) / COLUMN)], &line->series->points[i], at);
    }
}

/* The columns with values from `from` on, up to a gap.   *end: the first column that was
 * not looked at   returns their number */
static int segment(int found[COLUMNS], int *end, const struct column columns[COLUMNS],
                   int from)
{
    int n = 0;

    for (*end = from; *end < COLUMNS; (*end)++)
        if (columns[*end].points > 0)
            found[n++] = *end;
        else if (columns[*end].gap && n > 0)
            break;
    return n;
}

/* "12.5 30": one decimal, or none if it is 0. */
static kg_status put_vertex(struct kg_str *out, char lead, double x, double y,
                            struct kg_err *err)
{
    long long tenths[] = {llround(10 * x), llround(10 * y)};

    KG_TRY(kg_str_putc(out, lead, err));
    for (int i = 0; i < 2; i++) {
        KG_TRY(kg_str_printf(out, err, "%s%lld", i ? " " : "", tenths[i] / 10));
        if (tenths[i] % 10)
            KG_TRY(kg_str_printf(out, err, ".%lld", tenths[i] % 10));
    }
    return KG_OK;
}

static double middle(const struct column *c) { return c->x_sum / c->points; }

static kg_status put_shade(struct kg_str *out, const struct column columns[COLUMNS],
                           const int *found, int n, const struct kg_axis *y,
                           struct kg_err *err)
{
    for (int i = 0; i < n; i++) {
        const struct column *c = &columns[found[i]];

        KG_TRY(
            put_vertex(out, i ? ' ' : 'M', middle(c), kg_axis_place(y, c->above), err));
    }
    for (int i = n - 1; i >= 0; i--) {
        const struct column *c = &columns[found[i]];

        KG_TRY(put_vertex(out, ' ', middle(c), kg_axis_place(y, c->below), err));
    }
    return kg_str_putc(out, 'z', err);
}

static kg_status put_path(struct kg_str *out, const struct column columns[COLUMNS],
                          const int *found, int n, const struct kg_axis *y,
                          struct kg_err *err)
{
    for (int i = 0; i < n; i++) {
        const struct column *c = &columns[found[i]];

        KG_TRY(put_vertex(out, i ? ' ' : 'M', middle(c), kg_axis_place(y, c->sum / c->n),
                          err));
    }
    return n == 1 ? kg_str_puts(out, "h0", err) : KG_OK; /* drawn as a dot */
}

static kg_status put_dots(struct kg_str *out, const struct column columns[COLUMNS],
                          const struct kg_axis *y, struct kg_err *err)
{
    for (int i = 0; i < COLUMNS; i++) {
        const struct column *c = &columns[i];

        if (c->points == 0)
            continue;
        KG_TRY(put_vertex(out, 'M', middle(c), kg_axis_place(y, c->sum / c->n), err));
        KG_TRY(kg_str_puts(out, "h0", err));
    }
    return KG_OK;
}

kg_status kg_plot_classes(struct kg_str *out, const struct kg_plot_line *line,
                          struct kg_err *err)
{
    return kg_str_printf(out, err, "c%d d%d r%d", line->colour, line->dash, line->run);
}

static kg_status put_element(struct kg_str *out, char kind,
                             const struct kg_plot_line *line, const struct kg_str *path,
                             struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "<path class=\"%c ", kind));
    KG_TRY(kg_plot_classes(out, line, err));
    return kg_str_printf(out, err, "\" d=\"%s\"/>", kg_str_text(path));
}

static bool is_shaded(const struct column columns[COLUMNS])
{
    for (int i = 0; i < COLUMNS; i++)
        if (columns[i].points > 0 && columns[i].below < columns[i].above)
            return true;
    return false;
}

static kg_status put_line(struct kg_str *out, const struct kg_plot_line *line,
                          const struct kg_axis *x, const struct kg_axis *y,
                          struct kg_err *err)
{
    struct column columns[COLUMNS];
    struct kg_str path = {0}, shade = {0}, dots = {0};
    int found[COLUMNS], n, vertices = 0;
    kg_status status = KG_OK;

    collect(columns, line, x);
    for (int at = 0; at < COLUMNS; vertices += n) {
        n = segment(found, &at, columns, at);
        if (n == 0)
            break;
        KG_TRY_GOTO(out, put_path(&path, columns, found, n, y, err));
        KG_TRY_GOTO(out, put_shade(&shade, columns, found, n, y, err));
    }
    if (is_shaded(columns))
        KG_TRY_GOTO(out, put_element(out, 'b', line, &shade, err));
    KG_TRY_GOTO(out, put_element(out, 'l', line, &path, err));
    if (vertices <= FEW)
        KG_TRY_GOTO(out, put_dots(&dots, columns, y, err));
    if (dots.len > 0)
        KG_TRY_GOTO(out, put_element(out, 'p', line, &dots, err));
out:
    kg_str_release(&path);
    kg_str_release(&shade);
    kg_str_release(&dots);
    return status;
}

kg_status kg_plot_svg(struct kg_str *out, bool *is_log, const struct kg_plot_line *lines,
                      size_t n, int64_t first, int64_t last, bool log_allowed,
                      struct kg_err *err)
{
    struct kg_axis x = {(double)first, (double)last, LEFT, RIGHT, false};
    struct kg_axis y = value_axis(lines, n, log_allowed);

    *is_log = y.log;
    KG_TRY(kg_str_printf(out, err, "<svg viewBox=\"0 0 %d %d\" role=\"img\">", WIDTH,
                         HEIGHT));
    KG_TRY(put_axes(out, &x, &y, err));
    for (size_t i = 0; i < n; i++)
        KG_TRY(put_line(out, &lines[i], &x, &y, err));
    return kg_str_puts(out, "</svg>", err);
}

/* Steps of ticks have short labels. Places are computed in doubles; the caller rounds. */

double kg_axis_place(const struct kg_axis *a, double value)
{
    double v = a->log ? log10(fmax(value, 1e-300)) : value;
    double share = a->high > a->low ? (v - a->low) / (a->high - a->low) : 0.5;

    return a->from + fmin(fmax(share, 0), 1) * (a->to - a->from);
}

double kg_axis_step(double range, int parts)
{
    double rough = range / parts, power = pow(10, floor(log10(rough)));

    for (int i = 0; i < 3; i++) {
        double step = power * (const double[]){1, 2, 5}[i];

        if (step >= rough * 0.999)
            return step;
    }
    return 10 * power;
}

static void label(char text[KG_AXIS_LABEL], double value, double step)
{
    int digits = (int)fmax(0, -floor(log10(step) + 1e-9));

    if (fabs(value) < step / 2)
        snprintf(text, KG_AXIS_LABEL, "0");
    else if (fabs(value) >= 1e6 || digits > 6)
        snprintf(text, KG_AXIS_LABEL, "%.*g",
                 (int)fmin(9, 1 + ceil(log10(fabs(value) / step) - 1e-9)), value);
    else
        snprintf(text, KG_AXIS_LABEL, "%.*f", digits, value);
}

static int linear_ticks(struct kg_axis_tick tick[KG_AXIS_TICKS], const struct kg_axis *a)
{
    double step = kg_axis_step(a->high - a->low, 5), first = ceil(a->low / step);
    int n = 0;

    for (; n < KG_AXIS_TICKS && (first + n) * step <= a->high; n++) {
        tick[n].value = (first + n) * step;
        label(tick[n].text, tick[n].value, step);
    }
    return n;
}

static int log_ticks(struct kg_axis_tick tick[KG_AXIS_TICKS], const struct kg_axis *a)
{
    static const double times[] = {1, 2, 5};
    bool short_axis = a->high - a->low < 2;
    double step = fmax(1, ceil((a->high - a->low) / 5));
    double power = short_axis ? floor(a->low) : ceil(a->low);
    int n = 0;

    for (; power <= a->high; power += step)
        for (int i = 0; i < (short_axis ? 3 : 1) && n < KG_AXIS_TICKS; i++) {
            double value = times[i] * pow(10, power);

            if (log10(value) < a->low || log10(value) > a->high)
                continue;
            tick[n].value = value;
            snprintf(tick[n].text, KG_AXIS_LABEL, "%s",
                     kg_number((char[KG_NUMBER]){0}, value, 6));
            n++;
        }
    return n;
}

int kg_axis_ticks(struct kg_axis_tick tick[KG_AXIS_TICKS], const struct kg_axis *a)
{
    int n = a->log ? log_ticks(tick, a) : linear_ticks(tick, a);

    if (!a->log || n >= 2 || !(a->high > a->low))
        return n;
    return linear_ticks(
        tick, &(struct kg_axis){.low = pow(10, a->low), .high = pow(10, a->high)});
}
