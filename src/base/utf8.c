/* UTF-8 byte by byte (RFC 3629), with a fast path for ASCII, eight bytes at a time. The
 * first byte of a character gives its length. Overlong forms, surrogates and values above
 * U+10FFFF show as ranges of the second byte that depend on the first alone, so checking
 * needs no decoding. */
#include "base/utf8.h"

#include <string.h>

/* Length of a character by its first byte; 0: no character begins with it. */
static size_t whole_length(unsigned char lead)
{
    if (lead < 0x80)
        return 1;
    if (lead < 0xc2 || lead > 0xf4)
        return 0;
    return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* The range of the second byte excludes overlong forms, surrogates and values above
 * U+10FFFF. */
static inline bool may_be_second(unsigned char lead, unsigned char second)
{
    unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;

    return second >= low && second <= high;
}

static inline size_t length_of(const char *text, size_t n)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t length = whole_length(bytes[0]);

    if (length == 1)
        return 1;
    if (length == 0 || length > n || !may_be_second(bytes[0], bytes[1]))
        return 0;
    for (size_t i = 2; i < length; i++)
        if ((bytes[i] & 0xc0) != 0x80)
            return 0;
    return length;
}

size_t kg_utf8_length(const char *text, size_t n) { return length_of(text, n); }

size_t kg_utf8_bad_length(const char *text, size_t n)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t whole = whole_length(bytes[0]);
    size_t i = 1;

    if (whole < 2 || n < 2 || !may_be_second(bytes[0], bytes[1]))
        return 1;
    while (i < whole && i < n && (bytes[i] & 0xc0) == 0x80)
        i++;
    return i;
}

size_t kg_utf8_cut(const char *text, size_t n)
{
    for (size_t cut = 1; cut <= 3 && cut <= n; cut++) {
        unsigned char c = (unsigned char)text[n - cut];
        if ((c & 0xc0) != 0x80)
            return whole_length(c) > cut ? cut : 0;
    }
    return 0;
}

size_t kg_utf8_ascii_prefix(const char *text, size_t n)
{
    uint64_t eight;
    size_t i = 0;

    for (; i + sizeof eight <= n; i += sizeof eight) {
        memcpy(&eight, text + i, sizeof eight);
        if (eight & UINT64_C(0x8080808080808080))
            break;
    }
    while (i < n && (signed char)text[i] >= 0)
        i++;
    return i;
}

size_t kg_utf8_valid_prefix(const char *text, size_t n)
{
    size_t i = 0;

    while (i < n) {
        if ((signed char)text[i] >= 0)
            i += kg_utf8_ascii_prefix(text + i, n - i);
        if (i == n)
            break;
        size_t length = length_of(text + i, n - i);
        if (length == 0)
            return i;
        i += length;
    }
    return n;
}

bool kg_utf8_is_valid(const char *text, size_t n)
{
    return kg_utf8_valid_prefix(text, n) == n;
}

size_t kg_utf8_encode(char out[4], uint32_t cp)
{
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    size_t length = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;

    for (size_t i = length - 1; i > 0; i--, cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)(lead[length] | cp);
    return length;
}
