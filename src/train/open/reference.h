/* A second checkpoint besides the trained one: an anchor, a teacher, or the reference of
 * validation's KL.
 *
 * Log-probs of both models are compared id by id, so ids must have the same meaning:
 * equal vocab_size in config.json, and tokenizers that give every id the same bytes.
 * Shapes may differ.
 */
#ifndef KG_TRAIN_REFERENCE_H
#define KG_TRAIN_REFERENCE_H

#include "base/status.h"
#include "model/model.h"
#include "text/tokenizer.h"

/* Opens the checkpoint at dir, named by option `key`, with m's vocabulary and compute
 * type, on its backend. opts: its other settings
 * errors: those of opening; ECONFLICT with the key and the difference */
kg_status kg_reference_open(struct kg_model **out, const char *dir, const char *key,
                            const struct kg_model *m, const struct kg_tokenizer *tok,
                            const struct kg_model_opts *opts,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
