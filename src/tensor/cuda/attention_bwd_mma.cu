/* Attention backward by the matrix instruction: bf16, heads of 64 and 128.
 *
 * The formulas, and who walks what, are attention_bwd.cu's. p is recomputed in base 2 and
 * rounded to bf16 with ds for their products, dout before anything else.
 *
 * A warp has 16 keys, or for dq 16 query rows, as left factors in registers. p and ds
 * stay there too: their layout as a result is that of a left factor. The rows of the
 * other side arrive in shared memory while the warp computes with those before.
 *
 * dq of a row is a sum over its keys in order. dk and dv of a key are a sum over the rows
 * of one query head in order of position, from the first that sees the key's block; then
 * the sums of the group's heads are added in order. Either heads have a block of threads
 * each, and their sums are added by another kernel, or one block walks them in turn: the
 * bits are the same, and depend on the sequence alone.
 */
#include "tensor/cuda/attention_internal.h"

/* Rows that a warp's left factors meet: keys and values, or q, dout and what belongs to
 * them. Rows that are not there are zeros, of which nothing is added. Two of these hold
 * 64 rows of either while they are made left factors. */
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

/* a, b <- what was brought to either stage as a warp's left factors */
template <int HD>
static __device__ void both_left(uint32_t a[HD / 16][4], uint32_t b[HD / 16][4],
                                 struct stage<HD> held[2])
{
    kg_copies_wait<0>();
    __syncthreads();
    kg_cuda_left_factors<HD>(a, all_of(held));
    kg_cuda_left_factors<HD>(b, all_of(held + 1));
    __syncthreads();
}

static __device__ const struct kg_cuda_brought *brought(const struct kg_cuda_given &g,
                                                        int64_t row, int head)
{
    return g.rows + row * ((g.a.n_heads + 1) / 2) + head / 2;
}

/* A group of copies: up to ROWS of `n` rows of two matrices, or nothing. */
template <int HD>
static __device__ void ahead(struct stage<HD> *to, const struct kg_mat &a,
                             const struct kg_mat &b, int64_t first, int n, int64_t col)
{
    if (n > 0) {
        kg_cuda_bring_later<stage<HD>::ROWS, KG_ATTN_THREADS>(to->a, a, first, n, col);
        kg_cuda_bring_later<stage<HD>::ROWS, KG_ATTN_THREADS>(to->b, b, first, n, col);
    }
    kg_copies_end();
}

/* s <- a times rows first + 8 n.. of the stage's a, ds likewise of b, over the head
 * dimension */
template <int HD, int N>
static __device__ void
multiply(float s[N][4], float ds[N][4], const uint32_t a[HD / 16][4],
         const uint32_t b[HD / 16][4], const struct stage<HD> *by, int first)
{
#pragma unroll
    for (int n = 0; n < N; n += 2) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = s[n + 1][i] = ds[n][i] = ds[n + 1][i] = 0.0f;
#pragma unroll
        for (int c = 0; c < HD / 16; c++) {
            uint32_t right[4];

            kg_fragments(right, kg_cuda_right(by->a, first + 8 * n, c));
            kg_mma(s[n], a[c], right);
            kg_mma(s[n + 1], a[c], right + 2);
            kg_fragments(right, kg_cuda_right(by->b, first + 8 * n, c));
            kg_mma(ds[n], b[c], right);
            kg_mma(ds[n + 1], b[c], right + 2);
        }
    }
}

/* s and dO.v become p and ds */
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

/* sum += x (16 x 16, two results side by side) times rows first.. of `right` */
template <int HD>
static __device__ void add(float sum[HD / 8][4], const float x[2][4],
                           const struct kg_cuda_eight (*right)[HD / 8 + 1], int first)
{
    const uint32_t left[4] = {kg_pair(x[0][0], x[0][1]), kg_pair(x[0][2], x[0][3]),
                              kg_pair(x[1][0], x[1][1]), kg_pair(x[1][2], x[1][3])};

#pragma unroll
    for (int c = 0; c < HD / 8; c += 2) {
        uint32_t b[4];

        kg_fragments_transposed(b, kg_cuda_left(right, first, c / 2));
        kg_mma(sum[c], left, b);
        kg_mma(sum[c + 1], left, b + 2);
    }
}

template <int HD> static __device__ void clear(float sum[HD / 8][4])
{
#pragma unroll
    for (int c = 0; c < HD / 8; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[c][i] = 0.0f;
}

/* ---- dq ---- */
/* Keys that a row sees, from the stage's first. */
struct keys {
    int from;
    int end;
};

/* The warp's 16 rows against the stage's keys, CHUNK at a time. */
template <int HD, bool CAPPED, bool MASKED>
static __device__ void
add_keys(float sum[HD / 8][4], const uint32_t q[HD / 16][4],
         const uint32_t dout[HD / 16][4], const struct stage<HD> *now, const float lse[2],
         const float d[2], struct kg_cuda_scores by, const struct keys see[2])
{
    enum { CHUNK = 32 };
    const int t = (int)threadIdx.x % 4;

#pragma unroll 1
    for (int first = 0; first < stage<HD>::ROWS; first += CHUNK) {
        float s[CHUNK / 8][4], ds[CHUNK / 8][4];

        multiply<HD, CHUNK / 8>(s, ds, q, dout, now, first);
#pragma unroll
        for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = first + 8 * n + 2 * t + i % 2;

                soften<CAPPED>(&s[n][i], &ds[n][i], lse[i / 2], d[i / 2], by,
                               !MASKED ||
                                   (key >= see[i / 2].from && key < see[i / 2].end));
            }
#pragma unroll
        for (int n = 0; n < CHUNK / 8; n += 2)
            add<HD>(sum, ds + n, now->a, first + 8 * n);
    }
}

template <int HD>
static __device__ void write_rows(struct kg_mat dq, const struct kg_cuda_tile &t,
                                  const float sum[HD / 8][4], float scale)
{
    const int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = (int)threadIdx.x / 32 * 16 + lane / 4 + 8 * h;

        if (r >= t.rows)
            continue;
        float *const to = kg_cuda_f32(dq, kg_cuda_query(t, r)) + kg_cuda_head(t, r) * HD +
                          2 * (lane % 4);
#pragma unroll
        for (int c = 0; c < HD / 8; c++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                to[8 * c + i] = sum[c][2 * h + i] * scale;
    }
}

template <int HD, bool CAPPED>
static __global__ void __launch_bounds__(KG_ATTN_THREADS, HD == 64 && !CAPPED ? 3 : 2)
    backward_of_queries(struct kg_mat dq, struct kg_cuda_given g)
{
    enum { ROWS = stage<HD>::ROWS };
    KG_SHARED(struct stage<HD>, held, [2]);
    const int first = (int)threadIdx.x / 32 * 16, lane = (int)threadIdx.x % 32;
    uint32_t q[HD / 16][4], dout[HD / 16][4];
    float sum[HD / 8][4];
    struct kg_cuda_tile t;
    float lse[2], d[2];
    int last[2]; /* positions */

    if (!kg_cuda_tile_of_block(&t, g.a, (int)blockIdx.y))
        return;
    kg_cuda_bring_rows<KG_ATTN_THREADS>(all_of(held), g.a.q, t);
    kg_cuda_bring_rows<KG_ATTN_THREADS>(all_of(held + 1), g.dout, t);
    kg_copies_end();
    for (int h = 0; h < 2; h++) {
        const int at = first + lane / 4 + 8 * h;

        const struct kg_cuda_brought *const row = brought(g, kg_cuda_query(t, at),
                                                          kg_cuda_head(t, at));
        const int side = kg_cuda_head(t, at) % 2;

        lse[h] = at < t.rows ? row->of[side].lse : 0.0f;
        d[h] = at < t.rows ? row->of[side].d : 0.0f;
        last[h] = kg_cuda_position(t, at);
    }
    const int whole = kg_cuda_position(t, 0) + 1; /* keys that all rows see */
    const int end = kg_cuda_position(t, t.rows - 1) + 1;
    const int passed = kg_cuda_first_key(g.a, end - 1); /* not all see those before */
    const int from = kg_cuda_first_key(g.a, whole - 1) / ROWS * ROWS;
    const int64_t keys = t.seq.keys;
    const int col = t.kv_head * HD;

    both_left<HD>(q, dout, held);
    clear<HD>(sum);
    ahead(held, g.a.k, g.a.v, keys + from, end - from, col);
    for (int at = from, turn = 0; at < end; at += ROWS, turn ^= 1) {
        kg_copies_wait<0>();
        __syncthreads();
        ahead(held + (turn ^ 1), g.a.k, g.a.v, keys + at + ROWS, end - at - ROWS, col);
        const struct keys see[2] = {
            {kg_cuda_first_key(g.a, last[0]) - at, last[0] + 1 - at},
            {kg_cuda_first_key(g.a, last[1]) - at, last[1] + 1 - at}};

        if (first >= t.rows)
            continue;
        if (at + ROWS <= whole && at >= passed)
            add_keys<HD, CAPPED, false>(sum, q, dout, held + turn, lse, d, g.by, see);
        else
            add_keys<HD, CAPPED, true>(sum, q, dout, held + turn, lse, d, g.by, see);
    }
    write_rows<HD>(dq, t, sum, g.a.scale);
}

/* ---- dk, dv ---- */
/* A block of keys. */
struct block {
    int first;     /* row in k and v */
    int n;         /* keys of the sequence from there on */
    int before;    /* position of the first */
    int from, end; /* positions that see some of them */
    int row;       /* of position 0 in q; it may be before the first row */
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

/* The warp's 16 keys against the stage's rows, of which the first is at position `at`
 * from the block's first. */
template <int HD, bool CAPPED, bool MASKED>
static __device__ void add_rows(float dk[HD / 8][4], float dv[HD / 8][4],
                                const uint32_t k[HD / 16][4],
                                const uint32_t v[HD / 16][4], const struct stage<HD> *now,
                                struct kg_cuda_scores by, int at, int window, int side)
{
    const int lane = (int)threadIdx.x % 32;
    const int key = kg_anew((int)threadIdx.x / 32 * 16 + lane / 4);

#pragma unroll 1
    for (int first = 0; first < stage<HD>::ROWS; first += 16) {
        float s[2][4], ds[2][4];

        multiply<HD, 2>(s, ds, k, v, now, first);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int r = first + 8 * n + 2 * (lane % 4) + i % 2;
                const int behind = at + r - key - i / 2 * 8; /* keys after this one */

                soften<CAPPED>(
                    &s[n][i], &ds[n][i], now->row[r].of[side].lse, now->row[r].of[side].d,
                    by, !MASKED || (behind >= 0 && (window == 0 || behind < window)));
            }
        add<HD>(dv, s, now->b, first);
        add<HD>(dk, ds, now->a, first);
    }
}

/* A group of copies: rows of one head from position `at` on. */
template <int HD>
static __device__ void rows_ahead(struct stage<HD> *to, const struct kg_cuda_given &g,
                                  const struct block &b, int at, int head)
{
    const int r = kg_anew((int)threadIdx.x), n = b.end - at, row = b.row + at;

    if (n > 0 && r < stage<HD>::ROWS)
        kg_copy_later(&to->row[r], brought(g, row + (r < n ? r : 0), head),
                      r < n ? 16 : 0);
    ahead(to, g.a.q, g.dout, row, n, head * HD);
}

/* dk, dv <- sums over the rows of one head */
template <int HD, bool CAPPED>
static __device__ void walk(float dk[HD / 8][4], float dv[HD / 8][4],
                            struct stage<HD> held[2], const uint32_t k[HD / 16][4],
                            const uint32_t v[HD / 16][4], const struct kg_cuda_given &g,
                            const struct block &b, int head)
{
    enum { ROWS = stage<HD>::ROWS };
    const int window = g.a.window;
    head = kg_anew(head);

    clear<HD>(dk);
    clear<HD>(dv);
    rows_ahead(held, g, b, b.from, head);
    for (int at = b.from, turn = 0; at < b.end; at += ROWS, turn ^= 1) {
        struct stage<HD> *const now = held + turn;
        const int behind = at - b.before;

        kg_copies_wait<0>();
        __syncthreads();
        rows_ahead(held + (turn ^ 1), g, b, at + ROWS, kg_anew(head));
        /* one kind of mask with a softcap: registers */
        if (!CAPPED && behind >= KG_KV_BLOCK - 1 &&
            (window == 0 || behind + ROWS <= window))
            add_rows<HD, CAPPED, false>(dk, dv, k, v, now, g.by, behind, window,
                                        kg_anew(head) % 2);
        else
            add_rows<HD, CAPPED, true>(dk, dv, k, v, now, g.by, behind, window,
                                       kg_anew(head) % 2);
    }
    __syncthreads();
}

/* to <- sum, or to + sum, times scale */
template <int HD>
static __device__ void write(struct kg_mat to, float sum[HD / 8][4],
                             const struct block &b, int col, bool adds, float scale)
{
    const int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int key = (int)threadIdx.x / 32 * 16 + lane / 4 + 8 * h;

        if (key >= b.n)
            continue;
        float *const at = kg_cuda_f32(to, b.first + key) + col + 2 * (lane % 4);
        if (adds)
#pragma unroll
            for (int e = 0; e < HD / 4; e++)
                sum[e / 2][h * 2 + e % 2] += at[e / 2 * 8 + e % 2];
#pragma unroll
        for (int e = 0; e < HD / 4; e++)
            at[e / 2 * 8 + e % 2] = sum[e / 2][h * 2 + e % 2] * scale;
    }
}

/* Of a KV head and all of its group, or of one head. */
template <int HD, bool CAPPED>
static __global__ void __launch_bounds__(KG_ATTN_THREADS, HD == 64 && !CAPPED ? 3 : 2)
    backward_of_keys(struct kg_mat dk, struct kg_mat dv, struct kg_cuda_given g)
{
    KG_SHARED(struct stage<HD>, held, [2]);
    KG_SHARED(struct block, b, [1]); /* not in registers */
    const bool apart = g.apart[0].data;
    const int group = kg_cuda_group(g.a), y = (int)blockIdx.y;
    const int kv = apart ? y / group : y, heads = apart ? 1 : group;
    uint32_t k[HD / 16][4], v[HD / 16][4];
    float to_k[HD / 8][4], to_v[HD / 8][4];
    int s, i;

    if (!kg_cuda_find(&s, &i, g.a, (int)blockIdx.x, true))
        return;
    if (threadIdx.x == 0)
        *b = block_of(g.a, g.a.seqs[s], i);
    __syncthreads();
    kg_cuda_bring_later<KG_KV_BLOCK, KG_ATTN_THREADS>(all_of(held), g.a.k, b->first, b->n,
                                                      kv * HD);
    kg_cuda_bring_later<KG_KV_BLOCK, KG_ATTN_THREADS>(all_of(held + 1), g.a.v, b->first,
                                                      b->n, kv * HD);
    kg_copies_end();
    both_left<HD>(k, v, held);
    for (int h = 0; h < heads; h++) {
        walk<HD, CAPPED>(to_k, to_v, held, k, v, g, *b, y * heads + h);
        write<HD>(apart ? g.apart[0] : dk, to_k, *b, y * HD, h > 0,
                  apart || h < heads - 1 ? 1.0f : g.a.scale);
        write<HD>(apart ? g.apart[1] : dv, to_v, *b, y * HD, h > 0, 1.0f);
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

template <int HD, bool CAPPED>
static void launch(struct kg_mat dq, struct kg_mat dk, struct kg_mat dv,
                   const struct kg_cuda_given &g)
{
    const bool apart = g.apart[0].data;
    const int64_t blocks = kg_cuda_most_blocks(&g.a);

    KG_LAUNCH((backward_of_queries<HD, CAPPED>),
              kg_grid(kg_cuda_most_tiles(&g.a), g.a.n_kv_heads), KG_ATTN_THREADS, dq, g);
    KG_LAUNCH((backward_of_keys<HD, CAPPED>),
              kg_grid(blocks, apart ? g.a.n_heads : g.a.n_kv_heads), KG_ATTN_THREADS, dk,
              dv, g);
    if (apart)
        KG_LAUNCH(add_heads, kg_grid(blocks, 2 * PARTS * (int64_t)g.a.n_kv_heads),
                  KG_FLAT_THREADS, dk, dv, g);
}

void kg_cuda_attention_bwd_mma(struct kg_mat dq, struct kg_mat dk, struct kg_mat dv,
                               const struct kg_cuda_given *g)
{
    const bool capped = g->a.softcap > 0.0f;

    if (g->a.head_dim == 64)
        (capped ? launch<64, true> : launch<64, false>)(dq, dk, dv, *g);
    else
        (capped ? launch<128, true> : launch<128, false>)(dq, dk, dv, *g);
}
