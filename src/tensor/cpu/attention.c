/* Attention forward: causal, grouped-query, by online softmax over key blocks of fixed
 * size.
 *
 * One definition serves decode (one query row), chunked prefill and training (tiles of
 * rows). What a (query row, head) computes is fixed: for every block of 64 keys from
 * position 0, scores by a chain of FMAs over the head dimension, one maximum,
 * exponentials, their sum by a fixed tree, and a chain of FMAs over the visible keys into
 * the accumulator. Tiles only put rows side by side; no operation mixes them, and keys
 * that a row does not see are never an operand of its accumulator.
 *
 * Keys lie in rows but are wanted in lanes, so a block is transposed in scratch once per
 * tile.
 */
#include "base/mem.h"
#include "tensor/cpu/attention_internal.h"
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/parallel_internal.h"
#include "tensor/cpu/tile_internal.h"

#include <math.h>

/* Scratch of one thread; R rows of the tile, hdp the padded head dimension. */
struct scratch {
    float *block; /* owned: everything below lies in it */
    float *q;     /* (R, hdp) queries times scale */
    float *acc;   /* (R, hdp) sum of p v */
    float *s;     /* (R, KG_KV_BLOCK) scores, then p */
    float *m;     /* (R) running maximum */
    float *l;     /* (R) running sum of p */
    float *k;     /* (KG_KV_BLOCK, hdp) */
    float *kt;    /* (hdp, KG_KV_BLOCK) */
    float *v;     /* (KG_KV_BLOCK, hdp) */
};

/* The tile at hand. */
struct tile {
    const struct kg_attn *a;
    const struct kg_attn_seq *seq;
    int32_t kv_head;
    int32_t first; /* query row within the sequence */
    int group;
    int rows;
    int hdp;
};

struct job {
    struct kg_mat o;
    float *lse; /* (N,H) or NULL */
    const struct kg_attn *a;
    struct kg_attn_item *items; /* owned by the caller of run_items */
    int64_t n_items;
    int positions; /* per tile: no more than the longest sequence has */
};

static kg_status scratch_init(struct scratch *w, int rows, int hdp, struct kg_err *err)
{
    size_t r = (size_t)kg_cpu_padded(rows);
    size_t d = (size_t)hdp;
    size_t n = 2 * r * d + r * KG_KV_BLOCK + 2 * r + 3 * d * KG_KV_BLOCK;
    w->block = kg_mem_calloc(n, sizeof *w->block, "attention scratch", err);
    if (!w->block)
        return err->code;
    w->q = w->block;
    w->acc = w->q + r * d;
    w->s = w->acc + r * d;
    w->m = w->s + r * KG_KV_BLOCK;
    w->l = w->m + r;
    w->k = w->l + r;
    w->kt = w->k + d * KG_KV_BLOCK;
    w->v = w->kt + d * KG_KV_BLOCK;
    return KG_OK;
}

/* Keys of a block that row r of the tile sees; 0 or less for none. */
static int visible(const struct tile *t, int r, int32_t block)
{
    int64_t pos = (int64_t)t->seq->pos + t->first + r / t->group;
    return kg_attn_min(KG_KV_BLOCK, pos + 1 - (int64_t)block * KG_KV_BLOCK);
}

static void load_queries(const struct scratch *w, const struct tile *t)
{
    struct kg_v16 scale = kg_v16_set1(t->a->scale);
    for (int r = 0; r < t->rows; r++) {
        float *q = w->q + (int64_t)r * t->hdp;
        int64_t head = (int64_t)t->kv_head * t->group + r % t->group;
        int64_t row = (int64_t)t->seq->row + t->first + r / t->group;
        kg_cpu_tile_load(q, t->hdp, t->a->q, row, head * t->a->head_dim, 1,
                         t->a->head_dim);
        for (int d = 0; d < t->hdp; d += KG_LANES)
            kg_v16_store(q + d, kg_v16_mul(kg_v16_load(q + d), scale));
        w->m[r] = -INFINITY;
        w->l[r] = 0.0f;
    }
    memset(w->acc, 0, (size_t)t->rows * (size_t)t->hdp * sizeof *w->acc);
}

/* Rows past n_keys keep what an earlier block left there: finite or not, nobody reads it
 * as a key. */
static void load_keys(const struct scratch *w, const struct tile *t, int32_t block,
                      int n_keys)
{
    int hd = t->a->head_dim;
    int64_t row = kg_attn_key_row(t->seq, block);
    int64_t col = (int64_t)t->kv_head * hd;
    kg_cpu_tile_load(w->k, t->hdp, t->a->k, row, col, n_keys, hd);
    kg_cpu_tile_load(w->v, t->hdp, t->a->v, row, col, n_keys, hd);
    kg_cpu_tile_transpose(w->kt, KG_KV_BLOCK, w->k, t->hdp, KG_KV_BLOCK, t->hdp);
}

static struct kg_v16 first_keys(struct kg_v16 x, int n, float fill)
{
    if (n >= KG_LANES)
        return x;
    return kg_v16_first_n(x, n > 0 ? n : 0, kg_v16_set1(fill));
}

/* Scores of row r become p = exp(s - m); m, l and the accumulator move to the new
 * maximum. */
static void soften(const struct scratch *w, int r, int n_keys, int hdp)
{
    float *s = w->s + (int64_t)r * KG_KV_BLOCK;
    struct kg_v16 x[4];
    for (int i = 0; i < 4; i++)
        x[i] = first_keys(kg_v16_load(s + i * KG_LANES), n_keys - i * KG_LANES,
                          -INFINITY);
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

/* acc += p v over the keys that each row sees: four rows together as far as all four see,
 * then alone. */
static void add_values(const struct scratch *w, const struct tile *t, int r0,
                       int32_t block)
{
    for (int r = r0; r < t->rows; r += 4) {
        int n = kg_attn_min(4, t->rows - r);
        int common = visible(t, r, block);
        struct kg_cpu_left p = {w->s + (int64_t)r * KG_KV_BLOCK, KG_KV_BLOCK, 1};
        kg_cpu_tile_madd(w->acc + (int64_t)r * t->hdp, t->hdp, p, w->v, t->hdp, n, t->hdp,
                         common);
        for (int i = 1; i < n; i++) {
            int rest = visible(t, r + i, block) - common;
            struct kg_cpu_left tail = {p.data + i * p.row + common, p.row, 1};
            float *acc = w->acc + (int64_t)(r + i) * t->hdp;
            if (rest > 0)
                kg_cpu_tile_madd(acc, t->hdp, tail, w->v + (int64_t)common * t->hdp,
                                 t->hdp, 1, t->hdp, rest);
        }
    }
}

static void visit_block(const struct scratch *w, const struct tile *t, int32_t block)
{
    int64_t hidden = (int64_t)block * KG_KV_BLOCK - t->seq->pos -
                     t->first; /* positions before it */
    int r0 = hidden > 0 ? (int)hidden * t->group : 0;
    float *s = w->s + (int64_t)r0 * KG_KV_BLOCK;
    struct kg_cpu_left q = {w->q + (int64_t)r0 * t->hdp, t->hdp, 1};
    load_keys(w, t, block, visible(t, t->rows - 1, block));
    memset(s, 0, (size_t)(t->rows - r0) * KG_KV_BLOCK * sizeof *s);
    kg_cpu_tile_madd(s, KG_KV_BLOCK, q, w->kt, KG_KV_BLOCK, t->rows - r0, KG_KV_BLOCK,
                     t->a->head_dim);
    for (int r = r0; r < t->rows; r++)
        soften(w, r, visible(t, r, block), t->hdp);
    add_values(w, t, r0, block);
}

/* o = acc / l, rounded once;  lse = m + log l */
static void write_rows(const struct scratch *w, const struct tile *t,
                       const struct job *job)
{
    for (int r = 0; r < t->rows; r++) {
        float *acc = w->acc + (int64_t)r * t->hdp;
        int64_t head = (int64_t)t->kv_head * t->group + r % t->group;
        int64_t row = (int64_t)t->seq->row + t->first + r / t->group;
        struct kg_v16 l = kg_v16_set1(w->l[r]);
        for (int d = 0; d < t->hdp; d += KG_LANES)
            kg_v16_store(acc + d, kg_v16_div(kg_v16_load(acc + d), l));
        kg_cpu_tile_store(job->o, row, head * t->a->head_dim, acc, t->hdp, 1,
                          t->a->head_dim);
        if (job->lse)
            job->lse[row * t->a->n_heads + head] = (float)((double)w->m[r] +
                                                           log((double)w->l[r]));
    }
}

static void run_tile(const struct scratch *w, const struct job *job,
                     const struct kg_attn_item *item)
{
    const struct kg_attn_seq *seq = job->a->seqs + item->seq;
    struct tile t = {
        .a = job->a,
        .seq = seq,
        .kv_head = item->kv_head,
        .first = item->first,
        .group = kg_attn_group(job->a),
        .hdp = kg_cpu_padded(job->a->head_dim),
    };
    int positions = kg_attn_min(job->positions, seq->n_rows - item->first);
    int64_t last = (int64_t)seq->pos + item->first + positions - 1;
    t.rows = positions * t.group;
    load_queries(w, &t);
    for (int32_t block = 0; block <= last / KG_KV_BLOCK; block++)
        visit_block(w, &t, block);
    write_rows(w, &t, job);
}

/* A tile's cost grows with its position, so the late tiles of a sequence come first. */
static void list_items(struct job *job)
{
    int64_t n = 0;
    for (int32_t s = 0; s < job->a->n_seqs; s++) {
        int32_t tiles = (job->a->seqs[s].n_rows + job->positions - 1) / job->positions;
        for (int32_t i = 0; i < tiles * job->a->n_kv_heads; i++) {
            int32_t tile = tiles - 1 - i / job->a->n_kv_heads;
            job->items[n++] = (struct kg_attn_item){s, i % job->a->n_kv_heads,
                                                    tile * job->positions};
        }
    }
}

/* Each thread takes the next item until none is left. A thread without scratch leaves the
 * work to the rest, and the call fails. */
static kg_status run_items(const struct job *job, struct kg_err *err)
{
    int rows = job->positions * kg_attn_group(job->a);
    int hdp = kg_cpu_padded(job->a->head_dim);
    kg_status status = KG_OK;
    int64_t next = 0;
#pragma omp parallel if (job->n_items > 1 && kg_cpu_use_threads(kg_attn_work(job->a)))
    {
        struct scratch w = {0};
        struct kg_err mine;
        if (scratch_init(&w, rows, hdp, &mine) == KG_OK) {
            for (int64_t i = kg_cpu_take(&next); i < job->n_items; i = kg_cpu_take(&next))
                run_tile(&w, job, job->items + i);
        } else {
            kg_cpu_report(&status, err, &mine);
        }
        kg_mem_free(w.block);
    }
    return status;
}

kg_status kg_cpu_attention(struct kg_mat o, float *lse, const struct kg_attn *a,
                           struct kg_err *err)
{
    struct job job = {.o = o, .lse = lse, .a = a};
    int32_t longest = 1;
    for (int32_t s = 0; s < a->n_seqs; s++)
        longest = a->seqs[s].n_rows > longest ? a->seqs[s].n_rows : longest;
    job.positions = kg_attn_min(kg_attn_positions(a), longest);
    for (int32_t s = 0; s < a->n_seqs; s++)
        job.n_items += (a->seqs[s].n_rows + job.positions - 1) / job.positions;
    job.n_items *= a->n_kv_heads;
    job.items = kg_mem_calloc((size_t)job.n_items, sizeof *job.items,
                              "attention work list", err);
    if (!job.items)
        return err->code;
    list_items(&job);
    kg_status status = run_items(&job, err);
    kg_mem_free(job.items);
    return status;
}
