/* Philox4x32-10 and what is drawn from it.
 *
 * Not for cryptography. The one idea: for a fixed key the ten rounds are a bijection of
 * 128-bit counters, so two draws can only coincide if their counters do. The key is the
 * seed, untouched; the counter holds the stream and (a, b, c) in separate bits:
 *
 *     word 0 = a, bits 0..31     word 1 = a, bits 32..55, and the stream in bits 24..31
 *     word 2 = b                 word 3 = c
 *
 * So (seed, stream, a, b, c) maps one to one onto (key, counter): no two uses of
 * randomness share a block, within one seed or across seeds. The price is a < 2^56.
 *
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
 * 2011.
 */
#include "base/rng.h"
#include "base/real.h"
#include "base/rng_inline.h"

#include <assert.h>
#include <math.h>

static void philox(uint32_t x[4], uint32_t k0, uint32_t k1)
{
    for (uint32_t round = 0; round < KG_RNG_ROUNDS; round++)
        kg_rng_round(&x[0], &x[1], &x[2], &x[3], round, k0, k1);
}

void kg_rng_philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    for (int i = 0; i < 4; i++)
        out[i] = counter[i];
    philox(out, key[0], key[1]);
}

void kg_rng_counter(uint32_t out[4], struct kg_rng_key key, uint64_t a, uint32_t b,
                    uint32_t c)
{
    assert(a >> 56 == 0 && (unsigned)key.stream < 256);
    out[0] = (uint32_t)a;
    out[1] = (uint32_t)(a >> 32) | (uint32_t)key.stream << 24;
    out[2] = b;
    out[3] = c;
}

void kg_rng_words(uint32_t out[4], struct kg_rng_key key, uint64_t a, uint32_t b,
                  uint32_t c)
{
    kg_rng_counter(out, key, a, b, c);
    philox(out, (uint32_t)key.seed, (uint32_t)(key.seed >> 32));
}

static uint64_t draw64(struct kg_rng_key key, uint64_t a, uint32_t b, uint32_t c)
{
    uint32_t w[4];

    kg_rng_words(w, key, a, b, c);
    return (uint64_t)w[0] << 32 | w[1];
}

double kg_rng_uniform(struct kg_rng_key key, uint64_t a, uint32_t b, uint32_t c)
{
    return (double)(draw64(key, a, b, c) >> 11) * 0x1p-53;
}

uint64_t kg_rng_below(struct kg_rng_key key, uint64_t a, uint32_t b, uint32_t c,
                      uint64_t n)
{
    assert(n >= 1);
    return (uint64_t)((unsigned __int128)draw64(key, a, b, c) * n >> 64);
}

void kg_rng_normal4(float out[4], struct kg_rng_key key, uint64_t a, uint32_t b,
                    uint32_t c)
{
    uint32_t w[4];

    kg_rng_words(w, key, a, b, c);
    for (int i = 0; i < 4; i += 2) {
        double u = ((double)w[i] + 1.0) *
                   0x1p-32; /* (0, 1]: the logarithm stays finite */
        double angle = (double)w[i + 1] * (2.0 * 3.14159265358979323846 * 0x1p-32);
        double radius = sqrt(-2.0 * kg_log(u));
        out[i] = (float)(radius * kg_cos(angle));
        out[i + 1] = (float)(radius * kg_sin(angle));
    }
}

void kg_rng_permutation(uint32_t *order, uint32_t n, struct kg_rng_key key, uint64_t a)
{
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)kg_rng_below(key, a, i, 0, i);
        uint32_t held = order[i - 1];
        order[i - 1] = order[j];
        order[j] = held;
    }
}
