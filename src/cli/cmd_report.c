/* kedge report: a page of plots of one or several runs, and the table of metrics.
 *
 * The page of one run is written to its folder; the page of several runs belongs to none
 * of them, so its path must be given. The page, `--metrics` and docs/metrics.md are
 * printed from one table, which has the meaning of every metric.
 */
#include "cli/cli.h"

#include "base/log.h"
#include "report/metrics.h"
#include "report/report.h"

#include <stdio.h>

static const char *out_path;
static bool metrics;

const struct kg_flag kg_report_flags[] = {
    {"out", 'o', KG_IF("--metrics=", out_path), "FILE",
     "file of the page (default for one run: RUN/report.html)"},
    {"metrics", 0, KG_IF("RUN=", metrics), NULL,
     "print only the meaning of every metric, as Markdown"},
    {0},
};

static kg_status write_page(struct kg_report_run *const *runs, size_t n,
                            struct kg_err *err)
{
    struct kg_str page = {0}, path = {0};
    kg_status status;

    KG_TRY_GOTO(out, out_path
                         ? kg_str_puts(&path, out_path, err)
                         : kg_str_printf(&path, err, "%s/report.html", runs[0]->dir));
    KG_TRY_GOTO(out, kg_report_page(&page, runs, n, err));
    status = kg_cli_write_file(path.data, &page, err);
    if (status == KG_OK)
        kg_log_info("wrote %s", path.data);
out:
    kg_str_release(&path);
    kg_str_release(&page);
    return status;
}

static kg_status report(char **dirs, size_t n, struct kg_err *err)
{
    struct kg_report_run *runs[KG_REPORT_RUNS] = {NULL};
    kg_status status = KG_OK;

    for (size_t i = 0; i < n && status == KG_OK; i++)
        status = kg_report_run_open(&runs[i], dirs[i], err);
    if (status == KG_OK)
        status = write_page(runs, n, err);
    for (size_t i = 0; i < n; i++)
        kg_report_run_free(runs[i]);
    return status;
}

static kg_status print_metrics(struct kg_err *err)
{
    struct kg_str out = {0};

    return kg_cli_print(kg_metric_page(&out, err), &out, err);
}

int kg_cmd_report(int argc, char **argv)
{
    struct kg_err err;

    if (metrics)
        return kg_cli_exit(print_metrics(&err), &err);
    if (argc < 1 || argc > KG_REPORT_RUNS)
        return kg_cli_usage("expected 1 to %d runs, found %d", KG_REPORT_RUNS, argc);
    if (argc > 1 && !out_path)
        return kg_cli_usage("expected --out FILE with several runs");
    return kg_cli_exit(report(argv, (size_t)argc, &err), &err);
}
