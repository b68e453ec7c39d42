/* The parts of a product: operands brought into order, and tiles of sums.
 *
 * Both operands of a tile are steps in order. A step is a pair of bf16 or one fp32, a
 * dword either way; the right one is sixteen dwords of a panel. In bf16 sixteen steps are
 * a block, and steps come in whole blocks: for tile registers in the order of elements,
 * elsewhere split into the eight of the even chain and the eight of the odd one. The left
 * operand of bf16 is brought into the same order, and where there is no instruction for
 * pairs widened to floats: of a block the sixteen upper halves, then the lower ones.
 */
#ifndef KG_TENSOR_CPU_PRODUCT_INTERNAL_H
#define KG_TENSOR_CPU_PRODUCT_INTERNAL_H

#include "base/amx.h"
#include "base/pairs.h"
#include "tensor/backend.h"

enum { KG_STEP_BYTES = 64 /* of a panel */, KG_BLOCK_STEPS = KG_PRODUCT_BLOCK / 2 };

/* Factors of a step, and the steps that k factors make. */
static inline int64_t kg_cpu_step_factors(enum kg_dtype t)
{
    return t == KG_BF16 ? 2 : 1;
}
static inline int64_t kg_cpu_steps(enum kg_dtype t, int64_t k)
{
    return t == KG_F32 ? k
                       : (k + KG_PRODUCT_BLOCK - 1) / KG_PRODUCT_BLOCK * KG_BLOCK_STEPS;
}

/* Bytes of a step of the left operand as tiles read it. */
static inline int64_t kg_cpu_left_bytes(enum kg_dtype t)
{
    return t == KG_BF16 && !KG_SIMD_AMX && !KG_SIMD_BF16_DOT ? 8 : 4;
}
/* Thirty-two bf16 of a row in the order of a block's steps, and back. */
static inline struct kg_pairs kg_cpu_split(struct kg_pairs w)
{
    return KG_SIMD_AMX ? w : kg_pairs_split(w);
}
static inline struct kg_pairs kg_cpu_join(struct kg_pairs w)
{
    return KG_SIMD_AMX ? w : kg_pairs_join(w);
}

/* The largest tile, whose fewer rows may have more panels. */
static inline int kg_cpu_tile_rows(enum kg_dtype t)
{
    return t == KG_F32 ? KG_TILE_ROWS : KG_SIMD_AMX ? KG_AMX_ROWS : KG_PAIR_ROWS;
}
static inline int kg_cpu_tile_panels(enum kg_dtype t, int64_t rows)
{
    const int most = t == KG_F32 ? KG_TILE_PANELS : KG_PAIR_PANELS;
    if (t == KG_BF16 && KG_SIMD_AMX)
        return 4;
    int few = rows <= 2 ? 1 : rows <= 4 ? 2 : most; /* one stream of memory */
    return few < most ? few : most;
}

/* ---- product_tile.c: sums of some rows by one tile's panels ---- */
struct kg_cpu_strip {
    const char *left;    /* row r, step s at left + r*left_row + s*kg_cpu_left_bytes */
    int64_t left_row;    /* bytes */
    const char *right;   /* panel p, step s at right + p*right_panel + s*64 */
    int64_t right_panel; /* bytes */
    int64_t steps;       /* fp32: of one chunk; in bf16 a multiple of KG_BLOCK_STEPS */
    float *out;          /* row r, panel p at out + r*out_row + 16*p */
    int64_t out_row;     /* floats */
    bool first;          /* of the row's chunks: out = instead of out += */
    /* for a tile: lines of the next strip's panels to ask for at every block */
    const char *ahead;
    int64_t lines;
};
void kg_cpu_sum_strip(const struct kg_cpu_strip *s, enum kg_dtype dtype, int64_t rows,
                      int panels);

/* ---- product_squares.c: many rows by tile registers ---- */
static inline bool kg_cpu_by_squares(enum kg_dtype t, int64_t rows)
{
    return t == KG_BF16 && KG_SIMD_AMX && rows > KG_AMX_ROWS;
}
/* of the left operand that the second cache shall keep */
enum { KG_CPU_LEFT_BYTES = 1 << 20 };
/* Operands of a product. */
struct kg_cpu_side {
    const char *left; /* row left_first of C, 64 bytes a block */
    int64_t left_row; /* bytes */
    const char *right;
    int64_t right_panel; /* bytes */
    int64_t blocks;
};
/* C (=|+=) left times panels: squares [unit,unit+units) down the rows of C, by `panels`
 * panels; and then += a second product, if there is one. The last square of C is its last
 * 32 rows. */
struct kg_cpu_squares {
    struct kg_mat c; /* more than KG_AMX_ROWS rows */
    bool add;
    int64_t unit;
    int64_t units;
    int64_t left_first;
    struct kg_cpu_side one;
    struct kg_cpu_side two; /* no blocks: there is none */
    int64_t first;          /* panel of C */
    int64_t panels;
};
kg_status kg_cpu_squares(const struct kg_cpu_squares *b, struct kg_err *err);

/* ---- product_pack.c: operands brought into the order of steps ---- */
/* Steps [s0,s0+n) of sixteen rows of m, which lies in rows, from row r0, rounded to t:
 * sums run along the rows. */
void kg_cpu_pack_rows(char *panel, enum kg_dtype t, struct kg_mat m, int64_t r0,
                      int64_t s0, int64_t n);
/* The other way: w[i] <- sixteen steps from step s of row i of a panel of m. */
void kg_cpu_unpack_block(struct kg_pairs w[KG_PANEL], struct kg_mat m, int64_t panel,
                         int64_t s);
/* Panels of sixteen columns each from c0, sums run down the columns: steps [s0,s0+n) of
 * rows or pairs of rows. m in rows; or in panels, with s0 a whole panel of m. Panels of
 * the result lie panel_bytes apart. */
void kg_cpu_pack_cols(char *to, int64_t panel_bytes, struct kg_mat m, int64_t c0,
                      int64_t panels, int64_t s0, int64_t n);
/* Rows [r0,r0+rows), steps [s0,s0+n) of m, which is bf16, as tiles read them, dense.
 * split: they are in the order of steps already. */
void kg_cpu_pack_left(char *to, struct kg_mat m, bool split, int64_t r0, int64_t rows,
                      int64_t s0, int64_t n);
/* Sixteen columns of m for each panel from c0 turned into rows, which lie row_bytes
 * apart: steps [s0,s0+n). */
void kg_cpu_turn_cols(char *to, int64_t row_bytes, struct kg_mat m, int64_t c0,
                      int64_t panels, int64_t s0, int64_t n);

#endif
