/* Masks: an answer whose policy has moved too far from the one that sampled it loses its
 * policy term, whatever the surrogate; so do single tokens on which trainer and sampler
 * disagree (icepop, a bound of the weight that loss.c applies).
 *
 * The divergence of an answer is estimated from its sampled tokens, r = p / mu, and is a
 * constant of the gradient. The KL term, the entropy and the counts that the aggregation
 * divides by stay as they are.
 */
#include "base/real.h"
#include "policy/policy_internal.h"

#include <math.h>

enum { LOG_RATIO_MAX = 20 };

static double log_ratio(const struct kg_pg_in *in)
{
    double x = in->logp - in->mu;

    return fmax(fmin(x, LOG_RATIO_MAX), -LOG_RATIO_MAX);
}

/* max_t (log r_t)^2 / 2: far in either direction at one token is enough */
static double largest_k2(const struct kg_pg_in *in, int64_t n)
{
    double most = 0;

    for (int64_t t = 0; t < n; t++) {
        double x = log_ratio(&in[t]);

        most = fmax(most, x * x / 2);
    }
    return most;
}

/* mean_t (r_t - 1 - log r_t), unbiased for KL(mu||p) */
static double mean_k3(const struct kg_pg_in *in, int64_t n)
{
    double sum = 0;

    for (int64_t t = 0; t < n; t++) {
        double x = log_ratio(&in[t]);

        sum += kg_expm1(x) - x;
    }
    return sum / (double)n;
}

/* mean_t -log r_t, unbiased for KL(mu||p) too, and negative where p likes the answer
 * more */
static double mean_k1(const struct kg_pg_in *in, int64_t n)
{
    double sum = 0;

    for (int64_t t = 0; t < n; t++)
        sum -= log_ratio(&in[t]);
    return sum / (double)n;
}

/* The same from the old policy, which is the sampler unless its log-probs are
 * recomputed */
static double mean_k1_old(const struct kg_pg_in *in, int64_t n)
{
    double sum = 0;

    for (int64_t t = 0; t < n; t++)
        sum += fmax(fmin(in[t].old - in[t].logp, LOG_RATIO_MAX), -LOG_RATIO_MAX);
    return sum / (double)n;
}

#define TRM "Li et al. 2025, arXiv 2512.23075"
static const struct kg_mask_row rows[] = {
    {{"none", "no answer is masked", "1", "", KG_SCOPE_SEQUENCE, 0, NULL},
     NULL,
     false,
     false},
    {{"trm-max", "trust region masking by the answer's farthest token",
      "1[max_t (log r)^2 / 2 <= delta], r = p/mu", TRM, KG_SCOPE_SEQUENCE, 0,
      "algo.mask_delta"},
     largest_k2,
     false,
     false},
    {{"trm-mean", "trust region masking by the answer's mean divergence",
      "1[mean_t (r - 1 - log r) <= delta], r = p/mu", TRM, KG_SCOPE_SEQUENCE, 0,
      "algo.mask_delta"},
     mean_k3,
     false,
     false},
    {{"off-policy",
      "off-policy sequence masking: completions with A < 0 that the policy has moved "
      "away from",
      "1[A >= 0 or mean_t log(mu/p) <= delta]", "DeepSeek-AI 2025, arXiv 2512.02556",
      KG_SCOPE_SEQUENCE, 0, "algo.mask_delta"},
     mean_k1,
     true,
     false},
    {{"off-policy-old",
      "off-policy with the old policy in the sampler's place, as slime has it",
      "1[A >= 0 or mean_t log(old/p) <= delta]",
      "DeepSeek-AI 2025, arXiv 2512.02556; slime", KG_SCOPE_SEQUENCE, 0,
      "algo.mask_delta"},
     mean_k1_old,
     true,
     false},
    {{"icepop",
      "tokens whose weight old/sampler is outside algo.tis_low .. algo.tis are dropped, "
      "the "
      "others are weighted by it; not for gmpo, where tokens have none of their own",
      "k 1[low <= k <= high], k = old/mu", "Ling Team 2025, arXiv 2510.18855",
      KG_SCOPE_TOKEN, 0, NULL},
     NULL,
     false,
     true},
};

struct kg_policy_rows kg_mask_rows(void)
{
    return (struct kg_policy_rows){rows, KG_COUNT(rows), sizeof rows[0]};
}

double kg_policy_mask(struct kg_pg_out *out, bool *masked, const struct kg_pg_in *in,
                      int64_t n, const struct kg_algo *algo)
{
    double divergence = algo->mask->divergence(in, n);

    *masked = false;
    for (int64_t t = 0; divergence > algo->mask_delta && t < n; t++) {
        if (algo->mask->negative_only && !(in[t].advantage < 0))
            continue;
        out[t].value = out[t].coef = 0;
        out[t].masked = *masked = true;
    }
    return divergence;
}
