/* Rollout: prompts in, trajectories out, by continuous batching over the paged KV cache.
 *
 * Requests wait in a queue, first come first served. A sequence starts when a row of the
 * batch and all the cache blocks it can ever need are free, so one that runs never waits
 * for memory. A prompt is computed once (in chunks) and its full blocks are shared by the
 * samples of its group; every decode step takes one token of every running sequence. A
 * log-prob is recorded as the head gave it: `score` gives the same bits.
 *
 * A draw depends on (seed, stream, draw number, sample, how many tokens the trajectory
 * has been given so far) and the row's distribution only, so a trajectory does not depend
 * on what else is in the batch, when it came, or what was cancelled beside it.
 *
 * Two ways to use it. kg_rollout_run takes all requests at once and returns when all are
 * done. A server and episodes open it: kg_rollout_begin, then kg_rollout_submit at any
 * time and kg_rollout_step again and again, with callbacks for tokens and ends.
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

/* ids that can be recorded with a token: the sampler's likeliest */
enum { KG_MAX_TOP_K = 512, KG_MAX_STOPS = 16, KG_MAX_STOP_BYTES = 256 };

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

/* How logits are changed, before the temperature, when a token is drawn. It changes what
 * is drawn and nothing that is recorded: log-probs stay those of the model. In this
 * order: the biases; repetition divides a logit above 0 and multiplies one below, once
 * for each id that prompt or answer has; then presence and frequency. */
struct kg_logit_bias {
    int32_t id;
    float add;
};
struct kg_adjust {
    const struct kg_logit_bias *bias; /* (n_bias) borrowed; no id twice */
    size_t n_bias;
    float repetition; /* 0 or 1: off; above 1 makes repetition less likely */
    float presence;   /* subtracted from ids that the answer has already */
    float frequency;  /* subtracted from them, times how often it has them */
};

struct kg_sampling {
    float temperature; /* 0: greedy */
    float top_p;       /* 1: off */
    int top_k;         /* 0: off */
    float min_p;       /* 0: off */
    int32_t max_tokens;
    bool ignore_eos;
    const char *const *stops; /* (n_stops) borrowed stop strings; need a tokenizer */
    int n_stops;
    const int32_t *stop_ids; /* (n_stop_ids) borrowed: end an answer, beside EOS */
    size_t n_stop_ids;
    int record_top_k; /* K most likely ids to record with every token; 0 none */
    /* record the ids that truncated sampling kept, however many they are */
    bool record_kept;
    bool record_experts; /* those of every token that is computed, of a model with any */
    const struct kg_adjust *adjust; /* borrowed; NULL: nothing; not with record_kept */
    struct kg_rng_key rng;
};

/* The log-probs of a prompt's own tokens, as kg_score gives them at the sampling's
 * temperature. The arrays are the caller's and are filled while the prompt is computed,
 * from position 1 on: nothing comes before token 0. */
struct kg_prompt_scores {
    float *logp;      /* (prompt_n) of token t given those before it */
    int32_t *top_ids; /* (prompt_n,K) the likeliest there, K the sampling's record_top_k;
                       * NULL where that is 0 */
    float *top_logp;  /* (prompt_n,K) */
};

/* max_tokens of a request whose prompt alone is computed, for its scores: its
 * trajectories end by LENGTH without a token. Not of an episode. */
enum { KG_PROMPT_ONLY = -1 };

struct kg_request {
    const int32_t *prompt; /* borrowed while the engine runs */
    size_t prompt_n;       /* >= 1 */
    int64_t prompt_index;
    uint64_t draw;
    int32_t n_samples; /* group size: trajectories of this prompt */
    /* at most this many new tokens; 0: the sampling's max_tokens; or KG_PROMPT_ONLY */
    int32_t max_tokens;
    int32_t first_sample; /* the group is samples first_sample.. of the draw */
    /* its own parameters, borrowed; NULL: the session's */
    const struct kg_sampling *sampling;
    /* 0: a trajectory ends once. > 0: an episode of several turns that never passes this
     * many tokens, prompt included; see kg_rollout_resume. Cache blocks for all of them
     * are taken when it starts. */
    int32_t context;
    /* of an episode, 0: a turn is sampled given all text before it. > 0: given the newest
     * so many tokens alone, where there are more when it begins; then they are computed
     * anew, from position 0 on, and the trajectory says so (struct kg_traj_window). Not
     * below the prompt; no turn may be longer than the first is allowed to be. */
    int32_t window;
    const struct kg_prompt_scores *scores; /* borrowed; NULL: not wanted */
    /* by which adapters of a model that is mixed with others (kg_model_mix): 0 its own,
     * i > 0 those of others[i - 1]. Answers do not depend on who shares a batch */
    int32_t adapter;
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
    /* cache size in tokens; 0: kg_rollout_kv_tokens(max_open, max_len). Of layers with a
     * window at most what that many sequences see through it */
    int64_t kv_tokens;
    int32_t max_len; /* longest prompt + answer */
    /* requests may be episodes: a turn of theirs is computed a chunk at once, for which
     * layers with a window keep room beside it */
    bool episodes;
    /* sequences that hold cache blocks, parked ones included; 0: max_batch */
    int32_t max_open;
    /* a stop signal (base/signal.h) is EINTERRUPTED (never inside training) */
    bool stop_on_signal;
};

struct kg_rollout_stats {
    int64_t prefill_tokens;
    int64_t decode_tokens; /* that came to a trajectory */
    int64_t decode_steps;  /* with such a token */
    double prefill_seconds;
    double decode_seconds;
    double draw_seconds;              /* of these: drawing from logits of this host */
    struct kg_traffic decode_traffic; /* other threads' in the same time too */
};

/* Tokens of cache in which n sequences of max_len run together. The cache is given out in
 * blocks, so this is more than n max_len; one block is for the copy that a group may need
 * of its prompt's last. */
int64_t kg_rollout_kv_tokens(int32_t n, int32_t max_len);
/* The most sequences of max_len that run together in the cache of such an engine. */
int64_t kg_rollout_kv_sequences(const struct kg_model *m,
                                const struct kg_rollout_opts *opts);

/* What an engine holds, its cache among it: m may be an outline.   *cache: that alone */
struct kg_bytes kg_rollout_memory(uint64_t *cache, const struct kg_model *m,
                                  const struct kg_rollout_opts *opts);

struct kg_rollout; /* opaque: model borrowed, cache and scratch owned */
kg_status kg_rollout_create(struct kg_rollout **out, const struct kg_model *m,
                            const struct kg_tokenizer *tok,
                            const struct kg_rollout_opts *opts, struct kg_err *err)
    KG_MUST_CHECK; /* tok NULL allowed without stop strings */
void kg_rollout_free(struct kg_rollout *r);

/* Called as each trajectory finishes (any order); may be NULL. A status other than OK
 * stops the run. */
typedef kg_status (*kg_rollout_done_fn)(void *user, const struct kg_traj *t,
                                        struct kg_err *err);

/* Run all requests, none of them an episode. trajs: array of sum(n_samples), its old
 * contents ignored, filled in request order, samples in order; caller releases, after a
 * failure too. The cache is cleared first: weights may have changed since the last run.
 * The first trajectory that fails stops the run.
 * errors: EINVAL (empty prompt, prompt + max_tokens over max_len or over the cache,
 * parameters out of range), ENOMEM, ENONFINITE (logits), EINTERRUPTED */
kg_status kg_rollout_run(struct kg_rollout *r, struct kg_traj *trajs,
                         const struct kg_request *requests, size_t n_requests,
                         const struct kg_sampling *s, kg_rollout_done_fn done, void *user,
                         struct kg_err *err) KG_MUST_CHECK;
const struct kg_rollout_stats *
kg_rollout_stats(const struct kg_rollout *r); /* of the last run or session */

/* ---- the open engine ----
 *
 * One thread calls all of it. What the callbacks may do is said with them. */

/* The newest token, t->tokens[t->n - 1], was committed. The one call into the engine
 * that is allowed here is kg_rollout_cancel, of any trajectory. A status other than OK is
 * returned by kg_rollout_step and ends the session. */
typedef kg_status (*kg_rollout_token_fn)(void *user, const struct kg_request *q,
                                         const struct kg_traj *t, struct kg_err *err);
/* A trajectory has finished (t->finish says how), or a turn of an episode, which is now
 * parked; or it has failed alone: then `failure` is not NULL, t keeps what was sampled
 * with finish NONE, nothing is parked and everything else goes on. Its row is free, and
 * of a request whose last trajectory this is the engine holds no pointer any more. All
 * calls into the engine but begin and step are allowed. A status other than OK is
 * returned by kg_rollout_step and ends the session. */
typedef kg_status (*kg_rollout_finished_fn)(void *user, const struct kg_request *q,
                                            struct kg_traj *t,
                                            const struct kg_err *failure,
                                            struct kg_err *err);

struct kg_rollout_session {
    /* of requests without parameters of their own; NULL: they must have them; borrowed */
    const struct kg_sampling *sampling;
    kg_rollout_token_fn token;       /* NULL allowed */
    kg_rollout_finished_fn finished; /* NULL allowed */
    void *user;
    /* false: a step computes all prompts that have room before anything decodes: least
     * work in all. true: one chunk of prompts (prefill_chunk tokens) a step, so that a
     * long prompt holds the others up for no longer than that. The bits are the same. */
    bool steady;
};

/* How many sequences are where. The session has nothing to do when running + waiting is
 * 0. */
struct kg_rollout_load {
    int32_t running; /* hold a row of the batch */
    int64_t waiting; /* in the queue, or resumed and without a row yet */
    int32_t parked;  /* episodes between two turns: they hold cache blocks and no row */
};

/* Start a session: forgets all sequences of the last one and clears the cache, since
 * weights may have changed. Also after a failed step: an engine can always be begun
 * again.   errors: ENOMEM */
kg_status kg_rollout_begin(struct kg_rollout *r, const struct kg_rollout_session *s,
                           struct kg_err *err) KG_MUST_CHECK;

/* Put a request at the end of the queue. Nothing is computed here. *q, its prompt, its
 * sampling and trajs (n_samples, each {0}) stay where they are until every trajectory was
 * reported or cancelled; the caller releases the trajectories.
 * errors: EINVAL (as kg_rollout_run: the request can never run; the session goes on),
 * ENOMEM */
kg_status kg_rollout_submit(struct kg_rollout *r, const struct kg_request *q,
                            struct kg_traj *trajs, struct kg_err *err) KG_MUST_CHECK;

/* Start what has room, then one token for every running sequence; where a device works
 * ahead of the host, one that has just started gets its next a step later. A trajectory
 * that fails (non-finite logits, no memory for its records) is given to `finished` with
 * its error; what is returned here is a failure of the engine itself or of a callback,
 * after which only begin and free are allowed.
 * load: out, NULL allowed.
 * errors: ENOMEM, EINTERRUPTED (with stop_on_signal), of the model, of the callbacks */
kg_status kg_rollout_step(struct kg_rollout *r, struct kg_rollout_load *load,
                          struct kg_err *err) KG_MUST_CHECK;
void kg_rollout_get_load(struct kg_rollout_load *load, const struct kg_rollout *r);
/* On the board of phases (base/phase.h): how many of all sequences are done, and how long
 * the longest of the session is. */
void kg_rollout_show(int phase, const struct kg_rollout *r, int64_t of);

/* Give up n trajectories, of one request or several, wherever they are: in the queue,
 * running, parked. Rows and blocks are free at once, and nobody is called; those not yet
 * finished end as KG_FINISH_CANCELLED and keep what was sampled. To cancel a request,
 * cancel all its trajectories. Trajectories that the engine does not hold are left
 * alone. */
void kg_rollout_cancel(struct kg_rollout *r, struct kg_traj *trajs, size_t n);

/* Episodes (context > 0). When a turn ends, by EOS, stop string or the turn's limit, the
 * sequence is parked: its row goes to others, its blocks stay. Then either
 * - kg_rollout_resume appends the observation (n may be 0) with source TOOL and queues
 *   the next turn of at most max_tokens tokens (0: the sampling's), before all requests
 *   that have not started. Only the last sampled token, whose key was not yet computed,
 *   and the observation are computed. Stop strings are looked for in the new turn alone;
 *   the random numbers go on counting where the last turn ended. t->finish is NONE until
 *   the turn ends. With a window that the text has outgrown the newest tokens of it are
 *   computed anew.
 * - or kg_rollout_close ends the episode and gives its blocks back; t stays as it is.
 * An episode that is never closed keeps its blocks until kg_rollout_begin.
 * errors: EINVAL (t is not parked; a token that the model does not have; t->n + n +
 * max_tokens over the request's context; with a window, max_tokens over the first turn's:
 * t is unchanged and still parked), ENOMEM */
kg_status kg_rollout_resume(struct kg_rollout *r, struct kg_traj *t,
                            const int32_t *tokens, size_t n, int32_t max_tokens,
                            struct kg_err *err) KG_MUST_CHECK;
void kg_rollout_close(struct kg_rollout *r, struct kg_traj *t);

/* Append the answer of a trajectory as text: the tokens after the prompt, special ones
 * left out, cut before the first stop string when it finished by one. An episode is
 * everything behind the prompt, uncut.
 * errors: EINVAL (id unknown to the tokenizer), ENOMEM */
kg_status kg_rollout_text(struct kg_str *out, const struct kg_tokenizer *tok,
                          const struct kg_traj *t, const char *const *stops, int n_stops,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
