/* kedge presets: the presets, the values of each, and where it was published. A preset is
 * resolved as in a run, so the values printed are those of a run. Values that a preset
 * sets are marked with the preset that they come from; all others are defaults.
 */
#include "cli/cli.h"

#include "base/status.h"
#include "data/json.h"
#include "policy/algo.h"
#include "policy/presets.h"
#include "recipe/options.h"

#include <stdio.h>
#include <string.h>

enum { VALUE_BYTES = 64 };

static bool as_json;
static bool all;

const struct kg_flag kg_presets_flags[] = {
    {"all", 0, KG_IF("NAME=", all), NULL, "every preset with its values"},
    {"json", 0, KG_TO(as_json), NULL, "print one JSON object per preset"},
    {0},
};

/* ---- what a preset resolves to ---- */

struct resolved {
    const struct kg_preset *preset;
    struct kg_config *config; /* owned */
    struct kg_algo defaults;  /* for keys whose option row has no default */
};

static kg_status resolve(struct resolved *r, const struct kg_preset *preset,
                         struct kg_err *err)
{
    char assignment[128], *const assignments[] = {assignment};

    snprintf(assignment, sizeof assignment, "preset=%s", preset->name);
    r->preset = preset;
    kg_algo_init(&r->defaults);
    return kg_train_config(&r->config, NULL, assignments, 1, err);
}

/* Keys of the algorithm, and other keys that the preset sets. */
static bool is_shown(const struct resolved *r, const char *key)
{
    if (strcmp(key, "algo.preset") == 0)
        return false;
    return kg_config_of_algorithm(key) || kg_preset_get(r->preset, key) != NULL;
}

static kg_status value_of(char text[VALUE_BYTES], const struct resolved *r,
                          const char *key, struct kg_err *err)
{
    if (!kg_config_is_set(r->config, key))
        return kg_algo_get(&r->defaults, key, text, VALUE_BYTES, err);
    snprintf(text, VALUE_BYTES, "%s", kg_config_text(r->config, key));
    return KG_OK;
}

/* The preset that sets the key; NULL: the value is a default. */
static const char *source_of(const struct resolved *r, const char *key)
{
    const char *from = kg_config_source(r->config, key);

    return kg_preset_get(r->preset, key) ? from : NULL;
}

/* ---- printing ---- */

static kg_status put_heading(struct kg_str *out, const struct kg_preset *p,
                             struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "%s (%s%s%s)\n  %s\n  %s\n", p->name,
                         kg_preset_kind_name(p->kind), p->base ? ", builds on " : "",
                         p->base ? p->base : "", p->help, p->source));
    return kg_str_puts(out, "\n", err);
}

static kg_status put_values(struct kg_str *out, const struct resolved *r,
                            struct kg_err *err)
{
    for (size_t i = 0; i < kg_config_rows(r->config); i++) {
        const char *key = kg_config_row(r->config, i)->key, *from;
        char text[VALUE_BYTES];

        if (!is_shown(r, key))
            continue;
        KG_TRY(value_of(text, r, key, err));
        from = source_of(r, key);
        KG_TRY(kg_str_printf(out, err, "  %-24s %-22s %s%s\n", key,
                             *text ? text : "(empty)", from ? "preset " : "",
                             from ? from : "default"));
    }
    return kg_str_puts(out, "\n", err);
}

static kg_status put_json_heading(struct kg_str *out, const struct kg_preset *p,
                                  struct kg_err *err)
{
    KG_TRY(kg_json_put_text(out, "{\"name\": ", p->name, err));
    KG_TRY(kg_json_put_text(out, ", \"kind\": ", kg_preset_kind_name(p->kind), err));
    KG_TRY(kg_str_puts(out, ", \"base\": ", err));
    if (p->base)
        KG_TRY(kg_json_put_text(out, "", p->base, err));
    else
        KG_TRY(kg_str_puts(out, "null", err));
    KG_TRY(kg_json_put_text(out, ", \"help\": ", p->help, err));
    return kg_json_put_text(out, ", \"publication\": ", p->source, err);
}

static kg_status put_json_values(struct kg_str *out, const struct resolved *r,
                                 struct kg_err *err)
{
    const char *lead = ", \"values\": {";

    for (size_t i = 0; i < kg_config_rows(r->config); i++) {
        const char *key = kg_config_row(r->config, i)->key, *from;
        char text[VALUE_BYTES];

        if (!is_shown(r, key))
            continue;
        KG_TRY(value_of(text, r, key, err));
        KG_TRY(kg_json_put_text(out, lead, key, err));
        KG_TRY(kg_json_put_text(out, ": {\"value\": ", text, err));
        from = source_of(r, key);
        KG_TRY(kg_json_put_text(out, ", \"source\": ", from ? from : "default", err));
        KG_TRY(kg_str_putc(out, '}', err));
        lead = ", ";
    }
    return kg_str_putc(out, '}', err);
}

static kg_status put_resolved(struct kg_str *out, const struct kg_preset *p,
                              struct kg_err *err)
{
    struct resolved r = {0};
    kg_status status = resolve(&r, p, err);

    if (status == KG_OK)
        status = as_json ? put_json_heading(out, p, err) : put_heading(out, p, err);
    if (status == KG_OK)
        status = as_json ? put_json_values(out, &r, err) : put_values(out, &r, err);
    if (status == KG_OK && as_json)
        status = kg_str_puts(out, "}\n", err);
    kg_config_free(r.config);
    return status;
}

static kg_status put_line(struct kg_str *out, const struct kg_preset *p,
                          struct kg_err *err)
{
    if (!as_json)
        return kg_str_printf(out, err, "%-28s %-7s %s\n", p->name,
                             kg_preset_kind_name(p->kind), p->help);
    KG_TRY(put_json_heading(out, p, err));
    return kg_str_puts(out, "}\n", err);
}

static kg_status put_every(struct kg_str *out, struct kg_err *err)
{
    for (size_t i = 0; i < kg_preset_count(); i++)
        KG_TRY(all ? put_resolved(out, kg_preset_at(i), err)
                   : put_line(out, kg_preset_at(i), err));
    return KG_OK;
}

int kg_cmd_presets(int argc, char **argv)
{
    const struct kg_preset *preset = NULL;
    struct kg_str out = {0};
    struct kg_err err;
    kg_status status = argc == 0 ? put_every(&out, &err)
                                 : kg_preset_find(&preset, argv[0], &err);

    if (status == KG_OK && preset)
        status = put_resolved(&out, preset, &err);
    return kg_cli_exit(kg_cli_print(status, &out, &err), &err);
}
