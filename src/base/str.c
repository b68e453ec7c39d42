/* A growable byte string, and the edit distance behind "did you mean".
 *
 * Bytes, not characters: nothing here interprets UTF-8. The one idea: `data` is always
 * NUL terminated, so a finished string can be passed to any C function without a copy.
 */
#include "base/str.h"

#include "base/mem.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    DEFAULT_MAX_BYTES = 1 << 30,
    COMPARED_BYTES = 255, /* of a name; real ones are far shorter */
};

void kg_str_release(struct kg_str *s)
{
    kg_mem_free(s->data);
    s->data = NULL;
    s->len = s->capacity = 0;
}

void kg_str_clear(struct kg_str *s)
{
    s->len = 0;
    if (s->data)
        s->data[0] = '\0';
}

/* Room for n more bytes and the NUL. */
static kg_status make_room(struct kg_str *s, size_t n, struct kg_err *err)
{
    size_t max = s->max ? s->max : DEFAULT_MAX_BYTES;

    if (n > max || s->len > max - n)
        return kg_fail(err, KG_ENOMEM,
                       "text of %zu bytes cannot grow by %zu: the limit is %zu", s->len,
                       n, max);
    return kg_mem_grow(&s->data, &s->capacity, s->len + n + 1, 1, max + 1, "text", err);
}

kg_status kg_str_extend(struct kg_str *s, size_t n, struct kg_err *err)
{
    KG_TRY(make_room(s, n, err));
    s->len += n;
    s->data[s->len] = '\0';
    return KG_OK;
}

kg_status kg_str_append(struct kg_str *s, const void *bytes, size_t n, struct kg_err *err)
{
    KG_TRY(kg_str_extend(s, n, err));
    if (n > 0)
        memcpy(s->data + s->len - n, bytes, n);
    return KG_OK;
}

kg_status kg_str_puts(struct kg_str *s, const char *text, struct kg_err *err)
{
    return kg_str_append(s, text, strlen(text), err);
}

kg_status kg_str_putc(struct kg_str *s, char byte, struct kg_err *err)
{
    return kg_str_append(s, &byte, 1, err);
}

kg_status kg_str_printf(struct kg_str *s, struct kg_err *err, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0)
        return kg_fail(err, KG_EINVAL, "text cannot be formatted by \"%s\"", fmt);
    KG_TRY(make_room(s, (size_t)n, err));
    va_start(args, fmt);
    vsnprintf(s->data + s->len, (size_t)n + 1, fmt, args);
    va_end(args);
    s->len += (size_t)n;
    return KG_OK;
}

const char *kg_str_text(const struct kg_str *s) { return s->data ? s->data : ""; }

char *kg_str_take(struct kg_str *s, struct kg_err *err)
{
    if (!s->data && make_room(s, 0, err) != KG_OK)
        return NULL;
    char *text = s->data;
    s->data = NULL;
    s->len = s->capacity = 0;
    return text;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

const char *kg_number(char text[KG_NUMBER], double x, int digits)
{
    char *exponent, *from;

    snprintf(text, KG_NUMBER, "%.*g", digits < 17 ? digits : 17, x);
    exponent = strchr(text, 'e');
    if (!exponent)
        return text;
    from = ++exponent;
    if (*from == '-')
        exponent++;
    from += strspn(from, "+-0");
    memmove(exponent, from, strlen(from) + 1);
    return text;
}

bool kg_str_listed(const char *names, const char *name, size_t n)
{
    size_t len;

    for (const char *at = names + strspn(names, " "); *at; at += strspn(at, " ")) {
        len = strcspn(at, " ");
        if (len == n && memcmp(at, name, n) == 0)
            return true;
        at += len;
    }
    return false;
}

/* Levenshtein by rows: row[j] is the distance of a[0..i) to b[0..j). Beyond
 * COMPARED_BYTES only the difference in length counts. */
size_t kg_str_distance(const char *a, const char *b)
{
    size_t row[COMPARED_BYTES + 1];
    size_t full_na = strlen(a);
    size_t full_nb = strlen(b);
    size_t na = smaller(full_na, COMPARED_BYTES);
    size_t nb = smaller(full_nb, COMPARED_BYTES);

    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0]; /* distance of a[0..i-1) to b[0..j-1) */
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            bool same = tolower((unsigned char)a[i - 1]) ==
                        tolower((unsigned char)b[j - 1]);
            size_t swapped = diagonal + (same ? 0 : 1);
            diagonal = row[j];
            row[j] = smaller(swapped, smaller(row[j], row[j - 1]) + 1);
        }
    }
    size_t rest_a = full_na - na;
    size_t rest_b = full_nb - nb;
    return row[nb] + (rest_a > rest_b ? rest_a - rest_b : rest_b - rest_a);
}

static const char *name_at(const void *names, size_t i, size_t stride)
{
    const char *name;

    memcpy(&name, (const unsigned char *)names + i * stride, sizeof name);
    return name;
}

const char *kg_str_nearest(const char *text, const void *names, size_t n, size_t stride)
{
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;

    for (size_t i = 0; i < n; i++) {
        const char *name = name_at(names, i, stride);
        size_t longer = strlen(name) > strlen(text) ? strlen(name) : strlen(text);
        size_t d = kg_str_distance(text, name);
        /* Near: at most a third of the letters differ, and some agree. */
        if (d < best_distance && d < longer && d <= (longer + 2) / 3) {
            best = name;
            best_distance = d;
        }
    }
    return best;
}

kg_status kg_str_unknown(kg_status code, const char *what, const char *found,
                         const void *names, size_t n, size_t stride, struct kg_err *err)
{
    struct kg_str list = {.max = KG_ERR_MESSAGE_BYTES};
    const char *near = kg_str_nearest(found, names, n, stride);
    kg_status status = KG_OK;

    for (size_t i = 0; i < n && status == KG_OK; i++)
        status = kg_str_printf(&list, err, "%s%s", i > 0 ? ", " : "",
                               name_at(names, i, stride));
    if (status != KG_ENOMEM) /* a list too long for a message is cut */
        status = kg_fail(err, code, "%s%sexpected one of %s; found '%s'%s%s%s",
                         what ? what : "", what ? ": " : "", kg_str_text(&list), found,
                         near ? "; did you mean '" : "", near ? near : "",
                         near ? "'?" : "");
    kg_str_release(&list);
    return status;
}

kg_status kg_str_pick(size_t *index, kg_status code, const char *what, const char *name,
                      const void *names, size_t n, size_t stride, struct kg_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name_at(names, i, stride), name) == 0) {
            *index = i;
            return KG_OK;
        }
    return kg_str_unknown(code, what, name, names, n, stride, err);
}
