/* The paths of Tinker's API: requests with a response at once, requests that become jobs,
 * and the life of the server. Handlers run on the HTTP server's thread and must be short;
 * they read small files of DIR and no models. */
#include "tinker/tinker.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"

#include "data/jsonl.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_BODY = 64 << 20,
    DRAIN_MS = 3000,
    TICK_MS = 100,
    IDLE_S = 60,
    DEFAULT_REQUESTS = 2048,
    DEFAULT_HELD = 256 << 20,
    DEFAULT_MODELS = 4, /* per user, if there are several users */
    HANDLES = 1 << 16,
};

static size_t max_body(const struct kg_tinker *t)
{
    return t->opts.max_body_bytes ? t->opts.max_body_bytes : MAX_BODY;
}

/* Releases of the SDK that kedge was tested with. */
static const char *const tested[] = {"0.38.0"};

int kg_tinker_http_status(kg_status status)
{
    static const int known[] = {
        [KG_OK] = 200,           [KG_EFORMAT] = 422,   [KG_EINVAL] = 422,
        [KG_EUNSUPPORTED] = 422, [KG_ESHAPE] = 422,    [KG_ENONFINITE] = 422,
        [KG_ENOTFOUND] = 404,    [KG_ECONFLICT] = 409, [KG_EINTERRUPTED] = 503,
    };
    const size_t i = (size_t)status;
    return i < sizeof known / sizeof *known && known[i] ? known[i] : 500;
}

/* ENOSPACE can only mean a full queue (429): handlers write no files. */
static void reply(struct kg_http_exchange *x, kg_status status, struct kg_str *body,
                  const struct kg_err *err)
{
    if (status == KG_OK)
        kg_http_reply(x, 200, "application/json", kg_str_text(body), body->len);
    else
        kg_http_reply_error(
            x, status == KG_ENOSPACE ? 429 : kg_tinker_http_status(status), err->message);
}

/* ---- sessions ---- */

/* Drops the user's oldest handle of a kind. Call under the lock. */
static void drop_handle(struct kg_tinker_user *u, bool samples)
{
    struct kg_tinker_handle **oldest = NULL, *h;
    for (struct kg_tinker_handle **at = &u->t->handles; *at; at = &(*at)->next)
        if ((*at)->user == u && (*at)->samples == samples)
            oldest = at;
    if (!oldest)
        return;
    h = *oldest;
    *oldest = h->next;
    u->n_handles[samples]--;
    kg_mem_free(h);
}

kg_status kg_tinker_add_handle(struct kg_tinker_user *u, const char *id, const char *path,
                               struct kg_err *err)
{
    struct kg_tinker_handle *h = kg_mem_calloc(1, sizeof *h, "a session", err);
    if (!h)
        return err->code;
    snprintf(h->id, sizeof h->id, "%s", id);
    snprintf(h->path, sizeof h->path, "%s", path ? path : "");
    h->user = u;
    h->samples = path != NULL;
    pthread_mutex_lock(&u->t->lock);
    if (u->n_handles[h->samples] == HANDLES)
        drop_handle(u, h->samples);
    u->n_handles[h->samples]++;
    h->next = u->t->handles;
    u->t->handles = h;
    pthread_mutex_unlock(&u->t->lock);
    return KG_OK;
}

bool kg_tinker_find_handle(struct kg_tinker_handle *copy, const struct kg_tinker_user *u,
                           const char *id, bool samples)
{
    pthread_mutex_lock(&u->t->lock);
    const struct kg_tinker_handle *h = u->t->handles;
    while (h && (h->user != u || h->samples != samples || strcmp(h->id, id) != 0))
        h = h->next;
    if (h && copy)
        *copy = *h;
    pthread_mutex_unlock(&u->t->lock);
    return h != NULL;
}

static kg_status check_session(const struct kg_tinker_user *u, const char *id,
                               struct kg_err *err)
{
    if (kg_tinker_find_handle(NULL, u, id, false))
        return KG_OK;
    return kg_fail(err, KG_ENOTFOUND,
                   "session_id: no session %.60s: sessions end with their server", id);
}

/* ---- replies at once ---- */

struct request {
    const char *path;
    struct kg_json_doc doc; /* of a POST */
    struct kg_http_exchange *x;
    bool later; /* another function replies to x */
};
typedef kg_status now_fn(struct kg_str *out, struct kg_tinker_user *u, struct request *q,
                         struct kg_err *err);

static kg_status need_text(const char **text, const struct request *q, const char *key,
                           struct kg_err *err)
{
    return kg_json_need_text(text, &q->doc, q->doc.root, key, err);
}

static kg_status create_session(struct kg_str *out, struct kg_tinker_user *u,
                                struct request *q, struct kg_err *err)
{
    const char *version;
    uint64_t random;
    char id[17];
    size_t which;
    KG_TRY(need_text(&version, q, "sdk_version", err));
    KG_TRY(kg_str_pick(&which, KG_EUNSUPPORTED, "sdk_version (those tested)", version,
                       tested, sizeof tested / sizeof *tested, sizeof *tested, err));
    if (getentropy(&random, sizeof random) != 0)
        return kg_fail(err, KG_EIO, "cannot read random bytes");
    snprintf(id, sizeof id, "%016llx", (unsigned long long)random);
    KG_TRY(kg_tinker_add_handle(u, id, NULL, err));
    return kg_str_printf(out, err,
                         "{\"type\": \"create_session\", \"session_id\": \"%s\"}", id);
}

static kg_status heartbeat(struct kg_str *out, struct kg_tinker_user *u,
                           struct request *q, struct kg_err *err)
{
    const char *id;
    KG_TRY(need_text(&id, q, "session_id", err));
    KG_TRY(check_session(u, id, err));
    return kg_str_puts(out, "{\"type\": \"session_heartbeat\"}", err);
}

static kg_status get_info(struct kg_str *out, struct kg_tinker_user *u, struct request *q,
                          struct kg_err *err)
{
    const char *dir = u->t->opts.model->dir; /* clients may run in another folder */
    char whole[PATH_MAX];
    struct kg_tinker_facts f;
    const char *id;
    KG_TRY(need_text(&id, q, "model_id", err));
    KG_TRY(kg_tinker_facts_of(&f, u, id, err));
    KG_TRY(kg_str_printf(out, err,
                         "{\"type\": \"get_info\", \"model_id\": \"%s\", "
                         "\"model_name\": %s, \"model_data\": {\"arch\": "
                         "\"causal-lm\", \"model_name\": %s",
                         id, u->t->name, u->t->name));
    KG_TRY(kg_json_put_text(
        out, ", \"tokenizer_id\": ", realpath(dir, whole) ? whole : dir, err));
    return kg_str_printf(out, err,
                         "}, \"is_lora\": %s, \"lora_rank\": %d, \"optimizer_config\": "
                         "{\"type\": \"adamw\"}}",
                         f.lora ? "true" : "false", f.rank);
}

static kg_status weights_info(struct kg_str *out, struct kg_tinker_user *u,
                              struct request *q, struct kg_err *err)
{
    struct kg_tinker_facts f;
    struct kg_path dir;
    const char *path;
    KG_TRY(need_text(&path, q, "tinker_path", err));
    KG_TRY(kg_tinker_look(&dir, &f, u, path, err));
    KG_TRY(kg_json_put_text(out, "{\"base_model\": ", f.base, err));
    return kg_str_printf(out, err,
                         ", \"is_lora\": %s, \"lora_rank\": %d, \"train_unembed\": %s, "
                         "\"train_mlp\": %s, \"train_attn\": %s, \"optimizer_config\": "
                         "{\"type\": \"adamw\"}}",
                         f.lora ? "true" : "false", f.rank, f.lora ? "false" : "true",
                         f.mlp ? "true" : "false", f.attn ? "true" : "false");
}

/* A sampler of the base model, or of saved weights, which must exist. */
static kg_status create_sampler(struct kg_str *out, struct kg_tinker_user *u,
                                struct request *q, struct kg_err *err)
{
    const struct kg_json *r = q->doc.root;
    const char *path = kg_json_text(kg_json_get(r, "model_path"), NULL);
    const char *base = kg_json_text(kg_json_get(r, "base_model"), NULL);
    const char *session;
    struct kg_tinker_handle old;
    struct kg_tinker_facts f;
    struct kg_path dir;
    char id[KG_TINKER_ID];
    int64_t seq;
    KG_TRY(need_text(&session, q, "session_id", err));
    KG_TRY(
        kg_json_need_int(&seq, &q->doc, r, "sampling_session_seq_id", 0, INT32_MAX, err));
    KG_TRY(check_session(u, session, err));
    if (!path && (!base || strcmp(base, u->t->opts.name) != 0))
        return kg_fail(err, KG_ENOTFOUND,
                       "base_model: expected %s, or model_path, found %.200s",
                       u->t->opts.name, base ? base : "none");
    if (path)
        KG_TRY(kg_tinker_find_weights(&dir, &f, u, path, err));
    else
        path = "";
    if (strlen(path) >= sizeof old.path)
        return kg_fail(err, KG_EINVAL,
                       "model_path: expected a path of at most %zu bytes, found %zu",
                       sizeof old.path - 1, strlen(path));
    snprintf(id, sizeof id, "%.60s:sample:%lld", session, (long long)seq);
    if (!kg_tinker_find_handle(&old, u, id, true))
        KG_TRY(kg_tinker_add_handle(u, id, path, err));
    else if (strcmp(old.path, path) != 0)
        return kg_fail(err, KG_ECONFLICT, "%s: expected the weights it had before", id);
    return kg_str_printf(out, err,
                         "{\"type\": \"create_sampling_session\", "
                         "\"sampling_session_id\": \"%s\"}",
                         id);
}

static kg_status retrieve(struct kg_str *out, struct kg_tinker_user *u, struct request *q,
                          struct kg_err *err)
{
    const char *id;
    (void)out;
    KG_TRY(need_text(&id, q, "request_id", err));
    kg_tinker_retrieve(u, strtoll(id, NULL, 10), q->x);
    q->later = true;
    return KG_OK;
}

static kg_status put_capabilities(struct kg_str *out, struct kg_tinker_user *u,
                                  struct request *q, struct kg_err *err)
{
    (void)q;
    return kg_str_printf(out, err,
                         "{\"supported_models\": [{\"model_name\": %s, "
                         "\"max_context_length\": %d, \"trainable\": true, "
                         "\"sampleable\": true}]}",
                         u->t->name, u->t->opts.max_len);
}

static kg_status put_sampler(struct kg_str *out, struct kg_tinker_user *u,
                             struct request *q, struct kg_err *err)
{
    const char *id = strrchr(q->path, '/') + 1;
    struct kg_tinker_handle s;
    if (!kg_tinker_find_handle(&s, u, id, true))
        return kg_fail(err, KG_ENOTFOUND, "no sampling session %.90s", id);
    return kg_str_printf(out, err,
                         *s.path ? "{\"sampler_id\": \"%s\", \"base_model\": %s, "
                                   "\"model_path\": \"%s\"}"
                                 : "{\"sampler_id\": \"%s\", \"base_model\": %s%s}",
                         s.id, u->t->name, s.path);
}

static kg_status put_runs(struct kg_str *out, struct kg_tinker_user *u, struct request *q,
                          struct kg_err *err)
{
    (void)q;
    return kg_tinker_put_runs(out, u, err);
}

/* training_runs/ID and training_runs/ID/checkpoints */
static kg_status put_run(struct kg_str *out, struct kg_tinker_user *u, struct request *q,
                         struct kg_err *err)
{
    char id[KG_TINKER_ID], rest[16] = "";
    int end = 0;
    const int n = sscanf(q->path, "/api/v1/training_runs/%95[^/]%n/%15s", id, &end, rest);
    if (n == 1 && q->path[end] == '\0')
        return kg_tinker_put_run(out, u, id, err);
    if (n == 2 && strcmp(rest, "checkpoints") == 0)
        return kg_tinker_put_checkpoints(out, u, id, err);
    return kg_fail(err, KG_ENOTFOUND, "no such path: %.200s", q->path);
}

/* ---- the table ---- */

/* A request gets a constant reply, or a reply at once (now), or becomes a job, whose
 * scope is the value of key `scope`. */
static const struct row {
    const char *method, *path, *help, *constant;
    now_fn *now;
    kg_tinker_run_fn *run; /* NULL: the job samples */
    const char *scope;     /* NULL: SESSION:train:SEQ, the model that the job creates */
    bool proto;
} rows[] = {
    {"GET", "/api/v1/healthz", "whether it serves", "{\"status\": \"ok\"}"},
    {"GET", "/api/v1/get_server_capabilities", "its models", .now = put_capabilities},
    {"GET", "/api/v1/samplers/", "a sampling session", .now = put_sampler},
    {"GET", "/api/v1/training_runs", "all training runs", .now = put_runs},
    {"GET", "/api/v1/training_runs/", "a training run, or its checkpoints",
     .now = put_run},
    {"POST", "/api/v1/client/config", "settings of the SDK",
     "{\"use_pyqwest_transport\": false}"},
    {"POST", "/api/v1/telemetry", "dropped", "{\"status\": \"accepted\"}"},
    {"POST", "/api/v1/create_session", "a session", .now = create_session},
    {"POST", "/api/v1/session_heartbeat", "a sign of life", .now = heartbeat},
    {"POST", "/api/v1/retrieve_future", "a result", .now = retrieve},
    {"POST", "/api/v1/get_info", "a model in training", .now = get_info},
    {"POST", "/api/v1/weights_info", "a checkpoint", .now = weights_info},
    {"POST", "/api/v1/create_sampling_session", "weights to sample from",
     .now = create_sampler},
    {"POST", "/api/v1/create_model", "a model in training",
     .run = kg_tinker_create_model},
    {"POST", "/api/v1/load_weights", "a model in training, from a checkpoint",
     .run = kg_tinker_load_weights, .scope = "model_id"},
    {"POST", "/api/v1/save_weights", "a checkpoint", .run = kg_tinker_save_weights,
     .scope = "model_id"},
    {"POST", "/api/v1/save_weights_for_sampler", "weights to sample from",
     .run = kg_tinker_save_sampler, .scope = "model_id"},
    {"POST", "/api/v1/unload_model", "frees a model", .run = kg_tinker_unload,
     .scope = "model_id"},
    {"POST", "/api/v1/optim_step", "an update", .run = kg_tinker_optim_step,
     .scope = "model_id"},
    {"POST", "/api/v1/forward_backward", "a loss and its gradient",
     .run = kg_tinker_learn, .scope = "model_id", .proto = true},
    {"POST", "/api/v1/asample", "samples", .scope = "sampling_session_id", .proto = true},
};
enum { ROWS = sizeof rows / sizeof *rows, PREFIX = sizeof "/api/v1/" - 1 };
/* ---- jobs ---- */

static kg_status take_text(char to[KG_TINKER_ID], const struct kg_json_doc *doc,
                           const char *key, struct kg_err *err)
{
    const char *text;
    KG_TRY(kg_json_need_text(&text, doc, doc->root, key, err));
    if (!kg_tinker_is_name(text))
        return kg_fail(err, KG_ENOTFOUND, "%s: no such id: %.90s", key, text);
    snprintf(to, KG_TINKER_ID, "%s", text);
    return KG_OK;
}

static kg_status scope_of(struct kg_tinker_job *job, const struct row *row,
                          struct kg_err *err)
{
    const struct kg_json_doc *doc = &job->doc;
    const bool creates = !row->scope || (row->run == kg_tinker_load_weights &&
                                         !kg_json_get(doc->root, "model_id"));
    char session[KG_TINKER_ID];
    int64_t seq;
    if (!creates) {
        KG_TRY(take_text(job->scope, doc, row->scope, err));
        if (row->run == kg_tinker_unload) {
            job->seq = -1;
            return KG_OK;
        }
        return kg_json_need_int(&job->seq, doc, doc->root, "seq_id", row->run ? 1 : 0,
                                INT32_MAX, err);
    }
    KG_TRY(take_text(session, doc, "session_id", err));
    KG_TRY(check_session(job->user, session, err));
    KG_TRY(kg_json_need_int(&seq, doc, doc->root, "model_seq_id", 0, INT32_MAX, err));
    snprintf(job->scope, sizeof job->scope, "%.60s:train:%lld", session, (long long)seq);
    job->seq = 0;
    return KG_OK;
}

/* The body as text; in `own` if it was compressed. */
static kg_status take_body(const char **body, size_t *n, struct kg_str *own,
                           const struct kg_http_exchange *x, const struct kg_tinker *t,
                           struct kg_err *err)
{
    const char *coded = kg_http_header(x, "content-encoding");
    *body = kg_http_body(x, n);
    if (!coded || strcmp(coded, "identity") == 0)
        return KG_OK;
    if (strcmp(coded, "zstd") != 0)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "Content-Encoding: expected zstd or none, found %.60s", coded);
    own->max = max_body(t) + 1;
    KG_TRY(kg_zst_unpack(own, *body, *n, max_body(t), "the body", err));
    *body = kg_str_text(own);
    *n = own->len;
    return KG_OK;
}

static kg_status read_proto(struct kg_tinker_job *job, const char *body, size_t n,
                            struct kg_err *err)
{
    struct kg_tinker_batch head;
    KG_TRY(kg_tinker_read_head(&head, body, n, err));
    if (!kg_tinker_is_name(head.model_id) || head.seq < 1 || head.seq > INT32_MAX)
        return kg_fail(err, KG_EFORMAT,
                       "expected a ForwardBackwardRequest with model_id and seq_id");
    snprintf(job->scope, sizeof job->scope, "%.95s", head.model_id);
    job->seq = head.seq;
    return kg_str_append(&job->body, body, n, err);
}

static kg_status read_json(struct kg_tinker_job *job, const struct row *row,
                           const char *body, size_t n, struct kg_err *err)
{
    KG_TRY(kg_json_parse(&job->doc, body, n, row->path + PREFIX, err));
    KG_TRY(scope_of(job, row, err));
    return kg_tinker_read_args(job, err);
}

/* job: a copy from before it was queued, because the worker may have freed the job */
static kg_status put_future(struct kg_str *out, int64_t id,
                            const struct kg_tinker_job *job, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "{\"request_id\": \"%lld\"", (long long)id));
    if (job->run)
        return kg_str_printf(out, err, ", \"model_id\": \"%s\"}", job->scope);
    KG_TRY(kg_str_puts(out, ", \"sample_sequence_ids\": [", err));
    for (int64_t i = 0; i < job->args.samples && i < 1024; i++)
        KG_TRY(kg_str_printf(out, err, "%s\"%s:%lld:%lld\"", i > 0 ? ", " : "",
                             job->scope, (long long)job->seq, (long long)i));
    return kg_str_puts(out, "]}", err);
}

static kg_status submit(struct kg_str *out, struct kg_tinker_user *u,
                        const struct row *row, const char *body, size_t n,
                        struct kg_err *err)
{
    struct kg_tinker_job *job = kg_mem_calloc(1, sizeof *job, "a request", err);
    int64_t id;
    if (!job)
        return err->code;
    job->user = u;
    job->bytes = n;
    job->run = row->run;
    job->proto = row->proto;
    job->hash = kg_hash_bytes(body, n) ^ kg_hash_bytes(row->path, strlen(row->path));
    kg_status status = row->run == kg_tinker_learn ? read_proto(job, body, n, err)
                                                   : read_json(job, row, body, n, err);
    const struct kg_tinker_job was = *job;
    if (status == KG_OK)
        status = kg_tinker_queue(&id, job, err);
    if (status == KG_OK)
        return put_future(out, id, &was, err);
    kg_tinker_job_free(job);
    return status;
}

static kg_status answer_now(struct kg_str *out, struct kg_tinker_user *u,
                            const struct row *row, struct request *q, const char *body,
                            size_t n, struct kg_err *err)
{
    if (strcmp(row->method, "POST") == 0)
        KG_TRY(kg_json_parse(&q->doc, body, n, row->path + PREFIX, err));
    const kg_status status = row->now(out, u, q, err);
    kg_json_release(&q->doc);
    return status;
}

static void handle(void *user, struct kg_http_exchange *x)
{
    struct kg_tinker *t = user;
    const int whose = kg_http_user(x); /* -1: no key is needed */
    struct kg_tinker_user *u = &t->users[whose > 0 ? whose : 0];
    const struct row *row = &rows[kg_http_route_of(x) - t->routes];
    struct request q = {.path = kg_http_path(x), .x = x};
    struct kg_str out = {0}, own = {0};
    struct kg_err err;
    const char *body;
    size_t n;
    kg_status status = take_body(&body, &n, &own, x, t, &err);
    if (status == KG_OK)
        status = row->constant ? kg_str_puts(&out, row->constant, &err)
                 : row->now    ? answer_now(&out, u, row, &q, body, n, &err)
                               : submit(&out, u, row, body, n, &err);
    if (!q.later)
        reply(x, status, &out, &err);
    kg_str_release(&out);
    kg_str_release(&own);
}

/* ---- life ---- */

static kg_status check_opts(struct kg_tinker *t, struct kg_err *err)
{
    if (t->opts.n_adapters > 0 || t->opts.model->lora)
        return kg_fail(err, KG_EINVAL, "--train: expected no --adapter, found one");
    if (t->opts.max_len == 0)
        t->opts.max_len = t->opts.model->config.max_positions;
    if (t->opts.max_requests == 0)
        t->opts.max_requests = DEFAULT_REQUESTS;
    if (t->opts.max_held_bytes == 0)
        t->opts.max_held_bytes = DEFAULT_HELD;
    KG_TRY(kg_file_make_dirs(t->dir, err));
    if (kg_file_lock_take(&t->lock_of_dir, kg_path_in(t->dir, "lock").text, err) != KG_OK)
        return kg_err_prefix(err, "--train: each server needs a folder of its own");
    return KG_OK;
}

static kg_status make_users(struct kg_tinker *t, struct kg_err *err)
{
    const struct kg_http_keys *keys = t->opts.keys;
    const struct kg_path all = kg_path_in(t->dir, "users");
    t->n_users = keys ? keys->n : 1;
    t->users = kg_mem_calloc(t->n_users, sizeof *t->users, "users", err);
    if (!t->users)
        return err->code;
    for (size_t i = 0; i < t->n_users; i++) {
        struct kg_tinker_user *u = &t->users[i];
        u->t = t;
        u->name = keys ? keys->list[i].name : "local";
        snprintf(u->dir.text, sizeof u->dir.text, "%s", t->dir);
        if (keys)
            u->dir = kg_path_in(all.text, u->name);
        KG_TRY(kg_file_make_dirs(u->dir.text, err));
    }
    if (t->n_users > 1 && t->opts.max_models == 0)
        t->opts.max_models = DEFAULT_MODELS;
    return KG_OK;
}

static kg_status start(struct kg_tinker *t, struct kg_err *err)
{
    struct kg_str name = {0};
    KG_TRY(check_opts(t, err));
    KG_TRY(make_users(t, err));
    const kg_status status = kg_json_put_text(&name, "", t->opts.name, err);
    t->name = status == KG_OK ? kg_str_take(&name, err) : NULL;
    kg_str_release(&name);
    t->routes = kg_mem_calloc(ROWS + 1, sizeof *t->routes, "routes", err);
    if (!t->routes || !t->name)
        return err->code;
    for (int i = 0; i < ROWS; i++)
        t->routes[i] = (struct kg_http_route){rows[i].method, rows[i].path, handle,
                                              rows[i].help};
    const struct kg_http_server_opts opts = {
        .host = t->opts.host,
        .port = t->opts.port,
        .max_body_bytes = max_body(t),
        .max_connections = t->opts.max_connections,
        .max_held_bytes = t->opts.max_held_bytes,
        .idle_timeout_s = IDLE_S,
        .bearer_key = t->opts.bearer_key,
        .keys = t->opts.keys ? t->opts.keys->list : NULL,
        .n_keys = t->opts.keys ? t->opts.keys->n : 0,
        .api_key_header = true,
        .open_path = "/api/v1/healthz",
        .allow_hosts = t->opts.allow_hosts,
        .routes = t->routes,
        .user = t,
    };
    KG_TRY(kg_http_server_start(&t->http, &opts, err));
    t->works = pthread_create(&t->worker, NULL, kg_tinker_work, t) == 0;
    return t->works ? KG_OK : kg_fail(err, KG_ENOMEM, "--train: cannot start a thread");
}

kg_status kg_tinker_open(struct kg_tinker **out, const struct kg_serve_opts *opts,
                         const char *dir, struct kg_err *err)
{
    struct kg_tinker *t = kg_mem_calloc(1, sizeof *t, "a server", err);
    *out = NULL;
    if (!t)
        return err->code;
    t->opts = *opts;
    t->dir = dir;
    t->threads = kg_threads_get();
    pthread_mutex_init(&t->lock, NULL);
    kg_clock_cond(&t->due);
    const kg_status status = start(t, err);
    if (status == KG_OK)
        *out = t;
    else
        kg_tinker_close(t);
    return status;
}

/* Waits for the running job; drops the others and replies 503 to their clients. */
void kg_tinker_close(struct kg_tinker *t)
{
    pthread_mutex_lock(&t->lock);
    t->quitting = true;
    pthread_cond_signal(&t->due);
    pthread_mutex_unlock(&t->lock);
    if (t->works)
        pthread_join(t->worker, NULL);
    kg_tinker_forget(t);
    if (t->http)
        kg_http_server_stop(t->http, DRAIN_MS);
    kg_tinker_close_engine(t);
    kg_tinker_free_models(t);
    for (struct kg_tinker_handle *h; (h = t->handles);) {
        t->handles = h->next;
        kg_mem_free(h);
    }
    kg_file_lock_release(&t->lock_of_dir);
    pthread_cond_destroy(&t->due);
    pthread_mutex_destroy(&t->lock);
    kg_mem_free(t->routes);
    kg_mem_free(t->name);
    kg_mem_free(t->users);
    kg_mem_free(t);
}

int kg_tinker_port(const struct kg_tinker *t) { return kg_http_server_port(t->http); }

kg_status kg_serve_train(const struct kg_serve_opts *opts, const char *dir,
                         bool (*stop)(void *user), void *user, struct kg_err *err)
{
    struct kg_tinker *t;
    KG_TRY(kg_tinker_open(&t, opts, dir, err));
    kg_log_info("serving Tinker's API for %s at http://%s:%d (%zu user%s, %s key); "
                "checkpoints below %s",
                t->opts.name, opts->host ? opts->host : "127.0.0.1", kg_tinker_port(t),
                t->n_users, t->n_users > 1 ? "s" : "",
                opts->keys         ? "each with a"
                : opts->bearer_key ? "with a"
                                   : "no",
                dir);
    while (!stop(user)) {
        nanosleep(&(struct timespec){.tv_nsec = TICK_MS * 1000000L}, NULL);
        kg_tinker_expire(t, kg_clock_seconds());
    }
    kg_tinker_close(t);
    return KG_OK;
}
