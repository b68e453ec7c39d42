/* The CUDA backend as a table. */
#include "tensor/cuda/cuda_internal.h"
#include <stdio.h>

static void describe(char *text, size_t bytes)
{
    snprintf(text, bytes, "%s, own products, bf16 by %s", KG_DEV_NAME,
             kg_cuda_used() == KG_CUDA_OWN ? "the matrix instruction" : "fused sums");
}

extern "C" const struct kg_backend kg_cuda_table = {
    .name = KG_DEV_NAME,
    .describe = describe,
    .traits = kg_dev_traits,
    .one_caller = true,
    .alloc = kg_cuda_alloc,
    .free = kg_cuda_free,
    .put = kg_cuda_put,
    .get = kg_cuda_get,
    .copy = kg_cuda_copy,
    .zero = kg_cuda_zero,
    .swap = kg_cuda_swap,
    .matmul = kg_cuda_matmul,
    .embed = kg_cuda_embed,
    .embed_bwd = kg_cuda_embed_bwd,
    .rmsnorm = kg_cuda_rmsnorm,
    .rmsnorm_bwd = kg_cuda_rmsnorm_bwd,
    .bias = kg_cuda_bias,
    .bias_bwd = kg_cuda_bias_bwd,
    .rope = kg_cuda_rope,
    .swiglu = kg_cuda_swiglu,
    .swiglu_bwd = kg_cuda_swiglu_bwd,
    .cast = kg_cuda_cast,
    .scatter_rows = kg_cuda_scatter_rows,
    .gather_rows = kg_cuda_gather_rows,
    .attention = kg_cuda_attention,
    .attention_bwd = kg_cuda_attention_bwd,
    .head = kg_cuda_head,
    .head_bwd = kg_cuda_head_bwd,
    .adamw = kg_cuda_adamw,
    .schedule_free = kg_cuda_schedule_free,
    .schedule_free_average = kg_cuda_schedule_free_average,
    .ema = kg_cuda_ema,
    .add = kg_cuda_add,
    .sum_squares = kg_cuda_sum_squares,
};
