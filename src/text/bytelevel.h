/* The spelling of bytes as characters that tokenizer.json uses: every byte is one visible
 * character.
 *
 * source: bytes_to_unicode of OpenAI's GPT-2 encoder: printable Latin-1 stands for
 * itself, the other 68 bytes take U+0100 onwards in order (space is U+0120).
 */
#ifndef KG_TEXT_BYTELEVEL_H
#define KG_TEXT_BYTELEVEL_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>

/* Append the spelling of n bytes.   errors: ENOMEM */
kg_status kg_bytelevel_spell(struct kg_str *out, const char *bytes, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;

/* Append the bytes that a spelling stands for. A spelling with any other character is a
 * token of its own: then its UTF-8 is appended and *raw is true.   text: valid UTF-8.
 * errors: ENOMEM */
kg_status kg_bytelevel_unspell(struct kg_str *out, bool *raw, const char *text, size_t n,
                               struct kg_err *err) KG_MUST_CHECK;

#endif
