/* Attention forward of few rows, as in decoding, by the matrix instruction: bf16, heads
 * of 64 and 128, with the bits of attention_mma.cu.
 *
 * A block has the rows of one sequence and one KV head, sixteen at a time; for a single
 * position these are the query heads of a group. The warps take the parts of the keys
 * (attention_internal.h) in turn, and the sums of each turn are merged in order. If there
 * are few sequences, several blocks share the parts of a sequence; then all sums are
 * stored in memory, and another launch merges them.
 *
 * No warp waits for another within a part. Each loads its own keys and values, sixteen at
 * a time, into its own ring in shared memory, as far ahead as there is room.
 */
#include "tensor/cuda/softmax_internal.h"

/* A block of keys is loaded in pieces: of its keys, then of its values. */
enum { PIECE = 16, OF_KEYS = KG_KV_BLOCK / PIECE, PIECES = 2 * OF_KEYS };
enum { EIGHT = 8, LANES = KG_ATTN_THREADS / EIGHT /* per merged row */ };

/* A row's sums of a part: acc, then m and l. */
template <int HD> struct kept {
    float acc[HD];
    float m, l;
    float pad[6]; /* against bank conflicts */
};

template <int HD> struct room {
    enum { RING = HD == 64 ? 8 : 4, AHEAD = RING - 1 };
    struct kg_cuda_eight ring[KG_ATTN_WARPS][RING][PIECE][HD / 8 + 1];
    union {
        struct kg_cuda_eight q[PIECE][HD / 8 + 1];
        struct kept<HD> sums[KG_ATTN_WARPS][EIGHT];
    };
};

/* Division of the parts among blocks of threads. */
struct shares {
    int blocks; /* blocks that share the parts of a row */
    int most;   /* most parts of a row */
    void *sums; /* (N, H, most) kept, if there are several blocks */
};

/* Parts of the keys that the rows of a tile see. */
struct parts {
    int first;
    int n;
};
static __device__ struct parts parts_of(const struct kg_attn &a,
                                        const struct kg_cuda_tile &t)
{
    const int first = kg_cuda_first_block(a, t) / KG_ATTN_PART_BLOCKS;

    return {first, t.last / KG_ATTN_PART_BLOCKS - first + 1};
}

/* ---- a warp's part ---- */
/* A warp's current block of keys. k, v: the sixteen bytes of its first row that this lane
 * copies first. */
template <int HD> struct place {
    enum { EACH = 8 * KG_WARP / HD /* rows that the lanes copy at a time */ };
    int block;
    int n; /* keys that some row sees; 0 after the last block */
    const uint16_t *k, *v;
};
template <int HD>
static __device__ struct place<HD> place_of(const struct kg_attn &a,
                                            const struct kg_cuda_tile &t, int block) {
    const int lane = (int)threadIdx.x % KG_WARP;
    const int64_t col = t.kv_head * HD + lane * 8 % HD;
    int64_t row;

    if (block > t.last)
        return {block, 0, NULL, NULL};
    row = kg_cuda_keys(a, t.seq, block) + lane * 8 / HD;
    return {block, kg_cuda_seen(t, t.rows - 1, block), kg_cuda_bf16(a.k, row) + col,
            kg_cuda_bf16(a.v, row) + col};
}
/* The next block of a warp; its parts are `step` apart. */
static __device__ int
after(int block, int step)
{
    const bool ends = block % KG_ATTN_PART_BLOCKS == KG_ATTN_PART_BLOCKS - 1;

    return block + 1 + (ends ? (step - 1) * KG_ATTN_PART_BLOCKS : 0);
}

/* A group of copies: piece i of a block, zeros after its keys; or nothing after the last
 * block. */
template <int HD>
static __device__ void bring(struct kg_cuda_eight (*to)[HD / 8 + 1],
                             const struct kg_attn &a, const struct place<HD> &at, int i)
{
    enum { EACH = place<HD>::EACH };
    const int lane = (int)threadIdx.x % KG_WARP, first = i % OF_KEYS * PIECE;
    const int n = at.n - first - kg_anew(lane * 8 / HD);
    const int stride = kg_anew((int)(i < OF_KEYS ? a.k : a.v).stride);
    const uint16_t *const from = i < OF_KEYS ? at.k : at.v;

    if (at.n > 0)
#pragma unroll
        for (int j = 0; j < PIECE; j += EACH)
            kg_copy_later(&to[j + lane * 8 / HD][lane % (HD / 8)],
                          from + (int64_t)(first + j) * stride, j < n ? 16 : 0);
    kg_copies_end();
}

template <bool PLAIN>
static __device__ struct kg_cuda_seen_keys
keys_of(const struct kg_attn &a, const struct kg_cuda_tile &t, int r, int block)
{
    return {PLAIN ? 0 : kg_cuda_passed(a, t, r, block), kg_cuda_seen(t, r, block)};
}

static __device__ unsigned below(int bit)
{
    return bit <= 0 ? 0 : bit >= 32 ? ~0u : (1u << bit) - 1;
}

/* Values of a piece that are NaN or infinite become 0, and l of the rows that see them
 * becomes NaN, and so the whole row. A lane has half of a key.   key: the first one */
template <int HD, bool PLAIN>
static __device__ void
hide(struct kg_cuda_sums<HD> *w, struct kg_cuda_eight (*v)[HD / 8 + 1],
     const struct kg_attn &a, const struct kg_cuda_tile &t, int first, int block, int key)
{
    enum { HALF = HD / 16 };
    const int lane = (int)threadIdx.x % KG_WARP;
    const bool numbers = kg_cuda_hide(v[lane / 2] + lane % 2 * HALF, HALF);
    const unsigned hidden = __ballot_sync(~0u, !numbers);

    __syncwarp();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const struct kg_cuda_seen_keys k = keys_of<PLAIN>(a, t, first + lane / 4 + 8 * h,
                                                          block);

        if (hidden & below(2 * (k.end - key)) & ~below(2 * (k.from - key)))
            w->l[h] = NAN;
    }
}

/* Replaces scores by p; 0 for rows that do not exist. */
template <int HD, bool PLAIN>
static __device__ void soften(uint32_t p[8][2], float s[8][4], struct kg_cuda_sums<HD> *w,
                              const struct kg_attn &a, const struct kg_cuda_tile &t,
                              int first, int block)
{
    const struct kg_cuda_scores plain = {a.scale * 0x1.715476p+0f, 0.0f};
    const struct kg_cuda_scores by = PLAIN ? plain : kg_cuda_scores(a);

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = first + (int)threadIdx.x % KG_WARP / 4 + 8 * h;

        if (first + 8 * h >= t.rows)
#pragma unroll
            for (int n = 0; n < 8; n++)
                p[n][h] = 0;
        else if (PLAIN && block < t.last)
            kg_cuda_soften<HD, PLAIN, false>(p, s, w, h, by, {0, KG_KV_BLOCK});
        else
            kg_cuda_soften<HD, PLAIN, true>(p, s, w, h, by,
                                            keys_of<PLAIN>(a, t, r, block));
    }
}

/* w += the block at `at`; `at` moves to the next */
template <int HD, bool PLAIN>
static __device__ void add_block(struct kg_cuda_sums<HD> *w, struct place<HD> *at,
                                 struct kg_cuda_eight (*ring)[PIECE][HD / 8 + 1],
                                 const uint32_t q[HD / 16][4], const struct kg_attn &a,
                                 const struct kg_cuda_tile &t, int first, int step)
{
    enum { RING = room<HD>::RING, AHEAD = room<HD>::AHEAD };
    const int block = at->block;
    const struct place<HD> next = place_of<HD>(a, t, after(block, step));
    const bool hides = block == t.last || (!PLAIN && kg_cuda_in_part(a, t, block));
    uint32_t p[8][2];
    float s[8][4];

#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int later = i + AHEAD, n = 2 * (i % OF_KEYS);

        kg_copies_wait<AHEAD - 1>();
        __syncwarp();
        bring<HD>(ring[later % RING], a, later < PIECES ? *at : next, later % PIECES);
        if (i < OF_KEYS)
            kg_cuda_score<HD>(s + n, q, ring[i % RING], 0);
        else if (hides)
            hide<HD, PLAIN>(w, ring[i % RING], a, t, first, block, 8 * n);
        if (i == OF_KEYS - 1)
            soften<HD, PLAIN>(p, s, w, a, t, first, block);
        if (i >= OF_KEYS)
            kg_cuda_add_values<HD>(w, p + n, ring[i % RING], 0);
    }
    *at = next;
}

/* ---- sums of parts ---- */
/* A thread's share of a row in merging: every sixteenth column. */
template <int HD> struct merged {
    float acc[HD / LANES];
    float m, l;
};
template <int HD> static __device__ void begin(struct merged<HD> *w)
{
#pragma unroll
    for (int c = 0; c < HD / LANES; c++)
        w->acc[c] = 0.0f;
    w->m = -INFINITY;
    w->l = 0.0f;
}
template <int HD>
static __device__ void load(struct merged<HD> *to, const struct kept<HD> *from)
{
#pragma unroll
    for (int c = 0; c < HD / LANES; c++)
        to->acc[c] = from->acc[(int)threadIdx.x % LANES + c * LANES];
    to->m = from->m;
    to->l = from->l;
}
template <int HD>
static __device__ void add(struct merged<HD> *w, const struct merged<HD> *part)
{
    const struct kg_cuda_factors f = kg_cuda_factors(w->m, part->m);

#pragma unroll
    for (int c = 0; c < HD / LANES; c++)
        w->acc[c] = kg_cuda_merge(w->acc[c], part->acc[c], f);
    w->l = kg_cuda_merge(w->l, part->l, f);
    w->m = f.m;
}
/* Merges n parts, `step` apart, in order; loads several at once to hide latency. */
template <int HD>
static __device__ void merge(struct merged<HD> *w, const struct kept<HD> *part, int step,
                             int n)
{
    enum { TOGETHER = 4 };

    for (int i = 0; i < n; i += TOGETHER) {
        struct merged<HD> next[TOGETHER];

#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            load(&next[j], part + (i + j < n ? i + j : n - 1) * step);
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            if (i + j < n)
                add(w, &next[j]);
    }
}

/* o = acc / l, rounded once;  lse = m ln 2 + log l */
template <int HD>
static __device__ void write(struct kg_mat o, struct kg_vec lse,
                             const struct kg_cuda_tile &t, int r, int n_heads,
                             const struct merged<HD> *w)
{
    const int64_t row = kg_cuda_query(t, r);
    const int head = kg_cuda_head(t, r), lane = (int)threadIdx.x % LANES;
    const float inverse = 1.0f / w->l;

#pragma unroll
    for (int c = 0; c < HD / LANES; c++)
        kg_cuda_store(o, row, head * HD + lane + c * LANES, w->acc[c] * inverse);
    if (lse.data && lane == 0)
        lse.data[row * n_heads + head] = kg_cuda_lse(w->m, w->l);
}

/* *to <- row h of the thread */
template <int HD>
static __device__ void keep(struct kept<HD> *to, const struct kg_cuda_sums<HD> *w, int h)
{
    const int t = (int)threadIdx.x % 4;

#pragma unroll
    for (int c = 0; c < HD / 8; c++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            to->acc[8 * c + 2 * t + i] = w->acc[c][2 * h + i];
    if (t == 0) {
        to->m = w->m[h];
        to->l = w->l[h];
    }
}

/* The stored sums of row r of a tile. */
template <int HD>
static __device__ struct kept<HD> *kept_of(const struct shares &by,
                                           const struct kg_attn &a,
                                           const struct kg_cuda_tile &t, int r) {
    return (struct kept<HD> *)by.sums +
           (kg_cuda_query(t, r) * a.n_heads + kg_cuda_head(t, r)) * by.most;
}

/* One turn of the warps: each stores its part's sums, then threads merge n of them. */
template <int HD>
static __device__ void merge_turn(struct merged<HD> all[2],
                                  struct kept<HD> (*sums)[EIGHT],
                                  const struct kg_cuda_sums<HD> *w, int rows, int n)
{
    const int warp = (int)threadIdx.x / KG_WARP, row = (int)threadIdx.x % KG_WARP / 4;

#pragma unroll
    for (int h = 0; h < 2; h++)
        if (EIGHT * h < rows) {
            keep(&sums[warp][row], w, h);
            __syncthreads();
            merge(&all[h], &sums[0][threadIdx.x / LANES], EIGHT,
                  n < KG_ATTN_WARPS ? n : KG_ATTN_WARPS);
            __syncthreads();
        }
}

/* ---- kernels ---- */
/* Rows first to first + 15 of a tile. */
template <int HD, bool PLAIN>
static __device__ void attend(struct kg_mat o, struct kg_vec lse, struct room<HD> *in,
                              const struct kg_attn &a, const struct kg_cuda_tile &t,
                              int first, const struct shares &by)
{
    const int warp = (int)threadIdx.x / KG_WARP, lane = (int)threadIdx.x % KG_WARP;
    const int from = (int)blockIdx.y / a.n_kv_heads * KG_ATTN_WARPS;
    const int step = by.blocks * KG_ATTN_WARPS;
    const struct parts parts = parts_of(a, t);
    const int begins = (parts.first + from + warp) * KG_ATTN_PART_BLOCKS;
    const int sees = kg_cuda_first_block(a, t);
    struct place<HD> at = place_of<HD>(a, t, begins > sees ? begins : sees);
    uint32_t q[HD / 16][4];
    struct kg_cuda_sums<HD> w;
    struct merged<HD> all[2];

    kg_cuda_bring_rows<KG_ATTN_THREADS, PIECE>(in->q, a.q, t, first);
    kg_copies_end();
#pragma unroll
    for (int i = 0; i < room<HD>::AHEAD; i++)
        bring<HD>(in->ring[warp][i], a, at, i);
    kg_copies_wait<room<HD>::AHEAD>();
    __syncthreads();
#pragma unroll
    for (int c = 0; c < HD / 16; c++)
        kg_fragments(q[c], kg_cuda_left(in->q, 0, c));
    __syncthreads();
    begin(&all[0]);
    begin(&all[1]);
    for (int turn = from; turn < parts.n; turn += step) {
        const int part = turn + warp;
        const int end = (parts.first + part + 1) * KG_ATTN_PART_BLOCKS;

        kg_cuda_clear(&w);
        while (at.block <= t.last && at.block < end)
            add_block<HD, PLAIN>(&w, &at, in->ring[warp], q, a, t, first, step);
        if (by.blocks == 1)
            merge_turn(all, in->sums, &w, t.rows - first, parts.n - turn);
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (by.blocks > 1 && part < parts.n && first + lane / 4 + 8 * h < t.rows)
                keep(kept_of<HD>(by, a, t, first + lane / 4 + 8 * h) + part, &w, h);
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (by.blocks == 1 && first + (int)threadIdx.x / LANES + EIGHT * h < t.rows)
            write(o, lse, t, first + (int)threadIdx.x / LANES + EIGHT * h, a.n_heads,
                  &all[h]);
}

template <int HD, bool PLAIN>
static __global__ void __launch_bounds__(KG_ATTN_THREADS, 2)
    attention_of_rows(struct kg_mat o, struct kg_vec lse, struct kg_attn a,
                      struct shares by)
{
    KG_SHARED_ASKED(struct kg_cuda_eight, memory);
    const struct kg_attn_seq seq = a.seqs[blockIdx.x];
    const int group = kg_cuda_group(a), kv_head = (int)blockIdx.y % a.n_kv_heads;

    for (int i = 0; i < kg_cuda_units(seq, group, false); i++) {
        const struct kg_cuda_tile t = kg_cuda_tile_at(seq, group, kv_head, i);

        for (int first = 0; first < t.rows; first += PIECE)
            attend<HD, PLAIN>(o, lse, (struct room<HD> *)memory, a, t, first, by);
    }
}

template <int HD>
static __global__ void __launch_bounds__(KG_ATTN_THREADS)
    merge_parts(struct kg_mat o, struct kg_vec lse, struct kg_attn a, struct shares by)
{
    const struct kg_attn_seq seq = a.seqs[blockIdx.x];
    const int group = kg_cuda_group(a);

    for (int i = 0; i < kg_cuda_units(seq, group, false); i++) {
        const struct kg_cuda_tile t = kg_cuda_tile_at(seq, group, (int)blockIdx.y, i);

        for (int r = (int)threadIdx.x / LANES; r < t.rows; r += EIGHT) {
            struct merged<HD> w;

            begin(&w);
            merge(&w, kept_of<HD>(by, a, t, r), 1, parts_of(a, t).n);
            write(o, lse, t, r, a.n_heads, &w);
        }
    }
}

/* ---- the slot ---- */
/* As many blocks per row's parts as keep the device busy, if every block has a turn and
 * the sums fit in memory. */
static struct shares shares_of(const struct kg_attn *a, int64_t bytes)
{
    const int64_t most = kg_cuda_pieces(a->most_keys, KG_ATTN_PART);
    const int64_t in_window = kg_cuda_pieces(a->window + KG_KV_BLOCK, KG_ATTN_PART) + 1;
    const int64_t parts = a->window > 0 ? kg_cuda_min(most, in_window) : most;
    const int64_t idle = 2 * KG_DEV_BLOCKS / ((int64_t)a->n_seqs * a->n_kv_heads);
    const int64_t blocks = kg_cuda_min(idle, kg_cuda_pieces(parts, KG_ATTN_WARPS));

    if (blocks <= 1 || a->q.rows * a->n_heads * parts * bytes > KG_DEV_HEADS)
        return {1, 0, NULL};
    return {(int)blocks, (int)parts, NULL};
}

/* Without memory for the sums, a row is not split; its bits are the same. (The cache may
 * have taken all memory.) A size that was refused is not requested again. */
static kg_status find_sums(struct shares *by, uint64_t bytes, struct kg_err *err)
{
    static uint64_t refused = UINT64_MAX;

    if (by->blocks > 1 && bytes < refused) {
        by->sums = kg_cuda_scratch(bytes, err);
        if (!by->sums && err->code != KG_ENOMEM)
            return err->code;
        if (!by->sums) {
            refused = bytes;
            *err = {};
        }
    }
    if (!by->sums)
        *by = {1, 0, NULL};
    return KG_OK;
}

template <int HD>
static kg_status launch(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a,
                        struct kg_err *err)
{
    const bool plain = a->window == 0 && a->softcap == 0.0f;
    struct shares by = shares_of(a, sizeof(struct kept<HD>));
    const uint64_t sums = (uint64_t)(a->q.rows * a->n_heads * by.most);
    enum { BYTES = sizeof(struct room<HD>) };

    static_assert((int)BYTES <= (int)KG_ASKED_MOST, "shared memory");
    KG_TRY(find_sums(&by, sums * sizeof(struct kept<HD>), err));
    const dim3 grid = kg_grid(a->n_seqs, (int64_t)a->n_kv_heads * by.blocks);

    if (plain)
        KG_LAUNCH_ASKING((int)BYTES, (attention_of_rows<HD, true>), grid, KG_ATTN_THREADS,
                         o, lse, *a, by);
    else
        KG_LAUNCH_ASKING((int)BYTES, (attention_of_rows<HD, false>), grid,
                         KG_ATTN_THREADS, o, lse, *a, by);
    if (by.blocks > 1)
        KG_LAUNCH(merge_parts<HD>, kg_grid(a->n_seqs, a->n_kv_heads), KG_ATTN_THREADS, o,
                  lse, *a, by);
    return KG_OK;
}

kg_status kg_cuda_attention_rows(struct kg_mat o, struct kg_vec lse,
                                 const struct kg_attn *a, struct kg_err *err)
{
    return a->head_dim == 64 ? launch<64>(o, lse, a, err) : launch<128>(o, lse, a, err);
}
