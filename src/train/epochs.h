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

#endif
