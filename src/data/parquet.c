/* Parquet: the file, its footer and the places of its columns.
 *
 * The footer's lists of columns are not copied: a row group remembers where its list is,
 * and a chunk's description is read when the chunk is opened. So a footer with millions
 * of entries costs no more memory than its bytes.
 */
#include "data/parquet_internal.h"

#include "base/mem.h"

#include <stddef.h>
#include <string.h>

enum { MAGIC_BYTES = 4, TAIL_BYTES = 8 };

/* ---- the footer ---- */

struct footer {
    struct kg_thrift_list schema;
    struct kg_thrift_list groups;
    int64_t rows;
    int64_t encrypted;
};
static const struct kg_thrift_field footer_fields[] = {
    {2, KG_THRIFT_AS_LIST, offsetof(struct footer, schema), NULL},
    {3, KG_THRIFT_AS_INT, offsetof(struct footer, rows), NULL},
    {4, KG_THRIFT_AS_LIST, offsetof(struct footer, groups), NULL},
    {8, KG_THRIFT_AS_TAG, offsetof(struct footer, encrypted), NULL},
    {0},
};

struct group {
    struct kg_thrift_list columns;
    int64_t rows;
};
static const struct kg_thrift_field group_fields[] = {
    {1, KG_THRIFT_AS_LIST, offsetof(struct group, columns), NULL},
    {3, KG_THRIFT_AS_INT, offsetof(struct group, rows), NULL},
    {0},
};

static kg_status read_group(struct kg_parquet *file, struct kg_thrift *t, size_t i,
                            struct kg_err *err)
{
    struct group g = {.rows = -1};

    kg_thrift_read(t, &g, group_fields);
    if (t->problem)
        return kg_fail(err, KG_EFORMAT, "%s: row group %zu: malformed footer: %s",
                       file->name, i + 1, t->problem);
    if (g.rows < 0 || g.rows > INT64_MAX / KG_PARQUET_MAX_GROUPS)
        return kg_fail(err, KG_EFORMAT, "%s: row group %zu: %lld rows are not possible",
                       file->name, i + 1, (long long)g.rows);
    if (g.columns.n != file->n_leaves || g.columns.type != KG_THRIFT_STRUCT)
        return kg_fail(err, KG_EFORMAT,
                       "%s: row group %zu: expected %zu columns, found %u", file->name,
                       i + 1, file->n_leaves, g.columns.n);
    file->groups[i] = (struct kg_parquet_group){g.columns, g.rows};
    file->rows += g.rows;
    return KG_OK;
}

static kg_status read_groups(struct kg_parquet *file, const struct kg_thrift *footer,
                             const struct footer *f, struct kg_err *err)
{
    struct kg_thrift t = kg_thrift_enter(footer, &f->groups);

    if (f->groups.n > KG_PARQUET_MAX_GROUPS ||
        (f->groups.n > 0 && f->groups.type != KG_THRIFT_STRUCT))
        return kg_fail(err, KG_EFORMAT, "%s: expected at most %d row groups, found %u",
                       file->name, KG_PARQUET_MAX_GROUPS, f->groups.n);
    KG_TRY(
        kg_mem_new(&file->groups, f->groups.n, sizeof *file->groups, "row groups", err));
    file->n_groups = f->groups.n;
    for (size_t i = 0; i < file->n_groups; i++)
        KG_TRY(read_group(file, &t, i, err));
    if (file->rows != f->rows)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected %lld rows, found %lld in the row groups", file->name,
                       (long long)f->rows, (long long)file->rows);
    return KG_OK;
}

static kg_status read_footer(struct kg_parquet *file, struct kg_err *err)
{
    struct footer f = {.rows = -1};
    const unsigned char *at = file->bytes + file->footer_at;
    struct kg_thrift t = {at, file->bytes + file->n - TAIL_BYTES, NULL};
    const struct kg_thrift whole = t;

    kg_thrift_read(&t, &f, footer_fields);
    if (t.problem)
        return kg_fail(err, KG_EFORMAT, "%s: malformed footer: %s", file->name,
                       t.problem);
    if (f.encrypted)
        return kg_fail(err, KG_EUNSUPPORTED, "%s: it is encrypted", file->name);
    KG_TRY(kg_parquet_read_schema(file, &whole, &f.schema, err));
    return read_groups(file, &whole, &f, err);
}

static uint32_t little32(const unsigned char *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Checks both ends of the file, and sets file->footer_at. */
static kg_status find_footer(struct kg_parquet *file, struct kg_err *err)
{
    const unsigned char *end = file->bytes + file->n;
    uint32_t n;

    if (file->n < MAGIC_BYTES + TAIL_BYTES)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a Parquet file of at least %d bytes, found %zu",
                       file->name, MAGIC_BYTES + TAIL_BYTES, (size_t)file->n);
    if (memcmp(file->bytes, "PAR", 3) != 0)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a Parquet file, found no PAR1 at the start",
                       file->name);
    if (memcmp(end - MAGIC_BYTES, "PARE", MAGIC_BYTES) == 0)
        return kg_fail(err, KG_EUNSUPPORTED, "%s: its footer is encrypted", file->name);
    if (memcmp(end - MAGIC_BYTES, "PAR1", MAGIC_BYTES) != 0)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected PAR1 at the end, found none: the file is cut",
                       file->name);
    n = little32(end - TAIL_BYTES);
    if (n > KG_PARQUET_MAX_FOOTER_BYTES || n > file->n - MAGIC_BYTES - TAIL_BYTES)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a footer inside the file and of at most %d bytes, "
                       "found %u bytes",
                       file->name, KG_PARQUET_MAX_FOOTER_BYTES, n);
    file->footer_at = file->n - TAIL_BYTES - n;
    return KG_OK;
}

/* ---- opening ---- */

static kg_status start(struct kg_parquet *file, const void *bytes, size_t n,
                       const char *where, struct kg_err *err)
{
    file->bytes = bytes;
    file->n = n;
    file->name = kg_mem_strdup(where, err);
    if (!file->name)
        return KG_ENOMEM;
    KG_TRY(find_footer(file, err));
    return read_footer(file, err);
}

kg_status kg_parquet_open_bytes(struct kg_parquet **file, const void *bytes, size_t n,
                                const char *where, struct kg_err *err)
{
    struct kg_parquet *fresh = kg_mem_calloc(1, sizeof *fresh, where, err);

    *file = NULL;
    if (!fresh)
        return KG_ENOMEM;
    kg_status status = start(fresh, bytes, n, where, err);
    if (status != KG_OK) {
        kg_parquet_close(fresh);
        return status;
    }
    *file = fresh;
    return KG_OK;
}

kg_status kg_parquet_open(struct kg_parquet **file, const char *path, struct kg_err *err)
{
    struct kg_map map;
    kg_status status;

    *file = NULL;
    KG_TRY(kg_map_open(&map, path, err));
    status = kg_parquet_open_bytes(file, map.data, (size_t)map.bytes, path, err);
    if (status != KG_OK) {
        kg_map_close(&map);
        return status;
    }
    (*file)->map = map;
    (*file)->owns_map = true;
    return KG_OK;
}

void kg_parquet_close(struct kg_parquet *file)
{
    if (!file)
        return;
    for (size_t i = 0; i < file->n_nodes; i++) {
        kg_mem_free(file->nodes[i].name);
        kg_mem_free(file->nodes[i].path);
    }
    if (file->owns_map)
        kg_map_close(&file->map);
    kg_mem_free(file->nodes);
    kg_mem_free(file->leaves);
    kg_mem_free(file->groups);
    kg_mem_free(file->name);
    kg_mem_free(file);
}

/* ---- the place of a column ---- */

struct chunk {
    struct kg_thrift_bytes file_path;
    int64_t has_meta, type, codec, values, packed_bytes, data_at, dictionary_at;
    int64_t encrypted;
};
static const struct kg_thrift_field chunk_meta_fields[] = {
    {1, KG_THRIFT_AS_INT, offsetof(struct chunk, type), NULL},
    {4, KG_THRIFT_AS_INT, offsetof(struct chunk, codec), NULL},
    {5, KG_THRIFT_AS_INT, offsetof(struct chunk, values), NULL},
    {7, KG_THRIFT_AS_INT, offsetof(struct chunk, packed_bytes), NULL},
    {9, KG_THRIFT_AS_INT, offsetof(struct chunk, data_at), NULL},
    {11, KG_THRIFT_AS_INT, offsetof(struct chunk, dictionary_at), NULL},
    {0},
};
static const struct kg_thrift_field chunk_fields[] = {
    {1, KG_THRIFT_AS_BYTES, offsetof(struct chunk, file_path), NULL},
    {3, KG_THRIFT_AS_STRUCT, offsetof(struct chunk, has_meta), chunk_meta_fields},
    {8, KG_THRIFT_AS_TAG, offsetof(struct chunk, encrypted), NULL},
    {0},
};

static kg_status read_codec(enum kg_codec *codec, int64_t number, struct kg_err *err)
{
    enum { LZO = 3 };
    static const enum kg_codec codecs[] = {
        KG_CODEC_NONE,   KG_CODEC_SNAPPY,     KG_CODEC_GZIP, KG_CODEC_NONE /* LZO */,
        KG_CODEC_BROTLI, KG_CODEC_LZ4_HADOOP, KG_CODEC_ZSTD, KG_CODEC_LZ4};
    const bool known = number >= 0 && number < (int64_t)(sizeof codecs / sizeof *codecs);

    if (!known || number == LZO)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "expected compression none, snappy, gzip, zstd, lz4 or brotli, "
                       "found %s (%lld)",
                       known ? "lzo" : "an unknown one", (long long)number);
    *codec = codecs[number];
    return KG_OK;
}

static kg_status place_chunk(struct kg_parquet_chunk *to, const struct kg_parquet *file,
                             const struct chunk *c, struct kg_err *err)
{
    int64_t at = c->data_at;
    int64_t room = (int64_t)file->footer_at;

    *to = (struct kg_parquet_chunk){.at = file->bytes, .codec = to->codec};
    if (c->values == 0) /* writers give an empty column no offset */
        return KG_OK;
    if (c->dictionary_at > 0 && c->dictionary_at < at)
        at = c->dictionary_at;
    if (at < MAGIC_BYTES || at > room || c->packed_bytes < 0 ||
        c->packed_bytes > room - at)
        return kg_fail(
            err, KG_EFORMAT,
            "expected a column's bytes inside [%d, %lld), found %lld bytes at %lld",
            MAGIC_BYTES, (long long)room, (long long)c->packed_bytes, (long long)at);
    if (c->values < 0)
        return kg_fail(err, KG_EFORMAT, "expected a count of values, found %lld",
                       (long long)c->values);
    to->at = file->bytes + at;
    to->n = (size_t)c->packed_bytes;
    to->values = c->values;
    return KG_OK;
}

static kg_status check_chunk(const struct chunk *c, const struct kg_parquet_node *node,
                             const char *problem, struct kg_err *err)
{
    if (problem)
        return kg_fail(err, KG_EFORMAT, "malformed footer: %s", problem);
    if (c->encrypted)
        return kg_fail(err, KG_EUNSUPPORTED, "it is encrypted");
    if (c->file_path.n > 0)
        return kg_fail(err, KG_EUNSUPPORTED, "its data is in another file");
    if (!c->has_meta)
        return kg_fail(err, KG_EFORMAT, "malformed footer: the column has no metadata");
    if (c->type != (int64_t)node->type)
        return kg_fail(err, KG_EFORMAT,
                       "expected type %d as in the schema, found %lld in the row group",
                       (int)node->type, (long long)c->type);
    return KG_OK;
}

struct kg_thrift kg_parquet_chunks(const struct kg_parquet *file, size_t group)
{
    struct kg_thrift footer = {NULL, file->bytes + file->n - TAIL_BYTES, NULL};

    return kg_thrift_enter(&footer, &file->groups[group].columns);
}

kg_status kg_parquet_next_chunk(struct kg_parquet_chunk *chunk,
                                const struct kg_parquet *file, size_t column,
                                struct kg_thrift *t, struct kg_err *err)
{
    struct chunk c = {.type = -1, .codec = -1, .values = -1, .data_at = -1};

    kg_thrift_read(t, &c, chunk_fields);
    KG_TRY(check_chunk(&c, &file->nodes[file->leaves[column]], t->problem, err));
    KG_TRY(read_codec(&chunk->codec, c.codec, err));
    return place_chunk(chunk, file, &c, err);
}
