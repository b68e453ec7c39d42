/* RMS norm and bias, with their gradients.
 *
 * A group of threads has a row: a block, or sixteen threads for a narrow row, such as a
 * head. The group loads the row into shared memory with eight loads per thread in flight,
 * because summing alone cannot keep memory busy: a sum has the CPU's sixteen lanes, each
 * a chain in column order, added by the CPU's tree. Sums over rows (dw, db) are computed
 * by strips of columns: each chunk of 64 rows from zero, then the chunks in order.
 */
#include "tensor/cuda/cuda_internal.h"

/* For sums over rows: columns per block, most chunks per block at once, rows per chunk.
 * STRIP floats are 32 bytes, the least that memory transfers. */
enum { STRIP = 8, CHUNKS = 64, CHUNK_ROWS = 64 };
/* loads of a thread in flight: columns of a row; rows of a column */
enum { AT_ONCE = KG_CUDA_AT_ONCE, ROWS_AT_ONCE = 16, HEADS_AT_ONCE = 4 };

/* ---- rows in shared memory ---- */
/* Threads per group: WIDE, or NARROW if these load a whole row at once. HELD: most
 * columns that a group holds at once; affects no result. APART: floats after a group's
 * columns, the first for the sum, so that two groups of a warp use different banks */
enum { WIDE = KG_ROW_THREADS, NARROW = KG_CUDA_LANES, HELD = 8192, APART = 16 };

/* Position of a norm's row: each head of a matrix's row is one. */
struct place {
    int64_t n, d;
};
static __device__ inline struct place place_of(int64_t row, int64_t cols, int64_t width)
{
    const uint32_t r = (uint32_t)row, heads = (uint32_t)cols / (uint32_t)width;

    if (cols == width)
        return {row, 0};
    return {r / heads, r % heads * width};
}

/* A thread's group. Groups after the last row only take part in barriers and
 * exchanges. */
struct group {
    int64_t row;
    struct place at;
    int thread; /* in the group */
    int held;   /* columns at a time */
    bool there;
    float *x, *by, *sum; /* shared: held columns of x, of w or w dy; their sum */
};
template <int T>
static __device__ inline struct group group_of(float *room, const struct kg_mat &m,
                                               int64_t width, int64_t rows, int held)
{
    const int of = (int)threadIdx.x / T, thread = (int)threadIdx.x % T;
    const int64_t row = (int64_t)blockIdx.x * (KG_ROW_THREADS / T) + of;
    float *const x = room + of * (2 * held + APART);

    return {
        row,         place_of(row, m.cols, width), thread, held, row < rows, x, x + held,
        x + 2 * held};
}
/* The row of a matrix of fp32. */
static __device__ inline float *row_of(const struct kg_mat &m, struct place at)
{
    return kg_cuda_f32(m, at.n) + at.d;
}

/* The operands of a row; dy: only for a gradient */
struct operands {
    const float *x, *w, *dy;
    int64_t cols;
    bool gradient;
};
/* v[i] <- from[i * T], 0 from element n on */
template <int T, int N>
static __device__ inline void take(float (&v)[N], const float *from, int n)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = i * T < n ? from[i * T] : 0.0f;
}
/* Loads columns from `from` on.   returns how many: 0 without a row */
template <int T>
static __device__ inline int hold(const struct group &g, const struct operands &o,
                                  int64_t from)
{
    const int n = g.there ? (int)kg_cuda_min(o.cols - from, g.held) : 0;

    __syncthreads(); /* all reads of the old columns are complete */
#pragma unroll 1
    for (int d = g.thread; d < n; d += AT_ONCE * T) {
        float x[AT_ONCE], by[AT_ONCE], dy[AT_ONCE];

        take<T>(x, o.x + from + d, n - d);
        take<T>(by, o.w + from + d, n - d);
        if (o.gradient)
            take<T>(dy, o.dy + from + d, n - d);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            g.x[d + i * T] = x[i];
            g.by[d + i * T] = o.gradient ? by[i] * dy[i] : by[i];
        }
    }
    __syncthreads();
    return n;
}

/* sum_d x^2, or sum_d w dy x, for all threads; the last columns remain held. */
template <int T>
static __device__ inline float sum_row(const struct group &g, const struct operands &o)
{
    const bool adds = g.thread < KG_WARP;
    const float *by = o.gradient ? g.by : g.x;
    float sum = 0.0f;

    for (int64_t from = 0; from < o.cols; from += g.held) {
        const int n = hold<T>(g, o, from), end = adds ? n : 0;

#pragma unroll 8
        for (int d = g.thread % KG_CUDA_LANES; d < end; d += KG_CUDA_LANES)
            sum = kg_fma(by[d], g.x[d], sum);
    }
    if (adds)
        sum = kg_cuda_sum_lanes(sum);
    if (g.thread == 0)
        *g.sum = sum;
    __syncthreads();
    return *g.sum;
}
/* Loads columns from `from` on, unless all are held.   returns how many */
template <int T>
static __device__ inline int hold_again(const struct group &g, const struct operands &o,
                                        int64_t from)
{
    return o.cols > g.held ? hold<T>(g, o, from) : g.there ? (int)o.cols : 0;
}

/* Launches a kernel with one row per group.   each: columns that a group loads at once;
 * its memory is a multiple of that, so loads need not check the end of the row */
#define LAUNCH_ROWS(kernel, T, rows, cols, ...)                                          \
    do {                                                                                 \
        const int64_t each = AT_ONCE * T;                                                \
        const int held = (int)kg_cuda_min(kg_cuda_pieces(cols, each) * each, HELD);      \
        const int groups = KG_ROW_THREADS / T;                                           \
                                                                                         \
        KG_LAUNCH_ASKING(groups *(2 * held + APART) * (int)sizeof(float), kernel<T>,     \
                         kg_grid(kg_cuda_pieces(rows, groups), 1), KG_ROW_THREADS,       \
                         __VA_ARGS__, rows, held);                                       \
    } while (0)

/* The kernels' launch bounds leave registers for all loads of `hold`. */
/* ---- forward ---- */
template <int T>
static __global__ void __launch_bounds__(KG_ROW_THREADS, 10)
    rmsnorm(struct kg_mat y, struct kg_vec inv, struct kg_mat x, struct kg_vec w,
            float eps, int64_t rows, int held)
{
    KG_SHARED_ASKED(float, room);
    const struct group g = group_of<T>(room, x, w.n, rows, held);
    const struct operands o = {row_of(x, g.at), w.data, NULL, w.n, false};
    const float scale = 1.0f / sqrtf(sum_row<T>(g, o) / (float)w.n + eps);

    for (int64_t from = 0; from < w.n; from += held) {
        const int n = hold_again<T>(g, o, from);

#pragma unroll 4
        for (int d = g.thread; d < n; d += T)
            kg_cuda_store(y, g.at.n, g.at.d + from + d, g.by[d] * (g.x[d] * scale));
    }
    if (inv.data && g.there && g.thread == 0)
        inv.data[g.row] = scale;
}

kg_status kg_cuda_rmsnorm(struct kg_mat y, struct kg_vec inv, struct kg_mat x,
                          struct kg_vec w, float eps, struct kg_err *err)
{
    const int64_t all = kg_norm_rows(x, w);

    if (all > 0 && w.n <= AT_ONCE * NARROW)
        LAUNCH_ROWS(rmsnorm, NARROW, all, w.n, y, inv, x, w, eps);
    else if (all > 0)
        LAUNCH_ROWS(rmsnorm, WIDE, all, w.n, y, inv, x, w, eps);
    return kg_dev_done("rmsnorm", err);
}

/* ---- sums over rows ---- */
/* v[i] <- m[n+i,d] for i < count; others repeat the last row. The type is tested once, so
 * that all loads are in flight together */
template <int N>
static __device__ inline void take_rows(float (&v)[N], struct kg_mat m, int64_t n,
                                        int count, int64_t d, int64_t width)
{
    if (N == HEADS_AT_ONCE) {
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = row_of(m, place_of(n + (i < count ? i : count - 1), m.cols, width))[d];
    } else if (m.dtype == KG_F32) {
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = kg_cuda_f32(m, n + (i < count ? i : count - 1))[d];
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = kg_cuda_load(m, n + (i < count ? i : count - 1), d);
    }
}

/* sum + the products of `count` rows from n on, in order */
template <int N>
static __device__ inline float add_rows(float sum, struct kg_mat g, struct kg_mat x,
                                        struct kg_vec inv, int64_t n, int count,
                                        int64_t d, int64_t width)
{
    float v[N], f[N], r[N];

    take_rows(v, g, n, count, d, width);
    if (inv.data) {
        take_rows(f, x, n, count, d, width);
        take<1>(r, inv.data + n, count);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < count)
            sum = kg_fma(v[i], inv.data ? f[i] * r[i] : 1.0f, sum);
    return sum;
}

/* Sum of one chunk of column d of g, or of g x inv. */
template <int N>
static __device__ float chunk_sum(struct kg_mat g, struct kg_mat x, struct kg_vec inv,
                                  int64_t first, int64_t end, int64_t d, int64_t width)
{
    float sum = 0.0f;
    int64_t n = first;

#pragma unroll 1
    for (; n + N <= end; n += N)
        sum = add_rows<N>(sum, g, x, inv, n, N, d, width);
    return n < end ? add_rows<N>(sum, g, x, inv, n, (int)(end - n), d, width) : sum;
}

/* out[d] += sum over rows of g[d] (inv ? x[d] inv : 1). A thread sums a column of one of
 * `chunks` chunks at once; those of chunk 0 add their column's chunks in order. */
template <int N>
static __global__ void __launch_bounds__(STRIP *CHUNKS)
    sum_rows(struct kg_vec out, struct kg_mat g, struct kg_mat x, struct kg_vec inv,
             int64_t all, int chunks)
{
    KG_SHARED(float, part, [CHUNKS][STRIP]);
    const int column = (int)threadIdx.x % STRIP, chunk = (int)threadIdx.x / STRIP;
    const int64_t d = (int64_t)blockIdx.x * STRIP + column;
    const bool there = d < out.n, adds = there && chunk == 0;
    float total = adds ? out.data[d] : 0.0f;

    for (int64_t first = 0; first < all; first += chunks * CHUNK_ROWS) {
        const int64_t rows = kg_cuda_min(all - first, chunks * CHUNK_ROWS);
        const int mine = chunk * CHUNK_ROWS;
        const int64_t end = first + kg_cuda_min(mine + CHUNK_ROWS, rows);

        if (there && mine < rows)
            part[chunk][column] = chunk_sum<N>(g, x, inv, first + mine, end, d, out.n);
        __syncthreads();
#pragma unroll 8
        for (int c = 0; adds && c * CHUNK_ROWS < rows; c++)
            total += part[c][column];
        __syncthreads();
    }
    if (adds)
        out.data[d] = total;
}

static void launch_sum(struct kg_vec out, struct kg_mat g, struct kg_mat x,
                       struct kg_vec inv)
{
    enum { OF_WARP = KG_WARP / STRIP };
    const int64_t all = kg_norm_rows(g, out);
    const int64_t most = kg_cuda_pieces(all, CHUNK_ROWS * OF_WARP) * OF_WARP;
    const int chunks = (int)kg_cuda_min(most, CHUNKS);

    const dim3 grid = kg_grid(kg_cuda_pieces(out.n, STRIP), 1);

    if (all > 0 && g.cols > out.n)
        KG_LAUNCH(sum_rows<HEADS_AT_ONCE>, grid, STRIP * chunks, out, g, x, inv, all,
                  chunks);
    else if (all > 0)
        KG_LAUNCH(sum_rows<ROWS_AT_ONCE>, grid, STRIP * chunks, out, g, x, inv, all,
                  chunks);
}

/* ---- backward ---- */
/* dL/dx_d = r (w_d dy_d - x_d c), see cpu/norm.c, for n held columns */
template <int T>
static __device__ inline void give(const struct group &g, float *dx, bool accumulate,
                                   float r, float c, int n)
{
#pragma unroll 1
    for (int d = g.thread; d < n; d += AT_ONCE * T) {
        float v[AT_ONCE];

        take<T>(v, dx + d, accumulate ? n - d : 0);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const float to = r * kg_fma(-g.x[d + i * T], c, g.by[d + i * T]);

            v[i] = accumulate ? v[i] + to : to;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (i * T < n - d)
                dx[d + i * T] = v[i];
    }
}

template <int T>
static __global__ void __launch_bounds__(KG_ROW_THREADS, 9)
    rmsnorm_bwd(struct kg_mat dx, bool accumulate, struct kg_mat dy, struct kg_mat x,
                struct kg_vec w, struct kg_vec inv, int64_t rows, int held)
{
    KG_SHARED_ASKED(float, room);
    const struct group g = group_of<T>(room, x, w.n, rows, held);
    const struct operands o = {row_of(x, g.at), w.data, row_of(dy, g.at), w.n, true};
    const float r = g.there ? inv.data[g.row] : 0.0f;
    const float c = r * r * sum_row<T>(g, o) / (float)w.n;

    for (int64_t from = 0; from < w.n; from += held) {
        const int n = hold_again<T>(g, o, from);

        give<T>(g, row_of(dx, g.at) + from, accumulate, r, c, n);
    }
}

kg_status kg_cuda_rmsnorm_bwd(struct kg_mat dx, bool accumulate, struct kg_vec dw,
                              struct kg_mat dy, struct kg_mat x, struct kg_vec w,
                              struct kg_vec inv, struct kg_err *err)
{
    const int64_t all = kg_norm_rows(x, w);

    if (dw.data)
        launch_sum(dw, dy, x, inv); /* before dx is written, which may be dy */
    if (all > 0 && w.n <= AT_ONCE * NARROW)
        LAUNCH_ROWS(rmsnorm_bwd, NARROW, all, w.n, dx, accumulate, dy, x, w, inv);
    else if (all > 0)
        LAUNCH_ROWS(rmsnorm_bwd, WIDE, all, w.n, dx, accumulate, dy, x, w, inv);
    return kg_dev_done("rmsnorm_bwd", err);
}

/* ---- bias ---- */
static __global__ void bias(struct kg_mat y, struct kg_vec b)
{
    enum { EACH = KG_STRIP / KG_ROW_THREADS };
    const int64_t d = kg_cuda_first();
    const int n = (int)(kg_cuda_end(y.cols) - d);
    float *const to = kg_cuda_f32(y, blockIdx.x) + d;
    float v[EACH], by[EACH];

    if (n <= 0)
        return;
    take<KG_ROW_THREADS>(v, to, n);
    take<KG_ROW_THREADS>(by, b.data + d, n);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (i * KG_ROW_THREADS < n)
            to[i * KG_ROW_THREADS] = v[i] + by[i];
}

kg_status kg_cuda_bias(struct kg_mat y, struct kg_vec b, struct kg_err *err)
{
    if (y.rows > 0 && y.cols > 0)
        KG_LAUNCH(bias, kg_cuda_rows(y.rows, y.cols), KG_ROW_THREADS, y, b);
    return kg_dev_done("bias", err);
}

kg_status kg_cuda_bias_bwd(struct kg_vec db, struct kg_mat dy, struct kg_err *err)
{
    const struct kg_vec none = {NULL, 0};

    launch_sum(db, dy, dy, none);
    return kg_dev_done("bias_bwd", err);
}
