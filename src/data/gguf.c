/* Reads a GGUF file.
 *
 * A file states every count and length before the data, so none is trusted: each is
 * compared with the bytes that are left before it is used. Tensors must follow each other
 * in the data without gaps except for the alignment, as llama.cpp also demands: then none
 * overlaps another.
 */
#include "data/gguf.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MIN_VALUE_BYTES = 13, /* length of a key, type, one byte */
    MIN_TENSOR_BYTES = 32,
    MAX_TENSORS = 1 << 20,
    MAX_FILES = 1 << 10,
    MAX_ALIGNMENT = 1 << 16,
};

static const int SIZES[KG_GGUF_TYPES] = {
    [KG_GGUF_U8] = 1,  [KG_GGUF_I8] = 1,  [KG_GGUF_U16] = 2, [KG_GGUF_I16] = 2,
    [KG_GGUF_U32] = 4, [KG_GGUF_I32] = 4, [KG_GGUF_F32] = 4, [KG_GGUF_BOOL] = 1,
    [KG_GGUF_U64] = 8, [KG_GGUF_I64] = 8, [KG_GGUF_F64] = 8,
};

static uint64_t number(const unsigned char *p, int bytes)
{
    uint64_t x = 0;

    while (bytes-- > 0)
        x = x << 8 | p[bytes];
    return x;
}

/* ---- a file, from its first byte on ---- */

struct cursor {
    const char *where;
    const unsigned char *begin;
    const unsigned char *at;
    const unsigned char *end;
    struct kg_err *err;
};

static uint64_t left(const struct cursor *c) { return (uint64_t)(c->end - c->at); }

static unsigned long long byte_of(const struct cursor *c)
{
    return (unsigned long long)(c->at - c->begin);
}

/* Takes n bytes.   what: what they hold, for the message */
static kg_status take(struct cursor *c, const unsigned char **out, uint64_t n,
                      const char *what)
{
    *out = c->at;
    if (n > left(c))
        return kg_fail(c->err, KG_EFORMAT,
                       "%s: byte %llu: expected %s (%llu bytes), found %llu left in the "
                       "file (truncated?)",
                       c->where, byte_of(c), what, (unsigned long long)n,
                       (unsigned long long)left(c));
    c->at += n;
    return KG_OK;
}

static kg_status take_number(struct cursor *c, uint64_t *out, int bytes, const char *what)
{
    const unsigned char *p;

    KG_TRY(take(c, &p, (uint64_t)bytes, what));
    *out = number(p, bytes);
    return KG_OK;
}

/* Takes a count of items of at least min_bytes each, checked against the bytes left. */
static kg_status take_count(struct cursor *c, uint64_t *out, uint64_t min_bytes,
                            const char *what)
{
    const unsigned long long at = byte_of(c);

    KG_TRY(take_number(c, out, 8, what));
    if (*out > left(c) / min_bytes)
        return kg_fail(c->err, KG_EFORMAT,
                       "%s: byte %llu: expected at most the %llu %s that %llu bytes can "
                       "hold, found %llu",
                       c->where, at, (unsigned long long)(left(c) / min_bytes), what,
                       (unsigned long long)left(c), (unsigned long long)*out);
    return KG_OK;
}

/* Takes a key or a name. It must be printable ASCII, because messages show it. */
static kg_status take_name(struct cursor *c, char to[KG_GGUF_NAME + 1], const char *what)
{
    const unsigned long long at = byte_of(c);
    const unsigned char *p = NULL;
    uint64_t n, i = 0;

    KG_TRY(take_number(c, &n, 8, what));
    if (n <= KG_GGUF_NAME) {
        KG_TRY(take(c, &p, n, what));
        while (i < n && p[i] > ' ' && p[i] < 0x7f)
            i++;
    }
    if (n == 0 || i < n)
        return kg_fail(
            c->err, KG_EFORMAT,
            "%s: byte %llu: expected %s of 1 to %d printable characters, found "
            "a length of %llu%s",
            c->where, at, what, KG_GGUF_NAME, (unsigned long long)n,
            n <= KG_GGUF_NAME && n > 0 ? ", not all of them printable" : "");
    memcpy(to, p, n);
    to[n] = '\0';
    return KG_OK;
}

/* ---- metadata ---- */

static kg_status take_type(struct cursor *c, enum kg_gguf_type *type, const char *of)
{
    const unsigned long long at = byte_of(c);
    uint64_t x;

    KG_TRY(take_number(c, &x, 4, "a type"));
    if (x >= KG_GGUF_TYPES)
        return kg_fail(c->err, KG_EFORMAT,
                       "%s: byte %llu: expected the type of %s from 0 to %d, found %llu",
                       c->where, at, of, KG_GGUF_TYPES - 1, (unsigned long long)x);
    *type = (enum kg_gguf_type)x;
    return KG_OK;
}

static kg_status take_text(struct cursor *c, struct kg_gguf_value *v, const char *what)
{
    KG_TRY(take_number(c, &v->n, 8, what));
    return take(c, &v->at, v->n, what);
}

static kg_status take_items(struct cursor *c, struct kg_gguf_value *v)
{
    const unsigned long long at = byte_of(c);

    KG_TRY(take_type(c, &v->of, v->key));
    if (v->of == KG_GGUF_ARRAY)
        return kg_fail(c->err, KG_EUNSUPPORTED,
                       "%s: byte %llu: expected an array of single values in %s, found "
                       "one of arrays",
                       c->where, at, v->key);
    KG_TRY(take_count(c, &v->n, v->of == KG_GGUF_TEXT ? 8 : (uint64_t)SIZES[v->of],
                      "items"));
    if (v->of != KG_GGUF_TEXT)
        return take(c, &v->at, v->n * (uint64_t)SIZES[v->of], v->key);
    v->at = c->at;
    for (uint64_t i = 0; i < v->n; i++)
        KG_TRY(take_text(c, &(struct kg_gguf_value){.n = 0}, v->key));
    return KG_OK;
}

static kg_status take_value(struct cursor *c, struct kg_gguf_value *v)
{
    KG_TRY(take_name(c, v->key, "a key"));
    KG_TRY(take_type(c, &v->type, v->key));
    if (v->type == KG_GGUF_TEXT)
        return take_text(c, v, v->key);
    return v->type == KG_GGUF_ARRAY ? take_items(c, v)
                                    : take(c, &v->at, (uint64_t)SIZES[v->type], v->key);
}

static kg_status take_values(struct cursor *c, struct kg_gguf_value **values, size_t n)
{
    KG_TRY(kg_mem_new(values, n, sizeof **values, "metadata", c->err));
    for (size_t i = 0; i < n; i++)
        KG_TRY(take_value(c, &(*values)[i]));
    return KG_OK;
}

static const struct kg_gguf_value *find_value(const struct kg_gguf_value *values,
                                              size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(values[i].key, key) == 0)
            return &values[i];
    return NULL;
}

/* ---- tensors ---- */

static kg_status take_shape(struct cursor *c, struct kg_gguf_tensor *t)
{
    const unsigned long long at = byte_of(c);
    uint64_t n, size;

    KG_TRY(take_number(c, &n, 4, "the number of dimensions"));
    if (n < 1 || n > KG_GGUF_DIMS)
        return kg_fail(
            c->err, KG_EFORMAT,
            "%s: byte %llu: tensor %s: expected 1 to %d dimensions, found %llu", c->where,
            at, t->name, KG_GGUF_DIMS, (unsigned long long)n);
    t->n_dims = (int)n;
    for (int i = t->n_dims - 1; i >= 0; i--) {
        KG_TRY(take_number(c, &size, 8, "a dimension"));
        if (size < 1 || size > INT64_MAX)
            return kg_fail(c->err, KG_EFORMAT,
                           "%s: byte %llu: tensor %s: expected a dimension from 1 to "
                           "2^63 - 1, found %llu",
                           c->where, byte_of(c) - 8, t->name, (unsigned long long)size);
        t->shape[i] = (int64_t)size;
    }
    return KG_OK;
}

/* Sets t->bytes from type and shape. */
static kg_status size_tensor(struct cursor *c, struct kg_gguf_tensor *t)
{
    const int64_t inner = t->shape[t->n_dims - 1];
    uint64_t n = 1;
    bool fits = true;

    for (int i = 0; i < t->n_dims; i++)
        fits = fits && !__builtin_mul_overflow(n, (uint64_t)t->shape[i], &n);
    fits = fits && !__builtin_mul_overflow(n / (uint64_t)t->type->values,
                                           (uint64_t)t->type->bytes, &t->bytes);
    if (fits && inner % t->type->values == 0)
        return KG_OK;
    return kg_fail(c->err, KG_EFORMAT,
                   "%s: byte %llu: tensor %s: expected rows of whole blocks of %d values "
                   "(%s) and less than 2^64 bytes, found rows of %lld values",
                   c->where, byte_of(c), t->name, t->type->values, t->type->name,
                   (long long)inner);
}

/* offset: the tensor's data must begin here, counted from the start of all data */
static kg_status take_tensor(struct cursor *c, struct kg_gguf_tensor *t, uint64_t offset)
{
    uint64_t type, found;

    KG_TRY(take_name(c, t->name, "a tensor's name"));
    KG_TRY(take_shape(c, t));
    KG_TRY(take_number(c, &type, 4, "a tensor's type"));
    if (kg_quant_find(&t->type, (uint32_t)type, c->err) != KG_OK)
        return kg_err_prefix(c->err, "%s: byte %llu: tensor %s", c->where, byte_of(c) - 4,
                             t->name);
    KG_TRY(size_tensor(c, t));
    KG_TRY(take_number(c, &found, 8, "a tensor's offset"));
    if (found == offset)
        return KG_OK;
    return kg_fail(c->err, KG_EFORMAT,
                   "%s: byte %llu: tensor %s: expected its data at offset %llu, right "
                   "after the previous tensor, found offset %llu",
                   c->where, byte_of(c) - 8, t->name, (unsigned long long)offset,
                   (unsigned long long)found);
}

static kg_status read_alignment(const struct cursor *c, const struct kg_gguf_value *v,
                                uint64_t *alignment)
{
    const int64_t x = kg_gguf_int(v, 32);

    *alignment = (uint64_t)x;
    if (x >= 1 && x <= MAX_ALIGNMENT && (x & (x - 1)) == 0)
        return KG_OK;
    return kg_fail(c->err, KG_EFORMAT,
                   "%s: general.alignment: expected a power of two up to %d, found %lld",
                   c->where, MAX_ALIGNMENT, (long long)x);
}

/* Reads the table of tensors, then finds the data of each, which follows the table. */
static kg_status take_tensors(struct cursor *c, struct kg_gguf_tensor *tensors, size_t n,
                              uint64_t alignment)
{
    uint64_t end = 0, begin;

    for (size_t i = 0; i < n; i++) {
        tensors[i].file = c->where;
        KG_TRY(take_tensor(c, &tensors[i], end));
        if (__builtin_add_overflow(end, tensors[i].bytes + alignment - 1, &end))
            return kg_fail(c->err, KG_EFORMAT,
                           "%s: tensor %s: expected data below 2^64 bytes, found more",
                           c->where, tensors[i].name);
        end = end / alignment * alignment;
    }
    begin = (byte_of(c) + alignment - 1) / alignment * alignment;
    for (size_t i = 0; i < n; i++) {
        const unsigned char *unused;

        c->at = begin > (uint64_t)(c->end - c->begin) ? c->end : c->begin + begin;
        KG_TRY(take(c, &unused, tensors[i].bytes, tensors[i].name));
        tensors[i].data = c->begin + begin;
        begin += (tensors[i].bytes + alignment - 1) / alignment * alignment;
    }
    return KG_OK;
}

/* ---- one file ---- */

static kg_status take_version(struct cursor *c)
{
    const unsigned char *magic;
    uint64_t version;

    KG_TRY(take(c, &magic, 4, "the letters GGUF"));
    if (memcmp(magic, "GGUF", 4) != 0)
        return kg_fail(
            c->err, KG_EFORMAT,
            "%s: byte 0: expected the letters GGUF, found bytes %02x %02x %02x %02x",
            c->where, magic[0], magic[1], magic[2], magic[3]);
    KG_TRY(take_number(c, &version, 4, "a version"));
    if (version == 2 || version == 3)
        return KG_OK;
    if (version != 0 && (version & 0xffff) == 0)
        return kg_fail(
            c->err, KG_EUNSUPPORTED,
            "%s: byte 4: expected a little-endian file, found a big-endian one",
            c->where);
    return kg_fail(c->err, KG_EUNSUPPORTED,
                   "%s: byte 4: expected version 2 or 3, found %llu", c->where,
                   (unsigned long long)version);
}

/* values: owned by the caller, also on failure */
static kg_status read_tables(struct kg_gguf *g, struct cursor *c,
                             struct kg_gguf_value **values, size_t *n_values)
{
    uint64_t n, n_tensors, alignment;

    KG_TRY(take_version(c));
    KG_TRY(take_count(c, &n_tensors, MIN_TENSOR_BYTES, "tensors"));
    KG_TRY(take_count(c, &n, MIN_VALUE_BYTES, "values"));
    KG_TRY(take_values(c, values, n));
    *n_values = n;
    KG_TRY(read_alignment(c, find_value(*values, n, "general.alignment"), &alignment));
    KG_TRY(kg_mem_grow(&g->tensors, &g->capacity, g->n_tensors + n_tensors + 1,
                       sizeof *g->tensors, MAX_TENSORS, "tensor list", c->err));
    KG_TRY(take_tensors(c, g->tensors + g->n_tensors, n_tensors, alignment));
    g->n_tensors += n_tensors;
    return KG_OK;
}

/* Each file of a split set has the table of its own tensors, and its number. */
static kg_status check_part(const struct cursor *c, const struct kg_gguf_value *values,
                            size_t n, int64_t part)
{
    const int64_t found = kg_gguf_int(find_value(values, n, "split.no"), 0);

    if (found == part)
        return KG_OK;
    return kg_fail(c->err, KG_EUNSUPPORTED,
                   "%s: expected part %lld of a split set, found part %lld%s", c->where,
                   (long long)part + 1, (long long)found + 1,
                   part == 0 ? ": name the set by its first file" : "");
}

/* Reads the newest file of the set, which has these n bytes. */
static kg_status add_part(struct kg_gguf *g, const void *bytes, uint64_t n,
                          struct kg_err *err)
{
    const size_t part = g->n_files - 1;
    struct cursor c = {g->files[part].path, bytes, bytes,
                       (const unsigned char *)bytes + n, err};
    struct kg_gguf_value *values = NULL;
    size_t n_values = 0;
    kg_status status = read_tables(g, &c, &values, &n_values);

    if (status == KG_OK)
        status = check_part(&c, values, n_values, (int64_t)part);
    if (part == 0) {
        g->values = values;
        g->n_values = n_values;
    } else {
        kg_mem_free(values);
    }
    return status;
}

static kg_status add_file(struct kg_gguf *g, const char *path, struct kg_err *err)
{
    struct kg_gguf_file *file = &g->files[g->n_files];

    file->path = kg_mem_strdup(path, err);
    if (!file->path)
        return KG_ENOMEM;
    g->n_files++;
    KG_TRY(kg_map_open(&file->map, path, err));
    return add_part(g, file->map.data, file->map.bytes, err);
}

/* ---- the set ---- */

/* The name of the first file, NAME-00001-of-00003.gguf, with the number of `part`. */
static kg_status part_path(struct kg_path *to, const char *first, int64_t part, int64_t n,
                           struct kg_err *err)
{
    char end[40], other[40];
    const size_t len = strlen(first);
    const size_t tail = (size_t)snprintf(end, sizeof end, "-%05d-of-%05d.gguf", 1,
                                         (int)n);

    snprintf(other, sizeof other, "-%05d-of-%05d.gguf", (int)part + 1, (int)n);
    if (len < tail || len >= sizeof to->text || strcmp(first + len - tail, end) != 0)
        return kg_fail(
            err, KG_EUNSUPPORTED,
            "%s: expected a name that ends in %s (the first file of a set of %d), "
            "found another name",
            first, end, (int)n);
    memcpy(to->text, first, len - tail);
    memcpy(to->text + len - tail, other, tail + 1);
    return KG_OK;
}

static kg_status open_parts(struct kg_gguf *g, const char *path, struct kg_err *err)
{
    struct kg_path part;

    KG_TRY(add_file(g, path, err));
    int64_t n = kg_gguf_int(kg_gguf_get(g, "split.count"), 1);
    if (n > MAX_FILES)
        return kg_fail(err, KG_EFORMAT,
                       "%s: split.count: expected at most %d files, found %lld", path,
                       MAX_FILES, (long long)n);
    for (int64_t i = 1; i < n; i++) {
        KG_TRY(part_path(&part, path, i, n, err));
        KG_TRY(add_file(g, part.text, err));
    }
    return KG_OK;
}

kg_status kg_gguf_open(struct kg_gguf *g, const char *path, struct kg_err *err)
{
    *g = (struct kg_gguf){0};
    g->files = kg_mem_calloc(MAX_FILES, sizeof *g->files, "files of a set", err);
    kg_status status = g->files ? open_parts(g, path, err) : KG_ENOMEM;
    if (status != KG_OK)
        kg_gguf_close(g);
    return status;
}

kg_status kg_gguf_open_bytes(struct kg_gguf *g, const void *bytes, size_t n,
                             const char *where, struct kg_err *err)
{
    kg_status status = KG_ENOMEM;

    *g = (struct kg_gguf){0};
    g->files = kg_mem_calloc(1, sizeof *g->files, "a file", err);
    if (g->files)
        g->files[0].path = kg_mem_strdup(where, err);
    if (g->files && g->files[0].path) {
        g->n_files = 1;
        status = add_part(g, bytes, n, err);
    }
    if (status != KG_OK)
        kg_gguf_close(g);
    return status;
}

void kg_gguf_close(struct kg_gguf *g)
{
    for (size_t i = 0; i < g->n_files; i++) {
        kg_map_close(&g->files[i].map);
        kg_mem_free(g->files[i].path);
    }
    kg_mem_free(g->files);
    kg_mem_free(g->values);
    kg_mem_free(g->tensors);
    *g = (struct kg_gguf){0};
}

/* ---- lookup ---- */

const struct kg_gguf_value *kg_gguf_get(const struct kg_gguf *g, const char *key)
{
    return find_value(g->values, g->n_values, key);
}

const struct kg_gguf_tensor *kg_gguf_find(const struct kg_gguf *g, const char *name)
{
    for (size_t i = 0; i < g->n_tensors; i++)
        if (strcmp(g->tensors[i].name, name) == 0)
            return &g->tensors[i];
    return NULL;
}

static bool is_signed(enum kg_gguf_type type)
{
    return type == KG_GGUF_I8 || type == KG_GGUF_I16 || type == KG_GGUF_I32 ||
           type == KG_GGUF_I64;
}

int64_t kg_gguf_int(const struct kg_gguf_value *v, int64_t fallback)
{
    const bool other = !v || v->type == KG_GGUF_F32 || v->type == KG_GGUF_F64 ||
                       v->type == KG_GGUF_BOOL || v->type == KG_GGUF_TEXT ||
                       v->type == KG_GGUF_ARRAY;

    if (other)
        return fallback;
    uint64_t x = number(v->at, SIZES[v->type]);
    int spare = 64 - 8 * SIZES[v->type];
    if (is_signed(v->type))
        return (int64_t)(x << spare) >> spare;
    return x > INT64_MAX ? fallback : (int64_t)x;
}

double kg_gguf_real(const struct kg_gguf_value *v, double fallback)
{
    float single;
    double x = fallback;

    if (v && v->type == KG_GGUF_F64) {
        memcpy(&x, v->at, sizeof x);
    } else if (v && v->type == KG_GGUF_F32) {
        memcpy(&single, v->at, sizeof single);
        x = (double)single;
    } else if (kg_gguf_int(v, INT64_MIN) != INT64_MIN) {
        x = (double)kg_gguf_int(v, 0);
    }
    return x;
}

bool kg_gguf_bool(const struct kg_gguf_value *v, bool fallback)
{
    return v && v->type == KG_GGUF_BOOL ? *v->at != 0 : fallback;
}

const char *kg_gguf_text(const struct kg_gguf_value *v, size_t *n)
{
    const bool text = v && v->type == KG_GGUF_TEXT;

    *n = text ? v->n : 0;
    return text ? (const char *)v->at : NULL;
}

bool kg_gguf_is(const struct kg_gguf_value *v, const char *text)
{
    size_t n;
    const char *found = kg_gguf_text(v, &n);

    return found && n == strlen(text) && memcmp(found, text, n) == 0;
}

uint64_t kg_gguf_bytes(const struct kg_gguf_value *v)
{
    struct kg_gguf_walk walk = {.array = v};
    const unsigned char *end = v->at;

    if (v->type == KG_GGUF_TEXT)
        return v->n;
    if (v->type != KG_GGUF_ARRAY)
        return (uint64_t)SIZES[v->type];
    while (kg_gguf_next(&walk))
        end = walk.item.at + kg_gguf_bytes(&walk.item);
    return (uint64_t)(end - v->at);
}

uint64_t kg_gguf_items(const struct kg_gguf_value *v)
{
    return v && v->type == KG_GGUF_ARRAY ? v->n : 0;
}

bool kg_gguf_next(struct kg_gguf_walk *walk)
{
    struct kg_gguf_value *item = &walk->item;
    const struct kg_gguf_value *array = walk->array;
    const unsigned char *at = item->at ? item->at : NULL;

    if (at)
        at += array->of == KG_GGUF_TEXT ? item->n : (uint64_t)SIZES[array->of];
    walk->i = at ? walk->i + 1 : 0;
    if (walk->i >= kg_gguf_items(array))
        return false;
    at = at ? at : array->at;
    item->type = array->of;
    item->n = array->of == KG_GGUF_TEXT ? number(at, 8) : 0;
    item->at = at + (array->of == KG_GGUF_TEXT ? 8 : 0);
    return true;
}
