/* Compares two evaluations on the same problems, problem by problem.
 *
 * d_p = (value of B) - (value of A) for problem p. Problems that are hard for one model
 * are hard for the other, so the differences vary less than the values. A paired interval
 * is therefore narrower than two separate standard errors suggest.
 *
 *   difference = mean_p d_p,   stderr = sqrt( sum_p (d_p - mean)^2 / (P-1) / P )
 *
 * The interval is a paired bootstrap: the problems of each set are resampled with
 * replacement 10,000 times, and the 2.5 % and 97.5 % points are the 250th smallest and
 * the 250th largest mean. Draws are a function of resample, set and index, so intervals
 * are reproducible.
 */
#ifndef KG_EVAL_COMPARE_H
#define KG_EVAL_COMPARE_H

#include "base/status.h"
#include "base/str.h"
#include "eval/bootstrap.h"
#include "eval/metrics.h"

#include <stddef.h>
#include <stdint.h>

struct kg_eval_difference {
    char set[80]; /* set name; "mean" over the sets */
    char metric[KG_EVAL_NAME_BYTES];
    int64_t problems;
    double a; /* means */
    double b;
    double difference; /* b - a */
    double stderror;
    double low; /* 95 % interval */
    double high;
    int64_t better; /* problems where b is larger; 0 for a mean */
    int64_t worse;
};
struct kg_eval_comparison {
    struct kg_eval_difference *rows; /* (n) owned: set by set, then the means */
    size_t n;
};
void kg_eval_comparison_release(struct kg_eval_comparison *c); /* {0} allowed */

/* errors: ENOTFOUND (an unfinished folder), ECONFLICT (other sets, data or problems:
 * names the first difference), EFORMAT */
kg_status kg_eval_compare(struct kg_eval_comparison *c, const char *dir_a,
                          const char *dir_b, struct kg_err *err) KG_MUST_CHECK;

/* The interval of the mean of (n) differences, exported for tests. set: index of the set.
 * means (KG_EVAL_RESAMPLES) out, NULL allowed */
kg_status kg_eval_interval(double *low, double *high, double *means, const double *d,
                           int64_t n, uint32_t set, struct kg_err *err) KG_MUST_CHECK;

kg_status kg_eval_comparison_json(struct kg_str *out, const struct kg_eval_comparison *c,
                                  struct kg_err *err) KG_MUST_CHECK;
kg_status kg_eval_comparison_table(struct kg_str *out, const struct kg_eval_comparison *c,
                                   struct kg_err *err) KG_MUST_CHECK;

#endif
