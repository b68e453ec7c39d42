/* From a recipe to the options of episodes. */
#ifndef KG_RECIPE_EPISODES_H
#define KG_RECIPE_EPISODES_H

#include "recipe/options.h"

/* The options of sections episode and search; env NULL without an environment.
 * errors: ENOTFOUND (the environment), EINVAL (a retriever without use, or a missing one;
 * a limit at or above the context) */
kg_status kg_episodes_from_recipe(struct kg_episode_opts *opts, const struct kg_recipe *r,
                                  struct kg_err *err) KG_MUST_CHECK;

/* Maximum number of tokens that the model may write in one completion, or in all turns of
 * an episode. */
int64_t kg_recipe_answer_tokens(const struct kg_recipe *r);

#endif
