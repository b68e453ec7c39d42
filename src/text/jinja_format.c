/* Text with fields for values: printf's "%5.1f" and str.format's "{:>5}". Both are parsed
 * into the same description of a field (fill, width, sign, digits) and written by one
 * function. Refused: %(name)s, *, #, nested fields, members of a name, and precisions
 * whose meaning depends on Python's shortest floats. */
#include "text/jinja_internal.h"
#include "text/unicode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_WIDTH = 10000, MAX_PRECISION = 100 };

struct field {
    struct kg_jv_text fill; /* one character */
    char align;             /* < > ^ = */
    char sign;              /* + or space before values that are not negative; 0: none */
    char group;             /* , or _ between thousands; 0: none */
    int width;
    int precision; /* -1: not given */
    char type;     /* 0: not given */
};

static kg_status fail_field(struct kg_jinja *j, const struct field *f,
                            const struct kg_jv *v)
{
    return kg_jinja_fail(j, "expected a value that fits %c and its width, found %s",
                         f->type ? f->type : 's', kg_jv_type_name(v));
}

static kg_status put_fill(struct kg_jinja *j, const struct field *f, int64_t n)
{
    KG_TRY(kg_jinja_pay(j, n > 0 ? (size_t)n : 0));
    for (; n > 0; n--)
        KG_TRY(kg_jinja_emit(j, f->fill.bytes, f->fill.n));
    return KG_OK;
}

/* head: a sign, or nothing */
static kg_status put_padded(struct kg_jinja *j, const struct field *f, const char *head,
                            const struct kg_jv_text *body, bool escape)
{
    const struct kg_jv text = kg_jv_text(body->bytes, body->n);
    int64_t spare = f->width - (int64_t)strlen(head) - (int64_t)kg_jv_chars(*body);
    int64_t before = f->align == '<' ? 0 : f->align == '^' ? spare / 2 : spare;

    if (f->align != '=')
        KG_TRY(put_fill(j, f, before));
    KG_TRY(kg_jinja_emit(j, head, strlen(head)));
    if (f->align == '=')
        KG_TRY(put_fill(j, f, before));
    KG_TRY(escape ? kg_jv_put_escaped(j, &text) : kg_jv_put(j, &text));
    return put_fill(j, f, spare - (before > 0 ? before : 0));
}

/* The first `precision` characters of a text; all if it is negative. */
static struct kg_jv_text cut_text(struct kg_jv_text t, int precision)
{
    uint32_t cp;
    size_t n = 0;

    if (precision < 0)
        return t;
    for (; precision > 0 && n < t.n; precision--)
        n += kg_utf8_decode(&cp, t.bytes + n);
    t.n = n;
    return t;
}

static kg_status put_text(struct kg_jinja *j, const struct field *f,
                          const struct kg_jv *v, bool escape)
{
    const struct kg_jv_text t = cut_text(v->u.text, f->precision);
    struct field left = *f;

    left.align = f->align ? f->align : '<';
    return put_padded(j, &left, "", &t, escape && !v->safe);
}

/* ---- numbers ---- */

static void put_binary(char *text, uint64_t u)
{
    int n = 1;

    while (n < 64 && u >> n)
        n++;
    for (int i = 0; i < n; i++)
        text[i] = (char)('0' + (u >> (n - 1 - i) & 1));
    text[n] = 0;
}

/* The digits of a whole number without its sign.   returns false for other types */
static bool whole_digits(char text[600], char type, uint64_t u)
{
    const char *how = type == 'x' ? "%llx" : type == 'X' ? "%llX" : "%llo";

    if (type == 'b')
        put_binary(text, u);
    else if (type == 'd' || type == 'n')
        snprintf(text, 600, "%llu", (unsigned long long)u);
    else if (type == 'x' || type == 'X' || type == 'o')
        snprintf(text, 600, how, (unsigned long long)u); /* NOLINT: one of three */
    else
        return false;
    return true;
}

static bool real_digits(char text[600], const struct field *f, double x)
{
    const int precision = f->precision < 0 ? 6 : f->precision;

    switch (f->type) {
    case 'f':
        snprintf(text, 600, "%.*f", precision, x);
        return true;
    case 'F':
        snprintf(text, 600, "%.*F", precision, x);
        return true;
    case 'e':
        snprintf(text, 600, "%.*e", precision, x);
        return true;
    case 'E':
        snprintf(text, 600, "%.*E", precision, x);
        return true;
    case 'g':
        snprintf(text, 600, "%.*g", precision, x);
        return true;
    case 'G':
        snprintf(text, 600, "%.*G", precision, x);
        return true;
    case '%':
        snprintf(text, 600, "%.*f%%", precision, x * 100);
        return true;
    default:
        return false;
    }
}

/* 1234567.5 becomes 1,234,567.5; digits in other bases are grouped by four. */
static void group_digits(char text[600], const struct field *f)
{
    const bool binary = f->type && kg_char_in("bxXo", f->type);
    const size_t by = binary ? 4 : 3;
    size_t n = binary ? strlen(text) : strspn(text, "0123456789"), all = strlen(text);

    for (size_t at = n; f->group && at > by && all + 1 < 600; all++) {
        at -= by;
        memmove(text + at + 1, text + at, all - at + 1);
        text[at] = f->group;
    }
}

static kg_status put_number(struct kg_jinja *j, const struct field *f,
                            const struct kg_jv *v)
{
    struct field as = *f;
    char text[600], head[2] = {0};
    int64_t i = 0;
    double x = 0;
    bool whole = kg_jv_as_int(&i, v), negative, done;

    kg_jv_as_real(&x, v);
    negative = whole ? i < 0 : signbit(x) && !isnan(x);
    as.type = f->type ? f->type : 'd';
    as.align = f->align ? f->align : '>';
    done = whole && f->precision < 0 &&
           whole_digits(text, as.type, i < 0 ? -(uint64_t)i : (uint64_t)i);
    if (!done && !real_digits(text, &as, fabs(x)))
        return fail_field(j, f, v);
    group_digits(text, f);
    head[0] = negative ? '-' : f->sign;
    struct kg_jv_text body = {text, strlen(text)};
    return put_padded(j, &as, head, &body, false);
}

/* A float without a type is written as by str(). */
static kg_status put_plain_real(struct kg_jinja *j, const struct field *f, double x)
{
    const struct kg_jv alone = kg_jv_real(fabs(x));
    const char head[2] = {signbit(x) && !isnan(x) ? '-' : f->sign, 0};
    struct field right = *f;
    size_t mark = j->out->len;
    struct kg_jv text;
    char digits[600];

    KG_TRY(kg_jv_put(j, &alone));
    KG_TRY(kg_jinja_cut(&text, j, mark));
    snprintf(digits, sizeof digits, "%.*s", (int)text.u.text.n, text.u.text.bytes);
    group_digits(digits, f);
    struct kg_jv_text body = {digits, strlen(digits)};
    right.align = f->align ? f->align : '>';
    return put_padded(j, &right, head, &body, false);
}

/* ---- % ---- */

/* Reads "-+ 0", a width, a precision and a type; *at moves past them.   returns false if
 * the type is unknown or a number too large */
static bool read_percent(struct field *f, const struct kg_jv_text *t, size_t *at)
{
    size_t i = *at;

    *f = (struct field){.fill = {" ", 1}, .align = '>', .precision = -1};
    for (; i < t->n && kg_char_in("-+ 0", t->bytes[i]); i++) {
        if (t->bytes[i] == '-')
            f->align = '<';
        else if (t->bytes[i] == '0' && f->align != '<')
            f->align = '=';
        else if (t->bytes[i] == '+' || (t->bytes[i] == ' ' && !f->sign))
            f->sign = t->bytes[i];
    }
    for (; i < t->n && t->bytes[i] >= '0' && t->bytes[i] <= '9'; i++)
        f->width = f->width < MAX_WIDTH ? 10 * f->width + t->bytes[i] - '0' : MAX_WIDTH;
    if (i < t->n && t->bytes[i] == '.') {
        f->precision = 0;
        for (i++; i < t->n && t->bytes[i] >= '0' && t->bytes[i] <= '9'; i++)
            if (f->precision < MAX_PRECISION)
                f->precision = 10 * f->precision + t->bytes[i] - '0';
    }
    f->type = i < t->n ? t->bytes[i] : 0;
    *at = i + 1;
    return f->type && kg_char_in("srdiufFeEgGxXoc", f->type) && f->width < MAX_WIDTH &&
           f->precision < MAX_PRECISION;
}

static kg_status put_char(struct kg_jinja *j, const struct field *f,
                          const struct kg_jv *v)
{
    char bytes[4];
    int64_t cp;
    struct field whole = *f;
    struct kg_jv one = *v;

    whole.precision = -1;
    whole.align = f->align ? f->align : '>';
    if (kg_jv_as_int(&cp, v) && cp >= 0 && cp < 0x110000 && (cp < 0xD800 || cp > 0xDFFF))
        one = kg_jv_text(bytes, kg_utf8_encode(bytes, (uint32_t)cp));
    if (one.type != KG_JV_TEXT || kg_jv_chars(one.u.text) != 1)
        return fail_field(j, f, v);
    return put_text(j, &whole, &one, false);
}

static kg_status put_percent(struct kg_jinja *j, struct field *f, const struct kg_jv *v,
                             bool escape)
{
    struct kg_jv as = *v;
    size_t mark = j->out->len;
    int64_t i;
    double x;

    if (f->type == 's' || f->type == 'r') {
        f->fill = (struct kg_jv_text){" ", 1};
        f->align = f->align == '<' ? '<' : '>';
        KG_TRY(f->type == 'r' ? kg_jv_put_repr(j, v) : kg_jv_put(j, v));
        KG_TRY(kg_jinja_cut(&as, j, mark));
        as.safe = v->safe && f->type == 's';
        return put_text(j, f, &as, escape);
    }
    if (f->type == 'c')
        return put_char(j, f, v);
    if (!kg_jv_as_real(&x, v))
        return kg_jinja_fail(j, "expected a number for %%%c, found %s", f->type,
                             kg_jv_type_name(v));
    if (f->align == '=')
        f->fill = (struct kg_jv_text){"0", 1};
    if (kg_char_in("diu", f->type)) {
        f->type = 'd';
        if (v->type == KG_JV_REAL && !(fabs(x) < 9.2e18))
            return kg_jinja_fail(j, "expected a whole number of 64 bits, found %g", x);
        i = v->type == KG_JV_REAL ? (int64_t)x : 0;
        as = v->type == KG_JV_REAL ? kg_jv_int(i) : *v;
    }
    return put_number(j, f, &as);
}

kg_status kg_jinja_percent(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *f,
                           const struct kg_jv *values)
{
    const struct kg_jv_text *fmt = &f->u.text;
    bool many = values->type == KG_JV_LIST && values->u.list->kind == KG_JV_TUPLE;
    size_t n = many ? values->u.list->n : 1, used = 0, mark = j->out->len;
    struct field field;

    for (size_t i = 0; i < fmt->n;) {
        if (fmt->bytes[i] != '%' || (i + 1 < fmt->n && fmt->bytes[i + 1] == '%')) {
            KG_TRY(kg_jinja_emit(j, fmt->bytes + i, 1));
            i += fmt->bytes[i] == '%' ? 2 : 1;
            continue;
        }
        i++;
        if (!read_percent(&field, fmt, &i))
            return kg_jinja_fail(j, "expected %%s, %%r, %%d, %%f, %%e, %%g, %%x, %%o, "
                                    "%%c or %%%%, found another conversion");
        if (used == n)
            return kg_jinja_fail(j, "expected more values to format, found %zu", n);
        KG_TRY(put_percent(j, &field, many ? &values->u.list->items[used] : values,
                           f->safe));
        used++;
    }
    if (used < n && (many || values->type != KG_JV_DICT))
        return kg_jinja_fail(j, "expected %zu values to format, found %zu", used, n);
    KG_TRY(kg_jinja_cut(out, j, mark));
    out->safe = f->safe;
    return KG_OK;
}

/* ---- str.format ---- */

/* "fill align sign 0 width group .precision type", each optional; false for other text */
static bool read_spec(struct field *f, struct kg_jv_text t)
{
    const char *s = t.bytes, *end = t.bytes + t.n;
    uint32_t cp;
    size_t k = t.n ? kg_utf8_decode(&cp, t.bytes) : 0;

    *f = (struct field){.fill = {" ", 1}, .precision = -1};
    if (k < t.n && kg_char_in("<>^=", s[k])) {
        f->fill = (struct kg_jv_text){s, k};
        f->align = s[k];
        s += k + 1;
    } else if (s < end && kg_char_in("<>^=", *s))
        f->align = *s++;
    if (s < end && kg_char_in("+- ", *s)) {
        f->sign = *s == '-' ? 0 : *s;
        s++;
    }
    bool zeros = s < end && *s == '0';
    if (zeros && *f->fill.bytes == ' ')
        f->fill = (struct kg_jv_text){"0", 1};
    if (zeros && !f->align)
        f->align = '=';
    for (; s < end && *s >= '0' && *s <= '9' && f->width < MAX_WIDTH; s++)
        f->width = 10 * f->width + *s - '0';
    if (s < end && (*s == ',' || *s == '_'))
        f->group = *s++;
    if (s < end && *s == '.' && ++s < end) {
        f->precision = 0;
        for (; s < end && *s >= '0' && *s <= '9' && f->precision < MAX_PRECISION; s++)
            f->precision = 10 * f->precision + *s - '0';
    }
    if (s < end)
        f->type = *s++;
    /* padding with zeros inside of groups is not supported */
    return s == end && f->width < MAX_WIDTH && f->precision < MAX_PRECISION &&
           !(f->group && (zeros || f->align == '='));
}

static kg_status put_formatted(struct kg_jinja *j, struct kg_jv_text spec,
                               const struct kg_jv *v, bool escape)
{
    struct field f;

    if (spec.n == 0)
        return escape ? kg_jv_put_escaped(j, v) : kg_jv_put(j, v);
    if (!read_spec(&f, spec) || (f.type && !kg_char_in("sdbxXoncfFeEgG%", f.type)))
        return kg_jinja_fail(j, "expected a description of a field, found ':%.*s'",
                             (int)(spec.n > 40 ? 40 : spec.n), spec.bytes);
    if (v->type == KG_JV_TEXT && (!f.type || f.type == 's') && !f.sign && !f.group &&
        f.align != '=')
        return put_text(j, &f, v, escape);
    if (f.type == 'c')
        return put_char(j, &f, v);
    if (v->type == KG_JV_REAL && !f.type && f.precision < 0)
        return put_plain_real(j, &f, v->u.real);
    if (!kg_jv_is_number(v) || f.type == 's' || (v->type == KG_JV_REAL && !f.type))
        return fail_field(j, &f, v);
    return put_number(j, &f, v);
}

/* The value of {} , {2} or {name} between the braces. */
static kg_status find_value(const struct kg_jv **v, struct kg_jinja *j,
                            const struct kg_jinja_args *args, struct kg_jv_text name,
                            size_t *next)
{
    size_t i = 0;
    size_t k = 0;

    *v = NULL;
    for (; k < name.n && k < 9 && name.bytes[k] >= '0' && name.bytes[k] <= '9'; k++)
        i = 10 * i + (size_t)(name.bytes[k] - '0');
    if (k == name.n) {
        i = name.n ? i : (*next)++;
        *v = i < args->n ? &args->pos[i] : NULL;
    }
    for (i = 0; i < args->n_named && !*v; i++)
        if (args->names[i].n == name.n &&
            memcmp(args->names[i].bytes, name.bytes, name.n) == 0)
            *v = &args->named[i];
    return *v ? KG_OK
              : kg_jinja_fail(j, "expected a value for {%.*s}, found none",
                              (int)(name.n > 40 ? 40 : name.n), name.bytes);
}

/* One "{name!r:spec}" without its braces. */
static kg_status put_place(struct kg_jinja *j, const struct kg_jinja_args *args,
                           struct kg_jv_text t, size_t *next, bool escape)
{
    const char *colon = t.n ? memchr(t.bytes, ':', t.n) : NULL;
    struct kg_jv_text name = {t.bytes, colon ? (size_t)(colon - t.bytes) : t.n};
    struct kg_jv_text spec = {t.bytes + name.n + (colon != NULL),
                              t.n - name.n - (colon != NULL)};
    char as = name.n > 1 && name.bytes[name.n - 2] == '!' ? name.bytes[name.n - 1] : 0;
    size_t mark = j->out->len;
    const struct kg_jv *v;
    struct kg_jv text;

    name.n -= as ? 2 : 0;
    KG_TRY(find_value(&v, j, args, name, next));
    if (as != 'r' && as != 's')
        return put_formatted(j, spec, v, escape);
    KG_TRY(as == 'r' ? kg_jv_put_repr(j, v) : kg_jv_put(j, v));
    KG_TRY(kg_jinja_cut(&text, j, mark));
    return put_formatted(j, spec, &text, escape);
}

kg_status kg_jinja_format(struct kg_jv *out, struct kg_jinja *j, const struct kg_jv *in,
                          const struct kg_jinja_args *args)
{
    struct kg_jv_text t = in->u.text;
    size_t mark = j->out->len;
    size_t next = 0;

    for (size_t i = 0; i < t.n; i++) {
        bool twice = i + 1 < t.n && t.bytes[i + 1] == t.bytes[i];
        const char *close;
        size_t n;

        if (t.bytes[i] == '{' && !twice) {
            close = memchr(t.bytes + i, '}', t.n - i);
            if (!close)
                return kg_jinja_fail(j, "expected } after {, found none");
            n = (size_t)(close - t.bytes) - i - 1;
            KG_TRY(kg_jinja_pay(j, n + 1));
            KG_TRY(put_place(j, args, (struct kg_jv_text){t.bytes + i + 1, n}, &next,
                             in->safe));
            i += n + 1;
            continue;
        }
        if (t.bytes[i] == '}' && !twice)
            return kg_jinja_fail(j, "expected }}, or } after {, found a single }");
        KG_TRY(kg_jinja_pay(j, 1));
        KG_TRY(kg_jinja_emit(j, t.bytes + i, 1));
        i += twice && (t.bytes[i] == '{' || t.bytes[i] == '}');
    }
    return kg_jinja_cut(out, j, mark);
}
