/* Scores whole sequences with the rows that training uses, and copies the numbers of
 * every wanted position to the arrays of its sequence.
 *
 * The row that predicts token t is the hidden state of position t-1. The head runs only
 * on the requested rows. The rows of a sequence are contiguous, so they are copied in
 * whole pieces. Packing and copying do not change any bit.
 */
#include "rollout/score.h"

#include "base/phase.h"
#include "rollout/rollout.h"

#include <math.h>
#include <string.h>

struct scorer {
    struct kg_rows *p;
    const struct kg_model *m;
    struct kg_score_seq *seqs;
    size_t n_seqs;
    int k;
    struct kg_rows_ask ask;
};

static size_t first_wanted(const struct kg_score_seq *q)
{
    size_t from = q->from > 1 ? q->from : 1;

    return from < q->n ? from : q->n;
}

static kg_status check_seq(const struct scorer *s, size_t i, struct kg_err *err)
{
    const struct kg_score_seq *q = &s->seqs[i];

    if (q->n == 0)
        return kg_fail(err, KG_EINVAL,
                       "sequence %zu: expected at least one token, found none", i);
    if (q->n > (size_t)s->p->max_tokens)
        return kg_fail(err, KG_EINVAL,
                       "sequence %zu: %zu tokens, and a pack holds at most %lld", i, q->n,
                       (long long)s->p->max_tokens);
    for (size_t t = 0; t < q->n; t++)
        if (q->tokens[t] < 0 || q->tokens[t] >= s->m->config.vocab)
            return kg_fail(
                err, KG_EINVAL,
                "sequence %zu: token %zu is %d, expected an id between 0 and %d", i, t,
                q->tokens[t], s->m->config.vocab - 1);
    return KG_OK;
}

/* ---- a pack ---- */

static struct kg_rows_seq rows_of(const struct kg_score_seq *q)
{
    const size_t first = first_wanted(q);

    return (struct kg_rows_seq){
        .tokens = q->tokens, .n = q->n, .most = first < q->n ? first : q->n - 1};
}

static void add_seq(struct scorer *s, size_t i)
{
    const struct kg_score_seq *q = &s->seqs[i];
    const struct kg_rows_seq seq = rows_of(q);
    float inv_temp = kg_inv_temperature(q->temperature);

    kg_rows_add_seq(s->p, &seq);
    for (size_t t = first_wanted(q); t < q->n; t++)
        kg_rows_want(s->p, kg_rows_at(s->p, t - 1), q->tokens[t], inv_temp,
                     q->indices ? q->indices + t * (size_t)s->k : NULL);
}

/* Packs sequences from `first` on while they fit.   returns the first that does not */
static size_t fill(struct scorer *s, size_t first)
{
    size_t i = first;

    kg_rows_begin(s->p, s->m, s->k);
    for (; i < s->n_seqs; i++) {
        const struct kg_rows_seq seq = rows_of(&s->seqs[i]);

        if (!kg_rows_fits_seq(s->p, &seq))
            break;
        add_seq(s, i);
    }
    return i;
}

/* Copies n elements of `size` bytes; `to` NULL: not wanted. */
static void deal(void *to, size_t to_at, const void *from, size_t from_at, size_t n,
                 size_t size)
{
    if (to != NULL && n > 0)
        memcpy((char *)to + to_at * size, (const char *)from + from_at * size, n * size);
}

/* As deal, with zeros in the to_at elements before. */
static void deal_all(void *to, size_t to_at, const void *from, size_t from_at, size_t n,
                     size_t size)
{
    if (to != NULL)
        memset(to, 0, to_at * size);
    deal(to, to_at, from, from_at, n, size);
}

/* Copies the rows of sequences [first, last) to their arrays; w: the next selected row.
 * errors: ENONFINITE */
static kg_status deal_out(struct scorer *s, size_t first, size_t last, struct kg_err *err)
{
    const struct kg_rows *p = s->p;
    size_t k = (size_t)s->k, top = (size_t)s->ask.top_k, w = 0;

    for (size_t i = first; i < last; i++) {
        struct kg_score_seq *q = &s->seqs[i];
        size_t from = first_wanted(q);
        size_t n = q->n - from;
        for (size_t t = 0; t < n; t++)
            if (!isfinite(p->lse[w + t]))
                return kg_fail(
                    err, KG_ENONFINITE,
                    "sequence %zu, position %zu: expected finite logits, found a log "
                    "sum exp of %g",
                    i, from + t, p->lse[w + t]);
        deal_all(q->logp, from, p->logp, w, n, sizeof *q->logp);
        deal_all(q->entropy, from, p->entropy, w, n, sizeof *q->entropy);
        deal_all(q->sum_sq, from, p->sum_sq, w, n, sizeof *q->sum_sq);
        deal(q->logp_at, from * k, p->logp_at, w * k, n * k, sizeof *q->logp_at);
        deal(q->top_ids, from * top, p->top_ids, w * top, n * top, sizeof *q->top_ids);
        deal(q->top_logp, from * top, p->top_logp, w * top, n * top, sizeof *q->top_logp);
        w += n;
    }
    return KG_OK;
}

static kg_status score_packs(struct scorer *s, struct kg_err *err)
{
    int phase = kg_phase_begin((int64_t)s->n_seqs, "sequences", "scoring");

    for (size_t first = 0, next; first < s->n_seqs; first = next) {
        next = fill(s, first);
        if (s->p->n_rows > 0) {
            KG_TRY(kg_rows_forward(s->p, false, err));
            KG_TRY(kg_rows_ask(s->p, &s->ask, err));
        }
        KG_TRY(deal_out(s, first, next, err));
        kg_phase_at(phase, (int64_t)next);
    }
    kg_phase_end(phase);
    return KG_OK;
}

kg_status kg_score(struct kg_rows *rows, const struct kg_model *m,
                   struct kg_score_seq *seqs, size_t n_seqs, int k, int top_k,
                   struct kg_err *err)
{
    struct scorer s = {.p = rows,
                       .m = m,
                       .seqs = seqs,
                       .n_seqs = n_seqs,
                       .k = k,
                       .ask = {.top_k = top_k}};

    for (size_t i = 0; i < n_seqs; i++) {
        KG_TRY(check_seq(&s, i, err));
        s.ask.entropy = s.ask.entropy || seqs[i].entropy != NULL;
        s.ask.sum_sq = s.ask.sum_sq || seqs[i].sum_sq != NULL;
    }
    return score_packs(&s, err);
}

/* ---- trajectories ---- */

struct kg_rows_seq kg_traj_seq(const struct kg_traj *t, struct kg_traj_part part,
                               bool replay)
{
    struct kg_rows_seq q = {.tokens = t->tokens + part.from, .n = part.end - part.from};
    size_t first = part.begin;

    while (first + 1 < part.end && t->source[first] != KG_SOURCE_MODEL)
        first++;
    q.most = first - part.from;
    if (replay && t->choices > 0)
        q.experts = t->experts + part.from * (size_t)t->choices;
    return q;
}

int64_t kg_traj_want(struct kg_rows *p, const struct kg_traj *t, struct kg_traj_part part,
                     bool replay, const int32_t *ids, int width,
                     const struct kg_idset *kept)
{
    const struct kg_rows_seq q = kg_traj_seq(t, part, replay);
    const float inv_temp = kg_inv_temperature(t->temperature);
    int64_t n = 0, row;

    kg_rows_add_seq(p, &q);
    for (size_t j = part.begin; j < part.end; j++) {
        if (t->source[j] != KG_SOURCE_MODEL)
            continue;
        row = kg_rows_want(p, kg_rows_at(p, j - part.from - 1), t->tokens[j], inv_temp,
                           ids ? ids + n * width : NULL);
        if (kept)
            kg_rows_want_set(p, row, &kept[n]);
        n++;
    }
    return n;
}
