/* The option rows of training: what a recipe may say. The same rows make --help, the
 * resolved config.yaml and the error for a mistyped key. */
#ifndef KG_RECIPE_OPTIONS_H
#define KG_RECIPE_OPTIONS_H

#include "data/options.h"

/* Sections run, model, data, task, rollout, episode, search, algo, kl, anchor, optim,
 * train, sft, eval, checkpoint; ended by key NULL. */
const struct kg_opt_row *kg_train_option_rows(void);

/* A config over these rows with, in this order of strength: defaults, the values of the
 * preset and of what it builds on, the file, the assignments; preset=NAME among these is
 * algo.preset=NAME. path NULL: no file.
 * errors: those of kg_config_load_yaml and kg_config_override; an unknown preset */
kg_status kg_train_config(struct kg_config **config, const char *path,
                          char *const *assignments, size_t n,
                          struct kg_err *err) KG_MUST_CHECK;

/* The same for distillation: a teacher must be named (anchor.path) and the loss has no
 * policy term; a preset of distillation and one answer a prompt stand where nothing was
 * said.
 * errors: as above; EINVAL */
kg_status kg_distill_config(struct kg_config **config, const char *path,
                            char *const *assignments, size_t n,
                            struct kg_err *err) KG_MUST_CHECK;

/* Whether there is a warm start. */
bool kg_config_has_sft(const struct kg_config *c);

#endif
