/* A HuggingFace config.json, understood completely: every field honoured, known to be
 * without effect, or refused by name.
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

enum { KG_MAX_EOS = 16, KG_MAX_HEAD_DIM = 256, KG_MAX_LAYERS = 1024 };

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
    int32_t heads;    /* H */
    int32_t kv_heads; /* Hk */
    int32_t head_dim; /* hd */
    int32_t max_positions;
    float norm_eps;
    double rope_theta;
    bool tied; /* lm_head is the embedding */
    bool qkv_bias;
    bool rope_llama3; /* rope_scaling of type llama3, with: */
    double rope_factor;
    double rope_low_freq_factor;
    double rope_high_freq_factor;
    int32_t rope_original_positions;
    float init_range;
    int32_t eos[KG_MAX_EOS]; /* union of config.json and generation_config.json */
    int n_eos;
    int32_t bos; /* -1 when none */
    /* torch_dtype / dtype of the file, for inspect; static string or "" */
    const char *dtype_name;
};

/* dir/config.json, and the EOS set of dir/generation_config.json when there.
 * errors: NOTFOUND, EFORMAT, UNSUPPORTED (unknown architecture, field or value, by name),
 * EINVAL (impossible sizes) */
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
/* Whether a field has no effect and is kept as it was read. */
bool kg_model_config_keeps(const char *key);
/* What its tensors and its forward have: the row's, and what the file adds. */
uint32_t kg_model_config_features(const struct kg_model_config *c);
/* The same of layer l: experts or one feed-forward. */
uint32_t kg_model_config_layer(const struct kg_model_config *c, int32_t l);

/* config_experts.c: fields of experts, of a class that has them.
 * errors: EFORMAT, EINVAL, UNSUPPORTED, naming the field */
kg_status kg_experts_config_read(struct kg_model_config *c, const struct kg_json_doc *doc,
                                 const struct kg_json *root,
                                 struct kg_err *err) KG_MUST_CHECK;
/* "key": value of each, behind others. */
kg_status kg_experts_config_write(struct kg_str *out, const struct kg_model_config *c,
                                  struct kg_err *err) KG_MUST_CHECK;
bool kg_model_config_is_eos(const struct kg_model_config *c, int32_t token);
/* Add one id (the tokenizer's end token) to the set; -1, ids beyond V and known ones
 * change nothing.
 * errors: EINVAL (the set is full) */
kg_status kg_model_config_add_eos(struct kg_model_config *c, int32_t token,
                                  struct kg_err *err) KG_MUST_CHECK;

/* inv_freq[i], i < head_dim/2, of the rotary embedding, llama3 scaling applied.
 * source: HF modeling_rope_utils */
void kg_rope_inv_freq(float *inv_freq, const struct kg_model_config *c);

#endif
