/* The body of Philox's round, for device code and for kernels that draw many counters at
 * once. rng.c compiles the same text and explains it. */
#ifndef KG_BASE_RNG_INLINE_H
#define KG_BASE_RNG_INLINE_H

#include <stdint.h>

/* Prefix of the function; device code needs its own qualifier. */
#ifndef KG_RNG
#define KG_RNG static inline
#endif

enum { KG_RNG_ROUNDS = 10 };

/* Round `round` (0..9) on the four words of a block, under the key (k0, k1). */
KG_RNG void kg_rng_round(uint32_t *x0, uint32_t *x1, uint32_t *x2, uint32_t *x3,
                         uint32_t round, uint32_t k0, uint32_t k1)
{
    uint64_t p0 = (uint64_t)0xD2511F53u * *x0;
    uint64_t p1 = (uint64_t)0xCD9E8D57u * *x2;

    *x0 = (uint32_t)(p1 >> 32) ^ *x1 ^ (k0 + round * 0x9E3779B9u);
    *x1 = (uint32_t)p1;
    *x2 = (uint32_t)(p0 >> 32) ^ *x3 ^ (k1 + round * 0xBB67AE85u);
    *x3 = (uint32_t)p0;
}

#endif
