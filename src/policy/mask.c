/* Masks: if the policy has moved too far from the sampler, a completion, or those of its
 * tokens that the row chooses, loses its policy term, for any surrogate. Single tokens on
 * which trainer and sampler disagree lose it too (icepop, a bound of the weight that
 * loss.c applies).
 *
 * The divergence of a completion is estimated from its sampled tokens, r = p / mu, and is
 * a constant of the gradient. The KL term, the entropy and the counts that the
 * aggregation divides by stay as they are.
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

/* max_t (log r_t)^2 / 2: one token that is far off in either direction is enough */
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

/* mean_t -log r_t, unbiased for KL(mu||p) too, negative if p favours the completion */
static double mean_k1(const struct kg_pg_in *in, int64_t n)
{
    double sum = 0;

    for (int64_t t = 0; t < n; t++)
        sum -= log_ratio(&in[t]);
    return sum / (double)n;
}

/* mean_k1 with the old policy, which is the sampler unless old log-probs are
 * recomputed */
static double mean_k1_old(const struct kg_pg_in *in, int64_t n)
{
    double sum = 0;

    for (int64_t t = 0; t < n; t++)
        sum += fmax(fmin(in[t].old - in[t].logp, LOG_RATIO_MAX), -LOG_RATIO_MAX);
    return sum / (double)n;
}

/* mean_t |r_t - 1| / 2, unbiased for TV(mu, p) */
static double mean_tv(const struct kg_pg_in *in, int64_t n)
{
    double sum = 0;

    for (int64_t t = 0; t < n; t++)
        sum += fabs(kg_expm1(log_ratio(&in[t]))) / 2;
    return sum / (double)n;
}

static double log_weight(const struct kg_pg_in *in)
{
    return fmax(fmin(in->old - in->mu, LOG_RATIO_MAX), -LOG_RATIO_MAX);
}

/* mean_t |k_t - 1|, k = old/mu: unbiased for twice TV(mu, old) */
static double mean_gap_old(const struct kg_pg_in *in, int64_t n)
{
    double sum = 0;

    for (int64_t t = 0; t < n; t++)
        sum += fabs(kg_expm1(log_weight(&in[t])));
    return sum / (double)n;
}

/* ---- tokens that lose their term ---- */

static bool is_wrong(const struct kg_pg_in *in) { return in->advantage < 0; }

static bool leads_away(const struct kg_pg_in *in)
{
    return in->advantage * log_ratio(in) > 0;
}

static bool leads_away_old(const struct kg_pg_in *in)
{
    return in->advantage * log_weight(in) > 0;
}

#define VACO "Honari et al. 2026, arXiv 2603.01365"
#define TRM  "Li et al. 2025, arXiv 2512.23075"
static const struct kg_mask_row rows[] = {
    {.about = {"none", "no completion is masked", "1", "", KG_SCOPE_SEQUENCE, 0, NULL}},
    {.about = {"trm-max", "trust region masking by the largest divergence of a token",
               "1[max_t (log r)^2 / 2 <= delta], r = p/mu", TRM, KG_SCOPE_SEQUENCE, 0,
               "algo.mask_delta"},
     .divergence = largest_k2},
    {.about = {"trm-mean", "trust region masking by the mean divergence",
               "1[mean_t (r - 1 - log r) <= delta], r = p/mu", TRM, KG_SCOPE_SEQUENCE, 0,
               "algo.mask_delta"},
     .divergence = mean_k3},
    {.about = {"off-policy",
               "off-policy sequence masking: drops completions with A < 0 from which the "
               "policy has moved away",
               "1[A >= 0 or mean_t log(mu/p) <= delta]",
               "DeepSeek-AI 2025, arXiv 2512.02556", KG_SCOPE_SEQUENCE, 0,
               "algo.mask_delta"},
     .divergence = mean_k1,
     .takes = is_wrong},
    {.about = {"off-policy-old",
               "off-policy with the old policy instead of the sampler, as in slime",
               "1[A >= 0 or mean_t log(old/p) <= delta]",
               "DeepSeek-AI 2025, arXiv 2512.02556; slime", KG_SCOPE_SEQUENCE, 0,
               "algo.mask_delta"},
     .divergence = mean_k1_old,
     .takes = is_wrong},
    {.about = {"vaco",
               "masks the tokens that A pushes further from the sampler, in completions "
               "whose total variation from the sampler exceeds the bound",
               "1[A (r - 1) <= 0 or mean_t |r - 1| / 2 <= delta], r = p/mu", VACO,
               KG_SCOPE_SEQUENCE, 0, "algo.mask_delta"},
     .divergence = mean_tv,
     .takes = leads_away,
     .single = true},
    {.about = {"vaco-old",
               "vaco with the old policy instead of p, bound on the mean of |k - 1|, as "
               "in open-instruct",
               "1[A (k - 1) <= 0 or mean_t |k - 1| <= delta], k = old/mu",
               VACO "; open-instruct, pull request 1681", KG_SCOPE_SEQUENCE, 0,
               "algo.mask_delta"},
     .divergence = mean_gap_old,
     .takes = leads_away_old,
     .single = true,
     .of_weight = true},
    {.about = {"icepop",
               "tokens whose weight old/sampler is outside algo.tis_low .. algo.tis are "
               "dropped; the weight applies to the others; not for gmpo, which has no "
               "weight per token",
               "k 1[low <= k <= high], k = old/mu", "Ling Team 2025, arXiv 2510.18855",
               KG_SCOPE_TOKEN, 0, NULL},
     .single = true,
     .of_weight = true,
     .pops = true},
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
        if (algo->mask->takes && !algo->mask->takes(&in[t]))
            continue;
        out[t].value = out[t].coef = 0;
        out[t].masked = *masked = true;
    }
    return divergence;
}
