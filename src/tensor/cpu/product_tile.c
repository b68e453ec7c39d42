/* The inner loop of products: a few rows by a few panels of sixteen sums, in registers.
 *
 * An element is defined in backend.h, and no operation here mixes two of them; so how
 * many rows and panels stand together changes the speed and no bit. Rows and panels are
 * constants where the loop is inlined, which makes one loop for each.
 */
#include "base/fpmode.h"
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/product_internal.h"

#define KG_ALWAYS_INLINE inline __attribute__((always_inline))

/* Few rows wait for memory: a panel is asked for this far ahead. */
enum { AHEAD_BYTES = 4096, AHEAD_ONE_ROW = 128, FEW_SUMS = 8 };

/* What a loop is made for. */
struct shape {
    int rows;
    int panels;
};

struct sums {
    struct kg_v16 s[KG_TILE_ROWS][KG_TILE_PANELS];
};

static KG_ALWAYS_INLINE void clear(struct sums *acc, const struct shape f)
{
    KG_UNROLL
    for (int r = 0; r < f.rows; r++)
        KG_UNROLL
    for (int p = 0; p < f.panels; p++)
        acc->s[r][p] = kg_v16_zero();
}

static KG_ALWAYS_INLINE void ask_ahead(const struct kg_cpu_tile *t, const struct shape f,
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
                                        const struct kg_v16 w[KG_TILE_PANELS],
                                        const char *left, int64_t row, const bool flushed)
{
    KG_UNROLL
    for (int r = 0; r < f.rows; r++) {
        float x;
        memcpy(&x, left + r * row, sizeof x);
        struct kg_v16 a = kg_v16_set1(x);
        KG_UNROLL
        for (int p = 0; p < f.panels; p++)
            acc->s[r][p] = flushed ? kg_v16_fma_flushed(w[p], a, acc->s[r][p])
                                   : kg_v16_fma(w[p], a, acc->s[r][p]);
    }
}

/* ---- fp32: a chain over the chunk, then added ---- */
static KG_ALWAYS_INLINE void chain_floats(const struct kg_cpu_tile *t,
                                          const struct shape f)
{
    const char *right = t->right;
    const char *left = t->left;
    struct sums acc;
    clear(&acc, f);
    for (int64_t s = 0; s < t->steps;
         s++, right += KG_STEP_BYTES, left += sizeof(float)) {
        struct kg_v16 w[KG_TILE_PANELS];
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

/* ---- bf16: two chains a block ---- */
/* One chain of a block: the even or the odd halves of its sixteen steps. */
static KG_ALWAYS_INLINE void half_by_floats(struct sums *acc, const struct shape f,
                                            const struct kg_cpu_tile *t,
                                            const char *right, const char *left,
                                            const bool odd)
{
    for (int s = 0; s < KG_BLOCK_STEPS; s++, right += KG_STEP_BYTES, left += 4) {
        struct kg_v16 w[KG_TILE_PANELS];
        if (!odd)
            ask_ahead(t, f, right);
        KG_UNROLL
        for (int p = 0; p < f.panels; p++) {
            struct kg_pairs pair = kg_pairs_load(right + p * t->right_panel);
            w[p] = odd ? kg_pairs_odd(pair) : kg_pairs_even(pair);
        }
        add_floats(acc, f, w, left, t->left_row, true);
    }
}

static KG_ALWAYS_INLINE void half_by_pairs(struct sums *acc, const struct shape f,
                                           const struct kg_cpu_tile *t, const char *right,
                                           const char *left, const bool odd)
{
    for (int s = 0; s < KG_BLOCK_STEPS; s += 2, right += 2 * KG_STEP_BYTES, left += 4) {
        struct kg_pairs w[KG_TILE_PANELS];
        if (!odd) {
            ask_ahead(t, f, right);
            ask_ahead(t, f, right + KG_STEP_BYTES);
        }
        KG_UNROLL
        for (int p = 0; p < f.panels; p++) {
            const char *at = right + p * t->right_panel;
            struct kg_pairs a = kg_pairs_load(at);
            struct kg_pairs b = kg_pairs_load(at + KG_STEP_BYTES);
            w[p] = odd ? kg_pairs_of_odd(a, b) : kg_pairs_of_even(a, b);
        }
        KG_UNROLL
        for (int r = 0; r < f.rows; r++)
            KG_UNROLL
        for (int p = 0; p < f.panels; p++)
            acc->s[r][p] = kg_v16_dot_bf16(acc->s[r][p], w[p], left + r * t->left_row);
    }
}

static KG_ALWAYS_INLINE void half_block(struct sums *acc, const struct shape f,
                                        const struct kg_cpu_tile *t, int64_t s,
                                        const bool odd)
{
    const char *right = t->right + s * KG_STEP_BYTES;
    const char *left = t->left + s * kg_cpu_left_bytes(KG_BF16);
    const int64_t half = KG_BLOCK_STEPS / 2 * kg_cpu_left_bytes(KG_BF16);
    clear(acc, f);
    if (KG_SIMD_BF16_DOT)
        half_by_pairs(acc, f, t, right, left + (odd ? half : 0), odd);
    else
        half_by_floats(acc, f, t, right, left + (odd ? half : 0), odd);
}

/* out (=|+=) even + odd, block by block */
static KG_ALWAYS_INLINE void chain_pairs(const struct kg_cpu_tile *t,
                                         const struct shape f)
{
    float even[KG_TILE_ROWS][KG_TILE_PANELS][KG_LANES];
    for (int64_t s = 0; s < t->steps; s += KG_BLOCK_STEPS) {
        const bool first = t->first && s == 0;
        struct sums acc;
        half_block(&acc, f, t, s, false);
        KG_UNROLL
        for (int r = 0; r < f.rows; r++)
            KG_UNROLL
        for (int p = 0; p < f.panels; p++)
            kg_v16_store(even[r][p], acc.s[r][p]);
        half_block(&acc, f, t, s, true);
        KG_UNROLL
        for (int r = 0; r < f.rows; r++)
            KG_UNROLL
        for (int p = 0; p < f.panels; p++) {
            float *out = t->out + r * t->out_row + p * KG_LANES;
            struct kg_v16 sum = first ? kg_v16_zero() : kg_v16_load(out);
            struct kg_v16 both = kg_v16_add_flushed(kg_v16_load(even[r][p]), acc.s[r][p]);
            kg_v16_store(out, kg_v16_add_flushed(sum, both));
        }
    }
}

/* ---- one loop for each shape ---- */
static KG_ALWAYS_INLINE void chain(const struct kg_cpu_tile *t, const struct shape f,
                                   const bool pairs)
{
    if (pairs)
        chain_pairs(t, f);
    else
        chain_floats(t, f);
}

static KG_ALWAYS_INLINE void some_rows(const struct kg_cpu_tile *t, int rows,
                                       const int panels, const bool pairs)
{
    const bool eight = KG_TILE_ROWS == 8;
    if (rows == 1)
        chain(t, (struct shape){1, panels}, pairs);
    else if (rows == 2)
        chain(t, (struct shape){2, panels}, pairs);
    else if (rows == 3)
        chain(t, (struct shape){3, panels}, pairs);
    else if (rows == 4 || !eight)
        chain(t, (struct shape){4, panels}, pairs);
    else if (rows == 5)
        chain(t, (struct shape){eight ? 5 : 1, panels}, pairs);
    else if (rows == 6)
        chain(t, (struct shape){eight ? 6 : 1, panels}, pairs);
    else if (rows == 7)
        chain(t, (struct shape){eight ? 7 : 1, panels}, pairs);
    else
        chain(t, (struct shape){eight ? 8 : 1, panels}, pairs);
}

static KG_ALWAYS_INLINE void some_panels(const struct kg_cpu_tile *t, int rows,
                                         int panels, const bool pairs)
{
    const int widest = KG_TILE_PANELS;
    if (panels == 1 || widest == 1)
        some_rows(t, rows, 1, pairs);
    else if (panels == 2)
        some_rows(t, rows, widest > 1 ? 2 : 1, pairs);
    else
        some_rows(t, rows, widest > 2 ? 3 : 1, pairs);
}

/* Not inlined: compilers could move sums across a change of the processor's mode. */
static __attribute__((noinline)) void tile_of_floats(const struct kg_cpu_tile *t,
                                                     int rows, int panels)
{
    some_panels(t, rows, panels, false);
}

static __attribute__((noinline)) void tile_of_pairs(const struct kg_cpu_tile *t, int rows,
                                                    int panels)
{
    some_panels(t, rows, panels, true);
}

static void tile_by_registers(const struct kg_cpu_tile *t, int rows, int panels)
{
    const struct kg_amx_job j = {
        .left = t->left,
        .left_row = t->left_row,
        .right = t->right,
        .right_panel = t->right_panel,
        .blocks = t->steps / KG_BLOCK_STEPS,
        .out = t->out,
        .out_row = t->out_row,
        .first = t->first,
    };
    kg_amx_configure(rows);
    kg_amx_few_rows(&j, panels);
    kg_amx_release();
}

void kg_cpu_tile_chain(const struct kg_cpu_tile *t, enum kg_dtype dtype, int rows,
                       int panels)
{
    if (dtype == KG_F32) {
        tile_of_floats(t, rows, panels);
    } else if (KG_SIMD_AMX) {
        tile_by_registers(t, rows, panels);
    } else {
        if (KG_SIMD_FLUSH_MODE)
            kg_fp_set_mode(KG_FP_FLUSH);
        tile_of_pairs(t, rows, panels);
        if (KG_SIMD_FLUSH_MODE)
            kg_fp_set_mode(KG_FP_EXACT);
    }
}
