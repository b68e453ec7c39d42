#include "cli/printable.h"

#include "text/unicode.h"

size_t kg_cli_printable_at(const char *text, size_t n, bool lines)
{
    uint32_t cp;
    size_t width;

    if (kg_utf8_valid_prefix(text, n < 4 ? n : 4) == 0)
        return 0;
    width = kg_utf8_decode(&cp, text);
    if (cp == '\n' || cp == '\t')
        return lines ? width : 0;
    return cp < 0x20 || (cp >= 0x7f && cp < 0xa0) ? 0 : width;
}

kg_status kg_cli_put_printable(struct kg_str *out, const char *text, size_t n, bool lines,
                               struct kg_err *err)
{
    for (size_t at = 0; at < n;) {
        size_t width = kg_cli_printable_at(text + at, n - at, lines);

        if (width)
            KG_TRY(kg_str_append(out, text + at, width, err));
        else if (text[at] == '\n')
            KG_TRY(kg_str_puts(out, "\\n", err));
        else
            KG_TRY(kg_str_printf(out, err, "\\x%02x", (unsigned char)text[at]));
        at += width ? width : 1;
    }
    return KG_OK;
}
