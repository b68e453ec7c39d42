/* Decoding: one token for every running sequence, and what follows from it.
 *
 * A step packs the last token of every sequence, runs the forward and the head on all of
 * them, and draws. Small models are cut into ranges of sequences, one a thread, each with
 * activations of its own, so that threads do not meet at every product; large ones leave
 * the threads to the products. Rows do not depend on their neighbours, so both give the
 * same bits and the choice is one of speed alone.
 */
#include "base/clock.h"
#include "rollout/rollout_internal.h"
#include "rollout/stop.h"

#include <string.h>

kg_status kg_rollout_head(struct kg_rollout *r, const struct kg_rows *p, int64_t first,
                          struct kg_err *err)
{
    int top_k = r->top_k;
    int64_t V = r->m->config.vocab;
    struct kg_head_out out = {.lse = r->lse + first, .logits = r->logits + first * V};
    if (top_k > 0) {
        out.top_ids = r->top_ids + first * top_k;
        out.top_logp = r->top_logp + first * top_k;
    }
    return kg_rows_read(&out, p, 0, p->n_rows, top_k, err);
}

/* ---- a token ---- */

static kg_status draw(struct kg_sampler_pick *pick, struct kg_rollout *r,
                      struct kg_worker *w, struct kg_seq *seq, int64_t row)
{
    int32_t V = r->m->config.vocab;
    const struct kg_sampling *s = seq->sampling;
    const struct kg_traj *t = seq->traj;
    struct kg_sampler_row z = {.z = r->logits + row * V,
                               .vocab = V,
                               .lse = r->lse[row],
                               .said = t->tokens + t->prompt_n,
                               .n_said = t->n - t->prompt_n};
    double u = kg_rng_uniform(s->rng, seq->request->draw, (uint32_t)seq->traj->sample,
                              (uint32_t)seq->generated);
    if (kg_sampler_draw(pick, &w->scratch, &z, s, u, &seq->err) == KG_OK)
        return KG_OK;
    return kg_err_prefix(&seq->err, "prompt %lld, sample %d, new token %d",
                         (long long)seq->request->prompt_index, seq->traj->sample,
                         seq->generated);
}

void kg_rollout_draw(struct kg_sampler_pick *pick, struct kg_rollout *r,
                     struct kg_worker *w, struct kg_seq *seq, int64_t row)
{
    seq->status = draw(pick, r, w, seq, row);
}

static kg_status push_token(struct kg_rollout *r, struct kg_seq *seq,
                            const struct kg_sampler_pick *pick, int64_t row)
{
    struct kg_traj_step step = {
        .token = pick->token, .logp = pick->logp, .cut = pick->cut, .kept = pick->kept};
    if (seq->traj->top_k > 0) {
        step.top_ids = r->top_ids + row * r->top_k;
        step.top_logp = r->top_logp + row * r->top_k;
    }
    return kg_traj_push(seq->traj, &step, &seq->err);
}

/* Whether the newest token completes a stop string. */
static kg_status check_stop(bool *found, const struct kg_rollout *r, struct kg_seq *seq,
                            int32_t token)
{
    const struct kg_sampling *s = seq->sampling;
    *found = false;
    if (s->n_stops == 0)
        return KG_OK;
    size_t seen = seq->text.len;
    size_t at;
    KG_TRY(kg_tokenizer_decode(&seq->text, r->tok, &token, 1, false, &seq->err));
    *found = kg_stop_find(&at, &seq->text, seen, s->stops, s->n_stops);
    return KG_OK;
}

static kg_status append(struct kg_rollout *r, struct kg_seq *seq,
                        const struct kg_sampler_pick *pick, int64_t row)
{
    struct kg_traj *t = seq->traj;
    bool stopped;
    KG_TRY(push_token(r, seq, pick, row));
    KG_TRY(check_stop(&stopped, r, seq, pick->token));
    seq->generated++;
    if (!seq->sampling->ignore_eos && kg_model_config_is_eos(&r->m->config, pick->token))
        t->finish = KG_FINISH_STOP;
    else if (stopped)
        t->finish = KG_FINISH_STRING;
    else if (seq->generated == seq->limit)
        t->finish = KG_FINISH_LENGTH;
    return KG_OK;
}

kg_status kg_rollout_commit(struct kg_rollout *r, struct kg_seq *seq,
                            const struct kg_sampler_pick *pick, int64_t row,
                            struct kg_err *err)
{
    const struct kg_rollout_session *s = &r->session;
    if (seq->status == KG_OK)
        seq->status = append(r, seq, pick, row);
    seq->ended = seq->status != KG_OK || seq->traj->finish != KG_FINISH_NONE;
    r->longest = seq->traj->n > r->longest ? seq->traj->n : r->longest;
    if (seq->status != KG_OK || s->token == NULL)
        return KG_OK;
    return s->token(s->user, seq->request, seq->traj, err);
}

/* ---- a step ---- */

/* Rows [first, first+n): that of running[i] is i. */
static kg_status decode_range(struct kg_rollout *r, struct kg_worker *w, int32_t first,
                              int32_t n, struct kg_err *err)
{
    struct kg_rows *p = w->rows;
    kg_rows_begin(p, r->m, 0);
    for (int32_t i = first; i < first + n; i++) {
        const struct kg_seq *seq = r->running[i];
        int32_t last = (int32_t)seq->traj->n - 1;
        int64_t row = kg_rows_continue(p, seq->traj->tokens + last, 1, last - seq->base,
                                       seq->blocks);
        kg_rows_want(p, row, -1, kg_inv_temperature(seq->sampling->temperature), NULL);
    }
    KG_TRY(kg_rows_forward(p, false, err));
    return kg_rollout_head(r, p, first, err);
}

static void draw_range(struct kg_rollout *r, struct kg_worker *w, int32_t first,
                       int32_t n)
{
    for (int32_t i = first; i < first + n; i++)
        kg_rollout_draw(&r->picks[i], r, w, r->running[i], i);
}

/* Small weights: a step is dominated by threads that wait for each other at every
 * product. Many rows a thread: the products are bound by arithmetic, so reading the
 * weights once a thread costs little. In between the weights are better read once, by all
 * threads together. */
static const double OUTER_WEIGHT_BYTES = 64e6;
enum { OUTER_ROWS = 16 };

static bool outer_is_faster(const struct kg_rollout *r)
{
    double bytes = (double)r->m->n_elements * (double)kg_dtype_traits(r->m->ct)->bytes;
    int32_t rows = r->n_running / r->n_workers;
    return r->n_workers > 1 && rows >= 2 &&
           (bytes <= OUTER_WEIGHT_BYTES || rows >= OUTER_ROWS);
}

static kg_status first_failure(const struct kg_rollout *r, struct kg_err *err)
{
    for (int i = 0; i < r->n_workers; i++)
        if (r->workers[i].status != KG_OK) {
            *err = r->workers[i].err;
            return r->workers[i].status;
        }
    return KG_OK;
}

/* Each worker's share of the running sequences; with `compute` forward and head as well,
 * else the draw alone. */
static kg_status in_parallel(struct kg_rollout *r, bool compute, struct kg_err *err)
{
    int32_t n = r->n_running;
    int T = r->n_workers;
#pragma omp parallel for num_threads(T) schedule(static, 1)
    for (int i = 0; i < T; i++) {
        struct kg_worker *w = &r->workers[i];
        int32_t first = (int32_t)((int64_t)n * i / T);
        int32_t count = (int32_t)((int64_t)n * (i + 1) / T) - first;
        w->status = KG_OK;
        if (compute && count > 0)
            w->status = decode_range(r, w, first, count, &w->err);
        if (w->status == KG_OK)
            draw_range(r, w, first, count);
    }
    return first_failure(r, err);
}

/* The most ids that a sequence of this step records with its token. */
static int widest_record(const struct kg_rollout *r)
{
    int most = 0;
    for (int32_t i = 0; i < r->n_running; i++) {
        int k = r->running[i]->sampling->record_top_k;
        most = k > most ? k : most;
    }
    return most;
}

static kg_status commit_rows(struct kg_rollout *r, struct kg_err *err)
{
    r->committing = true;
    for (int32_t i = 0; i < r->n_running; i++)
        if (!r->running[i]->silent)
            KG_TRY(kg_rollout_commit(r, r->running[i], &r->picks[i], i, err));
    r->committing = false;
    kg_rollout_purge(r);
    return KG_OK;
}

/* Take out those that ended. */
static void sweep(struct kg_rollout *r)
{
    for (int32_t i = 0; i < r->n_running;) {
        struct kg_seq *seq = r->running[i];
        if (!seq->ended) {
            i++;
            continue;
        }
        kg_rollout_end(r, seq);
        r->running[i] = r->running[--r->n_running];
    }
}

kg_status kg_rollout_decode(struct kg_rollout *r, struct kg_err *err)
{
    double start = kg_clock_seconds();
    bool outer = outer_is_faster(r);
    int32_t n = r->n_running;
    r->top_k = widest_record(r);
    if (!outer)
        KG_TRY(decode_range(r, &r->workers[0], 0, n, err));
    if (n == 1) /* the threads share the one row */
        draw_range(r, &r->workers[0], 0, n);
    else
        KG_TRY(in_parallel(r, outer, err));
    KG_TRY(commit_rows(r, err));
    sweep(r);
    r->stats.decode_tokens += n;
    r->stats.decode_steps++;
    r->stats.decode_seconds += kg_clock_seconds() - start;
    return kg_rollout_report(r, err);
}
