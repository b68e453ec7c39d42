/* Inside of struct kg_tokenizer, shared by the kinds. Nothing outside src/text sees it.
 *
 * Every kind fills `vocab`, so decoding is the same for all: the bytes of the ids, one
 * after the other. A kind differs in how it is read and how it encodes.
 */
#ifndef KG_TEXT_TOKENIZER_INTERNAL_H
#define KG_TEXT_TOKENIZER_INTERNAL_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/pretoken.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

/* The pattern of ByteLevel with use_regex, and the one of Qwen2, which the trainer
 * uses. */
extern const char KG_PATTERN_GPT2[];
extern const char KG_PATTERN_QWEN2[];

/* A row of the table in tokenizer.c. parse fills a zeroed tokenizer; what it leaves on
 * failure is released by the caller. encode gets valid UTF-8; what it appended before a
 * failure is cut off by the caller. */
struct kg_tokenizer_kind {
    const char *name;
    const char *file; /* in the model folder */
    kg_status (*parse)(struct kg_tokenizer *tok, const char *json, size_t n,
                       const char *where, struct kg_err *err);
    kg_status (*encode)(struct kg_ids *out, const struct kg_tokenizer *tok,
                        const char *text, size_t n, struct kg_encode_opts opts,
                        struct kg_err *err);
};

kg_status kg_bpe_parse(struct kg_tokenizer *tok, const char *json, size_t n,
                       const char *where, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_bpe_encode(struct kg_ids *out, const struct kg_tokenizer *tok,
                        const char *text, size_t n, struct kg_encode_opts opts,
                        struct kg_err *err) KG_MUST_CHECK;
kg_status kg_chars_parse(struct kg_tokenizer *tok, const char *json, size_t n,
                         const char *where, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_chars_encode(struct kg_ids *out, const struct kg_tokenizer *tok,
                          const char *text, size_t n, struct kg_encode_opts opts,
                          struct kg_err *err) KG_MUST_CHECK;

/* Room for n ids in all.   errors: ENOMEM */
kg_status kg_ids_reserve(struct kg_ids *ids, size_t n, struct kg_err *err) KG_MUST_CHECK;

/* A step of pre-tokenization: cut by a pattern, or put a space in front. */
struct kg_pretoken_stage {
    /* owned; NULL: the step that puts a space in front of what lacks one */
    struct kg_pretoken *pattern;
};
enum { KG_MAX_STAGES = 8 };

struct kg_tokenizer {
    const struct kg_tokenizer_kind *kind;
    struct kg_vocab vocab;
    /* ids from vocab.n_ids to here are rows of the model without text */
    int32_t n_padded;
    int32_t eos; /* -1 when not known */

    /* bpe alone */
    struct kg_merges merges;
    int32_t byte_ids[256]; /* -1: the vocabulary lacks that byte */
    bool ignore_merges;    /* a pre-token that is a token needs no merging */
    bool nfc;
    struct kg_pretoken_stage stages[KG_MAX_STAGES];
    size_t n_stages;
    struct kg_added raw;        /* looked for in the text as it is */
    struct kg_added normalized; /* looked for after NFC */
    struct kg_ids prefix;       /* of the post-processor */
    struct kg_ids suffix;
};

#endif
