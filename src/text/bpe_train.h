/* The two halves of training a byte-level BPE: counting pre-tokens and merging
 * (bpe_train.c), and writing the result as a tokenizer.json (bpe_write.c). Internal to
 * src/text; others call kg_bpe_train_write.
 */
#ifndef KG_TEXT_BPE_TRAIN_H
#define KG_TEXT_BPE_TRAIN_H

#include "text/tokenizer.h"
#include "text/vocab.h"

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
 * UNSUPPORTED (pattern) */
kg_status kg_bpe_learn(struct kg_bpe_result *result, const char *const *texts, size_t n,
                       const struct kg_bpe_train *opts, int32_t n_tokens,
                       struct kg_err *err) KG_MUST_CHECK;

#endif
