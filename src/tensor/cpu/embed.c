/* Token embedding and its gradient.
 *
 * The gradient adds rows to a table, and a token may occur many times. Each thread has
 * some columns, not some tokens, and adds all tokens in order. So there are no atomics,
 * and the order of sums does not depend on the threads.
 */
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/product_internal.h"

enum { STRIP = 64 }; /* columns that a thread takes at a time */

/* Sixteen dwords of a row from its panel, from step s on. */
static struct kg_pairs block_of_panel(struct kg_mat table, int64_t row, int64_t s)
{
    const int64_t steps = table.stride / kg_cpu_step_factors(table.dtype);
    const char *p = (const char *)table.data +
                    (row / KG_PANEL * steps + s) * KG_STEP_BYTES + row % KG_PANEL * 4;
    uint32_t dwords[KG_PANEL] = {0};
    char block[KG_BLOCK_STEPS * KG_STEP_BYTES];
    if (table.quant) {
        kg_cpu_widen(block, table, row / KG_PANEL, s, KG_BLOCK_STEPS);
        p = block + row % KG_PANEL * 4;
    }
    for (int64_t i = 0; i < KG_PANEL && s + i < steps; i++)
        memcpy(&dwords[i], p + i * KG_STEP_BYTES, sizeof *dwords);
    return table.dtype == KG_BF16 ? kg_cpu_join(kg_pairs_load(dwords))
                                  : kg_pairs_load(dwords);
}

static void row_of_panel(float *x, struct kg_mat table, int64_t row)
{
    const int64_t factors = kg_cpu_step_factors(table.dtype), wide = KG_PANEL * factors;
    for (int64_t d = 0; d < table.cols; d += wide) {
        struct kg_pairs w = block_of_panel(table, row, d / factors);
        const struct kg_mat block = kg_mat(&w, table.dtype, 1, wide);
        for (int64_t i = 0; i < wide && d + i < table.cols; i += KG_LANES) {
            const int lanes = kg_cpu_lanes(table.cols - d - i);
            kg_v16_store_n(x + d + i, kg_cpu_load(block, 0, i, lanes), lanes);
        }
    }
}

static void copy_row(struct kg_mat x, int64_t n, struct kg_mat table, int64_t row)
{
    for (int64_t d = 0; d < x.cols; d += KG_LANES) {
        int lanes = kg_cpu_lanes(x.cols - d);
        kg_cpu_store(x, n, d, kg_cpu_load(table, row, d, lanes), lanes);
    }
}

kg_status kg_cpu_embed(struct kg_mat x, struct kg_mat table, struct kg_ivec tokens,
                       struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(x.rows * x.cols))
    for (int64_t n = 0; n < x.rows; n++) {
        if (table.layout != KG_ROWS)
            row_of_panel(kg_cpu_f32(x, n), table, tokens.data[n]);
        else
            copy_row(x, n, table, tokens.data[n]);
    }
    return KG_OK;
}

static void add_strip(struct kg_mat dtable, struct kg_mat dx, const int32_t *tokens,
                      int64_t d0)
{
    int64_t end = d0 + STRIP < dx.cols ? d0 + STRIP : dx.cols;
    for (int64_t n = 0; n < dx.rows; n++)
        for (int64_t d = d0; d < end; d += KG_LANES) {
            int lanes = kg_cpu_lanes(end - d);
            struct kg_v16 sum = kg_v16_add(kg_cpu_load(dtable, tokens[n], d, lanes),
                                           kg_cpu_load(dx, n, d, lanes));
            kg_cpu_store(dtable, tokens[n], d, sum, lanes);
        }
}

kg_status kg_cpu_embed_bwd(struct kg_mat dtable, struct kg_mat dx, struct kg_ivec tokens,
                           struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(dynamic) if (kg_cpu_use_threads(dx.rows * dx.cols))
    for (int64_t d0 = 0; d0 < dx.cols; d0 += STRIP)
        add_strip(dtable, dx, tokens.data, d0);
    return KG_OK;
}
