/* Converts between element types and layouts; the only arithmetic is one rounding.
 *
 * A unit of work is a row, or a panel of sixteen rows if one side is in panels. Packing
 * writes rows directly into a panel. Unpacking first transposes a block of a panel into
 * rows in registers. So both read and write memory once.
 */
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/product_internal.h"

static void cast_row(struct kg_mat dst, int64_t to, struct kg_mat src, int64_t from)
{
    for (int64_t d = 0; d < dst.cols; d += KG_LANES) {
        int lanes = kg_cpu_lanes(dst.cols - d);
        kg_cpu_store(dst, to, d, kg_cpu_load(src, from, d, lanes), lanes);
    }
}

/* The rows of one panel of src that dst has. */
static void cast_panel(struct kg_mat dst, struct kg_mat src, int64_t panel)
{
    int64_t n = dst.rows - panel * KG_PANEL < KG_PANEL ? dst.rows - panel * KG_PANEL
                                                       : KG_PANEL;
    int64_t cols = KG_PANEL * kg_cpu_step_factors(src.dtype);
    for (int64_t c = 0; c < dst.cols; c += cols) {
        struct kg_pairs w[KG_PANEL];
        struct kg_mat part = dst;
        kg_cpu_unpack_block(w, src, panel, c / kg_cpu_step_factors(src.dtype));
        struct kg_mat rows = kg_mat(w, src.dtype, KG_PANEL, cols);
        part.data = (char *)dst.data + c * (int64_t)kg_dtype_traits(dst.dtype)->bytes;
        part.cols = dst.cols - c < cols ? dst.cols - c : cols;
        for (int64_t r = 0; r < n; r++)
            cast_row(part, panel * KG_PANEL + r, rows, r);
    }
}

static void cast_unit(struct kg_mat dst, struct kg_mat src, int64_t i)
{
    int64_t steps = dst.stride / kg_cpu_step_factors(dst.dtype);
    if (dst.layout != KG_ROWS)
        kg_cpu_pack_rows((char *)dst.data + i * steps * KG_STEP_BYTES, dst.dtype, src,
                         i * KG_PANEL, 0, steps);
    else if (src.layout != KG_ROWS)
        cast_panel(dst, src, i);
    else
        cast_row(dst, i, src, i);
}

kg_status kg_cpu_cast(struct kg_mat dst, struct kg_mat src, struct kg_err *err)
{
    (void)err;
    bool panels = dst.layout != KG_ROWS || src.layout != KG_ROWS;
    int64_t units = panels ? (dst.rows + KG_PANEL - 1) / KG_PANEL : dst.rows;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(dst.rows * dst.cols / 2))
    for (int64_t i = 0; i < units; i++)
        cast_unit(dst, src, i);
    return KG_OK;
}
