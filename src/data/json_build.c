/* Builds JSON documents: memory in a pool, and a stack of the values whose array or
 * object is still open.
 *
 * The number of members of a list is known only when it is closed. So values wait on the
 * stack, and closing moves those of the list, in one block, into the document; the list
 * itself stays on the stack as a member of the enclosing list.
 */
#define _GNU_SOURCE /* qsort_r */
#include "data/json_internal.h"

#include "base/file.h"
#include "base/mem.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEPT_BYTES = 2 << 20, /* memory kept for the next document */
    FIRST_MEMBERS = 64,
    SCAN_MEMBERS = 12, /* with more members a sorted index beats a scan */
};

void *kg_json_alloc(struct kg_json_doc *doc, size_t n, struct kg_err *err)
{
    doc->pool.name = "JSON document";
    return kg_pool_alloc(&doc->pool, n, 1, err);
}

void kg_json_release(struct kg_json_doc *doc)
{
    kg_pool_release(&doc->pool);
    memset(doc, 0, sizeof *doc);
}

/* Keeps the newest chunk for the next document, unless it is larger than KEPT_BYTES. */
static void empty(struct kg_json_doc *doc)
{
    kg_pool_empty(&doc->pool, KEPT_BYTES);
    *doc = (struct kg_json_doc){.pool = doc->pool};
}

/* ---- the stack ---- */

kg_status kg_json_builder_create(struct kg_json_builder **b, size_t max_bytes,
                                 struct kg_err *err)
{
    KG_TRY(kg_mem_new(b, 1, sizeof **b, "JSON document", err));
    (*b)->max_bytes = max_bytes;
    return KG_OK;
}

void kg_json_builder_free(struct kg_json_builder *b)
{
    if (!b)
        return;
    kg_mem_free(b->stack);
    kg_mem_free(b);
}

static kg_status check_room(const struct kg_json_builder *b, size_t bytes,
                            struct kg_err *err)
{
    if (bytes <= b->max_bytes - b->bytes)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "expected a record of at most %zu bytes (strings, keys and %d bytes "
                   "per value), found a larger one",
                   b->max_bytes, KG_JSON_VALUE_BYTES);
}

/* Counts bytes that will be added to the document. */
static kg_status count(struct kg_json_builder *b, size_t bytes, struct kg_err *err)
{
    KG_TRY(check_room(b, bytes, err));
    b->bytes += bytes;
    return KG_OK;
}

/* Whether a value may come now, with a key in an object and without one elsewhere. */
static bool is_expected(const struct kg_json_builder *b)
{
    if (b->depth == 0)
        return b->n == 0 && !b->key;
    return (b->stack[b->open[b->depth - 1]].value.type == KG_JSON_OBJECT) == !!b->key;
}

/* Pushes the next value.   *v: the caller fills it before the next call */
static kg_status push(struct kg_json **v, struct kg_json_builder *b,
                      enum kg_json_type type, struct kg_err *err)
{
    assert(is_expected(b));
    KG_TRY(count(b, KG_JSON_VALUE_BYTES, err));
    if (b->n == b->capacity)
        KG_TRY(kg_mem_grow(&b->stack, &b->capacity, b->n + 1, sizeof *b->stack,
                           UINT32_MAX, "JSON document", err));
    struct kg_json_member *m = &b->stack[b->n++];
    m->key = b->key;
    m->place = b->place;
    m->value.type = type;
    m->value.n = 0;
    b->key = NULL;
    *v = &m->value;
    return KG_OK;
}

/* Copies text into the document, with a NUL after it. */
static kg_status copy_text(const char **copy, struct kg_json_builder *b, const char *text,
                           size_t n, struct kg_err *err)
{
    KG_TRY(check_room(b, n, err));
    char *bytes = kg_json_alloc(b->doc, n + 1, err);
    if (!bytes)
        return KG_ENOMEM;
    if (n > 0)
        memcpy(bytes, text, n);
    bytes[n] = 0;
    *copy = bytes;
    return KG_OK;
}

/* ---- a document ---- */

kg_status kg_json_begin(struct kg_json_builder *b, struct kg_json_doc *doc,
                        const char *where, struct kg_err *err)
{
    size_t n = strlen(where) + 1;

    if (b->capacity == 0)
        KG_TRY(kg_mem_grow(&b->stack, &b->capacity, FIRST_MEMBERS, sizeof *b->stack,
                           UINT32_MAX, "JSON document", err));
    empty(doc);
    doc->where = kg_json_alloc(doc, n, err);
    if (!doc->where)
        return KG_ENOMEM;
    memcpy(doc->where, where, n);
    b->doc = doc;
    b->n = 0;
    b->depth = 0;
    b->key = NULL;
    b->bytes = 0;
    return KG_OK;
}

kg_status kg_json_end(struct kg_json_builder *b, struct kg_err *err)
{
    struct kg_json *root = kg_json_alloc(b->doc, sizeof *root, err);

    assert(b->depth == 0 && b->n == 1);
    if (!root)
        return KG_ENOMEM;
    *root = b->stack[0].value;
    b->doc->root = root;
    return KG_OK;
}

/* ---- values ---- */

kg_status kg_json_take_key(struct kg_json_builder *b, const char *key, size_t n,
                           struct kg_err *err)
{
    KG_TRY(count(b, n, err));
    b->key = key;
    return KG_OK;
}

kg_status kg_json_add_key(struct kg_json_builder *b, const char *key, size_t n,
                          struct kg_err *err)
{
    if (memchr(key, 0, n))
        return kg_fail(err, KG_EFORMAT,
                       "expected a key without NUL, found one after '%.100s'", key);
    KG_TRY(copy_text(&key, b, key, n, err));
    return kg_json_take_key(b, key, n, err);
}

kg_status kg_json_add_null(struct kg_json_builder *b, struct kg_err *err)
{
    struct kg_json *v;

    return push(&v, b, KG_JSON_NULL, err);
}

kg_status kg_json_add_bool(struct kg_json_builder *b, bool truth, struct kg_err *err)
{
    struct kg_json *v;

    KG_TRY(push(&v, b, KG_JSON_BOOL, err));
    v->u.truth = truth;
    return KG_OK;
}

kg_status kg_json_add_int(struct kg_json_builder *b, int64_t x, struct kg_err *err)
{
    struct kg_json *v;

    KG_TRY(push(&v, b, KG_JSON_INT, err));
    v->u.integer = x;
    return KG_OK;
}

kg_status kg_json_add_real(struct kg_json_builder *b, double x, struct kg_err *err)
{
    struct kg_json *v;

    assert(isfinite(x));
    KG_TRY(push(&v, b, KG_JSON_REAL, err));
    v->u.real = x;
    return KG_OK;
}

kg_status kg_json_take_text(struct kg_json_builder *b, const char *text, size_t n,
                            struct kg_err *err)
{
    struct kg_json *v;

    KG_TRY(count(b, n, err));
    KG_TRY(push(&v, b, KG_JSON_STRING, err));
    v->u.text.bytes = text;
    v->u.text.len = n;
    return KG_OK;
}

kg_status kg_json_add_text(struct kg_json_builder *b, const char *text, size_t n,
                           struct kg_err *err)
{
    KG_TRY(copy_text(&text, b, text, n, err));
    return kg_json_take_text(b, text, n, err);
}

/* ---- lists ---- */

kg_status kg_json_open(struct kg_json_builder *b, enum kg_json_type type,
                       struct kg_err *err)
{
    struct kg_json *v;

    assert(type == KG_JSON_ARRAY || type == KG_JSON_OBJECT);
    if (b->depth == KG_JSON_MAX_DEPTH)
        return kg_fail(err, KG_EFORMAT,
                       "expected JSON nested at most %d deep, found more",
                       KG_JSON_MAX_DEPTH);
    KG_TRY(push(&v, b, type, err));
    b->open[b->depth++] = b->n - 1;
    return KG_OK;
}

static kg_status duplicate(struct kg_json_builder *b, const struct kg_json_member *second,
                           struct kg_err *err)
{
    b->place = second->place;
    return kg_fail(err, KG_EFORMAT,
                   "expected every key of an object once, found a duplicate of '%.100s'",
                   second->key);
}

static kg_status compare_all(struct kg_json_builder *b, const struct kg_json_member *m,
                             size_t n, struct kg_err *err)
{
    for (size_t i = 1; i < n; i++)
        for (size_t j = 0; j < i; j++)
            if (m[i].key[0] == m[j].key[0] && strcmp(m[i].key, m[j].key) == 0)
                return duplicate(b, &m[i], err);
    return KG_OK;
}

/* Equal keys keep the order of the text, so that the second one is reported. */
static int compare_keys(const void *a, const void *b, void *keys)
{
    const char *const *key = keys;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    int order = strcmp(key[i], key[j]);

    return order ? order : (i > j) - (i < j);
}

static kg_status sort_keys(struct kg_json *v, struct kg_json_builder *b,
                           const struct kg_json_member *m, struct kg_err *err)
{
    uint32_t *sorted = kg_json_alloc(b->doc, v->n * sizeof *sorted, err);

    if (!sorted)
        return KG_ENOMEM;
    for (uint32_t i = 0; i < v->n; i++)
        sorted[i] = i;
    qsort_r(sorted, v->n, sizeof *sorted, compare_keys, v->u.list.keys);
    for (uint32_t i = 1; i < v->n; i++)
        if (strcmp(m[sorted[i - 1]].key, m[sorted[i]].key) == 0)
            return duplicate(b, &m[sorted[i]], err);
    v->u.list.sorted = sorted;
    return KG_OK;
}

static kg_status take_keys(struct kg_json *v, struct kg_json_builder *b,
                           const struct kg_json_member *m, struct kg_err *err)
{
    v->u.list.keys = kg_json_alloc(b->doc, v->n * sizeof *v->u.list.keys, err);
    if (!v->u.list.keys)
        return KG_ENOMEM;
    for (uint32_t i = 0; i < v->n; i++)
        v->u.list.keys[i] = m[i].key;
    return v->n <= SCAN_MEMBERS ? compare_all(b, m, v->n, err) : sort_keys(v, b, m, err);
}

kg_status kg_json_close(struct kg_json_builder *b, struct kg_err *err)
{
    struct kg_json_member *list = &b->stack[b->open[b->depth - 1]];
    const struct kg_json_member *members = list + 1;
    struct kg_json *v = &list->value;

    assert(b->depth > 0 && !b->key);
    v->n = (uint32_t)(b->stack + b->n - members);
    v->u.list.keys = NULL;
    v->u.list.sorted = NULL;
    v->u.list.items = kg_json_alloc(b->doc, v->n * sizeof *v->u.list.items, err);
    if (!v->u.list.items)
        return KG_ENOMEM;
    for (uint32_t i = 0; i < v->n; i++)
        v->u.list.items[i] = members[i].value;
    if (v->type == KG_JSON_OBJECT)
        KG_TRY(take_keys(v, b, members, err));
    b->n -= v->n;
    b->depth--;
    return KG_OK;
}

/* ---- documents of text ---- */

kg_status kg_json_parse_next(struct kg_json_doc *doc, struct kg_json_builder *b,
                             const char *text, size_t n, const char *where,
                             struct kg_err *err)
{
    kg_status status;

    KG_TRY_GOTO(out, kg_json_begin(b, doc, where, err));
    KG_TRY_GOTO(out, kg_json_add_parsed(b, n ? text : "", n, err));
    KG_TRY_GOTO(out, kg_json_end(b, err));
out:
    if (status == KG_OK)
        return KG_OK;
    kg_json_release(doc);
    return kg_err_prefix(err, "%s", where);
}

static kg_status parse(struct kg_json_doc *doc, const char *text, size_t n,
                       const char *where, bool wide_integers, struct kg_err *err)
{
    struct kg_json_builder *b;

    memset(doc, 0, sizeof *doc);
    KG_TRY(kg_json_builder_create(&b, SIZE_MAX, err));
    b->wide_integers = wide_integers;
    kg_status status = kg_json_parse_next(doc, b, text, n, where, err);
    kg_json_builder_free(b);
    return status;
}

kg_status kg_json_parse(struct kg_json_doc *doc, const char *text, size_t n,
                        const char *where, struct kg_err *err)
{
    return parse(doc, text, n, where, false, err);
}

kg_status kg_json_read(struct kg_json_doc *doc, const char *path, uint64_t max_bytes,
                       struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status;

    memset(doc, 0, sizeof *doc);
    KG_TRY_GOTO(out, kg_file_read(&text, path, max_bytes, err));
    KG_TRY_GOTO(out, parse(doc, kg_str_text(&text), text.len, path, true, err));
out:
    kg_str_release(&text);
    return status;
}
