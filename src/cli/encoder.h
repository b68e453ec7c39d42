/* What commands on an encoder share: how it makes a vector of a text, by flags. */
#ifndef KG_CLI_ENCODER_H
#define KG_CLI_ENCODER_H

#include "cli/cli.h"
#include "search/encoder.h"

extern struct kg_encoder_opts kg_encoder_how;
extern const struct kg_flag kg_encoder_flags[]; /* --pooling, --max-tokens, .. */

/* The encoder of a folder, as the flags say, on what kg_load.device names. Of a GPU the
 * log says what the encoder takes of its memory, before anything is taken.
 * errors: those of kg_load_device and kg_encoder_open, ENOMEM */
kg_status kg_cli_encoder(struct kg_encoder **e, const char *dir,
                         struct kg_err *err) KG_GUEST;

#endif
