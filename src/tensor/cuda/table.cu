/* The CUDA backend as a table. */
#include "tensor/cuda/blas.h"
#include "tensor/cuda/cuda_internal.h"
#include <stdio.h>

/* What determines the bits of products, besides the device. */
static void products(char *text, size_t bytes)
{
    if (kg_cuda_used() == KG_CUDA_CUBLAS)
        kg_cuda_blas_identity(text, bytes);
    else
        snprintf(text, bytes, "own, bf16 by %s",
                 kg_cuda_used() == KG_CUDA_OWN ? "the matrix instruction" : "fused sums");
}

static void describe(char *text, size_t bytes)
{
    char by[120], own[160] = "", attention[240];

    products(by, sizeof by);
    if (kg_cuda_used() == KG_CUDA_OWN)
        kg_cuda_own_describe(own, sizeof own);
    kg_cuda_attention_describe(attention, sizeof attention);
    snprintf(text, bytes, "%s, products: %s%s%s%s%s", KG_DEV_NAME, by, own,
             kg_cuda_used() == KG_CUDA_CUBLAS ? " of " : "", kg_blas_path(), attention);
}

static bool exact(enum kg_dtype t)
{
    return t == KG_F32 || kg_cuda_used() == KG_CUDA_EXACT;
}

static int traits(struct kg_trait list[KG_TRAITS])
{
    const int n = kg_dev_traits(list);

    list[n].name = "products";
    products(list[n].value, sizeof list[n].value);
    return n + 1;
}

extern "C" const struct kg_backend kg_cuda_table = {
    .name = KG_DEV_NAME,
    .describe = describe,
    .traits = traits,
    .exact = exact,
    .one_caller = true,
    .keeps_heads = true,
    .traffic = &kg_dev_traffic,
    .alloc = kg_cuda_alloc,
    .free = kg_cuda_free,
    .memory = kg_cuda_memory,
    .put = kg_cuda_put,
    .get = kg_cuda_get,
    .pin = kg_cuda_pin,
    .unpin = kg_cuda_unpin,
    .fetch = kg_cuda_fetch,
    .put_later = kg_cuda_put_later,
    .get_later = kg_cuda_get_later,
    .mark = kg_cuda_mark,
    .wait = kg_cuda_wait,
    .lend = kg_cuda_lend,
    .reached = kg_cuda_reached,
    .copy = kg_cuda_copy,
    .zero = kg_cuda_zero,
    .swap = kg_cuda_swap,
    .reserve = kg_cuda_reserve,
    .matmul = kg_cuda_matmul,
    .matmul_onto = kg_cuda_matmul_onto,
    .embed = kg_cuda_embed,
    .embed_bwd = kg_cuda_embed_bwd,
    .rmsnorm = kg_cuda_rmsnorm,
    .rmsnorm_bwd = kg_cuda_rmsnorm_bwd,
    .layernorm = kg_cuda_layernorm,
    .gelu = kg_cuda_gelu,
    .scan = kg_cuda_scan,
    .bias = kg_cuda_bias,
    .bias_bwd = kg_cuda_bias_bwd,
    .rope = kg_cuda_rope,
    .heads = kg_cuda_heads,
    .swiglu = kg_cuda_swiglu,
    .swiglu_bwd = kg_cuda_swiglu_bwd,
    .geglu = kg_cuda_geglu,
    .geglu_bwd = kg_cuda_geglu_bwd,
    .cast = kg_cuda_cast,
    .scatter_rows = kg_cuda_scatter_rows,
    .gather_rows = kg_cuda_gather_rows,
    .sum_rows = kg_cuda_sum_rows,
    .route = kg_cuda_route,
    .route_bwd = kg_cuda_route_bwd,
    .matmul_groups = kg_cuda_matmul_groups,
    .combine = kg_cuda_combine,
    .combine_bwd = kg_cuda_combine_bwd,
    .sigmoid = kg_cuda_sigmoid,
    .sigmoid_bwd = kg_cuda_sigmoid_bwd,
    .attention = kg_cuda_attention,
    .attention_bwd = kg_cuda_attention_bwd,
    .head = kg_cuda_head,
    .head_bwd = kg_cuda_head_bwd,
    .draw = kg_cuda_draw,
    .feed = kg_cuda_feed,
    .replay = kg_cuda_replay,
    .adamw = kg_cuda_adamw,
    .schedule_free = kg_cuda_schedule_free,
    .schedule_free_average = kg_cuda_schedule_free_average,
    .ema = kg_cuda_ema,
    .add = kg_cuda_add,
    .scale = kg_cuda_scale,
    .sum_squares = kg_cuda_sum_squares,
    .peak = kg_cuda_peak,
};
