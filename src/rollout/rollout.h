/* Rollout: prompts in, trajectories out, by continuous batching over the paged KV cache.
 *
 * The engine keeps a set of slots. Waiting requests enter when a slot and cache blocks are free; a prompt is computed
 * once (in chunks) and its full blocks are shared by the samples of its group; every decode step takes one token of
 * every running sequence. A log-prob is recorded as the head gave it: `score` gives the same bits.
 *
 * A draw depends on (seed, stream, draw number, sample, position) and the row's distribution only, so a trajectory does
 * not depend on what else is in the batch.
 */
#ifndef KG_ROLLOUT_ROLLOUT_H
#define KG_ROLLOUT_ROLLOUT_H

#include "base/rng.h"
#include "base/status.h"
#include "model/model.h"
#include "text/tokenizer.h"
#include "traj/traj.h"

#include <stdbool.h>
#include <stdint.h>

enum { KG_MAX_KEPT = 512, KG_MAX_STOPS = 16 };

struct kg_sampling {
    float temperature; /* 0: greedy */
    float top_p;       /* 1: off */
    int top_k;         /* 0: off */
    float min_p;       /* 0: off */
    int32_t max_tokens;
    bool ignore_eos;
    const char *const *stops; /* (n_stops) borrowed stop strings; need a tokenizer */
    int n_stops;
    int record_top_k;  /* K most likely ids to record with every token; 0 none */
    bool record_kept;  /* keep the ids that truncated sampling kept; over KG_MAX_KEPT is an error */
    struct kg_rng_key rng;
};

struct kg_request {
    const int32_t *prompt; /* borrowed while the engine runs */
    size_t prompt_n;       /* >= 1 */
    int64_t prompt_index;
    uint64_t draw;
    int32_t n_samples;     /* group size: trajectories of this prompt */
};

struct kg_rollout_opts {
    int32_t max_batch;          /* sequences that decode together */
    int32_t prefill_chunk;      /* tokens of a prompt computed at once; 0: 512 */
    int64_t kv_tokens;          /* cache size in tokens; 0: enough for max_batch sequences of max_len */
    int32_t max_len;            /* longest prompt + answer */
};

struct kg_rollout_stats {
    int64_t prefill_tokens;
    int64_t decode_tokens;
    int64_t decode_steps;
    double prefill_seconds;
    double decode_seconds;
};

struct kg_rollout; /* opaque: model borrowed, cache and scratch owned */
kg_status kg_rollout_create(struct kg_rollout **r, const struct kg_model *m,
                            const struct kg_tokenizer *tok, const struct kg_rollout_opts *opts,
                            struct kg_err *err) KG_MUST_CHECK; /* tok NULL allowed without stop strings */
void kg_rollout_free(struct kg_rollout *r);

/* Called as each trajectory finishes (any order); may be NULL. A status other than OK stops the run. */
typedef kg_status (*kg_rollout_done_fn)(void *user, const struct kg_traj *t, struct kg_err *err);

/* Run all requests. trajs: array of sum(n_samples) filled in request order, samples in order; caller releases.
 * The cache is cleared first: weights may have changed since the last run.
 * errors: EINVAL (empty prompt, prompt + max_tokens over max_len, parameters out of range), ENOMEM, EINTERRUPTED */
kg_status kg_rollout_run(struct kg_rollout *r, struct kg_traj *trajs, const struct kg_request *requests,
                         size_t n_requests, const struct kg_sampling *s, kg_rollout_done_fn done,
                         void *user, struct kg_err *err) KG_MUST_CHECK;
const struct kg_rollout_stats *kg_rollout_stats(const struct kg_rollout *r);

#endif
