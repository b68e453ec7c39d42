/* Which parts of untrusted text may reach a terminal. An escape sequence in a completion
 * could move the cursor, rename the window or change an earlier line. So only whole UTF-8
 * characters pass, except control characters. These include U+0080 to U+009F, which
 * terminals read as escapes. Every other byte is written as an escape: \xNN or \n. */
#include "base/printable.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

size_t kg_printable_at(const char *text, size_t n, bool lines)
{
    unsigned char c = (unsigned char)text[0];

    if (c == '\n' || c == '\t')
        return lines ? 1 : 0;
    if (c < 0x20 || c == 0x7f)
        return 0;
    if (c == 0xc2 && n > 1 && (unsigned char)text[1] < 0xa0) /* U+0080 to U+009F */
        return 0;
    return kg_utf8_length(text, n);
}

/* Writes the escape of a byte.   returns its length */
static size_t write_out(char out[8], char byte)
{
    if (byte == '\n')
        return (size_t)snprintf(out, 8, "\\n");
    return (size_t)snprintf(out, 8, "\\x%02x", (unsigned char)byte);
}

void kg_printable_copy(char *out, size_t size, const char *text, bool lines)
{
    size_t used = 0;

    for (size_t n = strlen(text); n > 0;) {
        size_t width = kg_printable_at(text, n, lines), taken = width ? width : 1;
        char code[8];
        size_t len = width ? width : write_out(code, *text);

        if (used + len >= size)
            break;
        memcpy(out + used, width ? text : code, len);
        used += len;
        text += taken;
        n -= taken;
    }
    out[used] = '\0';
}

kg_status kg_printable_put(struct kg_str *out, const char *text, size_t n, bool lines,
                           struct kg_err *err)
{
    for (size_t at = 0; at < n;) {
        size_t width = kg_printable_at(text + at, n - at, lines);
        char code[8];

        if (width)
            KG_TRY(kg_str_append(out, text + at, width, err));
        else
            KG_TRY(kg_str_append(out, code, write_out(code, text[at]), err));
        at += width ? width : 1;
    }
    return KG_OK;
}
