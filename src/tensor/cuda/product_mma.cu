/* Matrix products of bf16 by the matrix instruction.
 *
 * An element is a chain of instructions, sixteen factors each, in order of k from +0 (the
 * last padded by zeros), in fp32. Sums over tokens are such chains of KG_PRODUCT_CHUNK
 * tokens, added to c as they come. So an element's bits are a function of its row and its
 * column alone: whatever tile it is made in, and whatever stands beside it there.
 */
#include "tensor/cuda/cuda_internal.h"

enum { WARP_ROWS = 32, WARP_COLS = 32, WARPS = 4, THREADS = 32 * WARPS };
enum { ROWS = 64, COLS = 64, DEPTH = 64, PAD = 1 /* banks */ };

/* 64 vectors of 64 factors, or 64 rows of factors of 64 vectors */
typedef struct kg_cuda_eight tile[DEPTH][DEPTH / 8 + PAD];

/* A matrix as a product reads it: vectors of factors, each along a row or a column. */
struct factors {
    struct kg_mat m;
    bool down; /* vector i is column i */
};

static __device__ uint32_t element(const struct kg_mat &m, int64_t r, int64_t c)
{
    return r < m.rows && c < m.cols ? kg_cuda_bf16(m, r)[c] : 0;
}

/* to <- factors [k, k+DEPTH) of vectors from `first` on; zeros beyond the matrix */
static __device__ void bring(tile &to, const struct factors &f, int64_t first, int64_t k)
{
    const int64_t row = f.down ? k : first, col = f.down ? first : k;

    for (int e = (int)threadIdx.x; e < DEPTH * DEPTH / 8; e += THREADS) {
        const int r = e / (DEPTH / 8), c = e % (DEPTH / 8);

        for (int i = 0; i < 4; i++)
            to[r][c].pair[i] = element(f.m, row + r, col + 8 * c + 2 * i) |
                               element(f.m, row + r, col + 8 * c + 2 * i + 1) << 16;
    }
}

/* Factors [16 k, 16 k + 16) of sixteen vectors from v on: of the left side, ... */
template <bool DOWN>
static __device__ void left(uint32_t f[4], const tile &from, int v, int k)
{
    const int lane = (int)threadIdx.x % 32;

    if (DOWN)
        kg_fragments_transposed(
            f, &from[16 * k + lane % 8 + lane / 16 * 8][v / 8 + lane / 8 % 2]);
    else
        kg_fragments(f, &from[v + lane % 16][2 * k + lane / 16]);
}
/* ... or of the right one: two operands. */
template <bool DOWN>
static __device__ void right(uint32_t f[4], const tile &from, int v, int k)
{
    const int lane = (int)threadIdx.x % 32;

    if (DOWN)
        kg_fragments_transposed(f, &from[16 * k + lane % 16][v / 8 + lane / 16]);
    else
        kg_fragments(f, &from[v + lane % 8 + lane / 16 * 8][2 * k + lane / 8 % 2]);
}

typedef float sums[WARP_ROWS / 16][WARP_COLS / 8][4];

template <bool A_DOWN, bool B_DOWN>
static __device__ void multiply(sums &s, const tile &a, int row, const tile &b, int col)
{
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
        uint32_t x[WARP_ROWS / 16][4], y[WARP_COLS / 16][4];

#pragma unroll
        for (int i = 0; i < WARP_ROWS / 16; i++)
            left<A_DOWN>(x[i], a, row + 16 * i, k);
#pragma unroll
        for (int j = 0; j < WARP_COLS / 16; j++)
            right<B_DOWN>(y[j], b, col + 16 * j, k);
#pragma unroll
        for (int i = 0; i < WARP_ROWS / 16; i++)
#pragma unroll
            for (int j = 0; j < WARP_COLS / 8; j++)
                kg_mma(s[i][j], x[i], y[j / 2] + j % 2 * 2);
    }
}

/* c (=|+=) what the warp has of it, from (row, col) on; s becomes +0 */
static __device__ void store(struct kg_mat c, bool add, int64_t row, int64_t col, sums &s)
{
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;

#pragma unroll
    for (int i = 0; i < WARP_ROWS / 16; i++)
#pragma unroll
        for (int j = 0; j < WARP_COLS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int64_t r = row + 16 * i + g + e / 2 * 8;
                const int64_t v = col + 8 * j + 2 * t + e % 2;

                if (r < c.rows && v < c.cols)
                    kg_cuda_store(c, r, v,
                                  add ? kg_cuda_load(c, r, v) + s[i][j][e] : s[i][j][e]);
                s[i][j][e] = 0.0f;
            }
}

template <bool A_DOWN, bool B_DOWN>
static __global__ void __launch_bounds__(THREADS)
    product(struct kg_mat c, bool add, struct kg_mat a, struct kg_mat b)
{
    KG_SHARED(struct kg_cuda_eight, held_a, [DEPTH][DEPTH / 8 + PAD]);
    KG_SHARED(struct kg_cuda_eight, held_b, [DEPTH][DEPTH / 8 + PAD]);
    const int64_t first = (int64_t)blockIdx.x * ROWS,
                  left_col = (int64_t)blockIdx.y * COLS;
    const int warp = (int)threadIdx.x / 32;
    const int row = warp / 2 * WARP_ROWS, col = warp % 2 * WARP_COLS;
    const int64_t K = A_DOWN ? a.rows : a.cols;
    int64_t k = 0;
    sums s = {{{0.0f}}};

    do {
        bring(held_a, {a, A_DOWN}, first, k);
        bring(held_b, {b, B_DOWN}, left_col, k);
        __syncthreads();
        multiply<A_DOWN, B_DOWN>(s, held_a, row, held_b, col);
        __syncthreads();
        k += DEPTH;
        if (k >= K || (A_DOWN && k % KG_PRODUCT_CHUNK == 0))
            store(c, add || (A_DOWN && k > KG_PRODUCT_CHUNK), first + row, left_col + col,
                  s);
    } while (k < K);
}

void kg_cuda_product_mma(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                         enum kg_matmul_kind kind, bool accumulate)
{
    const dim3 grid = kg_grid(kg_cuda_pieces(c.rows, ROWS), kg_cuda_pieces(c.cols, COLS));

    if (kind == KG_MATMUL_NT)
        KG_LAUNCH((product<false, false>), grid, THREADS, c, accumulate, a, b);
    else if (kind == KG_MATMUL_NN)
        KG_LAUNCH((product<false, true>), grid, THREADS, c, accumulate, a, b);
    else
        KG_LAUNCH((product<true, true>), grid, THREADS, c, accumulate, a, b);
}
