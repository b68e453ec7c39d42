/* Sampling. Jobs for the same weights decode in one batch, and later ones join it until a
 * job of another kind waits before them: so a loop that samples and trains at once gets
 * both. A draw depends on the sampling session, the sequence number and the seed, not on
 * what else decodes. */
#include "tinker/tinker.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "data/manifest.h"
#include "rollout/rollout.h"
#include "text/tokenizer.h"

#include <math.h>
#include <stdio.h>

enum { MAX_SAMPLES = 1024 };

/* A job in the engine. The request is the first field: callbacks return its address. */
struct asked {
    struct kg_request q;
    struct kg_tinker_job *job;
    struct kg_sampling sampling;
    const char *stops[KG_MAX_STOPS];
    int32_t stop_ids[KG_MAX_STOPS];
    struct kg_str prompt;  /* (prompt_n) ids */
    struct kg_traj *trajs; /* (n_samples) owned */
    int32_t left;
    struct kg_prompt_scores scores; /* arrays owned; NULL: not wanted */
    bool failed;
    struct kg_err failure;
    struct asked *next;
};

static void asked_free(struct asked *a)
{
    for (int32_t i = 0; a->trajs && i < a->q.n_samples; i++)
        kg_traj_release(&a->trajs[i]);
    kg_mem_free(a->trajs);
    kg_str_release(&a->prompt);
    kg_mem_free(a->scores.logp);
    kg_mem_free(a->scores.top_ids);
    kg_mem_free(a->scores.top_logp);
    kg_mem_free(a);
}

/* ---- a request ---- */

static kg_status read_stops(struct asked *a, const struct kg_json *stop,
                            struct kg_err *err)
{
    struct kg_sampling *s = &a->sampling;
    const bool list = kg_json_type(stop) == KG_JSON_ARRAY;
    const size_t n = list ? kg_json_size(stop) : stop != NULL;
    if (n > KG_MAX_STOPS)
        return kg_fail(err, KG_EINVAL, "stop: expected at most %d, found %zu",
                       KG_MAX_STOPS, n);
    s->ignore_eos = list; /* a list replaces EOS */
    for (size_t i = 0; i < n; i++) {
        const struct kg_json *one = list ? kg_json_at(stop, i) : stop;
        const char *text = kg_json_text(one, NULL);
        const int64_t id = kg_json_int(one, -1);
        if (!text && (id < 0 || id > INT32_MAX))
            return kg_fail(err, KG_EINVAL, "stop: expected texts or token ids, found %s",
                           kg_json_type_name(one));
        if (text)
            a->stops[s->n_stops++] = text;
        else
            a->stop_ids[s->n_stop_ids++] = (int32_t)id;
    }
    s->stops = a->stops;
    s->stop_ids = a->stop_ids;
    return KG_OK;
}

static kg_status read_chunk(struct kg_str *ids, const struct kg_json *tokens, size_t c,
                            int32_t vocab, struct kg_err *err)
{
    if (kg_json_type(tokens) != KG_JSON_ARRAY)
        return kg_fail(err, KG_EUNSUPPORTED, "prompt.chunks[%zu]: expected encoded_text",
                       c);
    for (size_t i = 0; i < kg_json_size(tokens); i++) {
        const int64_t id = kg_json_int(kg_json_at(tokens, i), -1);
        if (id < 0 || id >= vocab)
            return kg_fail(err, KG_EINVAL, "prompt: token %zu: expected an id below %d",
                           ids->len / sizeof(int32_t), vocab);
        KG_TRY(kg_str_append(ids, &(int32_t){(int32_t)id}, sizeof(int32_t), err));
    }
    return KG_OK;
}

static kg_status read_prompt(struct asked *a, int32_t vocab, struct kg_err *err)
{
    const struct kg_json *chunks = kg_json_get(a->job->args.prompt, "chunks");
    for (size_t c = 0; c < kg_json_size(chunks); c++)
        KG_TRY(read_chunk(&a->prompt, kg_json_get(kg_json_at(chunks, c), "tokens"), c,
                          vocab, err));
    if (a->prompt.len == 0)
        return kg_fail(err, KG_EINVAL, "prompt: expected at least one token, found none");
    a->q.prompt = (const int32_t *)a->prompt.data;
    a->q.prompt_n = a->prompt.len / sizeof(int32_t);
    return KG_OK;
}

/* Refuses fields that this server does not support. */
static kg_status check_fields(const struct kg_json *r, struct kg_err *err)
{
    static const char *const fields[] = {"target_prompt_logprobs", "prompt_alt_tokens_k",
                                         "prompt_logprobs_last_n",
                                         "record_stability_info"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct kg_json *v = kg_json_get(r, fields[i]);
        if (kg_json_type(v) != KG_JSON_NULL && kg_json_bool(v, true) &&
            kg_json_int(v, 1) != 0)
            return kg_fail(err, KG_EUNSUPPORTED,
                           "%s: expected null, false or 0, found another value, which "
                           "kedge does not support",
                           fields[i]);
    }
    return KG_OK;
}

static kg_status check_range(const char *what, int64_t least, int64_t found, int64_t most,
                             struct kg_err *err)
{
    if (found >= least && found <= most)
        return KG_OK;
    return kg_fail(err, KG_EINVAL, "%s: expected %lld to %lld, found %lld", what,
                   (long long)least, (long long)most, (long long)found);
}

static kg_status read_sampling(struct asked *a, const struct kg_tinker *t,
                               struct kg_err *err)
{
    const struct kg_tinker_args *r = &a->job->args;
    const int64_t room = t->opts.max_len - (int64_t)a->q.prompt_n;
    const int64_t n = r->max_tokens == KG_TINKER_NONE ? room : r->max_tokens;
    const int64_t k = r->top_sample > r->top_prompt ? r->top_sample : r->top_prompt;
    KG_TRY(check_fields(a->job->doc.root, err));
    KG_TRY(check_range("topk_prompt_logprobs", 0, r->top_prompt, KG_MAX_TOP_K, err));
    KG_TRY(check_range("topk_sample_logprobs", 0, r->top_sample, KG_MAX_TOP_K, err));
    if (room < 1)
        return kg_fail(err, KG_EINVAL,
                       "prompt: expected at most %d tokens, one less than --max-len, "
                       "found %zu",
                       t->opts.max_len - 1, a->q.prompt_n);
    if (n < 1 || n > room)
        return kg_fail(err, KG_EINVAL,
                       "max_tokens: expected 1 to %lld (--max-len %d minus %zu prompt "
                       "tokens), found %lld",
                       (long long)room, t->opts.max_len, a->q.prompt_n, (long long)n);
    a->sampling.temperature = (float)r->temperature;
    a->sampling.top_p = (float)r->top_p;
    a->sampling.top_k = r->top_k > 0 && r->top_k < INT32_MAX ? (int)r->top_k : 0;
    a->sampling.max_tokens = a->q.max_tokens = (int32_t)n;
    a->sampling.record_top_k = (int)k;
    if (!(a->sampling.temperature >= 0) || !isfinite(a->sampling.temperature) ||
        !(a->sampling.top_p > 0 && a->sampling.top_p <= 1))
        return kg_fail(err, KG_EINVAL,
                       "sampling_params: expected a temperature of 0 or more and top_p "
                       "above 0 and at most 1, found %g and %g",
                       (double)a->sampling.temperature, (double)a->sampling.top_p);
    return read_stops(a, r->stop, err);
}

/* Equal scripts sample the same on any server: the key contains the sequence numbers of
 * sampling session and request, but not the random id of the session. */
static void key_draws(struct asked *a, const struct kg_tinker *t)
{
    const int64_t seed = a->job->args.seed;
    const char *sampler = strstr(a->job->scope, ":sample:");
    char text[KG_TINKER_ID + 32];
    const int n = snprintf(text, sizeof text, "%s %lld", sampler ? sampler : "",
                           (long long)a->job->seq);
    const bool seeded = seed != KG_TINKER_NONE;
    a->sampling.rng = seeded ? kg_seed_key()
                             : (struct kg_rng_key){t->opts.seed, KG_RNG_EVAL};
    a->q.draw = seeded ? (uint64_t)seed & (UINT64_MAX >> 8)
                       : kg_hash_bytes(text, (size_t)n) >> 8;
}

static kg_status make_scores(struct asked *a, struct kg_err *err)
{
    const size_t n = a->q.prompt_n, cells = n * (size_t)a->sampling.record_top_k;
    if (a->job->args.top_prompt == 0 && !a->job->args.prompt_logprobs)
        return KG_OK;
    a->scores.logp = kg_mem_calloc(n, sizeof *a->scores.logp, "scores", err);
    a->scores.top_ids = kg_mem_calloc(cells + 1, sizeof *a->scores.top_ids, "ids", err);
    a->scores.top_logp = kg_mem_calloc(cells + 1, sizeof *a->scores.top_logp, "ids", err);
    if (!a->scores.logp || !a->scores.top_ids || !a->scores.top_logp)
        return KG_ENOMEM;
    a->q.scores = &a->scores;
    return KG_OK;
}

static kg_status make_request(struct asked *a, const struct kg_tinker *t,
                              struct kg_err *err)
{
    const int64_t n = a->job->args.samples;
    const int batch = kg_serve_engine_opts(&t->opts).max_batch;
    /* a job cannot be interrupted, so with several users none may exceed one batch */
    const int most = t->n_users > 1 && batch < MAX_SAMPLES ? batch : MAX_SAMPLES;
    KG_TRY(check_range("num_samples", 1, n, most, err));
    KG_TRY(read_prompt(a, t->opts.model->config.vocab, err));
    KG_TRY(read_sampling(a, t, err));
    key_draws(a, t);
    KG_TRY(make_scores(a, err));
    a->trajs = kg_mem_calloc((size_t)n, sizeof *a->trajs, "samples", err);
    if (!a->trajs)
        return err->code;
    a->q.n_samples = a->left = (int32_t)n;
    a->q.sampling = &a->sampling;
    return KG_OK;
}

/* ---- a response ---- */

/* The first token has no log-prob: nothing precedes it. */
static void mask_first(struct asked *a)
{
    a->scores.logp[0] = NAN;
    for (int c = 0; c < a->sampling.record_top_k; c++) {
        a->scores.top_ids[c] = 0;
        a->scores.top_logp[c] = -99999.0f;
    }
}

static void finish(struct asked *a)
{
    const struct kg_tinker_args *r = &a->job->args;
    struct kg_err err = a->failure;
    kg_status status = a->failed ? a->failure.code : KG_OK;
    struct kg_tinker_samples s = {
        .trajs = a->trajs,
        .n = (size_t)a->q.n_samples,
        .n_prompt = a->q.prompt_n,
        .k = (int)r->top_prompt,
        .wide = a->sampling.record_top_k,
        .sample_k = (int)r->top_sample,
    };
    if (status == KG_OK && a->q.scores) {
        mask_first(a);
        s.prompt_logp = r->prompt_logprobs ? a->scores.logp : NULL;
        s.top_ids = a->scores.top_ids;
        s.top_logp = a->scores.top_logp;
    }
    if (status == KG_OK)
        status = kg_tinker_put_samples(&a->job->result, &s, &err);
    kg_tinker_finish(a->job, status, &err);
    asked_free(a);
}

/* ---- the engine ---- */

void kg_tinker_close_engine(struct kg_tinker *t)
{
    kg_rollout_free(t->engine.rollout);
    kg_model_free(t->engine.model);
    t->engine.rollout = NULL;
    t->engine.model = NULL;
}

static kg_status open_weights(const struct kg_tinker_user *u, const char *path,
                              struct kg_err *err)
{
    struct kg_tinker *t = u->t;
    const struct kg_model *base = t->opts.model;
    struct kg_model_opts opts = {.backend = base->backend, .ct = base->ct};
    struct kg_tinker_facts facts;
    struct kg_path dir;
    KG_TRY(kg_tinker_find_weights(&dir, &facts, u, path, err));
    KG_TRY(kg_manifest_check(NULL, dir.text, err));
    if (!facts.lora) {
        KG_TRY(kg_model_open(&t->engine.model, kg_path_in(dir.text, "model").text, &opts,
                             err));
        return t->opts.tok ? kg_model_config_add_eos(&t->engine.model->config,
                                                     kg_tokenizer_eos(t->opts.tok), err)
                           : KG_OK;
    }
    const struct kg_path adapter = kg_path_in(dir.text, "adapter");
    struct kg_lora *lora = kg_mem_calloc(1, sizeof *lora, "adapters", err);
    if (!lora)
        return err->code;
    kg_status status = kg_lora_read(lora, adapter.text, err);
    opts.lora = lora;
    opts.adapter = adapter.text;
    if (status == KG_OK)
        status = kg_model_share(&t->engine.model, base, &opts, err);
    kg_mem_free(lora);
    return status;
}

/* The base model (path "") is common to all users; other paths belong to one user. */
static bool is_open(const struct kg_tinker *t, const struct kg_tinker_user *u,
                    const char *path)
{
    return t->engine.rollout && strcmp(t->engine.path, path) == 0 &&
           (!*path || t->engine.user == u);
}

static kg_status open_engine(const struct kg_tinker_user *u, const char *path,
                             struct kg_err *err)
{
    struct kg_tinker *t = u->t;
    const struct kg_rollout_opts opts = kg_serve_engine_opts(&t->opts);
    if (is_open(t, u, path))
        return KG_OK;
    kg_tinker_close_engine(t);
    if (*path)
        KG_TRY(open_weights(u, path, err));
    const struct kg_model *m = t->engine.model ? t->engine.model : t->opts.model;
    KG_TRY(kg_rollout_create(&t->engine.rollout, m, t->opts.tok, &opts, err));
    t->engine.user = u;
    snprintf(t->engine.path, sizeof t->engine.path, "%s", path);
    return KG_OK;
}

static kg_status on_finished(void *user, const struct kg_request *q, struct kg_traj *traj,
                             const struct kg_err *failure, struct kg_err *err)
{
    struct asked *a = (struct asked *)(uintptr_t)q;
    (void)user;
    (void)traj;
    (void)err;
    if (failure) {
        a->failed = true;
        a->failure = *failure;
    }
    a->left--;
    return KG_OK;
}

/* ---- the batch ---- */

struct decoding {
    struct kg_tinker *t;
    bool begun;
    struct asked *open; /* owned */
    int64_t samples;    /* of all open requests */
};

static void submit(struct decoding *d, struct kg_tinker_job *job)
{
    struct kg_err err;
    struct asked *a = kg_mem_calloc(1, sizeof *a, "a request", &err);
    if (!a) {
        kg_tinker_finish(job, KG_ENOMEM, &err);
        return;
    }
    a->job = job;
    kg_status status = make_request(a, d->t, &err);
    if (status == KG_OK)
        status = kg_rollout_submit(d->t->engine.rollout, &a->q, a->trajs, &err);
    if (status != KG_OK) {
        kg_tinker_finish(job, status, &err);
        asked_free(a);
        return;
    }
    a->next = d->open;
    d->open = a;
    d->samples += a->q.n_samples;
}

/* The next job, if it is for the open weights. With several users, no job may wait in the
 * engine's queue, which is in order of arrival and ignores users. */
static struct kg_tinker_job *next_to_join(struct decoding *d)
{
    struct kg_tinker *t = d->t;
    struct kg_tinker_job *job = NULL;
    int64_t left = 0;
    for (const struct asked *a = d->open; a; a = a->next)
        left += a->left;
    if (t->n_users > 1 && left >= kg_serve_engine_opts(&t->opts).max_batch)
        return NULL;
    pthread_mutex_lock(&t->lock);
    if (!t->quitting)
        job = kg_tinker_next(t);
    const struct kg_tinker_handle *s = t->handles;
    while (job && !job->run && s &&
           !(s->samples && s->user == job->user && strcmp(s->id, job->scope) == 0))
        s = s->next;
    if (job && (job->run || !s || !is_open(t, job->user, s->path)))
        job = NULL;
    if (job)
        kg_tinker_take(job);
    pthread_mutex_unlock(&t->lock);
    return job;
}

static void sweep(struct decoding *d)
{
    for (struct asked **at = &d->open; *at;) {
        struct asked *a = *at;
        if (a->left > 0) {
            at = &a->next;
            continue;
        }
        *at = a->next;
        d->samples -= a->q.n_samples;
        finish(a);
    }
}

/* Charges a step's seconds to users in proportion to their samples.
 * returns false if the server shuts down */
static bool charge(const struct decoding *d, double seconds)
{
    pthread_mutex_lock(&d->t->lock);
    for (const struct asked *a = d->open; a; a = a->next)
        a->job->user->used += seconds * a->q.n_samples / (double)d->samples;
    const bool quitting = d->t->quitting;
    pthread_mutex_unlock(&d->t->lock);
    return !quitting;
}

static kg_status decode(struct decoding *d, struct kg_tinker_job *first, const char *path,
                        struct kg_err *err)
{
    const struct kg_rollout_session session = {.finished = on_finished};
    const double opened = kg_clock_seconds();
    KG_TRY(open_engine(first->user, path, err));
    kg_tinker_charge(first->user, kg_clock_seconds() - opened);
    KG_TRY(kg_rollout_begin(d->t->engine.rollout, &session, err));
    d->begun = true;
    submit(d, first);
    for (;;) {
        for (struct kg_tinker_job *more; (more = next_to_join(d));)
            submit(d, more);
        if (!d->open)
            return KG_OK;
        const double begin = kg_clock_seconds();
        KG_TRY(kg_rollout_step(d->t->engine.rollout, NULL, err));
        if (!charge(d, kg_clock_seconds() - begin))
            return kg_fail(err, KG_EINTERRUPTED, "the server is shutting down");
        sweep(d);
    }
}

void kg_tinker_sample(struct kg_tinker *t, struct kg_tinker_job *job)
{
    struct decoding d = {.t = t};
    struct kg_tinker_handle sampler;
    struct kg_err err;
    if (!kg_tinker_find_handle(&sampler, job->user, job->scope, true)) {
        kg_fail(&err, KG_ENOTFOUND, "sampling_session_id: no session %s", job->scope);
        kg_tinker_finish(job, KG_ENOTFOUND, &err);
        return;
    }
    const kg_status status = decode(&d, job, sampler.path, &err);
    if (status == KG_OK)
        return;
    kg_tinker_close_engine(t); /* its requests are freed below */
    while (d.open) {
        struct asked *a = d.open;
        d.open = a->next;
        a->failed = true;
        a->failure = err;
        finish(a);
    }
    if (!d.begun)
        kg_tinker_finish(job, status, &err);
}
