/* Writing a config.json that transformers loads.
 *
 * The fields that its class writes for the family, in the layout that both its older and
 * its newer releases read (rope_theta and rope_scaling outside, torch_dtype). Fields that
 * change no number here but are others' to read (a chat setting, say) are taken over from
 * the config that the model came with.
 */
#include "model/config.h"

#include "data/json.h"

#include <string.h>

struct writer {
    struct kg_str *out;
    const struct kg_json *source; /* NULL: there is none */
    struct kg_err *err;
};

/* Whether the field comes from the source, below. */
static bool is_kept(const struct writer *w, const char *key)
{
    return kg_json_get(w->source, key) && kg_model_config_keeps(key);
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
    /* Where the class derives it, a field that says the same would only confuse older
     * releases. */
    if ((c->arch->reads & KG_READS_HEAD_DIM) || c->head_dim * c->heads != c->hidden)
        KG_TRY(put_int(w, "head_dim", c->head_dim));
    return put_int(w, "max_position_embeddings", c->max_positions);
}

static kg_status put_rope(const struct writer *w, const struct kg_model_config *c)
{
    KG_TRY(put_double(w, "rope_theta", c->rope_theta));
    if (!c->rope_llama3)
        return put_word(w, "rope_scaling", "null");
    KG_TRY(put_word(w, "rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": "));
    KG_TRY(kg_json_put_double(w->out, c->rope_factor, w->err));
    KG_TRY(kg_str_puts(w->out, ", \"low_freq_factor\": ", w->err));
    KG_TRY(kg_json_put_double(w->out, c->rope_low_freq_factor, w->err));
    KG_TRY(kg_str_puts(w->out, ", \"high_freq_factor\": ", w->err));
    KG_TRY(kg_json_put_double(w->out, c->rope_high_freq_factor, w->err));
    return kg_str_printf(w->out, w->err, ", \"original_max_position_embeddings\": %d}",
                         c->rope_original_positions);
}

/* Fields that only one family's class has. */
static kg_status put_family(const struct writer *w, const struct kg_model_config *c)
{
    if (c->arch->windows == KG_WINDOWS_ALL)
        return put_word(w, "sliding_window", "null");
    if (c->arch->windows == KG_WINDOWS_NONE && !c->experts.n) {
        KG_TRY(put_word(w, "mlp_bias", "false"));
        KG_TRY(put_int(w, "pretraining_tp", 1));
    } else {
        KG_TRY(put_word(w, "use_sliding_window", "false"));
        KG_TRY(put_word(w, "sliding_window", "null"));
        if (!is_kept(w, "max_window_layers"))
            KG_TRY(put_int(w, "max_window_layers", c->layers));
    }
    return c->arch->features & KG_QKV_BIAS ? KG_OK
                                           : put_word(w, "attention_bias", "false");
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
    KG_TRY(put_text(&w, "hidden_act", "silu"));
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
