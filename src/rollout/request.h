/* What a request asks: how long it can become, which blocks of the cache that takes, and
 * whether an engine of given limits can ever run it.
 *
 * Of numbers alone: no model, no queue, no sequence. errors are EINVAL.
 */
#ifndef KG_ROLLOUT_REQUEST_H
#define KG_ROLLOUT_REQUEST_H

#include "rollout/rollout.h"
#include "rollout/scheduler.h"

/* Of the engine and its session. */
struct kg_request_limits {
    const struct kg_sampling *sampling; /* of requests without their own; or NULL */
    int32_t vocab;
    int32_t choices;            /* experts of a token; 0: the model has none */
    int32_t max_len;            /* prompt and answer */
    struct kg_kv_size n_blocks; /* of the cache; 0 of a kind that it has not */
    int32_t seen;               /* window of layers that have one */
    int32_t chunk;              /* tokens that a prompt or turn is computed by */
    int32_t n_adapters;         /* of the models that its own is mixed with */
    bool stops;                 /* stop strings can be looked for */
};

const struct kg_sampling *kg_request_sampling(const struct kg_request *q,
                                              const struct kg_request_limits *l);
/* New tokens of its first turn at most. */
int32_t kg_request_first_limit(const struct kg_request *q,
                               const struct kg_request_limits *l);
struct kg_job kg_request_job(const struct kg_request *q, struct kg_traj *trajs,
                             const struct kg_request_limits *l);

kg_status kg_request_check(const struct kg_request *q, const struct kg_request_limits *l,
                           struct kg_err *err) KG_MUST_CHECK;
/* Whether an episode that has `seen` tokens can go on with n more and a turn of at most
 * `limit`. */
kg_status kg_request_check_turn(const struct kg_request *q,
                                const struct kg_request_limits *l, size_t seen,
                                const int32_t *tokens, size_t n, int32_t limit,
                                struct kg_err *err) KG_MUST_CHECK;

#endif
