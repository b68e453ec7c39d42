/* adapter_config.json, as PEFT writes it.
 *
 * A field is honoured, without effect on what the adapter computes, or must say nothing
 * (null, false, 0, "none", empty): so what later releases add is read as long as it is
 * not used, and refused by name where it is.
 */
#include "model/lora.h"

#include "base/file.h"
#include "data/json.h"

#include <string.h>

#define MAX_ALPHA 1e6

/* read below, or for those who train by PEFT, initialise, or look for the base */
static const char *const known[] = {
    "r",
    "lora_alpha",
    "use_rslora",
    "target_modules",
    "peft_type",
    "task_type",
    "base_model_name_or_path",
    "revision",
    "peft_version",
    "auto_mapping",
    "inference_mode",
    "lora_dropout", /* of training by PEFT; there is none here */
    "eva_config",
    "megatron_core",
    "qalora_group_size",
    "ensure_weight_tying",
    "runtime_config",
};

/* How PEFT initialised A and B, where it left the base as it was. PiSSA, OLoRA, LoftQ and
 * others take their start out of W, each time that such an adapter is loaded. */
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

static bool is_known(const char *key)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i], key) == 0)
            return true;
    return false;
}

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

static kg_status refuse_field(const struct kg_json_doc *doc, const char *key,
                              const struct kg_json *value, struct kg_err *err)
{
    struct kg_str text = {0};

    if (kg_json_put_value(&text, value, err) == KG_OK)
        kg_fail(err, KG_EUNSUPPORTED,
                "%s: field '%s': expected it unset, found %.60s, which kedge does not "
                "know",
                doc->where, key, kg_str_text(&text));
    kg_str_release(&text);
    return err->code;
}

static kg_status check_fields(const struct kg_json_doc *doc, struct kg_err *err)
{
    for (size_t i = 0; i < kg_json_size(doc->root); i++) {
        const char *key = kg_json_key_at(doc->root, i);

        if (strcmp(key, "init_lora_weights") == 0) {
            if (!leaves_base(kg_json_value_at(doc->root, i)))
                return kg_fail(err, KG_EUNSUPPORTED,
                               "%s: field 'init_lora_weights': expected true, false, "
                               "gaussian, eva or orthogonal, which leave the base as it "
                               "is, found another",
                               doc->where);
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

/* sqrt(r) in the place of r, where it says so */
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
        doc->where, kg_json_is_number(alpha) ? "none such" : kg_json_type_name(alpha));
}

/* A list of names, or "all-linear"; PEFT takes any other text as a regular expression. */
static kg_status read_targets(struct kg_lora *l, const struct kg_json_doc *doc,
                              struct kg_err *err)
{
    const struct kg_json *list = kg_json_get(doc->root, "target_modules");
    const char *text = kg_json_text(list, NULL);

    if (text && strcmp(text, "all-linear") == 0)
        return KG_OK;
    if (kg_json_type(list) != KG_JSON_ARRAY || kg_json_size(list) == 0)
        return kg_fail(err, text ? KG_EUNSUPPORTED : KG_EFORMAT,
                       "%s: key 'target_modules': expected a list of names or "
                       "all-linear, found %s%.60s",
                       doc->where, text ? "" : kg_json_type_name(list), text ? text : "");
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
    return read_targets(l, doc, err);
}

kg_status kg_lora_parse(struct kg_lora *l, const char *json, size_t n, const char *where,
                        struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    kg_status status;

    KG_TRY(kg_json_parse(&doc, json, n, where, err));
    status = read_doc(l, &doc, err);
    kg_json_release(&doc);
    return status;
}

kg_status kg_lora_read(struct kg_lora *l, const char *dir, struct kg_err *err)
{
    enum { MAX_BYTES = 1 << 20 };
    const struct kg_path path = kg_path_in(dir, "adapter_config.json");
    struct kg_json_doc doc = {0};
    kg_status status;

    KG_TRY(kg_json_read(&doc, path.text, MAX_BYTES, err));
    status = read_doc(l, &doc, err);
    kg_json_release(&doc);
    return status;
}

/* ---- writing ---- */

static kg_status put_targets(struct kg_str *out, const struct kg_lora *l,
                             struct kg_err *err)
{
    if (l->n_targets == 0)
        return kg_str_puts(out, "\"all-linear\"", err);
    for (int i = 0; i < l->n_targets; i++)
        KG_TRY(kg_json_put_text(out, i ? ", " : "[", l->target[i], err));
    return kg_str_putc(out, ']', err);
}

kg_status kg_lora_write(struct kg_str *out, const struct kg_lora *l, const char *base,
                        struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "{\n  \"base_model_name_or_path\": ", err));
    KG_TRY(base ? kg_json_put_string(out, base, strlen(base), err)
                : kg_str_puts(out, "null", err));
    KG_TRY(kg_str_puts(out,
                       ",\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": false,\n"
                       "  \"inference_mode\": true,\n  \"lora_alpha\": ",
                       err));
    KG_TRY(kg_json_put_double(out, l->alpha, err));
    KG_TRY(kg_str_printf(out, err,
                         ",\n  \"lora_dropout\": 0.0,\n  \"modules_to_save\": null,\n"
                         "  \"peft_type\": \"LORA\",\n  \"r\": %d,\n"
                         "  \"target_modules\": ",
                         (int)l->rank));
    KG_TRY(put_targets(out, l, err));
    return kg_str_printf(out, err,
                         ",\n  \"task_type\": \"CAUSAL_LM\",\n  \"use_dora\": false,\n"
                         "  \"use_rslora\": %s\n}\n",
                         l->rslora ? "true" : "false");
}
