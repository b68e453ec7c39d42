/* Slots, groups and blocks: who comes next, and what it is given.
 *
 * Every block that a sample can ever need is taken when it starts, so what runs never
 * waits for memory and nothing has to be preempted. A sample shares the blocks that its
 * prompt fills by one more reference; the group has references of its own until the last
 * sample has its first token, so a prompt outlives the samples that end early.
 *
 * Why nothing can lock up: when no slot is taken, everything but the open group's prompt
 * is free, and that and one sample fit together, or the job was refused. What is resumed
 * has its blocks and comes first: nothing but a row keeps it. What is parked waits for
 * its caller alone.
 */
#include "rollout/scheduler.h"

#include "base/mem.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum { MOST_JOBS = 1 << 28 };

/* ---- life ---- */

enum { SLOTS, GROUPS, TABLES, PLACES, BLOCKS, COUNTS };
static const struct kg_column columns[] = {
    KG_COLUMN(struct kg_sched, slots, SLOTS),
    KG_COLUMN(struct kg_sched, groups, GROUPS),
    KG_COLUMN(struct kg_sched, order.at, GROUPS),
    KG_COLUMN(struct kg_sched, tables, TABLES),
    KG_COLUMN(struct kg_sched, places, PLACES),
    KG_COLUMN(struct kg_sched, free.at, BLOCKS),
    KG_COLUMN(struct kg_sched, refs, BLOCKS),
    {0},
};

kg_status kg_sched_init(struct kg_sched *s, const struct kg_sched_opts *o,
                        struct kg_err *err)
{
    size_t slots = (size_t)o->max_open, groups = (size_t)o->max_batch + 1;
    size_t per_seq = (size_t)o->blocks_per_seq;
    const size_t counts[COUNTS] = {[SLOTS] = slots,
                                   [GROUPS] = groups,
                                   [TABLES] = (slots + groups) * per_seq,
                                   [PLACES] = slots * KG_SLOT_STATES,
                                   [BLOCKS] = (size_t)o->n_blocks};

    *s = (struct kg_sched){.opts = *o};
    KG_TRY(kg_columns_take(&s->memory, s, columns, counts, "scheduler", err));
    for (size_t i = 0; i < slots; i++)
        s->slots[i].blocks = s->tables + i * per_seq;
    for (size_t i = 0; i < groups; i++)
        s->groups[i].blocks = s->tables + (slots + i) * per_seq;
    for (size_t i = 0; i < KG_SLOT_STATES; i++)
        s->in[i].at = s->places + i * slots;
    kg_sched_clear(s);
    return KG_OK;
}

void kg_sched_release(struct kg_sched *s)
{
    kg_columns_free(&s->memory, s, columns);
    kg_mem_free(s->queue);
}

/* Stacks, with 0 on top: what is cleared is handed out the same way again. */
static void fill(struct kg_list *l, int32_t n)
{
    l->n = n;
    for (int32_t i = 0; i < n; i++)
        l->at[i] = n - 1 - i;
}

void kg_sched_clear(struct kg_sched *s)
{
    for (int i = 0; i < KG_SLOT_STATES; i++)
        s->in[i].n = 0;
    for (int32_t i = 0; i < s->opts.max_open; i++)
        s->slots[i] = (struct kg_slot){.blocks = s->slots[i].blocks};
    fill(&s->in[KG_SLOT_FREE], s->opts.max_open);
    fill(&s->order, s->opts.max_batch + 1);
    s->order.n = 0;
    fill(&s->free, s->opts.n_blocks);
    memset(s->refs, 0, (size_t)s->opts.n_blocks * sizeof *s->refs);
    s->open = -1;
    s->queue_at = s->queue_n = 0;
    s->n_waiting = 0;
}

/* ---- lists and blocks ---- */

static void put(struct kg_list *l, int32_t i) { l->at[l->n++] = i; }

/* The order of the others stays. What goes is kept behind them. */
static void take_out(struct kg_list *l, int32_t i)
{
    int32_t at = l->n - 1;
    while (l->at[at] != i)
        at--;
    l->n--;
    memmove(l->at + at, l->at + at + 1, (size_t)(l->n - at) * sizeof *l->at);
    l->at[l->n] = i;
}

static int32_t take_block(struct kg_sched *s)
{
    int32_t block = s->free.at[--s->free.n];
    assert(s->free.n >= 0);
    s->refs[block] = 1;
    return block;
}

static void drop_blocks(struct kg_sched *s, const int32_t *blocks, int32_t *n)
{
    for (int32_t i = 0; i < *n; i++) {
        assert(s->refs[blocks[i]] > 0);
        if (--s->refs[blocks[i]] == 0)
            put(&s->free, blocks[i]);
    }
    *n = 0;
}

/* ---- groups ---- */

static int32_t add_group(struct kg_sched *s)
{
    assert(s->order.n <= s->opts.max_batch);
    int32_t i = s->order.at[s->order.n++];
    s->groups[i] = (struct kg_group){.blocks = s->groups[i].blocks, .resumed = -1};
    return i;
}

/* A group is open until all its samples have started or were given up, and gone when none
 * of them waits any more. */
static void close_group(struct kg_sched *s, int32_t i)
{
    struct kg_group *g = &s->groups[i];
    if (g->job.n_left > 0)
        return;
    if (i == s->open)
        s->open = -1;
    if (g->n_waiting > 0)
        return;
    drop_blocks(s, g->blocks, &g->n_blocks);
    take_out(&s->order, i);
}

void kg_sched_move(struct kg_sched *s, int32_t slot, enum kg_slot_state to)
{
    struct kg_slot *moved = &s->slots[slot];
    enum kg_slot_state from = moved->state;
    take_out(&s->in[from], slot);
    put(&s->in[to], slot);
    moved->state = to;
    if (to == KG_SLOT_FREE)
        drop_blocks(s, moved->blocks, &moved->n_blocks);
    if (from == KG_SLOT_STARTING) {
        s->groups[moved->group].n_waiting--;
        close_group(s, moved->group);
    }
}

/* ---- the queue ---- */

kg_status kg_sched_submit(struct kg_sched *s, const struct kg_job *job,
                          struct kg_err *err)
{
    assert(job->n_left > 0 && kg_job_needs(job) <= s->opts.n_blocks);
    if (s->queue_at > s->queue_n && s->queue_at + s->queue_n == s->queue_capacity) {
        memmove(s->queue, s->queue + s->queue_at, s->queue_n * sizeof *job);
        s->queue_at = 0;
    }
    size_t end = s->queue_at + s->queue_n;
    KG_TRY(kg_mem_grow(&s->queue, &s->queue_capacity, end + 1, sizeof *job, MOST_JOBS,
                       "queue of requests", err));
    s->queue[end] = *job;
    s->queue_n++;
    s->n_waiting += job->n_left;
    return KG_OK;
}

struct kg_job *kg_sched_job(struct kg_sched *s, size_t i)
{
    size_t n_open = s->open >= 0;
    if (i < n_open)
        return &s->groups[s->open].job;
    return i - n_open < s->queue_n ? &s->queue[s->queue_at + i - n_open] : NULL;
}

void kg_sched_withdraw(struct kg_sched *s, struct kg_job *job)
{
    s->n_waiting--;
    job->n_left--;
    if (s->open >= 0 && job == &s->groups[s->open].job) {
        close_group(s, s->open);
    } else if (job->n_left == 0) {
        size_t behind = s->queue_at + --s->queue_n - (size_t)(job - s->queue);
        memmove(job, job + 1, behind * sizeof *job);
    }
}

/* ---- starting ---- */

static void wait_for(struct kg_sched *s, int32_t i, int32_t group)
{
    s->slots[i].group = group;
    s->groups[group].n_started++;
    s->groups[group].n_waiting++;
    kg_sched_move(s, i, KG_SLOT_STARTING);
}

static int32_t go_on(struct kg_sched *s)
{
    int32_t i = s->in[KG_SLOT_RESUMING].at[0], g = add_group(s);
    s->groups[g].resumed = i;
    wait_for(s, i, g);
    return i;
}

static bool open_group(struct kg_sched *s)
{
    if (s->queue_n == 0 || s->free.n < kg_job_needs(&s->queue[s->queue_at]))
        return false;
    s->open = add_group(s);
    struct kg_group *g = &s->groups[s->open];
    g->job = s->queue[s->queue_at++];
    s->queue_n--;
    while (g->n_blocks < g->job.n_prompt)
        g->blocks[g->n_blocks++] = take_block(s);
    return true;
}

/* The last sample goes on in the prompt's blocks, the others have some of their own. */
static int32_t start_sample(struct kg_sched *s)
{
    struct kg_group *g = &s->groups[s->open];
    int32_t shares = g->job.n_left == 1 ? g->n_blocks : g->job.n_shared;
    if (s->free.n < g->job.n_blocks - shares)
        return -1;
    int32_t i = s->in[KG_SLOT_FREE].at[s->in[KG_SLOT_FREE].n - 1];
    struct kg_slot *slot = &s->slots[i];
    for (; slot->n_blocks < shares; slot->n_blocks++) {
        slot->blocks[slot->n_blocks] = g->blocks[slot->n_blocks];
        s->refs[g->blocks[slot->n_blocks]]++;
    }
    while (slot->n_blocks < g->job.n_blocks)
        slot->blocks[slot->n_blocks++] = take_block(s);
    wait_for(s, i, s->open);
    g->job.n_left--;
    s->n_waiting--;
    close_group(s, s->open);
    return i;
}

int32_t kg_sched_start(struct kg_sched *s)
{
    if (s->in[KG_SLOT_STARTING].n + s->in[KG_SLOT_RUNNING].n == s->opts.max_batch)
        return -1;
    if (s->in[KG_SLOT_RESUMING].n > 0)
        return go_on(s);
    if (s->in[KG_SLOT_FREE].n == 0 || (s->open < 0 && !open_group(s)))
        return -1;
    return start_sample(s);
}
