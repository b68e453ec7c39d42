/* Attention forward by the matrix instruction: bf16, heads of 64 and 128.
 *
 * What a query row computes, wherever it stands: scores x = scale log2(e) (q . k), or
 * with a softcap cap log2(e) tanh(scale / cap (q . k)), of a chain of instructions over
 * the head dimension; online softmax in base 2 over blocks of 64 keys, p rounded to bf16
 * for its product with v alone. It begins again at every part (attention_internal.h), so
 * that parts may be computed apart. Decoding, chunks and whole sequences differ in which
 * rows stand beside it.
 *
 * A warp has 16 rows of a tile and a thread, with g = lane / 4, rows g and g + 8 of them.
 * Keys and values of the next blocks arrive while it computes with one: a row of decoding
 * has a block of threads for itself, which else would wait for memory at every turn.
 * PLAIN knows no window and no softcap, for want of registers; BOTH is both ways, which
 * has the bits of either.
 */
#include "tensor/cuda/attention_internal.h"

/* Keys and values of a block, in shared memory. */
template <int HD> struct stage {
    struct kg_cuda_eight k[KG_KV_BLOCK][HD / 8 + 1];
    struct kg_cuda_eight v[KG_KV_BLOCK][HD / 8 + 1];
};
/* Blocks that are there or on their way. */
template <int HD> struct stages {
    enum { N = HD == 64 ? 3 : 2, BYTES = N * sizeof(struct stage<HD>) };
};

/* Sums of a thread's two rows. */
template <int HD> struct sums {
    float acc[HD / 8][4]; /* sum of p v: [c][2 h + i] is column 8 c + 2 (lane % 4) + i */
    float m[2];           /* maximum of x */
    float l[2];           /* sum of p */
};

template <int HD> static __device__ void clear(struct sums<HD> *w)
{
#pragma unroll
    for (int c = 0; c < HD / 8; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            w->acc[c][i] = 0.0f;
    w->m[0] = w->m[1] = -INFINITY;
    w->l[0] = w->l[1] = 0.0f;
}

/* to += from, which begins again */
template <int HD> static __device__ void merge(struct sums<HD> *to, struct sums<HD> *from)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const struct kg_cuda_factors f = kg_cuda_factors(to->m[h], from->m[h]);

#pragma unroll
        for (int c = 0; c < HD / 8; c++)
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; i++)
                to->acc[c][i] = kg_cuda_merge(to->acc[c][i], from->acc[c][i], f);
        to->l[h] = kg_cuda_merge(to->l[h], from->l[h], f);
        to->m[h] = f.m;
    }
    clear(from);
}

/* A value that is no number becomes 0, and its key's scores NaN: of the rows of a tile
 * only those that see it must notice. A thread has half of a key. */
template <int W>
static __device__ void hide(struct kg_cuda_eight (*k)[W], struct kg_cuda_eight (*v)[W])
{
    const int j = (int)threadIdx.x / 2, half = (W - 1) / 2;
    const int first = (int)threadIdx.x % 2 * half;
    bool number = true;

    for (int c = first; c < first + half; c++)
        for (int i = 0; i < 4; i++) {
            const uint32_t pair = v[j][c].pair[i];

            if ((pair & 0x7f80u) == 0x7f80u || (pair & 0x7f800000u) == 0x7f800000u) {
                v[j][c].pair[i] = 0;
                number = false;
            }
        }
    if (!number)
        k[j][first].pair[0] = 0x7fff7fffu;
}

/* ---- from memory ---- */
/* A group of copies: a block of keys, or nothing after the last one. */
template <int HD>
static __device__ void ahead(struct stage<HD> *all, const struct kg_attn &a,
                             const struct kg_cuda_tile &t, int block)
{
    struct stage<HD> *to = all + block % stages<HD>::N;

    if (block <= t.last) {
        const int64_t first = kg_cuda_keys(a, t.seq, block);
        const int n = kg_cuda_seen(t, t.rows - 1, block);

        kg_cuda_bring_later<KG_KV_BLOCK, KG_ATTN_THREADS>(to->k, a.k, first, n,
                                                          t.kv_head * HD);
        kg_cuda_bring_later<KG_KV_BLOCK, KG_ATTN_THREADS>(to->v, a.v, first, n,
                                                          t.kv_head * HD);
    }
    kg_copies_end();
}

/* ---- a block of keys ---- */
/* s[n][2 h + i] <- q . k of key 8 n + 2 (lane % 4) + i */
template <int HD>
static __device__ void score(float s[8][4], const uint32_t q[HD / 16][4],
                             const struct kg_cuda_eight (*k)[HD / 8 + 1])
{
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = s[n + 1][i] = 0.0f;
#pragma unroll
        for (int c = 0; c < HD / 16; c++) {
            uint32_t b[4];

            kg_fragments(b, kg_cuda_right(k, 8 * n, c));
            kg_mma(s[n], q[c], b);
            kg_mma(s[n + 1], q[c], b + 2);
        }
    }
}

/* The keys of a block that a row sees. */
struct keys {
    int from;
    int end;
};

template <bool PLAIN> static __device__ bool sees(struct keys k, int key)
{
    return (PLAIN || key >= k.from) && key < k.end;
}

/* The maximum of x over the keys that row h sees; the scores of others become -infinity.
 * MASKED: there may be others. */
template <bool PLAIN, bool MASKED>
static __device__ float largest(float s[8][4], int h, struct kg_cuda_scores by,
                                struct keys k)
{
    const int t = (int)threadIdx.x % 4;
    float top = -INFINITY;

#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float *x = &s[n][2 * h + i];

            if (!PLAIN && by.out > 0.0f)
                *x = by.out * kg_cuda_tanh(*x * by.in);
            if (MASKED)
                *x = sees<PLAIN>(k, 8 * n + 2 * t + i) ? *x : -INFINITY;
            top = fmaxf(top, *x);
        }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    return fmaxf(top, __shfl_xor_sync(~0u, top, 2));
}

/* Scores of row h become p = 2^(x - m), in pairs of bf16: p[n][h] of keys 8 n + 2 (lane %
 * 4) and the next; m, l and acc move to the new maximum, zeros where it has seen nothing
 * yet. */
template <int HD, bool PLAIN, bool MASKED>
static __device__ void soften(uint32_t p[8][2], float s[8][4], struct sums<HD> *w, int h,
                              struct kg_cuda_scores by, struct keys k)
{
    const float factor = !PLAIN && by.out > 0.0f ? 1.0f : by.in; /* x of a score */
    const float m = fmaxf(w->m[h], factor * largest<PLAIN, MASKED>(s, h, by, k));
    const float shift = PLAIN || k.end > k.from ? m : 0.0f;
    const float alpha = kg_exp2(w->m[h] - shift);
    float sum = 0.0f;

#pragma unroll
    for (int n = 0; n < 8; n++) {
        float *pair = &s[n][2 * h];

#pragma unroll
        for (int i = 0; i < 2; i++) {
            pair[i] = kg_exp2(kg_fma(pair[i], factor, -shift));
            sum += pair[i];
        }
        p[n][h] = kg_pair(pair[0], pair[1]);
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    w->l[h] = kg_fma(w->l[h], alpha, sum);
    w->m[h] = m;
#pragma unroll
    for (int c = 0; c < HD / 8; c++)
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; i++)
            w->acc[c][i] = kg_fma(w->acc[c][i], alpha,
                                  0.0f); /* never -0: see add_values */
}

/* acc += p v. Keys that a row does not see are 0 times a number: a zero of either sign,
 * which changes no acc but -0. */
template <int HD>
static __device__ void add_values(struct sums<HD> *w, const uint32_t p[8][2],
                                  const struct kg_cuda_eight (*v)[HD / 8 + 1])
{
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        const uint32_t left[4] = {p[n][0], p[n][1], p[n + 1][0], p[n + 1][1]};

#pragma unroll
        for (int c = 0; c < HD / 8; c += 2) {
            uint32_t b[4];

            kg_fragments_transposed(b, kg_cuda_left(v, 8 * n, c / 2));
            kg_mma(w->acc[c], left, b);
            kg_mma(w->acc[c + 1], left, b + 2);
        }
    }
}

/* o = acc / l, rounded once;  lse = m ln 2 + log l */
template <int HD>
static __device__ void write(struct kg_mat o, struct kg_vec lse,
                             const struct kg_cuda_tile &t, const struct sums<HD> *w,
                             int n_heads)
{
    const int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = (int)threadIdx.x / 32 * 16 + lane / 4 + 8 * h;
        const float inverse = 1.0f / w->l[h];

        if (r >= t.rows)
            continue;
#pragma unroll
        for (int c = 0; c < HD / 8; c++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                kg_cuda_store(o, kg_cuda_query(t, r),
                              kg_cuda_head(t, r) * HD + 8 * c + 2 * (lane % 4) + i,
                              w->acc[c][2 * h + i] * inverse);
        if (lse.data && lane % 4 == 0)
            lse.data[kg_cuda_query(t, r) * n_heads + kg_cuda_head(t, r)] =
                (float)((double)w->m[h] * 0x1.62e42fefa39efp-1 +
                        kg_cuda_log((double)w->l[h]));
    }
}

/* Whether a window leaves out a part of the block for some row at the tile's positions:
 * then all hide what is no number, whichever of them are there. */
static __device__ bool in_part(const struct kg_attn &a, const struct kg_cuda_tile &t,
                               int block)
{
    const int end = (t.last + 1) * KG_KV_BLOCK - 1;

    return block * KG_KV_BLOCK < kg_cuda_first_key(a, end);
}

template <int HD, bool PLAIN, bool BOTH>
static __global__ void __launch_bounds__(KG_ATTN_THREADS, 2)
    attention(struct kg_mat o, struct kg_vec lse, struct kg_attn a)
{
    KG_SHARED_ASKED(struct kg_cuda_eight, room);
    struct stage<HD> *const held = (struct stage<HD> *)room;
    enum { AHEAD = stages<HD>::N - 1 };
    const int row = (int)threadIdx.x / 32 * 16; /* the warp's first */
    const struct kg_cuda_scores plain = {a.scale * 0x1.715476p+0f, 0.0f};
    const struct kg_cuda_scores by = PLAIN ? plain : kg_cuda_scores(a);
    uint32_t q[HD / 16][4];
    struct sums<HD> part, all;
    struct kg_cuda_tile t;

    if (!kg_cuda_tile_of_block(&t, a, (int)blockIdx.y))
        return;
    if (BOTH)
        kg_cuda_see_all(&t);
    clear(&part);
    clear(&all);
    const int from = PLAIN ? 0 : kg_cuda_first_block(a, t);
    struct stage<HD> *const free = held + (from + AHEAD) % stages<HD>::N;

    kg_cuda_bring_rows<KG_ATTN_THREADS>(free->k, a.q, t);
    kg_copies_end();
    for (int block = from; block < from + AHEAD; block++)
        ahead(held, a, t, block);
    kg_copies_wait<AHEAD>();
    __syncthreads();
    kg_cuda_left_factors<HD>(q, free->k);
    __syncthreads();
    for (int block = from; block <= t.last; block++) {
        struct stage<HD> *const now = held + block % stages<HD>::N;
        uint32_t p[8][2];
        float s[8][4];

        ahead(held, a, t, block + AHEAD); /* where the block before stood */
        kg_copies_wait<AHEAD>();
        __syncthreads();
        if (block == t.last || (!PLAIN && in_part(a, t, block))) {
            hide(now->k, now->v);
            __syncthreads();
        }
        if (row < t.rows) {
            score<HD>(s, q, now->k);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int r = row + (int)threadIdx.x % 32 / 4 + 8 * h;

                if (PLAIN && block < t.last)
                    soften<HD, PLAIN, false>(p, s, &part, h, by, {0, KG_KV_BLOCK});
                else
                    soften<HD, PLAIN, true>(p, s, &part, h, by,
                                            {PLAIN ? 0 : kg_cuda_passed(a, t, r, block),
                                             kg_cuda_seen(t, r, block)});
            }
            add_values(&part, p, now->v);
        }
        if (block % KG_ATTN_PART_BLOCKS == KG_ATTN_PART_BLOCKS - 1 || block == t.last)
            merge<HD>(&all, &part);
        __syncthreads();
    }
    write(o, lse, t, &all, a.n_heads);
}

template <int HD, bool PLAIN, bool BOTH>
static void start(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a)
{
    const dim3 grid = kg_grid(kg_cuda_most_tiles(a), a->n_kv_heads);

    static_assert((int)stages<HD>::BYTES <= (int)KG_ASKED_MOST, "shared memory");
    KG_LAUNCH_ASKING((int)stages<HD>::BYTES, (attention<HD, PLAIN, BOTH>), grid,
                     KG_ATTN_THREADS, o, lse, *a);
}

template <int HD>
static void launch(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a)
{
    const bool plain = a->window == 0 && a->softcap == 0.0f;

    if (a->both_ways)
        start<HD, false, true>(o, lse, a);
    else if (plain)
        start<HD, true, false>(o, lse, a);
    else
        start<HD, false, false>(o, lse, a);
}

void kg_cuda_attention_mma(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a)
{
    if (a->head_dim == 64)
        launch<64>(o, lse, a);
    else
        launch<128>(o, lse, a);
}
