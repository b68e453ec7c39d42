/* The parts of a page: report.c combines them, report_tables.c makes the tables,
 * report_groups.c the plots. */
#ifndef KG_REPORT_REPORT_INTERNAL_H
#define KG_REPORT_REPORT_INTERNAL_H

#include "report/report.h"
#include "report/report_plot.h"

struct kg_report {
    struct kg_str *out;
    struct kg_report_run *const *runs; /* (n) */
    size_t n;
    struct kg_err *err;
};

/* Appends text unchanged; kg_report_help shows text between backticks as code. */
kg_status kg_report_text(struct kg_report *r, const char *text);
kg_status kg_report_help(struct kg_report *r, const char *help);
/* The explanation of a metric; row NULL: unknown to this version. */
kg_status kg_report_meaning(struct kg_report *r, const char *name,
                            const struct kg_metric_row *row);
/* Begins the last cell of a row, the one that explains the metric. */
kg_status kg_report_last_cell(struct kg_report *r);
/* Appends x with four digits, and "&plusmn; error" if error is a number. */
kg_status kg_report_number(struct kg_report *r, double x, double error);
/* Begins a table row with its first cell, `name`. */
kg_status kg_report_row(struct kg_report *r, const char *name);
/* Begins a table with a column per run; lead: name of the first column. */
kg_status kg_report_table(struct kg_report *r, const char *lead);

kg_status kg_report_tables(struct kg_report *r);
/* Completions of some steps: those of highest and lowest reward, and the longest. */
kg_status kg_report_answers(struct kg_report *r);
kg_status kg_report_group(struct kg_report *r, enum kg_metric_group group);
/* Whether any run has a metric of the group. */
bool kg_report_has_group(const struct kg_report *r, enum kg_metric_group group);

#endif
