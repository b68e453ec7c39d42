/* Prepares a pack for the backend: the caller's lists of sequences become flat arrays,
 * which one copy transfers.
 *
 * The caller describes its sequences. Only this file derives the position, key row and
 * block of each token. Operations on memory that the host cannot read cannot check ids,
 * so all ids are checked here, before the copy.
 */
#include "model/acts_internal.h"

enum {
    SEQ_INTS = sizeof(struct kg_attn_seq) / sizeof(int32_t),
    DRAW_INTS = sizeof(struct kg_draw) / sizeof(int32_t)
};

/* Offsets of the flat arrays, in int32. Block tables are last, so that offsets depend
 * only on the numbers of tokens, sequences, rows and keys. */
struct layout {
    int64_t pos, kv_rows[KG_KV_KINDS], seqs[KG_KV_KINDS], rows, inv_temp, how, experts,
        from, keys, key_ends, places, blocks, end; /* tokens at 0 */
};

/* Number of entries of a sequence's block table. */
static int64_t n_blocks(const struct kg_pack_seq *s)
{
    return kg_kv_entries((int64_t)s->pos + s->n);
}

/* Whether layers of this kind have arrays. Without a cache all layers use those of
 * KG_KV_ALL. */
static bool has(const struct kg_kv *kv, int kind)
{
    return kv ? kv->n_blocks.of[kind] > 0 : kind == KG_KV_ALL;
}

static int64_t n_tables(const struct kg_kv *kv)
{
    return kv ? has(kv, KG_KV_ALL) + has(kv, KG_KV_WINDOW) : 0;
}

static struct layout layout_of(const struct kg_acts *a, const struct kg_forward *f)
{
    const struct kg_pack *p = f->pack;
    struct layout l = {.pos = p->n, .rows = 2 * p->n};

    for (int kind = 0; kind < KG_KV_KINDS; kind++) {
        l.kv_rows[kind] = l.rows;
        l.seqs[kind] = l.rows + p->n;
        if (has(f->kv, kind))
            l.rows = l.seqs[kind] + SEQ_INTS * (int64_t)p->n_seqs;
    }
    l.inv_temp = l.rows + f->n_rows;
    l.how = l.inv_temp + (f->inv_temp ? f->n_rows : 0);
    l.how += l.how % 2; /* struct kg_draw has a double */
    l.experts = l.how + (f->how ? DRAW_INTS * f->n_rows : 0);
    l.from = l.experts + (f->experts ? a->routed * a->k * p->n : 0);
    l.keys = l.from + (f->from ? p->n : 0);
    l.key_ends = l.keys + p->n_keys;
    l.places = l.key_ends + (f->keep && p->n_keys > 0 ? p->n : 0);
    l.blocks = l.end = l.places + (f->keep ? p->n_keys : 0);
    for (int32_t i = 0; i < p->n_seqs; i++)
        l.end += n_blocks(&p->seqs[i]) * n_tables(f->kv);
    return l;
}

int64_t kg_stage_ints(const struct kg_model_config *c, int64_t max_tokens)
{
    const bool both = kg_kv_used(c, KG_KV_ALL) && kg_kv_used(c, KG_KV_WINDOW);

    return (4 + SEQ_INTS + (both ? 1 + SEQ_INTS : 0)) * max_tokens;
}

/* ---- checks ---- */
/* Whether s has a block table for each kind of the cache; without a cache, none. */
static bool has_tables(const struct kg_pack_seq *s, const struct kg_kv *kv)
{
    bool right = true;

    for (int kind = 0; kind < KG_KV_KINDS; kind++)
        right &= kv ? !has(kv, kind) || s->blocks.of[kind] : !s->blocks.of[kind];
    return right;
}

static kg_status check_seq(const struct kg_pack *p, int32_t i, const struct kg_kv *kv,
                           struct kg_err *err)
{
    const struct kg_pack_seq *s = &p->seqs[i];

    if (s->n < 1 || s->pos < 0)
        return kg_fail(
            err, KG_ESHAPE,
            "sequence %d of the pack: expected at least 1 token and a first position "
            "of at least 0, found %d tokens and position %d",
            (int)i, (int)s->n, (int)s->pos);
    if (!has_tables(s, kv) || (!kv && s->pos != 0 && p->n_keys == 0))
        return kg_fail(err, KG_EINVAL, "sequence %d of the pack: expected %s", (int)i,
                       kv ? "cache blocks" : "a whole sequence without cache");
    for (int kind = 0; kv && kind < KG_KV_KINDS; kind++)
        if (has(kv, kind))
            KG_TRY(kg_ids_check("pack", "blocks", s->blocks.of[kind], n_blocks(s),
                                kv->n_blocks.of[kind], err));
    return KG_OK;
}

static kg_status check_adapter(const struct kg_model *m, const struct kg_forward *f,
                               int32_t i, struct kg_err *err)
{
    const int32_t adapter = f->pack->seqs[i].adapter;

    if (adapter < 0 || adapter > m->n_others)
        return kg_fail(err, KG_EINVAL,
                       "sequence %d of the pack: expected adapter 0 to %d, found %d",
                       (int)i, (int)m->n_others, (int)adapter);
    return adapter == 0 || !f->keep
               ? KG_OK
               : kg_fail(err, KG_EINVAL,
                         "sequence %d of the pack: expected the model's own adapters "
                         "before a backward, found others",
                         (int)i);
}

/* If the first expert of a token in a layer is preset, all K must be valid. */
static kg_status check_experts(const struct kg_acts *a, const struct kg_model *m,
                               const struct kg_forward *f, struct kg_err *err)
{
    const int64_t all = f->experts ? f->pack->n * a->routed * a->k : 0;

    for (int64_t i = 0; i < all; i++)
        if (f->experts[i / a->k * a->k] != KG_NO_EXPERT &&
            f->experts[i] >= m->config.experts.n)
            return kg_fail(err, KG_EINVAL,
                           "pack: token %lld has expert %d, expected one of %d",
                           (long long)(i / a->k / a->routed), (int)f->experts[i],
                           (int)m->config.experts.n);
    return KG_OK;
}

/* `keys` must name a row for every position of every sequence. */
static kg_status check_keys(const struct kg_acts *a, const struct kg_forward *f,
                            struct kg_err *err)
{
    const struct kg_pack *p = f->pack;
    int64_t n = 0;

    if (p->n_keys == 0)
        return KG_OK;
    for (int32_t i = 0; i < p->n_seqs; i++)
        n += (int64_t)p->seqs[i].pos + p->seqs[i].n;
    if (f->kv || n != p->n_keys || n > a->max_keys)
        return kg_fail(err, KG_ESHAPE,
                       "pack: expected %lld keys (of at most %lld) and no cache, found "
                       "%lld%s",
                       (long long)n, (long long)a->max_keys, (long long)p->n_keys,
                       f->kv ? " and a cache" : "");
    return kg_ids_check("pack", "keys", p->keys, n, p->n, err);
}

static kg_status check(const struct kg_acts *a, const struct kg_model *m,
                       const struct kg_forward *f, struct kg_err *err)
{
    const struct kg_pack *p = f->pack;
    int64_t n = 0;

    if (p->n < 1 || p->n > a->max_tokens)
        return kg_fail(err, KG_ESHAPE, "pack: expected 1 to %lld tokens, found %lld",
                       (long long)a->max_tokens, (long long)p->n);
    for (int32_t i = 0; i < p->n_seqs; i++) {
        KG_TRY(check_seq(p, i, f->kv, err));
        KG_TRY(check_adapter(m, f, i, err));
        n += p->seqs[i].n;
    }
    if (n != p->n)
        return kg_fail(err, KG_ESHAPE, "pack: its sequences cover %lld of %lld tokens",
                       (long long)n, (long long)p->n);
    KG_TRY(check_experts(a, m, f, err));
    KG_TRY(check_keys(a, f, err));
    KG_TRY(kg_ids_check("pack", "rows", f->rows, f->n_rows, p->n, err));
    for (int64_t i = 0; f->from && i < p->n; i++)
        if (f->from[i] < -1 || f->from[i] >= f->n_drawn)
            return kg_fail(err, KG_EINVAL,
                           "pack: token %lld: expected one of the previous step's %lld "
                           "rows, found row %d",
                           (long long)i, (long long)f->n_drawn, (int)f->from[i]);
    return kg_ids_check("pack", "tokens", p->tokens, p->n, m->config.vocab, err);
}

/* ---- the flat arrays ---- */
/* A sequence for layers of one kind.   to: its row and keys are set */
static void flatten_seq(int32_t *ints, const struct layout *l, int kind,
                        struct kg_attn_seq to, const struct kg_pack_seq *s)
{
    const int32_t *blocks = s->blocks.of[kind];

    for (int32_t i = 0; i < s->n; i++) {
        int32_t p = s->pos + i, row = to.row + i;

        ints[l->pos + row] = p;
        ints[l->kv_rows[kind] + row] = blocks ? blocks[p / KG_KV_BLOCK] * KG_KV_BLOCK +
                                                    p % KG_KV_BLOCK
                                              : row;
    }
    if (blocks)
        memcpy(ints + l->blocks + to.keys, blocks, (size_t)n_blocks(s) * sizeof *ints);
    to.n_rows = s->n;
    to.pos = s->pos;
    memcpy(ints + l->seqs[kind], &to, sizeof to);
}

/* All sequences for layers of one kind.   block: offset of their first block table
 * returns the offset after their last */
static int64_t flatten_kind(int32_t *ints, const struct layout *l, int kind,
                            const struct kg_forward *f, int64_t block)
{
    const struct kg_pack *p = f->pack;
    struct layout at = *l;
    int32_t row = 0, key = 0;

    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct kg_pack_seq *s = &p->seqs[i];

        flatten_seq(
            ints, &at, kind,
            (struct kg_attn_seq){.row = row, .keys = f->kv ? (int32_t)block : key}, s);
        at.seqs[kind] += SEQ_INTS;
        block += n_blocks(s);
        row += s->n;
        key += s->pos + s->n;
    }
    return block;
}

/* Lists the places of each row of the pack in `keys`: a counting sort. During its last
 * loop ends[n] is where the next place of row n goes. */
static void flatten_places(int32_t *ends, int32_t *places, const struct kg_pack *p)
{
    int32_t begin = 0;

    memset(ends, 0, (size_t)p->n * sizeof *ends);
    for (int64_t i = 0; i < p->n_keys; i++)
        ends[p->keys[i]]++;
    for (int64_t n = 0; n < p->n; n++) {
        begin += ends[n];
        ends[n] = begin - ends[n];
    }
    for (int64_t i = 0; i < p->n_keys; i++)
        places[ends[p->keys[i]]++] = (int32_t)i;
}

static void flatten_draws(int32_t *ints, const struct layout *l,
                          const struct kg_forward *f)
{
    if (f->from)
        memcpy(ints + l->from, f->from, (size_t)f->pack->n * sizeof *f->from);
    if (f->inv_temp)
        memcpy(ints + l->inv_temp, f->inv_temp, (size_t)f->n_rows * sizeof *f->inv_temp);
    if (f->how)
        memcpy(ints + l->how, f->how, (size_t)f->n_rows * sizeof *f->how);
}

/* (N,Lx,K) as (Lx,N,K). */
static void flatten_experts(int32_t *ints, const struct kg_acts *a,
                            const struct kg_forward *f)
{
    const int64_t n = f->pack->n, k = a->k;

    for (int64_t i = 0; f->experts && i < n * a->routed; i++)
        for (int64_t j = 0; j < k; j++) {
            const uint16_t e = f->experts[i * k + j];

            ints[(i % a->routed * n + i / a->routed) * k + j] = e == KG_NO_EXPERT ? -1
                                                                                  : e;
        }
}

static void flatten(int32_t *ints, const struct layout *l, const struct kg_forward *f)
{
    const struct kg_pack *p = f->pack;
    int64_t block = 0;

    memcpy(ints, p->tokens, (size_t)p->n * sizeof *ints);
    if (f->n_rows > 0)
        memcpy(ints + l->rows, f->rows, (size_t)f->n_rows * sizeof *ints);
    if (p->n_keys > 0)
        memcpy(ints + l->keys, p->keys, (size_t)p->n_keys * sizeof *ints);
    if (l->places > l->key_ends)
        flatten_places(ints + l->key_ends, ints + l->places, p);
    for (int kind = 0; kind < KG_KV_KINDS; kind++)
        if (has(f->kv, kind))
            block = flatten_kind(ints, l, kind, f, block);
    flatten_draws(ints, l, f);
}

/* Maximum number of keys of a sequence, rounded up, so that steps of decoding seldom
 * differ in it. */
static int32_t most_keys(const struct kg_pack *p)
{
    int64_t keys = 1024;

    for (int32_t i = 0; i < p->n_seqs; i++)
        while (keys < (int64_t)p->seqs[i].pos + p->seqs[i].n)
            keys *= 2;
    return keys < INT32_MAX ? (int32_t)keys : INT32_MAX;
}

/* ---- adapters ---- */
int32_t kg_stage_rank(const struct kg_model *m)
{
    int32_t most = m->most_rank;

    for (int32_t i = 0; i < m->n_others; i++)
        most = m->others[i]->most_rank > most ? m->others[i]->most_rank : most;
    return most;
}

/* Consecutive sequences with equal adapters are one run.   returns the number of runs */
static int32_t list_runs(struct kg_mix_run *runs, const struct kg_model *m,
                         const struct kg_pack *p)
{
    int32_t n = 0;

    for (int32_t i = 0; i < p->n_seqs; i++) {
        const int32_t a = p->seqs[i].adapter;
        const struct kg_model *of = a == 0 ? m : m->others[a - 1];

        if (n == 0 || runs[n - 1].model != of) {
            const int64_t first = n == 0 ? 0 : runs[n - 1].first + runs[n - 1].n;
            runs[n++] = (struct kg_mix_run){of, first, 0};
        }
        runs[n - 1].n += p->seqs[i].n;
    }
    return n;
}

/* ---- staging ---- */
/* Copies the contents of s to `new`. */
static kg_status keep(const struct kg_stage *new, const struct kg_stage *s,
                      const struct kg_backend *be, struct kg_err *err)
{
    const size_t bytes = (size_t)s->room * sizeof *s->host;

    KG_TRY(kg_buf_settle(be, err));
    for (int i = 0; i < kg_stage_banks(be); i++)
        memcpy(kg_stage_host(new, i), kg_stage_host(s, i), bytes);
    return kg_buf_copy(be, new->there, s->there, bytes, err);
}

kg_status kg_stage_room(struct kg_stage *s, const struct kg_backend *be, int64_t ints,
                        struct kg_err *err)
{
    const uint64_t banks = (uint64_t)kg_stage_banks(be);
    struct kg_stage new = {.bank = s->bank};
    kg_status status = KG_OK;

    if (ints <= s->room)
        return KG_OK;
    new.room = ints > 2 * s->room ? ints : 2 * s->room;
    new.host = kg_buf_pin(be, banks * (uint64_t) new.room * sizeof *new.host, "pack",
                          err);
    if (new.host)
        new.there = kg_buf_alloc(be, (uint64_t) new.room * sizeof *new.there, "pack",
                                 err);
    status = new.there ? KG_OK : err->code;
    if (status == KG_OK && s->room > 0)
        status = keep(&new, s, be, err);
    kg_stage_release(status == KG_OK ? s : &new, be);
    if (status == KG_OK)
        *s = new;
    return status;
}

/* Waits for the last copy from a bank, after which the bank may be written. */
static kg_status await(struct kg_stage *s, const struct kg_backend *be,
                       struct kg_err *err)
{
    const uint64_t mark = s->mark;

    s->mark = 0;
    return mark > 0 ? kg_buf_wait(be, mark, err) : KG_OK;
}

void kg_stage_release(struct kg_stage *s, const struct kg_backend *be)
{
    struct kg_err ignored;

    (void)await(s, be, &ignored); /* a failed device copies no more */
    kg_buf_unpin(be, s->host);
    kg_buf_free(be, s->there);
    s->host = s->there = NULL;
    s->room = 0;
}

/* Starts the copy of the flat arrays to the backend. Its bank must not change until a
 * wait for the copy: by the caller, if f->later, otherwise by the next pack. */
static kg_status put(struct kg_acts *a, const struct kg_backend *be,
                     const struct layout *l, const struct kg_forward *f,
                     struct kg_err *err)
{
    struct kg_stage *s = &a->stage;
    const uint64_t bytes = (uint64_t)l->end * sizeof *s->there;
    int32_t *host = kg_stage_host(s, s->bank);

    KG_TRY(await(s, be, err));
    flatten(host, l, f);
    flatten_experts(host + l->experts, a, f);
    KG_TRY(kg_buf_put_later(be, s->there, host, bytes, err));
    if (!f->later)
        return kg_buf_mark(be, &s->mark, err);
    s->bank = (s->bank + 1) % kg_stage_banks(be);
    return KG_OK;
}

kg_status kg_stage_pack(struct kg_acts *a, const struct kg_model *m,
                        const struct kg_forward *f, struct kg_err *err)
{
    const struct kg_pack *p = f->pack;
    struct kg_stage *s = &a->stage;

    KG_TRY(check(a, m, f, err));
    struct layout l = layout_of(a, f);
    KG_TRY(kg_stage_room(s, m->backend, l.end, err));
    KG_TRY(put(a, m->backend, &l, f, err));
    a->load_sent = false;
    a->pack = (struct kg_staged){
        .n = p->n,
        .tokens = kg_ivec(s->there, p->n),
        .pos = kg_ivec(s->there + l.pos, p->n),
        .rows = kg_ivec(s->there + l.rows, f->n_rows),
        .experts = kg_ivec(f->experts ? s->there + l.experts : NULL, l.from - l.experts),
        .blocks = kg_ivec(f->kv ? s->there + l.blocks : NULL, l.end - l.blocks),
        .keys = kg_ivec(s->there + l.keys, p->n_keys),
        .key_ends = kg_ivec(s->there + l.key_ends, l.places - l.key_ends),
        .places = kg_ivec(s->there + l.places, l.blocks - l.places),
        .n_seqs = p->n_seqs,
        .most_keys = most_keys(p),
        .how = f->how ? (const struct kg_draw *)(const void *)(s->there + l.how) : NULL,
        .inv_temp = f->inv_temp ? (const float *)(const void *)(s->there + l.inv_temp)
                                : NULL,
        .from = kg_ivec(f->from ? s->there + l.from : NULL, f->from ? p->n : 0),
        .n_runs = list_runs(a->runs, m, p),
    };
    for (int kind = 0; kind < KG_KV_KINDS; kind++) {
        a->pack.kv_rows[kind] = kg_ivec(s->there + l.kv_rows[kind], p->n);
        a->pack.seqs[kind] = (const struct kg_attn_seq *)(const void *)(s->there +
                                                                        l.seqs[kind]);
    }
    return KG_OK;
}
