/* The mapping of bytes to visible characters that tokenizer.json uses.
 * source: bytes_to_unicode of OpenAI's GPT-2 encoder. Printable Latin-1 maps to itself;
 * the other 68 bytes map to U+0100 onwards in order (space is U+0120). */
#ifndef KG_TEXT_BYTELEVEL_H
#define KG_TEXT_BYTELEVEL_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>

/* Appends n bytes as characters.   errors: ENOMEM */
kg_status kg_bytelevel_spell(struct kg_str *out, const char *bytes, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;

/* Appends the bytes of a spelling. If it has any character outside the mapping, appends
 * its UTF-8 unchanged and sets *raw. text: valid UTF-8.
 * errors: ENOMEM */
kg_status kg_bytelevel_unspell(struct kg_str *out, bool *raw, const char *text, size_t n,
                               struct kg_err *err) KG_MUST_CHECK;

/* Base64. */

/* Appends n bytes as base64 with padding.   errors: ENOMEM */
kg_status kg_base64_put(struct kg_str *out, const char *bytes, size_t n,
                        struct kg_err *err) KG_MUST_CHECK;

/* Appends the decoded bytes. *valid: whether the text is base64; if not, some bytes may
 * have been appended.
 * errors: ENOMEM */
kg_status kg_base64_decode(struct kg_str *out, const char *text, size_t n, bool *valid,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
