/* Admission: from the queue of requests to running sequences.
 *
 * A request opens a group: its prompt gets blocks and is computed once. Each sample
 * shares the blocks that the prompt fills, gets a copy of the one it fills in part, and
 * takes at once all further blocks it can ever need. Only the last group opened can be
 * left with samples waiting; requests behind it wait too, so the order of the queue is
 * kept.
 *
 * Why nothing can lock up: when no sequence runs, everything but that group's prompt is
 * free, and rollout.c has refused at the start any request whose prompt and one sample do
 * not fit together.
 */
#include "rollout/rollout_internal.h"

#include "base/clock.h"

#include <assert.h>

/* ---- the plan: groups and slots ---- */

/* New blocks that the next sample of a group takes. */
static int32_t sample_need(const struct kg_rollout *r, const struct kg_group *g)
{
    int32_t full = (int32_t)(g->request->prompt_n / KG_KV_BLOCK);
    bool moves = g->partial >= 0 && g->started + 1 == g->request->n_samples;
    return kg_rollout_need(r->s, g->request) - full - moves;
}

/* Takes the blocks of the prompt; the caller has seen that they are free. */
static void open_group(struct kg_rollout *r, struct kg_group *g)
{
    const struct kg_request *q = &r->requests[r->next_request++];
    g->request = q;
    g->trajs = r->next_traj;
    r->next_traj += q->n_samples;
    g->n_blocks = kg_rollout_blocks((int64_t)q->prompt_n);
    for (int32_t i = 0; i < g->n_blocks; i++)
        g->blocks[i] = kg_kv_take(r->kv);
    g->partial = q->prompt_n % KG_KV_BLOCK ? g->blocks[g->n_blocks - 1] : -1;
    g->partial_moved = false;
    g->cached = 0;
    g->started = 0;
    r->n_groups++;
}

static bool can_open(const struct kg_rollout *r)
{
    if (r->next_request == r->n_requests || r->n_running == r->opts.max_batch)
        return false;
    const struct kg_request *q = &r->requests[r->next_request];
    int32_t copies = q->n_samples > 1 && q->prompt_n % KG_KV_BLOCK != 0;
    return r->kv->n_free >= kg_rollout_need(r->s, q) + copies;
}

/* Prompt and identity of a trajectory. */
static kg_status begin_traj(struct kg_rollout *r, struct kg_group *g, struct kg_traj *t,
                            struct kg_err *err)
{
    const struct kg_request *q = g->request;
    t->top_k = r->s->record_top_k;
    t->prompt_index = q->prompt_index;
    t->draw = q->draw;
    t->sample = q->first_sample + g->started;
    t->temperature = r->s->temperature;
    return kg_traj_append(t, q->prompt, q->prompt_n, KG_SOURCE_PROMPT, err);
}

static kg_status start_sample(struct kg_rollout *r, int32_t group, struct kg_err *err)
{
    struct kg_group *g = &r->groups[group];
    int32_t need = sample_need(r, g);
    struct kg_slot *slot = &r->slots[r->n_running];
    slot->request = g->request;
    slot->traj = &g->trajs[g->started];
    KG_TRY(begin_traj(r, g, slot->traj, err));
    slot->group = group;
    slot->generated = 0;
    slot->limit = kg_rollout_limit(r->s, g->request);
    slot->finished = false;
    slot->n_blocks = 0;
    kg_str_clear(&slot->text);
    for (int32_t i = 0; i < g->n_blocks && g->blocks[i] != g->partial; i++) {
        kg_kv_share(r->kv, g->blocks[i]);
        slot->blocks[slot->n_blocks++] = g->blocks[i];
    }
    if (g->partial >= 0 && g->started + 1 == g->request->n_samples) {
        g->partial_moved = true;
        slot->blocks[slot->n_blocks++] = g->partial;
    }
    for (int32_t i = 0; i < need; i++)
        slot->blocks[slot->n_blocks++] = kg_kv_take(r->kv);
    g->started++;
    r->n_running++;
    return KG_OK;
}

static kg_status start_samples(struct kg_rollout *r, int32_t group, struct kg_err *err)
{
    const struct kg_group *g = &r->groups[group];
    while (g->started < g->request->n_samples && r->n_running < r->opts.max_batch &&
           r->kv->n_free >= sample_need(r, g))
        KG_TRY(start_sample(r, group, err));
    return KG_OK;
}

static bool is_open(const struct kg_group *g)
{
    return g->started < g->request->n_samples;
}

static kg_status plan(struct kg_rollout *r, struct kg_err *err)
{
    r->first_new = r->n_running;
    if (r->n_groups > 0)
        KG_TRY(start_samples(r, 0, err));
    while ((r->n_groups == 0 || !is_open(&r->groups[r->n_groups - 1])) && can_open(r)) {
        open_group(r, &r->groups[r->n_groups]);
        KG_TRY(start_samples(r, r->n_groups - 1, err));
    }
    return KG_OK;
}

/* ---- prompts ---- */

/* Fill the worker's pack with the next pieces of prompts. Groups are computed in order,
 * so those that this pack completes are neighbours: [*first, *first + *n), last rows in
 * rows. */
static void pack_prompts(struct kg_rollout *r, struct kg_worker *w, int32_t *rows,
                         int32_t *first, int32_t *n)
{
    *n = 0;
    kg_worker_clear(w);
    for (int32_t i = 0; i < r->n_groups && w->n_rows < r->opts.prefill_chunk; i++) {
        struct kg_group *g = &r->groups[i];
        int64_t left = (int64_t)g->request->prompt_n - g->cached;
        int64_t room = r->opts.prefill_chunk - w->n_rows;
        int32_t piece = (int32_t)(left < room ? left : room);
        if (piece == 0)
            continue;
        kg_worker_add(w, g->request->prompt + g->cached, g->blocks, g->cached, piece);
        g->cached += piece;
        if (piece < left)
            continue;
        if (*n == 0)
            *first = i;
        rows[(*n)++] = (int32_t)w->n_rows - 1;
    }
}

/* Compute what is missing of the groups' prompts, in chunks, and keep the last hidden row
 * of each. */
static kg_status prefill(struct kg_rollout *r, struct kg_err *err)
{
    struct kg_worker *w = &r->workers[0];
    int32_t *rows = r->last_rows;
    for (;;) {
        struct kg_mat hidden;
        int32_t first = 0;
        int32_t n = 0;
        pack_prompts(r, w, rows, &first, &n);
        if (w->n_rows == 0)
            return KG_OK;
        KG_TRY(kg_worker_forward(&hidden, w, r, err));
        r->stats.prefill_tokens += w->n_rows;
        if (n > 0)
            KG_TRY(kg_op_gather_rows(r->m->backend,
                                     kg_mat_rows(r->group_hidden, first, n), hidden, rows,
                                     err));
    }
}

static void copy_partial_blocks(struct kg_rollout *r)
{
    for (int32_t i = r->first_new; i < r->n_running; i++) {
        const struct kg_slot *slot = &r->slots[i];
        const struct kg_group *g = &r->groups[slot->group];
        int32_t own = (int32_t)(g->request->prompt_n / KG_KV_BLOCK);
        if (g->partial >= 0 && own < slot->n_blocks && slot->blocks[own] != g->partial)
            kg_kv_copy_block(r->kv, slot->blocks[own], g->partial);
    }
}

/* ---- first tokens ---- */

static kg_status first_tokens(struct kg_rollout *r, struct kg_err *err)
{
    KG_TRY(kg_rollout_head(r, kg_mat_rows(r->group_hidden, 0, r->n_groups), 0, err));
    for (int32_t i = r->first_new; i < r->n_running; i++) {
        struct kg_slot *slot = &r->slots[i];
        KG_TRY(kg_rollout_draw(r, &r->workers[0], slot, slot->group, err));
        KG_TRY(kg_rollout_commit(r, slot, slot->group, err));
    }
    return KG_OK;
}

/* Drop the groups whose samples have all started; one that is still open, the last,
 * becomes the first. */
static kg_status close_groups(struct kg_rollout *r, struct kg_err *err)
{
    int32_t kept = -1;
    for (int32_t i = 0; i < r->n_groups; i++) {
        struct kg_group *g = &r->groups[i];
        if (is_open(g)) {
            assert(i == r->n_groups - 1);
            kept = i;
            continue;
        }
        for (int32_t b = 0; b < g->n_blocks; b++)
            if (!(g->partial_moved && g->blocks[b] == g->partial))
                kg_kv_drop(r->kv, g->blocks[b]);
    }
    r->n_groups = kept >= 0;
    if (kept <= 0)
        return KG_OK;
    struct kg_group first = r->groups[0];
    r->groups[0] = r->groups[kept];
    r->groups[kept] = first;
    return kg_op_gather_rows(r->m->backend, kg_mat_rows(r->group_hidden, 0, 1),
                             r->group_hidden, &kept, err);
}

kg_status kg_rollout_admit(struct kg_rollout *r, struct kg_err *err)
{
    double start = kg_clock_seconds();
    for (;;) {
        KG_TRY(plan(r, err));
        if (r->first_new == r->n_running)
            break;
        KG_TRY(prefill(r, err));
        copy_partial_blocks(r);
        KG_TRY(first_tokens(r, err));
        KG_TRY(close_groups(r, err));
        kg_rollout_sweep(r);
    }
    r->stats.prefill_seconds += kg_clock_seconds() - start;
    return KG_OK;
}
