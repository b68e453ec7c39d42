/* Keys that have an effect only under a condition. Setting one without effect is an
 * error. */
#ifndef KG_RECIPE_EFFECT_H
#define KG_RECIPE_EFFECT_H

#include "base/status.h"
#include "recipe/options.h"

/* Refuses a value that is neither the default nor the preset's, of a key without effect
 * in this config. A key of the recipe that the command line disabled is accepted.
 * errors: EINVAL "KEY: acts only with ...; expected ..., found ..." */
kg_status kg_effect_check(const struct kg_config *config,
                          struct kg_err *err) KG_MUST_CHECK;
/* The same for SFT alone (`kedge sft`): refuses keys of RL updates on the command line if
 * the run has no RL updates, now or when resumed.
 * errors: EINVAL */
kg_status kg_effect_check_sft(const struct kg_config *config,
                              struct kg_err *err) KG_MUST_CHECK;

#endif
