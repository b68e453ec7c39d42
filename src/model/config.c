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
#include "base/real.h"
#include "data/json.h"

#include <math.h>
#include <string.h>

enum {
    MAX_FILE_BYTES = 16 << 20,
    MAX_VOCAB = 1 << 22,
    MAX_WIDTH = 1 << 20,
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
    N_RULES,
};

static const char *const EXPECTED[N_RULES] = {
    [OF_EXPERTS] = "no such field: this model_type has no experts",
    [IS_TRUE] = "true",
    [IS_FALSE] = "false",
    [IS_ZERO] = "0",
    [IS_ONE] = "1",
    [IS_NULL] = "null",
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
    {"mlp_bias", HONOURED},
    {"layer_types", HONOURED},
    {"use_sliding_window", HONOURED},
    {"sliding_window", HONOURED},

    {"num_experts", OF_EXPERTS},
    {"num_local_experts", OF_EXPERTS},
    {"num_experts_per_tok", OF_EXPERTS},
    {"moe_intermediate_size", OF_EXPERTS},
    {"shared_expert_intermediate_size", OF_EXPERTS},
    {"norm_topk_prob", OF_EXPERTS},
    {"decoder_sparse_step", OF_EXPERTS},
    {"mlp_only_layers", OF_EXPERTS},

    {"hidden_act", HONOURED},
    {"qkv_bias", IS_TRUE},
    {"output_router_logits", IS_FALSE},
    {"router_jitter_noise", IS_ZERO},
    {"clip_qkv", IS_NULL},
    {"attention_dropout", IS_ZERO},
    {"embd_pdrop", IS_ZERO},
    {"resid_pdrop", IS_ZERO},
    {"rope_interleaved", IS_FALSE},
    {"pretraining_tp", IS_ONE},
    {"partial_rotary_factor", IS_ONE},
    {"quantization_config", IS_NULL},
    {"is_encoder_decoder", IS_FALSE},
    {"add_cross_attention", IS_FALSE},
    {"cross_attention_hidden_size", IS_NULL},
    {"tie_encoder_decoder", IS_FALSE},
    {"use_mrope", IS_FALSE},

    /* read where use_sliding_window is set */
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
    {"cache_implementation", NO_EFFECT},
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

/* Honoured where the class has them, and unknown elsewhere. */
static const struct {
    const char *key;
    uint32_t reads;
} CLASS_FIELDS[] = {
    {"no_rope_layers", KG_READS_NO_ROPE},
    {"no_rope_layer_interval", KG_READS_NO_ROPE},
    {"embedding_multiplier", KG_READS_MULTIPLIERS},
    {"residual_multiplier", KG_READS_MULTIPLIERS},
    {"attention_multiplier", KG_READS_MULTIPLIERS},
    {"logits_scaling", KG_READS_MULTIPLIERS},
    {"query_pre_attn_scalar", KG_READS_SOFTCAPS},
    {"attn_logit_softcapping", KG_READS_SOFTCAPS},
    {"final_logit_softcapping", KG_READS_SOFTCAPS},
    {"hidden_activation", KG_READS_SOFTCAPS},
    {"rope_local_base_freq", KG_READS_LOCAL_ROPE},
    {"sliding_window_pattern", KG_READS_LOCAL_ROPE},
    {"_sliding_window_pattern", KG_READS_LOCAL_ROPE},
    {"use_bidirectional_attention", KG_READS_LOCAL_ROPE},
    {"original_max_position_embeddings", KG_READS_PLAIN_ROPE},
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

static bool class_has(const struct kg_arch *arch, const char *key)
{
    for (size_t f = 0; f < sizeof CLASS_FIELDS / sizeof *CLASS_FIELDS; f++)
        if (strcmp(CLASS_FIELDS[f].key, key) == 0)
            return CLASS_FIELDS[f].reads & arch->reads;
    return false;
}

static kg_status check_fields(const struct reader *r)
{
    for (size_t i = 0; i < kg_json_size(r->root); i++) {
        const char *key = kg_json_key_at(r->root, i);
        const struct kg_json *value = kg_json_value_at(r->root, i);
        const struct field *f = field_of(key);
        if (!f && class_has(r->c->arch, key))
            continue;
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
    KG_TRY(read_size(r, "num_hidden_layers", KG_MAX_LAYERS, 0, &c->layers));
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

/* ---- biases and numbers ---- */

/* attention_bias of q, k, v and o where the class knows it; Qwen2's, of q, k, v alone,
 * cannot be switched off. */
static kg_status read_biases(const struct reader *r)
{
    struct kg_model_config *c = r->c;
    const bool own = c->arch->features & KG_QKV_BIAS;
    const bool known = c->arch->reads & KG_READS_BIAS;
    bool attention, mlp;
    KG_TRY(read_bool(r, "attention_bias", own, &attention));
    KG_TRY(read_bool(r, "mlp_bias", false, &mlp));
    if (attention != own && !known)
        return refuse(r, "attention_bias", kg_json_get(r->root, "attention_bias"),
                      own ? "true for this model_type" : "false");
    if (mlp && !(c->arch->reads & KG_READS_MLP_BIAS))
        return refuse(r, "mlp_bias", kg_json_get(r->root, "mlp_bias"), "false");
    c->qkv_bias = attention;
    c->o_bias = attention && !own;
    c->mlp_bias = mlp;
    return KG_OK;
}

static const char *const ACT_NAMES[KG_ACTS] = {
    [KG_ACT_SILU] = "silu",
    [KG_ACT_GELU_TANH] = "gelu_pytorch_tanh",
};

const char *kg_act_name(enum kg_act act) { return ACT_NAMES[act]; }

/* hidden_act must say the same where the class reads hidden_activation. */
static kg_status read_act(const struct reader *r)
{
    static const char *const keys[] = {"hidden_act", "hidden_activation"};
    r->c->act = r->c->arch->act;
    for (int i = 0; i < 2; i++) {
        const struct kg_json *value = kg_json_get(r->root, keys[i]);
        if (kg_json_type(value) != KG_JSON_NULL && !is_text(value, ACT_NAMES[r->c->act]))
            return refuse(r, keys[i], value,
                          r->c->act == KG_ACT_SILU ? "\"silu\""
                                                   : "\"gelu_pytorch_tanh\"");
    }
    return KG_OK;
}

/* 1 becomes 0, which is no operation. */
static kg_status read_multiplier(const struct reader *r, const char *key, double *out)
{
    KG_TRY(read_real(r, r->root, key, 1, out));
    *out = *out == 1 ? 0 : *out;
    return KG_OK;
}

static kg_status read_softcap(const struct reader *r, const char *key, double usual,
                              double *out)
{
    const struct kg_json *value = kg_json_get(r->root, key);
    *out = 0;
    if (value && kg_json_type(value) == KG_JSON_NULL)
        return KG_OK;
    return value || usual > 0 ? read_real(r, r->root, key, usual, out) : KG_OK;
}

/* Multipliers, softcaps, and what else scores and embeddings are scaled by. */
static kg_status read_factors(const struct reader *r)
{
    struct kg_model_config *c = r->c;
    const struct kg_arch *arch = c->arch;
    if (arch->features & KG_ROOT_EMBED)
        c->embed_scale = (double)sqrtf((float)c->hidden);
    if (arch->reads & KG_READS_MULTIPLIERS) {
        KG_TRY(read_multiplier(r, "embedding_multiplier", &c->embed_scale));
        KG_TRY(read_multiplier(r, "residual_multiplier", &c->residual_scale));
        KG_TRY(read_multiplier(r, "logits_scaling", &c->logit_divisor));
        KG_TRY(read_real(r, r->root, "attention_multiplier", 1, &c->score_scale));
    }
    if (!(arch->reads & KG_READS_SOFTCAPS))
        return KG_OK;
    KG_TRY(read_real(r, r->root, "query_pre_attn_scalar", 256, &c->query_scalar));
    c->score_scale = 1 / sqrt(c->query_scalar);
    KG_TRY(read_softcap(r, "attn_logit_softcapping", arch->default_score_softcap,
                        &c->score_softcap));
    return read_softcap(r, "final_logit_softcapping", arch->default_logit_softcap,
                        &c->logit_softcap);
}

static kg_status read_numbers(const struct reader *r)
{
    struct kg_model_config *c = r->c;
    double eps, range;
    const double usual = c->arch->default_eps;
    KG_TRY(read_real(r, r->root, "rms_norm_eps", usual != 0 ? usual : 1e-6, &eps));
    KG_TRY(read_real(r, r->root, "initializer_range", 0.02, &range));
    KG_TRY(read_bool(r, "tie_word_embeddings", c->arch->default_tied, &c->tied));
    c->norm_eps = (float)eps;
    c->init_range = (float)range;
    KG_TRY(read_biases(r));
    KG_TRY(read_act(r));
    return read_factors(r);
}

/* ---- layers ---- */

/* Of a list with one number for each layer: 0 is a layer without rope. Where there is
 * none, every no_rope_layer_interval-th is. */
static kg_status read_no_rope(const struct reader *r)
{
    struct kg_model_config *c = r->c;
    const struct kg_json *list = kg_json_get(r->root, "no_rope_layers");
    int32_t interval;
    if (!(c->arch->reads & KG_READS_NO_ROPE))
        return KG_OK;
    KG_TRY(read_size(r, "no_rope_layer_interval", KG_MAX_LAYERS, 4, &interval));
    const bool given = kg_json_type(list) != KG_JSON_NULL;
    if (given &&
        (kg_json_type(list) != KG_JSON_ARRAY || kg_json_size(list) != (size_t)c->layers))
        return refuse(r, "no_rope_layers", list, "0 or 1 for every layer");
    for (int32_t l = 0; l < c->layers; l++) {
        const int64_t has = given ? kg_json_int(kg_json_at(list, (size_t)l), -1)
                                  : (l + 1) % interval != 0;
        if (has != 0 && has != 1)
            return refuse(r, "no_rope_layers", list, "0 or 1 for every layer");
        c->layer[l] |= has ? 0 : KG_LAYER_NO_ROPE;
    }
    return KG_OK;
}

/* Whether the class, where there are no layer_types, gives layer l a window. */
static kg_status usual_windows(const struct reader *r)
{
    struct kg_model_config *c = r->c;
    const enum kg_windows kind = c->arch->windows;
    int64_t from = 28;
    int32_t pattern = c->arch->default_pattern;
    const struct kg_json *given = kg_json_get(r->root, "max_window_layers");
    if (kg_json_type(given) != KG_JSON_NULL)
        KG_TRY(kg_json_need_int(&from, r->doc, r->root, "max_window_layers", 0, INT32_MAX,
                                r->err));
    if (c->arch->reads & KG_READS_LOCAL_ROPE)
        KG_TRY(read_size(r, "sliding_window_pattern", KG_MAX_LAYERS, pattern, &pattern));
    for (int32_t l = 0; l < c->layers; l++) {
        const bool turned = !(c->layer[l] & KG_LAYER_NO_ROPE);
        const bool slides = kind == KG_WINDOWS_NO_ROPE ? !turned
                            : kind == KG_WINDOWS_ALTERNATE
                                ? (l + 1) % pattern != 0
                                : kind == KG_WINDOWS_ALL || l >= from;
        c->layer[l] |= slides ? KG_LAYER_WINDOW : 0;
    }
    return KG_OK;
}

static kg_status listed_windows(const struct reader *r, const struct kg_json *list)
{
    static const char *const expected = "\"full_attention\" or \"sliding_attention\" "
                                        "for every layer";
    struct kg_model_config *c = r->c;
    if (kg_json_type(list) != KG_JSON_ARRAY || kg_json_size(list) != (size_t)c->layers)
        return refuse(r, "layer_types", list, expected);
    for (int32_t l = 0; l < c->layers; l++) {
        const struct kg_json *kind = kg_json_at(list, (size_t)l);
        const bool slides = is_text(kind, "sliding_attention");
        if (!slides && !is_text(kind, "full_attention"))
            return refuse(r, "layer_types", list, expected);
        if (!slides && c->window && c->arch->windows == KG_WINDOWS_ALL)
            return refuse(r, "layer_types", list,
                          "\"sliding_attention\" for every layer");
        if (slides && !c->window)
            return refuse(r, "layer_types", list,
                          "\"full_attention\" for every layer, as there is no window");
        c->layer[l] |= slides ? KG_LAYER_WINDOW : 0;
    }
    return KG_OK;
}

/* c->window: 0 where the class or the file has none */
static kg_status read_window_size(const struct reader *r)
{
    struct kg_model_config *c = r->c;
    const enum kg_windows kind = c->arch->windows;
    const struct kg_json *value = kg_json_get(r->root, "sliding_window");
    bool on;
    KG_TRY(read_bool(r, "use_sliding_window", false, &on));
    if (on && kind != KG_WINDOWS_SWITCHED && kind != KG_WINDOWS_NO_ROPE)
        return refuse(r, "use_sliding_window", kg_json_get(r->root, "use_sliding_window"),
                      "false for this model_type");
    if (kind == KG_WINDOWS_NONE || (value && kg_json_type(value) == KG_JSON_NULL) ||
        (!on && (kind == KG_WINDOWS_SWITCHED || kind == KG_WINDOWS_NO_ROPE)))
        return KG_OK;
    if (!value)
        c->window = c->arch->default_window;
    else
        KG_TRY(read_size(r, "sliding_window", MAX_POSITIONS, 0, &c->window));
    return KG_OK;
}

/* Layers with a window turn by a base of their own, where the class has one. */
static kg_status read_local_rope(const struct reader *r)
{
    struct kg_model_config *c = r->c;
    bool both_ways;
    if (!(c->arch->reads & KG_READS_LOCAL_ROPE))
        return KG_OK;
    KG_TRY(read_bool(r, "use_bidirectional_attention", false, &both_ways));
    if (both_ways)
        return refuse(r, "use_bidirectional_attention",
                      kg_json_get(r->root, "use_bidirectional_attention"), "false");
    KG_TRY(read_real(r, r->root, "rope_local_base_freq", 10000, &c->rope_local_theta));
    for (int32_t l = 0; l < c->layers; l++)
        c->layer[l] |= c->layer[l] & KG_LAYER_WINDOW ? KG_LAYER_LOCAL_ROPE : 0;
    return KG_OK;
}

static kg_status read_layers(const struct reader *r)
{
    struct kg_model_config *c = r->c;
    const struct kg_json *list = kg_json_get(r->root, "layer_types");
    KG_TRY(read_no_rope(r));
    KG_TRY(read_window_size(r));
    if (kg_json_type(list) != KG_JSON_NULL)
        KG_TRY(listed_windows(r, list));
    else if (c->window)
        KG_TRY(usual_windows(r));
    return read_local_rope(r);
}

int32_t kg_model_config_window(const struct kg_model_config *c, int32_t l)
{
    const bool slides = c->layer[l] & KG_LAYER_WINDOW;
    return slides && c->window < c->max_positions ? c->window : 0;
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

static const char *const ROPE_NAMES[KG_ROPES] = {
    [KG_ROPE_DEFAULT] = "default", [KG_ROPE_LINEAR] = "linear",
    [KG_ROPE_DYNAMIC] = "dynamic", [KG_ROPE_LLAMA3] = "llama3",
    [KG_ROPE_YARN] = "yarn",
};

const char *kg_rope_name(enum kg_rope rope) { return ROPE_NAMES[rope]; }

/* Keys of the object, and the types that have them, as bits. */
static const struct {
    const char *key;
    uint32_t of;
} ROPE_KEYS[] = {
    {"rope_type", UINT32_MAX},
    {"type", UINT32_MAX},
    {"rope_theta", UINT32_MAX},
    {"factor", UINT32_MAX & ~(1u << KG_ROPE_DEFAULT)},
    {"original_max_position_embeddings",
     1u << KG_ROPE_LLAMA3 | 1u << KG_ROPE_YARN | 1u << KG_ROPE_DYNAMIC},
    {"low_freq_factor", 1u << KG_ROPE_LLAMA3},
    {"high_freq_factor", 1u << KG_ROPE_LLAMA3},
    {"attention_factor", 1u << KG_ROPE_YARN},
    {"beta_fast", 1u << KG_ROPE_YARN},
    {"beta_slow", 1u << KG_ROPE_YARN},
    {"mscale", 1u << KG_ROPE_YARN},
    {"mscale_all_dim", 1u << KG_ROPE_YARN},
    {"truncate", 1u << KG_ROPE_YARN},
};

static kg_status check_rope_keys(const struct reader *r, const char *name,
                                 const struct kg_json *rope)
{
    const size_t n = sizeof ROPE_KEYS / sizeof *ROPE_KEYS;
    for (size_t i = 0; i < kg_json_size(rope); i++) {
        size_t k = 0;
        while (k < n && strcmp(ROPE_KEYS[k].key, kg_json_key_at(rope, i)) != 0)
            k++;
        if (k == n || !(ROPE_KEYS[k].of & 1u << r->c->rope))
            return refuse(r, name, rope, "only the fields of its rope_type");
    }
    return KG_OK;
}

static kg_status read_factor(const struct reader *r, const struct kg_json *rope)
{
    KG_TRY(read_real(r, rope, "factor", 0, &r->c->rope_factor));
    if (r->c->rope_factor < 1)
        return refuse(r, "factor", kg_json_get(rope, "factor"), "1 or more");
    return KG_OK;
}

static kg_status read_original(const struct reader *r, const struct kg_json *rope)
{
    int64_t original;
    KG_TRY(kg_json_need_int(&original, r->doc, rope, "original_max_position_embeddings",
                            1, MAX_POSITIONS, r->err));
    r->c->rope_original_positions = (int32_t)original;
    return KG_OK;
}

static kg_status read_llama3(const struct reader *r, const struct kg_json *rope)
{
    struct kg_model_config *c = r->c;
    KG_TRY(read_factor(r, rope));
    KG_TRY(read_real(r, rope, "low_freq_factor", 0, &c->rope_low_freq_factor));
    KG_TRY(read_real(r, rope, "high_freq_factor", 0, &c->rope_high_freq_factor));
    KG_TRY(read_original(r, rope));
    if (c->rope_high_freq_factor <= c->rope_low_freq_factor)
        return refuse(r, "high_freq_factor", kg_json_get(rope, "high_freq_factor"),
                      "more than low_freq_factor");
    return KG_OK;
}

/* 1 for factors that stretch nothing, else 0.1 scale log(factor) + 1 */
static double yarn_attention(double factor, double scale)
{
    return factor <= 1 ? 1.0 : 0.1 * scale * kg_log(factor) + 1.0;
}

/* Fields that are absent, null or 0 have their usual values, as in transformers. */
static kg_status read_yarn(const struct reader *r, const struct kg_json *rope)
{
    struct kg_model_config *c = r->c;
    const struct kg_json *truncate = kg_json_get(rope, "truncate");
    const double mscale = kg_json_real(kg_json_get(rope, "mscale"), 0);
    const double all_dim = kg_json_real(kg_json_get(rope, "mscale_all_dim"), 0);
    KG_TRY(read_factor(r, rope));
    c->rope_original_positions = c->max_positions;
    if (kg_json_type(kg_json_get(rope, "original_max_position_embeddings")) !=
        KG_JSON_NULL)
        KG_TRY(read_original(r, rope));
    KG_TRY(read_real(r, rope, "beta_fast", 32, &c->rope_beta_fast));
    KG_TRY(read_real(r, rope, "beta_slow", 1, &c->rope_beta_slow));
    if (kg_json_type(truncate) != KG_JSON_NULL && kg_json_type(truncate) != KG_JSON_BOOL)
        return refuse(r, "truncate", truncate, "true or false");
    c->rope_untruncated = !kg_json_bool(truncate, true);
    const double usual = mscale != 0 && all_dim != 0
                             ? yarn_attention(c->rope_factor, mscale) /
                                   yarn_attention(c->rope_factor, all_dim)
                             : yarn_attention(c->rope_factor, 1);
    return read_real(r, rope, "attention_factor", usual, &c->rope_attention);
}

static kg_status read_rope_type(const struct reader *r, const char *name,
                                const struct kg_json *rope)
{
    const struct kg_json *type = kg_json_get(rope, "rope_type");
    if (!type)
        type = kg_json_get(rope, "type");
    const bool plain = r->c->arch->reads & KG_READS_PLAIN_ROPE;
    for (int i = 0; kg_json_type(rope) == KG_JSON_OBJECT && i < (plain ? 1 : KG_ROPES);
         i++)
        if (is_text(type, ROPE_NAMES[i])) {
            r->c->rope = (enum kg_rope)i;
            return KG_OK;
        }
    return refuse(r, name, rope,
                  plain ? "null, or an object of rope_type default"
                        : "null, or an object of rope_type default, linear, dynamic, "
                          "llama3 or yarn");
}

/* rope_scaling (older files) or rope_parameters (newer ones, with rope_theta inside) */
static kg_status read_rope_object(const struct reader *r, const char *name)
{
    const struct kg_json *rope = kg_json_get(r->root, name);
    if (kg_json_type(rope) == KG_JSON_NULL)
        return KG_OK;
    KG_TRY(read_rope_type(r, name, rope));
    KG_TRY(check_rope_keys(r, name, rope));
    if (kg_json_get(rope, "rope_theta")) {
        double outer = r->c->rope_theta;
        KG_TRY(read_real(r, rope, "rope_theta", 0, &r->c->rope_theta));
        if (kg_json_get(r->root, "rope_theta") && outer != r->c->rope_theta)
            return kg_fail(r->err, KG_ECONFLICT, "%s: rope_theta is %g, but %g in %s",
                           r->doc->where, outer, r->c->rope_theta, name);
    }
    switch (r->c->rope) {
    case KG_ROPE_LLAMA3:
        return read_llama3(r, rope);
    case KG_ROPE_YARN:
        return read_yarn(r, rope);
    case KG_ROPE_LINEAR:
    case KG_ROPE_DYNAMIC:
        return read_factor(r, rope);
    default:
        return KG_OK;
    }
}

static kg_status read_rope(const struct reader *r)
{
    const double usual = r->c->arch->default_theta;
    bool both = kg_json_type(kg_json_get(r->root, "rope_scaling")) != KG_JSON_NULL &&
                kg_json_type(kg_json_get(r->root, "rope_parameters")) != KG_JSON_NULL;
    if (both)
        return refuse(r, "rope_scaling", kg_json_get(r->root, "rope_scaling"),
                      "null where rope_parameters is given");
    KG_TRY(read_real(r, r->root, "rope_theta", usual != 0 ? usual : 10000,
                     &r->c->rope_theta));
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
    return c->arch->features | (c->qkv_bias ? KG_QKV_BIAS : 0) |
           (c->o_bias ? KG_O_BIAS : 0) | (c->mlp_bias ? KG_MLP_BIAS : 0);
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
    KG_TRY(read_layers(r));
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

static kg_status usual(const struct reader *r)
{
    struct kg_model_config *c = r->c;
    KG_TRY(read_layers(r));
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
    const kg_status status = usual(&(struct reader){c, &doc, doc.root, err});
    kg_json_release(&doc);
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
