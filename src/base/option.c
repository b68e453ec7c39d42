/* A value of an option: text checked against its row, and put into a field.
 *
 * The one idea: a text that passes the check can be stored without any error. So a reader
 * of options (YAML, a command line, a preset) reports the place of every wrong text, and
 * the code that uses the options checks only combinations.
 */
#include "base/option.h"

#include "base/str.h"
#include "base/utf8.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHOWN_BYTES = 60, /* of a wrong value, in the error */
    MAX_CHOICES = 32,
    MAX_CHOICE_BYTES = 512, /* of all choices of a row */
};

static bool is_whole(const struct kg_opt_row *row)
{
    return row->type == KG_OPT_INT || row->type == KG_OPT_INT32;
}

bool kg_opt_is_number(const struct kg_opt_row *row)
{
    return is_whole(row) || row->type == KG_OPT_REAL || row->type == KG_OPT_FLOAT;
}

static bool has_range(const struct kg_opt_row *row)
{
    return row->min != 0 || row->max != 0;
}

/* ---- refusing ---- */

static const char *kind_of(const struct kg_opt_row *row)
{
    if (row->choices)
        return "one of ";
    if (kg_opt_is_number(row))
        return is_whole(row) ? "an integer" : "a number";
    if (row->type == KG_OPT_BOOL)
        return "true or false";
    return row->type == KG_OPT_LIST ? "a list of texts" : "text";
}

static kg_status put_expected(struct kg_str *out, const struct kg_opt_row *row,
                              const char *found, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "expected %s", kind_of(row)));
    for (const char *p = row->choices; p && *p; p++)
        KG_TRY(kg_str_puts(out, *p == '|' ? ", " : (char[]){*p, '\0'}, err));
    if (kg_opt_is_number(row) && has_range(row))
        KG_TRY(kg_str_printf(out, err, " from %.15g to %.15g%s", row->min, row->max,
                             row->or_zero ? ", or 0" : ""));
    return kg_str_printf(out, err, ", found %s", found);
}

kg_status kg_opt_refuse(const struct kg_opt_row *row, const char *found,
                        const char *where, struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status = put_expected(&text, row, found, err);

    if (status == KG_OK)
        status = kg_fail(err, KG_EINVAL, "%s%s%s: %s", where ? where : "",
                         where ? ": " : "", row->key, text.data);
    kg_str_release(&text);
    return status;
}

static kg_status refuse_text(const struct kg_opt_row *row, const char *text,
                             const char *where, struct kg_err *err)
{
    char found[SHOWN_BYTES + 8];
    size_t n = strlen(text);
    bool cut = n > SHOWN_BYTES;

    n = cut ? SHOWN_BYTES : n;
    while (cut && n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--; /* not inside a character */
    snprintf(found, sizeof found, "'%.*s%s'", (int)n, text, cut ? "..." : "");
    return kg_opt_refuse(row, found, where, err);
}

/* ---- numbers ---- */

static const char *skip_digits(const char *p)
{
    while (*p >= '0' && *p <= '9')
        p++;
    return p;
}

static const char *skip_sign(const char *p) { return *p == '+' || *p == '-' ? p + 1 : p; }

/* An optional sign and decimal digits. */
static bool read_int(int64_t *out, const char *text)
{
    const char *digits = skip_sign(text);
    const char *end = skip_digits(digits);

    if (end == digits || *end)
        return false;
    errno = 0;
    *out = strtoll(text, NULL, 10);
    return errno == 0;
}

/* Decimal, with optional fraction and exponent; neither hexadecimal nor infinities. */
static bool read_real(double *out, const char *text)
{
    const char *digits = skip_sign(text);
    const char *p = skip_digits(digits);
    size_t n = (size_t)(p - digits);

    if (*p == '.') {
        const char *fraction = p + 1;
        p = skip_digits(fraction);
        n += (size_t)(p - fraction);
    }
    if (n > 0 && (*p == 'e' || *p == 'E')) {
        const char *exponent = skip_sign(p + 1);
        p = skip_digits(exponent);
        if (p == exponent)
            return false;
    }
    if (n == 0 || *p)
        return false;
    *out = strtod(text, NULL);
    return isfinite(*out);
}

/* A limit as int64. INT64_MAX rounds to 2^63 as a double, which no int64 can hold. */
static int64_t whole_limit(double x)
{
    return x >= 0x1p63 ? INT64_MAX : x <= -0x1p63 ? INT64_MIN : (int64_t)x;
}

static bool is_within(const struct kg_opt_row *row, int64_t n, double x)
{
    if (is_whole(row))
        return n >= whole_limit(row->min) && n <= whole_limit(row->max);
    return kg_opt_allows(row, x);
}

bool kg_opt_allows(const struct kg_opt_row *row, double x)
{
    const bool is_float = row->type == KG_OPT_FLOAT; /* then limits round as x does */
    const double min = is_float ? (double)(float)row->min : row->min;
    const double max = is_float ? (double)(float)row->max : row->max;

    return !has_range(row) || (x >= min && x <= max) || (row->or_zero && x == 0);
}

double kg_opt_number(const struct kg_opt_row *row, const void *of)
{
    const void *field = (const char *)of + row->at;

    return row->type == KG_OPT_INT     ? (double)*(const int64_t *)field
           : row->type == KG_OPT_INT32 ? *(const int *)field
           : row->type == KG_OPT_FLOAT ? (double)*(const float *)field
                                       : *(const double *)field;
}

kg_status kg_opt_check_field(const struct kg_opt_row *row, const void *of,
                             struct kg_err *err)
{
    char found[40];

    if (kg_opt_allows(row, kg_opt_number(row, of)))
        return KG_OK;
    snprintf(found, sizeof found, "%g", kg_opt_number(row, of));
    return kg_opt_refuse(row, found, NULL, err);
}

static kg_status check_number(const struct kg_opt_row *row, const char *text,
                              const char *where, struct kg_err *err)
{
    int64_t n = 0;
    double x = 0;
    bool ok = is_whole(row) ? read_int(&n, text) : read_real(&x, text);

    if (row->type == KG_OPT_INT32)
        ok = ok && n >= INT32_MIN && n <= INT32_MAX;
    if (row->type == KG_OPT_FLOAT) /* a value other than 0 must not round to 0 */
        ok = ok && (x == 0 || (float)x != 0) && isfinite((float)x);
    if (!ok || (has_range(row) && !is_within(row, n, x)))
        return refuse_text(row, text, where, err);
    return KG_OK;
}

/* ---- choices ---- */

/* The index of text in "a|b|c"; -1: not in it. */
static int place_of(const char *choices, const char *text)
{
    size_t n = strlen(text);

    for (int i = 0;; i++) {
        size_t len = strcspn(choices, "|");

        if (len == n && memcmp(choices, text, n) == 0)
            return i;
        if (!choices[len])
            return -1;
        choices += len + 1;
    }
}

static kg_status check_choice(const struct kg_opt_row *row, const char *text,
                              const char *where, struct kg_err *err)
{
    char pool[MAX_CHOICE_BYTES];
    const char *names[MAX_CHOICES], *near;
    size_t n = 0, used;

    if (place_of(row->choices, text) >= 0)
        return KG_OK;
    assert(strlen(row->choices) < sizeof pool);
    snprintf(pool, sizeof pool, "%s", row->choices);
    for (char *p = pool; p && n < MAX_CHOICES; n++) {
        names[n] = p;
        p = strchr(p, '|');
        if (p)
            *p++ = '\0';
    }
    near = kg_str_nearest(text, names, n, sizeof *names);
    kg_status status = refuse_text(row, text, where, err);
    used = strlen(err->message);
    if (near && status == KG_EINVAL)
        snprintf(err->message + used, sizeof err->message - used, "; did you mean '%s'?",
                 near);
    return status;
}

/* ---- interface ---- */

kg_status kg_opt_check(const struct kg_opt_row *row, const char *text, const char *where,
                       struct kg_err *err)
{
    size_t n = strlen(text), good = kg_utf8_valid_prefix(text, n);

    if (good < n)
        return kg_fail(err, KG_EINVAL,
                       "%s%s%s: expected UTF-8 text, found byte 0x%02x at %zu",
                       where ? where : "", where ? ": " : "", row->key,
                       (unsigned char)text[good], good);
    if (row->choices)
        return check_choice(row, text, where, err);
    if (kg_opt_is_number(row))
        return check_number(row, text, where, err);
    if (row->type == KG_OPT_BOOL && place_of("false|true", text) < 0)
        return refuse_text(row, text, where, err);
    return KG_OK;
}

bool kg_opt_same(const struct kg_opt_row *row, const char *a, const char *b)
{
    if (is_whole(row))
        return strtoll(a, NULL, 10) == strtoll(b, NULL, 10);
    if (kg_opt_is_number(row))
        return strtod(a, NULL) == strtod(b, NULL);
    return strcmp(a, b) == 0;
}

void kg_opt_put(void *into, const struct kg_opt_row *row, const char *text)
{
    void *field = (char *)into + row->at;
    int place = row->choices ? place_of(row->choices, text) : 0;

    switch (row->type) {
    case KG_OPT_BOOL:
        *(bool *)field = row->choices ? place == 1 : strcmp(text, "true") == 0;
        return;
    case KG_OPT_ENUM:
        *(unsigned *)field = (unsigned)place;
        return;
    case KG_OPT_INT:
        *(int64_t *)field = strtoll(text, NULL, 10);
        return;
    case KG_OPT_INT32:
        *(int *)field = (int)strtoll(text, NULL, 10);
        return;
    case KG_OPT_REAL:
        *(double *)field = strtod(text, NULL);
        return;
    case KG_OPT_FLOAT:
        *(float *)field = (float)strtod(text, NULL);
        return;
    case KG_OPT_STRING:
        *(const char **)field = text;
        return;
    case KG_OPT_LIST:
        break;
    }
    assert(!"a list is not put as text");
}
