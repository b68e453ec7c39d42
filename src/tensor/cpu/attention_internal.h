/* Shared by attention forward and backward: tiles of queries and rows of keys.
 *
 * A tile of queries has kg_attn_positions consecutive positions of one sequence, for all
 * query heads of one KV head. Rows of a tile are position-major, r = i*group + g, so that
 * the rows that see a later key block are always the last ones.
 */
#ifndef KG_TENSOR_CPU_ATTENTION_INTERNAL_H
#define KG_TENSOR_CPU_ATTENTION_INTERNAL_H

#include "tensor/backend.h"

enum { KG_ATTN_TILE_ROWS = 64 };

static inline int kg_attn_group(const struct kg_attn *a)
{
    return a->n_heads / a->n_kv_heads;
}

/* Positions per tile: as many as give at most KG_ATTN_TILE_ROWS rows, at least one. */
static inline int kg_attn_positions(const struct kg_attn *a)
{
    int n = KG_ATTN_TILE_ROWS / kg_attn_group(a);
    return n > 0 ? n : 1;
}

/* First row in k and v of a block of keys. */
static inline int64_t kg_attn_key_row(const struct kg_attn *a,
                                      const struct kg_attn_seq *s, int32_t block)
{
    if (a->blocks.data)
        return (int64_t)a->blocks.data[s->keys + block] * KG_KV_BLOCK;
    return (int64_t)s->keys + (int64_t)block * KG_KV_BLOCK;
}

/* First key that the query at position p sees, and its block. */
static inline int64_t kg_attn_first_key(const struct kg_attn *a, int64_t p)
{
    return a->window > 0 && p >= a->window ? p - a->window + 1 : 0;
}
static inline int32_t kg_attn_first_block(const struct kg_attn *a, int64_t p)
{
    return (int32_t)(kg_attn_first_key(a, p) / KG_KV_BLOCK);
}

/* Last key that the i-th query of a sequence sees. */
static inline int64_t kg_attn_last_key(const struct kg_attn *a,
                                       const struct kg_attn_seq *s, int32_t i)
{
    return (int64_t)s->pos + (a->both_ways ? s->n_rows - 1 : i);
}

/* Approximate number of multiplications for the scores. */
static inline int64_t kg_attn_work(const struct kg_attn *a)
{
    int64_t pairs = 0;
    for (int32_t s = 0; s < a->n_seqs; s++)
        pairs += (int64_t)a->seqs[s].n_rows *
                 ((int64_t)a->seqs[s].pos + a->seqs[s].n_rows);
    return pairs * a->n_heads * a->head_dim;
}

static inline int kg_attn_min(int64_t a, int64_t b) { return (int)(a < b ? a : b); }

#endif
