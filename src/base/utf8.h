/* What is UTF-8 and what is not: no surrogates, no overlong forms, nothing above
 * U+10FFFF.
 *
 * The rest of Unicode is in text/unicode.h, which has this too.
 */
#ifndef KG_BASE_UTF8_H
#define KG_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character at text (n > 0 bytes are there), or 0 where it is malformed. */
size_t kg_utf8_length(const char *text, size_t n);
/* Bytes that one U+FFFD stands for where the text is malformed (n > 0 bytes are there, no
 * character begins): as many as begin a character, else 1. The maximal subpart of the
 * Unicode standard, as Python and HuggingFace's tokenizers replace it. */
size_t kg_utf8_bad_length(const char *text, size_t n);
/* Bytes at the end of text that begin a character and do not end it: its first byte and
 * bytes that may follow one, too few of them. 0 for none. */
size_t kg_utf8_cut(const char *text, size_t n);
/* Bytes before the first that begins no character, and before the first that is not
 * ASCII; n where all are in order. */
size_t kg_utf8_valid_prefix(const char *text, size_t n);
size_t kg_utf8_ascii_prefix(const char *text, size_t n);
bool kg_utf8_is_valid(const char *text, size_t n);

/* returns the length in bytes, 1..4.   cp must be a scalar value */
size_t kg_utf8_encode(char out[4], uint32_t cp);

#endif
