/* Writes a config.json that transformers loads.
 *
 * It has the fields that transformers' class writes, in the layout that both its older
 * and its newer releases read (top-level rope_theta, rope_scaling, torch_dtype). Fields
 * that have no effect in kedge but that other programs read (a chat setting, say) are
 * copied from the config that the model came with.
 */
#include "model/config_internal.h"

#include "data/json.h"

#include <math.h>
#include <string.h>

struct writer {
    struct kg_str *out;
    const struct kg_json *source; /* NULL: there is none */
    struct kg_err *err;
};

/* Whether put_kept copies the field from the source. */
static bool is_kept(const struct writer *w, const char *key)
{
    const struct kg_json *value = kg_json_get(w->source, key);
    return value && kg_model_config_keeps(key, value);
}

static kg_status put_key(const struct writer *w, const char *key)
{
    bool first = w->out->len > 0 && w->out->data[w->out->len - 1] == '{';
    return kg_str_printf(w->out, w->err, "%s\n  \"%s\": ", first ? "" : ",", key);
}

static kg_status put_int(const struct writer *w, const char *key, int64_t value)
{
    KG_TRY(put_key(w, key));
    return kg_str_printf(w->out, w->err, "%lld", (long long)value);
}

static kg_status put_word(const struct writer *w, const char *key, const char *word)
{
    KG_TRY(put_key(w, key));
    return kg_str_puts(w->out, word, w->err);
}

static kg_status put_text(const struct writer *w, const char *key, const char *text)
{
    KG_TRY(put_key(w, key));
    return kg_json_put_string(w->out, text, strlen(text), w->err);
}

static kg_status put_float(const struct writer *w, const char *key, float value)
{
    KG_TRY(put_key(w, key));
    return kg_json_put_float(w->out, value, w->err);
}

static kg_status put_double(const struct writer *w, const char *key, double value)
{
    KG_TRY(put_key(w, key));
    return kg_json_put_double(w->out, value, w->err);
}

/* Writes a whole number as an integer: newer releases refuse 256.0 for an int. */
static kg_status put_whole(const struct writer *w, const char *key, double value)
{
    const bool whole = value < 1e9 && value == (double)(int64_t)value;
    return whole ? put_int(w, key, (int64_t)value) : put_double(w, key, value);
}

static kg_status put_ids(const struct writer *w, const struct kg_model_config *c)
{
    KG_TRY(c->bos < 0 ? put_word(w, "bos_token_id", "null")
                      : put_int(w, "bos_token_id", c->bos));
    if (c->n_eos == 0)
        return put_word(w, "eos_token_id", "null");
    if (c->n_eos == 1)
        return put_int(w, "eos_token_id", c->eos[0]);
    KG_TRY(put_key(w, "eos_token_id"));
    return kg_json_put_ints(w->out, c->eos, (size_t)c->n_eos, w->err);
}

static kg_status put_sizes(const struct writer *w, const struct kg_model_config *c)
{
    KG_TRY(put_int(w, "vocab_size", c->vocab));
    KG_TRY(put_int(w, "hidden_size", c->hidden));
    KG_TRY(put_int(w, "intermediate_size", c->ffn));
    KG_TRY(put_int(w, "num_hidden_layers", c->layers));
    KG_TRY(put_int(w, "num_attention_heads", c->heads));
    KG_TRY(put_int(w, "num_key_value_heads", c->kv_heads));
    /* if the class derives the same value, the field only confuses older releases */
    if ((c->arch->reads & KG_READS_HEAD_DIM) || c->head_dim * c->heads != c->hidden)
        KG_TRY(put_int(w, "head_dim", c->head_dim));
    return put_int(w, "max_position_embeddings",
                   c->rope_positions ? c->rope_positions : c->max_positions);
}

static kg_status put_yarn(const struct writer *w, const struct kg_model_config *c)
{
    KG_TRY(kg_str_puts(w->out, ", \"attention_factor\": ", w->err));
    KG_TRY(kg_json_put_double(w->out, c->rope_attention, w->err));
    KG_TRY(kg_str_puts(w->out, ", \"beta_fast\": ", w->err));
    KG_TRY(kg_json_put_double(w->out, c->rope_beta_fast, w->err));
    KG_TRY(kg_str_puts(w->out, ", \"beta_slow\": ", w->err));
    KG_TRY(kg_json_put_double(w->out, c->rope_beta_slow, w->err));
    return kg_str_printf(w->out, w->err, ", \"truncate\": %s",
                         c->rope_untruncated ? "false" : "true");
}

static kg_status put_list(const struct writer *w, const char *key, const float *list,
                          int32_t n)
{
    KG_TRY(kg_str_printf(w->out, w->err, ", \"%s\": ", key));
    for (int32_t i = 0; i < n; i++) {
        KG_TRY(kg_str_puts(w->out, i ? ", " : "[", w->err));
        KG_TRY(kg_json_put_float(w->out, list[i], w->err));
    }
    return kg_str_puts(w->out, "]", w->err);
}

/* The form that older releases of the class require, with positions at the top level. */
static kg_status put_longrope(const struct writer *w, const struct kg_model_config *c)
{
    const int32_t pairs = kg_rope_pairs(c);
    KG_TRY(put_int(w, "original_max_position_embeddings", c->rope_original_positions));
    KG_TRY(put_key(w, "rope_scaling"));
    KG_TRY(kg_str_puts(w->out, "{\"type\": \"longrope\"", w->err));
    KG_TRY(put_list(w, "short_factor", c->rope_short, pairs));
    KG_TRY(put_list(w, "long_factor", c->rope_long, pairs));
    if (c->rope_attention != kg_longrope_attention(c)) {
        KG_TRY(kg_str_puts(w->out, ", \"attention_factor\": ", w->err));
        KG_TRY(kg_json_put_double(w->out, c->rope_attention, w->err));
    }
    return kg_str_puts(w->out, "}", w->err);
}

/* The part of a head that rotates. Readers truncate head_dim x part to an integer, so the
 * quotient, which may be one ulp too small for that (30 of 44), is raised. */
static double rotary_part(const struct kg_model_config *c)
{
    const int32_t turned = 2 * c->rope_pairs;
    double part = (double)turned / c->head_dim;
    while ((int32_t)(c->head_dim * part) < turned)
        part = nextafter(part, 1);
    return part;
}

static kg_status put_rope(const struct writer *w, const struct kg_model_config *c)
{
    KG_TRY(put_double(w, "rope_theta", c->rope_theta));
    if (c->rope_pairs)
        KG_TRY(put_double(w, "partial_rotary_factor", rotary_part(c)));
    if (c->rope == KG_ROPE_DEFAULT)
        return put_word(w, "rope_scaling", "null");
    if (c->rope == KG_ROPE_LONGROPE)
        return put_longrope(w, c);
    KG_TRY(put_key(w, "rope_scaling"));
    KG_TRY(kg_str_printf(w->out, w->err,
                         "{\"rope_type\": \"%s\", \"factor\": ", kg_rope_name(c->rope)));
    KG_TRY(kg_json_put_double(w->out, c->rope_factor, w->err));
    if (c->rope == KG_ROPE_LLAMA3) {
        KG_TRY(kg_str_puts(w->out, ", \"low_freq_factor\": ", w->err));
        KG_TRY(kg_json_put_double(w->out, c->rope_low_freq_factor, w->err));
        KG_TRY(kg_str_puts(w->out, ", \"high_freq_factor\": ", w->err));
        KG_TRY(kg_json_put_double(w->out, c->rope_high_freq_factor, w->err));
    }
    if (c->rope == KG_ROPE_YARN)
        KG_TRY(put_yarn(w, c));
    if (c->rope_original_positions)
        KG_TRY(kg_str_printf(w->out, w->err, ", \"original_max_position_embeddings\": %d",
                             c->rope_original_positions));
    return kg_str_puts(w->out, "}", w->err);
}

/* A list with one entry per layer: `with` if its bit is set, else `without`. */
static kg_status put_by_layer(const struct writer *w, const struct kg_model_config *c,
                              const char *key, enum kg_layer_kind bit, const char *with,
                              const char *without)
{
    KG_TRY(put_key(w, key));
    for (int32_t l = 0; l < c->layers; l++)
        KG_TRY(kg_str_printf(w->out, w->err, "%s%s", l ? ", " : "[",
                             c->layer[l] & bit ? with : without));
    return kg_str_puts(w->out, "]", w->err);
}

static kg_status put_window(const struct writer *w, const struct kg_model_config *c)
{
    const enum kg_windows kind = c->arch->windows;
    const bool on = c->window > 0;
    if (kind == KG_WINDOWS_NONE)
        return KG_OK;
    if (kg_config_has_switch(c->arch))
        KG_TRY(put_word(w, "use_sliding_window", on ? "true" : "false"));
    KG_TRY(on ? put_int(w, "sliding_window", c->window)
              : put_word(w, "sliding_window", "null"));
    if ((kind == KG_WINDOWS_SWITCHED || kind == KG_WINDOWS_SWITCHED_TURNS) &&
        !is_kept(w, "max_window_layers"))
        KG_TRY(put_int(w, "max_window_layers", c->layers));
    return on && c->arch->reads & KG_READS_LAYER_TYPES
               ? put_by_layer(w, c, "layer_types", KG_LAYER_WINDOW,
                              "\"sliding_attention\"", "\"full_attention\"")
               : KG_OK;
}

static double or_one(double factor) { return factor != 0 ? factor : 1; }

static kg_status put_softcap(const struct writer *w, const char *key, double softcap)
{
    return softcap > 0 ? put_double(w, key, softcap) : put_word(w, key, "null");
}

static kg_status put_factors(const struct writer *w, const struct kg_model_config *c)
{
    const uint32_t reads = c->arch->reads;
    if (reads & KG_READS_MULTIPLIERS) {
        KG_TRY(put_double(w, "embedding_multiplier", or_one(c->embed_scale)));
        KG_TRY(put_double(w, "residual_multiplier", or_one(c->residual_scale)));
        KG_TRY(put_double(w, "logits_scaling", or_one(c->logit_divisor)));
        KG_TRY(put_double(w, "attention_multiplier", c->score_scale));
    }
    if (reads & KG_READS_SOFTCAPS) {
        KG_TRY(put_whole(w, "query_pre_attn_scalar", c->query_scalar));
        KG_TRY(put_softcap(w, "attn_logit_softcapping", c->score_softcap));
        KG_TRY(put_softcap(w, "final_logit_softcapping", c->logit_softcap));
    }
    return reads & KG_READS_LOCAL_ROPE
               ? put_double(w, "rope_local_base_freq", c->rope_local_theta)
               : KG_OK;
}

/* Fields that not every family's class has. */
static kg_status put_family(const struct writer *w, const struct kg_model_config *c)
{
    const uint32_t reads = c->arch->reads;
    KG_TRY(put_window(w, c));
    KG_TRY(put_factors(w, c));
    if (reads & KG_READS_MLP_BIAS)
        KG_TRY(put_word(w, "mlp_bias", c->mlp_bias ? "true" : "false"));
    if (reads & KG_READS_BIAS)
        KG_TRY(put_word(w, "attention_bias", c->qkv_bias ? "true" : "false"));
    if (reads & KG_READS_QKV_BIAS)
        KG_TRY(put_word(w, "qkv_bias", c->qkv_bias ? "true" : "false"));
    if (reads & KG_READS_NO_ROPE)
        KG_TRY(put_by_layer(w, c, "no_rope_layers", KG_LAYER_NO_ROPE, "0", "1"));
    return KG_OK;
}

static kg_status put_kept(const struct writer *w)
{
    for (size_t i = 0; i < kg_json_size(w->source); i++) {
        const char *key = kg_json_key_at(w->source, i);
        if (!is_kept(w, key))
            continue;
        KG_TRY(put_key(w, key));
        KG_TRY(kg_json_put_value(w->out, kg_json_value_at(w->source, i), w->err));
    }
    return KG_OK;
}

kg_status kg_model_config_write(struct kg_str *out, const struct kg_model_config *c,
                                const char *torch_dtype, const struct kg_json *source,
                                struct kg_err *err)
{
    const struct writer w = {out, source, err};
    KG_TRY(kg_str_puts(out, "{", err));
    KG_TRY(put_key(&w, "architectures"));
    KG_TRY(kg_str_printf(out, err, "[\"%s\"]", c->arch->class_name));
    KG_TRY(put_text(&w, "model_type", c->arch->model_type));
    KG_TRY(put_sizes(&w, c));
    KG_TRY(put_text(
        &w, c->arch->reads & KG_READS_SOFTCAPS ? "hidden_activation" : "hidden_act",
        kg_act_name(c->act)));
    KG_TRY(put_float(&w, "rms_norm_eps", c->norm_eps));
    KG_TRY(put_float(&w, "initializer_range", c->init_range));
    KG_TRY(put_rope(&w, c));
    KG_TRY(put_word(&w, "attention_dropout", "0.0"));
    KG_TRY(put_family(&w, c));
    if (c->experts.n)
        KG_TRY(kg_experts_config_write(out, c, err));
    KG_TRY(put_word(&w, "tie_word_embeddings", c->tied ? "true" : "false"));
    KG_TRY(put_ids(&w, c));
    if (!is_kept(&w, "use_cache"))
        KG_TRY(put_word(&w, "use_cache", "true"));
    KG_TRY(put_kept(&w));
    KG_TRY(put_text(&w, "torch_dtype", torch_dtype));
    return kg_str_puts(out, "\n}\n", err);
}
