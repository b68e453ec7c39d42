/* Escaping for HTML. */
#include "text/html.h"

#include "text/unicode.h"

kg_status kg_html_put(struct kg_str *out, const char *text, size_t n, struct kg_err *err)
{
    for (size_t at = 0; at < n; at++) {
        unsigned char c = (unsigned char)text[at];
        size_t width = 1;

        if (c == '<' || c == '>' || c == '&' || c == '"' || c == '\'')
            KG_TRY(kg_str_printf(out, err, "&#%d;", c));
        else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f ||
                 kg_utf8_valid_prefix(text + at, n - at < 4 ? n - at : 4) == 0)
            KG_TRY(kg_str_puts(out, "\xef\xbf\xbd", err));
        else {
            uint32_t cp;

            width = kg_utf8_decode(&cp, text + at);
            KG_TRY(kg_str_append(out, text + at, width, err));
        }
        at += width - 1;
    }
    return KG_OK;
}
