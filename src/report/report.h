/* A page about one or several runs: what they are, how they ended, what differs in their
 * configs, and every metric as a plot.
 *
 * One HTML file with its style and its plots inside, no script and no other file, so it
 * opens without a server. All of it comes out of the run directory (config.yaml,
 * manifest.json, metrics.jsonl); titles and explanations are those of metric_table.h. A
 * run writes its own as report.html.
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
    struct kg_recipe recipe;  /* what it says */
    struct kg_json_doc manifest;
    struct kg_history history;
};

/* The run in a folder.   errors: NOTFOUND (no run there), EFORMAT (with file and line) */
kg_status kg_report_run_open(struct kg_report_run **run, const char *dir,
                             struct kg_err *err) KG_MUST_CHECK;
/* Read what metrics.jsonl has got since; *more: it was something. Lines that cannot be
 * read are warned of, here and at the opening, and counted on the page. */
kg_status kg_report_run_read(struct kg_report_run *run, bool *more,
                             struct kg_err *err) KG_MUST_CHECK;
void kg_report_run_free(struct kg_report_run *run); /* NULL is allowed */

/* 1 <= n <= KG_REPORT_RUNS; the same runs give the same bytes */
kg_status kg_report_page(struct kg_str *out, struct kg_report_run *const *runs, size_t n,
                         struct kg_err *err) KG_MUST_CHECK;

#endif
