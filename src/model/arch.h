/* The table of architectures: what a model of each model_type of HuggingFace is made of.
 *
 * An architecture is a row. Loading, saving, forward and backward ask for features and
 * never for a name, so a model that is made of parts which are here already is a row
 * alone (docs/extending.md).
 */
#ifndef KG_MODEL_ARCH_H
#define KG_MODEL_ARCH_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a model may have. A row has those of every model of its type; a config.json adds
 * biases (kg_model_config_features). */
enum kg_feature {
    KG_QKV_BIAS = 1 << 0,    /* of q, k, v */
    KG_O_BIAS = 1 << 1,      /* of the output projection */
    KG_MLP_BIAS = 1 << 2,    /* of gate, up and down */
    KG_HEAD_NORM = 1 << 3,   /* RMS norm of every query and key head */
    KG_SPLIT = 1 << 4,       /* q, k, v, gate, up are tensors of their own */
    KG_PRE_NORM = 1 << 5,    /* x += f(norm(x)), of attention and of the feed-forward */
    KG_POST_NORM = 1 << 6,   /* x += norm(f(x)) */
    KG_BOTH_NORMS = 1 << 7,  /* x += norm(f(norm(x))) */
    KG_WIDE_NORM = 1 << 8,   /* RMS norm of all queries together, and of all keys */
    KG_FUSED = 1 << 9,       /* q, k, v are one tensor of the file, gate and up another */
    KG_UNIT_NORM = 1 << 10,  /* norms multiply by 1 + w */
    KG_ROOT_EMBED = 1 << 11, /* embeddings times sqrt(D) */
    /* of a layer: one feed-forward, or experts (kg_model_config_layer) */
    KG_DENSE = 1 << 16,
    KG_EXPERTS = 1 << 17,       /* softmax over a router's logits, the top k */
    KG_MLP_EXPERTS = 1 << 18,   /* in tensors mlp.experts.N.. */
    KG_BLOCK_EXPERTS = 1 << 19, /* in block_sparse_moe.experts.N.. */
    KG_SHARED_EXPERT = 1 << 20, /* and one of every token, with a gate */
};

/* What a layer without experts does not have of them. */
enum {
    KG_EXPERT_FEATURES = KG_EXPERTS | KG_MLP_EXPERTS | KG_BLOCK_EXPERTS | KG_SHARED_EXPERT
};

/* Fields of config.json that some classes alone have, and what absent ones mean. */
enum kg_reads {
    KG_READS_HEAD_DIM = 1 << 0,    /* and writes it, where others derive it */
    KG_READS_HEADS = 1 << 1,       /* num_key_value_heads absent: as many as heads */
    KG_READS_BIAS = 1 << 2,        /* attention_bias: of q, k, v and o */
    KG_READS_MLP_BIAS = 1 << 3,    /* mlp_bias: of gate, up and down */
    KG_READS_LAYER_TYPES = 1 << 4, /* and writes them */
    KG_READS_NO_ROPE = 1 << 5,     /* no_rope_layers, no_rope_layer_interval */
    KG_READS_LONGROPE = 1 << 6,    /* no rope_scaling but "longrope", with
                                    * original_max_position_embeddings outside of it */
    KG_READS_MULTIPLIERS = 1 << 7, /* embedding_, residual_, attention_multiplier,
                                    * logits_scaling */
    KG_READS_SOFTCAPS = 1 << 8,    /* attn_ and final_logit_softcapping,
                                    * query_pre_attn_scalar, hidden_activation,
                                    * use_bidirectional_attention */
    KG_READS_LOCAL_ROPE = 1 << 9,  /* rope_local_base_freq of layers with a window */
    KG_READS_PART_ROPE = 1 << 10,  /* partial_rotary_factor */
    KG_READS_QKV_BIAS = 1 << 11,   /* qkv_bias: of q, k, v; absent: they have them */
    /* of experts: */
    KG_READS_LOCAL_EXPERTS = 1 << 16, /* num_local_experts, where others num_experts */
    KG_READS_EXPERT_FFN = 1 << 17,    /* moe_intermediate_size apart from that of layers
                                         without experts, and which these are */
    KG_READS_NORMALISE = 1 << 18,     /* norm_topk_prob, where others always do */
};

/* What the gate goes through. */
enum kg_act { KG_ACT_SILU, KG_ACT_GELU_TANH, KG_ACTS };

/* Which layers look through a sliding window. */
enum kg_windows {
    KG_WINDOWS_NONE,     /* the class knows none */
    KG_WINDOWS_SWITCHED, /* with use_sliding_window those of layer_types, or from
                          * max_window_layers on */
    KG_WINDOWS_NO_ROPE,  /* with use_sliding_window those of layer_types, or those without
                          * rope */
    KG_WINDOWS_SWITCHED_ALL,   /* with use_sliding_window all */
    KG_WINDOWS_SWITCHED_TURNS, /* with use_sliding_window those of layer_types, or every
                                * other before max_window_layers */
    KG_WINDOWS_ALL,            /* all, where sliding_window is a number */
    KG_WINDOWS_ALTERNATE, /* those of layer_types, or all but every default_pattern-th */
};

struct kg_arch {
    const char *model_type; /* "qwen2" */
    const char *class_name; /* "Qwen2ForCausalLM" */
    const char *help;
    uint32_t features; /* of enum kg_feature */
    uint32_t reads;    /* of enum kg_reads */
    enum kg_windows windows;
    enum kg_act act;
    int32_t default_window; /* sliding_window where absent; 0: none */
    int32_t default_pattern;
    int32_t default_head_dim;     /* head_dim where absent; 0: hidden / heads */
    int32_t default_positions;    /* max_position_embeddings where absent */
    int32_t default_original;     /* original_max_position_embeddings where absent */
    double default_theta;         /* rope_theta where absent; 0: 10000 */
    double default_eps;           /* rms_norm_eps where absent; 0: 1e-6 */
    double default_score_softcap; /* where absent; 0: none */
    double default_logit_softcap;
    bool default_tied; /* tie_word_embeddings where absent */
    /* attn_logit_softcapping is a field of the class, which its forward never reads */
    bool no_score_softcap;
};

/* errors: UNSUPPORTED, listing the valid names */
kg_status kg_arch_find(const struct kg_arch **arch, const char *model_type,
                       struct kg_err *err) KG_MUST_CHECK;

/* ---- tensors of a layer ---- */
enum kg_dim {
    KG_DIM_ONE, /* rows of a vector */
    KG_DIM_HIDDEN,
    KG_DIM_FFN,
    KG_DIM_QUERY, /* H hd */
    KG_DIM_KEY,   /* Hk hd */
    KG_DIM_HEAD,
    KG_DIM_VOCAB,
    KG_DIM_EXPERTS, /* how many */
    KG_DIM_EXPERT_FFN,
    KG_DIM_SHARED_FFN,
    KG_DIM_SINGLE, /* a matrix of one row */
};

/* How a tensor is called in a checkpoint, which dimensions it has, which features it
 * takes, and where struct kg_layer_params keeps the pointer to it. */
struct kg_tensor_row {
    /* after "model.layers.N."; neighbours of one suffix are one tensor of the file, one
     * after the other in its rows; with %d in it a tensor of each expert: of such rows
     * that follow each other all of one expert come first, and the slot is expert 0's */
    const char *suffix;
    enum kg_dim rows;
    enum kg_dim cols;
    uint32_t with; /* all of these features; 0: always */
    size_t slot;   /* offset in struct kg_layer_params */
};
/* of one layer, beside those of experts */
enum { KG_MAX_LAYER_TENSORS = 32 };

/* The rows, in HF's order, and how many there are. */
const struct kg_tensor_row *kg_arch_tensors(size_t *n);

/* Whether each expert has its own. */
bool kg_arch_each_expert(const struct kg_tensor_row *row);
/* The suffix of a row that each expert has, with e in its place. */
void kg_arch_expert_name(char *to, size_t bytes, const struct kg_tensor_row *row,
                         int32_t e);

#endif
