/* Products of queries with vectors stored in few bits: see codes.h.
 *
 * A block has 64 queries and four panels of vectors; a thread has 4 x 4 of their
 * products, with the chains of product.cu. Codes are widened to fp32 on their way to
 * shared memory: a thread reads eight neighbouring codes of a panel in their stored
 * order. Missing queries are not computed, so few queries cost only the reading of the
 * codes.
 */
#include "tensor/cuda/cuda_internal.h"

enum { TILE = 64, EACH = 4, SIDE = TILE / EACH, THREADS = SIDE * SIDE };
enum { DEPTH = 32, PAD = 4 /* bank conflicts */, AT_ONCE = TILE * DEPTH / THREADS };

typedef float tile[DEPTH][TILE + PAD];

struct alignas(16) halves {
    uint16_t at[AT_ONCE];
};
struct alignas(8) bytes {
    int8_t at[AT_ONCE];
};

static __device__ void bring_queries(tile &to, const struct kg_mat &a, int64_t first,
                                     int64_t k)
{
    for (int e = (int)threadIdx.x; e < TILE * DEPTH; e += THREADS) {
        const int64_t q = first + e / DEPTH, d = k + e % DEPTH;

        to[e % DEPTH][e / DEPTH] = q < a.rows && d < a.cols ? kg_cuda_f32(a, q)[d] : 0.0f;
    }
}

/* to[j][i] <- number k + j of vector first + i; 0 after the last panel or number */
template <bool HALF>
static __device__ void bring_codes(tile &to, const struct kg_codes &m, int64_t first,
                                   int64_t k)
{
    enum { PARTS = KG_PANEL / AT_ONCE }; /* of a panel's sixteen vectors */
    const int part = (int)threadIdx.x % PARTS, j = (int)threadIdx.x / PARTS % DEPTH;
    const int panel = (int)threadIdx.x / PARTS / DEPTH, i = panel * KG_PANEL;
    const int64_t at = (((first + i) / KG_PANEL * m.cols) + k + j) * PARTS + part;
    const bool there = first + i < m.rows && k + j < m.cols;
    float *row = &to[j][i + part * AT_ONCE];

    if (!there)
        for (int c = 0; c < AT_ONCE; c++)
            row[c] = 0.0f;
    else if (HALF) {
        const struct halves h = ((const struct halves *)m.data)[at];

#pragma unroll
        for (int c = 0; c < AT_ONCE; c++)
            row[c] = kg_of_half(h.at[c]);
    } else {
        const struct bytes b = ((const struct bytes *)m.data)[at];

#pragma unroll
        for (int c = 0; c < AT_ONCE; c++)
            row[c] = (float)b.at[c];
    }
}

/* part <- the chain of each product, with n more factors */
static __device__ void chain(float part[EACH][EACH], const tile &a, int i, const tile &b,
                             int j, int n)
{
    for (int k = 0; k < n; k++)
#pragma unroll
        for (int r = 0; r < EACH; r++)
#pragma unroll
            for (int c = 0; c < EACH; c++)
                part[r][c] = kg_fma(b[k][j + c], a[k][i + r], part[r][c]);
}

/* End of a chunk: sum (=|+=) part, and part restarts. */
static __device__ void add_chunk(float sum[EACH][EACH], float part[EACH][EACH],
                                 bool first)
{
#pragma unroll
    for (int r = 0; r < EACH; r++)
#pragma unroll
        for (int c = 0; c < EACH; c++) {
            sum[r][c] = first ? part[r][c] : sum[r][c] + part[r][c];
            part[r][c] = 0.0f;
        }
}

template <bool HALF>
static __global__ void __launch_bounds__(THREADS)
    scan(struct kg_mat c, struct kg_mat a, struct kg_codes m)
{
    KG_SHARED(float, left, [DEPTH][TILE + PAD]);
    KG_SHARED(float, right, [DEPTH][TILE + PAD]);
    const int64_t query = (int64_t)blockIdx.y * TILE, row = (int64_t)blockIdx.x * TILE;
    const int i = (int)threadIdx.x / SIDE * EACH, j = (int)threadIdx.x % SIDE * EACH;
    const int64_t width = (m.rows + KG_PANEL - 1) / KG_PANEL * KG_PANEL;
    const bool works = query + i < a.rows && row + j < width;
    float part[EACH][EACH] = {{0.0f}}, sum[EACH][EACH] = {{0.0f}};

    for (int64_t k = 0; k < m.cols; k += DEPTH) {
        const int64_t behind = kg_cuda_min(k + DEPTH, m.cols);

        bring_queries(left, a, query, k);
        bring_codes<HALF>(right, m, row, k);
        __syncthreads();
        if (works)
            chain(part, left, i, right, j, (int)(behind - k));
        if (behind == m.cols || behind % KG_PRODUCT_CHUNK == 0)
            add_chunk(sum, part, behind <= KG_PRODUCT_CHUNK);
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < EACH; r++)
#pragma unroll
        for (int s = 0; s < EACH; s++)
            if (works && query + i + r < a.rows)
                kg_cuda_f32(c, query + i + r)[row + j + s] = sum[r][s];
}

kg_status kg_cuda_scan(struct kg_mat c, struct kg_mat a, const struct kg_codes *m,
                       struct kg_err *err)
{
    const dim3 grid = kg_grid(kg_cuda_pieces(m->rows, TILE),
                              kg_cuda_pieces(a.rows, TILE));

    if (a.rows > 0 && m->code == KG_CODE_F16)
        KG_LAUNCH(scan<true>, grid, THREADS, c, a, *m);
    else if (a.rows > 0)
        KG_LAUNCH(scan<false>, grid, THREADS, c, a, *m);
    return kg_dev_done("scan", err);
}
