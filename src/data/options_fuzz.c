/* Fuzz target: a config that loads is dumped, and the dump loads and dumps the same; one
 * that does not load gives a message of one line. The text is also tried as an
 * assignment. */
#include "data/options.h"

#include <assert.h>
#include <string.h>

int kg_fuzz_options(const uint8_t *bytes, size_t n);

struct said {
    const char *dir;
    int64_t seed, any;
    bool save;
    double lr;
    float x;
    struct kg_opt_list stop;
    unsigned dtype;
    const char *deep;
};
#define AT(field) KG_OPT_AT(struct said, field)

static const struct kg_opt_row fuzz_rows[] = {
    {"run.dir", AT(dir), NULL, 0, 0, NULL, "text", true},
    {"run.seed", AT(seed), "1", 0, 1e9, NULL, "integer with a range", false},
    {"run.any", AT(any), "-1", 0, 0, NULL, "integer without one", false},
    {"run.save", AT(save), "true", 0, 0, NULL, "truth", false},
    {"optim.lr", AT(lr), "1e-6", 0, 1, NULL, "number with a range", false},
    {"optim.x", AT(x), "0", 0, 0, NULL, "number without one", false},
    {"rollout.stop", AT(stop), "", 0, 0, NULL, "list", false},
    {"rollout.dtype", AT(dtype), "bf16", 0, 0, "bf16|fp32", "choice", false},
    {"a.b.c", AT(deep), "deep", 0, 0, NULL, "nested", false},
    {0},
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
    struct said said;
    struct kg_err err;
    size_t different;

    kg_config_fill(&said, config, fuzz_rows);
    assert(said.seed >= 0 && said.dtype < 2 && (said.stop.n == 0 || *said.stop.items[0]));
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

    must(kg_str_append(&text, bytes, n, &err)); /* a C string: ends at the first NUL */
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
