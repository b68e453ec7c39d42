/* Keys that act under a condition: which, and refusing what a config gives them where
 * they would do nothing. */
#ifndef KG_RECIPE_EFFECT_H
#define KG_RECIPE_EFFECT_H

#include "base/status.h"
#include "recipe/options.h"

/* A value that is neither the default nor the preset's, of a key that does nothing in
 * this config; one of a recipe that the command line has switched off passes.
 * errors: EINVAL "KEY: acts with ...; expected ..., found ..." */
kg_status kg_effect_check(const struct kg_config *config,
                          struct kg_err *err) KG_MUST_CHECK;
/* The same of supervised training alone (`kedge sft`): keys of RL's updates from the
 * command line, in a run that can have none of these, now or when it goes on.
 * errors: EINVAL */
kg_status kg_effect_check_sft(const struct kg_config *config,
                              struct kg_err *err) KG_MUST_CHECK;

#endif
