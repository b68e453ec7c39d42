/* A growable byte string, always NUL terminated, at most `max` bytes. `{0}` is empty.
 *
 * Functions do not interpret bytes (UTF-8: base/utf8.h), except those for "did you mean".
 */
#ifndef KG_BASE_STR_H
#define KG_BASE_STR_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct kg_str {
    char *data;      /* owned; NULL before the first append */
    size_t len;      /* bytes without the NUL */
    size_t capacity; /* bytes */
    size_t max;      /* largest len; 0 means 1 GiB */
};

void kg_str_release(struct kg_str *s);
void kg_str_clear(struct kg_str *s);

/* Adds n bytes at the end, for the caller to fill.   errors: ENOMEM */
kg_status kg_str_extend(struct kg_str *s, size_t n, struct kg_err *err) KG_MUST_CHECK;
/* Append bytes, a C string, one byte, formatted text.   errors: ENOMEM */
kg_status kg_str_append(struct kg_str *s, const void *bytes, size_t n,
                        struct kg_err *err) KG_MUST_CHECK;
kg_status kg_str_puts(struct kg_str *s, const char *text,
                      struct kg_err *err) KG_MUST_CHECK;
kg_status kg_str_putc(struct kg_str *s, char byte, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_str_printf(struct kg_str *s, struct kg_err *err, const char *fmt, ...)
    KG_PRINTF(3, 4) KG_MUST_CHECK;

/* The text, "" when empty.   borrowed */
const char *kg_str_text(const struct kg_str *s);

/* Hands the buffer over; s is empty afterwards.   returns owned NUL-terminated block or
 * NULL on ENOMEM */
char *kg_str_take(struct kg_str *s, struct kg_err *err) KG_MUST_CHECK;

/* Whether c is one of the characters of set. Never true for NUL, which strchr would find
 * at the end of every set. */
static inline bool kg_char_in(const char *set, char c)
{
    return c != '\0' && strchr(set, c) != NULL;
}

/* The position of c in set, or NULL.   borrowed from set */
static inline const char *kg_char_find(const char *set, char c)
{
    return c != '\0' ? strchr(set, c) : NULL;
}

/* Whether a list of names, "one two three", has this name (n bytes). */
bool kg_str_listed(const char *names, const char *name, size_t n);

/* Formats a number for people with `digits` significant digits: 0.3, 23000, 2.3e4 (%g
 * writes 2.3e+04). text: KG_NUMBER bytes.   returns text */
enum { KG_NUMBER = 40 };
const char *kg_number(char text[KG_NUMBER], double x, int digits);

/* Edit distance, for "did you mean". Compares bytes, ignoring ASCII case. */
size_t kg_str_distance(const char *a, const char *b);

/* The name nearest to `text`, or NULL if none is near. names: n `const char *`, `stride`
 * bytes apart */
const char *kg_str_nearest(const char *text, const void *names, size_t n, size_t stride);

/* Fails with "WHAT: expected one of a, b, c; found 'x'" (no "WHAT: " if NULL), plus ";
 * did you mean 'b'?" if one is near. names: as kg_str_nearest.
 * returns code, or ENOMEM */
kg_status kg_str_unknown(kg_status code, const char *what, const char *found,
                         const void *names, size_t n, size_t stride, struct kg_err *err);

/* *index <- the index of `name` in names (as kg_str_nearest).   errors: those of
 * kg_str_unknown */
kg_status kg_str_pick(size_t *index, kg_status code, const char *what, const char *name,
                      const void *names, size_t n, size_t stride,
                      struct kg_err *err) KG_MUST_CHECK;

#endif
