/* Look-ups in the tables of presets.
 *
 * Methods and recipes are two tables of the same rows, one behind the other under one
 * count. A value is looked for in the preset, then in its base, and so on down, so a
 * preset says only what is its own. Nothing here knows what a key means: applied to an
 * algorithm, a preset sets those keys that algorithms have, by the door through which
 * the user's go, and the rest is for the run.
 */
#include "policy/presets_internal.h"

#include "base/str.h"

#include <string.h>

size_t kg_preset_count(void) { return kg_preset_methods().n + kg_preset_recipes().n; }

const struct kg_preset *kg_preset_at(size_t i)
{
    struct kg_preset_table methods = kg_preset_methods(), recipes = kg_preset_recipes();

    if (i < methods.n)
        return &methods.rows[i];
    return i - methods.n < recipes.n ? &recipes.rows[i - methods.n] : NULL;
}

static const struct kg_preset *named(const char *name)
{
    for (size_t i = 0; i < kg_preset_count(); i++)
        if (strcmp(kg_preset_at(i)->name, name) == 0)
            return kg_preset_at(i);
    return NULL;
}

const struct kg_preset *kg_preset_base(const struct kg_preset *preset)
{
    return preset->base ? named(preset->base) : NULL;
}

const char *kg_preset_get(const struct kg_preset *preset, const char *key)
{
    for (; preset; preset = kg_preset_base(preset))
        for (const struct kg_preset_value *v = preset->values; v->key; v++)
            if (strcmp(v->key, key) == 0)
                return v->value;
    return NULL;
}

kg_status kg_preset_apply(struct kg_algo *algo, const struct kg_preset *preset,
                          struct kg_err *err)
{
    for (size_t i = 0; i < kg_algo_n_keys(); i++) {
        const char *value = kg_preset_get(preset, kg_algo_key(i));

        if (value)
            KG_TRY(kg_algo_set(algo, kg_algo_key(i), value, err));
    }
    return KG_OK;
}

const char *kg_preset_kind_name(enum kg_preset_kind kind)
{
    return kind == KG_PRESET_METHOD ? "method" : "recipe";
}

/* Names of methods; recipes are listed by the command, they are many. */
static kg_status unknown(const char *name, struct kg_err *err)
{
    struct kg_str names = {.max = KG_ERR_MESSAGE_BYTES};
    kg_status status = KG_OK;
    const char *near = NULL;
    size_t best = 4;

    for (size_t i = 0; i < kg_preset_count(); i++) {
        const struct kg_preset *p = kg_preset_at(i);

        if (kg_str_distance(name, p->name) < best)
            best = kg_str_distance(name, p->name), near = p->name;
        if (p->kind == KG_PRESET_METHOD && status == KG_OK)
            status = kg_str_printf(&names, err, "%s%s", i > 0 ? ", " : "", p->name);
    }
    status = kg_fail(err, KG_ENOTFOUND,
                     "algo.preset: found '%s'%s%s%s; expected a recipe (`kedge presets`) "
                     "or one of %s",
                     name, near ? ", nearest is '" : "", near ? near : "",
                     near ? "'" : "", kg_str_text(&names));
    kg_str_release(&names);
    return status;
}

kg_status kg_preset_find(const struct kg_preset **preset, const char *name,
                         struct kg_err *err)
{
    *preset = named(name);
    return *preset ? KG_OK : unknown(name, err);
}
