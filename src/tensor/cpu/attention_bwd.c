/* Attention backward: scores are recomputed from lse, nothing of size T x T is kept.
 *
 *     p_ij = exp(scale q_i.k_j - lse_i)        D_i = sum_d dO_i O_i
 *     dv_j += p_ij dO_i                        ds_ij = p_ij (dO_i.v_j - D_i)
 *     dk_j += ds_ij scale q_i                  dq_i = scale sum_j ds_ij k_j
 *
 * and with scores s = cap tanh(scale q.k / cap) ds_ij has the factor 1 - (s / cap)^2.
 *
 * The unit is a pair of a query tile and a key block. dq_i is one chain over key blocks
 * in order; dk_j and dv_j are one chain over query tiles in order. Every way to walk the
 * pairs in these orders gives the same bits. There are two: one walk per (sequence, KV
 * head) that computes each pair once; and, where these are too few to occupy the threads,
 * one pass over query tiles for dq and one over key blocks for dk and dv, which computes
 * each pair twice.
 */
#include "base/mem.h"
#include "tensor/cpu/attention_internal.h"
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/parallel_internal.h"
#include "tensor/cpu/tile_internal.h"

struct job {
    struct kg_mat dq;
    struct kg_mat dk;
    struct kg_mat dv;
    struct kg_mat dout;
    struct kg_mat o;
    const float *lse; /* (N,H) */
    const struct kg_attn *a;
    int group;
    int positions; /* per query tile */
    int hdp;
};

/* Scratch of one thread; R rows of the query tile, hdp the padded head dimension. */
struct scratch {
    float *q;    /* (R, hdp) queries times scale */
    float *dout; /* (R, hdp) */
    float *dq;   /* (R, hdp) without the factor scale */
    float *p;    /* (R, KG_KV_BLOCK) */
    float *ds;   /* (R, KG_KV_BLOCK) */
    float *lse;  /* (R) */
    float *d;    /* (R) */
    float *k;    /* (KG_KV_BLOCK, hdp), also v before it is transposed */
    float *kt;   /* (hdp, KG_KV_BLOCK) */
    float *vt;   /* (hdp, KG_KV_BLOCK) */
    float *dk;   /* (KG_KV_BLOCK, hdp) */
    float *dv;   /* (KG_KV_BLOCK, hdp) */
};

/* One unit of parallel work. */
struct item {
    int32_t seq;
    int32_t kv_head;
    int32_t first; /* first query row (dq) or key block (dk, dv) of the unit */
};

/* The current pair. */
struct pair {
    const struct kg_attn_seq *seq;
    int32_t kv_head;
    int32_t first; /* first position of the query tile */
    int rows;      /* of the query tile */
    int32_t block; /* of keys */
    int n_keys;
};

static kg_status scratch_init(struct scratch *w, const struct job *job,
                              struct kg_err *err)
{
    size_t r = (size_t)kg_cpu_padded(job->positions * job->group);
    size_t d = (size_t)job->hdp;
    size_t n = 3 * r * d + 2 * r * KG_KV_BLOCK + 2 * r + 5 * d * KG_KV_BLOCK;
    w->q = kg_cpu_scratch(KG_CPU_SCRATCH_ATTENTION, n * sizeof *w->q, err);
    if (!w->q)
        return err->code;
    w->dout = w->q + r * d;
    w->dq = w->dout + r * d;
    w->p = w->dq + r * d;
    w->ds = w->p + r * KG_KV_BLOCK;
    w->lse = w->ds + r * KG_KV_BLOCK;
    w->d = w->lse + r;
    w->k = w->d + r;
    w->kt = w->k + d * KG_KV_BLOCK;
    w->vt = w->kt + d * KG_KV_BLOCK;
    w->dk = w->vt + d * KG_KV_BLOCK;
    w->dv = w->dk + d * KG_KV_BLOCK;
    return KG_OK;
}

static int64_t head_of(const struct job *job, const struct pair *t, int r)
{
    return (int64_t)t->kv_head * job->group + r % job->group;
}

static int64_t row_of(const struct job *job, const struct pair *t, int r)
{
    return (int64_t)t->seq->row + t->first + r / job->group;
}

static int64_t position(const struct job *job, const struct pair *t, int r)
{
    return (int64_t)t->seq->pos + t->first + r / job->group;
}

static void load_query_row(const struct scratch *w, const struct job *job,
                           const struct pair *t, int r)
{
    int hd = job->a->head_dim;
    int64_t row = row_of(job, t, r);
    int64_t head = head_of(job, t, r);
    float *q = w->q + (int64_t)r * job->hdp;
    float *dout = w->dout + (int64_t)r * job->hdp;
    kg_cpu_tile_load(q, job->hdp, job->o, row, head * hd, 1, hd);
    kg_cpu_tile_load(dout, job->hdp, job->dout, row, head * hd, 1, hd);
    struct kg_v16 d = kg_v16_zero();
    for (int c = 0; c < job->hdp; c += KG_LANES)
        d = kg_v16_fma(kg_v16_load(dout + c), kg_v16_load(q + c), d);
    w->d[r] = kg_v16_sum(d);
    w->lse[r] = job->lse[row * job->a->n_heads + head];
    struct kg_v16 scale = kg_v16_set1(job->a->scale);
    kg_cpu_tile_load(q, job->hdp, job->a->q, row, head * hd, 1, hd);
    for (int c = 0; c < job->hdp; c += KG_LANES)
        kg_v16_store(q + c, kg_v16_mul(kg_v16_load(q + c), scale));
}

static void load_queries(const struct scratch *w, const struct job *job, struct pair *t,
                         int32_t first)
{
    t->first = first;
    t->rows = kg_attn_min(job->positions, t->seq->n_rows - first) * job->group;
    for (int r = 0; r < t->rows; r++)
        load_query_row(w, job, t, r);
}

static int32_t keys_of(const struct kg_attn_seq *s) { return s->pos + s->n_rows; }

static void load_keys(const struct scratch *w, const struct job *job, struct pair *t,
                      int32_t block)
{
    int hd = job->a->head_dim;
    int64_t row = kg_attn_key_row(job->a, t->seq, block);
    t->block = block;
    t->n_keys = kg_attn_min(KG_KV_BLOCK,
                            (int64_t)keys_of(t->seq) - (int64_t)block * KG_KV_BLOCK);
    memset(w->k, 0, (size_t)KG_KV_BLOCK * (size_t)job->hdp * sizeof *w->k);
    kg_cpu_tile_load(w->k, job->hdp, job->a->v, row, (int64_t)t->kv_head * hd, t->n_keys,
                     hd);
    kg_cpu_tile_transpose(w->vt, KG_KV_BLOCK, w->k, job->hdp, KG_KV_BLOCK, job->hdp);
    kg_cpu_tile_load(w->k, job->hdp, job->a->k, row, (int64_t)t->kv_head * hd, t->n_keys,
                     hd);
    kg_cpu_tile_transpose(w->kt, KG_KV_BLOCK, w->k, job->hdp, KG_KV_BLOCK, job->hdp);
}

/* End of the keys of the block that row r sees; 0 or less: it sees none. */
static int visible(const struct job *job, const struct pair *t, int r)
{
    return kg_attn_min(t->n_keys,
                       position(job, t, r) + 1 - (int64_t)t->block * KG_KV_BLOCK);
}

/* Number of keys of the block before the window of row r. */
static int passed(const struct job *job, const struct pair *t, int r)
{
    int64_t first = kg_attn_first_key(job->a, position(job, t, r));
    int64_t n = first - (int64_t)t->block * KG_KV_BLOCK;
    return n > 0 ? kg_attn_min(KG_KV_BLOCK, n) : 0;
}

/* x at keys [from, n) of sixteen, which the row sees; 0 at others. */
static struct kg_v16 only_seen(struct kg_v16 x, int from, int n)
{
    x = kg_v16_first_n(x, n, kg_v16_zero());
    return from > 0 ? kg_v16_first_n(kg_v16_zero(), kg_attn_min(from, KG_LANES), x) : x;
}

/* Softcaps scores; *slope <- its derivative. */
static void cap_scores(struct kg_v16 *x, struct kg_v16 *slope, float cap)
{
    struct kg_v16 c = kg_v16_set1(cap);
    struct kg_v16 t = kg_v16_tanh(kg_v16_div(*x, c));
    *x = kg_v16_mul(c, t);
    *slope = kg_v16_fnma(t, t, kg_v16_set1(1.0f));
}

/* Replaces s and dO.v of row r by p and ds, which are 0 at keys that it does not see. */
static void soften(const struct scratch *w, int r, int from, int n_keys, float cap)
{
    struct kg_v16 lse = kg_v16_set1(w->lse[r]);
    struct kg_v16 d = kg_v16_set1(w->d[r]);
    struct kg_v16 slope = kg_v16_set1(1.0f);
    for (int j = 0; j < KG_KV_BLOCK; j += KG_LANES) {
        float *p = w->p + (int64_t)r * KG_KV_BLOCK + j;
        float *ds = w->ds + (int64_t)r * KG_KV_BLOCK + j;
        int n = n_keys - j < 0 ? 0 : kg_attn_min(KG_LANES, n_keys - j);
        struct kg_v16 s = kg_v16_load(p);
        if (cap > 0)
            cap_scores(&s, &slope, cap);
        struct kg_v16 e = kg_v16_exp(kg_v16_sub(s, lse));
        struct kg_v16 g = kg_v16_mul(e, kg_v16_sub(kg_v16_load(ds), d));
        if (cap > 0)
            g = kg_v16_mul(g, slope);
        kg_v16_store(p, only_seen(e, from - j, n));
        kg_v16_store(ds, only_seen(g, from - j, n));
    }
}

/* p and ds of the pair, from its loaded tile and block. On the diagonal, this function
 * and the products below skip groups of four rows or keys that are all 0. */
static void recompute(const struct scratch *w, const struct job *job,
                      const struct pair *t)
{
    size_t bytes = (size_t)t->rows * KG_KV_BLOCK * sizeof *w->p;
    memset(w->p, 0, bytes);
    memset(w->ds, 0, bytes);
    for (int r = 0; r < t->rows; r += 4) {
        int n = kg_attn_min(4, t->rows - r);
        int seen = visible(job, t, r + n - 1);
        int64_t at = (int64_t)r * KG_KV_BLOCK;
        struct kg_cpu_left q = {w->q + (int64_t)r * job->hdp, job->hdp, 1};
        struct kg_cpu_left dout = {w->dout + (int64_t)r * job->hdp, job->hdp, 1};
        if (seen <= 0)
            continue;
        kg_cpu_tile_madd(w->p + at, KG_KV_BLOCK, q, w->kt, KG_KV_BLOCK, n,
                         kg_cpu_padded(seen), job->a->head_dim);
        kg_cpu_tile_madd(w->ds + at, KG_KV_BLOCK, dout, w->vt, KG_KV_BLOCK, n,
                         kg_cpu_padded(seen), job->a->head_dim);
    }
    for (int r = 0; r < t->rows; r++)
        soften(w, r, passed(job, t, r), visible(job, t, r), job->a->softcap);
}

static void add_dq(const struct scratch *w, const struct job *job, const struct pair *t)
{
    for (int r = 0; r < t->rows; r += 4) {
        int n = kg_attn_min(4, t->rows - r);
        int seen = visible(job, t, r + n - 1);
        struct kg_cpu_left ds = {w->ds + (int64_t)r * KG_KV_BLOCK, KG_KV_BLOCK, 1};
        if (seen > 0)
            kg_cpu_tile_madd(w->dq + (int64_t)r * job->hdp, job->hdp, ds, w->k, job->hdp,
                             n, job->hdp, seen);
    }
}

/* First row of the tile that sees key j of the block; may be t->rows. */
static int first_row(const struct job *job, const struct pair *t, int j)
{
    int64_t before = (int64_t)t->block * KG_KV_BLOCK + j - position(job, t, 0);
    return before > 0 ? kg_attn_min(before * job->group, t->rows) : 0;
}

static void add_dk_dv(const struct scratch *w, const struct job *job,
                      const struct pair *t)
{
    for (int j = 0; j < t->n_keys; j += 4) {
        int n = kg_attn_min(4, t->n_keys - j);
        int r = first_row(job, t, j);
        int64_t to = (int64_t)j * job->hdp;
        int64_t from = (int64_t)r * job->hdp;
        struct kg_cpu_left ds = {w->ds + (int64_t)r * KG_KV_BLOCK + j, 1, KG_KV_BLOCK};
        struct kg_cpu_left p = {w->p + (int64_t)r * KG_KV_BLOCK + j, 1, KG_KV_BLOCK};
        kg_cpu_tile_madd(w->dk + to, job->hdp, ds, w->q + from, job->hdp, n, job->hdp,
                         t->rows - r);
        kg_cpu_tile_madd(w->dv + to, job->hdp, p, w->dout + from, job->hdp, n, job->hdp,
                         t->rows - r);
    }
}

static void clear_dq(const struct scratch *w, const struct job *job, const struct pair *t)
{
    memset(w->dq, 0, (size_t)t->rows * (size_t)job->hdp * sizeof *w->dq);
}

static void write_dq(const struct scratch *w, const struct job *job, const struct pair *t)
{
    int hd = job->a->head_dim;
    struct kg_v16 scale = kg_v16_set1(job->a->scale);
    for (int r = 0; r < t->rows; r++) {
        float *dq = w->dq + (int64_t)r * job->hdp;
        for (int c = 0; c < job->hdp; c += KG_LANES)
            kg_v16_store(dq + c, kg_v16_mul(kg_v16_load(dq + c), scale));
        kg_cpu_tile_store(job->dq, row_of(job, t, r), head_of(job, t, r) * hd, dq,
                          job->hdp, 1, hd);
    }
}

/* Loads the block's dk and dv from the results; they are 0 at the first visit. */
static void read_dk_dv(const struct scratch *w, const struct job *job,
                       const struct pair *t, bool first_visit)
{
    int hd = job->a->head_dim;
    int64_t row = kg_attn_key_row(job->a, t->seq, t->block);
    int64_t col = (int64_t)t->kv_head * hd;
    if (first_visit) {
        memset(w->dk, 0, (size_t)KG_KV_BLOCK * (size_t)job->hdp * sizeof *w->dk);
        memset(w->dv, 0, (size_t)KG_KV_BLOCK * (size_t)job->hdp * sizeof *w->dv);
        return;
    }
    kg_cpu_tile_load(w->dk, job->hdp, job->dk, row, col, t->n_keys, hd);
    kg_cpu_tile_load(w->dv, job->hdp, job->dv, row, col, t->n_keys, hd);
}

static void write_dk_dv(const struct scratch *w, const struct job *job,
                        const struct pair *t)
{
    int hd = job->a->head_dim;
    int64_t row = kg_attn_key_row(job->a, t->seq, t->block);
    int64_t col = (int64_t)t->kv_head * hd;
    kg_cpu_tile_store(job->dk, row, col, w->dk, job->hdp, t->n_keys, hd);
    kg_cpu_tile_store(job->dv, row, col, w->dv, job->hdp, t->n_keys, hd);
}

/* First and last key block that the query tile at `first` sees. */
static int32_t first_block(const struct job *job, const struct pair *t, int32_t first)
{
    return kg_attn_first_block(job->a, (int64_t)t->seq->pos + first);
}
static int32_t last_block(const struct job *job, const struct pair *t, int32_t first)
{
    return (t->seq->pos + kg_attn_min((int64_t)first + job->positions, t->seq->n_rows) -
            1) /
           KG_KV_BLOCK;
}

/* First query tile that sees the block. */
static int32_t first_tile(const struct job *job, const struct pair *t, int32_t block)
{
    int32_t first = block * KG_KV_BLOCK - t->seq->pos;
    return first > 0 ? first / job->positions * job->positions : 0;
}

/* All pairs of one sequence and KV head, each once. */
static void walk_all(const struct scratch *w, const struct job *job,
                     const struct item *item)
{
    struct pair t = {.seq = job->a->seqs + item->seq, .kv_head = item->kv_head};
    for (int32_t first = 0; first < t.seq->n_rows; first += job->positions) {
        load_queries(w, job, &t, first);
        clear_dq(w, job, &t);
        for (int32_t block = first_block(job, &t, first);
             block <= last_block(job, &t, first); block++) {
            load_keys(w, job, &t, block);
            recompute(w, job, &t);
            add_dq(w, job, &t);
            read_dk_dv(w, job, &t, first == first_tile(job, &t, block));
            add_dk_dv(w, job, &t);
            write_dk_dv(w, job, &t);
        }
        write_dq(w, job, &t);
    }
}

/* dq of one query tile. */
static void walk_query_tile(const struct scratch *w, const struct job *job,
                            const struct item *item)
{
    struct pair t = {.seq = job->a->seqs + item->seq, .kv_head = item->kv_head};
    load_queries(w, job, &t, item->first);
    clear_dq(w, job, &t);
    for (int32_t block = first_block(job, &t, item->first);
         block <= last_block(job, &t, item->first); block++) {
        load_keys(w, job, &t, block);
        recompute(w, job, &t);
        add_dq(w, job, &t);
    }
    write_dq(w, job, &t);
}

/* dk and dv of one key block. */
static void walk_key_block(const struct scratch *w, const struct job *job,
                           const struct item *item)
{
    struct pair t = {.seq = job->a->seqs + item->seq, .kv_head = item->kv_head};
    load_keys(w, job, &t, item->first);
    read_dk_dv(w, job, &t, true);
    for (int32_t first = first_tile(job, &t, item->first); first < t.seq->n_rows;
         first += job->positions) {
        if (first_block(job, &t, first) > item->first)
            break; /* this and later windows begin after the block */
        load_queries(w, job, &t, first);
        recompute(w, job, &t);
        add_dk_dv(w, job, &t);
    }
    write_dk_dv(w, job, &t);
}

/* ---- work lists ---- */
typedef void walk_fn(const struct scratch *w, const struct job *job,
                     const struct item *item);

enum unit { WHOLE, QUERY_TILE, KEY_BLOCK };

static int32_t count_units(const struct job *job, const struct kg_attn_seq *s,
                           enum unit unit)
{
    if (unit == WHOLE || s->n_rows == 0)
        return s->n_rows > 0;
    if (unit == QUERY_TILE)
        return (s->n_rows + job->positions - 1) / job->positions;
    return (keys_of(s) + KG_KV_BLOCK - 1) / KG_KV_BLOCK;
}

/* Units of every sequence, for each KV head. items NULL: only counts. */
static int64_t list_items(struct item *items, const struct job *job, enum unit unit)
{
    const struct kg_attn *a = job->a;
    int32_t step = unit == QUERY_TILE ? job->positions : 1;
    int64_t n = 0;
    for (int32_t s = 0; s < a->n_seqs; s++) {
        int32_t count = count_units(job, &a->seqs[s], unit);
        for (int32_t i = 0; items && i < count * a->n_kv_heads; i++)
            items[n + i] = (struct item){s, i % a->n_kv_heads, i / a->n_kv_heads * step};
        n += (int64_t)count * a->n_kv_heads;
    }
    return n;
}

static kg_status run_items(const struct job *job, const struct item *items, int64_t n,
                           walk_fn *walk, struct kg_err *err)
{
    kg_status status = KG_OK;
    int64_t next = 0;
#pragma omp parallel if (n > 1 && kg_cpu_use_threads(kg_attn_work(job->a)))
    {
        struct scratch w = {0};
        struct kg_err mine;
        if (scratch_init(&w, job, &mine) == KG_OK) {
            for (int64_t i = kg_cpu_take(&next); i < n; i = kg_cpu_take(&next))
                walk(&w, job, items + i);
        } else {
            kg_cpu_report(&status, err, &mine);
        }
    }
    return status;
}

static kg_status run_walk(const struct job *job, enum unit unit, walk_fn *walk,
                          struct kg_err *err)
{
    int64_t n = list_items(NULL, job, unit);
    struct item *items = kg_mem_calloc((size_t)n, sizeof *items, "attention work list",
                                       err);
    if (!items)
        return err->code;
    list_items(items, job, unit);
    kg_status status = run_items(job, items, n, walk, err);
    kg_mem_free(items);
    return status;
}

static void clear_rows(struct kg_mat m)
{
    for (int64_t r = 0; r < m.rows; r++)
        memset(kg_cpu_f32(m, r), 0, (size_t)m.cols * sizeof(float));
}

/* Zeros the gradients of rows in no sequence, and of keys before all windows of their
 * sequence. */
static void clear_strangers(const struct job *job)
{
    int64_t held = 0, keys = 0;
    bool passed_by = false;
    for (int32_t s = 0; s < job->a->n_seqs; s++) {
        const struct kg_attn_seq *seq = &job->a->seqs[s];
        held += seq->n_rows;
        keys += keys_of(seq);
        passed_by |= kg_attn_first_block(job->a, seq->pos) > 0;
    }
    if (held < job->dq.rows)
        clear_rows(job->dq);
    if (keys < job->dk.rows || passed_by) {
        clear_rows(job->dk);
        clear_rows(job->dv);
    }
}

kg_status kg_cpu_attention_bwd(struct kg_mat dq, struct kg_mat dk, struct kg_mat dv,
                               struct kg_mat dout, struct kg_mat o, struct kg_vec lse,
                               const struct kg_attn *a, struct kg_err *err)
{
    struct job job = {
        .dq = dq, .dk = dk, .dv = dv, .dout = dout, .o = o, .lse = lse.data, .a = a};
    job.group = kg_attn_group(a);
    job.positions = kg_attn_positions(a);
    job.hdp = kg_cpu_padded(a->head_dim);
    clear_strangers(&job);
    bool enough = list_items(NULL, &job, WHOLE) >= 2 * (int64_t)omp_get_max_threads();
    if (enough || omp_in_parallel() || omp_get_max_threads() == 1)
        return run_walk(&job, WHOLE, walk_all, err);
    KG_TRY(run_walk(&job, QUERY_TILE, walk_query_tile, err));
    return run_walk(&job, KEY_BLOCK, walk_key_block, err);
}
