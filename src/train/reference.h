/* A second checkpoint beside the one that is trained: an anchor, a teacher, what
 * validation measures the KL to.
 *
 * Log-probs of two models are compared id by id, so the ids must mean the same: the
 * vocabularies of config.json are as long, and both tokenizers give every id the same
 * bytes. Shapes may differ.
 */
#ifndef KG_TRAIN_REFERENCE_H
#define KG_TRAIN_REFERENCE_H

#include "base/status.h"
#include "model/model.h"
#include "text/tokenizer.h"

/* Open the checkpoint at dir, which the option `key` names, for models of m's vocabulary
 * and compute type, on its backend.   opts: what else it is
 * errors: those of opening; ECONFLICT with the key and what differs */
kg_status kg_reference_open(struct kg_model **out, const char *dir, const char *key,
                            const struct kg_model *m, const struct kg_tokenizer *tok,
                            const struct kg_model_opts *opts,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
