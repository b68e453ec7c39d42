/* UTF-8 and the little Unicode that tokenizers need: code points, white space, normal
 * forms, grapheme clusters. What only their parts take for a class is in classes.h.
 *
 * utf8proc stands behind unicode.c alone. It knows Unicode 15 (version 2.8); NFC of a
 * character never changes between Unicode versions once it is assigned, so NFC agrees
 * with HuggingFace's for every character both know.
 */
#ifndef KG_TEXT_UNICODE_H
#define KG_TEXT_UNICODE_H

#include "base/status.h"
#include "base/str.h"
#include "base/utf8.h" /* what is valid, and kg_utf8_encode */

#include <stdbool.h>
#include <stdint.h>

/* EFORMAT naming the byte and its offset when the text is not UTF-8. */
kg_status kg_utf8_check(const char *text, size_t n, struct kg_err *err) KG_MUST_CHECK;
/* Append the text; what is not UTF-8 becomes U+FFFD (kg_utf8_bad_length). */
kg_status kg_utf8_make_valid(struct kg_str *out, const char *text, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;

/* One code point of valid text (1..4 bytes read).   returns its length in bytes */
size_t kg_utf8_decode(uint32_t *cp, const char *text);

/* The White_Space property: what \s means to HuggingFace's regular expressions. It is
 * stable since Unicode 6.3. */
bool kg_unicode_is_space(uint32_t cp);
/* [from, to) of text without the white space that it begins with: the new `from`; or
 * ends with: the new `to`. */
size_t kg_unicode_strip_left(const char *text, size_t from, size_t to);
size_t kg_unicode_strip_right(const char *text, size_t from, size_t to);
/* What Python's str.strip() and str.split() take for it: U+001C to U+001F too. */
bool kg_unicode_is_blank(uint32_t cp);

/* What templates need of categories and case, character by character (no special casing:
 * the upper case of U+00DF is itself). */
bool kg_unicode_is_printable(uint32_t cp); /* as Python's repr shows it */
bool kg_unicode_is_alpha(uint32_t cp);     /* a letter */
bool kg_unicode_is_digit(uint32_t cp);     /* Nd */
bool kg_unicode_is_alnum(uint32_t cp);     /* a letter or a number (L, N) */
bool kg_unicode_is_cased(uint32_t cp);     /* upper, lower or title case */
/* Marks, signs and points that do not end a word for its case: a capital sigma is final
 * when no cased character stands behind it, these skipped. */
bool kg_unicode_is_case_ignorable(uint32_t cp);
uint32_t kg_unicode_upper(uint32_t cp);
uint32_t kg_unicode_lower(uint32_t cp);
uint32_t kg_unicode_title(uint32_t cp);

/* True when the text is certainly NFC already, by a table of ranges; false means "not
 * known". */
bool kg_unicode_is_surely_nfc(const char *text, size_t n);

/* Append the NFC form of valid UTF-8.   errors: ENOMEM.   source: UAX 15 */
kg_status kg_unicode_nfc(struct kg_str *out, const char *text, size_t n,
                         struct kg_err *err) KG_MUST_CHECK;
/* The same for the other forms, which have no short cut but for ASCII. */
enum kg_unicode_form { KG_UNICODE_NFD, KG_UNICODE_NFKC, KG_UNICODE_NFKD };
kg_status kg_unicode_normalize(struct kg_str *out, enum kg_unicode_form form,
                               const char *text, size_t n,
                               struct kg_err *err) KG_MUST_CHECK;

/* Bytes of the extended grapheme cluster that text (n >= 1 bytes) begins with.
 * source: UAX 29 */
size_t kg_unicode_grapheme(const char *text, size_t n);

#endif
