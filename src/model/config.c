/* Reading a HuggingFace config.json of a Qwen2, Qwen3, Llama or Mistral model.
 *
 * One table names every field that HuggingFace writes for these families, with its rule:
 * honoured by the reader below, without effect on a causal language model's weights and
 * forward pass, or allowed one value only. A field that is not in the table is refused
 * with its value, so no setting of a checkpoint is passed over in silence.
 *
 * The families are in arch.c, writing in config_write.c, the rotary frequencies in
 * config_rope.c.
 */
#include "model/config.h"

#include "base/file.h"
#include "base/mem.h"
#include "data/json.h"

#include <math.h>
#include <string.h>

enum {
    MAX_FILE_BYTES = 16 << 20,
    MAX_VOCAB = 1 << 22,
    MAX_WIDTH = 1 << 20,
    MAX_LAYERS = KG_MAX_LAYERS,
    MAX_HEADS = 1024,
    MAX_POSITIONS = 1 << 27,
};

/* ---- fields ---- */

enum rule {
    HONOURED,   /* read below */
    OF_EXPERTS, /* honoured where the class has experts, else no field at all */
    NO_EFFECT,  /* and kept when a checkpoint is written */
    FORGOTTEN,  /* without effect, and not kept */
    IS_TRUE,    /* true or null; so are the next ones, with null for "not given" */
    IS_FALSE,
    IS_ZERO,
    IS_ONE,
    IS_NULL,
    IS_SILU,
    IS_FULL_ATTENTION, /* a list of "full_attention", one for each layer */
    N_RULES,
};

static const char *const EXPECTED[N_RULES] = {
    [OF_EXPERTS] = "no such field: this model_type has no experts",
    [IS_TRUE] = "true",
    [IS_FALSE] = "false",
    [IS_ZERO] = "0",
    [IS_ONE] = "1",
    [IS_NULL] = "null",
    [IS_SILU] = "\"silu\"",
    [IS_FULL_ATTENTION] = "\"full_attention\" for every layer",
};

struct field {
    const char *key;
    enum rule rule;
};

static const struct field FIELDS[] = {
    {"architectures", HONOURED},
    {"model_type", HONOURED},
    {"vocab_size", HONOURED},
    {"hidden_size", HONOURED},
    {"intermediate_size", HONOURED},
    {"num_hidden_layers", HONOURED},
    {"num_attention_heads", HONOURED},
    {"num_key_value_heads", HONOURED},
    {"head_dim", HONOURED},
    {"max_position_embeddings", HONOURED},
    {"rms_norm_eps", HONOURED},
    {"rope_theta", HONOURED},
    {"rope_scaling", HONOURED},
    {"rope_parameters", HONOURED},
    {"tie_word_embeddings", HONOURED},
    {"initializer_range", HONOURED},
    {"bos_token_id", HONOURED},
    {"eos_token_id", HONOURED},
    {"torch_dtype", HONOURED},
    {"dtype", HONOURED},
    {"attention_bias", HONOURED},

    {"num_experts", OF_EXPERTS},
    {"num_local_experts", OF_EXPERTS},
    {"num_experts_per_tok", OF_EXPERTS},
    {"moe_intermediate_size", OF_EXPERTS},
    {"shared_expert_intermediate_size", OF_EXPERTS},
    {"norm_topk_prob", OF_EXPERTS},
    {"decoder_sparse_step", OF_EXPERTS},
    {"mlp_only_layers", OF_EXPERTS},

    {"hidden_act", IS_SILU},
    {"qkv_bias", IS_TRUE},
    {"output_router_logits", IS_FALSE},
    {"router_jitter_noise", IS_ZERO},
    {"layer_types", IS_FULL_ATTENTION},
    {"attention_dropout", IS_ZERO},
    {"mlp_bias", IS_FALSE},
    {"use_sliding_window", IS_FALSE},
    {"rope_interleaved", IS_FALSE},
    {"pretraining_tp", IS_ONE},
    {"partial_rotary_factor", IS_ONE},
    {"quantization_config", IS_NULL},
    {"is_encoder_decoder", IS_FALSE},
    {"add_cross_attention", IS_FALSE},
    {"cross_attention_hidden_size", IS_NULL},
    {"tie_encoder_decoder", IS_FALSE},
    {"use_mrope", IS_FALSE},

    /* These two speak of the sliding window, which use_sliding_window switches off where
     * the family has it. */
    {"sliding_window", HONOURED},
    {"max_window_layers", NO_EFFECT},
    /* of a loss that a recipe asks for, if it wants it */
    {"router_aux_loss_coef", NO_EFFECT},
    /* Who wrote the file, and how the Python classes cache, batch and return. */
    {"_name_or_path", NO_EFFECT},
    {"_attn_implementation_autoset", NO_EFFECT},
    {"transformers_version", NO_EFFECT},
    /* it names Python files of the folder, which are not copied */
    {"auto_map", FORGOTTEN},
    {"_attn_implementation", NO_EFFECT},
    {"is_llama_config", NO_EFFECT},
    {"transformers.js_config", NO_EFFECT},
    {"unsloth_version", NO_EFFECT},
    {"unsloth_fixed", NO_EFFECT},
    {"use_cache", NO_EFFECT},
    {"pad_token_id", NO_EFFECT},
    {"sep_token_id", NO_EFFECT},
    {"decoder_start_token_id", NO_EFFECT},
    {"chunk_size_feed_forward", NO_EFFECT},
    {"return_dict", NO_EFFECT},
    {"output_attentions", NO_EFFECT},
    {"output_hidden_states", NO_EFFECT},
    {"torchscript", NO_EFFECT},
    {"use_bfloat16", NO_EFFECT},
    {"tf_legacy_loss", NO_EFFECT},
    {"is_decoder", NO_EFFECT},
    {"tokenizer_class", NO_EFFECT},
    {"prefix", NO_EFFECT},
    /* Sampling, in files from before generation_config.json: the user of kedge chooses
     * it. */
    {"max_length", NO_EFFECT},
    {"max_new_tokens", NO_EFFECT},
    {"min_length", NO_EFFECT},
    {"do_sample", NO_EFFECT},
    {"early_stopping", NO_EFFECT},
    {"num_beams", NO_EFFECT},
    {"num_return_sequences", NO_EFFECT},
    {"temperature", NO_EFFECT},
    {"top_k", NO_EFFECT},
    {"top_p", NO_EFFECT},
    {"typical_p", NO_EFFECT},
    {"repetition_penalty", NO_EFFECT},
    {"length_penalty", NO_EFFECT},
    {"no_repeat_ngram_size", NO_EFFECT},
    /* Heads of other tasks. */
    {"finetuning_task", NO_EFFECT},
    {"id2label", NO_EFFECT},
    {"label2id", NO_EFFECT},
    {"num_labels", NO_EFFECT},
    {"problem_type", NO_EFFECT},
    {"task_specific_params", NO_EFFECT},
    {"pruned_heads", NO_EFFECT},
};

static const char *const DTYPES[] = {"float32", "float16", "bfloat16"};

struct reader {
    struct kg_model_config *c;
    const struct kg_json_doc *doc;
    const struct kg_json *root;
    struct kg_err *err;
};

static kg_status refuse(const struct reader *r, const char *key,
                        const struct kg_json *value, const char *expected)
{
    struct kg_str text = {0};
    if (kg_json_put_value(&text, value, r->err) == KG_OK)
        kg_fail(r->err, KG_EUNSUPPORTED, "%s: %s is %.80s, expected %s", r->doc->where,
                key, kg_str_text(&text), expected);
    kg_str_release(&text);
    return r->err->code;
}

static bool is_text(const struct kg_json *value, const char *text)
{
    const char *found = kg_json_text(value, NULL);
    return found && strcmp(found, text) == 0;
}

static bool all_full_attention(const struct reader *r, const struct kg_json *value)
{
    size_t layers = (size_t)kg_json_int(kg_json_get(r->root, "num_hidden_layers"), -1);
    if (kg_json_type(value) != KG_JSON_ARRAY || kg_json_size(value) != layers)
        return false;
    for (size_t i = 0; i < layers; i++)
        if (!is_text(kg_json_at(value, i), "full_attention"))
            return false;
    return true;
}

static bool keeps_rule(const struct reader *r, enum rule rule,
                       const struct kg_json *value)
{
    if (kg_json_type(value) == KG_JSON_NULL)
        return true;
    switch (rule) {
    case OF_EXPERTS:
        return r->c->arch->features & KG_EXPERTS;
    case IS_TRUE:
        return kg_json_bool(value, false);
    case IS_FALSE:
        return kg_json_type(value) == KG_JSON_BOOL && !kg_json_bool(value, true);
    case IS_ZERO:
        return kg_json_is_number(value) && kg_json_real(value, 1) == 0;
    case IS_ONE:
        return kg_json_is_number(value) && kg_json_real(value, 0) == 1;
    case IS_NULL:
        return false;
    case IS_SILU:
        return is_text(value, "silu");
    case IS_FULL_ATTENTION:
        return all_full_attention(r, value);
    default:
        return true;
    }
}

static const struct field *field_of(const char *key)
{
    for (size_t f = 0; f < sizeof FIELDS / sizeof *FIELDS; f++) {
        if (strcmp(FIELDS[f].key, key) == 0)
            return &FIELDS[f];
    }
    return NULL;
}

bool kg_model_config_keeps(const char *key)
{
    const struct field *f = field_of(key);
    return f && f->rule == NO_EFFECT;
}

static kg_status check_fields(const struct reader *r)
{
    for (size_t i = 0; i < kg_json_size(r->root); i++) {
        const char *key = kg_json_key_at(r->root, i);
        const struct kg_json *value = kg_json_value_at(r->root, i);
        const struct field *f = field_of(key);
        if (!f)
            return refuse(r, key, value, "no such field (its effect is not known)");
        if (!keeps_rule(r, f->rule, value))
            return refuse(r, key, value, EXPECTED[f->rule]);
    }
    return KG_OK;
}

/* ---- values ---- */

/* A field that is absent or null takes the fallback; a fallback of 0 demands the
 * field. */
static kg_status read_size(const struct reader *r, const char *key, int64_t max,
                           int32_t fallback, int32_t *out)
{
    int64_t value;
    if (fallback && kg_json_type(kg_json_get(r->root, key)) == KG_JSON_NULL) {
        *out = fallback;
        return KG_OK;
    }
    KG_TRY(kg_json_need_int(&value, r->doc, r->root, key, 1, max, r->err));
    *out = (int32_t)value;
    return KG_OK;
}

/* A positive finite number; absent or null gives the fallback, where 0 demands the
 * field. */
static kg_status read_real(const struct reader *r, const struct kg_json *object,
                           const char *key, double fallback, double *out)
{
    const struct kg_json *value = kg_json_get(object, key);
    if (fallback != 0 && kg_json_type(value) == KG_JSON_NULL) {
        *out = fallback;
        return KG_OK;
    }
    *out = kg_json_real(value, 0);
    if (!kg_json_is_number(value) || !(*out > 0) || !isfinite(*out) || *out > 1e30 ||
        *out < 1e-30)
        return refuse(r, key, value, "a positive number");
    return KG_OK;
}

static kg_status read_bool(const struct reader *r, const char *key, bool fallback,
                           bool *out)
{
    const struct kg_json *value = kg_json_get(r->root, key);
    *out = kg_json_bool(value, fallback);
    if (kg_json_type(value) != KG_JSON_NULL && kg_json_type(value) != KG_JSON_BOOL)
        return refuse(r, key, value, "true or false");
    return KG_OK;
}

static kg_status read_family(const struct reader *r)
{
    const char *model_type;
    const struct kg_json *classes = kg_json_get(r->root, "architectures");
    KG_TRY(kg_json_need_text(&model_type, r->doc, r->root, "model_type", r->err));
    if (kg_arch_find(&r->c->arch, model_type, r->err) != KG_OK)
        return kg_err_prefix(r->err, "%s: model_type", r->doc->where);
    if (kg_json_type(classes) == KG_JSON_NULL)
        return KG_OK;
    if (kg_json_size(classes) != 1 ||
        !is_text(kg_json_at(classes, 0), r->c->arch->class_name)) {
        kg_status status = refuse(r, "architectures", classes,
                                  "the causal language model of model_type");
        return status == KG_ENOMEM ? status
                                   : kg_err_prefix(r->err, "model_type %s", model_type);
    }
    return KG_OK;
}

static kg_status read_sizes(const struct reader *r)
{
    struct kg_model_config *c = r->c;
    const bool as_heads = c->arch->reads & KG_READS_HEADS;
    KG_TRY(read_size(r, "vocab_size", MAX_VOCAB, 0, &c->vocab));
    KG_TRY(read_size(r, "hidden_size", MAX_WIDTH, 0, &c->hidden));
    KG_TRY(read_size(r, "intermediate_size", MAX_WIDTH, 0, &c->ffn));
    KG_TRY(read_size(r, "num_hidden_layers", MAX_LAYERS, 0, &c->layers));
    KG_TRY(read_size(r, "num_attention_heads", MAX_HEADS, 0, &c->heads));
    /* Llama's class takes the number of heads, the others' a constant, which is no use as
     * a default. */
    KG_TRY(read_size(r, "num_key_value_heads", MAX_HEADS, as_heads ? c->heads : 0,
                     &c->kv_heads));
    KG_TRY(read_size(r, "max_position_embeddings", MAX_POSITIONS,
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
        KG_TRY(read_size(r, "head_dim", KG_MAX_HEAD_DIM, 0, &c->head_dim));
    if (c->head_dim % 2 || c->head_dim < 2 || c->head_dim > KG_MAX_HEAD_DIM)
        return kg_fail(r->err, KG_EINVAL,
                       "%s: head_dim is %d, expected an even number from 2 to %d",
                       r->doc->where, c->head_dim, KG_MAX_HEAD_DIM);
    return KG_OK;
}

/* A window over which no sequence can grow is none. */
static kg_status read_window(const struct reader *r)
{
    const struct kg_json *value = kg_json_get(r->root, "sliding_window");
    const int32_t usual = r->c->arch->default_window;
    int64_t window = value ? kg_json_int(value, 0) : usual;
    bool none = value && kg_json_type(value) == KG_JSON_NULL;
    if (r->c->arch->windows != KG_WINDOWS_ALL || none || (!value && !usual) ||
        window >= r->c->max_positions)
        return KG_OK;
    if (value)
        return refuse(r, "sliding_window", value,
                      "null, or max_position_embeddings or more");
    return kg_fail(r->err, KG_EUNSUPPORTED,
                   "%s: sliding_window is not given, which means %d: expected null, or "
                   "max_position_embeddings or more",
                   r->doc->where, usual);
}

static kg_status read_numbers(const struct reader *r)
{
    struct kg_model_config *c = r->c;
    double eps, range;
    bool attention_bias, own = c->arch->features & KG_QKV_BIAS;
    KG_TRY(read_real(r, r->root, "rms_norm_eps", 1e-6, &eps));
    KG_TRY(read_real(r, r->root, "initializer_range", 0.02, &range));
    KG_TRY(read_bool(r, "tie_word_embeddings", false, &c->tied));
    KG_TRY(read_bool(r, "attention_bias", own, &attention_bias));
    /* Elsewhere it would add a bias to the output projection too; Qwen2's biases cannot
     * be switched off. */
    if (attention_bias != own)
        return refuse(r, "attention_bias", kg_json_get(r->root, "attention_bias"),
                      own ? "true for this model_type" : "false");
    c->norm_eps = (float)eps;
    c->init_range = (float)range;
    c->qkv_bias = own;
    return KG_OK;
}

static kg_status read_dtype(const struct reader *r)
{
    const char *key = kg_json_get(r->root, "dtype") ? "dtype" : "torch_dtype";
    const struct kg_json *value = kg_json_get(r->root, key);
    r->c->dtype_name = "";
    if (kg_json_type(value) == KG_JSON_NULL)
        return KG_OK;
    for (size_t i = 0; i < sizeof DTYPES / sizeof *DTYPES; i++) {
        if (is_text(value, DTYPES[i])) {
            r->c->dtype_name = DTYPES[i];
            return KG_OK;
        }
    }
    return refuse(r, key, value, "\"float32\", \"float16\" or \"bfloat16\"");
}

/* ---- rope ---- */

static kg_status check_rope_keys(const struct reader *r, const char *name,
                                 const struct kg_json *rope, bool llama3)
{
    static const char *const keys[] = {"rope_type",
                                       "type",
                                       "rope_theta",
                                       "factor",
                                       "low_freq_factor",
                                       "high_freq_factor",
                                       "original_max_position_embeddings"};
    size_t n = llama3 ? sizeof keys / sizeof *keys : 3;
    for (size_t i = 0; i < kg_json_size(rope); i++) {
        size_t k = 0;
        while (k < n && strcmp(keys[k], kg_json_key_at(rope, i)) != 0)
            k++;
        if (k == n)
            return refuse(r, name, rope, "only the fields of its rope_type");
    }
    return KG_OK;
}

static kg_status read_llama3(const struct reader *r, const struct kg_json *rope)
{
    struct kg_model_config *c = r->c;
    int64_t original;
    c->rope_llama3 = true;
    KG_TRY(read_real(r, rope, "factor", 0, &c->rope_factor));
    KG_TRY(read_real(r, rope, "low_freq_factor", 0, &c->rope_low_freq_factor));
    KG_TRY(read_real(r, rope, "high_freq_factor", 0, &c->rope_high_freq_factor));
    KG_TRY(kg_json_need_int(&original, r->doc, rope, "original_max_position_embeddings",
                            1, MAX_POSITIONS, r->err));
    c->rope_original_positions = (int32_t)original;
    if (c->rope_factor < 1)
        return refuse(r, "factor", kg_json_get(rope, "factor"), "1 or more");
    if (c->rope_high_freq_factor <= c->rope_low_freq_factor)
        return refuse(r, "high_freq_factor", kg_json_get(rope, "high_freq_factor"),
                      "more than low_freq_factor");
    return KG_OK;
}

/* rope_scaling (older files) or rope_parameters (newer ones, with rope_theta inside) */
static kg_status read_rope_object(const struct reader *r, const char *name)
{
    const struct kg_json *rope = kg_json_get(r->root, name);
    if (kg_json_type(rope) == KG_JSON_NULL)
        return KG_OK;
    const struct kg_json *type = kg_json_get(rope, "rope_type");
    if (!type)
        type = kg_json_get(rope, "type");
    bool llama3 = is_text(type, "llama3");
    if (kg_json_type(rope) != KG_JSON_OBJECT || (!llama3 && !is_text(type, "default")))
        return refuse(r, name, rope, "null, or an object of rope_type default or llama3");
    KG_TRY(check_rope_keys(r, name, rope, llama3));
    if (kg_json_get(rope, "rope_theta")) {
        double outer = r->c->rope_theta;
        KG_TRY(read_real(r, rope, "rope_theta", 0, &r->c->rope_theta));
        if (kg_json_get(r->root, "rope_theta") && outer != r->c->rope_theta)
            return kg_fail(r->err, KG_ECONFLICT, "%s: rope_theta is %g, but %g in %s",
                           r->doc->where, outer, r->c->rope_theta, name);
    }
    return llama3 ? read_llama3(r, rope) : KG_OK;
}

static kg_status read_rope(const struct reader *r)
{
    bool both = kg_json_type(kg_json_get(r->root, "rope_scaling")) != KG_JSON_NULL &&
                kg_json_type(kg_json_get(r->root, "rope_parameters")) != KG_JSON_NULL;
    if (both)
        return refuse(r, "rope_scaling", kg_json_get(r->root, "rope_scaling"),
                      "null where rope_parameters is given");
    KG_TRY(read_real(r, r->root, "rope_theta", 10000, &r->c->rope_theta));
    KG_TRY(read_rope_object(r, "rope_scaling"));
    return read_rope_object(r, "rope_parameters");
}

/* ---- special tokens ---- */

static kg_status add_eos(const struct reader *r, const struct kg_json *value)
{
    struct kg_model_config *c = r->c;
    int64_t id = kg_json_int(value, -1);
    if (kg_json_type(value) != KG_JSON_INT || id < 0 || id >= c->vocab)
        return refuse(r, "eos_token_id", value, "token ids below vocab_size");
    if (kg_model_config_is_eos(c, (int32_t)id))
        return KG_OK;
    if (c->n_eos == KG_MAX_EOS)
        return kg_fail(r->err, KG_EUNSUPPORTED,
                       "%s: eos_token_id: more than %d end tokens", r->doc->where,
                       KG_MAX_EOS);
    c->eos[c->n_eos++] = (int32_t)id;
    return KG_OK;
}

/* null, an id or a list of ids */
static kg_status read_eos(const struct reader *r)
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

static kg_status read_bos(const struct reader *r)
{
    const struct kg_json *value = kg_json_get(r->root, "bos_token_id");
    int64_t id = kg_json_int(value, -1);
    r->c->bos = -1;
    if (kg_json_type(value) == KG_JSON_NULL)
        return KG_OK;
    if (kg_json_type(value) != KG_JSON_INT || id < -1 || id >= r->c->vocab)
        return refuse(r, "bos_token_id", value, "null or a token id below vocab_size");
    r->c->bos = (int32_t)id;
    return KG_OK;
}

uint32_t kg_model_config_features(const struct kg_model_config *c)
{
    return c->arch->features | (c->qkv_bias ? KG_QKV_BIAS : 0);
}

uint32_t kg_model_config_layer(const struct kg_model_config *c, int32_t l)
{
    const uint32_t all = kg_model_config_features(c);
    const struct kg_experts_config *x = &c->experts;
    const bool without = x->n == 0 || (l + 1) % x->step != 0 ||
                         (x->without[l / 64] >> l % 64 & 1);

    return without ? (all & ~(uint32_t)KG_EXPERT_FEATURES) | KG_DENSE : all;
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

/* ---- the whole ---- */

static kg_status read_all(const struct reader *r)
{
    if (kg_json_type(r->root) != KG_JSON_OBJECT)
        return kg_fail(r->err, KG_EFORMAT, "%s: expected an object, found %s",
                       r->doc->where, kg_json_type_name(r->root));
    KG_TRY(read_family(r));
    KG_TRY(check_fields(r));
    KG_TRY(read_sizes(r));
    if (r->c->arch->features & KG_EXPERTS)
        KG_TRY(kg_experts_config_read(r->c, r->doc, r->root, r->err));
    KG_TRY(read_window(r));
    KG_TRY(read_numbers(r));
    KG_TRY(read_dtype(r));
    KG_TRY(read_rope(r));
    KG_TRY(read_bos(r));
    return read_eos(r);
}

/* What the document says, which goes away. */
static kg_status take_doc(struct kg_model_config *c, struct kg_json_doc *doc,
                          struct kg_err *err)
{
    kg_status status;

    *c = (struct kg_model_config){.dtype_name = "", .bos = -1};
    status = read_all(&(struct reader){c, doc, doc->root, err});
    kg_json_release(doc);
    return status;
}

kg_status kg_model_config_parse(struct kg_model_config *c, const char *json, size_t n,
                                const char *where, struct kg_err *err)
{
    struct kg_json_doc doc;

    KG_TRY(kg_json_parse(&doc, json, n, where, err));
    return take_doc(c, &doc, err);
}

/* Of generation_config.json the end tokens alone: sampling is chosen by the user of
 * kedge. */
static kg_status read_generation_config(struct kg_model_config *c, const char *path,
                                        struct kg_err *err)
{
    struct kg_json_doc doc;
    kg_status status;

    KG_TRY(kg_json_read(&doc, path, MAX_FILE_BYTES, err));
    status = read_eos(&(struct reader){c, &doc, doc.root, err});
    kg_json_release(&doc);
    return status;
}

kg_status kg_model_config_read(struct kg_model_config *c, const char *dir,
                               struct kg_err *err)
{
    const struct kg_path generation = kg_path_in(dir, "generation_config.json");
    struct kg_json_doc doc;

    KG_TRY(kg_json_read(&doc, kg_path_in(dir, "config.json").text, MAX_FILE_BYTES, err));
    KG_TRY(take_doc(c, &doc, err));
    return kg_file_exists(generation.text)
               ? read_generation_config(c, generation.text, err)
               : KG_OK;
}
