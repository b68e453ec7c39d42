/* JSON over jansson: parse into a pool, then a flat tree of our own that look-ups walk.
 *
 * jansson checks the grammar and decodes strings and numbers. Its values are not what
 * callers see: they have no indexed access to the members of an object, and freeing
 * hundreds of thousands of them one by one costs more than parsing. So everything,
 * jansson's blocks included, comes from a pool that belongs to the document and goes away
 * in one piece, and a tree of arrays points into it.
 *
 * It is not a DOM: a document never changes after parsing.
 */
#define _GNU_SOURCE /* qsort_r */
#include "data/json.h"

#include "base/file.h"
#include "base/mem.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_DEPTH = 64,
    FIRST_CHUNK_BYTES = 4 << 10,
    LAST_CHUNK_BYTES = 1 << 20,
    POOL_ALIGN = 16,
    SCAN_MEMBERS = 12, /* up to this many a scan beats the sorted index */
};

struct kg_json {
    enum kg_json_type type;
    uint32_t n; /* array and object: members */
    union {
        bool truth;
        int64_t integer;
        double real;
        struct {
            const char *bytes; /* in the pool, NUL terminated */
            size_t len;
        } text;
        struct {
            struct kg_json *items; /* (n) */
            const char **keys;     /* (n) object only, in the order of the text */
            uint32_t *sorted;      /* (n) members by key, or NULL for small objects */
        } list;
    } u;
};

/* ---- the pool ---- */

struct chunk {
    struct chunk *next;
    size_t used;
    size_t capacity; /* bytes behind the header */
};
struct kg_json_pool {
    struct chunk *head;
    struct kg_err err; /* of the last allocation that failed */
};

static size_t round_up(size_t n)
{
    return (n + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN;
}

static struct chunk *chunk_add(struct kg_json_pool *pool, size_t need)
{
    size_t header = round_up(sizeof(struct chunk));
    size_t capacity = pool->head ? 2 * pool->head->capacity : FIRST_CHUNK_BYTES;
    struct chunk *chunk;

    capacity = capacity > LAST_CHUNK_BYTES ? LAST_CHUNK_BYTES : capacity;
    capacity = capacity < need ? need : capacity;
    chunk = kg_mem_calloc(1, header + capacity, "JSON document", &pool->err);
    if (!chunk)
        return NULL;
    chunk->capacity = capacity;
    chunk->next = pool->head;
    pool->head = chunk;
    return chunk;
}

static void *pool_alloc(struct kg_json_pool *pool, size_t n)
{
    struct chunk *chunk = pool->head;
    void *block;

    if (n > SIZE_MAX / 4)
        return NULL;
    n = round_up(n ? n : 1);
    if (!chunk || chunk->capacity - chunk->used < n)
        chunk = chunk_add(pool, n);
    if (!chunk)
        return NULL;
    block = (char *)chunk + round_up(sizeof *chunk) + chunk->used;
    chunk->used += n;
    return block;
}

static void pool_free(struct kg_json_pool *pool)
{
    while (pool && pool->head) {
        struct chunk *next = pool->head->next;

        kg_mem_free(pool->head);
        pool->head = next;
    }
    kg_mem_free(pool);
}

/* jansson's allocator is one for the process. While a thread parses, its blocks come from
 * the document's pool; at any other time (another user of jansson in the process) they
 * are malloc's. */
static _Thread_local struct kg_json_pool *parsing;
static pthread_once_t hooks_once = PTHREAD_ONCE_INIT;

static void *hook_malloc(size_t n)
{
    return parsing ? pool_alloc(parsing, n) : malloc(n);
}

static void hook_free(void *block)
{
    if (!parsing)
        free(block);
}

static void hooks_install(void)
{
    json_set_alloc_funcs(hook_malloc, hook_free);
    json_object_seed(0);
}

/* ---- from jansson's values to the tree ---- */

static bool convert(struct kg_json *v, json_t *from, struct kg_json_pool *pool);

static bool convert_array(struct kg_json *v, json_t *from, struct kg_json_pool *pool)
{
    v->type = KG_JSON_ARRAY;
    v->n = (uint32_t)json_array_size(from);
    v->u.list.items = pool_alloc(pool, v->n * sizeof *v->u.list.items);
    if (!v->u.list.items)
        return false;
    for (uint32_t i = 0; i < v->n; i++) {
        if (!convert(&v->u.list.items[i], json_array_get(from, i), pool))
            return false;
    }
    return true;
}

static int compare_keys(const void *a, const void *b, void *keys)
{
    const char *const *key = keys;

    return strcmp(key[*(const uint32_t *)a], key[*(const uint32_t *)b]);
}

static bool sort_keys(struct kg_json *v, struct kg_json_pool *pool)
{
    v->u.list.sorted = NULL;
    if (v->n <= SCAN_MEMBERS)
        return true;
    v->u.list.sorted = pool_alloc(pool, v->n * sizeof *v->u.list.sorted);
    if (!v->u.list.sorted)
        return false;
    for (uint32_t i = 0; i < v->n; i++)
        v->u.list.sorted[i] = i;
    qsort_r(v->u.list.sorted, v->n, sizeof *v->u.list.sorted, compare_keys,
            v->u.list.keys);
    return true;
}

static bool convert_object(struct kg_json *v, json_t *from, struct kg_json_pool *pool)
{
    uint32_t i = 0;

    v->type = KG_JSON_OBJECT;
    v->n = (uint32_t)json_object_size(from);
    v->u.list.items = pool_alloc(pool, v->n * sizeof *v->u.list.items);
    v->u.list.keys = pool_alloc(pool, v->n * sizeof *v->u.list.keys);
    if (!v->u.list.items || !v->u.list.keys)
        return false;
    /* jansson iterates in the order of insertion */
    for (void *it = json_object_iter(from); it;
         it = json_object_iter_next(from, it), i++) {
        v->u.list.keys[i] = json_object_iter_key(it);
        if (!convert(&v->u.list.items[i], json_object_iter_value(it), pool))
            return false;
    }
    return sort_keys(v, pool);
}

/* v is fully written.   returns false when the pool is out of memory */
static bool convert(struct kg_json *v, json_t *from, struct kg_json_pool *pool)
{
    memset(v, 0, sizeof *v);
    switch (json_typeof(from)) {
    case JSON_OBJECT:
        return convert_object(v, from, pool);
    case JSON_ARRAY:
        return convert_array(v, from, pool);
    case JSON_STRING:
        v->type = KG_JSON_STRING;
        v->u.text.bytes = json_string_value(from);
        v->u.text.len = json_string_length(from);
        return true;
    case JSON_INTEGER:
        v->type = KG_JSON_INT;
        v->u.integer = json_integer_value(from);
        return true;
    case JSON_REAL:
        v->type = KG_JSON_REAL;
        v->u.real = json_real_value(from);
        return true;
    case JSON_TRUE:
    case JSON_FALSE:
        v->type = KG_JSON_BOOL;
        v->u.truth = json_is_true(from);
        return true;
    case JSON_NULL:
        break;
    }
    v->type = KG_JSON_NULL;
    return true;
}

/* ---- parsing ---- */

/* jansson recurses up to 2,048 levels; a document has at most MAX_DEPTH, counted before
 * it is parsed. */
static kg_status check_depth(const char *text, size_t n, const char *where,
                             struct kg_err *err)
{
    bool in_string = false;
    int depth = 0;
    int64_t line = 1;

    for (size_t i = 0; i < n; i++) {
        char c = text[i];

        line += c == '\n';
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
            continue;
        }
        in_string = c == '"';
        depth += (c == '[' || c == '{') - (c == ']' || c == '}');
        if (depth > MAX_DEPTH)
            return kg_fail(
                err, KG_EFORMAT,
                "%s: line %lld: expected JSON nested at most %d deep, found more", where,
                (long long)line, MAX_DEPTH);
    }
    return KG_OK;
}

static kg_status report(const json_error_t *error, const char *where, struct kg_err *err)
{
    char what[JSON_ERROR_TEXT_LENGTH];
    size_t n = strnlen(error->text, sizeof what - 1);

    /* jansson quotes the text near the error: keep the message on one line */
    for (size_t i = 0; i < n; i++)
        what[i] = (unsigned char)error->text[i] < ' ' ? ' ' : error->text[i];
    what[n] = 0;
    return kg_fail(err, KG_EFORMAT,
                   "%s: line %d column %d: expected JSON, found an error: %s", where,
                   error->line, error->column, what);
}

static kg_status parse_into(struct kg_json_doc *doc, const char *text, size_t n,
                            struct kg_err *err)
{
    size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL;
    struct kg_json_pool *pool = doc->pool;
    json_error_t error;
    json_t *root;

    pthread_once(&hooks_once, hooks_install);
    parsing = pool;
    root = json_loadb(text, n, flags, &error);
    parsing = NULL;
    if (!root && pool->err.code == KG_ENOMEM)
        return kg_fail(err, KG_ENOMEM, "%s: %s", doc->where, pool->err.message);
    if (!root)
        return report(&error, doc->where, err);
    doc->root = pool_alloc(pool, sizeof *doc->root);
    if (!doc->root || !convert(doc->root, root, pool))
        return kg_fail(err, KG_ENOMEM, "%s: %s", doc->where, pool->err.message);
    return KG_OK;
}

kg_status kg_json_parse(struct kg_json_doc *doc, const char *text, size_t n,
                        const char *where, struct kg_err *err)
{
    kg_status status;

    memset(doc, 0, sizeof *doc);
    KG_TRY(check_depth(text, n, where, err));
    doc->where = kg_mem_strdup(where, err);
    doc->pool = doc->where ? kg_mem_calloc(1, sizeof *doc->pool, "JSON document", err)
                           : NULL;
    status = doc->pool ? parse_into(doc, n ? text : "", n, err) : err->code;
    if (status != KG_OK)
        kg_json_release(doc);
    return status;
}

kg_status kg_json_read(struct kg_json_doc *doc, const char *path, uint64_t max_bytes,
                       struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status;

    memset(doc, 0, sizeof *doc);
    KG_TRY_GOTO(out, kg_file_read(&text, path, max_bytes, err));
    KG_TRY_GOTO(out, kg_json_parse(doc, kg_str_text(&text), text.len, path, err));
out:
    kg_str_release(&text);
    return status;
}

void kg_json_release(struct kg_json_doc *doc)
{
    pool_free(doc->pool);
    kg_mem_free(doc->where);
    memset(doc, 0, sizeof *doc);
}

/* ---- looking ---- */

enum kg_json_type kg_json_type(const struct kg_json *v)
{
    return v ? v->type : KG_JSON_NULL;
}

static const char *type_name(enum kg_json_type type)
{
    static const char *const names[] = {
        [KG_JSON_NULL] = "null",     [KG_JSON_BOOL] = "bool",
        [KG_JSON_INT] = "integer",   [KG_JSON_REAL] = "number",
        [KG_JSON_STRING] = "string", [KG_JSON_ARRAY] = "array",
        [KG_JSON_OBJECT] = "object",
    };

    return names[type];
}

const char *kg_json_type_name(const struct kg_json *v)
{
    return type_name(kg_json_type(v));
}

static const struct kg_json *find_sorted(const struct kg_json *object, const char *key)
{
    uint32_t low = 0;
    uint32_t high = object->n;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint32_t i = object->u.list.sorted[middle];
        int order = strcmp(key, object->u.list.keys[i]);

        if (order == 0)
            return &object->u.list.items[i];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const struct kg_json *kg_json_get(const struct kg_json *object, const char *key)
{
    if (kg_json_type(object) != KG_JSON_OBJECT)
        return NULL;
    if (object->u.list.sorted)
        return find_sorted(object, key);
    for (uint32_t i = 0; i < object->n; i++) {
        if (strcmp(object->u.list.keys[i], key) == 0)
            return &object->u.list.items[i];
    }
    return NULL;
}

size_t kg_json_size(const struct kg_json *v)
{
    enum kg_json_type type = kg_json_type(v);

    return type == KG_JSON_ARRAY || type == KG_JSON_OBJECT ? v->n : 0;
}

const struct kg_json *kg_json_at(const struct kg_json *array, size_t i)
{
    if (kg_json_type(array) != KG_JSON_ARRAY || i >= array->n)
        return NULL;
    return &array->u.list.items[i];
}

const char *kg_json_key_at(const struct kg_json *object, size_t i)
{
    if (kg_json_type(object) != KG_JSON_OBJECT || i >= object->n)
        return NULL;
    return object->u.list.keys[i];
}

const struct kg_json *kg_json_value_at(const struct kg_json *object, size_t i)
{
    if (kg_json_type(object) != KG_JSON_OBJECT || i >= object->n)
        return NULL;
    return &object->u.list.items[i];
}

const char *kg_json_text(const struct kg_json *v, size_t *len)
{
    if (len)
        *len = 0;
    if (kg_json_type(v) != KG_JSON_STRING)
        return NULL;
    if (len)
        *len = v->u.text.len;
    return v->u.text.bytes;
}

bool kg_json_is_number(const struct kg_json *v)
{
    return kg_json_type(v) == KG_JSON_INT || kg_json_type(v) == KG_JSON_REAL;
}

double kg_json_real(const struct kg_json *v, double fallback)
{
    if (kg_json_type(v) == KG_JSON_INT)
        return (double)v->u.integer;
    return kg_json_type(v) == KG_JSON_REAL ? v->u.real : fallback;
}

int64_t kg_json_int(const struct kg_json *v, int64_t fallback)
{
    return kg_json_type(v) == KG_JSON_INT ? v->u.integer : fallback;
}

bool kg_json_bool(const struct kg_json *v, bool fallback)
{
    return kg_json_type(v) == KG_JSON_BOOL ? v->u.truth : fallback;
}

/* ---- demanding ---- */

kg_status kg_json_need(const struct kg_json **out, const struct kg_json_doc *doc,
                       const struct kg_json *object, const char *key,
                       enum kg_json_type type, struct kg_err *err)
{
    const struct kg_json *v = kg_json_get(object, key);

    if (kg_json_type(object) != KG_JSON_OBJECT)
        return kg_fail(err, KG_EFORMAT, "%s: expected an object with key '%s', found %s",
                       doc->where, key, kg_json_type_name(object));
    if (v && (v->type == type || (type == KG_JSON_REAL && v->type == KG_JSON_INT))) {
        *out = v;
        return KG_OK;
    }
    return kg_fail(err, KG_EFORMAT, "%s: key '%s': expected %s, found %s", doc->where,
                   key, type_name(type), v ? kg_json_type_name(v) : "no such key");
}

kg_status kg_json_need_int(int64_t *out, const struct kg_json_doc *doc,
                           const struct kg_json *object, const char *key, int64_t min,
                           int64_t max, struct kg_err *err)
{
    const struct kg_json *v;

    KG_TRY(kg_json_need(&v, doc, object, key, KG_JSON_INT, err));
    if (v->u.integer < min || v->u.integer > max)
        return kg_fail(err, KG_EFORMAT,
                       "%s: key '%s': expected an integer of %lld..%lld, found %lld",
                       doc->where, key, (long long)min, (long long)max,
                       (long long)v->u.integer);
    *out = v->u.integer;
    return KG_OK;
}

kg_status kg_json_need_text(const char **out, const struct kg_json_doc *doc,
                            const struct kg_json *object, const char *key,
                            struct kg_err *err)
{
    const struct kg_json *v;

    KG_TRY(kg_json_need(&v, doc, object, key, KG_JSON_STRING, err));
    /* the caller sees a C string: a NUL inside would cut it short in silence */
    if (strlen(v->u.text.bytes) != v->u.text.len)
        return kg_fail(err, KG_EFORMAT,
                       "%s: key '%s': expected text without NUL, found one at byte %zu",
                       doc->where, key, strlen(v->u.text.bytes));
    *out = v->u.text.bytes;
    return KG_OK;
}

/* ---- writing ---- */

/* Bytes of the UTF-8 sequence at text (n bytes left), or 0 where it is not valid. */
static size_t utf8_length(const unsigned char *text, size_t n)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char lead = text[0];
    size_t length = lead < 0x80   ? 1
                    : lead < 0xc0 ? 0
                    : lead < 0xe0 ? 2
                    : lead < 0xf0 ? 3
                                  : 4;
    uint32_t code;

    if (length == 1)
        return 1;
    if (length == 0 || lead > 0xf4 || length > n)
        return 0;
    code = lead & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (text[i] & 0x3f);
    }
    if (code < least[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        return 0;
    return length;
}

static kg_status put_escape(struct kg_str *out, unsigned char c, struct kg_err *err)
{
    static const char plain[] = "\"\\\b\f\n\r\t";
    static const char letter[] = "\"\\bfnrt";
    const char *found = c ? strchr(plain, c) : NULL;
    char pair[2] = {'\\', 0};

    if (!found)
        return kg_str_printf(out, err, "\\u%04x", c);
    pair[1] = letter[found - plain];
    return kg_str_append(out, pair, 2, err);
}

kg_status kg_json_put_string(struct kg_str *out, const char *text, size_t n,
                             struct kg_err *err)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t start = 0; /* of the run that passes through as it is */
    size_t i = 0;

    KG_TRY(kg_str_putc(out, '"', err));
    while (i < n) {
        size_t length = utf8_length(bytes + i, n - i);

        if (length > 0 && bytes[i] >= ' ' && bytes[i] != '"' && bytes[i] != '\\') {
            i += length;
            continue;
        }
        KG_TRY(kg_str_append(out, text + start, i - start, err));
        if (length == 0)
            KG_TRY(kg_str_puts(out, "\xef\xbf\xbd", err));
        else
            KG_TRY(put_escape(out, bytes[i], err));
        start = ++i;
    }
    KG_TRY(kg_str_append(out, text + start, n - start, err));
    return kg_str_putc(out, '"', err);
}

/* What JSON has no number for, and -0, which readers take for the integer 0.   NULL for
 * other numbers */
static const char *special_number(double x)
{
    if (isnan(x))
        return "\"nan\"";
    if (isinf(x))
        return x > 0 ? "\"inf\"" : "\"-inf\"";
    return x == 0 ? (signbit(x) ? "-0.0" : "0") : NULL;
}

kg_status kg_json_put_float(struct kg_str *out, float x, struct kg_err *err)
{
    const char *special = special_number(x);
    char digits[32];

    if (special)
        return kg_str_puts(out, special, err);
    /* %g drops trailing zeros, so the first precision that reads back gives the shortest
     * text */
    for (int precision = 6; precision <= 9; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, (double)x);
        /* by way of double too, as most readers do: that rounds twice */
        if ((float)strtod(digits, NULL) == x && strtof(digits, NULL) == x)
            break;
    }
    return kg_str_puts(out, digits, err);
}

kg_status kg_json_put_double(struct kg_str *out, double x, struct kg_err *err)
{
    const char *special = special_number(x);
    char digits[40];

    if (special)
        return kg_str_puts(out, special, err);
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, x);
        if (strtod(digits, NULL) == x)
            break;
    }
    return kg_str_puts(out, digits, err);
}

kg_status kg_json_put_ints(struct kg_str *out, const int32_t *ids, size_t n,
                           struct kg_err *err)
{
    char digits[16];

    KG_TRY(kg_str_putc(out, '[', err));
    for (size_t i = 0; i < n; i++) {
        int len = snprintf(digits, sizeof digits, "%s%d", i ? "," : "", (int)ids[i]);

        KG_TRY(kg_str_append(out, digits, (size_t)len, err));
    }
    return kg_str_putc(out, ']', err);
}

static kg_status put_members(struct kg_str *out, const struct kg_json *v,
                             struct kg_err *err)
{
    bool object = v->type == KG_JSON_OBJECT;

    KG_TRY(kg_str_putc(out, object ? '{' : '[', err));
    for (uint32_t i = 0; i < v->n; i++) {
        if (i > 0)
            KG_TRY(kg_str_putc(out, ',', err));
        if (object) {
            const char *key = v->u.list.keys[i];

            KG_TRY(kg_json_put_string(out, key, strlen(key), err));
            KG_TRY(kg_str_putc(out, ':', err));
        }
        KG_TRY(kg_json_put_value(out, &v->u.list.items[i], err));
    }
    return kg_str_putc(out, object ? '}' : ']', err);
}

/* A real that happens to be whole keeps a point, so that it reads back as a real. */
static kg_status put_real(struct kg_str *out, double x, struct kg_err *err)
{
    size_t start = out->len;

    KG_TRY(kg_json_put_double(out, x, err));
    if (strpbrk(kg_str_text(out) + start, ".en\""))
        return KG_OK;
    return kg_str_puts(out, ".0", err);
}

kg_status kg_json_put_value(struct kg_str *out, const struct kg_json *v,
                            struct kg_err *err)
{
    switch (kg_json_type(v)) {
    case KG_JSON_NULL:
        return kg_str_puts(out, "null", err);
    case KG_JSON_BOOL:
        return kg_str_puts(out, v->u.truth ? "true" : "false", err);
    case KG_JSON_INT:
        return kg_str_printf(out, err, "%lld", (long long)v->u.integer);
    case KG_JSON_REAL:
        return put_real(out, v->u.real, err);
    case KG_JSON_STRING:
        return kg_json_put_string(out, v->u.text.bytes, v->u.text.len, err);
    case KG_JSON_ARRAY:
    case KG_JSON_OBJECT:
        break;
    }
    return put_members(out, v, err);
}
