/* The numbers of one step: an ordered list of names and values, and its JSON line.
 *
 * Names are "group/what"; metric_table.c has a row for each that explains it.
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

/* Adds or overwrites a value. More than KG_METRICS_MAX names is a programmer error
 * (assert). */
void kg_metrics_put(struct kg_metrics *m, const char *name, double value);
/* The same with the name "group/what". */
void kg_metrics_put_in(struct kg_metrics *m, const char *group, const char *what,
                       double value);
double kg_metrics_get(const struct kg_metrics *m, const char *name, double fallback);
/* Standard error of the mean of n numbers from their sum and sum of squares: sqrt( sum (x
 * - mean)^2 / (n - 1) / n ), 0 for one number */
double kg_metrics_stderr(double n, double sum, double squares);
/* Appends {"phase": phase, "step": step, name: value, ...} and a newline. */
kg_status kg_metrics_json(struct kg_str *out, const struct kg_metrics *m,
                          const char *phase, int64_t step,
                          struct kg_err *err) KG_MUST_CHECK;

/* Reads such a line. phase: borrowed from doc. null and the strings for non-finite
 * numbers become NaN or that infinity.
 * errors: EFORMAT (no phase or step, too many names, or a name too long) */
kg_status kg_metrics_parse(struct kg_metrics *m, const char **phase, int64_t *step,
                           const struct kg_json_doc *doc,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
