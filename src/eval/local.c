/* Completions from the engine of this process.
 *
 * A set flows through the open engine: the queue holds as many requests as a batch has
 * rows. A finished completion is passed on and freed, so the batch runs empty only once,
 * at the end of the set. Scored completions and episodes are computed in slices of some
 * batches, and are passed on when their slice is finished.
 */
#include "eval/runner.h"

#include "base/log.h"
#include "base/mem.h"
#include "data/inputs.h"
#include "rollout/rollout.h"

enum { SLICE_BATCHES = 16, EPISODE_BATCHES = 4 };

/* A request in the open engine, with its trajectories. */
struct group {
    struct kg_request request; /* first: its address is the group's */
    struct kg_traj *trajs;     /* (request.n_samples) owned */
    int32_t left;              /* samples not finished yet */
    struct group *next;
};

struct local_work {
    struct kg_eval_local *local;
    struct kg_eval_set *set;
    struct kg_prompts prompts;
    struct kg_eval_opts opts;
    struct kg_rollout *engine;
    struct kg_episodes *episodes; /* NULL: completions of one turn */
    struct group *groups;         /* owned; in the open engine */
    struct kg_request *requests;  /* (n_requests) of the slice, or of one problem */
    size_t n_requests;
    size_t capacity;
    struct kg_traj *trajs; /* (n_trajs) of the slice */
    size_t n_trajs;
    kg_eval_take_fn take;
    void *user;
};

static kg_status encode(struct kg_prompts *p, const struct kg_eval_local *l,
                        const struct kg_eval_set *set, struct kg_err *err)
{
    struct kg_prompts_opts opts = {.max_tokens = (size_t)l->model->config.max_positions -
                                                 1,
                                   .special = set->special};

    return kg_prompts_init(p, &set->data, l->tok, &opts, err);
}

enum { DEFAULT_CONTEXT = 4096 };

static kg_status check_below(const struct kg_eval_set *set, const char *key,
                             int32_t found, struct kg_err *err)
{
    if (found < set->episode.context)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "set %s: %s: expected fewer than context (%d), or 0, found %d",
                   set->name, key, set->episode.context, found);
}

static kg_status settle_context(struct kg_eval_set *set, int32_t positions,
                                struct kg_err *err)
{
    if (!set->episode.env)
        return KG_OK;
    if (set->episode.context == 0)
        set->episode.context = positions < DEFAULT_CONTEXT ? positions : DEFAULT_CONTEXT;
    if (kg_episodes_positions(&set->episode) > positions)
        return kg_fail(err, KG_EINVAL,
                       "set %s: context: expected at most the model's max_positions, %d, "
                       "found %d",
                       set->name, positions, kg_episodes_positions(&set->episode));
    KG_TRY(check_below(set, "answer_tokens", set->episode.answer_tokens, err));
    return check_below(set, "window", set->episode.window, err);
}

/* Checks that context and window have room for the longest prompt. */
static kg_status check_prompts(const struct kg_eval_set *set,
                               const struct kg_prompts *prompts, struct kg_err *err)
{
    if (set->episode.env && prompts->longest >= (size_t)set->episode.context)
        return kg_fail(err, KG_EINVAL,
                       "set %s: context: expected more than the longest prompt's %zu "
                       "tokens, found %d",
                       set->name, prompts->longest, set->episode.context);
    if (set->episode.window == 0 || prompts->longest <= (size_t)set->episode.window)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "set %s: window: expected at least the longest prompt's %zu tokens, "
                   "found %d",
                   set->name, prompts->longest, set->episode.window);
}

/* Reads and encodes a set before any set is sampled, so that faults are found early. */
static kg_status prepare(struct kg_eval_source *self, struct kg_eval_set *set,
                         struct kg_err *err)
{
    const struct kg_eval_local *l = (const struct kg_eval_local *)self;
    int32_t positions = l->model->config.max_positions;
    struct kg_prompts prompts;

    KG_TRY(settle_context(set, positions, err));
    KG_TRY(kg_eval_set_load(set, NULL, l->model_dir, err));
    if (encode(&prompts, l, set, err) != KG_OK)
        return kg_err_prefix(err, "set %s", set->name);
    /* Not for episodes: their turns share one context. */
    int32_t most = set->sampling.max_tokens;
    size_t n = 0;

    for (size_t i = 0; i < prompts.n && !set->episode.env; i++)
        n += (int64_t)prompts.ids[i].n + most > positions;
    if (n > 0)
        kg_log_warn("set %s: %zu of %zu prompts leave fewer than max_tokens (%d) of the "
                    "model's %d positions: their completions may be truncated",
                    set->name, n, prompts.n, most, positions);
    kg_status status = check_prompts(set, &prompts, err);
    kg_prompts_release(&prompts);
    return status;
}

static kg_status put_inputs(struct kg_eval_source *self, struct kg_str *out,
                            struct kg_err *err)
{
    const struct kg_eval_local *l = (const struct kg_eval_local *)self;

    KG_TRY(kg_inputs_put_model(out, "model", l->model_dir, err));
    if (l->adapter_dir)
        KG_TRY(kg_inputs_put_model(out, "adapter", l->adapter_dir, err));
    return l->reference ? kg_inputs_put_model(out, "reference", l->reference_dir, err)
                        : KG_OK;
}

/* ---- one sample ---- */

static void count(double extra[KG_EVAL_EXTRAS], const struct kg_traj_episode *e)
{
    extra[0] = e->turns;
    extra[1] = e->answered;
    extra[2] = e->calls;
    extra[3] = e->invalid;
    extra[4] = e->failed;
}

static kg_status give_episode(struct local_work *w, struct kg_eval_fresh *fresh,
                              const struct kg_traj *t, struct kg_err *err)
{
    struct kg_episode_text text;

    KG_TRY(kg_episode_text_init(&text, w->local->tok, t, err));
    count(fresh->extra, &t->episode);
    fresh->text = kg_str_text(&text.model);
    fresh->n = text.model.len;
    fresh->episode = &text;
    fresh->verdict = t;
    kg_status status = w->take(w->user, fresh, err);
    kg_episode_text_release(&text);
    return status;
}

static kg_status give(struct local_work *w, const struct kg_traj *t,
                      const struct kg_eval_answer *sums, struct kg_err *err)
{
    const struct kg_sampling *s = &w->opts.sampling;
    struct kg_eval_fresh fresh = {
        .problem = (size_t)w->prompts.record[t->prompt_index],
        .sample = t->sample,
        .tokens = (int64_t)kg_traj_model_tokens(t),
        .finish = t->finish,
        .sums = sums,
    };
    struct kg_str text = {0};
    kg_status status;

    if (w->episodes)
        return give_episode(w, &fresh, t, err);
    status = kg_rollout_text(&text, w->local->tok, t, s->stops, s->n_stops, err);
    fresh.text = kg_str_text(&text);
    fresh.n = text.len;
    if (status == KG_OK)
        status = w->take(w->user, &fresh, err);
    kg_str_release(&text);
    return status;
}

/* ---- a slice ---- */

/* Makes requests for the missing samples of problem i, one per contiguous range. */
static kg_status ask(struct local_work *w, size_t i, const bool *there,
                     struct kg_err *err)
{
    int32_t n = w->opts.samples;

    for (int32_t first = 0, end; first < n; first = end) {
        for (end = first; end < n && !there[end]; end++)
            ;
        if (end == first) {
            end++;
            continue;
        }
        KG_TRY(kg_mem_grow(&w->requests, &w->capacity, w->n_requests + 1,
                           sizeof *w->requests, SIZE_MAX / sizeof *w->requests,
                           "requests", err));
        w->requests[w->n_requests++] = kg_eval_request(w->local->model, &w->prompts, i,
                                                       first, end - first, &w->opts);
        w->n_trajs += (size_t)(end - first);
    }
    return KG_OK;
}

static kg_status give_scored(struct local_work *w, struct kg_err *err)
{
    struct kg_eval_answer *sums = kg_mem_calloc(w->n_trajs, sizeof *sums, "token sums",
                                                err);
    kg_status status = sums ? kg_eval_token_sums(sums, w->local->model,
                                                 w->local->reference, NULL, w->trajs,
                                                 w->n_trajs, err)
                            : err->code;

    for (size_t i = 0; i < w->n_trajs && status == KG_OK; i++)
        status = give(w, &w->trajs[i], &sums[i], err);
    kg_mem_free(sums);
    return status;
}

/* Episodes are passed on after their whole slice has been played. */
static kg_status give_episodes(struct local_work *w, kg_status status, struct kg_err *err)
{
    for (size_t i = 0; i < w->n_trajs && status == KG_OK; i++)
        status = give(w, &w->trajs[i], NULL, err);
    return status;
}

static kg_status run_slice(struct local_work *w, struct kg_err *err)
{
    struct kg_sampling sampling = kg_eval_sampling(&w->opts);
    bool score = w->local->score;
    kg_status status;

    if (w->n_requests == 0)
        return KG_OK;
    KG_TRY(kg_mem_new(&w->trajs, w->n_trajs, sizeof *w->trajs, "evaluated samples", err));
    if (w->episodes)
        status = kg_episodes_run(w->episodes, w->engine, w->trajs, w->requests,
                                 w->n_requests, &sampling, &w->prompts, NULL, err);
    else
        status = kg_rollout_run(w->engine, w->trajs, w->requests, w->n_requests,
                                &sampling, NULL, NULL, err);
    if (status == KG_OK && score)
        status = give_scored(w, err);
    else if (w->episodes)
        status = give_episodes(w, status, err);
    for (size_t i = 0; i < w->n_trajs; i++)
        kg_traj_release(&w->trajs[i]);
    kg_mem_free(w->trajs);
    w->trajs = NULL;
    w->n_requests = w->n_trajs = 0;
    return status;
}

/* ---- the open engine ---- */

/* Frees groups whose samples are all finished; all: every group. */
static void sweep(struct local_work *w, bool all)
{
    for (struct group **at = &w->groups; *at;) {
        struct group *g = *at;

        if (g->left > 0 && !all) {
            at = &g->next;
            continue;
        }
        *at = g->next;
        for (int32_t i = 0; g->trajs && i < g->request.n_samples; i++)
            kg_traj_release(&g->trajs[i]);
        kg_mem_free(g->trajs);
        kg_mem_free(g);
    }
}

static kg_status reported(void *user, const struct kg_request *q, struct kg_traj *t,
                          const struct kg_err *failure, struct kg_err *err)
{
    struct local_work *w = user;
    struct group *g = w->groups;

    while (&g->request != q)
        g = g->next;
    if (failure) {
        *err = *failure;
        return err->code;
    }
    KG_TRY(give(w, t, NULL, err));
    kg_traj_release(t);
    g->left--;
    return KG_OK;
}

static kg_status submit(struct local_work *w, const struct kg_request *q,
                        struct kg_err *err)
{
    struct group *g = kg_mem_calloc(1, sizeof *g, "requests", err);

    if (!g)
        return err->code;
    g->request = *q;
    g->left = q->n_samples;
    g->trajs = kg_mem_calloc((size_t)q->n_samples, sizeof *g->trajs, "evaluated samples",
                             err);
    g->next = w->groups;
    w->groups = g;
    return g->trajs ? kg_rollout_submit(w->engine, &g->request, g->trajs, err)
                    : err->code;
}

/* Submits problems from *next on until a batch of requests waits. */
static kg_status refill(struct local_work *w, size_t *next, const bool *there,
                        struct kg_err *err)
{
    struct kg_rollout_load load;

    for (; *next < w->prompts.n; (*next)++) {
        kg_rollout_get_load(&load, w->engine);
        if (load.waiting >= w->local->max_batch)
            return KG_OK;
        w->n_requests = 0;
        KG_TRY(ask(w, *next, there + *next * (size_t)w->opts.samples, err));
        for (size_t i = 0; i < w->n_requests; i++)
            KG_TRY(submit(w, &w->requests[i], err));
    }
    return KG_OK;
}

static kg_status run_open(struct local_work *w, const bool *there, struct kg_err *err)
{
    struct kg_sampling sampling = kg_eval_sampling(&w->opts);
    struct kg_rollout_session session = {
        .sampling = &sampling, .finished = reported, .user = w};
    struct kg_rollout_load load = {.running = 1};
    size_t next = 0;
    kg_status status;

    KG_TRY(kg_rollout_begin(w->engine, &session, err));
    do {
        KG_TRY_GOTO(out, refill(w, &next, there, err));
        KG_TRY_GOTO(out, kg_rollout_step(w->engine, &load, err));
        sweep(w, false);
    } while (next < w->prompts.n || load.running + load.waiting > 0);
out:
    sweep(w, true);
    return status;
}

/* ---- a set ---- */

static bool all_there(const bool *there, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!there[i])
            return false;
    return true;
}

/* Opens the environments. A search next to the model uses the model's GPU. */
static kg_status open_episodes(struct local_work *w, struct kg_err *err)
{
    const struct kg_backend *be = w->local->model->backend;
    struct kg_episode_opts opts = w->set->episode;

    if (opts.env_opts.how.beside_model && be->host_memory)
        return kg_fail(err, KG_EINVAL,
                       "search_device: model has an effect only on a GPU (--device); "
                       "remove it (default cpu)");
    if (opts.env_opts.how.beside_model)
        opts.env_opts.how.backend = be;
    return kg_episodes_open(&w->episodes, w->local->tok, &opts, err);
}

static kg_status run_set(struct local_work *w, const bool *there, struct kg_err *err)
{
    size_t enough = (size_t)w->local->max_batch *
                    (w->set->episode.env ? EPISODE_BATCHES : SLICE_BATCHES);
    struct kg_rollout_opts ro = kg_eval_rollout_opts(w->local->model, &w->prompts,
                                                     &w->opts);

    if (w->set->episode.env)
        KG_TRY(open_episodes(w, err));
    kg_episodes_fit(&ro, w->episodes);
    KG_TRY(kg_rollout_create(&w->engine, w->local->model, w->local->tok, &ro, err));
    if (!w->episodes && !w->local->score)
        return run_open(w, there, err);
    for (size_t i = 0; i < w->prompts.n; i++) {
        KG_TRY(ask(w, i, there + i * (size_t)w->opts.samples, err));
        if (w->n_trajs >= enough)
            KG_TRY(run_slice(w, err));
    }
    return run_slice(w, err);
}

static kg_status answer(struct kg_eval_source *self, struct kg_eval_set *set,
                        const bool *there, kg_eval_take_fn take, void *user,
                        struct kg_err *err)
{
    struct local_work w = {.local = (struct kg_eval_local *)self,
                           .set = set,
                           .opts = kg_eval_set_opts(set),
                           .take = take,
                           .user = user};
    kg_status status;

    if (all_there(there, set->data.n * (size_t)set->samples))
        return KG_OK;
    w.opts.max_batch = w.local->max_batch;
    KG_TRY_GOTO(out, encode(&w.prompts, w.local, set, err));
    status = run_set(&w, there, err);
out:
    kg_rollout_free(w.engine);
    kg_episodes_close(w.episodes);
    kg_mem_free(w.requests);
    kg_prompts_release(&w.prompts);
    return status;
}

void kg_eval_local_init(struct kg_eval_local *l)
{
    l->source = (struct kg_eval_source){prepare, answer, put_inputs};
}
