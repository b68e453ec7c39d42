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
 */
#ifndef KG_ROLLOUT_SCHEDULER_H
#define KG_ROLLOUT_SCHEDULER_H

#include "base/columns.h"
#include "base/status.h"

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

/* A request, and what it takes. */
struct kg_job {
    /* whose it is, and its next sample: borrowed and never looked at */
    const struct kg_request *request;
    struct kg_traj *trajs;
    int32_t next;
    int32_t n_left;   /* samples that have not started; >= 1 */
    int32_t n_prompt; /* blocks that its prompt fills, or begins */
    /* of those, the first that all samples share; of the others the last sample takes the
     * prompt's, the ones before it have their own */
    int32_t n_shared;
    int32_t n_blocks; /* of one whole sample, the prompt's included */
};
/* Free blocks with which it can begin: its prompt's and all of its first sample. */
static inline int32_t kg_job_needs(const struct kg_job *j)
{
    return j->n_blocks + (j->n_left > 1 ? j->n_prompt - j->n_shared : 0);
}

struct kg_slot {
    enum kg_slot_state state;
    int32_t group;   /* while STARTING */
    int32_t *blocks; /* (n_blocks) from position 0 on */
    int32_t n_blocks;
};

/* What sequences wait for: a prompt, or what a resumed one was given. */
struct kg_group {
    struct kg_job job;
    int32_t resumed;   /* its slot; -1: a prompt */
    int32_t n_started; /* samples so far */
    int32_t n_waiting; /* slots that are STARTING */
    int32_t *blocks;   /* (n_blocks) of the prompt, a reference to each */
    int32_t n_blocks;
};

struct kg_list {
    int32_t *at; /* (n) */
    int32_t n;
};

struct kg_sched_opts {
    int32_t max_batch;      /* rows: slots that are STARTING or RUNNING */
    int32_t max_open;       /* slots; >= max_batch */
    int32_t n_blocks;       /* of the cache */
    int32_t blocks_per_seq; /* the most that one sample takes */
};

struct kg_sched {
    struct kg_sched_opts opts;
    struct kg_block memory;  /* owned: the arrays */
    struct kg_slot *slots;   /* (max_open) */
    struct kg_group *groups; /* (max_batch+1): one a row, and one that is open */
    int32_t *tables;         /* (max_open+max_batch+1, blocks_per_seq) their blocks */
    int32_t *places;         /* (states,max_open) of the lists that follow */
    struct kg_list in[KG_SLOT_STATES]; /* slots by state, the longest there first */
    struct kg_list order;              /* groups in use, the oldest first */
    struct kg_list free;               /* blocks */
    int32_t *refs;                     /* (n_blocks) holders of each */
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

/* To the end of the queue. It can begin when all else is free: kg_job_needs is at most
 * the cache's blocks.   errors: ENOMEM */
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

#endif
