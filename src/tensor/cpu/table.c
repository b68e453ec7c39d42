/* The CPU backend as a table.
 *
 * This folder is compiled once for each instruction set, after which KG_CPU_TABLE names
 * the table; backend.c chooses one at run time. All of them return the same bits
 * (docs/exactness.md), so the choice is one of speed alone.
 */
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/product_internal.h"

#include <stdio.h>

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

static void describe(char *text, size_t bytes)
{
    const char *by = KG_SIMD_AMX        ? "tile registers"
                     : KG_SIMD_BF16_DOT ? "an instruction for pairs"
                                        : "fused sums";
    snprintf(text, bytes, "%s, tiles of %d x %d sums, %d x %d of bf16 by %s",
             TEXT(KG_CPU_TABLE), (int)KG_TILE_ROWS, KG_TILE_PANELS * KG_PANEL,
             kg_cpu_tile_rows(KG_BF16),
             kg_cpu_tile_panels(KG_BF16, KG_AMX_SQUARE) * KG_PANEL, by);
}

extern const struct kg_backend KG_CPU_TABLE;

const struct kg_backend KG_CPU_TABLE = {
    .name = "cpu",
    .describe = describe,
    .host_memory = true,
    .weights = KG_SIMD_AMX ? KG_PANELS : KG_SPLIT_PANELS,
    .coded = true,
    .alloc = kg_cpu_alloc,
    .free = kg_cpu_free,
    .put = kg_cpu_copy,
    .get = kg_cpu_copy,
    .copy = kg_cpu_copy,
    .zero = kg_cpu_zero,
    .swap = kg_cpu_swap,
    .matmul = kg_cpu_matmul,
    .matmul_two = kg_cpu_matmul_two,
    .matmul_shared = kg_cpu_matmul_shared,
    .embed = kg_cpu_embed,
    .embed_bwd = kg_cpu_embed_bwd,
    .rmsnorm = kg_cpu_rmsnorm,
    .rmsnorm_bwd = kg_cpu_rmsnorm_bwd,
    .layernorm = kg_cpu_layernorm,
    .gelu = kg_cpu_gelu,
    .scan = kg_cpu_scan,
    .bias = kg_cpu_bias,
    .bias_bwd = kg_cpu_bias_bwd,
    .rope = kg_cpu_rope,
    .swiglu = kg_cpu_swiglu,
    .swiglu_bwd = kg_cpu_swiglu_bwd,
    .geglu = kg_cpu_geglu,
    .geglu_bwd = kg_cpu_geglu_bwd,
    .cast = kg_cpu_cast,
    .scatter_rows = kg_cpu_scatter_rows,
    .gather_rows = kg_cpu_gather_rows,
    .sum_rows = kg_cpu_sum_rows,
    .route = kg_cpu_route,
    .route_bwd = kg_cpu_route_bwd,
    .matmul_groups = kg_cpu_matmul_groups,
    .combine = kg_cpu_combine,
    .combine_bwd = kg_cpu_combine_bwd,
    .sigmoid = kg_cpu_sigmoid,
    .sigmoid_bwd = kg_cpu_sigmoid_bwd,
    .attention = kg_cpu_attention,
    .attention_bwd = kg_cpu_attention_bwd,
    .head = kg_cpu_head,
    .head_bwd = kg_cpu_head_bwd,
    .adamw = kg_cpu_adamw,
    .schedule_free = kg_cpu_schedule_free,
    .schedule_free_average = kg_cpu_schedule_free_average,
    .ema = kg_cpu_ema,
    .add = kg_cpu_add,
    .scale = kg_cpu_scale,
    .sum_squares = kg_cpu_sum_squares,
    .peak = kg_cpu_peak,
};
