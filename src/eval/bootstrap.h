/* Bootstrap intervals of a statistic of n numbers, and the adjustment of several
 * p-values.
 *
 * The numbers are resampled with replacement KG_EVAL_RESAMPLES times; the ends of the 95
 * % interval are the KG_EVAL_TAIL-th smallest and largest value of the statistic. Each
 * draw is a function of resample, set and index only, so intervals are reproducible.
 *     p = 2 min(share of values <= 0, share of values >= 0), at least 1 / resamples,
 *         at most 1
 * The interquartile mean is the mean of the middle half (Agarwal et al. 2021): of n
 * sorted numbers the lowest and the highest n / 4 are left out; a number at a boundary
 * counts in part.
 */
#ifndef KG_EVAL_BOOTSTRAP_H
#define KG_EVAL_BOOTSTRAP_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { KG_EVAL_RESAMPLES = 10000, KG_EVAL_TAIL = 250 };

/* A statistic of (n) numbers, n >= 1. The function may reorder them. */
typedef double (*kg_eval_statistic)(double *x, size_t n);
double kg_eval_mean(double *x, size_t n);
double kg_eval_iqm(double *x, size_t n);

struct kg_eval_bounds {
    double value; /* statistic of the numbers themselves */
    double low, high;
    double p; /* two-sided, for the hypothesis that the statistic is 0 */
};

/* x (n). set: a number, so that sets have different draws. resampled (KG_EVAL_RESAMPLES)
 * out: the statistic of each resample, in order; NULL allowed.   errors: ENOMEM */
kg_status kg_eval_bootstrap(struct kg_eval_bounds *out, double *resampled,
                            kg_eval_statistic statistic, const double *x, size_t n,
                            uint32_t set, struct kg_err *err) KG_MUST_CHECK;

/* kg_eval_bootstrap for strata: x has the numbers of each stratum in order, size[s] of
 * stratum s. Each stratum is resampled separately; the statistic is over all numbers. One
 * stratum equals set 0 of kg_eval_bootstrap.   errors: ENOMEM */
kg_status kg_eval_bootstrap_strata(struct kg_eval_bounds *out,
                                   kg_eval_statistic statistic, const double *x,
                                   const size_t *size, size_t n_strata,
                                   struct kg_err *err) KG_MUST_CHECK;

/* The ends of an interval; sorts the (KG_EVAL_RESAMPLES) values. */
void kg_eval_ends(double *low, double *high, double *resampled);

/* Holm's adjustment of (n) p-values, in place: the i-th smallest (from i = 0) is
 * multiplied by n - i, then limited to 1 and to at least the previous value. Testing `<=
 * 0.05` then limits the chance of any false claim among them to 0.05.   errors: ENOMEM */
kg_status kg_eval_holm(double *p, size_t n, struct kg_err *err) KG_MUST_CHECK;

#endif
