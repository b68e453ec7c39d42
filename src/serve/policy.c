/* Episodes that a program of the user plays over HTTP. It gets episodes as lines of its
 * input; if it is a server, each comes in a request, and the response has the report.
 *
 * The rollout is one loop on the thread that owns the engine. If there is room, it sends
 * episodes to the program. It reads the program's reports, admits requests that the
 * intake has tokenised, steps the engine, and ends episodes that are silent for too long.
 * A completion enters the record when it is complete and its client is still connected,
 * before the client gets it. A completion that was not received does not affect later
 * draws: a repeated request gets the same completion. An episode has one request at a
 * time, so its program orders its turns. No result depends on the order of episodes.
 *
 * No behaviour of the program is an error of kedge: a faulty episode ends without a
 * verdict, is logged and counted, and the others continue. A program that ends is started
 * again; the run stops if none has reported yet, or 3 starts in a row had no report.
 */
#define _DEFAULT_SOURCE /* getentropy */
#include "serve/policy.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/phase.h"
#include "base/signal.h"
#include "net/http_client.h"
#include "serve/policy_internal.h"
#include "task/child.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_BRANCHES = 1 << 15, /* of an episode; a draw's sample has 15 bits for it */
    MAX_TURNS = 1 << 15,    /* the key's limit is lower */
    MAX_SAMPLES = 1 << 16,
    MAX_LINE = 1 << 20, /* bytes of a report without a trace */
    TRACED_BYTES = 40,  /* bytes of a trace per token of a turn: ids, mask and text */
    MAX_TRACE = 256 << 20,
    MAX_READS = 32,     /* of a program's output, between two steps of the engine */
    MAX_WARNINGS = 100, /* about reports, per run */
    MAX_FRUITLESS = 3,  /* starts in a row without a report */
    WAIT_MS = 2,        /* longest wait for requests before reports are read */
    STOP_AFTER_S = 1,
    CONNECT_MS = 30000, /* long, because a server may get many episodes at once */
    KEY_BYTES = 16,
};

/* How an episode ended. */
enum status { OK, TIMEOUT, DIED, FAILED, N_STATUS };
static const char *const statuses[N_STATUS] = {"status/ok", "status/timeout",
                                               "status/died", "status/error"};

struct kg_policy_episode {
    const struct kg_request *request;
    int32_t sample;
    char id[KG_SERVE_EPISODE_ID];
    struct kg_traj *out;
    struct kg_policy_record record; /* owned */
    struct kg_serve_job *job;       /* the turn that is being sampled; NULL: none */
    size_t branch;                  /* of the job */
    size_t tokens;                  /* of all branches */
    enum kg_finish finish;          /* of the last turn */
    double heard; /* clock seconds: when sent, at a turn, at the first request after it */
    bool open, full, asked; /* asked: a request came since its last turn */
};

struct kg_policy {
    struct kg_episode_opts opts;
    const struct kg_tokenizer *tok;
    char key[2 * KEY_BYTES + 1];
    char player[32];              /* the recipe's key of program or server */
    struct kg_serve *serve;       /* opened by the first rollout, as child and asked */
    struct kg_task_child *child;  /* the program; NULL with a server */
    struct kg_http_client *asked; /* client of the server; NULL with a program */
    uint64_t tickets, ticket;     /* next ticket; that of the rollout's first episode */
    int64_t reported;             /* episodes of all rollouts */
    int64_t fruitless;            /* starts, or lost requests, since the last report */
    int64_t warnings;
    bool hung; /* an episode of this child was given up */
    struct kg_policy_numbers numbers;
    struct kg_str told, heard;
    size_t sent;    /* bytes of told that were sent */
    size_t unended; /* bytes of heard that were searched for the end of a line */
    /* the current rollout */
    const struct kg_episode_run *run;
    struct kg_policy_episode *episodes; /* (run->n) owned, in the order of run->trajs */
    size_t begun, ended;
    /* clock seconds of the last turn or report; junk and refused requests do not count */
    double moved;
};

/* ---- life ---- */

static void close_policy(void *state)
{
    struct kg_policy *p = state;

    kg_task_child_kill(p->child);
    kg_http_client_close(p->asked);
    kg_serve_close(p->serve);
    kg_str_release(&p->told);
    kg_str_release(&p->heard);
    kg_mem_free(p);
}

static bool is_server(const struct kg_env_opts *o) { return o->url && *o->url; }

/* A URL with a password is refused, because the run's records would show it. The message
 * does not quote a URL with '@'. */
static kg_status check_url(const struct kg_env_opts *o, struct kg_err *err)
{
    static const char expected[] = "url: expected http://HOST:PORT/PATH, found";
    const char *url = o->url;

    if (kg_http_is_address(url) && kg_http_has_host(url) && !strpbrk(url, " \t\r\n"))
        return KG_OK;
    if (strchr(url, '@'))
        return kg_fail(err, KG_EINVAL, "%s%s a name or a password before @", o->section,
                       expected);
    return kg_fail(err, KG_EINVAL, "%s%s '%.200s'", o->section, expected, url);
}

static kg_status check(const struct kg_episode_opts *o, struct kg_err *err)
{
    const bool program = o->env_opts.command && *o->env_opts.command;
    const char *section = o->env_opts.section;

    if (program == is_server(&o->env_opts))
        return kg_fail(err, KG_EINVAL,
                       "%scommand, %surl: expected one of them, the program or the "
                       "server that plays the episodes, found %s",
                       section, section, program ? "both" : "none");
    if (!program)
        KG_TRY(check_url(&o->env_opts, err));
    if (o->window > 0 || o->answer_tokens > 0)
        return kg_fail(err, KG_EINVAL,
                       "window and answer_tokens: expected 0 with env external, found %d "
                       "and %d",
                       o->window, o->answer_tokens);
    return KG_OK;
}

static kg_status open_policy(void **state, const struct kg_tokenizer *tok,
                             const struct kg_episode_opts *opts, struct kg_err *err)
{
    unsigned char bytes[KEY_BYTES];
    struct kg_policy *p;

    KG_TRY(check(opts, err));
    p = kg_mem_calloc(1, sizeof *p, "policy", err);
    if (!p)
        return err->code;
    p->opts = *opts;
    p->tok = tok;
    snprintf(p->player, sizeof p->player, "%s%s", opts->env_opts.section,
             is_server(&opts->env_opts) ? "url" : "command");
    p->numbers = (struct kg_policy_numbers){.further = opts->further, .key = p->player};
    if (getentropy(bytes, sizeof bytes) != 0) {
        kg_mem_free(p);
        return kg_fail(err, KG_EIO,
                       "the key of the policy: cannot read random bytes from the system");
    }
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(p->key + 2 * i, 3, "%02x", bytes[i]);
    *state = p;
    return KG_OK;
}

static size_t most_open(const struct kg_policy *p)
{
    const int32_t open = kg_rollout_get_opts(p->run->engine)->max_open;

    return open < KG_SESSIONS ? (size_t)open : KG_SESSIONS;
}

static kg_status start_server(struct kg_policy *p, struct kg_err *err)
{
    const struct kg_prompt_opts *how = p->opts.prompt;
    struct kg_serve_opts opts = {.policy = p,
                                 .model = kg_rollout_model(p->run->engine),
                                 .tok = p->tok,
                                 .chat = how->chat,
                                 .system = how->system,
                                 .opening = how->opening,
                                 .date = how->date && *how->date ? how->date : NULL,
                                 .name = "policy",
                                 .bearer_key = p->key,
                                 .max_len = p->opts.context,
                                 .default_tokens = p->opts.turn_tokens,
                                 .max_requests = 2 * (int)most_open(p),
                                 .max_connections = 2 * (int)most_open(p) + 64,
                                 .max_session_bytes = INT64_MAX};

    return kg_serve_open(&p->serve, &opts, err);
}

/* A trace repeats the prompt in every turn. */
static size_t longest_report(const struct kg_policy *p)
{
    const int64_t tokens = (int64_t)(p->opts.turns + 1) * p->opts.context;

    return MAX_LINE + (size_t)(tokens < MAX_TRACE / TRACED_BYTES ? tokens * TRACED_BYTES
                                                                 : MAX_TRACE);
}

/* Requests without a timeout: an episode may play for hours. */
static kg_status open_client(struct kg_policy *p, struct kg_err *err)
{
    const struct kg_http_client_opts opts = {.max_in_flight = KG_SESSIONS,
                                             .connect_timeout_ms = CONNECT_MS,
                                             .timeout_ms = INT_MAX,
                                             .tries = 1, /* it may have played a part */
                                             .max_response_bytes = longest_report(p)};

    return kg_http_client_open(&p->asked, &opts, err);
}

/* Starts the program or client, and forgets what an earlier one was sent. */
static kg_status start_player(struct kg_policy *p, struct kg_err *err)
{
    const struct kg_task_command command = {.command = p->opts.env_opts.command};

    p->hung = false;
    p->sent = 0;
    kg_str_clear(&p->told);
    kg_str_clear(&p->heard);
    p->unended = 0;
    if (is_server(&p->opts.env_opts))
        return open_client(p, err);
    p->fruitless++;
    return kg_task_child_start(&p->child, &command, err);
}

static void warn(struct kg_policy *p, const char *what, const char *text, size_t n)
{
    const int shown = n < 80 ? (int)n : 80;

    if (++p->warnings <= MAX_WARNINGS)
        kg_log_warn("%s: %s, found '%.*s'%s", p->player, what, shown, text,
                    p->warnings == MAX_WARNINGS ? " (the last such warning)" : "");
}

/* ---- episodes ---- */

const char *kg_policy_path(char id[KG_SERVE_EPISODE_ID], const char *path)
{
    static const char before[] = "/episode/";
    const char *at = path + strlen(before);
    size_t n;

    id[0] = '\0';
    if (strncmp(path, before, strlen(before)) != 0)
        return NULL;
    n = strcspn(at, "/");
    if (n == 0 || n >= KG_SERVE_EPISODE_ID || at[n] != '/')
        return NULL;
    memcpy(id, at, n);
    id[n] = '\0';
    return at + n;
}

static struct kg_policy_episode *find_open(struct kg_policy *p, const char *id)
{
    for (size_t i = 0; id && i < p->begun; i++)
        if (p->episodes[i].open && strcmp(p->episodes[i].id, id) == 0)
            return &p->episodes[i];
    return NULL;
}

/* Greedy completions use the same draw numbers as the samples of their step. */
static const char *kind_of(const struct kg_sampling *s)
{
    return s->rng.stream == KG_RNG_EVAL ? "eval"
           : s->temperature == 0        ? "greedy"
                                        : "train";
}

static kg_status begin_rollout(struct kg_policy *p, const struct kg_episode_run *run,
                               struct kg_err *err)
{
    size_t at = 0;
    int unused;

    /* before the program's own names, which may fill the table */
    for (int i = 0; p->opts.further && i < N_STATUS; i++)
        KG_TRY(kg_further_find(&unused, p->opts.further, statuses[i], err));
    p->run = run;
    p->begun = p->ended = 0;
    p->ticket = p->tickets;
    p->tickets += run->n;
    p->episodes = kg_mem_calloc(run->n, sizeof *p->episodes, "episodes", err);
    if (!p->episodes)
        return err->code;
    for (size_t i = 0; i < run->n_requests; i++)
        for (int32_t k = 0; k < run->requests[i].n_samples; k++, at++) {
            struct kg_policy_episode *e = &p->episodes[at];

            e->request = &run->requests[i];
            e->sample = run->requests[i].first_sample + k;
            e->out = &run->trajs[at];
            snprintf(e->id, sizeof e->id, "%s-%" PRIu64 "-%d", kind_of(run->sampling),
                     e->request->draw, e->sample);
            if (e->sample >= MAX_SAMPLES)
                return kg_fail(err, KG_EINVAL,
                               "expected at most %d samples of a prompt with env "
                               "external, found sample %d",
                               MAX_SAMPLES, (int)e->sample);
        }
    return KG_OK;
}

/* Sends one episode: as a line, or as the body of a request. */
static kg_status tell(struct kg_policy *p, struct kg_policy_episode *e,
                      struct kg_err *err)
{
    const struct kg_prompts *prompts = p->run->prompts;
    const struct kg_record *r =
        &prompts->data->records[prompts->record[e->request->prompt_index]];

    KG_TRY(kg_str_printf(&p->told, err,
                         "{\"episode\":\"%s\",\"url\":\"http://127.0.0.1:%d/episode/%s/"
                         "v1\",\"key\":\"%s\",\"model\":\"policy\",",
                         e->id, kg_serve_port(p->serve), e->id, p->key));
    KG_TRY(kg_task_put_record(&p->told, r, NULL, 0, err));
    KG_TRY(kg_str_puts(&p->told, "}\n", err));
    if (p->asked) {
        KG_TRY(kg_http_client_submit(p->asked, p->opts.env_opts.url, p->told.data,
                                     p->told.len, p->ticket + p->begun, err));
        kg_str_clear(&p->told);
    }
    e->open = true;
    e->heard = kg_clock_seconds();
    p->begun++;
    return KG_OK;
}

static kg_status tell_more(struct kg_policy *p, struct kg_err *err)
{
    while (p->begun < p->run->n && p->begun - p->ended < most_open(p))
        KG_TRY(tell(p, &p->episodes[p->begun], err));
    return KG_OK;
}

/* Concatenates all branches, in the memory of the first. */
static kg_status join(struct kg_policy_episode *e, struct kg_err *err)
{
    struct kg_traj *t = e->out;

    *t = e->record.branches[0];
    e->record.branches[0] = (struct kg_traj){0};
    for (size_t i = 1; i < e->record.n_branches; i++) {
        const struct kg_traj *b = &e->record.branches[i];
        const size_t from = t->n;

        KG_TRY(kg_traj_extend(t, b, 0, b->prompt_n, err));
        KG_TRY(kg_traj_open_window(t, from, err));
        KG_TRY(kg_traj_extend(t, b, b->prompt_n, b->n, err));
        t->cut_n += b->cut_n;
        t->cut_nats += b->cut_nats;
    }
    return KG_OK;
}

/* An episode without a turn consists of its prompt alone. */
static kg_status put_nothing(struct kg_policy_episode *e, float temperature,
                             struct kg_err *err)
{
    const struct kg_request *q = e->request;

    e->finish = KG_FINISH_CANCELLED;
    e->out->temperature = temperature;
    return kg_traj_append(e->out, q->prompt, q->prompt_n, KG_SOURCE_PROMPT, err);
}

static kg_status put_statuses(struct kg_traj *t, enum status how,
                              struct kg_further_names *names, struct kg_err *err)
{
    int k;

    for (int i = 0; names && i < N_STATUS; i++) {
        KG_TRY(kg_further_find(&k, names, statuses[i], err));
        t->further.said |= (uint32_t)1 << k;
        t->further.x[k] = i == (int)how;
    }
    return KG_OK;
}

/* Ends an episode. If it has a verdict, out holds it. A turn in progress is cancelled. */
static kg_status end(struct kg_policy *p, struct kg_policy_episode *e, enum status how,
                     struct kg_err *err)
{
    const struct kg_traj verdict = *e->out;
    struct kg_traj *t = e->out;
    struct kg_err over;

    if (e->job) {
        kg_fail(&over, KG_EUNSUPPORTED, "episode %s has ended", e->id);
        kg_serve_job_fail(e->job, &over);
        kg_policy_leave(e->job);
    }
    if (e->record.n_branches > 0)
        KG_TRY(join(e, err));
    else
        KG_TRY(put_nothing(e, p->run->sampling->temperature, err));
    t->prompt_index = e->request->prompt_index;
    t->draw = e->request->draw;
    t->sample = e->sample;
    t->finish = e->full ? KG_FINISH_LENGTH : e->finish;
    t->reward = verdict.reward;
    t->graded = verdict.graded && e->record.n_branches > 0;
    t->further = verdict.further;
    t->episode = (struct kg_traj_episode){
        .turns = (int32_t)e->record.n_turns, .answered = how == OK, .cut = e->full};
    KG_TRY(put_statuses(t, how, p->opts.further, err));
    e->open = false;
    p->ended++;
    kg_sessions_drop(p->serve->sessions, e->id);
    return KG_OK;
}

static kg_status end_rollout(struct kg_policy *p, kg_status status)
{
    if (p->serve)
        kg_serve_detach(p->serve);
    for (size_t i = 0; p->episodes && i < p->run->n; i++) {
        struct kg_policy_episode *e = &p->episodes[i];

        for (size_t b = 0; b < e->record.n_branches; b++)
            kg_traj_release(&e->record.branches[b]);
        kg_mem_free(e->record.branches);
        kg_mem_free(e->record.turns);
    }
    kg_mem_free(p->episodes);
    p->episodes = NULL;
    p->begun = p->ended = 0;
    return status;
}

/* ---- turns ---- */

static bool is_given(const struct kg_api_request *r, const char *name)
{
    const struct kg_json *from = r->params ? r->params : r->doc.root;

    return kg_json_type(kg_json_get(from, name)) != KG_JSON_NULL;
}

static kg_status refuse(struct kg_api_fault *fault, const char *param, const char *want,
                        struct kg_err *err)
{
    fault->param = param;
    return kg_fail(err, KG_EINVAL,
                   "%s: not supported for a policy in training: expected %s", param,
                   want);
}

/* The policy is sampled as the recipe says: training assumes that distribution. */
static kg_status check_draw(const struct kg_api_request *r, const struct kg_sampling *s,
                            struct kg_api_fault *fault, struct kg_err *err)
{
    const struct {
        const char *name;
        double asked, own;
    } rows[] = {{"temperature", (double)r->sampling.temperature, (double)s->temperature},
                {"top_p", (double)r->sampling.top_p, (double)s->top_p},
                {"top_k", r->sampling.top_k, s->top_k},
                {"min_p", (double)r->sampling.min_p, (double)s->min_p}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (is_given(r, rows[i].name) && rows[i].asked != rows[i].own) {
            fault->param = rows[i].name;
            return kg_fail(err, KG_EINVAL,
                           "%s: expected %g, the value of this run, or none, found %g",
                           rows[i].name, rows[i].own, rows[i].asked);
        }
    if (r->seeded)
        return refuse(fault, "seed", "none", err);
    if (r->ignore_eos != s->ignore_eos)
        return refuse(fault, "ignore_eos", "false", err);
    if (r->n_bias > 0)
        return refuse(fault, "logit_bias", "none", err);
    if (r->repetition != 1 || r->presence != 0 || r->frequency != 0)
        return refuse(fault, "penalties", "none", err);
    return KG_OK;
}

static kg_status check_turn(const struct kg_api_request *r, const struct kg_sampling *s,
                            struct kg_api_fault *fault, struct kg_err *err)
{
    KG_TRY(check_draw(r, s, fault, err));
    if (r->n != 1)
        return refuse(fault, "n", "1", err);
    if (r->n_prompts != 1)
        return refuse(fault, "prompt", "one", err);
    if (r->echo || r->prompt_scores)
        return refuse(fault, r->echo ? "echo" : "prompt_logprobs", "none", err);
    if (kg_api_records(r) > s->record_top_k)
        return refuse(fault, "top_logprobs", "0", err);
    if (r->n_stops + s->n_stops > KG_MAX_STOPS)
        return refuse(fault, "stop", "fewer strings", err);
    return KG_OK;
}

/* The longest branch that the prompt continues; n_branches if there is none. */
static size_t find_branch(const struct kg_policy_episode *e, const struct kg_ids *prompt)
{
    size_t found = e->record.n_branches;

    for (size_t i = 0; i < e->record.n_branches; i++) {
        const struct kg_traj *b = &e->record.branches[i];

        if (b->n <= prompt->n &&
            (found == e->record.n_branches || b->n > e->record.branches[found].n) &&
            memcmp(b->tokens, prompt->ids, b->n * sizeof *b->tokens) == 0)
            found = i;
    }
    return found;
}

/* Computes how many tokens the turn may have within the episode's budgets. */
static kg_status find_room(int32_t *room, struct kg_policy *p,
                           struct kg_policy_episode *e, const struct kg_ids *prompt,
                           struct kg_api_fault *fault, struct kg_err *err)
{
    const struct kg_episode_opts *o = &p->opts;
    const size_t known = e->branch < e->record.n_branches
                             ? e->record.branches[e->branch].n
                             : 0;
    const int64_t left = o->context - (int64_t)(e->tokens + prompt->n - known);

    *room = left < o->turn_tokens ? (int32_t)left : o->turn_tokens;
    if (left >= 1 && (int64_t)e->record.n_turns <= o->turns && e->branch < MAX_BRANCHES)
        return KG_OK;
    e->full = true;
    fault->code = "context_length_exceeded";
    return kg_fail(
        err, KG_EINVAL,
        "episode %s: expected at most %d turns (the key turns plus one) and %d "
        "tokens in all branches (the key context), found turn %d and %" PRId64 " tokens",
        e->id, o->turns + 1, o->context, (int)e->record.n_turns + 1, o->context - left);
}

static void plan_turn(struct kg_policy *p, struct kg_serve_job *job, int32_t room)
{
    struct kg_policy_episode *e = job->episode;
    struct kg_api_request *r = &job->r;
    struct kg_request *q = &job->groups[0].q;
    struct kg_sampling s = *p->run->sampling;

    for (int i = 0; i < s.n_stops; i++)
        r->stops[r->n_stops++] = s.stops[i];
    s.stops = r->stops;
    s.n_stops = r->n_stops;
    s.stop_ids = r->stop_ids;
    s.n_stop_ids = r->n_stop_ids;
    job->sampling = s;
    q->prompt_index = e->request->prompt_index;
    q->draw = e->request->draw;
    q->first_sample = e->sample + (int32_t)e->branch * MAX_SAMPLES;
    q->drawn = e->branch < e->record.n_branches
                   ? (int32_t)kg_traj_model_tokens(&e->record.branches[e->branch])
                   : 0;
    q->max_tokens = r->max_tokens < room ? (int32_t)r->max_tokens : room;
}

kg_status kg_policy_admit(struct kg_policy *p, struct kg_serve_job *job,
                          struct kg_api_fault *fault, struct kg_err *err)
{
    struct kg_policy_episode *e = find_open(p, job->episode_id);
    int32_t room;

    *fault = (struct kg_api_fault){.status = e ? 400 : 404};
    if (!e)
        return kg_fail(err, KG_ENOTFOUND, "expected an episode that is open, found '%s'",
                       job->episode_id);
    fault->status = e->job ? 409 : 400;
    if (e->job)
        return kg_fail(err, KG_EINVAL,
                       "episode %s: expected one request at a time, found a second one",
                       e->id);
    KG_TRY(check_turn(&job->r, p->run->sampling, fault, err));
    e->branch = find_branch(e, &job->r.prompts[0].ids);
    KG_TRY(find_room(&room, p, e, &job->r.prompts[0].ids, fault, err));
    job->episode = e;
    e->job = job;
    if (!e->asked) /* asking and leaving repeatedly must not extend the timeout */
        e->heard = kg_clock_seconds();
    e->asked = true;
    plan_turn(p, job, room);
    return KG_OK;
}

void kg_policy_leave(struct kg_serve_job *job)
{
    job->episode->job = NULL;
    job->episode = NULL;
}

static kg_status add_branch(struct kg_policy_episode *e, const struct kg_traj *t,
                            struct kg_err *err)
{
    struct kg_traj *b;

    KG_TRY(kg_mem_grow(&e->record.branches, &e->record.capacity, e->record.n_branches + 1,
                       sizeof *b, MAX_BRANCHES, "branches of an episode", err));
    b = &e->record.branches[e->record.n_branches++];
    *b = (struct kg_traj){.top_k = t->top_k, .temperature = t->temperature};
    return kg_traj_append(b, t->tokens, t->prompt_n, KG_SOURCE_PROMPT, err);
}

kg_status kg_policy_keep(struct kg_policy *p, struct kg_serve_job *job,
                         const struct kg_traj *t, struct kg_err *err)
{
    struct kg_policy_episode *e = job->episode;
    struct kg_traj *b;
    size_t before;

    before = e->branch < e->record.n_branches ? e->record.branches[e->branch].n : 0;
    if (before == 0)
        KG_TRY(add_branch(e, t, err));
    b = &e->record.branches[e->branch];
    KG_TRY(kg_mem_grow(&e->record.turns, &e->record.turns_capacity, e->record.n_turns + 1,
                       sizeof *e->record.turns, MAX_TURNS, "turns of an episode", err));
    e->record.turns[e->record.n_turns++] = (struct kg_policy_turn){e->branch, t->prompt_n,
                                                                   t->n};
    KG_TRY(kg_traj_extend(b, t, b->n, t->n, err));
    b->cut_n += t->cut_n;
    b->cut_nats += t->cut_nats;
    e->tokens += t->n - before;
    e->finish = t->finish;
    e->asked = false;
    e->heard = p->moved = kg_clock_seconds();
    return KG_OK;
}

/* ---- reports ---- */

/* Ends an open episode by its report; an unreadable report counts as FAILED. */
static kg_status end_reported(struct kg_policy *p, struct kg_policy_episode *e,
                              const struct kg_json *report, const char *line, size_t n,
                              struct kg_err *err)
{
    enum status how = OK;
    struct kg_err why;
    kg_status status = kg_policy_take_trace(&e->record, kg_json_get(report, "trace"),
                                            &why);

    p->moved = kg_clock_seconds();
    if (status == KG_ENOMEM)
        return kg_fail(err, KG_ENOMEM, "%s", why.message);
    if (status == KG_OK)
        status = kg_policy_read(e->out, &p->numbers, report, &why);
    if (status != KG_OK) {
        warn(p, why.message, line, n);
        how = FAILED;
    }
    p->reported++;
    p->fruitless = 0;
    return end(p, e, how, err);
}

static kg_status take_report(struct kg_policy *p, const char *line, size_t n,
                             struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_policy_episode *e = NULL;
    struct kg_err why;
    kg_status status = KG_OK;

    if (kg_json_parse(&doc, line, n, "report", &why) == KG_OK)
        e = find_open(p, kg_json_text(kg_json_get(doc.root, "episode"), NULL));
    if (e)
        status = end_reported(p, e, doc.root, line, n, err);
    else
        warn(p, "expected a report {\"episode\", \"reward\"} of an open episode", line,
             n);
    kg_json_release(&doc);
    return status;
}

/* Takes all complete lines; keeps the rest. */
static kg_status take_reports(struct kg_policy *p, struct kg_err *err)
{
    const char *at = kg_str_text(&p->heard), *end = at + p->heard.len, *stop;
    const char *from = at + p->unended;
    struct kg_str rest = {0};
    kg_status status = KG_OK;

    while (status == KG_OK && (stop = memchr(from, '\n', (size_t)(end - from)))) {
        if (stop > at)
            status = take_report(p, at, (size_t)(stop - at), err);
        at = from = stop + 1;
    }
    p->unended = (size_t)(end - at);
    if (status == KG_OK && at > kg_str_text(&p->heard)) {
        status = kg_str_append(&rest, at, (size_t)(end - at), err);
        kg_str_release(&p->heard);
        p->heard = rest;
    }
    return status;
}

static kg_status end_open(struct kg_policy *p, enum status how, struct kg_err *err)
{
    for (size_t i = 0; i < p->begun; i++)
        if (p->episodes[i].open)
            KG_TRY(end(p, &p->episodes[i], how, err));
    return KG_OK;
}

/* The program has ended, or was killed for a line that is too long. */
static kg_status bury(struct kg_policy *p, const char *why, struct kg_err *err)
{
    const size_t open = p->begun - p->ended;

    p->child = NULL;
    if (p->reported == 0 || p->fruitless >= MAX_FRUITLESS)
        return kg_fail(err, KG_EIO,
                       "%s: expected a program that plays episodes, found one that ended "
                       "without a report (%" PRId64 " starts in a row): %.600s",
                       p->player, p->fruitless, why);
    kg_log_warn("%s: starting it again, %zu episodes had no report: %s", p->player, open,
                why);
    KG_TRY(end_open(p, DIED, err));
    return start_player(p, err);
}

/* The program has ended by itself. */
static kg_status bury_ended(struct kg_policy *p, struct kg_err *err)
{
    struct kg_err why = {.message = "it ended with exit status 0"};

    (void)kg_task_child_end(p->child, &why);
    return bury(p, why.message, err);
}

/* ---- a server's reports ---- */

/* If many responses in a row are not reports, the server does not play episodes. */
static kg_status check_server(const struct kg_policy *p, const char *found,
                              struct kg_err *err)
{
    const size_t open = most_open(p) < p->run->n ? most_open(p) : p->run->n;

    if (p->fruitless < (int64_t)open * (p->reported > 0 ? MAX_FRUITLESS : 1))
        return KG_OK;
    return kg_fail(err, KG_EIO,
                   "%s: expected a server that plays episodes, found none at %s "
                   "(%" PRId64 " requests without a report): %.600s",
                   p->player, p->opts.env_opts.url, p->fruitless, found);
}

/* Ends an episode whose response is not a report. */
static kg_status lose(struct kg_policy *p, struct kg_policy_episode *e, enum status how,
                      const char *found, struct kg_err *err)
{
    p->fruitless++;
    KG_TRY(check_server(p, found, err));
    warn(p, "expected a report as the answer", found, strlen(found));
    return end(p, e, how, err);
}

/* A report may omit its episode's id. */
static kg_status take_body(struct kg_policy *p, struct kg_policy_episode *e,
                           const struct kg_http_answer *a, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_err why;
    kg_status status = kg_json_parse(&doc, a->body, a->body_n, "report", &why);
    const struct kg_json *named = kg_json_get(doc.root, "episode");
    const char *id = kg_json_text(named, NULL);

    if (status == KG_OK && kg_json_type(named) != KG_JSON_NULL &&
        (!id || strcmp(id, e->id) != 0))
        status = kg_fail(&why, KG_EFORMAT, "expected a report of episode %s, found '%s'",
                         e->id, id ? id : "no text");
    status = status == KG_OK ? end_reported(p, e, doc.root, a->body, a->body_n, err)
                             : lose(p, e, FAILED, why.message, err);
    kg_json_release(&doc);
    return status;
}

static kg_status on_answer(void *user, const struct kg_http_answer *a, struct kg_err *err)
{
    struct kg_policy *p = user;
    struct kg_policy_episode *e;
    char found[160];

    if (a->ticket < p->ticket) /* of an earlier rollout */
        return KG_OK;
    e = &p->episodes[a->ticket - p->ticket];
    if (!e->open) /* it has timed out */
        return KG_OK;
    if (a->status != KG_OK)
        return lose(p, e, DIED, a->reason, err);
    if (a->http_status == 200)
        return take_body(p, e, a, err);
    snprintf(found, sizeof found, "HTTP status %d: %.*s", a->http_status,
             a->body_n < 100 ? (int)a->body_n : 100, a->body);
    return lose(p, e, FAILED, found, err);
}

/* ---- a program's reports ---- */

static kg_status talk(struct kg_policy *p, struct kg_err *err)
{
    const bool ended = kg_task_child_ended(p->child);
    const size_t most = longest_report(p);
    char why[64];
    size_t before;
    int reads = 0; /* a program that writes without pause must not stall the rollout */

    do {
        const struct kg_task_talk talk = {.input = kg_str_text(&p->told),
                                          .input_n = p->told.len,
                                          .sent = &p->sent,
                                          .max_output = most};

        before = p->heard.len;
        KG_TRY(kg_task_child_hear(&p->heard, p->child, &talk, 0, err));
        before = p->heard.len - before;
        KG_TRY(take_reports(p, err));
    } while (before > 0 && p->heard.len <= most && ++reads < MAX_READS);
    if (p->sent == p->told.len) {
        kg_str_clear(&p->told);
        p->sent = 0;
    }
    if (p->heard.len > most) {
        kg_task_child_kill(p->child);
        snprintf(why, sizeof why, "it wrote a line of more than %zu bytes", most);
        return bury(p, why, err);
    }
    return ended ? bury_ended(p, err) : KG_OK;
}

/* ---- the rollout ---- */

/* An episode without a turn may wait in the program's queue; its time runs only while no
 * other episode moves. */
static bool is_silent(const struct kg_policy *p, const struct kg_policy_episode *e,
                      double now)
{
    const double since = e->record.n_turns > 0 || e->heard > p->moved ? e->heard
                                                                      : p->moved;

    return e->open && !e->job && now - since > 1e-3 * p->opts.env_opts.silent_ms;
}

static kg_status give_up(struct kg_policy *p, struct kg_err *err)
{
    const double now = kg_clock_seconds();

    for (size_t i = 0; i < p->begun; i++) {
        struct kg_policy_episode *e = &p->episodes[i];

        if (!is_silent(p, e, now))
            continue;
        warn(p, "expected no episode without a turn or a report for timeout_ms", e->id,
             strlen(e->id));
        KG_TRY(end(p, e, TIMEOUT, err));
        p->hung = true;
    }
    if (!p->hung || p->begun > p->ended)
        return KG_OK;
    kg_task_child_kill(p->child); /* so that no late report meets a later episode */
    kg_http_client_close(p->asked);
    return start_player(p, err);
}

/* As in rollout/episode.c: while the program plays, the step is finished first. */
static kg_status check_stop(const struct kg_policy *p, struct kg_err *err)
{
    const double waited = kg_clock_seconds() - p->moved;

    if (waited < STOP_AFTER_S || !kg_signal_stop_requested())
        return KG_OK;
    return kg_fail(err, KG_EINTERRUPTED,
                   "stopped by a signal: %zu episodes had waited %.0f s for %s",
                   p->begun - p->ended, waited, p->player);
}

static void wait_for_it(struct kg_policy *p)
{
    const double since = kg_clock_seconds();

    kg_serve_wait(p->serve, WAIT_MS);
    if (p->run->seconds_idle)
        *p->run->seconds_idle += kg_clock_seconds() - since;
}

static kg_status play(struct kg_policy *p, struct kg_err *err)
{
    const int phase = kg_phase_begin((int64_t)p->run->n, "episodes", "generating");
    bool busy;

    p->moved = kg_clock_seconds();
    while (p->ended < p->run->n) {
        KG_TRY(tell_more(p, err));
        if (p->asked)
            KG_TRY(kg_http_client_poll(p->asked, 0, on_answer, p, err));
        else
            KG_TRY(talk(p, err));
        KG_TRY(kg_serve_turn(p->serve, &busy, err));
        KG_TRY(give_up(p, err));
        if (!busy)
            KG_TRY(check_stop(p, err));
        if (!busy && p->ended < p->run->n)
            wait_for_it(p);
        kg_phase_at(phase, (int64_t)p->ended);
    }
    kg_phase_end(phase);
    return KG_OK;
}

static kg_status run_rollout(void *state, const struct kg_episode_run *run,
                             struct kg_err *err)
{
    struct kg_policy *p = state;
    struct kg_rollout_session session = {.token = kg_serve_on_token,
                                         .finished = kg_serve_on_finished};
    kg_status status;

    KG_TRY_GOTO(out, begin_rollout(p, run, err));
    if (!p->serve)
        KG_TRY_GOTO(out, start_server(p, err));
    if (!p->child && !p->asked)
        KG_TRY_GOTO(out, start_player(p, err));
    if (p->child &&
        kg_task_child_ended(p->child)) /* before an episode is sent: none is lost */
        KG_TRY_GOTO(out, bury_ended(p, err));
    session.user = p->serve;
    KG_TRY_GOTO(out, kg_rollout_begin(run->engine, &session, err));
    kg_serve_attach(p->serve, run->engine);
    status = play(p, err);
out:
    return end_rollout(p, status);
}

const struct kg_episode_host kg_policy_host = {
    .open = open_policy, .close = close_policy, .run = run_rollout};
