/* JSON documents as they come about: memory in a pool, and a stack of the values whose
 * array or object is still open.
 *
 * How many members a list has is known when it is closed. So values wait on the stack,
 * and closing moves those of the list, in one block, into the document; what stays on the
 * stack is the list itself, as a member of the one around it.
 */
#define _GNU_SOURCE /* qsort_r */
#include "data/json_internal.h"

#include "base/mem.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEPT_BYTES = 2 << 20, /* for the next document */
    FIRST_MEMBERS = 64,
    SCAN_MEMBERS = 12, /* up to this many a scan beats the sorted index */
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

void kg_json_empty(struct kg_json_doc *doc)
{
    kg_pool_empty(&doc->pool, KEPT_BYTES);
    *doc = (struct kg_json_doc){.pool = doc->pool};
}

/* ---- the stack ---- */

struct member {
    struct kg_json value;
    const char *key; /* in the pool; NULL outside of objects */
    size_t key_bytes;
};
struct kg_json_builder {
    struct kg_json_doc *doc;    /* borrowed: the one that has begun */
    struct kg_json_doc scratch; /* owned */
    struct member *stack;       /* owned (capacity) */
    size_t n, capacity;
    size_t open[KG_JSON_MAX_DEPTH]; /* where the open lists are in the stack */
    int depth;
    const char *key; /* of the next value */
    size_t key_bytes;
    size_t bytes, max_bytes;
};

kg_status kg_json_builder_create(struct kg_json_builder **b, size_t max_bytes,
                                 struct kg_err *err)
{
    *b = kg_mem_calloc(1, sizeof **b, "JSON document", err);
    if (!*b)
        return KG_ENOMEM;
    (*b)->max_bytes = max_bytes;
    return KG_OK;
}

void kg_json_builder_free(struct kg_json_builder *b)
{
    if (!b)
        return;
    kg_json_release(&b->scratch);
    kg_mem_free(b->stack);
    kg_mem_free(b);
}

static kg_status check_room(const struct kg_json_builder *b, size_t bytes,
                            struct kg_err *err)
{
    if (bytes <= b->max_bytes - b->bytes)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "expected a record of at most %zu bytes (texts, keys, %d for every "
                   "value), found a larger one",
                   b->max_bytes, KG_JSON_VALUE_BYTES);
}

kg_status kg_json_expect(const struct kg_json_builder *b, size_t values,
                         struct kg_err *err)
{
    return check_room(b, values * KG_JSON_VALUE_BYTES, err);
}

/* Bytes that the document is to grow by. */
static kg_status count(struct kg_json_builder *b, size_t bytes, struct kg_err *err)
{
    KG_TRY(check_room(b, bytes, err));
    b->bytes += bytes;
    return KG_OK;
}

/* Is a value expected now, and if it needs a key, is that here? */
static bool is_expected(const struct kg_json_builder *b)
{
    if (b->depth == 0)
        return b->n == 0 && !b->key;
    return (b->stack[b->open[b->depth - 1]].value.type == KG_JSON_OBJECT) == !!b->key;
}

/* The next value.   *v: to be filled before the next call */
static kg_status push(struct kg_json **v, struct kg_json_builder *b,
                      enum kg_json_type type, struct kg_err *err)
{
    struct member *m;

    assert(is_expected(b));
    KG_TRY(count(b, KG_JSON_VALUE_BYTES, err));
    if (b->n == b->capacity)
        KG_TRY(kg_mem_grow(&b->stack, &b->capacity, b->n + 1, sizeof *b->stack,
                           UINT32_MAX, "JSON document", err));
    m = &b->stack[b->n++];
    m->key = b->key;
    m->key_bytes = b->key_bytes;
    m->value.type = type;
    m->value.n = 0;
    b->key = NULL;
    *v = &m->value;
    return KG_OK;
}

/* A copy in the document, with a NUL behind it.   returns NULL with err set */
static const char *copy_text(struct kg_json_builder *b, const char *text, size_t n,
                             struct kg_err *err)
{
    char *copy = kg_json_alloc(b->doc, n + 1, err);

    if (!copy)
        return NULL;
    if (n > 0)
        memcpy(copy, text, n);
    copy[n] = 0;
    return copy;
}

/* ---- a document ---- */

struct kg_json_doc *kg_json_scratch(struct kg_json_builder *b) { return &b->scratch; }

kg_status kg_json_begin(struct kg_json_builder *b, struct kg_json_doc *doc,
                        const char *where, struct kg_err *err)
{
    size_t n = strlen(where) + 1;

    if (b->capacity == 0)
        KG_TRY(kg_mem_grow(&b->stack, &b->capacity, FIRST_MEMBERS, sizeof *b->stack,
                           UINT32_MAX, "JSON document", err));
    kg_json_empty(doc);
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

kg_status kg_json_add_key(struct kg_json_builder *b, const char *key, size_t n,
                          struct kg_err *err)
{
    if (memchr(key, 0, n))
        return kg_fail(err, KG_EFORMAT,
                       "expected a key without NUL, found one behind '%.100s'", key);
    KG_TRY(count(b, n, err));
    b->key = copy_text(b, key, n, err);
    b->key_bytes = n;
    return b->key ? KG_OK : KG_ENOMEM;
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

kg_status kg_json_add_text(struct kg_json_builder *b, const char *text, size_t n,
                           struct kg_err *err)
{
    struct kg_json *v;

    KG_TRY(count(b, n, err));
    KG_TRY(push(&v, b, KG_JSON_STRING, err));
    v->u.text.bytes = copy_text(b, text, n, err);
    v->u.text.len = n;
    return v->u.text.bytes ? KG_OK : KG_ENOMEM;
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

static kg_status duplicate(const char *key, struct kg_err *err)
{
    return kg_fail(err, KG_EFORMAT,
                   "expected every key of an object once, found a duplicate of '%.100s'",
                   key);
}

static kg_status compare_all(const struct member *m, size_t n, struct kg_err *err)
{
    for (size_t i = 1; i < n; i++)
        for (size_t j = 0; j < i; j++)
            if (m[i].key_bytes == m[j].key_bytes &&
                memcmp(m[i].key, m[j].key, m[i].key_bytes) == 0)
                return duplicate(m[i].key, err);
    return KG_OK;
}

static int compare_keys(const void *a, const void *b, void *keys)
{
    const char *const *key = keys;

    return strcmp(key[*(const uint32_t *)a], key[*(const uint32_t *)b]);
}

static kg_status sort_keys(struct kg_json *v, struct kg_json_doc *doc, struct kg_err *err)
{
    uint32_t *sorted = kg_json_alloc(doc, v->n * sizeof *sorted, err);

    if (!sorted)
        return KG_ENOMEM;
    for (uint32_t i = 0; i < v->n; i++)
        sorted[i] = i;
    qsort_r(sorted, v->n, sizeof *sorted, compare_keys, v->u.list.keys);
    for (uint32_t i = 1; i < v->n; i++)
        if (compare_keys(&sorted[i - 1], &sorted[i], v->u.list.keys) == 0)
            return duplicate(v->u.list.keys[sorted[i]], err);
    v->u.list.sorted = sorted;
    return KG_OK;
}

static kg_status take_keys(struct kg_json *v, const struct member *m,
                           struct kg_json_doc *doc, struct kg_err *err)
{
    v->u.list.keys = kg_json_alloc(doc, v->n * sizeof *v->u.list.keys, err);
    if (!v->u.list.keys)
        return KG_ENOMEM;
    for (uint32_t i = 0; i < v->n; i++)
        v->u.list.keys[i] = m[i].key;
    return v->n <= SCAN_MEMBERS ? compare_all(m, v->n, err) : sort_keys(v, doc, err);
}

kg_status kg_json_close(struct kg_json_builder *b, struct kg_err *err)
{
    struct member *list = &b->stack[b->open[b->depth - 1]];
    const struct member *members = list + 1;
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
        KG_TRY(take_keys(v, members, b->doc, err));
    b->n -= v->n;
    b->depth--;
    return KG_OK;
}
