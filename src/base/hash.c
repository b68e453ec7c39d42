/* Hashing at the speed of memory.
 *
 * Not cryptography. The one idea: each of four lanes takes every fourth word of 8 bytes
 * by steps that can be undone (xor, odd multiplication, xor-shift), so two inputs that
 * differ in one word end in different states; four lanes keep the multiplier busy.
 */
#include "base/hash.h"

#include "base/file.h"
#include "base/phase.h"

#include <stdio.h>
#include <string.h>

enum { LANES = 4, WORD = 8 };

/* 2^64 over the golden ratio, rounded to odd: its bits look random */
static const uint64_t multiplier = 0x9e3779b97f4a7c15u;

static uint64_t take_word(uint64_t state, uint64_t word)
{
    state = (state ^ word) * multiplier;
    return state ^ (state >> 32);
}

/* The word at bytes, of which n are left; fewer than WORD are padded with zeros. */
static uint64_t word_at(const unsigned char *bytes, size_t n)
{
    uint64_t word = 0;

    memcpy(&word, bytes, n < WORD ? n : WORD);
    return word;
}

/* State after the first n bytes; {{1, 2, 3, 4}, 0} after none. */
struct state {
    uint64_t lane[LANES];
    size_t n;
};

/* Takes the next n bytes; n is a multiple of LANES * WORD, except in the last call. */
static void take(struct state *s, const unsigned char *from, size_t n)
{
    size_t at = 0;

    for (; at + LANES * WORD <= n; at += LANES * WORD)
        for (int i = 0; i < LANES; i++)
            s->lane[i] = take_word(s->lane[i], word_at(from + at + i * WORD, WORD));
    for (; at < n; at += WORD)
        s->lane[0] = take_word(s->lane[0], word_at(from + at, n - at));
    s->n += n;
}

static uint64_t result(const struct state *s)
{
    /* the length is hashed too, so that zeros at the end count */
    uint64_t hash = (uint64_t)s->n;

    for (int i = 0; i < LANES; i++)
        hash = take_word(hash, s->lane[i]);
    return hash;
}

uint64_t kg_hash_bytes(const void *bytes, size_t n)
{
    struct state s = {{1, 2, 3, 4}, 0};

    take(&s, bytes, n);
    return result(&s);
}

/* Releases each piece, because memory may be full of the model whose file is hashed. */
static uint64_t hash_map(const struct kg_map *map)
{
    enum { PIECE = 4 << 20 };
    struct state s = {{1, 2, 3, 4}, 0};

    for (uint64_t at = 0; at < map->bytes; at += PIECE) {
        const uint64_t left = map->bytes - at, n = left < PIECE ? left : PIECE;

        take(&s, map->data + at, n);
        kg_map_let_go(map->data + at, n);
    }
    return result(&s);
}

kg_status kg_hash_file(uint64_t *hash, uint64_t *n_bytes, const char *path,
                       struct kg_err *err)
{
    struct kg_map map;

    KG_TRY(kg_map_open(&map, path, err));
    int phase = kg_phase_begin(0, NULL, "hashing %s", path);
    *hash = hash_map(&map);
    kg_phase_end(phase);
    *n_bytes = map.bytes;
    kg_map_close(&map);
    return KG_OK;
}

/* Inputs are a few kilobytes, so bit by bit is fast enough and needs no table. */
uint32_t kg_hash_crc32c(const void *bytes, size_t n)
{
    const unsigned char *from = bytes;
    uint32_t crc = 0xffffffffu;

    for (size_t i = 0; i < n; i++) {
        crc ^= from[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

/* Both digests share their frame: blocks of 64 bytes, a length at the end, words of 32
 * bits. They differ in the schedule of a block's words and in a round. Variables have the
 * standard's names. */

enum { BLOCK = 64 };

static uint32_t turn_left(uint32_t x, int n) { return x << n | x >> (32 - n); }
static uint32_t turn_right(uint32_t x, int n) { return x >> n | x << (32 - n); }

static uint32_t big_word(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t choose(uint32_t x, uint32_t y, uint32_t z) { return (x & y) ^ (~x & z); }
static uint32_t parity(uint32_t x, uint32_t y, uint32_t z) { return x ^ y ^ z; }
static uint32_t majority(uint32_t x, uint32_t y, uint32_t z)
{
    return (x & y) ^ (x & z) ^ (y & z);
}

/* ---- SHA-1 ---- */

static void sha1_block(uint32_t h[8], const unsigned char *p)
{
    static const struct {
        uint32_t (*f)(uint32_t, uint32_t, uint32_t);
        uint32_t k;
    } parts[4] = {{choose, 0x5a827999},
                  {parity, 0x6ed9eba1},
                  {majority, 0x8f1bbcdc},
                  {parity, 0xca62c1d6}};
    uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];

    for (int t = 0; t < 80; t++)
        w[t] = t < 16 ? big_word(p + 4 * t)
                      : turn_left(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
    for (int t = 0; t < 80; t++) {
        uint32_t next = turn_left(a, 5) + parts[t / 20].f(b, c, d) + e + parts[t / 20].k +
                        w[t];

        e = d, d = c, c = turn_left(b, 30), b = a, a = next;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
}

/* ---- SHA-256 ---- */

static const uint32_t k256[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
    0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
    0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
    0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
    0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
    0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
    0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2};

static uint32_t scheduled(const uint32_t w[64], int t)
{
    uint32_t a = w[t - 15], b = w[t - 2];
    uint32_t s0 = turn_right(a, 7) ^ turn_right(a, 18) ^ a >> 3;
    uint32_t s1 = turn_right(b, 17) ^ turn_right(b, 19) ^ b >> 10;

    return s1 + w[t - 7] + s0 + w[t - 16];
}

static void sha256_block(uint32_t h[8], const unsigned char *p)
{
    uint32_t w[64], v[8];

    for (int t = 0; t < 64; t++)
        w[t] = t < 16 ? big_word(p + 4 * t) : scheduled(w, t);
    memcpy(v, h, sizeof v);
    for (int t = 0; t < 64; t++) {
        uint32_t a = v[0], e = v[4];
        uint32_t s0 = turn_right(a, 2) ^ turn_right(a, 13) ^ turn_right(a, 22);
        uint32_t s1 = turn_right(e, 6) ^ turn_right(e, 11) ^ turn_right(e, 25);
        uint32_t t1 = v[7] + s1 + choose(e, v[5], v[6]) + k256[t] + w[t];

        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + s0 + majority(a, v[2], v[3]);
    }
    for (int i = 0; i < 8; i++)
        h[i] += v[i];
}

/* ---- both digests ---- */

static const struct {
    uint32_t h[8];
    int words; /* of the result */
    void (*block)(uint32_t h[8], const unsigned char *p);
} kinds[] = {
    [KG_SHA1] = {{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0},
                 5,
                 sha1_block},
    [KG_SHA256] = {{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                    0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
                   8,
                   sha256_block},
};

void kg_digest_begin(struct kg_digest *d, enum kg_digest_kind kind)
{
    *d = (struct kg_digest){.kind = kind};
    memcpy(d->h, kinds[kind].h, sizeof d->h);
}

void kg_digest_put(struct kg_digest *d, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    size_t used = d->bytes % BLOCK;

    d->bytes += n;
    if (used + n < BLOCK) {
        memcpy(d->block + used, p, n);
        return;
    }
    if (used > 0) {
        memcpy(d->block + used, p, BLOCK - used);
        p += BLOCK - used, n -= BLOCK - used;
        kinds[d->kind].block(d->h, d->block);
    }
    for (; n >= BLOCK; p += BLOCK, n -= BLOCK)
        kinds[d->kind].block(d->h, p);
    memcpy(d->block, p, n);
}

void kg_digest_end(char text[KG_DIGEST_TEXT], struct kg_digest *d)
{
    static const unsigned char pad[BLOCK] = {0x80};
    uint64_t bits = 8 * d->bytes;
    size_t used = d->bytes % BLOCK;
    unsigned char length[8];

    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(bits >> (56 - 8 * i));
    kg_digest_put(d, pad, (used < 56 ? 56 : 56 + BLOCK) - used);
    kg_digest_put(d, length, sizeof length);
    for (int i = 0; i < kinds[d->kind].words; i++)
        snprintf(text + 8 * i, 9, "%08x", d->h[i]);
}
