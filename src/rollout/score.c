/* Scoring: the training forward pass over packs of whole sequences, the head on the
 * wanted rows.
 *
 * The row that predicts token t is the hidden state of position t-1. Wanted rows are
 * gathered into one matrix before the head, so the head's work follows what is asked for;
 * its results are then dealt out to the sequences' own arrays. Neither the packing nor
 * the gathering can be seen in the bits.
 */
#include "rollout/score.h"

#include "base/mem.h"
#include "base/phase.h"
#include "base/real.h"
#include "rollout/rollout.h"

#include <math.h>
#include <string.h>

/* Buffers for one pack, of at most `rows` tokens. All owned. */
struct score_pack {
    int64_t rows;
    int32_t *tokens;          /* (rows) */
    int32_t *pos;             /* (rows) */
    struct kg_attn_seq *seqs; /* (rows) */
    int32_t *from;            /* (rows) pack row that predicts wanted row i */
    int32_t *target; /* (rows) its token, as the arrays below indexed by wanted row */
    float *inv_temp;
    double *lse;
    float *logp;
    float *entropy;
    float
        *twice; /* 2 inv_temp, for sum_sq; with the next two only where that is wanted */
    double *lse_twice;
    float *sum_sq;
    struct kg_idset *sets; /* with the next where masses of sets are wanted */
    double *set_logp;
    int32_t *indices; /* (rows,K) */
    float *logp_at;   /* (rows,K) */
    int32_t *top_ids; /* (rows,top_k) */
    float *top_logp;  /* (rows,top_k) */
    void *hidden;     /* (rows,D) ct */
};

struct scorer {
    const struct kg_model *m;
    struct kg_acts *acts;
    struct kg_score_seq *seqs;
    const size_t *only_from; /* or NULL */
    int k;
    int top_k;
    bool want_entropy;
    bool want_sum_sq;
    bool want_sets;
    struct score_pack p;
};

static void pack_release(struct score_pack *p)
{
    void *blocks[] = {p->tokens,    p->pos,     p->seqs,     p->from,    p->target,
                      p->inv_temp,  p->lse,     p->logp,     p->entropy, p->indices,
                      p->logp_at,   p->top_ids, p->top_logp, p->hidden,  p->twice,
                      p->lse_twice, p->sum_sq,  p->sets,     p->set_logp};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        kg_mem_free(blocks[i]);
}

static void *alloc(size_t n, size_t size, kg_status *status, struct kg_err *err)
{
    void *block = *status == KG_OK ? kg_mem_calloc(n, size, "scores of a pack", err)
                                   : NULL;
    if (*status == KG_OK && block == NULL)
        *status = err->code;
    return block;
}

static kg_status pack_init(struct scorer *s, int64_t rows, struct kg_err *err)
{
    struct score_pack *p = &s->p;
    size_t n = (size_t)rows, n_sq = s->want_sum_sq ? n : 0, n_set = s->want_sets ? n : 0;
    kg_status status = KG_OK;
    p->rows = rows;
    p->twice = alloc(n_sq, sizeof *p->twice, &status, err);
    p->lse_twice = alloc(n_sq, sizeof *p->lse_twice, &status, err);
    p->sum_sq = alloc(n_sq, sizeof *p->sum_sq, &status, err);
    p->sets = alloc(n_set, sizeof *p->sets, &status, err);
    p->set_logp = alloc(n_set, sizeof *p->set_logp, &status, err);
    p->tokens = alloc(n, sizeof *p->tokens, &status, err);
    p->pos = alloc(n, sizeof *p->pos, &status, err);
    p->seqs = alloc(n, sizeof *p->seqs, &status, err);
    p->from = alloc(n, sizeof *p->from, &status, err);
    p->target = alloc(n, sizeof *p->target, &status, err);
    p->inv_temp = alloc(n, sizeof *p->inv_temp, &status, err);
    p->lse = alloc(n, sizeof *p->lse, &status, err);
    p->logp = alloc(n, sizeof *p->logp, &status, err);
    p->entropy = alloc(n, sizeof *p->entropy, &status, err);
    p->indices = alloc(n * (size_t)s->k, sizeof *p->indices, &status, err);
    p->logp_at = alloc(n * (size_t)s->k, sizeof *p->logp_at, &status, err);
    p->top_ids = alloc(n * (size_t)s->top_k, sizeof *p->top_ids, &status, err);
    p->top_logp = alloc(n * (size_t)s->top_k, sizeof *p->top_logp, &status, err);
    p->hidden = alloc(n * (size_t)s->m->config.hidden, kg_dtype_traits(s->m->ct)->bytes,
                      &status, err);
    return status;
}

/* The first position of sequence i whose log-prob is wanted. */
static size_t first_wanted(const struct scorer *s, size_t i)
{
    size_t from = s->only_from ? s->only_from[i] : 1;
    from = from > 1 ? from : 1;
    return from < s->seqs[i].n ? from : s->seqs[i].n;
}

static kg_status check_seq(const struct scorer *s, size_t i, int64_t max_tokens,
                           struct kg_err *err)
{
    const struct kg_score_seq *q = &s->seqs[i];
    if (q->n == 0)
        return kg_fail(err, KG_EINVAL,
                       "sequence %zu: expected at least one token, found none", i);
    if (q->n > (size_t)max_tokens)
        return kg_fail(err, KG_EINVAL,
                       "sequence %zu: %zu tokens, and a pack holds at most %lld", i, q->n,
                       (long long)max_tokens);
    for (size_t t = 0; t < q->n; t++)
        if (q->tokens[t] < 0 || q->tokens[t] >= s->m->config.vocab)
            return kg_fail(
                err, KG_EINVAL,
                "sequence %zu: token %zu is %d, expected an id between 0 and %d", i, t,
                q->tokens[t], s->m->config.vocab - 1);
    return KG_OK;
}

/* ---- a pack ---- */

static void put_wanted(struct scorer *s, size_t i, int32_t row, int64_t *n_wanted)
{
    struct score_pack *p = &s->p;
    const struct kg_score_seq *q = &s->seqs[i];
    size_t k = (size_t)s->k;
    for (size_t t = first_wanted(s, i); t < q->n; t++) {
        size_t w = (size_t)(*n_wanted)++;
        p->from[w] = row + (int32_t)t - 1;
        p->target[w] = q->tokens[t];
        p->inv_temp[w] = kg_inv_temperature(q->temperature);
        if (s->want_sets)
            p->sets[w] = q->sets ? q->sets[t] : (struct kg_idset){0};
        for (size_t j = 0; j < k; j++)
            p->indices[w * k + j] = q->indices ? q->indices[t * k + j] : -1;
    }
}

/* Pack sequences from `first` on while they fit.   returns the first one that is left
 * over */
static size_t fill(struct scorer *s, struct kg_pack *pack, int64_t *n_wanted,
                   size_t first, size_t n_seqs)
{
    struct score_pack *p = &s->p;
    size_t i = first;
    *pack = (struct kg_pack){p->tokens, p->pos, 0, p->seqs, 0};
    *n_wanted = 0;
    for (; i < n_seqs && pack->n + (int64_t)s->seqs[i].n <= p->rows; i++) {
        const struct kg_score_seq *q = &s->seqs[i];
        int32_t row = (int32_t)pack->n;
        p->seqs[pack->n_seqs++] = (struct kg_attn_seq){
            .row = row, .n_rows = (int32_t)q->n, .kv_row = row};
        memcpy(p->tokens + row, q->tokens, q->n * sizeof *q->tokens);
        for (int32_t t = 0; t < (int32_t)q->n; t++)
            p->pos[row + t] = t;
        put_wanted(s, i, row, n_wanted);
        pack->n += (int64_t)q->n;
    }
    return i;
}

/* sum_v p_v^2 = sum_v exp(2 z_v - 2 lse) = exp(lse of 2 z - 2 lse) */
static kg_status square(struct scorer *s, const struct kg_head *head, struct kg_err *err)
{
    struct score_pack *p = &s->p;
    struct kg_head h = {
        .hidden = head->hidden, .weight = head->weight, .inv_temp = p->twice};
    struct kg_head_out out = {.lse = p->lse_twice};
    for (int64_t w = 0; w < h.hidden.rows; w++)
        p->twice[w] = 2 * p->inv_temp[w];
    KG_TRY(kg_op_head(s->m->backend, &out, &h, err));
    for (int64_t w = 0; w < h.hidden.rows; w++)
        p->sum_sq[w] = (float)kg_exp(p->lse_twice[w] - 2 * p->lse[w]);
    return KG_OK;
}

static kg_status run_head(struct scorer *s, struct kg_mat hidden, int64_t n,
                          struct kg_err *err)
{
    struct score_pack *p = &s->p;
    struct kg_mat rows = kg_mat(p->hidden, s->m->ct, n, s->m->config.hidden);
    struct kg_head h = {.hidden = rows,
                        .weight = s->m->head->compute,
                        .inv_temp = p->inv_temp,
                        .target = p->target,
                        .indices = s->k > 0 ? p->indices : NULL,
                        .k = s->k,
                        .top_k = s->top_k,
                        .sets = s->want_sets ? p->sets : NULL};
    struct kg_head_out out = {.lse = p->lse,
                              .logp = p->logp,
                              .logp_at = s->k > 0 ? p->logp_at : NULL,
                              .set_logp = s->want_sets ? p->set_logp : NULL,
                              .entropy = s->want_entropy ? p->entropy : NULL,
                              .top_ids = s->top_k > 0 ? p->top_ids : NULL,
                              .top_logp = s->top_k > 0 ? p->top_logp : NULL};
    KG_TRY(kg_op_gather_rows(s->m->backend, rows, hidden, p->from, err));
    KG_TRY(kg_op_head(s->m->backend, &out, &h, err));
    return s->want_sum_sq ? square(s, &h, err) : KG_OK;
}

/* n elements of `size` bytes, when the array is wanted. */
static void deal(void *to, size_t to_at, const void *from, size_t from_at, size_t n,
                 size_t size)
{
    if (to != NULL && n > 0)
        memcpy((char *)to + to_at * size, (const char *)from + from_at * size, n * size);
}

static void clear_before(struct kg_score_seq *q, size_t from)
{
    memset(q->logp, 0, from * sizeof *q->logp);
    if (q->entropy)
        memset(q->entropy, 0, from * sizeof *q->entropy);
    if (q->lse)
        memset(q->lse, 0, from * sizeof *q->lse);
    if (q->sum_sq)
        memset(q->sum_sq, 0, from * sizeof *q->sum_sq);
    if (q->set_logp)
        memset(q->set_logp, 0, from * sizeof *q->set_logp);
}

/* Sequences [first, last) take their rows; the w-th wanted row is next.
 * errors: ENONFINITE */
static kg_status deal_out(struct scorer *s, size_t first, size_t last, struct kg_err *err)
{
    const struct score_pack *p = &s->p;
    size_t k = (size_t)s->k;
    size_t top = (size_t)s->top_k;
    size_t w = 0;
    for (size_t i = first; i < last; i++) {
        struct kg_score_seq *q = &s->seqs[i];
        size_t from = first_wanted(s, i);
        size_t n = q->n - from;
        for (size_t t = 0; t < n; t++)
            if (!isfinite(p->lse[w + t]))
                return kg_fail(
                    err, KG_ENONFINITE,
                    "sequence %zu, position %zu: expected finite logits, found a log "
                    "sum exp of %g",
                    i, from + t, p->lse[w + t]);
        clear_before(q, from);
        deal(q->logp, from, p->logp, w, n, sizeof *q->logp);
        deal(q->entropy, from, p->entropy, w, n, sizeof *q->entropy);
        deal(q->lse, from, p->lse, w, n, sizeof *q->lse);
        deal(q->sum_sq, from, p->sum_sq, w, n, sizeof *q->sum_sq);
        deal(q->set_logp, from, p->set_logp, w, n, sizeof *q->set_logp);
        deal(q->logp_at, from * k, p->logp_at, w * k, n * k, sizeof *q->logp_at);
        deal(q->top_ids, from * top, p->top_ids, w * top, n * top, sizeof *q->top_ids);
        deal(q->top_logp, from * top, p->top_logp, w * top, n * top, sizeof *q->top_logp);
        w += n;
    }
    return KG_OK;
}

static kg_status score_packs(struct scorer *s, size_t n_seqs, struct kg_err *err)
{
    int phase = kg_phase_begin((int64_t)n_seqs, "sequences", "scoring");
    for (size_t first = 0; first < n_seqs;) {
        struct kg_pack pack;
        struct kg_mat hidden;
        int64_t n_wanted;
        size_t last = fill(s, &pack, &n_wanted, first, n_seqs);
        if (n_wanted > 0) {
            struct kg_forward f = {.pack = &pack};
            KG_TRY(kg_model_forward(&hidden, s->m, s->acts, &f, err));
            KG_TRY(run_head(s, hidden, n_wanted, err));
        }
        KG_TRY(deal_out(s, first, last, err));
        first = last;
        kg_phase_at(phase, (int64_t)first);
    }
    kg_phase_end(phase);
    return KG_OK;
}

kg_status kg_score(const struct kg_model *m, struct kg_acts *acts, int64_t max_tokens,
                   struct kg_score_seq *seqs, size_t n_seqs, int k, int top_k,
                   const size_t *only_from, struct kg_err *err)
{
    struct scorer s = {.m = m,
                       .acts = acts,
                       .seqs = seqs,
                       .only_from = only_from,
                       .k = k,
                       .top_k = top_k};
    int64_t total = 0;
    kg_status status = KG_OK;
    for (size_t i = 0; i < n_seqs; i++) {
        KG_TRY(check_seq(&s, i, max_tokens, err));
        total += (int64_t)seqs[i].n;
        s.want_entropy = s.want_entropy || seqs[i].entropy != NULL;
        s.want_sum_sq = s.want_sum_sq || seqs[i].sum_sq != NULL;
        s.want_sets = s.want_sets || seqs[i].sets != NULL;
    }
    KG_TRY_GOTO(out, pack_init(&s, total < max_tokens ? total : max_tokens, err));
    status = score_packs(&s, n_seqs, err);
out:
    pack_release(&s.p);
    return status;
}
