/* Filters of one value: text, numbers, JSON, defaults. Those over lists are in
 * jinja_list_filters.c.
 *
 * A filter takes a value and arguments by name or position, and returns a new value; it
 * never changes its input. Work that grows with a text counts against the template's
 * budget, so that a hostile template ends.
 */
#include "text/jinja_internal.h"
#include "text/unicode.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kg_status soft_text(struct kg_jv *t, struct kg_jinja *j, const struct kg_jv *in)
{
    KG_TRY(kg_jv_str(t, j, in));
    return kg_jinja_pay(j, t->u.text.n / 16);
}

static kg_status f_string(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args)
{
    (void)args;
    return kg_jv_str(out, j, in);
}

static kg_status f_trim(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                        const struct kg_jinja_args *args)
{
    const struct kg_jv *chars = args->by[0];

    if (chars && chars->type == KG_JV_NONE)
        chars = NULL;
    if (chars && chars->type != KG_JV_TEXT)
        return kg_jinja_fail(j, "expected text to trim, found %s",
                             kg_jv_type_name(chars));
    KG_TRY(soft_text(out, j, in));
    KG_TRY(kg_jinja_pay(j, chars ? out->u.text.n * (chars->u.text.n / 64) : 0));
    struct kg_jv_text t = kg_jv_strip(out->u.text, chars ? &chars->u.text : NULL, 3);
    out->u.text = t;
    return KG_OK;
}

/* ---- case ---- */

enum letter_case { LOWER, UPPER, CAPITALIZE, TITLE };

/* title: whether a letter after `before` starts a word */
static bool starts_word(uint32_t before)
{
    return before == 0 || kg_jinja_is_space(before) ||
           (before < 128 && kg_char_in("-([{<", (char)before));
}

static kg_status change_case(struct kg_jv *out, struct kg_jinja *j,
                             const struct kg_jv *in, enum letter_case how)
{
    struct kg_jv t;
    uint32_t before = 0;
    uint32_t cp;
    char bytes[4];

    KG_TRY(soft_text(&t, j, in));
    size_t mark = j->out->len;
    for (size_t at = 0; at < t.u.text.n; before = cp) {
        bool first = how == TITLE ? starts_word(before) : at == 0;
        bool raise = (how == CAPITALIZE || how == TITLE) && first;

        at += kg_utf8_decode(&cp, t.u.text.bytes + at);
        uint32_t to = how == UPPER || (raise && how == TITLE) ? kg_unicode_upper(cp)
                      : raise                                 ? kg_unicode_title(cp)
                                                              : kg_unicode_lower(cp);
        KG_TRY(kg_jinja_emit(j, bytes, kg_utf8_encode(bytes, to)));
    }
    KG_TRY(kg_jinja_cut(out, j, mark));
    out->safe = t.safe && how != TITLE; /* the result of title is no markup */
    return KG_OK;
}

#define CASE(name, how)                                                                  \
    static kg_status name(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in, \
                          const struct kg_jinja_args *args)                              \
    {                                                                                    \
        (void)args;                                                                      \
        return change_case(out, j, in, how);                                             \
    }
CASE(f_lower, LOWER)
CASE(f_upper, UPPER)
CASE(f_capitalize, CAPITALIZE)
CASE(f_title, TITLE)
#undef CASE

/* ---- text ---- */

static kg_status f_replace(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                           const struct kg_jinja_args *args)
{
    struct kg_jv t;
    struct kg_jv old;
    struct kg_jv new;
    int64_t most = -1;
    size_t from = 0;

    KG_TRY(soft_text(&t, j, in));
    KG_TRY(kg_jv_str(&old, j, args->by[0]));
    KG_TRY(kg_jv_str(&new, j, args->by[1]));
    if (args->by[2] && args->by[2]->type != KG_JV_NONE &&
        !kg_jv_as_int(&most, args->by[2]))
        return kg_jinja_fail(j, "expected a whole number of replacements, found %s",
                             kg_jv_type_name(args->by[2]));
    size_t mark = j->out->len;
    for (int64_t n = 0; most < 0 || n < most; n++) {
        int64_t at = kg_jv_find(t.u.text, old.u.text, from);
        uint32_t cp;
        size_t k = old.u.text.n;

        if (at < 0)
            break;
        KG_TRY(kg_jinja_pay(j, 1));
        KG_TRY(kg_jinja_emit(j, t.u.text.bytes + from, (size_t)at - from));
        KG_TRY(kg_jv_put(j, &new));
        from = (size_t)at + k;
        if (k > 0)
            continue;
        if (from == t.u.text.n) /* an empty text also matches at the end */
            return kg_jinja_cut(out, j, mark);
        k = kg_utf8_decode(&cp, t.u.text.bytes + from);
        KG_TRY(kg_jinja_emit(j, t.u.text.bytes + from, k));
        from += k;
    }
    KG_TRY(kg_jinja_emit(j, t.u.text.bytes + from, t.u.text.n - from));
    return kg_jinja_cut(out, j, mark);
}

/* *t <- an indentation: v spaces (not given: n), or the text v. */
static kg_status blanks(struct kg_jv_text *t, struct kg_jinja *j, const struct kg_jv *v,
                        int64_t n)
{
    static const char spaces[] = "                                                "
                                 "                ";

    if (v && v->type == KG_JV_TEXT) {
        *t = v->u.text;
        return KG_OK;
    }
    if (v && !kg_jv_as_int(&n, v))
        return kg_jinja_fail(j, "expected a width, found %s", kg_jv_type_name(v));
    if (n > (int64_t)sizeof spaces - 1)
        return kg_jinja_fail(j, "expected a width of at most %zu, found %lld",
                             sizeof spaces - 1, (long long)n);
    *t = (struct kg_jv_text){spaces, n < 0 ? 0 : (size_t)n};
    return KG_OK;
}

static kg_status f_indent(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args)
{
    bool first = args->by[1] && kg_jv_truth(args->by[1]);
    bool blank = args->by[2] && kg_jv_truth(args->by[2]);
    bool indented = false;
    struct kg_jv_text t = in->u.text;
    struct kg_jv_text by;
    size_t mark = j->out->len;

    KG_TRY(blanks(&by, j, args->by[0], 4));
    if (in->type != KG_JV_TEXT)
        return kg_jinja_fail(j, "expected text to indent, found %s", kg_jv_type_name(in));
    KG_TRY(kg_jinja_pay(j, t.n / 16));
    for (size_t n = 0, end = 0; n < t.n || !indented; indented = true) {
        size_t k = kg_jv_line(&end, (struct kg_jv_text){t.bytes + n, t.n - n});

        KG_TRY(kg_jinja_pay(j, 1));
        if (indented ? k > 0 || blank : first)
            KG_TRY(kg_jinja_emit(j, by.bytes, by.n));
        KG_TRY(kg_jinja_emit(j, t.bytes + n, k));
        KG_TRY(kg_jinja_emit(j, "\n", end > k));
        n += end;
    }
    KG_TRY(kg_jinja_cut(out, j, mark));
    out->safe = in->safe;
    return KG_OK;
}

static kg_status f_center(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args)
{
    struct kg_jv t;
    int64_t width = 80;

    if (args->by[0] && !kg_jv_as_int(&width, args->by[0]))
        return kg_jinja_fail(j, "expected a width, found %s",
                             kg_jv_type_name(args->by[0]));
    KG_TRY(soft_text(&t, j, in));
    int64_t spare = width - (int64_t)kg_jv_chars(t.u.text);
    int64_t left = spare / 2 + (spare & width & 1);
    size_t mark = j->out->len;
    for (int64_t i = 0; i < spare; i++) {
        if (i == left)
            KG_TRY(kg_jv_put(j, &t));
        KG_TRY(kg_jinja_pay(j, 1));
        KG_TRY(kg_jinja_emit(j, " ", 1));
    }
    if (spare <= left)
        KG_TRY(kg_jv_put(j, &t));
    KG_TRY(kg_jinja_cut(out, j, mark));
    out->safe = t.safe;
    return KG_OK;
}

static kg_status f_escape(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args)
{
    (void)args;
    return kg_jv_escape(out, j, in);
}

static kg_status f_forceescape(struct kg_jv *out, struct kg_jinja *j,
                               const struct kg_jv *in, const struct kg_jinja_args *args)
{
    struct kg_jv t;

    (void)args;
    KG_TRY(kg_jv_str(&t, j, in));
    t.safe = false;
    return kg_jv_escape(out, j, &t);
}

static kg_status f_safe(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                        const struct kg_jinja_args *args)
{
    (void)args;
    KG_TRY(kg_jv_str(out, j, in));
    out->safe = true;
    return KG_OK;
}

static kg_status f_wordcount(struct kg_jv *out, struct kg_jinja *j,
                             const struct kg_jv *in, const struct kg_jinja_args *args)
{
    struct kg_jv t;
    int64_t n = 0;
    bool inside = false;
    uint32_t cp;

    (void)args;
    KG_TRY(soft_text(&t, j, in));
    for (size_t at = 0; at < t.u.text.n;) {
        at += kg_utf8_decode(&cp, t.u.text.bytes + at);
        bool is = cp == '_' || kg_unicode_is_alnum(cp);
        n += is && !inside;
        inside = is;
    }
    *out = kg_jv_int(n);
    return KG_OK;
}

static kg_status f_format(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args)
{
    struct kg_jv t;
    struct kg_jv values;

    KG_TRY(soft_text(&t, j, in));
    KG_TRY(kg_jv_list_new(&values, j, args->n, KG_JV_TUPLE));
    for (size_t i = 0; i < args->n; i++)
        KG_TRY(kg_jv_push(j, &values, &args->pos[i]));
    return kg_jinja_percent(out, j, &t, &values);
}

/* ---- numbers ---- */

/* 0 to 9, or -1 for other characters. The ten digits of each script are adjacent. */
static int digit_value(uint32_t cp)
{
    uint32_t n = 0;

    if (!kg_unicode_is_digit(cp))
        return -1;
    while (kg_unicode_is_digit(cp - n - 1))
        n++;
    return (int)(n % 10);
}

/* Rewrites a number as Python reads it: digits of any script become 0 to 9, and a _
 * between two digits is dropped.   returns false for other or too long text */
static bool plain_digits(char text[64], struct kg_jv_text t)
{
    bool digit = false;
    size_t n = 0;
    uint32_t cp, next;

    t = kg_jv_strip(t, NULL, 3);
    for (size_t at = 0; at < t.n;) {
        at += kg_utf8_decode(&cp, t.bytes + at);
        if (cp == '_') {
            if (!digit || at == t.n || (kg_utf8_decode(&next, t.bytes + at), false) ||
                digit_value(next) < 0)
                return false;
            continue;
        }
        digit = digit_value(cp) >= 0;
        cp = digit ? (uint32_t)('0' + digit_value(cp)) : cp;
        if (cp == 0 || cp >= 128 || n == 63)
            return false;
        text[n++] = (char)cp;
    }
    text[n] = 0;
    return n > 0;
}

/* float(): decimals, inf and nan, but no hexadecimals. */
static bool read_real(double *x, const struct kg_jv *in)
{
    char text[64];
    char *end;

    if (kg_jv_as_real(x, in))
        return true;
    if (in->type != KG_JV_TEXT || !plain_digits(text, in->u.text) ||
        kg_char_in(" \t\n\v\f\r", text[0]) || strpbrk(text, "xXpP("))
        return false;
    *x = strtod(text, &end);
    return *end == 0;
}

static kg_status need_defined(struct kg_jinja *j, const struct kg_jv *in)
{
    if (in->type != KG_JV_UNDEFINED)
        return KG_OK;
    return kg_jinja_fail(j, "expected a number, '%.*s' is undefined",
                         (int)(in->u.text.n > 80 ? 80 : in->u.text.n), in->u.text.bytes);
}

static kg_status f_int(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                       const struct kg_jinja_args *args)
{
    char text[64];
    char *end = text;
    double x = 0;
    int64_t i = 0;

    KG_TRY(need_defined(j, in));
    *out = args->by[0] ? *args->by[0] : kg_jv_int(0);
    if (in->type == KG_JV_TEXT && plain_digits(text, in->u.text)) {
        errno = 0;
        i = strtoll(text, &end, 10);
        if (*end == 0 && errno == ERANGE)
            return kg_jinja_fail(j, "expected a whole number of 64 bits, found %s", text);
    }
    if (kg_jv_as_int(&i, in) || (in->type == KG_JV_TEXT && end > text && *end == 0))
        *out = kg_jv_int(i);
    else if (!read_real(&x, in) || (in->type == KG_JV_TEXT && !isfinite(x)))
        return KG_OK;
    else if (fabs(x) < 9.2e18)
        *out = kg_jv_int((int64_t)x);
    else
        return kg_jinja_fail(j, "expected a whole number of 64 bits, found %g", x);
    return KG_OK;
}

static kg_status f_float(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                         const struct kg_jinja_args *args)
{
    double x;

    KG_TRY(need_defined(j, in));
    if (read_real(&x, in))
        *out = kg_jv_real(x);
    else
        *out = args->by[0] ? *args->by[0] : kg_jv_real(0);
    return KG_OK;
}

static kg_status f_abs(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                       const struct kg_jinja_args *args)
{
    struct kg_jv zero = kg_jv_int(0);
    int64_t i;

    (void)args;
    if (in->type == KG_JV_REAL) {
        *out = kg_jv_real(fabs(in->u.real));
        return KG_OK;
    }
    if (!kg_jv_as_int(&i, in))
        return kg_jinja_fail(j, "expected a number, found %s", kg_jv_type_name(in));
    return kg_jinja_binary(out, j, i < 0 ? KG_JT_SUB : KG_JT_ADD, &zero, in);
}

/* Python's round(x, digits): rounds the exact value, halves to even. */
static double round_half_even(double x, int digits)
{
    double scale = pow(10, -digits);
    char text[400];

    if (digits < 0)
        return nearbyint(x / scale) * scale;
    snprintf(text, sizeof text, "%.*f", digits, x);
    return strtod(text, NULL);
}

static double round_how(double x, int digits, double (*to)(double))
{
    double scale = pow(10, digits);

    return (to(x * scale) + 0.0) / scale; /* Python converts to an integer: no -0 */
}

/* Rounds a whole number to a multiple of 10^-digits, halves to even. */
static kg_status round_whole(struct kg_jv *out, struct kg_jinja *j, int64_t i, int digits)
{
    int64_t scale = 1, rest;

    for (; digits < 0; digits++)
        scale *= 10;
    rest = (i % scale + scale) % scale;
    if (__builtin_sub_overflow(i, rest, &i) ||
        ((2 * rest > scale || (2 * rest == scale && i / scale % 2 != 0)) &&
         __builtin_add_overflow(i, scale, &i)))
        return kg_jinja_fail(j, "expected a whole number of 64 bits, found a larger one");
    *out = kg_jv_int(i);
    return KG_OK;
}

static kg_status f_round(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                         const struct kg_jinja_args *args)
{
    int64_t digits = 0;
    int64_t i;
    double x;

    if (!kg_jv_as_real(&x, in) || (args->by[0] && !kg_jv_as_int(&digits, args->by[0])) ||
        digits < -15 || digits > 15)
        return kg_jinja_fail(j, "expected a number and at most 15 digits");
    if (!args->by[1] || kg_jv_is_text(args->by[1], "common")) {
        if (kg_jv_as_int(&i, in))
            return round_whole(out, j, i, (int)digits);
        x = round_half_even(x, (int)digits);
    } else if (kg_jv_is_text(args->by[1], "ceil"))
        x = round_how(x, (int)digits, ceil);
    else if (kg_jv_is_text(args->by[1], "floor"))
        x = round_how(x, (int)digits, floor);
    else
        return kg_jinja_fail(j, "expected common, ceil or floor");
    *out = kg_jv_real(x);
    return KG_OK;
}

/* ---- JSON, defaults, members ---- */

static kg_status separators(struct kg_jinja_json *how, struct kg_jinja *j,
                            const struct kg_jv *v)
{
    const struct kg_jv_list *l = v->type == KG_JV_LIST ? v->u.list : NULL;

    if (!l || l->n != 2 || l->items[0].type != KG_JV_TEXT ||
        l->items[1].type != KG_JV_TEXT)
        return kg_jinja_fail(j, "expected two texts as separators, found %s",
                             kg_jv_type_name(v));
    how->item = l->items[0].u.text;
    how->key = l->items[1].u.text;
    return KG_OK;
}

static kg_status f_tojson(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args)
{
    const struct kg_jv *indent = args->by[1];
    struct kg_jinja_json how = {
        .ensure_ascii = args->by[0] && kg_jv_truth(args->by[0]),
        .indented = indent && indent->type != KG_JV_NONE,
        .sort_keys = args->by[3] && kg_jv_truth(args->by[3]),
        .item = {", ", 2},
        .key = {": ", 2},
    };
    size_t mark = j->out->len;

    if (how.indented) {
        how.item.n = 1; /* a newline comes after it */
        KG_TRY(blanks(&how.indent, j, indent, 0));
    }
    if (args->by[2] && args->by[2]->type != KG_JV_NONE)
        KG_TRY(separators(&how, j, args->by[2]));
    KG_TRY(kg_jv_put_json(j, in, &how, 0));
    return kg_jinja_cut(out, j, mark);
}

static kg_status f_default(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                           const struct kg_jinja_args *args)
{
    bool by_truth = args->by[1] && kg_jv_truth(args->by[1]);

    (void)j;
    *out = *in;
    if (in->type == KG_JV_UNDEFINED || (by_truth && !kg_jv_truth(in)))
        *out = args->by[0] ? *args->by[0] : kg_jv_text("", 0);
    return KG_OK;
}

static kg_status f_length(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args)
{
    size_t n;

    (void)args;
    KG_TRY(kg_jv_length(&n, j, in));
    *out = kg_jv_int((int64_t)n);
    return KG_OK;
}

static kg_status f_attr(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                        const struct kg_jinja_args *args)
{
    struct kg_jv name;
    const struct kg_jv as_object = *in;

    KG_TRY(kg_jv_str(&name, j, args->by[0]));
    if (in->type == KG_JV_DICT && !in->u.dict->is_namespace) {
        /* attributes only: the members of an object are not among them */
        const struct kg_jinja_row *row = kg_jinja_find(kg_jinja_dict_methods,
                                                       name.u.text);

        *out = kg_jv_undefined(name.u.text);
        return row ? kg_jinja_attr(out, j, &as_object, name.u.text) : KG_OK;
    }
    return kg_jinja_attr(out, j, in, name.u.text);
}

const struct kg_jinja_row kg_jinja_filters[] = {
    {"abs", "", 0, f_abs},
    {"attr", "name", 1, f_attr},
    {"capitalize", "", 0, f_capitalize},
    {"center", "width", 0, f_center},
    {"count", "", 0, f_length},
    {"d", "default_value,boolean", 0, f_default},
    {"default", "default_value,boolean", 0, f_default},
    {"e", "", 0, f_escape},
    {"escape", "", 0, f_escape},
    {"float", "default", 0, f_float},
    {"forceescape", "", 0, f_forceescape},
    {"format", NULL, 0, f_format},
    {"indent", "width,first,blank", 0, f_indent},
    {"int", "default", 0, f_int},
    {"length", "", 0, f_length},
    {"lower", "", 0, f_lower},
    {"replace", "old,new,count", 2, f_replace},
    {"round", "precision,method", 0, f_round},
    {"safe", "", 0, f_safe},
    {"string", "", 0, f_string},
    {"title", "", 0, f_title},
    {"tojson", "ensure_ascii,indent,separators,sort_keys", 0, f_tojson},
    {"trim", "chars", 0, f_trim},
    {"upper", "", 0, f_upper},
    {"wordcount", "", 0, f_wordcount},
    {0},
};

const struct kg_jinja_row *kg_jinja_find_filter(struct kg_jv_text name)
{
    const struct kg_jinja_row *row = kg_jinja_find(kg_jinja_filters, name);

    return row ? row : kg_jinja_find(kg_jinja_list_filters, name);
}
