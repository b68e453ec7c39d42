/* UTF-8 validation: no surrogates, no overlong forms, nothing above U+10FFFF.
 *
 * The rest of Unicode is in text/unicode.h, which includes this file.
 */
#ifndef KG_BASE_UTF8_H
#define KG_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character at text (n > 0 bytes are readable), or 0 if it is malformed. */
size_t kg_utf8_length(const char *text, size_t n);
/* Bytes that one U+FFFD replaces where text is malformed (n > 0 bytes are readable): the
 * length of the truncated character there, else 1. This is the Unicode standard's maximal
 * subpart, which Python and HuggingFace's tokenizers use. */
size_t kg_utf8_bad_length(const char *text, size_t n);
/* Length of an incomplete character at the end of text: a first byte and too few of the
 * bytes that must follow. 0 if there is none. */
size_t kg_utf8_cut(const char *text, size_t n);
/* Bytes before the first malformed character, and before the first byte that is not
 * ASCII; n if there is none. */
size_t kg_utf8_valid_prefix(const char *text, size_t n);
size_t kg_utf8_ascii_prefix(const char *text, size_t n);
bool kg_utf8_is_valid(const char *text, size_t n);

/* returns the length in bytes, 1..4.   cp must be a scalar value */
size_t kg_utf8_encode(char out[4], uint32_t cp);

#endif
