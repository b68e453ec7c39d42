/* Values of templates: memory, creation, comparison, members.
 *
 * A value is small and copied; the data it points to is in the rendering's pool and is
 * freed with it. Texts of the caller's messages stay in the JSON tree. Where Python and
 * JSON differ (1 == True, 1 == 1.0, texts and lists have an order, objects have none),
 * values behave as in Python.
 */
#define _GNU_SOURCE /* memmem */
#include "text/jinja_internal.h"
#include "text/unicode.h"

#include <string.h>

/* ---- creating ---- */

struct kg_jv kg_jv_bool(bool b)
{
    return (struct kg_jv){.type = KG_JV_BOOL, .u.truth = b};
}
struct kg_jv kg_jv_int(int64_t i)
{
    return (struct kg_jv){.type = KG_JV_INT, .u.integer = i};
}
struct kg_jv kg_jv_real(double x)
{
    return (struct kg_jv){.type = KG_JV_REAL, .u.real = x};
}
struct kg_jv kg_jv_text(const char *bytes, size_t n)
{
    return (struct kg_jv){.type = KG_JV_TEXT, .u.text = {bytes, n}};
}
struct kg_jv kg_jv_none(void) { return (struct kg_jv){.type = KG_JV_NONE}; }
struct kg_jv kg_jv_undefined(struct kg_jv_text name)
{
    return (struct kg_jv){.type = KG_JV_UNDEFINED, .u.text = name};
}

kg_status kg_jv_list_new(struct kg_jv *out, struct kg_jinja *j, size_t capacity,
                         enum kg_jv_list_kind kind)
{
    struct kg_jv_list *list = kg_pool_alloc(&j->pool, 1, sizeof *list, j->err);

    if (!list)
        return j->err->code;
    list->kind = kind;
    if (capacity) {
        list->items = kg_pool_alloc(&j->pool, capacity, sizeof *list->items, j->err);
        if (!list->items)
            return j->err->code;
        list->capacity = capacity;
    }
    *out = (struct kg_jv){.type = KG_JV_LIST, .u.list = list};
    return kg_jinja_pay(j, capacity);
}

/* Moves n values to an array of `capacity`. The old array stays in the pool. */
static kg_status grow(struct kg_jinja *j, struct kg_jv **items, size_t n, size_t capacity)
{
    struct kg_jv *more = kg_pool_alloc(&j->pool, capacity, sizeof *more, j->err);

    if (!more)
        return j->err->code;
    if (n)
        memcpy(more, *items, n * sizeof *more);
    *items = more;
    return KG_OK;
}

kg_status kg_jv_push(struct kg_jinja *j, struct kg_jv *list, const struct kg_jv *item)
{
    struct kg_jv_list *l = list->u.list;

    KG_TRY(kg_jinja_pay(j, 1));
    if (l->n == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 8;

        KG_TRY(grow(j, &l->items, l->n, capacity));
        l->capacity = capacity;
    }
    l->items[l->n++] = *item;
    return KG_OK;
}

kg_status kg_jv_dict_new(struct kg_jv *out, struct kg_jinja *j)
{
    struct kg_jv_dict *dict = kg_pool_alloc(&j->pool, 1, sizeof *dict, j->err);

    if (!dict)
        return j->err->code;
    *out = (struct kg_jv){.type = KG_JV_DICT, .u.dict = dict};
    return KG_OK;
}

static kg_status dict_push(struct kg_jinja *j, struct kg_jv_dict *d,
                           const struct kg_jv *key, const struct kg_jv *value)
{
    if (d->n == d->capacity) {
        size_t capacity = d->capacity ? 2 * d->capacity : 8;

        KG_TRY(grow(j, &d->keys, d->n, capacity));
        KG_TRY(grow(j, &d->values, d->n, capacity));
        d->capacity = capacity;
    }
    d->keys[d->n] = *key;
    d->values[d->n++] = *value;
    return KG_OK;
}

/* *at <- the index of a key, or d->n if there is none. */
static kg_status dict_find(size_t *at, struct kg_jinja *j, const struct kg_jv_dict *d,
                           const struct kg_jv *key)
{
    bool equal = false;

    KG_TRY(kg_jinja_pay(j, d->n));
    if (key->type == KG_JV_LIST && key->u.list->kind != KG_JV_TUPLE)
        return kg_jinja_fail(j, "expected a key that is not a list, found a list");
    if (key->type == KG_JV_DICT)
        return kg_jinja_fail(j, "expected a key that is not an object, found an object");
    for (*at = 0; *at < d->n; (*at)++) {
        KG_TRY(kg_jv_equal(&equal, j, &d->keys[*at], key));
        if (equal)
            break;
    }
    return KG_OK;
}

kg_status kg_jv_dict_get(const struct kg_jv **found, struct kg_jinja *j,
                         const struct kg_jv_dict *d, const struct kg_jv *key)
{
    size_t at;

    KG_TRY(dict_find(&at, j, d, key));
    *found = at < d->n ? &d->values[at] : NULL;
    return KG_OK;
}

kg_status kg_jv_dict_set(struct kg_jinja *j, struct kg_jv_dict *d,
                         const struct kg_jv *key, const struct kg_jv *value)
{
    size_t at;

    KG_TRY(dict_find(&at, j, d, key));
    if (at == d->n)
        return dict_push(j, d, key, value);
    d->values[at] = *value;
    return KG_OK;
}

static kg_status from_object(struct kg_jv *out, struct kg_jinja *j,
                             const struct kg_json *v)
{
    KG_TRY(kg_jv_dict_new(out, j));
    for (size_t i = 0; i < kg_json_size(v); i++) {
        const char *name = kg_json_key_at(v, i);
        struct kg_jv key = kg_jv_text(name, strlen(name));
        struct kg_jv value;

        KG_TRY(kg_jv_from_json(&value, j, kg_json_value_at(v, i)));
        KG_TRY(dict_push(j, out->u.dict, &key, &value)); /* the keys are distinct */
    }
    return KG_OK;
}

kg_status kg_jv_from_json(struct kg_jv *out, struct kg_jinja *j, const struct kg_json *v)
{
    size_t n;

    KG_TRY(kg_jinja_pay(j, 1));
    switch (kg_json_type(v)) {
    case KG_JSON_BOOL:
        *out = kg_jv_bool(kg_json_bool(v, false));
        return KG_OK;
    case KG_JSON_INT:
        *out = kg_jv_int(kg_json_int(v, 0));
        return KG_OK;
    case KG_JSON_REAL:
        *out = kg_jv_real(kg_json_real(v, 0));
        return KG_OK;
    case KG_JSON_STRING:
        *out = kg_jv_text(kg_json_text(v, &n), 0);
        out->u.text.n = n;
        return KG_OK;
    case KG_JSON_ARRAY:
        KG_TRY(kg_jv_list_new(out, j, kg_json_size(v), KG_JV_PLAIN));
        for (size_t i = 0; i < kg_json_size(v); i++)
            KG_TRY(kg_jv_from_json(&out->u.list->items[out->u.list->n++], j,
                                   kg_json_at(v, i)));
        return KG_OK;
    case KG_JSON_OBJECT:
        return from_object(out, j, v);
    default:
        *out = kg_jv_none();
        return KG_OK;
    }
}

/* ---- types, truth, numbers ---- */

const char *kg_jv_type_name(const struct kg_jv *v)
{
    static const char *const lists[] = {
        "list", "tuple", "range", "dict_keys", "dict_values", "dict_items", "generator"};
    static const char *const names[] = {"undefined", "None", "bool", "int",  "float",
                                        "str",       NULL,   "dict", "loop", "callable"};

    return v->type == KG_JV_LIST ? lists[v->u.list->kind] : names[v->type];
}

bool kg_jv_is_text(const struct kg_jv *v, const char *text)
{
    return v->type == KG_JV_TEXT && v->u.text.n == strlen(text) &&
           memcmp(v->u.text.bytes, text, v->u.text.n) == 0;
}

bool kg_jv_truth(const struct kg_jv *v)
{
    switch (v->type) {
    case KG_JV_UNDEFINED:
    case KG_JV_NONE:
        return false;
    case KG_JV_BOOL:
        return v->u.truth;
    case KG_JV_INT:
        return v->u.integer != 0;
    case KG_JV_REAL:
        return v->u.real != 0;
    case KG_JV_TEXT:
        return v->u.text.n > 0;
    case KG_JV_LIST:
        return v->u.list->n > 0 || v->u.list->kind == KG_JV_GENERATOR;
    case KG_JV_DICT:
        return v->u.dict->n > 0 || v->u.dict->is_namespace;
    default:
        return true;
    }
}

bool kg_jv_is_number(const struct kg_jv *v)
{
    return v->type == KG_JV_BOOL || v->type == KG_JV_INT || v->type == KG_JV_REAL;
}

bool kg_jv_as_int(int64_t *i, const struct kg_jv *v)
{
    if (v->type == KG_JV_INT)
        *i = v->u.integer;
    else if (v->type == KG_JV_BOOL)
        *i = v->u.truth;
    else
        return false;
    return true;
}

bool kg_jv_as_real(double *x, const struct kg_jv *v)
{
    int64_t i;

    if (v->type == KG_JV_REAL)
        *x = v->u.real;
    else if (kg_jv_as_int(&i, v))
        *x = (double)i;
    else
        return false;
    return true;
}

/* ---- comparing ---- */

static kg_status list_has(bool *in, struct kg_jinja *j, const struct kg_jv_list *l,
                          const struct kg_jv *v)
{
    *in = false;
    for (size_t i = 0; !*in && i < l->n; i++)
        KG_TRY(kg_jv_equal(in, j, &l->items[i], v));
    return KG_OK;
}

/* Views of keys and items compare as sets. */
static kg_status sets_equal(bool *equal, struct kg_jinja *j, const struct kg_jv_list *a,
                            const struct kg_jv_list *b)
{
    *equal = a->n == b->n;
    for (size_t i = 0; *equal && i < a->n; i++)
        KG_TRY(list_has(equal, j, b, &a->items[i]));
    return KG_OK;
}

static kg_status lists_equal(bool *equal, struct kg_jinja *j, const struct kg_jv_list *a,
                             const struct kg_jv_list *b)
{
    if (a->kind == b->kind && (a->kind == KG_JV_KEYS || a->kind == KG_JV_ITEMS))
        return sets_equal(equal, j, a, b);
    *equal = a->n == b->n && a->kind == b->kind && a->kind <= KG_JV_RANGE;
    for (size_t i = 0; *equal && i < a->n; i++)
        KG_TRY(kg_jv_equal(equal, j, &a->items[i], &b->items[i]));
    return KG_OK;
}

static kg_status dicts_equal(bool *equal, struct kg_jinja *j, const struct kg_jv_dict *a,
                             const struct kg_jv_dict *b)
{
    *equal = a->n == b->n && !a->is_namespace && !b->is_namespace;
    for (size_t i = 0; *equal && i < a->n; i++) {
        const struct kg_jv *other;

        KG_TRY(kg_jv_dict_get(&other, j, b, &a->keys[i]));
        *equal = other != NULL;
        if (other)
            KG_TRY(kg_jv_equal(equal, j, &a->values[i], other));
    }
    return KG_OK;
}

static kg_status same_type_equal(bool *equal, struct kg_jinja *j, const struct kg_jv *a,
                                 const struct kg_jv *b)
{
    switch (a->type) {
    case KG_JV_TEXT:
        KG_TRY(kg_jinja_pay(j, a->u.text.n / 64));
        *equal = a->u.text.n == b->u.text.n &&
                 memcmp(a->u.text.bytes, b->u.text.bytes, a->u.text.n) == 0;
        return KG_OK;
    case KG_JV_LIST:
        *equal = a->u.list == b->u.list;
        return *equal ? KG_OK : lists_equal(equal, j, a->u.list, b->u.list);
    case KG_JV_DICT:
        *equal = a->u.dict == b->u.dict;
        return *equal ? KG_OK : dicts_equal(equal, j, a->u.dict, b->u.dict);
    case KG_JV_LOOP:
        *equal = a->u.loop == b->u.loop;
        return KG_OK;
    case KG_JV_CALLABLE:
        *equal = a->u.callable == b->u.callable;
        return KG_OK;
    default:
        *equal = true; /* none, undefined */
        return KG_OK;
    }
}

kg_status kg_jv_equal(bool *equal, struct kg_jinja *j, const struct kg_jv *a,
                      const struct kg_jv *b)
{
    kg_status status;
    double x;
    double y;

    *equal = false;
    if (a->type == KG_JV_INT && b->type == KG_JV_INT)
        *equal = a->u.integer == b->u.integer;
    else if (kg_jv_as_real(&x, a) && kg_jv_as_real(&y, b))
        *equal = x == y;
    else if (a->type == b->type) {
        KG_TRY(kg_jinja_deeper(j));
        status = same_type_equal(equal, j, a, b);
        j->depth--;
        return status;
    }
    return kg_jinja_pay(j, 1);
}

/* As Python orders lists: by the first members that differ; else the shorter is less. */
static kg_status compare_lists(int *sign, struct kg_jinja *j, const struct kg_jv_list *a,
                               const struct kg_jv_list *b)
{
    bool equal = true;
    size_t i = 0;

    for (; i < a->n && i < b->n; i++) {
        KG_TRY(kg_jv_equal(&equal, j, &a->items[i], &b->items[i]));
        if (!equal)
            return kg_jv_compare(sign, j, &a->items[i], &b->items[i]);
    }
    *sign = a->n < b->n ? -1 : a->n > b->n;
    return KG_OK;
}

kg_status kg_jv_compare(int *sign, struct kg_jinja *j, const struct kg_jv *a,
                        const struct kg_jv *b)
{
    double x;
    double y;

    KG_TRY(kg_jinja_pay(j, 1));
    if (a->type == KG_JV_INT && b->type == KG_JV_INT) {
        *sign = a->u.integer < b->u.integer ? -1 : a->u.integer > b->u.integer;
        return KG_OK;
    }
    if (kg_jv_as_real(&x, a) && kg_jv_as_real(&y, b)) {
        *sign = x < y ? -1 : x > y;
        return KG_OK;
    }
    if (a->type == KG_JV_TEXT && b->type == KG_JV_TEXT) {
        size_t n = a->u.text.n < b->u.text.n ? a->u.text.n : b->u.text.n;

        KG_TRY(kg_jinja_pay(j, n / 64));
        *sign = memcmp(a->u.text.bytes, b->u.text.bytes, n);
        if (*sign == 0)
            *sign = a->u.text.n < b->u.text.n ? -1 : a->u.text.n > b->u.text.n;
        return KG_OK;
    }
    if (a->type != KG_JV_LIST || b->type != KG_JV_LIST ||
        a->u.list->kind != b->u.list->kind || a->u.list->kind > KG_JV_TUPLE)
        return kg_jinja_fail(j, "expected two comparable values, found %s and %s",
                             kg_jv_type_name(a), kg_jv_type_name(b));
    KG_TRY(kg_jinja_deeper(j));
    kg_status status = compare_lists(sign, j, a->u.list, b->u.list);
    j->depth--;
    return status;
}

int64_t kg_jv_find(struct kg_jv_text t, struct kg_jv_text part, size_t from)
{
    if (part.n > t.n || from > t.n - part.n)
        return -1;
    if (part.n == 0)
        return (int64_t)from;
    const char *at = memmem(t.bytes + from, t.n - from, part.bytes, part.n);
    return at ? at - t.bytes : -1;
}

kg_status kg_jv_contains(bool *in, struct kg_jinja *j, const struct kg_jv *whole,
                         const struct kg_jv *part)
{
    const struct kg_jv_list *items;

    *in = false;
    if (whole->type == KG_JV_TEXT) {
        if (part->type != KG_JV_TEXT)
            return kg_jinja_fail(j, "expected text before 'in', found %s",
                                 kg_jv_type_name(part));
        KG_TRY(kg_jinja_pay(j, whole->u.text.n / 64));
        *in = kg_jv_find(whole->u.text, part->u.text, 0) >= 0;
        return KG_OK;
    }
    if (whole->type == KG_JV_DICT && !whole->u.dict->is_namespace) {
        const struct kg_jv *found;

        KG_TRY(kg_jv_dict_get(&found, j, whole->u.dict, part));
        *in = found != NULL;
        return KG_OK;
    }
    KG_TRY(kg_jv_iterate(&items, j, whole));
    return list_has(in, j, items, part);
}

/* ---- members ---- */

static kg_status characters(struct kg_jv *out, struct kg_jinja *j, struct kg_jv_text t)
{
    uint32_t cp;

    KG_TRY(kg_jv_list_new(out, j, kg_jv_chars(t), KG_JV_PLAIN));
    for (size_t at = 0; at < t.n;) {
        size_t k = kg_utf8_decode(&cp, t.bytes + at);
        struct kg_jv one = kg_jv_text(t.bytes + at, k);

        KG_TRY(kg_jv_push(j, out, &one));
        at += k;
    }
    return KG_OK;
}

kg_status kg_jv_iterate(const struct kg_jv_list **items, struct kg_jinja *j,
                        const struct kg_jv *v)
{
    static const struct kg_jv_list none;
    struct kg_jv list;

    if (v->type == KG_JV_UNDEFINED) {
        *items = &none;
        return KG_OK;
    }
    if (v->type == KG_JV_LIST) {
        struct kg_jv_list *l = v->u.list;

        *items = l->kind == KG_JV_GENERATOR && l->consumed ? &none : l;
        l->consumed = true;
        return KG_OK;
    }
    if (v->type == KG_JV_TEXT)
        KG_TRY(characters(&list, j, v->u.text));
    else if (v->type == KG_JV_DICT && !v->u.dict->is_namespace) {
        KG_TRY(kg_jv_list_new(&list, j, v->u.dict->n, KG_JV_KEYS));
        for (size_t i = 0; i < v->u.dict->n; i++)
            KG_TRY(kg_jv_push(j, &list, &v->u.dict->keys[i]));
    } else
        return kg_jinja_fail(j, "expected a value with members, found %s",
                             kg_jv_type_name(v));
    *items = list.u.list;
    return KG_OK;
}

kg_status kg_jv_length(size_t *n, struct kg_jinja *j, const struct kg_jv *v)
{
    *n = 0;
    if (v->type == KG_JV_TEXT) {
        KG_TRY(kg_jinja_pay(j, v->u.text.n / 64));
        *n = kg_jv_chars(v->u.text);
    } else if (v->type == KG_JV_LIST && v->u.list->kind != KG_JV_GENERATOR)
        *n = v->u.list->n;
    else if (v->type == KG_JV_DICT && !v->u.dict->is_namespace)
        *n = v->u.dict->n;
    else if (v->type == KG_JV_LOOP)
        *n = v->u.loop->items->n;
    else if (v->type != KG_JV_UNDEFINED)
        return kg_jinja_fail(j, "expected a value with a length, found %s",
                             kg_jv_type_name(v));
    return KG_OK;
}

/* ---- text ---- */

size_t kg_jv_chars(struct kg_jv_text t)
{
    size_t n = 0;

    for (size_t i = 0; i < t.n; i++)
        n += ((unsigned char)t.bytes[i] & 0xC0) != 0x80;
    return n;
}

size_t kg_jv_line(size_t *end, struct kg_jv_text t)
{
    uint32_t cp;
    size_t k;

    for (size_t n = 0; n < t.n; n += k) {
        k = kg_utf8_decode(&cp, t.bytes + n);
        if ((cp < '\n' || cp > '\r') && (cp < 0x1C || cp > 0x1E) && cp != 0x85 &&
            cp != 0x2028 && cp != 0x2029)
            continue;
        *end = n + k + (cp == '\r' && n + 1 < t.n && t.bytes[n + 1] == '\n');
        return n;
    }
    *end = t.n;
    return t.n;
}

bool kg_jinja_is_space(uint32_t cp)
{
    return (cp >= 0x1C && cp <= 0x1F) || kg_unicode_is_space(cp);
}

/* Whether the character of k bytes is one of chars (NULL: is white space). */
static bool is_stripped(const char *at, size_t k, const struct kg_jv_text *chars)
{
    uint32_t cp;

    if (chars)
        return kg_jv_find(*chars, (struct kg_jv_text){at, k}, 0) >= 0;
    kg_utf8_decode(&cp, at);
    return kg_jinja_is_space(cp);
}

struct kg_jv_text kg_jv_strip(struct kg_jv_text t, const struct kg_jv_text *chars,
                              int sides)
{
    uint32_t cp;

    while ((sides & 1) && t.n) {
        size_t k = kg_utf8_decode(&cp, t.bytes);

        if (!is_stripped(t.bytes, k, chars))
            break;
        t.bytes += k;
        t.n -= k;
    }
    while ((sides & 2) && t.n) {
        size_t k = 1;

        while (((unsigned char)t.bytes[t.n - k] & 0xC0) == 0x80)
            k++;
        if (!is_stripped(t.bytes + t.n - k, k, chars))
            break;
        t.n -= k;
    }
    return t;
}
