/* The loop of turns: what happens when a turn ends and when an observation arrives.
 *
 * An episode's number for the environment includes the number of the run, so late
 * observations of an earlier run are recognised and dropped.
 *
 * An episode that pauses for its tool leaves its call here (struct asked). A later run
 * that continues the episode finds the call by the text before it. If there is none
 * (another process made it), the call is repeated: an observation is a function of its
 * turn, so only time is lost.
 */
#include "rollout/episode.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/phase.h"
#include "base/signal.h"
#include "text/unicode.h"

#include <string.h>

enum { POLL_MS = 200, MOST_EMPTY_POLLS = 1000, STOP_AFTER_S = 1 };
enum { MOST_ASKED = 1 << 24, FORGET_AFTER = 256 /* runs */ };

/* A tool call whose episode is paused. */
struct asked {
    uint64_t text;    /* hash of the episode's problem and tokens up to the call */
    uint64_t episode; /* its number for the environment */
    int64_t now;      /* index of the episode in this run that waits for it; -1: none */
    bool there, failed;
    struct kg_str observation; /* owned; if `there`, complete */
};

struct kg_episodes {
    struct kg_episode_opts opts;
    const struct kg_tokenizer *tok; /* borrowed */
    void *state;                    /* of the environment */
    uint64_t run;                   /* number of the current run */
    struct asked *asked;            /* (n_asked) owned */
    size_t n_asked, asked_capacity;
    struct kg_str text; /* scratch for one turn, as the next three */
    struct kg_str observation;
    struct kg_str valid; /* UTF-8 */
    struct kg_ids ids;
};

struct episode {
    const struct kg_record *record;
    size_t prompt_n; /* the episode's; to continue one, a request has more tokens */
    size_t begin;    /* first token of the current turn */
    size_t from;     /* first token that is not yet subtracted from quota */
    int32_t quota;   /* tokens that it may draw before it pauses */
    int32_t tool_steps;
    bool waits; /* for the environment */
    bool asked; /* was paused after a call, and its text is not computed yet */
};

/* One call of kg_episodes_run. */
struct run {
    struct kg_episodes *e;
    struct kg_rollout *r;
    struct kg_traj *trajs;
    struct episode *episodes;    /* (n) owned */
    struct kg_request *requests; /* (n_requests) owned */
    size_t n;
    size_t n_waiting;
    size_t n_heard; /* observations delivered */
    double moved;   /* time of the last token or observation */
    double *seconds_idle;
};

/* ---- life ---- */

static kg_status check(const struct kg_episode_opts *o, struct kg_err *err)
{
    if (o->turns < 0 || o->turn_tokens < 1 || o->obs_tokens < 1 || o->context < 2 ||
        o->open < 0)
        return kg_fail(
            err, KG_EINVAL,
            "episodes: expected turns >= 0, turn_tokens >= 1, obs_tokens >= 1, "
            "context >= 2 and open >= 0; found %d, %d, %d, %d and %d",
            o->turns, o->turn_tokens, o->obs_tokens, o->context, o->open);
    if (o->window < 0 || o->window >= o->context)
        return kg_fail(err, KG_EINVAL,
                       "episodes: expected a window below the context's %d tokens, or 0 "
                       "for all of them, found %d",
                       o->context, o->window);
    if (o->answer_tokens < 0 || o->answer_tokens >= o->context)
        return kg_fail(err, KG_EINVAL,
                       "episodes: expected answer_tokens below the context's %d tokens, "
                       "or 0 for the rest of it, found %d",
                       o->context, o->answer_tokens);
    return KG_OK;
}

kg_status kg_episodes_open(struct kg_episodes **out, const struct kg_tokenizer *tok,
                           const struct kg_episode_opts *opts, struct kg_err *err)
{
    struct kg_episodes *e;
    kg_status status;

    *out = NULL;
    KG_TRY(check(opts, err));
    e = kg_mem_calloc(1, sizeof *e, "episodes", err);
    if (!e)
        return err->code;
    e->opts = *opts;
    e->tok = tok;
    if (opts->env->open)
        status = opts->env->open(&e->state, &opts->env_opts, err);
    else if (opts->host)
        status = opts->host->open(&e->state, tok, &e->opts, err);
    else
        status = kg_fail(err, KG_EINVAL,
                         "environment %s: an outside program drives its episodes, so the "
                         "caller must give a host; expected one, found none",
                         opts->env->name);
    if (status != KG_OK) {
        kg_mem_free(e);
        return status;
    }
    *out = e;
    return KG_OK;
}

void kg_episodes_close(struct kg_episodes *e)
{
    if (!e)
        return;
    if (e->opts.env->open)
        e->opts.env->close(e->state);
    else
        e->opts.host->close(e->state);
    kg_str_release(&e->text);
    kg_str_release(&e->observation);
    kg_str_release(&e->valid);
    kg_ids_release(&e->ids);
    for (size_t i = 0; i < e->n_asked; i++)
        kg_str_release(&e->asked[i].observation);
    kg_mem_free(e->asked);
    kg_mem_free(e);
}

void kg_episode_opts_fit(struct kg_rollout_opts *opts, const struct kg_episode_opts *e)
{
    if (!e->env)
        return;
    int32_t stored = kg_episodes_positions(e);

    opts->episodes = true;
    opts->max_len = e->context;
    opts->max_open = e->open > 0 ? e->open : 2 * opts->max_batch;
    if (opts->max_open < opts->max_batch)
        opts->max_open = opts->max_batch;
    /* one more, for copies of prompt blocks that an episode will overwrite */
    if (opts->kv_tokens == 0 && e->window > 0)
        opts->kv_tokens = kg_rollout_kv_tokens(opts->max_open + 1, stored);
}

void kg_episodes_fit(struct kg_rollout_opts *opts, const struct kg_episodes *e)
{
    if (e)
        kg_episode_opts_fit(opts, &e->opts);
}

/* Maximum number of tokens of an episode, prompt included. */
static int32_t longest(const struct kg_episode_opts *o, size_t prompt_n)
{
    int64_t most = (int64_t)prompt_n + o->answer_tokens;

    return o->answer_tokens > 0 && most < o->context ? (int32_t)most : o->context;
}

int32_t kg_episodes_positions(const struct kg_episode_opts *o)
{
    int64_t most = (int64_t)o->window + o->turn_tokens;

    return o->window > 0 && most < o->context ? (int32_t)most : o->context;
}

int64_t kg_episodes_span(const struct kg_episode_opts *o, size_t prompt_n)
{
    int64_t turn = (int64_t)o->turn_tokens + o->obs_tokens, most = longest(o, prompt_n);
    int64_t reach = (int64_t)o->window + o->turn_tokens, sum;

    if (o->window == 0)
        return most;
    reach = reach < most ? reach : most;
    sum = reach;
    for (int64_t i = 1; i <= o->turns; i++)
        if ((int64_t)prompt_n + i * turn > o->window)
            sum += reach;
    return sum;
}

int64_t kg_episodes_longest(const struct kg_episode_opts *o)
{
    int64_t most = ((int64_t)o->turns + 1) * o->turn_tokens;
    int64_t limit = o->answer_tokens > 0 ? o->answer_tokens : o->context;

    return most < limit ? most : limit;
}

/* ---- an observation ---- */

static void end_episode(struct run *x, size_t i, bool cut)
{
    struct kg_traj *t = &x->trajs[i];

    t->episode.cut = cut;
    if (cut)
        t->finish = KG_FINISH_LENGTH;
    kg_rollout_close(x->r, t);
}

/* Stops an episode; its trajectory has all that a later run needs to continue it. */
static kg_status pause_episode(struct run *x, size_t i)
{
    struct kg_traj *t = &x->trajs[i];

    t->episode.begin = x->episodes[i].begin;
    t->finish = KG_FINISH_NONE;
    kg_rollout_close(x->r, t);
    return KG_OK;
}

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* Appends an observation and begins the next turn. Ends the episode if it does not fit,
 * and pauses it if the quota is used up. */
static kg_status observe(struct run *x, size_t i, const char *text, size_t n,
                         struct kg_err *err)
{
    struct kg_episodes *e = x->e;
    const struct kg_episode_opts *o = &e->opts;
    struct kg_traj *t = &x->trajs[i];
    struct episode *ep = &x->episodes[i];
    struct kg_encode_opts plain = {.continues = true};
    size_t most = (size_t)longest(o, ep->prompt_n), seen, room;

    e->ids.n = 0;
    kg_str_clear(&e->valid);
    KG_TRY(kg_utf8_make_valid(&e->valid, text, n, err));
    if (kg_tokenizer_encode(&e->ids, e->tok, kg_str_text(&e->valid), e->valid.len, plain,
                            err) != KG_OK)
        return kg_err_prefix(err, "observation of prompt %lld, sample %d",
                             (long long)t->prompt_index, t->sample);
    seen = e->ids.n < (size_t)o->obs_tokens ? e->ids.n : (size_t)o->obs_tokens;
    if (t->n + seen >= most) {
        end_episode(x, i, true);
        return KG_OK;
    }
    room = most - t->n - seen;
    ep->begin = ep->from = t->n + seen;
    if (ep->quota > 0)
        return kg_rollout_resume(x->r, t, e->ids.ids, seen,
                                 least((int32_t)room, least(o->turn_tokens, ep->quota)),
                                 err);
    KG_TRY(kg_traj_append(t, e->ids.ids, seen, KG_SOURCE_TOOL, err));
    return pause_episode(x, i);
}

static kg_status observe_text(struct run *x, size_t i, struct kg_err *err)
{
    const struct kg_str *text = &x->e->observation;

    return observe(x, i, kg_str_text(text), text->len, err);
}

/* ---- calls of paused episodes ---- */

static uint64_t number_of(const struct kg_episodes *e, size_t i)
{
    return (e->run & UINT32_MAX) << 32 | i;
}

static struct asked *asked_as(const struct kg_episodes *e, uint64_t episode)
{
    for (size_t i = 0; i < e->n_asked; i++)
        if (e->asked[i].episode == episode)
            return &e->asked[i];
    return NULL;
}

static uint64_t text_of(const struct kg_traj *t)
{
    return kg_hash_bytes(t->tokens, t->n * sizeof *t->tokens) ^
           (uint64_t)t->prompt_index * 0x9e3779b97f4a7c15u;
}

/* A call after the same text (so the same call) for which no episode waits yet. */
static struct asked *asked_after(const struct kg_episodes *e, const struct kg_traj *t)
{
    const uint64_t text = text_of(t);

    for (size_t i = 0; i < e->n_asked; i++)
        if (e->asked[i].text == text && e->asked[i].now < 0)
            return &e->asked[i];
    return NULL;
}

static void forget(struct kg_episodes *e, struct asked *a)
{
    kg_str_release(&a->observation);
    *a = e->asked[--e->n_asked];
}

/* At the beginning of a run no episode waits for a call yet. Forgets calls whose episodes
 * continued in another process, or never. */
static void forget_old(struct kg_episodes *e)
{
    for (size_t i = e->n_asked; i-- > 0;) {
        e->asked[i].now = -1;
        if (((e->run - (e->asked[i].episode >> 32)) & UINT32_MAX) > FORGET_AFTER)
            forget(e, &e->asked[i]);
    }
}

static kg_status pause_for_tool(struct run *x, size_t i, struct kg_err *err)
{
    struct kg_episodes *e = x->e;
    struct kg_traj *t = &x->trajs[i];

    KG_TRY(kg_mem_grow(&e->asked, &e->asked_capacity, e->n_asked + 1, sizeof *e->asked,
                       MOST_ASKED, "tool calls", err));
    e->asked[e->n_asked++] = (struct asked){
        .text = text_of(t), .episode = number_of(e, i), .now = -1};
    t->episode.asked = x->episodes[i].tool_steps;
    t->episode.ended = t->finish;
    return pause_episode(x, i);
}

/* Keeps an observation for the run that continues its episode. */
static kg_status keep(struct asked *a, const struct kg_env_delivery *d,
                      struct kg_err *err)
{
    a->there = true;
    a->failed = d->failed;
    return kg_str_append(&a->observation, d->observation, d->n, err);
}

static kg_status deliver(void *user, const struct kg_env_delivery *d, struct kg_err *err)
{
    struct run *x = user;
    struct asked *a = asked_as(x->e, d->episode);
    size_t i = a ? (size_t)a->now : (size_t)(d->episode & UINT32_MAX);

    x->n_heard++;
    if (a && a->now < 0)
        return keep(a, d, err);
    if (a)
        forget(x->e, a);
    else if (d->episode >> 32 != (x->e->run & UINT32_MAX))
        return KG_OK; /* from an earlier run that failed */
    if (i >= x->n || !x->episodes[i].waits)
        return kg_fail(err, KG_EINVAL,
                       "environment %s: expected an observation for an episode that "
                       "waits, found one for %zu, which does not",
                       x->e->opts.env->name, i);
    x->episodes[i].waits = false;
    x->n_waiting--;
    x->trajs[i].episode.failed += d->failed;
    return observe(x, i, d->observation, d->n, err);
}

/* ---- a turn ---- */

static bool is_full(const struct run *x, size_t i)
{
    return x->trajs[i].n >= (size_t)longest(&x->e->opts, x->episodes[i].prompt_n);
}

/* Subtracts the new tokens from the quota.   returns whether the turn is over */
static bool ends_turn(struct run *x, size_t i)
{
    const struct kg_traj *t = &x->trajs[i];
    struct episode *ep = &x->episodes[i];

    ep->quota -= (int32_t)(t->n - ep->from);
    ep->from = t->n;
    return ep->quota > 0 || t->finish != KG_FINISH_LENGTH || is_full(x, i) ||
           t->n - ep->begin >= (size_t)x->e->opts.turn_tokens;
}

static kg_status read_turn(struct kg_env_result *result, struct run *x, size_t i,
                           struct kg_err *err)
{
    struct kg_episodes *e = x->e;
    const struct kg_traj *t = &x->trajs[i];
    struct episode *ep = &x->episodes[i];
    bool full = is_full(x, i);
    struct kg_env_turn turn = {.episode = number_of(e, i),
                               .record = ep->record,
                               .turn = t->episode.turns,
                               .last = t->episode.turns == e->opts.turns || full,
                               .truncated = t->finish == KG_FINISH_LENGTH};

    kg_str_clear(&e->text);
    kg_str_clear(&e->observation);
    KG_TRY(kg_tokenizer_decode(&e->text, e->tok, t->tokens + ep->begin, t->n - ep->begin,
                               true, err));
    turn.text = kg_str_text(&e->text);
    turn.n = e->text.len;
    *result = (struct kg_env_result){0};
    KG_TRY(e->opts.env->step(result, &e->observation, e->state, &turn, err));
    if (turn.last && result->next == KG_ENV_WAIT)
        return kg_fail(err, KG_EINVAL,
                       "environment %s: expected no observation after the last turn",
                       e->opts.env->name);
    if (turn.last)
        result->next = KG_ENV_DONE;
    return KG_OK;
}

static void wait_for_tool(struct run *x, size_t i)
{
    x->episodes[i].waits = true;
    x->n_waiting++;
}

/* Repeats the call of the last turn, which is already counted. */
static kg_status ask_again(struct run *x, size_t i, struct kg_err *err)
{
    struct kg_traj *t = &x->trajs[i];
    struct kg_env_result result;

    t->finish = t->episode.ended;
    t->episode.turns--;
    KG_TRY(read_turn(&result, x, i, err));
    t->episode.turns++;
    if (result.next == KG_ENV_WAIT)
        wait_for_tool(x, i);
    return result.next == KG_ENV_WAIT ? KG_OK : observe_text(x, i, err);
}

/* Continues an episode that paused for its tool, after the current weights have computed
 * its text: takes the observation, or waits for it. */
static kg_status hear_asked(struct run *x, size_t i, struct kg_err *err)
{
    struct asked *a = asked_after(x->e, &x->trajs[i]);

    x->episodes[i].asked = false;
    if (!a)
        return ask_again(x, i, err);
    if (!a->there) {
        a->now = (int64_t)i;
        wait_for_tool(x, i);
        return KG_OK;
    }
    kg_str_clear(&x->e->observation);
    KG_TRY(kg_str_append(&x->e->observation, kg_str_text(&a->observation),
                         a->observation.len, err));
    x->trajs[i].episode.failed += a->failed;
    forget(x->e, a);
    return observe_text(x, i, err);
}

static kg_status on_finished(void *user, const struct kg_request *q, struct kg_traj *t,
                             const struct kg_err *failure, struct kg_err *err)
{
    struct run *x = user;
    size_t i = (size_t)(t - x->trajs);
    struct kg_env_result result;

    (void)q;
    if (failure) {
        *err = *failure;
        return failure->code;
    }
    if (x->episodes[i].asked)
        return hear_asked(x, i, err);
    if (!ends_turn(x, i))
        return pause_episode(x, i);
    KG_TRY(read_turn(&result, x, i, err));
    t->episode.turns++;
    t->episode.calls += result.called;
    t->episode.invalid += !result.valid;
    t->episode.failed += result.failed;
    t->episode.answered = result.answered;
    if (result.next == KG_ENV_OBSERVE)
        return observe_text(x, i, err);
    if (result.next == KG_ENV_WAIT && x->episodes[i].tool_steps > 0)
        return pause_for_tool(x, i, err);
    if (result.next == KG_ENV_WAIT)
        wait_for_tool(x, i);
    if (result.next == KG_ENV_DONE)
        end_episode(x, i, !result.answered && is_full(x, i));
    return KG_OK;
}

/* ---- the run ---- */

/* Adds the environment's stop strings to those of s. */
static kg_status all_stops(struct kg_sampling *s, const char **stops,
                           const struct kg_env_row *env, struct kg_err *err)
{
    int n = 0;

    if (s->n_stops + env->n_stops > KG_MAX_STOPS)
        return kg_fail(err, KG_EINVAL,
                       "expected at most %d stop strings, found %d and the environment's "
                       "%d",
                       KG_MAX_STOPS, s->n_stops, env->n_stops);
    for (int i = 0; i < s->n_stops; i++)
        stops[n++] = s->stops[i];
    for (int i = 0; i < env->n_stops; i++)
        stops[n++] = env->stops[i];
    s->stops = stops;
    s->n_stops = n;
    return KG_OK;
}

static kg_status run_init(struct run *x, const struct kg_request *requests,
                          size_t n_requests, const struct kg_prompts *prompts,
                          struct kg_err *err)
{
    size_t at = 0;

    x->requests = kg_mem_copy(requests, n_requests * sizeof *requests, "requests", err);
    x->episodes = x->requests ? kg_mem_calloc(x->n, sizeof *x->episodes, "episodes", err)
                              : NULL;
    if (!x->episodes)
        return err->code;
    for (size_t i = 0; i < n_requests; i++) {
        const struct kg_request *q = &requests[i];
        const struct kg_traj *paused = q->paused;

        for (int32_t k = 0; k < q->n_samples; k++, at++) {
            x->episodes[at] = (struct episode){
                .record = &prompts->data->records[prompts->record[q->prompt_index]],
                .prompt_n = paused ? paused->prompt_n : q->prompt_n,
                .begin = paused ? paused->episode.begin : q->prompt_n,
                .from = q->prompt_n,
                .quota = q->quota > 0 ? q->quota : INT32_MAX,
                .tool_steps = q->tool_steps,
                .asked = paused && paused->episode.asked > 0};
            if (paused)
                x->trajs[at].episode = paused->episode;
            x->trajs[at].episode.asked = 0;
        }
    }
    return KG_OK;
}

static kg_status submit_all(struct run *x, size_t n_requests, struct kg_err *err)
{
    const struct kg_episode_opts *o = &x->e->opts;
    size_t at = 0;

    for (size_t i = 0; i < n_requests; i++) {
        struct kg_request *q = &x->requests[i];
        const struct episode *ep = &x->episodes[at];
        int32_t most = longest(o, ep->prompt_n), room = most - (int32_t)q->prompt_n;
        int32_t drawn = (int32_t)(q->prompt_n - ep->begin); /* in its current turn */

        if (q->sampling)
            return kg_fail(err, KG_EINVAL,
                           "prompt %lld: expected an episode with the run's sampling "
                           "parameters, found its own",
                           (long long)q->prompt_index);
        if (q->prompt_n >= (size_t)o->context)
            return kg_fail(err, KG_EINVAL,
                           "prompt %lld: expected fewer tokens than an episode's %d, "
                           "found %zu",
                           (long long)q->prompt_index, o->context, q->prompt_n);
        if (o->window > 0 && q->prompt_n > (size_t)o->window)
            return kg_fail(err, KG_EINVAL,
                           "prompt %lld: expected at most the window's %d tokens, found "
                           "%zu",
                           (long long)q->prompt_index, o->window, q->prompt_n);
        q->context = most;
        q->window = o->window;
        q->begun = drawn;
        q->max_tokens = ep->asked ? KG_PROMPT_ONLY
                                  : least(least(room, o->turn_tokens - drawn), ep->quota);
        KG_TRY(kg_rollout_submit(x->r, q, x->trajs + at, err));
        at += (size_t)q->n_samples;
    }
    return KG_OK;
}

static int64_t computed(const struct kg_rollout *r)
{
    const struct kg_rollout_stats *s = kg_rollout_stats(r);

    return s->prefill_tokens + s->decode_tokens;
}

/* While tools reply, a stop signal lets the run finish. If all episodes have waited for
 * STOP_AFTER_S without a reply, it ends the run. */
static kg_status give_up_waiting(const struct run *x, struct kg_err *err)
{
    double waited = kg_clock_seconds() - x->moved;

    if (waited < STOP_AFTER_S || !kg_signal_stop_requested())
        return KG_OK;
    return kg_fail(err, KG_EINTERRUPTED,
                   "stopped by a signal: %zu episodes had waited %.0f s for environment "
                   "%s",
                   x->n_waiting, waited, x->e->opts.env->name);
}

/* Delivers pending observations.   idle: nothing can decode, so wait for one; empty:
 * consecutive idle polls that returned early without an observation */
static kg_status hear(struct run *x, bool idle, int *empty, struct kg_err *err)
{
    const struct kg_env_row *env = x->e->opts.env;
    double start = kg_clock_seconds(), seconds;
    size_t heard = x->n_heard;

    if (x->n_waiting > 0 && env->poll)
        KG_TRY(env->poll(x->e->state, idle ? POLL_MS : 0, deliver, x, err));
    seconds = kg_clock_seconds() - start;
    if (!idle || x->n_heard > heard)
        x->moved = start + seconds;
    if (idle && x->seconds_idle)
        *x->seconds_idle += seconds;
    *empty = idle && x->n_heard == heard && seconds < 1e-3 * POLL_MS / 2 ? *empty + 1 : 0;
    if (*empty < MOST_EMPTY_POLLS)
        return give_up_waiting(x, err);
    return kg_fail(err, KG_EINVAL,
                   "environment %s: expected observations for %zu waiting episodes, but "
                   "none is pending",
                   env->name, x->n_waiting);
}

static kg_status run_all(struct run *x, struct kg_err *err)
{
    struct kg_rollout_load load;
    int phase = kg_phase_begin((int64_t)x->n, "episodes", "generating"), empty = 0;

    x->moved = kg_clock_seconds();
    kg_rollout_get_load(&load, x->r);
    while (load.running + load.waiting + load.parked > 0) {
        int64_t before = computed(x->r);

        KG_TRY(kg_rollout_step(x->r, NULL, err));
        KG_TRY(hear(x, computed(x->r) == before, &empty, err));
        kg_rollout_get_load(&load, x->r);
        kg_rollout_show(phase, x->r, (int64_t)x->n);
    }
    kg_phase_end(phase);
    return x->e->n_asked > 0 ? x->e->opts.env->poll(x->e->state, 0, deliver, x, err)
                             : KG_OK;
}

/* Plays episodes by the loop of turns of this file. */
static kg_status run_turns(struct kg_episodes *e, const struct kg_episode_run *own,
                           struct kg_err *err)
{
    const char *stops[KG_MAX_STOPS];
    struct kg_sampling sampling = *own->sampling;
    struct run x = {.e = e,
                    .r = own->engine,
                    .trajs = own->trajs,
                    .n = own->n,
                    .seconds_idle = own->seconds_idle};
    struct kg_rollout_session session = {
        .sampling = &sampling, .finished = on_finished, .user = &x};
    kg_status status;

    e->run++;
    forget_old(e);
    KG_TRY_GOTO(out, run_init(&x, own->requests, own->n_requests, own->prompts, err));
    KG_TRY_GOTO(out, all_stops(&sampling, stops, e->opts.env, err));
    KG_TRY_GOTO(out, kg_rollout_begin(x.r, &session, err));
    KG_TRY_GOTO(out, submit_all(&x, own->n_requests, err));
    status = run_all(&x, err);
out:
    kg_mem_free(x.episodes);
    kg_mem_free(x.requests);
    return status;
}

kg_status kg_episodes_run(struct kg_episodes *e, struct kg_rollout *r,
                          struct kg_traj *trajs, const struct kg_request *requests,
                          size_t n_requests, const struct kg_sampling *s,
                          const struct kg_prompts *prompts, double *seconds_idle,
                          struct kg_err *err)
{
    struct kg_episode_run run = {.engine = r,
                                 .trajs = trajs,
                                 .requests = requests,
                                 .n_requests = n_requests,
                                 .sampling = s,
                                 .prompts = prompts,
                                 .seconds_idle = seconds_idle};

    if (!e)
        return kg_rollout_run(r, trajs, requests, n_requests, s, NULL, NULL, err);
    for (size_t i = 0; i < n_requests; i++)
        run.n += requests[i].n_samples > 0 ? (size_t)requests[i].n_samples : 0;
    memset(trajs, 0, run.n * sizeof *trajs);
    return e->opts.env->open ? run_turns(e, &run, err)
                             : e->opts.host->run(e->state, &run, err);
}

bool kg_episodes_stats(struct kg_env_stats *out, const struct kg_episodes *e)
{
    *out = (struct kg_env_stats){0};
    if (!e || !e->opts.env->stats)
        return false;
    e->opts.env->stats(out, e->state);
    return true;
}

/* ---- as text ---- */

void kg_episode_text_release(struct kg_episode_text *x)
{
    kg_str_release(&x->all);
    kg_str_release(&x->model);
    kg_mem_free(x->spans);
    *x = (struct kg_episode_text){0};
}

/* The first position after i with another source. */
static size_t stretch(const struct kg_traj *t, size_t i)
{
    size_t end = i;

    while (end < t->n && t->source[end] == t->source[i])
        end++;
    return end;
}

/* Appends the text of tokens [first, end); invalid UTF-8 becomes U+FFFD. */
static kg_status put_valid(struct kg_str *out, const struct kg_tokenizer *tok,
                           const struct kg_traj *t, size_t first, size_t end,
                           struct kg_err *err)
{
    struct kg_str bytes = {0};
    kg_status status = kg_tokenizer_decode(&bytes, tok, t->tokens + first, end - first,
                                           true, err);

    if (status == KG_OK)
        status = kg_utf8_make_valid(out, kg_str_text(&bytes), bytes.len, err);
    kg_str_release(&bytes);
    return status;
}

static kg_status put_stretches(struct kg_episode_text *x, const struct kg_tokenizer *tok,
                               const struct kg_traj *t, struct kg_err *err)
{
    for (size_t i = t->prompt_n; i < t->n;) {
        size_t end = stretch(t, i), from = x->all.len;
        struct kg_span *span = &x->spans[x->n_spans++];

        KG_TRY(put_valid(&x->all, tok, t, i, end, err));
        span->n = x->all.len - from;
        span->source = (enum kg_source)t->source[i];
        if (span->source == KG_SOURCE_MODEL)
            KG_TRY(kg_str_append(&x->model, kg_str_text(&x->all) + from, span->n, err));
        i = end;
    }
    return KG_OK;
}

kg_status kg_episode_text_init(struct kg_episode_text *x, const struct kg_tokenizer *tok,
                               const struct kg_traj *t, struct kg_err *err)
{
    size_t n = 0, at = 0;
    kg_status status;

    *x = (struct kg_episode_text){0};
    for (size_t i = t->prompt_n; i < t->n; i = stretch(t, i))
        n++;
    x->spans = kg_mem_calloc(n, sizeof *x->spans, "text of an episode", err);
    if (!x->spans)
        return err->code;
    status = put_stretches(x, tok, t, err);
    if (status != KG_OK) {
        kg_episode_text_release(x);
        return status;
    }
    for (size_t i = 0; i < x->n_spans; at += x->spans[i++].n)
        x->spans[i].text = kg_str_text(&x->all) + at; /* `all` does not grow any more */
    return KG_OK;
}

void kg_episode_add(struct kg_episode_sums *sums, const struct kg_traj *t)
{
    const struct kg_traj_episode *e = &t->episode;

    sums->episodes += e->turns > 0;
    sums->turns += e->turns;
    sums->calls += e->calls;
    sums->invalid += e->invalid;
    sums->failed += e->failed;
    sums->answered += e->answered;
    sums->cut += e->cut;
    sums->windowed += (int64_t)t->n_windows;
}
