/* What callers ask of an open engine: submit, cancel, resume, close; and the ends of
 * sequences that answer them.
 *
 * A sequence leaves running[] and starting[] only between passes: while token callbacks
 * are called it is marked silent and taken out afterwards.
 */
#include "base/mem.h"
#include "rollout/rollout_internal.h"

#include <assert.h>
#include <string.h>

enum { MOST_PENDING = 1 << 28 };

/* ---- places ---- */

void kg_rollout_reset(struct kg_rollout *r)
{
    kg_kv_clear(r->kv);
    r->pending_at = r->pending_n = 0;
    r->n_waiting = 0;
    r->n_running = r->n_starting = r->n_resuming = r->n_over = r->n_parked = 0;
    r->n_groups = 0;
    r->open = NULL;
    r->committing = r->any_silent = false;
    r->n_spare = r->opts.max_open;
    for (int32_t i = 0; i < r->opts.max_open; i++) {
        r->seqs[i].state = KG_SEQ_FREE;
        r->spare[i] = &r->seqs[r->opts.max_open - 1 - i];
    }
    for (int32_t i = 0; i <= r->opts.max_batch; i++)
        r->order[i] = &r->groups[i];
}

/* Blocks and place go back. */
static void release_seq(struct kg_rollout *r, struct kg_seq *seq)
{
    for (int32_t b = 0; b < seq->n_blocks; b++)
        kg_kv_drop(r->kv, seq->blocks[b]);
    seq->n_blocks = 0;
    seq->state = KG_SEQ_FREE;
    r->spare[r->n_spare++] = seq;
}

/* Only episodes that did not fail have a use for their keys. */
void kg_rollout_end(struct kg_rollout *r, struct kg_seq *seq)
{
    bool parks = seq->request->context > 0 && seq->status == KG_OK;
    for (int32_t b = 0; !parks && b < seq->n_blocks; b++)
        kg_kv_drop(r->kv, seq->blocks[b]);
    if (!parks)
        seq->n_blocks = 0;
    seq->state = KG_SEQ_ENDED;
    r->over[r->n_over++] = seq;
}

static kg_status report_one(struct kg_rollout *r, struct kg_seq *seq, struct kg_err *err)
{
    const struct kg_request *q = seq->request;
    struct kg_traj *t = seq->traj;
    struct kg_err failure = {0};
    bool failed = seq->status != KG_OK;
    bool silent = seq->silent;
    if (failed)
        failure = seq->err;
    if (silent || failed || q->context == 0) {
        release_seq(r, seq);
    } else {
        seq->state = KG_SEQ_PARKED;
        r->n_parked++;
    }
    if (silent || r->session.finished == NULL)
        return KG_OK;
    return r->session.finished(r->session.user, q, t, failed ? &failure : NULL, err);
}

kg_status kg_rollout_report(struct kg_rollout *r, struct kg_err *err)
{
    for (int32_t i = 0; i < r->n_over; i++)
        KG_TRY(report_one(r, r->over[i], err));
    r->n_over = 0;
    return KG_OK;
}

static void take_out(struct kg_seq **list, int32_t *n, const struct kg_seq *seq)
{
    int32_t i = 0;
    while (list[i] != seq)
        i++;
    (*n)--;
    memmove(list + i, list + i + 1, (size_t)(*n - i) * sizeof *list);
}

/* Forget a sequence, whatever it does. */
static void drop(struct kg_rollout *r, struct kg_seq *seq)
{
    bool in_pass = seq->state == KG_SEQ_RUNNING || seq->state == KG_SEQ_STARTING;
    if (seq->state == KG_SEQ_ENDED || (in_pass && r->committing)) {
        seq->silent = r->any_silent = true;
        return;
    }
    if (seq->state == KG_SEQ_RUNNING)
        take_out(r->running, &r->n_running, seq);
    if (seq->state == KG_SEQ_RESUMING)
        take_out(r->resuming, &r->n_resuming, seq);
    if (seq->state == KG_SEQ_PARKED)
        r->n_parked--;
    if (seq->state == KG_SEQ_STARTING) {
        take_out(r->starting, &r->n_starting, seq);
        seq->group->waiting--;
        kg_rollout_close_groups(r);
    }
    release_seq(r, seq);
}

void kg_rollout_purge(struct kg_rollout *r)
{
    if (!r->any_silent)
        return;
    for (int32_t i = r->n_running - 1; i >= 0; i--)
        if (r->running[i]->silent)
            drop(r, r->running[i]);
    for (int32_t i = r->n_starting - 1; i >= 0; i--)
        if (r->starting[i]->silent)
            drop(r, r->starting[i]);
    r->any_silent = false;
}

static struct kg_seq *find(const struct kg_rollout *r, const struct kg_traj *t)
{
    for (int32_t i = 0; i < r->opts.max_open; i++)
        if (r->seqs[i].state != KG_SEQ_FREE && r->seqs[i].traj == t && !r->seqs[i].silent)
            return &r->seqs[i];
    return NULL;
}

/* ---- checks ---- */

static kg_status check_tokens(const struct kg_rollout *r, const int32_t *tokens, size_t n,
                              struct kg_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= r->m->config.vocab)
            return kg_fail(err, KG_EINVAL,
                           "token %zu is %d, expected an id between 0 and %d", i,
                           tokens[i], r->m->config.vocab - 1);
    return KG_OK;
}

static kg_status check_cache(const struct kg_rollout *r, const struct kg_request *q,
                             struct kg_err *err)
{
    int32_t need = kg_rollout_need(r, q) + kg_rollout_copies(q);
    if (need <= r->kv->n_blocks)
        return KG_OK;
    return kg_fail(
        err, KG_EINVAL,
        "%zu tokens of prompt and up to %lld new ones need a cache of %d tokens, it "
        "has %d",
        q->prompt_n, (long long)kg_rollout_longest(r, q) - (long long)q->prompt_n,
        need * KG_KV_BLOCK, r->kv->n_blocks * KG_KV_BLOCK);
}

static kg_status check_room(const struct kg_rollout *r, const struct kg_request *q,
                            struct kg_err *err)
{
    int32_t limit = kg_rollout_first_limit(r, q);
    int32_t most = q->context > 0 && q->context < r->opts.max_len ? q->context
                                                                  : r->opts.max_len;
    if (q->context > r->opts.max_len)
        return kg_fail(err, KG_EINVAL,
                       "an episode of up to %d tokens passes the limit of %d tokens",
                       q->context, r->opts.max_len);
    if (q->prompt_n + (size_t)limit > (size_t)most)
        return kg_fail(
            err, KG_EINVAL,
            "%zu tokens of prompt and up to %d new ones pass the limit of %d tokens",
            q->prompt_n, limit, most);
    return check_cache(r, q, err);
}

static kg_status check_bias(const struct kg_rollout *r, const struct kg_adjust *a,
                            struct kg_err *err)
{
    int32_t V = r->m->config.vocab;
    for (size_t i = 0; a && i < a->n_bias; i++)
        if (a->bias[i].id < 0 || a->bias[i].id >= V)
            return kg_fail(err, KG_EINVAL,
                           "a bias is for id %d, expected an id between 0 and %d",
                           a->bias[i].id, V - 1);
    return KG_OK;
}

static kg_status check_sampling(const struct kg_rollout *r, const struct kg_sampling *s,
                                struct kg_err *err)
{
    if (s == NULL)
        return kg_fail(err, KG_EINVAL,
                       "expected sampling parameters of the request or the session, "
                       "found none");
    KG_TRY(kg_sampler_check(s, err));
    if (s->n_stops > 0 && r->tok == NULL)
        return kg_fail(err, KG_EINVAL,
                       "stop strings need a tokenizer, and the model has none");
    if (s->record_top_k < 0 || s->record_top_k > r->m->config.vocab)
        return kg_fail(err, KG_EINVAL,
                       "ids to record with a token must be between 0 and the "
                       "vocabulary's %d, it is %d",
                       r->m->config.vocab, s->record_top_k);
    return check_bias(r, s->adjust, err);
}

static kg_status check_window(const struct kg_request *q, struct kg_err *err)
{
    if (q->window == 0 ||
        (q->window > 0 && q->context > 0 && (size_t)q->window >= q->prompt_n))
        return KG_OK;
    return kg_fail(
        err, KG_EINVAL,
        "expected a window of at least the prompt's %zu tokens, in an episode, "
        "found one of %d in a context of %d",
        q->prompt_n, q->window, q->context);
}

static kg_status check_request(const struct kg_rollout *r, const struct kg_request *q,
                               struct kg_err *err)
{
    if (q->prompt_n == 0)
        return kg_fail(err, KG_EINVAL,
                       "expected at least one token, found an empty prompt");
    bool limited = q->max_tokens >= 0 ||
                   (q->max_tokens == KG_PROMPT_ONLY && q->context == 0);
    if (q->n_samples < 1 || !limited || q->first_sample < 0 || q->context < 0)
        return kg_fail(err, KG_EINVAL,
                       "expected at least one sample, and a limit, a first sample and a "
                       "context of at least 0, found %d, %d, %d and %d",
                       q->n_samples, q->max_tokens, q->first_sample, q->context);
    KG_TRY(check_window(q, err));
    KG_TRY(check_sampling(r, kg_rollout_sampling(r, q), err));
    KG_TRY(check_tokens(r, q->prompt, q->prompt_n, err));
    return check_room(r, q, err);
}

/* ---- submit ---- */

/* Room for what its sampling records. */
static kg_status grow_top_k(struct kg_rollout *r, int top_k, struct kg_err *err)
{
    if (top_k <= r->top_capacity)
        return KG_OK;
    size_t n = (size_t)r->opts.max_batch * (size_t)top_k;
    int32_t *ids = kg_mem_calloc(n, sizeof *ids, "rollout engine", err);
    float *logp = ids ? kg_mem_calloc(n, sizeof *logp, "rollout engine", err) : NULL;
    if (logp == NULL) {
        kg_mem_free(ids);
        return err->code;
    }
    kg_mem_free(r->top_ids);
    kg_mem_free(r->top_logp);
    r->top_ids = ids;
    r->top_logp = logp;
    r->top_capacity = top_k;
    return KG_OK;
}

static kg_status grow_scratch(struct kg_rollout *r, const struct kg_sampling *s,
                              struct kg_err *err)
{
    int32_t V = r->m->config.vocab;
    for (int i = 0; i < r->n_workers; i++)
        KG_TRY(kg_sampler_scratch_grow(&r->workers[i].scratch, s, V, err));
    return KG_OK;
}

static kg_status push_pending(struct kg_rollout *r, const struct kg_pending *p,
                              struct kg_err *err)
{
    if (r->pending_at > 0 && r->pending_at + r->pending_n == r->pending_capacity) {
        memmove(r->pending, r->pending + r->pending_at, r->pending_n * sizeof *p);
        r->pending_at = 0;
    }
    size_t end = r->pending_at + r->pending_n;
    KG_TRY(kg_mem_grow(&r->pending, &r->pending_capacity, end + 1, sizeof *p,
                       MOST_PENDING, "queue of requests", err));
    r->pending[end] = *p;
    r->pending_n++;
    r->n_waiting += p->request->n_samples;
    return KG_OK;
}

kg_status kg_rollout_submit(struct kg_rollout *r, const struct kg_request *q,
                            struct kg_traj *trajs, struct kg_err *err)
{
    assert(!r->committing);
    if (check_request(r, q, err) != KG_OK)
        return kg_err_prefix(err, "prompt %lld", (long long)q->prompt_index);
    const struct kg_sampling *s = kg_rollout_sampling(r, q);
    KG_TRY(grow_top_k(r, s->record_top_k, err));
    KG_TRY(grow_scratch(r, s, err));
    return push_pending(r, &(struct kg_pending){q, trajs}, err);
}

/* ---- cancel ---- */

static bool is_within(const struct kg_traj *t, const struct kg_traj *trajs, int32_t from,
                      int32_t n)
{
    for (int32_t i = from; i < n; i++)
        if (t == &trajs[i])
            return true;
    return false;
}

static bool all_cancelled(const struct kg_pending *p)
{
    for (int32_t i = 0; i < p->request->n_samples; i++)
        if (p->trajs[i].finish != KG_FINISH_CANCELLED)
            return false;
    return true;
}

void kg_rollout_skip_cancelled(struct kg_rollout *r, struct kg_group *g)
{
    while (g->started < g->request->n_samples &&
           g->trajs[g->started].finish == KG_FINISH_CANCELLED)
        g->started++;
    if (r->open == g && g->started == g->request->n_samples)
        r->open = NULL;
}

/* One that has not started. */
static void cancel_waiting(struct kg_rollout *r, struct kg_traj *t)
{
    struct kg_group *g = r->open;
    if (t->finish != KG_FINISH_NONE)
        return;
    if (g && is_within(t, g->trajs, g->started, g->request->n_samples)) {
        t->finish = KG_FINISH_CANCELLED;
        r->n_waiting--;
        kg_rollout_skip_cancelled(r, g);
        if (!r->committing)
            kg_rollout_close_groups(r);
        return;
    }
    for (size_t i = r->pending_at; i < r->pending_at + r->pending_n; i++) {
        struct kg_pending *p = &r->pending[i];
        if (!is_within(t, p->trajs, 0, p->request->n_samples))
            continue;
        t->finish = KG_FINISH_CANCELLED;
        r->n_waiting--;
        if (all_cancelled(p)) {
            r->pending_n--;
            memmove(p, p + 1, (r->pending_at + r->pending_n - i) * sizeof *p);
        }
        return;
    }
}

void kg_rollout_cancel(struct kg_rollout *r, struct kg_traj *trajs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct kg_seq *seq = find(r, &trajs[i]);
        if (seq == NULL) {
            cancel_waiting(r, &trajs[i]);
            continue;
        }
        trajs[i].finish = KG_FINISH_CANCELLED;
        drop(r, seq);
    }
}

/* ---- episodes ---- */

void kg_rollout_close(struct kg_rollout *r, struct kg_traj *t)
{
    struct kg_seq *seq = find(r, t);
    if (seq)
        drop(r, seq);
}

static kg_status check_turn(const struct kg_rollout *r, const struct kg_seq *seq,
                            const int32_t *tokens, size_t n, int32_t limit,
                            struct kg_err *err)
{
    KG_TRY(check_tokens(r, tokens, n, err));
    if (seq->traj->n + n + (size_t)limit > (size_t)seq->request->context)
        return kg_fail(err, KG_EINVAL,
                       "%zu tokens so far, an observation of %zu and up to %d new ones "
                       "pass the episode's %d tokens",
                       seq->traj->n, n, limit, seq->request->context);
    if (kg_rollout_rewinds(seq->request) &&
        limit > kg_rollout_first_limit(r, seq->request))
        return kg_fail(err, KG_EINVAL,
                       "a turn of %d new tokens passes the first turn's %d, which the "
                       "window of %d has room for",
                       limit, kg_rollout_first_limit(r, seq->request),
                       seq->request->window);
    return KG_OK;
}

/* Where the text has outgrown the window, its keys are of other positions: the newest
 * tokens are computed again. Else only what has no key yet. The last token was sampled
 * and never fed. */
static kg_status place(struct kg_seq *seq, const int32_t *tokens, size_t n,
                       struct kg_err *err)
{
    struct kg_traj *t = seq->traj;
    int32_t window = seq->request->window, fed = (int32_t)t->n - 1;
    KG_TRY(kg_traj_append(t, tokens, n, KG_SOURCE_TOOL, err));
    seq->cached = fed - seq->base;
    if (window == 0 || t->n <= (size_t)window)
        return KG_OK;
    KG_TRY(kg_traj_open_window(t, t->n - (size_t)window, err));
    seq->base = (int32_t)t->n - window;
    seq->cached = 0;
    return KG_OK;
}

kg_status kg_rollout_resume(struct kg_rollout *r, struct kg_traj *t,
                            const int32_t *tokens, size_t n, int32_t max_tokens,
                            struct kg_err *err)
{
    struct kg_seq *seq = find(r, t);
    assert(!r->committing);
    if (seq == NULL || seq->state != KG_SEQ_PARKED)
        return kg_fail(err, KG_EINVAL,
                       "expected an episode between two turns, found prompt %lld, "
                       "sample %d, which is not parked",
                       (long long)t->prompt_index, t->sample);
    int32_t limit = kg_rollout_limit(seq->sampling, max_tokens);
    if (check_turn(r, seq, tokens, n, limit, err) != KG_OK)
        return kg_err_prefix(err, "prompt %lld, sample %d", (long long)t->prompt_index,
                             t->sample);
    KG_TRY(place(seq, tokens, n, err));
    t->finish = KG_FINISH_NONE;
    kg_str_clear(&seq->text);
    seq->limit = seq->generated + limit;
    seq->ended = false;
    seq->state = KG_SEQ_RESUMING;
    r->n_parked--;
    r->resuming[r->n_resuming++] = seq;
    return KG_OK;
}

void kg_rollout_get_load(struct kg_rollout_load *load, const struct kg_rollout *r)
{
    *load = (struct kg_rollout_load){.running = r->n_running + r->n_starting,
                                     .waiting = r->n_waiting + r->n_resuming,
                                     .parked = r->n_parked};
}
