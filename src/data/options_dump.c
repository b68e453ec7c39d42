/* A config as YAML that loads back to the same values, and the difference of two configs.
 *
 * It uses only the functions of options.h. The one idea: the dump is the whole table,
 * defaults included, so that a run's config.yaml means the same after a default has
 * changed. Texts are always in double quotes with everything escaped that YAML could read
 * in another way.
 */
#include "data/options.h"

#include <string.h>

/* ---- text ---- */

/* Decodes a character; `least` refuses overlong forms.   returns its bytes, 0 if
 * invalid */
static size_t code_point(uint32_t *code, const char *text)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char c = (unsigned char)text[0];
    size_t n = c < 0x80   ? 1
               : c < 0xc0 ? 0
               : c < 0xe0 ? 2
               : c < 0xf0 ? 3
               : c < 0xf8 ? 4
                          : 0;
    uint32_t x = n == 1 ? c : c & (0x7fu >> n);

    for (size_t i = 1; i < n; i++) {
        if (((unsigned char)text[i] & 0xc0) != 0x80)
            return 0;
        x = x << 6 | ((unsigned char)text[i] & 0x3fu);
    }
    if (n == 0 || x < least[n] || x > 0x10ffff || (x >= 0xd800 && x < 0xe000))
        return 0;
    *code = x;
    return n;
}

/* Code points that YAML forbids, or reads as a line break or as a byte-order mark. */
static bool must_escape(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 ||
           code == 0x2029 || code == 0xfeff || code == 0xfffe || code == 0xffff;
}

static kg_status put_quoted(struct kg_str *out, const char *text, struct kg_err *err)
{
    uint32_t code;
    size_t n;

    KG_TRY(kg_str_putc(out, '"', err));
    for (; *text; text += n) {
        n = code_point(&code, text);
        if (n == 0)
            return kg_fail(err, KG_EINVAL,
                           "expected UTF-8 text in a config, found byte 0x%02x",
                           (unsigned char)*text);
        if (code == '\n')
            KG_TRY(kg_str_puts(out, "\\n", err));
        else if (must_escape(code))
            KG_TRY(kg_str_printf(out, err, "\\u%04x", code));
        else if (code == '"' || code == '\\')
            KG_TRY(kg_str_printf(out, err, "\\%c", (int)code));
        else
            KG_TRY(kg_str_append(out, text, n, err));
    }
    return kg_str_putc(out, '"', err);
}

/* ---- YAML ---- */

static kg_status put_value(struct kg_str *out, const struct kg_config *config,
                           const struct kg_opt_row *row, struct kg_err *err)
{
    if (row->type == KG_OPT_LIST) {
        struct kg_opt_list list = kg_config_list(config, row->key);

        KG_TRY(kg_str_putc(out, '[', err));
        for (size_t i = 0; i < list.n; i++) {
            KG_TRY(kg_str_puts(out, i ? ", " : "", err));
            KG_TRY(put_quoted(out, list.items[i], err));
        }
        return kg_str_putc(out, ']', err);
    }
    if (row->type == KG_OPT_STRING && !row->choices)
        return put_quoted(out, kg_config_text(config, row->key), err);
    return kg_str_puts(out, kg_config_text(config, row->key), err);
}

static kg_status put_row(struct kg_str *out, const struct kg_config *config,
                         const struct kg_opt_row *row, bool with_help, struct kg_err *err)
{
    const char *name = strchr(row->key, '.') ? strchr(row->key, '.') + 1 : row->key;

    if (with_help) {
        bool ranged = row->min != 0 || row->max != 0;

        KG_TRY(kg_str_printf(out, err, "  # %s", row->help ? row->help : ""));
        if (row->choices)
            KG_TRY(kg_str_printf(out, err, " (%s)", row->choices));
        if (kg_opt_is_number(row) && ranged)
            KG_TRY(kg_str_printf(out, err, " (%.15g to %.15g%s)", row->min, row->max,
                                 row->or_zero ? ", or 0" : ""));
        KG_TRY(kg_str_putc(out, '\n', err));
    }
    if (!kg_config_is_set(config, row->key))
        return kg_str_printf(out, err, "  # %s is not set\n", name);
    KG_TRY(kg_str_printf(out, err, "  %s: ", name));
    KG_TRY(put_value(out, config, row, err));
    return kg_str_putc(out, '\n', err);
}

static bool same_section(const char *a, const char *b)
{
    size_t n = strcspn(a, ".");

    return n == strcspn(b, ".") && memcmp(a, b, n) == 0;
}

/* Whether row i is the first of its section. Several tables may have rows of one
 * section. */
static bool section_begins(const struct kg_config *config, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (same_section(kg_config_row(config, j)->key, kg_config_row(config, i)->key))
            return false;
    return true;
}

kg_status kg_config_dump_yaml(struct kg_str *out, const struct kg_config *config,
                              bool with_help, struct kg_err *err)
{
    size_t n = kg_config_rows(config);

    for (size_t i = 0; i < n; i++) {
        const char *first = kg_config_row(config, i)->key;
        if (!section_begins(config, i))
            continue;
        KG_TRY(kg_str_printf(out, err, "%s%.*s:\n", i ? "\n" : "",
                             (int)strcspn(first, "."), first));
        for (size_t j = i; j < n; j++)
            if (same_section(first, kg_config_row(config, j)->key))
                KG_TRY(put_row(out, config, kg_config_row(config, j), with_help, err));
    }
    return KG_OK;
}

/* ---- difference ---- */

static bool same_value(const struct kg_config *a, const struct kg_config *b,
                       const struct kg_opt_row *row)
{
    if (kg_config_is_set(a, row->key) != kg_config_is_set(b, row->key))
        return false;
    return kg_opt_same(row, kg_config_text(a, row->key), kg_config_text(b, row->key));
}

static kg_status put_side(struct kg_str *out, const struct kg_config *config,
                          const struct kg_opt_row *row, struct kg_err *err)
{
    if (!kg_config_is_set(config, row->key))
        return kg_str_puts(out, "(not set)", err);
    return put_value(out, config, row, err);
}

kg_status kg_config_diff(struct kg_str *out, size_t *n, const struct kg_config *a,
                         const struct kg_config *b, struct kg_err *err)
{
    *n = 0;
    for (size_t i = 0; i < kg_config_rows(a); i++) {
        const struct kg_opt_row *row = kg_config_row(a, i);
        if (row->free & KG_FREE_ON_RESUME || same_value(a, b, row))
            continue;
        KG_TRY(kg_str_printf(out, err, "%s%s: ", *n > 0 ? "; " : "", row->key));
        KG_TRY(put_side(out, a, row, err));
        KG_TRY(kg_str_puts(out, " -> ", err));
        KG_TRY(put_side(out, b, row, err));
        *n += 1;
    }
    return KG_OK;
}

kg_status kg_config_put_facts(struct kg_str *out, const struct kg_config *config,
                              struct kg_err *err)
{
    for (size_t i = 0; i < kg_config_rows(config); i++) {
        const struct kg_opt_row *row = kg_config_row(config, i);

        if (row->free & KG_FREE_BY_RANK)
            continue;
        KG_TRY(kg_str_printf(out, err, "%s\t", row->key));
        KG_TRY(put_side(out, config, row, err));
        KG_TRY(kg_str_putc(out, '\n', err));
    }
    return KG_OK;
}
