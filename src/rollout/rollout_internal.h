/* The inside of a session, for rollout.c and its tests. Slots and groups are numbered by
 * the scheduler; the slot number of a sequence is its index in all arrays. */
#ifndef KG_ROLLOUT_ROLLOUT_INTERNAL_H
#define KG_ROLLOUT_ROLLOUT_INTERNAL_H

#include "rollout/executor.h"
#include "rollout/rollout.h"
#include "rollout/scheduler.h"

/* The needs of a request: its maximum length, its cache blocks, and whether an engine
 * with given limits can ever run it.
 *
 * Pure arithmetic, without model, queue or sequence. All errors are EINVAL.
 */

/* Limits of the engine and its session. */
struct kg_request_limits {
    const struct kg_sampling
        *sampling; /* for requests without their own sampling; or NULL */
    int32_t vocab;
    int32_t choices;            /* experts per token; 0: the model has none */
    int32_t max_len;            /* prompt and completion */
    struct kg_kv_size n_blocks; /* blocks of the cache; 0 for an unused kind */
    int32_t seen;               /* window size of layers with a window */
    int32_t chunk;              /* prefill chunk of prompts and turns */
    int32_t n_adapters;         /* adapters mixed into the model */
    bool stops;                 /* stop strings are supported */
};

const struct kg_sampling *kg_request_sampling(const struct kg_request *q,
                                              const struct kg_request_limits *l);
/* Maximum number of new tokens of the request's first turn. */
int32_t kg_request_first_limit(const struct kg_request *q,
                               const struct kg_request_limits *l);
struct kg_job kg_request_job(const struct kg_request *q, struct kg_traj *trajs,
                             const struct kg_request_limits *l);

kg_status kg_request_check(const struct kg_request *q, const struct kg_request_limits *l,
                           struct kg_err *err) KG_MUST_CHECK;
/* Checks that an episode of `seen` tokens can continue with n tokens and a turn of at
 * most `limit`. */
kg_status kg_request_check_turn(const struct kg_request *q,
                                const struct kg_request_limits *l, size_t seen,
                                const int32_t *tokens, size_t n, int32_t limit,
                                struct kg_err *err) KG_MUST_CHECK;

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
    kg_status status;   /* if not OK, the sequence failed with err */
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

    struct kg_seq *seqs; /* (max_open) owned, indexed by slot */

    struct kg_group_experts *experts; /* (max_batch+1) owned: by group */

    struct kg_rollout_session session;
    struct kg_request_limits limits;
    bool telling; /* a token callback is running */
    struct kg_rollout_stats stats;
    size_t longest; /* maximum length of a sequence in the session */
};

#endif
