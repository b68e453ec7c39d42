/* A growable byte string, always NUL terminated, at most `max`. `{0}` is empty.
 *
 * Bytes are bytes: nothing here knows UTF-8. Also the edit distance behind every "did you
 * mean".
 */
#ifndef KG_BASE_STR_H
#define KG_BASE_STR_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct kg_str {
    char *data;      /* owned; NULL when nothing was ever appended */
    size_t len;      /* bytes without the NUL */
    size_t capacity; /* bytes */
    size_t max;      /* largest len; 0 means 1 GiB */
};

void kg_str_release(struct kg_str *s);
void kg_str_clear(struct kg_str *s);

/* n bytes more behind what is there, for the caller to fill.   errors: ENOMEM */
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

/* Hand the buffer over; s is empty afterwards.   returns owned NUL-terminated block or
 * NULL on ENOMEM */
char *kg_str_take(struct kg_str *s, struct kg_err *err) KG_MUST_CHECK;

/* Whether c is one of the characters of set. A NUL never is: strchr finds the end of the
 * set, so that a NUL in a text would count as each of its characters. */
static inline bool kg_char_in(const char *set, char c)
{
    return c != '\0' && strchr(set, c) != NULL;
}

/* Where it is in the set; NULL for what is not in it.   borrowed: a place in set */
static inline const char *kg_char_find(const char *set, char c)
{
    return c != '\0' ? strchr(set, c) : NULL;
}

/* A number as people write it, of so many digits: 0.3, 23000, 2.3e4 for what %g writes as
 * 2.3e+04.   text: of KG_NUMBER bytes.   returns text */
enum { KG_NUMBER = 40 };
const char *kg_number(char text[KG_NUMBER], double x, int digits);

/* Edit distance, for "did you mean". Text is compared byte by byte, case ignored. */
size_t kg_str_distance(const char *a, const char *b);

/* Of n names (every `stride` bytes a `const char *`), the nearest to `text`, or NULL when
 * none is near. */
const char *kg_str_nearest(const char *text, const void *names, size_t n, size_t stride);

/* Fail with "WHAT: expected one of a, b, c; found 'x'" ("WHAT: " is left out for NULL),
 * and "; did you mean 'b'?" where one is near; names as above.
 * returns code, or ENOMEM */
kg_status kg_str_unknown(kg_status code, const char *what, const char *found,
                         const void *names, size_t n, size_t stride, struct kg_err *err);

/* *index of the one of n names (as above) that is `name`.   errors: code, as
 * kg_str_unknown */
kg_status kg_str_pick(size_t *index, kg_status code, const char *what, const char *name,
                      const void *names, size_t n, size_t stride,
                      struct kg_err *err) KG_MUST_CHECK;

#endif
