/* Fuzz target: any body of a forward_backward is refused, or its arrays have the sizes
 * and ids that training relies on, and a response can be written for it. */
#include "tinker/wire.h"

#include "base/mem.h"

#include <stdlib.h>

int kg_fuzz_tinker(const uint8_t *bytes, size_t n);

int kg_fuzz_tinker(const uint8_t *bytes, size_t n)
{
    enum { VOCAB = 16 };
    struct kg_tinker_batch b;
    struct kg_str out = {0};
    struct kg_err err;
    if (kg_tinker_read_batch(&b, bytes, n, VOCAB, &err) == KG_OK) {
        for (int64_t i = 0; i < b.n + b.n_data; i++)
            if (b.tokens[i] < 0 || b.tokens[i] >= VOCAB)
                abort();
        for (int64_t i = 0; i < b.n_data; i++)
            if (b.begin[i + 1] <= b.begin[i])
                abort();
        if (b.n < 1 || b.begin[b.n_data] != b.n || b.k < 0 || b.k > KG_TINKER_MAX_K)
            abort();
        float *logp = kg_mem_calloc((size_t)b.n, sizeof *logp, "fuzz", &err);
        if (!logp || kg_tinker_put_output(&out, &b, logp, 0, &err) != KG_OK)
            abort();
        kg_mem_free(logp);
    }
    kg_str_release(&out);
    kg_tinker_batch_release(&b);
    return 0;
}
