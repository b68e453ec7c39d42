/* A HuggingFace config.json, understood completely: every field honoured, known to be
 * without effect, passed over by name, or refused.
 */
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

/* How positions turn queries and keys, as transformers' rope_type. */
enum kg_rope {
    KG_ROPE_DEFAULT,
    KG_ROPE_LINEAR,
    KG_ROPE_DYNAMIC, /* as default: it changes beyond max_positions alone */
    KG_ROPE_LLAMA3,
    KG_ROPE_YARN,
    KG_ROPE_LONGROPE, /* every pair by a factor of its own */
    KG_ROPES,
};

/* What a layer is. */
enum kg_layer_kind {
    KG_LAYER_WINDOW = 1 << 0,     /* looks through the window */
    KG_LAYER_NO_ROPE = 1 << 1,    /* queries and keys are not turned */
    KG_LAYER_LOCAL_ROPE = 1 << 2, /* they are by rope_local_theta, unscaled */
};

struct kg_experts_config {
    int32_t n;          /* E; 0: no layer has any */
    int32_t k;          /* of a token */
    int32_t ffn;        /* of an expert */
    int32_t shared_ffn; /* of the one that every token has; 0: there is none */
    bool normalise;     /* weights of a token sum to 1 */
    int32_t step;       /* layers step-1, 2 step-1, .. have experts, */
    uint64_t without[KG_MAX_LAYERS / 64]; /* but for these, a bit each */
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
    int32_t max_positions; /* of any sequence */
    float norm_eps;
    double rope_theta;
    bool tied; /* lm_head is the embedding */
    bool qkv_bias;
    bool o_bias;
    bool mlp_bias;
    int32_t window;               /* of layers that have one; 0: none does */
    uint8_t layer[KG_MAX_LAYERS]; /* (L) of enum kg_layer_kind */
    enum kg_act act;
    /* Factors, each 0 for none: of embeddings, of what a branch adds to the residual
     * stream, of logits (the inverse); of scores, 0 for 1/sqrt(hd) */
    double embed_scale;
    double residual_scale;
    double logit_divisor;
    double score_scale;
    double query_scalar;  /* of which score_scale is 1/sqrt, where the file says so */
    double score_softcap; /* 0: none, as the next */
    double logit_softcap;
    double rope_local_theta; /* of layers with KG_LAYER_LOCAL_ROPE */
    enum kg_rope rope;       /* with, where its type has them: */
    double rope_factor;
    double rope_low_freq_factor; /* llama3 */
    double rope_high_freq_factor;
    double rope_attention; /* yarn, longrope: of cos and sin; 0: 1 */
    double rope_beta_fast;
    double rope_beta_slow;
    bool rope_untruncated;           /* yarn's "truncate": false */
    int32_t rope_original_positions; /* llama3, yarn, longrope */
    /* Of each head the first values are turned, 2 for each of these; 0: all */
    int32_t rope_pairs;
    /* longrope: one for each pair. The long ones hold for sequences beyond
     * max_positions, which is at most rope_original_positions, so they are kept alone. */
    float rope_short[KG_MAX_HEAD_DIM / 2];
    float rope_long[KG_MAX_HEAD_DIM / 2];
    int32_t rope_positions; /* longrope: max_position_embeddings */
    float init_range;
    int32_t eos[KG_MAX_EOS]; /* union of config.json and generation_config.json */
    int n_eos;
    int32_t bos; /* -1 when none */
    /* torch_dtype / dtype of the file, for inspect; static string or "" */
    const char *dtype_name;
    /* tie_word_embeddings as the file has it; tied is what the weights say */
    bool tied_said;
    int32_t next_layers; /* behind L in the weights: they predict further tokens */
    char passed[256];    /* fields that no table has, passed over: "a, b" */
};

/* dir/config.json, and the EOS set of dir/generation_config.json when there. `tied` is as
 * the weights of dir say, where they are there: a head that differs from the embedding is
 * not tied to it, whatever config.json says, as in transformers 5.
 * ignore: fields that the user says have no effect (model.ignore); NULL: none
 * errors: NOTFOUND, EFORMAT, UNSUPPORTED (unknown architecture, field or value, by name),
 * EINVAL (impossible sizes), ECONFLICT (a field that is known is to be ignored); those of
 * the weights' files */
kg_status kg_model_config_open(struct kg_model_config *c, const char *dir,
                               const struct kg_opt_list *ignore,
                               struct kg_err *err) KG_MUST_CHECK;
/* The same, with nothing ignored. */
kg_status kg_model_config_read(struct kg_model_config *c, const char *dir,
                               struct kg_err *err) KG_MUST_CHECK;
kg_status kg_model_config_parse(struct kg_model_config *c, const char *json, size_t n,
                                const char *where, struct kg_err *err) KG_MUST_CHECK;
/* config.json text that transformers loads. torch_dtype as given ("bfloat16",
 * "float32"). source: the config.json that c was read from, whose fields without effect
 * (pad_token_id, id2label, ..) are kept; or NULL */
kg_status kg_model_config_write(struct kg_str *out, const struct kg_model_config *c,
                                const char *torch_dtype, const struct kg_json *source,
                                struct kg_err *err) KG_MUST_CHECK;
/* Layers, factors and activation of a fresh model of c's class and sizes: what its class
 * does where config.json says nothing, without a window where it could have none, and
 * with scores by 1/sqrt(head_dim). */
kg_status kg_model_config_usual(struct kg_model_config *c,
                                struct kg_err *err) KG_MUST_CHECK;
/* Whether a field has no effect and is kept as it was read. */
bool kg_model_config_keeps(const char *key, const struct kg_json *value);
/* What its tensors and its forward have: the row's, and what the file adds. */
uint32_t kg_model_config_features(const struct kg_model_config *c);
/* The same of layer l: experts or one feed-forward. */
uint32_t kg_model_config_layer(const struct kg_model_config *c, int32_t l);

/* Layers before layer l that have experts. */
int32_t kg_model_config_routed(const struct kg_model_config *c, int32_t l);
/* Experts that a token has over all layers: K of each that has any, one layer after the
 * other; 0: there are none. */
int32_t kg_model_config_choices(const struct kg_model_config *c);

/* config_experts.c. "key": value of each field of experts, behind others. */
kg_status kg_experts_config_write(struct kg_str *out, const struct kg_model_config *c,
                                  struct kg_err *err) KG_MUST_CHECK;
bool kg_model_config_is_eos(const struct kg_model_config *c, int32_t token);
/* Add one id (the tokenizer's end token) to the set; -1, ids beyond V and known ones
 * change nothing.
 * errors: EINVAL (the set is full) */
kg_status kg_model_config_add_eos(struct kg_model_config *c, int32_t token,
                                  struct kg_err *err) KG_MUST_CHECK;

/* Keys that a query of layer l sees at most; 0: all before it. */
int32_t kg_model_config_window(const struct kg_model_config *c, int32_t l);

const char *kg_rope_name(enum kg_rope rope);
const char *kg_act_name(enum kg_act act);

/* Pairs of a head that are turned: i and i + pairs, i < pairs <= head_dim/2. */
int32_t kg_rope_pairs(const struct kg_model_config *c);
/* inv_freq[i], i < kg_rope_pairs, of the rotary embedding, scaling applied.
 * source: HF modeling_rope_utils */
void kg_rope_inv_freq(float *inv_freq, const struct kg_model_config *c);
/* Of layers with KG_LAYER_LOCAL_ROPE. */
void kg_rope_local_inv_freq(float *inv_freq, const struct kg_model_config *c);

#endif
