/* Memory of one packed micro-batch: what a forward writes and a backward reads.
 *
 * This file decides what is kept; forward.c and backward.c compute it.
 *
 * The one idea: the layout is one function that takes buffers from a bump pointer.
 * Without memory it counts bytes, with memory it places buffers, so kg_acts_bytes (the
 * memory plan) cannot differ from what is allocated. The product silu(gate) up is not
 * kept: it is as wide as gate, and one pass over gate and up computes it again.
 */
#include "model/acts_internal.h"
#include "model/model_internal.h"

struct bump {
    unsigned char *base; /* NULL: counting */
    uint64_t used;       /* bytes */
};

struct sizes {
    int64_t n, d, f, q, kd, h, hk;
    int64_t rank;            /* of adapters; 0: none */
    int64_t places;          /* r, if experts have adapters; else 0 */
    int64_t r, e, k, fe, fs; /* of experts; 0: there are none */
    bool dense;              /* some layer has no experts */
    bool joins;              /* kg_joins */
    const struct kg_model_config *c;
    enum kg_dtype ct;
    uint32_t features;
};

static struct sizes sizes_of(const struct kg_model *m, int64_t max_tokens)
{
    const struct kg_model_config *c = &m->config;
    const struct kg_experts_config *x = &c->experts;
    bool dense = false;
    for (int32_t l = 0; l < c->layers; l++)
        dense |= kg_model_config_layer(c, l) & KG_DENSE;
    return (struct sizes){
        .c = c,
        .dense = dense,
        .joins = kg_joins(m),
        .r = max_tokens * x->k,
        .e = x->n,
        .k = x->k,
        .fe = x->ffn,
        .fs = x->shared_ffn,
        .n = max_tokens,
        .d = c->hidden,
        .f = c->ffn,
        .q = (int64_t)c->heads * c->head_dim,
        .kd = (int64_t)c->kv_heads * c->head_dim,
        .h = c->heads,
        .hk = c->kv_heads,
        .rank = kg_stage_rank(m),
        .places = kg_lora_on_experts(m) ? max_tokens * x->k : 0,
        .ct = m->ct,
        .features = kg_model_config_features(c),
    };
}

static void *take(struct bump *b, uint64_t bytes)
{
    void *p = b->base ? b->base + b->used : NULL;
    b->used += (bytes + 63) / 64 * 64;
    return p;
}

static struct kg_mat take_mat(struct bump *b, enum kg_dtype dtype, int64_t rows,
                              int64_t cols)
{
    const uint64_t bytes = (uint64_t)rows * (uint64_t)cols *
                           kg_dtype_traits(dtype)->bytes;
    return kg_mat(take(b, bytes), dtype, rows, cols);
}

/* Places n matrices: if `joins`, as adjacent columns of one matrix; otherwise each is
 * contiguous, which a CPU reads faster. */
static void take_mats(struct kg_mat *const *to, int n, struct bump *b, bool joins,
                      enum kg_dtype dtype, int64_t rows, const int64_t *cols)
{
    int64_t all = 0, first = 0;
    for (int i = 0; i < n; i++)
        all += cols[i];
    const struct kg_mat one = joins ? take_mat(b, dtype, rows, all) : (struct kg_mat){0};
    for (int i = 0; i < n; first += cols[i++])
        *to[i] = joins ? kg_mat_cols(one, first, cols[i])
                       : take_mat(b, dtype, rows, cols[i]);
}

static void take_gates(struct kg_mat *gate, struct kg_mat *up, struct bump *b,
                       const struct sizes *s, int64_t cols)
{
    take_mats((struct kg_mat *const[]){gate, up}, 2, b, s->joins, s->ct, s->n,
              (const int64_t[]){cols, cols});
}

static struct kg_vec take_floats(struct bump *b, int64_t n)
{
    return kg_vec(take(b, (uint64_t)n * sizeof(float)), n);
}

static int32_t *take_ints(struct bump *b, int64_t n)
{
    return take(b, (uint64_t)n * sizeof(int32_t));
}

static void place_experts(struct kg_expert_acts *x, struct bump *b, const struct sizes *s)
{
    x->route = (struct kg_route){.n_experts = (int32_t)s->e,
                                 .k = (int32_t)s->k,
                                 .normalise = s->c->experts.normalise,
                                 .p = take_mat(b, KG_F32, s->n, s->e),
                                 .weight = take_mat(b, KG_F32, s->n, s->k),
                                 .place = take_ints(b, s->r),
                                 .token = take_ints(b, s->r),
                                 .first = take_ints(b, s->e + 1)};
    x->gate = take_mat(b, s->ct, s->r, s->fe);
    x->up = take_mat(b, s->ct, s->r, s->fe);
    if (s->fs == 0)
        return;
    take_gates(&x->sgate, &x->sup, b, s, s->fs);
    x->share = take_mat(b, KG_F32, s->n, 1);
}

static void place_scratch(struct kg_expert_scratch *x, struct bump *b,
                          const struct sizes *s)
{
    x->logits = take_mat(b, KG_F32, s->n, s->e);
    x->narrow = take_mat(b, s->ct, s->n, s->e);
    x->rows = take_mat(b, s->ct, s->r, s->d);
    x->act = take_mat(b, s->ct, s->r, s->fe);
    x->dact = take_mat(b, KG_F32, s->r, s->fe);
    x->out = take_mat(b, KG_F32, s->r, s->d);
    x->dw = take_mat(b, KG_F32, s->n, s->k);
    if (s->fs == 0)
        return;
    x->sact = take_mat(b, s->ct, s->n, s->fs);
    x->dsact = take_mat(b, KG_F32, s->n, s->fs);
    x->dshare = take_mat(b, KG_F32, s->n, 1);
    x->sone = take_mat(b, s->ct, s->n, 1);
}

static void place_raw(struct kg_layer_acts *l, struct bump *b, const struct sizes *s)
{
    struct kg_mat *const to[] = {&l->q_raw, &l->k_raw, &l->v_raw};
    take_mats(to, s->joins ? 3 : 2, b, s->joins, KG_F32, s->n,
              (const int64_t[]){s->q, s->kd, s->kd});
    l->inv_q = take_floats(b, s->n * s->h);
    l->inv_k = take_floats(b, s->n * s->hk);
}

/* features: of the layer, or of all layers that share its buffers */
static void place_layer(struct kg_layer_acts *l, struct bump *b, const struct sizes *s,
                        uint32_t features)
{
    l->inv1 = take_floats(b, s->n);
    l->h1 = take_mat(b, s->ct, s->n, s->d);
    if (s->features & (KG_HEAD_NORM | KG_WIDE_NORM))
        place_raw(l, b, s);
    l->q = take_mat(b, s->ct, s->n, s->q);
    l->k = take_mat(b, s->ct, s->n, s->kd);
    l->v = take_mat(b, s->ct, s->n, s->kd);
    l->o = take_mat(b, s->ct, s->n, s->q);
    l->lse = take_floats(b, s->n * s->h);
    l->x_mid = take_mat(b, KG_F32, s->n, s->d);
    l->inv2 = take_floats(b, s->n);
    l->h2 = take_mat(b, s->ct, s->n, s->d);
    if (features & KG_DENSE)
        take_gates(&l->gate, &l->up, b, s, s->f);
    if (features & KG_EXPERTS)
        place_experts(&l->experts, b, s);
    if (s->features & (KG_POST_NORM | KG_BOTH_NORMS)) {
        l->out1 = take_mat(b, KG_F32, s->n, s->d);
        l->out2 = take_mat(b, KG_F32, s->n, s->d);
        l->inv3 = take_floats(b, s->n);
        l->inv4 = take_floats(b, s->n);
    }
}

static void place_adapters(struct kg_acts *a, struct bump *b, const struct sizes *s)
{
    const int64_t widths[] = {s->f, s->q, s->d, s->fs};
    const int64_t rows = s->places > s->n ? s->places : s->n;
    int64_t wide = s->places * s->fe;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        wide = s->n * widths[i] > wide ? s->n * widths[i] : wide;
    a->low = a->low_wide = take_mat(b, KG_F32, rows, s->rank);
    if (s->ct == KG_F32)
        return;
    a->low = take_mat(b, s->ct, rows, s->rank);
    a->wide = take_floats(b, wide);
}

/* ---- keys of packs with shared prefixes ---- */
enum { KEYS_PER_TOKEN = 8 /* limit, which bounds the memory for staging */ };

static void take_keys(struct kg_key_acts *keys, struct bump *b, const struct sizes *s,
                      int64_t n)
{
    keys->k = take_mat(b, s->ct, n, s->kd);
    keys->v = take_mat(b, s->ct, n, s->kd);
    keys->dk = take_mat(b, KG_F32, n, s->kd);
    keys->dv = take_mat(b, KG_F32, n, s->kd);
}

static uint64_t keys_bytes(const struct sizes *s, int64_t n)
{
    struct kg_key_acts keys;
    struct bump count = {0};
    take_keys(&keys, &count, s, n);
    return count.used;
}

/* Places buffers that hold nothing while attention runs, forward or backward, so that its
 * keys (kg_walk_keys) may use their memory. There is room for at least s->n keys. */
static void place_idle(struct kg_acts *a, struct bump *b, const struct sizes *s)
{
    const uint64_t begin = b->used, least = keys_bytes(s, s->n);
    a->keys_at = b->base ? b->base + begin : NULL;
    a->hidden = take_mat(b, s->ct, s->n, s->d);
    if (s->dense)
        a->act = take_mat(b, s->ct, s->n, s->f);
    a->dy = take_mat(b, s->ct, s->n, s->d);
    a->dh = take_mat(b, KG_F32, s->n, s->d);
    if (b->used - begin < least)
        take(b, least - (b->used - begin));
    a->max_keys = (int64_t)((double)(b->used - begin) / (double)least * (double)s->n);
    if (a->max_keys > KEYS_PER_TOKEN * s->n)
        a->max_keys = KEYS_PER_TOKEN * s->n;
    while (keys_bytes(s, a->max_keys) > b->used - begin)
        a->max_keys--;
}

int64_t kg_acts_keys(const struct kg_model *m, int64_t max_tokens)
{
    const struct sizes s = sizes_of(m, max_tokens);
    struct kg_acts a = {0};
    struct bump count = {0};
    place_idle(&a, &count, &s);
    return a.max_keys;
}

struct kg_key_acts kg_walk_keys(const struct kg_walk *p)
{
    const struct sizes s = sizes_of(p->m, p->acts->max_tokens);
    struct bump b = {.base = p->acts->keys_at};
    struct kg_key_acts keys;
    take_keys(&keys, &b, &s, p->pack->keys.n);
    return keys;
}

static void place_shared(struct kg_acts *a, struct bump *b, const struct sizes *s)
{
    a->inv = take_floats(b, s->n);
    place_idle(a, b, s);
    if (s->e > 0) {
        place_scratch(&a->experts, b, s);
        a->chosen = take_ints(b, kg_model_config_routed(s->c, s->c->layers) * s->r);
        a->p_sum = take_floats(b, s->e);
        a->balance = take_floats(b, s->e);
    }
    a->qf = take_mat(b, KG_F32, s->n, s->q);
    a->kf = take_mat(b, KG_F32, s->n, s->kd);
    a->vf = take_mat(b, KG_F32, s->n, s->kd);
    a->dout = take_mat(b, s->ct, s->n, s->q);
    if (s->rank > 0)
        place_adapters(a, b, s);
    if (s->features & KG_MLP_BIAS && s->ct != KG_F32)
        a->gate_wide = take_mat(b, KG_F32, s->n, s->f);
}

static int32_t layer_sets(int32_t layers, bool checkpoint)
{
    return checkpoint ? 1 : layers;
}

/* Places everything of `a`, or only counts when b has no memory. */
static void place_all(struct kg_acts *a, struct bump *b, const struct sizes *s)
{
    const uint32_t all = kg_model_config_features(s->c) | (s->dense ? KG_DENSE : 0);
    place_shared(a, b, s);
    for (int32_t l = 0; l <= a->layers; l++) {
        struct kg_mat x = take_mat(b, KG_F32, s->n, s->d);
        if (b->base)
            a->x[l] = x;
    }
    for (int32_t l = 0; l < layer_sets(a->layers, a->checkpoint); l++) {
        struct kg_layer_acts layer = {0};
        /* layer 0's buffers serve every layer if nothing is kept */
        place_layer(&layer, b, s, l == 0 ? all : kg_model_config_layer(s->c, l));
        if (b->base)
            a->layer[l] = layer;
    }
}

struct kg_bytes kg_acts_bytes(const struct kg_model *m, int64_t max_tokens,
                              bool checkpoint, int64_t more)
{
    const struct sizes s = sizes_of(m, max_tokens);
    struct kg_acts a = {.layers = m->config.layers, .checkpoint = checkpoint};
    struct bump count = {0};
    place_all(&a, &count, &s);
    const uint64_t staged = sizeof(int32_t) *
                            (uint64_t)(kg_stage_ints(&m->config, max_tokens) + more);
    return (struct kg_bytes){count.used + staged,
                             (uint64_t)kg_stage_banks(m->backend) * staged};
}

static kg_status create_parts(struct kg_acts *a, const struct sizes *s, int64_t more,
                              struct kg_err *err)
{
    struct bump count = {0};

    const size_t sets = (size_t)layer_sets(a->layers, a->checkpoint);
    a->x = kg_mem_calloc((size_t)a->layers + 1, sizeof *a->x, "activations", err);
    a->layer = a->x ? kg_mem_calloc(sets, sizeof *a->layer, "activations", err) : NULL;
    if (!a->layer)
        return KG_ENOMEM;
    place_all(a, &count, s);
    a->slab = kg_buf_alloc(a->backend, count.used, "activations", err);
    if (!a->slab)
        return err->code;
    struct bump memory = {.base = a->slab};
    place_all(a, &memory, s);
    return kg_stage_room(&a->stage, a->backend, kg_stage_ints(s->c, s->n) + more, err);
}

kg_status kg_acts_create_more(struct kg_acts **out, const struct kg_model *m,
                              int64_t max_tokens, bool checkpoint, int64_t more,
                              struct kg_err *err)
{
    *out = NULL;
    const int32_t k = m->config.experts.k > 0 ? m->config.experts.k : 1;
    if (max_tokens < 1 || max_tokens > INT32_MAX / k)
        return kg_fail(err, KG_EINVAL, "activations: expected 1 to %d tokens, found %lld",
                       INT32_MAX / k, (long long)max_tokens);
    struct kg_acts *a = kg_mem_calloc(1, sizeof *a, "activations", err);
    if (!a)
        return KG_ENOMEM;
    a->backend = m->backend;
    a->max_tokens = max_tokens;
    a->checkpoint = checkpoint;
    a->layers = m->config.layers;
    a->rank = kg_stage_rank(m);
    a->routed = kg_model_config_routed(&m->config, m->config.layers);
    a->k = m->config.experts.k;
    a->ct = m->ct;
    const struct sizes s = sizes_of(m, max_tokens);
    a->mixed = m->n_others > 0;
    a->runs = kg_mem_calloc(a->mixed ? (size_t)max_tokens : 1, sizeof *a->runs,
                            "activations", err);
    const kg_status status = a->runs ? create_parts(a, &s, more, err) : KG_ENOMEM;
    if (status != KG_OK) {
        kg_acts_free(a);
        return status;
    }
    *out = a;
    return KG_OK;
}

kg_status kg_acts_create(struct kg_acts **out, const struct kg_model *m,
                         int64_t max_tokens, bool checkpoint, struct kg_err *err)
{
    return kg_acts_create_more(out, m, max_tokens, checkpoint, 0, err);
}

struct kg_ivec kg_acts_rows(const struct kg_acts *acts) { return acts->pack.rows; }

void kg_acts_draws(struct kg_draws *d, const struct kg_acts *acts)
{
    d->how = acts->pack.how;
    d->inv_temp = acts->pack.inv_temp;
}

/* After this no copy writes to chosen_h. */
static kg_status await_load(struct kg_acts *a, struct kg_err *err)
{
    const uint64_t mark = a->load_mark;

    a->load_mark = 0;
    return mark > 0 ? kg_buf_wait(a->backend, mark, err) : KG_OK;
}

void kg_acts_free(struct kg_acts *a)
{
    if (!a)
        return;
    kg_buf_free(a->backend, a->slab);
    kg_stage_release(&a->stage, a->backend);
    struct kg_err ignored;

    (void)await_load(a, &ignored); /* a failed device copies no more */
    kg_buf_unpin(a->backend, a->chosen_h);
    kg_mem_free(a->layer);
    kg_mem_free(a->runs);
    kg_mem_free(a->x);
    kg_mem_free(a);
}

/* ---- views of the current pack ---- */
struct kg_mat kg_walk_x(const struct kg_walk *p, int32_t l)
{
    return kg_mat_rows(p->acts->x[p->keep ? l : 0], 0, p->pack->n);
}

/* Restricts m to its first n rows. */
static void cut(struct kg_mat *m, int64_t n)
{
    if (m->data)
        *m = kg_mat_rows(*m, 0, n);
}

static void cut_vec(struct kg_vec *v, int64_t n, int64_t all) { v->n = v->n / all * n; }

static void cut_experts(struct kg_expert_acts *x, int64_t n)
{
    const int64_t r = n * x->route.k;
    cut(&x->route.p, n);
    cut(&x->route.weight, n);
    cut(&x->gate, r);
    cut(&x->up, r);
    cut(&x->sgate, n);
    cut(&x->sup, n);
    cut(&x->share, n);
}

struct kg_expert_scratch kg_walk_experts(const struct kg_walk *p)
{
    struct kg_expert_scratch x = p->acts->experts;
    const int64_t n = p->pack->n, r = n * x.dw.cols;
    struct kg_mat *const of_tokens[] = {&x.logits, &x.narrow, &x.dw,  &x.sact,
                                        &x.dsact,  &x.dshare, &x.sone};
    struct kg_mat *const of_places[] = {&x.rows, &x.act, &x.dact, &x.out};
    for (size_t i = 0; i < sizeof of_tokens / sizeof *of_tokens; i++)
        cut(of_tokens[i], n);
    for (size_t i = 0; i < sizeof of_places / sizeof *of_places; i++)
        cut(of_places[i], r);
    return x;
}

/* Offset of layer l in (Lx,N,K). */
static int64_t choices_before(const struct kg_walk *p, int32_t l)
{
    return kg_model_config_routed(&p->m->config, l) * p->pack->n * p->acts->k;
}

struct kg_ivec kg_walk_given(const struct kg_walk *p, int32_t l)
{
    const struct kg_ivec all = p->pack->experts;
    return all.data ? kg_ivec(all.data + choices_before(p, l), p->pack->n * p->acts->k)
                    : all;
}

uint64_t kg_acts_load_bytes(const struct kg_model_config *c, int64_t max_tokens)
{
    const int64_t choices = kg_model_config_choices(c);

    return choices > 0 ? (uint64_t)(max_tokens * choices) * sizeof(int32_t) +
                             (uint64_t)c->experts.n * sizeof(float)
                       : 0;
}

static kg_status room_for_load(struct kg_acts *a, struct kg_err *err)
{
    const int64_t chosen = a->routed * a->k * a->max_tokens;

    if (a->chosen_h)
        return KG_OK;
    a->chosen_h = kg_buf_pin(a->backend,
                             (uint64_t)chosen * sizeof *a->chosen_h +
                                 (uint64_t)a->p_sum.n * sizeof *a->p_sum_h,
                             "chosen experts", err);
    if (!a->chosen_h)
        return err->code;
    a->p_sum_h = (float *)(void *)(a->chosen_h + chosen);
    return KG_OK;
}

kg_status kg_acts_load_later(struct kg_acts *a, struct kg_err *err)
{
    const uint64_t bytes = (uint64_t)(a->routed * a->k * a->pack.n) * sizeof *a->chosen;

    if (a->routed == 0 || a->load_sent)
        return KG_OK;
    KG_TRY(room_for_load(a, err));
    KG_TRY(await_load(a, err));
    KG_TRY(kg_buf_get_later(a->backend, a->chosen_h, a->chosen, bytes, err));
    if (a->balanced)
        KG_TRY(kg_buf_get_later(a->backend, a->p_sum_h, a->p_sum.data,
                                (uint64_t)a->p_sum.n * sizeof *a->p_sum_h, err));
    KG_TRY(kg_buf_mark(a->backend, &a->load_mark, err));
    a->load_sent = true;
    return KG_OK;
}

static kg_status fetch_load(struct kg_acts *a, struct kg_err *err)
{
    KG_TRY(kg_acts_load_later(a, err));
    return await_load(a, err);
}

kg_status kg_acts_experts(uint16_t *out, struct kg_acts *a, int64_t row, int64_t n,
                          struct kg_err *err)
{
    const int64_t k = a->k, of_layer = a->pack.n * k;
    KG_TRY(fetch_load(a, err));
    for (int64_t i = 0; i < n * a->routed; i++)
        for (int64_t j = 0; j < k; j++)
            out[i * k + j] = (uint16_t)a->chosen_h[i % a->routed * of_layer +
                                                   (row + i / a->routed) * k + j];
    return KG_OK;
}

kg_status kg_acts_load(int64_t *counts, struct kg_acts *a, struct kg_err *err)
{
    const int64_t of_layer = a->pack.n * a->k, e = a->p_sum.n;
    KG_TRY(fetch_load(a, err));
    for (int64_t l = 0; l < a->routed; l++)
        for (int64_t i = 0; i < of_layer; i++)
            counts[l * e + a->chosen_h[l * of_layer + i]]++;
    return KG_OK;
}

kg_status kg_acts_balance(struct kg_acts *a, const float *balance, struct kg_err *err)
{
    a->balanced = balance != NULL;
    return balance ? kg_buf_put(a->backend, a->balance.data, balance,
                                (uint64_t)a->balance.n * sizeof *balance, err)
                   : KG_OK;
}

kg_status kg_acts_p_sum(float *p_sum, struct kg_acts *a, struct kg_err *err)
{
    KG_TRY(fetch_load(a, err));
    memcpy(p_sum, a->p_sum_h, (size_t)a->p_sum.n * sizeof *p_sum);
    return KG_OK;
}

struct kg_layer_acts kg_walk_layer(const struct kg_walk *p, int32_t l)
{
    const bool own = p->keep && !p->acts->checkpoint;
    struct kg_layer_acts v = p->acts->layer[own ? l : 0];
    struct kg_mat *const mats[] = {&v.h1,   &v.q_raw, &v.k_raw, &v.v_raw, &v.q,
                                   &v.k,    &v.v,     &v.o,     &v.x_mid, &v.h2,
                                   &v.gate, &v.up,    &v.out1,  &v.out2};
    struct kg_vec *const vecs[] = {&v.inv1, &v.inv_q, &v.inv_k, &v.lse,
                                   &v.inv2, &v.inv3,  &v.inv4};
    for (size_t i = 0; i < sizeof mats / sizeof *mats; i++)
        cut(mats[i], p->pack->n);
    for (size_t i = 0; i < sizeof vecs / sizeof *vecs; i++)
        cut_vec(vecs[i], p->pack->n, p->acts->max_tokens);
    cut_experts(&v.experts, p->pack->n);
    if (p->acts->chosen)
        v.experts.route.ids = p->acts->chosen + choices_before(p, l);
    if (!p->keep)
        v.x_mid = kg_walk_x(p, l); /* one residual stream, updated in place */
    return v;
}
