/* The numbers of one step: an ordered list of names and values, and its JSON line.
 *
 * Names are "group/what"; the table below explains each in a row.
 */
#ifndef KG_REPORT_METRICS_H
#define KG_REPORT_METRICS_H

#include "base/status.h"
#include "base/str.h"
#include "data/json.h"

#include <stdbool.h>
#include <stddef.h>

enum { KG_METRICS_MAX = 512, KG_METRIC_NAME = 144 };

struct kg_metrics {
    struct {
        char name[KG_METRIC_NAME];
        double value;
    } row[KG_METRICS_MAX];
    int n;
};

/* Adds or overwrites a value. More than KG_METRICS_MAX names is a programmer error
 * (assert). */
void kg_metrics_put(struct kg_metrics *m, const char *name, double value);
/* kg_metrics_put with the name "group/what". */
void kg_metrics_put_in(struct kg_metrics *m, const char *group, const char *what,
                       double value);
double kg_metrics_get(const struct kg_metrics *m, const char *name, double fallback);
/* Standard error of the mean of n numbers from their sum and sum of squares:
 * sqrt(sum (x - mean)^2 / (n - 1) / n); 0 for one number */
double kg_metrics_stderr(double n, double sum, double squares);
/* Appends {"phase": phase, "step": step, name: value, ...} and a newline. */
kg_status kg_metrics_json(struct kg_str *out, const struct kg_metrics *m,
                          const char *phase, int64_t step,
                          struct kg_err *err) KG_MUST_CHECK;

/* Reads a line of metrics. phase: borrowed from doc. A value that is not a number, such
 * as null, becomes NaN.
 * errors: EFORMAT (no phase or step, too many names, or a name too long) */
kg_status kg_metrics_parse(struct kg_metrics *m, const char **phase, int64_t *step,
                           const struct kg_json_doc *doc,
                           struct kg_err *err) KG_MUST_CHECK;

/* Every number that a run writes into metrics.jsonl, as data: its name, its meaning, and
 * its place on a page of plots.
 *
 * docs/metrics.md is generated from these rows, and `kedge report` shows their titles and
 * explanations. metric_table_test.c and presets_test.c fail if a row is missing. */

/* Groups of metrics, in the order of the page. */
enum kg_metric_group {
    KG_METRICS_VALIDATION,
    KG_METRICS_REWARD,
    KG_METRICS_KL,
    KG_METRICS_POLICY,
    KG_METRICS_OPTIM,
    KG_METRICS_LENGTH,
    KG_METRICS_EPISODE,
    KG_METRICS_SAMPLING,
    KG_METRICS_REGION,
    KG_METRICS_ANCHOR,
    KG_METRICS_MISMATCH,
    KG_METRICS_EXPERTS,
    KG_METRICS_TIME,
    KG_METRICS_MEMORY,
    KG_METRICS_SOURCE,
    KG_METRICS_SFT,
    KG_METRICS_GROUPS
};
const char *kg_metric_group_title(enum kg_metric_group group);

/* In phase "validation", a row for val/X also describes the anchor's val_anchor/X. */
struct kg_metric_row {
    const char *phase; /* phase of its line: sft, rl, validation */
    const char *name;  /* a trailing NAME stands for any data source */
    enum kg_metric_group group;
    /* rows of one group with the same text share a plot; NULL: no plot of its own,
     * because it is the standard error of another metric (kg_metric_stderr) */
    const char *plot;
    const char *help; /* one line; text between backticks is code */
};

/* NULL at the end. */
const struct kg_metric_row *kg_metric_at(size_t i);
/* The row for metric `name` in a line of `phase`; NULL if there is none. */
const struct kg_metric_row *kg_metric_find(const char *phase, const char *name);

/* The name of the standard error of metric `name`: with _stderr at its end, or before
 * /source/. False if it does not fit. */
bool kg_metric_stderr(char *out, size_t bytes, const char *name);

/* Appends the rows as a Markdown page. */
kg_status kg_metric_page(struct kg_str *out, struct kg_err *err) KG_MUST_CHECK;

#endif
