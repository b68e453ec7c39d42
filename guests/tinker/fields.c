/* The JSON fields of a request, by tables. A field that is absent or null has its
 * default; one of another type is refused, because the default would silently change the
 * training. Unknown fields of a request belong to a newer SDK and are skipped. An unknown
 * name among settings is refused: it would have no effect.
 */
#include "tinker/tinker.h"

#include <stddef.h>

struct field {
    const char *key;
    enum kg_json_type type; /* KG_JSON_NULL: several types */
    size_t at;
};
#define AT(key, type, member) key, KG_JSON_##type, offsetof(struct kg_tinker_args, member)
static const struct field request_fields[] = {
    {AT("base_model", STRING, base_model)},
    {AT("path", STRING, path)},
    {AT("kind", STRING, kind)},
    {AT("user_metadata", OBJECT, meta)},
    {AT("optimizer_config", OBJECT, optim_config)},
    {AT("lora_config", OBJECT, lora)},
    {AT("optimizer", BOOL, with_optim)},
    {AT("overwrite", BOOL, overwrite)},
    {AT("sampling_session_seq_id", INT, sampler_seq)},
    {AT("num_samples", INT, samples)},
    {AT("prompt", OBJECT, prompt)},
    {AT("prompt_logprobs", BOOL, prompt_logprobs)},
    {AT("topk_prompt_logprobs", INT, top_prompt)},
    {AT("topk_sample_logprobs", INT, top_sample)},
};
static const struct field lora_fields[] = {
    {AT("rank", INT, rank)},
    {AT("seed", INT, seed)},
    {AT("train_attn", BOOL, attn)},
    {AT("train_mlp", BOOL, mlp)},
    {AT("train_unembed", BOOL, unembed)},
};
static const struct field optim_fields[] = {
    {AT("type", STRING, optim)},
    {AT("learning_rate", REAL, lr)},
    {AT("beta1", REAL, beta1)},
    {AT("beta2", REAL, beta2)},
    {AT("eps", REAL, eps)},
    {AT("weight_decay", REAL, decay)},
    {AT("grad_clip_norm", REAL, clip)},
};
static const struct field sampling_fields[] = {
    {AT("max_tokens", INT, max_tokens)},
    {AT("seed", INT, seed)},
    {AT("temperature", REAL, temperature)},
    {AT("top_k", INT, top_k)},
    {AT("top_p", REAL, top_p)},
    {AT("stop", NULL, stop)},
};

#define FIELDS(of) of##_fields, sizeof of##_fields / sizeof *of##_fields
static const struct object {
    const char *settings; /* NULL: the request itself */
    const struct field *fields;
    size_t n;
} objects[] = {
    {NULL, FIELDS(request)},
    {"lora_config", FIELDS(lora)},
    {"adam_params", FIELDS(optim)},
    {"optim_params", FIELDS(optim)},
    {"optimizer_params", FIELDS(optim)},
    {"sampling_params", FIELDS(sampling)},
};

static const struct kg_tinker_args defaults = {
    .attn = true,
    .mlp = true,
    .rank = KG_TINKER_NONE,
    .seed = KG_TINKER_NONE,
    .sampler_seq = KG_TINKER_NONE,
    .samples = 1,
    .max_tokens = KG_TINKER_NONE,
    .top_k = -1,
    .lr = 1e-4,
    .beta1 = 0.9,
    .beta2 = 0.95,
    .eps = 1e-12,
    .temperature = 1,
    .top_p = 1,
};

static kg_status take(struct kg_tinker_args *a, const struct field *f,
                      const struct kg_json_doc *doc, const struct kg_json *object,
                      struct kg_err *err)
{
    void *to = (char *)a + f->at;
    const struct kg_json *v = kg_json_get(object, f->key);
    size_t n = 0;
    if (f->type != KG_JSON_NULL)
        KG_TRY(kg_json_need(&v, doc, object, f->key, f->type, err));
    if (f->type == KG_JSON_BOOL)
        *(bool *)to = kg_json_bool(v, false);
    else if (f->type == KG_JSON_INT)
        *(int64_t *)to = kg_json_int(v, 0);
    else if (f->type == KG_JSON_REAL)
        *(double *)to = kg_json_real(v, 0);
    else if (f->type == KG_JSON_STRING)
        *(const char **)to = kg_json_text(v, &n);
    else
        *(const struct kg_json **)to = v;
    if (f->type == KG_JSON_STRING && strlen(kg_json_text(v, NULL)) != n)
        return kg_fail(err, KG_EFORMAT, "%s: key '%s': expected text without NUL",
                       doc->where, f->key);
    return KG_OK;
}

static kg_status take_object(struct kg_tinker_args *a, const struct object *o,
                             const struct kg_json_doc *doc, const struct kg_json *v,
                             struct kg_err *err)
{
    for (size_t i = 0; i < kg_json_size(v); i++) {
        const char *key = kg_json_key_at(v, i);
        size_t which;
        const kg_status known = kg_str_pick(&which, KG_EINVAL, o->settings, key,
                                            o->fields, o->n, sizeof *o->fields, err);
        if (known != KG_OK && o->settings)
            return known;
        if (known == KG_OK && kg_json_type(kg_json_value_at(v, i)) != KG_JSON_NULL)
            KG_TRY(take(a, &o->fields[which], doc, v, err));
    }
    return KG_OK;
}

kg_status kg_tinker_read_args(struct kg_tinker_job *job, struct kg_err *err)
{
    const struct kg_json_doc *doc = &job->doc;
    job->args = defaults;
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        const struct object *o = &objects[i];
        const struct kg_json *v = o->settings ? kg_json_get(doc->root, o->settings)
                                              : doc->root;
        if (kg_json_type(v) == KG_JSON_NULL)
            continue;
        if (o->settings)
            KG_TRY(kg_json_need(&v, doc, doc->root, o->settings, KG_JSON_OBJECT, err));
        KG_TRY(take_object(&job->args, o, doc, v, err));
    }
    return KG_OK;
}
