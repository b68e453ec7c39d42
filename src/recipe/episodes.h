/* From a recipe to the options of episodes. */
#ifndef KG_RECIPE_EPISODES_H
#define KG_RECIPE_EPISODES_H

#include "recipe/options.h"

/* The options under episode and search; env NULL without an environment.
 * errors: ENOTFOUND (the environment), EINVAL (a retriever without a use for it, or none
 * where one is needed; a limit at or above the context) */
kg_status kg_episodes_from_recipe(struct kg_episode_opts *opts, const struct kg_recipe *r,
                                  struct kg_err *err) KG_MUST_CHECK;

/* The most tokens that the model may write in one answer: of one turn, or of all turns of
 * an episode. */
int64_t kg_recipe_answer_tokens(const struct kg_recipe *r);

#endif
