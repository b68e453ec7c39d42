/* Functions with which tests change a slab through the host.
 *
 * Included by *_test.c only.
 */
#ifndef KG_MODEL_SLAB_TESTING_H
#define KG_MODEL_SLAB_TESTING_H

#include "base/need_testing.h"
#include "model/slab.h"

/* s_i *= by + step (i mod period) */
static inline void scale_slab(struct kg_slab *s, float by, float step, int period)
{
    float piece[KG_SLAB_PIECE];

    for (int64_t at = 0; at < s->n; at += KG_SLAB_PIECE) {
        const int64_t n = kg_slab_piece(s->n, at);

        NEED(kg_slab_read(piece, s, at, n, err));
        for (int64_t i = 0; i < n; i++)
            piece[i] *= by + step * (float)((at + i) % period);
        NEED(kg_slab_write(s, at, piece, n, err));
    }
}

#endif
