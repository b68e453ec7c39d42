/* Opens runs, and frames the parts of the page. A page is written once, from top to
 * bottom. Hiding a run or opening a group is done by check boxes and CSS, so there are no
 * scripts. All text of a run is escaped. A run that is not finished, or was killed,
 * has a page like any other. */
#include "report/report_internal.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "recipe/options.h"
#include "report/history.h"
#include "text/html.h"

#include <math.h>
#include <string.h>

/* ---- runs ---- */

/* The last part of a path; the whole path if there is none (".", "/"). */
static const char *last_part(char *dir)
{
    size_t n = strlen(dir);

    while (n > 1 && dir[n - 1] == '/')
        dir[--n] = '\0';
    char *slash = strrchr(dir, '/');
    return slash && slash[1] ? slash + 1 : dir;
}

static kg_status open_run(struct kg_report_run *run, const char *dir, struct kg_err *err)
{
    bool more;

    if (strlen(dir) > KG_RUN_DIR_MAX)
        return kg_fail(err, KG_EINVAL, "expected a path of at most %d bytes, found %zu",
                       KG_RUN_DIR_MAX, strlen(dir));
    run->dir = kg_mem_strdup(dir, err);
    if (!run->dir)
        return err->code;
    run->name = last_part(run->dir);
    if (!kg_file_exists(kg_path_in(dir, "config.yaml").text))
        return kg_fail(err, KG_ENOTFOUND, "%s: expected a run, found no config.yaml",
                       dir);
    KG_TRY(
        kg_train_config(&run->config, kg_path_in(dir, "config.yaml").text, NULL, 0, err));
    kg_recipe_read(&run->recipe, run->config);
    KG_TRY(kg_json_read(&run->manifest, kg_path_in(dir, "manifest.json").text, 1 << 26,
                        err));
    return kg_report_run_read(run, &more, err);
}

kg_status kg_report_run_open(struct kg_report_run **run, const char *dir,
                             struct kg_err *err)
{
    KG_TRY(kg_mem_new(run, 1, sizeof **run, "a report", err));
    kg_history_init(&(*run)->history);
    kg_status status = open_run(*run, dir, err);
    if (status == KG_OK)
        return KG_OK;
    kg_report_run_free(*run);
    *run = NULL;
    return status;
}

kg_status kg_report_run_read(struct kg_report_run *run, bool *more, struct kg_err *err)
{
    struct kg_history *h = &run->history;
    uint64_t before = h->offset;
    int64_t unreadable = h->unreadable;

    KG_TRY(kg_history_read(h, kg_path_in(run->dir, "metrics.jsonl").text, err));
    *more = h->offset > before;
    if (h->unreadable > unreadable)
        kg_log_warn("%s; lines left out of the report: %lld", h->why.message,
                    (long long)h->unreadable);
    return KG_OK;
}

void kg_report_run_free(struct kg_report_run *run)
{
    if (!run)
        return;
    kg_history_release(&run->history);
    kg_json_release(&run->manifest);
    kg_config_free(run->config);
    kg_mem_free(run->dir);
    kg_mem_free(run);
}

/* ---- pieces ---- */

kg_status kg_report_text(struct kg_report *r, const char *text)
{
    return kg_html_put(r->out, text, strlen(text), r->err);
}

kg_status kg_report_help(struct kg_report *r, const char *help)
{
    for (bool code = false; *help; code = !code) {
        size_t n = strcspn(help, "`");

        KG_TRY(kg_html_put(r->out, help, n, r->err));
        help += n;
        if (*help == '`') {
            KG_TRY(kg_str_puts(r->out, code ? "</code>" : "<code>", r->err));
            help++;
        }
    }
    return KG_OK;
}

kg_status kg_report_meaning(struct kg_report *r, const char *name,
                            const struct kg_metric_row *row)
{
    static const char anchor[] = "val_anchor/";

    if (strncmp(name, anchor, sizeof anchor - 1) == 0)
        KG_TRY(kg_report_text(r, "of the anchor: "));
    return kg_report_help(r, row ? row->help : "(not known to this version of kedge)");
}

kg_status kg_report_last_cell(struct kg_report *r)
{
    return kg_str_puts(r->out, "<td class=\"w\">", r->err);
}

kg_status kg_report_number(struct kg_report *r, double x, double error)
{
    char text[KG_NUMBER];

    KG_TRY(kg_str_puts(r->out, kg_number(text, x, 4), r->err));
    return isnan(error)
               ? KG_OK
               : kg_str_printf(r->out, r->err, " &plusmn; %s", kg_number(text, error, 2));
}

kg_status kg_report_row(struct kg_report *r, const char *name)
{
    KG_TRY(kg_str_puts(r->out, "\n<tr><th scope=\"row\">", r->err));
    return kg_report_text(r, name);
}

/* Runs with the same name are shown by their folders. */
static const char *title_of(const struct kg_report *r, size_t run)
{
    for (size_t i = 0; i < r->n; i++)
        if (i != run && strcmp(r->runs[i]->name, r->runs[run]->name) == 0)
            return r->runs[run]->dir;
    return r->runs[run]->name;
}

kg_status kg_report_table(struct kg_report *r, const char *lead)
{
    KG_TRY(kg_str_puts(r->out, "<div class=\"wide\"><table>\n<tr><th>", r->err));
    KG_TRY(kg_report_text(r, lead));
    for (size_t i = 0; i < r->n; i++) {
        KG_TRY(kg_str_puts(r->out, "<th>", r->err));
        KG_TRY(kg_report_text(r, title_of(r, i)));
    }
    return KG_OK;
}

/* ---- the page ---- */

static const char head[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<style>\n"
    ":root{color-scheme:light dark;--f:#222;--d:#666;--g:#ddd;--s:#fff;--p:#f6f6f6}\n"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--f);background:var(--s);"
    "max-width:90em;margin:0 auto;padding:1em}\n"
    "h1{font-size:1.4em;overflow-wrap:anywhere}h2,summary{font-size:1.15em;"
    "font-weight:bold;margin:1.6em 0 .5em}summary{cursor:pointer}\n"
    "h3{font-size:1em;margin:0 0 .2em}a{color:inherit;margin-right:1em}\n"
    ".grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,24em),"
    "1fr));gap:1em}\n"
    "figure{margin:0;padding:.7em;background:var(--p);border-radius:6px;min-width:0}\n"
    "figure>svg{width:100%;height:auto;display:block}\n"
    "figcaption{font-size:.85em;color:var(--d);overflow-wrap:anywhere}"
    "figcaption b{color:var(--f);font-weight:600}figcaption p{margin:.2em 0 0}\n"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.5em 0 0;font-size:.9em}"
    ".q{color:var(--d)}\n"
    "small{color:var(--d)}.n{white-space:nowrap;font-variant-numeric:tabular-nums}\n"
    ".wide{overflow-x:auto;margin:.6em 0}table{border-collapse:collapse;font-size:.9em}"
    "th,td{text-align:left;vertical-align:top;padding:.2em .8em .2em 0;"
    "border-bottom:1px solid var(--g)}th{font-weight:600}td{white-space:pre-line}"
    "td.n{white-space:nowrap}td.w{color:var(--d);min-width:15em}\n"
    "text{font:18px system-ui,sans-serif;fill:var(--d);text-anchor:end}"
    "text.x{text-anchor:middle}\n"
    ".g{stroke:var(--g);fill:none}.l,.p{fill:none;stroke-width:2.5;stroke-linejoin:round;"
    "stroke-linecap:round}.p{stroke-width:7}.b{opacity:.22;stroke-width:1.5}\n"
    "@media(max-width:40em){td.w{white-space:nowrap}}\n"
    ".k{width:24px;height:10px;margin-right:.3em}.d1.l{stroke-dasharray:9 5}"
    ".d2.l{stroke-dasharray:2 6}.d3.l{stroke-dasharray:12 5 2 5}\n";

/* An unchecked run in the legend is hidden in every plot. */
static kg_status put_style(struct kg_report *r)
{
    KG_TRY(kg_str_puts(r->out, head, r->err));
    for (int i = 0; i < KG_PLOT_COLOURS; i++)
        KG_TRY(kg_str_printf(r->out, r->err, ".c%d{stroke:%s}.b.c%d{fill:%s}\n", i,
                             kg_plot_colours[i].light, i, kg_plot_colours[i].light));
    KG_TRY(kg_str_puts(r->out,
                       "@media(prefers-color-scheme:dark){:root{--f:#e6e6e6;--d:#a6a6a6;"
                       "--g:#3a3a3a;--s:#141414;--p:#1d1d1d}\n",
                       r->err));
    for (int i = 0; i < KG_PLOT_COLOURS; i++)
        KG_TRY(kg_str_printf(r->out, r->err, ".c%d{stroke:%s}.b.c%d{fill:%s}\n", i,
                             kg_plot_colours[i].dark, i, kg_plot_colours[i].dark));
    KG_TRY(kg_str_puts(r->out, "}\n", r->err));
    for (size_t i = 0; r->n > 1 && i < r->n; i++)
        KG_TRY(kg_str_printf(
            r->out, r->err,
            "body:has(#s%zu:not(:checked)) :is(figure,figcaption) .r%zu{display:none}\n",
            i, i));
    return kg_str_puts(r->out, "</style>\n", r->err);
}

static kg_status put_names(struct kg_report *r)
{
    for (size_t i = 0; i < r->n; i++) {
        KG_TRY(kg_str_puts(r->out, i ? ", " : "", r->err));
        KG_TRY(kg_report_text(r, title_of(r, i)));
    }
    return KG_OK;
}

static kg_status put_legend(struct kg_report *r)
{
    if (r->n == 1)
        return KG_OK;
    KG_TRY(kg_str_puts(r->out, "<p id=\"runs\">", r->err));
    for (size_t i = 0; i < r->n; i++) {
        KG_TRY(kg_str_printf(r->out, r->err,
                             "<label><input type=\"checkbox\" id=\"s%zu\" checked> <svg "
                             "class=\"k\"><path class=\"l c%zu\" d=\"M1 5H21\"/></svg>",
                             i, i % KG_PLOT_COLOURS));
        KG_TRY(kg_report_text(r, title_of(r, i)));
        KG_TRY(kg_str_puts(r->out, "</label> &emsp;", r->err));
    }
    return kg_str_puts(r->out, "</p>\n", r->err);
}

static kg_status put_contents(struct kg_report *r)
{
    KG_TRY(kg_str_puts(r->out,
                       "<nav><a href=\"#run\">Run</a><a href=\"#numbers\">Numbers</a>"
                       "<a href=\"#config\">Config</a>",
                       r->err));
    for (int g = 0; g < KG_METRICS_GROUPS; g++)
        if (kg_report_has_group(r, g)) {
            KG_TRY(kg_str_printf(r->out, r->err, "<a href=\"#g%d\">", g));
            KG_TRY(kg_report_text(r, kg_metric_group_title(g)));
            KG_TRY(kg_str_puts(r->out, "</a>", r->err));
        }
    return kg_str_puts(r->out, "<a href=\"#answers\">Completions</a></nav>\n", r->err);
}

static kg_status put_head(struct kg_report *r)
{
    KG_TRY(put_style(r));
    KG_TRY(kg_str_puts(r->out, "<title>", r->err));
    KG_TRY(put_names(r));
    KG_TRY(kg_str_puts(r->out, "</title></head><body>\n<h1>", r->err));
    KG_TRY(put_names(r));
    KG_TRY(kg_str_puts(r->out, "</h1>\n", r->err));
    KG_TRY(put_contents(r));
    return put_legend(r);
}

static kg_status put_foot(struct kg_report *r)
{
    return kg_str_puts(
        r->out,
        "<p><small>The x axis is the step. If a metric has a standard error, the shade "
        "shows plus and minus one. If a run has more steps than the plot has columns, "
        "the line shows the mean of the steps in each column and the shade their range. "
        "A gap is a step without a finite number. Written by kedge " KG_VERSION
        " from metrics.jsonl, which has every number.</small></p>\n</body></html>\n",
        r->err);
}

kg_status kg_report_page(struct kg_str *out, struct kg_report_run *const *runs, size_t n,
                         struct kg_err *err)
{
    struct kg_report r = {out, runs, n, err};

    KG_TRY(put_head(&r));
    KG_TRY(kg_report_tables(&r));
    for (int g = 0; g <= KG_METRICS_GROUPS; g++)
        if (kg_report_has_group(&r, g))
            KG_TRY(kg_report_group(&r, g));
    KG_TRY(kg_report_answers(&r));
    return put_foot(&r);
}
