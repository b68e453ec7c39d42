/* Episodes: the model and an environment take turns, until the model gives its final
 * answer, its turns are used up, or the context is full.
 *
 * Tokens are only appended. Model tokens stay as they were sampled. An observation is
 * tokenised separately as plain text, truncated to its limit between two tokens, and
 * appended with source TOOL. The environment reads only the newest turn's MODEL tokens as
 * text, so tool output cannot call tools.
 *
 * While some episodes wait for the environment the others decode; the engine waits only
 * when all wait. The arrival time of an observation does not change any bit.
 *
 * How an episode ends, and t->finish then:
 * - the environment ends it (final answer): as the last turn ended, usually "stop_string"
 * - after `turns` turns with tools and one without: as the last turn ended
 * - the context or answer_tokens is used up, or the observation and one more token do not
 *   fit (the observation is not appended): "length", and t->episode.cut
 *
 * A turn that reaches its own limit does not end the episode; the environment is told.
 * With a window, a turn that begins with more tokens than the window is sampled given
 * only the newest ones (see struct kg_request). Training and grading use the whole text.
 */
#ifndef KG_ROLLOUT_EPISODE_H
#define KG_ROLLOUT_EPISODE_H

#include "rollout/rollout.h"
#include "task/env.h"
#include "task/prompts.h"

struct kg_episode_host;
struct kg_episode_opts {
    const struct kg_env_row *env; /* borrowed */
    /* if an outside program drives the environment's episodes by calling the policy: the
     * player of episodes, the rendering of conversations, and the names of the grader's
     * numbers; borrowed */
    const struct kg_episode_host *host;
    const struct kg_prompt_opts *prompt;
    struct kg_further_names *further;
    struct kg_env_opts env_opts; /* texts are borrowed until the episodes close */
    int32_t turns;       /* number of turns with tools; one turn without tools follows */
    int32_t turn_tokens; /* maximum of new tokens per turn */
    int32_t obs_tokens;  /* maximum of tokens per observation */
    int32_t context;     /* maximum of tokens per episode, prompt included */
    /* maximum after the prompt, observations included; 0: the rest of the context */
    int32_t answer_tokens;
    int32_t window; /* newest tokens that a turn is conditioned on; 0: all */
    int32_t open;   /* concurrent episodes, including waiting ones; 0: twice max_batch */
};

/* Rows over a struct S, as KG_SAMPLING_ROWS. own: condition of the keys that only kedge's
 * own environments have */
#define KG_EPISODE_ROWS(before, S, at, needs, own)                                       \
    KG_OPT_ROW(before "turns", KG_OPT_AT(S, at turns), "4", 0, 1000, NULL,               \
               "turns that may call a tool; one more turn without tools follows", false, \
               needs),                                                                   \
        KG_OPT_ROW(before "obs_tokens", KG_OPT_AT(S, at obs_tokens), "500", 1, 1e6,      \
                   NULL, "longest observation in tokens; a longer one is truncated",     \
                   false, own),                                                          \
        KG_OPT_ROW(before "answer_tokens", KG_OPT_AT(S, at answer_tokens), "0", 0, 1e7,  \
                   NULL,                                                                 \
                   "longest completion of an episode in tokens, with observations, "     \
                   "without the prompt; 0: the rest of " before "context",               \
                   false, own),                                                          \
        KG_OPT_ROW(before "window", KG_OPT_AT(S, at window), "0", 0, 1e7, NULL,          \
                   "a turn is sampled from at most this number of newest tokens; 0: "    \
                   "all. A turn is trained in this context; with algo.reproduction in "  \
                   "the whole text (mismatch/window)",                                   \
                   false, own)

struct kg_episodes; /* opaque: the open environment; tokenizer borrowed */
/* errors: EINVAL (a limit out of range; a window or answer_tokens that is not below the
 * context; an environment that an outside program drives, without a host), those of the
 * environment */
kg_status kg_episodes_open(struct kg_episodes **out, const struct kg_tokenizer *tok,
                           const struct kg_episode_opts *opts,
                           struct kg_err *err) KG_MUST_CHECK;
void kg_episodes_close(struct kg_episodes *e);

/* The episodes to play: see kg_episodes_run. */
struct kg_episode_run {
    struct kg_rollout *engine;
    struct kg_traj *trajs; /* (n) zeroed, filled in request order */
    size_t n;
    const struct kg_request *requests; /* (n_requests) */
    size_t n_requests;
    const struct kg_sampling *sampling;
    const struct kg_prompts *prompts;
    double *seconds_idle; /* NULL allowed */
};
/* Plays episodes instead of the loop of turns in episode.c. An episode may have branches:
 * contexts that do not continue each other. Its trajectory holds them one after another,
 * and a window begins each. t->reward, t->graded and t->further are the environment's. */
struct kg_episode_host {
    kg_status (*open)(void **state, const struct kg_tokenizer *tok,
                      const struct kg_episode_opts *opts, struct kg_err *err);
    void (*close)(void *state);
    kg_status (*run)(void *state, const struct kg_episode_run *run, struct kg_err *err);
};

/* Adapts engine options to these episodes: sets episodes, max_len, max_open, and, with a
 * window, kv_tokens if it is 0. e NULL, or no env: opts are unchanged. */
void kg_episodes_fit(struct kg_rollout_opts *opts, const struct kg_episodes *e);
void kg_episode_opts_fit(struct kg_rollout_opts *opts, const struct kg_episode_opts *e);
/* Number of positions of the model in use: the context, or with a window, the window plus
 * a turn. */
int32_t kg_episodes_positions(const struct kg_episode_opts *opts);
/* Maximum of kg_traj_span of an episode after a prompt of prompt_n tokens. */
int64_t kg_episodes_span(const struct kg_episode_opts *opts, size_t prompt_n);
/* Maximum number of model tokens in one episode. */
int64_t kg_episodes_longest(const struct kg_episode_opts *opts);

/* As kg_rollout_run with an episode per sample: q->prompt_index is the index of its
 * record in `prompts`. The environment's stop strings are added to those of s; max_tokens
 * of requests and of s are ignored; requests must not have a sampling of their own. Sets
 * t->episode. e NULL: calls kg_rollout_run. With a quota an episode may pause, inside a
 * turn or before one, and a later call continues it with the same draws.
 * seconds_idle: increased by the time in which nothing could decode because all episodes
 * waited for the environment; NULL allowed.
 * errors: as kg_rollout_run; EINVAL (a prompt that leaves no room in the context or
 * exceeds the window; more than KG_MAX_STOPS stop strings; an environment that breaks its
 * contract), those of the environment: EIO if a tool stays down and the run must stop;
 * EINTERRUPTED, also for a stop while all episodes have waited for tools for 1 s */
kg_status kg_episodes_run(struct kg_episodes *e, struct kg_rollout *r,
                          struct kg_traj *trajs, const struct kg_request *requests,
                          size_t n_requests, const struct kg_sampling *s,
                          const struct kg_prompts *prompts, double *seconds_idle,
                          struct kg_err *err) KG_MUST_CHECK;

/* Counters of the environment's tools since the episodes were opened.
 * returns false if there are none (also for e NULL) */
bool kg_episodes_stats(struct kg_env_stats *out, const struct kg_episodes *e);

/* ---- an episode as text ---- */

/* The text after the prompt in UTF-8, without special tokens. Stop strings, which are the
 * environment's tags, are included. */
struct kg_episode_text {
    struct kg_str all;     /* owned: all text in order, with observations */
    struct kg_str model;   /* owned: model text of all turns */
    struct kg_span *spans; /* (n_spans) owned: parts with one source, text in `all` */
    size_t n_spans;
};
kg_status kg_episode_text_init(struct kg_episode_text *x, const struct kg_tokenizer *tok,
                               const struct kg_traj *t, struct kg_err *err) KG_MUST_CHECK;
void kg_episode_text_release(struct kg_episode_text *x);

/* Sums over episodes, for logs. */
struct kg_episode_sums {
    int64_t episodes, turns, calls, invalid, failed, answered, cut;
    int64_t windowed; /* turns sampled with a truncated context */
};
void kg_episode_add(struct kg_episode_sums *sums, const struct kg_traj *t);

#endif
