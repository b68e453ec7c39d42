/* The order in which training takes its examples: an endless row of epochs, each a
 * permutation of all of them. What stands at a place depends on seed and place alone, so
 * a resumed run goes on where it was.
 */
#ifndef KG_TRAIN_EPOCHS_H
#define KG_TRAIN_EPOCHS_H

#include "base/rng.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* The examples at places first .. first+n-1 of the row over n_examples (>= 1).
 * index (n) out.   errors: ENOMEM */
kg_status kg_epochs_take(uint32_t *index, size_t n, uint64_t first, size_t n_examples,
                         struct kg_rng_key key, struct kg_err *err) KG_MUST_CHECK;

enum { KG_EPOCHS_PARTS = 64, KG_EPOCHS_ROUND = 1 << 16 };
struct kg_epochs_part {
    size_t n; /* examples, >= 1; those of part 0 come first, then those of part 1 */
    uint32_t weight; /* places of a round, >= 1, with a sum of at most KG_EPOCHS_ROUND */
};
/* The same where parts are weighed. The row is cut into rounds of as many places as the
 * weights sum to; in each, part k has exactly weight[k] places, at places drawn for that
 * round. The examples that a part puts there, one after the other, are its own endless
 * row of epochs, so a small part with a large weight comes round more often.
 * index (n) out, over the examples of all parts.   errors: ENOMEM */
kg_status kg_epochs_mix(uint32_t *index, size_t n, uint64_t first,
                        const struct kg_epochs_part *parts, size_t n_parts, uint64_t seed,
                        struct kg_err *err) KG_MUST_CHECK;

#endif
