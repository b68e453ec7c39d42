/* Attention forward by wgmma, the instruction of four warps of Hopper (9.0): the bits of
 * attention_mma.cu, for many rows without window and softcap.
 *
 * A block stays on its multiprocessor and computes pairs of tiles of 64 query rows, one
 * pair after another. Both tiles are of one sequence and KV head; four warps compute
 * each. One thread loads blocks of 64 keys with their values by boxes (TMA) into STAGES
 * places, and meanwhile continues with the next pair. In the last block of a tile, values
 * that are NaN or infinite are hidden (softmax_internal.h), but the other tile may need
 * them; so the tile that ends first has its last block in a separate place.
 *
 * q k^T reads q, which the four warps write, and k from shared memory. p v reads p from
 * the registers where q k^T left the scores, and v from shared memory. A tile starts the
 * scores of block j and p v of block j - 1 together; the softmax of block j runs during
 * the latter, and acc is changed after it.
 *
 * Sums have the terms and the order of attention_mma.cu: chains of sixteen columns for
 * scores, of sixteen keys for acc, and softmax_internal.h between them. Whether both
 * instructions add in the same way depends on the device: attention_own.cu tries it.
 *
 * Not measured. Counted for an H100 or H200 (132 multiprocessors at 1.75 GHz, 946
 * TFLOP/s): 64 rows and 64 keys of 128 columns take 512 clocks of wgmma, 256 of
 * exponentials and about 300 instructions per warp; of 64 columns 256, 256 and about 250.
 * Shared memory gives 128 bytes per clock; q k^T reads as many, p v half. A pair brings
 * 32 KB for 4.2 MFLOP, so 500 TFLOP/s need 4 TB/s from L2. Expected for sequences of
 * 2,048 tokens: 400 to 450 TFLOP/s with 128 columns, 300 with 64.
 */
#include "tensor/cuda/pipeline_internal.h"
#include "tensor/cuda/softmax_internal.h"

enum { TILES = 2, TILE_WARPS = KG_FOUR_WARPS / KG_WARP };

/* ---- pairs ---- */
/* Two tiles of a sequence, the later one first; or one alone. In turn i, a stage gets
 * block 0, 1, .. of keys; the last block of tile 1 comes twice, once for each tile. */
struct pair {
    struct kg_attn_seq seq;
    int kv_head;
    int index;            /* of tile 0, in order of position; tile 1 is one lower */
    int last, other_last; /* last key blocks of tile 0 and tile 1 */
    bool alone;

    /* Pairs with the next KV head are adjacent. Every other round runs backwards, so that
     * each block of threads gets long and short ones. */
    __device__ bool find(const struct kg_attn &a, int time, int blocks)
    {
        const int within = time % 2 ? blocks - 1 - (int)blockIdx.x : (int)blockIdx.x;
        const int unit = time * blocks + within, group = kg_cuda_group(a);
        int s, i;

        if (!kg_cuda_find<TILES>(&s, &i, a, unit / a.n_kv_heads, false))
            return false;
        seq = a.seqs[s];
        kv_head = unit % a.n_kv_heads;
        index = kg_cuda_units(seq, group, false) - 1 - TILES * i;
        alone = index == 0;
        last = kg_cuda_tile_at(seq, group, 0, index).last;
        other_last = kg_cuda_tile_at(seq, group, 0, index - !alone).last;
        return true;
    }
    __device__ int turns() const { return last + 1 + !alone; }
    __device__ int block_at(int i) const { return !alone && i > other_last ? i - 1 : i; }
};

/* One of the two tiles, and its turns; in shared memory, to save registers. */
struct turns {
    struct kg_cuda_tile tile;
    int skipped; /* the turn before this block is the other tile's; -1: none */
    int left;    /* final turns of the other tile */

    __device__ void set(const struct pair &p, int which, int group)
    {
        tile = kg_cuda_tile_at(p.seq, group, p.kv_head, p.alone ? 0 : p.index - which);
        skipped = !p.alone && which == 0 ? p.other_last : -1;
        left = which == 0 ? 0 : p.last - p.other_last + 1;
        if (p.alone && which == 1) {
            tile.rows = 0;
            left = p.turns();
        }
    }
};

/* ---- shared memory ---- */
/* After the stages, for each tile; the barrier is for its four warps. */
struct behind {
    struct turns turns[TILES];
    struct kg_barrier meets[TILES];
};

/* A stage: keys, then values, as boxes of 64 columns. */
template <int HD> struct shape {
    enum {
        SIDE = HD / KG_BOX * KG_BOX_BYTES, /* 64 rows of q, k or v */
        BYTES = 2 * SIDE,
        STAGES = HD == 64 ? 8 : 5,
        QUERIES = TILES * SIDE, /* before the stages */
        ASKED = kg_cuda_pipeline_asks(STAGES, BYTES, QUERIES) + (int)sizeof(struct behind)
    };
    static_assert((int)ASKED <= (int)KG_HOPPER_MOST, "shared memory");
};

/* ---- the producer thread ---- */
template <int HD>
static __device__ void bring(char *to, const struct kg_boxes *k, const struct kg_boxes *v,
                             int row, int col, struct kg_barrier *full)
{
    kg_barrier_expect(full, shape<HD>::BYTES);
    for (int c = 0; c < HD / KG_BOX; c++) {
        kg_box_later(to + c * KG_BOX_BYTES, k, row, col + c * KG_BOX, full);
        kg_box_later(to + shape<HD>::SIDE + c * KG_BOX_BYTES, v, row, col + c * KG_BOX,
                     full);
    }
}

/* By one warp, because all lanes search for pairs. */
template <int HD>
static __device__ void bring_all(const struct kg_cuda_places &p, const struct kg_attn &a,
                                 const struct kg_boxes *k, const struct kg_boxes *v,
                                 int blocks)
{
    struct kg_cuda_turn t = {0, 0, KG_TRIES};
    struct pair pair;

    for (int time = 0; pair.find(a, time, blocks); time++)
        for (int i = 0; threadIdx.x == 0 && i < pair.turns(); i++) {
            t.await(&p.empty[t.place], t.parity ^ 1);
            bring<HD>(p.at + t.place * shape<HD>::BYTES, k, v,
                      (int)kg_cuda_keys(a, pair.seq, pair.block_at(i)), pair.kv_head * HD,
                      &p.full[t.place]);
            kg_cuda_go_on<shape<HD>::STAGES>(&t);
        }
}

/* ---- the consumer warps ---- */
/* State of four warps, and their shared memory. */
struct four {
    struct kg_cuda_turn at;
    int parity; /* of the next meeting */
    char *queries;
    struct kg_barrier *meets;
    struct turns *of;

    __device__ void come(const struct kg_cuda_places &p)
    {
        at.await(&p.full[at.place], at.parity);
        __syncwarp();
    }
};

/* *f->of <- the next tile; writes its rows of q, zeros after the last. The old ones are
 * read until all four warps have met. */
template <int HD>
static __device__ void bring_queries(struct four *f, const struct kg_mat &q,
                                     const struct turns &of)
{
    enum { EIGHTS = HD / 8, BOX_EIGHTS = KG_BOX / 8, BY = KG_FOUR_WARPS / EIGHTS };
    const struct kg_cuda_tile &t = of.tile;
    const int thread = (int)threadIdx.x % KG_FOUR_WARPS;
    const int first = thread / EIGHTS, c = thread % EIGHTS;
    struct kg_cuda_eight x[KG_ATTN_ROWS / BY];

#pragma unroll
    for (int i = 0; i < KG_ATTN_ROWS / BY; i++) {
        const int r = first + i * BY, at = r < t.rows ? r : 0;

        x[i] = *(const struct kg_cuda_eight *)(kg_cuda_bf16(q, kg_cuda_query(t, at)) +
                                               kg_cuda_head(t, at) * HD + 8 * c);
    }
    kg_cuda_meet(&f->at, &f->parity, f->meets);
    if (thread == 0)
        *f->of = of;
#pragma unroll
    for (int i = 0; i < KG_ATTN_ROWS / BY; i++) {
        const int r = first + i * BY;

        if (r >= t.rows)
            x[i] = kg_cuda_eight{};
        kg_write_later(f->queries + c / BOX_EIGHTS * KG_BOX_BYTES +
                           kg_box_place(r, c % BOX_EIGHTS),
                       x[i].pair);
    }
    kg_cuda_meet(&f->at, &f->parity, f->meets);
}

/* kg_cuda_hide for a stage; a thread has half of a key. */
template <int HD> static __device__ void hide(struct four *f, char *k, char *v)
{
    enum { HALF = HD / 16, BOX_EIGHTS = KG_BOX / 8 };
    const int j = (int)threadIdx.x % KG_FOUR_WARPS / 2;
    const int first = (int)threadIdx.x % 2 * HALF;
    bool numbers = true;

    for (int c = first; c < first + HALF; c++) {
        char *at = v + c / BOX_EIGHTS * KG_BOX_BYTES + kg_box_place(j, c % BOX_EIGHTS);
        struct kg_cuda_eight x = *(const struct kg_cuda_eight *)at;

        if (!kg_cuda_hide(&x, 1)) {
            kg_write_later(at, x.pair);
            numbers = false;
        }
    }
    if (!numbers) {
        char *at = k + first / BOX_EIGHTS * KG_BOX_BYTES +
                   kg_box_place(j, first % BOX_EIGHTS);
        struct kg_cuda_eight x = *(const struct kg_cuda_eight *)at;

        x.pair[0] = KG_ATTN_NO_NUMBER;
        kg_write_later(at, x.pair);
    }
    kg_cuda_meet(&f->at, &f->parity, f->meets);
}

template <int HD> static __device__ void clear_scores(float s[8][4])
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            s[n][c] = 0.0f;
}

/* Starts s += q k^T, and acc += p v. */
template <int HD>
static __device__ void ask_scores(float s[8][4], const char *q, const char *k)
{
#pragma unroll
    for (int c = 0; c < HD / 16; c++)
        kg_multiply_later<KG_KV_BLOCK, false, false>(
            s[0], kg_cuda_factors_of<false>(q + c / 4 * KG_BOX_BYTES, c % 4),
            kg_cuda_factors_of<false>(k + c / 4 * KG_BOX_BYTES, c % 4));
    kg_products_end();
}
template <int HD>
static __device__ void ask_values(struct kg_cuda_sums<HD> *w, const uint32_t p[4][4],
                                  const char *v)
{
#pragma unroll
    for (int n = 0; n < KG_KV_BLOCK / 16; n++)
        kg_multiply_later<HD, true>(w->acc[0], p[n], kg_cuda_factors_of<true>(v, n));
    kg_products_end();
}

/* Replaces scores by p, of the same part or a new one.   alpha: factors of acc */
template <int HD>
static __device__ void weigh(float alpha[2], float s[8][4], float m[2], float l[2],
                             struct kg_cuda_scores by, const struct kg_cuda_tile &t,
                             int block)
{
    const int row = (int)threadIdx.x / KG_WARP % TILE_WARPS * 16 +
                    (int)threadIdx.x % KG_WARP / 4;

#pragma unroll
    for (int h = 0; h < 2; h++)
        if (block < t.last)
            alpha[h] = kg_cuda_weigh<true, false>(s, &m[h], &l[h], h, by,
                                                  {0, KG_KV_BLOCK});
        else
            alpha[h] = kg_cuda_weigh<true, true>(
                s, &m[h], &l[h], h, by, {0, kg_cuda_seen(t, row + 8 * h, block)});
}

/* Left factors: p rounded to bf16, for products over sixteen keys each. */
template <int HD>
static __device__ void round_weights(uint32_t p[4][4], const float s[8][4])
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            p[n / 2][n % 2 * 2 + h] = kg_pair(s[n][2 * h], s[n][2 * h + 1]);
}

/* Skips a stage of the other tile. */
template <int HD>
static __device__ void pass(const struct kg_cuda_places &p, struct four *f)
{
    f->come(p);
    kg_cuda_leave(p, f->at.place);
    kg_cuda_go_on<shape<HD>::STAGES>(&f->at);
}

/* Waits for a block of the tile; hides values that are NaN or infinite in its last block.
 * returns its stage */
template <int HD>
static __device__ int come_to(const struct kg_cuda_places &p, struct four *f, int block)
{
    typedef shape<HD> S;

    if (block == f->of->skipped)
        pass<HD>(p, f);
    f->come(p);
    const int place = f->at.place;
    char *const at = p.at + place * S::BYTES;

    if (block == f->of->tile.last)
        hide<HD>(f, at, at + S::SIDE);
    kg_cuda_go_on<S::STAGES>(&f->at);
    return place;
}

/* The tile's first block: p <- from its scores. */
template <int HD>
static __device__ void begin(struct kg_cuda_sums<HD> *part, uint32_t p[4][4],
                             const struct four *f, const char *keys,
                             struct kg_cuda_scores by)
{
    float s[8][4], alpha[2];

    clear_scores<HD>(s);
    kg_sums_are_there<32>(s[0]);
    kg_products_begin();
    ask_scores<HD>(s, f->queries, keys);
    kg_products_wait<0>();
    kg_sums_are_there<32>(s[0]);
    weigh<HD>(alpha, s, part->m, part->l, by, f->of->tile, 0);
#pragma unroll
    for (int h = 0; h < 2; h++)
        kg_cuda_fade<HD>(part->acc, h, alpha[h]);
    round_weights<HD>(p, s);
}

/* A later block: adds the values of the previous block times p; then p <- its scores'. */
template <int HD>
static __device__ void go_on(struct kg_cuda_sums<HD> *all, struct kg_cuda_sums<HD> *part,
                             uint32_t p[4][4], const struct four *f, const char *keys,
                             const char *values, struct kg_cuda_scores by, int block)
{
    const bool begins = block % KG_ATTN_PART_BLOCKS == 0;
    float s[8][4], m[2], l[2], alpha[2];

    clear_scores<HD>(s);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        m[h] = begins ? -INFINITY : part->m[h];
        l[h] = begins ? 0.0f : part->l[h];
    }
    kg_sums_are_there<32>(s[0]);
    kg_sums_are_there<HD / 2>(part->acc[0]);
    kg_left_is_there<16>(p[0]);
    kg_products_begin();
    ask_scores<HD>(s, f->queries, keys);
    ask_values<HD>(part, p, values);
    kg_products_wait<1>();
    kg_sums_are_there<32>(s[0]);
    weigh<HD>(alpha, s, m, l, by, f->of->tile, block);
    kg_products_wait<0>();
    kg_sums_are_there<HD / 2>(part->acc[0]);
    if (begins)
        kg_cuda_merge_sums(all, part);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        kg_cuda_fade<HD>(part->acc, h, alpha[h]);
        part->m[h] = m[h];
        part->l[h] = l[h];
    }
    round_weights<HD>(p, s);
}

/* all <- the sums of a tile */
template <int HD>
static __device__ void attend(struct kg_cuda_sums<HD> *all,
                              const struct kg_cuda_places &places, struct four *f,
                              struct kg_cuda_scores by)
{
    typedef shape<HD> S;
    struct kg_cuda_sums<HD> part;
    uint32_t p[4][4];
    int before, now;

    kg_cuda_clear(all);
    kg_cuda_clear(&part);
    before = come_to<HD>(places, f, 0);
    begin<HD>(&part, p, f, places.at + before * S::BYTES, by);
    for (int block = 1; block <= f->of->tile.last; block++) {
        now = come_to<HD>(places, f, block);
        go_on<HD>(all, &part, p, f, places.at + now * S::BYTES,
                  places.at + before * S::BYTES + S::SIDE, by, block);
        kg_cuda_leave(places, before);
        before = now;
    }
    kg_sums_are_there<HD / 2>(part.acc[0]);
    kg_left_is_there<16>(p[0]);
    kg_products_begin();
    ask_values<HD>(&part, p, places.at + before * S::BYTES + S::SIDE);
    kg_products_wait<0>();
    kg_sums_are_there<HD / 2>(part.acc[0]);
    kg_cuda_leave(places, before);
    kg_cuda_merge_sums(all, &part);
    for (int i = 0; i < f->of->left; i++)
        pass<HD>(places, f);
}

/* o = acc / l, rounded once, and lse. Stores two columns at once if aligned. */
template <int HD>
static __device__ void write(struct kg_mat o, struct kg_vec lse,
                             const struct kg_cuda_tile &t,
                             const struct kg_cuda_sums<HD> *w, int n_heads)
{
    const int lane = (int)threadIdx.x % KG_WARP;
    const int row = (int)threadIdx.x / KG_WARP % TILE_WARPS * 16 + lane / 4;
    const bool twos = o.dtype == KG_BF16 &&
                      ((uintptr_t)o.data | (uintptr_t)o.stride * sizeof(uint16_t)) % 4 ==
                          0;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = row + 8 * h;

        if (r >= t.rows)
            continue;
        const float inverse = 1.0f / w->l[h];
        const int64_t at = kg_cuda_query(t, r);
        const int head = kg_cuda_head(t, r);

#pragma unroll
        for (int c = 0; c < HD / 8; c++) {
            const int64_t col = head * HD + 8 * c + 2 * (lane % 4);
            const float x = w->acc[c][2 * h] * inverse;
            const float y = w->acc[c][2 * h + 1] * inverse;

            if (twos) {
                *(uint32_t *)(kg_cuda_bf16(o, at) + col) = kg_pair(x, y);
                continue;
            }
            kg_cuda_store(o, at, col, x);
            kg_cuda_store(o, at, col + 1, y);
        }
        if (lse.data && lane % 4 == 0)
            lse.data[at * n_heads + head] = kg_cuda_lse(w->m[h], w->l[h]);
    }
}

template <int HD>
static __device__ void attend_all(struct kg_mat o, struct kg_vec lse,
                                  const struct kg_attn &a, const struct kg_cuda_places &p,
                                  struct four *f, int blocks)
{
    const int which = (int)threadIdx.x / KG_FOUR_WARPS - 1;
    const struct kg_cuda_scores by = {a.scale * 0x1.715476p+0f, 0.0f};
    struct kg_cuda_sums<HD> all;
    struct pair pair;
    struct turns of;

    for (int time = 0; pair.find(a, time, blocks); time++) {
        of.set(pair, which, kg_cuda_group(a));
        if (of.tile.rows == 0) {
            for (int i = 0; i < of.left; i++)
                pass<HD>(p, f);
            continue;
        }
        bring_queries<HD>(f, a.q, of);
        attend<HD>(&all, p, f, by);
        if (f->at.tries == 0)
            all.l[0] = all.l[1] = NAN;
        write<HD>(o, lse, f->of->tile, &all, a.n_heads);
    }
}

/* One thread of the first four warps produces; they give registers to the others. */
template <int HD>
static __global__ void __launch_bounds__(KG_PIPELINE_THREADS, 1)
    attention(struct kg_mat o, struct kg_vec lse, struct kg_attn a,
              const __grid_constant__ struct kg_boxes k,
              const __grid_constant__ struct kg_boxes v, int blocks)
{
    if constexpr (KG_HOPPER) {
        typedef shape<HD> S;
        KG_SHARED_ASKED(char, asked);
        const struct kg_cuda_places p = kg_cuda_places(asked, S::STAGES, S::BYTES,
                                                       S::QUERIES);
        struct behind *const behind = (struct behind *)(p.empty + S::STAGES);
        const int which = (int)threadIdx.x / KG_FOUR_WARPS - 1;

        if (threadIdx.x == 0) {
            kg_cuda_places_init(p, S::STAGES);
            for (int i = 0; i < TILES; i++)
                kg_barrier_init(&behind->meets[i], KG_FOUR_WARPS);
            kg_barriers_end();
        }
        __syncthreads();
        if (which < 0) {
            kg_registers_fewer<KG_BRINGER_REGISTERS>();
            if (threadIdx.x < KG_WARP)
                bring_all<HD>(p, a, &k, &v, blocks);
        } else {
            struct four f = {{0, 0, KG_TRIES},
                             0,
                             p.at - S::QUERIES + which * S::SIDE,
                             &behind->meets[which],
                             &behind->turns[which]};

            kg_registers_more<KG_COMPUTER_REGISTERS>();
            attend_all<HD>(o, lse, a, p, &f, blocks);
        }
    }
}

template <int HD>
static bool launch(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a)
{
    const int64_t most = kg_cuda_most_tiles(a) * a->n_kv_heads;
    const int blocks = (int)kg_cuda_min(most, kg_dev_hoppers());
    struct kg_boxes k, v;

    if (a->k.rows > INT32_MAX || !kg_dev_boxes(&k, a->k, KG_KV_BLOCK) ||
        !kg_dev_boxes(&v, a->v, KG_KV_BLOCK))
        return false;
    KG_LAUNCH_HOPPER(shape<HD>::ASKED, attention<HD>, kg_grid(blocks, 1),
                     KG_PIPELINE_THREADS, o, lse, *a, k, v, blocks);
    return true;
}

bool kg_cuda_attention_wgmma(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a)
{
    if (kg_dev_hoppers() == 0 || a->window > 0 || a->softcap > 0.0f || a->both_ways ||
        !kg_cuda_is_aligned(a->q))
        return false;
    return (a->head_dim == 64 ? launch<64> : launch<128>)(o, lse, a);
}
