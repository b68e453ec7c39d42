/* The session from inside, for rollout.c and its tests. Slots and groups are the
 * scheduler's numbers: a sequence is one slot in three views. */
#ifndef KG_ROLLOUT_ROLLOUT_INTERNAL_H
#define KG_ROLLOUT_ROLLOUT_INTERNAL_H

#include "rollout/executor.h"
#include "rollout/request.h"
#include "rollout/scheduler.h"

struct kg_seq {
    const struct kg_request *request;   /* borrowed */
    const struct kg_sampling *sampling; /* borrowed */
    struct kg_traj *traj;               /* borrowed */
    int32_t generated;                  /* tokens so far, in all turns */
    int32_t base;   /* first token of the trajectory that its keys are of: position 0 */
    int32_t cached; /* when resumed: tokens whose keys are in the cache */
    int32_t limit;  /* `generated` at which the turn ends */
    int64_t since;  /* of the turn: the first decode pass that may have a row of it */
    int32_t row;    /* of the pass that was launched last; -1: none */
    struct kg_str text; /* owned: of this turn, where stop strings are looked for */
    kg_status status;   /* other than OK: it failed, with err */
    struct kg_err err;
};

/* Of what is computed before somebody can draw, where experts are recorded. */
struct kg_group_experts {
    uint16_t *ids; /* (n,C) owned: from position 0 on */
    size_t room;
};

struct kg_rollout {
    const struct kg_tokenizer *tok; /* borrowed, may be NULL */
    struct kg_rollout_opts opts;
    struct kg_sched sched;
    struct kg_exec exec;

    struct kg_seq *seqs; /* (max_open) owned: by slot, as prompts of exec are by group */

    struct kg_group_experts *experts; /* (max_batch+1) owned: by group */

    struct kg_rollout_session session;
    struct kg_request_limits limits;
    bool telling; /* a token callback is being called */
    struct kg_rollout_stats stats;
    size_t longest; /* tokens that a sequence of the session has reached */
};

#endif
