/* Two evaluations of the same problems, compared problem by problem.
 *
 * d_p = (value of B) - (value of A) for problem p. What makes a problem hard for one
 * model makes it hard for the other, so the differences vary less than the values, and a
 * paired interval is narrower than what two standard errors suggest.
 *     difference = mean_p d_p,   stderr = sqrt( sum_p (d_p - mean)^2 / (P-1) / P )
 * The interval is the paired bootstrap's: problems are drawn anew with replacement within
 * each set 10,000 times, and the 2.5 % and 97.5 % points are the 250th smallest and the
 * 250th largest mean. The draws are a function of the number of the resample, the set and
 * the place, so the interval is the same every time.
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
    char set[80]; /* its name; "mean" over the sets */
    char metric[KG_EVAL_NAME_BYTES];
    int64_t problems;
    double a; /* means */
    double b;
    double difference; /* b - a */
    double stderror;
    double low; /* of 95 % */
    double high;
    int64_t better; /* problems where b is larger; 0 in a mean */
    int64_t worse;
};
struct kg_eval_comparison {
    struct kg_eval_difference *rows; /* (n) owned: set by set, then the means */
    size_t n;
};
void kg_eval_comparison_release(struct kg_eval_comparison *c); /* {0} allowed */

/* errors: NOTFOUND (a folder that is not finished), ECONFLICT (other sets, data or
 * problems: the first difference named), EFORMAT */
kg_status kg_eval_compare(struct kg_eval_comparison *c, const char *dir_a,
                          const char *dir_b, struct kg_err *err) KG_MUST_CHECK;

/* Interval of the mean of (n) differences: the pieces that a test can enumerate. set: the
 * number of the set. means (KG_EVAL_RESAMPLES) out, NULL allowed */
kg_status kg_eval_interval(double *low, double *high, double *means, const double *d,
                           int64_t n, uint32_t set, struct kg_err *err) KG_MUST_CHECK;

kg_status kg_eval_comparison_json(struct kg_str *out, const struct kg_eval_comparison *c,
                                  struct kg_err *err) KG_MUST_CHECK;
kg_status kg_eval_comparison_table(struct kg_str *out, const struct kg_eval_comparison *c,
                                   struct kg_err *err) KG_MUST_CHECK;

#endif
