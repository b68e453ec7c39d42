/* The scheduler assigns batch rows and cache blocks to samples. It only counts, and does
 * not depend on the computation.
 *
 * A request is a job: a number of samples of one prompt. Jobs wait in a queue. The first
 * job opens a group, which holds the blocks of the prompt while its samples run or wait
 * to start. At most one group is open, and later jobs wait. A sample takes a slot, with
 * these states:
 *   FREE -> STARTING (has a row and blocks, waits for its group's tokens) -> RUNNING
 *    -> ENDED (its row is free) -> FREE, or PARKED (keeps its blocks) -> RESUMING (waits
 *       for a row) -> STARTING ...
 * Slots and groups are numbers, which callers use as indices of their own data.
 *
 * Each kind of layers has its own blocks (model/kv.h). For layers with a window, a table
 * is circular: later positions reuse the blocks of positions that no query will see
 * again. So the blocks of a sample are known when it starts, and its tables never change.
 *
 * Invariant: a sample starts only when all blocks that it can ever need are free (for a
 * job's first sample, also the prompt's blocks). So no running sample waits for blocks
 * and there is no deadlock.
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

/* Blocks of one kind that a job takes. Entries are entries of tables, from position 0 on;
 * in a table that is circular over n blocks, entries i and i + n name the same block. */
struct kg_take {
    int32_t n_prompt; /* entries that its prompt fills or begins */
    int32_t n_blocks; /* number for one whole sample, including the prompt */
    int32_t prompt;   /* number of blocks in the prompt's circular table */
    int32_t seen;     /* the first entry of the prompt that samples read */
    int32_t shared;   /* entries from `seen` up to this one are shared by all samples */
    /* blocks over which a sample's table is circular from entry `shared` on. The last
     * sample takes the prompt's blocks that no other sample reads; earlier samples only
     * have new blocks */
    int32_t own;
};

/* A request, and the blocks that it takes. */
struct kg_job {
    /* the owner and the next sample: borrowed, never dereferenced */
    const struct kg_request *request;
    struct kg_traj *trajs;
    int32_t next;
    int32_t n_left;                   /* number of samples not started; >= 1 */
    struct kg_take take[KG_KV_KINDS]; /* {0} for a kind that the cache lacks */
};
/* Number of the prompt's blocks that the last sample takes over. */
static inline int32_t kg_take_left(const struct kg_take *t)
{
    int32_t left = t->prompt - (t->shared > t->seen ? t->shared - t->seen : 0);
    return left < t->own ? left : t->own;
}
/* Free blocks of a kind needed to start: those of its prompt and its whole first
 * sample. */
static inline int32_t kg_job_needs(const struct kg_job *j, int kind)
{
    const struct kg_take *t = &j->take[kind];
    return t->prompt + t->own - (j->n_left == 1 ? kg_take_left(t) : 0);
}

/* A table of blocks, with a reference to each of at[from, end); these are distinct. All
 * other entries repeat these or are never read. */
struct kg_table {
    int32_t *at; /* (n) blocks from position 0 on */
    int32_t n, from, end;
    int32_t shared; /* entries before this one belong to the prompt */
};
/* The table in the form that forwards take. */
static inline struct kg_kv_tables kg_tables_of(const struct kg_table *t)
{
    return (struct kg_kv_tables){{t[KG_KV_ALL].n > 0 ? t[KG_KV_ALL].at : NULL,
                                  t[KG_KV_WINDOW].n > 0 ? t[KG_KV_WINDOW].at : NULL}};
}

struct kg_slot {
    enum kg_slot_state state;
    int32_t group; /* valid in state STARTING */
    struct kg_table table[KG_KV_KINDS];
};

/* Tokens that sequences wait for: a prompt, or those given to a resumed sequence. */
struct kg_group {
    struct kg_job job;
    int32_t resumed;                    /* slot of the resumed sequence; -1: a prompt */
    int32_t n_started;                  /* samples started so far */
    int32_t n_waiting;                  /* slots in state STARTING */
    struct kg_table table[KG_KV_KINDS]; /* of the prompt */
};

struct kg_list {
    int32_t *at; /* (n) */
    int32_t n;
};

struct kg_sched_opts {
    int32_t max_batch;          /* rows: slots that are STARTING or RUNNING */
    int32_t max_open;           /* slots; >= max_batch */
    struct kg_kv_size n_blocks; /* blocks of the cache; 0 for an unused kind */
    int32_t blocks_per_seq;     /* maximum number of entries of a table */
};

/* Blocks of one kind. */
struct kg_blocks {
    struct kg_list free;
    int32_t *refs; /* (n_blocks) reference counts */
};

struct kg_sched {
    struct kg_sched_opts opts;
    struct kg_block memory;  /* owned: the arrays */
    struct kg_slot *slots;   /* (max_open) */
    struct kg_group *groups; /* (max_batch+1): one per row, and the open one */
    /* (max_open+max_batch+1, kinds, blocks_per_seq) storage of their tables */
    int32_t *tables;
    int32_t *places;                   /* (states,max_open) storage of the lists below */
    struct kg_list in[KG_SLOT_STATES]; /* slots by state, longest in that state first */
    struct kg_list order;              /* groups in use, oldest first */
    struct kg_blocks pool[KG_KV_KINDS];
    int32_t open;         /* the group with samples not started; -1: none */
    struct kg_job *queue; /* (queue_capacity) owned: queue_n jobs from queue_at */
    size_t queue_capacity, queue_at, queue_n;
    int64_t n_waiting; /* samples not started */
};

/* errors: ENOMEM. Release s also after an error. */
kg_status kg_sched_init(struct kg_sched *s, const struct kg_sched_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;
void kg_sched_release(struct kg_sched *s);
/* Drops all jobs and frees all slots and blocks. */
void kg_sched_clear(struct kg_sched *s);

/* Appends a job to the queue. kg_job_needs must not exceed the cache's blocks of any
 * kind.   errors: ENOMEM */
kg_status kg_sched_submit(struct kg_sched *s, const struct kg_job *job,
                          struct kg_err *err) KG_MUST_CHECK;
/* The i-th job with samples to start, beginning with that of the open group. NULL: there
 * are fewer. */
struct kg_job *kg_sched_job(struct kg_sched *s, size_t i);
/* Drops one sample of the job; dropping the last one removes the job. */
void kg_sched_withdraw(struct kg_sched *s, struct kg_job *job);

/* Starts one sample, if there is room: resumed ones first, then samples in queue order.
 * It then has a row and all its blocks.   returns its slot, in state STARTING; -1: no
 * room, or nothing to start */
int32_t kg_sched_start(struct kg_sched *s);
/* Moves a slot along an arrow of the diagram at the top, except to STARTING; or from any
 * state to FREE, which releases its blocks. */
void kg_sched_move(struct kg_sched *s, int32_t slot, enum kg_slot_state to);
/* Call when the window has passed `entry`: releases the slot's references to the prompt's
 * blocks before this entry. */
void kg_sched_pass(struct kg_sched *s, int32_t slot, int32_t entry);

#endif
