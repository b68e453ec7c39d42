/* Parquet's DELTA encodings: integers as differences in packed blocks, and texts by their
 * lengths or by the prefix that they share with the one before.
 *
 * A block of equal differences takes a few bytes for any number of values, so a page may
 * have at most KG_PARQUET_MAX_DELTA_VALUES. Shared prefixes can make a page of texts much
 * larger than its bytes, so the expanded texts are limited as a page is.
 */
#include "data/parquet_internal.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_BLOCK_VALUES = 1 << 16, MAX_MINIBLOCKS = 512 };

/* ---- buffers ---- */

kg_status kg_parquet_buffer_need(struct kg_parquet_buffer *b, struct kg_parquet *file,
                                 size_t bytes, struct kg_err *err)
{
    if (bytes <= b->capacity)
        return KG_OK;
    kg_parquet_buffer_release(b, file);
    if (bytes > KG_PARQUET_MAX_HELD_BYTES - file->held_bytes)
        return kg_fail(err, KG_ENOMEM,
                       "open columns: expected at most %d bytes, found %zu in use and "
                       "%zu more needed",
                       KG_PARQUET_MAX_HELD_BYTES, file->held_bytes, bytes);
    KG_TRY(kg_mem_new(&b->data, bytes, 1, "Parquet page", err));
    b->capacity = bytes;
    file->held_bytes += bytes;
    return KG_OK;
}

void kg_parquet_buffer_release(struct kg_parquet_buffer *b, struct kg_parquet *file)
{
    kg_mem_free(b->data);
    file->held_bytes -= b->capacity;
    b->data = NULL;
    b->capacity = 0;
}

/* ---- integers ---- */

struct delta {
    const unsigned char *p;
    const unsigned char *end;
    uint64_t value; /* the last value; sums wrap around, as the format requires */
    size_t per_miniblock;
    size_t miniblocks;
};

static kg_status malformed(struct kg_err *err)
{
    return kg_fail(err, KG_EFORMAT,
                   "expected delta-encoded integers, found them truncated or malformed");
}

static bool read_varint(struct delta *d, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 70 && d->p < d->end; shift += 7) {
        unsigned byte = *d->p++;

        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

static bool read_zigzag(struct delta *d, uint64_t *value)
{
    uint64_t u;

    if (!read_varint(d, &u))
        return false;
    *value = (u >> 1) ^ (0 - (u & 1));
    return true;
}

/* Bits [bit, bit + width) of the n bytes at p; width is at most 64. */
static uint64_t bits_at(const unsigned char *p, size_t n, uint64_t bit, unsigned width)
{
    size_t at = (size_t)(bit / 8);
    unsigned shift = (unsigned)(bit & 7);
    uint64_t low = 0;

    memcpy(&low, p + at, n - at < 8 ? n - at : 8);
    uint64_t value = low >> shift;
    if (shift + width > 64)
        value |= (uint64_t)p[at + 8] << (64 - shift);
    return width == 64 ? value : value & ((UINT64_C(1) << width) - 1);
}

/* Like bits_at, if 8 bytes can be read at every value and width is at most 56. */
static uint64_t whole_bits_at(const unsigned char *p, uint64_t bit, unsigned width)
{
    uint64_t word;

    memcpy(&word, p + bit / 8, sizeof word);
    return word >> (bit & 7) & ((UINT64_C(1) << width) - 1);
}

/* How many of n values whole_bits_at can read without passing d->end. */
static size_t by_words(const struct delta *d, size_t n, unsigned width)
{
    size_t left = (size_t)(d->end - d->p), most;

    if (width > 56 || left < 8)
        return 0;
    most = width ? ((left - 8) * 8) / width + 1 : n;
    return most < n ? most : n;
}

/* Takes n values of a miniblock, and moves past all its bytes. */
static kg_status take_miniblock(int64_t *out, struct delta *d, size_t n, unsigned width,
                                uint64_t least, struct kg_err *err)
{
    size_t bytes = d->per_miniblock / 8 * width, whole;
    uint64_t value = d->value;

    if (width > 64 || bytes > (size_t)(d->end - d->p))
        return malformed(err);
    whole = by_words(d, n, width);
    for (size_t i = 0; i < whole; i++) {
        value += least + whole_bits_at(d->p, (uint64_t)i * width, width);
        out[i] = (int64_t)value;
    }
    for (size_t i = whole; i < n; i++) {
        value += least + (width ? bits_at(d->p, bytes, (uint64_t)i * width, width) : 0);
        out[i] = (int64_t)value;
    }
    d->value = value;
    d->p += bytes;
    return KG_OK;
}

static kg_status take_block(int64_t *out, struct delta *d, size_t left, size_t *taken,
                            struct kg_err *err)
{
    uint64_t least;

    if (!read_zigzag(d, &least) || d->miniblocks > (size_t)(d->end - d->p))
        return malformed(err);
    const unsigned char *widths = d->p;
    d->p += d->miniblocks;
    *taken = 0;
    for (size_t m = 0; m < d->miniblocks && *taken < left; m++) {
        size_t n = left - *taken;

        n = n < d->per_miniblock ? n : d->per_miniblock;
        KG_TRY(take_miniblock(out + *taken, d, n, widths[m], least, err));
        *taken += n;
    }
    return KG_OK;
}

static kg_status read_head(struct delta *d, size_t *n, size_t max, struct kg_err *err)
{
    uint64_t block;
    uint64_t miniblocks;
    uint64_t total;

    if (!read_varint(d, &block) || !read_varint(d, &miniblocks) ||
        !read_varint(d, &total) || !read_zigzag(d, &d->value))
        return malformed(err);
    if (miniblocks == 0 || miniblocks > MAX_MINIBLOCKS || block > MAX_BLOCK_VALUES ||
        block % miniblocks || block / miniblocks % 8 || block == 0)
        return malformed(err);
    if (total > max)
        return kg_fail(err, KG_EFORMAT, "expected at most %zu integers, found %llu", max,
                       (unsigned long long)total);
    d->miniblocks = (size_t)miniblocks;
    d->per_miniblock = (size_t)(block / miniblocks);
    *n = (size_t)total;
    return KG_OK;
}

kg_status kg_parquet_delta_ints(int64_t *out, size_t *n_out, size_t *used,
                                const unsigned char *p, size_t n, size_t max,
                                struct kg_err *err)
{
    struct delta d = {.p = p, .end = p + n};
    size_t done = 0;

    KG_TRY(read_head(&d, n_out, max, err));
    if (*n_out > 0)
        memcpy(&out[done++], &d.value, sizeof *out);
    while (done < *n_out) {
        size_t taken = 0;

        KG_TRY(take_block(out + done, &d, *n_out - done, &taken, err));
        done += taken;
    }
    *used = (size_t)(d.p - p);
    return KG_OK;
}

/* ---- texts ---- */

/* Reads lengths into a buffer.   p moves past them */
static kg_status take_lengths(struct kg_parquet_buffer *to, size_t *n,
                              const unsigned char **p, const unsigned char *end,
                              size_t max, struct kg_err *err)
{
    const int64_t *lengths = to->data;
    size_t used;

    KG_TRY(kg_parquet_delta_ints(to->data, n, &used, *p, (size_t)(end - *p), max, err));
    for (size_t i = 0; i < *n; i++) {
        if (lengths[i] < 0 || lengths[i] > KG_PARQUET_MAX_PAGE_BYTES)
            return kg_fail(err, KG_EFORMAT, "expected the length of a text, found %lld",
                           (long long)lengths[i]);
    }
    *p += used;
    return KG_OK;
}

/* Splits the bytes into texts by d->lengths. */
static kg_status cut_texts(struct kg_parquet_delta *d, size_t n, const unsigned char *p,
                           const unsigned char *end, struct kg_err *err)
{
    struct kg_parquet_text *texts = d->values.data;
    const int64_t *lengths = d->lengths.data;

    for (size_t i = 0; i < n; i++) {
        if (lengths[i] > end - p)
            return kg_fail(err, KG_EFORMAT,
                           "expected a text of %lld bytes, found %zu left",
                           (long long)lengths[i], (size_t)(end - p));
        texts[i] = (struct kg_parquet_text){(const char *)p, (size_t)lengths[i]};
        p += lengths[i];
    }
    return KG_OK;
}

static kg_status sum_texts(size_t *total, const struct kg_parquet_delta *d, size_t n,
                           struct kg_err *err)
{
    const int64_t *prefixes = d->prefixes.data;
    const int64_t *lengths = d->lengths.data;
    size_t last = 0;

    *total = 0;
    for (size_t i = 0; i < n; i++) {
        if ((size_t)prefixes[i] > last)
            return kg_fail(
                err, KG_EFORMAT,
                "expected at most %zu bytes shared with the previous text, found %lld",
                last, (long long)prefixes[i]);
        last = (size_t)(prefixes[i] + lengths[i]);
        *total += last;
        if (*total > KG_PARQUET_MAX_PAGE_BYTES)
            return kg_fail(err, KG_EFORMAT,
                           "expected texts of at most %d bytes in a page, found more",
                           KG_PARQUET_MAX_PAGE_BYTES);
    }
    return KG_OK;
}

enum { SHORT_BYTES = 16 };

/* Copies n bytes. A short text takes one load and store of SHORT_BYTES, for which both
 * sides must have room; the next copy overwrites the surplus. */
static void copy_text(char *to, const char *from, size_t n, bool has_room)
{
    char block[SHORT_BYTES];

    if (n > SHORT_BYTES || !has_room) {
        memcpy(to, from, n);
        return;
    }
    memcpy(block, from, sizeof block);
    memcpy(to, block, sizeof block);
}

/* Puts prefixes before the texts, which hold only their suffixes; these end at `end`. */
static kg_status join_prefixes(struct kg_parquet_delta *d, struct kg_parquet *file,
                               size_t n, const char *end, struct kg_err *err)
{
    struct kg_parquet_text *texts = d->values.data;
    const int64_t *prefixes = d->prefixes.data;
    size_t total;

    KG_TRY(sum_texts(&total, d, n, err));
    KG_TRY(kg_parquet_buffer_need(&d->bytes, file, total + 2 * SHORT_BYTES, err));
    char *to = d->bytes.data;
    for (size_t i = 0; i < n; i++) {
        size_t shared = (size_t)prefixes[i];
        char *whole = to;

        if (shared > 0)
            copy_text(to, texts[i - 1].data, shared, true);
        copy_text(to + shared, texts[i].data, texts[i].n,
                  end - texts[i].data >= SHORT_BYTES);
        to += shared + texts[i].n;
        texts[i] = (struct kg_parquet_text){whole, shared + texts[i].n};
    }
    return KG_OK;
}

kg_status kg_parquet_delta_texts(struct kg_parquet_delta *d, size_t *n_out,
                                 struct kg_parquet *file, const unsigned char *p,
                                 size_t n, size_t max, bool with_prefixes,
                                 struct kg_err *err)
{
    const unsigned char *end = p + n;
    size_t n_prefixes = 0;

    KG_TRY(kg_parquet_buffer_need(&d->values, file,
                                  (max + 1) * sizeof(struct kg_parquet_text), err));
    KG_TRY(kg_parquet_buffer_need(&d->lengths, file, (max + 1) * 8, err));
    if (with_prefixes) {
        KG_TRY(kg_parquet_buffer_need(&d->prefixes, file, (max + 1) * 8, err));
        KG_TRY(take_lengths(&d->prefixes, &n_prefixes, &p, end, max, err));
    }
    KG_TRY(take_lengths(&d->lengths, n_out, &p, end, max, err));
    if (with_prefixes && n_prefixes != *n_out)
        return kg_fail(err, KG_EFORMAT, "expected %zu texts, one per prefix, found %zu",
                       n_prefixes, *n_out);
    KG_TRY(cut_texts(d, *n_out, p, end, err));
    return with_prefixes ? join_prefixes(d, file, *n_out, (const char *)end, err) : KG_OK;
}
