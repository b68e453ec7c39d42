/* Reading what describes a tokenizer: a walk over JSON in which nothing is passed over in
 * silence, and what every file with added tokens needs.
 */
#ifndef KG_TEXT_TOKENIZER_READ_H
#define KG_TEXT_TOKENIZER_READ_H

#include "text/tokenizer_internal.h"

struct kg_reader {
    struct kg_tokenizer *tok; /* borrowed */
    const char *where;        /* borrowed; the file, for messages */
    bool spelled;             /* tokens are written in ByteLevel's spelling of bytes */
    struct kg_str scratch;    /* owned; the newest find's bytes */
    struct kg_err *err;

    /* what the steps of a tokenizer.json said so far */
    bool byte_level;      /* the pre-tokenizer had its ByteLevel step */
    bool decodes_spelled; /* the decoder had its own */
    bool has_template;
    struct kg_normalizer texts; /* owned; the decoder's replacements in a token */
    bool decodes_bytes;         /* it had its ByteFallback step */
    bool fused;                 /* and its Fuse step */
};
void kg_reader_release(struct kg_reader *r);

/* ---- fields ---- */

enum kg_field_rule {
    KG_FIELD_READ,  /* honoured by who asked, or without effect on ids and text */
    KG_FIELD_BOOL,  /* honoured; a boolean */
    KG_FIELD_EMPTY, /* null or "" */
    KG_FIELD_ZERO,  /* null or 0 */
};
struct kg_field {
    const char *key; /* NULL ends a table */
    enum kg_field_rule rule;
};

/* UNSUPPORTED: "FILE: path.key is VALUE, expected ..." */
kg_status kg_reader_refuse(struct kg_reader *r, const char *path, const char *key,
                           const struct kg_json *value,
                           const char *expected) KG_MUST_CHECK;
/* Every key of object must be in fields and keep its rule. */
kg_status kg_reader_check(struct kg_reader *r, const char *path,
                          const struct kg_json *object,
                          const struct kg_field *fields) KG_MUST_CHECK;
bool kg_reader_has_type(const struct kg_json *object, const char *type);
/* The list under key.   errors: EFORMAT */
kg_status kg_reader_list(struct kg_reader *r, const char *path,
                         const struct kg_json *object, const char *key,
                         const struct kg_json **list) KG_MUST_CHECK;
/* An id's value.   errors: EFORMAT */
kg_status kg_reader_id(struct kg_reader *r, const struct kg_json *value,
                       const char *token, int64_t *id) KG_MUST_CHECK;

/* ---- tokens ---- */

/* The id of a token as the file writes it, -1 when the vocabulary lacks it; its bytes are
 * in scratch. */
kg_status kg_reader_find(struct kg_reader *r, const char *text, size_t n, int32_t *id,
                         bool *raw) KG_MUST_CHECK;
/* An added token, with its flags: an item of added_tokens, or of added_tokens_decoder,
 * which says the id elsewhere. */
kg_status kg_reader_add(struct kg_reader *r, const struct kg_json *item,
                        int64_t id) KG_MUST_CHECK;
/* The tokens of bytes by their names, "<0x0A>"; those that lack are -1. */
kg_status kg_reader_find_bytes(struct kg_reader *r) KG_MUST_CHECK;
/* After the last token: what each one prints, by `texts`, and "<0x0A>" its byte where
 * the decoder decodes bytes. */
kg_status kg_reader_set_texts(struct kg_reader *r) KG_MUST_CHECK;

/* ---- the models (tokenizer_json.c), as rows of models.c have them ---- */

kg_status kg_reader_bpe(struct kg_reader *r, const struct kg_json *model,
                        const struct kg_json *added) KG_MUST_CHECK;
kg_status kg_reader_wordpiece(struct kg_reader *r, const struct kg_json *model,
                              const struct kg_json *added) KG_MUST_CHECK;
kg_status kg_reader_unigram(struct kg_reader *r, const struct kg_json *model,
                            const struct kg_json *added) KG_MUST_CHECK;

/* ---- the parts of tokenizer.json around its model ---- */

/* A table of one part: every type that it may have. A Sequence of them is read too. */
struct kg_step_row {
    const char *type; /* NULL ends a table */
    kg_status (*read)(struct kg_reader *r, const struct kg_json *value);
};
struct kg_step_table {
    const char *path; /* of the part, for messages */
    const char *list; /* the key of a Sequence's list */
    const struct kg_step_row *rows;
};
/* UNSUPPORTED naming the type and all that are known. */
kg_status kg_reader_steps(struct kg_reader *r, const struct kg_step_table *table,
                          const struct kg_json *value) KG_MUST_CHECK;
/* An object that has its type alone. */
kg_status kg_reader_bare(struct kg_reader *r, const char *path,
                         const struct kg_json *value) KG_MUST_CHECK;
/* A ByteLevel, which is a pre-tokenizer, a post-processor and a decoder. */
kg_status kg_reader_byte_level(struct kg_reader *r, const char *path,
                               const struct kg_json *value) KG_MUST_CHECK;
/* A text of object[key] that is not empty and has no NUL; NULL otherwise. */
const char *kg_reader_text(const struct kg_json *object, const char *key);
/* One more step of normalizing. */
kg_status kg_reader_add_step(struct kg_reader *r, const char *path,
                             struct kg_normalizer *norm, enum kg_normalizer_kind kind,
                             const char *from, const char *to) KG_MUST_CHECK;

/* tokenizer_normalizer.c */
kg_status kg_reader_normalizer(struct kg_reader *r,
                               const struct kg_json *value) KG_MUST_CHECK;
/* A Replace, of normalizers and decoders. */
kg_status kg_reader_replace(struct kg_reader *r, const char *path,
                            const struct kg_json *value,
                            struct kg_normalizer *norm) KG_MUST_CHECK;

/* tokenizer_cuts.c */
bool kg_reader_has_byte_level(const struct kg_json *value, int depth);
kg_status kg_reader_pre_tokenizer(struct kg_reader *r,
                                  const struct kg_json *value) KG_MUST_CHECK;
/* A Metaspace, which is a pre-tokenizer and a decoder. */
kg_status kg_reader_mark(struct kg_reader *r, const char *path,
                         const struct kg_json *value, const char **mark,
                         enum kg_mark_front *front) KG_MUST_CHECK;

/* tokenizer_steps.c */
kg_status kg_reader_post_processor(struct kg_reader *r,
                                   const struct kg_json *value) KG_MUST_CHECK;
kg_status kg_reader_decoder(struct kg_reader *r,
                            const struct kg_json *value) KG_MUST_CHECK;
/* One more cut by a pattern. */
kg_status kg_reader_cut(struct kg_reader *r, const char *pattern, size_t n,
                        bool literal) KG_MUST_CHECK;

#endif
