/* The vocabulary: the bytes of every id, and the way back from bytes to an id.
 *
 * It knows nothing of merges. Ids may leave holes. Two ids never have the same bytes and
 * kind.
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
    /* spelled with characters that stand for no byte: no merge can make it */
    KG_VOCAB_RAW = 4,
};

struct kg_vocab {
    int32_t n_ids;     /* largest id + 1 */
    uint32_t *offsets; /* (n_ids) into blob; owned */
    uint32_t *lengths; /* (n_ids) bytes; owned */
    uint8_t *flags;    /* (n_ids) enum kg_vocab_flag; owned */
    char *blob;        /* owned */
    size_t blob_used;
    size_t blob_capacity;
    int32_t *slots; /* (mask + 1) id or -1, hashed by bytes; owned */
    uint32_t mask;
};

/* Room for ids below n_ids and n_tokens of them.
 * errors: EFORMAT (too many ids), ENOMEM */
kg_status kg_vocab_init(struct kg_vocab *v, int64_t n_ids, size_t n_tokens,
                        struct kg_err *err) KG_MUST_CHECK;
void kg_vocab_release(struct kg_vocab *v);

/* errors: EFORMAT (id out of range or taken, bytes taken), ENOMEM */
kg_status kg_vocab_put(struct kg_vocab *v, int64_t id, const char *bytes, size_t n,
                       int flags, struct kg_err *err) KG_MUST_CHECK;

/* The id of these bytes, RAW or not as asked; -1 when there is none. */
int32_t kg_vocab_find(const struct kg_vocab *v, const char *bytes, size_t n, bool raw);

/* Bytes of an id (borrowed), or NULL when the id has none. */
const char *kg_vocab_bytes(const struct kg_vocab *v, int32_t id, size_t *n);

#endif
