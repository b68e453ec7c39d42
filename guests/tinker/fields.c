/* The types of a request's JSON fields. A field that is absent or null has its default;
 * one of another type is refused, because the default in its place would change the
 * training in silence. Unknown fields of a request belong to a newer SDK and are skipped.
 * An unknown name among settings is refused: it would have no effect.
 */
#include "tinker/tinker.h"

struct field {
    const char *key;
    enum kg_json_type type;
};
static const struct field model_fields[] = {
    {"base_model", KG_JSON_STRING},
    {"user_metadata", KG_JSON_OBJECT},
    {"optimizer_config", KG_JSON_OBJECT},
    {"optimizer", KG_JSON_BOOL}, /* of load_weights */
};
static const struct field lora_fields[] = {
    {"rank", KG_JSON_INT},           {"seed", KG_JSON_INT},
    {"train_attn", KG_JSON_BOOL},    {"train_mlp", KG_JSON_BOOL},
    {"train_unembed", KG_JSON_BOOL},
};
static const struct field save_fields[] = {
    {"path", KG_JSON_STRING},
    {"overwrite", KG_JSON_BOOL},
    {"user_metadata", KG_JSON_OBJECT},
    {"kind", KG_JSON_STRING},
    {"sampling_session_seq_id", KG_JSON_INT},
};
static const struct field optim_fields[] = {
    {"type", KG_JSON_STRING},
    {"learning_rate", KG_JSON_REAL},
    {"beta1", KG_JSON_REAL},
    {"beta2", KG_JSON_REAL},
    {"eps", KG_JSON_REAL},
    {"weight_decay", KG_JSON_REAL},
    {"grad_clip_norm", KG_JSON_REAL},
};
static const struct field sample_fields[] = {
    {"num_samples", KG_JSON_INT},          {"prompt", KG_JSON_OBJECT},
    {"prompt_logprobs", KG_JSON_BOOL},     {"topk_prompt_logprobs", KG_JSON_INT},
    {"topk_sample_logprobs", KG_JSON_INT},
};
static const struct field sampling_fields[] = {
    {"max_tokens", KG_JSON_INT},   {"seed", KG_JSON_INT},
    {"temperature", KG_JSON_REAL}, {"top_k", KG_JSON_INT},
    {"top_p", KG_JSON_REAL},       {"stop", KG_JSON_NULL /* of several types */},
};

#define FIELDS(of) of##_fields, sizeof of##_fields / sizeof *of##_fields
static const struct object {
    kg_tinker_run_fn *run; /* NULL: it samples */
    const char *settings;  /* NULL: the request itself */
    const struct field *fields;
    size_t n;
} objects[] = {
    {kg_tinker_create_model, NULL, FIELDS(model)},
    {kg_tinker_create_model, "lora_config", FIELDS(lora)},
    {kg_tinker_load_weights, NULL, FIELDS(model)},
    {kg_tinker_save_weights, NULL, FIELDS(save)},
    {kg_tinker_save_sampler, NULL, FIELDS(save)},
    {kg_tinker_optim_step, "adam_params", FIELDS(optim)},
    {kg_tinker_optim_step, "optim_params", FIELDS(optim)},
    {kg_tinker_optim_step, "optimizer_params", FIELDS(optim)},
    {NULL, NULL, FIELDS(sample)},
    {NULL, "sampling_params", FIELDS(sampling)},
};

static kg_status check_object(const struct object *o, const struct kg_json_doc *doc,
                              const struct kg_json *v, struct kg_err *err)
{
    const struct kg_json *ignored;
    for (size_t i = 0; i < kg_json_size(v); i++) {
        const char *key = kg_json_key_at(v, i);
        const bool given = kg_json_type(kg_json_value_at(v, i)) != KG_JSON_NULL;
        size_t which;
        const kg_status known = kg_str_pick(&which, KG_EINVAL, o->settings, key,
                                            o->fields, o->n, sizeof *o->fields, err);
        if (known != KG_OK && o->settings)
            return known;
        if (known == KG_OK && given && o->fields[which].type != KG_JSON_NULL)
            KG_TRY(kg_json_need(&ignored, doc, v, key, o->fields[which].type, err));
    }
    return KG_OK;
}

kg_status kg_tinker_check_fields(const struct kg_json_doc *doc, kg_tinker_run_fn *run,
                                 struct kg_err *err)
{
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        const struct object *o = &objects[i];
        const struct kg_json *v = doc->root;
        if (o->run != run)
            continue;
        if (o->settings) {
            if (kg_json_type(kg_json_get(v, o->settings)) == KG_JSON_NULL)
                continue;
            KG_TRY(kg_json_need(&v, doc, doc->root, o->settings, KG_JSON_OBJECT, err));
        }
        KG_TRY(check_object(o, doc, v, err));
    }
    return KG_OK;
}
