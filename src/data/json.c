/* JSON documents as their readers see them, and values as text.
 *
 * A document is a flat tree: the members of a list are contiguous, so that each is
 * reached by its index, and a long object has an index of its keys. It is not a DOM: a
 * complete document never changes.
 */
#include "data/json_internal.h"

#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 8 };

/* ---- lookup ---- */

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

/* ---- required members ---- */

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
    /* the caller gets a C string, which a NUL inside would silently cut short */
    if (strlen(v->u.text.bytes) != v->u.text.len)
        return kg_fail(err, KG_EFORMAT,
                       "%s: key '%s': expected text without NUL, found one at byte %zu",
                       doc->where, key, strlen(v->u.text.bytes));
    *out = v->u.text.bytes;
    return KG_OK;
}

/* ---- writing ---- */

static kg_status put_escape(struct kg_str *out, unsigned char c, struct kg_err *err)
{
    static const char plain[] = "\"\\\b\f\n\r\t";
    static const char letter[] = "\"\\bfnrt";
    const char *found = kg_char_find(plain, (char)c);
    char pair[2] = {'\\', 0};

    if (!found)
        return kg_str_printf(out, err, "\\u%04x", c);
    pair[1] = letter[found - plain];
    return kg_str_append(out, pair, 2, err);
}

/* How many of eight bytes, from the first on, are ASCII and need no escape in a string:
 * no quote, backslash or control character. A borrow can mark a wrong byte only after a
 * byte that is rightly marked, so the first mark is right. */
static size_t plain_bytes(uint64_t eight)
{
    const uint64_t ones = UINT64_C(0x0101010101010101);
    uint64_t quote = (eight ^ ones * '"') - ones;
    uint64_t backslash = (eight ^ ones * '\\') - ones;
    uint64_t control = eight - ones * ' ';
    uint64_t marks = (quote | backslash | control | eight) & ones * 0x80;

    return marks ? (size_t)__builtin_ctzll(marks) / 8 : WORD_BYTES;
}

size_t kg_json_plain_prefix(const char *text, size_t n)
{
    size_t plain = WORD_BYTES;
    size_t i = 0;
    uint64_t eight;

    while (plain == WORD_BYTES && n - i >= WORD_BYTES) {
        memcpy(&eight, text + i, sizeof eight);
        plain = plain_bytes(eight);
        i += plain;
    }
    return i;
}

kg_status kg_json_put_string(struct kg_str *out, const char *text, size_t n,
                             struct kg_err *err)
{
    size_t start = 0; /* start of the bytes that are not copied yet */
    size_t i = 0;

    KG_TRY(kg_str_putc(out, '"', err));
    while ((i += kg_json_plain_prefix(text + i, n - i)) < n) {
        size_t length = kg_utf8_length(text + i, n - i);
        unsigned char c = (unsigned char)text[i];

        if (length > 0 && c >= ' ' && c != '"' && c != '\\') {
            i += length;
            continue;
        }
        KG_TRY(kg_str_append(out, text + start, i - start, err));
        if (length == 0)
            KG_TRY(kg_str_puts(out, "\xef\xbf\xbd", err));
        else
            KG_TRY(put_escape(out, c, err));
        i += length == 0 ? kg_utf8_bad_length(text + i, n - i) : 1;
        start = i;
    }
    KG_TRY(kg_str_append(out, text + start, n - start, err));
    return kg_str_putc(out, '"', err);
}

kg_status kg_json_put_text(struct kg_str *out, const char *before, const char *text,
                           struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, before, err));
    return kg_json_put_string(out, text, strlen(text), err);
}

/* The text for a number that JSON lacks.   returns NULL for other numbers */
static const char *special_number(double x)
{
    if (isnan(x))
        return "\"nan\"";
    if (isinf(x))
        return x > 0 ? "\"inf\"" : "\"-inf\"";
    return NULL;
}

/* Appends what %g wrote. A whole number gets ".0", so that readers of many lines find one
 * type in all of them, and -0 is not the integer 0. */
static kg_status put_digits(struct kg_str *out, const char *digits, struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, digits, err));
    return strpbrk(digits, ".e") ? KG_OK : kg_str_puts(out, ".0", err);
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
        /* most readers convert by way of double, which rounds twice: check that too */
        if ((float)strtod(digits, NULL) == x && strtof(digits, NULL) == x)
            break;
    }
    return put_digits(out, digits, err);
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
    return put_digits(out, digits, err);
}

kg_status kg_json_put_cell(struct kg_str *out, double x, struct kg_err *err)
{
    return isfinite(x) ? kg_json_put_double(out, x, err) : kg_str_puts(out, "null", err);
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
        return kg_json_put_double(out, v->u.real, err);
    case KG_JSON_STRING:
        return kg_json_put_string(out, v->u.text.bytes, v->u.text.len, err);
    case KG_JSON_ARRAY:
    case KG_JSON_OBJECT:
        break;
    }
    return put_members(out, v, err);
}
