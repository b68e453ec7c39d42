/* Reading tokenizer files: strict access to JSON in which an unknown key is an error, and
 * the parts that all files with added tokens share. */
#ifndef KG_TEXT_TOKENIZER_READ_H
#define KG_TEXT_TOKENIZER_READ_H

#include "text/tokenizer_internal.h"

struct kg_reader {
    struct kg_tokenizer *tok; /* borrowed */
    const char *where;        /* borrowed; the file, for errors */
    bool spelled;             /* tokens are in ByteLevel's spelling */
    struct kg_str scratch;    /* owned; bytes of the last kg_reader_find */
    struct kg_err *err;

    /* collected from the steps of tokenizer.json so far */
    bool byte_level;      /* the pre-tokenizer has a ByteLevel step */
    bool decodes_spelled; /* the decoder has a ByteLevel step */
    bool has_template;
    struct kg_normalizer texts; /* owned; the decoder's replacements in each token */
    bool decodes_bytes;         /* the decoder has a ByteFallback step */
    bool fused;                 /* the decoder has a Fuse step */
};
void kg_reader_release(struct kg_reader *r);

/* ---- fields ---- */

enum kg_field_rule {
    KG_FIELD_READ,  /* any value: the caller reads it, or it affects no ids or text */
    KG_FIELD_BOOL,  /* the caller reads it; it must be boolean */
    KG_FIELD_EMPTY, /* null or "" */
    KG_FIELD_ZERO,  /* null or 0 */
};
struct kg_field {
    const char *key; /* NULL ends a table */
    enum kg_field_rule rule;
};

/* Fails with EUNSUPPORTED: "FILE: path.key is VALUE, expected ...". */
kg_status kg_reader_refuse(struct kg_reader *r, const char *path, const char *key,
                           const struct kg_json *value,
                           const char *expected) KG_MUST_CHECK;
/* Checks that every key of object is in fields and satisfies its rule. */
kg_status kg_reader_check(struct kg_reader *r, const char *path,
                          const struct kg_json *object,
                          const struct kg_field *fields) KG_MUST_CHECK;
bool kg_reader_has_type(const struct kg_json *object, const char *type);
/* The list at key.   errors: EFORMAT */
kg_status kg_reader_list(struct kg_reader *r, const char *path,
                         const struct kg_json *object, const char *key,
                         const struct kg_json **list) KG_MUST_CHECK;
/* Reads an id.   token: named in the error   errors: EFORMAT */
kg_status kg_reader_id(struct kg_reader *r, const struct kg_json *value,
                       const char *token, int64_t *id) KG_MUST_CHECK;

/* ---- tokens ---- */

/* *id <- the id of a token as spelled in the file, -1 if the vocabulary lacks it. Leaves
 * its bytes in scratch.   *raw <- whether it is a KG_VOCAB_RAW token */
kg_status kg_reader_find(struct kg_reader *r, const char *text, size_t n, int32_t *id,
                         bool *raw) KG_MUST_CHECK;
/* Adds an added token with its flags.   item: of added_tokens, or of
 * added_tokens_decoder, where the key is the id */
kg_status kg_reader_add(struct kg_reader *r, const struct kg_json *item,
                        int64_t id) KG_MUST_CHECK;
/* Fills byte_ids from the byte tokens "<0x0A>"; absent ones are -1. */
kg_status kg_reader_find_bytes(struct kg_reader *r) KG_MUST_CHECK;
/* Call after the last token: sets the text that each token prints, by `texts`; tokens
 * such as "<0x0A>" print a byte if decodes_bytes. */
kg_status kg_reader_set_texts(struct kg_reader *r) KG_MUST_CHECK;

/* ---- the models (tokenizer_json.c), called by rows of models.c ---- */

kg_status kg_reader_bpe(struct kg_reader *r, const struct kg_json *model,
                        const struct kg_json *added) KG_MUST_CHECK;
kg_status kg_reader_unigram(struct kg_reader *r, const struct kg_json *model,
                            const struct kg_json *added) KG_MUST_CHECK;

/* Fills the vocabulary from model.vocab, an object of tokens and ids. */
kg_status kg_reader_vocab(struct kg_reader *r, const struct kg_json *model,
                          const struct kg_json *added) KG_MUST_CHECK;
/* Reads model.unk_token; added tokens do not count. needed: null is an error. */
kg_status kg_reader_unknown(struct kg_reader *r, const struct kg_json *model,
                            bool needed) KG_MUST_CHECK;

/* ---- the parts of tokenizer.json around its model ---- */

/* The types that one part of tokenizer.json may have; it may also be a Sequence of
 * them. */
struct kg_step_row {
    const char *type; /* NULL ends a table */
    kg_status (*read)(struct kg_reader *r, const struct kg_json *value);
};
struct kg_step_table {
    const char *path; /* path of the part, for errors */
    const char *list; /* the key of a Sequence's list */
    const struct kg_step_row *rows;
};
/* Fails with EUNSUPPORTED for an unknown type, listing the known ones. */
kg_status kg_reader_steps(struct kg_reader *r, const struct kg_step_table *table,
                          const struct kg_json *value) KG_MUST_CHECK;
/* Checks that an object has no key but `type`. */
kg_status kg_reader_bare(struct kg_reader *r, const char *path,
                         const struct kg_json *value) KG_MUST_CHECK;
/* Reads a ByteLevel, which may be a pre-tokenizer, post-processor or decoder. */
kg_status kg_reader_byte_level(struct kg_reader *r, const char *path,
                               const struct kg_json *value) KG_MUST_CHECK;
/* The text object[key] if it is not empty and has no NUL; else NULL. */
const char *kg_reader_text(const struct kg_json *object, const char *key);
/* Adds a normalization step. */
kg_status kg_reader_add_step(struct kg_reader *r, const char *path,
                             struct kg_normalizer *norm, enum kg_normalizer_kind kind,
                             const char *from, const char *to) KG_MUST_CHECK;

/* tokenizer_normalizer.c */
kg_status kg_reader_normalizer(struct kg_reader *r,
                               const struct kg_json *value) KG_MUST_CHECK;
/* Reads a Replace of a normalizer or decoder. */
kg_status kg_reader_replace(struct kg_reader *r, const char *path,
                            const struct kg_json *value,
                            struct kg_normalizer *norm) KG_MUST_CHECK;

/* tokenizer_cuts.c */
bool kg_reader_has_byte_level(const struct kg_json *value, int depth);
kg_status kg_reader_pre_tokenizer(struct kg_reader *r,
                                  const struct kg_json *value) KG_MUST_CHECK;
/* Reads a Metaspace of a pre-tokenizer or decoder. */
kg_status kg_reader_mark(struct kg_reader *r, const char *path,
                         const struct kg_json *value, const char **mark,
                         enum kg_mark_front *front) KG_MUST_CHECK;

/* tokenizer_steps.c */
kg_status kg_reader_post_processor(struct kg_reader *r,
                                   const struct kg_json *value) KG_MUST_CHECK;
kg_status kg_reader_decoder(struct kg_reader *r,
                            const struct kg_json *value) KG_MUST_CHECK;
/* Adds a cut by a pattern. */
kg_status kg_reader_cut(struct kg_reader *r, const char *pattern, size_t n,
                        bool literal) KG_MUST_CHECK;

#endif
