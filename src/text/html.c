/* Escapes text for HTML.
 *
 * A model's text may contain anything. Characters that could begin a tag or end an
 * attribute are escaped; bytes that are not UTF-8 and control characters become
 * the replacement character, so the page is always valid.
 */
#include "text/html.h"

#include "base/utf8.h"

kg_status kg_html_put(struct kg_str *out, const char *text, size_t n, struct kg_err *err)
{
    for (size_t at = 0; at < n;) {
        unsigned char c = (unsigned char)text[at];
        size_t width = kg_utf8_length(text + at, n - at);

        if (width == 0) {
            KG_TRY(kg_str_puts(out, "\xef\xbf\xbd", err));
            width = kg_utf8_bad_length(text + at, n - at);
        } else if (c == '<' || c == '>' || c == '&' || c == '"' || c == '\'') {
            KG_TRY(kg_str_printf(out, err, "&#%d;", c));
        } else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
            KG_TRY(kg_str_puts(out, "\xef\xbf\xbd", err));
        } else {
            KG_TRY(kg_str_append(out, text + at, width, err));
        }
        at += width;
    }
    return KG_OK;
}
