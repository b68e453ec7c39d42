/* Arguments that may name something in the hub's cache (data/hub.h) instead of a folder
 * or a file: found once, before a command begins, which then knows paths alone. */
#ifndef KG_CLI_HUB_H
#define KG_CLI_HUB_H

#include "base/status.h"
#include "cli/cli.h"

/* A flag whose argument is called so takes a checkpoint folder or ORG/NAME[@REVISION]. */
#define KG_MODEL_ARG "MODEL"

/* Put the folder in the place of the name, in every flag of the command that was given
 * and has such an argument.   errors: those of kg_hub_find_model, with the flag */
kg_status kg_cli_find_flags(const struct kg_command *c, struct kg_err *err) KG_MUST_CHECK;

/* The same of one argument; NULL stays NULL. What it becomes lives as long as the
 * process.
 * errors: those of kg_hub_find_model, kg_hub_find_file */
kg_status kg_cli_find_model(const char **dir, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_cli_find_file(const char **path, struct kg_err *err) KG_MUST_CHECK;

#endif
