/* UTF-8 by its definition, with a short way over ASCII. */
#include "data/utf8.h"

#include <stdint.h>
#include <string.h>

/* Bytes of a character by its first; 0: none begins so. */
static size_t whole_length(unsigned char lead)
{
    if (lead < 0x80)
        return 1;
    if (lead < 0xc2 || lead > 0xf4)
        return 0;
    return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

size_t kg_utf8_length(const char *text, size_t n)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *bytes = (const unsigned char *)text;
    size_t length = whole_length(bytes[0]);
    uint32_t code;

    if (length == 1)
        return 1;
    if (length == 0 || length > n)
        return 0;
    code = bytes[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((bytes[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (bytes[i] & 0x3f);
    }
    if (code < least[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        return 0;
    return length;
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

/* Bytes before the first that is not ASCII, n where all are. */
static size_t ascii_prefix(const char *text, size_t n)
{
    uint64_t eight;
    size_t i = 0;

    for (; n - i >= sizeof eight; i += sizeof eight) {
        memcpy(&eight, text + i, sizeof eight);
        if (eight & UINT64_C(0x8080808080808080))
            break;
    }
    while (i < n && (signed char)text[i] >= 0)
        i++;
    return i;
}

bool kg_utf8_is_valid(const char *text, size_t n)
{
    size_t i = ascii_prefix(text, n);

    while (i < n) {
        size_t length = kg_utf8_length(text + i, n - i);

        if (length == 0)
            return false;
        i += length;
        i += ascii_prefix(text + i, n - i);
    }
    return true;
}
