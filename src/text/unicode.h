/* UTF-8 and the part of Unicode that tokenizers need: code points, white space, normal
 * forms, grapheme clusters. classes.h has the character classes of tokenizers.
 *
 * Only unicode.c and classes.c use utf8proc, which has Unicode 15 (version 2.8). NFC of
 * an assigned character never changes between versions, so NFC agrees with HuggingFace's
 * for every character that both know.
 */
#ifndef KG_TEXT_UNICODE_H
#define KG_TEXT_UNICODE_H

#include "base/status.h"
#include "base/str.h"
#include "base/utf8.h" /* validity, and kg_utf8_encode */

#include <stdbool.h>
#include <stdint.h>

/* Checks UTF-8.   errors: EFORMAT naming the byte and its offset */
kg_status kg_utf8_check(const char *text, size_t n, struct kg_err *err) KG_MUST_CHECK;
/* Appends text; malformed parts become U+FFFD (kg_utf8_bad_length). */
kg_status kg_utf8_make_valid(struct kg_str *out, const char *text, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;

/* Decodes one code point of valid text.   returns its length in bytes, 1..4 */
size_t kg_utf8_decode(uint32_t *cp, const char *text);

/* A range of code points. kg_unicode_in: whether cp is in one of n ascending ranges. */
struct kg_unicode_range {
    uint32_t first, last;
};
bool kg_unicode_in(uint32_t cp, const struct kg_unicode_range *ranges, size_t n);
/* Whether cp's general category is in a set of bits 1 << UTF8PROC_CATEGORY_X. */
bool kg_unicode_is_of(uint32_t cp, uint32_t categories);

/* The White_Space property, which is \s in HuggingFace's regular expressions. Stable
 * since Unicode 6.3. */
bool kg_unicode_is_space(uint32_t cp);
/* Strip white space from [from, to) of text: the first returns the new `from`, the second
 * the new `to`. */
size_t kg_unicode_strip_left(const char *text, size_t from, size_t to);
size_t kg_unicode_strip_right(const char *text, size_t from, size_t to);
/* White space of Python's str.strip() and str.split(): includes U+001C to U+001F. */
bool kg_unicode_is_blank(uint32_t cp);

/* Categories and case for templates, one character at a time (no special casing: the
 * upper case of U+00DF is itself). */
bool kg_unicode_is_printable(uint32_t cp); /* as Python's repr shows it */
bool kg_unicode_is_alpha(uint32_t cp);     /* a letter */
bool kg_unicode_is_digit(uint32_t cp);     /* Nd */
bool kg_unicode_is_alnum(uint32_t cp);     /* a letter or a number (L, N) */
bool kg_unicode_is_cased(uint32_t cp);     /* upper, lower or title case */
/* Marks and punctuation that do not end a word when case changes: a capital sigma is
 * final if no cased character follows it or these. */
bool kg_unicode_is_case_ignorable(uint32_t cp);
uint32_t kg_unicode_upper(uint32_t cp);
uint32_t kg_unicode_lower(uint32_t cp);
uint32_t kg_unicode_title(uint32_t cp);

/* Whether a table of ranges shows that the text is NFC; false means unknown. */
bool kg_unicode_is_surely_nfc(const char *text, size_t n);

/* Appends the NFC form of valid UTF-8.   errors: ENOMEM.   source: UAX 15 */
kg_status kg_unicode_nfc(struct kg_str *out, const char *text, size_t n,
                         struct kg_err *err) KG_MUST_CHECK;
/* As kg_unicode_nfc, for the other forms and without a fast path: callers skip ASCII. */
enum kg_unicode_form { KG_UNICODE_NFD, KG_UNICODE_NFKC, KG_UNICODE_NFKD };
kg_status kg_unicode_normalize(struct kg_str *out, enum kg_unicode_form form,
                               const char *text, size_t n,
                               struct kg_err *err) KG_MUST_CHECK;

/* Bytes of the first extended grapheme cluster of text (n >= 1 bytes).
 * source: UAX 29 */
size_t kg_unicode_grapheme(const char *text, size_t n);

#endif
