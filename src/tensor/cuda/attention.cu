/* Attention forward for any shape, element by element as in cpu/attention.c.
 *
 * A block computes 64 query rows of one KV head and 64 columns of their output; for wider
 * heads, other blocks compute the same scores for the other columns. A thread has 4 rows
 * and every sixteenth column. In the scores, these are the columns that a lane of the CPU
 * adds first, so sixteen neighbouring threads form the CPU's tree.
 *
 * attention_own.cu and attention_rows.cu compute bf16 heads of 64 and 128.
 */
#include "tensor/cuda/attention_internal.h"

enum { TILE = KG_ATTN_ROWS, EACH = 4, SIDE = TILE / EACH, THREADS = SIDE * SIDE };
enum { DEPTH = 32, PAD = 4 /* against bank conflicts */ };

/* A thread's rows, i = 4 (thread / 16) + r; columns j = thread % 16 + 16 c. */
struct rows {
    float acc[EACH][EACH]; /* sum of p v */
    float m[EACH];         /* running maximum */
    float l[EACH];         /* running sum of p */
};

typedef float slice[DEPTH][TILE + PAD];

/* to[d][r] <- element d of row r's query, times scale; 0 outside */
static __device__ void bring_queries(slice &to, const struct kg_attn &a,
                                     const struct kg_cuda_tile &t, int d)
{
    for (int e = (int)threadIdx.x; e < TILE * DEPTH; e += THREADS) {
        const int r = e / DEPTH, k = d + e % DEPTH;

        to[e % DEPTH][r] = r < t.rows && k < a.head_dim
                               ? kg_cuda_load(a.q, kg_cuda_query(t, r),
                                              kg_cuda_head(t, r) * a.head_dim + k) *
                                     a.scale
                               : 0.0f;
    }
}

/* to[d][j] <- element d of key j of `n` */
static __device__ void bring_keys(slice &to, const struct kg_attn &a,
                                  const struct kg_cuda_tile &t, int64_t row, int n, int d)
{
    for (int e = (int)threadIdx.x; e < TILE * DEPTH; e += THREADS) {
        const int j = e / DEPTH, k = d + e % DEPTH;

        to[e % DEPTH][j] = j < n && k < a.head_dim
                               ? kg_cuda_load(a.k, row + j, t.kv_head * a.head_dim + k)
                               : 0.0f;
    }
}

/* to[j][c] <- element col + c of the value of key first + j */
static __device__ void bring_values(slice &to, const struct kg_attn &a,
                                    const struct kg_cuda_tile &t, int64_t row, int n,
                                    int col)
{
    for (int e = (int)threadIdx.x; e < TILE * DEPTH; e += THREADS) {
        const int j = e / TILE, c = col + e % TILE;

        to[j][e % TILE] = j < n && c < a.head_dim
                              ? kg_cuda_load(a.v, row + j, t.kv_head * a.head_dim + c)
                              : 0.0f;
    }
}

/* s[r][c] <- chains over the head dimension */
static __device__ void score(float s[EACH][EACH], slice &left, slice &right,
                             const struct kg_attn &a, const struct kg_cuda_tile &t,
                             int64_t row, int n)
{
    const int i = (int)threadIdx.x / SIDE * EACH, j = (int)threadIdx.x % SIDE;

    for (int r = 0; r < EACH; r++)
        for (int c = 0; c < EACH; c++)
            s[r][c] = 0.0f;
    for (int d = 0; d < a.head_dim; d += DEPTH) {
        const int depth = (int)kg_cuda_min(DEPTH, a.head_dim - d);

        bring_queries(left, a, t, d);
        bring_keys(right, a, t, row, n, d);
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

static __device__ float larger(float a, float b) { return a > b ? a : b; }

/* The keys of a block that each of a thread's rows sees: [from, end). */
struct keys {
    int from[EACH];
    int end[EACH];
};

static __device__ bool sees(const struct keys &k, int r, int key)
{
    return key >= k.from[r] && key < k.end[r];
}

/* Replaces the scores of row r by p = exp(s - m), and scales l and acc to the new maximum
 * m. A row that has seen no key is unchanged. */
static __device__ void soften(float s[EACH], struct rows *w, int r, const struct keys &k,
                              float softcap)
{
    const int j = (int)threadIdx.x % SIDE;
    float m, shift, alpha, sum;

#pragma unroll
    for (int c = 0; c < EACH; c++) {
        if (softcap > 0.0f)
            s[c] = kg_cuda_softcap(s[c], softcap);
        s[c] = sees(k, r, j + c * SIDE) ? s[c] : -INFINITY;
    }
    m = larger(larger(s[0], s[1]), larger(s[2], s[3]));
    for (unsigned by = SIDE / 2; by > 0; by /= 2)
        m = larger(m, __shfl_xor_sync(~0u, m, by));
    m = larger(w->m[r], m);
    shift = k.end[r] > k.from[r] ? m : 0.0f;
#pragma unroll
    for (int c = 0; c < EACH; c++)
        s[c] = kg_cuda_exp(s[c] - shift);
    sum = (s[0] + s[1]) + (s[2] + s[3]);
    for (unsigned by = SIDE / 2; by > 0; by /= 2)
        sum += __shfl_xor_sync(~0u, sum, by);
    alpha = kg_cuda_exp(w->m[r] - shift); /* 0 at the first block */
#pragma unroll
    for (int c = 0; c < EACH; c++)
        w->acc[r][c] *= alpha;
    w->l[r] = w->l[r] * alpha + sum;
    w->m[r] = m;
}

/* acc += p v over the keys that each row sees */
static __device__ void add_values(struct rows *w, const float p[TILE][TILE + PAD],
                                  const slice &v, const struct keys &keys, int first)
{
    const int i = (int)threadIdx.x / SIDE * EACH, j = (int)threadIdx.x % SIDE;

    for (int k = 0; k < DEPTH; k++)
#pragma unroll
        for (int r = 0; r < EACH; r++)
#pragma unroll
            for (int c = 0; c < EACH; c++)
                if (sees(keys, r, first + k))
                    w->acc[r][c] = kg_fma(p[i + r][first + k], v[k][j + c * SIDE],
                                          w->acc[r][c]);
}

/* o = acc / l, rounded once;  lse = m + log l */
static __device__ void write(struct kg_mat o, struct kg_vec lse, const struct kg_attn &a,
                             const struct kg_cuda_tile &t, const struct rows *w, int col)
{
    const int i = (int)threadIdx.x / SIDE * EACH, j = (int)threadIdx.x % SIDE;

    for (int r = 0; r < EACH && i + r < t.rows; r++) {
        const int64_t row = kg_cuda_query(t, i + r);
        const int head = kg_cuda_head(t, i + r);

#pragma unroll
        for (int c = 0; c < EACH; c++)
            if (col + j + c * SIDE < a.head_dim)
                kg_cuda_store(o, row, head * a.head_dim + col + j + c * SIDE,
                              w->acc[r][c] / w->l[r]);
        if (lse.data && col + j == 0)
            lse.data[row * a.n_heads + head] = (float)((double)w->m[r] +
                                                       kg_cuda_log((double)w->l[r]));
    }
}

static __global__ void __launch_bounds__(THREADS)
    attention(struct kg_mat o, struct kg_vec lse, struct kg_attn a)
{
    KG_SHARED(float, left, [DEPTH][TILE + PAD]);
    KG_SHARED(float, right, [DEPTH][TILE + PAD]);
    KG_SHARED(float, p, [TILE][TILE + PAD]);
    const int i = (int)threadIdx.x / SIDE * EACH, j = (int)threadIdx.x % SIDE;
    const int col = (int)blockIdx.y / a.n_kv_heads * TILE;
    struct rows w = {{{0.0f}}, {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, {0.0f}};
    struct kg_cuda_tile t;

    if (!kg_cuda_tile_of_block(&t, a, (int)blockIdx.y % a.n_kv_heads))
        return;
    if (a.both_ways)
        kg_cuda_see_all(&t);
    for (int block = kg_cuda_first_block(a, t); block <= t.last; block++) {
        const int64_t row = kg_cuda_keys(a, t.seq, block);
        const int n = kg_cuda_seen(t, t.rows - 1, block);
        float s[EACH][EACH];
        struct keys keys;

        score(s, left, right, a, t, row, n);
#pragma unroll
        for (int r = 0; r < EACH; r++) {
            keys.from[r] = kg_cuda_passed(a, t, i + r, block);
            keys.end[r] = i + r < t.rows ? kg_cuda_seen(t, i + r, block) : 0;
            soften(s[r], &w, r, keys, a.softcap);
#pragma unroll
            for (int c = 0; c < EACH; c++)
                p[i + r][j + c * SIDE] = s[r][c];
        }
        for (int first = 0; first < n; first += DEPTH) {
            bring_values(right, a, t, row + first, n - first, col);
            __syncthreads();
            add_values(&w, p, right, keys, first);
            __syncthreads();
        }
    }
    write(o, lse, a, t, &w, col);
}

kg_status kg_cuda_attention(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a,
                            struct kg_err *err)
{
    const int64_t tiles = kg_cuda_most_tiles(a);

    if (tiles > 0 && kg_cuda_by_mma(a) && a->q.rows <= a->n_seqs && !a->both_ways &&
        kg_cuda_is_aligned(a->k) && kg_cuda_is_aligned(a->v))
        KG_TRY(kg_cuda_attention_rows(o, lse, a, err));
    else if (tiles > 0 && kg_cuda_by_mma(a))
        kg_cuda_attention_own(o, lse, a);
    else if (tiles > 0)
        KG_LAUNCH(attention,
                  kg_grid(tiles, a->n_kv_heads * kg_cuda_pieces(a->head_dim, TILE)),
                  THREADS, o, lse, *a);
    return kg_dev_done("attention", err);
}
