/* Bytes to characters and back, computed without a table; and base64. The 68 bytes that
 * do not map to themselves are 0..32, 127..160 and 173, numbered in that order from
 * U+0100. A token with any other character is not made of bytes (such as an added token
 * in plain text); the caller learns this from *raw. */
#include "text/bytelevel.h"

#include "text/unicode.h"

#include <stdint.h>

enum {
    LOW = 33,
    MIDDLE = 34,
    FIRST = 0x100
}; /* 33 bytes below '!', 34 from 127 to 160 */

static uint32_t spelling_of(unsigned char byte)
{
    if (byte < 33)
        return FIRST + byte;
    if (byte >= 127 && byte <= 160)
        return FIRST + LOW + (byte - 127u);
    return byte == 173 ? FIRST + LOW + MIDDLE : byte;
}

/* -1 if the character spells no byte */
static int byte_of(uint32_t cp)
{
    if (cp < FIRST)
        return spelling_of((unsigned char)cp) == cp ? (int)cp : -1;
    uint32_t k = cp - FIRST;
    if (k < LOW)
        return (int)k;
    if (k < LOW + MIDDLE)
        return (int)(k - LOW + 127);
    return k == LOW + MIDDLE ? 173 : -1;
}

kg_status kg_bytelevel_spell(struct kg_str *out, const char *bytes, size_t n,
                             struct kg_err *err)
{
    for (size_t i = 0; i < n; i++) {
        char utf8[4];
        size_t len = kg_utf8_encode(utf8, spelling_of((unsigned char)bytes[i]));
        KG_TRY(kg_str_append(out, utf8, len, err));
    }
    return KG_OK;
}

kg_status kg_bytelevel_unspell(struct kg_str *out, bool *raw, const char *text, size_t n,
                               struct kg_err *err)
{
    size_t mark = out->len;
    *raw = false;
    /* Reserves the room, so that the loop can write directly: a byte is never longer than
     * its spelling. */
    KG_TRY(kg_str_append(out, text, n, err));
    size_t used = mark;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += kg_utf8_decode(&cp, text + i);
        int byte = byte_of(cp);
        if (byte < 0) {
            *raw = true;
            break;
        }
        out->data[used++] = (char)byte;
    }
    if (*raw) {
        out->len = mark;
        return kg_str_append(out, text, n, err);
    }
    out->len = used;
    if (out->data)
        out->data[used] = '\0';
    return KG_OK;
}

/* Base64: four digits are three bytes; one or two '=' complete the last four digits. Each
 * digit adds six bits to a word, and a byte is written whenever it has eight. A character
 * that is not a digit, or an impossible length, makes the whole text invalid. */

static int digit64(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

kg_status kg_base64_decode(struct kg_str *out, const char *text, size_t n, bool *valid,
                           struct kg_err *err)
{
    uint32_t bits = 0;
    int have = 0;
    size_t padding = 0;
    while (padding < 2 && n > 0 && text[n - 1] == '=') {
        n--;
        padding++;
    }
    *valid = (n + padding) % 4 == 0 && n % 4 != 1;
    for (size_t i = 0; i < n && *valid; i++) {
        int digit = digit64(text[i]);
        *valid = digit >= 0;
        bits = bits << 6 | (uint32_t)(digit & 63);
        have += 6;
        if (have >= 8) {
            have -= 8;
            KG_TRY(kg_str_putc(out, (char)(bits >> have & 0xFF), err));
        }
    }
    return KG_OK;
}

kg_status kg_base64_put(struct kg_str *out, const char *bytes, size_t n,
                        struct kg_err *err)
{
    static const char digits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const unsigned char *at = (const unsigned char *)bytes + i;
        const size_t have = n - i < 3 ? n - i : 3;
        const uint32_t bits = (uint32_t)at[0] << 16 |
                              (have > 1 ? (uint32_t)at[1] << 8 : 0) |
                              (have > 2 ? at[2] : 0);
        for (size_t k = 0; k < 4; k++)
            KG_TRY(kg_str_putc(out, k <= have ? digits[bits >> (18 - 6 * k) & 63] : '=',
                               err));
    }
    return KG_OK;
}
