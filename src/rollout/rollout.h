/* Rollout: prompts in, trajectories out, by continuous batching over the paged KV cache.
 *
 * The engine keeps a set of slots. Waiting requests enter when a slot and cache blocks
 * are free; a prompt is computed once (in chunks) and its full blocks are shared by the
 * samples of its group; every decode step takes one token of every running sequence. A
 * log-prob is recorded as the head gave it: `score` gives the same bits.
 *
 * A draw depends on (seed, stream, draw number, sample, position) and the row's
 * distribution only, so a trajectory does not depend on what else is in the batch.
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

enum { KG_MAX_KEPT = 512, KG_MAX_STOPS = 16, KG_MAX_STOP_BYTES = 256 };

/* What logits are multiplied with when sampling at this temperature: greedy rows are
 * scored at 1. Whoever scores a trajectory takes the factor from here, so that the bits
 * agree. */
static inline float kg_inv_temperature(float temperature)
{
    return temperature > 0 ? 1.0f / temperature : 1.0f;
}

/* Truncation, in this order, each on what the one before left (as HF's logits processors
 * do): top_k: the k largest logits, and all that equal the k-th; top_p: ids by falling
 * probability until their sum reaches top_p (the one that reaches it is kept); min_p: ids
 * whose probability is at least min_p times the largest. The most likely id is always
 * kept. Kept ids stand by falling probability, ties by the smaller id. */

struct kg_sampling {
    float temperature; /* 0: greedy */
    float top_p;       /* 1: off */
    int top_k;         /* 0: off */
    float min_p;       /* 0: off */
    int32_t max_tokens;
    bool ignore_eos;
    const char *const *stops; /* (n_stops) borrowed stop strings; need a tokenizer */
    int n_stops;
    int record_top_k; /* K most likely ids to record with every token; 0 none */
    /* keep the ids that truncated sampling kept; over KG_MAX_KEPT is an error */
    bool record_kept;
    struct kg_rng_key rng;
};

struct kg_request {
    const int32_t *prompt; /* borrowed while the engine runs */
    size_t prompt_n;       /* >= 1 */
    int64_t prompt_index;
    uint64_t draw;
    int32_t n_samples;    /* group size: trajectories of this prompt */
    int32_t max_tokens;   /* at most this many new tokens; 0: the sampling's max_tokens */
    int32_t first_sample; /* the group is samples first_sample.. of the draw */
};

/* Where one number says how a sample is drawn (the `seed` of a request over HTTP, the
 * samples of an evaluation), seed s is sample s % 4096 of draw s / 4096 under one key for
 * all. So n samples of one prompt with the seeds s, s + 1, .. are a group. */
enum { KG_SEED_SAMPLES = 4096 };
static inline struct kg_rng_key kg_seed_key(void)
{
    return (struct kg_rng_key){.seed = 0, .stream = KG_RNG_EVAL};
}
static inline uint64_t kg_seed_draw(uint64_t seed) { return seed / KG_SEED_SAMPLES; }
static inline int32_t kg_seed_sample(uint64_t seed)
{
    return (int32_t)(seed % KG_SEED_SAMPLES);
}

struct kg_rollout_opts {
    int32_t max_batch;     /* sequences that decode together */
    int32_t prefill_chunk; /* tokens of a prompt computed at once; 0: 512 */
    /* cache size in tokens; 0: enough for max_batch sequences of max_len */
    int64_t kv_tokens;
    int32_t max_len; /* longest prompt + answer */
    /* SIGINT and SIGTERM end a run with EINTERRUPTED (never inside training) */
    bool stop_on_signal;
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
                            const struct kg_tokenizer *tok,
                            const struct kg_rollout_opts *opts, struct kg_err *err)
    KG_MUST_CHECK; /* tok NULL allowed without stop strings */
void kg_rollout_free(struct kg_rollout *r);

/* Called as each trajectory finishes (any order); may be NULL. A status other than OK
 * stops the run. */
typedef kg_status (*kg_rollout_done_fn)(void *user, const struct kg_traj *t,
                                        struct kg_err *err);

/* Run all requests. trajs: array of sum(n_samples), its old contents ignored, filled in
 * request order, samples in order; caller releases, after a failure too. The cache is
 * cleared first: weights may have changed since the last run.
 * errors: EINVAL (empty prompt, prompt + max_tokens over max_len or over the cache,
 * parameters out of range, more than KG_MAX_KEPT ids kept while recorded), ENOMEM,
 * ENONFINITE (logits), EINTERRUPTED */
kg_status kg_rollout_run(struct kg_rollout *r, struct kg_traj *trajs,
                         const struct kg_request *requests, size_t n_requests,
                         const struct kg_sampling *s, kg_rollout_done_fn done, void *user,
                         struct kg_err *err) KG_MUST_CHECK;
const struct kg_rollout_stats *
kg_rollout_stats(const struct kg_rollout *r); /* of the last run */

/* Append the answer of a trajectory as text: the tokens after the prompt, special ones
 * left out, cut before the first stop string when it finished by one.
 * errors: EINVAL (id unknown to the tokenizer), ENOMEM */
kg_status kg_rollout_text(struct kg_str *out, const struct kg_tokenizer *tok,
                          const struct kg_traj *t, const char *const *stops, int n_stops,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
