/* The inner loop of products: a few rows by a few panels of sixteen sums, in registers.
 *
 * backend.h defines each element separately, and no operation here combines two elements,
 * so the number of rows and panels per tile affects speed but no bit. Both are constants
 * where the loop is inlined: the compiler makes one loop for each size.
 */
#include "base/fpmode.h"
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/product_internal.h"

#define KG_ALWAYS_INLINE inline __attribute__((always_inline))

/* Tiles of few sums wait for memory, so they prefetch their panels this far ahead. */
enum { AHEAD_BYTES = 4096, AHEAD_ONE_ROW = 128, FEW_SUMS = 8 };

/* Size of a tile, a constant where its loop is inlined. */
struct shape {
    int rows;
    int panels;
};

/* Sums of a tile of any size. */
enum { MOST_ROWS = 8, MOST_PANELS = KG_TILE_PANELS };
struct sums {
    struct kg_v16 s[MOST_ROWS][MOST_PANELS];
};

static KG_ALWAYS_INLINE void clear(struct sums *acc, const struct shape f)
{
    KG_UNROLL
    for (int r = 0; r < f.rows; r++)
        KG_UNROLL
    for (int p = 0; p < f.panels; p++)
        acc->s[r][p] = kg_v16_zero();
}

static KG_ALWAYS_INLINE void ask_ahead(const struct kg_cpu_strip *t, const struct shape f,
                                       const char *right)
{
    if (f.rows * f.panels > FEW_SUMS)
        return;
    KG_UNROLL
    for (int p = 0; p < f.panels; p++)
        __builtin_prefetch(right + p * t->right_panel +
                               (f.rows == 1 ? AHEAD_ONE_ROW : AHEAD_BYTES),
                           0, 3);
}

/* acc += w x, x one float of each row */
static KG_ALWAYS_INLINE void add_floats(struct sums *acc, const struct shape f,
                                        const struct kg_v16 w[MOST_PANELS],
                                        const char *left, int64_t row, const bool tested)
{
    KG_UNROLL
    for (int r = 0; r < f.rows; r++) {
        float x;
        memcpy(&x, left + r * row, sizeof x);
        struct kg_v16 a = kg_v16_set1(x);
        KG_UNROLL
        for (int p = 0; p < f.panels; p++)
            acc->s[r][p] = tested ? kg_v16_fma_flushed(w[p], a, acc->s[r][p])
                                  : kg_v16_fma(w[p], a, acc->s[r][p]);
    }
}

/* ---- fp32: a chain over the chunk, then added ---- */
static KG_ALWAYS_INLINE void chain_floats(const struct kg_cpu_strip *t,
                                          const struct shape f)
{
    const char *right = t->right;
    const char *left = t->left;
    struct sums acc;
    clear(&acc, f);
    for (int64_t s = 0; s < t->steps;
         s++, right += KG_STEP_BYTES, left += sizeof(float)) {
        struct kg_v16 w[MOST_PANELS];
        ask_ahead(t, f, right);
        KG_UNROLL
        for (int p = 0; p < f.panels; p++)
            w[p] = kg_v16_load((const float *)(const void *)(right + p * t->right_panel));
        add_floats(&acc, f, w, left, t->left_row, false);
    }
    KG_UNROLL
    for (int r = 0; r < f.rows; r++)
        KG_UNROLL
    for (int p = 0; p < f.panels; p++) {
        float *out = t->out + r * t->out_row + p * KG_LANES;
        kg_v16_store(out,
                     t->first ? acc.s[r][p] : kg_v16_add(kg_v16_load(out), acc.s[r][p]));
    }
}

/* ---- bf16: two chains per block; `tested`: flushes by kg_v16_fma_flushed ---- */
enum { HALF_STEPS = KG_BLOCK_STEPS / 2, HALF_BYTES = HALF_STEPS * KG_STEP_BYTES };

/* One chain of a block: the eight pairs of its even or of its odd elements. */
static KG_ALWAYS_INLINE void half_by_floats(struct sums *acc, const struct shape f,
                                            const struct kg_cpu_strip *t,
                                            const char *right, const char *left,
                                            const bool tested)
{
    for (int s = 0; s < HALF_STEPS; s++, right += KG_STEP_BYTES, left += 4) {
        struct kg_pairs pair[MOST_PANELS];
        struct kg_v16 w[MOST_PANELS];
        ask_ahead(t, f, right);
        KG_UNROLL
        for (int p = 0; p < f.panels; p++) {
            pair[p] = kg_pairs_load(right + p * t->right_panel);
            w[p] = kg_pairs_high(pair[p]);
        }
        add_floats(acc, f, w, left, t->left_row, tested);
        KG_UNROLL
        for (int p = 0; p < f.panels; p++)
            w[p] = kg_pairs_low(pair[p]);
        add_floats(acc, f, w, left + KG_BLOCK_STEPS * 4, t->left_row, tested);
    }
}

static KG_ALWAYS_INLINE void half_by_pairs(struct sums *acc, const struct shape f,
                                           const struct kg_cpu_strip *t,
                                           const char *right, const char *left)
{
    KG_UNROLL
    for (int s = 0; s < HALF_STEPS; s++, right += KG_STEP_BYTES, left += 4) {
        struct kg_pairs w[MOST_PANELS];
        ask_ahead(t, f, right);
        KG_UNROLL
        for (int p = 0; p < f.panels; p++)
            w[p] = kg_pairs_load(right + p * t->right_panel);
        KG_UNROLL
        for (int r = 0; r < f.rows; r++)
            KG_UNROLL
        for (int p = 0; p < f.panels; p++)
            acc->s[r][p] = kg_v16_dot_bf16(acc->s[r][p], w[p], left + r * t->left_row);
    }
}

static KG_ALWAYS_INLINE void half_block(struct sums *acc, const struct shape f,
                                        const struct kg_cpu_strip *t, int64_t s,
                                        const bool odd, const bool tested)
{
    const char *right = t->right + s * KG_STEP_BYTES + (odd ? HALF_BYTES : 0);
    const char *left = t->left + s * kg_cpu_left_bytes(KG_BF16) +
                       (odd ? HALF_STEPS * 4 : 0);
    clear(acc, f);
    if (KG_SIMD_BF16_DOT)
        half_by_pairs(acc, f, t, right, left);
    else
        half_by_floats(acc, f, t, right, left, tested);
}

static KG_ALWAYS_INLINE struct kg_v16 add(struct kg_v16 a, struct kg_v16 b,
                                          const bool tested)
{
    return tested ? kg_v16_add_flushed(a, b) : kg_v16_add(a, b);
}

/* out (=|+=) even + odd, block by block. Totals are in the L1 cache, so that the chains
 * have all registers; two chains per block hide the cost.
 * returns false, with out unchanged, if a sum underflowed (flush mode may be inexact) */
static KG_ALWAYS_INLINE bool sum_blocks(const struct kg_cpu_strip *t,
                                        const struct shape f, const bool tested)
{
    _Alignas(64) float total[MOST_ROWS][MOST_PANELS][KG_LANES];
    for (int r = 0; r < f.rows; r++)
        for (int p = 0; p < f.panels; p++) {
            const float *out = t->out + r * t->out_row + p * KG_LANES;
            kg_v16_store(total[r][p], t->first ? kg_v16_zero() : kg_v16_load(out));
        }
    const int64_t lines = KG_SIMD_BF16_DOT ? t->lines : 0; /* others load in time */
    const char *ahead = t->ahead;
    for (int64_t s = 0; s < t->steps; s += KG_BLOCK_STEPS) {
        struct sums even, odd;
        for (int64_t i = 0; i < lines; i++, ahead += KG_STEP_BYTES)
            KG_UNROLL
        for (int p = 0; p < f.panels; p++)
            __builtin_prefetch(ahead + p * t->right_panel, 0, 2);
        half_block(&even, f, t, s, false, tested);
        half_block(&odd, f, t, s, true, tested);
        KG_UNROLL
        for (int r = 0; r < f.rows; r++)
            KG_UNROLL
        for (int p = 0; p < f.panels; p++) {
            struct kg_v16 both = add(even.s[r][p], odd.s[r][p], tested);
            kg_v16_store(total[r][p], add(kg_v16_load(total[r][p]), both, tested));
        }
    }
    if (!tested && kg_fp_underflowed(total))
        return false;
    for (int r = 0; r < f.rows; r++)
        memcpy(t->out + r * t->out_row, total[r], (size_t)f.panels * sizeof *total[r]);
    return true;
}

/* Not inlined, and called in mode KG_FP_EXACT. Computes one sum at a time: either this is
 * rare, or the instruction set has no fused multiply-add. */
static __attribute__((noinline)) void sum_tested(const struct kg_cpu_strip *s, int rows,
                                                 int panels)
{
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < panels; p++) {
            struct kg_cpu_strip t = *s;
            t.left += r * s->left_row;
            t.right += p * s->right_panel;
            t.out += r * s->out_row + p * KG_LANES;
            sum_blocks(&t, (struct shape){1, 1}, true);
        }
}

static KG_ALWAYS_INLINE void chain_pairs(const struct kg_cpu_strip *t,
                                         const struct shape f)
{
    if (sum_blocks(t, f, false))
        return;
    kg_fp_set_mode(KG_FP_EXACT);
    sum_tested(t, f.rows, f.panels);
    kg_fp_set_mode(KG_FP_FLUSH);
    kg_fp_underflowed(t->out);
}

/* ---- one loop for each shape ---- */
static KG_ALWAYS_INLINE void chain(const struct kg_cpu_strip *t, const struct shape f,
                                   const bool pairs)
{
    if (pairs)
        chain_pairs(t, f);
    else
        chain_floats(t, f);
}

/* rows: at most `most`, a constant. */
static KG_ALWAYS_INLINE void some_rows(const struct kg_cpu_strip *t, int rows,
                                       const int most, const int panels, const bool pairs)
{
    if (rows == 1)
        chain(t, (struct shape){1, panels}, pairs);
    else if (rows == 2)
        chain(t, (struct shape){2, panels}, pairs);
    else if (rows == 3)
        chain(t, (struct shape){3, panels}, pairs);
    else if (rows == 4)
        chain(t, (struct shape){4, panels}, pairs);
    else if (most > 4 && rows == 5)
        chain(t, (struct shape){most > 4 ? 5 : 1, panels}, pairs);
    else if (most > 5 && rows == 6)
        chain(t, (struct shape){most > 5 ? 6 : 1, panels}, pairs);
    else if (most > 6 && rows == 7)
        chain(t, (struct shape){most > 6 ? 7 : 1, panels}, pairs);
    else
        chain(t, (struct shape){most > 7 ? 8 : 1, panels}, pairs);
}

/* All rows, in tiles of nearly equal height. */
static KG_ALWAYS_INLINE void row_tiles(const struct kg_cpu_strip *s, int64_t rows,
                                       const int most, const int panels, const bool pairs)
{
    const int64_t tiles = (rows + most - 1) / most;
    struct kg_cpu_strip t = *s;
    t.lines = pairs && tiles > 1 ? (KG_BLOCK_STEPS + tiles - 1) / tiles : 0;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t r = rows * i / tiles;
        t.lines = i * t.lines < KG_BLOCK_STEPS ? t.lines : 0;
        t.ahead = s->right + panels * s->right_panel +
                  i * t.lines * s->steps / KG_BLOCK_STEPS * KG_STEP_BYTES;
        t.left = s->left + r * s->left_row;
        t.out = s->out + r * s->out_row;
        some_rows(&t, (int)(rows * (i + 1) / tiles - r), most, panels, pairs);
    }
}

static KG_ALWAYS_INLINE void some_panels(const struct kg_cpu_strip *s, int64_t rows,
                                         int panels, const struct shape most,
                                         const bool pairs)
{
    if (panels == 1 || most.panels == 1)
        row_tiles(s, rows, most.rows, 1, pairs);
    else if (panels == 2)
        row_tiles(s, rows, most.rows, most.panels > 1 ? 2 : 1, pairs);
    else
        row_tiles(s, rows, most.rows, most.panels > 2 ? 3 : 1, pairs);
}

/* Not inlined: compilers could move sums across a change of the processor's mode. */
static __attribute__((noinline)) void sum_floats(const struct kg_cpu_strip *s,
                                                 int64_t rows, int panels)
{
    some_panels(s, rows, panels, (struct shape){KG_TILE_ROWS, KG_TILE_PANELS}, false);
}

static __attribute__((noinline)) void sum_pairs(const struct kg_cpu_strip *s,
                                                int64_t rows, int panels)
{
    some_panels(s, rows, panels, (struct shape){KG_PAIR_ROWS, KG_PAIR_PANELS}, true);
}

static void sum_by_registers(const struct kg_cpu_strip *s, int64_t rows, int panels)
{
    const struct kg_amx_job j = {
        .left = s->left,
        .left_row = s->left_row,
        .right = s->right,
        .right_panel = s->right_panel,
        .blocks = s->steps / KG_BLOCK_STEPS,
        .out = s->out,
        .out_row = s->out_row,
        .first = s->first,
    };
    kg_amx_configure((int)rows);
    kg_amx_few_rows(&j, panels);
    kg_amx_release();
}

void kg_cpu_sum_strip(const struct kg_cpu_strip *s, enum kg_dtype dtype, int64_t rows,
                      int panels)
{
    if (dtype == KG_F32) {
        sum_floats(s, rows, panels);
    } else if (KG_SIMD_AMX) {
        sum_by_registers(s, rows, panels);
    } else if (!KG_SIMD_FLUSH_MODE) {
        sum_tested(s, (int)rows, panels);
    } else {
        kg_fp_set_mode(KG_FP_FLUSH);
        kg_fp_underflowed(s->out);
        sum_pairs(s, rows, panels);
        kg_fp_set_mode(KG_FP_EXACT);
    }
}
