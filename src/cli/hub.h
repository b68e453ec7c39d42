/* Arguments that may name something in the hub's cache (data/hub.h) instead of a folder
 * or file. They are resolved before a command begins, so commands only see paths. */
#ifndef KG_CLI_HUB_H
#define KG_CLI_HUB_H

#include "base/status.h"
#include "cli/cli.h"

/* A flag with this argument name takes a checkpoint folder or ORG/NAME[@REVISION]. */
#define KG_MODEL_ARG "MODEL"

/* Replaces the name by its folder in every flag given with such an argument.   errors:
 * those of kg_hub_find_model, with the flag */
kg_status kg_cli_find_flags(const struct kg_command *c, struct kg_err *err) KG_MUST_CHECK;

/* The same for one argument; NULL stays NULL. The result lives as long as the process.
 * errors: those of kg_hub_find_model, kg_hub_find_file */
kg_status kg_cli_find_model(const char **dir, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_cli_find_file(const char **path, struct kg_err *err) KG_MUST_CHECK;

#endif
