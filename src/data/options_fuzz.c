/* Fuzz target: a config that loads is dumped, and the dump loads to the same dump; one
 * that does not gives a one-line message. The text is tried as an assignment too. */
#include "data/options.h"

#include <assert.h>
#include <string.h>

int kg_fuzz_options(const uint8_t *bytes, size_t n);

static const struct kg_opt_row fuzz_rows[] = {
    {"run.dir", KG_OPT_STRING, NULL, 0, 0, NULL, "text", true},
    {"run.seed", KG_OPT_INT, "1", 0, 1e9, NULL, "integer with a range", false},
    {"run.any", KG_OPT_INT, "-1", 0, 0, NULL, "integer without one", false},
    {"run.save", KG_OPT_BOOL, "true", 0, 0, NULL, "truth", false},
    {"optim.lr", KG_OPT_REAL, "1e-6", 0, 1, NULL, "number with a range", false},
    {"optim.x", KG_OPT_REAL, "0", 0, 0, NULL, "number without one", false},
    {"rollout.stop", KG_OPT_LIST, "", 0, 0, NULL, "list", false},
    {"rollout.dtype", KG_OPT_CHOICE, "bf16", 0, 0, "bf16|fp32", "choice", false},
    {"a.b.c", KG_OPT_STRING, "deep", 0, 0, NULL, "nested", false},
    {NULL, KG_OPT_STRING, NULL, 0, 0, NULL, NULL, false},
};

static void must(kg_status status) { assert(status == KG_OK); }

static struct kg_config *fuzz_config(void)
{
    const struct kg_opt_row *const tables[] = {fuzz_rows};
    struct kg_config *config = NULL;
    struct kg_err err;

    must(kg_config_create(&config, tables, 1, &err));
    return config;
}

static void check_message(const struct kg_err *err)
{
    size_t n = strlen(err->message);

    assert(n > 0 && n < sizeof err->message && !strchr(err->message, '\n'));
    assert(err->code != KG_OK && err->code < KG_STATUS_COUNT);
}

static void check_round_trip(const struct kg_config *config)
{
    struct kg_config *again = fuzz_config();
    struct kg_str once = {0};
    struct kg_str twice = {0};
    struct kg_str changes = {0};
    struct kg_err err;
    size_t different;

    must(kg_config_dump_yaml(&once, config, true, &err));
    must(kg_config_parse_yaml(again, kg_str_text(&once), once.len, "dump", &err));
    must(kg_config_dump_yaml(&twice, again, true, &err));
    assert(strcmp(kg_str_text(&once), kg_str_text(&twice)) == 0);
    must(kg_config_diff(&changes, &different, config, again, &err));
    assert(different == 0);
    kg_str_release(&once);
    kg_str_release(&twice);
    kg_str_release(&changes);
    kg_config_free(again);
}

static void fuzz_assignment(const uint8_t *bytes, size_t n)
{
    struct kg_config *config = fuzz_config();
    struct kg_str text = {0};
    struct kg_err err = {0};

    must(kg_str_append(&text, bytes, n, &err)); /* ends at the first NUL */
    if (kg_config_override(config, text.data, "fuzz", &err) == KG_OK)
        check_round_trip(config);
    else
        check_message(&err);
    kg_str_release(&text);
    kg_config_free(config);
}

int kg_fuzz_options(const uint8_t *bytes, size_t n)
{
    struct kg_config *config = fuzz_config();
    struct kg_err err = {0};

    if (kg_config_parse_yaml(config, (const char *)bytes, n, "fuzz", &err) == KG_OK)
        check_round_trip(config);
    else
        check_message(&err);
    kg_config_free(config);
    if (n < 4096)
        fuzz_assignment(bytes, n);
    return 0;
}
