/* Operands brought into the order in which a product's sums take them.
 *
 * Moving and widening alone, no arithmetic but the rounding of a cast. The one idea:
 * sixteen rows of 64 bytes are sixteen steps of a panel after a transposition of dwords,
 * whatever the dwords hold, and the other way round.
 */
#include "tensor/cpu/product_internal.h"

#include "tensor/cpu/cpu_internal.h"

/* ---- rows and panels ---- */
static int64_t block_cols(enum kg_dtype t) { return KG_PANEL * kg_cpu_step_factors(t); }

/* 64 bytes of row r of m from column c as `t`, zeros past its end. */
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
        for (int i = 0; i < KG_PANEL; i++)
            w[i] = row_block(m, t, r0 + i, (s0 + s) * kg_cpu_step_factors(t));
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
    for (int i = 0; i < KG_PANEL; i++)
        w[i] = kg_pairs_load(s + i < steps ? p + i * KG_STEP_BYTES : zeros);
    kg_pairs_transpose(w);
}

/* ---- sums down the columns ---- */
/* Step s of sixteen columns from c, zeros past the ends of m. */
static __attribute__((noinline)) struct kg_pairs edge_step(const struct kg_mat *m,
                                                           int64_t s, int64_t c)
{
    uint32_t part[KG_PANEL] = {0};
    uint16_t halves[2][KG_PANEL] = {{0}};
    int64_t n = m->cols - c < KG_PANEL ? m->cols - c : KG_PANEL;
    size_t count = n > 0 ? (size_t)n : 0;
    if (m->dtype == KG_F32) {
        if (s < m->rows)
            memcpy(part, kg_cpu_f32(*m, s) + c, count * sizeof *part);
        return kg_pairs_load(part);
    }
    for (int i = 0; i < 2 && 2 * s + i < m->rows; i++)
        memcpy(halves[i], kg_cpu_bf16(*m, 2 * s + i) + c, count * sizeof *halves[i]);
    return kg_pairs_zip(halves[0], halves[1]);
}

/* The same of m, which lies in rows; `whole` steps end before its last row. */
static inline struct kg_pairs column_step(const struct kg_mat *m, int64_t whole,
                                          int64_t s, int64_t c)
{
    if (s >= whole || c + KG_PANEL > m->cols)
        return edge_step(m, s, c);
    if (m->dtype == KG_F32)
        return kg_pairs_load(kg_cpu_f32(*m, s) + c);
    return kg_pairs_zip(kg_cpu_bf16(*m, 2 * s) + c, kg_cpu_bf16(*m, 2 * s + 1) + c);
}

static int64_t whole_steps(struct kg_mat m)
{
    return m.rows / kg_cpu_step_factors(m.dtype);
}

static void pack_cols_of_rows(char *to, int64_t panel_bytes, struct kg_mat m, int64_t c0,
                              int64_t panels, int64_t s0, int64_t n)
{
    int64_t whole = whole_steps(m);
    for (int64_t s = 0; s < n; s++)
        for (int64_t p = 0; p < panels; p++)
            kg_pairs_store(to + p * panel_bytes + s * KG_STEP_BYTES,
                           column_step(&m, whole, s0 + s, c0 + p * KG_PANEL));
}

void kg_cpu_pack_cols(char *to, int64_t panel_bytes, struct kg_mat m, int64_t c0,
                      int64_t panels, int64_t s0, int64_t n)
{
    if (m.layout == KG_ROWS) {
        pack_cols_of_rows(to, panel_bytes, m, c0, panels, s0, n);
        return;
    }
    int64_t steps = KG_PANEL / kg_cpu_step_factors(m.dtype); /* of a panel of m */
    int64_t wide = block_cols(m.dtype) / KG_PANEL;
    for (int64_t s = 0; s < n; s += steps)
        for (int64_t p = 0; p < panels; p += wide) {
            struct kg_pairs w[KG_PANEL] = {0};
            struct kg_mat rows = kg_mat(w, m.dtype, KG_PANEL, block_cols(m.dtype));
            if ((s0 + s) / steps * KG_PANEL < m.rows)
                kg_cpu_unpack_block(w, m, (s0 + s) / steps,
                                    (c0 + p * KG_PANEL) / kg_cpu_step_factors(m.dtype));
            pack_cols_of_rows(to + p * panel_bytes + s * KG_STEP_BYTES, panel_bytes, rows,
                              0, panels - p < wide ? panels - p : wide, 0,
                              n - s < steps ? n - s : steps);
        }
}

static void turn_block(char *to, int64_t row_bytes, const struct kg_mat *m, int64_t c,
                       int64_t s, int64_t steps)
{
    int64_t rows = m->cols - c < KG_PANEL ? m->cols - c : KG_PANEL;
    int64_t whole = whole_steps(*m);
    struct kg_pairs w[KG_PANEL] = {0};
    for (int64_t i = 0; i < steps; i++)
        w[i] = column_step(m, whole, s + i, c);
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
/* One block of a row: pairs of a chain, or floats of it, the even ones first. */
static void order_block(char *to, const uint32_t pairs[KG_BLOCK_STEPS])
{
    enum { HALF = KG_BLOCK_STEPS / 2 };
    uint32_t out[2 * KG_BLOCK_STEPS];
    for (int i = 0; i < HALF && KG_SIMD_BF16_DOT; i++) {
        out[i] = kg_pair_of_even(pairs[2 * i], pairs[2 * i + 1]);
        out[HALF + i] = kg_pair_of_odd(pairs[2 * i], pairs[2 * i + 1]);
    }
    for (int i = 0; i < KG_BLOCK_STEPS && !KG_SIMD_BF16_DOT; i++) {
        out[i] = pairs[i] << 16;
        out[KG_BLOCK_STEPS + i] = pairs[i] & 0xffff0000u;
    }
    memcpy(to, out, KG_BLOCK_STEPS * (size_t)kg_cpu_left_bytes(KG_BF16));
}

static void order_row(char *to, const uint16_t *row, int64_t cols, int64_t s0, int64_t n)
{
    for (int64_t s = s0; s < s0 + n; s += KG_BLOCK_STEPS) {
        uint32_t pairs[KG_BLOCK_STEPS] = {0};
        int64_t have = cols - 2 * s < KG_PRODUCT_BLOCK ? cols - 2 * s : KG_PRODUCT_BLOCK;
        memcpy(pairs, row + 2 * s, (size_t)have * sizeof *row);
        if (KG_SIMD_AMX)
            memcpy(to, pairs, sizeof pairs);
        else
            order_block(to, pairs);
        to += KG_BLOCK_STEPS * kg_cpu_left_bytes(KG_BF16);
    }
}

void kg_cpu_pack_left(char *to, struct kg_mat m, int64_t r0, int64_t rows, int64_t s0,
                      int64_t n)
{
    for (int64_t r = 0; r < rows; r++)
        order_row(to + r * n * kg_cpu_left_bytes(m.dtype), kg_cpu_bf16(m, r0 + r), m.cols,
                  s0, n);
}
