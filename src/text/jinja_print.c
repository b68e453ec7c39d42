/* Values as text: Python's str() and repr(), and the json.dumps of tojson. Prompts equal
 * those of transformers byte by byte, so the details follow Python: quotes of repr,
 * exponents of floats, True and None, the space after a colon. A float is written as the
 * shortest decimal that reads back as the same value, found by trying digits. Recursion
 * counts its depth, because a namespace may contain itself. */
#include "text/jinja_internal.h"
#include "text/unicode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kg_status emit(struct kg_jinja *j, const char *text)
{
    return kg_jinja_emit(j, text, strlen(text));
}

/* ---- numbers ---- */

/* Digits and decimal exponent of the shortest decimal that reads back as x. */
static int shortest(char digits[32], int *exponent, double x)
{
    char text[40];
    int n = 0;

    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, x);
        if (strtod(text, NULL) == x)
            break;
    }
    for (const char *s = text; *s && *s != 'e'; s++)
        if (*s >= '0' && *s <= '9')
            digits[n++] = *s;
    *exponent = atoi(strchr(text, 'e') + 1);
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = 0;
    return n;
}

static kg_status put_real(struct kg_jinja *j, double x)
{
    char digits[32];
    char text[64];
    int exponent;

    if (isnan(x))
        return emit(j, "nan");
    if (signbit(x)) {
        KG_TRY(emit(j, "-"));
        x = -x;
    }
    if (isinf(x))
        return emit(j, "inf");
    int n = shortest(digits, &exponent, x);
    if (exponent < -4 || exponent >= 16)
        snprintf(text, sizeof text, "%c%s%se%+03d", digits[0], n > 1 ? "." : "",
                 digits + 1, exponent);
    else if (exponent < 0)
        snprintf(text, sizeof text, "0.%.*s%s", -exponent - 1, "0000", digits);
    else if (n <= exponent + 1)
        snprintf(text, sizeof text, "%s%.*s.0", digits, exponent + 1 - n,
                 "0000000000000000");
    else
        snprintf(text, sizeof text, "%.*s.%s", exponent + 1, digits,
                 digits + exponent + 1);
    return emit(j, text);
}

static kg_status put_int(struct kg_jinja *j, int64_t i)
{
    char text[32];

    snprintf(text, sizeof text, "%lld", (long long)i);
    return emit(j, text);
}

/* ---- repr ---- */

static kg_status put_repr_char(struct kg_jinja *j, const char *at, size_t k, char quote)
{
    char text[16];
    uint32_t cp;

    kg_utf8_decode(&cp, at);
    if (cp == '\n' || cp == '\r' || cp == '\t')
        return emit(j, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
    if (cp == '\\' || cp == (uint32_t)quote)
        KG_TRY(emit(j, "\\"));
    if (kg_unicode_is_printable(cp))
        return kg_jinja_emit(j, at, k);
    snprintf(text, sizeof text,
             cp < 256     ? "\\x%02x"
             : cp < 65536 ? "\\u%04x"
                          : "\\U%08x",
             cp);
    return emit(j, text);
}

static kg_status put_repr_text(struct kg_jinja *j, struct kg_jv_text t)
{
    bool has_single = t.n && memchr(t.bytes, '\'', t.n);
    char quote = has_single && !memchr(t.bytes, '"', t.n) ? '"' : '\'';
    uint32_t cp;

    KG_TRY(kg_jinja_emit(j, &quote, 1));
    for (size_t at = 0; at < t.n;) {
        size_t k = kg_utf8_decode(&cp, t.bytes + at);

        KG_TRY(put_repr_char(j, t.bytes + at, k, quote));
        at += k;
    }
    return kg_jinja_emit(j, &quote, 1);
}

static kg_status put_repr_list(struct kg_jinja *j, const struct kg_jv_list *l)
{
    static const char *const around[][2] = {
        [KG_JV_PLAIN] = {"[", "]"},
        [KG_JV_TUPLE] = {"(", ")"},
        [KG_JV_KEYS] = {"dict_keys([", "])"},
        [KG_JV_VALUES] = {"dict_values([", "])"},
        [KG_JV_ITEMS] = {"dict_items([", "])"},
    };

    if (l->kind == KG_JV_GENERATOR)
        return emit(j, "<generator object>");
    if (l->kind == KG_JV_RANGE) {
        char text[80], step[32] = "";

        if (l->range[2] != 1)
            snprintf(step, sizeof step, ", %lld", (long long)l->range[2]);
        snprintf(text, sizeof text, "range(%lld, %lld%s)", (long long)l->range[0],
                 (long long)l->range[1], step);
        return emit(j, text);
    }
    KG_TRY(emit(j, around[l->kind][0]));
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            KG_TRY(emit(j, ", "));
        KG_TRY(kg_jv_put_repr(j, &l->items[i]));
    }
    if (l->kind == KG_JV_TUPLE && l->n == 1)
        KG_TRY(emit(j, ","));
    return emit(j, around[l->kind][1]);
}

static kg_status put_repr_dict(struct kg_jinja *j, const struct kg_jv_dict *d)
{
    KG_TRY(emit(j, d->is_namespace ? "<Namespace {" : "{"));
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            KG_TRY(emit(j, ", "));
        KG_TRY(kg_jv_put_repr(j, &d->keys[i]));
        KG_TRY(emit(j, ": "));
        KG_TRY(kg_jv_put_repr(j, &d->values[i]));
    }
    return emit(j, d->is_namespace ? "}>" : "}");
}

static kg_status put_repr_open(struct kg_jinja *j, const struct kg_jv *v)
{
    switch (v->type) {
    case KG_JV_UNDEFINED:
        return emit(j, "Undefined");
    case KG_JV_NONE:
        return emit(j, "None");
    case KG_JV_BOOL:
        return emit(j, v->u.truth ? "True" : "False");
    case KG_JV_INT:
        return put_int(j, v->u.integer);
    case KG_JV_REAL:
        return put_real(j, v->u.real);
    case KG_JV_TEXT:
        KG_TRY(emit(j, v->safe ? "Markup(" : ""));
        KG_TRY(put_repr_text(j, v->u.text));
        return emit(j, v->safe ? ")" : "");
    case KG_JV_LIST:
        return put_repr_list(j, v->u.list);
    case KG_JV_DICT:
        return put_repr_dict(j, v->u.dict);
    case KG_JV_LOOP:
        return emit(j, "<LoopContext>");
    default:
        return emit(j, "<function>");
    }
}

kg_status kg_jv_put_repr(struct kg_jinja *j, const struct kg_jv *v)
{
    KG_TRY(kg_jinja_deeper(j));
    kg_status status = put_repr_open(j, v);
    j->depth--;
    return status;
}

kg_status kg_jv_put(struct kg_jinja *j, const struct kg_jv *v)
{
    if (v->type == KG_JV_UNDEFINED)
        return KG_OK;
    if (v->type == KG_JV_TEXT)
        return kg_jinja_emit(j, v->u.text.bytes, v->u.text.n);
    return kg_jv_put_repr(j, v);
}

kg_status kg_jv_str(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *v)
{
    struct kg_jv text = *v;
    size_t mark = j->out->len;

    if (v->type != KG_JV_TEXT) {
        KG_TRY(kg_jv_put(j, v));
        KG_TRY(kg_jinja_cut(&text, j, mark));
    }
    *out = text;
    return KG_OK;
}

/* ---- HTML ---- */

static kg_status put_escaped(struct kg_jinja *j, struct kg_jv_text t)
{
    static const char from[] = "&<>'\"";
    static const char *const as[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    size_t done = 0;

    for (size_t i = 0; i < t.n; i++) {
        const char *special = kg_char_find(from, t.bytes[i]);

        if (!special)
            continue;
        KG_TRY(kg_jinja_emit(j, t.bytes + done, i - done));
        KG_TRY(emit(j, as[special - from]));
        done = i + 1;
    }
    return kg_jinja_emit(j, t.bytes + done, t.n - done);
}

kg_status kg_jv_put_escaped(struct kg_jinja *j, const struct kg_jv *v)
{
    struct kg_jv text;

    KG_TRY(kg_jv_str(&text, j, v));
    KG_TRY(kg_jinja_pay(j, text.u.text.n / 16));
    return text.safe ? kg_jv_put(j, &text) : put_escaped(j, text.u.text);
}

kg_status kg_jv_escape(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *v)
{
    size_t mark = j->out->len;

    if (v->safe) {
        *out = *v;
        return KG_OK;
    }
    KG_TRY(kg_jv_put_escaped(j, v));
    KG_TRY(kg_jinja_cut(out, j, mark));
    out->safe = true;
    return KG_OK;
}

/* ---- JSON ---- */

static kg_status put_unicode_escape(struct kg_jinja *j, uint32_t cp)
{
    char text[16];

    if (cp < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", cp);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                 0xDC00 + ((cp - 0x10000) & 0x3FF));
    return emit(j, text);
}

static kg_status put_json_text(struct kg_jinja *j, struct kg_jv_text t, bool ensure_ascii)
{
    static const char from[] = "\"\\\n\r\t\f\b";
    static const char as[] = "\"\\nrtfb";
    uint32_t cp;

    KG_TRY(emit(j, "\""));
    for (size_t at = 0; at < t.n;) {
        size_t k = kg_utf8_decode(&cp, t.bytes + at);
        const char *special = cp < 128 ? kg_char_find(from, (char)cp) : NULL;
        char escape[2] = {'\\', special ? as[special - from] : 0};

        if (special)
            KG_TRY(kg_jinja_emit(j, escape, 2));
        else if (cp < 32 || (ensure_ascii && cp > 126))
            KG_TRY(put_unicode_escape(j, cp));
        else
            KG_TRY(kg_jinja_emit(j, t.bytes + at, k));
        at += k;
    }
    return emit(j, "\"");
}

static kg_status put_break(struct kg_jinja *j, const struct kg_jinja_json *how, int level)
{
    if (!how->indented)
        return KG_OK;
    KG_TRY(emit(j, "\n"));
    for (int i = 0; i < level; i++)
        KG_TRY(kg_jinja_emit(j, how->indent.bytes, how->indent.n));
    return KG_OK;
}

static kg_status put_json_list(struct kg_jinja *j, const struct kg_jv_list *l,
                               const struct kg_jinja_json *how, int level)
{
    if (l->n == 0)
        return emit(j, "[]");
    KG_TRY(emit(j, "["));
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            KG_TRY(kg_jinja_emit(j, how->item.bytes, how->item.n));
        KG_TRY(put_break(j, how, level + 1));
        KG_TRY(kg_jv_put_json(j, &l->items[i], how, level + 1));
    }
    KG_TRY(put_break(j, how, level));
    return emit(j, "]");
}

/* JSON keys are text; numbers, bools and none are converted. */
static kg_status put_json_key(struct kg_jinja *j, const struct kg_jv *key,
                              const struct kg_jinja_json *how)
{
    if (key->type == KG_JV_TEXT)
        return put_json_text(j, key->u.text, how->ensure_ascii);
    if (!kg_jv_is_number(key) && key->type != KG_JV_NONE)
        return kg_jinja_fail(j, "expected a key that JSON can hold, found %s",
                             kg_jv_type_name(key));
    KG_TRY(emit(j, "\""));
    KG_TRY(kg_jv_put_json(j, key, how, 0));
    return emit(j, "\"");
}

/* The members sorted by key, by insertion, because objects are small. */
static kg_status sorted_members(size_t **order, struct kg_jinja *j,
                                const struct kg_jv_dict *d)
{
    size_t *to = kg_pool_alloc(&j->pool, d->n, sizeof *to, j->err);

    if (!to)
        return j->err->code;
    for (size_t i = 0; i < d->n; i++) {
        size_t at = i;

        for (; at > 0; at--) {
            int sign;

            KG_TRY(kg_jv_compare(&sign, j, &d->keys[to[at - 1]], &d->keys[i]));
            if (sign <= 0)
                break;
            to[at] = to[at - 1];
        }
        to[at] = i;
    }
    *order = to;
    return KG_OK;
}

static kg_status put_json_dict(struct kg_jinja *j, const struct kg_jv_dict *d,
                               const struct kg_jinja_json *how, int level)
{
    size_t *order = NULL;

    if (d->n == 0)
        return emit(j, "{}");
    if (how->sort_keys)
        KG_TRY(sorted_members(&order, j, d));
    KG_TRY(emit(j, "{"));
    for (size_t i = 0; i < d->n; i++) {
        size_t at = order ? order[i] : i;

        if (i)
            KG_TRY(kg_jinja_emit(j, how->item.bytes, how->item.n));
        KG_TRY(put_break(j, how, level + 1));
        KG_TRY(put_json_key(j, &d->keys[at], how));
        KG_TRY(kg_jinja_emit(j, how->key.bytes, how->key.n));
        KG_TRY(kg_jv_put_json(j, &d->values[at], how, level + 1));
    }
    KG_TRY(put_break(j, how, level));
    return emit(j, "}");
}

static kg_status put_json_open(struct kg_jinja *j, const struct kg_jv *v,
                               const struct kg_jinja_json *how, int level)
{
    switch (v->type) {
    case KG_JV_NONE:
        return emit(j, "null");
    case KG_JV_BOOL:
        return emit(j, v->u.truth ? "true" : "false");
    case KG_JV_INT:
        return put_int(j, v->u.integer);
    case KG_JV_REAL:
        if (isfinite(v->u.real))
            return put_real(j, v->u.real);
        return emit(j, isnan(v->u.real) ? "NaN"
                       : v->u.real < 0  ? "-Infinity"
                                        : "Infinity");
    case KG_JV_TEXT:
        return put_json_text(j, v->u.text, how->ensure_ascii);
    case KG_JV_LIST:
        if (v->u.list->kind <= KG_JV_TUPLE)
            return put_json_list(j, v->u.list, how, level);
        break;
    case KG_JV_DICT:
        if (!v->u.dict->is_namespace)
            return put_json_dict(j, v->u.dict, how, level);
        break;
    default:
        break;
    }
    return kg_jinja_fail(j, "expected a value that JSON can hold, found %s",
                         kg_jv_type_name(v));
}

kg_status kg_jv_put_json(struct kg_jinja *j, const struct kg_jv *v,
                         const struct kg_jinja_json *how, int level)
{
    KG_TRY(kg_jinja_deeper(j));
    kg_status status = put_json_open(j, v, how, level);
    j->depth--;
    return status;
}
