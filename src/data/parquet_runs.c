/* Parquet's hybrid of runs: repeated values and bit-packed groups of 8, in turn.
 *
 * A run's length comes from the file and may be anything; nothing is allocated for it,
 * and a packed run is checked against the bytes that are left when it begins.
 */
#include "data/parquet_internal.h"

#include <string.h>

void kg_parquet_runs_start(struct kg_parquet_runs *r, const void *bytes, size_t n,
                           int width)
{
    memset(r, 0, sizeof *r);
    r->p = bytes;
    r->end = r->p + n;
    r->width = width;
}

int kg_parquet_level_width(int max)
{
    int width = 0;

    while (max >> width)
        width++;
    return width;
}

static bool read_varint(struct kg_parquet_runs *r, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 35 && r->p < r->end; shift += 7) {
        unsigned byte = *r->p++;

        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

static bool start_packed(struct kg_parquet_runs *r, uint64_t groups)
{
    uint64_t bytes = groups * (uint64_t)r->width;

    if (groups == 0 || bytes > (uint64_t)(r->end - r->p))
        return false;
    r->packed = true;
    r->packs = r->p;
    r->bit = 0;
    r->left = 8 * groups;
    r->p += bytes;
    return true;
}

static bool start_repeated(struct kg_parquet_runs *r, uint64_t n)
{
    int bytes = (r->width + 7) / 8;

    if (n == 0 || bytes > r->end - r->p)
        return false;
    r->packed = false;
    r->value = 0;
    for (int i = 0; i < bytes; i++)
        r->value |= (uint32_t)r->p[i] << (8 * i);
    r->left = n;
    r->p += bytes;
    return r->width == 32 || r->value >> r->width == 0;
}

static kg_status next_run(struct kg_parquet_runs *r, struct kg_err *err)
{
    uint64_t head;
    bool good = read_varint(r, &head) &&
                (head & 1 ? start_packed(r, head >> 1) : start_repeated(r, head >> 1));

    if (!good)
        return kg_fail(err, KG_EFORMAT,
                       "expected another run of values, found the data cut or malformed");
    return KG_OK;
}

/* Value at `bit` of the pack. Near the end of the data fewer than 8 bytes may be left. */
static uint32_t bits_at(const struct kg_parquet_runs *r, uint64_t bit, uint32_t mask)
{
    const unsigned char *p = r->packs + bit / 8;
    uint64_t eight = 0;
    size_t room = (size_t)(r->end - p);

    memcpy(&eight, p, room < 8 ? room : 8);
    return (uint32_t)(eight >> (bit & 7)) & mask;
}

static void unpack(uint32_t *out, struct kg_parquet_runs *r, size_t n)
{
    uint32_t mask = r->width == 32 ? UINT32_MAX : (1u << r->width) - 1;
    const unsigned char *packs = r->packs;
    uint64_t bit = r->bit;
    size_t room = (size_t)(r->end - packs);
    uint64_t safe = room < 8 ? 0 : 8 * (room - 7); /* bits at which 8 bytes can be read */
    size_t i = 0;

    for (; i < n && bit < safe; i++, bit += (unsigned)r->width) {
        uint64_t eight;

        memcpy(&eight, packs + bit / 8, 8);
        out[i] = (uint32_t)(eight >> (bit & 7)) & mask;
    }
    for (; i < n; i++, bit += (unsigned)r->width)
        out[i] = bits_at(r, bit, mask);
    r->bit = bit;
}

kg_status kg_parquet_runs_take(uint32_t *out, struct kg_parquet_runs *r, size_t n,
                               struct kg_err *err)
{
    while (n > 0) {
        if (r->left == 0)
            KG_TRY(next_run(r, err));
        size_t some = r->left < n ? (size_t)r->left : n;
        if (r->packed)
            unpack(out, r, some);
        for (size_t i = 0; i < some && !r->packed; i++)
            out[i] = r->value;
        out += some;
        n -= some;
        r->left -= some;
    }
    return KG_OK;
}

/* Takes levels of one run: most pages have a single run, of the highest level. */
static kg_status levels_some(uint8_t *out, size_t *equal, struct kg_parquet_runs *r,
                             size_t n, int max, struct kg_err *err)
{
    uint32_t values[KG_PARQUET_BATCH];

    if (!r->packed) {
        if (r->value > (uint32_t)max)
            return kg_fail(err, KG_EFORMAT, "expected a level of at most %d, found %u",
                           max, r->value);
        memset(out, (int)r->value, n);
        *equal += r->value == (uint32_t)max ? n : 0;
        r->left -= n;
        return KG_OK;
    }
    KG_TRY(kg_parquet_runs_take(values, r, n, err));
    for (size_t i = 0; i < n; i++) {
        if (values[i] > (uint32_t)max)
            return kg_fail(err, KG_EFORMAT, "expected a level of at most %d, found %u",
                           max, values[i]);
        out[i] = (uint8_t)values[i];
        *equal += values[i] == (uint32_t)max;
    }
    return KG_OK;
}

kg_status kg_parquet_levels_take(uint8_t *out, size_t *equal, struct kg_parquet_runs *r,
                                 size_t n, int max, struct kg_err *err)
{
    *equal = 0;
    while (n > 0) {
        size_t some = n < KG_PARQUET_BATCH ? n : KG_PARQUET_BATCH;

        if (r->left == 0)
            KG_TRY(next_run(r, err));
        some = r->left < some ? (size_t)r->left : some;
        KG_TRY(levels_some(out, equal, r, some, max, err));
        out += some;
        n -= some;
    }
    return KG_OK;
}
