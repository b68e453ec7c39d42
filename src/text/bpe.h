/* Byte-pair merging of one pre-token.
 *
 * The merge of lowest rank goes first, of equal ranks the leftmost; until no neighbours
 * can be merged. Short pre-tokens use a scan, long ones a heap over a linked list, so a
 * pre-token of n bytes costs O(n log n).
 */
#ifndef KG_TEXT_BPE_H
#define KG_TEXT_BPE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { KG_BPE_NO_RANK = INT32_MAX };

struct kg_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX in a free slot */
    int32_t rank;
    int32_t id; /* of the merged token */
};

/* Merges hashed by pair. */
struct kg_merges {
    struct kg_merge *slots; /* (mask + 1) owned */
    uint64_t mask;
};
kg_status kg_merges_init(struct kg_merges *m, size_t n, struct kg_err *err) KG_MUST_CHECK;
void kg_merges_release(struct kg_merges *m);
/* At most the n of init; of a pair given twice the later rank counts, as in HuggingFace's
 * reader. */
void kg_merges_put(struct kg_merges *m, int32_t left, int32_t right, int32_t rank,
                   int32_t id);
/* rank KG_BPE_NO_RANK when there is no such merge */
struct kg_merge kg_merges_find(const struct kg_merges *m, int32_t left, int32_t right);

/* Working memory of a thread. {0} is ready. */
struct kg_bpe_scratch {
    struct kg_bpe_node *nodes; /* owned */
    size_t nodes_capacity;
    uint64_t *heap; /* owned */
    size_t heap_capacity;
};
void kg_bpe_scratch_release(struct kg_bpe_scratch *s);

/* Merge ids[0..*n) in place; *n becomes the new count.   errors: ENOMEM */
kg_status kg_bpe_merge(int32_t *ids, size_t *n, const struct kg_merges *m,
                       struct kg_bpe_scratch *s, struct kg_err *err) KG_MUST_CHECK;

/* The two ways behind it, for tests: n at most KG_BPE_SHORT for the first. */
enum { KG_BPE_SHORT = 64 };
size_t kg_bpe_merge_short(int32_t *ids, size_t n, const struct kg_merges *m);
kg_status kg_bpe_merge_long(int32_t *ids, size_t *n, const struct kg_merges *m,
                            struct kg_bpe_scratch *s, struct kg_err *err) KG_MUST_CHECK;

#endif
