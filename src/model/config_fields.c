/* Every field that HuggingFace writes into the config.json of a family of arch.c, with
 * its rule: honoured by a reader, without effect on a causal language model's weights and
 * forward pass, or allowed one value only. A field that is not in the table is refused
 * with its value, so no setting of a checkpoint is passed over in silence.
 */
#include "model/config_internal.h"

#include <math.h>
#include <string.h>

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
    {"partial_rotary_factor", IS_ONE},
    {"full_attn_mod", IS_ONE},
    {"interpolate_factor", IS_ONE},
    {"lm_head_bias", IS_FALSE},
    {"quantization_config", IS_NULL},
    {"is_encoder_decoder", IS_FALSE},
    {"add_cross_attention", IS_FALSE},
    {"cross_attention_hidden_size", IS_NULL},
    {"tie_encoder_decoder", IS_FALSE},
    {"use_mrope", IS_FALSE},

    /* into how many slices a product was cut: of the same numbers */
    {"pretraining_tp", NO_EFFECT},
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

/* Honoured where the class has them, elsewhere unknown or what FIELDS says. */
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
    {"use_bidirectional_attention", KG_READS_SOFTCAPS},
    {"original_max_position_embeddings", KG_READS_LONGROPE},
    {"partial_rotary_factor", KG_READS_PART_ROPE},
    {"qkv_bias", KG_READS_QKV_BIAS},
};

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

/* A field that is absent or null takes the fallback; a fallback of 0 demands the
 * field. */
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

/* A positive finite number; absent or null gives the fallback, where 0 demands the
 * field. */
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

kg_status kg_config_check_fields(const struct kg_config_reader *r)
{
    for (size_t i = 0; i < kg_json_size(r->root); i++) {
        const char *key = kg_json_key_at(r->root, i);
        const struct kg_json *value = kg_json_value_at(r->root, i);
        const struct field *f = field_of(key);
        if (class_has(r->c->arch, key))
            continue;
        if (!f)
            return kg_config_refuse(r, key, value,
                                    "no such field (its effect is not known)");
        if (!keeps_rule(r, f->rule, value))
            return kg_config_refuse(r, key, value, EXPECTED[f->rule]);
    }
    return KG_OK;
}
