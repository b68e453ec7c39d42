/* The models of tokenizer.json, which turn a pre-token into tokens.
 *
 * A row of the table in tokenizer_json.c: how the model's object is read, how it encodes,
 * and what it keeps beside the vocabulary. A guest adds a row (base/guest.h).
 */
#ifndef KG_TEXT_MODELS_H
#define KG_TEXT_MODELS_H

#include "text/bpe.h"
#include "text/tokenizer.h"
#include "text/unigram.h"

struct kg_json;
struct kg_reader;

/* Working memory of one thread. {0} is ready. */
struct kg_model_work {
    struct kg_bpe_scratch bpe;
    struct kg_unigram_work unigram;
    struct kg_str text;
};
void kg_model_work_release(struct kg_model_work *work);

struct kg_model {
    const char *name; /* name returned by kg_tokenizer_kind */
    /* added: the file's added tokens, which also have ids */
    kg_status (*read)(struct kg_reader *r, const struct kg_json *model,
                      const struct kg_json *added);
    /* Appends the ids of n >= 1 bytes of valid UTF-8. */
    kg_status (*encode)(struct kg_ids *out, const struct kg_tokenizer *tok,
                        const char *text, size_t n, struct kg_model_work *work,
                        struct kg_err *err);
    void (*free)(void *own); /* of kg_tokenizer.own, which may be NULL; NULL: has none */
};
extern const struct kg_model KG_MODEL_BPE;
extern const struct kg_model KG_MODEL_UNIGRAM;
extern const struct kg_model KG_MODEL_WORDPIECE KG_GUEST;

/* errors: EFORMAT: neither this text nor what is unknown has a token */
kg_status kg_model_no_unknown(const char *text, size_t n, struct kg_err *err);

#endif
