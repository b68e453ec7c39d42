/* safetensors: reading over maps, and writing range by range.
 *
 * A file is a little-endian 64-bit header length, a JSON header, and the data. The header
 * names each tensor's dtype, shape and byte range; the ranges must tile the data exactly,
 * in any order of names. That one rule (no gap, no overlap, nothing left over) is what
 * makes a file trustworthy, so it is checked before any tensor is handed out.
 *
 * Elements are not read here: code that computes with the weights finds a NaN.
 */
#include "data/safetensors.h"

#include "base/mem.h"
#include "base/str.h"
#include "data/json.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    LENGTH_BYTES = 8,
    MAX_HEADER_BYTES = 100 * 1000 * 1000, /* the limit of the reference implementation */
    MAX_INDEX_BYTES = 64 << 20,
    MAX_TENSORS = 1 << 22,
    MAX_FILES = 1 << 14,
    DATA_ALIGN = 8,
};

struct dtype_row {
    const char *name;
    unsigned bits;
};
static const struct dtype_row dtypes[] = {
    {"BOOL", 8},    {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"I16", 16}, {"U16", 16}, {"F16", 16},    {"BF16", 16},
    {"I32", 32},    {"U32", 32}, {"F32", 32}, {"F64", 64},    {"I64", 64},
    {"U64", 64},    {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

/* One file of a set. */
struct part {
    struct kg_map map;         /* owned; unused for bytes in memory */
    const unsigned char *data; /* after the header */
    uint64_t data_bytes;
    struct kg_json_doc header; /* owned: tensor names live here */
    char *where;               /* owned: path */
};

struct kg_st_set {
    struct part *parts; /* owned */
    size_t n_parts;
    struct kg_st_tensor *tensors; /* owned, sorted by name */
    size_t n_tensors;
    size_t capacity;
    char **renamed; /* owned (n_tensors), or NULL: new names; NULL: not renamed */
    char **names;   /* owned: names of kg_st_add's tensors */
    size_t n_names;
    size_t name_capacity;
};

static const struct dtype_row *find_dtype(const char *name)
{
    for (size_t i = 0; name && i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    }
    return NULL;
}

/* Bytes of a tensor, multiplied in the order of the shape.   returns false on overflow or
 * a fraction of a byte */
static bool shape_bytes(uint64_t *bytes, const int64_t *shape, int n_dims, unsigned bits)
{
    uint64_t product = 1;

    for (int i = 0; i < n_dims; i++) {
        if (shape[i] < 0 || __builtin_mul_overflow(product, (uint64_t)shape[i], &product))
            return false;
    }
    if (__builtin_mul_overflow(product, (uint64_t)bits, &product) || product % 8 != 0)
        return false;
    *bytes = product / 8;
    return true;
}

/* ---- one tensor of the header ---- */

static kg_status read_shape(struct kg_st_tensor *t, const struct kg_json *entry,
                            struct kg_err *err)
{
    const struct kg_json *shape = kg_json_get(entry, "shape");

    if (kg_json_type(shape) != KG_JSON_ARRAY)
        return kg_fail(err, KG_EFORMAT,
                       "%s: tensor '%s': expected 'shape' as an array, found %s", t->file,
                       t->name, shape ? kg_json_type_name(shape) : "no such key");
    if (kg_json_size(shape) > KG_ST_MAX_DIMS)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "%s: tensor '%s': expected at most %d dimensions, found %zu",
                       t->file, t->name, KG_ST_MAX_DIMS, kg_json_size(shape));
    t->n_dims = (int)kg_json_size(shape);
    for (int i = 0; i < t->n_dims; i++) {
        t->shape[i] = kg_json_int(kg_json_at(shape, (size_t)i), -1);
        if (t->shape[i] < 0)
            return kg_fail(
                err, KG_EFORMAT,
                "%s: tensor '%s': expected dimension %d as an integer from 0, found %s",
                t->file, t->name, i, kg_json_type_name(kg_json_at(shape, (size_t)i)));
    }
    return KG_OK;
}

static kg_status read_range(struct kg_st_tensor *t, const struct part *part,
                            const struct kg_json *entry, struct kg_err *err)
{
    const struct kg_json *range = kg_json_get(entry, "data_offsets");
    int64_t begin = kg_json_int(kg_json_at(range, 0), -1);
    int64_t end = kg_json_int(kg_json_at(range, 1), -1);

    if (kg_json_size(range) != 2 || begin < 0 || end < 0)
        return kg_fail(err, KG_EFORMAT,
                       "%s: tensor '%s': expected 'data_offsets' as two integers of at "
                       "least 0, found %s",
                       t->file, t->name, range ? "something else" : "no such key");
    if (begin > end || (uint64_t)end > part->data_bytes)
        return kg_fail(err, KG_EFORMAT,
                       "%s: tensor '%s': expected a byte range inside the %llu bytes of "
                       "data, found %lld..%lld",
                       t->file, t->name, (unsigned long long)part->data_bytes,
                       (long long)begin, (long long)end);
    t->data = part->data + begin;
    t->bytes = (uint64_t)(end - begin);
    return KG_OK;
}

static kg_status read_tensor(struct kg_st_tensor *t, const struct part *part,
                             const struct kg_json *entry, struct kg_err *err)
{
    const char *name = kg_json_text(kg_json_get(entry, "dtype"), NULL);
    const struct dtype_row *dtype = find_dtype(name);
    uint64_t bytes;

    if (kg_json_type(entry) != KG_JSON_OBJECT)
        return kg_fail(err, KG_EFORMAT, "%s: tensor '%s': expected an object, found %s",
                       t->file, t->name, kg_json_type_name(entry));
    if (!dtype)
        return kg_fail(err, KG_EFORMAT,
                       "%s: tensor '%s': expected a dtype such as BF16, found %.40s",
                       t->file, t->name, name ? name : "none");
    t->dtype = dtype->name;
    KG_TRY(read_shape(t, entry, err));
    if (!shape_bytes(&bytes, t->shape, t->n_dims, dtype->bits))
        return kg_fail(
            err, KG_EFORMAT,
            "%s: tensor '%s': expected a shape of whole bytes below 2^64, found another",
            t->file, t->name);
    KG_TRY(read_range(t, part, entry, err));
    if (bytes != t->bytes)
        return kg_fail(err, KG_EFORMAT,
                       "%s: tensor '%s': expected %llu bytes by dtype and shape, found a "
                       "range of %llu",
                       t->file, t->name, (unsigned long long)bytes,
                       (unsigned long long)t->bytes);
    return KG_OK;
}

static kg_status check_metadata(const struct kg_json *meta, const char *where,
                                struct kg_err *err)
{
    if (kg_json_type(meta) != KG_JSON_OBJECT)
        return kg_fail(err, KG_EFORMAT,
                       "%s: '__metadata__': expected an object, found %s", where,
                       kg_json_type_name(meta));
    for (size_t i = 0; i < kg_json_size(meta); i++) {
        const struct kg_json *v = kg_json_value_at(meta, i);

        if (kg_json_type(v) != KG_JSON_STRING)
            return kg_fail(err, KG_EFORMAT,
                           "%s: '__metadata__' key '%s': expected string, found %s",
                           where, kg_json_key_at(meta, i), kg_json_type_name(v));
    }
    return KG_OK;
}

/* ---- one file ---- */

static int compare_places(const void *a, const void *b)
{
    const struct kg_st_tensor *x = a;
    const struct kg_st_tensor *y = b;

    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty ones first */
}

/* The ranges of a file's tensors must tile its data. Sorts them by offset. */
static kg_status check_tiling(struct kg_st_tensor *tensors, size_t n,
                              const struct part *part, struct kg_err *err)
{
    uint64_t end = 0;

    if (n > 1)
        qsort(tensors, n, sizeof *tensors, compare_places);
    for (size_t i = 0; i < n; i++) {
        uint64_t begin = (uint64_t)(tensors[i].data - part->data);

        if (begin != end)
            return kg_fail(err, KG_EFORMAT,
                           "%s: tensor '%s': expected its data at byte %llu (no hole, no "
                           "overlap), found %llu",
                           part->where, tensors[i].name, (unsigned long long)end,
                           (unsigned long long)begin);
        end += tensors[i].bytes;
    }
    if (end != part->data_bytes)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected %llu bytes of data for its tensors, found %llu",
                       part->where, (unsigned long long)end,
                       (unsigned long long)part->data_bytes);
    return KG_OK;
}

/* Splits a file into header and data. Sets data, data_bytes and header. */
static kg_status read_header(struct part *part, const unsigned char *bytes, uint64_t n,
                             struct kg_err *err)
{
    uint64_t length = 0;

    if (n < LENGTH_BYTES)
        return kg_fail(
            err, KG_EFORMAT,
            "%s: expected a safetensors file of at least 8 bytes, found %llu bytes",
            part->where, (unsigned long long)n);
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        length = length << 8 | bytes[i];
    if (kg_json_check_fetched((const char *)bytes, n, err) != KG_OK)
        return kg_err_prefix(err, "%s", part->where);
    if (length > MAX_HEADER_BYTES)
        return kg_fail(
            err, KG_EFORMAT,
            "%s: expected a header of at most %d bytes, found a length of %llu",
            part->where, MAX_HEADER_BYTES, (unsigned long long)length);
    if (length > n - LENGTH_BYTES)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a header of %llu bytes, found %llu left in the file "
                       "(truncated?)",
                       part->where, (unsigned long long)length,
                       (unsigned long long)(n - LENGTH_BYTES));
    part->data = bytes + LENGTH_BYTES + length;
    part->data_bytes = n - LENGTH_BYTES - length;
    KG_TRY(kg_json_parse(&part->header, (const char *)bytes + LENGTH_BYTES, length,
                         part->where, err));
    if (kg_json_type(part->header.root) != KG_JSON_OBJECT)
        return kg_fail(err, KG_EFORMAT, "%s: expected an object as header, found %s",
                       part->where, kg_json_type_name(part->header.root));
    return KG_OK;
}

static kg_status add_tensors(struct kg_st_set *set, const struct part *part,
                             struct kg_err *err)
{
    const struct kg_json *root = part->header.root;
    size_t first = set->n_tensors;

    /* one more than needed: never a NULL list */
    KG_TRY(kg_mem_grow(&set->tensors, &set->capacity, first + kg_json_size(root) + 1,
                       sizeof *set->tensors, MAX_TENSORS, "tensor list", err));
    for (size_t i = 0; i < kg_json_size(root); i++) {
        struct kg_st_tensor *t = &set->tensors[set->n_tensors];

        if (strcmp(kg_json_key_at(root, i), "__metadata__") == 0) {
            KG_TRY(check_metadata(kg_json_value_at(root, i), part->where, err));
            continue;
        }
        *t = (struct kg_st_tensor){.name = kg_json_key_at(root, i), .file = part->where};
        KG_TRY(read_tensor(t, part, kg_json_value_at(root, i), err));
        set->n_tensors++;
    }
    return check_tiling(set->tensors + first, set->n_tensors - first, part, err);
}

static kg_status add_bytes(struct kg_st_set *set, const void *bytes, uint64_t n,
                           const char *where, struct kg_err *err)
{
    struct part *part = &set->parts[set->n_parts++];

    part->where = kg_mem_strdup(where, err);
    if (!part->where)
        return err->code;
    KG_TRY(read_header(part, bytes, n, err));
    return add_tensors(set, part, err);
}

static kg_status add_file(struct kg_st_set *set, const char *path, struct kg_err *err)
{
    struct part *part = &set->parts[set->n_parts];

    KG_TRY(kg_map_open(&part->map, path, err));
    /* from here on the part counts, so that closing the set unmaps it */
    return add_bytes(set, part->map.data, part->map.bytes, path, err);
}

/* ---- the set ---- */

static struct kg_st_set *create(size_t n_parts, struct kg_err *err)
{
    struct kg_st_set *set = kg_mem_calloc(1, sizeof *set, "safetensors set", err);

    if (!set)
        return NULL;
    set->parts = kg_mem_calloc(n_parts, sizeof *set->parts, "safetensors files", err);
    if (!set->parts) {
        kg_mem_free(set);
        return NULL;
    }
    return set;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct kg_st_tensor *)a)->name,
                  ((const struct kg_st_tensor *)b)->name);
}

static kg_status sort_by_name(struct kg_st_set *set, struct kg_err *err)
{
    if (set->n_tensors > 1)
        qsort(set->tensors, set->n_tensors, sizeof *set->tensors, compare_names);
    for (size_t i = 1; i < set->n_tensors; i++) {
        if (compare_names(&set->tensors[i - 1], &set->tensors[i]) == 0)
            return kg_fail(err, KG_EFORMAT,
                           "tensor '%s': expected in one file, found in %s and in %s",
                           set->tensors[i].name, set->tensors[i - 1].file,
                           set->tensors[i].file);
    }
    return KG_OK;
}

kg_status kg_st_open_bytes(struct kg_st_set **set, const void *bytes, size_t n,
                           const char *where, struct kg_err *err)
{
    struct kg_st_set *s = create(1, err);
    kg_status status;

    *set = NULL;
    if (!s)
        return err->code;
    KG_TRY_GOTO(fail, add_bytes(s, bytes, n, where, err));
    KG_TRY_GOTO(fail, sort_by_name(s, err));
    *set = s;
    return KG_OK;
fail:
    kg_st_close(s);
    return status;
}

kg_status kg_st_open_file(struct kg_st_set **set, const char *path, struct kg_err *err)
{
    struct kg_st_set *s = create(1, err);
    kg_status status;

    *set = NULL;
    if (!s)
        return err->code;
    KG_TRY_GOTO(fail, add_file(s, path, err));
    KG_TRY_GOTO(fail, sort_by_name(s, err));
    *set = s;
    return KG_OK;
fail:
    kg_st_close(s);
    return status;
}

void kg_st_close(struct kg_st_set *set)
{
    if (!set)
        return;
    for (size_t i = 0; i < set->n_parts; i++) {
        kg_map_close(&set->parts[i].map);
        kg_json_release(&set->parts[i].header);
        kg_mem_free(set->parts[i].where);
    }
    for (size_t i = 0; i < set->n_names; i++)
        kg_mem_free(set->names[i]);
    kg_mem_free(set->names);
    for (size_t i = 0; set->renamed && i < set->n_tensors; i++)
        kg_mem_free(set->renamed[i]);
    kg_mem_free(set->renamed);
    kg_mem_free(set->parts);
    kg_mem_free(set->tensors);
    kg_mem_free(set);
}

/* ---- sets of other formats ---- */

kg_status kg_st_begin(struct kg_st_set **set, size_t n_files, struct kg_err *err)
{
    *set = create(n_files, err);
    return *set ? KG_OK : KG_ENOMEM;
}

kg_status kg_st_take_file(struct kg_st_set *set, const char **where, struct kg_map *map,
                          const char *path, struct kg_err *err)
{
    struct part *part = &set->parts[set->n_parts++];

    part->map = *map;
    *map = (struct kg_map){0};
    part->where = kg_mem_strdup(path, err);
    *where = part->where;
    return part->where ? KG_OK : KG_ENOMEM;
}

kg_status kg_st_add(struct kg_st_set *set, const struct kg_st_tensor *t,
                    struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&set->tensors, &set->capacity, set->n_tensors + 1,
                       sizeof *set->tensors, MAX_TENSORS, "tensor list", err));
    KG_TRY(kg_mem_grow(&set->names, &set->name_capacity, set->n_names + 1,
                       sizeof *set->names, MAX_TENSORS, "tensor names", err));
    struct kg_st_tensor *own = &set->tensors[set->n_tensors];
    *own = *t;
    set->names[set->n_names] = kg_mem_strdup(t->name, err);
    if (!set->names[set->n_names])
        return KG_ENOMEM;
    own->name = set->names[set->n_names++];
    set->n_tensors++;
    return KG_OK;
}

kg_status kg_st_end(struct kg_st_set *set, struct kg_err *err)
{
    return sort_by_name(set, err);
}

kg_status kg_st_rename_all(struct kg_st_set *set, kg_st_rename *rename, void *context,
                           struct kg_err *err)
{
    char name[KG_ST_MAX_NAME];

    assert(!set->renamed);
    KG_TRY(kg_mem_new(&set->renamed, set->n_tensors, sizeof *set->renamed, "tensor names",
                      err));
    for (size_t i = 0; i < set->n_tensors; i++) {
        struct kg_st_tensor *t = &set->tensors[i];

        if (strlen(t->name) >= sizeof name / 2)
            return kg_fail(err, KG_EFORMAT,
                           "%s: tensor '%.40s..': expected a name of fewer than %zu "
                           "bytes, found %zu",
                           t->file, t->name, sizeof name / 2, strlen(t->name));
        if (!rename(name, t->name, context))
            continue;
        set->renamed[i] = kg_mem_strdup(name, err);
        if (!set->renamed[i])
            return KG_ENOMEM;
        t->name = set->renamed[i];
    }
    return sort_by_name(set, err);
}

size_t kg_st_count(const struct kg_st_set *set) { return set->n_tensors; }

const struct kg_st_tensor *kg_st_at(const struct kg_st_set *set, size_t i)
{
    assert(i < set->n_tensors);
    return &set->tensors[i];
}

const struct kg_st_tensor *kg_st_find(const struct kg_st_set *set, const char *name)
{
    struct kg_st_tensor key = {.name = name};

    if (set->n_tensors == 0)
        return NULL;
    return bsearch(&key, set->tensors, set->n_tensors, sizeof key, compare_names);
}

/* ---- shards ---- */

/* The distinct shard names of an index, sorted.   names: owned block of borrowed
 * strings */
struct shards {
    const char **names;
    size_t n;
};

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static kg_status list_shards(struct shards *out, const struct kg_json_doc *doc,
                             const struct kg_json *map, struct kg_err *err)
{
    size_t n = kg_json_size(map);

    KG_TRY(kg_mem_new(&out->names, n, sizeof *out->names, "shard names", err));
    for (size_t i = 0; i < n; i++) {
        const char *shard;

        KG_TRY(kg_json_need_text(&shard, doc, map, kg_json_key_at(map, i), err));
        if (!*shard || strchr(shard, '/') || strcmp(shard, "..") == 0 ||
            strcmp(shard, ".") == 0)
            return kg_fail(err, KG_EFORMAT,
                           "%s: tensor '%s': expected a file name in the folder of the "
                           "index, found '%s'",
                           doc->where, kg_json_key_at(map, i), shard);
        out->names[i] = shard;
    }
    if (n > 1)
        qsort(out->names, n, sizeof *out->names, compare_text);
    for (size_t i = 0; i < n; i++) {
        if (out->n == 0 || strcmp(out->names[out->n - 1], out->names[i]) != 0)
            out->names[out->n++] = out->names[i];
    }
    if (out->n == 0 || out->n > MAX_FILES)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected 1 to %d shards in 'weight_map', found %zu",
                       doc->where, MAX_FILES, out->n);
    return KG_OK;
}

static kg_status open_shards(struct kg_st_set *set, const struct shards *shards,
                             const char *dir, const char *index, struct kg_err *err)
{
    for (size_t i = 0; i < shards->n; i++) {
        if (add_file(set, kg_path_in(dir, shards->names[i]).text, err) != KG_OK)
            return kg_err_prefix(err, "%s names shard '%s'", index, shards->names[i]);
    }
    return sort_by_name(set, err);
}

/* Each tensor of the index must be in the shard that it names. */
static kg_status check_index(const struct kg_st_set *set, const struct kg_json_doc *doc,
                             const struct kg_json *map, struct kg_err *err)
{
    for (size_t i = 0; i < kg_json_size(map); i++) {
        const char *name = kg_json_key_at(map, i);
        const char *shard = kg_json_text(kg_json_value_at(map, i), NULL);
        const struct kg_st_tensor *t = kg_st_find(set, name);
        const char *slash = t ? strrchr(t->file, '/') : NULL;

        if (!t || strcmp(slash ? slash + 1 : t->file, shard) != 0)
            return kg_fail(err, KG_EFORMAT,
                           "%s: expected tensor '%s' in shard '%s', found %s", doc->where,
                           name, shard, t ? t->file : "it in no shard");
    }
    return KG_OK;
}

static kg_status open_index(struct kg_st_set **set, const char *dir, const char *index,
                            struct kg_err *err)
{
    const struct kg_json *map;
    struct shards shards = {0};
    struct kg_st_set *s = NULL;
    struct kg_json_doc doc;
    kg_status status;

    KG_TRY(kg_json_read(&doc, index, MAX_INDEX_BYTES, err));
    KG_TRY_GOTO(out,
                kg_json_need(&map, &doc, doc.root, "weight_map", KG_JSON_OBJECT, err));
    KG_TRY_GOTO(out, list_shards(&shards, &doc, map, err));
    s = create(shards.n, err);
    KG_TRY_GOTO(out, s ? KG_OK : err->code);
    KG_TRY_GOTO(out, open_shards(s, &shards, dir, index, err));
    KG_TRY_GOTO(out, check_index(s, &doc, map, err));
    *set = s;
    s = NULL;
out:
    kg_st_close(s);
    kg_mem_free(shards.names);
    kg_json_release(&doc);
    return status;
}

/* Other files of weights by the end of their name, and what to do with them. */
static const struct {
    const char *end, *about;
} other_weights[] = {
    {".safetensors", "shards need their model.safetensors.index.json"},
    {".bin", "kedge does not read torch's files: save_pretrained of transformers writes "
             "safetensors"},
    {".pth", "kedge does not read torch's files: save_pretrained of transformers writes "
             "safetensors"},
    {".gguf", "give the path of that file instead"},
};

static const char *about_weights(const char *name)
{
    const size_t n = strlen(name);

    for (size_t i = 0; i < sizeof other_weights / sizeof *other_weights; i++) {
        const size_t end = strlen(other_weights[i].end);

        if (n > end && strcmp(name + n - end, other_weights[i].end) == 0)
            return other_weights[i].about;
    }
    return NULL;
}

static kg_status no_weights(const char *dir, struct kg_err *err)
{
    char **names;
    size_t n, i = 0;

    KG_TRY(kg_file_list(&names, &n, dir, err));
    while (i < n && !about_weights(names[i]))
        i++;
    kg_fail(err, KG_ENOTFOUND,
            "%s: expected model.safetensors or model.safetensors.index.json, found "
            "%.200s%s%s",
            dir, i < n ? names[i] : "neither", i < n ? ": " : "",
            i < n ? about_weights(names[i]) : "");
    kg_file_names_free(names, n);
    return err->code;
}

kg_status kg_st_open_dir(struct kg_st_set **set, const char *dir, struct kg_err *err)
{
    const struct kg_path file = kg_path_in(dir, "model.safetensors");
    const struct kg_path index = kg_path_in(dir, "model.safetensors.index.json");

    *set = NULL;
    if (kg_file_exists(file.text))
        return kg_st_open_file(set, file.text, err);
    if (kg_file_exists(index.text))
        return open_index(set, dir, index.text, err);
    return no_weights(dir, err);
}

/* ---- writing ---- */

struct slot {
    char *name;     /* owned */
    uint64_t begin; /* offset in the data, which starts at data_begin */
    uint64_t bytes;
    uint64_t filled; /* bytes put so far, anywhere in the tensor */
};
struct kg_st_writer {
    struct kg_file_writer file;
    struct slot *slots; /* owned */
    size_t n;
    uint64_t data_begin; /* length of the header */
};

/* Sets names and sizes of the tensors; fails on what a reader would refuse. */
static kg_status plan(struct kg_st_writer *w, const struct kg_st_decl *decls, size_t n,
                      struct kg_err *err)
{
    KG_TRY(kg_mem_new(&w->slots, n, sizeof *w->slots, "tensor declarations", err));
    for (size_t i = 0; i < n; i++) {
        const struct dtype_row *dtype = find_dtype(decls[i].dtype);

        if (!dtype || decls[i].n_dims < 0 || decls[i].n_dims > KG_ST_MAX_DIMS ||
            !shape_bytes(&w->slots[i].bytes, decls[i].shape, decls[i].n_dims,
                         dtype->bits))
            return kg_fail(err, KG_EINVAL,
                           "tensor '%s': expected a known dtype and a shape, found %s "
                           "with %d dimensions",
                           decls[i].name, decls[i].dtype, decls[i].n_dims);
        w->slots[i].name = kg_mem_strdup(decls[i].name, err);
        if (!w->slots[i].name)
            return err->code;
        w->n = i + 1;
    }
    return KG_OK;
}

static kg_status check_unique(const struct kg_st_decl *decls, size_t n,
                              struct kg_err *err)
{
    const char **names = kg_mem_calloc(n, sizeof *names, "tensor names", err);
    kg_status status = KG_OK;

    if (!names)
        return err->code;
    for (size_t i = 0; i < n; i++)
        names[i] = decls[i].name;
    if (n > 1)
        qsort(names, n, sizeof *names, compare_text);
    for (size_t i = 0; i < n && status == KG_OK; i++) {
        if ((i > 0 && strcmp(names[i - 1], names[i]) == 0) ||
            strcmp(names[i], "__metadata__") == 0)
            status = kg_fail(
                err, KG_EINVAL,
                "expected each tensor name once and not __metadata__, found '%s'",
                names[i]);
    }
    kg_mem_free(names);
    return status;
}

static kg_status put_decl(struct kg_str *out, const struct kg_st_decl *d, uint64_t begin,
                          uint64_t bytes, struct kg_err *err)
{
    KG_TRY(kg_json_put_text(out, ",", d->name, err));
    KG_TRY(kg_str_printf(out, err, ":{\"dtype\":\"%s\",\"shape\":[", d->dtype));
    for (int i = 0; i < d->n_dims; i++)
        KG_TRY(kg_str_printf(out, err, "%s%lld", i ? "," : "", (long long)d->shape[i]));
    return kg_str_printf(out, err, "],\"data_offsets\":[%llu,%llu]}",
                         (unsigned long long)begin, (unsigned long long)(begin + bytes));
}

/* Makes the header, and sets the offset of every tensor. */
static kg_status put_header(struct kg_str *out, struct kg_st_writer *w,
                            const struct kg_st_decl *decls, struct kg_err *err)
{
    uint64_t begin = 0;

    KG_TRY(kg_str_append(out, "\0\0\0\0\0\0\0\0", LENGTH_BYTES, err));
    KG_TRY(kg_str_puts(out, "{\"__metadata__\":{\"format\":\"pt\"}", err));
    for (size_t i = 0; i < w->n; i++) {
        w->slots[i].begin = begin;
        KG_TRY(put_decl(out, &decls[i], begin, w->slots[i].bytes, err));
        if (__builtin_add_overflow(begin, w->slots[i].bytes, &begin))
            return kg_fail(err, KG_EINVAL,
                           "tensor '%s': expected data below 2^64 bytes, found more",
                           decls[i].name);
    }
    KG_TRY(kg_str_putc(out, '}', err));
    while (out->len % DATA_ALIGN != 0)
        KG_TRY(kg_str_putc(out, ' ', err));
    uint64_t length = out->len - LENGTH_BYTES;
    if (length > MAX_HEADER_BYTES)
        return kg_fail(err, KG_EINVAL,
                       "expected a header of at most %d bytes, found %llu",
                       MAX_HEADER_BYTES, (unsigned long long)length);
    for (int i = 0; i < LENGTH_BYTES; i++)
        out->data[i] = (char)(length >> (8 * i));
    return KG_OK;
}

static uint64_t whole_bytes(const struct kg_st_writer *w)
{
    const struct slot *last = w->n > 0 ? &w->slots[w->n - 1] : NULL;

    return w->data_begin + (last ? last->begin + last->bytes : 0);
}

static kg_status begin_file(struct kg_st_writer *w, const char *path,
                            const struct kg_str *header, struct kg_err *err)
{
    KG_TRY(kg_file_writer_open(&w->file, path, err));
    return kg_file_writer_put(&w->file, header->data, header->len, err);
}

/* joins: another writer has begun the file */
static kg_status open_writer(struct kg_st_writer **out, const char *path, bool joins,
                             const struct kg_st_decl *decls, size_t n, struct kg_err *err)
{
    struct kg_st_writer *w = kg_mem_calloc(1, sizeof *w, "safetensors writer", err);
    struct kg_str header = {0};
    kg_status status;

    *out = NULL;
    if (!w)
        return err->code;
    KG_TRY_GOTO(fail, plan(w, decls, n, err));
    KG_TRY_GOTO(fail, check_unique(decls, n, err));
    KG_TRY_GOTO(fail, put_header(&header, w, decls, err));
    w->data_begin = header.len;
    KG_TRY_GOTO(fail, joins ? kg_file_writer_append(&w->file, path, whole_bytes(w), err)
                            : begin_file(w, path, &header, err));
    kg_str_release(&header);
    *out = w;
    return KG_OK;
fail:
    kg_err_prefix(err, "%s", path);
    kg_str_release(&header);
    kg_st_writer_abort(w);
    return status;
}

kg_status kg_st_writer_open(struct kg_st_writer **out, const char *path,
                            const struct kg_st_decl *decls, size_t n, struct kg_err *err)
{
    return open_writer(out, path, false, decls, n, err);
}

kg_status kg_st_writer_join(struct kg_st_writer **out, const char *path,
                            const struct kg_st_decl *decls, size_t n, struct kg_err *err)
{
    return open_writer(out, path, true, decls, n, err);
}

kg_status kg_st_writer_leave(struct kg_st_writer *w, struct kg_err *err)
{
    kg_status status = kg_file_writer_extend(&w->file, whole_bytes(w), err);

    if (status == KG_OK)
        status = kg_file_writer_close(&w->file, err);
    kg_st_writer_abort(w);
    return status;
}

kg_status kg_st_writer_put(struct kg_st_writer *w, size_t tensor, uint64_t first,
                           const void *bytes, size_t n, struct kg_err *err)
{
    struct slot *slot = w->slots + tensor;

    assert(tensor < w->n);
    if (first > slot->bytes || n > slot->bytes - first)
        return kg_fail(err, KG_EINVAL,
                       "%s: tensor '%s': expected a range within its %llu bytes, found "
                       "%zu bytes at offset %llu",
                       w->file.path, slot->name, (unsigned long long)slot->bytes, n,
                       (unsigned long long)first);
    KG_TRY(kg_file_writer_seek(&w->file, w->data_begin + slot->begin + first, err));
    KG_TRY(kg_file_writer_put(&w->file, bytes, n, err));
    slot->filled += n;
    return KG_OK;
}

kg_status kg_st_writer_close(struct kg_st_writer *w, struct kg_err *err)
{
    kg_status status = KG_OK;

    for (size_t i = 0; i < w->n && status == KG_OK; i++)
        if (w->slots[i].filled != w->slots[i].bytes)
            status = kg_fail(err, KG_EINVAL,
                             "%s: tensor '%s': expected %llu bytes in all, found %llu "
                             "written",
                             w->file.path, w->slots[i].name,
                             (unsigned long long)w->slots[i].bytes,
                             (unsigned long long)w->slots[i].filled);
    if (status == KG_OK)
        status = kg_file_writer_close(&w->file, err);
    kg_st_writer_abort(w);
    return status;
}

void kg_st_writer_abort(struct kg_st_writer *w)
{
    if (!w)
        return;
    kg_file_writer_abort(&w->file);
    for (size_t i = 0; i < w->n; i++)
        kg_mem_free(w->slots[i].name);
    kg_mem_free(w->slots);
    kg_mem_free(w);
}
