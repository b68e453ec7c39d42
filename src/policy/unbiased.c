/* The rule behind the table of averages; tree_test.c enumerates every cell of it. Three
 * things decide: whether the row is unbiased for one token at a fixed context, whether
 * its weight depends on the completion, and whether a filter looked at the completion
 * first. The first two are columns of the tables of KL estimators and aggregations; the
 * filters are listed here. A new row states its claim, and the test, which sums over all
 * completions of a small tree, checks it. */
#include "policy/unbiased.h"

#include "policy/policy_internal.h"

enum kg_average kg_policy_average(size_t kl, bool published, size_t aggregate,
                                  enum kg_policy_filter filter)
{
    const struct kg_policy_about *about = kg_policy_row(KG_TABLE_KL, kl);
    const struct kg_policy_claims *claims = kg_policy_row_claims(KG_TABLE_KL, kl);
    const struct kg_aggregate_row *row = (const void *)kg_policy_row(KG_TABLE_AGGREGATE,
                                                                     aggregate);
    unsigned unbiased = published ? claims->published
                                  : claims->on_policy & claims->off_policy;

    if (claims->target == KG_TARGET_NONE || !(unbiased & KG_UNBIASED_GRADIENT))
        return KG_AVERAGE_BIASED;
    if (about->needs & (KG_NEED_EXACT_REVERSE | KG_NEED_EXACT_FORWARD))
        return KG_AVERAGE_UNBIASED;
    if (filter == KG_FILTER_DYNAMIC || filter == KG_FILTER_TRUNCATED)
        return KG_AVERAGE_BIASED;
    if (filter == KG_FILTER_REFILL && row->average == KG_AVERAGE_UNBIASED &&
        row->divides_by_answers)
        return KG_AVERAGE_FADES;
    return row->average;
}
