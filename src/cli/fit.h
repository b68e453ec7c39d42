/* What a model takes of a device's memory, and what of it fits: see fit.c. */
#ifndef KG_CLI_FIT_H
#define KG_CLI_FIT_H

#include "base/str.h"
#include "cli/load.h"

#include <stdbool.h>

/* "141GB", "80GiB".   errors: EINVAL, naming the flag */
kg_status kg_fit_read_size(uint64_t *bytes, const char *flag, const char *text,
                           struct kg_err *err) KG_MUST_CHECK;

/* Append a line or a JSON object of generating, serving and training by the model of
 * args->dir, of which config.json is enough: on the GPU that args names, or where size is
 * given on one that need not be there.
 * errors: EINVAL (a size that is none; a device whose memory is the host's), those of the
 * config and of the device */
kg_status kg_fit_say(struct kg_str *out, const struct kg_load_args *args,
                     const char *size, bool json, struct kg_err *err) KG_MUST_CHECK;

#endif
