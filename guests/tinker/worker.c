/* The worker: models in training, and the order of their jobs.
 *
 * Chunks of one forward_backward arrive in any order, so a job of a model runs when its
 * seq_id is the next. Jobs that create a model have seq 0; jobs that sample have no
 * order. The list of jobs is in order of arrival, and the first job that may run is run.
 *
 * Among several users, the next is the one whose jobs have used the fewest seconds. A
 * user who returns after a while begins with the seconds of the user who computed last,
 * so no user saves up time. Many jobs of one user delay only that user's jobs. */
#include "tinker/tinker.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/manifest.h"
#include "train/keep/checkpoint.h"
#include "train/step/anchor.h"

#include <math.h>
#include <time.h>

enum { MAX_RANK = 1024, SNAPSHOTS = 8, IDLE_MS = 200 };
static const double LEAST_S = 1e-4;
static const double lora_alpha = 32; /* for every rank, as in Tinker */

/* ---- models ---- */

/* The model of a job, or NULL. */
static struct kg_tinker_model *find_model(const struct kg_tinker_job *job)
{
    struct kg_tinker_model *m = job->user->t->models;
    while (m && (m->user != job->user || strcmp(m->id, job->scope) != 0))
        m = m->next;
    return m;
}

kg_status kg_tinker_model_of(struct kg_tinker_model **m, const struct kg_tinker_job *job,
                             struct kg_err *err)
{
    *m = find_model(job);
    if (*m)
        return KG_OK;
    return kg_fail(err, KG_ENOTFOUND,
                   "model_id: no model %s in training: it was unloaded, or the server "
                   "was restarted; load_weights makes a model from a checkpoint",
                   job->scope);
}

/* An anchor shares the model's frozen weights, so it is freed first. */
static void free_model(struct kg_tinker_model *m)
{
    struct kg_tinker *t = m->user->t;

    if (t->rows_model == m->state.model) {
        kg_rows_free(t->rows);
        t->rows = NULL;
        t->rows_model = NULL;
    }
    kg_optim_free(m->state.optim);
    kg_model_free(m->state.anchor);
    kg_model_free(m->state.model);
    kg_mem_free(m);
}

void kg_tinker_free_models(struct kg_tinker *t)
{
    for (struct kg_tinker_model *m = t->models, *next; m; m = next) {
        next = m->next;
        free_model(m);
    }
    t->models = NULL;
}

static kg_status lora_of(struct kg_lora *l, const struct kg_tinker_facts *f,
                         struct kg_err *err)
{
    static const char *const attn[] = {"q_proj", "k_proj", "v_proj", "o_proj"};
    static const char *const mlp[] = {"gate_proj", "up_proj", "down_proj"};
    l->rank = f->rank;
    l->alpha = lora_alpha;
    if (f->attn && f->mlp) /* every linear layer */
        return KG_OK;
    for (size_t i = 0; i < 4 && f->attn; i++)
        KG_TRY(kg_lora_add_target(l, attn[i], "lora_config.train_attn", err));
    for (size_t i = 0; i < 3 && f->mlp; i++)
        KG_TRY(kg_lora_add_target(l, mlp[i], "lora_config.train_mlp", err));
    if (l->n_targets == 0)
        return kg_fail(err, KG_EINVAL,
                       "lora_config: expected train_attn or train_mlp, found neither");
    return KG_OK;
}

static kg_status open_weights(struct kg_tinker_model *m, const struct kg_tinker *t,
                              const struct kg_tinker_facts *f, struct kg_err *err)
{
    const struct kg_model *base = t->opts.model;
    struct kg_model_opts opts = {
        .backend = base->backend, .ct = base->ct, .seed = f->seed};
    if (!f->lora) {
        opts.trainable = true;
        return kg_model_open(&m->state.model, base->dir, &opts, err);
    }
    struct kg_lora *lora = kg_mem_calloc(1, sizeof *lora, "adapters", err);
    if (!lora)
        return err->code;
    opts.lora = lora;
    kg_status status = lora_of(lora, f, err);
    if (status == KG_OK)
        status = kg_model_share(&m->state.model, base, &opts, err);
    kg_mem_free(lora);
    return status;
}

static kg_status check_room(const struct kg_tinker_user *u, struct kg_err *err)
{
    const int most = u->t->opts.max_models;
    int n = 0;
    for (const struct kg_tinker_model *m = u->t->models; m; m = m->next)
        n += m->user == u;
    if (most == 0 || n < most)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "expected at most %d models of a user in training at once "
                   "(--max-models): unload one first",
                   most);
}

static kg_status open_model(struct kg_tinker_model **out, const struct kg_tinker_job *job,
                            const struct kg_tinker_facts *f, struct kg_err *err)
{
    const struct kg_optim_opts optim = {.decay_all = true};
    KG_TRY(check_room(job->user, err));
    struct kg_tinker_model *m = kg_mem_calloc(1, sizeof *m, "a model", err);
    if (!m)
        return err->code;
    snprintf(m->id, sizeof m->id, "%s", job->scope);
    m->user = job->user;
    m->next_seq = 1;
    *out = m;
    KG_TRY(open_weights(m, job->user->t, f, err));
    return kg_optim_create(&m->state.optim, m->state.model, &optim, err);
}

/* Writes run.json and adds the model to the list. On an error, frees the model. */
static kg_status admit(struct kg_tinker_model *m, const struct kg_tinker_facts *f,
                       const struct kg_tinker_job *job, kg_status status,
                       struct kg_err *err)
{
    if (!m)
        return status;
    struct kg_tinker *t = m->user->t;
    const struct kg_path dir = kg_path_in(m->user->dir.text, m->id);
    if (status == KG_OK)
        status = kg_file_make_dirs(dir.text, err);
    if (status == KG_OK)
        status = kg_tinker_facts_write(m->user, f, job->args.meta,
                                       kg_path_in(dir.text, "run.json").text, err);
    if (status != KG_OK) {
        free_model(m);
        return status;
    }
    kg_tinker_retire(m);
    m->next = t->models;
    t->models = m;
    kg_log_info("training %s: %s, %lld parameters", m->id,
                f->lora ? "adapters" : "all weights",
                (long long)(f->lora ? m->state.model->n_elements
                                    : kg_model_parameters(m->state.model)));
    return KG_OK;
}

static kg_status check_new(const struct kg_tinker_job *job, struct kg_err *err)
{
    const struct kg_tinker *t = job->user->t;
    const struct kg_tinker_args *a = &job->args;
    const char *kind = kg_json_text(kg_json_get(a->optim_config, "type"), NULL);
    if (kind && strcmp(kind, "adamw") != 0)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "optimizer_config: expected adamw, found %.60s", kind);
    if (!a->base_model || strcmp(a->base_model, t->opts.name) == 0)
        return KG_OK;
    return kg_fail(err, KG_ENOTFOUND, "base_model: expected %s, found %.200s",
                   t->opts.name, a->base_model);
}

static kg_status read_lora(struct kg_tinker_facts *f, const struct kg_tinker_args *a,
                           struct kg_err *err)
{
    const int64_t rank = a->lora ? a->rank : 0;
    char found[32] = "none";
    if (rank != KG_TINKER_NONE)
        snprintf(found, sizeof found, "%lld", (long long)rank);
    if (rank < 0 || rank > MAX_RANK)
        return kg_fail(err, KG_EINVAL,
                       "lora_config.rank: expected 0 (all weights) to %d, found %s",
                       MAX_RANK, found);
    *f = (struct kg_tinker_facts){
        .lora = rank > 0,
        .rank = (int)rank,
        .attn = a->attn,
        .mlp = a->mlp,
        .seed = a->seed == KG_TINKER_NONE ? 0 : (uint64_t)a->seed & INT64_MAX,
    };
    return KG_OK;
}

kg_status kg_tinker_create_model(struct kg_tinker_job *job, struct kg_err *err)
{
    struct kg_tinker_model *m = NULL;
    struct kg_tinker_facts f;
    KG_TRY(check_new(job, err));
    KG_TRY(read_lora(&f, &job->args, err));
    const kg_status status = open_model(&m, job, &f, err);
    KG_TRY(admit(m, &f, job, status, err));
    return kg_str_printf(&job->result, err,
                         "{\"type\": \"create_model\", \"model_id\": \"%s\"}",
                         job->scope);
}

/* ---- loading ---- */

/* Restores the rule by which the anchor moves, until the next loss replaces it. */
static kg_status take_rule(struct kg_algo *a, const struct kg_tinker_facts *f,
                           struct kg_err *err)
{
    kg_algo_init(a);
    KG_TRY(kg_algo_set(a, "anchor.kind", f->anchor.kind, err));
    KG_TRY(kg_algo_choose(a, err));
    a->anchor_eta = f->anchor.eta;
    a->anchor_period = f->anchor.period;
    return KG_OK;
}

/* Loads the whole state, or only the weights. */
static kg_status take_state(struct kg_tinker_model *m, const char *dir, bool whole,
                            const struct kg_tinker_facts *f, struct kg_err *err)
{
    const struct kg_path file = kg_path_in(dir, "state.safetensors");
    struct kg_run_state *state = &m->state;
    const struct kg_model_opts opts = {.ct = state->model->ct, .whose = "anchor's "};
    const bool anchor = *f->anchor.kind != '\0';
    struct kg_st_set *set;
    if (whole) {
        if (anchor) {
            KG_TRY(kg_model_clone(&state->anchor, state->model, &opts, err));
            KG_TRY(take_rule(&m->algo, f, err));
        }
        KG_TRY(kg_checkpoint_counters(&state->count, kg_path_in(dir, "state.json").text,
                                      err));
        KG_TRY(kg_checkpoint_take_state(state, file.text, err));
        kg_optim_resume(state->optim, state->count.optim_step);
        KG_TRY(anchor ? kg_model_refresh(state->anchor, err) : KG_OK);
        return kg_model_refresh(state->model, err);
    }
    KG_TRY(kg_st_open_file(&set, file.text, err));
    kg_status status = kg_checkpoint_take(&state->model->master, state->model, set,
                                          "master", file.text, err);
    kg_st_close(set);
    return status == KG_OK ? kg_model_refresh(state->model, err) : status;
}

static kg_status open_checkpoint(struct kg_tinker_model **m, struct kg_tinker_facts *f,
                                 struct kg_tinker_job *job, struct kg_err *err)
{
    const char *path = job->args.path;
    struct kg_path dir;
    if (job->seq > 0)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "load_weights: expected session_id and model_seq_id, which make a "
                       "new model, found model_id");
    KG_TRY(check_new(job, err));
    KG_TRY(kg_json_need_text(&path, &job->doc, job->doc.root, "path", err));
    KG_TRY(kg_tinker_find_weights(&dir, f, job->user, path, err));
    if (!kg_file_exists(kg_path_in(dir.text, "state.json").text))
        return kg_fail(err, KG_EINVAL,
                       "path: expected a checkpoint of save_weights, found weights to "
                       "sample from: %s",
                       path);
    KG_TRY(kg_manifest_check(NULL, dir.text, err));
    KG_TRY(open_model(m, job, f, err));
    return take_state(*m, dir.text, job->args.with_optim, f, err);
}

kg_status kg_tinker_load_weights(struct kg_tinker_job *job, struct kg_err *err)
{
    struct kg_tinker_model *m = NULL;
    struct kg_tinker_facts f;
    const kg_status status = open_checkpoint(&m, &f, job, err);
    KG_TRY(admit(m, &f, job, status, err));
    return kg_str_printf(&job->result, err,
                         "{\"type\": \"load_weights\", \"path\": \"%s\", "
                         "\"model_id\": \"%s\"}",
                         job->args.path, job->scope);
}

/* ---- a step ---- */

static kg_status read_optim(struct kg_optim_opts *o, const struct kg_tinker_args *a,
                            struct kg_err *err)
{
    const double least = fmin(fmin(a->lr, a->decay),
                              fmin(a->clip, fmin(a->beta1, a->beta2)));
    const bool finite = isfinite(a->lr + a->eps + a->decay + a->clip);
    if (a->optim && strcmp(a->optim, "adamw") != 0)
        return kg_fail(err, KG_EUNSUPPORTED, "optim_params: expected adamw, found %.60s",
                       a->optim);
    if (!finite || least < 0 || !(a->beta1 < 1) || !(a->beta2 < 1) || !(a->eps > 0))
        return kg_fail(err, KG_EINVAL,
                       "optim_params: expected betas in [0, 1), eps above 0 and the "
                       "others 0 or more, found learning_rate %g, beta1 %g, beta2 %g, "
                       "eps %g, weight_decay %g, grad_clip_norm %g",
                       a->lr, a->beta1, a->beta2, a->eps, a->decay, a->clip);
    o->lr = a->lr;
    o->beta1 = a->beta1;
    o->beta2 = a->beta2;
    o->eps = a->eps;
    o->weight_decay = a->decay;
    o->clip_norm = a->clip;
    return KG_OK;
}

kg_status kg_tinker_optim_step(struct kg_tinker_job *job, struct kg_err *err)
{
    struct kg_tinker_model *m;
    double norm, lr;
    KG_TRY(kg_tinker_model_of(&m, job, err));
    struct kg_run_state *state = &m->state;
    KG_TRY(read_optim(&state->optim->opts, &job->args, err));
    kg_status status = kg_optim_update(state->optim, state->model, &norm, &lr, err);
    if (status == KG_OK || status == KG_ENONFINITE) {
        struct kg_err failure;
        const kg_status cleared = kg_slab_zero(&state->optim->grads, &failure);
        if (cleared != KG_OK)
            *err = failure;
        status = cleared != KG_OK ? cleared : status;
    }
    KG_TRY(status);
    state->count.step++;
    if (state->anchor && m->algo.anchor)
        KG_TRY(kg_run_anchor_after_step(&m->algo, state, err));
    return kg_str_printf(&job->result, err,
                         "{\"type\": \"optim_step\", \"metrics\": {\"grad_norm:mean\": "
                         "%.9g}}",
                         norm);
}

/* ---- saving ---- */

/* A path with the name that the client gave, or without one with the name OWN-NUMBER. */
static kg_status path_of(char path[256], const struct kg_tinker_job *job,
                         const char *kind, const char *own, int64_t number,
                         struct kg_err *err)
{
    const char *name = job->args.path;
    char text[32];
    snprintf(text, sizeof text, "%s-%06lld", own, (long long)number);
    if (name && (strncmp(name, "snapshot-", 9) == 0 || strncmp(name, "seq-", 4) == 0))
        return kg_fail(err, KG_EINVAL,
                       "path: expected a name that does not begin with snapshot- or "
                       "seq-, which the server uses itself, found '%.90s'",
                       name);
    if (name && !kg_tinker_is_name(name))
        return kg_fail(err, KG_EINVAL,
                       "path: expected a name of letters, digits and -_.:, found '%.90s'",
                       name);
    snprintf(path, 256, "tinker://%s/%s/%s", job->scope, kind, name ? name : text);
    return KG_OK;
}

/* An open engine is found by its path; this one has the weights from before the save. */
static kg_status save(const struct kg_tinker_model *m, const struct kg_tinker_job *job,
                      const char *path, bool state, struct kg_err *err)
{
    struct kg_tinker *t = m->user->t;
    KG_TRY(kg_tinker_save(m, &job->args, path, state, err));
    if (t->engine.user == m->user && strcmp(t->engine.path, path) == 0)
        kg_tinker_close_engine(t);
    return KG_OK;
}

kg_status kg_tinker_save_weights(struct kg_tinker_job *job, struct kg_err *err)
{
    struct kg_tinker_model *m;
    char path[256];
    KG_TRY(kg_tinker_model_of(&m, job, err));
    KG_TRY(path_of(path, job, "weights", "seq", job->seq, err));
    KG_TRY(save(m, job, path, true, err));
    return kg_str_printf(&job->result, err,
                         "{\"type\": \"save_weights\", \"path\": \"%s\"}", path);
}

/* Of saves without a name, only the newest SNAPSHOTS are kept. */
static void drop_snapshot(const struct kg_tinker_job *job, int64_t number)
{
    char path[256];
    struct kg_path dir;
    struct kg_err err;
    if (number < 0)
        return;
    kg_status status = path_of(path, job, "sampler_weights", "snapshot", number, &err);
    if (status == KG_OK)
        status = kg_tinker_folder(&dir, job->user, path, &err);
    if (status == KG_OK)
        status = kg_file_remove_tree(dir.text, &err);
    if (status != KG_OK)
        kg_log_warn("cannot remove an old snapshot: %s", err.message);
}

kg_status kg_tinker_save_sampler(struct kg_tinker_job *job, struct kg_err *err)
{
    const struct kg_tinker_args *a = &job->args;
    const int64_t number = a->sampler_seq == KG_TINKER_NONE ? job->seq : a->sampler_seq;
    struct kg_tinker_model *m;
    char path[256], id[KG_TINKER_ID];
    KG_TRY(kg_tinker_model_of(&m, job, err));
    if (a->kind && strcmp(a->kind, "snapshot") != 0)
        return kg_fail(err, KG_EUNSUPPORTED, "kind: expected snapshot, found %.60s",
                       a->kind);
    KG_TRY(path_of(path, job, "sampler_weights", "snapshot", m->snapshots, err));
    KG_TRY(save(m, job, path, false, err));
    if (a->path)
        return kg_str_printf(&job->result, err,
                             "{\"type\": \"save_weights_for_sampler\", \"path\": \"%s\"}",
                             path);
    snprintf(id, sizeof id, "%.*s:sample:%lld",
             (int)(strchr(job->scope, ':') - job->scope), job->scope, (long long)number);
    KG_TRY(kg_tinker_add_handle(job->user, id, path, err));
    drop_snapshot(job, m->snapshots++ - SNAPSHOTS);
    return kg_str_printf(&job->result, err,
                         "{\"type\": \"save_weights_for_sampler\", "
                         "\"sampling_session_id\": \"%s\"}",
                         id);
}

kg_status kg_tinker_unload(struct kg_tinker_job *job, struct kg_err *err)
{
    struct kg_tinker_model **at = &job->user->t->models, *m;
    KG_TRY(kg_tinker_model_of(&m, job, err));
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    kg_tinker_retire(m);
    free_model(m);
    return kg_str_printf(&job->result, err,
                         "{\"type\": \"unload_model\", \"model_id\": \"%s\"}",
                         job->scope);
}

/* ---- the order of jobs ---- */

/* The first open job of a model whose sequence number is in [from, to].   NULL: none */
static struct kg_tinker_job *open_job(const struct kg_tinker_model *m, int64_t from,
                                      int64_t to)
{
    struct kg_tinker_job *job = m->user->t->jobs;
    while (job && (job->done || job->seq < from || job->seq > to ||
                   job->user != m->user || strcmp(job->scope, m->id) != 0))
        job = job->next;
    return job;
}

/* Jobs that will fail run at once, too: those of unknown models, those that have already
 * run, and late ones whose predecessor never arrived. */
static bool may_run(const struct kg_tinker_job *job)
{
    const struct kg_tinker_model *m = find_model(job);
    return !job->run || job->seq <= 0 || !m || job->seq <= m->next_seq ||
           (job->late && !open_job(m, m->next_seq, m->next_seq));
}

/* The first job that may run, of the user with the fewest seconds. */
struct kg_tinker_job *kg_tinker_next(struct kg_tinker *t)
{
    struct kg_tinker_job *best = NULL;
    for (struct kg_tinker_job *job = t->jobs; job; job = job->next) {
        if (job->done || job->running || (best && job->user->used >= best->user->used) ||
            !may_run(job))
            continue;
        best = job;
        if (t->n_users == 1)
            break;
    }
    return best;
}

/* Charges LEAST_S, so that jobs that fail at once are not free. */
void kg_tinker_take(struct kg_tinker_job *job)
{
    job->running = true;
    job->user->t->used = job->user->used;
    job->user->used += LEAST_S;
}

void kg_tinker_charge(struct kg_tinker_user *u, double seconds)
{
    pthread_mutex_lock(&u->t->lock);
    u->used += seconds;
    pthread_mutex_unlock(&u->t->lock);
}

/* Fails all jobs that wait for a request that never arrived, so that no update uses half
 * a batch. The model continues after them. */
static void give_up(struct kg_tinker_model *m)
{
    struct kg_tinker *t = m->user->t;
    const int64_t lost = m->next_seq;
    struct kg_tinker_job *job;
    struct kg_err err;
    kg_status status = kg_slab_zero(&m->state.optim->grads, &err);
    if (status == KG_OK)
        status = kg_fail(&err, KG_ECONFLICT,
                         "%s: request %lld, which precedes this one, was never received: "
                         "the gradients since the last optim_step are dropped",
                         m->id, (long long)lost);
    pthread_mutex_lock(&t->lock);
    while ((job = open_job(m, m->next_seq, INT32_MAX)))
        m->next_seq = job->seq + 1;
    while ((job = open_job(m, lost, m->next_seq - 1))) {
        pthread_mutex_unlock(&t->lock);
        kg_tinker_finish(job, status, &err);
        pthread_mutex_lock(&t->lock);
    }
    pthread_mutex_unlock(&t->lock);
}

static void run_job(struct kg_tinker_job *job)
{
    const double begin = kg_clock_seconds();
    struct kg_err err = {0};
    struct kg_tinker_model *m = find_model(job);
    kg_status status;
    if (m && job->seq > m->next_seq) {
        give_up(m);
        return;
    }
    if (m && job->seq == 0)
        status = kg_fail(&err, KG_ECONFLICT, "%s is in training already", job->scope);
    else if (m && job->seq > 0 && job->seq < m->next_seq)
        status = kg_fail(&err, KG_ECONFLICT,
                         "%s: request %lld has run before and its result is no longer "
                         "kept, or the request came too late",
                         job->scope, (long long)job->seq);
    else
        status = job->run(job, &err);
    m = find_model(job);
    if (m && job->seq == m->next_seq)
        m->next_seq++;
    kg_tinker_charge(job->user, kg_clock_seconds() - begin);
    kg_tinker_finish(job, status, &err);
}

void *kg_tinker_work(void *tinker)
{
    struct kg_tinker *t = tinker;
    kg_threads_set(t->threads); /* a new thread has OpenMP's default number */
    for (;;) {
        const struct timespec until = kg_clock_deadline(IDLE_MS);
        pthread_mutex_lock(&t->lock);
        struct kg_tinker_job *job = kg_tinker_next(t);
        if (job)
            kg_tinker_take(job);
        else if (!t->quitting)
            pthread_cond_timedwait(&t->due, &t->lock, &until);
        const bool quitting = t->quitting;
        pthread_mutex_unlock(&t->lock);
        if (quitting)
            return NULL;
        if (job && job->run)
            run_job(job);
        else if (job)
            kg_tinker_sample(t, job);
    }
}
