/* Hashing at the speed of memory.
 *
 * Not cryptography. The one idea: each of four lanes takes every fourth word of 8 bytes
 * by steps that can be undone (xor, odd multiplication, xor-shift), so two inputs that
 * differ in one word end in different states; four lanes keep the multiplier busy.
 */
#include "base/hash.h"

#include "base/file.h"
#include "base/phase.h"

#include <string.h>

enum { LANES = 4, WORD = 8 };

/* 2^64 over the golden ratio, made odd: its bits look like chance */
static const uint64_t multiplier = 0x9e3779b97f4a7c15u;

static uint64_t take_word(uint64_t state, uint64_t word)
{
    state = (state ^ word) * multiplier;
    return state ^ (state >> 32);
}

/* The word at bytes; one that the end cuts is filled up with zeros. */
static uint64_t word_at(const unsigned char *bytes, size_t n)
{
    uint64_t word = 0;

    memcpy(&word, bytes, n < WORD ? n : WORD);
    return word;
}

/* What has been read of the bytes: {{1, 2, 3, 4}, 0} at their beginning. */
struct state {
    uint64_t lane[LANES];
    size_t n;
};

/* The next n bytes; where others follow, n is a multiple of all lanes' words. */
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
    /* the length is hashed too: zeros at the end count */
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

/* Piece by piece: a process whose memory is full of a model hashes the files of it. */
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

/* A few kilobytes at a time: bit by bit is fast enough and needs no table. */
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
