/* The session: requests to an open engine, and its replies.
 *
 * A step is two passes. Admission: the scheduler selects samples to start, the executor
 * computes their prompts, and each draws its first token. Decoding: one token for every
 * running sequence. This file connects the two, which do not know each other: it holds
 * the trajectories, provides inputs and sampling, appends drawn tokens with their
 * records, decides whether a turn is over, and calls back.
 *
 * A callback may cancel any request, even one of the current pass; it is removed at once.
 * So no loop that calls back may keep a position in a list. It takes the next entry from
 * the front, or goes over the slots that ran at its start and skips those that do not run
 * any more; a free slot stays free until the next admission.
 */
#include "rollout/rollout_internal.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/phase.h"
#include "base/signal.h"
#include "rollout/rollout.h"

#include <assert.h>
#include <string.h>

/* ---- life ---- */

void kg_rollout_free(struct kg_rollout *r)
{
    if (r == NULL)
        return;
    for (int32_t i = 0; r->seqs && i < r->opts.max_open; i++)
        kg_str_release(&r->seqs[i].text);
    kg_mem_free(r->seqs);
    for (int32_t i = 0; r->experts && i <= r->opts.max_batch; i++)
        kg_mem_free(r->experts[i].ids);
    kg_mem_free(r->experts);
    kg_sched_release(&r->sched);
    kg_exec_release(&r->exec);
    kg_mem_free(r);
}

static kg_status check_opts(const struct kg_rollout_opts *o, struct kg_err *err)
{
    if (o->max_batch < 1 || o->max_batch > 65536)
        return kg_fail(err, KG_EINVAL, "max batch: expected 1 to 65536, found %d",
                       o->max_batch);
    if (o->prefill_chunk < 0 || o->prefill_chunk > 1 << 20)
        return kg_fail(err, KG_EINVAL, "prefill chunk: expected 0 to %d, found %d",
                       1 << 20, o->prefill_chunk);
    if (o->max_len < 2)
        return kg_fail(err, KG_EINVAL,
                       "longest sequence: expected at least 2 tokens, found %d",
                       o->max_len);
    if (o->max_open != 0 && (o->max_open < o->max_batch || o->max_open > 1 << 20))
        return kg_fail(err, KG_EINVAL,
                       "open sequences: expected 0, or the batch's %d to %d, found %d",
                       o->max_batch, 1 << 20, o->max_open);
    if (o->kv_tokens < 0 || o->kv_tokens / KG_KV_BLOCK > INT32_MAX / KG_KV_BLOCK - 1)
        return kg_fail(err, KG_EINVAL, "cache: expected 0 to %d tokens, found %lld",
                       INT32_MAX - 2 * KG_KV_BLOCK, (long long)o->kv_tokens);
    return KG_OK;
}

int64_t kg_rollout_kv_tokens(int32_t n, int32_t max_len)
{
    return ((int64_t)n * kg_kv_entries(max_len) + 1) * KG_KV_BLOCK;
}

/* Replaces zeros by defaults. */
static struct kg_rollout_opts filled(const struct kg_rollout_opts *opts)
{
    struct kg_rollout_opts o = *opts;
    o.prefill_chunk = o.prefill_chunk > 0 ? o.prefill_chunk : 512;
    o.max_open = o.max_open > 0 ? o.max_open : o.max_batch;
    o.kv_tokens = o.kv_tokens > 0 ? o.kv_tokens
                                  : kg_rollout_kv_tokens(o.max_open, o.max_len);
    return o;
}

/* Blocks of layers with a window that a sequence needs: while it decodes, or with `chunk`
 * while its prompt is computed. */
static int64_t seen_blocks(const struct kg_model *m, const struct kg_rollout_opts *o,
                           bool chunk)
{
    return kg_kv_round(kg_kv_entries(o->max_len), m->config.window,
                       chunk || o->episodes ? o->prefill_chunk : 1);
}

/* Blocks of the cache. For layers with a window at most those that can be in use: a table
 * for each of max_open sequences and one for a prompt (two of them as long as a chunk
 * needs), and for every four sequences one more, for prompt blocks that samples share. */
static struct kg_kv_size blocks_of(const struct kg_model *m,
                                   const struct kg_rollout_opts *o)
{
    int64_t asked = kg_kv_entries(o->kv_tokens);
    int64_t most = (o->max_open - 1 + o->max_open / 4) * seen_blocks(m, o, false) +
                   2 * seen_blocks(m, o, true);
    struct kg_kv_size n = {0};
    if (kg_kv_used(&m->config, KG_KV_ALL))
        n.of[KG_KV_ALL] = asked;
    if (kg_kv_used(&m->config, KG_KV_WINDOW))
        n.of[KG_KV_WINDOW] = asked < most ? asked : most;
    return n;
}

int64_t kg_rollout_kv_sequences(const struct kg_model *m,
                                const struct kg_rollout_opts *opts)
{
    const struct kg_rollout_opts o = filled(opts);
    const struct kg_kv_size n = blocks_of(m, &o);
    const int64_t all = n.of[KG_KV_ALL], seen = n.of[KG_KV_WINDOW];
    int64_t whole = INT64_MAX;
    if (kg_kv_used(&m->config, KG_KV_ALL))
        whole = all > 0 ? (all - 1) / kg_kv_entries(o.max_len) : 0;
    if (kg_kv_used(&m->config, KG_KV_WINDOW) && seen / seen_blocks(m, &o, false) < whole)
        whole = seen / seen_blocks(m, &o, false);
    return whole;
}

static kg_status cache_blocks(struct kg_kv_size *n, const struct kg_model *m,
                              const struct kg_rollout *r, struct kg_err *err)
{
    *n = blocks_of(m, &r->opts);
    for (int kind = 0; kind < KG_KV_KINDS; kind++)
        if (n->of[kind] > INT32_MAX / KG_KV_BLOCK)
            return kg_fail(
                err, KG_EINVAL,
                "a cache for %d sequences of %d tokens is larger than %d tokens: lower "
                "the batch or give the cache a size",
                r->opts.max_open, r->opts.max_len, INT32_MAX);
    return KG_OK;
}

struct kg_bytes kg_rollout_memory(uint64_t *cache, const struct kg_model *m,
                                  const struct kg_rollout_opts *opts)
{
    const struct kg_rollout_opts o = filled(opts);
    struct kg_bytes b = kg_exec_memory(m, &o);
    *cache = kg_kv_bytes(m, kg_exec_blocks(m, blocks_of(m, &o)));
    b.there += *cache;
    return b;
}

static kg_status init_parts(struct kg_rollout *r, const struct kg_model *m,
                            struct kg_err *err)
{
    const struct kg_rollout_opts *o = &r->opts;
    struct kg_sched_opts sched = {.max_batch = o->max_batch,
                                  .max_open = o->max_open,
                                  .blocks_per_seq = (int32_t)kg_kv_entries(o->max_len)};
    r->seqs = kg_mem_calloc((size_t)o->max_open, sizeof *r->seqs, "rollout engine", err);
    if (r->seqs == NULL)
        return err->code;
    r->experts = kg_mem_calloc((size_t)o->max_batch + 1, sizeof *r->experts,
                               "rollout engine", err);
    if (r->experts == NULL)
        return err->code;
    KG_TRY(cache_blocks(&sched.n_blocks, m, r, err));
    KG_TRY(kg_sched_init(&r->sched, &sched, err));
    r->limits = (struct kg_request_limits){.vocab = m->config.vocab,
                                           .choices = kg_model_config_choices(&m->config),
                                           .n_adapters = m->n_others,
                                           .max_len = o->max_len,
                                           .n_blocks = sched.n_blocks,
                                           .seen = m->config.window,
                                           .chunk = o->prefill_chunk,
                                           .stops = r->tok != NULL};
    return kg_exec_init(&r->exec, m, o, sched.n_blocks, err);
}

kg_status kg_rollout_create(struct kg_rollout **out, const struct kg_model *m,
                            const struct kg_tokenizer *tok,
                            const struct kg_rollout_opts *opts, struct kg_err *err)
{
    kg_status status;
    *out = NULL;
    KG_TRY(check_opts(opts, err));
    struct kg_rollout *r = kg_mem_calloc(1, sizeof *r, "rollout engine", err);
    if (r == NULL)
        return err->code;
    r->tok = tok;
    r->opts = filled(opts);
    status = init_parts(r, m, err);
    if (status == KG_OK)
        *out = r;
    else
        kg_rollout_free(r);
    return status;
}

kg_status kg_rollout_begin(struct kg_rollout *r, const struct kg_rollout_session *s,
                           struct kg_err *err)
{
    memset(&r->stats, 0, sizeof r->stats);
    r->longest = 0;
    r->session = *s;
    r->limits.sampling = s->sampling;
    kg_sched_clear(&r->sched);
    return kg_exec_begin(&r->exec, err);
}

/* ---- the queue ---- */

kg_status kg_rollout_submit(struct kg_rollout *r, const struct kg_request *q,
                            struct kg_traj *trajs, struct kg_err *err)
{
    assert(!r->telling);
    if (kg_request_check(q, &r->limits, err) != KG_OK)
        return kg_err_prefix(err, "prompt %lld", (long long)q->prompt_index);
    struct kg_job job = kg_request_job(q, trajs, &r->limits);
    KG_TRY(kg_exec_reserve(&r->exec, kg_request_sampling(q, &r->limits), err));
    return kg_sched_submit(&r->sched, &job, err);
}

/* The slot of a trajectory; -1: it has none. */
static int32_t find(const struct kg_rollout *r, const struct kg_traj *t)
{
    for (int32_t i = 0; i < r->opts.max_open; i++)
        if (r->sched.slots[i].state != KG_SLOT_FREE && r->seqs[i].traj == t)
            return i;
    return -1;
}

/* Cancels a trajectory that has not started. */
static void cancel_waiting(struct kg_rollout *r, struct kg_traj *t)
{
    struct kg_job *job;
    for (size_t i = 0; (job = kg_sched_job(&r->sched, i)) != NULL; i++) {
        for (int32_t k = job->next; k < job->request->n_samples; k++)
            if (t == &job->trajs[k]) {
                t->finish = KG_FINISH_CANCELLED;
                kg_sched_withdraw(&r->sched, job);
                return;
            }
    }
}

void kg_rollout_cancel(struct kg_rollout *r, struct kg_traj *trajs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int32_t slot = find(r, &trajs[i]);
        if (slot >= 0) {
            trajs[i].finish = KG_FINISH_CANCELLED;
            kg_sched_move(&r->sched, slot, KG_SLOT_FREE);
        } else if (trajs[i].finish == KG_FINISH_NONE) {
            cancel_waiting(r, &trajs[i]);
        }
    }
}

void kg_rollout_close(struct kg_rollout *r, struct kg_traj *t)
{
    int32_t slot = find(r, t);
    if (slot >= 0)
        kg_sched_move(&r->sched, slot, KG_SLOT_FREE);
}

/* Appends an observation. If the text is now longer than the window, its newest tokens
 * get new positions, so all are computed again. Otherwise only tokens without keys are:
 * the last sampled token, which was never fed, and the observation. */
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
    int32_t slot = find(r, t);
    assert(!r->telling);
    if (slot < 0 || r->sched.slots[slot].state != KG_SLOT_PARKED)
        return kg_fail(err, KG_EINVAL,
                       "expected an episode between two turns, found prompt %lld, "
                       "sample %d, which is not parked",
                       (long long)t->prompt_index, t->sample);
    struct kg_seq *seq = &r->seqs[slot];
    int32_t limit = max_tokens > 0 ? max_tokens : seq->sampling->max_tokens;
    if (kg_request_check_turn(seq->request, &r->limits, t->n, tokens, n, limit, err) !=
        KG_OK)
        return kg_err_prefix(err, "prompt %lld, sample %d", (long long)t->prompt_index,
                             t->sample);
    KG_TRY(place(seq, tokens, n, err));
    t->finish = KG_FINISH_NONE;
    kg_str_clear(&seq->text);
    seq->limit = seq->generated + limit;
    kg_sched_move(&r->sched, slot, KG_SLOT_RESUMING);
    return KG_OK;
}

/* ---- a token ---- */

/* Sets the step that draws a sequence's next token; if that token is already in flight,
 * the token after it.   from: row of the token in flight; -1: none */
static void aim(struct kg_exec_step *step, const struct kg_rollout *r, int32_t slot,
                int32_t from)
{
    const struct kg_seq *seq = &r->seqs[slot];
    const struct kg_traj *t = seq->traj;
    int32_t unseen = from >= 0;
    step->who = slot;
    step->token = t->tokens + t->n - 1;
    step->from = from;
    step->pos = (int32_t)t->n - 1 - seq->base + unseen;
    step->blocks = kg_tables_of(r->sched.slots[slot].table);
    step->adapter = seq->request->adapter;
    step->sampling = seq->sampling;
    step->text = t->tokens;
    step->n_text = t->n;
    step->n_prompt = t->prompt_n;
    step->u = kg_rng_uniform(seq->sampling->rng, seq->request->draw, (uint32_t)t->sample,
                             (uint32_t)(seq->request->drawn + seq->generated + unseen));
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

static bool ends_by_id(const struct kg_rollout *r, const struct kg_sampling *s,
                       int32_t token)
{
    if (!s->ignore_eos && kg_model_config_is_eos(&r->exec.m->config, token))
        return true;
    for (size_t i = 0; i < s->n_stop_ids; i++)
        if (s->stop_ids[i] == token)
            return true;
    return false;
}

static kg_status append(const struct kg_rollout *r, struct kg_seq *seq,
                        const struct kg_exec_step *step)
{
    struct kg_traj *t = seq->traj;
    const struct kg_sampler_pick *pick = &step->pick;
    const struct kg_traj_step new = {.token = pick->token,
                                     .logp = pick->logp,
                                     .cut = pick->cut,
                                     .kept = pick->kept,
                                     .top_ids = step->top_ids,
                                     .top_logp = step->top_logp};
    bool stopped;
    if (step->experts) /* of the fed token */
        kg_traj_route(t, t->n - 1, 1, step->experts);
    KG_TRY(kg_traj_push(t, &new, &seq->err));
    KG_TRY(check_stop(&stopped, r, seq, pick->token));
    seq->generated++;
    if (ends_by_id(r, seq->sampling, pick->token))
        t->finish = KG_FINISH_STOP;
    else if (stopped)
        t->finish = KG_FINISH_STRING;
    else if (seq->generated == seq->limit)
        t->finish = KG_FINISH_LENGTH;
    return KG_OK;
}

/* The first table entry that the newest token sees in layers with a window. */
static int32_t first_seen(const struct kg_rollout *r, const struct kg_seq *seq)
{
    int64_t pos = (int64_t)seq->traj->n - 1 - seq->base;
    return (int32_t)kg_kv_first_seen(pos, r->limits.seen);
}

/* Appends the drawn token with its records, decides whether the turn is over, and calls
 * back.   errors: those of the callback */
static kg_status commit(struct kg_rollout *r, int32_t slot,
                        const struct kg_exec_step *step, struct kg_err *err)
{
    struct kg_seq *seq = &r->seqs[slot];
    struct kg_traj *t = seq->traj;
    kg_status status = KG_OK;
    seq->status = step->status;
    if (step->status == KG_OK) {
        seq->status = append(r, seq, step);
    } else {
        seq->err = step->err;
        kg_err_prefix(&seq->err, "prompt %lld, sample %d, new token %d",
                      (long long)seq->request->prompt_index, t->sample, seq->generated);
    }
    r->longest = t->n > r->longest ? t->n : r->longest;
    bool goes_on = seq->status == KG_OK && t->finish == KG_FINISH_NONE;
    kg_sched_pass(&r->sched, slot, first_seen(r, seq));
    bool starts = r->sched.slots[slot].state == KG_SLOT_STARTING;
    if (!goes_on || starts)
        kg_sched_move(&r->sched, slot, goes_on ? KG_SLOT_RUNNING : KG_SLOT_ENDED);
    if (starts) {
        seq->since = r->exec.launched;
        seq->row = -1;
    }
    r->telling = true;
    if (seq->status == KG_OK && r->session.token)
        status = r->session.token(r->session.user, seq->request, t, err);
    r->telling = false;
    return status;
}

/* ---- reports ---- */

static kg_status report_one(struct kg_rollout *r, int32_t slot, struct kg_err *err)
{
    const struct kg_request *q = r->seqs[slot].request;
    struct kg_traj *t = r->seqs[slot].traj;
    struct kg_err failure = r->seqs[slot].err;
    bool failed = r->seqs[slot].status != KG_OK;
    bool parks = !failed && q->context > 0;
    kg_sched_move(&r->sched, slot, parks ? KG_SLOT_PARKED : KG_SLOT_FREE);
    if (r->session.finished == NULL)
        return KG_OK;
    return r->session.finished(r->session.user, q, t, failed ? &failure : NULL, err);
}

static kg_status report(struct kg_rollout *r, struct kg_err *err)
{
    const struct kg_list *over = &r->sched.in[KG_SLOT_ENDED];
    while (over->n > 0)
        KG_TRY(report_one(r, over->at[0], err));
    return KG_OK;
}

/* ---- admission ---- */

static struct kg_exec_prompt *prompt_of(const struct kg_rollout *r, int32_t slot)
{
    return &r->exec.prompts[r->sched.slots[slot].group];
}

/* Makes room for the experts of a group's tokens, if they are recorded. */
static kg_status experts_room(struct kg_rollout *r, int32_t group, struct kg_err *err)
{
    struct kg_group_experts *e = &r->experts[group];
    struct kg_exec_prompt *p = &r->exec.prompts[group];
    size_t n = (size_t)p->n * (size_t)kg_model_config_choices(&r->exec.m->config);
    if (!p->sampling->record_experts)
        return KG_OK;
    KG_TRY(kg_mem_grow(&e->ids, &e->room, n, sizeof *e->ids, SIZE_MAX / 2,
                       "rollout engine", err));
    p->experts = e->ids;
    return KG_OK;
}

/* Sets what to compute before the samples of a new group, or a resumed one, can draw. */
static kg_status begin_group(struct kg_rollout *r, int32_t group, struct kg_err *err)
{
    const struct kg_group *g = &r->sched.groups[group];
    const struct kg_request *q = g->job.request;
    const struct kg_seq *seq = g->resumed >= 0 ? &r->seqs[g->resumed] : NULL;
    if (seq == NULL)
        r->exec.prompts[group] = (struct kg_exec_prompt){
            .tokens = q->prompt,
            .n = (int32_t)q->prompt_n,
            .blocks = kg_tables_of(g->table),
            .adapter = q->adapter,
            .sampling = kg_request_sampling(q, &r->limits),
            .scores = q->scores,
            .index = q->prompt_index};
    else
        r->exec.prompts[group] = (struct kg_exec_prompt){
            .tokens = seq->traj->tokens + seq->base,
            .n = (int32_t)seq->traj->n - seq->base,
            .cached = seq->cached,
            .blocks = kg_tables_of(r->sched.slots[g->resumed].table),
            .adapter = seq->request->adapter,
            .sampling = seq->sampling};
    return experts_room(r, group, err);
}

/* Begins the next sample of the slot's request: its sequence and its trajectory. */
static kg_status begin_sample(struct kg_rollout *r, int32_t slot, struct kg_err *err)
{
    struct kg_seq *seq = &r->seqs[slot];
    struct kg_job *job = &r->sched.groups[r->sched.slots[slot].group].job;
    const struct kg_request *q = job->request;
    while (job->trajs[job->next].finish == KG_FINISH_CANCELLED)
        job->next++;
    struct kg_traj *t = &job->trajs[job->next];
    *seq = (struct kg_seq){.request = q,
                           .sampling = kg_request_sampling(q, &r->limits),
                           .traj = t,
                           .limit = kg_request_first_limit(q, &r->limits),
                           .text = seq->text};
    kg_str_clear(&seq->text);
    if (seq->sampling->n_stops > 0)
        KG_TRY(kg_tokenizer_decode(&seq->text, r->tok, q->prompt + q->prompt_n - q->begun,
                                   (size_t)q->begun, false, err));
    t->top_k = seq->sampling->record_top_k;
    t->choices = seq->sampling->record_experts
                     ? kg_model_config_choices(&r->exec.m->config)
                     : 0;
    t->prompt_index = q->prompt_index;
    t->draw = q->draw;
    t->sample = q->first_sample + job->next++;
    t->temperature = seq->sampling->temperature;
    return kg_traj_append(t, q->prompt, q->prompt_n, KG_SOURCE_PROMPT, err);
}

/* Starts all samples that have room, and lists in exec.wanted the prompts that samples
 * wait for, oldest first.   *n_wanted: out, their number */
static kg_status start(int32_t *n_wanted, struct kg_rollout *r, struct kg_err *err)
{
    const struct kg_sched *s = &r->sched;
    int32_t slot;
    *n_wanted = 0;
    while ((slot = kg_sched_start(&r->sched)) >= 0) {
        const struct kg_group *g = &s->groups[s->slots[slot].group];
        if (g->n_started == 1)
            KG_TRY(begin_group(r, s->slots[slot].group, err));
        if (g->resumed < 0)
            KG_TRY(begin_sample(r, slot, err));
    }
    for (int32_t i = 0; i < s->order.n; i++) {
        int32_t group = s->order.at[i];
        r->exec.prompts[group].again = group == s->open;
        if (s->groups[group].n_waiting > 0)
            r->exec.wanted[(*n_wanted)++] = &r->exec.prompts[group];
    }
    return KG_OK;
}

/* Copies prompt blocks that the sample reads and will write to: others read them, too. */
static kg_status copy_blocks(struct kg_rollout *r, int32_t slot, struct kg_err *err)
{
    const struct kg_slot *to = &r->sched.slots[slot];
    const struct kg_group *g = &r->sched.groups[to->group];
    for (int kind = 0; kind < KG_KV_KINDS; kind++) {
        const struct kg_take *t = &g->job.take[kind];
        const int32_t *mine = to->table[kind].at, *prompt = g->table[kind].at;
        for (int32_t i = t->seen > t->shared ? t->seen : t->shared; i < t->n_prompt; i++)
            if (mine[i] != prompt[i])
                KG_TRY(kg_kv_copy_block(r->exec.kv, (enum kg_kv_kind)kind, mine[i],
                                        prompt[i], err));
    }
    return KG_OK;
}

/* Records the experts of the tokens just computed: the prompt, or those after a turn. */
static void take_experts(const struct kg_exec_prompt *p, const struct kg_seq *seq)
{
    struct kg_traj *t = seq->traj;
    size_t from = (size_t)seq->cached;
    if (p->experts)
        kg_traj_route(t, (size_t)seq->base + from, t->n - (size_t)seq->base - from,
                      p->experts + from * (size_t)t->choices);
}

/* Draws a turn's first token. Ends the sequence if its limit is 0 or scoring failed. */
static kg_status begin_answer(struct kg_rollout *r, int32_t slot, struct kg_err *err)
{
    const struct kg_exec_prompt *p = prompt_of(r, slot);
    struct kg_seq *seq = &r->seqs[slot];
    struct kg_exec_step *step = &kg_exec_next(&r->exec)->steps[0];
    take_experts(p, seq);
    if (p->status == KG_OK && seq->limit > 0) {
        KG_TRY(copy_blocks(r, slot, err));
        aim(step, r, slot, -1);
        kg_exec_draw(&r->exec, step, p);
        return commit(r, slot, step, err);
    }
    seq->status = p->status;
    seq->err = p->err;
    if (p->status == KG_OK)
        seq->traj->finish = KG_FINISH_LENGTH;
    kg_sched_move(&r->sched, slot, KG_SLOT_ENDED);
    return KG_OK;
}

/* The first starting slot whose prompt is computed; -1: none. */
static int32_t next_ready(const struct kg_rollout *r)
{
    const struct kg_list *starting = &r->sched.in[KG_SLOT_STARTING];
    for (int32_t i = 0; i < starting->n; i++)
        if (prompt_of(r, starting->at[i])->row >= 0)
            return starting->at[i];
    return -1;
}

static kg_status admit(struct kg_rollout *r, struct kg_err *err)
{
    do {
        double begin = kg_clock_seconds();
        int32_t n, slot;
        KG_TRY(start(&n, r, err));
        if (n == 0)
            break;
        KG_TRY(kg_exec_prompts(&r->exec, n, r->session.steady, &r->stats.prefill_tokens,
                               err));
        while ((slot = next_ready(r)) >= 0)
            KG_TRY(begin_answer(r, slot, err));
        r->stats.prefill_seconds += kg_clock_seconds() - begin;
        KG_TRY(report(r, err));
    } while (!r->session.steady);
    return KG_OK;
}

/* ---- decoding ---- */

/* How a sequence continues after its token in flight, which the host has not seen. */
enum ahead {
    GOES, /* draws another; if the token in flight ends it, that row is discarded */
    ENDS, /* with the token in flight, by its limit */
    WAITS /* for it: the host draws, or reads experts that the next forward overwrites */
};
static enum ahead ahead_of(const struct kg_seq *seq)
{
    if (seq->sampling->adjust || seq->sampling->record_experts)
        return WAITS;
    return seq->generated + 1 < seq->limit ? GOES : ENDS;
}

/* Whether another pass can be launched while one is in flight: some sequence draws in it,
 * and none must wait. */
static bool goes_ahead(const struct kg_rollout *r)
{
    const struct kg_list *running = &r->sched.in[KG_SLOT_RUNNING];
    bool any = false;
    if (!r->exec.ahead)
        return false;
    for (int32_t i = 0; i < running->n; i++) {
        const struct kg_seq *seq = &r->seqs[running->at[i]];
        if (ahead_of(seq) == WAITS)
            return false;
        any |= seq->row < 0 || ahead_of(seq) == GOES;
    }
    return any;
}

/* Gives a running sequence row n of the next pass, unless its token in flight ends it.
 * returns the number of rows */
static int32_t aim_next(struct kg_rollout *r, int32_t slot, int32_t n)
{
    struct kg_seq *seq = &r->seqs[slot];
    int32_t from = kg_exec_flies(&r->exec) ? seq->row : -1;
    bool ends = from >= 0 && ahead_of(seq) == ENDS;
    if (!ends)
        aim(&kg_exec_next(&r->exec)->steps[n], r, slot, from);
    seq->row = ends ? -1 : n;
    return n + !ends;
}

/* Launches a pass of all running sequences. Those with the same adapters have consecutive
 * rows, which takes fewer products. */
static kg_status launch(struct kg_rollout *r, struct kg_err *err)
{
    const struct kg_list *running = &r->sched.in[KG_SLOT_RUNNING];
    int32_t n = 0;
    for (int32_t a = 0; a <= r->limits.n_adapters; a++)
        for (int32_t i = 0; i < running->n; i++)
            if (r->seqs[running->at[i]].request->adapter == a)
                n = aim_next(r, running->at[i], n);
    return kg_exec_launch(&r->exec, n, err);
}

/* Whether the row's sequence still runs. It may have ended while the pass was in flight,
 * and its slot may now hold a sequence that began after this pass. */
static bool wanted(const struct kg_rollout *r, const struct kg_exec_step *step,
                   int64_t pass)
{
    return r->sched.slots[step->who].state == KG_SLOT_RUNNING &&
           r->seqs[step->who].since <= pass;
}

/* Appends the tokens of the pass just taken. */
static kg_status commit_pass(struct kg_rollout *r, const struct kg_exec_pass *pass,
                             struct kg_err *err)
{
    int64_t number = r->exec.taken - 1;
    int32_t n = 0;
    for (int32_t i = 0; i < pass->n; i++)
        n += wanted(r, &pass->steps[i], number);
    for (int32_t i = 0; i < pass->n; i++)
        if (wanted(r, &pass->steps[i], number))
            KG_TRY(commit(r, pass->steps[i].who, &pass->steps[i], err));
    r->stats.decode_tokens += n;
    r->stats.decode_steps += n > 0;
    return KG_OK;
}

/* Takes one pass, with a token for each of its sequences, and reports those that ended.
 * The previous step may have launched it already. If possible, the next pass is launched
 * before the wait for this one. */
static kg_status decode(struct kg_rollout *r, struct kg_err *err)
{
    const struct kg_backend *be = r->exec.m->backend;
    const struct kg_exec_pass *pass;
    struct kg_traffic before = kg_buf_traffic(be);
    double begin = kg_clock_seconds();
    if (!kg_exec_flies(&r->exec))
        KG_TRY(launch(r, err));
    if (goes_ahead(r))
        KG_TRY(launch(r, err));
    KG_TRY(kg_exec_take(&pass, &r->exec, err));
    KG_TRY(commit_pass(r, pass, err));
    r->stats.draw_seconds += r->exec.draw_seconds;
    r->stats.decode_seconds += kg_clock_seconds() - begin;
    kg_buf_traffic_add(&r->stats.decode_traffic, be, before);
    return report(r, err);
}

kg_status kg_rollout_step(struct kg_rollout *r, struct kg_rollout_load *load,
                          struct kg_err *err)
{
    const struct kg_list *running = &r->sched.in[KG_SLOT_RUNNING];
    if (r->opts.stop_on_signal && kg_signal_stop_requested())
        return kg_fail(err, KG_EINTERRUPTED, "stopped by a signal while generating");
    KG_TRY(admit(r, err));
    if (running->n > 0)
        KG_TRY(decode(r, err));
    if (running->n == 0)
        KG_TRY(kg_exec_drop(&r->exec, err));
    if (load)
        kg_rollout_get_load(load, r);
    return KG_OK;
}

/* ---- state ---- */

const struct kg_model *kg_rollout_model(const struct kg_rollout *r) { return r->exec.m; }

const struct kg_rollout_opts *kg_rollout_get_opts(const struct kg_rollout *r)
{
    return &r->opts;
}

const struct kg_rollout_stats *kg_rollout_stats(const struct kg_rollout *r)
{
    return &r->stats;
}

void kg_rollout_get_load(struct kg_rollout_load *load, const struct kg_rollout *r)
{
    const struct kg_list *in = r->sched.in;
    *load = (struct kg_rollout_load){
        .running = in[KG_SLOT_STARTING].n + in[KG_SLOT_RUNNING].n,
        .waiting = r->sched.n_waiting + in[KG_SLOT_RESUMING].n,
        .parked = in[KG_SLOT_PARKED].n};
}

void kg_rollout_show(int phase, const struct kg_rollout *r, int64_t of)
{
    struct kg_rollout_load load;
    kg_rollout_get_load(&load, r);
    kg_phase_at(phase, of - load.running - load.waiting - load.parked);
    kg_phase_note(phase, "tokens of the longest", (int64_t)r->longest);
}
