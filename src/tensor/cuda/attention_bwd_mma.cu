/* Attention backward by the matrix instruction: bf16, heads of 64 and 128.
 *
 * attention_bwd.cu explains the formulas and the two kernels. p is recomputed in base 2;
 * p and ds are rounded to bf16 for their products, and dout before all products.
 *
 * A warp holds 16 or 32 keys (for dq: query rows) as left factors in registers. p and ds
 * stay there too: the layout of a result is that of a left factor. The rows of the other
 * side arrive in shared memory while the warp computes with the previous ones. Each right
 * factor is read from there once per sixteen keys, or once for 32: with 16, these reads
 * take longer (16 clocks of a quarter of a multiprocessor for two instructions of 6.4)
 * than the matrix instructions.
 *
 * dq of a row is a sum over its keys in order. dk and dv of a key are a sum over the rows
 * of one query head in order of position, from the first that sees the key's block; then
 * the sums of the group's heads are added in order. Either each head has its own block of
 * threads, and another kernel adds their sums, or one block walks the heads in turn: the
 * bits are the same, and depend on the sequence alone.
 */
#include "tensor/cuda/attention_internal.h"

/* EACH: sixteens of a block's 64 keys or rows per warp; two if registers suffice. */
template <int HD, bool CAPPED> struct shape {
    enum { EACH = HD == 64 && !CAPPED ? 2 : 1, THREADS = KG_ATTN_THREADS / EACH };
};
template <int EACH> static __device__ int first_of_warp(void)
{
    return (int)threadIdx.x / 32 * 16 * EACH;
}

/* Rows that meet a warp's left factors: keys and values; or q, dout, and their lse and d.
 * Missing rows are zeros, so they add nothing. While left factors are loaded, each of two
 * stages holds all 64 rows of one matrix (all_of). */
template <int HD> struct stage {
    enum { ROWS = HD == 64 ? 64 : 32 };
    struct kg_cuda_eight a[ROWS][HD / 8 + 1];
    struct kg_cuda_eight b[ROWS][HD / 8 + 1];
    struct kg_cuda_brought row[ROWS];
};
template <int HD>
static __device__ struct kg_cuda_eight (*all_of(struct stage<HD> *s))[HD / 8 + 1]
{
    static_assert(sizeof s->a + sizeof s->b >= KG_KV_BLOCK * sizeof s->a[0], "rows");
    return (struct kg_cuda_eight(*)[HD / 8 + 1]) s;
}

/* a, b <- the warp's left factors, from what was loaded into the two stages */
template <int HD, int EACH>
static __device__ void both_left(uint32_t (&a)[EACH][HD / 16][4],
                                 uint32_t (&b)[EACH][HD / 16][4],
                                 struct stage<HD> held[2])
{
    kg_copies_wait<0>();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < EACH; m++)
#pragma unroll
        for (int c = 0; c < HD / 16; c++) {
            const int row = first_of_warp<EACH>() + 16 * m;

            kg_fragments(a[m][c], kg_cuda_left(all_of(held), row, c));
            kg_fragments(b[m][c], kg_cuda_left(all_of(held + 1), row, c));
        }
    __syncthreads();
}

static __device__ const struct kg_cuda_brought *brought(const struct kg_cuda_given &g,
                                                        int64_t row, int head)
{
    return g.rows + row * ((g.a.n_heads + 1) / 2) + head / 2;
}

/* A group of copies: up to ROWS of `n` rows of two matrices, or nothing. */
template <int THREADS, int HD>
static __device__ void ahead(struct stage<HD> *to, const struct kg_mat &a,
                             const struct kg_mat &b, int64_t first, int n, int64_t col)
{
    if (n > 0) {
        kg_cuda_bring_later<stage<HD>::ROWS, THREADS>(to->a, a, first, n, col);
        kg_cuda_bring_later<stage<HD>::ROWS, THREADS>(to->b, b, first, n, col);
    }
    kg_copies_end();
}

template <int EACH, int N> static __device__ void clear(float (&sum)[EACH][N][4])
{
#pragma unroll
    for (int m = 0; m < EACH; m++)
#pragma unroll
        for (int c = 0; c < N; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[m][c][i] = 0.0f;
}

/* s <- a times rows first + 8 n.. of the stage's a; ds <- b times those of its b; both
 * over the head dimension */
template <int HD, int EACH, int N>
static __device__ void multiply(float (&s)[EACH][N][4], float (&ds)[EACH][N][4],
                                const uint32_t (&a)[EACH][HD / 16][4],
                                const uint32_t (&b)[EACH][HD / 16][4],
                                const struct stage<HD> *by, int first)
{
    clear(s);
    clear(ds);
#pragma unroll
    for (int n = 0; n < N; n += 2)
#pragma unroll
        for (int c = 0; c < HD / 16; c++) {
            uint32_t right[4];

            kg_fragments(right, kg_cuda_right(by->a, first + 8 * n, c));
#pragma unroll
            for (int m = 0; m < EACH; m++) {
                kg_mma(s[m][n], a[m][c], right);
                kg_mma(s[m][n + 1], a[m][c], right + 2);
            }
            kg_fragments(right, kg_cuda_right(by->b, first + 8 * n, c));
#pragma unroll
            for (int m = 0; m < EACH; m++) {
                kg_mma(ds[m][n], b[m][c], right);
                kg_mma(ds[m][n + 1], b[m][c], right + 2);
            }
        }
}

/* Replaces s and dO.v by p and ds */
template <bool CAPPED>
static __device__ void soften(float *s, float *ds, float lse, float d,
                              struct kg_cuda_scores by, bool seen)
{
    const float t = CAPPED ? kg_cuda_tanh(*s * by.in) : 0.0f;
    const float p = kg_exp2(CAPPED ? kg_fma(t, by.out, -lse) : kg_fma(*s, by.in, -lse));
    const float dx = p * (*ds - d);

    *ds = seen ? CAPPED ? dx * kg_fma(-t, t, 1.0f) : dx : 0.0f;
    *s = seen ? p : 0.0f;
}

/* sum += x times rows first.. of `right`; x: per sixteen, 16 x 16 in results n, n + 1 */
template <int EACH, int N, int W, int COLS>
static __device__ void add(float (&sum)[EACH][COLS][4], const float (&x)[EACH][N][4],
                           int n, const struct kg_cuda_eight (*right)[W], int first)
{
    uint32_t left[EACH][4];

#pragma unroll
    for (int m = 0; m < EACH; m++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            left[m][i] = kg_pair(x[m][n + i / 2][i % 2 * 2],
                                 x[m][n + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int c = 0; c < COLS; c += 2) {
        uint32_t b[4];

        kg_fragments_transposed(b, kg_cuda_left(right, first, c / 2));
#pragma unroll
        for (int m = 0; m < EACH; m++) {
            kg_mma(sum[m][c], left[m], b);
            kg_mma(sum[m][c + 1], left[m], b + 2);
        }
    }
}

/* ---- dq ---- */
/* A thread's row of a tile; zeros after the last row. */
struct row {
    float lse;
    float d;
    int last; /* its position */
};

static __device__ struct row row_of(const struct kg_cuda_given &g,
                                    const struct kg_cuda_tile &t, int r)
{
    const struct kg_cuda_brought *const from = brought(g, kg_cuda_query(t, r),
                                                       kg_cuda_head(t, r));
    const int side = kg_cuda_head(t, r) % 2;
    const bool there = r < t.rows;

    return {there ? from->of[side].lse : 0.0f, there ? from->of[side].d : 0.0f,
            kg_cuda_position(t, r)};
}

/* The warp's rows with the stage's keys, CHUNK at a time. */
template <bool CAPPED, bool MASKED, int HD, int EACH>
static __device__ void
add_keys(float (&sum)[EACH][HD / 8][4], const uint32_t (&q)[EACH][HD / 16][4],
         const uint32_t (&dout)[EACH][HD / 16][4], const struct stage<HD> *now,
         const struct row *rows, const struct kg_cuda_given &g, int at)
{
    enum { CHUNK = 32 / EACH };
    const int t = (int)threadIdx.x % 4;

#pragma unroll 1
    for (int first = 0; first < stage<HD>::ROWS; first += CHUNK) {
        float s[EACH][CHUNK / 8][4], ds[EACH][CHUNK / 8][4];

        multiply(s, ds, q, dout, now, first);
#pragma unroll
        for (int m = 0; m < EACH; m++)
#pragma unroll
            for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const struct row *r = &rows[2 * m + i / 2];
                    const int key = at + first + 8 * n + 2 * t + i % 2;

                    soften<CAPPED>(&s[m][n][i], &ds[m][n][i], r->lse, r->d, g.by,
                                   !MASKED || (key >= kg_cuda_first_key(g.a, r->last) &&
                                               key <= r->last));
                }
#pragma unroll
        for (int n = 0; n < CHUNK / 8; n += 2)
            add(sum, ds, n, now->a, first + 8 * n);
    }
}

template <int HD, int EACH>
static __device__ void write_rows(struct kg_mat dq, const struct kg_cuda_tile &t,
                                  const float (&sum)[EACH][HD / 8][4], float scale)
{
    const int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int h = 0; h < 2 * EACH; h++) {
        const int r = first_of_warp<EACH>() + lane / 4 + 8 * h;

        if (r >= t.rows)
            continue;
        float *const to = kg_cuda_f32(dq, kg_cuda_query(t, r)) + kg_cuda_head(t, r) * HD +
                          2 * (lane % 4);
#pragma unroll
        for (int c = 0; c < HD / 8; c++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                to[8 * c + i] = sum[h / 2][c][h % 2 * 2 + i] * scale;
    }
}

template <int HD, bool CAPPED>
static __global__ void __launch_bounds__(shape<HD, CAPPED>::THREADS,
                                         2 * shape<HD, CAPPED>::EACH)
    backward_of_queries(struct kg_mat dq, struct kg_cuda_given g)
{
    enum { EACH = shape<HD, CAPPED>::EACH, THREADS = shape<HD, CAPPED>::THREADS };
    enum { ROWS = stage<HD>::ROWS };
    KG_SHARED(struct stage<HD>, held, [2]);
    const int first = first_of_warp<EACH>(), lane = (int)threadIdx.x % 32;
    uint32_t q[EACH][HD / 16][4], dout[EACH][HD / 16][4];
    float sum[EACH][HD / 8][4];
    struct row rows[2 * EACH];
    struct kg_cuda_tile t;

    if (!kg_cuda_tile_of_block(&t, g.a, (int)blockIdx.y))
        return;
    kg_cuda_bring_rows<THREADS>(all_of(held), g.a.q, t);
    kg_cuda_bring_rows<THREADS>(all_of(held + 1), g.dout, t);
    kg_copies_end();
#pragma unroll
    for (int h = 0; h < 2 * EACH; h++)
        rows[h] = row_of(g, t, first + lane / 4 + 8 * h);
    const int whole = kg_cuda_position(t, 0) + 1; /* keys that all rows see */
    const int end = kg_cuda_position(t, t.rows - 1) + 1;
    const int passed = kg_cuda_first_key(g.a, end - 1); /* first key that all rows see */
    const int from = kg_cuda_first_key(g.a, whole - 1) / ROWS * ROWS;
    const int64_t keys = t.seq.keys;
    const int col = t.kv_head * HD;

    both_left(q, dout, held);
    clear(sum);
    ahead<THREADS>(held, g.a.k, g.a.v, keys + from, end - from, col);
    for (int at = from, turn = 0; at < end; at += ROWS, turn ^= 1) {
        kg_copies_wait<0>();
        __syncthreads();
        ahead<THREADS>(held + (turn ^ 1), g.a.k, g.a.v, keys + at + ROWS, end - at - ROWS,
                       col);
        if (first >= t.rows)
            continue;
        if (at + ROWS <= whole && at >= passed)
            add_keys<CAPPED, false>(sum, q, dout, held + turn, rows, g, at);
        else
            add_keys<CAPPED, true>(sum, q, dout, held + turn, rows, g, at);
    }
    write_rows<HD>(dq, t, sum, g.a.scale);
}

/* ---- dk, dv ---- */
/* A block of keys. */
struct block {
    int first;     /* row in k and v */
    int n;         /* keys of the sequence from it on */
    int before;    /* position of the first key */
    int from, end; /* positions that see some of these keys */
    int row;       /* of position 0 in q; may be before the first row */
};

static __device__ struct block block_of(const struct kg_attn &a,
                                        const struct kg_attn_seq &s, int block)
{
    const int before = block * KG_KV_BLOCK, all = s.pos + s.n_rows;
    const int64_t passed = (int64_t)before + KG_KV_BLOCK - 1 + a.window;

    return {s.keys + before,
            all - before,
            before,
            before > s.pos ? before : s.pos,
            a.window > 0 ? (int)kg_cuda_min(passed, all) : all,
            s.row - s.pos};
}

/* The warp's keys with the stage's rows, of which the first is `at` positions after the
 * block's first key. */
template <bool CAPPED, bool MASKED, int HD, int EACH>
static __device__ void
add_rows(float (&dk)[EACH][HD / 8][4], float (&dv)[EACH][HD / 8][4],
         const uint32_t (&k)[EACH][HD / 16][4], const uint32_t (&v)[EACH][HD / 16][4],
         const struct stage<HD> *now, struct kg_cuda_scores by, int at, int window,
         int side)
{
    const int lane = (int)threadIdx.x % 32;
    const int key = kg_anew(first_of_warp<EACH>() + lane / 4);

#pragma unroll 1
    for (int first = 0; first < stage<HD>::ROWS; first += 16) {
        float s[EACH][2][4], ds[EACH][2][4];

        multiply(s, ds, k, v, now, first);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int r = first + 8 * n + 2 * (lane % 4) + e;
                const float lse = now->row[r].of[side].lse, d = now->row[r].of[side].d;

#pragma unroll
                for (int h = 0; h < 2 * EACH; h++) {
                    const int behind = at + r - key - 8 * h; /* from key to row */
                    const int i = h % 2 * 2 + e;

                    soften<CAPPED>(&s[h / 2][n][i], &ds[h / 2][n][i], lse, d, by,
                                   !MASKED ||
                                       (behind >= 0 && (window == 0 || behind < window)));
                }
            }
        add(dv, s, 0, now->b, first);
        add(dk, ds, 0, now->a, first);
    }
}

/* A group of copies: rows of one head from position `at` on. */
template <int THREADS, int HD>
static __device__ void rows_ahead(struct stage<HD> *to, const struct kg_cuda_given &g,
                                  const struct block &b, int at, int head)
{
    const int r = kg_anew((int)threadIdx.x), n = b.end - at, row = b.row + at;

    if (n > 0 && r < stage<HD>::ROWS)
        kg_copy_later(&to->row[r], brought(g, row + (r < n ? r : 0), head),
                      r < n ? 16 : 0);
    ahead<THREADS>(to, g.a.q, g.dout, row, n, head * HD);
}

/* dk, dv <- sums over the rows of one head */
template <bool CAPPED, int HD, int EACH>
static __device__ void
walk(float (&dk)[EACH][HD / 8][4], float (&dv)[EACH][HD / 8][4], struct stage<HD> held[2],
     const uint32_t (&k)[EACH][HD / 16][4], const uint32_t (&v)[EACH][HD / 16][4],
     const struct kg_cuda_given &g, const struct block &b, int head)
{
    enum { ROWS = stage<HD>::ROWS, THREADS = KG_ATTN_THREADS / EACH };
    const int window = g.a.window;
    head = kg_anew(head);

    clear(dk);
    clear(dv);
    rows_ahead<THREADS>(held, g, b, b.from, head);
    for (int at = b.from, turn = 0; at < b.end; at += ROWS, turn ^= 1) {
        struct stage<HD> *const now = held + turn;
        const int behind = at - b.before;

        kg_copies_wait<0>();
        __syncthreads();
        rows_ahead<THREADS>(held + (turn ^ 1), g, b, at + ROWS, kg_anew(head));
        /* with a softcap, one kind of mask, to save registers */
        if (!CAPPED && behind >= KG_KV_BLOCK - 1 &&
            (window == 0 || behind + ROWS <= window))
            add_rows<CAPPED, false>(dk, dv, k, v, now, g.by, behind, window,
                                    kg_anew(head) % 2);
        else
            add_rows<CAPPED, true>(dk, dv, k, v, now, g.by, behind, window,
                                   kg_anew(head) % 2);
    }
    __syncthreads();
}

/* to <- sum, or to + sum, times scale */
template <int EACH, int COLS>
static __device__ void write(struct kg_mat to, float (&sum)[EACH][COLS][4],
                             const struct block &b, int col, bool adds, float scale)
{
    const int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int h = 0; h < 2 * EACH; h++) {
        const int key = first_of_warp<EACH>() + lane / 4 + 8 * h;
        float(*const x)[4] = sum[h / 2];

        if (key >= b.n)
            continue;
        float *const at = kg_cuda_f32(to, b.first + key) + col + 2 * (lane % 4);
        if (adds)
#pragma unroll
            for (int e = 0; e < 2 * COLS; e++)
                x[e / 2][h % 2 * 2 + e % 2] += at[e / 2 * 8 + e % 2];
#pragma unroll
        for (int e = 0; e < 2 * COLS; e++)
            at[e / 2 * 8 + e % 2] = x[e / 2][h % 2 * 2 + e % 2] * scale;
    }
}

/* For a KV head, from all heads of its group; or (apart) for each head. */
template <int HD, bool CAPPED>
static __global__ void __launch_bounds__(shape<HD, CAPPED>::THREADS,
                                         2 * shape<HD, CAPPED>::EACH)
    backward_of_keys(struct kg_mat dk, struct kg_mat dv, struct kg_cuda_given g)
{
    enum { EACH = shape<HD, CAPPED>::EACH, THREADS = shape<HD, CAPPED>::THREADS };
    KG_SHARED(struct stage<HD>, held, [2]);
    KG_SHARED(struct block, b, [1]); /* to save registers */
    const bool apart = g.apart[0].data;
    const int group = kg_cuda_group(g.a), y = (int)blockIdx.y;
    const int kv = apart ? y / group : y, heads = apart ? 1 : group;
    uint32_t k[EACH][HD / 16][4], v[EACH][HD / 16][4];
    float to_k[EACH][HD / 8][4], to_v[EACH][HD / 8][4];
    int s, i;

    if (!kg_cuda_find(&s, &i, g.a, (int)blockIdx.x, true))
        return;
    if (threadIdx.x == 0)
        *b = block_of(g.a, g.a.seqs[s], i);
    __syncthreads();
    kg_cuda_bring_later<KG_KV_BLOCK, THREADS>(all_of(held), g.a.k, b->first, b->n,
                                              kv * HD);
    kg_cuda_bring_later<KG_KV_BLOCK, THREADS>(all_of(held + 1), g.a.v, b->first, b->n,
                                              kv * HD);
    kg_copies_end();
    both_left(k, v, held);
    for (int h = 0; h < heads; h++) {
        walk<CAPPED>(to_k, to_v, held, k, v, g, *b, y * heads + h);
        write(apart ? g.apart[0] : dk, to_k, *b, y * HD, h > 0,
              apart || h < heads - 1 ? 1.0f : g.a.scale);
        write(apart ? g.apart[1] : dv, to_v, *b, y * HD, h > 0, 1.0f);
    }
}

/* dk or dv of PART keys of a block <- the sum of the group's heads; few keys, because a
 * thread waits for its loads */
enum { PART = 16, PARTS = KG_KV_BLOCK / PART };
static __global__ void __launch_bounds__(KG_FLAT_THREADS)
    add_heads(struct kg_mat dk, struct kg_mat dv, struct kg_cuda_given g)
{
    const int group = kg_cuda_group(g.a), hd = g.a.head_dim;
    const int kv = (int)blockIdx.y / (2 * PARTS), key = (int)blockIdx.y % PARTS * PART;
    const bool values = blockIdx.y / PARTS % 2;
    const struct kg_mat from = g.apart[values], to = values ? dv : dk;
    int s, i;

    if (!kg_cuda_find(&s, &i, g.a, (int)blockIdx.x, true))
        return;
    const struct block b = block_of(g.a, g.a.seqs[s], i);
    const int n = (int)kg_cuda_min(b.n - key, PART) * hd;

    for (int e = (int)threadIdx.x; e < n; e += KG_FLAT_THREADS) {
        const int row = b.first + key + e / hd;
        const float *x = kg_cuda_f32(from, row) + (int64_t)kv * group * hd + e % hd;
        float sum = x[0];

#pragma unroll 4
        for (int h = 1; h < group; h++)
            sum += x[(int64_t)h * hd];
        kg_cuda_f32(to, row)[kv * hd + e % hd] = sum * (values ? 1.0f : g.a.scale);
    }
}

void kg_cuda_attention_add_heads(struct kg_mat dk, struct kg_mat dv,
                                 const struct kg_cuda_given *g)
{
    KG_LAUNCH(add_heads,
              kg_grid(kg_cuda_most_blocks(&g->a), 2 * PARTS * (int64_t)g->a.n_kv_heads),
              KG_FLAT_THREADS, dk, dv, *g);
}

template <int HD, bool CAPPED>
static void launch_queries(struct kg_mat dq, const struct kg_cuda_given &g)
{
    KG_LAUNCH((backward_of_queries<HD, CAPPED>),
              kg_grid(kg_cuda_most_tiles(&g.a), g.a.n_kv_heads),
              (shape<HD, CAPPED>::THREADS), dq, g);
}
void kg_cuda_attention_bwd_mma_queries(struct kg_mat dq, const struct kg_cuda_given *g)
{
    const bool capped = g->a.softcap > 0.0f;

    if (g->a.head_dim == 64)
        (capped ? launch_queries<64, true> : launch_queries<64, false>)(dq, *g);
    else
        (capped ? launch_queries<128, true> : launch_queries<128, false>)(dq, *g);
}

template <int HD, bool CAPPED>
static void launch_keys(struct kg_mat dk, struct kg_mat dv, const struct kg_cuda_given &g)
{
    const int heads = g.apart[0].data ? g.a.n_heads : g.a.n_kv_heads;

    KG_LAUNCH((backward_of_keys<HD, CAPPED>), kg_grid(kg_cuda_most_blocks(&g.a), heads),
              (shape<HD, CAPPED>::THREADS), dk, dv, g);
}
void kg_cuda_attention_bwd_mma_keys(struct kg_mat dk, struct kg_mat dv,
                                    const struct kg_cuda_given *g)
{
    const bool capped = g->a.softcap > 0.0f;

    if (g->a.head_dim == 64)
        (capped ? launch_keys<64, true> : launch_keys<64, false>)(dk, dv, *g);
    else
        (capped ? launch_keys<128, true> : launch_keys<128, false>)(dk, dv, *g);
}
