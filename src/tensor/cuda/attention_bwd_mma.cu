/* Attention backward by the matrix instruction: bf16, heads of 64 and 128.
 *
 * The formulas, and who walks what, are attention_bwd.cu's. p is recomputed in base 2 and
 * rounded to bf16 with ds for their products, dout before anything else. Keys come by 32,
 * or query rows by 32, which keeps the factors that stay in registers.
 */
#include "tensor/cuda/attention_internal.h"

enum { STEP = 32 }; /* keys or rows brought at a time */

/* s[n] += left times rows first + 8 n.. of `right`, over the head dimension */
template <int HD, int N>
static __device__ void multiply(float s[N][4], const uint32_t left[HD / 16][4],
                                const struct kg_cuda_eight (*right)[HD / 8 + 1],
                                int first)
{
#pragma unroll
    for (int n = 0; n < N; n += 2) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = s[n + 1][i] = 0.0f;
#pragma unroll
        for (int c = 0; c < HD / 16; c++) {
            uint32_t b[4];

            kg_fragments(b, kg_cuda_right(right, first + 8 * n, c));
            kg_mma(s[n], left[c], b);
            kg_mma(s[n + 1], left[c], b + 2);
        }
    }
}

/* sum[c] += left (16 x 16) times rows first.. of `right`, its columns from 16 col on */
template <int C, int W>
static __device__ void add(float sum[C][4], const uint32_t left[4],
                           const struct kg_cuda_eight (*right)[W], int first, int col)
{
#pragma unroll
    for (int c = 0; c < C; c += 2) {
        uint32_t b[4];

        kg_fragments_transposed(b, kg_cuda_left(right, first, col + c / 2));
        kg_mma(sum[c], left, b);
        kg_mma(sum[c + 1], left, b + 2);
    }
}

template <int C> static __device__ void clear(float sum[C][4])
{
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[c][i] = 0.0f;
}

/* What a query row brings to p and ds. */
struct row {
    float lse; /* in base 2 */
    float d;
    int from, end; /* keys that it sees, from position 0, or from the block's first; none
                    * for no row */
};

static __device__ struct row row_of(const struct kg_cuda_given &g,
                                    const struct kg_cuda_tile &t, int r, int before)
{
    if (r >= t.rows)
        return {0.0f, 0.0f, 0, 0};
    const int64_t at = kg_cuda_query(t, r) * g.a.n_heads + kg_cuda_head(t, r);
    const int position = kg_cuda_position(t, r);

    return {g.lse.data[at] * 0x1.715476p+0f, g.d.data[at],
            kg_cuda_first_key(g.a, position) - before, position + 1 - before};
}

/* s and dO.v become p and ds */
template <bool CAPPED>
static __device__ void soften(float *s, float *ds, const struct row &r,
                              struct kg_cuda_scores by, int key)
{
    const float t = CAPPED ? kg_cuda_tanh(*s * by.in) : 0.0f;
    const float p = kg_cuda_exp2(CAPPED ? kg_fma(t, by.out, -r.lse)
                                        : kg_fma(*s, by.in, -r.lse));
    const float slope = CAPPED ? kg_fma(-t, t, 1.0f) : 1.0f;
    const bool seen = key >= r.from && key < r.end;

    *ds = seen ? p * (*ds - r.d) * slope : 0.0f;
    *s = seen ? p : 0.0f;
}

/* ---- dq ---- */
/* The warp's 16 rows against STEP keys from `first` on. */
template <int HD, bool CAPPED>
static __device__ void
add_keys(float sum[HD / 8][4], const uint32_t q[HD / 16][4],
         const uint32_t dout[HD / 16][4], const struct kg_cuda_eight (*k)[HD / 8 + 1],
         const struct kg_cuda_eight (*v)[HD / 8 + 1], const struct row r[2],
         struct kg_cuda_scores by, int first)
{
    const int t = (int)threadIdx.x % 4;
    float s[STEP / 8][4], ds[STEP / 8][4];

    multiply<HD, STEP / 8>(s, q, k, 0);
    multiply<HD, STEP / 8>(ds, dout, v, 0);
#pragma unroll
    for (int n = 0; n < STEP / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            soften<CAPPED>(&s[n][i], &ds[n][i], r[i / 2], by,
                           first + 8 * n + 2 * t + i % 2);
#pragma unroll
    for (int n = 0; n < STEP / 8; n += 2) {
        const uint32_t left[4] = {
            kg_pair(ds[n][0], ds[n][1]), kg_pair(ds[n][2], ds[n][3]),
            kg_pair(ds[n + 1][0], ds[n + 1][1]), kg_pair(ds[n + 1][2], ds[n + 1][3])};

        add<HD / 8>(sum, left, k, 8 * n, 0);
    }
}

template <int HD, bool CAPPED>
static __global__ void __launch_bounds__(KG_ATTN_THREADS, 2)
    backward_of_queries(struct kg_mat dq, struct kg_cuda_given g)
{
    KG_SHARED(struct kg_cuda_eight, rows, [KG_ATTN_ROWS][HD / 8 + 1]);
    KG_SHARED(struct kg_cuda_eight, k, [STEP][HD / 8 + 1]);
    KG_SHARED(struct kg_cuda_eight, v, [STEP][HD / 8 + 1]);
    const int first = (int)threadIdx.x / 32 * 16, lane = (int)threadIdx.x % 32;
    uint32_t q[HD / 16][4], dout[HD / 16][4];
    float sum[HD / 8][4];
    struct kg_cuda_tile t;

    if (!kg_cuda_tile_of_block(&t, g.a, (int)blockIdx.y))
        return;
    kg_cuda_bring_left<KG_ATTN_THREADS, HD>(q, rows, g.a.q, t);
    kg_cuda_bring_left<KG_ATTN_THREADS, HD>(dout, rows, g.dout, t);
    const struct row r[2] = {row_of(g, t, first + lane / 4, 0),
                             row_of(g, t, first + lane / 4 + 8, 0)};
    const int keys = kg_cuda_position(t, t.rows - 1) + 1;
    const int from = kg_cuda_first_key(g.a, kg_cuda_position(t, 0)) / STEP * STEP;
    const struct kg_cuda_scores by = kg_cuda_scores(g.a);

    clear<HD / 8>(sum);
    for (int at = from; at < keys; at += STEP) {
        const int64_t row = (int64_t)t.seq.keys + at;

        kg_cuda_bring<STEP, KG_ATTN_THREADS>(k, g.a.k, row, keys - at, t.kv_head * HD);
        kg_cuda_bring<STEP, KG_ATTN_THREADS>(v, g.a.v, row, keys - at, t.kv_head * HD);
        __syncthreads();
        if (first < t.rows)
            add_keys<HD, CAPPED>(sum, q, dout, k, v, r, by, at);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = first + lane / 4 + i / 2 * 8;

#pragma unroll
        for (int c = 0; c < HD / 8; c++)
            if (at < t.rows)
                kg_cuda_f32(dq,
                            kg_cuda_query(t, at))[kg_cuda_head(t, at) * HD + 8 * c +
                                                  2 * (lane % 4) + i % 2] = sum[c][i] *
                                                                            g.a.scale;
    }
}

/* ---- dk, dv ---- */
enum { WIDE = 256 }; /* threads: warps 0..3 have 16 keys each, 4..7 the same ones */

/* A piece of rows in shared memory, and what they make of the block's keys. */
template <int HD> struct piece {
    struct kg_cuda_eight q[STEP][HD / 8 + 1];
    struct kg_cuda_eight dout[STEP][HD / 8 + 1];
    struct kg_cuda_eight p[KG_KV_BLOCK][STEP / 8 + 1]; /* transposed */
    struct kg_cuda_eight ds[KG_KV_BLOCK][STEP / 8 + 1];
    struct row row[STEP];
};

template <int HD>
static __device__ void bring_piece(struct piece<HD> *w, const struct kg_cuda_given &g,
                                   const struct kg_cuda_tile &t, int first, int before)
{
    kg_cuda_bring_rows<STEP, WIDE>(w->q, g.a.q, t, first);
    kg_cuda_bring_rows<STEP, WIDE>(w->dout, g.dout, t, first);
    if (threadIdx.x < STEP)
        w->row[threadIdx.x] = row_of(g, t, first + (int)threadIdx.x, before);
}

/* p and ds of the warp's keys and half of the piece's rows. */
template <int HD, bool CAPPED>
static __device__ void recompute(struct piece<HD> *w, const uint32_t k[HD / 16][4],
                                 const uint32_t v[HD / 16][4], struct kg_cuda_scores by)
{
    const int lane = (int)threadIdx.x % 32, half = (int)threadIdx.x / 128;
    const int key = (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
    float s[2][4], ds[2][4];

    multiply<HD, 2>(s, k, w->q, 16 * half);
    multiply<HD, 2>(ds, v, w->dout, 16 * half);
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int r = 16 * half + 8 * n;

#pragma unroll
        for (int i = 0; i < 4; i++)
            soften<CAPPED>(&s[n][i], &ds[n][i], w->row[r + 2 * (lane % 4) + i % 2], by,
                           key + i / 2 * 8);
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            w->p[key + 4 * i][r / 8].pair[lane % 4] = kg_pair(s[n][i], s[n][i + 1]);
            w->ds[key + 4 * i][r / 8].pair[lane % 4] = kg_pair(ds[n][i], ds[n][i + 1]);
        }
    }
}

/* The warp's keys, half of the columns, all rows of the piece. */
template <int HD>
static __device__ void add_rows(float dk[HD / 16][4], float dv[HD / 16][4],
                                const struct piece<HD> *w)
{
    const int key = (int)threadIdx.x / 32 % 4 * 16, half = (int)threadIdx.x / 128;

#pragma unroll
    for (int r = 0; r < STEP; r += 16) {
        uint32_t left[4];

        kg_fragments(left, kg_cuda_left(w->p, key, r / 16));
        add<HD / 16>(dv, left, w->dout, r, half * (HD / 32));
        kg_fragments(left, kg_cuda_left(w->ds, key, r / 16));
        add<HD / 16>(dk, left, w->q, r, half * (HD / 32));
    }
}

template <int HD>
static __device__ void write(struct kg_mat to, const float sum[HD / 16][4], float scale,
                             int64_t first, int n, int col)
{
    const int lane = (int)threadIdx.x % 32, half = (int)threadIdx.x / 128;
    const int key = (int)threadIdx.x / 32 % 4 * 16 + lane / 4;

#pragma unroll
    for (int c = 0; c < HD / 16; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (key + i / 2 * 8 < n)
                kg_cuda_f32(to,
                            first + key + i / 2 * 8)[col + half * (HD / 2) + 8 * c +
                                                     2 * (lane % 4) + i % 2] = sum[c][i] *
                                                                               scale;
}

/* f <- the warp's keys of k or v as left factors, by way of `tile` */
template <int HD>
static __device__ void bring_block(uint32_t f[HD / 16][4],
                                   struct kg_cuda_eight (*tile)[HD / 8 + 1],
                                   struct kg_mat m, int64_t first, int n, int col)
{
    kg_cuda_bring<KG_KV_BLOCK, WIDE>(tile, m, first, n, col);
    __syncthreads();
#pragma unroll
    for (int c = 0; c < HD / 16; c++)
        kg_fragments(f[c], kg_cuda_left(tile, (int)threadIdx.x / 32 % 4 * 16, c));
    __syncthreads();
}

template <int HD, bool CAPPED>
static __global__ void __launch_bounds__(WIDE, 1)
    backward_of_keys(struct kg_mat dk, struct kg_mat dv, struct kg_cuda_given g)
{
    KG_SHARED(struct kg_cuda_eight, keys, [KG_KV_BLOCK][HD / 8 + 1]);
    KG_SHARED(struct piece<HD>, w, [1]);
    const int kv_head = (int)blockIdx.y, group = kg_cuda_group(g.a);
    uint32_t k[HD / 16][4], v[HD / 16][4];
    float to_k[HD / 16][4], to_v[HD / 16][4];
    int s, block;

    if (!kg_cuda_find(&s, &block, g.a, (int)blockIdx.x, true))
        return;
    const struct kg_attn_seq seq = g.a.seqs[s];
    const int tiles = kg_cuda_units(seq, group, false), before = block * KG_KV_BLOCK;
    const int n = seq.pos + seq.n_rows - before; /* keys from here on */
    const int64_t first = (int64_t)seq.keys + before;

    bring_block<HD>(k, keys, g.a.k, first, n, kv_head * HD);
    bring_block<HD>(v, keys, g.a.v, first, n, kv_head * HD);
    clear<HD / 16>(to_k);
    clear<HD / 16>(to_v);
    for (int i = kg_cuda_first_tile(seq, group, block); i < tiles; i++) {
        const struct kg_cuda_tile t = kg_cuda_tile_at(seq, group, kv_head, i);

        if (kg_cuda_first_block(g.a, t) > block)
            break; /* its window has passed the block, and so have later ones */
        for (int r = 0; r < t.rows; r += STEP) {
            bring_piece(w, g, t, r, before);
            __syncthreads();
            recompute<HD, CAPPED>(w, k, v, kg_cuda_scores(g.a));
            __syncthreads();
            add_rows(to_k, to_v, w);
            __syncthreads();
        }
    }
    write<HD>(dk, to_k, g.a.scale, first, n, kv_head * HD);
    write<HD>(dv, to_v, 1.0f, first, n, kv_head * HD);
}

template <int HD, bool CAPPED>
static void launch(struct kg_mat dq, struct kg_mat dk, struct kg_mat dv,
                   const struct kg_cuda_given &g)
{
    const int heads = g.a.n_kv_heads;

    KG_LAUNCH((backward_of_queries<HD, CAPPED>), kg_grid(kg_cuda_most_tiles(&g.a), heads),
              KG_ATTN_THREADS, dq, g);
    KG_LAUNCH((backward_of_keys<HD, CAPPED>), kg_grid(kg_cuda_most_blocks(&g.a), heads),
              WIDE, dk, dv, g);
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
