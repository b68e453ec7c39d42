/* Four digits are three bytes; one or two '=' fill the last four up.
 *
 * Digits are taken six bits at a time into a word, and whenever it holds eight, a byte
 * goes out. What is not a digit makes the whole text invalid, and so does a length that
 * no bytes have.
 */
#include "text/base64.h"

#include <stdint.h>

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
