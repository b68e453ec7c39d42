/* Slots, groups and blocks: which sample starts next, and which blocks it gets.
 *
 * Invariant: a sample starts only with all blocks that it can ever need. So a running
 * sample never waits for memory and is never preempted. With a window, a sample's table
 * is circular in the blocks that it needs at once. A sample shares the full blocks of its
 * prompt by a reference; the group has its own references until its last sample has its
 * first token, so the prompt stays when early samples end.
 *
 * No deadlock: if no slot is taken, all blocks but those of the open group's prompt are
 * free, and the prompt and one sample fit together (otherwise the job was refused). A
 * resumed sample has its blocks, comes first and needs only a row. A parked sample waits
 * only for its caller.
 */
#include "rollout/scheduler.h"

#include "base/mem.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum { MOST_JOBS = 1 << 28 };

/* ---- life ---- */

enum { SLOTS, GROUPS, TABLES, PLACES, ALL, WINDOW, COUNTS };
static const struct kg_column columns[] = {
    KG_COLUMN(struct kg_sched, slots, SLOTS),
    KG_COLUMN(struct kg_sched, groups, GROUPS),
    KG_COLUMN(struct kg_sched, order.at, GROUPS),
    KG_COLUMN(struct kg_sched, tables, TABLES),
    KG_COLUMN(struct kg_sched, places, PLACES),
    KG_COLUMN(struct kg_sched, pool[KG_KV_ALL].free.at, ALL),
    KG_COLUMN(struct kg_sched, pool[KG_KV_ALL].refs, ALL),
    KG_COLUMN(struct kg_sched, pool[KG_KV_WINDOW].free.at, WINDOW),
    KG_COLUMN(struct kg_sched, pool[KG_KV_WINDOW].refs, WINDOW),
    {0},
};

/* Gives a slot or group empty tables, with storage from *rest on. */
static void place_tables(struct kg_table table[KG_KV_KINDS], int32_t **rest,
                         int32_t per_seq)
{
    for (int kind = 0; kind < KG_KV_KINDS; kind++) {
        table[kind] = (struct kg_table){.at = *rest};
        *rest += per_seq;
    }
}

kg_status kg_sched_init(struct kg_sched *s, const struct kg_sched_opts *o,
                        struct kg_err *err)
{
    size_t slots = (size_t)o->max_open, groups = (size_t)o->max_batch + 1;
    size_t per_seq = (size_t)o->blocks_per_seq;
    const size_t counts[COUNTS] = {[SLOTS] = slots,
                                   [GROUPS] = groups,
                                   [TABLES] = (slots + groups) * KG_KV_KINDS * per_seq,
                                   [PLACES] = slots * KG_SLOT_STATES,
                                   [ALL] = (size_t)o->n_blocks.of[KG_KV_ALL],
                                   [WINDOW] = (size_t)o->n_blocks.of[KG_KV_WINDOW]};

    *s = (struct kg_sched){.opts = *o};
    KG_TRY(kg_columns_take(&s->memory, s, columns, counts, "scheduler", err));
    int32_t *rest = s->tables;
    for (size_t i = 0; i < slots; i++)
        place_tables(s->slots[i].table, &rest, o->blocks_per_seq);
    for (size_t i = 0; i < groups; i++)
        place_tables(s->groups[i].table, &rest, o->blocks_per_seq);
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

/* A stack with 0 on top, so that every clear gives the same order of allocation. */
static void fill(struct kg_list *l, int32_t n)
{
    l->n = n;
    for (int32_t i = 0; i < n; i++)
        l->at[i] = n - 1 - i;
}

static void empty(struct kg_table table[KG_KV_KINDS])
{
    for (int kind = 0; kind < KG_KV_KINDS; kind++)
        table[kind] = (struct kg_table){.at = table[kind].at};
}

void kg_sched_clear(struct kg_sched *s)
{
    for (int i = 0; i < KG_SLOT_STATES; i++)
        s->in[i].n = 0;
    for (int32_t i = 0; i < s->opts.max_open; i++) {
        s->slots[i].state = KG_SLOT_FREE;
        s->slots[i].group = 0;
        empty(s->slots[i].table);
    }
    fill(&s->in[KG_SLOT_FREE], s->opts.max_open);
    fill(&s->order, s->opts.max_batch + 1);
    s->order.n = 0;
    for (int kind = 0; kind < KG_KV_KINDS; kind++) {
        struct kg_blocks *pool = &s->pool[kind];
        int32_t n = (int32_t)s->opts.n_blocks.of[kind];
        fill(&pool->free, n);
        for (int32_t i = 0; i < n; i++)
            pool->refs[i] = 0;
    }
    s->open = -1;
    s->queue_at = s->queue_n = 0;
    s->n_waiting = 0;
}

/* ---- lists and blocks ---- */

static void put(struct kg_list *l, int32_t i) { l->at[l->n++] = i; }

/* Keeps the order of the others, and i after the end, where `order` has free groups. */
static void take_out(struct kg_list *l, int32_t i)
{
    int32_t at = l->n - 1;
    while (l->at[at] != i)
        at--;
    l->n--;
    memmove(l->at + at, l->at + at + 1, (size_t)(l->n - at) * sizeof *l->at);
    l->at[l->n] = i;
}

static int32_t take_block(struct kg_blocks *p)
{
    int32_t block = p->free.at[--p->free.n];
    assert(p->free.n >= 0);
    p->refs[block] = 1;
    return block;
}

static int32_t share_block(struct kg_blocks *p, int32_t block)
{
    p->refs[block]++;
    return block;
}

static void drop_block(struct kg_blocks *p, int32_t block)
{
    assert(p->refs[block] > 0);
    if (--p->refs[block] == 0)
        put(&p->free, block);
}

static void drop_tables(struct kg_sched *s, struct kg_table table[KG_KV_KINDS])
{
    for (int kind = 0; kind < KG_KV_KINDS; kind++)
        for (int32_t i = table[kind].from; i < table[kind].end; i++)
            drop_block(&s->pool[kind], table[kind].at[i]);
    empty(table);
}

/* Fills a circular table: entry i from `end` on repeats entry i - n_blocks. */
static void go_round(struct kg_table *t, int32_t n_blocks)
{
    for (int32_t i = t->end; i < t->n; i++)
        t->at[i] = t->at[i - n_blocks];
}

/* ---- groups ---- */

static int32_t add_group(struct kg_sched *s)
{
    assert(s->order.n <= s->opts.max_batch);
    int32_t i = s->order.at[s->order.n++];
    struct kg_group *g = &s->groups[i];
    g->job = (struct kg_job){0};
    g->resumed = -1;
    g->n_started = g->n_waiting = 0;
    return i;
}

/* A group is open until all its samples have started or were withdrawn. It is freed when,
 * in addition, none of its slots is STARTING. */
static void close_group(struct kg_sched *s, int32_t i)
{
    struct kg_group *g = &s->groups[i];
    if (g->job.n_left > 0)
        return;
    if (i == s->open)
        s->open = -1;
    if (g->n_waiting > 0)
        return;
    drop_tables(s, g->table);
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
        drop_tables(s, moved->table);
    if (from == KG_SLOT_STARTING) {
        s->groups[moved->group].n_waiting--;
        close_group(s, moved->group);
    }
}

void kg_sched_pass(struct kg_sched *s, int32_t slot, int32_t entry)
{
    struct kg_table *t = &s->slots[slot].table[KG_KV_WINDOW];
    for (; t->from < t->shared && t->from < entry; t->from++)
        drop_block(&s->pool[KG_KV_WINDOW], t->at[t->from]);
}

/* ---- the queue ---- */

/* Whether a job can begin with this number of free blocks. */
static bool fits(const struct kg_job *job, struct kg_kv_size there)
{
    bool fits = true;
    for (int kind = 0; kind < KG_KV_KINDS; kind++)
        fits &= kg_job_needs(job, kind) <= there.of[kind];
    return fits;
}

static struct kg_kv_size free_blocks(const struct kg_sched *s)
{
    return (struct kg_kv_size){{s->pool[KG_KV_ALL].free.n, s->pool[KG_KV_WINDOW].free.n}};
}

kg_status kg_sched_submit(struct kg_sched *s, const struct kg_job *job,
                          struct kg_err *err)
{
    assert(job->n_left > 0 && fits(job, s->opts.n_blocks));
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

static void take_prompt(struct kg_blocks *p, struct kg_table *t,
                        const struct kg_take *take)
{
    *t = (struct kg_table){.at = t->at, .n = take->n_prompt, .end = take->prompt};
    for (int32_t i = 0; i < t->end; i++)
        t->at[i] = take_block(p);
    go_round(t, take->prompt);
}

static bool open_group(struct kg_sched *s)
{
    if (s->queue_n == 0 || !fits(&s->queue[s->queue_at], free_blocks(s)))
        return false;
    s->open = add_group(s);
    struct kg_group *g = &s->groups[s->open];
    g->job = s->queue[s->queue_at++];
    s->queue_n--;
    for (int kind = 0; kind < KG_KV_KINDS; kind++)
        take_prompt(&s->pool[kind], &g->table[kind], &g->job.take[kind]);
    return true;
}

/* The last sample takes over the prompt's blocks. Blocks that it reads keep their entry,
 * the others get any empty entry: their old content is overwritten, never read. */
static void go_on_in_prompt(struct kg_blocks *p, struct kg_table *t,
                            const struct kg_table *prompt, const struct kg_take *take)
{
    int32_t at = t->shared;
    for (int32_t i = take->seen > at ? take->seen : at; i < take->n_prompt; i++)
        t->at[t->shared + (i - t->shared) % take->own] = share_block(p, prompt->at[i]);
    for (int32_t i = 0; i < take->prompt; i++) {
        int32_t newest = take->n_prompt - 1 - (take->n_prompt - 1 - i) % take->prompt;
        while (at < t->end && t->at[at] >= 0)
            at++;
        if (newest < take->seen && at < t->end)
            t->at[at] = share_block(p, prompt->at[i]);
    }
}

/* Takes all blocks of a sample.   last: no other sample of the prompt will start */
static void take_sample(struct kg_blocks *p, struct kg_table *t,
                        const struct kg_table *prompt, const struct kg_take *take,
                        bool last)
{
    *t = (struct kg_table){.at = t->at,
                           .n = take->n_blocks,
                           .from = take->seen < take->shared ? take->seen : take->shared,
                           .end = take->shared + take->own,
                           .shared = take->shared};
    for (int32_t i = 0; i < t->shared; i++)
        t->at[i] = i < t->from ? prompt->at[i] : share_block(p, prompt->at[i]);
    for (int32_t i = t->shared; i < t->end; i++)
        t->at[i] = -1;
    if (last)
        go_on_in_prompt(p, t, prompt, take);
    for (int32_t i = t->shared; i < t->end; i++)
        t->at[i] = t->at[i] >= 0 ? t->at[i] : take_block(p);
    go_round(t, take->own);
}

static bool has_room(const struct kg_sched *s, const struct kg_job *job)
{
    bool room = true;
    for (int kind = 0; kind < KG_KV_KINDS; kind++) {
        const struct kg_take *t = &job->take[kind];
        room &= s->pool[kind].free.n >= t->own - (job->n_left == 1 ? kg_take_left(t) : 0);
    }
    return room;
}

static int32_t start_sample(struct kg_sched *s)
{
    struct kg_group *g = &s->groups[s->open];
    if (!has_room(s, &g->job))
        return -1;
    int32_t i = s->in[KG_SLOT_FREE].at[s->in[KG_SLOT_FREE].n - 1];
    for (int kind = 0; kind < KG_KV_KINDS; kind++)
        take_sample(&s->pool[kind], &s->slots[i].table[kind], &g->table[kind],
                    &g->job.take[kind], g->job.n_left == 1);
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
