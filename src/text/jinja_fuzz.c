/* Fuzz target: a template and, after a NUL byte, its variables as JSON. A template that
 * parses is rendered twice within small limits: to the same text or the same error, and
 * in no more memory than the limits allow.
 */
#include "base/mem.h"
#include "text/chat_template.h"

#include <stdlib.h>
#include <string.h>

int kg_fuzz_jinja(const uint8_t *bytes, size_t n);

static const char VARIABLES[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": "
    "\"user\", \"content\": \"Hi \\u00e9\"}, {\"role\": \"assistant\", \"content\": "
    "null, \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": "
    "[1, 2.5, true]}}}]}], \"add_generation_prompt\": true, \"s\": \"a,b c\", \"n\": 7}";

enum { MEMORY = 16 << 20, OUTPUT = 1 << 20 };

static void render(const struct kg_chat_template *t, const struct kg_json *variables)
{
    const struct kg_chat_opts opts = {
        .limits = {.steps = 200000, .memory_bytes = MEMORY, .output_bytes = OUTPUT},
        .now_s = 1752148800};
    struct kg_str once = {0};
    struct kg_str twice = {0};
    struct kg_err first = {0};
    struct kg_err second = {0};
    uint64_t before = kg_mem_current_bytes();

    kg_mem_reset_peak();
    kg_status status = kg_chat_template_render(&once, t, variables, &opts, &first);

    /* the output exists twice while it moves to a larger buffer */
    if (kg_mem_peak_bytes() - before > MEMORY + 2 * (OUTPUT + 64))
        abort();
    if (kg_chat_template_render(&twice, t, variables, &opts, &second) != status ||
        strcmp(first.message, second.message) != 0 || once.len != twice.len ||
        memcmp(kg_str_text(&once), kg_str_text(&twice), once.len) != 0)
        abort();
    kg_str_release(&once);
    kg_str_release(&twice);
}

int kg_fuzz_jinja(const uint8_t *bytes, size_t n)
{
    const uint8_t *cut = n ? memchr(bytes, 0, n) : NULL;
    size_t length = cut ? (size_t)(cut - bytes) : n;
    const char *json = cut ? (const char *)cut + 1 : VARIABLES;
    size_t json_length = cut ? n - length - 1 : sizeof VARIABLES - 1;
    struct kg_chat_template *t = NULL;
    struct kg_json_doc doc = {0};
    struct kg_err err;

    if (kg_chat_template_parse(&t, (const char *)bytes, length, "fuzz", &err) == KG_OK &&
        kg_json_parse(&doc, json, json_length, "fuzz", &err) == KG_OK)
        render(t, doc.root);
    kg_json_release(&doc);
    kg_chat_template_close(t);
    return 0;
}
