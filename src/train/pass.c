/* Packing, the head on the wanted rows only, and the scatter of their gradients back into
 * the pack. */
#include "train/pass.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

struct slab {
    void *field; /* address of the pointer */
    size_t bytes;
};

enum { MOST_SLABS = 32 };

struct slabs {
    struct slab slab[MOST_SLABS];
    int n;
};

static void add(struct slabs *s, void *field, size_t count, size_t bytes)
{
    assert(s->n < MOST_SLABS);
    s->slab[s->n++] = (struct slab){field, count * bytes};
}

/* All arrays of p, activations apart. One list for the memory plan and for the
 * allocation. */
static struct slabs slabs_of(struct kg_pass *p, const struct kg_model_config *c,
                             enum kg_dtype ct, const struct kg_pass_opts *opts)
{
    struct slabs s = {.n = 0};
    size_t n = (size_t)opts->max_tokens;
    size_t at = n * (size_t)(opts->max_k > 0 ? opts->max_k : 1);
    size_t wide = n * (size_t)c->hidden, ct_bytes = kg_dtype_traits(ct)->bytes;

    add(&s, &p->tokens, n, sizeof *p->tokens);
    add(&s, &p->pos, n, sizeof *p->pos);
    add(&s, &p->seqs, n, sizeof *p->seqs);
    add(&s, &p->rows, n, sizeof *p->rows);
    add(&s, &p->target, n, sizeof *p->target);
    add(&s, &p->inv_temp, n, sizeof *p->inv_temp);
    add(&s, &p->ids, at, sizeof *p->ids);
    add(&s, &p->lse, n, sizeof *p->lse);
    add(&s, &p->logp, n, sizeof *p->logp);
    add(&s, &p->entropy, n, sizeof *p->entropy);
    add(&s, &p->logp_at, at, sizeof *p->logp_at);
    add(&s, &p->a_logp, n, sizeof *p->a_logp);
    add(&s, &p->a_entropy, n, sizeof *p->a_entropy);
    add(&s, &p->a_at, at, sizeof *p->a_at);
    add(&s, &p->hidden_rows, wide, ct_bytes);
    add(&s, &p->dhidden_rows, wide, sizeof *p->dhidden_rows);
    add(&s, &p->dhidden, wide, sizeof *p->dhidden);
    if (opts->sets) {
        add(&s, &p->sets, n, sizeof *p->sets);
        add(&s, &p->set_logp, n, sizeof *p->set_logp);
        add(&s, &p->a_set, n, sizeof *p->a_set);
    }
    if (opts->anchor) {
        add(&s, &p->kl, n, sizeof *p->kl);
        add(&s, &p->anchor_lse, n, sizeof *p->anchor_lse);
        add(&s, &p->a_kl, n, sizeof *p->a_kl);
        add(&s, &p->anchor_rows, n * (size_t)opts->anchor->config.hidden, ct_bytes);
    }
    return s;
}

static kg_status allocate(struct kg_pass *p, const struct kg_pass_opts *opts,
                          struct kg_err *err)
{
    struct slabs s = slabs_of(p, &p->model->config, p->model->ct, opts);

    for (int i = 0; i < s.n; i++) {
        void *block = kg_mem_calloc(1, s.slab[i].bytes, "micro-batch", err);

        if (!block)
            return err->code;
        memcpy(s.slab[i].field, &block, sizeof block);
    }
    return KG_OK;
}

kg_status kg_pass_create(struct kg_pass **p, const struct kg_model *m,
                         const struct kg_pass_opts *opts, struct kg_err *err)
{
    struct kg_pass *new = kg_mem_calloc(1, sizeof *new, "micro-batch", err);
    kg_status status;

    if (!new)
        return err->code;
    new->model = m;
    new->max_tokens = opts->max_tokens;
    KG_TRY_GOTO(fail,
                kg_acts_create(&new->acts, m, opts->max_tokens, opts->checkpoint, err));
    if (opts->anchor) /* scratch only, so one layer's set is enough */
        KG_TRY_GOTO(fail, kg_acts_create(&new->anchor_acts, opts->anchor,
                                         opts->max_tokens, true, err));
    KG_TRY_GOTO(fail, allocate(new, opts, err));
    *p = new;
    return KG_OK;
fail:
    kg_pass_free(new);
    return status;
}

void kg_pass_free(struct kg_pass *p)
{
    if (!p)
        return;
    kg_acts_free(p->acts);
    kg_acts_free(p->anchor_acts);
    kg_mem_free(p->tokens);
    kg_mem_free(p->pos);
    kg_mem_free(p->seqs);
    kg_mem_free(p->rows);
    kg_mem_free(p->target);
    kg_mem_free(p->inv_temp);
    kg_mem_free(p->ids);
    kg_mem_free(p->lse);
    kg_mem_free(p->logp);
    kg_mem_free(p->entropy);
    kg_mem_free(p->logp_at);
    kg_mem_free(p->a_logp);
    kg_mem_free(p->a_entropy);
    kg_mem_free(p->a_at);
    kg_mem_free(p->sets);
    kg_mem_free(p->set_logp);
    kg_mem_free(p->a_set);
    kg_mem_free(p->kl);
    kg_mem_free(p->anchor_lse);
    kg_mem_free(p->a_kl);
    kg_mem_free(p->anchor_rows);
    kg_mem_free(p->hidden_rows);
    kg_mem_free(p->dhidden_rows);
    kg_mem_free(p->dhidden);
    kg_mem_free(p);
}

uint64_t kg_pass_bytes(const struct kg_model_config *c, enum kg_dtype ct,
                       const struct kg_pass_opts *opts)
{
    struct kg_pass p;
    struct slabs s = slabs_of(&p, c, ct, opts);
    uint64_t bytes = kg_acts_bytes(c, ct, opts->max_tokens, opts->checkpoint);

    if (opts->anchor)
        bytes += kg_acts_bytes(&opts->anchor->config, ct, opts->max_tokens, true);
    for (int i = 0; i < s.n; i++)
        bytes += s.slab[i].bytes;
    return bytes;
}

void kg_pass_begin(struct kg_pass *p, int k)
{
    p->n_tokens = 0;
    p->n_seqs = 0;
    p->n_rows = 0;
    p->k = k;
}

bool kg_pass_fits(const struct kg_pass *p, size_t n_tokens)
{
    return p->n_tokens + (int64_t)n_tokens <= p->max_tokens;
}

int64_t kg_pass_add(struct kg_pass *p, const int32_t *tokens, size_t n)
{
    int64_t first = p->n_tokens;

    assert(kg_pass_fits(p, n));
    memcpy(p->tokens + first, tokens, n * sizeof *tokens);
    for (size_t i = 0; i < n; i++)
        p->pos[first + (int64_t)i] = (int32_t)i;
    p->seqs[p->n_seqs++] = (struct kg_attn_seq){.row = (int32_t)first,
                                                .n_rows = (int32_t)n,
                                                .pos = 0,
                                                .kv_row = (int32_t)first,
                                                .blocks = NULL};
    p->n_tokens += (int64_t)n;
    return first;
}

int64_t kg_pass_want(struct kg_pass *p, int64_t row, int32_t target, float inv_temp,
                     const int32_t *ids)
{
    int64_t i = p->n_rows++;

    p->rows[i] = (int32_t)row;
    p->target[i] = target;
    p->inv_temp[i] = inv_temp;
    if (p->k > 0)
        memcpy(p->ids + i * p->k, ids, (size_t)p->k * sizeof *ids);
    if (p->sets)
        p->sets[i] = (struct kg_idset){0};
    return i;
}

void kg_pass_want_set(struct kg_pass *p, int64_t index, const struct kg_idset *set)
{
    p->sets[index] = *set;
}

/* anchor: filled here and pointed to, where the last forward was asked for a KL. */
static struct kg_head head_of(const struct kg_pass *p, struct kg_head_anchor *anchor)
{
    const struct kg_model *m = p->model;
    struct kg_head head = {
        .hidden = kg_mat(p->hidden_rows, m->ct, p->n_rows, m->config.hidden),
        .weight = m->head->compute,
        .inv_temp = p->inv_temp,
        .target = p->target,
        .indices = p->k > 0 ? p->ids : NULL,
        .k = p->k,
        .sets = p->sets,
    };

    if (p->ask.kl == KG_PASS_KL_NONE)
        return head;
    *anchor = (struct kg_head_anchor){
        .hidden = kg_mat(p->anchor_rows, m->ct, p->n_rows, p->ask.anchor->config.hidden),
        .weight = p->ask.anchor->head->compute,
        .inv_temp = p->inv_temp,
    };
    head.anchor = anchor;
    return head;
}

/* Hidden states of the wanted rows. */
static kg_status hidden_rows(const struct kg_pass *p, void *out, const struct kg_model *m,
                             struct kg_acts *acts, bool keep, struct kg_err *err)
{
    struct kg_pack pack = {p->tokens, p->pos, p->n_tokens, p->seqs, p->n_seqs};
    struct kg_forward f = {.pack = &pack, .keep = keep};
    struct kg_mat rows = kg_mat(out, m->ct, p->n_rows, m->config.hidden);
    struct kg_mat hidden;

    KG_TRY(kg_model_forward(&hidden, m, acts, &f, err));
    return kg_op_gather_rows(m->backend, rows, hidden, p->rows, err);
}

kg_status kg_pass_forward(struct kg_pass *p, const struct kg_pass_ask *ask,
                          struct kg_err *err)
{
    struct kg_head_anchor anchor;
    struct kg_head head;
    struct kg_head_out out = {.lse = p->lse,
                              .logp = p->logp,
                              .logp_at = p->k > 0 ? p->logp_at : NULL,
                              .set_logp = p->set_logp};

    p->ask = ask ? *ask : (struct kg_pass_ask){0};
    assert(p->ask.kl == KG_PASS_KL_NONE || (p->anchor_acts && p->ask.anchor));
    KG_TRY(hidden_rows(p, p->hidden_rows, p->model, p->acts, !p->ask.no_backward, err));
    if (p->ask.kl != KG_PASS_KL_NONE) {
        KG_TRY(hidden_rows(p, p->anchor_rows, p->ask.anchor, p->anchor_acts, false, err));
        out.kl_reverse = p->ask.kl == KG_PASS_KL_REVERSE ? p->kl : NULL;
        out.kl_forward = p->ask.kl == KG_PASS_KL_FORWARD ? p->kl : NULL;
        out.anchor_lse = p->anchor_lse;
    }
    out.entropy = p->ask.entropy ? p->entropy : NULL;
    head = head_of(p, &anchor);
    return kg_op_head(p->model->backend, &out, &head, err);
}

kg_status kg_pass_backward(struct kg_pass *p, float *grads, bool use_entropy,
                           struct kg_err *err)
{
    const struct kg_model *m = p->model;
    int64_t width = m->config.hidden;
    struct kg_pack pack = {p->tokens, p->pos, p->n_tokens, p->seqs, p->n_seqs};
    struct kg_head_anchor anchor;
    struct kg_head head = head_of(p, &anchor);
    struct kg_mat drows = kg_mat(p->dhidden_rows, KG_F32, p->n_rows, width);
    struct kg_mat dhidden = kg_mat(p->dhidden, KG_F32, p->n_tokens, width);
    struct kg_head_grad g = {
        .lse = p->lse,
        .a_target = p->a_logp,
        .a_indices = p->k > 0 ? p->a_at : NULL,
        .a_entropy = use_entropy ? p->a_entropy : NULL,
        .entropy = use_entropy ? p->entropy : NULL,
        .a_kl_reverse = p->ask.kl == KG_PASS_KL_REVERSE ? p->a_kl : NULL,
        .a_kl_forward = p->ask.kl == KG_PASS_KL_FORWARD ? p->a_kl : NULL,
        .kl_reverse = p->kl,
        .anchor_lse = p->anchor_lse,
        .a_set = p->a_set,
        .set_logp = p->set_logp,
        .dhidden = drows,
        .dweight = kg_mat(grads + m->head->offset, KG_F32, m->config.vocab, width),
    };

    assert(!p->ask.no_backward);
    KG_TRY(kg_op_head_bwd(m->backend, &g, &head, err));
    memset(p->dhidden, 0, (size_t)(p->n_tokens * width) * sizeof *p->dhidden);
    KG_TRY(kg_op_scatter_rows(m->backend, dhidden, p->rows, drows, err));
    return kg_model_backward(m, p->acts, &pack, dhidden, grads, err);
}
