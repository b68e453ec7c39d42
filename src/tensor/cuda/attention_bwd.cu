/* Attention backward for any shape, element by element as in cpu/attention_bwd.c.
 *
 *     p_ij = exp(scale q_i.k_j - lse_i)        D_i = sum_d dO_i O_i
 *     dv_j += p_ij dO_i                        ds_ij = p_ij (dO_i.v_j - D_i)
 *     dk_j += ds_ij scale q_i                  dq_i = scale sum_j ds_ij k_j
 *
 * and with scores s = cap tanh(scale q.k / cap) ds_ij has the factor 1 - (s / cap)^2.
 *
 * In one kernel, for dq, a block has a tile of queries and walks the keys; in the other,
 * for dk and dv, it has a block of keys and walks the queries that see it. Both recompute
 * p and ds, so no block adds to the result of another, and a sum is one chain in the
 * CPU's order. As in attention.cu, a block has 64 columns of a head, and a thread 4 rows
 * and every sixteenth column.
 *
 * attention_bwd_mma.cu computes bf16 heads of 64 and 128.
 */
#include "tensor/cuda/attention_internal.h"

enum { TILE = KG_ATTN_ROWS, EACH = 4, SIDE = TILE / EACH, THREADS = SIDE * SIDE };
enum { DEPTH = 32, PAD = 4 /* against bank conflicts */, LANES = 16 };

typedef float slice[DEPTH][TILE + PAD];
typedef float square[TILE][TILE + PAD];

/* ---- preparation ---- */
/* D of each row and head, by sixteen lanes as on the CPU. For the matrix instruction, dO
 * is rounded as for products (stored if `kept` has data), and D is stored with lse. */
static __global__ void __launch_bounds__(KG_ROW_THREADS)
    products(struct kg_cuda_given g, struct kg_mat kept, struct kg_mat o)
{
    const int64_t i = (int64_t)blockIdx.x * (KG_ROW_THREADS / LANES) +
                      threadIdx.x / LANES;
    const int64_t heads = g.a.n_heads, row = i / heads, head = i % heads;
    const int64_t first = head * g.a.head_dim, end = first + g.a.head_dim;
    const bool there = i < g.lse.n;
    float sum = 0.0f;

    for (int64_t c = first + threadIdx.x % LANES; there && c < end; c += LANES) {
        const float x = kg_cuda_load(g.dout, row, c);
        const uint32_t bits = kg_pair(0.0f, x);

        sum = kg_fma(g.rows ? kg_cuda_of_bits(bits & 0xffff0000u) : x,
                     kg_cuda_load(o, row, c), sum);
        if (kept.data)
            kg_cuda_bf16(kept, row)[c] = (uint16_t)(bits >> 16);
    }
    for (unsigned by = LANES / 2; by > 0; by /= 2)
        sum += __shfl_xor_sync(~0u, sum, by);
    if (!there || threadIdx.x % LANES != 0)
        return;
    if (g.rows)
        g.rows[row * ((heads + 1) / 2) + head / 2].of[head % 2] = {
            g.lse.data[i] * 0x1.715476p+0f, sum};
    else
        g.d.data[i] = sum;
}

/* Zeros the gradients: no other kernel writes rows that no sequence holds. */
static __global__ void clear(struct kg_mat dq, struct kg_mat dk, struct kg_mat dv)
{
    const struct kg_mat all[] = {dq, dk, dv};

#pragma unroll
    for (int i = 0; i < 3; i++) {
        const bool there = (int64_t)blockIdx.x < all[i].rows;
        const int64_t end = there ? kg_cuda_end(all[i].cols) : 0;

        for (int64_t c = kg_cuda_first(); c < end; c += KG_ROW_THREADS)
            kg_cuda_f32(all[i], blockIdx.x)[c] = 0.0f;
    }
}

/* ---- p and ds of a tile of queries and a block of keys ---- */
/* to[d][r] <- element d of query row r of m, times scale */
static __device__ void bring_rows(slice &to, struct kg_mat m,
                                  const struct kg_cuda_given &g,
                                  const struct kg_cuda_tile &t, int d, float scale)
{
    const int hd = g.a.head_dim;

    for (int e = (int)threadIdx.x; e < TILE * DEPTH; e += THREADS) {
        const int r = e / DEPTH, k = d + e % DEPTH;

        to[e % DEPTH][r] = r < t.rows && k < hd
                               ? kg_cuda_load(m, kg_cuda_query(t, r),
                                              kg_cuda_head(t, r) * hd + k) *
                                     scale
                               : 0.0f;
    }
}

/* to[d][j] <- element d of row first + j of n */
static __device__ void bring_keys(slice &to, struct kg_mat m,
                                  const struct kg_cuda_given &g, int kv_head,
                                  int64_t first, int n, int d)
{
    const int hd = g.a.head_dim;

    for (int e = (int)threadIdx.x; e < TILE * DEPTH; e += THREADS) {
        const int j = e / DEPTH, k = d + e % DEPTH;

        to[e % DEPTH][j] = j < n && k < hd
                               ? kg_cuda_load(m, first + j, (int64_t)kv_head * hd + k)
                               : 0.0f;
    }
}

/* s[r][c] <- chains over the head dimension: scale q.k, or dO.v */
static __device__ void multiply(float s[EACH][EACH], slice &left, slice &right,
                                const struct kg_cuda_given &g,
                                const struct kg_cuda_tile &t, int block, int n,
                                bool values)
{
    const int i = (int)threadIdx.x / SIDE * EACH, j = (int)threadIdx.x % SIDE;
    const int64_t first = kg_cuda_keys(g.a, t.seq, block);
    const struct kg_mat rows = values ? g.dout : g.a.q, keys = values ? g.a.v : g.a.k;
    const float scale = values ? 1.0f : g.a.scale;

    for (int r = 0; r < EACH; r++)
        for (int c = 0; c < EACH; c++)
            s[r][c] = 0.0f;
    for (int d = 0; d < g.a.head_dim; d += DEPTH) {
        const int depth = (int)kg_cuda_min(DEPTH, g.a.head_dim - d);

        bring_rows(left, rows, g, t, d, scale);
        bring_keys(right, keys, g, t.kv_head, first, n, d);
        __syncthreads();
        for (int k = 0; k < depth; k++)
#pragma unroll
            for (int r = 0; r < EACH; r++)
#pragma unroll
                for (int c = 0; c < EACH; c++)
                    s[r][c] = kg_fma(left[k][i + r], right[k][j + c * SIDE], s[r][c]);
        __syncthreads();
    }
}

/* Replaces s and dO.v by p and ds. */
static __device__ void soften(float *s, float *ds, float softcap, float lse, float d)
{
    float x = *s, slope = 1.0f, p;

    if (softcap > 0.0f) {
        const float t = kg_cuda_tanh(x / softcap);

        x = softcap * t;
        slope = kg_fma(-t, t, 1.0f);
    }
    p = kg_cuda_exp(x - lse);
    *ds = p * (*ds - d) * slope;
    *s = p;
}

/* p and ds of a thread's elements, 0 at keys that a row does not see. */
static __device__ void recompute(float p[EACH][EACH], float ds[EACH][EACH], slice &left,
                                 slice &right, const struct kg_cuda_given &g,
                                 const struct kg_cuda_tile &t, int block, int n)
{
    const int i = (int)threadIdx.x / SIDE * EACH, j = (int)threadIdx.x % SIDE;

    multiply(p, left, right, g, t, block, n, false);
    multiply(ds, left, right, g, t, block, n, true);
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        const bool there = i + r < t.rows;
        const int from = kg_cuda_passed(g.a, t, i + r, block);
        const int end = there ? kg_cuda_seen(t, i + r, block) : 0;
        const int64_t at = there ? kg_cuda_query(t, i + r) * g.a.n_heads +
                                       kg_cuda_head(t, i + r)
                                 : 0;
        const float lse = g.lse.data[at], d = g.d.data[at];

#pragma unroll
        for (int c = 0; c < EACH; c++) {
            const bool seen = j + c * SIDE >= from && j + c * SIDE < end;

            soften(&p[r][c], &ds[r][c], g.a.softcap, lse, d);
            ds[r][c] = seen ? ds[r][c] : 0.0f;
            p[r][c] = seen ? p[r][c] : 0.0f;
        }
    }
}

static __device__ void keep(square &to, const float s[EACH][EACH])
{
    const int i = (int)threadIdx.x / SIDE * EACH, j = (int)threadIdx.x % SIDE;

#pragma unroll
    for (int r = 0; r < EACH; r++)
#pragma unroll
        for (int c = 0; c < EACH; c++)
            to[i + r][j + c * SIDE] = s[r][c];
}

/* ---- dq ---- */
/* to[j][c] <- element col + c of row first + j of n */
static __device__ void bring_columns(slice &to, struct kg_mat m,
                                     const struct kg_cuda_given &g, int kv_head,
                                     int64_t first, int n, int col)
{
    const int hd = g.a.head_dim;

    for (int e = (int)threadIdx.x; e < TILE * DEPTH; e += THREADS) {
        const int j = e / TILE, c = col + e % TILE;

        to[j][e % TILE] = j < n && c < hd
                              ? kg_cuda_load(m, first + j, (int64_t)kv_head * hd + c)
                              : 0.0f;
    }
}

/* sum[r][c] += chains over n keys of held[r][j] and k's columns from col on */
static __device__ void add_keys(float sum[EACH][EACH], const square &held, slice &right,
                                const struct kg_cuda_given &g,
                                const struct kg_cuda_tile &t, int64_t first, int n,
                                int col)
{
    const int i = (int)threadIdx.x / SIDE * EACH, j = (int)threadIdx.x % SIDE;

    for (int at = 0; at < n; at += DEPTH) {
        bring_columns(right, g.a.k, g, t.kv_head, first + at, n - at, col);
        __syncthreads();
        for (int k = 0; k < DEPTH && at + k < n; k++)
#pragma unroll
            for (int r = 0; r < EACH; r++)
#pragma unroll
                for (int c = 0; c < EACH; c++)
                    sum[r][c] = kg_fma(held[i + r][at + k], right[k][j + c * SIDE],
                                       sum[r][c]);
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(THREADS, 1)
    backward_of_queries(struct kg_mat dq, struct kg_cuda_given g)
{
    KG_SHARED(float, left, [DEPTH][TILE + PAD]);
    KG_SHARED(float, right, [DEPTH][TILE + PAD]);
    KG_SHARED(float, held, [TILE][TILE + PAD]);
    const int i = (int)threadIdx.x / SIDE * EACH, j = (int)threadIdx.x % SIDE;
    const int hd = g.a.head_dim, col = (int)blockIdx.y / g.a.n_kv_heads * TILE;
    float sum[EACH][EACH] = {{0.0f}};
    struct kg_cuda_tile t;

    if (!kg_cuda_tile_of_block(&t, g.a, (int)blockIdx.y % g.a.n_kv_heads))
        return;
    for (int block = kg_cuda_first_block(g.a, t); block <= t.last; block++) {
        const int64_t first = kg_cuda_keys(g.a, t.seq, block);
        const int n = kg_cuda_seen(t, t.rows - 1, block);
        float p[EACH][EACH], ds[EACH][EACH];

        recompute(p, ds, left, right, g, t, block, n);
        keep(held, ds);
        add_keys(sum, held, right, g, t, first, n, col);
    }
    for (int r = 0; r < EACH && i + r < t.rows; r++)
#pragma unroll
        for (int c = 0; c < EACH; c++)
            if (col + j + c * SIDE < hd)
                kg_cuda_store(dq, kg_cuda_query(t, i + r),
                              kg_cuda_head(t, i + r) * hd + col + j + c * SIDE,
                              sum[r][c] * g.a.scale);
}

/* ---- dk, dv ---- */
/* sum[j][c] += chains over the tile's rows of held[r][j] and m's columns from col on */
static __device__ void add_rows(float sum[EACH][EACH], const square &held, slice &right,
                                struct kg_mat m, const struct kg_cuda_given &g,
                                const struct kg_cuda_tile &t, float scale, int col)
{
    const int i = (int)threadIdx.x / SIDE * EACH, j = (int)threadIdx.x % SIDE;
    const int hd = g.a.head_dim;

    for (int at = 0; at < t.rows; at += DEPTH) {
        for (int e = (int)threadIdx.x; e < TILE * DEPTH; e += THREADS) {
            const int r = at + e / TILE, c = col + e % TILE;

            right[e / TILE][e % TILE] = r < t.rows && c < hd
                                            ? kg_cuda_load(m, kg_cuda_query(t, r),
                                                           kg_cuda_head(t, r) * hd + c) *
                                                  scale
                                            : 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < DEPTH && at + k < t.rows; k++)
#pragma unroll
            for (int r = 0; r < EACH; r++)
#pragma unroll
                for (int c = 0; c < EACH; c++)
                    sum[r][c] = kg_fma(held[at + k][i + r], right[k][j + c * SIDE],
                                       sum[r][c]);
        __syncthreads();
    }
}

static __device__ void write(struct kg_mat m, const float sum[EACH][EACH], int64_t first,
                             int n, int kv_head, int hd, int col)
{
    const int i = (int)threadIdx.x / SIDE * EACH, j = (int)threadIdx.x % SIDE;

    for (int r = 0; r < EACH && i + r < n; r++)
#pragma unroll
        for (int c = 0; c < EACH; c++)
            if (col + j + c * SIDE < hd)
                kg_cuda_f32(m,
                            first + i + r)[kv_head * hd + col + j + c * SIDE] = sum[r][c];
}

static __global__ void __launch_bounds__(THREADS, 1)
    backward_of_keys(struct kg_mat dk, struct kg_mat dv, struct kg_cuda_given g)
{
    KG_SHARED(float, left, [DEPTH][TILE + PAD]);
    KG_SHARED(float, right, [DEPTH][TILE + PAD]);
    KG_SHARED(float, held, [TILE][TILE + PAD]);
    const int kv_head = (int)blockIdx.y % g.a.n_kv_heads, group = kg_cuda_group(g.a);
    const int col = (int)blockIdx.y / g.a.n_kv_heads * TILE;
    float to_k[EACH][EACH] = {{0.0f}}, to_v[EACH][EACH] = {{0.0f}};
    int s, block;

    if (!kg_cuda_find(&s, &block, g.a, (int)blockIdx.x, true))
        return;
    const struct kg_attn_seq seq = g.a.seqs[s];
    const int tiles = kg_cuda_units(seq, group, false);
    const int n = (int)kg_cuda_min(KG_KV_BLOCK,
                                   seq.pos + seq.n_rows - block * KG_KV_BLOCK);

    for (int i = kg_cuda_first_tile(seq, group, block); i < tiles; i++) {
        const struct kg_cuda_tile t = kg_cuda_tile_at(seq, group, kv_head, i);
        float p[EACH][EACH], ds[EACH][EACH];

        if (kg_cuda_first_block(g.a, t) > block)
            break; /* this and later windows begin after the block */
        recompute(p, ds, left, right, g, t, block, n);
        keep(held, p);
        add_rows(to_v, held, right, g.dout, g, t, 1.0f, col);
        keep(held, ds);
        add_rows(to_k, held, right, g.a.q, g, t, g.a.scale, col);
    }
    write(dk, to_k, kg_cuda_keys(g.a, seq, block), n, kv_head, g.a.head_dim, col);
    write(dv, to_v, kg_cuda_keys(g.a, seq, block), n, kv_head, g.a.head_dim, col);
}

/* ---- the slot ---- */
static void launch(struct kg_mat dq, struct kg_mat dk, struct kg_mat dv,
                   const struct kg_cuda_given *g)
{
    const int64_t strips = g->a.n_kv_heads * kg_cuda_pieces(g->a.head_dim, TILE);

    KG_LAUNCH(backward_of_queries, kg_grid(kg_cuda_most_tiles(&g->a), strips), THREADS,
              dq, *g);
    KG_LAUNCH(backward_of_keys, kg_grid(kg_cuda_most_blocks(&g->a), strips), THREADS, dk,
              dv, *g);
}

/* D or, for the matrix instruction, rows; and if memory allows, dO in bf16 and the sums
 * of each head.   kept: dO if it must be rounded, else no data */
static void place(struct kg_cuda_piece *p, struct kg_cuda_given *g, struct kg_mat *kept)
{
    const struct kg_attn *a = &g->a;
    const int64_t N = a->q.rows, keys = a->k.rows, cols = a->q.cols;
    uint16_t *half;
    float *sums;
    const bool apart = kg_cuda_group(*a) > 1 && !kg_cuda_attention_in_turn(a) &&
                       2 * keys * cols * (int64_t)sizeof *sums <= KG_DEV_HEADS;

    if (!kg_cuda_by_mma(a)) {
        kg_cuda_take(p, &g->d.data, g->lse.n);
        return;
    }
    kg_cuda_take(p, &g->rows, N * ((a->n_heads + 1) / 2));
    if (g->dout.dtype != KG_BF16 && N * cols * (int64_t)sizeof *half <= KG_DEV_HEADS) {
        kg_cuda_take(p, &half, N * cols);
        *kept = kg_mat(half, KG_BF16, N, cols);
    }
    for (int i = 0; apart && i < 2; i++) {
        kg_cuda_take(p, &sums, keys * cols);
        g->apart[i] = kg_mat(sums, KG_F32, keys, cols);
    }
}

void kg_cuda_attention_bwd_prepare(const struct kg_cuda_given *g, struct kg_mat kept,
                                   struct kg_mat o)
{
    KG_LAUNCH(products, kg_grid(kg_cuda_pieces(g->lse.n, KG_ROW_THREADS / LANES), 1),
              KG_ROW_THREADS, *g, kept, o);
}

kg_status kg_cuda_attention_bwd(struct kg_mat dq, struct kg_mat dk, struct kg_mat dv,
                                struct kg_mat dout, struct kg_mat o, struct kg_vec lse,
                                const struct kg_attn *a, struct kg_err *err)
{
    struct kg_cuda_given g = {*a, dout, {NULL, lse.n}, NULL, lse, kg_cuda_scores(*a), {}};
    struct kg_mat kept = {};
    struct kg_cuda_piece p = {};

    if (dq.rows + dk.rows > 0)
        KG_LAUNCH(clear, kg_cuda_rows(dq.rows > dk.rows ? dq.rows : dk.rows, dq.cols),
                  KG_ROW_THREADS, dq, dk, dv);
    if (a->q.rows == 0 || a->n_seqs == 0)
        return kg_dev_done("attention_bwd", err);
    place(&p, &g, &kept);
    p = {(char *)kg_cuda_scratch(p.used, err), 0};
    if (!p.base)
        return err->code;
    place(&p, &g, &kept);
    kg_cuda_attention_bwd_prepare(&g, kept, o);
    if (kept.data)
        g.dout = kept;
    if (kg_cuda_by_mma(a))
        kg_cuda_attention_bwd_own(dq, dk, dv, &g);
    else
        launch(dq, dk, dv, &g);
    return kg_dev_done("attention_bwd", err);
}
