/* Packs operands into the order in which the inner loops read them.
 *
 * Packing moves and widens elements; its only arithmetic is the rounding of a cast. All
 * formats share one step: 16 rows of 64 bytes, transposed as a 16 x 16 matrix of dwords,
 * are 16 steps of a panel (a dword is one fp32 or two bf16). The same step unpacks.
 */
#include "tensor/cpu/product_internal.h"

#include "tensor/cpu/cpu_internal.h"

/* ---- rows and panels ---- */
static int64_t block_cols(enum kg_dtype t) { return KG_PANEL * kg_cpu_step_factors(t); }

/* 64 bytes of row r of m from column c, converted to `t`; zeros after the end. */
static struct kg_pairs row_block(struct kg_mat m, enum kg_dtype t, int64_t r, int64_t c)
{
    char block[KG_STEP_BYTES] = {0};
    int64_t n = m.cols - c < block_cols(t) ? m.cols - c : block_cols(t);
    if (r < m.rows && m.dtype == t && n == block_cols(t))
        return kg_pairs_load(t == KG_BF16 ? (void *)(kg_cpu_bf16(m, r) + c)
                                          : (void *)(kg_cpu_f32(m, r) + c));
    struct kg_mat to = kg_mat(block, t, 1, block_cols(t));
    for (int64_t i = 0; r < m.rows && i < n; i += KG_LANES) {
        int lanes = kg_cpu_lanes(n - i);
        kg_cpu_store(to, 0, i, kg_cpu_load(m, r, c + i, lanes), lanes);
    }
    return kg_pairs_load(block);
}

void kg_cpu_pack_rows(char *panel, enum kg_dtype t, struct kg_mat m, int64_t r0,
                      int64_t s0, int64_t n)
{
    for (int64_t s = 0; s < n; s += KG_PANEL) {
        struct kg_pairs w[KG_PANEL];
        for (int i = 0; i < KG_PANEL; i++) {
            w[i] = row_block(m, t, r0 + i, (s0 + s) * kg_cpu_step_factors(t));
            w[i] = t == KG_BF16 ? kg_cpu_split(w[i]) : w[i];
        }
        kg_pairs_transpose(w);
        for (int i = 0; i < KG_PANEL && s + i < n; i++)
            kg_pairs_store(panel + (s + i) * KG_STEP_BYTES, w[i]);
    }
}

void kg_cpu_unpack_block(struct kg_pairs w[KG_PANEL], struct kg_mat m, int64_t panel,
                         int64_t s)
{
    static const char zeros[KG_STEP_BYTES];
    int64_t steps = m.stride / kg_cpu_step_factors(m.dtype);
    const char *p = (const char *)m.data + (panel * steps + s) * KG_STEP_BYTES;
    if (m.quant)
        kg_cpu_widen((char *)w, m, panel, s, KG_BLOCK_STEPS);
    for (int i = 0; i < KG_PANEL && !m.quant; i++)
        w[i] = kg_pairs_load(s + i < steps ? p + i * KG_STEP_BYTES : zeros);
    kg_pairs_transpose(w);
    for (int i = 0; i < KG_PANEL && m.dtype == KG_BF16; i++)
        w[i] = kg_cpu_join(w[i]);
}

/* ---- sums down the columns ---- */
/* The rows of a step. bf16: of the lower and the upper halves; fp32: one row, twice. */
struct step_rows {
    int64_t low;
    int64_t high;
};
static inline struct step_rows rows_of_step(enum kg_dtype t, int64_t s)
{
    if (t == KG_F32)
        return (struct step_rows){s, s};
    if (KG_SIMD_AMX)
        return (struct step_rows){2 * s, 2 * s + 1};
    int64_t in = s % KG_BLOCK_STEPS, half = KG_BLOCK_STEPS / 2;
    int64_t first = 2 * (s - in) + in % half * 4 + in / half;
    return (struct step_rows){first + 2, first};
}

/* Sixteen elements of a row from column c, zeros past the ends of m. */
static void edge_row(void *to, const struct kg_mat *m, int64_t r, int64_t c)
{
    int64_t bytes = (int64_t)kg_dtype_traits(m->dtype)->bytes;
    int64_t n = m->cols - c < KG_PANEL ? m->cols - c : KG_PANEL;
    if (r < m->rows && n > 0)
        memcpy(to, (const char *)m->data + (r * m->stride + c) * bytes,
               (size_t)(n * bytes));
}
static __attribute__((noinline)) struct kg_pairs edge_step(const struct kg_mat *m,
                                                           struct step_rows at, int64_t c)
{
    uint32_t single[KG_PANEL] = {0};
    uint16_t low[KG_PANEL] = {0}, high[KG_PANEL] = {0};
    if (m->dtype == KG_F32) {
        edge_row(single, m, at.low, c);
        return kg_pairs_load(single);
    }
    edge_row(low, m, at.low, c);
    edge_row(high, m, at.high, c);
    return kg_pairs_zip(low, high);
}

/* Step s of sixteen columns of m from c; m is in rows. */
static inline struct kg_pairs column_step(const struct kg_mat *m, int64_t s, int64_t c)
{
    const struct step_rows at = rows_of_step(m->dtype, s);
    if (at.low >= m->rows || at.high >= m->rows || c + KG_PANEL > m->cols)
        return edge_step(m, at, c);
    if (m->dtype == KG_F32)
        return kg_pairs_load(kg_cpu_f32(*m, s) + c);
    return kg_pairs_zip(kg_cpu_bf16(*m, at.low) + c, kg_cpu_bf16(*m, at.high) + c);
}

static void pack_cols_of_rows(char *to, int64_t panel_bytes, struct kg_mat m, int64_t c0,
                              int64_t panels, int64_t s0, int64_t n)
{
    for (int64_t s = 0; s < n; s++)
        for (int64_t p = 0; p < panels; p++)
            kg_pairs_store(to + p * panel_bytes + s * KG_STEP_BYTES,
                           column_step(&m, s0 + s, c0 + p * KG_PANEL));
}

/* A square of m from its panels: KG_PANEL times a step's factors in both directions. */
static struct kg_mat square_of_panels(struct kg_pairs *w, struct kg_mat m, int64_t r,
                                      int64_t c)
{
    int64_t wide = kg_cpu_step_factors(m.dtype);
    for (int64_t i = 0; i < wide; i++)
        if (r + i * KG_PANEL < m.rows)
            kg_cpu_unpack_block(w + i * KG_PANEL, m, r / KG_PANEL + i, c / wide);
        else
            memset(w + i * KG_PANEL, 0, KG_PANEL * sizeof *w);
    return kg_mat(w, m.dtype, wide * KG_PANEL, wide * KG_PANEL);
}

void kg_cpu_pack_cols(char *to, int64_t panel_bytes, struct kg_mat m, int64_t c0,
                      int64_t panels, int64_t s0, int64_t n)
{
    if (m.layout == KG_ROWS) {
        pack_cols_of_rows(to, panel_bytes, m, c0, panels, s0, n);
        return;
    }
    int64_t wide = kg_cpu_step_factors(m.dtype);
    for (int64_t s = 0; s < n; s += KG_PANEL)
        for (int64_t p = 0; p < panels; p += wide) {
            struct kg_pairs w[2 * KG_PANEL];
            struct kg_mat square = square_of_panels(w, m, (s0 + s) * wide,
                                                    c0 + p * KG_PANEL);
            pack_cols_of_rows(to + p * panel_bytes + s * KG_STEP_BYTES, panel_bytes,
                              square, 0, panels - p < wide ? panels - p : wide, 0,
                              n - s < KG_PANEL ? n - s : KG_PANEL);
        }
}

static void turn_block(char *to, int64_t row_bytes, const struct kg_mat *m, int64_t c,
                       int64_t s, int64_t steps)
{
    int64_t rows = m->cols - c < KG_PANEL ? m->cols - c : KG_PANEL;
    struct kg_pairs w[KG_PANEL] = {0};
    for (int64_t i = 0; i < steps; i++)
        w[i] = column_step(m, s + i, c);
    kg_pairs_transpose(w);
    for (int64_t r = 0; r < rows; r++) {
        if (steps == KG_PANEL)
            kg_pairs_store(to + r * row_bytes, w[r]);
        else
            memcpy(to + r * row_bytes, &w[r], (size_t)steps * 4);
    }
}

void kg_cpu_turn_cols(char *to, int64_t row_bytes, struct kg_mat m, int64_t c0,
                      int64_t panels, int64_t s0, int64_t n)
{
    int64_t end = c0 + panels * KG_PANEL < m.cols ? c0 + panels * KG_PANEL : m.cols;
    for (int64_t s = 0; s < n; s += KG_PANEL)
        for (int64_t c = c0; c < end; c += KG_PANEL)
            turn_block(to + (c - c0) * row_bytes + s * 4, row_bytes, &m, c, s0 + s,
                       n - s < KG_PANEL ? n - s : KG_PANEL);
}

/* ---- the left operand of bf16 ---- */
/* One block of a row in step order, as tiles read it. */
static inline void left_block(char *to, struct kg_pairs w)
{
    if (kg_cpu_left_bytes(KG_BF16) == 4) {
        kg_pairs_store(to, w);
        return;
    }
    kg_v16_store((float *)(void *)to, kg_pairs_high(w));
    kg_v16_store((float *)(void *)to + KG_LANES, kg_pairs_low(w));
}

/* Elements [c,end) of a row, zeros after `cols`. */
static void left_row(char *to, const uint16_t *row, int64_t cols, bool split, int64_t c,
                     int64_t end)
{
    const int64_t bytes = KG_BLOCK_STEPS * kg_cpu_left_bytes(KG_BF16);
    for (; c < end && c + KG_PRODUCT_BLOCK <= cols; c += KG_PRODUCT_BLOCK, to += bytes) {
        struct kg_pairs w = kg_pairs_load(row + c);
        left_block(to, split ? w : kg_cpu_split(w));
    }
    if (c < end) {
        uint16_t last[KG_PRODUCT_BLOCK] = {0};
        memcpy(last, row + c, (size_t)(cols - c) * sizeof *last);
        left_block(to, kg_cpu_split(kg_pairs_load(last)));
    }
}

void kg_cpu_pack_left(char *to, struct kg_mat m, bool split, int64_t r0, int64_t rows,
                      int64_t s0, int64_t n)
{
    for (int64_t r = 0; r < rows; r++)
        left_row(to + r * n * kg_cpu_left_bytes(KG_BF16), kg_cpu_bf16(m, r0 + r), m.cols,
                 split, 2 * s0, 2 * (s0 + n));
}
