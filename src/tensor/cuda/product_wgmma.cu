/* Products of bf16 by wgmma, the instruction of four warps of Hopper (9.0): the chains of
 * product_mma.cu, for large products.
 *
 * A block stays on its multiprocessor and computes tiles of 128 x COLS one after another.
 * One thread brings both sides of a tile by boxes (TMA), 64 factors at a time, into one
 * of STAGES places of shared memory, and continues with the next tile while the last one
 * is stored. Each of two groups of four warps has 64 rows. Elements outside a matrix
 * arrive as zeros.
 *
 * Whether an instruction of sixteen factors adds as that of product_mma.cu does depends
 * on the device and is not documented: product_own.cu tries it, and product_blas.cu
 * against a plan of cuBLASLt. If a bit differs, nothing here is used.
 *
 * Boxes are better than copies of sixteen bytes: one thread requests 48 KB by two to six
 * instructions, addresses and zeros beyond the end cost nothing, and the barrier counts
 * the bytes. The driver describes a box's matrix on the host, per launch, by 128 bytes
 * that a kernel takes by value and a recorded graph keeps.
 *
 * Not measured. Counted for an H100 or H200 (132 multiprocessors at 1.75 GHz, 946
 * TFLOP/s): 64 x 256 x 16 takes 128 clocks, and 80 to read 2 + 8 KB of shared memory; 64
 * x 128 x 16 takes 64 and 48. 128 x 256 makes 85 flops per byte brought, so 600 TFLOP/s
 * need 7 TB/s from L2; 128 x 192 makes 77, 128 x 128 64. Expected TFLOP/s: 550 to 650 for
 * 4,096 rows or more by 256 columns; for sums over tokens 480 to 560 by 192, 400 to 460
 * by 128.
 */
#include "tensor/cuda/pipeline_internal.h"
#include "tensor/cuda/twos_internal.h"

/* ---- tiles ---- */
enum { ROWS = 128, DEPTH = KG_BOX, HALF = ROWS / 2 };
enum { CHUNK = KG_PRODUCT_CHUNK / DEPTH };

template <int COLS_, bool A_COLUMNS_, bool B_COLUMNS_> struct tile {
    enum {
        COLS = COLS_,
        A_COLUMNS = A_COLUMNS_, /* TN */
        B_COLUMNS = B_COLUMNS_,
        A_BYTES = ROWS * KG_LINE,
        BYTES = A_BYTES + COLS * KG_LINE, /* per stage */
        STAGES = (200 << 10) / BYTES,
        ASKED = kg_cuda_pipeline_asks(STAGES, BYTES, 0),
        SUMS = COLS / 2 /* per thread */
    };
    static_assert((int)ASKED <= (int)KG_HOPPER_MOST, "shared memory");
};

/* Tiles of c, and their order: the first column of GROUP rows of tiles, then the next
 * column, so that blocks that run together read the same vectors. */
struct work {
    int down, along, blocks, steps;

    __device__ void find(int *row, int *col, int tile) const
    {
        enum { GROUP = 16 };
        const int group = tile / (GROUP * along), first = group * GROUP;
        const int height = down - first < GROUP ? down - first : GROUP;
        const int within = tile - first * along;

        *row = first + within % height;
        *col = within / height;
    }
};

/* ---- the producer thread ---- */
template <bool COLUMNS, int VECTORS>
static __device__ void bring(char *to, const struct kg_boxes *from, int vector, int k,
                             struct kg_barrier *full)
{
    if (!COLUMNS)
        kg_box_later(to, from, vector, k, full);
    for (int v = 0; COLUMNS && v < VECTORS; v += KG_BOX)
        kg_box_later(to + v / KG_BOX * KG_BOX_BYTES, from, k, vector + v, full);
}

template <class T>
static __device__ void bring_all(const struct kg_cuda_places &p, const struct work &w,
                                 const struct kg_boxes *a, const struct kg_boxes *b)
{
    struct kg_cuda_turn t = {0, 0, KG_TRIES};
    int row, col;

    for (int tile = (int)blockIdx.x; tile < w.down * w.along; tile += w.blocks) {
        w.find(&row, &col, tile);
        for (int step = 0; step < w.steps; step++, kg_cuda_go_on<T::STAGES>(&t)) {
            char *to = p.at + t.place * T::BYTES;

            t.await(&p.empty[t.place], t.parity ^ 1);
            kg_barrier_expect(&p.full[t.place], T::BYTES);
            bring<T::A_COLUMNS, ROWS>(to, a, row * ROWS, step * DEPTH, &p.full[t.place]);
            bring<T::B_COLUMNS, T::COLS>(to + T::A_BYTES, b, col * T::COLS, step * DEPTH,
                                         &p.full[t.place]);
        }
    }
}

/* ---- the consumer warps ---- */
/* chain += the next n stages */
template <class T>
static __device__ void multiply(float chain[T::SUMS], const struct kg_cuda_places &p,
                                struct kg_cuda_turn *t, int half, int n)
{
    int before = -1; /* the stage whose products may not be complete */

    kg_sums_are_there<T::SUMS>(chain);
    for (int step = 0; step < n; step++, kg_cuda_go_on<T::STAGES>(t)) {
        const char *a = p.at + t->place * T::BYTES + half * HALF * KG_LINE;
        const char *b = p.at + t->place * T::BYTES + T::A_BYTES;

        t->await(&p.full[t->place], t->parity);
        __syncwarp();
        kg_products_begin();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++)
            kg_multiply_later<T::COLS, T::A_COLUMNS, T::B_COLUMNS>(
                chain, kg_cuda_factors_of<T::A_COLUMNS>(a, k),
                kg_cuda_factors_of<T::B_COLUMNS>(b, k));
        kg_products_end();
        kg_products_wait<1>();
        if (before >= 0)
            kg_cuda_leave(p, before);
        before = t->place;
    }
    kg_products_wait<0>();
    kg_sums_are_there<T::SUMS>(chain);
    if (before >= 0)
        kg_cuda_leave(p, before);
}

/* Position of a thread's sums: [4 j + e] is row `row` + e / 2 * 8, column `col` + 8 j + e
 * % 2. */
struct place {
    int64_t row, col;
    bool twos;
    bool whole; /* all are in c, and can be moved as twos */
};

/* WHOLE: without a check per element. get reads what is added to: fp32. */
template <bool WHOLE>
static __device__ struct kg_cuda_two get(const struct kg_mat &c, int64_t r, int64_t v,
                                         bool twos)
{
    return WHOLE ? *(const struct kg_cuda_two *)(kg_cuda_f32(c, r) + v)
                 : kg_cuda_two_get(c, r, v, twos);
}
template <bool WHOLE>
static __device__ void set(const struct kg_mat &c, int64_t r, int64_t v, bool twos,
                           struct kg_cuda_two x)
{
    if (!WHOLE)
        kg_cuda_two_set(c, r, v, twos, x);
    else if (c.dtype == KG_F32)
        *(struct kg_cuda_two *)(kg_cuda_f32(c, r) + v) = x;
    else
        *(uint32_t *)(kg_cuda_bf16(c, r) + v) = kg_pair(x.x, x.y);
}

/* s <- the sums that are added to */
template <class T, bool WHOLE>
static __device__ void load(float s[T::SUMS], const struct kg_mat &old, struct place p)
{
#pragma unroll
    for (int i = 0; i < T::SUMS; i += 2) {
        const struct kg_cuda_two x = get<WHOLE>(old, p.row + i / 2 % 2 * 8,
                                                p.col + i / 4 * 8, p.twos);

        s[i] = x.x;
        s[i + 1] = x.y;
    }
}

/* c = s, or old + s */
template <class T, bool WHOLE>
static __device__ void store(const struct kg_mat &c, const struct kg_mat &old,
                             struct place p, bool add, const float s[T::SUMS])
{
#pragma unroll
    for (int i = 0; i < T::SUMS; i += 2) {
        const int64_t r = p.row + i / 2 % 2 * 8, v = p.col + i / 4 * 8;
        struct kg_cuda_two x = {s[i], s[i + 1]};

        if (add) {
            const struct kg_cuda_two y = get<WHOLE>(old, r, v, p.twos);

            x = {y.x + x.x, y.y + x.y};
        }
        set<WHOLE>(c, r, v, p.twos, x);
    }
}

/* Half of a tile: one chain, or (TN) a chain per chunk. */
template <class T>
static __device__ void make(const struct kg_mat &c, const float *before,
                            const struct kg_cuda_places &p, struct kg_cuda_turn *t,
                            int half, int steps, struct place at)
{
    const bool add = before != NULL;
    struct kg_mat old = c; /* in c's layout */

    float chain[T::SUMS], sum[T::A_COLUMNS ? T::SUMS : 1];

    old.data = const_cast<float *>(before);
    for (int step = 0; step < steps; step += T::A_COLUMNS ? CHUNK : steps) {
        const int left = steps - step;
        const bool first = step == 0;

#pragma unroll
        for (int i = 0; i < T::SUMS; i++)
            chain[i] = 0.0f;
        multiply<T>(chain, p, t, half, T::A_COLUMNS && left > CHUNK ? CHUNK : left);
        if (t->tries == 0)
            chain[0] = chain[1] = chain[2] = chain[3] = NAN;
        if constexpr (T::A_COLUMNS) {
            if (first && add && at.whole)
                load<T, true>(sum, old, at);
            else if (first && add)
                load<T, false>(sum, old, at);
#pragma unroll
            for (int i = 0; i < T::SUMS; i++)
                sum[i] = first && !add ? chain[i] : sum[i] + chain[i];
        }
    }
    const float *made = T::A_COLUMNS ? sum : chain;

    if (at.whole)
        store<T, true>(c, old, at, !T::A_COLUMNS && add, made);
    else
        store<T, false>(c, old, at, !T::A_COLUMNS && add, made);
}

template <class T>
static __device__ void make_all(const struct kg_mat &c, const float *old,
                                const struct kg_cuda_places &p, const struct work &w)
{
    const int lane = (int)threadIdx.x % KG_WARP, warp = (int)threadIdx.x / KG_WARP % 4;
    const int half = (int)threadIdx.x / KG_FOUR_WARPS - 1;
    const bool twos = kg_cuda_in_twos(c) && (uintptr_t)old % 8 == 0;
    struct kg_cuda_turn t = {0, 0, KG_TRIES};
    int row, col;

    for (int tile = (int)blockIdx.x; tile < w.down * w.along; tile += w.blocks) {
        w.find(&row, &col, tile);
        const int64_t top = (int64_t)row * ROWS + half * HALF,
                      left = (int64_t)col * T::COLS;

        make<T>(c, old, p, &t, half, w.steps,
                {top + warp * 16 + lane / 4, left + lane % 4 * 2, twos,
                 twos && top + HALF <= c.rows && left + T::COLS <= c.cols});
    }
}

/* One thread of the first four warps produces; they give registers to the others. */
template <class T>
static __global__ void __launch_bounds__(KG_PIPELINE_THREADS, 1)
    product(struct kg_mat c, const float *old, const __grid_constant__ struct kg_boxes a,
            const __grid_constant__ struct kg_boxes b, struct work w)
{
    if constexpr (KG_HOPPER) {
        KG_SHARED_ASKED(char, asked);
        const struct kg_cuda_places p = kg_cuda_places(asked, T::STAGES, T::BYTES, 0);

        if (threadIdx.x == 0) {
            kg_cuda_places_init(p, T::STAGES);
            kg_barriers_end();
        }
        __syncthreads();
        if (threadIdx.x < KG_FOUR_WARPS) {
            kg_registers_fewer<KG_BRINGER_REGISTERS>();
            if (threadIdx.x == 0)
                bring_all<T>(p, w, &a, &b);
        } else {
            kg_registers_more<KG_COMPUTER_REGISTERS>();
            make_all<T>(c, old, p, w);
        }
    }
}

/* ---- choice of the tile ---- */
struct choice {
    int cols;
    bool (*launch)(struct kg_mat c, const float *old, struct kg_mat a, struct kg_mat b);
};

template <int COLS, bool A_COLUMNS, bool B_COLUMNS>
static bool launch(struct kg_mat c, const float *old, struct kg_mat a, struct kg_mat b)
{
    typedef tile<COLS, A_COLUMNS, B_COLUMNS> T;
    const int64_t k = A_COLUMNS ? a.rows : a.cols;
    const int64_t down = kg_cuda_pieces(c.rows, ROWS),
                  along = kg_cuda_pieces(c.cols, COLS);
    const int64_t blocks = kg_cuda_min(down * along, kg_dev_hoppers());
    const struct work w = {(int)down, (int)along, (int)blocks,
                           (int)kg_cuda_pieces(k, DEPTH)};
    struct kg_boxes left, right;

    if (down * along > INT32_MAX / 2 ||
        !kg_dev_boxes(&left, a, A_COLUMNS ? DEPTH : ROWS) ||
        !kg_dev_boxes(&right, b, B_COLUMNS ? DEPTH : COLS))
        return false;
    KG_LAUNCH_HOPPER(T::ASKED, product<T>, kg_grid(blocks, 1), KG_PIPELINE_THREADS, c,
                     old, left, right, w);
    return true;
}

enum { WIDTHS = KG_WGMMA_WIDTHS };
static const struct choice choices[3][WIDTHS] = {
    {{256, launch<256, false, false>}, {128, launch<128, false, false>}},
    {{256, launch<256, false, true>}, {128, launch<128, false, true>}},
    /* TN: a thread has two sums per element */
    {{192, launch<192, true, true>}, {128, launch<128, true, true>}},
};

/* The choice with the least time; reading the left side costs the same for each width. */
static const struct choice *choose(const struct choice list[WIDTHS], struct kg_mat c)
{
    enum { LEFT = 32 };
    const struct choice *best = NULL;
    int64_t least = 0;

    for (int i = 0; i < WIDTHS; i++) {
        const int64_t tiles = kg_cuda_pieces(c.rows, ROWS) *
                              kg_cuda_pieces(c.cols, list[i].cols);
        const int64_t time = kg_cuda_pieces(tiles, kg_dev_hoppers()) *
                             (list[i].cols + LEFT);

        if (!best || time < least) {
            best = &list[i];
            least = time;
        }
    }
    return best;
}

static bool left_out;

void kg_cuda_wgmma_leave_out(bool yes) { left_out = yes; }

bool kg_cuda_product_wgmma(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                           enum kg_matmul_kind kind, const float *old, int width)
{
    const int64_t k = kind == KG_MATMUL_TN ? a.rows : a.cols;

    if ((left_out && width < 0) || kg_dev_hoppers() == 0 || k == 0)
        return false;
    return (width < 0 ? choose(choices[kind], c) : &choices[kind][width])
        ->launch(c, old, a, b);
}
