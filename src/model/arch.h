/* The table of architectures: the features of each model_type of HuggingFace.
 *
 * An architecture is a row. Loading, saving, forward and backward test features, never
 * names, so an architecture made of existing parts needs just a row (docs/extending.md).
 */
#ifndef KG_MODEL_ARCH_H
#define KG_MODEL_ARCH_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Features of a model. A row has the features that all models of its type share; a
 * config.json may add biases (kg_model_config_features). */
enum kg_feature {
    KG_QKV_BIAS = 1 << 0,   /* bias of q, k, v */
    KG_O_BIAS = 1 << 1,     /* bias of the output projection */
    KG_MLP_BIAS = 1 << 2,   /* bias of gate, up and down */
    KG_HEAD_NORM = 1 << 3,  /* RMS norm of every query and key head */
    KG_SPLIT = 1 << 4,      /* q, k, v, gate, up are separate tensors */
    KG_PRE_NORM = 1 << 5,   /* x += f(norm(x)), for attention and feed-forward */
    KG_POST_NORM = 1 << 6,  /* x += norm(f(x)) */
    KG_BOTH_NORMS = 1 << 7, /* x += norm(f(norm(x))) */
    KG_WIDE_NORM = 1 << 8,  /* RMS norm over all queries, and over all keys */
    KG_FUSED = 1 << 9,      /* in files q, k, v are one tensor, and gate and up another */
    KG_UNIT_NORM = 1 << 10, /* norms multiply by 1 + w */
    KG_ROOT_EMBED = 1 << 11, /* embeddings times sqrt(D) */
    /* per layer: one feed-forward, or experts (kg_model_config_layer) */
    KG_DENSE = 1 << 16,
    KG_EXPERTS = 1 << 17,       /* softmax over a router's logits, the top k */
    KG_MLP_EXPERTS = 1 << 18,   /* in tensors mlp.experts.N.. */
    KG_BLOCK_EXPERTS = 1 << 19, /* in block_sparse_moe.experts.N.. */
    KG_SHARED_EXPERT = 1 << 20, /* also a shared expert for every token, with a gate */
};

/* Features that a layer without experts lacks. */
enum {
    KG_EXPERT_FEATURES = KG_EXPERTS | KG_MLP_EXPERTS | KG_BLOCK_EXPERTS | KG_SHARED_EXPERT
};

/* Fields of config.json that only some classes have, and the meaning of absent ones. */
enum kg_reads {
    KG_READS_HEAD_DIM = 1 << 0,    /* head_dim; kedge writes it even if it is D/H */
    KG_READS_HEADS = 1 << 1,       /* num_key_value_heads absent: equal to heads */
    KG_READS_BIAS = 1 << 2,        /* attention_bias: of q, k, v and o */
    KG_READS_MLP_BIAS = 1 << 3,    /* mlp_bias: of gate, up and down */
    KG_READS_LAYER_TYPES = 1 << 4, /* kedge writes layer_types; all classes read it */
    KG_READS_NO_ROPE = 1 << 5,     /* no_rope_layers, no_rope_layer_interval */
    KG_READS_LONGROPE =
        /* only rope_scaling "longrope"; original_max_position_embeddings is a field of
         * its own */
    1 << 6,
    KG_READS_MULTIPLIERS = 1 << 7, /* embedding_, residual_, attention_multiplier,
                                    * logits_scaling */
    KG_READS_SOFTCAPS = 1 << 8,    /* attn_ and final_logit_softcapping,
                                    * query_pre_attn_scalar, hidden_activation,
                                    * use_bidirectional_attention */
    KG_READS_LOCAL_ROPE = 1 << 9,  /* rope_local_base_freq for layers with a window */
    KG_READS_PART_ROPE = 1 << 10,  /* partial_rotary_factor */
    KG_READS_QKV_BIAS = 1 << 11,   /* qkv_bias: of q, k, v; absent means true */
    /* for experts: */
    KG_READS_LOCAL_EXPERTS = 1 << 16, /* num_local_experts, instead of num_experts */
    KG_READS_EXPERT_FFN =
        /* moe_intermediate_size is the width of experts; layers without experts are
         * listed (mlp_only_layers) */
    1 << 17,
    KG_READS_NORMALISE = 1 << 18, /* norm_topk_prob; true in other classes */
};

/* Activation of the gate. */
enum kg_act { KG_ACT_SILU, KG_ACT_GELU_TANH, KG_ACTS };

/* The layers with a sliding window. */
enum kg_windows {
    KG_WINDOWS_NONE, /* not supported by the class */
    /* with use_sliding_window: by layer_types, else layers from max_window_layers on */
    KG_WINDOWS_SWITCHED,
    /* with use_sliding_window: by layer_types, else layers without rope */
    KG_WINDOWS_NO_ROPE,
    KG_WINDOWS_SWITCHED_ALL, /* with use_sliding_window: all */
    /* with use_sliding_window: by layer_types, else every second one (0, 2, ..) before
     * max_window_layers */
    KG_WINDOWS_SWITCHED_TURNS,
    KG_WINDOWS_ALL,       /* all, if sliding_window is a number */
    KG_WINDOWS_ALTERNATE, /* by layer_types, else all but every default_pattern-th */
};

struct kg_arch {
    const char *model_type; /* "qwen2" */
    const char *class_name; /* "Qwen2ForCausalLM" */
    const char *help;
    uint32_t features; /* of enum kg_feature */
    uint32_t reads;    /* of enum kg_reads */
    enum kg_windows windows;
    enum kg_act act;
    int32_t default_window;       /* sliding_window if absent; 0: none */
    int32_t default_pattern;      /* KG_WINDOWS_ALTERNATE */
    int32_t default_head_dim;     /* head_dim if absent; 0: hidden / heads */
    int32_t default_positions;    /* max_position_embeddings if absent */
    int32_t default_original;     /* original_max_position_embeddings if absent */
    double default_theta;         /* rope_theta if absent; 0: 10000 */
    double default_eps;           /* rms_norm_eps if absent; 0: 1e-6 */
    double default_score_softcap; /* softcap if absent; 0: none */
    double default_logit_softcap;
    bool default_tied; /* tie_word_embeddings if absent */
    /* the class has a field attn_logit_softcapping but its forward ignores it */
    bool no_score_softcap;
};

/* errors: EUNSUPPORTED, lists the valid names */
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
    KG_DIM_EXPERTS, /* number of experts */
    KG_DIM_EXPERT_FFN,
    KG_DIM_SHARED_FFN,
    KG_DIM_SINGLE, /* a matrix of one row */
};

/* A tensor of a checkpoint: its name, its dimensions, the features that it needs, and the
 * pointer to it in struct kg_layer_params. */
struct kg_tensor_row {
    /* name after "model.layers.N."; consecutive rows with the same suffix are row ranges
     * of one tensor in the file; %d means a tensor per expert. Consecutive rows with %d
     * are listed expert by expert, and `slot` is expert 0's */
    const char *suffix;
    enum kg_dim rows;
    enum kg_dim cols;
    uint32_t with; /* all of these features; 0: always */
    size_t slot;   /* offset in struct kg_layer_params */
};
/* maximum per layer, without experts */
enum { KG_MAX_LAYER_TENSORS = 32 };

/* The rows, in HF's order; *n: their number. */
const struct kg_tensor_row *kg_arch_tensors(size_t *n);

/* Whether each expert has its own tensor of this row. */
bool kg_arch_each_expert(const struct kg_tensor_row *row);
/* The suffix of a per-expert row for expert e. */
void kg_arch_expert_name(char *to, size_t bytes, const struct kg_tensor_row *row,
                         int32_t e);

#endif
