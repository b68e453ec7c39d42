/* Encoders of texts, as far as an index needs them: guests/retriever has them.
 */
#ifndef KG_SEARCH_ENCODER_H
#define KG_SEARCH_ENCODER_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct kg_backend;

/* {0}: all as the folder says. */
struct kg_encoder_opts {
    const struct kg_backend *backend; /* NULL: the CPU */
    const char *pooling;              /* mean or cls; NULL: 1_Pooling's */
    /* of a text, special ones too, the rest is left out; 0: max_seq_length of
     * sentence_bert_config.json, or all positions */
    int32_t max_tokens;
    /* NULL: prompts of config_sentence_transformers.json, or none */
    const char *query_prefix;
    const char *passage_prefix;
};

struct kg_encoder; /* opaque; immutable, shared by embedders of all threads */
void kg_encoder_close(
    struct kg_encoder *e) KG_GUEST; /* after its embedders; NULL allowed */

/* An encoder's size, for a plan: of a folder, or of a model that is known by its name and
 * need not be here.   errors: ENOTFOUND (neither), those of its config.json */
struct kg_encoder_outline {
    int32_t dim;
    uint64_t bytes; /* of its weights in memory */
};
kg_status kg_encoder_outline(struct kg_encoder_outline *out, const char *model,
                             struct kg_err *err) KG_GUEST;

struct kg_text {
    const char *bytes; /* UTF-8 */
    size_t n;
};

#endif
