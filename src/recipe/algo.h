/* From a config to the algorithm of a run: looks up the rows and checks them against what
 * the run can provide. */
#ifndef KG_RECIPE_ALGO_H
#define KG_RECIPE_ALGO_H

#include "data/options.h"
#include "policy/algo.h"
#include "recipe/options.h"

/* config: the source of the recipe, to locate refused values
 * vocab: of the model; a Top-k KL with k at or above it becomes the exact KL, which is
 * logged.
 * errors: those of kg_algo_set and kg_algo_check */
kg_status kg_algo_from_recipe(struct kg_algo *algo, const struct kg_recipe *r,
                              const struct kg_config *config, int64_t vocab,
                              struct kg_err *err) KG_MUST_CHECK;

/* Whether a key of a config (or an assignment to it) belongs to the algorithm rather than
 * to the run: algo, kl, anchor. */
bool kg_config_of_algorithm(const char *key);

/* Whether the updated policy may differ from the policy that sampled. */
bool kg_recipe_off_policy(const struct kg_recipe *r);

/* Appends a one-line summary for the user. */
kg_status kg_recipe_algorithm(struct kg_str *out, const struct kg_recipe *r,
                              struct kg_err *err) KG_MUST_CHECK;

/* Whether the sampler of this run truncates the distribution. */
bool kg_recipe_truncates(const struct kg_recipe *r);
/* Whether the sampler records the kept sets, so that ratios are of the renormalised
 * policies. A reproduction does not: the runs that it reproduces use ratios of the full
 * softmax. */
bool kg_recipe_records_kept(const struct kg_recipe *r);
/* Whether a micro-batch computes what its sequences begin with in common once: not where
 * train.router_aux has a loss over every token of each. */
bool kg_recipe_shares(const struct kg_recipe *r);

#endif
