/* Bootstrap intervals of a statistic of n numbers, and what several of them are worth
 * together.
 *
 * The numbers are drawn anew with replacement KG_EVAL_RESAMPLES times; the ends of the
 * 95 % interval are the KG_EVAL_TAIL-th smallest and largest value of the statistic. Draw
 * (r, set, i) is a function of these three alone, so an interval is the same every time.
 *     p = 2 min(share of values <= 0, share of values >= 0), at least 1 / resamples,
 *         at most 1
 * The interquartile mean is that of the middle half (Agarwal et al. 2021): of n sorted
 * numbers the lowest and the highest n / 4 are left out, a number that the cut goes
 * through by its part.
 */
#ifndef KG_EVAL_BOOTSTRAP_H
#define KG_EVAL_BOOTSTRAP_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { KG_EVAL_RESAMPLES = 10000, KG_EVAL_TAIL = 250 };

/* Of (n) numbers, n >= 1, which it may put into another order. */
typedef double (*kg_eval_statistic)(double *x, size_t n);
double kg_eval_mean(double *x, size_t n);
double kg_eval_iqm(double *x, size_t n);

struct kg_eval_bounds {
    double value; /* of the numbers themselves */
    double low, high;
    double p; /* two-sided, that the statistic is 0 */
};

/* set: the number of the set.   resampled (KG_EVAL_RESAMPLES) out, in the order of the
 * resamples; NULL allowed   errors: ENOMEM */
kg_status kg_eval_bootstrap(struct kg_eval_bounds *out, double *resampled,
                            kg_eval_statistic statistic, const double *x, size_t n,
                            uint32_t set, struct kg_err *err) KG_MUST_CHECK;

/* Of numbers that lie stratum by stratum, size (n_strata) of them in each: those of a
 * stratum are drawn among themselves, and the statistic is that of all. One stratum is
 * the set 0 of the above.   errors: ENOMEM */
kg_status kg_eval_bootstrap_strata(struct kg_eval_bounds *out,
                                   kg_eval_statistic statistic, const double *x,
                                   const size_t *size, size_t n_strata,
                                   struct kg_err *err) KG_MUST_CHECK;

/* The ends of an interval; sorts (KG_EVAL_RESAMPLES) values. */
void kg_eval_ends(double *low, double *high, double *resampled);

/* Holm's adjustment of (n) p-values, in place: with the i-th smallest times n - i (from
 * i = 0), at most 1 and never below a smaller one, `<= 0.05` holds the chance of any
 * false claim among them at 0.05.   errors: ENOMEM */
kg_status kg_eval_holm(double *p, size_t n, struct kg_err *err) KG_MUST_CHECK;

#endif
