/* Small fp32 tiles in scratch memory: loading, transposing, and one product.
 *
 * Attention, forward and backward, consists of small products of tiles of queries and
 * blocks of keys. All use kg_cpu_tile_madd, which makes attention exact: every element of
 * C is one chain of FMAs over k, in order, so its bits do not depend on other rows or
 * columns. Large products use kg_op_matmul instead.
 *
 * Tiles are padded: the number of columns in memory is a multiple of KG_LANES.
 */
#ifndef KG_TENSOR_CPU_TILE_INTERNAL_H
#define KG_TENSOR_CPU_TILE_INTERNAL_H

#include "tensor/backend.h"

#include <stdint.h>

/* The left operand of a product: element (r, k) is data[r*row + k*step], so transposing
 * it is free. */
struct kg_cpu_left {
    const float *data; /* borrowed */
    int64_t row;
    int64_t step;
};

static inline int kg_cpu_padded(int n) { return (n + 15) / 16 * 16; }

/* c[r,j] <- fma(a[r,depth-1], b[depth-1,j], ... fma(a[r,0], b[0,j], c[r,j]))
 * c (rows, cols) with stride ldc; b (depth, cols) with stride ldb; cols a multiple of
 * KG_LANES */
void kg_cpu_tile_madd(float *c, int64_t ldc, struct kg_cpu_left a, const float *b,
                      int64_t ldb, int rows, int cols, int depth);

/* kg_cpu_tile_madd with b in bf16, widened where it is read. */
void kg_cpu_tile_madd_bf16(float *c, int64_t ldc, struct kg_cpu_left a, const uint16_t *b,
                           int64_t ldb, int rows, int cols, int depth);

/* dst (rows, padded cols) <- the part of m at (row, col) as fp32; padded by +0 */
void kg_cpu_tile_load(float *dst, int64_t ldd, struct kg_mat m, int64_t row, int64_t col,
                      int rows, int cols);
/* The rows x cols part of m at (row, col) <- src, rounded once to m's dtype */
void kg_cpu_tile_store(struct kg_mat m, int64_t row, int64_t col, const float *src,
                       int64_t lds, int rows, int cols);

/* dst (cols, rows) <- src (rows, cols) transposed; rows and cols multiples of KG_LANES */
void kg_cpu_tile_transpose(float *dst, int64_t ldd, const float *src, int64_t lds,
                           int rows, int cols);
/* dst (padded cols, padded rows) <- the rows x cols part of m at (row, col), transposed,
 * as fp32; padding is undefined.   room: scratch (padded rows, padded cols) */
void kg_cpu_tile_load_transposed(float *dst, int64_t ldd, float *room, struct kg_mat m,
                                 int64_t row, int64_t col, int rows, int cols);

#endif
