/* The order of training examples: an endless sequence of epochs, each a permutation of
 * all examples. The example at a position depends only on seed and position, so a resumed
 * run continues where it was. */
#ifndef KG_TRAIN_EPOCHS_H
#define KG_TRAIN_EPOCHS_H

#include "base/rng.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* The examples at positions first .. first+n-1 of the sequence over n_examples (>= 1).
 * index (n) out.   errors: ENOMEM */
kg_status kg_epochs_take(uint32_t *index, size_t n, uint64_t first, size_t n_examples,
                         struct kg_rng_key key, struct kg_err *err) KG_MUST_CHECK;

enum { KG_EPOCHS_PARTS = 64, KG_EPOCHS_ROUND = 1 << 16 };
struct kg_epochs_part {
    size_t n; /* examples, >= 1; those of part 0 come first, then those of part 1 */
    uint32_t weight; /* positions per round, >= 1; their sum is at most KG_EPOCHS_ROUND */
};
/* kg_epochs_take over weighted parts. The sequence is divided into rounds whose length is
 * the sum of the weights; in each, part k has exactly weight[k] positions, drawn for that
 * round. The examples of a part follow its own endless sequence of epochs, so a small
 * part with a large weight repeats more often.
 * index (n) out, over the examples of all parts.   errors: ENOMEM */
kg_status kg_epochs_mix(uint32_t *index, size_t n, uint64_t first,
                        const struct kg_epochs_part *parts, size_t n_parts, uint64_t seed,
                        struct kg_err *err) KG_MUST_CHECK;

#endif
