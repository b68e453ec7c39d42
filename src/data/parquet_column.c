/* A column chunk of a Parquet file: pages one after the other, decoded in batches.
 *
 * A page is unpacked whole; its levels and values are decoded a batch at a time, because
 * a few bytes may stand for any number of them. Texts are not copied: they point into
 * the page or the dictionary.
 */
#include "data/parquet_internal.h"

#include "base/mem.h"

#include <stddef.h>
#include <string.h>

enum page_type { PAGE_DATA = 0, PAGE_INDEX = 1, PAGE_DICTIONARY = 2, PAGE_DATA_V2 = 3 };

enum encoding {
    PLAIN = 0,
    PLAIN_DICTIONARY = 2,
    RLE = 3,
    BIT_PACKED = 4,
    DELTA_INTS = 5,
    DELTA_LENGTHS = 6,
    DELTA_PREFIXES = 7,
    RLE_DICTIONARY = 8,
    BYTE_STREAM_SPLIT = 9,
};
static const char *const encoding_names[] = {
    "PLAIN",
    "GROUP_VAR_INT",
    "PLAIN_DICTIONARY",
    "RLE",
    "BIT_PACKED",
    "DELTA_BINARY_PACKED",
    "DELTA_LENGTH_BYTE_ARRAY",
    "DELTA_BYTE_ARRAY",
    "RLE_DICTIONARY",
    "BYTE_STREAM_SPLIT",
};

struct bytes {
    const unsigned char *p;
    const unsigned char *end;
};

struct kg_parquet_column {
    struct kg_parquet *file;            /* borrowed */
    const struct kg_parquet_node *node; /* borrowed */
    size_t group;
    enum kg_codec codec;
    struct bytes pages; /* rest of the chunk */
    int64_t chunk_left; /* entries in pages not yet begun */
    int64_t page_left;  /* entries of this page not yet returned */
    int64_t page;       /* its number, from 1 */
    size_t width;       /* bytes of a decoded value */
    enum encoding encoding;
    struct bytes values; /* PLAIN, BYTE_STREAM_SPLIT: what is left */
    size_t stride;       /* BYTE_STREAM_SPLIT: values of the page */
    struct kg_parquet_runs rep_runs, def_runs;
    struct kg_parquet_runs value_runs; /* dictionary indices, or RLE booleans */
    struct kg_parquet_delta delta;     /* values of the page, decoded */
    size_t delta_at, delta_n;
    struct kg_parquet_buffer page_bytes, dictionary_bytes, dictionary;
    size_t n_dictionary;
    bool has_dictionary;
    uint8_t rep[KG_PARQUET_BATCH];
    uint8_t def[KG_PARQUET_BATCH];
    uint32_t indices[KG_PARQUET_BATCH];
    uint64_t out[2 * KG_PARQUET_BATCH]; /* decoded values, up to 16 bytes each */
};

kg_status kg_parquet_column_blame(const struct kg_parquet_column *c, struct kg_err *err)
{
    return kg_err_prefix(err, "%s: column '%s', row group %zu, page %lld", c->file->name,
                         c->node->path, c->group + 1, (long long)c->page);
}

/* ---- PLAIN ---- */

static uint32_t little32(const unsigned char *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static kg_status too_few(size_t wanted, const struct bytes *b, struct kg_err *err)
{
    return kg_fail(err, KG_EFORMAT, "expected %zu bytes of values, found %zu left",
                   wanted, (size_t)(b->end - b->p));
}

static kg_status plain_texts(struct kg_parquet_text *out, struct bytes *b, size_t n,
                             struct kg_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (b->end - b->p < 4)
            return too_few(4, b, err);
        uint32_t length = little32(b->p);
        b->p += 4;
        if (length > (size_t)(b->end - b->p))
            return too_few(length, b, err);
        out[i] = (struct kg_parquet_text){(const char *)b->p, length};
        b->p += length;
    }
    return KG_OK;
}

static kg_status plain_fixed(struct kg_parquet_text *out, struct bytes *b, size_t n,
                             size_t length, struct kg_err *err)
{
    if (n > (size_t)(b->end - b->p) / length)
        return too_few(n * length, b, err);
    for (size_t i = 0; i < n; i++, b->p += length)
        out[i] = (struct kg_parquet_text){(const char *)b->p, length};
    return KG_OK;
}

static kg_status plain_numbers(void *out, struct bytes *b, size_t n, size_t width,
                               struct kg_err *err)
{
    if (n > (size_t)(b->end - b->p) / width)
        return too_few(n * width, b, err);
    memcpy(out, b->p, n * width);
    b->p += n * width;
    return KG_OK;
}

static kg_status take_plain(void *out, const struct kg_parquet_column *c, struct bytes *b,
                            size_t n, struct kg_err *err)
{
    if (n == 0)
        return KG_OK;
    switch (c->node->type) {
    case KG_PARQUET_BYTES:
        return plain_texts(out, b, n, err);
    case KG_PARQUET_FIXED:
    case KG_PARQUET_INT96:
        return plain_fixed(out, b, n, (size_t)c->node->bytes, err);
    default:
        return plain_numbers(out, b, n, c->width, err);
    }
}

/* ---- values by encoding ---- */

static kg_status take_bools(struct kg_parquet_column *c, size_t n, struct kg_err *err)
{
    size_t equal;

    return kg_parquet_levels_take((uint8_t *)c->out, &equal, &c->value_runs, n, 1, err);
}

static void gather(void *out, const void *dictionary, const uint32_t *indices, size_t n,
                   size_t width)
{
    const struct kg_parquet_text *texts = dictionary;
    const uint64_t *eights = dictionary;
    const uint32_t *fours = dictionary;

    if (width == sizeof *texts)
        for (size_t i = 0; i < n; i++)
            ((struct kg_parquet_text *)out)[i] = texts[indices[i]];
    else if (width == 8)
        for (size_t i = 0; i < n; i++)
            ((uint64_t *)out)[i] = eights[indices[i]];
    else
        for (size_t i = 0; i < n; i++)
            ((uint32_t *)out)[i] = fours[indices[i]];
}

static kg_status take_dictionary(struct kg_parquet_column *c, size_t n,
                                 struct kg_err *err)
{
    uint32_t most = 0;

    KG_TRY(kg_parquet_runs_take(c->indices, &c->value_runs, n, err));
    for (size_t i = 0; i < n; i++)
        most = c->indices[i] > most ? c->indices[i] : most;
    if (n > 0 && most >= c->n_dictionary)
        return kg_fail(err, KG_EFORMAT,
                       "expected an index into a dictionary of %zu values, found %u",
                       c->n_dictionary, most);
    gather(c->out, c->dictionary.data, c->indices, n, c->width);
    return KG_OK;
}

static kg_status take_split(struct kg_parquet_column *c, size_t n, struct kg_err *err)
{
    unsigned char *out = (unsigned char *)c->out;
    const unsigned char *first = c->values.p;
    size_t left = c->stride - c->delta_at;

    if (n > left)
        return kg_fail(err, KG_EFORMAT, "expected %zu values, found %zu left", n, left);
    for (size_t b = 0; b < c->width; b++)
        for (size_t i = 0; i < n; i++)
            out[i * c->width + b] = first[b * c->stride + c->delta_at + i];
    c->delta_at += n;
    return KG_OK;
}

/* Takes values of a page that is already decoded.   *values: the first of them */
static kg_status take_delta(const void **values, struct kg_parquet_column *c, size_t n,
                            struct kg_err *err)
{
    size_t at = c->delta_at;

    if (n > c->delta_n - at)
        return kg_fail(err, KG_EFORMAT, "expected %zu values, found %zu left", n,
                       c->delta_n - at);
    c->delta_at += n;
    if (c->width == sizeof(struct kg_parquet_text))
        *values = (const struct kg_parquet_text *)c->delta.values.data + at;
    if (c->width == 8)
        *values = (const int64_t *)c->delta.values.data + at;
    for (size_t i = 0; i < n && c->width == 4; i++)
        ((uint32_t *)c->out)[i] =
            (uint32_t)((const uint64_t *)c->delta.values.data)[at + i];
    return KG_OK;
}

static kg_status take_values(const void **values, struct kg_parquet_column *c, size_t n,
                             struct kg_err *err)
{
    *values = c->out;
    if (n == 0)
        return KG_OK;
    switch (c->encoding) {
    case PLAIN:
        return c->node->type == KG_PARQUET_BOOL
                   ? take_bools(c, n, err)
                   : take_plain(c->out, c, &c->values, n, err);
    case RLE:
        return take_bools(c, n, err);
    case BYTE_STREAM_SPLIT:
        return c->node->type == KG_PARQUET_FIXED ? take_delta(values, c, n, err)
                                                 : take_split(c, n, err);
    case DELTA_INTS:
    case DELTA_LENGTHS:
    case DELTA_PREFIXES:
        return take_delta(values, c, n, err);
    default:
        return take_dictionary(c, n, err);
    }
}

/* ---- the start of a page's values ---- */

static kg_status refuse_encoding(const struct kg_parquet_column *c, int64_t encoding,
                                 struct kg_err *err)
{
    size_t known = sizeof encoding_names / sizeof *encoding_names;
    bool named = encoding >= 0 && encoding < (int64_t)known;

    return kg_fail(err, KG_EUNSUPPORTED,
                   "expected an encoding that kedge reads for type %d, found %s (%lld)",
                   (int)c->node->type,
                   named ? encoding_names[encoding] : "an unknown one",
                   (long long)encoding);
}

static kg_status start_dictionary_values(struct kg_parquet_column *c, struct bytes b,
                                         struct kg_err *err)
{
    if (!c->has_dictionary)
        return kg_fail(err, KG_EFORMAT, "expected an earlier dictionary, found none");
    if (b.p == b.end) { /* all values of the page are absent */
        kg_parquet_runs_start(&c->value_runs, b.p, 0, 0);
        return KG_OK;
    }
    if (*b.p > 32)
        return kg_fail(err, KG_EFORMAT, "expected indices of at most 32 bits, found %d",
                       *b.p);
    kg_parquet_runs_start(&c->value_runs, b.p + 1, (size_t)(b.end - b.p - 1), *b.p);
    return KG_OK;
}

/* PLAIN booleans are a bit-packed run without a header. */
static kg_status start_bools(struct kg_parquet_column *c, struct bytes b,
                             struct kg_err *err)
{
    size_t n = (size_t)(b.end - b.p);

    if (c->encoding == RLE) {
        if (n < 4 || little32(b.p) > n - 4)
            return too_few(4, &b, err);
        kg_parquet_runs_start(&c->value_runs, b.p + 4, little32(b.p), 1);
        return KG_OK;
    }
    kg_parquet_runs_start(&c->value_runs, b.end, 0, 1);
    c->value_runs.packed = true;
    c->value_runs.packs = b.p;
    c->value_runs.left = 8 * (uint64_t)n;
    return KG_OK;
}

/* DELTA_BYTE_ARRAY may hold values of fixed length; each must have that length. */
static kg_status check_lengths(const struct kg_parquet_column *c, struct kg_err *err)
{
    const struct kg_parquet_text *texts = c->delta.values.data;
    size_t length = (size_t)c->node->bytes;

    if (c->node->type != KG_PARQUET_FIXED)
        return KG_OK;
    for (size_t i = 0; i < c->delta_n; i++)
        if (texts[i].n != length)
            return kg_fail(err, KG_EFORMAT, "expected values of %zu bytes, found %zu",
                           length, texts[i].n);
    return KG_OK;
}

/* BYTE_STREAM_SPLIT of values of fixed length: all first bytes, then all second bytes,
 * ... Rebuilds the values of the whole page. */
static kg_status start_split_texts(struct kg_parquet_column *c, struct bytes b,
                                   struct kg_err *err)
{
    size_t length = (size_t)c->node->bytes;
    size_t n = (size_t)(b.end - b.p) / length;
    struct kg_parquet_text *texts;

    KG_TRY(kg_parquet_buffer_need(&c->delta.bytes, c->file, n * length + 1, err));
    KG_TRY(kg_parquet_buffer_need(&c->delta.values, c->file, n * sizeof *texts + 1, err));
    texts = c->delta.values.data;
    char *out = c->delta.bytes.data;
    for (size_t i = 0; i < n; i++) {
        texts[i] = (struct kg_parquet_text){out + i * length, length};
        for (size_t k = 0; k < length; k++)
            out[i * length + k] = (char)b.p[k * n + i];
    }
    c->delta_n = n;
    return KG_OK;
}

static kg_status start_delta(struct kg_parquet_column *c, struct bytes b, int64_t entries,
                             struct kg_err *err)
{
    size_t n = (size_t)(b.end - b.p);
    size_t used;

    if (entries > KG_PARQUET_MAX_DELTA_VALUES)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "expected at most %d values in a DELTA-encoded page, found %lld",
                       KG_PARQUET_MAX_DELTA_VALUES, (long long)entries);
    c->delta_n = 0;
    if (n == 0)
        return KG_OK;
    if (c->encoding != DELTA_INTS) {
        KG_TRY(kg_parquet_delta_texts(&c->delta, &c->delta_n, c->file, b.p, n,
                                      (size_t)entries, c->encoding == DELTA_PREFIXES,
                                      err));
        return check_lengths(c, err);
    }
    KG_TRY(kg_parquet_buffer_need(&c->delta.values, c->file, (size_t)(entries + 1) * 8,
                                  err));
    return kg_parquet_delta_ints(c->delta.values.data, &c->delta_n, &used, b.p, n,
                                 (size_t)entries, err);
}

/* Whether values of the column may have the encoding. */
static bool encoding_fits(const struct kg_parquet_column *c, int64_t encoding)
{
    enum kg_parquet_type type = c->node->type;
    bool is_int = type == KG_PARQUET_INT32 || type == KG_PARQUET_INT64;

    switch (encoding) {
    case PLAIN:
        return true;
    case PLAIN_DICTIONARY:
    case RLE_DICTIONARY:
        return type != KG_PARQUET_BOOL;
    case RLE:
        return type == KG_PARQUET_BOOL;
    case DELTA_INTS:
        return is_int;
    case DELTA_LENGTHS:
        return type == KG_PARQUET_BYTES;
    case DELTA_PREFIXES:
        return type == KG_PARQUET_BYTES || type == KG_PARQUET_FIXED;
    case BYTE_STREAM_SPLIT:
        return is_int || type == KG_PARQUET_FLOAT || type == KG_PARQUET_DOUBLE ||
               type == KG_PARQUET_FIXED;
    default:
        return false;
    }
}

static kg_status start_values(struct kg_parquet_column *c, struct bytes b,
                              int64_t encoding, int64_t entries, struct kg_err *err)
{
    if (!encoding_fits(c, encoding))
        return refuse_encoding(c, encoding, err);
    c->encoding = (enum encoding)encoding;
    c->values = b;
    c->delta_at = 0;
    c->stride = (size_t)(b.end - b.p) / c->width;
    switch (c->encoding) {
    case PLAIN:
    case RLE:
        return c->node->type == KG_PARQUET_BOOL ? start_bools(c, b, err) : KG_OK;
    case DELTA_INTS:
    case DELTA_LENGTHS:
    case DELTA_PREFIXES:
        return start_delta(c, b, entries, err);
    case PLAIN_DICTIONARY:
    case RLE_DICTIONARY:
        return start_dictionary_values(c, b, err);
    default:
        return c->node->type == KG_PARQUET_FIXED ? start_split_texts(c, b, err) : KG_OK;
    }
}

/* ---- pages ---- */

struct page {
    int64_t type, bytes, packed_bytes, crc;
    int64_t has_data, has_dictionary, has_data_v2;
    int64_t values, encoding, def_encoding, rep_encoding;
    int64_t def_bytes, rep_bytes, is_packed;
    struct bytes raw; /* as in the file */
};
#define AT(member) offsetof(struct page, member)
static const struct kg_thrift_field data_fields[] = {
    {1, KG_THRIFT_AS_INT, AT(values), NULL},
    {2, KG_THRIFT_AS_INT, AT(encoding), NULL},
    {3, KG_THRIFT_AS_INT, AT(def_encoding), NULL},
    {4, KG_THRIFT_AS_INT, AT(rep_encoding), NULL},
    {0},
};
static const struct kg_thrift_field dictionary_fields[] = {
    {1, KG_THRIFT_AS_INT, AT(values), NULL},
    {2, KG_THRIFT_AS_INT, AT(encoding), NULL},
    {0},
};
static const struct kg_thrift_field data_v2_fields[] = {
    {1, KG_THRIFT_AS_INT, AT(values), NULL},
    {4, KG_THRIFT_AS_INT, AT(encoding), NULL},
    {5, KG_THRIFT_AS_INT, AT(def_bytes), NULL},
    {6, KG_THRIFT_AS_INT, AT(rep_bytes), NULL},
    {7, KG_THRIFT_AS_BOOL, AT(is_packed), NULL},
    {0},
};
static const struct kg_thrift_field page_fields[] = {
    {1, KG_THRIFT_AS_INT, AT(type), NULL},
    {2, KG_THRIFT_AS_INT, AT(bytes), NULL},
    {3, KG_THRIFT_AS_INT, AT(packed_bytes), NULL},
    {4, KG_THRIFT_AS_INT, AT(crc), NULL},
    {5, KG_THRIFT_AS_STRUCT, AT(has_data), data_fields},
    {7, KG_THRIFT_AS_STRUCT, AT(has_dictionary), dictionary_fields},
    {8, KG_THRIFT_AS_STRUCT, AT(has_data_v2), data_v2_fields},
    {0},
};
#undef AT

static kg_status check_page(const struct page *p, const struct kg_parquet_column *c,
                            struct kg_err *err)
{
    size_t room = (size_t)(c->pages.end - c->pages.p);

    if (p->packed_bytes < 0 || (uint64_t)p->packed_bytes > room)
        return kg_fail(err, KG_EFORMAT,
                       "expected a page of at most %zu bytes, found %lld", room,
                       (long long)p->packed_bytes);
    if (p->bytes < 0 || p->bytes > KG_PARQUET_MAX_PAGE_BYTES)
        return kg_fail(err, KG_EFORMAT,
                       "expected a page of at most %d bytes when unpacked, found %lld",
                       KG_PARQUET_MAX_PAGE_BYTES, (long long)p->bytes);
    if (p->crc != INT64_MIN &&
        kg_unpack_crc32(c->pages.p, (size_t)p->packed_bytes) != (uint32_t)p->crc)
        return kg_fail(err, KG_EFORMAT, "its checksum does not match: it is damaged");
    return KG_OK;
}

/* Reads the next page's header, and moves c->pages past the page. */
static kg_status read_page(struct page *p, struct kg_parquet_column *c,
                           struct kg_err *err)
{
    struct kg_thrift t = {c->pages.p, c->pages.end, NULL};

    memset(p, 0, sizeof *p);
    p->type = p->bytes = p->packed_bytes = p->values = p->encoding = -1;
    p->crc = INT64_MIN;
    p->is_packed = 1;
    c->page++;
    if (c->pages.p == c->pages.end)
        return kg_fail(err, KG_EFORMAT,
                       "expected %lld more values, found no further page",
                       (long long)c->chunk_left);
    kg_thrift_read(&t, p, page_fields);
    if (t.problem)
        return kg_fail(err, KG_EFORMAT, "malformed page header: %s", t.problem);
    c->pages.p = t.p;
    KG_TRY(check_page(p, c, err));
    p->raw = (struct bytes){c->pages.p, c->pages.p + p->packed_bytes};
    c->pages.p += p->packed_bytes;
    return KG_OK;
}

/* *out: the `bytes` bytes of raw, in place or decompressed into the buffer */
static kg_status unpack(struct bytes *out, struct kg_parquet_buffer *buffer,
                        struct kg_parquet_column *c, struct bytes raw, size_t bytes,
                        enum kg_codec codec, struct kg_err *err)
{
    size_t n = (size_t)(raw.end - raw.p);

    *out = raw;
    if (codec == KG_CODEC_NONE && n == bytes)
        return KG_OK;
    if (n == 0 && bytes == 0)
        return KG_OK;
    KG_TRY(kg_parquet_buffer_need(buffer, c->file, bytes + 1, err));
    KG_TRY(kg_unpack_block(buffer->data, bytes, codec, raw.p, n, err));
    out->p = buffer->data;
    out->end = out->p + bytes;
    return KG_OK;
}

static kg_status read_dictionary(struct kg_parquet_column *c, const struct page *p,
                                 struct kg_err *err)
{
    size_t least = c->node->type == KG_PARQUET_BYTES            ? 4
                   : c->width == sizeof(struct kg_parquet_text) ? (size_t)c->node->bytes
                                                                : c->width;
    struct bytes b;

    if (c->has_dictionary || c->node->type == KG_PARQUET_BOOL)
        return kg_fail(err, KG_EFORMAT, "expected no dictionary here, found %s",
                       c->has_dictionary ? "a second one" : "one of booleans");
    if (p->encoding != PLAIN && p->encoding != PLAIN_DICTIONARY)
        return refuse_encoding(c, p->encoding, err);
    KG_TRY(unpack(&b, &c->dictionary_bytes, c, p->raw, (size_t)p->bytes, c->codec, err));
    if (p->values < 0 || (uint64_t)p->values > (size_t)(b.end - b.p) / least)
        return kg_fail(
            err, KG_EFORMAT,
            "expected a dictionary that fits its page of %zu bytes, found %lld "
            "values",
            (size_t)(b.end - b.p), (long long)p->values);
    c->n_dictionary = (size_t)p->values;
    KG_TRY(kg_parquet_buffer_need(&c->dictionary, c->file, c->n_dictionary * c->width + 1,
                                  err));
    KG_TRY(take_plain(c->dictionary.data, c, &b, c->n_dictionary, err));
    c->has_dictionary = true;
    return KG_OK;
}

/* The levels of a v1 page: their length, then runs.   b moves past them */
static kg_status start_levels(struct kg_parquet_runs *runs, struct bytes *b, int max,
                              int64_t encoding, struct kg_err *err)
{
    if (max == 0)
        return KG_OK;
    if (encoding != RLE)
        return kg_fail(err, KG_EUNSUPPORTED, "expected levels as RLE, found %s (%lld)",
                       encoding == BIT_PACKED ? "BIT_PACKED" : "an unknown encoding",
                       (long long)encoding);
    if (b->end - b->p < 4 || little32(b->p) > (size_t)(b->end - b->p - 4))
        return kg_fail(err, KG_EFORMAT, "expected levels, found the page cut");
    uint32_t n = little32(b->p);
    kg_parquet_runs_start(runs, b->p + 4, n, kg_parquet_level_width(max));
    b->p += 4 + n;
    return KG_OK;
}

static kg_status start_v1(struct kg_parquet_column *c, const struct page *p,
                          struct kg_err *err)
{
    struct bytes b;

    KG_TRY(unpack(&b, &c->page_bytes, c, p->raw, (size_t)p->bytes, c->codec, err));
    KG_TRY(start_levels(&c->rep_runs, &b, c->node->rep, p->rep_encoding, err));
    KG_TRY(start_levels(&c->def_runs, &b, c->node->def, p->def_encoding, err));
    return start_values(c, b, p->encoding, p->values, err);
}

/* In a v2 page the levels come first and are never compressed. */
static kg_status start_v2(struct kg_parquet_column *c, const struct page *p,
                          struct kg_err *err)
{
    const int64_t most = p->bytes < p->packed_bytes ? p->bytes : p->packed_bytes;
    struct bytes b = p->raw;

    if (p->rep_bytes < 0 || p->def_bytes < 0 || p->rep_bytes > most ||
        p->def_bytes > most - p->rep_bytes)
        return kg_fail(err, KG_EFORMAT,
                       "expected levels inside the page, found %lld + %lld bytes of %lld",
                       (long long)p->rep_bytes, (long long)p->def_bytes, (long long)most);
    const int64_t levels = p->rep_bytes + p->def_bytes;
    kg_parquet_runs_start(&c->rep_runs, b.p, (size_t)p->rep_bytes,
                          kg_parquet_level_width(c->node->rep));
    kg_parquet_runs_start(&c->def_runs, b.p + p->rep_bytes, (size_t)p->def_bytes,
                          kg_parquet_level_width(c->node->def));
    b.p += levels;
    KG_TRY(unpack(&b, &c->page_bytes, c, b, (size_t)(p->bytes - levels),
                  p->is_packed ? c->codec : KG_CODEC_NONE, err));
    return start_values(c, b, p->encoding, p->values, err);
}

static kg_status start_data(struct kg_parquet_column *c, const struct page *p,
                            struct kg_err *err)
{
    if (p->values < 0 || p->values > c->chunk_left)
        return kg_fail(err, KG_EFORMAT, "expected at most %lld values, found %lld",
                       (long long)c->chunk_left, (long long)p->values);
    KG_TRY(p->type == PAGE_DATA ? start_v1(c, p, err) : start_v2(c, p, err));
    c->page_left = p->values;
    c->chunk_left -= p->values;
    return KG_OK;
}

static kg_status next_page(struct kg_parquet_column *c, struct kg_err *err)
{
    struct page p;

    KG_TRY(read_page(&p, c, err));
    switch (p.type) {
    case PAGE_INDEX:
        return KG_OK;
    case PAGE_DICTIONARY:
        return read_dictionary(c, &p, err);
    case PAGE_DATA:
    case PAGE_DATA_V2:
        return start_data(c, &p, err);
    default:
        return kg_fail(err, KG_EFORMAT, "expected a page type from 0 to 3, found %lld",
                       (long long)p.type);
    }
}

/* ---- the column ---- */

static size_t width_of(enum kg_parquet_type type)
{
    switch (type) {
    case KG_PARQUET_BOOL:
        return 1;
    case KG_PARQUET_INT32:
    case KG_PARQUET_FLOAT:
        return 4;
    case KG_PARQUET_INT64:
    case KG_PARQUET_DOUBLE:
        return 8;
    default:
        return sizeof(struct kg_parquet_text);
    }
}

kg_status kg_parquet_column_start(struct kg_parquet_column **c, struct kg_parquet *file,
                                  size_t group, size_t column, struct kg_thrift *t,
                                  struct kg_err *err)
{
    struct kg_parquet_column *fresh = kg_mem_calloc(1, sizeof *fresh, "column", err);
    struct kg_parquet_chunk chunk;

    *c = NULL;
    if (!fresh)
        return KG_ENOMEM;
    fresh->file = file;
    fresh->node = &file->nodes[file->leaves[column]];
    fresh->group = group;
    fresh->width = width_of(fresh->node->type);
    kg_status status = kg_parquet_next_chunk(&chunk, file, column, t, err);
    if (status != KG_OK) {
        kg_err_prefix(err, "%s: column '%s', row group %zu", file->name,
                      fresh->node->path, group + 1);
        kg_parquet_column_close(fresh);
        return status;
    }
    fresh->codec = chunk.codec;
    fresh->pages = (struct bytes){chunk.at, chunk.at + chunk.n};
    fresh->chunk_left = chunk.values;
    *c = fresh;
    return KG_OK;
}

void kg_parquet_column_close(struct kg_parquet_column *c)
{
    if (!c)
        return;
    struct kg_parquet_buffer *const all[] = {
        &c->page_bytes,    &c->dictionary_bytes, &c->dictionary, &c->delta.values,
        &c->delta.lengths, &c->delta.prefixes,   &c->delta.bytes};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kg_parquet_buffer_release(all[i], c->file);
    kg_mem_free(c);
}

static kg_status take_batch(struct kg_parquet_column *c, struct kg_parquet_batch *batch,
                            struct kg_err *err)
{
    size_t equal;

    while (c->page_left == 0 && c->chunk_left > 0)
        KG_TRY(next_page(c, err));
    batch->n = c->page_left < KG_PARQUET_BATCH ? (size_t)c->page_left : KG_PARQUET_BATCH;
    batch->n_values = batch->n;
    batch->rep = c->rep;
    batch->def = c->def;
    if (c->node->rep > 0)
        KG_TRY(kg_parquet_levels_take(c->rep, &equal, &c->rep_runs, batch->n,
                                      c->node->rep, err));
    if (c->node->def > 0)
        KG_TRY(kg_parquet_levels_take(c->def, &batch->n_values, &c->def_runs, batch->n,
                                      c->node->def, err));
    KG_TRY(take_values(&batch->values, c, batch->n_values, err));
    c->page_left -= (int64_t)batch->n;
    return KG_OK;
}

kg_status kg_parquet_column_next(struct kg_parquet_column *c,
                                 struct kg_parquet_batch *batch, struct kg_err *err)
{
    kg_status status = take_batch(c, batch, err);

    if (status != KG_OK)
        kg_parquet_column_blame(c, err);
    return status;
}
