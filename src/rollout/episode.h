/* Episodes: the model writes a turn, an environment answers, the model goes on, until it
 * answers, its turns are used up, or the context is full.
 *
 * Tokens in, tokens out. What the model wrote stays as it is. An observation is tokenised
 * alone, as plain text, cut at its limit between two tokens, and appended with source
 * TOOL. The environment reads the text of the newest turn alone, made of MODEL tokens, so
 * nothing that a tool returned can act.
 *
 * While some episodes wait for the environment the others decode; the engine waits only
 * when nothing else can go on. When an observation arrives changes no bit.
 *
 * How an episode ends, and what t->finish says then:
 * - the environment says so (an answer): as the last turn ended, "stop_string" usually
 * - after `turns` turns with tools and one more without: the same
 * - the context or the answer is full, or the observation and one more token would not
 *   fit (it is not appended then): "length", and t->episode.cut
 * A turn that reaches its own limit does not end the episode: the environment is told.
 *
 * With a window a turn that begins with more text is sampled from the newest of it alone
 * (see struct kg_request); what is learned and graded is the whole text all the same.
 */
#ifndef KG_ROLLOUT_EPISODE_H
#define KG_ROLLOUT_EPISODE_H

#include "rollout/rollout.h"
#include "task/env.h"
#include "task/prompts.h"

struct kg_episode_opts {
    const struct kg_env_row *env; /* borrowed */
    struct kg_env_opts env_opts;  /* its texts are borrowed until the episodes close */
    int32_t turns;       /* in which a tool may be called; one more follows without */
    int32_t turn_tokens; /* new tokens of one turn at most */
    int32_t obs_tokens;  /* tokens of one observation at most */
    int32_t context;     /* tokens of an episode at most, prompt included */
    /* and behind the prompt, observations included; 0: what the context leaves */
    int32_t answer_tokens;
    int32_t window; /* newest tokens that a turn is sampled from; 0: all of them */
    int32_t open;   /* episodes in progress, waiting ones included; 0: twice max_batch */
};

struct kg_episodes; /* opaque: the environment, open; tokenizer borrowed */
/* errors: EINVAL (a limit out of range, a window or an answer that is no limit in this
 * context), of the environment */
kg_status kg_episodes_open(struct kg_episodes **out, const struct kg_tokenizer *tok,
                           const struct kg_episode_opts *opts,
                           struct kg_err *err) KG_MUST_CHECK;
void kg_episodes_close(struct kg_episodes *e);

/* Length and number of sequences that an engine for these episodes needs: sets max_len
 * and max_open, and kv_tokens where that is 0. NULL, or without env: opts stay as they
 * are. */
void kg_episodes_fit(struct kg_rollout_opts *opts, const struct kg_episodes *e);
void kg_episode_opts_fit(struct kg_rollout_opts *opts, const struct kg_episode_opts *e);
/* Positions of the model that sampling uses: the context, or with a window what it and a
 * turn take. */
int32_t kg_episodes_positions(const struct kg_episode_opts *opts);
/* The most tokens of all parts (kg_traj_span) of an episode behind such a prompt. */
int64_t kg_episodes_span(const struct kg_episode_opts *opts, size_t prompt_n);
/* The longest answer: tokens that the model may write in one episode. */
int64_t kg_episodes_longest(const struct kg_episode_opts *opts);

/* As kg_rollout_run, each sample an episode: q->prompt_index names its record in
 * `prompts`. The environment's stop strings are added to those of s; max_tokens of
 * requests and of s are not looked at; requests have no sampling of their own. Fills
 * t->episode. e NULL: it is kg_rollout_run.
 * seconds_idle: added to, time in which nothing could decode because all waited for the
 * environment; NULL allowed.
 * errors: as kg_rollout_run; EINVAL (a prompt that leaves no room in the context or does
 * not fit the window; more than KG_MAX_STOPS stop strings; an environment that breaks its
 * contract), of the environment: EIO where a tool stays down and that is to stop the run;
 * EINTERRUPTED: a stop was requested, and for a second all waited for the environment */
kg_status kg_episodes_run(struct kg_episodes *e, struct kg_rollout *r,
                          struct kg_traj *trajs, const struct kg_request *requests,
                          size_t n_requests, const struct kg_sampling *s,
                          const struct kg_prompts *prompts, double *seconds_idle,
                          struct kg_err *err) KG_MUST_CHECK;

/* What the environment's tools did since the episodes were opened.
 * returns false: nothing is counted (e NULL too) */
bool kg_episodes_stats(struct kg_env_stats *out, const struct kg_episodes *e);

/* ---- an episode as text ---- */

/* What follows the prompt, as UTF-8, special tokens left out; stop strings stay, they are
 * tags. */
struct kg_episode_text {
    struct kg_str all;     /* owned: in order, observations included */
    struct kg_str model;   /* owned: what the model wrote, all turns in a row */
    struct kg_span *spans; /* (n_spans) owned: stretches of one source, text in `all` */
    size_t n_spans;
};
kg_status kg_episode_text_init(struct kg_episode_text *x, const struct kg_tokenizer *tok,
                               const struct kg_traj *t, struct kg_err *err) KG_MUST_CHECK;
void kg_episode_text_release(struct kg_episode_text *x);

/* Sums over episodes, for logs. */
struct kg_episode_sums {
    int64_t episodes, turns, calls, invalid, failed, answered, cut;
    int64_t windowed; /* turns that were sampled from the newest tokens alone */
};
void kg_episode_add(struct kg_episode_sums *sums, const struct kg_traj *t);

#endif
