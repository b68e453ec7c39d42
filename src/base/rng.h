/* Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011).
 *
 * There is no generator state. A draw is a pure function of (seed, stream, a, b, c), so
 * it does not depend on earlier draws, threads or order.
 */
#ifndef KG_BASE_RNG_H
#define KG_BASE_RNG_H

#include <stdint.h>

/* One row per use of randomness: two streams never share a draw. */
enum kg_rng_stream {
    KG_RNG_SAMPLE = 1, /* a = prompt's draw in the run, b = sample, c = tokens sampled */
    KG_RNG_INIT,       /* a = parameter index, b = element / 4 */
    KG_RNG_SHUFFLE,    /* a = epoch, b = index */
    KG_RNG_TASK,       /* a = problem index, b = draw of that problem */
    KG_RNG_SFT,        /* a = epoch, b = index */
    KG_RNG_EVAL,       /* as KG_RNG_SAMPLE, for evaluation */
    KG_RNG_SELECT,     /* a = optimizer batch of the run, b = index of the choice */
    KG_RNG_MIX,        /* a = round of the weighted data files, b = index */
    KG_RNG_BOOTSTRAP,  /* a = resample, b = set, c = index; always under seed 0 */
    KG_RNG_ROUND,      /* a = update, b + 2^32 c = block of elements: kg_op_adamw */
    KG_RNG_ROUND_SFT,  /* the same in SFT */
    /* fixed, so that a new stream does not change the tests' draws */
    KG_RNG_TEST = 255,
};

struct kg_rng_key {
    uint64_t seed;
    enum kg_rng_stream stream;
};

/* Philox itself: ten rounds over a 128-bit counter under a 64-bit key. */
void kg_rng_philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);

/* The counter block of (a, b, c); the key is (seed % 2^32, seed / 2^32). For code that
 * computes the rounds itself (rng_inline.h). */
void kg_rng_counter(uint32_t out[4], struct kg_rng_key key, uint64_t a, uint32_t b,
                    uint32_t c);

/* Four 32-bit words for the counter (a, b, c). a < 2^56 (the stream takes the top byte).
 * Two different (seed, stream, a, b, c) never use the same block. */
void kg_rng_words(uint32_t out[4], struct kg_rng_key key, uint64_t a, uint32_t b,
                  uint32_t c);

/* One double in [0, 1) with 53 bits. */
double kg_rng_uniform(struct kg_rng_key key, uint64_t a, uint32_t b, uint32_t c);

/* Uniform integer in [0, n), n >= 1, by 64-bit multiply-shift; its bias is negligible. */
uint64_t kg_rng_below(struct kg_rng_key key, uint64_t a, uint32_t b, uint32_t c,
                      uint64_t n);

/* Four standard normals by Box-Muller from one block of words. */
void kg_rng_normal4(float out[4], struct kg_rng_key key, uint64_t a, uint32_t b,
                    uint32_t c);

/* Fills order[0..n-1] with a random permutation of 0..n-1 for (key, a) (Fisher-Yates). */
void kg_rng_permutation(uint32_t *order, uint32_t n, struct kg_rng_key key, uint64_t a);

#endif
