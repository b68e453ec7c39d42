/* Reads a HuggingFace config.json completely: each field is applied, known to have no
 * effect, skipped and named, or refused. */
#ifndef KG_MODEL_CONFIG_H
#define KG_MODEL_CONFIG_H

#include "base/status.h"
#include "base/str.h"
#include "model/arch.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_json;
struct kg_json_doc;
struct kg_opt_list;

enum { KG_MAX_EOS = 16, KG_MAX_HEAD_DIM = 256, KG_MAX_LAYERS = 1024 };

/* Scaling of rotary positions, as transformers' rope_type. */
enum kg_rope {
    KG_ROPE_DEFAULT,
    KG_ROPE_LINEAR,
    KG_ROPE_DYNAMIC, /* as default: differs only beyond max_positions */
    KG_ROPE_LLAMA3,
    KG_ROPE_YARN,
    KG_ROPE_LONGROPE, /* a factor per pair */
    KG_ROPES,
};

/* Properties of a layer. */
enum kg_layer_kind {
    KG_LAYER_WINDOW = 1 << 0,     /* has the sliding window */
    KG_LAYER_NO_ROPE = 1 << 1,    /* no rotation of queries and keys */
    KG_LAYER_LOCAL_ROPE = 1 << 2, /* rotation with rope_local_theta, unscaled */
};

struct kg_experts_config {
    int32_t n;                            /* E; 0: no experts */
    int32_t k;                            /* experts per token */
    int32_t ffn;                          /* width of an expert */
    int32_t shared_ffn;                   /* width of the shared expert; 0: none */
    bool normalise;                       /* weights of a token are normalised to sum 1 */
    int32_t step;                         /* layers step-1, 2 step-1, .. have experts, */
    uint64_t without[KG_MAX_LAYERS / 64]; /* except these (bit set) */
};

struct kg_model_config {
    const struct kg_arch *arch;
    int32_t vocab;  /* V */
    int32_t hidden; /* D */
    int32_t ffn;    /* F */
    int32_t layers; /* L */
    struct kg_experts_config experts;
    int32_t heads;         /* H */
    int32_t kv_heads;      /* Hk */
    int32_t head_dim;      /* hd */
    int32_t max_positions; /* longest sequence */
    float norm_eps;
    double rope_theta;
    bool tied; /* lm_head shares the embedding */
    bool qkv_bias;
    bool o_bias;
    bool mlp_bias;
    int32_t window;               /* sliding window in tokens; 0: none */
    uint8_t layer[KG_MAX_LAYERS]; /* (L) bits of enum kg_layer_kind */
    enum kg_act act;
    /* Factors; 0 means none. embed_scale multiplies embeddings, residual_scale a branch's
     * output, score_scale scores (0: 1/sqrt(hd)); logit_divisor divides logits */
    double embed_scale;
    double residual_scale;
    double logit_divisor;
    double score_scale;
    double query_scalar;  /* score_scale is 1/sqrt of this, in classes that have it */
    double score_softcap; /* 0: none, as logit_softcap */
    double logit_softcap;
    double rope_local_theta; /* theta of layers with KG_LAYER_LOCAL_ROPE */
    enum kg_rope rope;       /* type; the fields below apply if the type has them */
    double rope_factor;
    double rope_low_freq_factor; /* llama3 */
    double rope_high_freq_factor;
    double rope_attention; /* yarn, longrope: factor of cos and sin; 0: 1 */
    double rope_beta_fast;
    double rope_beta_slow;
    bool rope_untruncated;           /* yarn's "truncate": false */
    int32_t rope_original_positions; /* llama3, yarn, longrope */
    /* Number of rotated pairs at the start of each head; 0: all */
    int32_t rope_pairs;
    /* longrope: a factor per pair. The long ones apply beyond rope_original_positions,
     * which max_positions never exceeds, so they are only stored. */
    float rope_short[KG_MAX_HEAD_DIM / 2];
    float rope_long[KG_MAX_HEAD_DIM / 2];
    int32_t rope_positions; /* longrope: max_position_embeddings */
    float init_range;
    int32_t eos[KG_MAX_EOS]; /* union of config.json and generation_config.json */
    int n_eos;
    int32_t bos; /* -1: none */
    /* torch_dtype / dtype of the file, for display; static string or "" */
    const char *dtype_name;
    /* tie_word_embeddings in the file; `tied` follows the weights */
    bool tied_said;
    /* number of multi-token-prediction (MTP) layers after the L layers, from
     * num_nextn_predict_layers; their weights are ignored */
    int32_t next_layers;
    char passed[256]; /* unknown fields that were skipped: "a, b" */
};

/* Reads dir/config.json, and the EOS set of dir/generation_config.json if present. `tied`
 * follows the weights of dir, if present: a head that differs from the embedding is not
 * tied, even if config.json says so, as in transformers 5.
 * ignore: fields without effect according to the user (model.ignore); NULL: none
 * errors: ENOTFOUND, EFORMAT, EUNSUPPORTED (architecture, field or value, by name),
 * EINVAL (impossible sizes), ECONFLICT (`ignore` names a known field; fields contradict
 * each other); those of the weights' files */
kg_status kg_model_config_open(struct kg_model_config *c, const char *dir,
                               const struct kg_opt_list *ignore,
                               struct kg_err *err) KG_MUST_CHECK;
/* kg_model_config_open, ignoring no field. */
kg_status kg_model_config_read(struct kg_model_config *c, const char *dir,
                               struct kg_err *err) KG_MUST_CHECK;
kg_status kg_model_config_parse(struct kg_model_config *c, const char *json, size_t n,
                                const char *where, struct kg_err *err) KG_MUST_CHECK;
/* Writes the text of a config.json for transformers. torch_dtype: "bfloat16" or
 * "float32". source: the config.json that c was read from, whose fields without effect
 * (pad_token_id, id2label, ..) are kept; or NULL */
kg_status kg_model_config_write(struct kg_str *out, const struct kg_model_config *c,
                                const char *torch_dtype, const struct kg_json *source,
                                struct kg_err *err) KG_MUST_CHECK;
/* For a new model of c's class and sizes: sets layers, factors, biases and activation to
 * the defaults of the class, except that optional windows are off and a class with
 * query_pre_attn_scalar has head_dim there. */
kg_status kg_model_config_usual(struct kg_model_config *c,
                                struct kg_err *err) KG_MUST_CHECK;
/* Whether a field has no effect and kg_model_config_write preserves it. */
bool kg_model_config_keeps(const char *key, const struct kg_json *value);
/* Features of the model: the class's features and those that the file adds. */
uint32_t kg_model_config_features(const struct kg_model_config *c);
/* Features of layer l, with either experts or one feed-forward. */
uint32_t kg_model_config_layer(const struct kg_model_config *c, int32_t l);

/* Number of layers with experts before layer l. */
int32_t kg_model_config_routed(const struct kg_model_config *c, int32_t l);
/* Number of experts per token over all layers: K per layer with experts; 0: none. */
int32_t kg_model_config_choices(const struct kg_model_config *c);

/* config_experts.c. Appends ", "key": value" for each field of experts. */
kg_status kg_experts_config_write(struct kg_str *out, const struct kg_model_config *c,
                                  struct kg_err *err) KG_MUST_CHECK;
bool kg_model_config_is_eos(const struct kg_model_config *c, int32_t token);
/* Adds one id (the tokenizer's EOS token) to the set; -1, ids beyond V and known ones
 * have no effect.
 * errors: EINVAL (the set is full) */
kg_status kg_model_config_add_eos(struct kg_model_config *c, int32_t token,
                                  struct kg_err *err) KG_MUST_CHECK;

/* Maximum number of keys that a query of layer l sees, its own included; 0: no limit. */
int32_t kg_model_config_window(const struct kg_model_config *c, int32_t l);

const char *kg_rope_name(enum kg_rope rope);
const char *kg_act_name(enum kg_act act);

/* Number of rotated pairs per head: i and i + pairs, i < pairs <= head_dim/2. */
int32_t kg_rope_pairs(const struct kg_model_config *c);
/* inv_freq[i], i < kg_rope_pairs, of the rotary embedding, with scaling.
 * source: HF modeling_rope_utils */
void kg_rope_inv_freq(float *inv_freq, const struct kg_model_config *c);
/* For layers with KG_LAYER_LOCAL_ROPE. */
void kg_rope_local_inv_freq(float *inv_freq, const struct kg_model_config *c);

#endif
