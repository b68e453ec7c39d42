/* From a config to the algorithm of a run: choices, checks against what the run can
 * supply. */
#ifndef KG_RECIPE_ALGO_H
#define KG_RECIPE_ALGO_H

#include "data/options.h"
#include "policy/algo.h"
#include "recipe/options.h"

/* config: what the recipe was read from, to say where a refused value is from
 * vocab: of the model; a Top-k KL with k at or above it becomes the exact KL, with one
 * logged line.
 * errors: those of kg_algo_set and kg_algo_check */
kg_status kg_algo_from_recipe(struct kg_algo *algo, const struct kg_recipe *r,
                              const struct kg_config *config, int64_t vocab,
                              struct kg_err *err) KG_MUST_CHECK;

/* Whether a key of a config (or an assignment to it) is about the algorithm and not about
 * the run around it: algo, kl, anchor. */
bool kg_config_of_algorithm(const char *key);

/* Whether the policy that is updated may be another one than the policy that sampled. */
bool kg_recipe_off_policy(const struct kg_recipe *r);

/* The choices in one line, for the user. */
kg_status kg_recipe_algorithm(struct kg_str *out, const struct kg_recipe *r,
                              struct kg_err *err) KG_MUST_CHECK;

/* Whether the sampler of this run truncates the distribution. */
bool kg_recipe_truncates(const struct kg_recipe *r);
/* Whether it records what it kept, so that ratios are of the policies renormalised on it.
 * A reproduction does not: its ratios are of the full softmax, as those that it
 * reproduces. */
bool kg_recipe_records_kept(const struct kg_recipe *r);
/* Whether a micro-batch computes what its sequences begin with in common once: not where
 * train.router_aux has a loss over every token of each. */
bool kg_recipe_shares(const struct kg_recipe *r);

#endif
