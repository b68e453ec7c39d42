/* The rows: architectures, and tensors of a layer.
 *
 * It holds data alone: how fields of config.json are read is in config.c, what features
 * do in forward.c and backward.c.
 */
#include "model/arch.h"

#include "base/str.h"
#include "model/model.h"

/* ---- architectures ---- */
static const struct kg_arch ARCHS[] = {
    {.model_type = "qwen2",
     .class_name = "Qwen2ForCausalLM",
     .help = "Qwen2, Qwen2.5: biases on q, k, v",
     .features = KG_QKV_BIAS | KG_SPLIT | KG_PRE_NORM,
     .windows = KG_WINDOWS_SWITCHED,
     .default_positions = 32768},
    {.model_type = "qwen3",
     .class_name = "Qwen3ForCausalLM",
     .help = "Qwen3: norms of queries and keys, head_dim",
     .features = KG_HEAD_NORM | KG_SPLIT | KG_PRE_NORM,
     .reads = KG_READS_HEAD_DIM,
     .windows = KG_WINDOWS_SWITCHED,
     .default_head_dim = 128,
     .default_positions = 32768},
    {.model_type = "llama",
     .class_name = "LlamaForCausalLM",
     .help = "Llama 2 and 3: rope_scaling llama3",
     .features = KG_SPLIT | KG_PRE_NORM,
     .reads = KG_READS_HEADS,
     .default_positions = 2048},
    {.model_type = "mistral",
     .class_name = "MistralForCausalLM",
     .help = "Mistral without a sliding window (7B from v0.2 on)",
     .features = KG_SPLIT | KG_PRE_NORM,
     .windows = KG_WINDOWS_ALL,
     .default_window = 4096,
     .default_positions = 131072},
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
    {"self_attn.o_proj.weight", KG_DIM_HIDDEN, KG_DIM_QUERY, 0, SLOT(wo)},
    {"self_attn.q_norm.weight", KG_DIM_ONE, KG_DIM_HEAD, KG_HEAD_NORM, SLOT(qnorm)},
    {"self_attn.k_norm.weight", KG_DIM_ONE, KG_DIM_HEAD, KG_HEAD_NORM, SLOT(knorm)},
    {"mlp.gate_proj.weight", KG_DIM_FFN, KG_DIM_HIDDEN, KG_SPLIT, SLOT(wgate)},
    {"mlp.up_proj.weight", KG_DIM_FFN, KG_DIM_HIDDEN, KG_SPLIT, SLOT(wup)},
    {"mlp.down_proj.weight", KG_DIM_HIDDEN, KG_DIM_FFN, 0, SLOT(wdown)},
    {"input_layernorm.weight", KG_DIM_ONE, KG_DIM_HIDDEN, KG_PRE_NORM, SLOT(norm1)},
    {"post_attention_layernorm.weight", KG_DIM_ONE, KG_DIM_HIDDEN, KG_PRE_NORM,
     SLOT(norm2)},
};
_Static_assert(sizeof TENSORS / sizeof *TENSORS <= KG_MAX_LAYER_TENSORS,
               "room for the names of a layer's tensors");

const struct kg_tensor_row *kg_arch_tensors(size_t *n)
{
    *n = sizeof TENSORS / sizeof *TENSORS;
    return TENSORS;
}
