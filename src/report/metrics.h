/* The numbers of one step: an ordered list of name and value, and its line of JSON.
 *
 * Names are "group/what"; each has a row in metric_table.c that says what it means.
 */
#ifndef KG_REPORT_METRICS_H
#define KG_REPORT_METRICS_H

#include "base/status.h"
#include "base/str.h"
#include "data/json.h"

enum { KG_METRICS_MAX = 512, KG_METRIC_NAME = 144 };

struct kg_metrics {
    struct {
        char name[KG_METRIC_NAME];
        double value;
    } row[KG_METRICS_MAX];
    int n;
};

/* Add or overwrite. More than KG_METRICS_MAX names is a programmer error (assert). */
void kg_metrics_put(struct kg_metrics *m, const char *name, double value);
/* The same of "group/what". */
void kg_metrics_put_in(struct kg_metrics *m, const char *group, const char *what,
                       double value);
double kg_metrics_get(const struct kg_metrics *m, const char *name, double fallback);
/* Standard error of the mean of n numbers from their sum and the sum of their squares:
 * sqrt( sum (x - mean)^2 / (n - 1) / n ),  0 for one number */
double kg_metrics_stderr(double n, double sum, double squares);
/* {"phase": phase, "step": step, name: value, ...} and a newline. */
kg_status kg_metrics_json(struct kg_str *out, const struct kg_metrics *m,
                          const char *phase, int64_t step,
                          struct kg_err *err) KG_MUST_CHECK;

/* Such a line again. phase: borrowed from doc. A value that is null or no number (the
 * strings that stand for what is not finite) is NaN or that infinity.
 * errors: EFORMAT (no phase or step, too many names, or one too long) */
kg_status kg_metrics_parse(struct kg_metrics *m, const char **phase, int64_t *step,
                           const struct kg_json_doc *doc,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
