/* adapter_config.json, as PEFT writes it.
 *
 * A field is applied, or has no effect on the adapter's output, or must be off (null,
 * false, 0, "none", empty). So a field that a later release adds is accepted while it is
 * off, and refused by name when it is used.
 */
#include "model/lora.h"

#include "base/file.h"
#include "data/json.h"

#include <string.h>
#include <strings.h>

#define MAX_ALPHA 1e6

/* Fields that are read below, or that matter only to train with PEFT (lora_dropout), to
 * initialise, or to find the base. */
static const char known[] =
    "r lora_alpha use_rslora target_modules exclude_modules layers_to_transform "
    "layers_pattern rank_pattern alpha_pattern peft_type task_type "
    "base_model_name_or_path revision peft_version auto_mapping inference_mode "
    "lora_dropout eva_config megatron_core qalora_group_size ensure_weight_tying "
    "runtime_config";

/* Whether PEFT's initialisation of A and B leaves W as it is. With PiSSA, OLoRA, LoftQ
 * and others PEFT subtracts the initial B A from W each time that it loads an adapter. */
static bool leaves_base(const struct kg_json *init)
{
    static const char *const harmless[] = {"gaussian", "eva", "orthogonal"};
    const char *text = kg_json_text(init, NULL);

    for (size_t i = 0; text && i < sizeof harmless / sizeof *harmless; i++)
        if (strcmp(text, harmless[i]) == 0)
            return true;
    return !text &&
           (kg_json_type(init) == KG_JSON_NULL || kg_json_type(init) == KG_JSON_BOOL);
}

static bool is_known(const char *key) { return kg_str_listed(known, key, strlen(key)); }

static bool says_nothing(const struct kg_json *v)
{
    const char *text = kg_json_text(v, NULL);

    switch (kg_json_type(v)) {
    case KG_JSON_NULL:
        return true;
    case KG_JSON_BOOL:
        return !kg_json_bool(v, true);
    case KG_JSON_STRING:
        return strcmp(text, "none") == 0 || !*text;
    case KG_JSON_INT:
    case KG_JSON_REAL:
        return kg_json_real(v, 1) == 0;
    case KG_JSON_ARRAY:
    case KG_JSON_OBJECT:
        return kg_json_size(v) == 0;
    }
    return false;
}

static kg_status refuse_start(const struct kg_json_doc *doc, const struct kg_json *value,
                              struct kg_err *err)
{
    struct kg_str text = {0};

    if (kg_json_put_value(&text, value, err) == KG_OK)
        kg_fail(
            err, KG_EUNSUPPORTED,
            "%s: field 'init_lora_weights': expected true, false, gaussian, eva or "
            "orthogonal; found %.80s, an initialisation that changes the base weights",
            doc->where, kg_str_text(&text));
    kg_str_release(&text);
    return err->code;
}

static kg_status refuse_field(const struct kg_json_doc *doc, const char *key,
                              const struct kg_json *value, struct kg_err *err)
{
    struct kg_str text = {0};

    if (kg_json_put_value(&text, value, err) == KG_OK)
        kg_fail(err, KG_EUNSUPPORTED,
                "%s: field '%s': expected no value, found %.60s, which kedge does not "
                "support",
                doc->where, key, kg_str_text(&text));
    kg_str_release(&text);
    return err->code;
}

/* Names and expressions become C strings, which a NUL would silently truncate. */
static kg_status check_texts(const struct kg_json_doc *doc, const char *key,
                             const struct kg_json *v, struct kg_err *err)
{
    const bool object = kg_json_type(v) == KG_JSON_OBJECT;
    size_t n;
    const char *text = kg_json_text(v, &n);

    if (text && strlen(text) != n)
        return kg_fail(err, KG_EFORMAT,
                       "%s: key '%s': expected text without NUL, found one at byte %zu",
                       doc->where, key, strlen(text));
    for (size_t i = 0; i < kg_json_size(v); i++)
        KG_TRY(check_texts(doc, key, object ? kg_json_value_at(v, i) : kg_json_at(v, i),
                           err));
    return KG_OK;
}

static kg_status check_fields(const struct kg_json_doc *doc, struct kg_err *err)
{
    for (size_t i = 0; i < kg_json_size(doc->root); i++) {
        const char *key = kg_json_key_at(doc->root, i);

        KG_TRY(check_texts(doc, key, kg_json_value_at(doc->root, i), err));
        if (strcmp(key, "init_lora_weights") == 0) {
            if (!leaves_base(kg_json_value_at(doc->root, i)))
                return refuse_start(doc, kg_json_value_at(doc->root, i), err);
            continue;
        }
        if (!is_known(key) && !says_nothing(kg_json_value_at(doc->root, i)))
            return refuse_field(doc, key, kg_json_value_at(doc->root, i), err);
    }
    return KG_OK;
}

static kg_status read_type(const struct kg_json_doc *doc, struct kg_err *err)
{
    const char *type;

    KG_TRY(kg_json_need_text(&type, doc, doc->root, "peft_type", err));
    if (strcmp(type, "LORA") == 0)
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED,
                   "%s: key 'peft_type': expected LORA, found %.40s", doc->where, type);
}

/* use_rslora: the scale is alpha / sqrt(r) instead of alpha / r */
static kg_status read_rslora(struct kg_lora *l, const struct kg_json_doc *doc,
                             struct kg_err *err)
{
    const struct kg_json *v = kg_json_get(doc->root, "use_rslora");

    l->rslora = kg_json_bool(v, false);
    if (kg_json_type(v) == KG_JSON_BOOL || kg_json_type(v) == KG_JSON_NULL)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "%s: key 'use_rslora': expected true or false, found %s", doc->where,
                   kg_json_type_name(v));
}

static kg_status read_alpha(struct kg_lora *l, const struct kg_json_doc *doc,
                            struct kg_err *err)
{
    const struct kg_json *alpha = kg_json_get(doc->root, "lora_alpha");

    l->alpha = kg_json_real(alpha, 0);
    if (kg_json_is_number(alpha) && l->alpha > 0 && l->alpha <= MAX_ALPHA)
        return KG_OK;
    return kg_fail(
        err, KG_EFORMAT,
        "%s: key 'lora_alpha': expected a number above 0, at most 1e6, found %s",
        doc->where,
        kg_json_is_number(alpha) ? "another number" : kg_json_type_name(alpha));
}

/* Fails: the value of `key`, or of its entry `at` if not NULL, is not as expected. */
static kg_status unlike(const struct kg_json_doc *doc, const char *key, const char *at,
                        const char *expected, const struct kg_json *found,
                        struct kg_err *err)
{
    struct kg_str text = {0};

    if (kg_json_put_value(&text, found, err) == KG_OK)
        kg_fail(err, KG_EFORMAT, "%s: key '%s'%s%.60s%s: expected %s, found %.60s",
                doc->where, key, at ? ": '" : "", at ? at : "", at ? "'" : "", expected,
                kg_str_text(&text));
    kg_str_release(&text);
    return err->code;
}

/* A list of names, a regular expression, or "all-linear". */
static kg_status read_targets(struct kg_lora *l, const struct kg_json_doc *doc,
                              struct kg_err *err)
{
    const struct kg_json *list = kg_json_get(doc->root, "target_modules");
    const char *text = kg_json_text(list, NULL);

    if (text && strcasecmp(text, "all-linear") == 0)
        return KG_OK;
    if (text && *text)
        return kg_lora_add_rule(l, KG_LORA_TARGET_RE, text, 0, doc->where, err);
    if (kg_json_type(list) != KG_JSON_ARRAY || kg_json_size(list) == 0)
        return unlike(doc, "target_modules", NULL,
                      "a list of names, a regular expression or all-linear", list, err);
    for (size_t i = 0; i < kg_json_size(list); i++) {
        const char *name = kg_json_text(kg_json_at(list, i), NULL);

        if (!name)
            return kg_fail(err, KG_EFORMAT,
                           "%s: target_modules[%zu]: expected a name, found %s",
                           doc->where, i, kg_json_type_name(kg_json_at(list, i)));
        KG_TRY(kg_lora_add_target(l, name, doc->where, err));
    }
    return KG_OK;
}

static kg_status read_excluded(struct kg_lora *l, const struct kg_json_doc *doc,
                               struct kg_err *err)
{
    const struct kg_json *v = kg_json_get(doc->root, "exclude_modules");
    const char *text = kg_json_text(v, NULL);

    if (text && *text)
        return kg_lora_add_rule(l, KG_LORA_EXCLUDE_RE, text, 0, doc->where, err);
    if (!text && kg_json_type(v) != KG_JSON_ARRAY && kg_json_type(v) != KG_JSON_NULL)
        return unlike(doc, "exclude_modules", NULL,
                      "a list of names or a regular expression", v, err);
    for (size_t i = 0; i < kg_json_size(v); i++) {
        const char *name = kg_json_text(kg_json_at(v, i), NULL);

        if (!name)
            return unlike(doc, "exclude_modules", NULL, "names", kg_json_at(v, i), err);
        KG_TRY(kg_lora_add_rule(l, KG_LORA_EXCLUDE, name, 0, doc->where, err));
    }
    return KG_OK;
}

static kg_status add_layer(struct kg_lora *l, const struct kg_json_doc *doc,
                           const struct kg_json *v, struct kg_err *err)
{
    const int64_t layer = kg_json_int(v, -1);

    if (kg_json_type(v) != KG_JSON_INT || layer < 0 || layer > INT32_MAX)
        return unlike(doc, "layers_to_transform", NULL, "layer numbers from 0", v, err);
    return kg_lora_add_rule(l, KG_LORA_LAYER, "", (double)layer, doc->where, err);
}

/* The list of layers is "layers" in every model; one of several names must be that. */
static bool is_layers(const struct kg_json *v)
{
    const char *text = kg_json_text(v, NULL);
    bool some = says_nothing(v) || (text && strcmp(text, "layers") == 0);

    for (size_t i = 0; kg_json_type(v) == KG_JSON_ARRAY && i < kg_json_size(v); i++)
        some |= is_layers(kg_json_at(v, i));
    return some;
}

static kg_status read_layers(struct kg_lora *l, const struct kg_json_doc *doc,
                             struct kg_err *err)
{
    const struct kg_json *v = kg_json_get(doc->root, "layers_to_transform");
    const struct kg_json *pattern = kg_json_get(doc->root, "layers_pattern");

    if (!is_layers(pattern))
        return unlike(doc, "layers_pattern", NULL, "\"layers\"", pattern, err);
    if (kg_json_type(v) == KG_JSON_NULL)
        return says_nothing(pattern)
                   ? KG_OK
                   : unlike(doc, "layers_pattern", NULL,
                            "none without layers_to_transform", pattern, err);
    if (l->n_targets == 0)
        return unlike(doc, "layers_to_transform", NULL,
                      "none unless target_modules is a list of names", v, err);
    if (kg_json_type(v) != KG_JSON_ARRAY)
        return add_layer(l, doc, v, err);
    for (size_t i = 0; i < kg_json_size(v); i++)
        KG_TRY(add_layer(l, doc, kg_json_at(v, i), err));
    return KG_OK;
}

/* {"q_proj": 16, ...} */
struct pattern_key {
    const char *key, *expected;
    enum kg_lora_kind kind;
    double most;
    bool whole; /* only integers */
};
static const struct pattern_key pattern_keys[] = {
    {"rank_pattern", "an integer above 0", KG_LORA_RANK, INT32_MAX, true},
    {"alpha_pattern", "a number above 0, at most 1e6", KG_LORA_ALPHA, MAX_ALPHA, false},
};

static kg_status read_pattern(struct kg_lora *l, const struct kg_json_doc *doc,
                              const struct pattern_key *k, struct kg_err *err)
{
    const struct kg_json *all = kg_json_get(doc->root, k->key);

    if (kg_json_type(all) != KG_JSON_NULL && kg_json_type(all) != KG_JSON_OBJECT)
        return unlike(doc, k->key, NULL, "an object of names and numbers", all, err);
    for (size_t i = 0; i < kg_json_size(all); i++) {
        const struct kg_json *v = kg_json_value_at(all, i);
        const char *name = kg_json_key_at(all, i);
        const double x = kg_json_real(v, 0);

        if (!kg_json_is_number(v) || (k->whole && kg_json_type(v) != KG_JSON_INT) ||
            x <= 0 || x > k->most)
            return unlike(doc, k->key, name, k->expected, v, err);
        KG_TRY(kg_lora_add_rule(l, k->kind, name, x, doc->where, err));
    }
    return KG_OK;
}

static kg_status read_doc(struct kg_lora *l, const struct kg_json_doc *doc,
                          struct kg_err *err)
{
    int64_t rank;

    *l = (struct kg_lora){0};
    if (kg_json_type(doc->root) != KG_JSON_OBJECT)
        return kg_fail(err, KG_EFORMAT, "%s: expected an object, found %s", doc->where,
                       kg_json_type_name(doc->root));
    KG_TRY(read_type(doc, err));
    KG_TRY(check_fields(doc, err));
    KG_TRY(kg_json_need_int(&rank, doc, doc->root, "r", 1, INT32_MAX, err));
    l->rank = (int32_t)rank;
    KG_TRY(read_rslora(l, doc, err));
    KG_TRY(read_alpha(l, doc, err));
    KG_TRY(read_targets(l, doc, err));
    KG_TRY(read_excluded(l, doc, err));
    KG_TRY(read_layers(l, doc, err));
    for (size_t i = 0; i < sizeof pattern_keys / sizeof *pattern_keys; i++)
        KG_TRY(read_pattern(l, doc, &pattern_keys[i], err));
    return KG_OK;
}

kg_status kg_lora_parse(struct kg_lora *l, const char *json, size_t n, const char *where,
                        struct kg_err *err)
{
    struct kg_json_doc doc = {0};

    KG_TRY(kg_json_parse(&doc, json, n, where, err));
    kg_status status = read_doc(l, &doc, err);
    kg_json_release(&doc);
    return status;
}

kg_status kg_lora_read(struct kg_lora *l, const char *dir, struct kg_err *err)
{
    enum { MAX_BYTES = 1 << 20 };
    const struct kg_path path = kg_path_in(dir, "adapter_config.json");
    struct kg_json_doc doc = {0};

    KG_TRY(kg_json_read(&doc, path.text, MAX_BYTES, err));
    kg_status status = read_doc(l, &doc, err);
    kg_json_release(&doc);
    return status;
}

/* ---- writing ---- */

/* Writes the rules of a kind in order, as values, names, or both, between `before` and
 * `behind`; nothing if there are none. */
static kg_status put_rules(struct kg_str *out, const struct kg_lora *l,
                           enum kg_lora_kind kind, const char *before, const char *behind,
                           struct kg_err *err)
{
    const char *between = before;

    for (int i = 0; i < l->n_rules; i++) {
        const struct kg_lora_rule *r = &l->rule[i];
        const char *text = kg_lora_rule_text(l, i);

        if (r->kind != kind)
            continue;
        KG_TRY(kg_str_puts(out, between, err));
        between = ", ";
        if (kind != KG_LORA_LAYER)
            KG_TRY(kg_json_put_string(out, text, strlen(text), err));
        if (kind == KG_LORA_RANK || kind == KG_LORA_ALPHA)
            KG_TRY(kg_str_puts(out, ": ", err));
        if (kind == KG_LORA_RANK || kind == KG_LORA_LAYER)
            KG_TRY(kg_str_printf(out, err, "%.0f", r->value));
        if (kind == KG_LORA_ALPHA)
            KG_TRY(kg_json_put_double(out, r->value, err));
    }
    return between == before ? KG_OK : kg_str_puts(out, behind, err);
}

static kg_status put_targets(struct kg_str *out, const struct kg_lora *l,
                             struct kg_err *err)
{
    if (kg_lora_count(l, KG_LORA_TARGET_RE) > 0)
        return put_rules(out, l, KG_LORA_TARGET_RE, "", "", err);
    if (l->n_targets == 0)
        return kg_str_puts(out, "\"all-linear\"", err);
    for (int i = 0; i < l->n_targets; i++)
        KG_TRY(kg_json_put_text(out, i ? ", " : "[", l->target[i], err));
    return kg_str_putc(out, ']', err);
}

static kg_status put_layers(struct kg_str *out, const struct kg_lora *l,
                            struct kg_err *err)
{
    return put_rules(out, l, KG_LORA_LAYER,
                     ",\n  \"layers_pattern\": \"layers\",\n  \"layers_to_transform\": [",
                     "]", err);
}

/* Keys in alphabetical order. Keys without effect are omitted, except those that every
 * such file has. */
kg_status kg_lora_write(struct kg_str *out, const struct kg_lora *l, const char *base,
                        struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "{\n", err));
    KG_TRY(put_rules(out, l, KG_LORA_ALPHA, "  \"alpha_pattern\": {", "},\n", err));
    KG_TRY(kg_str_puts(out, "  \"base_model_name_or_path\": ", err));
    KG_TRY(base ? kg_json_put_string(out, base, strlen(base), err)
                : kg_str_puts(out, "null", err));
    KG_TRY(kg_str_puts(out, ",\n  \"bias\": \"none\"", err));
    KG_TRY(put_rules(out, l, KG_LORA_EXCLUDE, ",\n  \"exclude_modules\": [", "]", err));
    KG_TRY(put_rules(out, l, KG_LORA_EXCLUDE_RE, ",\n  \"exclude_modules\": ", "", err));
    KG_TRY(kg_str_puts(out, ",\n  \"fan_in_fan_out\": false,\n  \"inference_mode\": true",
                       err));
    KG_TRY(put_layers(out, l, err));
    KG_TRY(kg_str_puts(out, ",\n  \"lora_alpha\": ", err));
    KG_TRY(kg_json_put_double(out, l->alpha, err));
    KG_TRY(kg_str_printf(out, err,
                         ",\n  \"lora_dropout\": 0.0,\n  \"modules_to_save\": null,\n"
                         "  \"peft_type\": \"LORA\",\n  \"r\": %d",
                         (int)l->rank));
    KG_TRY(put_rules(out, l, KG_LORA_RANK, ",\n  \"rank_pattern\": {", "}", err));
    KG_TRY(kg_str_puts(out, ",\n  \"target_modules\": ", err));
    KG_TRY(put_targets(out, l, err));
    return kg_str_printf(out, err,
                         ",\n  \"task_type\": \"CAUSAL_LM\",\n  \"use_dora\": false,\n"
                         "  \"use_rslora\": %s\n}\n",
                         l->rslora ? "true" : "false");
}
