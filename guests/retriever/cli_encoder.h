/* Flags and loading of an encoder, shared by commands. */
#ifndef KG_RETRIEVER_CLI_ENCODER_H
#define KG_RETRIEVER_CLI_ENCODER_H

#include "cli/load.h"
#include "retriever/encoder/encoder.h"

extern struct kg_encoder_opts kg_encoder_how;
extern const struct kg_flag kg_encoder_flags[]; /* --pooling, --max-tokens, .. */

/* Opens the encoder of a folder by the flags, on the device kg_load.device. On a GPU it
 * first logs the memory that it will take.
 * errors: those of kg_load_device and kg_encoder_open, ENOMEM */
kg_status kg_cli_encoder(struct kg_encoder **e, const char *dir,
                         struct kg_err *err) KG_MUST_CHECK;

#endif
