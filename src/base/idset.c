/* Packing sets of ids, and iteration over them.
 *
 * The packer writes a list of gaps and switches to a bitmap as soon as the list would be
 * as long. So it need not know the number of ids, and a large set costs at most one extra
 * pass. The length alone tells the two forms apart. Iteration over a list reads each gap
 * once, forward only; over a bitmap it counts trailing zeros, eight ids at a time.
 */
#include "base/idset.h"

#include <stdbool.h>

/* The next set bit at or after id; the bound without one. */
static int32_t next_bit(const uint8_t *bits, int32_t id, int32_t bound)
{
    while (id < bound) {
        unsigned rest = (unsigned)bits[id / 8] >> (id % 8);

        if (rest != 0)
            return id + __builtin_ctz(rest);
        id = (id / 8 + 1) * 8;
    }
    return bound;
}

static bool is_bitmap(const struct kg_idset *s)
{
    return s->bytes == kg_idset_most(s->bound);
}

static uint32_t gap_bytes(uint32_t gap)
{
    uint32_t n = 1;

    for (; gap >= 128; gap >>= 7)
        n++;
    return n;
}

/* gap: id - the id before - 1, where -1 is before the first; 7 bits a byte, low first */
static uint32_t put_gap(uint8_t *out, uint32_t gap)
{
    uint32_t n = 0;

    for (; gap >= 128; gap >>= 7)
        out[n++] = (uint8_t)(gap | 128);
    out[n++] = (uint8_t)gap;
    return n;
}

static void put_bitmap(uint8_t *out, const uint64_t *words, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(words[i / 8] >> (i % 8 * 8));
}

struct kg_idset kg_idset_pack(uint8_t *out, const uint64_t *words, int32_t bound)
{
    struct kg_idset s = {.data = out, .bound = bound};
    uint32_t most = kg_idset_most(bound);
    int32_t before = -1;

    for (int32_t i = 0; i < (bound + 63) / 64; i++)
        s.n += __builtin_popcountll(words[i]);
    for (int32_t i = 0; i < (bound + 63) / 64; i++)
        for (uint64_t rest = words[i]; rest != 0; rest &= rest - 1) {
            int32_t id = i * 64 + __builtin_ctzll(rest);
            uint32_t gap = (uint32_t)(id - before - 1);

            if (s.bytes + gap_bytes(gap) >= most) {
                put_bitmap(out, words, most);
                s.bytes = most;
                return s;
            }
            s.bytes += put_gap(out + s.bytes, gap);
            before = id;
        }
    return s;
}

void kg_idset_begin(struct kg_idset_walk *w, const struct kg_idset *s)
{
    *w = (struct kg_idset_walk){.id = -1};
    kg_idset_next(w, s);
}

void kg_idset_next(struct kg_idset_walk *w, const struct kg_idset *s)
{
    uint32_t gap = 0;
    int shift = 0;

    if (is_bitmap(s)) {
        w->id = next_bit(s->data, w->id + 1, s->bound);
        return;
    }
    if (w->byte >= s->bytes) {
        w->id = s->bound;
        return;
    }
    for (; s->data[w->byte] & 128; shift += 7)
        gap |= (uint32_t)(s->data[w->byte++] & 127) << shift;
    gap |= (uint32_t)s->data[w->byte++] << shift;
    w->id += (int32_t)gap + 1;
}
