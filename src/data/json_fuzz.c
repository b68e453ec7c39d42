/* Fuzz target: a text that parses is written out, and the output parses and is written as
 * the same text. */
#include "data/json.h"

#include <stdlib.h>
#include <string.h>

int kg_fuzz_json(const uint8_t *bytes, size_t n);

static void write_value(struct kg_str *out, const struct kg_json_doc *doc)
{
    struct kg_err err;

    if (kg_json_put_value(out, doc->root, &err) != KG_OK)
        abort();
}

int kg_fuzz_json(const uint8_t *bytes, size_t n)
{
    struct kg_json_doc first;
    struct kg_json_doc second;
    struct kg_str once = {0};
    struct kg_str twice = {0};
    struct kg_err err;

    if (kg_json_parse(&first, (const char *)bytes, n, "fuzz", &err) != KG_OK)
        return 0;
    write_value(&once, &first);
    if (kg_json_parse(&second, kg_str_text(&once), once.len, "fuzz", &err) != KG_OK)
        abort();
    write_value(&twice, &second);
    if (once.len != twice.len ||
        memcmp(kg_str_text(&once), kg_str_text(&twice), once.len) != 0)
        abort();
    kg_json_release(&first);
    kg_json_release(&second);
    kg_str_release(&once);
    kg_str_release(&twice);
    return 0;
}
