/* Resolves names in a recipe when a run begins and writes the results into its config, so
 * that the names mean the same on resume. init.from becomes a checkpoint
 * (train/open/init.h); ORG/NAME and hf://ORG/NAME/FILE of the hub's cache (data/hub.h)
 * get @COMMIT; an empty data.date becomes the day of the start if the chat template uses
 * the date. */
#ifndef KG_TRAIN_PIN_H
#define KG_TRAIN_PIN_H

#include "base/status.h"
#include "recipe/options.h"
#include "text/chat_template.h"

#include <stdbool.h>

/* Resolves all these names. On resume, names without @REVISION and the day are taken from
 * run.dir's config.yaml, not from newer downloads; other revisions are compared with that
 * file, as all keys are. today: the day of the start, the same on all ranks
 * errors: those of kg_init_pin, kg_hub_find_model and kg_hub_find_file, with the key */
kg_status kg_pin(struct kg_config *config, bool resume, struct kg_chat_day today,
                 struct kg_err *err) KG_MUST_CHECK;
/* Resolves only the hub's names, for an existing run's config.   errors: as kg_pin */
kg_status kg_pin_names(struct kg_config *config, struct kg_err *err) KG_MUST_CHECK;

#endif
