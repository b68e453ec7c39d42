/* Attention forward by the matrix instruction: bf16, heads of 64 and 128.
 *
 * A query row is computed the same way in every tile. Scores x = scale log2(e) (q . k),
 * or with a softcap cap log2(e) tanh(scale / cap (q . k)), are a chain of instructions
 * over the head dimension. The online softmax is in base 2 over blocks of 64 keys; p is
 * rounded to bf16 only for its product with v. It starts again at every part
 * (attention_internal.h), so parts can be computed separately. Decoding, chunks and whole
 * sequences differ only in the other rows of the tile.
 *
 * A warp has 16 rows of a tile; a thread has rows g and g + 8 of these, g = lane / 4.
 * The next keys and values arrive while a block of them is processed: in decoding, a row
 * has a block of threads for itself, which would otherwise wait for memory each time.
 * PLAIN kernels support no window and no softcap, to save registers; BOTH kernels are for
 * both ways. A row's bits are the same by either.
 */
#include "tensor/cuda/softmax_internal.h"

/* Keys and values of a block, in shared memory. */
template <int HD> struct stage {
    struct kg_cuda_eight k[KG_KV_BLOCK][HD / 8 + 1];
    struct kg_cuda_eight v[KG_KV_BLOCK][HD / 8 + 1];
};
/* Blocks in shared memory, or being copied. */
template <int HD> struct stages {
    enum { N = HD == 64 ? 3 : 2, BYTES = N * sizeof(struct stage<HD>) };
};

/* A value that is NaN or infinite becomes 0, and its key's scores NaN: it may affect only
 * rows that see the key. A thread has half of a key. */
template <int W>
static __device__ void hide(struct kg_cuda_eight (*k)[W], struct kg_cuda_eight (*v)[W])
{
    const int j = (int)threadIdx.x / 2, half = (W - 1) / 2;
    const int first = (int)threadIdx.x % 2 * half;

    if (!kg_cuda_hide(v[j] + first, half))
        k[j][first].pair[0] = KG_ATTN_NO_NUMBER;
}

/* ---- from memory ---- */
/* A group of copies: a block of keys, or nothing after the last block. */
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

/* o = acc / l, rounded once;  lse = m ln 2 + log l */
template <int HD>
static __device__ void write(struct kg_mat o, struct kg_vec lse,
                             const struct kg_cuda_tile &t,
                             const struct kg_cuda_sums<HD> *w, int n_heads)
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
            lse.data[kg_cuda_query(t, r) * n_heads + kg_cuda_head(t, r)] = kg_cuda_lse(
                w->m[h], w->l[h]);
    }
}

template <int HD, bool PLAIN, bool BOTH>
static __global__ void __launch_bounds__(KG_ATTN_THREADS, 2)
    attention(struct kg_mat o, struct kg_vec lse, struct kg_attn a)
{
    KG_SHARED_ASKED(struct kg_cuda_eight, room);
    struct stage<HD> *const held = (struct stage<HD> *)room;
    enum { AHEAD = stages<HD>::N - 1 };
    const int row = (int)threadIdx.x / 32 * 16; /* the warp's first row */
    const struct kg_cuda_scores plain = {a.scale * 0x1.715476p+0f, 0.0f};
    const struct kg_cuda_scores by = PLAIN ? plain : kg_cuda_scores(a);
    uint32_t q[HD / 16][4];
    struct kg_cuda_sums<HD> part, all;
    struct kg_cuda_tile t;

    if (!kg_cuda_tile_of_block(&t, a, (int)blockIdx.y))
        return;
    if (BOTH)
        kg_cuda_see_all(&t);
    kg_cuda_clear(&part);
    kg_cuda_clear(&all);
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

        ahead(held, a, t, block + AHEAD); /* replaces the previous block */
        kg_copies_wait<AHEAD>();
        __syncthreads();
        if (block == t.last || (!PLAIN && kg_cuda_in_part(a, t, block))) {
            hide(now->k, now->v);
            __syncthreads();
        }
        if (row < t.rows) {
#pragma unroll
            for (int n = 0; n < 8; n += 2)
                kg_cuda_score<HD>(s + n, q, now->k, 8 * n);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int r = row + (int)threadIdx.x % 32 / 4 + 8 * h;

                if (PLAIN && block < t.last)
                    kg_cuda_soften<HD, PLAIN, false>(p, s, &part, h, by,
                                                     {0, KG_KV_BLOCK});
                else
                    kg_cuda_soften<HD, PLAIN, true>(
                        p, s, &part, h, by,
                        {PLAIN ? 0 : kg_cuda_passed(a, t, r, block),
                         kg_cuda_seen(t, r, block)});
            }
#pragma unroll
            for (int n = 0; n < 8; n += 2)
                kg_cuda_add_values<HD>(&part, p + n, now->v, 8 * n);
        }
        if (block % KG_ATTN_PART_BLOCKS == KG_ATTN_PART_BLOCKS - 1 || block == t.last)
            kg_cuda_merge_sums<HD>(&all, &part);
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
