/* UTF-8, normal forms and categories, on utf8proc.
 *
 * Most text is NFC already. A table of ranges has the characters before which a text may
 * be split for normalisation: they have combining class 0, equal their own NFC form, and
 * never join with the text before them. Runs of such characters are copied. The library
 * normalises only the text between two runs, together with the last character of the
 * first run, because a mark may join to that.
 *
 * Not here: categories for regular expressions (pretoken.c), classes (classes.c).
 */
#include "text/unicode.h"

#include "base/mem.h"

#include <string.h>

#include <utf8proc.h>

/* A set of general categories. */
#define SET(name) (1u << UTF8PROC_CATEGORY_##name)
#define CASED     (SET(LU) | SET(LL) | SET(LT))
#define LETTERS   (CASED | SET(LM) | SET(LO))

/* Common scripts only; other characters take the slow path. unicode_test.c checks every
 * member. */
static const struct kg_unicode_range SAFE[] = {
    {0x0000, 0x02FF},   /* Latin, IPA */
    {0x0400, 0x0482},   /* Cyrillic */
    {0x11A7, 0x11A7},   /* no Hangul final, but utf8proc takes it for one and drops it */
    {0x2010, 0x2027},   /* punctuation */
    {0x2190, 0x21FF},   /* arrows */
    {0x2500, 0x25FF},   /* boxes, shapes */
    {0x3001, 0x3029},   /* CJK punctuation */
    {0x3041, 0x3096},   /* Hiragana */
    {0x30A1, 0x30FA},   /* Katakana */
    {0x4E00, 0x9FFF},   /* CJK ideographs */
    {0xAC00, 0xD7A3},   /* Hangul syllables */
    {0xFF01, 0xFF60},   /* full width forms */
    {0x1F300, 0x1FAFF}, /* pictographs */
};

static const struct kg_unicode_range SPACES[] = {
    {0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
    {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
    {0x205F, 0x205F}, {0x3000, 0x3000},
};

bool kg_unicode_in(uint32_t cp, const struct kg_unicode_range *ranges, size_t n)
{
    size_t low = 0;
    while (low < n) {
        size_t mid = low + (n - low) / 2;
        if (cp < ranges[mid].first)
            n = mid;
        else if (cp > ranges[mid].last)
            low = mid + 1;
        else
            return true;
    }
    return false;
}

static bool is_safe(uint32_t cp)
{
    return cp <= SAFE[0].last || kg_unicode_in(cp, SAFE, sizeof SAFE / sizeof *SAFE);
}

bool kg_unicode_is_space(uint32_t cp)
{
    return kg_unicode_in(cp, SPACES, sizeof SPACES / sizeof *SPACES);
}

bool kg_unicode_is_blank(uint32_t cp)
{
    return kg_unicode_is_space(cp) || (cp >= 0x1c && cp <= 0x1f);
}

kg_status kg_utf8_check(const char *text, size_t n, struct kg_err *err)
{
    size_t ok = kg_utf8_valid_prefix(text, n);
    if (ok == n)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "text is not UTF-8: invalid sequence at byte offset %zu (0x%02x)", ok,
                   (unsigned char)text[ok]);
}

kg_status kg_utf8_make_valid(struct kg_str *out, const char *text, size_t n,
                             struct kg_err *err)
{
    for (size_t at = 0; at < n;) {
        size_t good = kg_utf8_valid_prefix(text + at, n - at);

        KG_TRY(kg_str_append(out, text + at, good, err));
        at += good;
        if (at == n)
            break;
        KG_TRY(kg_str_puts(out, "\xEF\xBF\xBD", err));
        at += kg_utf8_bad_length(text + at, n - at);
    }
    return KG_OK;
}

size_t kg_utf8_decode(uint32_t *cp, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) {
        *cp = s[0];
        return 1;
    }
    if (s[0] < 0xE0) {
        *cp = (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
        return 2;
    }
    if (s[0] < 0xF0) {
        *cp = (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 |
              (s[2] & 0x3F);
        return 3;
    }
    *cp = (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 |
          (uint32_t)(s[2] & 0x3F) << 6 | (s[3] & 0x3F);
    return 4;
}

size_t kg_unicode_strip_left(const char *text, size_t from, size_t to)
{
    while (from < to) {
        uint32_t cp;
        size_t len = kg_utf8_decode(&cp, text + from);
        if (!kg_unicode_is_space(cp))
            break;
        from += len;
    }
    return from;
}

size_t kg_unicode_strip_right(const char *text, size_t from, size_t to)
{
    while (to > from) {
        uint32_t cp;
        size_t start = to - 1;
        while (start > from && ((unsigned char)text[start] & 0xC0) == 0x80)
            start--;
        kg_utf8_decode(&cp, text + start);
        if (!kg_unicode_is_space(cp))
            break;
        to = start;
    }
    return to;
}

bool kg_unicode_is_surely_nfc(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n) {
        i += kg_utf8_ascii_prefix(text + i, n - i);
        if (i == n)
            break;
        uint32_t cp;
        i += kg_utf8_decode(&cp, text + i);
        if (!is_safe(cp))
            return false;
    }
    return true;
}

static kg_status library_form(struct kg_str *out, utf8proc_option_t options,
                              const char *text, size_t n, struct kg_err *err)
{
    const utf8proc_uint8_t *bytes = (const utf8proc_uint8_t *)text;
    kg_status status = KG_OK;
    utf8proc_ssize_t need = utf8proc_decompose(bytes, (utf8proc_ssize_t)n, NULL, 0,
                                               options);
    if (need < 0)
        return kg_fail(err, KG_EFORMAT, "normalising %zu bytes: %s", n,
                       utf8proc_errmsg(need));
    /* One extra word: reencode puts a NUL after what it writes into the same block. */
    utf8proc_int32_t *cps = kg_mem_calloc((size_t)need + 1, sizeof *cps, "normal form",
                                          err);
    if (!cps)
        return err->code;
    utf8proc_ssize_t len = utf8proc_decompose(bytes, (utf8proc_ssize_t)n, cps, need,
                                              options);
    if (len >= 0)
        len = utf8proc_reencode(cps, len, options);
    if (len < 0)
        status = kg_fail(err, KG_EFORMAT, "normalising %zu bytes: %s", n,
                         utf8proc_errmsg(len));
    else
        status = kg_str_append(out, cps, (size_t)len, err);
    kg_mem_free(cps);
    return status;
}

kg_status kg_unicode_nfc(struct kg_str *out, const char *text, size_t n,
                         struct kg_err *err)
{
    size_t copied = 0; /* everything before is in out */
    size_t last = 0; /* start of the newest safe character: a later mark may join to it */
    size_t i = 0;
    while (i < n) {
        uint32_t cp;
        size_t len = kg_utf8_decode(&cp, text + i);
        if (is_safe(cp)) {
            last = i;
            i += len;
            continue;
        }
        size_t end = i + len;
        while (end < n) {
            len = kg_utf8_decode(&cp, text + end);
            if (is_safe(cp))
                break;
            end += len;
        }
        KG_TRY(kg_str_append(out, text + copied, last - copied, err));
        KG_TRY(library_form(out, UTF8PROC_STABLE | UTF8PROC_COMPOSE, text + last,
                            end - last, err));
        copied = last = i = end;
    }
    return kg_str_append(out, text + copied, n - copied, err);
}

/* Offset of the first U+11A7, or n. When utf8proc composes, it takes this letter, which
 * joins with nothing, for a Hangul final and drops it. */
static size_t find_11a7(const char *text, size_t n)
{
    for (size_t i = 0; i + 3 <= n; i++)
        if (memcmp(text + i, "\xE1\x86\xA7", 3) == 0)
            return i;
    return n;
}

kg_status kg_unicode_normalize(struct kg_str *out, enum kg_unicode_form form,
                               const char *text, size_t n, struct kg_err *err)
{
    static const int options[] = {
        [KG_UNICODE_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [KG_UNICODE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [KG_UNICODE_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    for (size_t at = 0; at < n;) {
        size_t end = at + find_11a7(text + at, n - at);
        if (end > at)
            KG_TRY(library_form(out, (utf8proc_option_t)options[form], text + at,
                                end - at, err));
        at = end < n ? end + 3 : n;
        KG_TRY(kg_str_append(out, text + end, at - end, err));
    }
    return KG_OK;
}

size_t kg_unicode_grapheme(const char *text, size_t n)
{
    utf8proc_int32_t state = 0;
    uint32_t before, cp;
    size_t at = kg_utf8_decode(&before, text);

    while (at < n) {
        size_t len = kg_utf8_decode(&cp, text + at);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)before,
                                             (utf8proc_int32_t)cp, &state))
            break;
        before = cp;
        at += len;
    }
    return at;
}

/* ---- categories and case ---- */

bool kg_unicode_is_of(uint32_t cp, uint32_t categories)
{
    return categories >> utf8proc_category((utf8proc_int32_t)cp) & 1;
}

bool kg_unicode_is_printable(uint32_t cp)
{
    return cp == ' ' || !kg_unicode_is_of(cp, SET(CC) | SET(CF) | SET(CN) | SET(CO) |
                                                  SET(CS) | SET(ZL) | SET(ZP) | SET(ZS));
}

bool kg_unicode_is_alpha(uint32_t cp) { return kg_unicode_is_of(cp, LETTERS); }

bool kg_unicode_is_digit(uint32_t cp) { return kg_unicode_is_of(cp, SET(ND)); }

bool kg_unicode_is_alnum(uint32_t cp)
{
    return kg_unicode_is_of(cp, LETTERS | SET(ND) | SET(NL) | SET(NO));
}

bool kg_unicode_is_cased(uint32_t cp)
{
    /* also numbers and signs that have case, and the two ordinals */
    return kg_unicode_is_of(cp, CASED) || kg_unicode_lower(cp) != cp ||
           kg_unicode_upper(cp) != cp || cp == 0xAA || cp == 0xBA;
}

bool kg_unicode_is_case_ignorable(uint32_t cp)
{
    static const struct kg_unicode_range POINTS[] = {
        {'\'', '\''},     {'.', '.'},       {':', ':'},       {0xB7, 0xB7},
        {0x387, 0x387},   {0x55F, 0x55F},   {0x5F4, 0x5F4},   {0x2018, 0x2019},
        {0x2024, 0x2024}, {0x2027, 0x2027}, {0xFE13, 0xFE13}, {0xFE52, 0xFE52},
        {0xFE55, 0xFE55}, {0xFF07, 0xFF07}, {0xFF0E, 0xFF0E}, {0xFF1A, 0xFF1A},
    };

    return kg_unicode_is_of(cp, SET(MN) | SET(ME) | SET(CF) | SET(LM) | SET(SK)) ||
           kg_unicode_in(cp, POINTS, sizeof POINTS / sizeof *POINTS);
}

uint32_t kg_unicode_upper(uint32_t cp)
{
    return cp == 0xDF ? cp : (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp);
}

uint32_t kg_unicode_lower(uint32_t cp)
{
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

uint32_t kg_unicode_title(uint32_t cp)
{
    return cp == 0xDF ? cp : (uint32_t)utf8proc_totitle((utf8proc_int32_t)cp);
}
