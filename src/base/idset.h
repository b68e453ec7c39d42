/* A set of ids below a bound, in few bytes.
 *
 * What truncated sampling keeps of a vocabulary is a dozen ids at most tokens and a
 * hundred thousand at some. So a set is a list of rising differences, seven bits a byte,
 * or a bitmap, whichever is shorter (at the same length the bitmap): never more than
 * bound / 8 bytes. It is read from the smallest id to the largest.
 */
#ifndef KG_BASE_IDSET_H
#define KG_BASE_IDSET_H

#include <stddef.h>
#include <stdint.h>

/* n 0 stands for all ids: nothing is left out of them, and nothing is stored. */
struct kg_idset {
    const uint8_t *data; /* (bytes) borrowed */
    uint32_t bytes;      /* that of the bitmap: it is one; fewer: a list */
    int32_t n;           /* ids */
    int32_t bound;       /* V: each is below it */
};

/* Bytes that every set fits in: those of the bitmap. */
static inline uint32_t kg_idset_most(int32_t bound) { return ((uint32_t)bound + 7) / 8; }

/* out (kg_idset_most) <- the ids whose bits are set in words ((bound+63)/64).
 * returns the set, whose data is out */
struct kg_idset kg_idset_pack(uint8_t *out, const uint64_t *words, int32_t bound);

/* Where a walk stands. */
struct kg_idset_walk {
    uint32_t byte; /* a list: behind the present id */
    int32_t id;    /* the present one; the bound: there is no more */
};
/* To the smallest id of a set with n > 0; to the next one. */
void kg_idset_begin(struct kg_idset_walk *w, const struct kg_idset *s);
void kg_idset_next(struct kg_idset_walk *w, const struct kg_idset *s);

#endif
