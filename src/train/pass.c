/* Packing, the head on the wanted rows only, and the scatter of their gradients back into
 * the pack. */
#include "train/pass.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

enum { TOKENS, IDS, SETS, ANCHOR_ROWS, HIDDEN_BYTES, ANCHOR_BYTES, WIDE, COUNTS };

/* All arrays, activations apart. */
static const struct kg_column columns[] = {
    KG_COLUMN(struct kg_pass, tokens, TOKENS),
    KG_COLUMN(struct kg_pass, pos, TOKENS),
    KG_COLUMN(struct kg_pass, seqs, TOKENS),
    KG_COLUMN(struct kg_pass, rows, TOKENS),
    KG_COLUMN(struct kg_pass, target, TOKENS),
    KG_COLUMN(struct kg_pass, inv_temp, TOKENS),
    KG_COLUMN(struct kg_pass, ids, IDS),
    KG_COLUMN(struct kg_pass, sets, SETS),
    KG_COLUMN(struct kg_pass, lse, TOKENS),
    KG_COLUMN(struct kg_pass, logp, TOKENS),
    KG_COLUMN(struct kg_pass, entropy, TOKENS),
    KG_COLUMN(struct kg_pass, logp_at, IDS),
    KG_COLUMN(struct kg_pass, set_logp, SETS),
    KG_COLUMN(struct kg_pass, kl, ANCHOR_ROWS),
    KG_COLUMN(struct kg_pass, anchor_lse, ANCHOR_ROWS),
    KG_COLUMN(struct kg_pass, a_logp, TOKENS),
    KG_COLUMN(struct kg_pass, a_entropy, TOKENS),
    KG_COLUMN(struct kg_pass, a_at, IDS),
    KG_COLUMN(struct kg_pass, a_set, SETS),
    KG_COLUMN(struct kg_pass, a_kl, ANCHOR_ROWS),
    KG_COLUMN(struct kg_pass, hidden_rows, HIDDEN_BYTES),
    KG_COLUMN(struct kg_pass, anchor_rows, ANCHOR_BYTES),
    KG_COLUMN(struct kg_pass, dhidden_rows, WIDE),
    KG_COLUMN(struct kg_pass, dhidden, WIDE),
    {0},
};

static void count(size_t counts[COUNTS], const struct kg_model_config *c,
                  enum kg_dtype ct, const struct kg_pass_opts *opts)
{
    size_t n = (size_t)opts->max_tokens, bytes = kg_dtype_traits(ct)->bytes;

    counts[TOKENS] = n;
    counts[IDS] = n * (size_t)(opts->max_k > 0 ? opts->max_k : 1);
    counts[SETS] = opts->sets ? n : KG_COLUMN_ABSENT;
    counts[ANCHOR_ROWS] = opts->anchor ? n : KG_COLUMN_ABSENT;
    counts[WIDE] = n * (size_t)c->hidden;
    counts[HIDDEN_BYTES] = counts[WIDE] * bytes;
    counts[ANCHOR_BYTES] = opts->anchor ? n * (size_t)opts->anchor->config.hidden * bytes
                                        : KG_COLUMN_ABSENT;
}

kg_status kg_pass_create(struct kg_pass **p, const struct kg_model *m,
                         const struct kg_pass_opts *opts, struct kg_err *err)
{
    struct kg_pass *new = kg_mem_calloc(1, sizeof *new, "micro-batch", err);
    size_t counts[COUNTS];
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
    count(counts, &m->config, m->ct, opts);
    KG_TRY_GOTO(fail,
                kg_columns_take(&new->block, new, columns, counts, "micro-batch", err));
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
    kg_columns_free(&p->block, p, columns);
    kg_mem_free(p);
}

uint64_t kg_pass_bytes(const struct kg_model_config *c, enum kg_dtype ct,
                       const struct kg_pass_opts *opts)
{
    size_t counts[COUNTS];
    uint64_t bytes = kg_acts_bytes(c, ct, opts->max_tokens, opts->checkpoint);

    if (opts->anchor)
        bytes += kg_acts_bytes(&opts->anchor->config, ct, opts->max_tokens, true);
    count(counts, c, ct, opts);
    if (kg_columns_bytes(columns, counts) == UINT64_MAX)
        return UINT64_MAX;
    return bytes + kg_columns_bytes(columns, counts);
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
