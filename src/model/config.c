/* Reads the config.json of a model of an architecture in arch.c.
 *
 * config_fields.c has the table of all fields. config_layers.c, config_experts.c and
 * config_rope_read.c read those of layers, experts and rope; config_write.c writes.
 */
#include "model/config_internal.h"

#include "base/file.h"
#include "base/mem.h"
#include "data/source.h"

#include <math.h>
#include <string.h>

enum {
    MAX_FILE_BYTES = 16 << 20,
    MAX_VOCAB = 1 << 22,
    MAX_HEADS = 1024,
};

static const char *const DTYPES[] = {"float32", "float16", "bfloat16"};

/* Whether a class is the family's language model, perhaps with another head or none. */
static bool is_of_family(const char *name, const struct kg_arch *arch)
{
    static const char *const ends[] = {
        "ForCausalLM", "Model", "ForSequenceClassification", "ForTokenClassification"};
    const size_t n = strlen(arch->class_name) - strlen(ends[0]);
    for (size_t i = 0; name && i < sizeof ends / sizeof *ends; i++)
        if (strncmp(name, arch->class_name, n) == 0 && strcmp(name + n, ends[i]) == 0)
            return true;
    return false;
}

static kg_status read_family(const struct kg_config_reader *r)
{
    const char *model_type;
    const struct kg_json *classes = kg_json_get(r->root, "architectures");
    KG_TRY(kg_json_need_text(&model_type, r->doc, r->root, "model_type", r->err));
    if (kg_json_type(kg_json_get(r->root, "text_config")) != KG_JSON_NULL)
        return kg_fail(r->err, KG_EUNSUPPORTED,
                       "%s: text_config: expected a text model, found model_type %.40s, "
                       "which combines one with parts for images or sound",
                       r->doc->where, model_type);
    if (kg_arch_find(&r->c->arch, model_type, r->err) != KG_OK)
        return kg_err_prefix(r->err, "%s: model_type", r->doc->where);
    if (kg_json_type(classes) == KG_JSON_NULL)
        return KG_OK;
    for (size_t i = 0; i < kg_json_size(classes) || i == 0; i++)
        if (!is_of_family(kg_json_text(kg_json_at(classes, i), NULL), r->c->arch)) {
            kg_status status = kg_config_refuse(
                r, "architectures", classes, "the causal language model of model_type");
            return status == KG_ENOMEM
                       ? status
                       : kg_err_prefix(r->err, "model_type %s", model_type);
        }
    return KG_OK;
}

static kg_status read_sizes(const struct kg_config_reader *r)
{
    struct kg_model_config *c = r->c;
    const bool as_heads = c->arch->reads & KG_READS_HEADS;
    KG_TRY(kg_config_size(r, "vocab_size", MAX_VOCAB, 0, &c->vocab));
    KG_TRY(kg_config_size(r, "hidden_size", KG_MAX_WIDTH, 0, &c->hidden));
    KG_TRY(kg_config_size(r, "intermediate_size", KG_MAX_WIDTH, 0, &c->ffn));
    KG_TRY(kg_config_size(r, "num_hidden_layers", KG_MAX_LAYERS, 0, &c->layers));
    KG_TRY(kg_config_size(r, "num_attention_heads", MAX_HEADS, 0, &c->heads));
    /* null means the number of heads. If it is absent, Llama's class does the same; the
     * other classes take a constant, which is not useful as a default. */
    KG_TRY(kg_config_size(
        r, "num_key_value_heads", MAX_HEADS,
        as_heads || kg_json_get(r->root, "num_key_value_heads") ? c->heads : 0,
        &c->kv_heads));
    KG_TRY(kg_config_size(r, "max_position_embeddings", KG_MAX_POSITIONS,
                          c->arch->default_positions, &c->max_positions));
    if (c->heads % c->kv_heads)
        return kg_fail(
            r->err, KG_EINVAL,
            "%s: num_attention_heads %d is not a multiple of num_key_value_heads %d",
            r->doc->where, c->heads, c->kv_heads);
    bool given = kg_json_type(kg_json_get(r->root, "head_dim")) != KG_JSON_NULL;
    const int32_t usual = c->arch->default_head_dim;
    if (!given && !usual && c->hidden % c->heads)
        return kg_fail(r->err, KG_EINVAL,
                       "%s: hidden_size %d is not a multiple of num_attention_heads %d",
                       r->doc->where, c->hidden, c->heads);
    c->head_dim = usual ? usual : c->hidden / c->heads;
    if (given)
        KG_TRY(kg_config_size(r, "head_dim", KG_MAX_HEAD_DIM, 0, &c->head_dim));
    if (c->head_dim % 2 || c->head_dim < 2 || c->head_dim > KG_MAX_HEAD_DIM)
        return kg_fail(r->err, KG_EINVAL,
                       "%s: head_dim is %d, expected an even number from 2 to %d",
                       r->doc->where, c->head_dim, KG_MAX_HEAD_DIM);
    return KG_OK;
}

/* ---- biases and numbers ---- */

/* attention_bias is for q, k, v and o, in classes that have it. For q, k and v only:
 * qkv_bias, and the biases of Qwen2, which cannot be switched off. */
static kg_status read_biases(const struct kg_config_reader *r)
{
    struct kg_model_config *c = r->c;
    const bool own = c->arch->features & KG_QKV_BIAS;
    const bool known = c->arch->reads & KG_READS_BIAS;
    bool attention, mlp, qkv = false;
    if (c->arch->reads & KG_READS_QKV_BIAS)
        KG_TRY(kg_config_bool(r, "qkv_bias", true, &qkv));
    KG_TRY(kg_config_bool(r, "attention_bias", own, &attention));
    KG_TRY(kg_config_bool(r, "mlp_bias", false, &mlp));
    if (attention != own && !known)
        return kg_config_refuse(r, "attention_bias",
                                kg_json_get(r->root, "attention_bias"),
                                own ? "true for this model_type" : "false");
    if (mlp && !(c->arch->reads & KG_READS_MLP_BIAS))
        return kg_config_refuse(r, "mlp_bias", kg_json_get(r->root, "mlp_bias"), "false");
    c->qkv_bias = attention || qkv;
    c->o_bias = attention && !own;
    c->mlp_bias = mlp;
    return KG_OK;
}

static const char *const ACT_NAMES[KG_ACTS] = {
    [KG_ACT_SILU] = "silu",
    [KG_ACT_GELU_TANH] = "gelu_pytorch_tanh",
};

const char *kg_act_name(enum kg_act act) { return ACT_NAMES[act]; }

/* Both fields, if given, must name the activation of the class. */
static kg_status read_act(const struct kg_config_reader *r)
{
    static const char *const keys[] = {"hidden_act", "hidden_activation"};
    r->c->act = r->c->arch->act;
    for (int i = 0; i < 2; i++) {
        const struct kg_json *value = kg_json_get(r->root, keys[i]);
        if (kg_json_type(value) != KG_JSON_NULL &&
            !kg_config_is_text(value, ACT_NAMES[r->c->act]))
            return kg_config_refuse(r, keys[i], value,
                                    r->c->act == KG_ACT_SILU ? "\"silu\""
                                                             : "\"gelu_pytorch_tanh\"");
    }
    return KG_OK;
}

/* 1 becomes 0, which means no operation. */
static kg_status read_multiplier(const struct kg_config_reader *r, const char *key,
                                 double *out)
{
    KG_TRY(kg_config_real(r, r->root, key, 1, out));
    *out = *out == 1 ? 0 : *out;
    return KG_OK;
}

static kg_status read_softcap(const struct kg_config_reader *r, const char *key,
                              double usual, double *out)
{
    const struct kg_json *value = kg_json_get(r->root, key);
    *out = 0;
    if (value && kg_json_type(value) == KG_JSON_NULL)
        return KG_OK;
    return value || usual > 0 ? kg_config_real(r, r->root, key, usual, out) : KG_OK;
}

/* Multipliers, softcaps, and other factors of scores and embeddings. */
static kg_status read_factors(const struct kg_config_reader *r)
{
    struct kg_model_config *c = r->c;
    const struct kg_arch *arch = c->arch;
    if (arch->features & KG_ROOT_EMBED)
        c->embed_scale = (double)sqrtf((float)c->hidden);
    if (arch->reads & KG_READS_MULTIPLIERS) {
        KG_TRY(read_multiplier(r, "embedding_multiplier", &c->embed_scale));
        KG_TRY(read_multiplier(r, "residual_multiplier", &c->residual_scale));
        KG_TRY(read_multiplier(r, "logits_scaling", &c->logit_divisor));
        KG_TRY(kg_config_real(r, r->root, "attention_multiplier", 1, &c->score_scale));
    }
    if (!(arch->reads & KG_READS_SOFTCAPS))
        return KG_OK;
    KG_TRY(kg_config_real(r, r->root, "query_pre_attn_scalar", 256, &c->query_scalar));
    c->score_scale = 1 / sqrt(c->query_scalar);
    KG_TRY(read_softcap(r, "attn_logit_softcapping", arch->default_score_softcap,
                        &c->score_softcap));
    c->score_softcap = arch->no_score_softcap ? 0 : c->score_softcap;
    return read_softcap(r, "final_logit_softcapping", arch->default_logit_softcap,
                        &c->logit_softcap);
}

static kg_status read_numbers(const struct kg_config_reader *r)
{
    struct kg_model_config *c = r->c;
    double eps, range;
    const double usual = c->arch->default_eps;
    KG_TRY(kg_config_real(r, r->root, "rms_norm_eps", usual != 0 ? usual : 1e-6, &eps));
    KG_TRY(kg_config_real(r, r->root, "initializer_range", 0.02, &range));
    KG_TRY(kg_config_bool(r, "tie_word_embeddings", c->arch->default_tied, &c->tied));
    c->tied_said = c->tied;
    c->next_layers = (int32_t)kg_json_int(
        kg_json_get(r->root, "num_nextn_predict_layers"), 0);
    c->norm_eps = (float)eps;
    c->init_range = (float)range;
    KG_TRY(read_biases(r));
    KG_TRY(read_act(r));
    return read_factors(r);
}

static kg_status read_dtype(const struct kg_config_reader *r)
{
    const char *key = kg_json_get(r->root, "dtype") ? "dtype" : "torch_dtype";
    const struct kg_json *value = kg_json_get(r->root, key);
    r->c->dtype_name = "";
    if (kg_json_type(value) == KG_JSON_NULL)
        return KG_OK;
    for (size_t i = 0; i < sizeof DTYPES / sizeof *DTYPES; i++) {
        if (kg_config_is_text(value, DTYPES[i])) {
            r->c->dtype_name = DTYPES[i];
            return KG_OK;
        }
    }
    return kg_config_refuse(r, key, value, "\"float32\", \"float16\" or \"bfloat16\"");
}

/* ---- special tokens ---- */

static kg_status add_eos(const struct kg_config_reader *r, const struct kg_json *value)
{
    struct kg_model_config *c = r->c;
    int64_t id = kg_json_int(value, -1);
    if (kg_json_type(value) != KG_JSON_INT || id < 0 || id >= c->vocab)
        return kg_config_refuse(r, "eos_token_id", value, "token ids below vocab_size");
    if (kg_model_config_is_eos(c, (int32_t)id))
        return KG_OK;
    if (c->n_eos == KG_MAX_EOS)
        return kg_fail(r->err, KG_EUNSUPPORTED,
                       "%s: eos_token_id: expected at most %d end tokens", r->doc->where,
                       KG_MAX_EOS);
    c->eos[c->n_eos++] = (int32_t)id;
    return KG_OK;
}

/* null, an id or a list of ids */
static kg_status read_eos(const struct kg_config_reader *r)
{
    const struct kg_json *value = kg_json_get(r->root, "eos_token_id");
    if (kg_json_type(value) == KG_JSON_NULL)
        return KG_OK;
    if (kg_json_type(value) != KG_JSON_ARRAY)
        return add_eos(r, value);
    for (size_t i = 0; i < kg_json_size(value); i++)
        KG_TRY(add_eos(r, kg_json_at(value, i)));
    return KG_OK;
}

static kg_status read_bos(const struct kg_config_reader *r)
{
    const struct kg_json *value = kg_json_get(r->root, "bos_token_id");
    int64_t id = kg_json_int(value, -1);
    r->c->bos = -1;
    if (kg_json_type(value) == KG_JSON_NULL)
        return KG_OK;
    if (kg_json_type(value) != KG_JSON_INT || id < -1 || id >= r->c->vocab)
        return kg_config_refuse(r, "bos_token_id", value,
                                "null or a token id below vocab_size");
    r->c->bos = (int32_t)id;
    return KG_OK;
}

bool kg_model_config_is_eos(const struct kg_model_config *c, int32_t token)
{
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == token)
            return true;
    return false;
}

kg_status kg_model_config_add_eos(struct kg_model_config *c, int32_t token,
                                  struct kg_err *err)
{
    if (token < 0 || token >= c->vocab || kg_model_config_is_eos(c, token))
        return KG_OK;
    if (c->n_eos == KG_MAX_EOS)
        return kg_fail(err, KG_EINVAL, "expected at most %d end tokens, found more",
                       KG_MAX_EOS);
    c->eos[c->n_eos++] = token;
    return KG_OK;
}

/* ---- all fields ---- */

static kg_status read_all(const struct kg_config_reader *r)
{
    if (kg_json_type(r->root) != KG_JSON_OBJECT)
        return kg_fail(r->err, KG_EFORMAT, "%s: expected an object, found %s",
                       r->doc->where, kg_json_type_name(r->root));
    KG_TRY(read_family(r));
    KG_TRY(kg_config_check_fields(r));
    KG_TRY(read_sizes(r));
    if (r->c->arch->features & KG_EXPERTS)
        KG_TRY(kg_config_experts(r));
    KG_TRY(kg_config_layers(r));
    KG_TRY(read_numbers(r));
    KG_TRY(read_dtype(r));
    KG_TRY(kg_config_rope(r));
    KG_TRY(read_bos(r));
    return read_eos(r);
}

/* Reads the document and releases it. */
static kg_status take_doc(struct kg_model_config *c, struct kg_json_doc *doc,
                          const struct kg_opt_list *ignore, struct kg_err *err)
{
    kg_status status;

    *c = (struct kg_model_config){.dtype_name = "", .bos = -1};
    status = read_all(&(struct kg_config_reader){c, doc, doc->root, ignore, err});
    kg_json_release(doc);
    return status;
}

static kg_status usual(const struct kg_config_reader *r)
{
    struct kg_model_config *c = r->c;
    KG_TRY(kg_config_layers(r));
    KG_TRY(read_act(r));
    KG_TRY(read_biases(r));
    KG_TRY(read_factors(r));
    if (c->query_scalar > 0) {
        c->query_scalar = c->head_dim;
        c->score_scale = 1 / sqrt(c->query_scalar);
    }
    if (c->arch->windows != KG_WINDOWS_ALL)
        return KG_OK;
    c->window = 0;
    memset(c->layer, 0, sizeof c->layer);
    return KG_OK;
}

kg_status kg_model_config_usual(struct kg_model_config *c, struct kg_err *err)
{
    struct kg_json_doc doc;

    KG_TRY(kg_json_parse(&doc, "{}", 2, "config", err));
    const kg_status status = usual(
        &(struct kg_config_reader){c, &doc, doc.root, NULL, err});
    kg_json_release(&doc);
    return status;
}

kg_status kg_model_config_parse(struct kg_model_config *c, const char *json, size_t n,
                                const char *where, struct kg_err *err)
{
    struct kg_json_doc doc;

    KG_TRY(kg_json_parse(&doc, json, n, where, err));
    return take_doc(c, &doc, NULL, err);
}

/* Reads only the end tokens of generation_config.json: kedge's user sets sampling. */
static kg_status read_generation_config(struct kg_model_config *c, const char *path,
                                        struct kg_err *err)
{
    struct kg_json_doc doc;

    KG_TRY(kg_json_read(&doc, path, MAX_FILE_BYTES, err));
    kg_status status = read_eos(&(struct kg_config_reader){c, &doc, doc.root, NULL, err});
    kg_json_release(&doc);
    return status;
}

/* Folders without config.json, recognised by one of their files. */
static const struct {
    const char *file, *is;
} other_folders[] = {
    {"checkpoints/latest/model/config.json",
     "a run: its newest model is checkpoints/latest/model in this folder"},
    {"model/config.json", "a run's checkpoint: its model is model/ in this folder"},
    {"adapter_config.json",
     "adapters: set model.path to their base and model.adapter to this folder"},
    {"checkpoints/latest/adapter/adapter_config.json",
     "a run of adapters: set model.path to their base and model.adapter to "
     "checkpoints/latest/adapter in this folder"},
    {"adapter/adapter_config.json", "a checkpoint of adapters: set model.path to their "
                                    "base and model.adapter to adapter/ in this folder"},
};

kg_status kg_model_config_open(struct kg_model_config *c, const char *dir,
                               const struct kg_opt_list *ignore, struct kg_err *err)
{
    const struct kg_path generation = kg_path_in(dir, "generation_config.json");
    struct kg_json_doc doc;

    if (!kg_file_exists(kg_path_in(dir, "config.json").text))
        for (size_t i = 0; i < sizeof other_folders / sizeof *other_folders; i++)
            if (kg_file_exists(kg_path_in(dir, other_folders[i].file).text))
                return kg_fail(
                    err, KG_ENOTFOUND,
                    "%s: expected a model's folder, with config.json, found %s", dir,
                    other_folders[i].is);
    KG_TRY(kg_source_json(&doc, dir, "config.json", MAX_FILE_BYTES, err));
    KG_TRY(take_doc(c, &doc, ignore, err));
    if (kg_file_exists(generation.text))
        KG_TRY(read_generation_config(c, generation.text, err));
    return kg_config_settle_head(c, dir, err);
}

kg_status kg_model_config_read(struct kg_model_config *c, const char *dir,
                               struct kg_err *err)
{
    return kg_model_config_open(c, dir, NULL, err);
}
