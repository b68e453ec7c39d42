/* Byte-pair merging of one pre-token.
 *
 * The merge of lowest rank is applied first, among equal ranks the leftmost, until no two
 * neighbours can be merged. Short pre-tokens use a scan. Long ones use a heap over a
 * linked list, so n bytes cost O(n log n).
 */
#ifndef KG_TEXT_BPE_H
#define KG_TEXT_BPE_H

#include "base/status.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

#include <stdbool.h>
#include <stdint.h>

enum { KG_BPE_NO_RANK = INT32_MAX };

struct kg_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: a free slot */
    int32_t rank;
    int32_t id; /* id of the merged token */
};

/* Merges, hashed by pair. */
struct kg_merges {
    struct kg_merge *slots; /* (mask + 1) owned */
    uint64_t mask;
};
kg_status kg_merges_init(struct kg_merges *m, size_t n, struct kg_err *err) KG_MUST_CHECK;
void kg_merges_release(struct kg_merges *m);
/* Adds a merge; at most the n of kg_merges_init. If a pair is added twice, the later rank
 * replaces the earlier one, as in HuggingFace's reader. */
void kg_merges_put(struct kg_merges *m, int32_t left, int32_t right, int32_t rank,
                   int32_t id);
/* Finds a merge; its rank is KG_BPE_NO_RANK if there is none. */
struct kg_merge kg_merges_find(const struct kg_merges *m, int32_t left, int32_t right);

/* Working memory of one thread. {0} is ready. */
struct kg_bpe_scratch {
    struct kg_bpe_node *nodes; /* owned */
    size_t nodes_capacity;
    uint64_t *heap; /* owned */
    size_t heap_capacity;
};
void kg_bpe_scratch_release(struct kg_bpe_scratch *s);

/* Merges ids[0..*n) in place; *n becomes the new count.   errors: ENOMEM */
kg_status kg_bpe_merge(int32_t *ids, size_t *n, const struct kg_merges *m,
                       struct kg_bpe_scratch *s, struct kg_err *err) KG_MUST_CHECK;

/* The two algorithms of kg_bpe_merge, for tests. The first needs n <= KG_BPE_SHORT. */
enum { KG_BPE_SHORT = 64 };
size_t kg_bpe_merge_short(int32_t *ids, size_t n, const struct kg_merges *m);
kg_status kg_bpe_merge_long(int32_t *ids, size_t *n, const struct kg_merges *m,
                            struct kg_bpe_scratch *s, struct kg_err *err) KG_MUST_CHECK;

/* Training a byte-level BPE: bpe_train.c counts pre-tokens and merges, bpe_write.c writes
 * the result as a tokenizer.json. Internal to src/text; others call kg_bpe_train_json or
 * kg_bpe_train_write. */

struct kg_bpe_result {
    struct kg_vocab vocab; /* bytes 0..255, then the merged tokens */
    int32_t n_tokens;
    int32_t (*merges)[2]; /* (n_merges) ids of the two halves, in order; owned */
    size_t n_merges;
    size_t merges_capacity;
};
void kg_bpe_result_release(struct kg_bpe_result *result);

/* Merges until there are `n_tokens` tokens, not counting specials. `pattern` and
 * `specials` as in kg_bpe_train.
 * errors: EINVAL (no pair is left; names the number reached), EFORMAT (not UTF-8),
 * EUNSUPPORTED (pattern) */
kg_status kg_bpe_learn(struct kg_bpe_result *result, const char *const *texts, size_t n,
                       const struct kg_bpe_train *opts, int32_t n_tokens,
                       struct kg_err *err) KG_MUST_CHECK;

#endif
