/* Inside of struct kg_tokenizer, shared by the kinds. Nothing outside src/text sees it.
 *
 * Every kind fills `vocab`, so decoding is the same for all: the bytes of the ids, one
 * after the other. A kind differs in how it is read and how it encodes; tokenizer.json
 * and tokenizer.model are two files for one way of encoding.
 */
#ifndef KG_TEXT_TOKENIZER_INTERNAL_H
#define KG_TEXT_TOKENIZER_INTERNAL_H

#include "data/json.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/cut.h"
#include "text/models.h"
#include "text/normalizer.h"
#include "text/tokenizer.h"
#include "text/vocab.h"
#include "text/wordpiece.h"

/* The patterns of ByteLevel with use_regex, of Qwen2 (the trainer's), of Llama 3. */
extern const char KG_PATTERN_GPT2[];
extern const char KG_PATTERN_QWEN2[];
extern const char KG_PATTERN_LLAMA3[];

/* U+2581, which SentencePiece writes for a space. */
#define KG_SPACE_MARK "\xE2\x96\x81"

/* What a tokenizer is read from. All borrowed. */
struct kg_tokenizer_file {
    const char *bytes;
    size_t n;
    const char *where;
    const struct kg_json *config; /* tokenizer_config.json; NULL when there is none */
};

/* A row of the table in tokenizer.c. parse fills a zeroed tokenizer; what it leaves on
 * failure is released by the caller. encode gets valid UTF-8; what it appended before a
 * failure is cut off by the caller. */
struct kg_tokenizer_kind {
    const char *name; /* where no model has one */
    const char *file; /* in the model folder */
    kg_status (*parse)(struct kg_tokenizer *tok, const struct kg_tokenizer_file *file,
                       struct kg_err *err);
    kg_status (*encode)(struct kg_ids *out, const struct kg_tokenizer *tok,
                        const char *text, size_t n, struct kg_encode_opts opts,
                        struct kg_err *err);
};

kg_status kg_json_tokenizer_parse(struct kg_tokenizer *tok,
                                  const struct kg_tokenizer_file *file,
                                  struct kg_err *err) KG_MUST_CHECK;
/* tokenizer.model: SentencePiece's or tiktoken's, told apart by its first byte. */
kg_status kg_pieces_parse(struct kg_tokenizer *tok, const struct kg_tokenizer_file *file,
                          struct kg_err *err) KG_MUST_CHECK;
/* Through the whole pipeline (encode.c). */
kg_status kg_pipeline_encode(struct kg_ids *out, const struct kg_tokenizer *tok,
                             const char *text, size_t n, struct kg_encode_opts opts,
                             struct kg_err *err) KG_MUST_CHECK;
kg_status kg_chars_parse(struct kg_tokenizer *tok, const struct kg_tokenizer_file *file,
                         struct kg_err *err) KG_MUST_CHECK;
kg_status kg_chars_encode(struct kg_ids *out, const struct kg_tokenizer *tok,
                          const char *text, size_t n, struct kg_encode_opts opts,
                          struct kg_err *err) KG_MUST_CHECK;

/* Room for n ids in all.   errors: ENOMEM */
kg_status kg_ids_reserve(struct kg_ids *ids, size_t n, struct kg_err *err) KG_MUST_CHECK;

/* A step of pre-tokenization. */
enum kg_pretoken_kind {
    KG_PRETOKEN_CUT,   /* pieces */
    KG_PRETOKEN_SPACE, /* a space in front of what lacks one */
    KG_PRETOKEN_MARK,  /* a mark for every space, and one in front of what lacks one */
};
enum kg_mark_front { KG_MARK_ALWAYS, KG_MARK_FIRST, KG_MARK_NEVER };
struct kg_pretoken_stage {
    enum kg_pretoken_kind kind;
    struct kg_cutter cut;     /* owned; of CUT */
    struct kg_str mark;       /* owned; of MARK, as are the next two */
    enum kg_mark_front front; /* FIRST: at the beginning of the text alone */
    bool split;               /* cut before every mark */
};
enum { KG_MAX_STAGES = 16 };

/* In place of the id of the unknown token. */
enum {
    KG_NO_UNKNOWN = -1,   /* there is none: what is unknown is left out */
    KG_LOST_UNKNOWN = -2, /* it is no token: what is unknown is an error */
};

struct kg_tokenizer {
    const struct kg_tokenizer_kind *kind;
    struct kg_vocab vocab;
    /* ids from vocab.n_ids to here are rows of the model without text */
    int32_t n_padded;
    int32_t eos; /* -1 when not known */

    int32_t lead; /* spaces of a text's first token that stand for nothing in it */

    /* all below: not of chars */
    const struct kg_model *model;
    int32_t unknown;       /* an id, or one of the above */
    bool fuse_unknown;     /* several in a row are one token */
    bool byte_fallback;    /* what is unknown is its bytes, where each has a token */
    int32_t byte_ids[256]; /* -1: the vocabulary lacks that byte */
    struct kg_merges merges;
    /* BPE: merging begins with characters, else with bytes. */
    bool by_char;
    bool ignore_merges; /* BPE: a pre-token that is a token needs no merging */
    struct kg_wordpiece wordpiece;
    struct kg_unigram unigram;
    struct kg_normalizer normalizer;
    struct kg_pretoken_stage stages[KG_MAX_STAGES];
    size_t n_stages;
    struct kg_added raw;        /* looked for in the text as it is */
    struct kg_added normalized; /* looked for after normalizing */
    struct kg_ids prefix;       /* of the post-processor */
    struct kg_ids suffix;
};

#endif
