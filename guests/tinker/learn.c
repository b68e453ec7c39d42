/* forward_backward: the loss of a batch, its gradient (added to that of the model), and
 * the log-probs of all its targets.
 *
 * Loss tokens are those on which the loss can have a term: with a mask, the tokens that
 * it keeps; else, with a sampler's log-probs, those with an advantage or a log-prob
 * (prompts have 0 in both); never those of weight 0. A micro-batch selects its loss
 * tokens first, in order, then the others, which are dropped when their log-probs are
 * known: so the gradient has the same bits as in a training run. For the same reason a
 * sequence is packed with its last target, whose row is not used. */
#include "tinker/tinker.h"

#include "base/columns.h"
#include "base/mem.h"
#include "policy/policy.h"
#include "train/step/anchor.h"

enum { MICRO_TOKENS = 4096 /* as train.micro_tokens */ };

/* The loss tokens of a batch; see struct kg_policy_batch. */
struct terms {
    int64_t n;
    int k, k_sampler;
    struct kg_block block;
    int64_t *begin, *local; /* (S+1) owned, as are all below; local: of a micro-batch */
    int64_t *at;            /* (n) the token's index in the batch */
    int32_t *tokens;        /* (n) */
    double *logp, *old, *entropy, *advantage, *anchor, *pg, *kl, *ent; /* (n) */
    int32_t *ids;                                                      /* (n,k) */
    double *logp_at, *anchor_at, *mu_at;                               /* (n,k) */
};

enum { SEQS, TOKENS, IDS, COUNTS };
static const struct kg_column columns[] = {
    KG_COLUMN(struct terms, begin, SEQS),
    KG_COLUMN(struct terms, local, SEQS),
    KG_COLUMN(struct terms, at, TOKENS),
    KG_COLUMN(struct terms, tokens, TOKENS),
    KG_COLUMN(struct terms, logp, TOKENS),
    KG_COLUMN(struct terms, old, TOKENS),
    KG_COLUMN(struct terms, entropy, TOKENS),
    KG_COLUMN(struct terms, advantage, TOKENS),
    KG_COLUMN(struct terms, anchor, TOKENS),
    KG_COLUMN(struct terms, pg, TOKENS),
    KG_COLUMN(struct terms, kl, TOKENS),
    KG_COLUMN(struct terms, ent, TOKENS),
    KG_COLUMN(struct terms, ids, IDS),
    KG_COLUMN(struct terms, logp_at, IDS),
    KG_COLUMN(struct terms, anchor_at, IDS),
    KG_COLUMN(struct terms, mu_at, IDS),
    {0},
};

struct learning {
    struct kg_tinker *t;
    struct kg_tinker_model *model;
    const struct kg_tinker_batch *b;
    struct kg_algo algo;
    struct terms terms;
    float *logp; /* (N) owned: of all targets */
    double loss;
};

static bool has(const struct kg_tinker_batch *b, enum kg_tinker_input which)
{
    return b->has & 1u << which;
}

static bool is_term(const struct kg_tinker_batch *b, int64_t i)
{
    if (b->weight[i] == 0)
        return false;
    if (has(b, KG_TINKER_MASK) || has(b, KG_TINKER_RATIO_MASK))
        return b->mask[i] != 0;
    return !has(b, KG_TINKER_LOGPROB) || b->advantage[i] != 0 || b->logprob[i] != 0;
}

/* ---- what the loss needs ---- */

static bool is_supervised(const struct kg_tinker_batch *b)
{
    return strcmp(b->loss, "cross_entropy") == 0;
}

static kg_status check_inputs(const struct learning *l, struct kg_err *err)
{
    const struct kg_tinker_batch *b = l->b;
    const int k = kg_algo_recorded_top_k(&l->algo);
    if (is_supervised(b) && (has(b, KG_TINKER_LOGPROB) || has(b, KG_TINKER_ADVANTAGE)))
        return kg_fail(err, KG_EINVAL,
                       "loss_fn_inputs: cross_entropy reads target_tokens and weights; "
                       "expected neither logprobs nor advantages");
    if (!is_supervised(b) && !(has(b, KG_TINKER_LOGPROB) && has(b, KG_TINKER_ADVANTAGE)))
        return kg_fail(err, KG_EINVAL, "loss_fn_inputs: %s needs logprobs and advantages",
                       b->loss);
    if (k != b->k)
        return kg_fail(
            err, KG_EINVAL,
            "loss_fn_inputs.topk_ids: expected %d ids per token, the likeliest "
            "of the sampler (topk_sample_logprobs), found %d",
            k, b->k);
    return KG_OK;
}

static bool needs_anchor_model(const struct kg_algo *a)
{
    return a->anchor->kind != KG_ANCHOR_NONE && a->anchor->kind != KG_ANCHOR_ITERATIVE;
}

/* The first loss with an anchor copies it from the model. */
static kg_status open_anchor(struct learning *l, struct kg_err *err)
{
    struct kg_run_state *state = &l->model->state;
    if (!needs_anchor_model(&l->algo))
        return KG_OK;
    l->model->algo = l->algo;
    if (state->anchor)
        return KG_OK;
    const struct kg_model_opts opts = {.ct = state->model->ct, .whose = "anchor's "};
    return kg_model_clone(&state->anchor, state->model, &opts, err);
}

static kg_status take_terms(struct learning *l, struct kg_err *err)
{
    const struct kg_tinker_batch *b = l->b;
    struct terms *x = &l->terms;
    for (int64_t i = 0; i < b->n; i++)
        x->n += is_term(b, i);
    x->k_sampler = b->k;
    x->k = b->k + kg_algo_anchor_top_k(&l->algo);
    const size_t n = (size_t)x->n;
    const size_t counts[COUNTS] = {(size_t)b->n_data + 1, n, n * (size_t)x->k};
    KG_TRY(kg_columns_take(&x->block, x, columns, counts, "loss tokens", err));
    int64_t at = 0;
    for (int64_t s = 0; s < b->n_data; s++) {
        for (int64_t i = b->begin[s]; i < b->begin[s + 1]; i++)
            if (is_term(b, i))
                x->at[at++] = i;
        x->begin[s + 1] = at;
    }
    for (int64_t j = 0; j < x->n; j++) {
        const int64_t i = x->at[j];
        x->tokens[j] = (int32_t)b->target[i];
        x->old[j] = x->anchor[j] = b->logprob[i];
        x->advantage[j] = is_supervised(b) ? b->weight[i] : b->advantage[i];
        for (int c = 0; c < b->k; c++) {
            x->ids[j * x->k + c] = (int32_t)b->ids[i * b->k + c];
            x->mu_at[j * x->k + c] = b->id_logp[i * b->k + c];
            x->anchor_at[j * x->k + c] = b->id_logp[i * b->k + c];
        }
    }
    return KG_OK;
}

/* Multiplies the aggregation's weights by the tokens' own. */
static kg_status weigh(struct learning *l, struct kg_err *err)
{
    struct terms *x = &l->terms;
    const struct kg_policy_shape shape = {.n_seqs = l->b->n_data, .seq_begin = x->begin};
    const struct kg_policy_weights w = {x->pg, x->kl, x->ent};
    KG_TRY(kg_policy_weights(&w, &l->algo, &shape, err));
    for (int64_t j = 0; j < x->n && !is_supervised(l->b); j++) {
        const double weight = l->b->weight[x->at[j]];
        x->pg[j] *= weight;
        x->kl[j] *= weight;
        x->ent[j] *= weight;
    }
    return KG_OK;
}

/* ---- packs ---- */

/* Rows for the model, with room for the longest sequence and one micro-batch. */
static kg_status open_rows(struct learning *l, struct kg_err *err)
{
    struct kg_tinker *t = l->t;
    const struct kg_model *m = l->model->state.model;
    struct kg_rows_opts o = {.max_k = l->terms.k,
                             .top_k = kg_algo_anchor_top_k(&l->algo),
                             .backward = true,
                             .max_tokens = l->b->n + l->b->n_data};
    if (o.max_tokens > MICRO_TOKENS)
        o.max_tokens = MICRO_TOKENS;
    for (int64_t s = 0; s < l->b->n_data; s++) {
        const int64_t n = l->b->begin[s + 1] - l->b->begin[s] + 1;
        if (n > t->opts.max_len)
            return kg_fail(err, KG_EINVAL,
                           "data[%lld]: expected at most %d tokens with the last target "
                           "(--max-len), found "
                           "%lld",
                           (long long)s, t->opts.max_len, (long long)n);
        o.max_tokens = n > o.max_tokens ? n : o.max_tokens;
    }
    if (t->rows && t->rows_model == m && t->rows_opts.max_k == o.max_k &&
        t->rows_opts.top_k == o.top_k && t->rows_opts.max_tokens >= o.max_tokens)
        return KG_OK;
    kg_rows_free(t->rows);
    t->rows = NULL;
    t->rows_model = m;
    t->rows_opts = o;
    return kg_rows_create(&t->rows, m, &o, err);
}

/* Selects the targets of sequences [first, end): loss tokens, then the others.
 * returns the number of loss tokens */
static int64_t want(const struct learning *l, const struct kg_model *m, int64_t first,
                    int64_t end)
{
    const struct kg_tinker_batch *b = l->b;
    const struct terms *x = &l->terms;
    struct kg_rows *p = l->t->rows;
    kg_rows_begin(p, m, x->k);
    for (int64_t s = first; s < end; s++) {
        const int64_t row = kg_rows_add(p, b->tokens + b->begin[s] + s,
                                        (size_t)(b->begin[s + 1] - b->begin[s] + 1));
        for (int64_t j = x->begin[s]; j < x->begin[s + 1]; j++)
            kg_rows_want(p, row + x->at[j] - b->begin[s], x->tokens[j], 1.0f,
                         x->k > 0 ? x->ids + j * x->k : NULL);
    }
    const int64_t n = p->n_rows;
    for (int64_t s = first; s < end; s++)
        for (int64_t i = b->begin[s]; i < b->begin[s + 1]; i++)
            if (!is_term(b, i))
                kg_rows_want(p, i - b->begin[first] + s - first, (int32_t)b->target[i],
                             1.0f, NULL);
    return n;
}

/* Log-probs of the targets without a loss: rows [n, ...), which are then dropped. */
static kg_status take_others(const struct learning *l, int64_t first, int64_t end,
                             int64_t n, struct kg_err *err)
{
    const struct kg_tinker_batch *b = l->b;
    struct kg_rows *p = l->t->rows;
    const struct kg_head_out out = {.lse = p->lse + n,
                                    .logp = p->logp + n,
                                    .logp_at = p->k > 0 ? p->logp_at + n * p->k : NULL};
    int64_t row = n;
    if (n < p->n_rows)
        KG_TRY(kg_rows_read(&out, p, n, p->n_rows - n, 0, err));
    for (int64_t i = b->begin[first]; i < b->begin[end]; i++)
        if (!is_term(b, i))
            l->logp[i] = p->logp[row++];
    kg_rows_forget(p, n);
    return KG_OK;
}

/* Reads the anchor's log-probs at the loss tokens of sequences [first, end). */
static kg_status ask_anchor(struct learning *l, int64_t first, int64_t end,
                            struct kg_err *err)
{
    struct terms *x = &l->terms;
    struct kg_rows *p = l->t->rows;
    const int top_k = x->k - x->k_sampler;
    const struct kg_rows_ask ask = {.top_k = top_k};
    const int64_t n = want(l, l->model->state.anchor, first, end);
    kg_rows_forget(p, n);
    if (n == 0)
        return KG_OK;
    KG_TRY(kg_rows_forward(p, false, err));
    KG_TRY(kg_rows_ask(p, &ask, err));
    for (int64_t r = 0; r < n; r++) {
        const int64_t j = x->begin[first] + r;
        x->anchor[j] = p->logp[r];
        for (int c = 0; c < x->k_sampler; c++)
            x->anchor_at[j * x->k + c] = p->logp_at[r * x->k + c];
        for (int c = 0; c < top_k; c++) {
            x->ids[j * x->k + x->k_sampler + c] = p->top_ids[r * top_k + c];
            x->anchor_at[j * x->k + x->k_sampler + c] = p->top_logp[r * top_k + c];
        }
    }
    return KG_OK;
}

static struct kg_policy_batch piece_of(const struct learning *l, int64_t first,
                                       int64_t end)
{
    const struct terms *x = &l->terms;
    const int64_t at = x->begin[first], wide = at * x->k;
    for (int64_t s = first; s <= end; s++)
        x->local[s - first] = x->begin[s] - at;
    return (struct kg_policy_batch){
        .n_seqs = end - first,
        .n_tokens = x->begin[end] - at,
        .seq_begin = x->local,
        .tokens = x->tokens + at,
        .logp = x->logp + at,
        .old_logp = x->old + at,
        .anchor_logp = x->anchor + at,
        .advantage = x->advantage + at,
        .entropy = x->entropy + at,
        .k_sampler = x->k_sampler,
        .k_anchor = x->k - x->k_sampler,
        .ids = x->ids + wide,
        .logp_at = x->logp_at + wide,
        .anchor_at = x->anchor_at + wide,
        .mu_at = x->mu_at + wide,
        .pg_weight = x->pg + at,
        .kl_weight = x->kl + at,
        .entropy_weight = x->ent + at,
    };
}

/* Sequences [first, end), which fit in a pack. */
static kg_status micro_batch(struct learning *l, int64_t first, int64_t end,
                             struct kg_err *err)
{
    struct terms *x = &l->terms;
    struct kg_rows *p = l->t->rows;
    const struct kg_rows_ask ask = {.entropy = l->algo.entropy_coef != 0};
    if (needs_anchor_model(&l->algo))
        KG_TRY(ask_anchor(l, first, end, err));
    const int64_t n = want(l, l->model->state.model, first, end), at = x->begin[first];
    KG_TRY(kg_rows_forward(p, !l->b->forward_only, err));
    KG_TRY(take_others(l, first, end, n, err));
    if (n == 0)
        return KG_OK;
    KG_TRY(kg_rows_ask(p, &ask, err));
    for (int64_t r = 0; r < n; r++) {
        x->logp[at + r] = l->logp[x->at[at + r]] = p->logp[r];
        if (is_supervised(l->b))
            x->old[at + r] = x->anchor[at + r] = p->logp[r];
        if (ask.entropy)
            x->entropy[at + r] = p->entropy[r];
        for (int c = 0; c < x->k; c++)
            x->logp_at[(at + r) * x->k + c] = p->logp_at[r * x->k + c];
    }
    struct kg_policy_grad grad = {.a_logp = p->a_logp,
                                  .a_at = x->k > 0 ? p->a_at : NULL,
                                  .a_entropy = p->a_entropy};
    const struct kg_policy_batch piece = piece_of(l, first, end);
    KG_TRY(kg_policy_loss(&grad, &l->algo, &piece, err));
    l->loss += grad.loss;
    if (l->b->forward_only || !grad.any)
        return KG_OK;
    return kg_rows_backward(p, l->model->state.optim->grads.data, ask.entropy, err);
}

static kg_status micro_batches(struct learning *l, struct kg_err *err)
{
    const int64_t *begin = l->b->begin;
    for (int64_t s = 0, end; s < l->b->n_data; s = end) {
        for (end = s + 1; end < l->b->n_data; end++)
            if (begin[end + 1] - begin[s] + end + 1 - s > MICRO_TOKENS)
                break;
        KG_TRY(micro_batch(l, s, end, err));
    }
    return KG_OK;
}

/* A part of a batch's gradient cannot be subtracted again, so the whole sum is zeroed. */
static kg_status drop_gradient(struct learning *l, struct kg_err *err)
{
    struct kg_err ignored;
    if (l->b->forward_only || kg_slab_zero(&l->model->state.optim->grads, &ignored) != 0)
        return err->code;
    return kg_err_prefix(err, "the gradients of %s since its last optim_step are dropped",
                         l->model->id);
}

static kg_status learn(struct learning *l, struct kg_str *out, struct kg_err *err)
{
    KG_TRY(kg_tinker_algo(&l->algo, l->b, l->model->state.model->config.vocab, err));
    KG_TRY(check_inputs(l, err));
    KG_TRY(take_terms(l, err));
    KG_TRY(weigh(l, err));
    KG_TRY(open_rows(l, err));
    KG_TRY(open_anchor(l, err));
    l->logp = kg_mem_calloc((size_t)l->b->n, sizeof *l->logp, "log-probs", err);
    if (!l->logp)
        return err->code;
    if (micro_batches(l, err) != KG_OK)
        return drop_gradient(l, err);
    return kg_tinker_put_output(out, l->b, l->logp, l->loss, err);
}

kg_status kg_tinker_learn(struct kg_tinker_job *job, struct kg_err *err)
{
    struct kg_tinker_batch b = {.n_data = 0};
    struct kg_tinker *t = job->user->t;
    struct learning l = {.t = t, .b = &b};
    kg_status status;
    KG_TRY(kg_tinker_model_of(&l.model, job, err));
    KG_TRY_GOTO(out, kg_tinker_read_batch(&b, job->body.data, job->body.len,
                                          t->opts.model->config.vocab, err));
    status = learn(&l, &job->result, err);
out:
    kg_columns_free(&l.terms.block, &l.terms, columns);
    kg_mem_free(l.logp);
    kg_tinker_batch_release(&b);
    return status;
}
