/* Places of the endless row: epoch place / n, permuted by its number. */
#include "train/epochs.h"

#include "base/mem.h"

kg_status kg_epochs_take(uint32_t *index, size_t n, uint64_t first, size_t n_examples,
                         struct kg_rng_key key, struct kg_err *err)
{
    uint64_t epoch = UINT64_MAX;
    uint32_t *order = kg_mem_calloc(n_examples, sizeof *order, "order of an epoch", err);

    if (!order)
        return err->code;
    for (size_t i = 0; i < n; i++) {
        uint64_t place = first + i;

        if (place / n_examples != epoch) {
            epoch = place / n_examples;
            kg_rng_permutation(order, (uint32_t)n_examples, key, epoch);
        }
        index[i] = order[place % n_examples];
    }
    kg_mem_free(order);
    return KG_OK;
}
