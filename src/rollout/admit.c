/* Admission: from the queue of requests to running sequences.
 *
 * A request opens a group: its prompt gets blocks and is computed once. Each sample
 * shares the blocks that the prompt fills, gets a copy of the one it fills in part (of
 * all, where an episode's window may have them filled again), and takes at once all
 * further blocks it can ever need. One group at most is open, with
 * samples that wait for room; requests behind it wait too, so the order of the queue is
 * kept. Sequences that are resumed have their blocks and come first: nothing but a row
 * keeps them.
 *
 * Why nothing can lock up: when no sequence is there, everything but the open group's
 * prompt is free, and queue.c has refused any request whose prompt and one sample do not
 * fit together. Parked episodes need their caller alone.
 */
#include "rollout/rollout_internal.h"

#include "base/clock.h"

#include <assert.h>
#include <math.h>

/* ---- the plan: groups and rows ---- */

static bool row_is_free(const struct kg_rollout *r)
{
    return r->n_running + r->n_starting < r->opts.max_batch;
}

/* The group's blocks that the next sample shares: the last sample goes on in those that
 * the others copy. */
static int32_t next_shares(const struct kg_group *g)
{
    return g->started + 1 == g->request->n_samples ? g->n_blocks : g->n_shared;
}

/* New blocks that the next sample of a group takes. */
static int32_t sample_need(const struct kg_rollout *r, const struct kg_group *g)
{
    return kg_rollout_need(r, g->request) - next_shares(g);
}

static struct kg_group *add_group(struct kg_rollout *r)
{
    assert(r->n_groups <= r->opts.max_batch);
    struct kg_group *g = r->order[r->n_groups++];
    int32_t *blocks = g->blocks;
    *g = (struct kg_group){.blocks = blocks, .row = -1};
    return g;
}

/* Takes the blocks of the prompt; the caller has seen that they are free. */
static void open_group(struct kg_rollout *r)
{
    struct kg_group *g = add_group(r);
    struct kg_pending p = r->pending[r->pending_at++];
    r->pending_n--;
    g->request = p.request;
    g->trajs = p.trajs;
    g->tokens = p.request->prompt;
    g->n_tokens = (int32_t)p.request->prompt_n;
    g->n_blocks = kg_rollout_blocks(g->n_tokens);
    for (int32_t i = 0; i < g->n_blocks; i++)
        g->blocks[i] = kg_kv_take(r->kv);
    g->n_shared = kg_rollout_shared(g->request);
    r->open = g;
}

static bool can_open(const struct kg_rollout *r)
{
    if (r->open || r->pending_n == 0 || r->n_spare == 0 || !row_is_free(r))
        return false;
    const struct kg_request *q = r->pending[r->pending_at].request;
    return r->kv->n_free >= kg_rollout_need(r, q) + kg_rollout_copies(q);
}

/* Prompt and identity of a trajectory. */
static kg_status begin_traj(const struct kg_rollout *r, const struct kg_group *g,
                            struct kg_traj *t, struct kg_err *err)
{
    const struct kg_request *q = g->request;
    const struct kg_sampling *s = kg_rollout_sampling(r, q);
    t->top_k = s->record_top_k;
    t->prompt_index = q->prompt_index;
    t->draw = q->draw;
    t->sample = q->first_sample + g->started;
    t->temperature = s->temperature;
    return kg_traj_append(t, q->prompt, q->prompt_n, KG_SOURCE_PROMPT, err);
}

static void take_blocks(struct kg_rollout *r, struct kg_seq *seq, struct kg_group *g)
{
    int32_t need = sample_need(r, g);
    seq->n_blocks = 0;
    for (int32_t i = 0; i < next_shares(g); i++) {
        kg_kv_share(r->kv, g->blocks[i]);
        seq->blocks[seq->n_blocks++] = g->blocks[i];
    }
    for (int32_t i = 0; i < need; i++)
        seq->blocks[seq->n_blocks++] = kg_kv_take(r->kv);
}

static void wait_for(struct kg_rollout *r, struct kg_seq *seq, struct kg_group *g)
{
    seq->state = KG_SEQ_STARTING;
    seq->group = g;
    g->waiting++;
    r->starting[r->n_starting++] = seq;
}

static kg_status start_sample(struct kg_rollout *r, struct kg_group *g,
                              struct kg_err *err)
{
    struct kg_seq *seq = r->spare[r->n_spare - 1];
    struct kg_traj *t = &g->trajs[g->started];
    KG_TRY(begin_traj(r, g, t, err));
    r->n_spare--;
    r->n_waiting--;
    seq->request = g->request;
    seq->sampling = kg_rollout_sampling(r, g->request);
    seq->traj = t;
    seq->generated = seq->base = 0;
    seq->limit = kg_rollout_first_limit(r, g->request);
    seq->ended = seq->silent = false;
    seq->status = KG_OK;
    kg_str_clear(&seq->text);
    take_blocks(r, seq, g);
    wait_for(r, seq, g);
    g->started++;
    kg_rollout_skip_cancelled(r, g);
    return KG_OK;
}

static kg_status start_samples(struct kg_rollout *r, struct kg_err *err)
{
    while (r->open && row_is_free(r) && r->n_spare > 0 &&
           r->kv->n_free >= sample_need(r, r->open))
        KG_TRY(start_sample(r, r->open, err));
    return KG_OK;
}

static void go_on(struct kg_rollout *r, struct kg_seq *seq)
{
    struct kg_group *g = add_group(r);
    const struct kg_traj *t = seq->traj;
    g->request = seq->request;
    g->resumed = seq;
    g->tokens = t->tokens + seq->base;
    g->n_tokens = (int32_t)t->n - seq->base;
    g->cached = seq->cached;
    wait_for(r, seq, g);
}

static kg_status plan(struct kg_rollout *r, struct kg_err *err)
{
    int32_t n = 0;
    kg_rollout_close_groups(r);
    for (; n < r->n_resuming && row_is_free(r); n++)
        go_on(r, r->resuming[n]);
    r->n_resuming -= n;
    for (int32_t i = 0; i < r->n_resuming; i++)
        r->resuming[i] = r->resuming[i + n];
    KG_TRY(start_samples(r, err));
    while (can_open(r)) {
        open_group(r);
        kg_rollout_skip_cancelled(r, r->open);
        KG_TRY(start_samples(r, err));
    }
    return KG_OK;
}

/* ---- prompts ---- */

static const struct kg_sampling *group_sampling(const struct kg_rollout *r,
                                                const struct kg_group *g)
{
    return g->resumed ? g->resumed->sampling : kg_rollout_sampling(r, g->request);
}

static float group_inv_temp(const struct kg_rollout *r, const struct kg_group *g)
{
    return kg_inv_temperature(group_sampling(r, g)->temperature);
}

/* Start a pack with the next pieces of the groups' tokens, in order. The last rows of
 * those that it completes are wanted. */
static void pack_prompts(struct kg_rollout *r, struct kg_rows *p)
{
    kg_rows_next(p);
    for (int32_t i = 0; i < r->n_groups; i++) {
        struct kg_group *g = r->order[i];
        int64_t left = g->n_tokens - g->cached;
        int64_t room = r->opts.prefill_chunk - kg_rows_tokens(p);
        int32_t piece = (int32_t)(left < room ? left : room);
        if (piece == 0 || g->waiting == 0)
            continue;
        g->piece_n = piece;
        g->piece_row = kg_rows_continue(p, g->tokens + g->cached, (size_t)piece,
                                        g->cached,
                                        g->resumed ? g->resumed->blocks : g->blocks);
        g->cached += piece;
        if (piece == left)
            g->row = (int32_t)kg_rows_want(p, kg_rows_tokens(p) - 1, -1,
                                           group_inv_temp(r, g), NULL);
    }
}

/* The first token that a row of its piece predicts. */
static size_t first_scored(const struct kg_group *g)
{
    return (size_t)(g->cached - g->piece_n + 1);
}

/* Rows of prompts that are scored: a row predicts the token behind it, the last one of a
 * prompt what is sampled. */
static void want_scores(struct kg_rollout *r, struct kg_rows *p)
{
    for (int32_t i = 0; i < r->n_groups; i++) {
        struct kg_group *g = r->order[i];
        bool scored = g->piece_n > 0 && g->request->scores && !g->resumed;
        g->score_row = p->n_rows;
        g->n_scored = scored ? g->piece_n - (g->cached == g->n_tokens) : 0;
        for (int32_t j = 0; j < g->n_scored; j++)
            kg_rows_want(p, g->piece_row + j, g->tokens[first_scored(g) + (size_t)j],
                         group_inv_temp(r, g), NULL);
    }
}

/* The head writes where the caller wants the scores, and keeps no more than its tiles.
 * The group fails alone, by logits that are not finite. */
static kg_status score_piece(struct kg_rollout *r, struct kg_group *g,
                             const struct kg_rows *p, struct kg_err *err)
{
    const struct kg_prompt_scores *to = g->request->scores;
    int top_k = group_sampling(r, g)->record_top_k;
    size_t at = first_scored(g);
    size_t first = at * (size_t)top_k;
    struct kg_head_out out = {.lse = r->prompt_lse,
                              .logp = to->logp + at,
                              .top_ids = top_k > 0 ? to->top_ids + first : NULL,
                              .top_logp = top_k > 0 ? to->top_logp + first : NULL};
    KG_TRY(kg_rows_read(&out, p, g->score_row, g->n_scored, top_k, err));
    for (int32_t i = 0; i < g->n_scored && g->status == KG_OK; i++)
        if (!isfinite(r->prompt_lse[i]))
            g->status = kg_fail(&g->err, KG_ENONFINITE,
                                "prompt %lld, token %zu: expected finite logits, found a "
                                "log sum exp of %g",
                                (long long)g->request->prompt_index, at + (size_t)i,
                                r->prompt_lse[i]);
    return KG_OK;
}

static kg_status score_pieces(struct kg_rollout *r, const struct kg_rows *p,
                              struct kg_err *err)
{
    for (int32_t i = 0; i < r->n_groups; i++) {
        struct kg_group *g = r->order[i];
        if (g->n_scored > 0)
            KG_TRY(score_piece(r, g, p, err));
        g->piece_n = 0;
    }
    return KG_OK;
}

/* Compute one chunk of what is missing.   *any: there was something to compute */
static kg_status prefill_chunk(bool *any, struct kg_rollout *r, struct kg_err *err)
{
    struct kg_rows *p = r->workers[0].rows;
    int64_t n_ready;
    pack_prompts(r, p);
    *any = kg_rows_tokens(p) > 0;
    if (!*any)
        return KG_OK;
    n_ready = p->n_rows;
    want_scores(r, p);
    KG_TRY(kg_rows_forward(p, false, err));
    KG_TRY(score_pieces(r, p, err));
    kg_rows_forget(p, n_ready);
    r->stats.prefill_tokens += kg_rows_tokens(p);
    return KG_OK;
}

/* The open group's prompt was computed in an earlier pass. */
static kg_status recall_open(struct kg_rollout *r, struct kg_rows *p, struct kg_err *err)
{
    for (int32_t i = 0; i < r->n_groups; i++) {
        struct kg_group *g = r->order[i];
        int64_t row;
        if (g->waiting == 0 || g->row >= 0 || g->cached < g->n_tokens)
            continue;
        KG_TRY(kg_rows_recall(&row, p, group_inv_temp(r, g), err));
        g->row = (int32_t)row;
    }
    return KG_OK;
}

static kg_status prefill(struct kg_rollout *r, struct kg_err *err)
{
    struct kg_rows *p = r->workers[0].rows;
    bool any = true;
    kg_rows_begin(p, r->m, 0);
    KG_TRY(recall_open(r, p, err));
    if (r->session.steady)
        return prefill_chunk(&any, r, err);
    while (any)
        KG_TRY(prefill_chunk(&any, r, err));
    return KG_OK;
}

/* ---- first tokens ---- */

/* Those of the prompt's that are not shared. */
static kg_status copy_blocks(struct kg_rollout *r, const struct kg_seq *seq,
                             struct kg_err *err)
{
    const struct kg_group *g = seq->group;
    for (int32_t i = g->n_shared; i < g->n_blocks; i++)
        if (seq->blocks[i] != g->blocks[i])
            KG_TRY(kg_kv_copy_block(r->kv, seq->blocks[i], g->blocks[i], err));
    return KG_OK;
}

static kg_status head_of_ready(struct kg_rollout *r, struct kg_err *err)
{
    r->top_k = 0;
    for (int32_t i = 0; i < r->n_starting; i++) {
        const struct kg_seq *seq = r->starting[i];
        if (seq->group->row < 0)
            continue;
        if (seq->sampling->record_top_k > r->top_k)
            r->top_k = seq->sampling->record_top_k;
    }
    return kg_rollout_head(r, r->workers[0].rows, 0, err);
}

/* The first token, or the end of a sequence that gets none. */
static kg_status begin_answer(struct kg_rollout *r, struct kg_seq *seq,
                              struct kg_err *err)
{
    const struct kg_group *g = seq->group;
    struct kg_sampler_pick *pick = &r->picks[0];
    if (g->status == KG_OK && seq->limit > 0) {
        KG_TRY(copy_blocks(r, seq, err));
        kg_rollout_draw(pick, r, &r->workers[0], seq, g->row);
        return kg_rollout_commit(r, seq, pick, g->row, err);
    }
    seq->ended = true;
    seq->status = g->status;
    if (g->status != KG_OK)
        seq->err = g->err;
    else
        seq->traj->finish = KG_FINISH_LENGTH;
    return KG_OK;
}

static kg_status draw_first(struct kg_rollout *r, struct kg_err *err)
{
    r->committing = true;
    for (int32_t i = 0; i < r->n_starting; i++) {
        struct kg_seq *seq = r->starting[i];
        if (seq->group->row < 0 || seq->silent)
            continue;
        KG_TRY(begin_answer(r, seq, err));
    }
    r->committing = false;
    kg_rollout_purge(r);
    return KG_OK;
}

/* Those that have their first token leave `starting`. */
static void move_on(struct kg_rollout *r)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < r->n_starting; i++) {
        struct kg_seq *seq = r->starting[i];
        if (seq->group->row < 0) {
            r->starting[kept++] = seq;
            continue;
        }
        seq->group->waiting--;
        seq->state = KG_SEQ_RUNNING;
        if (seq->ended)
            kg_rollout_end(r, seq);
        else
            r->running[r->n_running++] = seq;
    }
    r->n_starting = kept;
}

void kg_rollout_close_groups(struct kg_rollout *r)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < r->n_groups; i++) {
        struct kg_group *g = r->order[i];
        if (g->waiting > 0 || g == r->open) {
            r->order[i] = r->order[kept];
            r->order[kept++] = g;
            continue;
        }
        for (int32_t b = 0; b < g->n_blocks; b++)
            kg_kv_drop(r->kv, g->blocks[b]);
    }
    r->n_groups = kept;
}

/* The rows are used up; that of the open group is laid aside for samples to come. */
static kg_status settle_groups(struct kg_rollout *r, struct kg_err *err)
{
    struct kg_group *g = r->open;
    if (g && g->row >= 0)
        KG_TRY(kg_rows_hold(r->workers[0].rows, g->row, err));
    for (int32_t i = 0; i < r->n_groups; i++)
        r->order[i]->row = -1;
    kg_rollout_close_groups(r);
    return KG_OK;
}

static kg_status first_tokens(struct kg_rollout *r, struct kg_err *err)
{
    if (r->workers[0].rows->n_rows == 0)
        return KG_OK;
    KG_TRY(head_of_ready(r, err));
    KG_TRY(draw_first(r, err));
    move_on(r);
    return settle_groups(r, err);
}

kg_status kg_rollout_admit(struct kg_rollout *r, struct kg_err *err)
{
    bool again = true;
    while (again) {
        double start = kg_clock_seconds();
        KG_TRY(plan(r, err));
        if (r->n_starting == 0)
            return KG_OK;
        KG_TRY(prefill(r, err));
        KG_TRY(first_tokens(r, err));
        r->stats.prefill_seconds += kg_clock_seconds() - start;
        KG_TRY(kg_rollout_report(r, err));
        again = !r->session.steady;
    }
    return KG_OK;
}
