/* The SVG contains its colours and font, on white, so that any viewer shows it. */
#include "lab/cells.h"

#include "report/report_plot.h"
#include "text/html.h"

#include <math.h>
#include <string.h>

enum {
    WIDTH = 640,
    HEIGHT = 300,
    LEFT = 70,
    RIGHT = 620,
    TOP = 14,
    BOTTOM = 240,
    LEGEND = 18, /* units per line of the legend */
    MOST_LINES = KG_PLOT_COLOURS * KG_PLOT_DASHES
};

struct plot {
    const struct kg_cells *c;
    const struct kg_cells_opts *opts;
    struct kg_axis x, y;
    size_t first[MOST_LINES]; /* index of each line's first cell */
    size_t n;
};

/* Length of a line's name: a cell's name up to its last comma. */
static size_t line_length(const char *name)
{
    const char *comma = strrchr(name, ',');

    return comma ? (size_t)(comma - name) : strlen(name);
}

static bool on_line(const struct kg_cells *c, size_t i, size_t first)
{
    const char *a = c->cell[i].name, *b = c->cell[first].name;
    size_t n = line_length(b);

    return line_length(a) == n && strncmp(a, b, n) == 0;
}

static kg_status find_lines(struct plot *p, struct kg_err *err)
{
    for (size_t i = 0; i < p->c->n; i++) {
        size_t l = 0;

        while (l < p->n && !on_line(p->c, i, p->first[l]))
            l++;
        if (l < p->n)
            continue;
        if (p->n == MOST_LINES)
            return kg_fail(err, KG_EINVAL,
                           "expected at most %d lines of cells, found '%s'", MOST_LINES,
                           p->c->cell[i].name);
        p->first[p->n++] = i;
    }
    return KG_OK;
}

static void widen(struct kg_axis *a, double share)
{
    double margin = a->high > a->low ? share * (a->high - a->low) : 0.1;

    a->low -= margin;
    a->high += margin;
}

static void find_ranges(struct plot *p)
{
    p->x = (struct kg_axis){INFINITY, -INFINITY, LEFT, RIGHT, true};
    p->y = (struct kg_axis){INFINITY, -INFINITY, BOTTOM, TOP, false};
    for (size_t i = 0; i < p->c->n; i++) {
        const struct kg_cell *cell = &p->c->cell[i];

        p->x.low = fmin(p->x.low, log10(cell->over));
        p->x.high = fmax(p->x.high, log10(cell->over));
        p->y.low = fmin(p->y.low, cell->of[0].low);
        p->y.high = fmax(p->y.high, cell->of[0].high);
    }
    widen(&p->x, 0.04);
    widen(&p->y, 0.04);
}

static kg_status put_head(struct kg_str *out, const struct plot *p, struct kg_err *err)
{
    int height = HEIGHT + LEGEND * (int)p->n;

    KG_TRY(
        kg_str_printf(out, err,
                      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
                      "width=\"%d\" role=\"img\">\n<style>text{font:13px "
                      "sans-serif;fill:#444;text-anchor:end}text.x{text-anchor:middle}"
                      "text.k{text-anchor:start}path{fill:none;stroke-width:2}"
                      ".g{stroke:#ddd;stroke-width:1}.p{stroke-width:7;stroke-linecap:"
                      "round}.e{stroke-width:1.5;opacity:.5}.d1.l{stroke-dasharray:9 5}"
                      ".d2.l{stroke-dasharray:2 6}.d3.l{stroke-dasharray:12 5 2 5}",
                      WIDTH, height, WIDTH));
    for (int i = 0; i < KG_PLOT_COLOURS; i++)
        KG_TRY(kg_str_printf(out, err, ".c%d{stroke:%s}", i, kg_plot_colours[i].light));
    return kg_str_printf(out, err,
                         "</style>\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
                         WIDTH, height);
}

static kg_status put_axes(struct kg_str *out, const struct plot *p, struct kg_err *err)
{
    struct kg_axis_tick tick[KG_AXIS_TICKS];
    int n = kg_axis_ticks(tick, &p->y);

    for (int i = 0; i < n; i++) {
        double y = kg_axis_place(&p->y, tick[i].value);
        KG_TRY(kg_str_printf(out, err,
                             "<path class=\"g\" d=\"M%d %.1fH%d\"/><text x=\"%d\" "
                             "y=\"%.1f\">%s</text>\n",
                             LEFT, y, RIGHT, LEFT - 6, y + 4, tick[i].text));
    }
    n = kg_axis_ticks(tick, &p->x);
    for (int i = 0; i < n; i++) {
        double x = kg_axis_place(&p->x, tick[i].value);
        KG_TRY(kg_str_printf(out, err,
                             "<path class=\"g\" d=\"M%.1f %dV%d\"/><text class=\"x\" "
                             "x=\"%.1f\" y=\"%d\">%s</text>\n",
                             x, TOP, BOTTOM, x, BOTTOM + 17, tick[i].text));
    }
    KG_TRY(kg_str_printf(out, err, "<text class=\"x\" x=\"%d\" y=\"%d\">",
                         (LEFT + RIGHT) / 2, BOTTOM + 38));
    KG_TRY(kg_html_put(out, p->opts->metric[0], strlen(p->opts->metric[0]), err));
    KG_TRY(kg_str_puts(out, " over ", err));
    KG_TRY(kg_html_put(out, p->opts->over, strlen(p->opts->over), err));
    return kg_str_puts(out, ", logarithmic</text>\n", err);
}

/* The line's cell after `last` (NULL: the first) in order of `over`; NULL: none left */
static const struct kg_cell *next_of(const struct plot *p, size_t first,
                                     const struct kg_cell *last)
{
    const struct kg_cell *next = NULL;

    for (size_t i = 0; i < p->c->n; i++) {
        const struct kg_cell *cell = &p->c->cell[i];
        bool behind = !last || cell->over > last->over ||
                      (cell->over == last->over && cell > last);

        if (on_line(p->c, i, first) && behind && (!next || cell->over < next->over))
            next = cell;
    }
    return next;
}

static kg_status put_line(struct kg_str *out, const struct plot *p, size_t l,
                          struct kg_err *err)
{
    struct kg_str path = {0}, dots = {0}, bars = {0};
    int colour = (int)l % KG_PLOT_COLOURS, dash = (int)l / KG_PLOT_COLOURS;
    kg_status status;

    for (const struct kg_cell *c = next_of(p, p->first[l], NULL); c;
         c = next_of(p, p->first[l], c)) {
        double x = kg_axis_place(&p->x, c->over);
        double y = kg_axis_place(&p->y, c->of[0].value);

        KG_TRY_GOTO(out,
                    kg_str_printf(&path, err, "%c%.1f %.1f", path.len ? 'L' : 'M', x, y));
        KG_TRY_GOTO(out, kg_str_printf(&dots, err, "M%.1f %.1fh0", x, y));
        KG_TRY_GOTO(out, kg_str_printf(&bars, err, "M%.1f %.1fV%.1f", x,
                                       kg_axis_place(&p->y, c->of[0].low),
                                       kg_axis_place(&p->y, c->of[0].high)));
    }
    status = kg_str_printf(out, err,
                           "<path class=\"e c%d\" d=\"%s\"/><path class=\"l c%d d%d\" "
                           "d=\"%s\"/><path class=\"p c%d\" d=\"%s\"/>\n",
                           colour, kg_str_text(&bars), colour, dash, kg_str_text(&path),
                           colour, kg_str_text(&dots));
out:
    kg_str_release(&path);
    kg_str_release(&dots);
    kg_str_release(&bars);
    return status;
}

static kg_status put_legend(struct kg_str *out, const struct plot *p, size_t l,
                            struct kg_err *err)
{
    const char *name = p->c->cell[p->first[l]].name;
    int y = BOTTOM + 58 + LEGEND * (int)l;

    KG_TRY(kg_str_printf(out, err,
                         "<path class=\"l c%d d%d\" d=\"M%d %dh28\"/><text class=\"k\" "
                         "x=\"%d\" y=\"%d\">",
                         (int)l % KG_PLOT_COLOURS, (int)l / KG_PLOT_COLOURS, LEFT, y - 4,
                         LEFT + 36, y));
    KG_TRY(kg_html_put(out, name, line_length(name), err));
    return kg_str_puts(out, "</text>\n", err);
}

kg_status kg_cells_svg(struct kg_str *out, const struct kg_cells *c,
                       const struct kg_cells_opts *opts, struct kg_err *err)
{
    struct plot p = {.c = c, .opts = opts};

    if (c->n == 0)
        return kg_fail(err, KG_ENOTFOUND, "expected rows for a plot, found none");
    KG_TRY(find_lines(&p, err));
    find_ranges(&p);
    KG_TRY(put_head(out, &p, err));
    KG_TRY(put_axes(out, &p, err));
    for (size_t l = 0; l < p.n; l++)
        KG_TRY(put_line(out, &p, l, err));
    for (size_t l = 0; l < p.n; l++)
        KG_TRY(put_legend(out, &p, l, err));
    return kg_str_puts(out, "</svg>\n", err);
}
