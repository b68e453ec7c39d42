/* The members of struct kg_tokenizer, shared by the kinds. Internal to src/text and to
 * the guests that add a model.
 *
 * Every kind fills `vocab`, so all kinds decode alike: they append the bytes of each id.
 * Kinds differ in reading and encoding; tokenizer.json and tokenizer.model are two file
 * formats with one encoder.
 */
#ifndef KG_TEXT_TOKENIZER_INTERNAL_H
#define KG_TEXT_TOKENIZER_INTERNAL_H

#include "data/json.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/cut.h"
#include "text/normalizer.h"
#include "text/tokenizer.h"
#include "text/unigram.h"
#include "text/vocab.h"

/* Patterns of ByteLevel with use_regex, Qwen2 (used by the trainer) and Llama 3. */
extern const char KG_PATTERN_GPT2[];
extern const char KG_PATTERN_QWEN2[];
extern const char KG_PATTERN_LLAMA3[];

/* U+2581, SentencePiece's mark for a space. */
#define KG_SPACE_MARK "\xE2\x96\x81"

/* Input of a parser. All borrowed. */
struct kg_tokenizer_file {
    const char *bytes;
    size_t n;
    const char *where;
    const struct kg_json *config; /* tokenizer_config.json; NULL if absent */
};

/* A row of the table in tokenizer.c. parse fills a zeroed tokenizer; on failure the
 * caller releases it. encode gets valid UTF-8; after a failure the caller truncates its
 * output. */
struct kg_tokenizer_kind {
    const char *name; /* for kg_tokenizer_kind; NULL: the token model's name */
    const char *file; /* file name in the model folder */
    kg_status (*parse)(struct kg_tokenizer *tok, const struct kg_tokenizer_file *file,
                       struct kg_err *err);
    kg_status (*encode)(struct kg_ids *out, const struct kg_tokenizer *tok,
                        const char *text, size_t n, struct kg_encode_opts opts,
                        struct kg_err *err);
};

kg_status kg_json_tokenizer_parse(struct kg_tokenizer *tok,
                                  const struct kg_tokenizer_file *file,
                                  struct kg_err *err) KG_MUST_CHECK;
/* tokenizer.model of SentencePiece or tiktoken, told apart by the first byte. */
kg_status kg_pieces_parse(struct kg_tokenizer *tok, const struct kg_tokenizer_file *file,
                          struct kg_err *err) KG_MUST_CHECK;
/* The whole pipeline (encode.c). */
kg_status kg_pipeline_encode(struct kg_ids *out, const struct kg_tokenizer *tok,
                             const char *text, size_t n, struct kg_encode_opts opts,
                             struct kg_err *err) KG_MUST_CHECK;
kg_status kg_chars_parse(struct kg_tokenizer *tok, const struct kg_tokenizer_file *file,
                         struct kg_err *err) KG_MUST_CHECK;
kg_status kg_chars_encode(struct kg_ids *out, const struct kg_tokenizer *tok,
                          const char *text, size_t n, struct kg_encode_opts opts,
                          struct kg_err *err) KG_MUST_CHECK;

/* Reserves memory for n ids in total.   errors: ENOMEM */
kg_status kg_ids_reserve(struct kg_ids *ids, size_t n, struct kg_err *err) KG_MUST_CHECK;

/* A step of pre-tokenization. */
enum kg_pretoken_kind {
    KG_PRETOKEN_CUT,   /* splits into pieces */
    KG_PRETOKEN_SPACE, /* puts a space before text that begins with none */
    KG_PRETOKEN_MARK,  /* replaces every space by a mark, and puts a mark first */
};
enum kg_mark_front { KG_MARK_ALWAYS, KG_MARK_FIRST, KG_MARK_NEVER };
struct kg_pretoken_stage {
    enum kg_pretoken_kind kind;
    struct kg_cutter cut;     /* owned; CUT only */
    struct kg_str mark;       /* owned; MARK only */
    enum kg_mark_front front; /* MARK only; FIRST: only at the beginning of the text */
    bool split;               /* MARK only: cut before every mark */
};
enum { KG_MAX_STAGES = 16 };

/* Values of kg_tokenizer.unknown that are not an id. */
enum {
    KG_NO_UNKNOWN = -1,   /* no unknown token: BPE drops unknown text, others fail */
    KG_LOST_UNKNOWN = -2, /* the unknown token has no id: unknown text is an error */
};

struct kg_tokenizer {
    const struct kg_tokenizer_kind *kind;
    struct kg_vocab vocab;
    /* ids from vocab.n_ids up to here are model rows without text */
    int32_t n_padded;
    int32_t eos; /* -1: unknown */

    int32_t lead; /* most leading spaces to drop from a text's first token in decoding */

    /* the kind chars uses nothing below */
    const struct kg_token_model *model;
    void *own;             /* the model's own data; owned, or NULL */
    int32_t unknown;       /* an id, KG_NO_UNKNOWN or KG_LOST_UNKNOWN */
    bool fuse_unknown;     /* adjacent unknown characters become one token */
    bool byte_fallback;    /* unknown text becomes its bytes, if each byte has a token */
    int32_t byte_ids[256]; /* -1: the vocabulary lacks that byte */
    struct kg_merges merges;
    /* BPE: merging starts from characters; else from bytes */
    bool by_char;
    bool ignore_merges; /* BPE: a pre-token that is a token is not merged */
    struct kg_normalizer normalizer;
    struct kg_pretoken_stage stages[KG_MAX_STAGES];
    size_t n_stages;
    struct kg_added raw;        /* searched in the original text */
    struct kg_added normalized; /* searched after normalizing */
    struct kg_ids prefix;       /* ids that the post-processor puts before a text */
    struct kg_ids suffix;       /* and after it */
};

struct kg_reader;

/* The models of tokenizer.json, which turn a pre-token into tokens.
 *
 * A row of the table in tokenizer_json.c tells how the model's object is read, how it
 * encodes, and how its own data is freed. A guest may define a row (base/status.h).
 */

/* Working memory of one thread. {0} is ready. */
struct kg_token_work {
    struct kg_bpe_scratch bpe;
    struct kg_unigram_work unigram;
    struct kg_str text;
};
void kg_token_work_release(struct kg_token_work *work);

struct kg_token_model {
    const char *name; /* name returned by kg_tokenizer_kind */
    /* added: the file's added tokens, which also have ids */
    kg_status (*read)(struct kg_reader *r, const struct kg_json *model,
                      const struct kg_json *added);
    /* Appends the ids of n >= 1 bytes of valid UTF-8. */
    kg_status (*encode)(struct kg_ids *out, const struct kg_tokenizer *tok,
                        const char *text, size_t n, struct kg_token_work *work,
                        struct kg_err *err);
    void (*free)(void *own); /* frees kg_tokenizer.own, if any; NULL: has none */
};
extern const struct kg_token_model KG_MODEL_BPE;
extern const struct kg_token_model KG_MODEL_UNIGRAM;
extern const struct kg_token_model KG_MODEL_WORDPIECE KG_GUEST;

/* Fails with EFORMAT: the text has no token, and there is no unknown token. */
kg_status kg_model_no_unknown(const char *text, size_t n, struct kg_err *err);

#endif
