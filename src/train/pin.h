/* What a recipe's names stand for when a run begins, written into its config so that a
 * resumed run cannot come to mean another thing by them: init.from becomes a checkpoint
 * (train/init.h), ORG/NAME and hf://ORG/NAME/FILE of the hub's cache (data/hub.h) the
 * same with @COMMIT, and a data.date that is not given the day of the start, where the
 * chat template asks for the day. */
#ifndef KG_TRAIN_PIN_H
#define KG_TRAIN_PIN_H

#include "base/status.h"
#include "recipe/options.h"
#include "text/chat_template.h"

#include <stdbool.h>

/* All of it. On resume a name without @REVISION, and the day, are what config.yaml in
 * run.dir has for them, whatever was fetched since; other revisions are compared with
 * that as every key is.   today: the day of the start, the same on all ranks
 * errors: those of kg_init_pin, kg_hub_find_model and kg_hub_find_file, with the key */
kg_status kg_pin(struct kg_config *config, bool resume, struct kg_chat_day today,
                 struct kg_err *err) KG_MUST_CHECK;
/* The names of the hub's cache alone, of a config that was a run's.   errors: as above */
kg_status kg_pin_names(struct kg_config *config, struct kg_err *err) KG_MUST_CHECK;

#endif
