/* A compact set of ids below a bound.
 *
 * For most tokens truncated sampling keeps a dozen ids, for some a hundred thousand. So a
 * set is stored as differences between ascending ids, seven bits per byte, or as a
 * bitmap, whichever is shorter (bitmap on a tie): at most ceil(bound / 8) bytes. Ids are
 * read in ascending order.
 */
#ifndef KG_BASE_IDSET_H
#define KG_BASE_IDSET_H

#include <stddef.h>
#include <stdint.h>

/* n = 0 means all ids; nothing is stored. */
struct kg_idset {
    const uint8_t *data; /* (bytes) borrowed */
    uint32_t bytes;      /* size of data; below a bitmap's size (kg_idset_most): a list */
    int32_t n;           /* number of ids */
    int32_t bound;       /* every id is smaller; for tokens, the vocabulary size V */
};

/* The largest size of a set in bytes: that of the bitmap. */
static inline uint32_t kg_idset_most(int32_t bound) { return ((uint32_t)bound + 7) / 8; }

/* out (kg_idset_most) <- the ids whose bits are set in words ((bound+63)/64).
 * returns the set, whose data is out */
struct kg_idset kg_idset_pack(uint8_t *out, const uint64_t *words, int32_t bound);

/* Position of a walk. */
struct kg_idset_walk {
    uint32_t byte; /* list only: offset after the current id */
    int32_t id;    /* the current id; equal to the bound at the end */
};
/* kg_idset_begin moves to the smallest id of a set with n > 0; kg_idset_next to the next
 * one. */
void kg_idset_begin(struct kg_idset_walk *w, const struct kg_idset *s);
void kg_idset_next(struct kg_idset_walk *w, const struct kg_idset *s);

#endif
