/* The paged KV cache: pools of rows in blocks of KG_KV_BLOCK tokens, which sequences may
 * share. What it holds is valid for one version of the weights only.
 *
 * Layers are of two kinds, with separate pools, block numbers and tables: those whose
 * queries see all earlier keys, and those with a window. A table names the block of every
 * position, so both kinds count positions alike. An entry that no query will see again
 * may name any block, also one reused by another position. So for layers with a window, a
 * sequence holds only the blocks that the window covers.
 */
#ifndef KG_MODEL_KV_H
#define KG_MODEL_KV_H

#include "base/status.h"
#include "model/config.h"
#include "tensor/backend.h"

#include <stdint.h>

struct kg_model;

enum kg_kv_kind { KG_KV_ALL, KG_KV_WINDOW, KG_KV_KINDS };
/* Blocks of each kind. */
struct kg_kv_size {
    int64_t of[KG_KV_KINDS];
};
/* Where a sequence's keys are: position p is in row p % KG_KV_BLOCK of block of[kind][p /
 * KG_KV_BLOCK]. Borrowed; NULL: no layer of that kind, or no cache. */
struct kg_kv_tables {
    const int32_t *of[KG_KV_KINDS];
};

/* n blocks of each kind; one table for both kinds. */
static inline struct kg_kv_size kg_kv_alike(int64_t n)
{
    return (struct kg_kv_size){{n, n}};
}
static inline struct kg_kv_tables kg_kv_table(const int32_t *blocks)
{
    return (struct kg_kv_tables){{blocks, blocks}};
}

static inline enum kg_kv_kind kg_kv_kind_of(const struct kg_model_config *c, int32_t l)
{
    return kg_model_config_window(c, l) > 0 ? KG_KV_WINDOW : KG_KV_ALL;
}
/* Whether some layer is of this kind. */
bool kg_kv_used(const struct kg_model_config *c, enum kg_kv_kind kind);
/* Number of table entries for n positions. */
static inline int64_t kg_kv_entries(int64_t n)
{
    return (n + KG_KV_BLOCK - 1) / KG_KV_BLOCK;
}
/* The first entry with a key that the query at this position sees. */
static inline int64_t kg_kv_first_seen(int64_t pos, int64_t window)
{
    return pos < window ? 0 : (pos - window + 1) / KG_KV_BLOCK;
}
/* The period n of a circular table: its entries i and i + n name the same block. n is the
 * maximum number of blocks that window + n_tokens - 1 positions touch, from the first key
 * seen to the last key written, if a forward computes up to n_tokens of the sequence. */
static inline int64_t kg_kv_round(int64_t entries, int64_t window, int64_t n_tokens)
{
    int64_t n = (window + n_tokens + KG_KV_BLOCK - 3) / KG_KV_BLOCK + 1;
    return n < entries ? n : entries;
}

struct kg_kv {
    const struct kg_backend *backend;
    const struct kg_model_config *config; /* borrowed: the model's */
    struct kg_mat *k; /* (L) pools (blocks of its kind*KG_KV_BLOCK, Hk*hd) ct, owned */
    struct kg_mat *v; /* (L) the second half of k's array */
    struct kg_kv_size n_blocks; /* 0 for an unused kind */
    int32_t layers;
};
/* n_blocks: ignored for an unused kind.
 * errors: EINVAL (less than 1, or too many), ENOMEM */
kg_status kg_kv_create(struct kg_kv **out, const struct kg_model *m,
                       struct kg_kv_size n_blocks, struct kg_err *err) KG_MUST_CHECK;
void kg_kv_free(struct kg_kv *kv);
/* Copies a block in all layers of the kind. */
kg_status kg_kv_copy_block(struct kg_kv *kv, enum kg_kv_kind kind, int32_t to,
                           int32_t from, struct kg_err *err) KG_MUST_CHECK;
/* Bytes for this many blocks; m may be an outline. */
uint64_t kg_kv_bytes(const struct kg_model *m, struct kg_kv_size n_blocks);

#endif
