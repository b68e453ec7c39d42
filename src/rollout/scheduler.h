/* The scheduler: who has a row of the batch, and which blocks of the cache. It counts
 * samples and blocks; what is computed for them it does not know.
 *
 * A request is a job: so many samples of one prompt. Jobs wait in a queue. The first one
 * opens a group, which holds the blocks of its prompt while samples of it start or are
 * still to start; one group at most is open, and the jobs behind it wait. A sample takes
 * a slot, and is
 *
 *   FREE -> STARTING (has a row and blocks, waits for its group's tokens) -> RUNNING
 *     -> ENDED (its row is free) -> FREE, or PARKED (keeps its blocks) -> RESUMING (waits
 *     for a row) -> STARTING ...
 *
 * Slots and groups are numbers, under which callers keep what they know of them.
 *
 * There are blocks of every kind of layers (model/kv.h). Where queries see no further
 * than a window, a table goes round: it names again, for later positions, the blocks of
 * those that nobody will see any more. So what a sample holds is known when it starts,
 * and its tables stay as they are.
 */
#ifndef KG_ROLLOUT_SCHEDULER_H
#define KG_ROLLOUT_SCHEDULER_H

#include "base/columns.h"
#include "base/status.h"
#include "model/kv.h"

struct kg_request;
struct kg_traj;

enum kg_slot_state {
    KG_SLOT_FREE = 0,
    KG_SLOT_STARTING,
    KG_SLOT_RUNNING,
    KG_SLOT_ENDED,
    KG_SLOT_PARKED,
    KG_SLOT_RESUMING,
    KG_SLOT_STATES
};

/* What one job takes of one kind of blocks. Entries are those of tables, from position 0
 * on; a table that goes round in n blocks has the block of entry i at i + n again. */
struct kg_take {
    int32_t n_prompt; /* entries that its prompt fills, or begins */
    int32_t n_blocks; /* of one whole sample, the prompt's included */
    int32_t prompt;   /* blocks that the prompt's table goes round in */
    int32_t seen;     /* the first entry of the prompt that samples read */
    int32_t shared;   /* from there to this one all samples read the prompt's blocks */
    /* blocks in which a sample's table goes round from entry `shared` on. The last sample
     * has those of the prompt's among them that no other one reads; the samples before it
     * have only blocks of their own */
    int32_t own;
};

/* A request, and what it takes. */
struct kg_job {
    /* whose it is, and its next sample: borrowed and never looked at */
    const struct kg_request *request;
    struct kg_traj *trajs;
    int32_t next;
    int32_t n_left;                   /* samples that have not started; >= 1 */
    struct kg_take take[KG_KV_KINDS]; /* {0} of a kind that the cache has not */
};
/* Blocks of the prompt that its last sample goes on in. */
static inline int32_t kg_take_left(const struct kg_take *t)
{
    int32_t left = t->prompt - (t->shared > t->seen ? t->shared - t->seen : 0);
    return left < t->own ? left : t->own;
}
/* Free blocks of a kind with which it can begin: its prompt's and all of its first
 * sample. */
static inline int32_t kg_job_needs(const struct kg_job *j, int kind)
{
    const struct kg_take *t = &j->take[kind];
    return t->prompt + t->own - (j->n_left == 1 ? kg_take_left(t) : 0);
}

/* A table, and what is held by it: a reference to each of at[from, end), which are all
 * different. What else it names is named by those again, or nobody reads it. */
struct kg_table {
    int32_t *at; /* (n) from position 0 on */
    int32_t n, from, end;
    int32_t shared; /* entries before this one are of a prompt */
};
/* As a forward reads them. */
static inline struct kg_kv_tables kg_tables_of(const struct kg_table *t)
{
    return (struct kg_kv_tables){{t[KG_KV_ALL].n > 0 ? t[KG_KV_ALL].at : NULL,
                                  t[KG_KV_WINDOW].n > 0 ? t[KG_KV_WINDOW].at : NULL}};
}

struct kg_slot {
    enum kg_slot_state state;
    int32_t group; /* while STARTING */
    struct kg_table table[KG_KV_KINDS];
};

/* What sequences wait for: a prompt, or what a resumed one was given. */
struct kg_group {
    struct kg_job job;
    int32_t resumed;                    /* its slot; -1: a prompt */
    int32_t n_started;                  /* samples so far */
    int32_t n_waiting;                  /* slots that are STARTING */
    struct kg_table table[KG_KV_KINDS]; /* of the prompt */
};

struct kg_list {
    int32_t *at; /* (n) */
    int32_t n;
};

struct kg_sched_opts {
    int32_t max_batch;          /* rows: slots that are STARTING or RUNNING */
    int32_t max_open;           /* slots; >= max_batch */
    struct kg_kv_size n_blocks; /* of the cache; 0 of a kind that it has not */
    int32_t blocks_per_seq;     /* the most entries of one table */
};

/* Blocks of one kind. */
struct kg_pool {
    struct kg_list free;
    int32_t *refs; /* (n_blocks) holders of each */
};

struct kg_sched {
    struct kg_sched_opts opts;
    struct kg_block memory;  /* owned: the arrays */
    struct kg_slot *slots;   /* (max_open) */
    struct kg_group *groups; /* (max_batch+1): one a row, and one that is open */
    int32_t *tables;         /* (max_open+max_batch+1, kinds, blocks_per_seq) theirs */
    int32_t *places;         /* (states,max_open) of the lists that follow */
    struct kg_list in[KG_SLOT_STATES]; /* slots by state, the longest there first */
    struct kg_list order;              /* groups in use, the oldest first */
    struct kg_pool pool[KG_KV_KINDS];
    int32_t open;         /* the group with samples that wait for room; -1: none */
    struct kg_job *queue; /* (queue_capacity) owned: queue_n from queue_at */
    size_t queue_capacity, queue_at, queue_n;
    int64_t n_waiting; /* samples that have not started */
};

/* errors: ENOMEM; release it all the same */
kg_status kg_sched_init(struct kg_sched *s, const struct kg_sched_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;
void kg_sched_release(struct kg_sched *s);
/* Nothing waits, all slots and blocks are free. */
void kg_sched_clear(struct kg_sched *s);

/* To the end of the queue. It can begin when all else is free: of each kind kg_job_needs
 * is at most the cache's blocks.   errors: ENOMEM */
kg_status kg_sched_submit(struct kg_sched *s, const struct kg_job *job,
                          struct kg_err *err) KG_MUST_CHECK;
/* The i-th job that has samples to start, that of the open group first. NULL: there are
 * not so many. */
struct kg_job *kg_sched_job(struct kg_sched *s, size_t i);
/* One sample of it less. The job is gone with the last. */
void kg_sched_withdraw(struct kg_sched *s, struct kg_job *job);

/* Start one more, if there is room: those that are resumed first, then samples in the
 * order of the queue. It has a row and all its blocks then.   returns its slot, STARTING;
 * -1: there is no room, or nothing to start */
int32_t kg_sched_start(struct kg_sched *s);
/* Along an arrow of the picture, to any state but STARTING; from every state to FREE,
 * with its blocks. */
void kg_sched_move(struct kg_sched *s, int32_t slot, enum kg_slot_state to);
/* No query of the slot will see an entry before this one through the window: what it
 * shares there it holds no longer. */
void kg_sched_pass(struct kg_sched *s, int32_t slot, int32_t entry);

#endif
