/* Python regular expressions on short names, such as those of modules.
 *
 * PCRE2 agrees with Python's re except on `{,n}`, `[:` (also in a class, as in
 * `[^[:digit:]]`) and `(*`. These are always refused, even where both engines agree, as
 * on `[:]` and `\(*`. Classes such as \d contain ASCII only, as names do. The number of
 * steps of a match is bounded.
 */
#ifndef KG_TEXT_PATTERN_H
#define KG_TEXT_PATTERN_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_pattern; /* opaque; matched by one thread at a time */

enum kg_pattern_fit {
    KG_PATTERN_WHOLE, /* re.fullmatch(text, name) */
    KG_PATTERN_END,   /* re.match(rf"(.*\.)?({text})$", name): a suffix after a dot */
};
enum { KG_PATTERN_BYTES = 1024 /* bytes of the pattern, with its NUL */ };

/* text: borrowed
 * errors: EFORMAT (syntax, with offset; too long), EUNSUPPORTED (named above), ENOMEM */
kg_status kg_pattern_create(struct kg_pattern **out, const char *text,
                            enum kg_pattern_fit fit, struct kg_err *err) KG_MUST_CHECK;
void kg_pattern_free(struct kg_pattern *p); /* NULL is allowed */
/* Adds to *steps an upper bound of the steps taken, for callers with a budget over many
 * matches: 64 if the match took at most 64 (as most do), else less than 6 times the
 * steps.
 * errors: EFORMAT (too many steps), ENOMEM */
kg_status kg_pattern_matches(bool *out, int64_t *steps, const struct kg_pattern *p,
                             const char *name, struct kg_err *err) KG_MUST_CHECK;

#endif
