/* See vectors.h. All numbers of both formats are little-endian.
 *
 * FAISS: four letters; int32 columns, int64 rows, two unused int64, a byte "trained",
 * int32 metric (0 product, 1 L2), uint64 count; the numbers, from byte 45. Some versions
 * count fp32 numbers, others groups of four bytes, which is the same.
 * source: write_index and write_index_header of faiss/impl/index_write.cpp, 2019 and 1.15
 *
 * NumPy: eight bytes of magic and version, the length of the header, the header (a dict
 * as Python writes it), the numbers.
 * source: NumPy's "A Simple File Format for NumPy Arrays", versions 1.0 to 3.0
 */
#include "retriever/vectors.h"

#include "base/half.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LETTERS = 4, FAISS_HEADER = 45, MAGIC = 6, PREAMBLE = 10 };

struct bytes {
    const unsigned char *at;
    uint64_t n;
    const char *name;
};

static uint64_t little(const unsigned char *at, int n)
{
    uint64_t value = 0;

    while (n-- > 0)
        value = value << 8 | at[n];
    return value;
}

/* Checks the numbers of rows and columns, and that the data end where the file ends. */
static kg_status take_numbers(struct kg_vectors *v, const struct bytes *b, uint64_t head,
                              struct kg_err *err)
{
    const int64_t size = v->halves ? 2 : 4;
    int64_t expected;

    if (v->rows < 1 || v->cols < 1 || v->cols > KG_VECTORS_COLS_MAX)
        return kg_fail(
            err, KG_EFORMAT,
            "%s: expected at least one vector of 1 to %d numbers, found %" PRId64
            " of %" PRId64,
            b->name, (int)KG_VECTORS_COLS_MAX, v->rows, v->cols);
    if (__builtin_mul_overflow(v->rows, v->cols * size, &expected) ||
        __builtin_add_overflow(expected, (int64_t)head, &expected))
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected vectors that a file can hold, found %" PRId64
                       " of %" PRId64 " numbers",
                       b->name, v->rows, v->cols);
    if ((uint64_t)expected != b->n)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected %" PRId64 " bytes for %" PRId64
                       " vectors of %" PRId64 " numbers, found %" PRIu64 ": it %s",
                       b->name, expected, v->rows, v->cols, b->n,
                       b->n < (uint64_t)expected ? "is cut off"
                                                 : "has more after the last vector");
    v->numbers = b->at + head;
    return KG_OK;
}

/* ---- FAISS ---- */
static const struct kind {
    const char *letters;
    const char *what; /* NULL: supported */
} kinds[] = {
    {"IxFI", NULL},
    {"IxF2", NULL},
    {"IxFl", "flat, of another metric"},
    {"IHNf", "HNSW, a graph over vectors"},
    {"IwFl", "inverted lists"},
    {"IxMp", "flat or other, with its own ids"},
    {"IxM2", "flat or other, with its own ids"},
    {"IxPT", "a transformation before another index"},
    {"IxSQ", "vectors in fewer bits"},
    {"IxPq", "product-quantized vectors"},
    {"IwPQ", "inverted lists of product-quantized vectors"},
    {"IwSq", "inverted lists of vectors in fewer bits"},
};

static const struct kind *find_kind(const struct bytes *b)
{
    for (size_t i = 0; b->n >= LETTERS && i < sizeof kinds / sizeof *kinds; i++)
        if (memcmp(b->at, kinds[i].letters, LETTERS) == 0)
            return &kinds[i];
    return NULL;
}

static kg_status open_faiss(struct kg_vectors *v, const struct bytes *b,
                            const struct kind *kind, struct kg_err *err)
{
    uint64_t trained, metric, count;

    if (kind->what)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "%s: expected a flat FAISS index (IxFI or IxF2), found %s: %s",
                       b->name, kind->letters, kind->what);
    if (b->n < FAISS_HEADER)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected the %d bytes that a flat FAISS index begins with, "
                       "found %" PRIu64 ": it is cut off",
                       b->name, (int)FAISS_HEADER, b->n);
    v->cols = (int32_t)little(b->at + 4, 4);
    v->rows = (int64_t)little(b->at + 8, 8);
    trained = b->at[32];
    metric = little(b->at + 33, 4);
    count = little(b->at + 37, 8);
    v->distances = strcmp(kind->letters, "IxF2") == 0;
    if (trained != 1 || metric != (v->distances ? 1 : 0))
        return kg_fail(
            err, KG_EFORMAT,
            "%s: expected trained 1 and metric %d in an index %s, found %" PRIu64
            " and %" PRIu64,
            b->name, v->distances ? 1 : 0, kind->letters, trained, metric);
    KG_TRY(take_numbers(v, b, FAISS_HEADER, err));
    if (count == (uint64_t)(v->rows * v->cols))
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "%s: expected a count of %" PRId64 " numbers, found %" PRIu64, b->name,
                   v->rows * v->cols, count);
}

/* ---- NumPy ---- */
enum { DESCR, ORDER, SHAPE, KEYS };
static const char *const keys[KEYS] = {"descr", "fortran_order", "shape"};
enum { DIMS = 2, WORD = 16 };

struct npy {
    const char *at, *end;
    unsigned seen;    /* a bit per key */
    char descr[WORD]; /* its first letters */
    bool structure;   /* descr is a list: the rest is not read */
    bool fortran;
    int dims; /* of the shape; a matrix has two */
    int64_t shape[DIMS];
};

static void skip_blanks(struct npy *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n'))
        s->at++;
}

/* Skips `word` if it is next.   returns whether it was */
static bool next_is(struct npy *s, const char *word)
{
    const size_t n = strlen(word);

    skip_blanks(s);
    if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0)
        return false;
    s->at += n;
    return true;
}

/* Reads a text in quotes; word: its first letters. */
static bool next_text(struct npy *s, char *word)
{
    const char *from, *close;

    if (!next_is(s, "'") && !next_is(s, "\""))
        return false;
    from = s->at;
    close = memchr(from, from[-1], (size_t)(s->end - from));
    if (!close)
        return false;
    size_t n = (size_t)(close - from) < WORD - 1 ? (size_t)(close - from) : WORD - 1;
    memcpy(word, from, n);
    word[n] = '\0';
    s->at = close + 1;
    return true;
}

static bool next_count(struct npy *s, int64_t *out)
{
    skip_blanks(s);
    const char *from = s->at;
    *out = 0;
    for (; s->at < s->end && isdigit((unsigned char)*s->at); s->at++)
        if (__builtin_mul_overflow(*out, 10, out) ||
            __builtin_add_overflow(*out, *s->at - '0', out))
            return false;
    return s->at > from;
}

static bool next_shape(struct npy *s)
{
    int64_t n;

    if (!next_is(s, "("))
        return false;
    while (!next_is(s, ")")) {
        if (!next_count(s, &n))
            return false;
        if (s->dims < DIMS)
            s->shape[s->dims] = n;
        s->dims++;
        if (!next_is(s, ",") && !(s->at < s->end && *s->at == ')'))
            return false;
    }
    return true;
}

static bool next_value(struct npy *s, int key)
{
    if (key == SHAPE)
        return next_shape(s);
    if (key == ORDER) {
        s->fortran = next_is(s, "True");
        return s->fortran || next_is(s, "False");
    }
    s->structure = next_is(s, "[");
    return s->structure || next_text(s, s->descr);
}

/* Reads the header's dict.   returns false for other text, or if a key occurs twice */
static bool read_dict(struct npy *s)
{
    char word[WORD];
    int key;

    if (!next_is(s, "{"))
        return false;
    while (!next_is(s, "}")) {
        if (!next_text(s, word) || !next_is(s, ":"))
            return false;
        for (key = 0; key < KEYS && strcmp(word, keys[key]) != 0; key++)
            ;
        if (key == KEYS || (s->seen & 1u << key) || !next_value(s, key))
            return false;
        s->seen |= 1u << key;
        if (s->structure)
            return true;
        if (!next_is(s, ",") && !(s->at < s->end && *s->at == '}'))
            return false;
    }
    skip_blanks(s);
    return s->at == s->end && s->seen == (1u << KEYS) - 1;
}

static kg_status check_npy(const struct npy *s, const char *name, struct kg_err *err)
{
    if (s->structure)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "%s: expected numbers of type '<f4' or '<f2', found a structure",
                       name);
    if (strcmp(s->descr, "<f4") != 0 && strcmp(s->descr, "<f2") != 0)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "%s: expected numbers of type '<f4' or '<f2', found '%s'", name,
                       s->descr);
    if (s->fortran)
        return kg_fail(
            err, KG_EUNSUPPORTED,
            "%s: expected a matrix in row-major order, found fortran_order: True", name);
    if (s->dims != DIMS)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "%s: expected a matrix, found an array of %d dimensions", name,
                       s->dims);
    return KG_OK;
}

static kg_status open_npy(struct kg_vectors *v, const struct bytes *b, struct kg_err *err)
{
    struct npy s = {0};
    uint64_t from, head;

    if (b->n < PREAMBLE + 2)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected the header of a .npy file, found %" PRIu64
                       " bytes: it is cut off",
                       b->name, b->n);
    if (b->at[MAGIC] < 1 || b->at[MAGIC] > 3)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "%s: expected a .npy of version 1, 2 or 3, found %d", b->name,
                       b->at[MAGIC]);
    from = b->at[MAGIC] == 1 ? PREAMBLE : PREAMBLE + 2;
    head = from + little(b->at + 8, (int)from - 8);
    if (head > b->n)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a header of %" PRIu64 " bytes, found %" PRIu64
                       " of them: it is cut off",
                       b->name, head - from, b->n - from);
    s.at = (const char *)b->at + from;
    s.end = (const char *)b->at + head;
    if (!read_dict(&s))
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected {'descr': .., 'fortran_order': .., 'shape': ..} as "
                       "its header, found something else at byte %lld",
                       b->name, (long long)(s.at - (const char *)b->at));
    KG_TRY(check_npy(&s, b->name, err));
    v->halves = s.descr[2] == '2';
    v->rows = s.shape[0];
    v->cols = s.shape[1];
    return take_numbers(v, b, head, err);
}

/* ---- both formats ---- */
static kg_status begin(struct kg_vectors *v, const struct bytes *b, struct kg_err *err)
{
    const struct kind *kind = find_kind(b);
    char found[LETTERS + 1] = "";

    if (kind)
        return open_faiss(v, b, kind, err);
    if (b->n >= MAGIC && memcmp(b->at, "\x93NUMPY", MAGIC) == 0)
        return open_npy(v, b, err);
    if (b->n > 0)
        memcpy(found, b->at, b->n < LETTERS ? b->n : LETTERS);
    return kg_fail(
        err, KG_EFORMAT,
        "%s: expected a flat FAISS index (IxFI, or IxF2) or a .npy, found %" PRIu64
        " bytes that begin with '%s'",
        b->name, b->n, found);
}

kg_status kg_vectors_open_bytes(struct kg_vectors *v, const void *bytes, size_t n,
                                const char *name, struct kg_err *err)
{
    const struct bytes b = {bytes, n, name};

    *v = (struct kg_vectors){0};
    if (begin(v, &b, err) == KG_OK)
        return KG_OK;
    *v = (struct kg_vectors){0};
    return err->code;
}

kg_status kg_vectors_open(struct kg_vectors *v, const char *path, struct kg_err *err)
{
    struct kg_map map;

    *v = (struct kg_vectors){0};
    KG_TRY(kg_map_open(&map, path, err));
    if (kg_vectors_open_bytes(v, map.data, map.bytes, path, err) != KG_OK) {
        kg_map_close(&map);
        return err->code;
    }
    v->map = map;
    return KG_OK;
}

void kg_vectors_close(struct kg_vectors *v)
{
    kg_map_close(&v->map);
    *v = (struct kg_vectors){0};
}

static float half_float(uint16_t half)
{
    return (half & 0x7c00u) == 0x7c00u ? NAN : kg_half_float(half);
}

static const unsigned char *row_of(const struct kg_vectors *v, int64_t row)
{
    return v->numbers + row * v->cols * (v->halves ? 2 : 4);
}

void kg_vectors_get(float *out, const struct kg_vectors *v, int64_t first, int64_t n)
{
    const unsigned char *from = row_of(v, first);

    if (!v->halves) {
        memcpy(out, from, (size_t)(n * v->cols) * sizeof *out);
        return;
    }
    for (int64_t i = 0; i < n * v->cols; i++)
        out[i] = half_float((uint16_t)little(from + 2 * i, 2));
}

void kg_vectors_let_go(const struct kg_vectors *v, int64_t first, int64_t n)
{
    const unsigned char *from = row_of(v, first);

    kg_map_let_go(from, (uint64_t)(row_of(v, first + n) - from));
}

/* ---- writing .npy ---- */

/* Preamble: magic, version, length of the rest. Then the dict, padded with spaces and a
 * newline to a multiple of 64. */
enum { NPY_HEADER = 128, NPY_PREAMBLE = 10 };

static kg_status put_header(struct kg_npy *npy, struct kg_err *err)
{
    static const char magic[] = "\x93NUMPY\x01\x00";
    char header[NPY_HEADER + 1];

    memset(header, ' ', sizeof header);
    memcpy(header, magic, 8);
    header[8] = (char)(NPY_HEADER - NPY_PREAMBLE);
    header[9] = 0;
    int n = snprintf(header + NPY_PREAMBLE, NPY_HEADER - NPY_PREAMBLE,
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld), }",
                     (long long)npy->rows, (long long)npy->cols);
    header[NPY_PREAMBLE + n] = ' ';
    header[NPY_HEADER - 1] = '\n';
    return kg_file_writer_put(&npy->file, header, NPY_HEADER, err);
}

kg_status kg_npy_open(struct kg_npy *npy, const char *path, int64_t cols,
                      struct kg_err *err)
{
    *npy = (struct kg_npy){.cols = cols};
    KG_TRY(kg_file_writer_open(&npy->file, path, err));
    if (put_header(npy, err) == KG_OK)
        return KG_OK;
    kg_npy_abort(npy);
    return err->code;
}

kg_status kg_npy_put(struct kg_npy *npy, const float *x, int64_t n, struct kg_err *err)
{
    npy->rows += n;
    return kg_file_writer_put(&npy->file, x, (size_t)(n * npy->cols) * sizeof *x, err);
}

kg_status kg_npy_close(struct kg_npy *npy, struct kg_err *err)
{
    kg_status status = kg_file_writer_seek(&npy->file, 0, err);

    if (status == KG_OK)
        status = put_header(npy, err);
    if (status != KG_OK) {
        kg_npy_abort(npy);
        return status;
    }
    return kg_file_writer_close(&npy->file, err);
}

void kg_npy_abort(struct kg_npy *npy) { kg_file_writer_abort(&npy->file); }
