/* Finds the prefixes that sequences of a pack share.
 *
 * Internal to src/model. Every sequence has a list of keys: for each position, the row of
 * the pack that holds it. A sequence with a shared prefix copies the beginning of another
 * one's list, so a tree of any depth needs no other structure.
 */
#ifndef KG_MODEL_PREFIX_INTERNAL_H
#define KG_MODEL_PREFIX_INTERNAL_H

#include "model/rows.h"

struct kg_prefixes {
    int32_t *keys; /* (max) borrowed: the lists of all sequences, one after the other */
    int64_t max;   /* 0: sequences share nothing */
    int64_t n;
    int64_t last; /* index in keys: start of the newest sequence's list */
    bool any;     /* a sequence begins with tokens of another one */
};

/* The pack so far. */
struct kg_prefix_pack {
    const int32_t *tokens;
    const uint16_t *experts; /* preset (rows, choices); NULL: the routers choose */
    size_t choices;
    const struct kg_pack_seq *seqs; /* (n_seqs) */
    int32_t n_seqs;
};

void kg_prefixes_clear(struct kg_prefixes *x);
/* Finds the earlier sequence with the longest prefix in common with q (on a tie, the
 * first). *from: start of that sequence's keys   returns the length of the prefix */
size_t kg_prefixes_find(int64_t *from, const struct kg_prefixes *x,
                        const struct kg_prefix_pack *pack, const struct kg_rows_seq *q);
/* Adds a sequence: the `same` keys from `from` on, then n tokens at `row`. */
void kg_prefixes_add(struct kg_prefixes *x, int64_t from, int64_t same, int64_t row,
                     int64_t n);

#endif
