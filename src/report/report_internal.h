/* The parts of a page: report.c puts them together, report_tables.c has what is said in
 * tables, report_groups.c the plots. */
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

/* Text as it stands; with what is between backticks as code. */
kg_status kg_report_text(struct kg_report *r, const char *text);
kg_status kg_report_help(struct kg_report *r, const char *help);
/* What the metric of this name means; row NULL: that this version does not know it. */
kg_status kg_report_meaning(struct kg_report *r, const char *name,
                            const struct kg_metric_row *row);
/* The last cell of a row begins, for such words. */
kg_status kg_report_last_cell(struct kg_report *r);
/* Four digits, and "&plusmn; error" where that is a number. */
kg_status kg_report_number(struct kg_report *r, double x, double error);
/* A row of a table begins: its name. */
kg_status kg_report_row(struct kg_report *r, const char *name);
/* A table with a column for each run begins; lead: name of the first column. */
kg_status kg_report_table(struct kg_report *r, const char *lead);

kg_status kg_report_tables(struct kg_report *r);
/* Answers of some steps, right, wrong and long. */
kg_status kg_report_answers(struct kg_report *r);
kg_status kg_report_group(struct kg_report *r, enum kg_metric_group group);
/* Whether any run has a number of it. */
bool kg_report_has_group(const struct kg_report *r, enum kg_metric_group group);

#endif
