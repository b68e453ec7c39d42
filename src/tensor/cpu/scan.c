/* Products of queries with vectors stored in few bits: see codes.h.
 *
 * A thread widens a few panels to fp32 in its cache, and multiplies all queries with them
 * there, by the tiles of other fp32 products. So an element has their bits, and memory is
 * read once for all queries, at 2 bytes or 1 per number.
 */
#include "tensor/codes.h"

#include "base/fpmode.h"
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/parallel_internal.h"
#include "tensor/cpu/product_internal.h"

enum { UNITS_A_TIME = 4 }; /* that a thread takes at once */

static void widen(float *to, const struct kg_codes *m, int64_t panel)
{
    const int64_t at = panel * m->cols * KG_PANEL, n = m->cols * KG_PANEL;

    if (m->code == KG_CODE_F16)
        for (int64_t i = 0; i < n; i += KG_LANES)
            kg_v16_store(to + i, kg_v16_load_half((const uint16_t *)m->data + at + i));
    else
        for (int64_t i = 0; i < n; i += KG_LANES)
            kg_v16_store(to + i, kg_v16_load_i8((const int8_t *)m->data + at + i));
}

/* All queries times `panels` fp32 panels, which begin at column `col` of c. */
static void multiply(struct kg_mat c, struct kg_mat a, const float *wide, int panels,
                     int64_t col)
{
    struct kg_cpu_strip t = {.left_row = a.stride * (int64_t)sizeof(float),
                             .right_panel = a.cols * KG_STEP_BYTES,
                             .out = kg_cpu_f32(c, 0) + col,
                             .out_row = c.stride};

    for (int64_t s = 0; s < a.cols; s += KG_PRODUCT_CHUNK) {
        t.steps = a.cols - s < KG_PRODUCT_CHUNK ? a.cols - s : KG_PRODUCT_CHUNK;
        t.first = s == 0;
        t.right = (const char *)wide + s * KG_STEP_BYTES;
        t.left = (const char *)(kg_cpu_f32(a, 0) + s);
        kg_cpu_sum_strip(&t, KG_F32, a.rows, panels);
    }
}

static __attribute__((noinline)) kg_status run_unit(struct kg_mat c, struct kg_mat a,
                                                    const struct kg_codes *m,
                                                    int64_t panel, int panels,
                                                    struct kg_err *err)
{
    const int64_t floats = m->cols * KG_PANEL;
    float *wide = kg_cpu_scratch(KG_CPU_SCRATCH_RIGHT,
                                 (size_t)(panels * floats) * sizeof *wide, err);

    if (!wide)
        return err->code;
    for (int p = 0; p < panels; p++)
        widen(wide + p * floats, m, panel + p);
    multiply(c, a, wide, panels, panel * KG_PANEL);
    return KG_OK;
}

kg_status kg_cpu_scan(struct kg_mat c, struct kg_mat a, const struct kg_codes *m,
                      struct kg_err *err)
{
    const int64_t panels = (m->rows + KG_PANEL - 1) / KG_PANEL;
    const int64_t strip = kg_cpu_tile_panels(KG_F32, a.rows);
    const int64_t units = (panels + strip - 1) / strip;
    const bool threads = kg_cpu_use_threads((a.rows + 1) * m->rows * m->cols / 32);
    kg_status status = KG_OK;

#pragma omp parallel for schedule(dynamic, UNITS_A_TIME) if (threads)
    for (int64_t i = 0; i < units; i++) {
        const int64_t left = panels - i * strip;
        struct kg_err mine;
        unsigned mode = kg_fp_enter();

        if (run_unit(c, a, m, i * strip, (int)(left < strip ? left : strip), &mine) !=
            KG_OK)
            kg_cpu_report(&status, err, &mine);
        kg_fp_leave(mode);
    }
    return status;
}
