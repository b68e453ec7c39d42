/* Completions that begin before the step that learns from them (rollout.max_staleness).
 * Such a completion spans several versions of the weights.
 *
 * Version v is the weights after v steps. With max_staleness N and lag L, a completion of
 * step s is begun at version s - N, and each version samples at most
 *
 *   Q = ceil(max_tokens / (N - L + 1))
 *
 * of its tokens; the last version samples all that are left. (In an episode only the
 * model's tokens count, and max_tokens is their maximum: a version may stop inside a
 * turn, and an observation belongs to the version that called the tool.) So token j has
 * version s - N + floor(j / Q), clamped to the first version and to s - L. Its age is
 * between L and N and depends only on config, seed and lengths. A version samples all
 * completions of steps s .. s + N - L together, each for at most Q tokens, so that no
 * long completion delays the others.
 *
 * With tool_steps D > 0 an episode also stops when it calls a tool that it must wait for,
 * unless this is its last version. After a call in version v, the observation and the
 * tokens after it belong to version min(v + D, s - L), so their version is determined by
 * the calls.
 *
 * Every version recomputes the tokens of earlier versions, because its cache has its own
 * keys. Therefore a recorded log-prob is that of its version, given the whole text
 * before it. Between steps the run's state holds the completions as bytes.
 */
#ifndef KG_TRAIN_BEGUN_H
#define KG_TRAIN_BEGUN_H

#include "train/run.h"

/* The begun completions of a step and of the steps after it. */
struct kg_begun {
    struct kg_traj *trajs; /* (n) owned; by step, then as in a batch */
    size_t n;
    int64_t steps;             /* N - L: steps after the first */
    size_t group;              /* samples per prompt */
    int32_t slice, max_tokens; /* Q; the limit of a whole completion */
    int32_t tool_steps;        /* versions between a tool call and its observation */
    bool plays;                /* completions are episodes */
};

/* N - L; 0: every completion is sampled by one version. */
int64_t kg_begun_steps(const struct kg_recipe *r);
/* errors: EINVAL (max_staleness below the lag, or with a key that needs completions of
 * one version) */
kg_status kg_begun_check(const struct kg_run_inputs *in,
                         struct kg_err *err) KG_MUST_CHECK;

/* Reads the bytes of kg_begun_pack; empty: no completions. Release g even on failure.
 * errors: EFORMAT (not these bytes, or of another build of kedge) */
kg_status kg_begun_init(struct kg_begun *g, const struct kg_recipe *r,
                        const struct kg_str *bytes, struct kg_err *err) KG_MUST_CHECK;
void kg_begun_release(struct kg_begun *g);
/* Replaces out by the completions from `first` on, as bytes. */
kg_status kg_begun_pack(struct kg_str *out, const struct kg_begun *g, size_t first,
                        struct kg_err *err) KG_MUST_CHECK;

/* Requests by which this version continues completions that have not ended. fresh: (n /
 * group) requests for unbegun ones. requests: (n) out.   returns their number */
size_t kg_begun_requests(struct kg_request *requests, const struct kg_begun *g,
                         const struct kg_request *fresh);
/* Appends `pieces`, the trajectories of kg_begun_requests' requests in order, to their
 * completions; the pieces are moved. */
kg_status kg_begun_join(struct kg_begun *g, struct kg_traj *pieces, int64_t version,
                        struct kg_err *err) KG_MUST_CHECK;

#endif
