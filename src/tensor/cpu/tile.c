/* Small fp32 tiles in scratch memory: see tile_internal.h.
 *
 * The product keeps up to 4 rows x 4 vectors of C in registers, 4 x 1 if a vector takes
 * several registers. Other shapes are divided into smaller constant shapes. This affects
 * speed but no bit: an element's chain of FMAs is the same in each.
 */
#include "tensor/cpu/tile_internal.h"

#include "base/pairs.h"

enum { TILE_ROWS = 4, TILE_VECS = KG_TILE_PANELS > 1 ? 4 : 1 };

#define KG_ALWAYS_INLINE inline __attribute__((always_inline))

/* The right operand: fp32, or bf16 that is widened when read. */
struct right {
    const void *data;
    int64_t row;
};

static KG_ALWAYS_INLINE struct kg_v16 right_at(struct right b, int64_t i, const bool half)
{
    return half ? kg_v16_load_bf16((const uint16_t *)b.data + i)
                : kg_v16_load((const float *)b.data + i);
}

static KG_ALWAYS_INLINE void madd_block(float *c, int64_t ldc, struct kg_cpu_left a,
                                        struct right b, int64_t col, const bool half,
                                        const int rows, const int vecs, int depth)
{
    struct kg_v16 acc[TILE_ROWS][TILE_VECS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vecs; v++)
            acc[r][v] = kg_v16_load(c + r * ldc + col + v * KG_LANES);
    for (int k = 0; k < depth; k++) {
        struct kg_v16 right[TILE_VECS];
        for (int v = 0; v < vecs; v++)
            right[v] = right_at(b, k * b.row + col + v * KG_LANES, half);
        for (int r = 0; r < rows; r++) {
            struct kg_v16 left = kg_v16_set1(a.data[r * a.row + k * a.step]);
            for (int v = 0; v < vecs; v++)
                acc[r][v] = kg_v16_fma(left, right[v], acc[r][v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vecs; v++)
            kg_v16_store(c + r * ldc + col + v * KG_LANES, acc[r][v]);
}

/* All rows of one column strip. */
static KG_ALWAYS_INLINE void madd_strip(float *c, int64_t ldc, struct kg_cpu_left a,
                                        struct right b, int64_t col, const bool half,
                                        int rows, const int vecs, int depth)
{
    int r = 0;
    for (; r + 4 <= rows; r += 4, a.data += 4 * a.row)
        madd_block(c + r * ldc, ldc, a, b, col, half, 4, vecs, depth);
    if (rows - r == 3)
        madd_block(c + r * ldc, ldc, a, b, col, half, 3, vecs, depth);
    else if (rows - r == 2)
        madd_block(c + r * ldc, ldc, a, b, col, half, 2, vecs, depth);
    else if (rows - r == 1)
        madd_block(c + r * ldc, ldc, a, b, col, half, 1, vecs, depth);
}

static KG_ALWAYS_INLINE void madd(float *c, int64_t ldc, struct kg_cpu_left a,
                                  struct right b, const bool half, int rows, int cols,
                                  int depth)
{
    int j = 0;
    for (; j + TILE_VECS * KG_LANES <= cols; j += TILE_VECS * KG_LANES)
        madd_strip(c, ldc, a, b, j, half, rows, TILE_VECS, depth);
    if (TILE_VECS > 2 && j + 2 * KG_LANES <= cols) {
        madd_strip(c, ldc, a, b, j, half, rows, 2, depth);
        j += 2 * KG_LANES;
    }
    if (TILE_VECS > 1 && j < cols)
        madd_strip(c, ldc, a, b, j, half, rows, 1, depth);
}

void kg_cpu_tile_madd(float *c, int64_t ldc, struct kg_cpu_left a, const float *b,
                      int64_t ldb, int rows, int cols, int depth)
{
    madd(c, ldc, a, (struct right){b, ldb}, false, rows, cols, depth);
}

void kg_cpu_tile_madd_bf16(float *c, int64_t ldc, struct kg_cpu_left a, const uint16_t *b,
                           int64_t ldb, int rows, int cols, int depth)
{
    madd(c, ldc, a, (struct right){b, ldb}, true, rows, cols, depth);
}

static void load_row_bf16(float *dst, const uint16_t *src, int cols)
{
    int c = 0;
    for (; c + KG_LANES <= cols; c += KG_LANES)
        kg_v16_store(dst + c, kg_v16_load_bf16(src + c));
    if (c < cols)
        kg_v16_store(dst + c, kg_v16_load_bf16_n(src + c, cols - c));
}

static void load_row_f32(float *dst, const float *src, int cols)
{
    int c = 0;
    for (; c + KG_LANES <= cols; c += KG_LANES)
        kg_v16_store(dst + c, kg_v16_load(src + c));
    if (c < cols)
        kg_v16_store(dst + c, kg_v16_load_n(src + c, cols - c));
}

void kg_cpu_tile_load(float *dst, int64_t ldd, struct kg_mat m, int64_t row, int64_t col,
                      int rows, int cols)
{
    int64_t at = row * m.stride + col;
    for (int r = 0; r < rows; r++, at += m.stride, dst += ldd) {
        if (m.dtype == KG_BF16)
            load_row_bf16(dst, (const uint16_t *)m.data + at, cols);
        else
            load_row_f32(dst, (const float *)m.data + at, cols);
    }
}

static void store_row_bf16(uint16_t *dst, const float *src, int cols)
{
    int c = 0;
    for (; c + KG_LANES <= cols; c += KG_LANES)
        kg_v16_store_bf16(dst + c, kg_v16_load(src + c));
    if (c < cols)
        kg_v16_store_bf16_n(dst + c, kg_v16_load_n(src + c, cols - c), cols - c);
}

void kg_cpu_tile_store(struct kg_mat m, int64_t row, int64_t col, const float *src,
                       int64_t lds, int rows, int cols)
{
    int64_t at = row * m.stride + col;
    for (int r = 0; r < rows; r++, at += m.stride, src += lds) {
        if (m.dtype == KG_BF16)
            store_row_bf16((uint16_t *)m.data + at, src, cols);
        else
            memcpy((float *)m.data + at, src, (size_t)cols * sizeof *src);
    }
}

/* Moves floats as pairs of bf16; both are one dword. */
static void transpose_16(float *dst, int64_t ldd, const float *src, int64_t lds)
{
    struct kg_pairs w[KG_LANES];
    for (int i = 0; i < KG_LANES; i++)
        w[i] = kg_pairs_load((const uint16_t *)(const void *)(src + i * lds));
    kg_pairs_transpose(w);
    for (int i = 0; i < KG_LANES; i++)
        memcpy(dst + i * ldd, &w[i], sizeof w[i]);
}

void kg_cpu_tile_transpose(float *dst, int64_t ldd, const float *src, int64_t lds,
                           int rows, int cols)
{
    for (int r = 0; r < rows; r += KG_LANES)
        for (int c = 0; c < cols; c += KG_LANES)
            transpose_16(dst + c * ldd + r, ldd, src + r * lds + c, lds);
}

/* Sixteen keys times sixteen pairs of columns; the halves of a pair are in two rows of
 * dst. Rows after the last one repeat it. */
static void transpose_pairs(float *dst, int64_t ldd, const uint16_t *src, int64_t lds,
                            int rows)
{
    struct kg_pairs w[KG_LANES];
    for (int i = 0; i < KG_LANES; i++)
        w[i] = kg_pairs_load(src + (i < rows ? i : rows - 1) * lds);
    kg_pairs_transpose(w);
    for (int i = 0; i < KG_LANES; i++) {
        kg_v16_store(dst + 2 * i * ldd, kg_pairs_low(w[i]));
        kg_v16_store(dst + (2 * i + 1) * ldd, kg_pairs_high(w[i]));
    }
}

void kg_cpu_tile_load_transposed(float *dst, int64_t ldd, float *room, struct kg_mat m,
                                 int64_t row, int64_t col, int rows, int cols)
{
    const int padded = kg_cpu_padded(cols);
    if (m.dtype != KG_BF16 || cols % (2 * KG_LANES) != 0) {
        kg_cpu_tile_load(room, padded, m, row, col, rows, cols);
        kg_cpu_tile_transpose(dst, ldd, room, padded, kg_cpu_padded(rows), padded);
        return;
    }
    const uint16_t *src = (const uint16_t *)m.data + row * m.stride + col;
    for (int r = 0; r < rows; r += KG_LANES)
        for (int c = 0; c < cols; c += 2 * KG_LANES)
            transpose_pairs(dst + c * ldd + r, ldd, src + r * m.stride + c, m.stride,
                            rows - r);
}
