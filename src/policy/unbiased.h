/* What is left of an estimator's unbiased gradient once it is averaged over answers.
 *
 * A KL row that is unbiased at a fixed context (struct kg_policy_claims) is averaged with
 * weights. Where these depend on the answer itself, through its length or through a
 * filter that looked at it, what is sampled and its weight are no longer independent.
 * What does not depend on the sampled token (the exact KL) keeps its direction.
 */
#ifndef KG_POLICY_UNBIASED_H
#define KG_POLICY_UNBIASED_H

#include "policy/algo.h"

#include <stdbool.h>
#include <stddef.h>

/* Which answers the KL is of. The last two take kl.after_filter: without it dropped
 * answers stay in the KL, which is then that of none, or of refill under dynamic
 * sampling. */
enum kg_policy_filter {
    KG_FILTER_NONE,
    /* all that dynamic sampling took until enough groups differed: their number depends
     * on what was sampled */
    KG_FILTER_REFILL,
    KG_FILTER_DYNAMIC,   /* groups whose rewards differ */
    KG_FILTER_TRUNCATED, /* answers that ended by themselves */
    KG_FILTER_COUNT
};

/* Is the expected gradient, at every context, that of the exact KL there times the
 * expected weight of the context? */
enum kg_average {
    KG_AVERAGE_BIASED,
    KG_AVERAGE_FADES, /* biased, less the more answers there are in the batch: 1 / N */
    KG_AVERAGE_UNBIASED
};

/* For the KL row and the aggregation row of these indices. published: the form of
 * kl.gradient, of rows that have one.   A row that claims no target is biased. */
enum kg_average kg_policy_average(size_t kl, bool published, size_t aggregate,
                                  enum kg_policy_filter filter);

#endif
