/* Resamples have their own array, so that a statistic may sort its input. */
#include "eval/bootstrap.h"

#include "base/mem.h"
#include "base/rng.h"
#include "base/sort.h"

#include <math.h>
#include <string.h>

double kg_eval_mean(double *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return sum / (double)n;
}

/* Weight of the i-th of n sorted numbers in the mean of the middle half (from 0 to 1). */
static double part_of(size_t i, size_t n)
{
    double low = (double)n / 4, high = (double)n - low;

    return fmax(0, fmin(high, (double)i + 1) - fmax(low, (double)i));
}

double kg_eval_iqm(double *x, size_t n)
{
    double sum = 0;

    kg_sort_doubles(x, n);
    for (size_t i = 0; i < n; i++)
        sum += part_of(i, n) * x[i];
    return sum / ((double)n / 2);
}

/* Numbers in groups; a resample draws from each group separately. */
struct strata {
    const size_t *size; /* (n) */
    size_t n;
    size_t total;
};

static void draw(double *room, const double *x, const struct strata *of, uint64_t r,
                 uint32_t set)
{
    const struct kg_rng_key key = {0, KG_RNG_BOOTSTRAP};
    size_t first = 0;

    for (size_t s = 0; s < of->n; first += of->size[s++])
        for (size_t i = first; i < first + of->size[s]; i++)
            room[i] = x[first + kg_rng_below(key, r, set, (uint32_t)i, of->size[s])];
}

static double two_sided(const double *values)
{
    double below = 0, above = 0;

    for (size_t r = 0; r < KG_EVAL_RESAMPLES; r++) {
        below += values[r] <= 0;
        above += values[r] >= 0;
    }
    return fmin(1, fmax(1, 2 * fmin(below, above)) / KG_EVAL_RESAMPLES);
}

void kg_eval_ends(double *low, double *high, double *resampled)
{
    kg_sort_doubles(resampled, KG_EVAL_RESAMPLES);
    *low = resampled[KG_EVAL_TAIL - 1];
    *high = resampled[KG_EVAL_RESAMPLES - KG_EVAL_TAIL];
}

static kg_status bootstrap(struct kg_eval_bounds *out, double *resampled,
                           kg_eval_statistic statistic, const double *x,
                           const struct strata *of, uint32_t set, struct kg_err *err)
{
    double *values = kg_mem_calloc(KG_EVAL_RESAMPLES + of->total, sizeof *values,
                                   "resamples", err);

    if (!values)
        return err->code;
    double *room = values + KG_EVAL_RESAMPLES;
    memcpy(room, x, of->total * sizeof *room);
    out->value = statistic(room, of->total);
    for (uint64_t r = 0; r < KG_EVAL_RESAMPLES; r++) {
        draw(room, x, of, r, set);
        values[r] = statistic(room, of->total);
    }
    out->p = two_sided(values);
    if (resampled)
        memcpy(resampled, values, KG_EVAL_RESAMPLES * sizeof *resampled);
    kg_eval_ends(&out->low, &out->high, values);
    kg_mem_free(values);
    return KG_OK;
}

kg_status kg_eval_bootstrap(struct kg_eval_bounds *out, double *resampled,
                            kg_eval_statistic statistic, const double *x, size_t n,
                            uint32_t set, struct kg_err *err)
{
    const struct strata all = {.size = &n, .n = 1, .total = n};

    return bootstrap(out, resampled, statistic, x, &all, set, err);
}

kg_status kg_eval_bootstrap_strata(struct kg_eval_bounds *out,
                                   kg_eval_statistic statistic, const double *x,
                                   const size_t *size, size_t n_strata,
                                   struct kg_err *err)
{
    struct strata of = {.size = size, .n = n_strata};

    for (size_t s = 0; s < n_strata; s++)
        of.total += size[s];
    return bootstrap(out, NULL, statistic, x, &of, 0, err);
}

kg_status kg_eval_holm(double *p, size_t n, struct kg_err *err)
{
    if (n == 0)
        return KG_OK;
    double *sorted = kg_mem_calloc(n, sizeof *sorted, "p-values", err);

    if (!sorted)
        return err->code;
    memcpy(sorted, p, n * sizeof *sorted);
    kg_sort_doubles(sorted, n);
    for (size_t j = 0; j < n; j++) {
        double most = 0;

        for (size_t i = 0; i < n && sorted[i] <= p[j]; i++)
            most = fmax(most, fmin(1, sorted[i] * (double)(n - i)));
        p[j] = most;
    }
    kg_mem_free(sorted);
    return KG_OK;
}
