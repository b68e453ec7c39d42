/* A page about one or several runs: their settings, how they ended, the differences of
 * their configs, and a plot of every metric.
 *
 * A single HTML file with its style and plots and without scripts, so it opens without a
 * server. All contents come from the run directory (config.yaml, manifest.json,
 * metrics.jsonl, rollout dumps); titles and explanations are in metrics.h. A run writes
 * its own page as report.html.
 */
#ifndef KG_REPORT_REPORT_H
#define KG_REPORT_REPORT_H

#include "data/json.h"
#include "recipe/options.h"
#include "report/history.h"

enum { KG_REPORT_RUNS = 32 };

struct kg_report_run {
    char *dir;                /* owned */
    const char *name;         /* last part of dir */
    struct kg_config *config; /* owned */
    struct kg_recipe recipe;  /* parsed config */
    struct kg_json_doc manifest;
    struct kg_history history;
};

/* Opens the run in a folder.   errors: ENOTFOUND (no run there), EFORMAT (with file and
 * line) */
kg_status kg_report_run_open(struct kg_report_run **run, const char *dir,
                             struct kg_err *err) KG_MUST_CHECK;
/* Reads new lines of metrics.jsonl; *more out: whether there were any. Unreadable lines
 * cause a warning, here and in kg_report_run_open, and are counted on the page. */
kg_status kg_report_run_read(struct kg_report_run *run, bool *more,
                             struct kg_err *err) KG_MUST_CHECK;
void kg_report_run_free(struct kg_report_run *run); /* NULL is allowed */

/* Appends the page; 1 <= n <= KG_REPORT_RUNS. The same runs give the same bytes */
kg_status kg_report_page(struct kg_str *out, struct kg_report_run *const *runs, size_t n,
                         struct kg_err *err) KG_MUST_CHECK;

#endif
