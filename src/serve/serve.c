/* Routes, the intake thread, and the loop around the engine.
 *
 * The engine knows no clients and must not wait for one. So between two steps the loop
 * does only short work: it takes jobs that are tokens already, drops those whose client
 * has left, and ends those that are finished. The intake does all that may take long
 * (JSON, templates, encoding). Jobs pass through queues under one lock, and adding a job
 * wakes the thread that waits for it. To stop, the server accepts nothing new; requests
 * still open when their time is over get an error.
 */
#include "serve/serve_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/phase.h"
#include "net/http_server.h"
#include "serve/policy_internal.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    DEFAULT_BATCH = 64,
    DEFAULT_REQUESTS = 512,
    DEFAULT_DRAIN_S = 30,
    DEFAULT_KV_TOKENS = 65536,
    IDLE_MS = 100,
    CLOSE_MS = 3000,
};

/* ---- queues ---- */

/* The caller holds the lock. */
static void push(struct kg_serve_queue *q, struct kg_serve_job *job)
{
    job->next = NULL;
    if (q->last)
        q->last->next = job;
    else
        q->first = job;
    q->last = job;
}

static struct kg_serve_job *pop(struct kg_serve_queue *q)
{
    struct kg_serve_job *job = q->first;
    if (job) {
        q->first = job->next;
        if (q->first == NULL)
            q->last = NULL;
    }
    return job;
}

/* ---- routes: on the HTTP server's thread ---- */

static void refuse(struct kg_http_exchange *x, struct kg_serve *s, enum kg_api_kind kind,
                   int status, const char *why)
{
    pthread_mutex_lock(&s->lock);
    kg_serve_metrics_count_answer(&s->metrics, kind, status);
    pthread_mutex_unlock(&s->lock);
    kg_http_reply_error(x, status, why);
}

static void take(struct kg_serve *s, struct kg_http_exchange *x, enum kg_api_kind kind)
{
    pthread_mutex_lock(&s->lock);
    bool draining = s->draining;
    bool full = s->metrics.open >= s->opts.max_requests;
    s->metrics.open += !draining && !full;
    pthread_mutex_unlock(&s->lock);
    if (draining || full) {
        refuse(x, s, kind, draining ? 503 : 429,
               !draining        ? "too many requests are open: try again later"
               : s->opts.policy ? "no episode is open: the policy is being trained"
                                : "the server is shutting down");
        return;
    }
    struct kg_serve_job *job = kg_serve_job_create(s, x, kind);
    pthread_mutex_lock(&s->lock);
    if (job) {
        push(&s->intake, job);
        pthread_cond_signal(&s->intake_due);
    } else {
        s->metrics.open--;
    }
    pthread_mutex_unlock(&s->lock);
    if (job == NULL)
        refuse(x, s, kind, 503, "out of memory");
}

static void on_completions(void *user, struct kg_http_exchange *x)
{
    take(user, x, KG_API_COMPLETION);
}

static void on_chat(void *user, struct kg_http_exchange *x)
{
    take(user, x, KG_API_CHAT);
}

static void on_generate(void *user, struct kg_http_exchange *x)
{
    take(user, x, KG_API_GENERATE);
}

static void on_tokenize(void *user, struct kg_http_exchange *x)
{
    take(user, x, KG_API_TOKENIZE);
}

static void on_detokenize(void *user, struct kg_http_exchange *x)
{
    take(user, x, KG_API_DETOKENIZE);
}

static void on_health(void *user, struct kg_http_exchange *x)
{
    static const char ok[] = "{\"status\": \"ok\"}";
    struct kg_serve *s = user;
    pthread_mutex_lock(&s->lock);
    bool draining = s->draining;
    pthread_mutex_unlock(&s->lock);
    if (draining)
        kg_http_reply_error(x, 503, "the server is shutting down");
    else
        kg_http_reply(x, 200, "application/json", ok, sizeof ok - 1);
}

static void reply_made(struct kg_http_exchange *x, const char *type, kg_status status,
                       struct kg_str *body)
{
    if (status == KG_OK)
        kg_http_reply(x, 200, type, kg_str_text(body), body->len);
    else
        kg_http_reply_error(x, 503, "out of memory");
    kg_str_release(body);
}

static void on_models(void *user, struct kg_http_exchange *x)
{
    struct kg_serve *s = user;
    struct kg_str body = {0};
    struct kg_err err;
    kg_status status = kg_str_puts(&body, "{\"object\": \"list\", \"data\": [", &err);
    for (size_t i = 0; i < s->n_models && status == KG_OK; i++) {
        status = i > 0 ? kg_str_puts(&body, ", ", &err) : KG_OK;
        if (status == KG_OK)
            status = kg_api_put_model(&body, &s->models[i], &err);
    }
    if (status == KG_OK)
        status = kg_str_puts(&body, "]}", &err);
    reply_made(x, "application/json", status, &body);
}

static void on_model(void *user, struct kg_http_exchange *x)
{
    struct kg_serve *s = user;
    struct kg_str body = {0};
    struct kg_err err;
    char episode[KG_SERVE_EPISODE_ID];
    const char *path = kg_policy_path(episode, kg_http_path(x));
    const char *name = (path ? path : kg_http_path(x)) + strlen("/v1/models/");
    const struct kg_api_model *m;
    if (kg_api_find(&m, s->models, s->n_models, name, &err) == KG_OK)
        reply_made(x, "application/json", kg_api_put_model(&body, m, &err), &body);
    else
        kg_http_reply_error(x, err.code == KG_ENOTFOUND ? 404 : 503, err.message);
}

static void on_metrics(void *user, struct kg_http_exchange *x)
{
    struct kg_serve *s = user;
    struct kg_str body = {0};
    struct kg_err err;
    struct kg_http_server_stats http;
    kg_http_server_stats(&http, s->http);
    struct kg_session_stats sessions;
    kg_sessions_stats(&sessions, s->sessions); /* it has its own lock */
    pthread_mutex_lock(&s->lock);
    s->metrics.sessions = sessions;
    kg_status status = kg_serve_metrics_put(&body, &s->metrics, &http, &err);
    pthread_mutex_unlock(&s->lock);
    reply_made(x, "text/plain; version=0.0.4; charset=utf-8", status, &body);
}

static const struct kg_http_route routes[] = {
    {"GET", "/health", on_health, "200 while requests are accepted; needs no key"},
    {"GET", "/metrics", on_metrics, "counters and histograms for Prometheus"},
    {"GET", "/v1/models", on_models, "the served model and its adapters"},
    {"GET", "/v1/models/", on_model, "one model by its name"},
    {"POST", "/v1/completions", on_completions, "text or ids to text"},
    {"POST", "/v1/chat/completions", on_chat, "messages to an answer"},
    {"POST", "/inference/v1/generate", on_generate, "ids to ids, as in vLLM"},
    {"POST", "/tokenize", on_tokenize, "text or messages to ids"},
    {"POST", "/detokenize", on_detokenize, "ids to text"},
    {NULL, NULL, NULL, NULL},
};

/* A route whose path ends with '/' matches any name after it. */
static bool is_of(const struct kg_http_route *r, const char *method, const char *path)
{
    const size_t n = strlen(r->path);
    return strcmp(r->method, method) == 0 && strncmp(r->path, path, n) == 0 &&
           (path[n] == '\0') == (r->path[n - 1] != '/');
}

/* Serves the same routes under /episode/ID. */
static void pass_on(struct kg_serve *s, struct kg_http_exchange *x, const char *method)
{
    char id[KG_SERVE_EPISODE_ID];
    const char *path = kg_policy_path(id, kg_http_path(x));
    for (const struct kg_http_route *r = routes; path && r->method; r++)
        if (is_of(r, method, path)) {
            r->handle(s, x);
            return;
        }
    kg_http_reply_error(x, 404, "expected /episode/ID followed by a path of the API");
}

static void on_episode_get(void *user, struct kg_http_exchange *x)
{
    pass_on(user, x, "GET");
}

static void on_episode_post(void *user, struct kg_http_exchange *x)
{
    pass_on(user, x, "POST");
}

static const struct kg_http_route policy_routes[] = {
    {"GET", "/episode/", on_episode_get, "the model"},
    {"POST", "/episode/", on_episode_post, "a turn of an episode"},
    {NULL, NULL, NULL, NULL},
};

static kg_status error_body(struct kg_str *body, int status, const char *message,
                            struct kg_err *err)
{
    struct kg_api_fault fault = {.status = status};
    fault.code = status == 401   ? "invalid_api_key"
                 : status == 404 ? "not_found"
                 : status == 429 ? "rate_limit_exceeded"
                                 : NULL;
    return kg_api_put_error(body, &fault, message, err);
}

/* ---- the intake thread ---- */

static void prepare(struct kg_serve *s, struct kg_serve_job *job)
{
    struct kg_err err;
    struct kg_api_fault fault;
    kg_status status = kg_serve_job_prepare(job, &fault, &err);
    if (status != KG_OK) {
        fault.status = status == KG_ENOMEM ? 503 : fault.status;
        kg_serve_job_refuse(job, &fault, err.message);
        return;
    }
    if (!kg_api_is_answered(job->r.kind)) {
        kg_serve_job_answer_tokens(job);
        return;
    }
    pthread_mutex_lock(&s->lock);
    push(&s->ready, job);
    pthread_cond_signal(&s->ready_due);
    pthread_mutex_unlock(&s->lock);
}

static void *intake_main(void *user)
{
    struct kg_serve *s = user;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (s->intake.first == NULL && !s->quitting)
            pthread_cond_wait(&s->intake_due, &s->lock);
        struct kg_serve_job *job = s->quitting ? NULL : pop(&s->intake);
        pthread_mutex_unlock(&s->lock);
        if (job == NULL)
            return NULL;
        prepare(s, job);
    }
}

/* ---- life ---- */

/* Default size of the cache: max_batch contexts, limited to DEFAULT_KV_TOKENS or one
 * context, whichever is more. */
static int64_t serve_kv_tokens(int32_t max_batch, int32_t max_len)
{
    int64_t all = kg_rollout_kv_tokens(max_batch, max_len);
    int64_t one = kg_rollout_kv_tokens(1, max_len);
    int64_t most = one > DEFAULT_KV_TOKENS ? one : DEFAULT_KV_TOKENS;
    return all < most ? all : most;
}

struct kg_rollout_opts kg_serve_engine_opts(const struct kg_serve_opts *opts)
{
    int32_t positions = opts->model->config.max_positions;
    struct kg_rollout_opts o = {.max_batch = opts->max_batch,
                                .prefill_chunk = opts->prefill_chunk,
                                .kv_tokens = opts->kv_tokens,
                                .max_len = opts->max_len};
    o.max_batch = o.max_batch > 0 ? o.max_batch : DEFAULT_BATCH;
    if (o.max_len <= 0 || o.max_len > positions)
        o.max_len = positions;
    if (o.kv_tokens <= 0)
        o.kv_tokens = serve_kv_tokens(o.max_batch, o.max_len);
    return o;
}

static void take_opts(struct kg_serve *s, const struct kg_serve_opts *opts)
{
    const struct kg_rollout_opts engine = kg_serve_engine_opts(opts);
    struct kg_serve_opts *o = &s->opts;
    *o = *opts;
    o->max_batch = engine.max_batch;
    o->max_len = engine.max_len;
    o->kv_tokens = engine.kv_tokens;
    o->max_requests = o->max_requests > 0 ? o->max_requests : DEFAULT_REQUESTS;
    o->max_body_bytes = o->max_body_bytes > 0 ? o->max_body_bytes : (size_t)4 << 20;
    o->max_held_bytes = o->max_held_bytes > 0 ? o->max_held_bytes : (size_t)256 << 20;
    o->max_session_bytes = o->max_session_bytes > 0 ? o->max_session_bytes
                                                    : (size_t)64 << 20;
    o->drain_s = o->drain_s > 0 ? o->drain_s : DEFAULT_DRAIN_S;
}

static kg_status list_model(struct kg_serve *s, struct kg_api_model m, struct kg_err *err)
{
    for (size_t i = 0; i < s->n_models; i++)
        if (strcmp(s->models[i].name, m.name) == 0)
            return kg_fail(err, KG_EINVAL,
                           "expected models and adapters of different names, found '%s' "
                           "twice",
                           m.name);
    s->models[s->n_models++] = m;
    return KG_OK;
}

static kg_status list_models(struct kg_serve *s, struct kg_err *err)
{
    const struct kg_serve_opts *o = &s->opts;
    struct kg_api_model m = {.name = o->name,
                             .created = (int64_t)kg_clock_unix_seconds(),
                             .tok = o->tok,
                             .chat = o->chat,
                             .system = o->system,
                             .opening = o->opening,
                             .date = o->date,
                             .sessions = s->sessions,
                             .vocab = o->model->config.vocab,
                             .max_len = o->max_len,
                             .default_tokens = o->default_tokens,
                             .routed = o->routed_experts ? &o->model->config : NULL,
                             .budgeted = o->policy != NULL};
    if (m.routed && kg_model_config_choices(m.routed) == 0)
        return kg_fail(err, KG_EINVAL,
                       "--routed-experts: expected a model with experts, found %s, which "
                       "has none",
                       o->name);
    KG_TRY(kg_tool_calls_known(&m.knows_calls, o->chat, o->tok, err));
    snprintf(s->prefix, sizeof s->prefix, "%llx-", (unsigned long long)m.created);
    s->models = kg_mem_calloc(1 + o->n_adapters, sizeof *s->models, "server", err);
    if (s->models == NULL)
        return err->code;
    KG_TRY(list_model(s, m, err));
    m.parent = o->name;
    for (size_t i = 0; i < o->n_adapters; i++) {
        m.name = o->adapters[i].name;
        m.adapter = (int32_t)i + 1;
        KG_TRY(list_model(s, m, err));
    }
    return KG_OK;
}

static kg_status begin_engine(struct kg_serve *s, struct kg_err *err)
{
    struct kg_rollout_session session = {.token = kg_serve_on_token,
                                         .finished = kg_serve_on_finished,
                                         .user = s,
                                         .steady = true};
    return kg_rollout_begin(s->engine, &session, err);
}

/* Without max_tokens, a chat request reserves a whole context unless a default is set. */
static void log_room(const struct kg_serve_opts *o)
{
    const struct kg_rollout_opts engine = kg_serve_engine_opts(o);
    int64_t whole = kg_rollout_kv_sequences(o->model, &engine);
    kg_log_info("the cache of %lld tokens holds %lld sequences of %d tokens; batch %d%s",
                (long long)o->kv_tokens, (long long)whole, o->max_len, o->max_batch,
                whole < o->max_batch && o->default_tokens == 0
                    ? ": chat requests without max_tokens wait for each other "
                      "(--default-max-tokens, --max-len, --kv-tokens)"
                    : "");
}

static kg_status open_engine(struct kg_serve *s, struct kg_err *err)
{
    const struct kg_rollout_opts opts = kg_serve_engine_opts(&s->opts);
    log_room(&s->opts);
    KG_TRY(kg_rollout_create(&s->engine, s->opts.model, s->opts.tok, &opts, err));
    return begin_engine(s, err);
}

static kg_status start_intake(struct kg_serve *s, struct kg_err *err)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&s->intake_thread, NULL, intake_main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    s->intake_runs = code == 0;
    return code == 0
               ? KG_OK
               : kg_fail(err, KG_EIO, "cannot start the thread that reads requests: %s",
                         strerror(code));
}

static kg_status open_http(struct kg_serve *s, struct kg_err *err)
{
    struct kg_http_server_opts opts = {.host = s->opts.host,
                                       .port = s->opts.port,
                                       .max_body_bytes = s->opts.max_body_bytes,
                                       .max_connections = s->opts.max_connections,
                                       .max_held_bytes = s->opts.max_held_bytes,
                                       .allow_hosts = s->opts.allow_hosts,
                                       .bearer_key = s->opts.bearer_key,
                                       .open_path = s->opts.policy ? NULL : "/health",
                                       .routes = s->opts.policy ? policy_routes : routes,
                                       .error_body = error_body,
                                       .user = s};
    return kg_http_server_start(&s->http, &opts, err);
}

/* Tries the template at start: it may fail or take too much memory. */
static kg_status try_template(const struct kg_chat_template *chat, struct kg_err *err)
{
    if (chat == NULL || kg_chat_template_try(chat, err) == KG_OK)
        return KG_OK;
    return kg_err_prefix(
        err, "--chat-template, tried on one short message (none: only completions)");
}

kg_status kg_serve_open(struct kg_serve **out, const struct kg_serve_opts *opts,
                        struct kg_err *err)
{
    kg_status status;
    assert((size_t)opts->model->n_others == opts->n_adapters);
    struct kg_serve *s = kg_mem_calloc(1, sizeof *s, "server", err);
    *out = NULL;
    if (s == NULL)
        return err->code;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->intake_due, NULL);
    kg_clock_cond(&s->ready_due);
    take_opts(s, opts);
    KG_TRY_GOTO(out, try_template(opts->chat, err));
    KG_TRY_GOTO(out, kg_sessions_create(&s->sessions, s->opts.max_session_bytes, err));
    KG_TRY_GOTO(out, list_models(s, err));
    if (!opts->policy)
        KG_TRY_GOTO(out, open_engine(s, err));
    KG_TRY_GOTO(out, start_intake(s, err));
    KG_TRY_GOTO(out, open_http(s, err));
    *out = s;
    s = NULL;
out:
    kg_serve_close(s);
    return status;
}

int kg_serve_port(const struct kg_serve *s) { return kg_http_server_port(s->http); }

/* Fails every job of a list. */
static void fail_list(struct kg_serve *s, struct kg_serve_job *job, kg_status code,
                      const char *why)
{
    struct kg_err failure;
    while (job) {
        struct kg_serve_job *next = job->next;
        if (s->engine)
            kg_rollout_cancel(s->engine, job->trajs, job->n_choices);
        kg_fail(&failure, code, "%s", why);
        kg_serve_job_fail(job, &failure);
        kg_status kept = kg_serve_job_finish(job, &failure);
        (void)kept; /* nothing of a failed job is kept */
        job = next;
    }
}

static const char closing[] = "the server is shutting down";

static void fail_queue(struct kg_serve *s, struct kg_serve_queue *q, const char *why)
{
    pthread_mutex_lock(&s->lock);
    struct kg_serve_job *list = q->first;
    *q = (struct kg_serve_queue){0};
    pthread_mutex_unlock(&s->lock);
    fail_list(s, list, KG_EINTERRUPTED, why);
}

static void fail_live(struct kg_serve *s, kg_status code, const char *why)
{
    struct kg_serve_job *live = s->live;
    s->live = NULL;
    fail_list(s, live, code, why);
}

static void end_intake(struct kg_serve *s)
{
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    s->quitting = true;
    pthread_cond_signal(&s->intake_due);
    pthread_mutex_unlock(&s->lock);
    if (s->intake_runs)
        pthread_join(s->intake_thread, NULL);
}

void kg_serve_close(struct kg_serve *s)
{
    if (s == NULL)
        return;
    end_intake(s);
    fail_queue(s, &s->intake, closing);
    fail_queue(s, &s->ready, closing);
    fail_live(s, KG_EINTERRUPTED, closing);
    kg_http_server_stop(s->http, CLOSE_MS);
    fail_queue(s, &s->intake, closing); /* jobs that a handler was still adding */
    if (!s->opts.policy)
        kg_rollout_free(s->engine);
    kg_str_release(&s->scratch);
    kg_sessions_free(s->sessions);
    kg_mem_free(s->models);
    pthread_cond_destroy(&s->intake_due);
    pthread_cond_destroy(&s->ready_due);
    pthread_mutex_destroy(&s->lock);
    kg_mem_free(s);
}

/* ---- the model thread ---- */

static void submit(struct kg_serve *s, struct kg_serve_job *job)
{
    struct kg_api_fault fault = {.status = 400};
    struct kg_err err;
    kg_status status = KG_OK;
    bool gone = kg_http_gone(job->x);
    if (gone)
        kg_serve_job_leave(job);
    if (!gone && s->opts.policy)
        status = kg_policy_admit(s->opts.policy, job, &fault, &err);
    if (!gone && status == KG_OK)
        status = kg_serve_job_submit(job, &err);
    if (status != KG_OK) {
        fault.status = status == KG_ENOMEM ? 503 : fault.status;
        kg_serve_job_refuse(job, &fault, err.message);
        return;
    }
    job->next = s->live;
    s->live = job;
}

static void submit_ready(struct kg_serve *s)
{
    for (;;) {
        pthread_mutex_lock(&s->lock);
        struct kg_serve_job *job = pop(&s->ready);
        pthread_mutex_unlock(&s->lock);
        if (job == NULL)
            return;
        submit(s, job);
    }
}

/* Finishes jobs that are complete, that failed, or whose client has left, and cancels
 * those of their sequences that still run. */
static kg_status sweep(struct kg_serve *s, struct kg_err *err)
{
    struct kg_serve_job **at = &s->live;
    while (*at) {
        struct kg_serve_job *job = *at;
        if (kg_http_gone(job->x))
            kg_serve_job_leave(job);
        if (job->left > 0 && job->end == KG_SERVE_WELL) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        if (job->left > 0)
            kg_rollout_cancel(s->engine, job->trajs, job->n_choices);
        KG_TRY(kg_serve_job_finish(job, err));
    }
    return KG_OK;
}

/* Called before completions are sent, so clients find their tokens in the metrics. */
static void count_tokens(struct kg_serve *s)
{
    pthread_mutex_lock(&s->lock);
    s->metrics.completion_tokens += s->fresh;
    pthread_mutex_unlock(&s->lock);
    s->fresh = 0;
}

static void count_load(struct kg_serve *s, const struct kg_rollout_load *load)
{
    pthread_mutex_lock(&s->lock);
    s->metrics.running = load->running;
    s->metrics.waiting = load->waiting;
    s->metrics.steps += load->running > 0;
    pthread_mutex_unlock(&s->lock);
    kg_phase_note(s->phase, "sequences that decode", load->running);
}

/* If the engine fails, all its requests fail. A server continues; training does not. */
static kg_status step(struct kg_serve *s, struct kg_err *err)
{
    struct kg_rollout_load load;
    kg_status status = kg_rollout_step(s->engine, &load, err);
    count_tokens(s);
    if (status != KG_OK && s->opts.policy)
        return status;
    if (status != KG_OK) {
        kg_log_warn("the engine failed, so all open requests fail: %s", err->message);
        KG_TRY(begin_engine(s, err));
        fail_live(s, status, "the engine failed");
        kg_rollout_get_load(&load, s->engine);
    }
    KG_TRY(sweep(s, err));
    kg_rollout_get_load(&load, s->engine);
    count_load(s, &load);
    return KG_OK;
}

void kg_serve_wait(struct kg_serve *s, int ms)
{
    const struct timespec until = kg_clock_deadline(ms);
    pthread_mutex_lock(&s->lock);
    if (s->ready.first == NULL)
        pthread_cond_timedwait(&s->ready_due, &s->lock, &until);
    pthread_mutex_unlock(&s->lock);
}

static bool has_open(struct kg_serve *s)
{
    pthread_mutex_lock(&s->lock);
    bool open = s->metrics.open > 0;
    pthread_mutex_unlock(&s->lock);
    return open;
}

static double begin_drain(struct kg_serve *s)
{
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    long long open = s->metrics.open;
    pthread_mutex_unlock(&s->lock);
    kg_log_info("stopping: %lld open requests may take %d s", open, s->opts.drain_s);
    return kg_clock_seconds() + s->opts.drain_s;
}

kg_status kg_serve_turn(struct kg_serve *s, bool *busy, struct kg_err *err)
{
    submit_ready(s);
    *busy = s->live != NULL;
    return *busy ? step(s, err) : KG_OK;
}

kg_status kg_serve_run(struct kg_serve *s, bool (*stop)(void *user), void *user,
                       struct kg_err *err)
{
    double until = 0; /* end of draining, clock seconds; 0: not draining */
    int idle = -1;    /* phase of waiting for requests; -1: none */
    s->phase = kg_phase_begin(0, NULL, "serving %s", s->opts.name);
    for (;;) {
        if (until == 0 && stop(user))
            until = begin_drain(s);
        if (until > 0 && (!has_open(s) || kg_clock_seconds() > until))
            break;
        bool busy = false;
        KG_TRY(kg_serve_turn(s, &busy, err));
        if (!busy) {
            idle = idle < 0 ? kg_phase_idle("waiting for requests") : idle;
            kg_serve_wait(s, IDLE_MS);
            continue;
        }
        kg_phase_end(idle);
        idle = -1;
    }
    kg_phase_end(s->phase);
    return KG_OK;
}

static void set_draining(struct kg_serve *s, bool draining)
{
    pthread_mutex_lock(&s->lock);
    s->draining = draining;
    pthread_mutex_unlock(&s->lock);
}

void kg_serve_attach(struct kg_serve *s, struct kg_rollout *engine)
{
    s->engine = engine;
    set_draining(s, false);
}

void kg_serve_detach(struct kg_serve *s)
{
    static const char why[] = "no episode is open: the policy is being trained";
    set_draining(s, true);
    fail_live(s, KG_EINTERRUPTED, why);
    fail_queue(s, &s->ready, why);
    s->engine = NULL;
}
