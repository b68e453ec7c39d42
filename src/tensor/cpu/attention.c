/* Attention forward: causal or both ways, grouped-query, by online softmax over key
 * blocks of fixed size.
 *
 * One definition serves decode (one query row), chunked prefill and training (tiles of
 * rows). The computation of a (query row, head) is fixed: for every block of 64 keys from
 * position 0 (or the one where its window begins), scores by a chain of FMAs over the
 * head dimension, one maximum, exponentials, their sum by a fixed tree, and a chain of
 * FMAs over the visible keys into the accumulator. A tile computes several rows together,
 * but no operation mixes them, and a key that a row does not see is never an operand of
 * its accumulator.
 *
 * Keys are stored in rows but needed in lanes, so a block is transposed into scratch once
 * per tile. For a tall tile, values are widened into scratch; a short tile, for which
 * reading costs more than computing, reads them in place. */
#include "base/mem.h"
#include "base/real.h"
#include "tensor/cpu/attention_internal.h"
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/parallel_internal.h"
#include "tensor/cpu/tile_internal.h"

#include <math.h>

enum {
    SHORT_TILE = 16,   /* rows up to which reading keys costs more than using them */
    WIDEST_ITEM = 1024 /* columns of k that one item may cover */
};

/* Scratch of one thread, for R rows of a tile in each of the item's KV heads; hdp is the
 * padded head dimension. */
struct scratch {
    float *q;             /* (heads R, hdp) queries times scale */
    float *acc;           /* (heads R, hdp) sum of p v */
    float *m;             /* (heads R) running maximum */
    float *l;             /* (heads R) running sum of p */
    float *s;             /* (R, KG_KV_BLOCK) scores, then p, of one head */
    float *kt;            /* (hdp, KG_KV_BLOCK) of one head */
    float *k;             /* (KG_KV_BLOCK, hdp) of one head, before transposition */
    float *v;             /* as k: widened values */
    struct kg_mat values; /* of the current block and head: in v or in place */
};

/* The current tile: R = rows. */
struct tile {
    const struct kg_attn *a;
    const struct kg_attn_seq *seq;
    int32_t kv_head; /* first KV head */
    int32_t heads;   /* KV heads */
    int32_t first;   /* query row within the sequence */
    int group;
    int rows; /* per KV head */
    int hdp;
};

/* One unit of parallel work. */
struct item {
    int32_t seq;
    int32_t kv_head; /* first KV head */
    int32_t heads;
    int32_t first; /* query row within the sequence */
};

struct job {
    struct kg_mat o;
    float *lse; /* (N,H) or NULL */
    const struct kg_attn *a;
    struct item *items; /* owned by the caller of run_items */
    int64_t n_items;
    int positions; /* per tile */
    int32_t heads; /* KV heads per item of a short tile */
};

static kg_status scratch_init(struct scratch *w, const struct job *job,
                              struct kg_err *err)
{
    size_t r = (size_t)kg_cpu_padded(job->positions * kg_attn_group(job->a));
    size_t short_rows = (size_t)job->heads * SHORT_TILE;
    size_t rows = r > short_rows ? r : short_rows;
    size_t d = (size_t)kg_cpu_padded(job->a->head_dim);
    size_t keys = d * KG_KV_BLOCK;
    size_t n = 2 * rows * d + 2 * rows + r * KG_KV_BLOCK + 3 * keys;
    w->q = kg_cpu_scratch(KG_CPU_SCRATCH_ATTENTION, n * sizeof *w->q, err);
    if (!w->q)
        return err->code;
    w->acc = w->q + rows * d;
    w->m = w->acc + rows * d;
    w->l = w->m + rows;
    w->s = w->l + rows;
    w->kt = w->s + r * KG_KV_BLOCK;
    w->k = w->kt + keys;
    w->v = w->k + keys;
    return KG_OK;
}

/* The scratch of the item's i-th KV head. */
static struct scratch of_head(const struct scratch *w, const struct tile *t, int32_t i)
{
    int64_t rows = (int64_t)i * t->rows;
    struct scratch part = *w;
    part.q += rows * t->hdp;
    part.acc += rows * t->hdp;
    part.m += rows;
    part.l += rows;
    return part;
}

/* Query head of row r for the item's i-th KV head, and the row in q and o. */
static int64_t head_of(const struct tile *t, int32_t i, int r)
{
    return ((int64_t)t->kv_head + i) * t->group + r % t->group;
}

static int64_t row_of(const struct tile *t, int r)
{
    return (int64_t)t->seq->row + t->first + r / t->group;
}

/* End of the keys of a block that row r of the tile sees; 0 or less: it sees none. */
static int visible(const struct tile *t, int r, int32_t block)
{
    int64_t last = kg_attn_last_key(t->a, t->seq, t->first + r / t->group);
    return kg_attn_min(KG_KV_BLOCK, last + 1 - (int64_t)block * KG_KV_BLOCK);
}

/* Number of keys of a block before the window of row r. */
static int passed(const struct tile *t, int r, int32_t block)
{
    int64_t pos = (int64_t)t->seq->pos + t->first + r / t->group;
    int64_t n = kg_attn_first_key(t->a, pos) - (int64_t)block * KG_KV_BLOCK;
    return n > 0 ? kg_attn_min(KG_KV_BLOCK, n) : 0;
}

static void load_queries(const struct scratch *w, const struct tile *t, int32_t i)
{
    int hd = t->a->head_dim;
    struct kg_v16 scale = kg_v16_set1(t->a->scale);
    for (int r = 0; r < t->rows; r++) {
        float *q = w->q + (int64_t)r * t->hdp;
        kg_cpu_tile_load(q, t->hdp, t->a->q, row_of(t, r), head_of(t, i, r) * hd, 1, hd);
        for (int d = 0; d < t->hdp; d += KG_LANES)
            kg_v16_store(q + d, kg_v16_mul(kg_v16_load(q + d), scale));
        w->m[r] = -INFINITY;
        w->l[r] = 0.0f;
    }
    memset(w->acc, 0, (size_t)t->rows * (size_t)t->hdp * sizeof *w->acc);
}

static struct kg_v16 first_keys(struct kg_v16 x, int n, float fill)
{
    if (n >= KG_LANES)
        return x;
    return kg_v16_first_n(x, n > 0 ? n : 0, kg_v16_set1(fill));
}

/* Sixteen scores, softcapped; -inf at keys outside [from, n), which are not seen. */
static struct kg_v16 seen_scores(const float *s, float softcap, int from, int n)
{
    struct kg_v16 x = kg_v16_load(s);
    if (softcap > 0)
        x = kg_v16_softcap(x, softcap);
    x = first_keys(x, n, -INFINITY);
    if (from <= 0)
        return x;
    return kg_v16_first_n(kg_v16_set1(-INFINITY), kg_attn_min(from, KG_LANES), x);
}

/* Replaces the scores of row r by p = exp(s - m), and scales l and the accumulator to the
 * new maximum m. */
static void soften(const struct scratch *w, const struct tile *t, int r, int32_t block)
{
    float *s = w->s + (int64_t)r * KG_KV_BLOCK;
    const int hdp = t->hdp, from = passed(t, r, block), n_keys = visible(t, r, block);
    struct kg_v16 x[4];
    for (int i = 0; i < 4; i++)
        x[i] = seen_scores(s + i * KG_LANES, t->a->softcap, from - i * KG_LANES,
                           n_keys - i * KG_LANES);
    struct kg_v16 top = kg_v16_max(kg_v16_max(x[0], x[1]), kg_v16_max(x[2], x[3]));
    float m = kg_v16_hmax(top);
    m = w->m[r] > m ? w->m[r] : m;
    struct kg_v16 shift = kg_v16_set1(m);
    for (int i = 0; i < 4; i++) {
        x[i] = kg_v16_exp(kg_v16_sub(x[i], shift));
        kg_v16_store(s + i * KG_LANES, x[i]);
    }
    float sum = kg_v16_sum(kg_v16_add(kg_v16_add(x[0], x[1]), kg_v16_add(x[2], x[3])));
    struct kg_v16 alpha = kg_v16_exp(kg_v16_set1(w->m[r] - m)); /* 0 at the first block */
    float *acc = w->acc + (int64_t)r * hdp;
    for (int d = 0; d < hdp; d += KG_LANES)
        kg_v16_store(acc + d, kg_v16_mul(kg_v16_load(acc + d), alpha));
    w->l[r] = w->l[r] * kg_v16_hmax(alpha) + sum;
    w->m[r] = m;
}

/* acc += p v over keys [from, end) of the block, for n rows from r on. */
static void add_keys(const struct scratch *w, const struct tile *t, int r, int n,
                     int from, int end)
{
    struct kg_cpu_left p = {w->s + (int64_t)r * KG_KV_BLOCK + from, KG_KV_BLOCK, 1};
    const int64_t at = from * w->values.stride, stride = w->values.stride;
    float *acc = w->acc + (int64_t)r * t->hdp;
    if (end <= from)
        return;
    if (w->values.dtype == KG_BF16)
        kg_cpu_tile_madd_bf16(acc, t->hdp, p, (const uint16_t *)w->values.data + at,
                              stride, n, t->hdp, end - from);
    else
        kg_cpu_tile_madd(acc, t->hdp, p, (const float *)w->values.data + at, stride, n,
                         t->hdp, end - from);
}

/* acc += p v over the keys that each row sees: four rows together over the keys that all
 * four see, each row alone over keys before and after these. */
static void add_values(const struct scratch *w, const struct tile *t, int r0, int r1,
                       int32_t block)
{
    for (int r = r0; r < r1; r += 4) {
        int n = kg_attn_min(4, r1 - r);
        int from = passed(t, r + n - 1, block);
        int end = visible(t, r, block);
        int both = end > from ? end : from;
        for (int i = 0; from > 0 && i < n; i++)
            add_keys(w, t, r + i, 1, passed(t, r + i, block),
                     kg_attn_min(from, visible(t, r + i, block)));
        add_keys(w, t, r, n, from, end);
        for (int i = 0; i < n; i++)
            add_keys(w, t, r + i, 1, both, visible(t, r + i, block));
    }
}

/* s = q k for rows [r0, r1), four together, up to the last key that one of the four
 * sees. */
static void score_keys(const struct scratch *w, const struct tile *t, int r0, int r1,
                       int32_t block)
{
    memset(w->s + (int64_t)r0 * KG_KV_BLOCK, 0,
           (size_t)(r1 - r0) * KG_KV_BLOCK * sizeof *w->s);
    for (int r = r0; r < r1; r += 4) {
        int n = kg_attn_min(4, r1 - r);
        int cols = kg_cpu_padded(visible(t, r + n - 1, block));
        struct kg_cpu_left q = {w->q + (int64_t)r * t->hdp, t->hdp, 1};
        kg_cpu_tile_madd(w->s + (int64_t)r * KG_KV_BLOCK, KG_KV_BLOCK, q, w->kt,
                         KG_KV_BLOCK, n, cols, t->a->head_dim);
    }
}

/* End of the rows whose windows reach the block. */
static int end_of_windows(const struct tile *t, int32_t block)
{
    if (t->a->window == 0)
        return t->rows;
    int64_t last = ((int64_t)block + 1) * KG_KV_BLOCK + t->a->window - 1;
    int64_t n = (last - t->seq->pos - t->first) * t->group;
    return n > 0 ? kg_attn_min(t->rows, n) : 0;
}

/* Prefetches columns of rows, a cache line at a time. */
static void prefetch_rows(struct kg_mat m, int64_t row, int64_t col, int rows, int cols)
{
    const int64_t size = (int64_t)kg_dtype_traits(m.dtype)->bytes;
    const char *at = (const char *)m.data + (row * m.stride + col) * size;
    for (int r = 0; r < rows; r++, at += m.stride * size)
        for (int64_t c = 0; c < cols * size; c += 64)
            __builtin_prefetch(at + c, 0, 2);
}

/* Prefetches the next block of the i-th KV head, if the tile sees it. Hardware
 * prefetchers do not follow rows that are so far apart. */
static void prefetch_keys(const struct tile *t, int32_t i, int32_t block)
{
    const int hd = t->a->head_dim, n = visible(t, t->rows - 1, block);
    const int64_t col = ((int64_t)t->kv_head + i) * hd;
    if (n <= 0)
        return;
    const int64_t row = kg_attn_key_row(t->a, t->seq, block);
    prefetch_rows(t->a->k, row, col, n, hd);
    prefetch_rows(t->a->v, row, col, n, hd);
}

/* Transposes keys of the item's i-th KV head, and finds or widens its values. Rows after
 * the last visible one are never an operand. */
static void load_keys(struct scratch *w, const struct tile *t, int32_t i, int32_t block)
{
    const int hd = t->a->head_dim, n = visible(t, t->rows - 1, block);
    const int64_t row = kg_attn_key_row(t->a, t->seq, block);
    const int64_t col = ((int64_t)t->kv_head + i) * hd;
    const struct kg_mat v = t->a->v;
    prefetch_keys(t, i, block + 1);
    kg_cpu_tile_load_transposed(w->kt, KG_KV_BLOCK, w->k, t->a->k, row, col, n, hd);
    if (v.dtype == KG_BF16 && t->rows <= SHORT_TILE && hd == t->hdp) {
        w->values = v;
        w->values.data = (uint16_t *)v.data + row * v.stride + col;
        return;
    }
    w->values = kg_mat(w->v, KG_F32, n, t->hdp);
    kg_cpu_tile_load(w->v, t->hdp, v, row, col, n, hd);
}

/* One KV head against one block of keys. */
static void visit_keys(struct scratch *w, const struct tile *t, int32_t i, int32_t block)
{
    int64_t before = (int64_t)block * KG_KV_BLOCK - t->seq->pos - t->first;
    int r0 = before > 0 && !t->a->both_ways ? (int)before * t->group
                                            : 0; /* earlier rows do not see the block */
    int r1 = end_of_windows(t, block); /* windows of later rows begin after it */
    if (r1 <= r0)
        return;
    load_keys(w, t, i, block);
    score_keys(w, t, r0, r1, block);
    for (int r = r0; r < r1; r++)
        soften(w, t, r, block);
    add_values(w, t, r0, r1, block);
}

/* o = acc / l, rounded once;  lse = m + log l */
static void write_rows(const struct scratch *w, const struct tile *t,
                       const struct job *job, int32_t i)
{
    int hd = t->a->head_dim;
    for (int r = 0; r < t->rows; r++) {
        float *acc = w->acc + (int64_t)r * t->hdp;
        int64_t head = head_of(t, i, r);
        struct kg_v16 l = kg_v16_set1(w->l[r]);
        for (int d = 0; d < t->hdp; d += KG_LANES)
            kg_v16_store(acc + d, kg_v16_div(kg_v16_load(acc + d), l));
        kg_cpu_tile_store(job->o, row_of(t, r), head * hd, acc, t->hdp, 1, hd);
        if (job->lse)
            job->lse[row_of(t, r) * t->a->n_heads + head] =
                (float)((double)w->m[r] + kg_log((double)w->l[r]));
    }
}

static void run_tile(const struct scratch *w, const struct job *job,
                     const struct item *item)
{
    const struct kg_attn_seq *seq = job->a->seqs + item->seq;
    int positions = kg_attn_min(job->positions, seq->n_rows - item->first);
    struct tile t = {
        .a = job->a,
        .seq = seq,
        .kv_head = item->kv_head,
        .heads = item->heads,
        .first = item->first,
        .group = kg_attn_group(job->a),
        .rows = positions * kg_attn_group(job->a),
        .hdp = kg_cpu_padded(job->a->head_dim),
    };
    int64_t first = (int64_t)seq->pos + item->first;
    int64_t last = kg_attn_last_key(job->a, seq, item->first + positions - 1);
    for (int32_t i = 0; i < t.heads; i++) {
        struct scratch part = of_head(w, &t, i);
        load_queries(&part, &t, i);
    }
    for (int32_t block = kg_attn_first_block(t.a, first); block <= last / KG_KV_BLOCK;
         block++) {
        for (int32_t i = 0; i < t.heads; i++) {
            struct scratch part = of_head(w, &t, i);
            visit_keys(&part, &t, i, block);
        }
    }
    for (int32_t i = 0; i < t.heads; i++) {
        struct scratch part = of_head(w, &t, i);
        write_rows(&part, &t, job, i);
    }
}

/* ---- the work list ---- */
/* KV heads per item of this sequence. Few rows need little computation; then reading
 * whole rows of k, with all heads, is several times faster than one head at a time. */
static int32_t heads_of(const struct job *job, const struct kg_attn_seq *seq)
{
    int rows = kg_attn_min(job->positions, seq->n_rows) * kg_attn_group(job->a);
    return rows <= SHORT_TILE ? job->heads : 1;
}

/* items NULL: only counts. A tile's cost grows with its position, so late tiles come
 * first. */
static int64_t list_items(struct item *items, const struct job *job)
{
    int64_t n = 0;
    for (int32_t s = 0; s < job->a->n_seqs; s++) {
        const struct kg_attn_seq *seq = job->a->seqs + s;
        int32_t heads = heads_of(job, seq);
        int32_t parts = (job->a->n_kv_heads + heads - 1) / heads;
        int32_t tiles = (seq->n_rows + job->positions - 1) / job->positions;
        for (int32_t i = 0; items && i < tiles * parts; i++) {
            int32_t head = i % parts * heads;
            int32_t left = job->a->n_kv_heads - head;
            items[n + i] = (struct item){.seq = s,
                                         .kv_head = head,
                                         .heads = left < heads ? left : heads,
                                         .first = (tiles - 1 - i / parts) *
                                                  job->positions};
        }
        n += (int64_t)tiles * parts;
    }
    return n;
}

/* Each thread takes the next item until none is left. If a thread has no scratch, the
 * others do the work, and the call fails. */
static kg_status run_items(const struct job *job, bool threads, struct kg_err *err)
{
    kg_status status = KG_OK;
    int64_t next = 0;
#pragma omp parallel if (threads && job->n_items > 1)
    {
        struct scratch w = {0};
        struct kg_err mine;
        if (scratch_init(&w, job, &mine) == KG_OK) {
            for (int64_t i = kg_cpu_take(&next); i < job->n_items; i = kg_cpu_take(&next))
                run_tile(&w, job, job->items + i);
        } else {
            kg_cpu_report(&status, err, &mine);
        }
    }
    return status;
}

/* Tiles are no larger than the longest sequence; items have as many heads as leave two
 * items per thread. The division changes no bit. */
static void plan(struct job *job, bool threads)
{
    int32_t longest = 1;
    int64_t wanted = threads ? 2 * (int64_t)omp_get_max_threads() : 1;
    for (int32_t s = 0; s < job->a->n_seqs; s++)
        longest = job->a->seqs[s].n_rows > longest ? job->a->seqs[s].n_rows : longest;
    job->positions = kg_attn_min(kg_attn_positions(job->a), longest);
    job->heads = job->a->n_kv_heads;
    while (job->heads > 1 && (job->heads * job->a->head_dim > WIDEST_ITEM ||
                              list_items(NULL, job) < wanted))
        job->heads = (job->heads + 1) / 2;
}

kg_status kg_cpu_attention(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a,
                           struct kg_err *err)
{
    struct job job = {.o = o, .lse = lse.data, .a = a};
    bool threads = kg_cpu_use_threads(kg_attn_work(a));
    plan(&job, threads);
    job.n_items = list_items(NULL, &job);
    job.items = kg_mem_calloc((size_t)job.n_items, sizeof *job.items,
                              "attention work list", err);
    if (!job.items)
        return err->code;
    list_items(job.items, &job);
    kg_status status = run_items(&job, threads, err);
    kg_mem_free(job.items);
    return status;
}
