/* Every number that a run writes into metrics.jsonl, as data: its name, what it says, and
 * where a page of plots shows it.
 *
 * docs/metrics.md is printed from these rows and `kedge report` takes titles and
 * explanations from them. A number without a row is a mistake that metric_table_test.c
 * and presets_test.c find.
 */
#ifndef KG_REPORT_METRIC_TABLE_H
#define KG_REPORT_METRIC_TABLE_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

/* What a metric is about, in the order of the page. */
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

/* Where phase is "validation" and the name begins with val/, the row also stands for the
 * same of the anchor, under val_anchor/. */
struct kg_metric_row {
    const char *phase; /* of its line: sft, rl, validation */
    const char *name;  /* NAME at its end: any data source */
    enum kg_metric_group group;
    /* rows of one group with the same text share a plot; NULL: not plotted by itself, it
     * is the standard error of another one (kg_metric_stderr) */
    const char *plot;
    const char *help; /* one line; what stands between backticks is code */
};

/* NULL behind the last. */
const struct kg_metric_row *kg_metric_at(size_t i);
/* The row of a number in a line; NULL without. */
const struct kg_metric_row *kg_metric_find(const char *phase, const char *name);

/* Name of the standard error of the metric `name`: _stderr behind it, before /source/.
 * False where it does not fit. */
bool kg_metric_stderr(char *out, size_t bytes, const char *name);

/* The rows as a page of Markdown. */
kg_status kg_metric_page(struct kg_str *out, struct kg_err *err) KG_MUST_CHECK;

#endif
