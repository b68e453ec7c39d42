/* The needs of a request: its maximum length, its cache blocks, and whether an engine
 * with given limits can ever run it.
 *
 * Pure arithmetic, without model, queue or sequence. All errors are EINVAL.
 */
#ifndef KG_ROLLOUT_REQUEST_H
#define KG_ROLLOUT_REQUEST_H

#include "rollout/rollout.h"
#include "rollout/scheduler.h"

/* Limits of the engine and its session. */
struct kg_request_limits {
    const struct kg_sampling *sampling; /* for requests without their own; or NULL */
    int32_t vocab;
    int32_t choices;            /* experts per token; 0: the model has none */
    int32_t max_len;            /* prompt and completion */
    struct kg_kv_size n_blocks; /* of the cache; 0 for an unused kind */
    int32_t seen;               /* window size of layers with a window */
    int32_t chunk;              /* prefill chunk of prompts and turns */
    int32_t n_adapters;         /* adapters mixed into the model */
    bool stops;                 /* stop strings are supported */
};

const struct kg_sampling *kg_request_sampling(const struct kg_request *q,
                                              const struct kg_request_limits *l);
/* Maximum number of new tokens of its first turn. */
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

#endif
