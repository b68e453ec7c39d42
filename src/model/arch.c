/* The tables of architectures and of a layer's tensors. They are data only: config.c
 * reads config.json, and forward.c and backward.c implement the features. */
#include "model/arch.h"

#include "base/str.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>

/* ---- architectures ---- */
static const struct kg_arch ARCHS[] = {
    {.model_type = "qwen2",
     .class_name = "Qwen2ForCausalLM",
     .help = "Qwen2, Qwen2.5: biases on q, k, v; windows in some layers",
     .features = KG_QKV_BIAS | KG_SPLIT | KG_PRE_NORM,
     .reads = KG_READS_LAYER_TYPES,
     .windows = KG_WINDOWS_SWITCHED,
     .default_window = 4096,
     .default_positions = 32768},
    {.model_type = "qwen3",
     .class_name = "Qwen3ForCausalLM",
     .help = "Qwen3: norms of queries and keys, head_dim",
     .features = KG_HEAD_NORM | KG_SPLIT | KG_PRE_NORM,
     .reads = KG_READS_HEAD_DIM | KG_READS_BIAS | KG_READS_LAYER_TYPES,
     .windows = KG_WINDOWS_SWITCHED,
     .default_window = 4096,
     .default_head_dim = 128,
     .default_positions = 32768},
    {.model_type = "llama",
     .class_name = "LlamaForCausalLM",
     .help = "Llama 2 and 3, SmolLM2: optional biases",
     .features = KG_SPLIT | KG_PRE_NORM,
     .reads = KG_READS_HEADS | KG_READS_BIAS | KG_READS_MLP_BIAS,
     .default_positions = 2048},
    {.model_type = "mistral",
     .class_name = "MistralForCausalLM",
     .help = "Mistral, with or without a sliding window",
     .features = KG_SPLIT | KG_PRE_NORM,
     .windows = KG_WINDOWS_ALL,
     .default_window = 4096,
     .default_positions = 131072},
    {.model_type = "qwen3_moe",
     .class_name = "Qwen3MoeForCausalLM",
     .help = "Qwen3 with experts: dense layers in between, if mlp_only_layers names them",
     .features = KG_HEAD_NORM | KG_SPLIT | KG_PRE_NORM | KG_EXPERTS | KG_MLP_EXPERTS,
     .reads = KG_READS_HEAD_DIM | KG_READS_BIAS | KG_READS_EXPERT_FFN |
              KG_READS_NORMALISE,
     .windows = KG_WINDOWS_SWITCHED_ALL,
     .default_window = 4096,
     .default_positions = 32768},
    {.model_type = "qwen2_moe",
     .class_name = "Qwen2MoeForCausalLM",
     .help = "Qwen1.5, Qwen2 with experts: also a shared expert with a gate",
     .features = KG_SPLIT | KG_PRE_NORM | KG_EXPERTS | KG_MLP_EXPERTS | KG_SHARED_EXPERT,
     .reads = KG_READS_QKV_BIAS | KG_READS_EXPERT_FFN | KG_READS_NORMALISE |
              KG_READS_LAYER_TYPES,
     .windows = KG_WINDOWS_SWITCHED_TURNS,
     .default_window = 4096,
     .default_positions = 32768},
    {.model_type = "mixtral",
     .class_name = "MixtralForCausalLM",
     .help = "Mixtral: experts in every layer",
     .features = KG_SPLIT | KG_PRE_NORM | KG_EXPERTS | KG_BLOCK_EXPERTS,
     .reads = KG_READS_LOCAL_EXPERTS,
     .windows = KG_WINDOWS_ALL,
     .default_positions = 131072,
     .default_eps = 1e-5,
     .default_theta = 1e6},
    {.model_type = "olmoe",
     .class_name = "OlmoeForCausalLM",
     .help = "OLMoE: experts in every layer, norms of whole projections",
     .features = KG_WIDE_NORM | KG_SPLIT | KG_PRE_NORM | KG_EXPERTS | KG_MLP_EXPERTS,
     .reads = KG_READS_HEADS | KG_READS_BIAS | KG_READS_NORMALISE,
     .default_positions = 4096,
     .default_eps = 1e-5},
    {.model_type = "smollm3",
     .class_name = "SmolLM3ForCausalLM",
     .help = "SmolLM3: layers without rope",
     .features = KG_SPLIT | KG_PRE_NORM,
     .reads = KG_READS_HEADS | KG_READS_BIAS | KG_READS_MLP_BIAS | KG_READS_LAYER_TYPES |
              KG_READS_NO_ROPE,
     .windows = KG_WINDOWS_NO_ROPE,
     .default_positions = 32768,
     .default_theta = 2e6,
     .default_tied = true},
    {.model_type = "olmo2",
     .class_name = "Olmo2ForCausalLM",
     .help = "OLMo 2: norms after each block, norms of whole projections",
     .features = KG_WIDE_NORM | KG_SPLIT | KG_POST_NORM,
     .reads = KG_READS_HEADS | KG_READS_BIAS,
     .default_positions = 2048,
     .default_eps = 1e-5},
    {.model_type = "granite",
     .class_name = "GraniteForCausalLM",
     .help = "Granite 3: multipliers",
     .features = KG_SPLIT | KG_PRE_NORM,
     .reads = KG_READS_HEADS | KG_READS_BIAS | KG_READS_MLP_BIAS | KG_READS_MULTIPLIERS,
     .default_positions = 2048},
    {.model_type = "phi3",
     .class_name = "Phi3ForCausalLM",
     .help = "Phi-3, Phi-3.5, Phi-4, Phi-4-mini: fused projections, longrope",
     .features = KG_FUSED | KG_PRE_NORM,
     .reads = KG_READS_HEADS | KG_READS_LONGROPE | KG_READS_PART_ROPE,
     .windows = KG_WINDOWS_ALL,
     .default_positions = 4096,
     .default_original = 4096,
     .default_eps = 1e-5},
    {.model_type = "gemma2",
     .class_name = "Gemma2ForCausalLM",
     .help = "Gemma 2: norms on both sides, softcaps, windows in every other layer",
     .features = KG_SPLIT | KG_BOTH_NORMS | KG_UNIT_NORM | KG_ROOT_EMBED,
     .reads = KG_READS_HEAD_DIM | KG_READS_BIAS | KG_READS_LAYER_TYPES |
              KG_READS_SOFTCAPS,
     .windows = KG_WINDOWS_ALTERNATE,
     .act = KG_ACT_GELU_TANH,
     .default_window = 4096,
     .default_pattern = 2,
     .default_head_dim = 256,
     .default_positions = 8192,
     .default_score_softcap = 50,
     .default_logit_softcap = 30,
     .default_tied = true},
    {.model_type = "gemma3_text",
     .class_name = "Gemma3ForCausalLM",
     .help = "Gemma 3, text: norms of queries and keys, two rope bases",
     .features = KG_HEAD_NORM | KG_SPLIT | KG_BOTH_NORMS | KG_UNIT_NORM | KG_ROOT_EMBED,
     .reads = KG_READS_HEAD_DIM | KG_READS_BIAS | KG_READS_LAYER_TYPES |
              KG_READS_SOFTCAPS | KG_READS_LOCAL_ROPE,
     .windows = KG_WINDOWS_ALTERNATE,
     .act = KG_ACT_GELU_TANH,
     .default_window = 4096,
     .default_pattern = 6,
     .default_head_dim = 256,
     .default_positions = 131072,
     .default_theta = 1e6,
     .default_tied = true,
     .no_score_softcap = true},
    {.model_type = NULL},
};

kg_status kg_arch_find(const struct kg_arch **arch, const char *model_type,
                       struct kg_err *err)
{
    size_t i;

    KG_TRY(kg_str_pick(&i, KG_EUNSUPPORTED, "architecture", model_type, ARCHS,
                       sizeof ARCHS / sizeof *ARCHS - 1, sizeof *ARCHS, err));
    *arch = &ARCHS[i];
    return KG_OK;
}

/* ---- tensors of a layer ---- */
#define SLOT(field) offsetof(struct kg_layer_params, field)
static const struct kg_tensor_row TENSORS[] = {
    {"self_attn.q_proj.weight", KG_DIM_QUERY, KG_DIM_HIDDEN, KG_SPLIT, SLOT(wq)},
    {"self_attn.q_proj.bias", KG_DIM_ONE, KG_DIM_QUERY, KG_QKV_BIAS, SLOT(bq)},
    {"self_attn.k_proj.weight", KG_DIM_KEY, KG_DIM_HIDDEN, KG_SPLIT, SLOT(wk)},
    {"self_attn.k_proj.bias", KG_DIM_ONE, KG_DIM_KEY, KG_QKV_BIAS, SLOT(bk)},
    {"self_attn.v_proj.weight", KG_DIM_KEY, KG_DIM_HIDDEN, KG_SPLIT, SLOT(wv)},
    {"self_attn.v_proj.bias", KG_DIM_ONE, KG_DIM_KEY, KG_QKV_BIAS, SLOT(bv)},
    {"self_attn.qkv_proj.weight", KG_DIM_QUERY, KG_DIM_HIDDEN, KG_FUSED, SLOT(wq)},
    {"self_attn.qkv_proj.weight", KG_DIM_KEY, KG_DIM_HIDDEN, KG_FUSED, SLOT(wk)},
    {"self_attn.qkv_proj.weight", KG_DIM_KEY, KG_DIM_HIDDEN, KG_FUSED, SLOT(wv)},
    {"self_attn.o_proj.weight", KG_DIM_HIDDEN, KG_DIM_QUERY, 0, SLOT(wo)},
    {"self_attn.o_proj.bias", KG_DIM_ONE, KG_DIM_HIDDEN, KG_O_BIAS, SLOT(bo)},
    {"self_attn.q_norm.weight", KG_DIM_ONE, KG_DIM_HEAD, KG_HEAD_NORM, SLOT(qnorm)},
    {"self_attn.k_norm.weight", KG_DIM_ONE, KG_DIM_HEAD, KG_HEAD_NORM, SLOT(knorm)},
    {"self_attn.q_norm.weight", KG_DIM_ONE, KG_DIM_QUERY, KG_WIDE_NORM, SLOT(qnorm)},
    {"self_attn.k_norm.weight", KG_DIM_ONE, KG_DIM_KEY, KG_WIDE_NORM, SLOT(knorm)},
    {"mlp.gate_proj.weight", KG_DIM_FFN, KG_DIM_HIDDEN, KG_SPLIT | KG_DENSE, SLOT(wgate)},
    {"mlp.gate_proj.bias", KG_DIM_ONE, KG_DIM_FFN, KG_MLP_BIAS | KG_DENSE, SLOT(bgate)},
    {"mlp.up_proj.weight", KG_DIM_FFN, KG_DIM_HIDDEN, KG_SPLIT | KG_DENSE, SLOT(wup)},
    {"mlp.up_proj.bias", KG_DIM_ONE, KG_DIM_FFN, KG_MLP_BIAS | KG_DENSE, SLOT(bup)},
    {"mlp.gate_up_proj.weight", KG_DIM_FFN, KG_DIM_HIDDEN, KG_FUSED | KG_DENSE,
     SLOT(wgate)},
    {"mlp.gate_up_proj.weight", KG_DIM_FFN, KG_DIM_HIDDEN, KG_FUSED | KG_DENSE,
     SLOT(wup)},
    {"mlp.down_proj.weight", KG_DIM_HIDDEN, KG_DIM_FFN, KG_DENSE, SLOT(wdown)},
    {"mlp.down_proj.bias", KG_DIM_ONE, KG_DIM_HIDDEN, KG_MLP_BIAS | KG_DENSE,
     SLOT(bdown)},
    {"mlp.gate.weight", KG_DIM_EXPERTS, KG_DIM_HIDDEN, KG_MLP_EXPERTS, SLOT(router)},
    {"mlp.experts.%d.gate_proj.weight", KG_DIM_EXPERT_FFN, KG_DIM_HIDDEN, KG_MLP_EXPERTS,
     SLOT(egate)},
    {"mlp.experts.%d.up_proj.weight", KG_DIM_EXPERT_FFN, KG_DIM_HIDDEN, KG_MLP_EXPERTS,
     SLOT(eup)},
    {"mlp.experts.%d.down_proj.weight", KG_DIM_HIDDEN, KG_DIM_EXPERT_FFN, KG_MLP_EXPERTS,
     SLOT(edown)},
    {"mlp.shared_expert.gate_proj.weight", KG_DIM_SHARED_FFN, KG_DIM_HIDDEN,
     KG_SHARED_EXPERT, SLOT(sgate)},
    {"mlp.shared_expert.up_proj.weight", KG_DIM_SHARED_FFN, KG_DIM_HIDDEN,
     KG_SHARED_EXPERT, SLOT(sup)},
    {"mlp.shared_expert.down_proj.weight", KG_DIM_HIDDEN, KG_DIM_SHARED_FFN,
     KG_SHARED_EXPERT, SLOT(sdown)},
    {"mlp.shared_expert_gate.weight", KG_DIM_SINGLE, KG_DIM_HIDDEN, KG_SHARED_EXPERT,
     SLOT(share)},
    {"block_sparse_moe.gate.weight", KG_DIM_EXPERTS, KG_DIM_HIDDEN, KG_BLOCK_EXPERTS,
     SLOT(router)},
    {"block_sparse_moe.experts.%d.w1.weight", KG_DIM_EXPERT_FFN, KG_DIM_HIDDEN,
     KG_BLOCK_EXPERTS, SLOT(egate)},
    {"block_sparse_moe.experts.%d.w3.weight", KG_DIM_EXPERT_FFN, KG_DIM_HIDDEN,
     KG_BLOCK_EXPERTS, SLOT(eup)},
    {"block_sparse_moe.experts.%d.w2.weight", KG_DIM_HIDDEN, KG_DIM_EXPERT_FFN,
     KG_BLOCK_EXPERTS, SLOT(edown)},
    {"input_layernorm.weight", KG_DIM_ONE, KG_DIM_HIDDEN, KG_PRE_NORM, SLOT(norm1)},
    {"post_attention_layernorm.weight", KG_DIM_ONE, KG_DIM_HIDDEN, KG_PRE_NORM,
     SLOT(norm2)},
    {"post_attention_layernorm.weight", KG_DIM_ONE, KG_DIM_HIDDEN, KG_POST_NORM,
     SLOT(post1)},
    {"post_feedforward_layernorm.weight", KG_DIM_ONE, KG_DIM_HIDDEN, KG_POST_NORM,
     SLOT(post2)},
    {"input_layernorm.weight", KG_DIM_ONE, KG_DIM_HIDDEN, KG_BOTH_NORMS, SLOT(norm1)},
    {"post_attention_layernorm.weight", KG_DIM_ONE, KG_DIM_HIDDEN, KG_BOTH_NORMS,
     SLOT(post1)},
    {"pre_feedforward_layernorm.weight", KG_DIM_ONE, KG_DIM_HIDDEN, KG_BOTH_NORMS,
     SLOT(norm2)},
    {"post_feedforward_layernorm.weight", KG_DIM_ONE, KG_DIM_HIDDEN, KG_BOTH_NORMS,
     SLOT(post2)},
};
const struct kg_tensor_row *kg_arch_tensors(size_t *n)
{
    *n = sizeof TENSORS / sizeof *TENSORS;
    return TENSORS;
}

bool kg_arch_each_expert(const struct kg_tensor_row *row)
{
    return strstr(row->suffix, "%d") != NULL;
}

void kg_arch_expert_name(char *to, size_t bytes, const struct kg_tensor_row *row,
                         int32_t e)
{
    const char *at = strstr(row->suffix, "%d");
    snprintf(to, bytes, "%.*s%d%s", (int)(at - row->suffix), row->suffix, (int)e, at + 2);
}
