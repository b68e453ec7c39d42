/* Shared by attention kernels: tiles of query rows, and their assignment to blocks.
 *
 * A query row is a position and a head. Consider the `group` query heads of one KV head
 * and the positions of one key block (KG_KV_BLOCK = 64 positions, counted from position
 * 0). Their rows are numbered position by position; a tile has up to 64 successive ones.
 * So all rows of a tile have the same last key block, which holds their positions. Only
 * in that block can causality hide keys from some rows. A window also hides first blocks,
 * or parts of them. With both_ways, each row sees the keys of its sequence's last row.
 *
 * Only the device knows the lengths and first rows of sequences. So the grid has the
 * maximum size, and each CUDA block searches for its tile.
 */
#ifndef KG_TENSOR_CUDA_ATTENTION_INTERNAL_H
#define KG_TENSOR_CUDA_ATTENTION_INTERNAL_H

#include "tensor/cuda/cuda_internal.h"

enum { KG_ATTN_ROWS = 64 };

static __host__ __device__ inline int kg_cuda_group(const struct kg_attn &a)
{
    return a.n_heads / a.n_kv_heads;
}

/* ---- tiles ---- */
struct kg_cuda_tile {
    struct kg_attn_seq seq;
    int group;
    int kv_head;
    /* last key block: the block of the tile's positions; with both_ways, the last block
     * of the sequence */
    int last;
    int end; /* all rows see `end` keys of block `last`; 0: each up to its own position */
    int from;  /* first position of the sequence in the tile's key block */
    int first; /* first row of the tile; row 0 is the first head at `from` */
    int rows;
};

static __device__ inline int kg_cuda_position(const struct kg_cuda_tile &t, int r)
{
    return t.from + (t.first + r) / t.group;
}
/* Row of the tile's row r in q, o and their gradients; and its head, a column of lse. */
static __device__ inline int64_t kg_cuda_query(const struct kg_cuda_tile &t, int r)
{
    return (int64_t)t.seq.row + kg_cuda_position(t, r) - t.seq.pos;
}
static __device__ inline int kg_cuda_head(const struct kg_cuda_tile &t, int r)
{
    return t.kv_head * t.group + (t.first + r) % t.group;
}
/* Row r sees keys of `block` below this number, if there is no window. */
static __device__ inline int kg_cuda_seen(const struct kg_cuda_tile &t, int r, int block)
{
    if (block < t.last)
        return KG_KV_BLOCK;
    return t.end > 0 ? t.end : kg_cuda_position(t, r) % KG_KV_BLOCK + 1;
}
/* First key that the query at position p sees. */
static __device__ inline int kg_cuda_first_key(const struct kg_attn &a, int p)
{
    return a.window > 0 && p >= a.window ? p - a.window + 1 : 0;
}
/* First key block that some row of the tile sees. */
static __device__ inline int kg_cuda_first_block(const struct kg_attn &a,
                                                 const struct kg_cuda_tile &t)
{
    return kg_cuda_first_key(a, kg_cuda_position(t, 0)) / KG_KV_BLOCK;
}
/* Number of keys of `block` before the window of row r. */
static __device__ inline int
kg_cuda_passed(const struct kg_attn &a, const struct kg_cuda_tile &t, int r, int block)
{
    const int n = kg_cuda_first_key(a, kg_cuda_position(t, r)) - block * KG_KV_BLOCK;

    return n < 0 ? 0 : n < KG_KV_BLOCK ? n : KG_KV_BLOCK;
}
/* Row of k and v that holds the first key of `block`. */
static __device__ inline int64_t kg_cuda_keys(const struct kg_attn &a,
                                              const struct kg_attn_seq &seq, int block)
{
    return a.blocks.data ? (int64_t)a.blocks.data[seq.keys + block] * KG_KV_BLOCK
                         : (int64_t)seq.keys + (int64_t)block * KG_KV_BLOCK;
}

/* Number of the sequence's query positions in the key block that holds s.pos. */
static __device__ inline int kg_cuda_in_first(const struct kg_attn_seq &s)
{
    return (int)kg_cuda_min(s.n_rows, KG_KV_BLOCK - s.pos % KG_KV_BLOCK);
}
static __host__ __device__ inline int kg_cuda_cut(int64_t rows)
{
    return (int)((rows + KG_ATTN_ROWS - 1) / KG_ATTN_ROWS);
}
/* Whether the first key block of a sequence is alone in its pair, so that the block that
 * holds s.pos is the second of a pair (attention_bwd_wgmma.cu). */
static __device__ inline bool kg_cuda_alone(const struct kg_attn_seq &s)
{
    return s.pos % KG_KV_BLOCK != 0 && s.pos / KG_KV_BLOCK % 2 == 0;
}
/* Units of a sequence for one KV head: its tiles (`group` per whole key block) or, if
 * `keys`, its key blocks. TOGETHER of these count as one unit. */
template <int TOGETHER = 1>
static __device__ inline int kg_cuda_units(const struct kg_attn_seq &s, int group,
                                           bool keys)
{
    const int in_first = kg_cuda_in_first(s), rest = s.n_rows - in_first;
    const int alone = TOGETHER > 1 && kg_cuda_alone(s) ? 1 : 0;
    const int n = keys ? alone + kg_cuda_cut((int64_t)s.pos + s.n_rows)
                       : kg_cuda_cut((int64_t)in_first * group) +
                             rest / KG_KV_BLOCK * group +
                             kg_cuda_cut((int64_t)(rest % KG_KV_BLOCK) * group);

    return (n + TOGETHER - 1) / TOGETHER;
}

static __device__ inline int kg_cuda_warp_max(int x)
{
    for (unsigned by = 1; by < 32; by *= 2) {
        const int y = __shfl_xor_sync(~0u, x, by);

        x = x > y ? x : y;
    }
    return x;
}

/* Finds unit `index` of all sequences: unit *i of sequence *s.   returns false: there are
 * fewer units. All warps search alike; each lane counts a 32nd of the sequences. */
template <int TOGETHER = 1>
static __device__ inline bool kg_cuda_find(int *s, int *i, const struct kg_attn &a,
                                           int index, bool keys)
{
    const int lane = (int)threadIdx.x % 32, each = (a.n_seqs + 31) / 32;
    const int end = (int)kg_cuda_min((int64_t)(lane + 1) * each, a.n_seqs);
    int mine = 0, sum, at = -1, left = -1;

    for (int k = lane * each; k < end; k++)
        mine += kg_cuda_units<TOGETHER>(a.seqs[k], kg_cuda_group(a), keys);
    sum = mine;
    for (unsigned by = 1; by < 32; by *= 2) { /* index -= units of lower lanes */
        const int other = __shfl_xor_sync(~0u, sum, by);

        index -= lane & by ? other : 0;
        sum += other;
    }
    if (index >= 0 && index < mine)
        for (at = lane * each, left = index;;) {
            const int units = kg_cuda_units<TOGETHER>(a.seqs[at], kg_cuda_group(a), keys);

            if (left < units)
                break;
            left -= units;
            at++;
        }
    *s = kg_cuda_warp_max(at);
    *i = kg_cuda_warp_max(left);
    return *s >= 0;
}

/* Tile i of a sequence, in order of position. */
static __device__ inline struct kg_cuda_tile
kg_cuda_tile_at(const struct kg_attn_seq &s, int group, int kv_head, int i)
{
    const int in_first = kg_cuda_in_first(s);
    const int head = kg_cuda_cut((int64_t)in_first * group);
    const int block = i < head ? 0 : 1 + (i - head) / group; /* 0: the one of s.pos */
    const int from = block == 0 ? s.pos : s.pos + in_first + (block - 1) * KG_KV_BLOCK;
    const int left = s.pos + s.n_rows - from;
    const int whole = block == 0 ? in_first : left < KG_KV_BLOCK ? left : KG_KV_BLOCK;
    const int first = (i < head ? i : (i - head) % group) * KG_ATTN_ROWS;
    const int rows = (int)kg_cuda_min(KG_ATTN_ROWS, (int64_t)whole * group - first);

    return {s, group, kv_head, from / KG_KV_BLOCK, 0, from, first, rows};
}

/* *t <- the tile of this CUDA block; false: it has none. The last tiles of a sequence
 * come first, because they see the most keys. */
static __device__ inline bool kg_cuda_tile_of_block(struct kg_cuda_tile *t,
                                                    const struct kg_attn &a, int kv_head)
{
    const int group = kg_cuda_group(a);
    int s, i;

    if (!kg_cuda_find(&s, &i, a, (int)blockIdx.x, false))
        return false;
    *t = kg_cuda_tile_at(a.seqs[s], group, kv_head,
                         kg_cuda_units(a.seqs[s], group, false) - 1 - i);
    return true;
}

/* For both_ways: all rows of *t see the keys of the sequence's last row. */
static __device__ inline void kg_cuda_see_all(struct kg_cuda_tile *t)
{
    const int last = t->seq.pos + t->seq.n_rows - 1;

    t->last = last / KG_KV_BLOCK;
    t->end = last % KG_KV_BLOCK + 1;
}

/* Maximum number of tiles of one KV head for N rows in n_seqs sequences: each key block
 * may have one partial tile, and no row is in two tiles. */
static inline int64_t kg_cuda_most_tiles(const struct kg_attn *a)
{
    const int64_t N = a->q.rows, group = kg_cuda_group(*a), S = a->n_seqs;
    const int64_t blocks = (N + (2 * KG_KV_BLOCK - 2) * S) / KG_KV_BLOCK;

    return kg_cuda_min(N * kg_cuda_cut(group), N * group / KG_ATTN_ROWS + blocks);
}

/* Index of the first tile that sees key block `block`, without a window. */
static __device__ inline int kg_cuda_first_tile(const struct kg_attn_seq &s, int group,
                                                int block)
{
    const int behind = block - s.pos / KG_KV_BLOCK; /* the block that holds pos */

    return behind <= 0
               ? 0
               : kg_cuda_cut((int64_t)kg_cuda_in_first(s) * group) + (behind - 1) * group;
}

static inline int64_t kg_cuda_most_blocks(const struct kg_attn *a)
{
    return (a->k.rows + (KG_KV_BLOCK - 1) * (int64_t)a->n_seqs) / KG_KV_BLOCK;
}

/* ---- choice of kernels ---- */
/* Whether products use kg_mma: for bf16 and head_dim 64 or 128. Otherwise they are chains
 * of FMAs with the CPU's bits. */
static inline bool kg_cuda_by_mma(const struct kg_attn *a)
{
    return a->q.dtype == KG_BF16 && (a->head_dim == 64 || a->head_dim == 128);
}
enum { KG_ATTN_WARPS = 4, KG_ATTN_THREADS = 32 * KG_ATTN_WARPS }; /* 16 rows each */
void kg_cuda_attention_mma(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a);
/* For decoding, with the bits of kg_cuda_attention_mma. Requires no more rows than
 * sequences, aligned k and v (kg_cuda_is_aligned), and not both_ways.
 * errors: ENOMEM */
kg_status kg_cuda_attention_rows(struct kg_mat o, struct kg_vec lse,
                                 const struct kg_attn *a, struct kg_err *err);
/* kg_cuda_attention_mma by wgmma (hopper.h).   returns false, with nothing launched: the
 * device lacks wgmma; there is a window, a softcap or both_ways; or rows of q, k or v are
 * not aligned to 16 bytes */
bool kg_cuda_attention_wgmma(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a);
/* Attention with the bits of kg_cuda_attention_mma. Uses wgmma if there are many rows and
 * kg_cuda_attention_try found equal bits; otherwise uses mma. */
void kg_cuda_attention_own(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a);

/* The score in base 2 of s = q.k: in s, or with a softcap (out > 0) out tanh(in s). */
struct kg_cuda_scores {
    float in;
    float out;
};
static __host__ __device__ inline struct kg_cuda_scores
kg_cuda_scores(const struct kg_attn &a)
{
    const float log2_e = 0x1.715476p+0f;

    if (a.softcap > 0.0f)
        return {a.scale / a.softcap, a.softcap * log2_e};
    return {a.scale * log2_e, 0.0f};
}

/* ---- parts ---- */
/* Kernels on kg_mma restart the online softmax at every KG_ATTN_PART keys, counted from
 * position 0, so bits do not depend on the warp or block that computes a part. A part of
 * a row, whose scores in base 2 are x, has
 *     m = max x        l = sum p        acc = sum p v        with p = 2^(x - m)
 * or, if the row sees no key of the part, the empty sums -infinity, 0, 0. Kernels merge
 * the parts of a row one by one in order of position, starting from empty sums:
 *     m = max(m_1, m_2)      y = fma(y_1, 2^(m_1 - m), y_2 2^(m_2 - m)) for y = l, acc
 * Then o = acc / l and lse = m ln 2 + log l. Merging an empty part changes nothing. */
enum { KG_ATTN_PART = 256, KG_ATTN_PART_BLOCKS = KG_ATTN_PART / KG_KV_BLOCK };

struct kg_cuda_factors {
    float m;
    float a; /* factor for the sums merged so far */
    float b; /* factor for the part */
};
static __device__ inline struct kg_cuda_factors kg_cuda_factors(float m, float part)
{
    const float top = m > part ? m : part, shift = top > -INFINITY ? top : 0.0f;

    return {top, kg_exp2(m - shift), kg_exp2(part - shift)};
}
static __device__ inline float kg_cuda_merge(float y, float part,
                                             struct kg_cuda_factors f)
{
    return kg_fma(y, f.a, part * f.b);
}

/* Inputs of backward kernels on kg_mma for one query row and two heads: 16 bytes, for one
 * copy. d is as in struct kg_cuda_given. */
struct alignas(16) kg_cuda_brought {
    struct {
        float lse; /* in base 2 */
        float d;
    } of[2];
};

/* Inputs of a backward pass. N: rows of q; H: heads. */
struct kg_cuda_given {
    struct kg_attn a;
    struct kg_mat dout;
    struct kg_vec d;              /* (N H) sum over head_dim of dO O */
    struct kg_cuda_brought *rows; /* (N, H/2 rounded up); NULL: see d, lse */
    struct kg_vec lse;            /* (N H) */
    struct kg_cuda_scores by;
    /* fp32 (rows of k, H head_dim): dk and dv per query head; data NULL: no memory */
    struct kg_mat apart[2];
};
/* Sets g->rows and, unless kept.data is NULL, kept to dout in bf16.   o: the output */
void kg_cuda_attention_bwd_prepare(const struct kg_cuda_given *g, struct kg_mat kept,
                                   struct kg_mat o);
/* Gradients of queries, and of keys and values. If g->apart has memory, the latter are
 * written there per query head, and kg_cuda_attention_add_heads adds them. */
void kg_cuda_attention_bwd_mma_queries(struct kg_mat dq, const struct kg_cuda_given *g);
void kg_cuda_attention_bwd_mma_keys(struct kg_mat dk, struct kg_mat dv,
                                    const struct kg_cuda_given *g);
/* The same by wgmma.   returns false, with nothing launched: the device lacks wgmma;
 * there is a window or a softcap; rows of q, k, v or dout are not bf16 aligned to 16
 * bytes; or those of a gradient are not aligned to 8 */
bool kg_cuda_attention_bwd_wgmma_queries(struct kg_mat dq, const struct kg_cuda_given *g);
bool kg_cuda_attention_bwd_wgmma_keys(struct kg_mat dk, struct kg_mat dv,
                                      const struct kg_cuda_given *g);
void kg_cuda_attention_add_heads(struct kg_mat dk, struct kg_mat dv,
                                 const struct kg_cuda_given *g);
/* Whether kernels by wgmma can occupy the device even if each of their blocks walks the
 * heads of a group in turn, so that g->apart is not needed. */
bool kg_cuda_attention_in_turn(const struct kg_attn *a);
/* All gradients, with the bits of mma. Uses wgmma as kg_cuda_attention_own does, but only
 * if sequences are long. */
void kg_cuda_attention_bwd_own(struct kg_mat dq, struct kg_mat dk, struct kg_mat dv,
                               const struct kg_cuda_given *g);

/* ---- tiles of bf16 in shared memory ---- */
/* Elements [col, col + 8) of a row, rounded to bf16. */
static __device__ inline struct kg_cuda_eight kg_cuda_load_eight(struct kg_mat m,
                                                                 int64_t row, int64_t col)
{
    struct kg_cuda_eight e;

    if (m.dtype == KG_BF16 && (uintptr_t)(kg_cuda_bf16(m, row) + col) % sizeof e == 0)
        return *(const struct kg_cuda_eight *)(kg_cuda_bf16(m, row) + col);
    for (int i = 0; i < 4; i++)
        e.pair[i] = kg_pair(kg_cuda_load(m, row, col + 2 * i),
                            kg_cuda_load(m, row, col + 2 * i + 1));
    return e;
}

static __host__ __device__ inline bool kg_cuda_is_aligned(const struct kg_mat &m)
{
    return m.dtype == KG_BF16 &&
           ((uintptr_t)m.data | (uintptr_t)m.stride * sizeof(uint16_t)) % 16 == 0;
}

/* to[j] <- row first + j of m, from column col, for j < n; other to[j] become 0, because
 * 0 times a NaN left in memory would be NaN. Aligned rows use kg_copy_later, with 0 bytes
 * for j >= n, so nothing is read there. Others go by two elements, to save registers. */
template <int ROWS, int THREADS, int W>
static __device__ inline void kg_cuda_bring_later(struct kg_cuda_eight (*to)[W],
                                                  const struct kg_mat &m, int64_t first,
                                                  int n, int64_t col)
{
    enum { EIGHTS = W - 1, EACH = THREADS / EIGHTS, PAIRS = 4 * EIGHTS };
    const int thread = kg_anew((int)threadIdx.x);
    const int r = thread / EIGHTS, c = thread % EIGHTS;

    static_assert(ROWS % EACH == 0 && THREADS % EIGHTS == 0, "whole rows");
    if (kg_cuda_is_aligned(m)) {
        const uint16_t *from = kg_cuda_bf16(m, first + r) + col + 8 * c;

#pragma unroll
        for (int i = 0; i < ROWS; i += EACH) {
            kg_copy_later(&to[i + r][c], from, i + r < n ? 16 : 0);
            from += EACH * m.stride;
        }
        return;
    }
#pragma unroll 1
    for (int e = thread; e < ROWS * PAIRS; e += THREADS) {
        const int j = e / PAIRS, p = e % PAIRS;
        const int64_t at = col + 2 * p;

        to[j][p / 4].pair[p % 4] = j < n ? kg_pair(kg_cuda_load(m, first + j, at),
                                                   kg_cuda_load(m, first + j, at + 1))
                                         : 0;
    }
}

/* to[r] <- row first + r of a tile: its head's columns of m, or 0 after the tile's last
 * row. Aligned rows use kg_copy_later. A thread divides by the group once, not for each
 * row. */
template <int THREADS, int ROWS = KG_ATTN_ROWS, int W>
static __device__ inline void
kg_cuda_bring_rows(struct kg_cuda_eight (*to)[W], const struct kg_mat &m,
                   const struct kg_cuda_tile &t, int first = 0)
{
    enum { EIGHTS = W - 1, EACH = THREADS / EIGHTS };
    const bool aligned = kg_cuda_is_aligned(m);
    const int c = (int)threadIdx.x % EIGHTS, by = EACH / t.group, left = EACH % t.group;
    int r = (int)threadIdx.x / EIGHTS, head = kg_cuda_head(t, first + r);
    int64_t row = kg_cuda_query(t, first + r);

    static_assert(THREADS % EIGHTS == 0, "whole rows");
#pragma unroll 1
    for (; r < ROWS; r += EACH) {
        const bool there = first + r < t.rows;
        const int64_t col = ((int64_t)head * EIGHTS + c) * 8;

        if (aligned)
            kg_copy_later(&to[r][c], kg_cuda_bf16(m, row) + col, there ? 16 : 0);
        else
            to[r][c] = there ? kg_cuda_load_eight(m, row, col) : kg_cuda_eight{};
        head += left;
        row += by + (head >= (t.kv_head + 1) * t.group);
        head -= head >= (t.kv_head + 1) * t.group ? t.group : 0;
    }
}

/* The address that a lane passes to kg_fragments for rows [r, r + 16), elements
 * [16 c, + 16) of a tile: for a left factor, or for a transposed right factor. */
template <int W>
static __device__ inline const void *kg_cuda_left(const struct kg_cuda_eight (*tile)[W],
                                                  int r, int c)
{
    const int lane = (int)threadIdx.x % 32;

    return &tile[r + lane % 16][2 * c + lane / 16];
}
/* As above, for a right factor whose columns are rows of the tile: two kg_mma b. */
template <int W>
static __device__ inline const void *kg_cuda_right(const struct kg_cuda_eight (*tile)[W],
                                                   int r, int c)
{
    const int lane = (int)threadIdx.x % 32;

    return &tile[r + lane % 8 + lane / 16 * 8][2 * c + lane / 8 % 2];
}

/* f <- left factors of kg_mma: the 16 rows of this warp */
template <int HD>
static __device__ inline void
kg_cuda_left_factors(uint32_t f[HD / 16][4],
                     const struct kg_cuda_eight (*rows)[HD / 8 + 1])
{
#pragma unroll
    for (int c = 0; c < HD / 16; c++)
        kg_fragments(f[c], kg_cuda_left(rows, (int)threadIdx.x / 32 * 16, c));
}

/* ---- arithmetic ---- */
/* log x as base/real.c explains; x must be an fp32 value */
static __device__ inline double kg_cuda_log(double x)
{
    static const double c[] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11,
                               2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
    uint64_t u;
    double n, f, half, s, z, p = c[9], tail;

    if (!(x > 0.0) || x > 0x1p1000)
        return x == 0.0 ? -INFINITY : x > 0.0 ? x : NAN;
    memcpy(&u, &x, sizeof u);
    n = (double)((int64_t)(u >> 52) - 1023);
    u = (u & 0xfffffffffffffu) | 0x3ff0000000000000u;
    memcpy(&f, &u, sizeof f);
    if (f >= 0x1.6a09e667f3bcdp+0) {
        f *= 0.5;
        n += 1.0;
    }
    f -= 1.0;
    half = 0.5 * f * f;
    s = f / (2.0 + f);
    z = s * s;
    for (int i = 8; i >= 0; i--)
        p = p * z + c[i];
    tail = s * (half + z * p);
    return n * 0x1.62e42feep-1 - ((half - (tail + n * 0x1.a39ef35793c76p-33)) - f);
}

#endif
