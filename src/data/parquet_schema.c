/* Parquet's schema: a list of elements, parents first, checked and made into a tree.
 *
 * This also decides what a node means: the format has two ways to state it (converted
 * types, logical types), and three ways to write a list. Levels are computed here and
 * never read from the file.
 */
#include "data/parquet_internal.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <stddef.h>
#include <string.h>

enum { MAX_ELEMENTS = 4 * KG_PARQUET_MAX_COLUMNS, MAX_NAME_BYTES = 1024 };

/* The format's numbers. */
enum {
    CONVERTED_MAP = 1,
    CONVERTED_MAP_KEY_VALUE = 2,
    CONVERTED_LIST = 3,
    CONVERTED_DECIMAL = 5,
    CONVERTED_DATE = 6,
    CONVERTED_TIME_MILLIS = 7,
    CONVERTED_TIME_MICROS = 8,
    CONVERTED_TIMESTAMP_MILLIS = 9,
    CONVERTED_TIMESTAMP_MICROS = 10,
    CONVERTED_UINT_8 = 11,
    CONVERTED_UINT_64 = 14,
};

struct element {
    int64_t type, length, repetition, n_children, converted, scale, precision;
    struct kg_thrift_bytes name;
    int64_t is_map, is_list, is_decimal, is_date, is_time, is_timestamp, is_integer;
    int64_t is_uuid, is_half;
    int64_t utc, unit, int_bits, int_signed, logical_scale, logical_precision;
};
#define AT(member) offsetof(struct element, member)
static const struct kg_thrift_field unit_fields[] = {
    {1, KG_THRIFT_AS_TAG, AT(unit), NULL},
    {2, KG_THRIFT_AS_TAG, AT(unit), NULL},
    {3, KG_THRIFT_AS_TAG, AT(unit), NULL},
    {0},
};
static const struct kg_thrift_field decimal_fields[] = {
    {1, KG_THRIFT_AS_INT, AT(logical_scale), NULL},
    {2, KG_THRIFT_AS_INT, AT(logical_precision), NULL},
    {0},
};
static const struct kg_thrift_field time_fields[] = {
    {1, KG_THRIFT_AS_BOOL, AT(utc), NULL},
    {2, KG_THRIFT_AS_STRUCT, 0, unit_fields},
    {0},
};
static const struct kg_thrift_field integer_fields[] = {
    {1, KG_THRIFT_AS_INT, AT(int_bits), NULL},
    {2, KG_THRIFT_AS_BOOL, AT(int_signed), NULL},
    {0},
};
static const struct kg_thrift_field logical_fields[] = {
    {2, KG_THRIFT_AS_TAG, AT(is_map), NULL},
    {3, KG_THRIFT_AS_TAG, AT(is_list), NULL},
    {5, KG_THRIFT_AS_STRUCT, AT(is_decimal), decimal_fields},
    {6, KG_THRIFT_AS_TAG, AT(is_date), NULL},
    {7, KG_THRIFT_AS_STRUCT, AT(is_time), time_fields},
    {8, KG_THRIFT_AS_STRUCT, AT(is_timestamp), time_fields},
    {10, KG_THRIFT_AS_STRUCT, AT(is_integer), integer_fields},
    {14, KG_THRIFT_AS_TAG, AT(is_uuid), NULL},
    {15, KG_THRIFT_AS_TAG, AT(is_half), NULL},
    {0},
};
static const struct kg_thrift_field element_fields[] = {
    {1, KG_THRIFT_AS_INT, AT(type), NULL},
    {2, KG_THRIFT_AS_INT, AT(length), NULL},
    {3, KG_THRIFT_AS_INT, AT(repetition), NULL},
    {4, KG_THRIFT_AS_BYTES, AT(name), NULL},
    {5, KG_THRIFT_AS_INT, AT(n_children), NULL},
    {6, KG_THRIFT_AS_INT, AT(converted), NULL},
    {7, KG_THRIFT_AS_INT, AT(scale), NULL},
    {8, KG_THRIFT_AS_INT, AT(precision), NULL},
    {10, KG_THRIFT_AS_STRUCT, 0, logical_fields},
    {0},
};
#undef AT

/* ---- what a node means ---- */

static bool has_time_unit(const struct element *e, int64_t is, int64_t millis)
{
    return is || e->converted == millis || e->converted == millis + 1;
}

/* Decimal digits of a second's fraction. */
static int digits_of(const struct element *e, int64_t is, int64_t millis)
{
    if (is)
        return e->unit == 1 ? 3 : e->unit == 2 ? 6 : 9;
    return e->converted == millis ? 3 : 6;
}

static void mean_time(struct kg_parquet_node *node, const struct element *e)
{
    if (has_time_unit(e, e->is_timestamp, CONVERTED_TIMESTAMP_MILLIS)) {
        node->kind = KG_PARQUET_AS_TIMESTAMP;
        node->scale = digits_of(e, e->is_timestamp, CONVERTED_TIMESTAMP_MILLIS);
        node->utc = e->is_timestamp ? e->utc : true;
    } else if (has_time_unit(e, e->is_time, CONVERTED_TIME_MILLIS)) {
        node->kind = KG_PARQUET_AS_TIME;
        node->scale = digits_of(e, e->is_time, CONVERTED_TIME_MILLIS);
    } else if (e->is_date || e->converted == CONVERTED_DATE) {
        node->kind = KG_PARQUET_AS_DATE;
    }
}

static void mean_number(struct kg_parquet_node *node, const struct element *e)
{
    bool old = e->converted >= CONVERTED_UINT_8 && e->converted <= CONVERTED_UINT_64;

    if ((e->is_integer && !e->int_signed) || (!e->is_integer && old)) {
        node->kind = KG_PARQUET_AS_UNSIGNED;
        node->bits = e->is_integer ? (int)e->int_bits
                                   : 8 << (e->converted - CONVERTED_UINT_8);
    } else if (e->is_decimal || e->converted == CONVERTED_DECIMAL) {
        node->kind = KG_PARQUET_AS_DECIMAL;
        node->scale = (int)(e->is_decimal ? e->logical_scale : e->scale);
    }
}

static bool is_int(const struct kg_parquet_node *node)
{
    return node->type == KG_PARQUET_INT32 || node->type == KG_PARQUET_INT64;
}

static bool is_texty(const struct kg_parquet_node *node)
{
    return node->type == KG_PARQUET_BYTES || node->type == KG_PARQUET_FIXED;
}

/* Whether the meaning fits the type that stores it. */
static bool fits(const struct kg_parquet_node *node)
{
    switch (node->kind) {
    case KG_PARQUET_AS_UNSIGNED:
        return is_int(node) && node->bits >= 1 && node->bits <= 64;
    case KG_PARQUET_AS_DECIMAL:
        return (is_int(node) || is_texty(node)) && node->scale >= 0 && node->scale <= 76;
    case KG_PARQUET_AS_DATE:
        return node->type == KG_PARQUET_INT32;
    case KG_PARQUET_AS_TIME:
        return is_int(node);
    case KG_PARQUET_AS_TIMESTAMP:
        return node->type == KG_PARQUET_INT64;
    case KG_PARQUET_AS_UUID:
        return node->type == KG_PARQUET_FIXED && node->bytes == 16;
    case KG_PARQUET_AS_HALF:
        return node->type == KG_PARQUET_FIXED && node->bytes == 2;
    default:
        return true;
    }
}

static void mean_leaf(struct kg_parquet_node *node, const struct element *e)
{
    node->kind = KG_PARQUET_AS_PLAIN;
    if (e->is_uuid)
        node->kind = KG_PARQUET_AS_UUID;
    else if (e->is_half)
        node->kind = KG_PARQUET_AS_HALF;
    else if (is_int(node) || is_texty(node))
        mean_number(node, e);
    if (node->kind == KG_PARQUET_AS_PLAIN && is_int(node))
        mean_time(node, e);
}

static void mean_group(struct kg_parquet_node *node, const struct element *e)
{
    node->kind = KG_PARQUET_AS_STRUCT;
    if (e->is_list || e->converted == CONVERTED_LIST)
        node->kind = KG_PARQUET_AS_LIST;
    /* some writers mark the group of a map as MAP_KEY_VALUE */
    else if (e->is_map || e->converted == CONVERTED_MAP ||
             (e->converted == CONVERTED_MAP_KEY_VALUE &&
              node->repetition != KG_PARQUET_REPEATED))
        node->kind = KG_PARQUET_AS_MAP;
}

/* ---- names ---- */

static kg_status read_name(char **name, const struct kg_parquet *file, size_t i,
                           const struct kg_thrift_bytes *from, struct kg_err *err)
{
    size_t n = from->n;

    if (n > MAX_NAME_BYTES || (n > 0 && (memchr(from->data, 0, n) ||
                                         !kg_utf8_is_valid((const char *)from->data, n))))
        return kg_fail(err, KG_EFORMAT,
                       "%s: schema element %zu: expected a name in UTF-8 of at most %d "
                       "bytes, found %zu bytes, too many or not UTF-8",
                       file->name, i, MAX_NAME_BYTES, n);
    KG_TRY(kg_mem_new(name, n + 1, 1, "schema", err));
    if (n > 0)
        memcpy(*name, from->data, n);
    return KG_OK;
}

/* ---- elements to nodes ---- */

static kg_status bad_element(const struct kg_parquet *file, size_t i, const char *what,
                             int64_t found, struct kg_err *err)
{
    return kg_fail(err, KG_EFORMAT,
                   "%s: schema element %zu '%s': expected %s, found %lld", file->name, i,
                   file->nodes[i].name ? file->nodes[i].name : "", what,
                   (long long)found);
}

static kg_status fill_leaf(struct kg_parquet *file, size_t i, const struct element *e,
                           struct kg_err *err)
{
    struct kg_parquet_node *node = &file->nodes[i];

    if (e->type < KG_PARQUET_BOOL || e->type > KG_PARQUET_FIXED)
        return bad_element(file, i, "a type from 0 to 7, or children", e->type, err);
    node->type = (enum kg_parquet_type)e->type;
    if (node->type == KG_PARQUET_FIXED && (e->length < 1 || e->length > 1 << 20))
        return bad_element(file, i, "a length from 1 to 1048576", e->length, err);
    node->bytes = node->type == KG_PARQUET_FIXED ? (int)e->length : 12;
    mean_leaf(node, e);
    if (!fits(node))
        return bad_element(file, i, "a logical type that fits its physical type", e->type,
                           err);
    return KG_OK;
}

static kg_status fill_node(struct kg_parquet *file, size_t i, const struct element *e,
                           struct kg_err *err)
{
    struct kg_parquet_node *node = &file->nodes[i];

    KG_TRY(read_name(&node->name, file, i, &e->name, err));
    if (e->repetition < KG_PARQUET_REQUIRED || e->repetition > KG_PARQUET_REPEATED)
        return bad_element(file, i, "a repetition from 0 to 2", e->repetition, err);
    node->repetition = i ? (enum kg_parquet_repetition)e->repetition
                         : KG_PARQUET_REQUIRED;
    if (e->n_children < 0 || e->n_children > (int64_t)file->n_nodes)
        return bad_element(file, i, "a count of children", e->n_children, err);
    node->n_children = (size_t)e->n_children;
    if (e->n_children == 0)
        return fill_leaf(file, i, e, err);
    mean_group(node, e);
    return KG_OK;
}

/* ---- the tree ---- */

static kg_status make_path(char **path, const char *parent, const char *name,
                           struct kg_err *err)
{
    struct kg_str s = {0};
    kg_status status = kg_str_printf(&s, err, "%s%s%s", parent, *parent ? "." : "", name);

    if (status == KG_OK) {
        *path = kg_str_take(&s, err);
        status = *path ? KG_OK : err->code;
    }
    kg_str_release(&s);
    return status;
}

static kg_status add_leaf(struct kg_parquet *file, size_t i, struct kg_err *err)
{
    if (file->n_leaves >= KG_PARQUET_MAX_COLUMNS)
        return bad_element(file, i, "at most 4096 columns", (int64_t)file->n_leaves + 1,
                           err);
    file->leaves[file->n_leaves++] = i;
    file->nodes[i].n_leaves = 1;
    file->nodes[i].end = i + 1;
    return KG_OK;
}

/* Sets levels and extent of node i and all nodes below it.   levels: the parent's */
static kg_status build(struct kg_parquet *file, size_t i, const char *parent,
                       const int levels[2], int depth, struct kg_err *err)
{
    struct kg_parquet_node *node = &file->nodes[i];
    size_t next = i + 1;

    if (depth > KG_PARQUET_MAX_DEPTH)
        return bad_element(file, i, "nesting of at most 24 levels", depth, err);
    node->rep = levels[0] + (node->repetition == KG_PARQUET_REPEATED);
    node->def = levels[1] + (node->repetition != KG_PARQUET_REQUIRED);
    node->leaf = file->n_leaves;
    KG_TRY(make_path(&node->path, parent, i ? node->name : "", err));
    if (node->n_children == 0)
        return add_leaf(file, i, err);
    for (size_t c = 0; c < node->n_children; c++) {
        if (next >= file->n_nodes)
            return bad_element(file, i, "no more children than elements that follow it",
                               (int64_t)node->n_children, err);
        KG_TRY(build(file, next, node->path, (const int[2]){node->rep, node->def},
                     depth + 1, err));
        next = file->nodes[next].end;
    }
    node->end = next;
    node->n_leaves = file->n_leaves - node->leaf;
    return KG_OK;
}

/* A list needs one repeated child; a map, one that has a key and a value. Any other such
 * node is read as a struct. */
static void settle(struct kg_parquet *file, size_t i)
{
    struct kg_parquet_node *node = &file->nodes[i];
    const struct kg_parquet_node *child = node + 1;

    if (node->kind != KG_PARQUET_AS_LIST && node->kind != KG_PARQUET_AS_MAP)
        return;
    if (node->n_children != 1 || child->repetition != KG_PARQUET_REPEATED ||
        (node->kind == KG_PARQUET_AS_MAP && child->n_children != 2))
        node->kind = KG_PARQUET_AS_STRUCT;
}

kg_status kg_parquet_read_schema(struct kg_parquet *file, const struct kg_thrift *footer,
                                 const struct kg_thrift_list *elements,
                                 struct kg_err *err)
{
    struct kg_thrift t = kg_thrift_enter(footer, elements);
    size_t n = elements->n;

    if (n < 2 || n > MAX_ELEMENTS || elements->type != KG_THRIFT_STRUCT)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a schema of 2 to %d elements, found %zu", file->name,
                       MAX_ELEMENTS, n);
    file->nodes = kg_mem_calloc(n, sizeof *file->nodes, "schema", err);
    file->leaves = file->nodes ? kg_mem_calloc(n, sizeof *file->leaves, "schema", err)
                               : NULL;
    if (!file->leaves)
        return KG_ENOMEM;
    file->n_nodes = n;
    for (size_t i = 0; i < n; i++) {
        struct element e = {.type = -1, .converted = -1, .int_signed = 1};

        kg_thrift_read(&t, &e, element_fields);
        if (t.problem)
            return kg_fail(err, KG_EFORMAT, "%s: schema element %zu: malformed: %s",
                           file->name, i, t.problem);
        KG_TRY(fill_node(file, i, &e, err));
    }
    KG_TRY(build(file, 0, "", (const int[2]){0, 0}, 0, err));
    if (file->nodes[0].end != n)
        return bad_element(file, 0, "one tree of all elements",
                           (int64_t)file->nodes[0].end, err);
    for (size_t i = 1; i < n; i++)
        settle(file, i);
    return KG_OK;
}
