/* Whether an unbiased gradient estimator stays unbiased when averaged over samples.
 *
 * A KL row that is unbiased at a fixed context (struct kg_policy_claims) is averaged with
 * weights. If a weight depends on the sample itself, through its length or through a
 * filter, then the term and its weight are dependent, and the average is biased. Terms
 * that do not depend on the sampled token (the exact KL) keep their direction.
 */
#ifndef KG_POLICY_UNBIASED_H
#define KG_POLICY_UNBIASED_H

#include "policy/algo.h"

#include <stdbool.h>
#include <stddef.h>

/* The samples that the KL is taken over. The last two need kl.after_filter; without it
 * the KL includes dropped samples and behaves as under NONE, or as under REFILL with
 * dynamic sampling. */
enum kg_policy_filter {
    KG_FILTER_NONE,
    /* all samples that dynamic sampling drew until enough groups differed: their number
     * depends on the samples */
    KG_FILTER_REFILL,
    KG_FILTER_DYNAMIC,   /* groups whose rewards differ */
    KG_FILTER_TRUNCATED, /* samples that ended before the limit */
    KG_FILTER_COUNT
};

/* How the expected gradient compares with the sum over contexts of the context's expected
 * weight times the exact KL's gradient there. */
enum kg_average {
    KG_AVERAGE_BIASED,
    KG_AVERAGE_FADES, /* biased by O(1/N), N samples in the batch */
    KG_AVERAGE_UNBIASED
};

/* Classifies the average that the KL row and the aggregation row with these indices form
 * under `filter`. published: with kl.gradient=published, for KL rows that have both
 * forms. A KL row that claims no target is KG_AVERAGE_BIASED. */
enum kg_average kg_policy_average(size_t kl, bool published, size_t aggregate,
                                  enum kg_policy_filter filter);

#endif
