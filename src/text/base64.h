/* Decodes base64. */
#ifndef KG_TEXT_BASE64_H
#define KG_TEXT_BASE64_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>

/* Appends the decoded bytes. *valid: whether the text is base64; if not, some bytes may
 * have been appended.
 * errors: ENOMEM */
kg_status kg_base64_decode(struct kg_str *out, const char *text, size_t n, bool *valid,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
