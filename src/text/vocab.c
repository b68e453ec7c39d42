/* All tokens' bytes in one block, and a hash table (open addressing) of their ids.
 *
 * Not here: the spelling of bytes as characters in tokenizer.json (bytelevel.c).
 */
#include "text/vocab.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_BLOB_BYTES = 1 << 30 };

/* FNV-1a, with `raw` mixed in. */
static uint32_t hash_bytes(const char *bytes, size_t n, bool raw)
{
    uint64_t h = 0xcbf29ce484222325u ^ (raw ? 0x100 : 0);
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    return (uint32_t)(h ^ h >> 32);
}

kg_status kg_vocab_init(struct kg_vocab *v, int64_t n_ids, size_t n_tokens,
                        struct kg_err *err)
{
    *v = (struct kg_vocab){0};
    if (n_ids < 1 || n_ids > KG_VOCAB_MAX_IDS || n_tokens > KG_VOCAB_MAX_IDS)
        return kg_fail(err, KG_EFORMAT, "largest token id is %lld, expected 0 to %d",
                       (long long)n_ids - 1, KG_VOCAB_MAX_IDS - 1);
    size_t slots = 16;
    while (slots < n_tokens + n_tokens / 2)
        slots *= 2;
    v->n_ids = (int32_t)n_ids;
    v->mask = (uint32_t)slots - 1;
    v->offsets = kg_mem_calloc((size_t)n_ids, sizeof *v->offsets, "token offsets", err);
    if (v->offsets)
        v->lengths = kg_mem_calloc((size_t)n_ids, sizeof *v->lengths, "token lengths",
                                   err);
    if (v->lengths)
        v->flags = kg_mem_calloc((size_t)n_ids, sizeof *v->flags, "token flags", err);
    if (v->flags)
        v->slots = kg_mem_calloc(slots, sizeof *v->slots, "token hash", err);
    if (!v->slots) {
        kg_vocab_release(v);
        return err->code;
    }
    memset(v->slots, 0xFF, slots * sizeof *v->slots);
    return KG_OK;
}

void kg_vocab_release(struct kg_vocab *v)
{
    kg_mem_free(v->offsets);
    kg_mem_free(v->lengths);
    kg_mem_free(v->flags);
    kg_mem_free(v->texts);
    kg_mem_free(v->blob);
    kg_mem_free(v->slots);
    *v = (struct kg_vocab){0};
}

/* The slot that has these bytes, or the free slot for them. */
static uint32_t slot_of(const struct kg_vocab *v, const char *bytes, size_t n, bool raw)
{
    uint32_t at = hash_bytes(bytes, n, raw) & v->mask;
    for (;; at = (at + 1) & v->mask) {
        int32_t id = v->slots[at];
        if (id < 0)
            return at;
        if (v->lengths[id] == n && !(v->flags[id] & KG_VOCAB_RAW) == !raw &&
            memcmp(v->blob + v->offsets[id], bytes, n) == 0)
            return at;
    }
}

/* Appends bytes to the blob. */
static kg_status keep(struct kg_vocab *v, uint32_t *offset, const char *bytes, size_t n,
                      struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&v->blob, &v->blob_capacity, v->blob_used + n + 1, 1,
                       MAX_BLOB_BYTES, "token bytes", err));
    memcpy(v->blob + v->blob_used, bytes, n);
    *offset = (uint32_t)v->blob_used;
    v->blob_used += n;
    return KG_OK;
}

kg_status kg_vocab_put(struct kg_vocab *v, int64_t id, const char *bytes, size_t n,
                       int flags, struct kg_err *err)
{
    const int shown = n < 40 ? (int)n : 40;
    if (id < 0 || id >= v->n_ids)
        return kg_fail(err, KG_EFORMAT, "token id %lld of '%.*s' is out of range",
                       (long long)id, shown, bytes);
    if (v->flags[id])
        return kg_fail(err, KG_EFORMAT,
                       "token id %lld is given to two tokens, the second is '%.*s'",
                       (long long)id, shown, bytes);
    uint32_t at = slot_of(v, bytes, n, flags & KG_VOCAB_RAW);
    if (v->slots[at] >= 0)
        return kg_fail(err, KG_EFORMAT,
                       "tokens %d and %lld have the same spelling: '%.*s'", v->slots[at],
                       (long long)id, shown, bytes);
    KG_TRY(keep(v, &v->offsets[id], bytes, n, err));
    v->lengths[id] = (uint32_t)n;
    v->flags[id] = (uint8_t)(flags | KG_VOCAB_PRESENT);
    v->slots[at] = (int32_t)id;
    if (v->texts)
        v->texts[id] = (struct kg_vocab_text){v->offsets[id], v->lengths[id]};
    return KG_OK;
}

int32_t kg_vocab_find(const struct kg_vocab *v, const char *bytes, size_t n, bool raw)
{
    return v->slots ? v->slots[slot_of(v, bytes, n, raw)] : -1;
}

/* Every id prints its own bytes until kg_vocab_set_text() changes that. */
static kg_status make_texts(struct kg_vocab *v, struct kg_err *err)
{
    KG_TRY(kg_mem_new(&v->texts, (size_t)v->n_ids, sizeof *v->texts, "token texts", err));
    for (int32_t id = 0; id < v->n_ids; id++)
        v->texts[id] = (struct kg_vocab_text){v->offsets[id], v->lengths[id]};
    return KG_OK;
}

kg_status kg_vocab_set_text(struct kg_vocab *v, int32_t id, const char *text, size_t n,
                            struct kg_err *err)
{
    if (!v->texts)
        KG_TRY(make_texts(v, err));
    v->texts[id].length = (uint32_t)n;
    return keep(v, &v->texts[id].offset, text, n, err);
}

const char *kg_vocab_key(const struct kg_vocab *v, int32_t id, size_t *n)
{
    *n = 0;
    if (id < 0 || id >= v->n_ids || !(v->flags[id] & KG_VOCAB_PRESENT))
        return NULL;
    *n = v->lengths[id];
    return v->blob + v->offsets[id];
}

const char *kg_vocab_bytes(const struct kg_vocab *v, int32_t id, size_t *n)
{
    const char *key = kg_vocab_key(v, id, n);
    if (!key || !v->texts)
        return key;
    *n = v->texts[id].length;
    return v->blob + v->texts[id].offset;
}
