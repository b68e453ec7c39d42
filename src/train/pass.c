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

static kg_status allocate(struct kg_pass *p, int max_k, struct kg_err *err)
{
    size_t n = (size_t)p->max_tokens;
    size_t k = (size_t)(max_k > 0 ? max_k : 1);
    size_t width = (size_t)p->model->config.hidden;
    size_t ct = kg_dtype_traits(p->model->ct)->bytes;
    const struct slab slabs[] = {
        {&p->tokens, n * sizeof *p->tokens},
        {&p->pos, n * sizeof *p->pos},
        {&p->seqs, n * sizeof *p->seqs},
        {&p->rows, n * sizeof *p->rows},
        {&p->target, n * sizeof *p->target},
        {&p->inv_temp, n * sizeof *p->inv_temp},
        {&p->ids, n * k * sizeof *p->ids},
        {&p->lse, n * sizeof *p->lse},
        {&p->logp, n * sizeof *p->logp},
        {&p->entropy, n * sizeof *p->entropy},
        {&p->logp_at, n * k * sizeof *p->logp_at},
        {&p->a_logp, n * sizeof *p->a_logp},
        {&p->a_entropy, n * sizeof *p->a_entropy},
        {&p->a_at, n * k * sizeof *p->a_at},
        {&p->hidden_rows, n * width * ct},
        {&p->dhidden_rows, n * width * sizeof *p->dhidden_rows},
        {&p->dhidden, n * width * sizeof *p->dhidden},
    };

    for (size_t i = 0; i < sizeof slabs / sizeof *slabs; i++) {
        void *block = kg_mem_calloc(1, slabs[i].bytes, "micro-batch", err);

        if (!block)
            return err->code;
        memcpy(slabs[i].field, &block, sizeof block);
    }
    return KG_OK;
}

kg_status kg_pass_create(struct kg_pass **p, const struct kg_model *m, int64_t max_tokens,
                         int max_k, bool checkpoint, struct kg_err *err)
{
    struct kg_pass *new = kg_mem_calloc(1, sizeof *new, "micro-batch", err);
    kg_status status;

    if (!new)
        return err->code;
    new->model = m;
    new->max_tokens = max_tokens;
    KG_TRY_GOTO(fail, kg_acts_create(&new->acts, m, max_tokens, checkpoint, err));
    KG_TRY_GOTO(fail, allocate(new, max_k, err));
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
    kg_mem_free(p->hidden_rows);
    kg_mem_free(p->dhidden_rows);
    kg_mem_free(p->dhidden);
    kg_mem_free(p);
}

uint64_t kg_pass_bytes(const struct kg_model_config *c, enum kg_dtype ct,
                       int64_t max_tokens, int max_k, bool checkpoint)
{
    uint64_t per_row = 56 + 12 * (uint64_t)max_k +
                       (uint64_t)c->hidden * (8 + kg_dtype_traits(ct)->bytes);

    return kg_acts_bytes(c, ct, max_tokens, checkpoint) + per_row * (uint64_t)max_tokens;
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
    return i;
}

static struct kg_head head_of(const struct kg_pass *p)
{
    const struct kg_model *m = p->model;

    return (struct kg_head){
        .hidden = kg_mat(p->hidden_rows, m->ct, p->n_rows, m->config.hidden),
        .weight = m->head->compute,
        .inv_temp = p->inv_temp,
        .target = p->target,
        .indices = p->k > 0 ? p->ids : NULL,
        .k = p->k,
    };
}

kg_status kg_pass_forward(struct kg_pass *p, bool want_entropy, struct kg_err *err)
{
    const struct kg_model *m = p->model;
    struct kg_pack pack = {p->tokens, p->pos, p->n_tokens, p->seqs, p->n_seqs};
    struct kg_forward f = {.pack = &pack, .keep = true};
    struct kg_head head = head_of(p);
    struct kg_head_out out = {.lse = p->lse,
                              .logp = p->logp,
                              .logp_at = p->k > 0 ? p->logp_at : NULL,
                              .entropy = want_entropy ? p->entropy : NULL};
    struct kg_mat hidden;

    KG_TRY(kg_model_forward(&hidden, m, p->acts, &f, err));
    KG_TRY(kg_op_gather_rows(m->backend, head.hidden, hidden, p->rows, err));
    return kg_op_head(m->backend, &out, &head, err);
}

kg_status kg_pass_backward(struct kg_pass *p, float *grads, bool use_entropy,
                           struct kg_err *err)
{
    const struct kg_model *m = p->model;
    int64_t width = m->config.hidden;
    struct kg_pack pack = {p->tokens, p->pos, p->n_tokens, p->seqs, p->n_seqs};
    struct kg_head head = head_of(p);
    struct kg_mat drows = kg_mat(p->dhidden_rows, KG_F32, p->n_rows, width);
    struct kg_mat dhidden = kg_mat(p->dhidden, KG_F32, p->n_tokens, width);
    struct kg_head_grad g = {
        .lse = p->lse,
        .a_target = p->a_logp,
        .a_indices = p->k > 0 ? p->a_at : NULL,
        .a_entropy = use_entropy ? p->a_entropy : NULL,
        .entropy = use_entropy ? p->entropy : NULL,
        .dhidden = drows,
        .dweight = kg_mat(grads + m->head->offset, KG_F32, m->config.vocab, width),
    };

    KG_TRY(kg_op_head_bwd(m->backend, &g, &head, err));
    memset(p->dhidden, 0, (size_t)(p->n_tokens * width) * sizeof *p->dhidden);
    KG_TRY(kg_op_scatter_rows(m->backend, dhidden, p->rows, drows, err));
    return kg_model_backward(m, p->acts, &pack, dhidden, grads, err);
}
