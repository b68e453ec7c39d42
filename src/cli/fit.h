/* The device memory that a model takes, and what fits into it: see fit.c. */
#ifndef KG_CLI_FIT_H
#define KG_CLI_FIT_H

#include "base/str.h"
#include "cli/load.h"

#include <stdbool.h>

/* "141GB", "80GiB".   errors: EINVAL, naming the flag */
kg_status kg_fit_read_size(uint64_t *bytes, const char *flag, const char *text,
                           struct kg_err *err) KG_MUST_CHECK;

/* Appends a line or a JSON object each about generating, serving and training with the
 * model in args->dir; config.json is sufficient. The device is the GPU in args, or if
 * size is given a GPU of that memory, which need not be present.
 * errors: EINVAL (a malformed size; a device that uses host memory), those of the config
 * and of the device */
kg_status kg_fit_say(struct kg_str *out, const struct kg_load_args *args,
                     const char *size, bool json, struct kg_err *err) KG_MUST_CHECK;

#endif
