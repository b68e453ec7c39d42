/* Matrix products of bf16 by the matrix instruction.
 *
 * An element is a chain of instructions, sixteen factors each, in order of k from +0 (the
 * last padded by zeros), in fp32. Sums over tokens are such chains of KG_PRODUCT_CHUNK
 * tokens; each is added, as it ends, to a sum in registers, which begins as c and is
 * written once. So an element's bits are a function of its row and its column alone, and
 * any tile may be used for any shape: kedge uses the largest tile of which there are
 * enough to fill a device.
 *
 * A block has a tile of c and brings DEPTH factors of its vectors at a time into one of
 * STAGES places of shared memory; these copies arrive while it computes with earlier
 * places. A warp has a part of the tile in registers, and loads the operands of the next
 * instructions before it issues the current ones.
 *
 * Not measured. Counted for an H100: 128 x 256 makes 85 flops per byte brought, so 500
 * TFLOP/s need 5.9 TB/s from L2, about what it gives. For 16 factors a warp reads 64 + 64
 * vectors, 32 clocks of shared memory, and the four warps of as many units issue 32
 * instructions of 4 to 6.5 clocks each: 128 clocks for both. Expected 400 to 500 TFLOP/s.
 * Sums over tokens: 128 x 128 by eight warps, 64 flops per byte, expected 350 to 400; 128
 * x 256 would read and write 256 KB of c per chunk, 7 us of L2 after 20 us of products.
 * Few rows: weights are read once; each of 56 blocks of 16 columns (N 896) has 28 KB of
 * them in flight, 1.6 MB of the 3 MB that 4 TB/s need. A chain takes about 33 clocks for
 * 16 factors whatever else runs, 6 us for K 4,864: this, not memory, bounds a narrow deep
 * product of few rows.
 */
#include "tensor/cuda/groups_internal.h"
#include "tensor/cuda/twos_internal.h"

/* ---- tiles ---- */
/* ROWS x COLS of c. DOWN x ALONG warps compute, and all WARPS load; BLOCKS blocks fit a
 * multiprocessor. */
template <int ROWS_, int COLS_, int DEPTH_, int DOWN_, int ALONG_, int WARPS_,
          int STAGES_, int BLOCKS_>
struct tile {
    enum {
        ROWS = ROWS_,
        COLS = COLS_,
        DEPTH = DEPTH_,
        DOWN = DOWN_,
        ALONG = ALONG_,
        THREADS = WARPS_ * 32,
        STAGES = STAGES_,
        BLOCKS = BLOCKS_,
        LEFT = ROWS_ / DOWN_ / 16,  /* operands of a warp, sixteen rows each */
        RIGHT = COLS_ / ALONG_ / 16 /* sixteen columns each */
    };
};

/* Layout of the factors of N vectors in shared memory: rows of W units of eight. A row is
 * one k if the vectors are columns in memory, otherwise one vector. */
template <bool COLUMNS, int N, int DEPTH> struct side {
    enum { W = (COLUMNS ? N : DEPTH) / 8, H = COLUMNS ? DEPTH : N, UNITS = W * H };
    /* Swizzle: the units at c of eight rows cover all banks, each once. */
    static __device__ int unit(int r, int c)
    {
        return r * W + (c ^ (W >= 8 ? r % 8 : r / (8 / (W < 8 ? W : 8)) % W));
    }
};

/* ---- from memory ---- */
static __device__ bool in_sixteens(const struct kg_mat &m)
{
    return ((uintptr_t)m.data | (uintptr_t)m.stride * sizeof(uint16_t)) % 16 == 0;
}

/* The first n of eight elements, then zeros. */
static __device__ struct kg_cuda_eight gather(const uint16_t *from, int n)
{
    struct kg_cuda_eight e;

    for (int i = 0; i < 4; i++) {
        const uint32_t first = 2 * i < n ? from[2 * i] : 0;
        const uint32_t second = 2 * i + 1 < n ? from[2 * i + 1] : 0;

        e.pair[i] = first | second << 16;
    }
    return e;
}

/* to <- m from (row, col) on; zeros outside. All units of a thread are in one column. */
template <class S, int THREADS>
static __device__ void bring(struct kg_cuda_eight *to, const struct kg_mat &m,
                             int64_t row, int64_t col)
{
    const int r0 = (int)threadIdx.x / S::W, c = (int)threadIdx.x % S::W;
    const int rows = (int)kg_cuda_min(m.rows - row, S::H);
    const int64_t left = m.cols - col - 8 * c;
    const int n = left > 8 ? 8 : left > 0 ? (int)left : 0;
    const uint16_t *from = kg_cuda_bf16(m, row + r0) + col + 8 * c;
    enum { DOWN = THREADS / S::W }; /* rows between a thread's units */

    static_assert(THREADS % S::W == 0 && S::UNITS % THREADS % 32 == 0, "whole warps");
    if (in_sixteens(m)) {
#pragma unroll
        for (int r = r0; r < r0 + S::H; r += DOWN, from += DOWN * m.stride)
            if (S::H % DOWN == 0 || r < S::H)
                kg_copy_later(to + S::unit(r, c), from,
                              r < rows ? n * (int)sizeof *from : 0);
    } else {
#pragma unroll 1
        for (int r = r0; r < S::H; r += DOWN, from += DOWN * m.stride)
            to[S::unit(r, c)] = gather(from, r < rows ? n : 0);
    }
}

/* ---- from shared memory to the instruction ---- */
/* Sixteen factors, from 16 k on, of sixteen vectors from v on: for the left side ... */
template <bool COLUMNS, class S>
static __device__ void left(uint32_t f[4], const struct kg_cuda_eight *from, int v, int k,
                            int lane)
{
    if (COLUMNS)
        kg_fragments_transposed(
            f, from + S::unit(16 * k + lane % 8 + lane / 16 * 8, v / 8 + lane / 8 % 2));
    else
        kg_fragments(f, from + S::unit(v + lane % 16, 2 * k + lane / 16));
}
/* ... and for the right side: two operands. */
template <bool COLUMNS, class S>
static __device__ void right(uint32_t f[4], const struct kg_cuda_eight *from, int v,
                             int k, int lane)
{
    if (COLUMNS)
        kg_fragments_transposed(f, from + S::unit(16 * k + lane % 16, v / 8 + lane / 16));
    else
        kg_fragments(f,
                     from + S::unit(v + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
}

template <class T> struct operands {
    uint32_t a[T::LEFT][4];
    uint32_t b[T::RIGHT][4];
};

/* A warp's part of c: [i][j][e] is row 16 i + lane / 4 + e / 2 * 8 of it, column
 * 8 j + lane % 4 * 2 + e % 2. */
template <class T> struct part {
    float at[T::LEFT][2 * T::RIGHT][4];
};

template <class T>
static __device__ void multiply(struct part<T> *s, const struct operands<T> *o)
{
#pragma unroll
    for (int i = 0; i < T::LEFT; i++)
#pragma unroll
        for (int j = 0; j < 2 * T::RIGHT; j++)
            kg_mma(s->at[i][j], o->a[i], o->b[j / 2] + j % 2 * 2);
}

/* ---- to c ---- */
/* Position of a warp's part in c. */
struct place {
    struct kg_mat c;
    const float *old; /* what is added to, in c's layout; NULL: nothing */
    int64_t row, col;
    bool paired;

    __device__ struct kg_cuda_two before(int64_t r, int64_t v) const
    {
        struct kg_mat m = c;

        m.data = const_cast<float *>(old);
        return kg_cuda_two_get(m, r, v, paired);
    }
};

/* s <- old */
template <class T> static __device__ void load(struct part<T> *s, struct place p)
{
    p.row = kg_anew(p.row);
    p.col = kg_anew(p.col);
#pragma unroll
    for (int i = 0; i < T::LEFT; i++)
#pragma unroll
        for (int j = 0; j < 2 * T::RIGHT; j++)
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                const struct kg_cuda_two x = p.before(p.row + 16 * i + e / 2 * 8,
                                                      p.col + 8 * j);

                s->at[i][j][e] = x.x;
                s->at[i][j][e + 1] = x.y;
            }
}

/* End of a chunk: sum (=|+=) chain, and the chain restarts. */
template <class T>
static __device__ void end_chunk(struct part<T> *sum, struct part<T> *chain, bool add)
{
#pragma unroll
    for (int i = 0; i < T::LEFT; i++)
#pragma unroll
        for (int j = 0; j < 2 * T::RIGHT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float x = chain->at[i][j][e];

                sum->at[i][j][e] = add ? sum->at[i][j][e] + x : x;
                chain->at[i][j][e] = 0.0f;
            }
}

/* c = s, or old + s */
template <class T>
static __device__ void store(struct place p, bool add, const struct part<T> *s)
{
    p.row = kg_anew(p.row);
    p.col = kg_anew(p.col);
#pragma unroll
    for (int i = 0; i < T::LEFT; i++)
#pragma unroll
        for (int j = 0; j < 2 * T::RIGHT; j++)
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                const int64_t r = p.row + 16 * i + e / 2 * 8, v = p.col + 8 * j;
                struct kg_cuda_two x = {s->at[i][j][e], s->at[i][j][e + 1]};

                if (add) {
                    const struct kg_cuda_two y = p.before(r, v);

                    x = {y.x + x.x, y.y + x.y};
                }
                kg_cuda_two_set(p.c, r, v, p.paired, x);
            }
}

/* ---- the product ---- */
/* The two sides of a tile; a stage has both. */
template <class T, bool A_COLUMNS, bool B_COLUMNS> struct sides {
    typedef side<A_COLUMNS, T::ROWS, T::DEPTH> a;
    typedef side<B_COLUMNS, T::COLS, T::DEPTH> b;
    enum { UNITS = a::UNITS + b::UNITS, BYTES = T::STAGES * UNITS * 16 };

    static __device__ struct kg_cuda_eight *stage(struct kg_cuda_eight *held, int step)
    {
        return held + step % T::STAGES * UNITS;
    }

    /* A group of copies: the factors of a step, or nothing after the last step. */
    static __device__ void ahead(struct kg_cuda_eight *held, const struct kg_mat &left,
                                 const struct kg_mat &right, int64_t row, int step,
                                 int steps)
    {
        const int64_t col = (int64_t)blockIdx.y * T::COLS, k = (int64_t)step * T::DEPTH;
        struct kg_cuda_eight *to = stage(held, step);

        if (step < steps) {
            bring<a, T::THREADS>(to, left, A_COLUMNS ? k : row, A_COLUMNS ? row : k);
            bring<b, T::THREADS>(to + a::UNITS, right, B_COLUMNS ? k : col,
                                 B_COLUMNS ? col : k);
        }
        kg_copies_end();
    }

    static __device__ void fetch(struct operands<T> *o, const struct kg_cuda_eight *from,
                                 int row, int col, int k)
    {
        const int mine = (int)threadIdx.x % 32, lane = B_COLUMNS ? kg_anew(mine) : mine;

#pragma unroll
        for (int i = 0; i < T::LEFT; i++)
            left<A_COLUMNS, a>(o->a[i], from, row + 16 * i, k, lane);
#pragma unroll
        for (int j = 0; j < T::RIGHT; j++)
            right<B_COLUMNS, b>(o->b[j], from + a::UNITS, col + 16 * j, k, lane);
    }
};

/* The tile of c whose first row is `top`. */
template <class T, bool A_COLUMNS, bool B_COLUMNS>
static __device__ void make(const struct kg_mat &c, const float *old,
                            const struct kg_mat &a, const struct kg_mat &b, int64_t top)
{
    typedef sides<T, A_COLUMNS, B_COLUMNS> both;
    enum {
        TURNS = T::DEPTH / 16,
        AHEAD = T::STAGES - 1,
        CHUNK = KG_PRODUCT_CHUNK / T::DEPTH
    };
    KG_SHARED_ASKED(struct kg_cuda_eight, held);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const bool works = warp < T::DOWN * T::ALONG;
    const int row = warp / T::ALONG * T::LEFT * 16, col = warp % T::ALONG * T::RIGHT * 16;
    const bool add = old != NULL;
    const struct place place = {c, old, top + row + lane / 4,
                                (int64_t)blockIdx.y * T::COLS + col + lane % 4 * 2,
                                kg_cuda_in_twos(c) && (uintptr_t)old % 8 == 0};
    const int64_t K = A_COLUMNS ? a.rows : a.cols;
    const int steps = K > 0 ? (int)((K - 1) / T::DEPTH + 1) : 1;
    struct part<T> chain = {
        {
            {
                {
                    0.0f
                }
            }
        }
    };
    struct part<T> sum; /* of chunks */
    struct operands<T> next[2];

    for (int s = 0; s < AHEAD; s++)
        both::ahead(held, a, b, top, s, steps);
    kg_copies_wait<AHEAD - 1>();
    __syncthreads();
    if (works)
        both::fetch(&next[0], held, row, col, 0);
    for (int step = 0; step < steps; step++) {
        const struct kg_cuda_eight *now = both::stage(held, step);

#pragma unroll
        for (int k = 0; k < TURNS; k++) {
            if (k == TURNS - 1) { /* every warp has fetched all it needs of this stage */
                kg_copies_wait<AHEAD - 1>();
                __syncthreads();
                now = both::stage(held, step + 1);
            }
            if (works)
                both::fetch(&next[(k + 1) % 2], now, row, col, (k + 1) % TURNS);
            if (k == 0)
                both::ahead(held, a, b, top, step + AHEAD, steps);
            if (works)
                multiply(&chain, &next[k % 2]);
        }
        if (A_COLUMNS && works && ((step + 1) % CHUNK == 0 || step + 1 == steps)) {
            if (add && step < CHUNK)
                load(&sum, place);
            end_chunk(&sum, &chain, add || step >= CHUNK);
            both::fetch(&next[0], now, row, col, 0); /* again, to free registers above */
        }
    }
    if (works)
        store(place, !A_COLUMNS && add, A_COLUMNS ? &sum : &chain);
}

template <class T, bool A_COLUMNS, bool B_COLUMNS>
static __global__ void __launch_bounds__(T::THREADS, T::BLOCKS)
    product(struct kg_mat c, const float *old, struct kg_mat a, struct kg_mat b)
{
    make<T, A_COLUMNS, B_COLUMNS>(c, old, a, b, (int64_t)blockIdx.x * T::ROWS);
}

/* The product of one expert, whose operands are in shared memory after the factors. */
template <class T, bool A_COLUMNS, bool B_COLUMNS>
static __global__ void __launch_bounds__(T::THREADS, T::BLOCKS)
    groups(struct kg_mat c, bool add, struct kg_mat a, struct kg_mat b,
           struct kg_groups g)
{
    typedef sides<T, A_COLUMNS, B_COLUMNS> both;
    KG_SHARED_ASKED(struct kg_cuda_eight, held);
    struct kg_cuda_share *const s = (struct kg_cuda_share *)(held + both::BYTES / 16);

    kg_cuda_share_out<A_COLUMNS>(s, c, a, b, g, add, T::ROWS);
    if (s->row >= 0)
        make<T, A_COLUMNS, B_COLUMNS>(s->c, add ? kg_cuda_f32(s->c, 0) : NULL, s->a, s->b,
                                      s->row);
}

/* ---- choice of the tile ---- */
struct choice {
    int rows, cols;
    void (*launch)(struct kg_mat c, const float *old, struct kg_mat a, struct kg_mat b,
                   const struct kg_groups *g);
};

template <class T, bool A_COLUMNS, bool B_COLUMNS>
static void launch(struct kg_mat c, const float *old, struct kg_mat a, struct kg_mat b,
                   const struct kg_groups *)
{
    const dim3 grid = kg_grid(kg_cuda_pieces(c.rows, T::ROWS),
                              kg_cuda_pieces(c.cols, T::COLS));
    typedef sides<T, A_COLUMNS, B_COLUMNS> both;

    static_assert((int)both::BYTES <= (int)KG_ASKED_MOST, "shared memory");
    KG_LAUNCH_ASKING(both::BYTES, (product<T, A_COLUMNS, B_COLUMNS>), grid, T::THREADS, c,
                     old, a, b);
}

template <class T, bool A_COLUMNS, bool B_COLUMNS>
static void launch_groups(struct kg_mat c, const float *old, struct kg_mat a,
                          struct kg_mat b, const struct kg_groups *g)
{
    const dim3 grid = kg_grid(kg_cuda_group_tiles(g, c, A_COLUMNS, T::ROWS),
                              kg_cuda_pieces(c.cols, T::COLS));
    typedef sides<T, A_COLUMNS, B_COLUMNS> both;

    KG_LAUNCH_ASKING(both::BYTES + sizeof(struct kg_cuda_share),
                     (groups<T, A_COLUMNS, B_COLUMNS>), grid, T::THREADS, c, old != NULL,
                     a, b, *g);
}

#define BY(launch, a_columns, b_columns, ...)                                            \
    {                                                                                    \
        tile<__VA_ARGS__>::ROWS, tile<__VA_ARGS__>::COLS,                                \
            launch<tile<__VA_ARGS__>, a_columns, b_columns>                              \
    }
#define CHOICE(...) BY(launch, __VA_ARGS__)
#define GROUPS(...) BY(launch_groups, __VA_ARGS__)

static const struct choice nt[] = {
    CHOICE(false, false, 128, 256, 32, 2, 4, 8, 4, 1),
    CHOICE(false, false, 128, 128, 32, 2, 2, 4, 4, 2),
    CHOICE(false, false, 64, 64, 64, 2, 2, 4, 4, 2),
    CHOICE(false, false, 32, 64, 128, 2, 2, 4, 4, 2),
    CHOICE(false, false, 16, 64, 128, 1, 4, 4, 4, 2),
    CHOICE(false, false, 32, 16, 128, 2, 1, 4, 6, 2),
    CHOICE(false, false, 16, 32, 128, 1, 2, 4, 6, 2),
    CHOICE(false, false, 16, 16, 128, 1, 1, 4, 8, 2),
};
static const struct choice nn[] = {
    CHOICE(false, true, 128, 256, 32, 2, 4, 8, 4, 1),
    CHOICE(false, true, 128, 128, 32, 2, 2, 4, 4, 2),
    CHOICE(false, true, 64, 64, 64, 2, 2, 4, 4, 2),
};
/* A thread has two sums per element, so half as many elements. */
static const struct choice tn[] = {
    CHOICE(true, true, 128, 128, 32, 2, 4, 8, 4, 1),
    CHOICE(true, true, 64, 64, 64, 2, 2, 4, 4, 2),
};

/* For experts: fewer sizes, because many experts fill a device with large tiles. */
static const struct choice groups_nt[] = {
    GROUPS(false, false, 128, 128, 32, 2, 2, 4, 4, 2),
    GROUPS(false, false, 64, 64, 64, 2, 2, 4, 4, 2),
    GROUPS(false, false, 16, 64, 128, 1, 4, 4, 4, 2),
    GROUPS(false, false, 16, 16, 128, 1, 1, 4, 8, 2),
};
static const struct choice groups_nn[] = {
    GROUPS(false, true, 128, 128, 32, 2, 2, 4, 4, 2),
    GROUPS(false, true, 64, 64, 64, 2, 2, 4, 4, 2),
};
static const struct choice groups_tn[] = {
    GROUPS(true, true, 128, 128, 32, 2, 4, 8, 4, 1),
    GROUPS(true, true, 64, 64, 64, 2, 2, 4, 4, 2),
};

/* The choices for one kind. */
struct choices {
    const struct choice *list;
    size_t n;
};
#define CHOICES(list)                                                                    \
    {                                                                                    \
        list, sizeof list / sizeof *list                                                 \
    }

/* The first, so the largest, tile that `products` of rows x cols each fill at least half,
 * and of which there are enough for a device; otherwise the last. */
static const struct choice *choose(struct choices from, int64_t products, int64_t rows,
                                   int64_t cols)
{
    const struct choice *c = from.list, *const last = c + from.n - 1;

    while (c < last &&
           (2 * rows <= c->rows || 2 * cols <= c->cols ||
            products * kg_cuda_pieces(rows, c->rows) * kg_cuda_pieces(cols, c->cols) <
                KG_DEV_BLOCKS))
        c++;
    return c;
}

void kg_cuda_product_mma(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                         enum kg_matmul_kind kind, const float *old)
{
    static const struct choices of[] = {CHOICES(nt), CHOICES(nn), CHOICES(tn)};

    choose(of[kind], 1, c.rows, c.cols)->launch(c, old, a, b, NULL);
}

/* The rows per expert are unknown: assumes their mean, over at most as many experts as
 * rows. */
void kg_cuda_groups_mma(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                        const struct kg_groups *g, enum kg_matmul_kind kind,
                        bool accumulate)
{
    static const struct choices of[] = {CHOICES(groups_nt), CHOICES(groups_nn),
                                        CHOICES(groups_tn)};
    const bool tn = kind == KG_MATMUL_TN;
    const int64_t busy = tn ? g->n : kg_cuda_min(g->n, c.rows);
    const int64_t rows = tn ? c.rows : kg_cuda_pieces(c.rows, busy);

    choose(of[kind], busy, rows, c.cols)
        ->launch(c, accumulate ? (const float *)c.data : NULL, a, b, g);
}
