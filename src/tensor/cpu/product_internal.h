/* The parts of a product: packing operands, and tiles of sums.
 *
 * Both operands of a tile are sequences of steps. A step is one dword: a pair of bf16 or
 * one fp32; for the right operand it is sixteen dwords of a panel. In bf16, sixteen steps
 * form a block, and operands consist of whole blocks. A block is in element order for
 * tile registers, otherwise split into eight steps of the even chain and eight of the odd
 * one. The left bf16 operand is packed in the same order. If the CPU lacks an instruction
 * for pairs, packing widens the left operand to floats: for each block the sixteen upper
 * halves, then the sixteen lower halves.
 */
#ifndef KG_TENSOR_CPU_PRODUCT_INTERNAL_H
#define KG_TENSOR_CPU_PRODUCT_INTERNAL_H

#include "base/amx.h"
#include "base/pairs.h"
#include "tensor/backend.h"

enum { KG_STEP_BYTES = 64 /* of a panel */, KG_BLOCK_STEPS = KG_PRODUCT_BLOCK / 2 };

/* Factors per step, and steps for k factors. */
static inline int64_t kg_cpu_step_factors(enum kg_dtype t)
{
    return t == KG_BF16 ? 2 : 1;
}
static inline int64_t kg_cpu_steps(enum kg_dtype t, int64_t k)
{
    return t == KG_F32 ? k
                       : (k + KG_PRODUCT_BLOCK - 1) / KG_PRODUCT_BLOCK * KG_BLOCK_STEPS;
}

/* Bytes of a step of the packed left operand. */
static inline int64_t kg_cpu_left_bytes(enum kg_dtype t)
{
    return t == KG_BF16 && !KG_SIMD_AMX && !KG_SIMD_BF16_DOT ? 8 : 4;
}
/* Reorders 32 bf16 of a row to a block's step order, and back. */
static inline struct kg_pairs kg_cpu_split(struct kg_pairs w)
{
    return KG_SIMD_AMX ? w : kg_pairs_split(w);
}
static inline struct kg_pairs kg_cpu_join(struct kg_pairs w)
{
    return KG_SIMD_AMX ? w : kg_pairs_join(w);
}

/* Size of the largest tile. Few rows use few panels, so that memory is read in order. */
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

/* ---- product_tile.c: sums of some rows by the panels of a tile ---- */
struct kg_cpu_strip {
    const char *left;    /* row r, step s: left + r*left_row + s*kg_cpu_left_bytes */
    int64_t left_row;    /* bytes */
    const char *right;   /* panel p, step s: right + p*right_panel + s*64 */
    int64_t right_panel; /* bytes */
    int64_t steps;       /* fp32: at most a chunk; bf16: a multiple of KG_BLOCK_STEPS */
    float *out;          /* row r, panel p: out + r*out_row + 16*p */
    int64_t out_row;     /* floats */
    bool first;          /* the first chunk: sets out instead of adding to it */
    /* set per tile: where the next strip is prefetched, and cache lines per block */
    const char *ahead;
    int64_t lines;
};
void kg_cpu_sum_strip(const struct kg_cpu_strip *s, enum kg_dtype dtype, int64_t rows,
                      int panels);

/* ---- product_squares.c: many rows with tile registers ---- */
static inline bool kg_cpu_by_squares(enum kg_dtype t, int64_t rows)
{
    return t == KG_BF16 && KG_SIMD_AMX && rows > KG_AMX_ROWS;
}
/* bytes of the left operand to keep in the L2 cache */
enum { KG_CPU_LEFT_BYTES = 1 << 20 };
/* Operands of a product, packed. */
struct kg_cpu_side {
    const char *left; /* from row left_first of C; 64 bytes per block */
    int64_t left_row; /* bytes */
    const char *right;
    int64_t right_panel; /* bytes */
    int64_t blocks;
};
/* C (=|+=) left times panels, then C += a second product, if there is one. Computes
 * `panels` panels of squares [unit,unit+units); a square has 32 rows of C, and the last
 * one covers the last 32 rows. */
struct kg_cpu_squares {
    struct kg_mat c; /* has more than KG_AMX_ROWS rows */
    bool add;
    int64_t unit;
    int64_t units;
    int64_t left_first; /* row of C at which the left operands begin */
    struct kg_cpu_side one;
    struct kg_cpu_side two; /* blocks 0: none */
    int64_t first;          /* first panel of C */
    int64_t panels;
};
kg_status kg_cpu_squares(const struct kg_cpu_squares *b, struct kg_err *err);

/* ---- coded.c: panels of codes (tensor/coded.h) ---- */
/* to <- steps [s0,s0+n), whole blocks, of a panel of m, in the layout of bf16 panels. */
void kg_cpu_widen(char *to, struct kg_mat m, int64_t panel, int64_t s0, int64_t n);
/* kg_cpu_sum_strip over all steps of one panel of m, without unpacking it.   returns
 * false, with nothing done, if this instruction set has no kernel for that many rows */
bool kg_cpu_sum_coded(const struct kg_cpu_strip *s, struct kg_mat m, int64_t panel,
                      int64_t rows);

/* ---- product_pack.c: operands packed in step order ---- */
/* Packs steps [s0,s0+n) of sixteen rows of m (in KG_ROWS) from row r0, rounded to t, for
 * sums along rows. */
void kg_cpu_pack_rows(char *panel, enum kg_dtype t, struct kg_mat m, int64_t r0,
                      int64_t s0, int64_t n);
/* The inverse: w[i] <- steps [s,s+16) of row i of the panel of m. */
void kg_cpu_unpack_block(struct kg_pairs w[KG_PANEL], struct kg_mat m, int64_t panel,
                         int64_t s);
/* Packs panels of sixteen columns each from c0, for sums down columns: a step is a row
 * (fp32) or a pair of rows (bf16). m is in rows, or in panels if step s0 begins a panel
 * of m. Result panels are panel_bytes apart. */
void kg_cpu_pack_cols(char *to, int64_t panel_bytes, struct kg_mat m, int64_t c0,
                      int64_t panels, int64_t s0, int64_t n);
/* Packs steps [s0,s0+n) of rows [r0,r0+rows) of m (bf16) for tiles, without gaps. split:
 * m is already in step order. */
void kg_cpu_pack_left(char *to, struct kg_mat m, bool split, int64_t r0, int64_t rows,
                      int64_t s0, int64_t n);
/* Transposes steps [s0,s0+n) of up to 16 * panels columns of m from c0 into rows that are
 * row_bytes apart. */
void kg_cpu_turn_cols(char *to, int64_t row_bytes, struct kg_mat m, int64_t c0,
                      int64_t panels, int64_t s0, int64_t n);

#endif
