/* Attention backward by wgmma, the instruction of four warps of Hopper (9.0): the bits of
 * attention_bwd_mma.cu, for many rows without window and softcap.
 *
 * Formulas and kernels are as there: one kernel has keys and walks the rows that see them
 * (dk, dv), the other has rows and walks the keys that they see (dq). In both, four warps
 * own 64 of the keys or rows that the kernel has. A block of threads consists of two such
 * groups of warps, for successive keys or rows; one thread brings what they walk, 64 at a
 * time, by boxes (TMA) into STAGES places.
 *
 * The own 64 are the left factor of both products over the head dimension. The results of
 * these are the left factors, in registers, of the products that are summed, so p and ds
 * are never written. The own 64 are in registers too, except keys of 128 columns: there
 * sums, scores, dO v and p take 208 registers.
 *
 * Chains are added as in attention_bwd_mma.cu, sixteen columns or rows at a time. A chain
 * over rows begins at the first row that sees the block of keys. If a sequence continues
 * within a block of keys, the chains of this block begin at that row, and those of the
 * next block at another offset within sixteen rows; so the two are never a pair
 * (kg_cuda_alone).
 *
 * A place may also hold rows after the last one of the sequence. If these are NaN or
 * infinite, a factor of 0 does not hide them, so all warps first write zeros there. But a
 * key that is NaN or infinite spoils dq of all 64 rows of its block, even of rows that do
 * not see it; attention_bwd_mma.cu spoils only rows of its tile.
 *
 * Not measured; docs/gpu.md counts the clocks.
 */
#include "tensor/cuda/attention_internal.h"
#include "tensor/cuda/pipeline_internal.h"
#include "tensor/cuda/twos_internal.h"

enum { SHARERS = 2, TILE_WARPS = KG_FOUR_WARPS / KG_WARP };
/* Registers per thread of the producer warps, and of the consumer warps. */
enum { FEWER = 24, MORE = 240 };

/* For keys, own is k, v and met is q, dO; for rows the reverse. */
struct sides {
    struct kg_boxes own[2], met[2];
    struct kg_boxes rows; /* of kg_cuda_given */
};

/* ---- shared memory ---- */
/* A stage: both met matrices as boxes of 64 columns; for keys also lse and d. */
template <int HD, bool KEYS> struct shape {
    enum {
        SIDE = HD / KG_BOX * KG_BOX_BYTES, /* 64 rows of a matrix */
        BOTH = 2 * SIDE,
        BYTES = BOTH + (KEYS ? KG_KV_BLOCK * (int)sizeof(struct kg_cuda_brought) : 0),
        STAGES = HD == 64 ? 8 : 4,
        OWN = SHARERS * BOTH /* before the stages */
    };
};

/* What four warps own, and the places (each 64 met rows) that they use. */
struct walk {
    int row;        /* first own row */
    int n;          /* existing own rows, at most 64; 0 or less: none */
    int first, end; /* of the places */
    int ahead; /* position of the first own row; for keys, position of the first met row
                * minus that of the first own key */
};
struct unit {
    struct walk of[SHARERS];
    int row;    /* first met row */
    int n;      /* rows of the sequence from it on */
    int places; /* for these rows */

    __device__ bool find_keys(const struct kg_attn &a);
    __device__ bool find_rows(const struct kg_attn &a, int head);
};
struct behind {
    struct unit unit;
    struct kg_barrier own, meets;
};
template <int HD, bool KEYS> static constexpr int asked_bytes(void)
{
    typedef shape<HD, KEYS> S;
    const int bytes = kg_cuda_pipeline_asks(S::STAGES, S::BYTES, S::OWN) +
                      (int)sizeof(struct behind);

    static_assert(bytes <= (int)KG_HOPPER_MOST, "shared memory");
    return bytes;
}

/* ---- division of work ---- */
/* Key blocks 2 i and 2 i + 1; both one lower if the first one is alone in its pair. */
__device__ bool unit::find_keys(const struct kg_attn &a)
{
    int s, i;

    if (!kg_cuda_find<SHARERS>(&s, &i, a, (int)blockIdx.x, true))
        return false;
    const struct kg_attn_seq seq = a.seqs[s];
    const int all = seq.pos + seq.n_rows, block = SHARERS * i - kg_cuda_alone(seq);
    const int first = (block < 0 ? 0 : block) * KG_KV_BLOCK;
    const int from = first > seq.pos ? first : seq.pos;

    row = seq.row + from - seq.pos;
    n = all - from;
    places = kg_cuda_cut(n);
#pragma unroll
    for (int w = 0; w < SHARERS; w++) {
        const int before = (block + w) * KG_KV_BLOCK;
        const int own_from = before > from ? before : from;
        const int64_t left = before < 0 ? 0 : (int64_t)all - before;

        of[w] = {seq.keys + before, (int)kg_cuda_min(left, KG_KV_BLOCK),
                 left > 0 ? (own_from - from) / KG_KV_BLOCK : places, places,
                 from - before};
    }
    return true;
}

/* Two tiles of a head, the later one first. */
__device__ bool unit::find_rows(const struct kg_attn &a, int head)
{
    struct kg_attn one = a;
    int s, i;

    one.n_kv_heads = one.n_heads; /* tiles of one head */
    if (!kg_cuda_find<SHARERS>(&s, &i, one, (int)blockIdx.x, false))
        return false;
    const struct kg_attn_seq seq = a.seqs[s];
    const int index = kg_cuda_units(seq, 1, false) - 1 - SHARERS * i;

    row = seq.keys;
    n = seq.pos + seq.n_rows;
#pragma unroll
    for (int w = 0; w < SHARERS; w++) {
        const struct kg_cuda_tile t = kg_cuda_tile_at(seq, 1, head,
                                                      index > w ? index - w : 0);

        of[w] = {(int)kg_cuda_query(t, 0), index < w ? 0 : t.rows, 0,
                 index < w ? 0 : t.last + 1, t.from};
    }
    places = of[0].end;
    return true;
}

/* Heads that a block of threads owns, meets and writes in its turn h of n. */
template <bool KEYS> struct heads {
    int n, own, met, written;

    __device__ heads(const struct kg_cuda_given &g, int h)
    {
        const int y = (int)blockIdx.y, group = kg_cuda_group(g.a);
        const bool apart = KEYS && g.apart[0].data;

        n = KEYS && !apart ? group : 1;
        own = apart ? y / group : y;
        met = KEYS ? y * n + h : y / group;
        written = y;
    }
};

/* ---- the producer thread ---- */
template <int HD>
static __device__ void bring(char *to, const struct kg_boxes (&from)[2], int row, int col,
                             struct kg_barrier *full)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int c = 0; c < HD / KG_BOX; c++)
            kg_box_later(to + (i * (HD / KG_BOX) + c) * KG_BOX_BYTES, &from[i], row,
                         col + c * KG_BOX, full);
}

template <int HD, bool KEYS>
static __device__ void bring_all(const struct kg_cuda_places &p, struct behind *behind,
                                 const struct kg_cuda_given &g, const struct sides &m)
{
    typedef shape<HD, KEYS> S;
    const struct unit &u = behind->unit;
    const int heads_n = heads<KEYS>(g, 0).n;
    struct kg_cuda_turn t = {0, 0, KG_TRIES};

    kg_barrier_expect(&behind->own, SHARERS * S::BOTH);
    for (int w = 0; w < SHARERS; w++) /* if it is empty, loads the other's */
        bring<HD>(p.at - S::OWN + w * S::BOTH, m.own, u.of[u.of[w].n > 0 ? w : 1 - w].row,
                  heads<KEYS>(g, 0).own * HD, &behind->own);
    for (int h = 0; h < heads_n; h++)
        for (int i = 0; i < u.places; i++) {
            const int head = heads<KEYS>(g, h).met, row = u.row + i * KG_KV_BLOCK;
            char *const to = p.at + t.place * S::BYTES;

            t.await(&p.empty[t.place], t.parity ^ 1);
            kg_barrier_expect(&p.full[t.place], S::BYTES);
            bring<HD>(to, m.met, row, head * HD, &p.full[t.place]);
            if (KEYS)
                kg_box_later(to + S::BOTH, &m.rows, row, head / 2 * 8, &p.full[t.place]);
            kg_cuda_go_on<S::STAGES>(&t);
        }
}

/* ---- the consumer warps ---- */
/* Byte offset of the c-th sixteen factors of a side's rows, and of its columns.
 * maybe_unused, here and below: devices before 9.0 have no kernels that call these. */
[[maybe_unused]] static __device__ constexpr int sixteen(int c)
{
    return c / 4 * KG_BOX_BYTES + c % 4 * 32;
}
[[maybe_unused]] static __device__ constexpr int sixteen_rows(int n)
{
    return n * 2 * KG_EIGHT_LINES;
}

/* Left factors over the head dimension, in shared memory. Registers would halve the
 * reads, but ptxas 13.0 gives them to p and ds while later turns still need them. */
template <int HD> struct factors {
    struct kg_factors_at at;

    __device__ void take(const char *from)
    {
        at = kg_same(kg_cuda_factors_of<false>(from, 0));
    }
    __device__ void ask(float s[8][4], struct kg_factors_at met) const
    {
#pragma unroll
        for (int c = 0; c < HD / 16; c++)
            kg_multiply_later<KG_KV_BLOCK, false, false>(
                s[0], kg_factors_after(at, sixteen(c)), kg_factors_after(met, sixteen(c)),
                c > 0);
        kg_products_end();
    }
};

/* sum += x, as left factors, times the columns of `met` */
template <int HD>
static __device__ void ask_sum(float sum[HD / 8][4], const uint32_t x[4][4],
                               struct kg_factors_at met)
{
#pragma unroll
    for (int n = 0; n < KG_KV_BLOCK / 16; n++)
        kg_multiply_later<HD, true>(sum[0], x[n], kg_factors_after(met, sixteen_rows(n)));
    kg_products_end();
}

/* Left factors of products over sixteen met rows each. */
[[maybe_unused]] static __device__ void round_pairs(uint32_t to[4][4],
                                                    const float s[8][4])
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            to[n / 2][n % 2 * 2 + h] = kg_pair(s[n][2 * h], s[n][2 * h + 1]);
}

/* lse and d of a query row. */
struct alignas(8) row {
    float lse, d;
};

/* For a thread's scores: of met rows 8 n + e (keys), or of own rows 8 h. */
template <bool KEYS> struct rows {
    enum { N = KEYS ? 16 : 2 };
    struct row of[N];

    __device__ const struct row &at(int n, int h, int e) const
    {
        return of[KEYS ? 2 * n + e : h];
    }
    __device__ void take(const struct kg_cuda_brought *from, int side)
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            of[i] = ((const struct row *)&from[i / 2 * 8 + i % 2])[side];
    }
};

/* A thread's 32 scores of a place: at own row first + 8 h, met row 8 n + 2 (lane % 4) +
 * e. */
template <bool KEYS> struct view {
    int diff; /* position of a row minus that of a key, for n = e = h = 0 */
    int left; /* met rows that exist; less than 64 in the last place only */
    bool masked;

    __device__ bool sees(int n, int h, int e) const
    {
        const int met = 8 * n + e, own = 8 * h;

        return (KEYS ? diff + met - own : diff + own - met) >= 0 && (!KEYS || met < left);
    }
};

/* Replaces scores by p. */
template <bool MASKED, bool KEYS>
static __device__ void weigh(float s[8][4], const struct rows<KEYS> &rows,
                             const struct view<KEYS> &v, float in)
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float *const x = &s[n][2 * h + e];
                const float p = kg_exp2(kg_fma(*x, in, -rows.at(n, h, e).lse));

                *x = !MASKED || v.sees(n, h, e) ? p : 0.0f;
            }
        }
}

/* Replaces dO.v by ds. */
template <bool MASKED, bool KEYS>
static __device__ void slope(float ds[8][4], const float p[8][4],
                             const struct rows<KEYS> &rows, const struct view<KEYS> &v)
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int i = 2 * h + e;
                const float x = p[n][i] * (ds[n][i] - rows.at(n, h, e).d);

                ds[n][i] = !MASKED || v.sees(n, h, e) ? x : 0.0f;
            }
        }
}

/* dk and dv, or only dq. */
template <int HD, bool KEYS> struct sums {
    float a[HD / 8][4];
    float b[KEYS ? HD / 8 : 1][4];

    __device__ void clear(void)
    {
#pragma unroll
        for (int c = 0; c < HD / 8; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                a[c][i] = 0.0f;
#pragma unroll
        for (int c = 0; KEYS && c < HD / 8; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                b[KEYS ? c : 0][i] = 0.0f;
    }
    __device__ void are_there(void)
    {
        kg_sums_are_there<HD / 2>(a[0]);
        if (KEYS)
            kg_sums_are_there<HD / 2>(b[0]);
    }
};

/* Position of four warps in the pipeline. */
struct four {
    struct kg_cuda_turn at;
    int parity; /* of the next kg_cuda_meet */
};

/* Zeros the rows of a stage from `n` on, by all consumer warps. */
template <int HD>
static __device__ void hide(struct four *f, struct kg_barrier *meets, char *place, int n)
{
    enum { EIGHTS = HD / 8, BOX_EIGHTS = KG_BOX / 8, ALL = SHARERS * KG_FOUR_WARPS };
    const uint32_t zeros[4] = {0, 0, 0, 0};

    for (int e = n * EIGHTS + (int)threadIdx.x - KG_FOUR_WARPS; e < KG_KV_BLOCK * EIGHTS;
         e += ALL)
        for (int side = 0; side < 2; side++)
            kg_write_later(
                place + (side * (HD / KG_BOX) + e % EIGHTS / BOX_EIGHTS) * KG_BOX_BYTES +
                    kg_box_place(e / EIGHTS, e % BOX_EIGHTS),
                zeros);
    kg_cuda_meet(&f->at, &f->parity, meets);
}

/* to's rows from w.row on <- sum, or (adds) to + sum, times scale */
template <int HD>
static __device__ void write(const struct kg_mat &to, float (&sum)[HD / 8][4],
                             const struct walk &w, int col, bool adds, float scale)
{
    const int lane = (int)threadIdx.x % KG_WARP;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = (int)threadIdx.x / KG_WARP % TILE_WARPS * 16 + lane / 4 + 8 * h;

        if (r >= w.n)
            continue;
        struct kg_cuda_two *const at = (struct kg_cuda_two *)(kg_cuda_f32(to, w.row + r) +
                                                              col + 2 * (lane % 4));
#pragma unroll
        for (int c = 0; adds && c < HD / 8; c++) {
            const struct kg_cuda_two old = at[4 * c];

            sum[c][2 * h] += old.x;
            sum[c][2 * h + 1] += old.y;
        }
#pragma unroll
        for (int c = 0; c < HD / 8; c++)
            at[4 * c] = {sum[c][2 * h] * scale, sum[c][2 * h + 1] * scale};
    }
}

/* lse and d of the own rows from `row` on; zeros for rows that do not exist. */
[[maybe_unused]] static __device__ void take_own(struct rows<false> &to,
                                                 const struct kg_cuda_given &g,
                                                 const struct walk &w, int row)
{
    const int head = (int)blockIdx.y;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const bool there = row + 8 * h < w.n;
        const int64_t at = w.row + (there ? row + 8 * h : 0);
        const struct kg_cuda_brought *const from = g.rows + at * ((g.a.n_heads + 1) / 2) +
                                                   head / 2;

        const struct row zero = {0.0f, 0.0f};

        to.of[h] = there ? ((const struct row *)from)[head % 2] : zero;
    }
}

/* Four consumer warps and their data. */
template <int HD, bool KEYS> struct computer {
    typedef shape<HD, KEYS> S;
    struct four f;
    struct kg_factors_at places;
    struct factors<HD> own[2];
    struct sums<HD, KEYS> sum;
    struct rows<KEYS> rows;
    int row; /* the thread's first own row */

    __device__ void begin(const struct kg_cuda_places &p, struct kg_barrier *there,
                          const struct kg_cuda_given &g, const struct walk &w, int which)
    {
        row = (int)threadIdx.x / KG_WARP % TILE_WARPS * 16 +
              (int)threadIdx.x % KG_WARP / 4;
        f = {{0, 0, KG_TRIES}, 0};
        places = kg_same(kg_cuda_factors_of<false>(p.at, 0));
        f.at.await(there, 0);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; i++)
            own[i].take(p.at - S::OWN + which * S::BOTH + i * S::SIDE);
        if constexpr (!KEYS)
            take_own(rows, g, w, row);
    }
    /* returns the current stage when it is full, with rows after the sequence zeroed */
    __device__ char *come(const struct kg_cuda_places &p, struct kg_barrier *meets,
                          int left)
    {
        char *const met = p.at + f.at.place * S::BYTES;

        f.at.await(&p.full[f.at.place], f.at.parity);
        __syncwarp();
        if (left < KG_KV_BLOCK)
            hide<HD>(&f, meets, met, left);
        return met;
    }
    __device__ void leave(const struct kg_cuda_places &p)
    {
        kg_cuda_leave(p, f.at.place);
        kg_cuda_go_on<S::STAGES>(&f.at);
    }
    /* Passes over places [i, end), which only the other warps use. */
    __device__ void pass(const struct kg_cuda_places &p, struct behind *behind, int i,
                         int end)
    {
        for (; i < end; i++) {
            come(p, &behind->meets, behind->unit.n - i * KG_KV_BLOCK);
            leave(p);
        }
    }
    /* dv += p dO and dk += ds q, or dq += ds k, for the stage at `met`.   brought: for
     * keys, lse and d of it, from the thread's first row on */
    __device__ void add(struct kg_factors_at met, const struct kg_cuda_brought *brought,
                        int side, const struct view<KEYS> &v, float in)
    {
        const struct kg_factors_at other = kg_factors_after(met, S::SIDE);
        float s[8][4], ds[8][4];
        uint32_t x[4][4], p[4][4];

        sum.are_there();
        kg_products_begin();
        own[0].ask(s, met);
        own[1].ask(ds, other);
        if (KEYS) /* while scores are computed */
            rows.take(brought, side);
        kg_products_wait<1>();
        kg_sums_are_there<32>(s[0]);
        if (v.masked)
            weigh<true>(s, rows, v, in);
        else
            weigh<false>(s, rows, v, in);
        if constexpr (KEYS) {
            round_pairs(p, s);
            kg_left_is_there<16>(p[0]);
            kg_products_begin();
            ask_sum<HD>(sum.b, p, other);
            kg_products_wait<1>();
        } else
            kg_products_wait<0>();
        kg_sums_are_there<32>(ds[0]);
        if (v.masked)
            slope<true>(ds, s, rows, v);
        else
            slope<false>(ds, s, rows, v);
        round_pairs(x, ds);
        kg_left_is_there<16>(x[0]);
        kg_products_begin();
        ask_sum<HD>(sum.a, x, met);
        kg_products_wait<0>();
        sum.are_there();
    }
    /* Computes place i. */
    __device__ void meet(const struct kg_cuda_places &p, struct behind *behind,
                         const struct walk &w, int i, int side, float in)
    {
        const int before = i * KG_KV_BLOCK, left = behind->unit.n - before;
        const int lane_row = 2 * ((int)threadIdx.x % 4), at = before + lane_row;
        char *const met = come(p, &behind->meets, left);
        const struct view<KEYS> v = {
            KEYS ? w.ahead + at - row : w.ahead + row - at, left - lane_row,
                KEYS ? w.ahead + before < KG_KV_BLOCK - 1 || left < KG_KV_BLOCK
                     : i == w.end - 1
        };

        add(kg_factors_after(places, f.at.place * S::BYTES),
            (const struct kg_cuda_brought *)(met + S::BOTH) + lane_row, side, v, in);
        leave(p);
    }
};

template <int HD, bool KEYS>
static __device__ void walk_all(struct kg_mat a, struct kg_mat b,
                                const struct kg_cuda_places &p, struct behind *behind,
                                const struct kg_cuda_given &g)
{
    const struct unit &u = behind->unit;
    const int which = kg_same((int)threadIdx.x / KG_FOUR_WARPS - 1);
    const struct walk &w = u.of[which];
    const int first = kg_same(w.first), end = kg_same(w.end), all = kg_same(u.places);
    const int turns = heads<KEYS>(g, 0).n, col = heads<KEYS>(g, 0).written * HD;
    struct computer<HD, KEYS> me;

    me.begin(p, &behind->own, g, w, which);
    for (int h = 0; h < turns; h++) {
        const int side = heads<KEYS>(g, h).met % 2;

        me.sum.clear();
        me.pass(p, behind, 0, first);
        for (int i = first; i < end; i++)
            me.meet(p, behind, w, i, side, g.by.in);
        me.pass(p, behind, end, all);
        const bool last = h == turns - 1 && !(KEYS && g.apart[0].data);
        const float one = me.f.at.tries > 0 ? 1.0f : NAN;

        write<HD>(a, me.sum.a, w, col, h > 0, last ? one * g.a.scale : one);
        if constexpr (KEYS)
            write<HD>(b, me.sum.b, w, col, h > 0, one);
    }
}

/* One thread of the first four warps produces; they give registers to the others. */
template <int HD, bool KEYS>
static __global__ void __launch_bounds__(KG_PIPELINE_THREADS, 1)
    backward(struct kg_mat a, struct kg_mat b, struct kg_cuda_given g,
             const __grid_constant__ struct sides m)
{
    if constexpr (KG_HOPPER) {
        typedef shape<HD, KEYS> S;
        KG_SHARED_ASKED(char, asked);
        const struct kg_cuda_places p = kg_cuda_places(asked, S::STAGES, S::BYTES,
                                                       S::OWN);
        struct behind *const behind = (struct behind *)(p.empty + S::STAGES);
        struct unit unit;

        if (!(KEYS ? unit.find_keys(g.a) : unit.find_rows(g.a, (int)blockIdx.y)))
            return;
        if (threadIdx.x == 0) {
            behind->unit = unit;
            kg_cuda_places_init(p, S::STAGES);
            kg_barrier_init(&behind->own, 1);
            kg_barrier_init(&behind->meets, SHARERS * KG_FOUR_WARPS);
            kg_barriers_end();
        }
        __syncthreads();
        if (threadIdx.x < KG_FOUR_WARPS) {
            kg_registers_fewer<FEWER>();
            if (threadIdx.x == 0)
                bring_all<HD, KEYS>(p, behind, g, m);
        } else {
            kg_registers_more<MORE>();
            walk_all<HD, KEYS>(a, b, p, behind, g);
        }
    }
}

/* ---- launches ---- */
/* *m <- the operands as boxes.   returns false: the device or an operand has none */
static bool describe(struct sides *m, const struct kg_cuda_given &g, bool keys)
{
    const struct kg_attn &a = g.a;
    const struct kg_mat all[] = {a.k, a.v, a.q, g.dout};
    const struct kg_mat rows = kg_mat(g.rows, KG_F32, a.q.rows,
                                      (int64_t)(a.n_heads + 1) / 2 * 4);

    if (kg_dev_hoppers() == 0 || a.window > 0 || a.softcap > 0.0f ||
        a.k.rows > INT32_MAX || a.q.rows > INT32_MAX ||
        !kg_dev_boxes(&m->rows, rows, KG_KV_BLOCK))
        return false;
    for (int i = 0; i < 4; i++) {
        struct kg_boxes *const to = keys == (i < 2) ? m->own : m->met;

        if (!kg_cuda_is_aligned(all[i]) || !kg_dev_boxes(&to[i % 2], all[i], KG_KV_BLOCK))
            return false;
    }
    return true;
}

template <int HD>
static void launch_keys(struct kg_mat dk, struct kg_mat dv, const struct kg_cuda_given &g,
                        const struct sides &m)
{
    const int64_t blocks = kg_cuda_most_blocks(&g.a) / SHARERS + g.a.n_seqs;
    const bool apart = g.apart[0].data;

    KG_LAUNCH_HOPPER((asked_bytes<HD, true>()), (backward<HD, true>),
                     kg_grid(blocks, apart ? g.a.n_heads : g.a.n_kv_heads),
                     KG_PIPELINE_THREADS, apart ? g.apart[0] : dk,
                     apart ? g.apart[1] : dv, g, m);
}

bool kg_cuda_attention_bwd_wgmma_keys(struct kg_mat dk, struct kg_mat dv,
                                      const struct kg_cuda_given *g)
{
    struct sides m;

    if (!kg_cuda_in_twos(dk) || !kg_cuda_in_twos(dv) || !describe(&m, *g, true))
        return false;
    (g->a.head_dim == 64 ? launch_keys<64> : launch_keys<128>)(dk, dv, *g, m);
    return true;
}

template <int HD>
static void launch_rows(struct kg_mat dq, const struct kg_cuda_given &g,
                        const struct sides &m)
{
    struct kg_attn one = g.a;

    one.n_kv_heads = one.n_heads;
    KG_LAUNCH_HOPPER(
        (asked_bytes<HD, false>()), (backward<HD, false>),
        kg_grid(kg_cuda_most_tiles(&one) / SHARERS + g.a.n_seqs, g.a.n_heads),
        KG_PIPELINE_THREADS, dq, dq, g, m);
}

bool kg_cuda_attention_bwd_wgmma_queries(struct kg_mat dq, const struct kg_cuda_given *g)
{
    struct sides m;

    if (!kg_cuda_in_twos(dq) || !describe(&m, *g, false))
        return false;
    (g->a.head_dim == 64 ? launch_rows<64> : launch_rows<128>)(dq, *g, m);
    return true;
}
