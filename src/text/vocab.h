/* The vocabulary: the bytes of every id, and the way back from bytes to an id.
 *
 * Merges are stored elsewhere (kg_merges). Ids may have gaps. Two ids with the same bytes
 * differ in KG_VOCAB_RAW. The text that an id prints may differ from the bytes by which
 * it is found, if the decoder replaces them (SentencePiece's U+2581 by a space).
 */
#ifndef KG_TEXT_VOCAB_H
#define KG_TEXT_VOCAB_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { KG_VOCAB_MAX_IDS = 1 << 22 };

enum kg_vocab_flag {
    KG_VOCAB_PRESENT = 1,
    KG_VOCAB_SPECIAL = 2,
    /* spelled with characters outside the byte mapping: no merge makes this token */
    KG_VOCAB_RAW = 4,
    KG_VOCAB_ADDED = 8, /* searched in a text before splitting (kg_added) */
};

/* The text that an id prints, in the blob. */
struct kg_vocab_text {
    uint32_t offset;
    uint32_t length;
};

struct kg_vocab {
    int32_t n_ids;               /* largest id + 1 */
    uint32_t *offsets;           /* (n_ids) into blob; owned */
    uint32_t *lengths;           /* (n_ids) bytes; owned */
    uint8_t *flags;              /* (n_ids) enum kg_vocab_flag; owned */
    struct kg_vocab_text *texts; /* (n_ids) owned; NULL if every id prints its bytes */
    char *blob;                  /* owned */
    size_t blob_used;
    size_t blob_capacity;
    int32_t *slots; /* (mask + 1) hash table by bytes: id or -1; owned */
    uint32_t mask;
};

/* Reserves memory for ids below n_ids, n_tokens of which are used.
 * errors: EFORMAT (too many ids), ENOMEM */
kg_status kg_vocab_init(struct kg_vocab *v, int64_t n_ids, size_t n_tokens,
                        struct kg_err *err) KG_MUST_CHECK;
void kg_vocab_release(struct kg_vocab *v);

/* Adds an id.   errors: EFORMAT (id out of range or taken, bytes taken), ENOMEM */
kg_status kg_vocab_put(struct kg_vocab *v, int64_t id, const char *bytes, size_t n,
                       int flags, struct kg_err *err) KG_MUST_CHECK;

/* The id with these bytes; -1 if there is none. raw: search the ids with KG_VOCAB_RAW,
 * otherwise those without it. */
int32_t kg_vocab_find(const struct kg_vocab *v, const char *bytes, size_t n, bool raw);

/* Sets the text that an id with bytes prints.   errors: ENOMEM */
kg_status kg_vocab_set_text(struct kg_vocab *v, int32_t id, const char *text, size_t n,
                            struct kg_err *err) KG_MUST_CHECK;

/* The bytes by which an id is found (borrowed); NULL if it has none. */
const char *kg_vocab_key(const struct kg_vocab *v, int32_t id, size_t *n);
/* The text that an id prints (borrowed); NULL if the id has no bytes. */
const char *kg_vocab_bytes(const struct kg_vocab *v, int32_t id, size_t *n);

#endif
