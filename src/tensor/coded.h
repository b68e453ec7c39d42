/* Weights of a frozen base in panels of 4 or 8 bits, with the values of a GGUF file.
 *
 * The elements of a matrix with `quant` are the fp32 values of its blocks, rounded to
 * bf16. So products, embeddings and casts give the same bits as with that bf16 matrix.
 * Kernels widen codes in registers, or for many rows block by block into the L1 cache.
 *
 * A panel of sixteen rows first holds its codes. A block of 32 columns has sixteen steps,
 * each a pair per row, as in bf16 panels (enum kg_layout). Dword 2r + h, r < 8, holds the
 * codes of half h of several steps. Each step has the code of row r, then of row r + 8:
 * the order of the instruction that rounds to bf16. Codes of 4 bits start at bit 0; codes
 * of 8 bits start at bit 4 and wrap around. The scales follow the codes. A group of 32 or
 * 256 columns (kg_quant.values) has the sixteen rows' `scale`, then their `low`; then,
 * for each block of 32 columns, their `scales` and `lows`, as far as the type has these.
 */
#ifndef KG_TENSOR_CODED_H
#define KG_TENSOR_CODED_H

#include "data/quants.h"
#include "tensor/backend.h"

static inline int64_t kg_coded_block_bytes(const struct kg_quant *q)
{
    return q->form.bits * KG_PRODUCT_BLOCK * KG_PANEL / 8;
}
/* Bytes of a group's `scale` and `low` (_head), and of a block's scales (_part). */
static inline int64_t kg_coded_head_bytes(const struct kg_quant *q)
{
    return (q->form.low ? 2 : 1) * KG_PANEL * 2;
}
static inline int64_t kg_coded_part_bytes(const struct kg_quant *q)
{
    return (q->form.scales + (q->form.scales && q->form.low)) * KG_PANEL;
}
/* Bytes of all scales of a group. */
static inline int64_t kg_coded_group_bytes(const struct kg_quant *q)
{
    return kg_coded_head_bytes(q) + q->values / KG_PRODUCT_BLOCK * kg_coded_part_bytes(q);
}
/* Bytes of a panel, a multiple of 64.   cols: a multiple of kg_quant.values */
static inline int64_t kg_coded_panel_bytes(const struct kg_quant *q, int64_t cols)
{
    const int64_t bytes = cols / KG_PRODUCT_BLOCK * kg_coded_block_bytes(q) +
                          cols / q->values * kg_coded_group_bytes(q);
    return (bytes + 63) / 64 * 64;
}

/* First bit of code k in a dword. */
static inline int kg_coded_bit(int k, int bits)
{
    return (k * bits + (bits == 8 ? 4 : 0)) % 32;
}

/* Fills row r from its blocks as a GGUF file has them. m: zeroed panels in host memory;
 * several threads may fill rows if no two of them are in one panel
 * errors: ENONFINITE (a scale) */
kg_status kg_coded_put(struct kg_mat m, int64_t r, const unsigned char *blocks,
                       struct kg_err *err) KG_MUST_CHECK;
/* Element (r, c) as bf16. Slow: for files and tests. */
uint16_t kg_coded_get(struct kg_mat m, int64_t r, int64_t c);

#endif
