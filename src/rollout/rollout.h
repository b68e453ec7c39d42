/* Rollout: prompts in, trajectories out, by continuous batching over the paged KV cache.
 *
 * Requests wait in a FIFO queue. A sequence starts when a batch row and all cache blocks
 * that it can ever need are free, so a running sequence never waits for memory. A prompt
 * is computed once (in chunks), and the samples of its group share its full blocks. Each
 * decode step computes one token of every running sequence. The recorded log-prob is the
 * head's output; `score` returns the same bits.
 *
 * The token drawn depends only on (seed, stream, draw number, sample, number of tokens
 * sampled before) and the row's distribution. So a trajectory does not depend on the rest
 * of the batch, on arrival times, or on cancellations.
 *
 * Two interfaces: kg_rollout_run takes all requests and returns when all are done.
 * Servers and episodes call kg_rollout_begin, then kg_rollout_submit at any time and
 * kg_rollout_step repeatedly, with callbacks for tokens and ends.
 */
#ifndef KG_ROLLOUT_ROLLOUT_H
#define KG_ROLLOUT_ROLLOUT_H

#include "base/rng.h"
#include "base/status.h"
#include "base/str.h"
#include "model/model.h"
#include "text/tokenizer.h"
#include "traj/traj.h"

#include <stdbool.h>
#include <stdint.h>

/* KG_MAX_TOP_K: maximum number of top ids recorded per token */
enum { KG_MAX_TOP_K = 512, KG_MAX_STOPS = 16, KG_MAX_STOP_BYTES = 256 };

/* The factor applied to logits when sampling at this temperature; greedy rows are scored
 * at 1. Scoring must use the same factor, so that the bits agree. */
static inline float kg_inv_temperature(float temperature)
{
    return temperature > 0 ? 1.0f / temperature : 1.0f;
}

/* Truncation, in this order, each applied to the result of the previous one (as HF's
 * logits processors): top_k keeps the k largest logits and all equal to the k-th; top_p
 * keeps ids by falling probability until their sum reaches top_p (including the one that
 * reaches it); min_p keeps ids with at least min_p times the largest probability. The
 * most likely id is always kept. Kept ids are ordered by falling probability, ties by the
 * smaller id. */

/* Changes to logits before the temperature. They affect only which token is drawn:
 * recorded log-probs stay those of the model. They apply in this order: biases;
 * repetition, which divides positive and multiplies negative logits, once for each id in
 * prompt or completion; presence and frequency. */
struct kg_logit_bias {
    int32_t id;
    float add;
};
struct kg_adjust {
    const struct kg_logit_bias *bias; /* (n_bias) borrowed; no id twice */
    size_t n_bias;
    float repetition; /* 0 or 1: off; above 1 makes repetition less likely */
    float presence;   /* subtracted from ids already in the completion */
    float frequency;  /* subtracted from the same ids, times their count */
};

struct kg_sampling {
    float temperature; /* 0: greedy */
    float top_p;       /* 1: off */
    int top_k;         /* 0: off */
    float min_p;       /* 0: off */
    int32_t max_tokens;
    bool ignore_eos;
    const char *const *stops; /* (n_stops) borrowed stop strings; they need a tokenizer */
    int n_stops;
    const int32_t *stop_ids; /* (n_stop_ids) borrowed: end a completion, besides EOS */
    size_t n_stop_ids;
    int record_top_k; /* K top ids to record with every token; 0: none */
    /* record the ids kept by truncated sampling */
    bool record_kept;
    bool record_experts; /* record the experts of every computed token, if any */
    const struct kg_adjust *adjust; /* borrowed; NULL: none; excludes record_kept */
    struct kg_rng_key rng;
};

/* Log-probs of a prompt's tokens, as kg_score gives them at the sampling's temperature.
 * The caller's arrays are filled while the prompt is computed, from position 1 on,
 * because nothing precedes token 0. */
struct kg_prompt_scores {
    float *logp;      /* (prompt_n) log-prob of token t given the tokens before it */
    int32_t *top_ids; /* (prompt_n,K) top ids at t, K = record_top_k; NULL if K is 0 */
    float *top_logp;  /* (prompt_n,K) */
};

/* A value of max_tokens: the request only computes its prompt, for scores. Its
 * trajectories finish with KG_FINISH_LENGTH and contain no new token. An episode is then
 * parked, as after a turn. */
enum { KG_PROMPT_ONLY = -1 };

struct kg_request {
    const int32_t *prompt; /* borrowed while the engine runs */
    size_t prompt_n;       /* >= 1 */
    int64_t prompt_index;  /* number of the prompt, for records and errors */
    uint64_t draw;         /* draw number of the prompt; keys the RNG */
    int32_t n_samples;     /* group size: number of trajectories of this prompt */
    /* maximum of new tokens; 0: the sampling's max_tokens; or KG_PROMPT_ONLY */
    int32_t max_tokens;
    int32_t
        first_sample; /* index of its first sample within the draw's group of samples */
    /* number of tokens that its samples already drew in earlier requests; the RNG counter
     * continues from it */
    int32_t drawn;
    /* number of tokens at the end of the prompt that already belong to the completion of
     * its only sample: a stop string may begin in them */
    int32_t begun;
    /* the request's parameters, borrowed; NULL: the session's parameters */
    const struct kg_sampling *sampling;
    /* 0: one completion. > 0: an episode of several turns with at most this many
     * tokens, prompt included; see kg_rollout_resume. Cache blocks for all of them, or
     * with `window` for a window and a turn, are reserved at its start. */
    int32_t context;
    /* for episodes. 0: a turn is sampled given all earlier text. > 0: if more tokens than
     * this precede a turn, it is sampled given only the newest `window` tokens. They are
     * recomputed from position 0, and the trajectory records it (kg_traj_window). Not
     * below the prompt's length; no turn may exceed the limit of the first one. */
    int32_t window;
    /* for kg_episodes_run: tokens that a sample may draw before it pauses; its trajectory
     * then has finish NONE and all tokens so far. 0: no limit */
    int32_t quota;
    /* for kg_episodes_run. 0: a turn whose environment answers later waits for it. > 0:
     * the sample pauses, with this number as traj.episode.asked */
    int32_t tool_steps;
    /* for kg_episodes_run: the paused episode to continue, borrowed. `prompt` then has
     * all its tokens; `drawn` is how many of them are MODEL. NULL: a new episode */
    const struct kg_traj *paused;
    const struct kg_prompt_scores *scores; /* borrowed; NULL: none */
    /* which adapters of a mixed model (kg_model_mix) to use: 0 the model's own, i > 0
     * those of others[i - 1]. The result does not depend on the rest of the batch */
    int32_t adapter;
};

/* If one number determines a sample (`seed` of an HTTP request, samples of an
 * evaluation), seed s is sample s % 4096 of draw s / 4096 under one common key. So n
 * samples of a prompt with seeds s, s + 1, .. form a group. */
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
    int32_t max_batch;     /* sequences decoded together */
    int32_t prefill_chunk; /* prompt tokens computed at once; 0: 512 */
    /* cache size in tokens; 0: kg_rollout_kv_tokens(max_open, max_len). Layers with a
     * window get at most the part that max_open sequences see */
    int64_t kv_tokens;
    int32_t max_len; /* maximum of prompt + completion */
    /* requests may be episodes; layers with a window then reserve room for a chunk of a
     * turn */
    bool episodes;
    /* sequences that hold cache blocks, including parked ones; 0: max_batch */
    int32_t max_open;
    /* return EINTERRUPTED on a stop signal (base/signal.h); not in training */
    bool stop_on_signal;
};

struct kg_rollout_stats {
    int64_t prefill_tokens;
    int64_t decode_tokens; /* added by decode steps: all but the first of each turn */
    int64_t decode_steps;  /* steps that added a token */
    double prefill_seconds;
    double decode_seconds;
    double draw_seconds;              /* part of decode_seconds: drawing on the host */
    struct kg_traffic decode_traffic; /* includes what other threads move meanwhile */
};

/* Cache tokens needed for n concurrent sequences of max_len. The cache is allocated in
 * blocks, so this exceeds n max_len; one block is for the copy of a prompt's last block
 * that a group may need. */
int64_t kg_rollout_kv_tokens(int32_t n, int32_t max_len);
/* Number of sequences of max_len that fit in the cache of an engine with opts. */
int64_t kg_rollout_kv_sequences(const struct kg_model *m,
                                const struct kg_rollout_opts *opts);

/* Memory of an engine with its cache; m may be an outline. *cache: the cache's part */
struct kg_bytes kg_rollout_memory(uint64_t *cache, const struct kg_model *m,
                                  const struct kg_rollout_opts *opts);

struct kg_rollout; /* opaque: model borrowed, cache and scratch owned */
kg_status kg_rollout_create(struct kg_rollout **out, const struct kg_model *m,
                            const struct kg_tokenizer *tok,
                            const struct kg_rollout_opts *opts, struct kg_err *err)
    KG_MUST_CHECK; /* tok: NULL allowed without stop strings   errors: EINVAL, ENOMEM */
void kg_rollout_free(struct kg_rollout *r);
const struct kg_model *kg_rollout_model(const struct kg_rollout *r);
const struct kg_rollout_opts *kg_rollout_get_opts(const struct kg_rollout *r);

/* Called when a trajectory finishes (in any order); may be NULL. A status other than OK
 * stops the run. */
typedef kg_status (*kg_rollout_done_fn)(void *user, const struct kg_traj *t,
                                        struct kg_err *err);

/* Runs all requests; episodes are not allowed. trajs: array of sum(n_samples),
 * overwritten, filled in request order, samples in order; the caller releases it, also
 * after a failure. Clears the cache first, because the weights may have changed. The
 * first failed trajectory stops the run.
 * errors: EINVAL (empty prompt, prompt + max_tokens exceeds max_len or the cache,
 * parameters out of range), ENOMEM, ENONFINITE (logits), EINTERRUPTED */
kg_status kg_rollout_run(struct kg_rollout *r, struct kg_traj *trajs,
                         const struct kg_request *requests, size_t n_requests,
                         const struct kg_sampling *s, kg_rollout_done_fn done, void *user,
                         struct kg_err *err) KG_MUST_CHECK;
const struct kg_rollout_stats *
kg_rollout_stats(const struct kg_rollout *r); /* of the last run or session */

/* ---- the open engine ----
 * All calls must come from one thread. Each callback lists the calls it may make. */

/* Called after the newest token, t->tokens[t->n - 1], was added. It may only call
 * kg_rollout_cancel, for any trajectory. A status other than OK is returned by
 * kg_rollout_step and ends the session. */
typedef kg_status (*kg_rollout_token_fn)(void *user, const struct kg_request *q,
                                         const struct kg_traj *t, struct kg_err *err);
/* Called when a trajectory has finished (t->finish), when a turn of an episode has ended
 * (the episode is now parked), or when one trajectory has failed: then `failure` is not
 * NULL, t keeps its tokens with finish NONE, nothing is parked, and the rest continues.
 * The row is free. After the last trajectory of a request the engine holds no pointer to
 * the request. All calls except begin and step are allowed. A status other than OK is
 * returned by kg_rollout_step and ends the session. */
typedef kg_status (*kg_rollout_finished_fn)(void *user, const struct kg_request *q,
                                            struct kg_traj *t,
                                            const struct kg_err *failure,
                                            struct kg_err *err);

struct kg_rollout_session {
    /* for requests without their own sampling; NULL: all must have their own; borrowed */
    const struct kg_sampling *sampling;
    kg_rollout_token_fn token;       /* NULL allowed */
    kg_rollout_finished_fn finished; /* NULL allowed */
    void *user;
    /* false: a step computes all prompts that fit before anything decodes, which is the
     * least total work. true: one chunk (prefill_chunk tokens) of prompts per step, so
     * that a long prompt delays the others by no more than that. The bits are the
     * same. */
    bool steady;
};

/* Number of sequences by state. The session is idle if running + waiting is 0. */
struct kg_rollout_load {
    int32_t running; /* have a batch row */
    int64_t waiting; /* queued, or resumed and without a row */
    int32_t parked;  /* episodes between two turns, which hold cache blocks but no row */
};

/* Starts a session: drops all sequences of the last one and clears the cache, because the
 * weights may have changed. Also allowed after a failed step.   errors: ENOMEM */
kg_status kg_rollout_begin(struct kg_rollout *r, const struct kg_rollout_session *s,
                           struct kg_err *err) KG_MUST_CHECK;

/* Appends a request to the queue; computes nothing. *q, its prompt, its sampling and
 * trajs (n_samples, each {0}) must stay in place until every trajectory was reported (an
 * episode: closed) or cancelled; the caller releases the trajectories.
 * errors: EINVAL (as kg_rollout_run: the request can never run; the session continues),
 * ENOMEM */
kg_status kg_rollout_submit(struct kg_rollout *r, const struct kg_request *q,
                            struct kg_traj *trajs, struct kg_err *err) KG_MUST_CHECK;

/* Starts the sequences that fit, then computes one token for every running sequence. If
 * the device works ahead of the host, a new sequence gets its next token one step later.
 * A trajectory that fails (non-finite logits, no memory for its records) is reported to
 * `finished`. An error returned here is a failure of the engine or of a callback; then
 * only begin and free are allowed.
 * load: out, NULL allowed.
 * errors: ENOMEM, EINTERRUPTED (with stop_on_signal), those of model and callbacks */
kg_status kg_rollout_step(struct kg_rollout *r, struct kg_rollout_load *load,
                          struct kg_err *err) KG_MUST_CHECK;
void kg_rollout_get_load(struct kg_rollout_load *load, const struct kg_rollout *r);
/* Reports progress of a phase (base/phase.h): the number of finished sequences among
 * `of`, and the longest length in the session. */
void kg_rollout_show(int phase, const struct kg_rollout *r, int64_t of);

/* Cancels n trajectories of any requests in any state: queued, running or parked. Rows
 * and blocks are freed at once without callbacks. Unfinished trajectories end as
 * KG_FINISH_CANCELLED and keep their tokens. To cancel a request, cancel all its
 * trajectories. Trajectories that the engine does not hold are ignored. */
void kg_rollout_cancel(struct kg_rollout *r, struct kg_traj *trajs, size_t n);

/* Episodes (context > 0). When a turn ends, by EOS, stop string or the turn's limit, the
 * sequence is parked: its row is freed, its blocks stay. Then either
 * - kg_rollout_resume appends the observation (n may be 0) with source TOOL, and queues
 *   the next turn of at most max_tokens tokens (0: the sampling's max_tokens) before all
 *   requests that have not started. Only the observation and the last sampled token,
 *   whose key is missing, are computed. Stop strings are searched in the new turn only;
 *   random draws continue from the last turn's count. t->finish is NONE until the turn
 *   ends. If the text exceeds a window, its newest tokens are recomputed.
 * - or kg_rollout_close ends the episode and frees its blocks; t is unchanged.
 * An episode that is never closed holds its blocks until kg_rollout_begin.
 * errors: EINVAL (t is not parked; an unknown token; t->n + n + max_tokens exceeds the
 * request's context; with a window, max_tokens exceeds the first turn's limit); t is then
 * unchanged and keeps its state; ENOMEM */
kg_status kg_rollout_resume(struct kg_rollout *r, struct kg_traj *t,
                            const int32_t *tokens, size_t n, int32_t max_tokens,
                            struct kg_err *err) KG_MUST_CHECK;
void kg_rollout_close(struct kg_rollout *r, struct kg_traj *t);

/* Appends the completion of a trajectory as text: the tokens after the prompt, without
 * special ones, cut before the first stop string if it ended the trajectory. For an
 * episode: all text after the prompt, not cut.
 * errors: EINVAL (id unknown to the tokenizer), ENOMEM */
kg_status kg_rollout_text(struct kg_str *out, const struct kg_tokenizer *tok,
                          const struct kg_traj *t, const char *const *stops, int n_stops,
                          struct kg_err *err) KG_MUST_CHECK;

/* Stop strings are searched in the text of a completion while it grows, token by token:
 * not in ids, because one may begin inside one token and end inside another. */

/* *at <- the byte offset of the earliest stop string in text that ends after byte `seen`.
 * returns false, with *at unchanged, if there is none */
bool kg_stop_find(size_t *at, const struct kg_str *text, size_t seen,
                  const char *const *stops, int n_stops);

#endif
