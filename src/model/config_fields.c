/* Every field that HuggingFace writes into the config.json of an architecture in arch.c,
 * with its rule: read by kedge, without effect on a causal language model's weights and
 * forward pass, or allowed one value only.
 *
 * Folders also have fields of other programs. An unknown field is refused if its name or
 * value may concern the mathematics, unless the user says that it has no effect;
 * otherwise it is skipped and named in a warning. So no setting is dropped silently.
 */
#include "model/config_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum rule {
    HONOURED,    /* read by kedge */
    OF_EXPERTS,  /* honoured if the class has experts, else refused */
    NO_EFFECT,   /* kept when a checkpoint is written */
    PASSED,      /* in no table: kept as well, and named in a warning */
    FORGOTTEN,   /* without effect, and not kept */
    BEARS,       /* in no table, and may have an effect: refused */
    IS_OF_CLASS, /* must be true if the class has QK-norm, else false. Here and below
                    null is allowed: "not given" */
    IS_FALSE,
    IS_ZERO,
    IS_ONE,
    IS_NULL,
    IS_NULL_UNQUANTISED,
    N_RULES,
};

static const char *const EXPECTED[N_RULES] = {
    [OF_EXPERTS] = "no such field: this model_type has no experts",
    [IS_OF_CLASS] = "true if its model_type has norms of queries and keys, else false",
    [IS_FALSE] = "false",
    [IS_ZERO] = "0",
    [IS_ONE] = "1",
    [IS_NULL] = "null",
    [IS_NULL_UNQUANTISED] =
        "null: quantised weights are not read; use the model before quantisation, or "
        "dequantise it in transformers (model.dequantize(), then save_pretrained)",
};

struct field {
    const char *keys; /* "one two" */
    enum rule rule;
};

static const struct field FIELDS[] = {
    {"architectures model_type vocab_size hidden_size intermediate_size "
     "num_hidden_layers num_attention_heads num_key_value_heads head_dim "
     "max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters "
     "tie_word_embeddings initializer_range bos_token_id eos_token_id torch_dtype dtype "
     "attention_bias mlp_bias layer_types use_sliding_window sliding_window hidden_act",
     HONOURED},
    {"num_experts num_local_experts num_experts_per_tok moe_intermediate_size "
     "shared_expert_intermediate_size norm_topk_prob decoder_sparse_step mlp_only_layers",
     OF_EXPERTS},
    {"use_qk_norm", IS_OF_CLASS},
    /* classes that do not read it have attention_bias */
    {"qkv_bias", NO_EFFECT},
    {"output_router_logits rope_interleaved lm_head_bias is_encoder_decoder "
     "add_cross_attention tie_encoder_decoder use_mrope",
     IS_FALSE},
    {"router_jitter_noise attention_dropout embd_pdrop resid_pdrop hidden_dropout "
     "dropout",
     IS_ZERO},
    {"clip_qkv cross_attention_hidden_size", IS_NULL},
    {"partial_rotary_factor full_attn_mod interpolate_factor", IS_ONE},
    {"quantization_config compression_config quantization", IS_NULL_UNQUANTISED},
    /* it names Python files of the folder, which are not copied */
    {"auto_map", FORGOTTEN},
};

/* All NO_EFFECT, as are names that begin with _ and names of token ids. */
static const char *const WITHOUT_EFFECT[] = {
    /* the number of slices of a product, which do not change its result */
    "pretraining_tp",
    /* read if use_sliding_window is set */
    "max_window_layers",
    /* for a loss that a recipe sets itself */
    "router_aux_loss_coef", "router_z_loss_coef",
    /* layers that predict further tokens: extra tensors, which are ignored */
    "num_nextn_predict_layers",
    /* who wrote the file, and how the Python classes compute, cache, batch and return */
    "transformers_version", "name_or_path", "transformers_weights", "is_llama_config",
    "transformers.js_config", "unsloth_version", "unsloth_fixed", "use_cache",
    "cache_implementation", "attn_implementation", "use_flash_attn",
    "use_flash_attention", "use_flash_attention_2", "gradient_checkpointing",
    "chunk_size_feed_forward", "return_dict", "output_attentions", "output_hidden_states",
    "tie_last_hidden_states", "output_past", "loss_type", "torchscript", "use_bfloat16",
    "tf_legacy_loss", "xla_device", "is_decoder", "tokenizer_class", "prefix",
    /* sampling, in files from before generation_config.json: the user of kedge chooses */
    "max_length", "max_new_tokens", "min_length", "do_sample", "early_stopping",
    "num_beams", "num_beam_groups", "diversity_penalty", "num_return_sequences",
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty",
    "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "bad_words_ids", "output_scores", "return_dict_in_generate", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
    /* heads of other tasks */
    "finetuning_task", "id2label", "label2id", "num_labels", "problem_type",
    "task_specific_params", "pruned_heads", "classifier_dropout"};

/* Honoured by classes that have them; for others as in FIELDS, or unknown. */
static const struct {
    const char *keys;
    uint32_t reads;
} CLASS_FIELDS[] = {
    {"no_rope_layers no_rope_layer_interval", KG_READS_NO_ROPE},
    {"embedding_multiplier residual_multiplier attention_multiplier logits_scaling",
     KG_READS_MULTIPLIERS},
    {"query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping "
     "hidden_activation use_bidirectional_attention",
     KG_READS_SOFTCAPS},
    {"rope_local_base_freq sliding_window_pattern _sliding_window_pattern",
     KG_READS_LOCAL_ROPE},
    {"original_max_position_embeddings", KG_READS_LONGROPE},
    {"partial_rotary_factor", KG_READS_PART_ROPE},
    {"qkv_bias", KG_READS_QKV_BIAS},
};

/* Parts of names that may concern the mathematics. _ matches the beginning of a word. */
static const char *const BEARING[] = {
    "norm",      "rotary",     "_rope",   "_mrope",  "yarn",   "alibi",  "attn",
    "attention", "window",     "sink",    "mlp",     "ffn",    "_act",   "bias",
    "scal",      "factor",     "softcap", "softmax", "logit",  "expert", "router",
    "moe",       "layer",      "head",    "_tie",    "quant",  "embed",  "position",
    "residual",  "multiplier", "_gat",    "_eps",    "causal", "mask",   "sparse",
    "dropout",   "hidden",     "_dim",    "_lora",   "block",  "_skip",  "_qk",
    "_kv",       "_mup",       "_group",  "topk",    "shared", "route"};

/* ---- values ---- */

kg_status kg_config_refuse(const struct kg_config_reader *r, const char *key,
                           const struct kg_json *value, const char *expected)
{
    struct kg_str text = {0};
    if (kg_json_put_value(&text, value, r->err) == KG_OK)
        kg_fail(r->err, KG_EUNSUPPORTED, "%s: %s is %.80s, expected %s", r->doc->where,
                key, kg_str_text(&text), expected);
    kg_str_release(&text);
    return r->err->code;
}

bool kg_config_is_text(const struct kg_json *value, const char *text)
{
    const char *found = kg_json_text(value, NULL);
    return found && strcmp(found, text) == 0;
}

/* fallback: for a field that is absent or null; 0: the field is required */
kg_status kg_config_size(const struct kg_config_reader *r, const char *key, int64_t max,
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

/* A positive finite number.   fallback: as in kg_config_size */
kg_status kg_config_real(const struct kg_config_reader *r, const struct kg_json *object,
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
        return kg_config_refuse(r, key, value, "a positive number");
    return KG_OK;
}

kg_status kg_config_bool(const struct kg_config_reader *r, const char *key, bool fallback,
                         bool *out)
{
    const struct kg_json *value = kg_json_get(r->root, key);
    *out = kg_json_bool(value, fallback);
    if (kg_json_type(value) != KG_JSON_NULL && kg_json_type(value) != KG_JSON_BOOL)
        return kg_config_refuse(r, key, value, "true or false");
    return KG_OK;
}

/* ---- rules ---- */

static bool keeps_rule(const struct kg_config_reader *r, enum rule rule,
                       const struct kg_json *value)
{
    if (kg_json_type(value) == KG_JSON_NULL)
        return true;
    switch (rule) {
    case OF_EXPERTS:
        return r->c->arch->features & KG_EXPERTS;
    case IS_OF_CLASS:
        return kg_json_bool(value, false) ==
               ((r->c->arch->features & (KG_HEAD_NORM | KG_WIDE_NORM)) != 0);
    case IS_FALSE:
        return kg_json_type(value) == KG_JSON_BOOL && !kg_json_bool(value, true);
    case IS_ZERO:
        return kg_json_is_number(value) && kg_json_real(value, 1) == 0;
    case IS_ONE:
        return kg_json_is_number(value) && kg_json_real(value, 0) == 1;
    case IS_NULL:
    case IS_NULL_UNQUANTISED:
        return false;
    default:
        return true;
    }
}

/* ---- fields ---- */

static bool text_bears(const char *text)
{
    char plain[256] = "_";
    size_t n = 1;
    for (; *text && n < sizeof plain - 1; text++, n++)
        plain[n] = isalnum((unsigned char)*text) ? (char)tolower((unsigned char)*text)
                                                 : '_';
    for (size_t i = 0; i < sizeof BEARING / sizeof *BEARING; i++)
        if (strstr(plain, BEARING[i]))
            return true;
    return *text; /* too long to check */
}

/* Looks at texts and keys in a list or an object; a single value is judged by its key. */
static bool value_bears(const struct kg_json *value)
{
    const bool object = kg_json_type(value) == KG_JSON_OBJECT;
    for (size_t i = 0; i < kg_json_size(value); i++) {
        const struct kg_json *item = object ? kg_json_value_at(value, i)
                                            : kg_json_at(value, i);
        const char *text = kg_json_text(item, NULL);
        if ((object && text_bears(kg_json_key_at(value, i))) ||
            (text && text_bears(text)) || value_bears(item))
            return true;
    }
    return false;
}

static bool is_token_id(const char *key)
{
    static const char *const ends[] = {"_token_id", "_token_ids", "_token_index"};
    const size_t n = strlen(key);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n > strlen(ends[i]) && strcmp(key + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

static bool is_without_effect(const char *key)
{
    for (size_t i = 0; i < sizeof WITHOUT_EFFECT / sizeof *WITHOUT_EFFECT; i++)
        if (strcmp(WITHOUT_EFFECT[i], key) == 0)
            return true;
    return *key == '_' || is_token_id(key);
}

static enum rule rule_of(const char *key, const struct kg_json *value)
{
    for (size_t f = 0; f < sizeof FIELDS / sizeof *FIELDS; f++)
        if (kg_str_listed(FIELDS[f].keys, key, strlen(key)))
            return FIELDS[f].rule;
    if (is_without_effect(key) || kg_json_type(value) == KG_JSON_NULL)
        return NO_EFFECT;
    return text_bears(key) || value_bears(value) ? BEARS : PASSED;
}

/* Whether a class with these `reads` has the field; UINT32_MAX: any class. */
static bool class_has(uint32_t reads, const char *key)
{
    for (size_t f = 0; f < sizeof CLASS_FIELDS / sizeof *CLASS_FIELDS; f++)
        if (kg_str_listed(CLASS_FIELDS[f].keys, key, strlen(key)))
            return CLASS_FIELDS[f].reads & reads;
    return false;
}

bool kg_model_config_keeps(const char *key, const struct kg_json *value)
{
    const enum rule rule = rule_of(key, value);
    return (rule == NO_EFFECT || rule == PASSED) && !class_has(UINT32_MAX, key);
}

bool kg_config_ignores(const struct kg_config_reader *r, const char *key)
{
    for (size_t i = 0; r->ignore && i < r->ignore->n; i++)
        if (strcmp(r->ignore->items[i], key) == 0)
            return true;
    return false;
}

static void note_passed(struct kg_model_config *c, const char *key)
{
    const size_t used = strlen(c->passed);
    snprintf(c->passed + used, sizeof c->passed - used, "%s%.60s", used ? ", " : "", key);
}

static kg_status refuse_unknown(const struct kg_config_reader *r, const char *key,
                                const struct kg_json *value)
{
    char expected[256];
    snprintf(expected, sizeof expected,
             "no such field: it may change what the model computes; if it has no effect, "
             "set model.ignore=%.80s",
             key);
    return kg_config_refuse(r, key, value, expected);
}

static kg_status check_field(const struct kg_config_reader *r, const char *key,
                             const struct kg_json *value)
{
    const enum rule rule = rule_of(key, value);
    const bool known = rule != BEARS && rule != PASSED;
    if (kg_config_ignores(r, key))
        return !known ? KG_OK
                      : kg_fail(r->err, KG_ECONFLICT,
                                "model.ignore: expected fields that kedge does not "
                                "know, found %s of %s, a known one",
                                key, r->doc->where);
    if (rule == BEARS)
        return refuse_unknown(r, key, value);
    if (rule == PASSED)
        note_passed(r->c, key);
    return keeps_rule(r, rule, value) ? KG_OK
                                      : kg_config_refuse(r, key, value, EXPECTED[rule]);
}

kg_status kg_config_check_fields(const struct kg_config_reader *r)
{
    for (size_t i = 0; i < kg_json_size(r->root); i++) {
        const char *key = kg_json_key_at(r->root, i);
        if (!class_has(r->c->arch->reads, key))
            KG_TRY(check_field(r, key, kg_json_value_at(r->root, i)));
    }
    return KG_OK;
}
