/* Merges the numbers of two micro-batches: one row per number.
 *
 * A number without a row would silently keep the first micro-batch's value. So the
 * compiler checks that there are as many rows as numbers, and metrics_test.c that no two
 * rows have the same number.
 */
#include "policy/policy_internal.h"

#include <math.h>
#include <stddef.h>

enum how { COUNT, SUM, LEAST, MOST };

struct merged {
    enum how how;
    size_t at;
    size_t among; /* extremes: offset of the count of their values */
};

#define AT(field) offsetof(struct kg_policy_metrics, field)

/* Extremes come first, because they read counts before these are added. */
static const struct merged merged[] = {
    {LEAST, AT(ratio_min), AT(ratios)},
    {MOST, AT(ratio_max), AT(ratios)},
    {LEAST, AT(prob_gap_min), AT(ratios)},
    {MOST, AT(prob_gap_max), AT(ratios)},
    {MOST, AT(gap_max), AT(ratios)},
    {MOST, AT(mismatch_max), AT(ratios)},
    {MOST, AT(divergence_max), AT(ratios)},
    {MOST, AT(gap.abs_max), AT(ratios)},
    {MOST, AT(gap.weight_max), AT(ratios)},
    {MOST, AT(kl_max), AT(kl_tokens)},
    {MOST, AT(iw_max), AT(kl_tokens)},
    {MOST, AT(mask_max), AT(mask_seqs)},
    {.how = COUNT, .at = AT(tokens)},
    {.how = COUNT, .at = AT(seqs)},
    {.how = COUNT, .at = AT(ratios)},
    {.how = COUNT, .at = AT(positive)},
    {.how = COUNT, .at = AT(negative)},
    {.how = COUNT, .at = AT(clip_low)},
    {.how = COUNT, .at = AT(clip_high)},
    {.how = COUNT, .at = AT(clip_dual)},
    {.how = COUNT, .at = AT(outside_low)},
    {.how = COUNT, .at = AT(outside_high)},
    {.how = COUNT, .at = AT(clips)},
    {.how = COUNT, .at = AT(clips_lower)},
    {.how = COUNT, .at = AT(tis_outside)},
    {.how = COUNT, .at = AT(masked_positive)},
    {.how = COUNT, .at = AT(masked_negative)},
    {.how = COUNT, .at = AT(divergence_below_01)},
    {.how = COUNT, .at = AT(divergence_below_05)},
    {.how = COUNT, .at = AT(mask_seqs)},
    {.how = COUNT, .at = AT(mask_dropped)},
    {.how = COUNT, .at = AT(entropy_tokens)},
    {.how = COUNT, .at = AT(kl_tokens)},
    {.how = COUNT, .at = AT(tail_tokens)},
    {.how = SUM, .at = AT(gap.logp_sum)},
    {.how = SUM, .at = AT(gap.mu_sum)},
    {.how = SUM, .at = AT(gap.k3_sum)},
    {.how = SUM, .at = AT(gap.abs_sum)},
    {.how = SUM, .at = AT(gap.abs_sum_sq)},
    {.how = SUM, .at = AT(gap.weight_sum)},
    {.how = SUM, .at = AT(gap.weight_sum_sq)},
    {.how = SUM, .at = AT(dropped[0].p_sum)},
    {.how = SUM, .at = AT(dropped[0].mu_sum)},
    {.how = SUM, .at = AT(dropped[0].ratio_sum)},
    {.how = SUM, .at = AT(dropped[0].entropy_sum)},
    {.how = SUM, .at = AT(dropped[1].p_sum)},
    {.how = SUM, .at = AT(dropped[1].mu_sum)},
    {.how = SUM, .at = AT(dropped[1].ratio_sum)},
    {.how = SUM, .at = AT(dropped[1].entropy_sum)},
    {.how = SUM, .at = AT(ratio_sum)},
    {.how = SUM, .at = AT(ratio_sum_sq)},
    {.how = SUM, .at = AT(k1_sum)},
    {.how = SUM, .at = AT(k3_sum)},
    {.how = SUM, .at = AT(gap_sum)},
    {.how = SUM, .at = AT(mismatch_sum)},
    {.how = SUM, .at = AT(divergence_sum)},
    {.how = SUM, .at = AT(mask_sum)},
    {.how = SUM, .at = AT(entropy_sum)},
    {.how = SUM, .at = AT(kl_sum)},
    {.how = SUM, .at = AT(kl_head_sum)},
    {.how = SUM, .at = AT(kl_tail_sum)},
    {.how = SUM, .at = AT(head_mass_sum)},
    {.how = SUM, .at = AT(iw_sum)},
    {.how = SUM, .at = AT(iw_sum_sq)},
};
enum { N_MERGED = sizeof merged / sizeof *merged };
_Static_assert(sizeof(struct kg_policy_metrics) == N_MERGED * sizeof(double) &&
                   sizeof(double) == sizeof(int64_t),
               "a row for each number");

static int64_t *count(struct kg_policy_metrics *m, size_t at)
{
    return (int64_t *)(void *)((char *)m + at);
}

static double *real(struct kg_policy_metrics *m, size_t at)
{
    return (double *)(void *)((char *)m + at);
}

static void merge_extreme(struct kg_policy_metrics *into, struct kg_policy_metrics *from,
                          const struct merged *m)
{
    double *a = real(into, m->at), b = *real(from, m->at);

    if (*count(from, m->among) == 0)
        return;
    if (*count(into, m->among) == 0)
        *a = b;
    *a = m->how == LEAST ? fmin(*a, b) : fmax(*a, b);
}

void kg_policy_metrics_merge(struct kg_policy_metrics *into,
                             const struct kg_policy_metrics *from)
{
    struct kg_policy_metrics b = *from;

    for (const struct merged *m = merged; m < merged + N_MERGED; m++)
        if (m->how == COUNT)
            *count(into, m->at) += *count(&b, m->at);
        else if (m->how == SUM)
            *real(into, m->at) += *real(&b, m->at);
        else
            merge_extreme(into, &b, m);
}
