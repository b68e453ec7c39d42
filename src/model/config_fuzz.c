/* Fuzz target: a config.json that can be read can be written, and reading what was
 * written gives the same config. */
#include "model/config.h"

#include <assert.h>
#include <string.h>

int kg_fuzz_config(const uint8_t *bytes, size_t n);

static void write_config(struct kg_str *out, const struct kg_model_config *c)
{
    struct kg_err err;
    kg_status status = kg_model_config_write(
        out, c, c->dtype_name[0] ? c->dtype_name : "float32", NULL, &err);
    assert(status == KG_OK);
    (void)status;
}

int kg_fuzz_config(const uint8_t *bytes, size_t n)
{
    struct kg_err err;
    struct kg_model_config first, second;
    struct kg_str once = {0};
    struct kg_str twice = {0};
    float inv_freq[KG_MAX_HEAD_DIM / 2];
    if (kg_model_config_parse(&first, (const char *)bytes, n, "fuzz", &err) != KG_OK)
        return 0;
    kg_rope_inv_freq(inv_freq, &first);
    write_config(&once, &first);
    kg_status status = kg_model_config_parse(&second, kg_str_text(&once), once.len,
                                             "fuzz", &err);
    assert(status == KG_OK);
    (void)status;
    write_config(&twice, &second);
    assert(strcmp(kg_str_text(&once), kg_str_text(&twice)) == 0);
    kg_str_release(&once);
    kg_str_release(&twice);
    return 0;
}
