/* Weights of a frozen base in panels of 4 or 8 bits, with the values of a GGUF file.
 *
 * A matrix with `quant` has the fp32 values of its blocks, rounded to bf16; so products,
 * embeddings and casts have the bits of the same matrix in bf16. Kernels widen
 * codes in registers, or for many rows a few blocks at a time into the first cache.
 *
 * A panel of sixteen rows first holds its codes. A block of 32 columns is sixteen steps
 * of a pair a row, as in bf16 (enum kg_layout). Dword 2r + h, r < 8, holds the codes of
 * half h of several steps, of each step row r first, then row r + 8, as the instruction
 * that rounds to bf16 takes them. Codes of 4 bits follow each other from bit 0 on, those
 * of 8 bits from bit 4 on, wrapping around. The scales come next, for each 32 or 256
 * columns (kg_quant.values): sixteen `scale`, sixteen `low`, and for each
 * 32 columns sixteen of each of its `scales`, and sixteen `lows`.
 */
#ifndef KG_TENSOR_CODED_H
#define KG_TENSOR_CODED_H

#include "data/quants.h"
#include "tensor/backend.h"

static inline int64_t kg_coded_block_bytes(const struct kg_quant *q)
{
    return q->form.bits * KG_PRODUCT_BLOCK * KG_PANEL / 8;
}
/* Offset of the scales of a block's 32 columns in those of its group, and their bytes. */
static inline int64_t kg_coded_head_bytes(const struct kg_quant *q)
{
    return (q->form.low ? 2 : 1) * KG_PANEL * 2;
}
static inline int64_t kg_coded_part_bytes(const struct kg_quant *q)
{
    return (q->form.scales + (q->form.scales && q->form.low)) * KG_PANEL;
}
/* The scales of a group: of kg_quant.values columns. */
static inline int64_t kg_coded_group_bytes(const struct kg_quant *q)
{
    return kg_coded_head_bytes(q) + q->values / KG_PRODUCT_BLOCK * kg_coded_part_bytes(q);
}
/* A multiple of 64.   cols: a multiple of kg_quant.values */
static inline int64_t kg_coded_panel_bytes(const struct kg_quant *q, int64_t cols)
{
    const int64_t bytes = cols / KG_PRODUCT_BLOCK * kg_coded_block_bytes(q) +
                          cols / q->values * kg_coded_group_bytes(q);
    return (bytes + 63) / 64 * 64;
}

/* First bit of code k of a dword. */
static inline int kg_coded_bit(int k, int bits)
{
    return (k * bits + (bits == 8 ? 4 : 0)) % 32;
}

/* Row r <- its blocks, in order, as in a file. m: zeroed panels of the host;
 * threads may write rows of different panels
 * errors: NONFINITE (a scale) */
kg_status kg_coded_put(struct kg_mat m, int64_t r, const unsigned char *blocks,
                       struct kg_err *err) KG_MUST_CHECK;
/* Element (r, c) in bf16; one element at a time, for files and tests. */
uint16_t kg_coded_get(struct kg_mat m, int64_t r, int64_t c);

#endif
