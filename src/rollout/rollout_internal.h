/* The inside of a session, for rollout.c and its tests. Slots and groups are numbered by
 * the scheduler; the slot number of a sequence is its index in all arrays. */
#ifndef KG_ROLLOUT_ROLLOUT_INTERNAL_H
#define KG_ROLLOUT_ROLLOUT_INTERNAL_H

#include "rollout/executor.h"
#include "rollout/request.h"
#include "rollout/scheduler.h"

struct kg_seq {
    const struct kg_request *request;   /* borrowed */
    const struct kg_sampling *sampling; /* borrowed */
    struct kg_traj *traj;               /* borrowed */
    int32_t generated;                  /* sampled tokens in all turns */
    int32_t base;       /* index of the trajectory's token at position 0 */
    int32_t cached;     /* when resumed: number of tokens with cached keys */
    int32_t limit;      /* value of `generated` that ends the turn */
    int64_t since;      /* the turn's first decode pass with a row for it */
    int32_t row;        /* row in the pass launched last; -1: none */
    struct kg_str text; /* owned: text of this turn, to search stop strings */
    kg_status status;   /* if not OK, it failed with err */
    struct kg_err err;
};

/* Experts of prompts and resumed tokens, if recorded. */
struct kg_group_experts {
    uint16_t *ids; /* (n,C) owned: from position 0 on */
    size_t room;
};

struct kg_rollout {
    const struct kg_tokenizer *tok; /* borrowed, may be NULL */
    struct kg_rollout_opts opts;
    struct kg_sched sched;
    struct kg_exec exec;

    struct kg_seq *seqs; /* (max_open) owned, by slot; the executor's: by group */

    struct kg_group_experts *experts; /* (max_batch+1) owned: by group */

    struct kg_rollout_session session;
    struct kg_request_limits limits;
    bool telling; /* a token callback is running */
    struct kg_rollout_stats stats;
    size_t longest; /* maximum length of a sequence in the session */
};

#endif
