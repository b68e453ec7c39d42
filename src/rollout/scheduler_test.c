/* The scheduler alone: order of admission, which sequence holds which block, a full
 * cache; and 3,000 random schedules, checked after every step. Nothing here has tokens or
 * a model. */
#include "rollout/scheduler.h"

#include "base/mem.h"
#include "base/need_testing.h"
#include "base/rng.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static struct kg_sched s;
static char names[64]; /* a job's trajs points into it: the offset identifies the job */

static void begin_with(int32_t batch, int32_t open, struct kg_kv_size blocks)
{
    struct kg_sched_opts o = {batch, open, blocks, .blocks_per_seq = 8};
    NEED(kg_sched_init(&s, &o, err));
}

static void begin(int32_t batch, int32_t open, int32_t blocks)
{
    begin_with(batch, open, (struct kg_kv_size){{blocks, 0}});
}

static struct kg_job job(int name, int32_t samples, int32_t n_prompt, int32_t n_shared,
                         int32_t n_blocks)
{
    return (struct kg_job){.trajs = (void *)&names[name],
                           .n_left = samples,
                           .take[KG_KV_ALL] = {.n_prompt = n_prompt,
                                               .n_blocks = n_blocks,
                                               .prompt = n_prompt,
                                               .shared = n_shared,
                                               .own = n_blocks - n_shared}};
}

/* The job under a window that sees at most `sees` blocks, with `more` blocks while its
 * prompt is computed. */
static struct kg_job job_seen(struct kg_job j, int32_t sees, int32_t more)
{
    struct kg_take t = j.take[KG_KV_ALL];
    t.shared = j.n_left == 1 ? 0 : t.shared;
    t.seen = t.n_prompt > sees ? t.n_prompt - sees : 0;
    t.prompt = sees + more < t.n_prompt ? sees + more : t.n_prompt;
    t.own = sees + 1 < t.n_blocks - t.shared ? sees + 1 : t.n_blocks - t.shared;
    j.take[KG_KV_WINDOW] = t;
    return j;
}

static void submit(struct kg_job j) { NEED(kg_sched_submit(&s, &j, err)); }

static int name_of(const struct kg_job *j) { return (int)((char *)j->trajs - names); }

static const struct kg_group *group_of(int32_t slot)
{
    return &s.groups[s.slots[slot].group];
}

static int32_t n_in(enum kg_slot_state state) { return s.in[state].n; }

static int32_t n_free(void) { return s.pool[KG_KV_ALL].free.n; }

/* ---- invariants ---- */

static void count(int32_t *holders, const struct kg_table *t, int64_t n_blocks)
{
    for (int32_t i = 0; i < t->n; i++)
        assert_in_range(t->at[i], 0, n_blocks - 1);
    for (int32_t i = t->from; i < t->end; i++)
        holders[t->at[i]]++;
}

/* A block has as many references as holders; without one, it is free, and listed once. */
static void check_blocks(int kind)
{
    const struct kg_blocks *p = &s.pool[kind];
    int64_t n = s.opts.n_blocks.of[kind];
    int32_t *holders = calloc((size_t)n + 1, sizeof *holders);
    for (int32_t i = 0; i < s.opts.max_open; i++)
        count(holders, &s.slots[i].table[kind], n);
    for (int32_t i = 0; i < s.order.n; i++)
        count(holders, &s.groups[s.order.at[i]].table[kind], n);
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(p->refs[i], holders[i]);
    for (int32_t i = 0; i < p->free.n; i++)
        assert_int_equal(holders[p->free.at[i]]++, 0);
    for (int32_t i = 0; i < n; i++)
        assert_true(holders[i] > 0);
    free(holders);
}

/* Every slot is in the list of its state and in no other; a free slot holds no block. */
static void check_slots(void)
{
    int32_t seen = 0;
    for (int state = 0; state < KG_SLOT_STATES; state++)
        for (int32_t i = 0; i < s.in[state].n; i++, seen++)
            assert_int_equal(s.slots[s.in[state].at[i]].state, state);
    assert_int_equal(seen, s.opts.max_open);
    for (int32_t i = 0; i < n_in(KG_SLOT_FREE); i++)
        assert_int_equal(s.slots[s.in[KG_SLOT_FREE].at[i]].table[KG_KV_ALL].n, 0);
    assert_true(n_in(KG_SLOT_STARTING) + n_in(KG_SLOT_RUNNING) <= s.opts.max_batch);
}

/* A group lives while a sample waits for its prompt, or while it is the open one. */
static void check_groups(void)
{
    int64_t waiting = 0;
    struct kg_job *j;
    int32_t starting = 0;
    for (int32_t i = 0; i < s.order.n; i++) {
        const struct kg_group *g = &s.groups[s.order.at[i]];
        assert_true(g->n_waiting > 0 || s.order.at[i] == s.open);
        starting += g->n_waiting;
    }
    assert_int_equal(starting, n_in(KG_SLOT_STARTING));
    for (size_t i = 0; (j = kg_sched_job(&s, i)) != NULL; i++) {
        assert_true(j->n_left > 0);
        waiting += j->n_left;
    }
    assert_int_equal(waiting, s.n_waiting);
}

static void check(void)
{
    check_slots();
    check_blocks(KG_KV_ALL);
    check_blocks(KG_KV_WINDOW);
    check_groups();
}

static int32_t start(int name)
{
    int32_t slot = kg_sched_start(&s);
    assert_true(slot >= 0);
    assert_int_equal(name_of(&group_of(slot)->job), name);
    check();
    return slot;
}

static void move(int32_t slot, enum kg_slot_state to)
{
    kg_sched_move(&s, slot, to);
    check();
}

static void end_empty(void)
{
    for (int kind = 0; kind < KG_KV_KINDS; kind++)
        assert_int_equal(s.pool[kind].free.n, s.opts.n_blocks.of[kind]);
    assert_int_equal(n_in(KG_SLOT_FREE), s.opts.max_open);
    assert_int_equal(s.order.n, 0);
    assert_int_equal(s.n_waiting, 0);
    kg_sched_release(&s);
}

/* ---- one by one ---- */

static void samples_share_what_their_prompt_fills(void **state)
{
    int32_t a, b, c;
    (void)state;
    begin(4, 4, 20);
    submit(job(0, 3, 3, 2, 5));
    a = start(0);
    assert_int_equal(n_free(), 20 - 3 - 3); /* 3 of the prompt, 3 of the sample */
    b = start(0);
    c = start(0);
    assert_int_equal(kg_sched_start(&s), -1);
    assert_int_equal(n_free(), 20 - 3 - 3 - 3 - 2); /* the last shares the prompt's 3 */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(s.slots[a].table[KG_KV_ALL].at[i],
                         s.slots[b].table[KG_KV_ALL].at[i]);
        assert_int_equal(s.slots[a].table[KG_KV_ALL].at[i],
                         s.slots[c].table[KG_KV_ALL].at[i]);
    }
    assert_int_equal(s.slots[c].table[KG_KV_ALL].at[2],
                     group_of(c)->table[KG_KV_ALL].at[2]);
    for (int i = 2; i < 5; i++)
        assert_int_equal(s.pool[KG_KV_ALL].refs[s.slots[a].table[KG_KV_ALL].at[i]], 1);
    move(a, KG_SLOT_RUNNING);
    move(c, KG_SLOT_ENDED);
    move(c, KG_SLOT_FREE); /* b still waits for the prompt */
    assert_int_equal(s.order.n, 1);
    move(b, KG_SLOT_RUNNING);
    assert_int_equal(s.order.n, 0);
    assert_int_equal(n_free(), 20 - 2 - 3 - 3);
    move(a, KG_SLOT_FREE);
    move(b, KG_SLOT_FREE);
    end_empty();
}

static void who_came_first_starts_first_however_large(void **state)
{
    int32_t a, b;
    (void)state;
    begin(3, 3, 10);
    submit(job(0, 1, 1, 0, 6));
    submit(job(1, 2, 1, 1, 5));
    submit(job(2, 1, 1, 0, 1));
    a = start(0);
    assert_int_equal(kg_sched_start(&s), -1); /* 4 blocks are free, it needs 5 */
    move(a, KG_SLOT_RUNNING);
    assert_int_equal(kg_sched_start(&s), -1);
    move(a, KG_SLOT_ENDED);
    assert_int_equal(kg_sched_start(&s), -1);
    move(a, KG_SLOT_FREE);
    a = start(1);
    b = start(1);
    a = (move(a, KG_SLOT_FREE), start(2));
    move(a, KG_SLOT_FREE);
    move(b, KG_SLOT_FREE);
    end_empty();
}

/* An open group keeps its prompt's blocks, and a later group does not overtake it. */
static void a_full_cache_is_waited_for(void **state)
{
    int32_t a, b;
    (void)state;
    begin(4, 4, 7);
    submit(job(0, 3, 2, 1, 4));
    submit(job(1, 1, 1, 0, 1));
    a = start(0);
    assert_int_equal(n_free(), 2);
    assert_int_equal(kg_sched_start(&s), -1);
    move(a, KG_SLOT_RUNNING);
    assert_int_equal(s.order.n, 1);
    move(a, KG_SLOT_ENDED);
    move(a, KG_SLOT_FREE);
    assert_int_equal(n_free(), 5);
    a = start(0);
    b = start(0); /* the last sample needs two */
    assert_int_equal(kg_sched_start(&s), -1);
    move(b, KG_SLOT_FREE);
    b = start(1);
    move(a, KG_SLOT_FREE);
    move(b, KG_SLOT_FREE);
    end_empty();
}

static void what_goes_on_comes_before_what_is_new(void **state)
{
    int32_t a, b, c, rows[2];
    (void)state;
    begin(2, 3, 30);
    submit(job(0, 4, 1, 0, 3));
    a = start(0);
    b = start(0);
    assert_int_equal(kg_sched_start(&s), -1); /* no row is free */
    for (int i = 0; i < 2; i++) {
        move(i == 0 ? a : b, KG_SLOT_RUNNING);
        move(i == 0 ? a : b, KG_SLOT_ENDED);
        move(i == 0 ? a : b, KG_SLOT_PARKED);
    }
    c = start(0);
    assert_int_equal(kg_sched_start(&s), -1); /* a row is free, but no slot */
    move(b, KG_SLOT_RESUMING);
    move(a, KG_SLOT_RESUMING);
    rows[0] = kg_sched_start(&s);
    assert_int_equal(rows[0], b);
    assert_int_equal(group_of(b)->resumed, b);
    assert_int_equal(s.slots[b].table[KG_KV_ALL].n, 3);
    assert_int_equal(kg_sched_start(&s), -1);
    move(c, KG_SLOT_FREE);
    rows[1] = kg_sched_start(&s);
    assert_int_equal(rows[1], a);
    move(a, KG_SLOT_FREE);
    c = start(0);
    move(b, KG_SLOT_FREE);
    move(c, KG_SLOT_FREE);
    end_empty();
}

static void samples_may_be_withdrawn_before_they_start(void **state)
{
    int32_t a;
    (void)state;
    begin(2, 2, 10);
    submit(job(0, 3, 2, 1, 4));
    submit(job(1, 2, 1, 0, 2));
    submit(job(2, 1, 1, 0, 2));
    kg_sched_withdraw(&s, kg_sched_job(&s, 1));
    kg_sched_withdraw(&s, kg_sched_job(&s, 1)); /* now the job is removed */
    assert_int_equal(name_of(kg_sched_job(&s, 1)), 2);
    assert_null(kg_sched_job(&s, 2));
    a = start(0);
    move(a, KG_SLOT_RUNNING);
    kg_sched_withdraw(&s, kg_sched_job(&s, 0));
    check();
    assert_int_equal(s.order.n, 1);
    kg_sched_withdraw(&s, kg_sched_job(&s, 0)); /* no sample left for the prompt */
    check();
    assert_int_equal(s.order.n, 0);
    assert_int_equal(n_free(), 10 - 4);
    move(start(2), KG_SLOT_FREE);
    move(a, KG_SLOT_FREE);
    end_empty();
}

/* The only sample left continues in its prompt's blocks. */
static void one_that_is_left_alone_needs_no_copies(void **state)
{
    int32_t a;
    (void)state;
    begin(2, 2, 5);
    submit(job(0, 2, 2, 1, 4));
    assert_int_equal(kg_job_needs(kg_sched_job(&s, 0), KG_KV_ALL), 5);
    kg_sched_withdraw(&s, kg_sched_job(&s, 0));
    assert_int_equal(kg_job_needs(kg_sched_job(&s, 0), KG_KV_ALL), 4);
    a = start(0);
    assert_int_equal(n_free(), 1);
    move(a, KG_SLOT_FREE);
    end_empty();
}

static void what_is_cleared_is_handed_out_the_same_way(void **state)
{
    int32_t slot[2], block[2];
    (void)state;
    begin(3, 5, 30);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 3; k++)
            submit(job(k, 2, 2, 1, 4));
        assert_int_equal(start(0), 0);
        assert_int_equal(s.slots[0].table[KG_KV_ALL].at[0], 0);
        start(0);
        slot[i] = start(1);
        block[i] = s.slots[slot[i]].table[KG_KV_ALL].at[3];
        kg_sched_clear(&s);
        check();
        assert_int_equal(n_free(), 30);
        assert_null(kg_sched_job(&s, 0));
    }
    assert_int_equal(slot[0], slot[1]);
    assert_int_equal(block[0], block[1]);
    end_empty();
}

static int32_t seen_by(int32_t slot, int32_t entry)
{
    return s.slots[slot].table[KG_KV_WINDOW].at[entry];
}

/* The window sees at most two blocks: the sample holds three, and its prompt of five
 * blocks is computed in four. */
static void a_table_goes_round_in_what_a_window_sees(void **state)
{
    const struct kg_blocks *p = &s.pool[KG_KV_WINDOW];
    int32_t a;
    (void)state;
    begin_with(2, 2, (struct kg_kv_size){{8, 4}});
    submit(job_seen(job(0, 1, 5, 5, 8), 2, 2));
    assert_int_equal(kg_job_needs(kg_sched_job(&s, 0), KG_KV_ALL), 8);
    assert_int_equal(kg_job_needs(kg_sched_job(&s, 0), KG_KV_WINDOW), 4);
    a = start(0);
    for (int i = 3; i < 5; i++) /* blocks of the prompt that the sample reads */
        assert_int_equal(seen_by(a, i), group_of(a)->table[KG_KV_WINDOW].at[i]);
    for (int i = 3; i < 8; i++)
        assert_int_equal(seen_by(a, i), seen_by(a, i - 3));
    assert_int_equal(p->free.n, 0);
    move(a, KG_SLOT_RUNNING);
    assert_int_equal(p->free.n, 1); /* freed: a block that only the group held */
    kg_sched_pass(&s, a, 8);
    check();
    assert_int_equal(p->free.n, 1); /* nothing is shared: all three are its own */
    move(a, KG_SLOT_FREE);
    end_empty();
}

/* A shared block is freed when the last sample has passed it. */
static void what_all_have_passed_is_given_back(void **state)
{
    const struct kg_blocks *p = &s.pool[KG_KV_WINDOW];
    int32_t a, b;
    (void)state;
    begin_with(2, 2, (struct kg_kv_size){{20, 12}});
    submit(job_seen(job(0, 2, 4, 4, 8), 3, 0));
    a = start(0);
    b = start(0);
    assert_int_equal(seen_by(a, 1), seen_by(b, 1));
    assert_int_equal(seen_by(a, 3), seen_by(b, 3));
    assert_int_not_equal(seen_by(a, 4), seen_by(b, 4));
    assert_int_equal(p->free.n, 12 - 3 - 4 - 4);
    move(a, KG_SLOT_RUNNING);
    move(b, KG_SLOT_RUNNING);
    kg_sched_pass(&s, a, 3);
    check();
    assert_int_equal(p->free.n, 1);
    kg_sched_pass(&s, b, 2);
    check();
    assert_int_equal(p->free.n, 2);
    kg_sched_pass(&s, b, 6); /* a sample's own blocks are not freed by passing */
    kg_sched_pass(&s, a, 6);
    check();
    assert_int_equal(p->free.n, 4);
    move(a, KG_SLOT_FREE);
    move(b, KG_SLOT_FREE);
    end_empty();
}

static void running_out_of_memory_is_a_status(void **state)
{
    struct kg_sched_opts o = {2, 2, {{4, 0}}, 2};
    struct kg_job j = job(0, 1, 1, 0, 1);
    struct kg_err why;
    uint64_t before = kg_mem_current_bytes();
    (void)state;
    kg_mem_fail_at(1);
    assert_int_equal(kg_sched_init(&s, &o, &why), KG_ENOMEM);
    kg_sched_release(&s);
    begin(2, 2, 4);
    kg_mem_fail_at(1);
    assert_int_equal(kg_sched_submit(&s, &j, &why), KG_ENOMEM);
    assert_int_equal(s.n_waiting, 0);
    submit(j);
    move(start(0), KG_SLOT_FREE);
    end_empty();
    assert_int_equal(kg_mem_current_bytes(), before);
}

/* ---- random schedules ---- */

enum { SCHEDULES = 3000, JOBS = 40, MOST_STEPS = 10000 };

/* The test's own account, independent of the scheduler's state. */
struct schedule {
    uint32_t seed, drawn;
    int submitted;
    int32_t left[JOBS]; /* samples of each job that have not started */
    int32_t begun[JOBS];
    int32_t started, ended, withdrawn, asked;
    int32_t resumed[1024]; /* slots that wait to resume, [from, to) */
    int from, to;
};

/* How often each tested situation occurred, over all schedules. */
static int n_resumed, n_withdrawn, n_full, n_beside, n_lacks[KG_KV_KINDS], n_passed;

static int32_t below(struct schedule *x, int32_t n)
{
    return (int32_t)kg_rng_below((struct kg_rng_key){x->seed, KG_RNG_TEST}, 3, x->drawn++,
                                 0, (uint64_t)n);
}

static bool can_begin(const struct kg_job *j)
{
    bool can = true;
    for (int kind = 0; kind < KG_KV_KINDS; kind++)
        can &= kg_job_needs(j, kind) <= s.opts.n_blocks.of[kind];
    return can;
}

static void ask(struct schedule *x)
{
    int32_t blocks = 1 + below(x, 8), n_prompt = 1 + below(x, blocks);
    int32_t n_left = 1 + below(x, 5),
            n_shared = below(x, 4) == 0 ? 0 : n_prompt - below(x, 2);
    int32_t sees = 1 + below(x, 4), more = below(x, 3);
    struct kg_job j = job_seen(job(x->submitted, n_left, n_prompt, n_shared, blocks),
                               sees, more);
    if (!can_begin(&j))
        j = job_seen(job(x->submitted, 1, n_prompt, n_shared, blocks), sees, more);
    if (!can_begin(&j))
        return;
    submit(j);
    x->left[x->submitted++] = j.n_left;
    x->asked += j.n_left;
}

static int first_job(const struct schedule *x)
{
    int i = 0;
    while (i < x->submitted && x->left[i] == 0)
        i++;
    return i;
}

static bool lacks(const struct kg_job *j, int kind)
{
    const struct kg_take *t = &j->take[kind];
    int32_t more = kg_job_needs(j, kind) - (s.open >= 0 ? t->prompt : 0);
    n_lacks[kind] += s.pool[kind].free.n < more;
    return s.pool[kind].free.n < more;
}

/* Asserts that one of the valid reasons kept the next job from starting. */
static void assert_no_room(const struct schedule *x)
{
    const struct kg_job *j = kg_sched_job(&s, 0);
    if (n_in(KG_SLOT_STARTING) + n_in(KG_SLOT_RUNNING) == s.opts.max_batch)
        return;
    assert_int_equal(x->from, x->to);
    if (j == NULL || n_in(KG_SLOT_FREE) == 0)
        return;
    assert_true(lacks(j, KG_KV_ALL) || lacks(j, KG_KV_WINDOW));
    n_full++;
    assert_true(n_in(KG_SLOT_FREE) < s.opts.max_open); /* or it could never start */
}

/* Whether the prompt's table holds the block; it is freed with the group. */
static bool of_group(const struct kg_table *prompt, int32_t block)
{
    bool found = false;
    for (int32_t i = prompt->from; i < prompt->end; i++)
        found |= prompt->at[i] == block;
    return found;
}

/* A sample that has just started reads its prompt's blocks, and writes only to blocks
 * that no other sample reads. */
static void check_sample(int32_t slot, const struct kg_job *j, int kind)
{
    const struct kg_take *take = &j->take[kind];
    const struct kg_table *t = &s.slots[slot].table[kind],
                          *prompt = &group_of(slot)->table[kind];
    assert_int_equal(t->n, take->n_blocks);
    for (int32_t i = take->seen; i < take->n_prompt; i++)
        if (i < take->shared || j->n_left == 0)
            assert_int_equal(t->at[i], prompt->at[i]);
    for (int32_t i = take->shared; i < t->n; i++) {
        bool left = of_group(prompt, t->at[i]);
        assert_true(!left || j->n_left == 0);
        assert_int_equal(s.pool[kind].refs[t->at[i]], 1 + left);
        assert_true(i < take->shared + take->own || t->at[i] == t->at[i - take->own]);
    }
}

static void start_all(struct schedule *x)
{
    int32_t slot;
    while ((slot = kg_sched_start(&s)) >= 0) {
        check();
        assert_int_equal(s.slots[slot].state, KG_SLOT_STARTING);
        if (x->from < x->to) {
            assert_int_equal(slot, x->resumed[x->from++]);
            assert_int_equal(group_of(slot)->n_started, 1);
            n_resumed++;
            continue;
        }
        const struct kg_job *j = &group_of(slot)->job;
        assert_int_equal(name_of(j), first_job(x));
        assert_int_equal(j->n_left, --x->left[name_of(j)]);
        assert_int_equal(group_of(slot)->n_started, ++x->begun[name_of(j)]);
        check_sample(slot, j, KG_KV_ALL);
        check_sample(slot, j, KG_KV_WINDOW);
        n_beside += s.order.n > 1;
        x->started++;
    }
    assert_no_room(x);
}

/* Removes a slot that resumes from the list of waiting ones. */
static void forget(struct schedule *x, int32_t slot)
{
    for (int i = x->from; i < x->to; i++)
        if (x->resumed[i] == slot) {
            memmove(&x->resumed[i], &x->resumed[i + 1],
                    (size_t)(x->to - i - 1) * sizeof *x->resumed);
            x->to--;
            return;
        }
}

static void go_on(struct schedule *x, int32_t slot)
{
    switch (s.slots[slot].state) {
    case KG_SLOT_STARTING:
        move(slot, below(x, 6) > 0 ? KG_SLOT_RUNNING : KG_SLOT_ENDED);
        break;
    case KG_SLOT_RUNNING:
        n_passed += s.slots[slot].table[KG_KV_WINDOW].shared > 0;
        kg_sched_pass(&s, slot, below(x, 9));
        move(slot, KG_SLOT_ENDED);
        break;
    case KG_SLOT_ENDED:
        if (below(x, 2) == 0 && x->to < 1000) {
            move(slot, KG_SLOT_PARKED);
            break;
        }
        move(slot, KG_SLOT_FREE);
        x->ended++;
        break;
    case KG_SLOT_PARKED:
        move(slot, KG_SLOT_RESUMING);
        x->resumed[x->to++] = slot;
        break;
    default:
        break;
    }
}

static void give_up(struct schedule *x)
{
    int32_t slot = below(x, s.opts.max_open);
    struct kg_job *j = kg_sched_job(&s, (size_t)below(x, 6));
    if (s.slots[slot].state != KG_SLOT_FREE) {
        forget(x, slot);
        move(slot, KG_SLOT_FREE);
        x->ended++;
    } else if (j) {
        x->left[name_of(j)]--;
        x->withdrawn++;
        n_withdrawn++;
        kg_sched_withdraw(&s, j);
        check();
    }
}

static void run_schedule(uint32_t seed)
{
    struct schedule x = {.seed = seed};
    int32_t batch = 1 + below(&x, 6);
    int steps = 0, jobs = 1 + below(&x, JOBS);
    bool gives_up = below(&x, 2) == 0;
    struct kg_kv_size blocks = {{1 + below(&x, 24), 1 + below(&x, 20)}};
    begin_with(batch, batch + below(&x, 4), blocks);
    for (int tries = 0;
         tries < jobs || n_in(KG_SLOT_FREE) < s.opts.max_open || s.n_waiting > 0;
         steps++) {
        assert_true(steps < MOST_STEPS);
        if (tries < jobs && below(&x, 3) == 0) {
            tries++;
            ask(&x);
        }
        start_all(&x);
        for (int32_t i = 0; i < s.opts.max_open; i++)
            if (below(&x, 3) == 0)
                go_on(&x, i);
        if (gives_up && below(&x, 8) == 0)
            give_up(&x);
    }
    assert_int_equal(x.started + x.withdrawn, x.asked);
    assert_int_equal(x.ended, x.started);
    end_empty();
}

static void whatever_happens_all_end_in_order_and_no_block_is_lost(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < SCHEDULES; seed++)
        run_schedule(seed);
    assert_true(n_resumed > SCHEDULES && n_withdrawn > SCHEDULES / 8);
    assert_true(n_full > SCHEDULES && n_beside > SCHEDULES && n_passed > SCHEDULES);
    assert_true(n_lacks[KG_KV_ALL] > SCHEDULES && n_lacks[KG_KV_WINDOW] > SCHEDULES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_share_what_their_prompt_fills),
        cmocka_unit_test(who_came_first_starts_first_however_large),
        cmocka_unit_test(a_full_cache_is_waited_for),
        cmocka_unit_test(what_goes_on_comes_before_what_is_new),
        cmocka_unit_test(samples_may_be_withdrawn_before_they_start),
        cmocka_unit_test(one_that_is_left_alone_needs_no_copies),
        cmocka_unit_test(what_is_cleared_is_handed_out_the_same_way),
        cmocka_unit_test(a_table_goes_round_in_what_a_window_sees),
        cmocka_unit_test(what_all_have_passed_is_given_back),
        cmocka_unit_test(running_out_of_memory_is_a_status),
        cmocka_unit_test(whatever_happens_all_end_in_order_and_no_block_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
