/* Regular expressions of Python's re on short names, such as those of modules.
 *
 * PCRE2 reads what Python does but for a few constructs: `{,n}`, `[:` (also within a
 * class, as in `[^[:digit:]]`) and `(*` mean something else there, or nothing, and are
 * refused, even where both would take them alike, as in `[:]` and `\(*`. Classes such
 * as \d are those of ASCII, which names are of. A match gives up after so many steps.
 */
#ifndef KG_TEXT_PATTERN_H
#define KG_TEXT_PATTERN_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_pattern; /* opaque; matched by one thread at a time */

enum kg_pattern_fit {
    KG_PATTERN_WHOLE, /* re.fullmatch(text, name) */
    KG_PATTERN_END,   /* re.match(rf"(.*\.)?({text})$", name): an end behind a dot */
};
enum { KG_PATTERN_BYTES = 1024 /* of text, with its NUL */ };

/* text: borrowed
 * errors: EFORMAT (syntax, with offset; too long), UNSUPPORTED (named above), ENOMEM */
kg_status kg_pattern_create(struct kg_pattern **out, const char *text,
                            enum kg_pattern_fit fit, struct kg_err *err) KG_MUST_CHECK;
void kg_pattern_free(struct kg_pattern *p); /* NULL is allowed */
/* *steps grows by what it took at least, for those who have a budget for many: by 64
 * where it took no more, as most do, and by less than 6 times what it took where it did
 * errors: EFORMAT (too many steps), ENOMEM */
kg_status kg_pattern_matches(bool *out, int64_t *steps, const struct kg_pattern *p,
                             const char *name, struct kg_err *err) KG_MUST_CHECK;

#endif
