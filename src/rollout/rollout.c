/* The engine: its life, the checks before a run, and the run.
 *
 * A run alternates admission (admit.c) and decode steps (decode.c) until the queue is
 * empty and nothing runs. Everything it needs is allocated before the first token, so
 * only trajectories grow while it works.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "base/signal.h"
#include "rollout/rollout_internal.h"

#include <string.h>

/* ---- life ---- */

static void worker_release(struct kg_worker *w)
{
    kg_acts_free(w->acts);
    kg_mem_free(w->tokens);
    kg_mem_free(w->pos);
    kg_mem_free(w->kv_rows);
    kg_mem_free(w->seqs);
    kg_sampler_scratch_release(&w->scratch);
}

static void *alloc(size_t n, size_t size, kg_status *status, struct kg_err *err)
{
    void *p = *status == KG_OK ? kg_mem_calloc(n, size, "rollout engine", err) : NULL;
    if (*status == KG_OK && p == NULL)
        *status = err->code;
    return p;
}

/* On failure what was made stays in w for worker_release. */
static kg_status worker_init(struct kg_worker *w, const struct kg_model *m,
                             int64_t max_rows, struct kg_err *err)
{
    kg_status status = KG_OK;
    size_t n = (size_t)max_rows;
    w->max_rows = max_rows;
    w->tokens = alloc(n, sizeof *w->tokens, &status, err);
    w->pos = alloc(n, sizeof *w->pos, &status, err);
    w->kv_rows = alloc(n, sizeof *w->kv_rows, &status, err);
    w->seqs = alloc(n, sizeof *w->seqs, &status, err);
    KG_TRY(status);
    return kg_acts_create(&w->acts, m, max_rows, true, err);
}

void kg_rollout_free(struct kg_rollout *r)
{
    if (r == NULL)
        return;
    for (int i = 0; i < r->n_workers; i++)
        worker_release(&r->workers[i]);
    for (int32_t i = 0; r->slots && i < r->opts.max_batch; i++)
        kg_str_release(&r->slots[i].text);
    kg_mem_free(r->workers);
    kg_mem_free(r->slots);
    kg_mem_free(r->groups);
    kg_mem_free(r->block_slab);
    kg_mem_free(r->group_hidden.data);
    kg_mem_free(r->last_rows);
    kg_mem_free(r->logits);
    kg_mem_free(r->lse);
    kg_mem_free(r->inv_temp);
    kg_mem_free(r->top_ids);
    kg_mem_free(r->top_logp);
    kg_kv_free(r->kv);
    kg_mem_free(r);
}

static kg_status check_opts(const struct kg_rollout_opts *o, struct kg_err *err)
{
    if (o->max_batch < 1 || o->max_batch > 65536)
        return kg_fail(err, KG_EINVAL, "max batch must be between 1 and 65536, it is %d",
                       o->max_batch);
    if (o->prefill_chunk < 0 || o->prefill_chunk > 1 << 20)
        return kg_fail(err, KG_EINVAL, "prefill chunk must be between 0 and %d, it is %d",
                       1 << 20, o->prefill_chunk);
    if (o->max_len < 2)
        return kg_fail(err, KG_EINVAL,
                       "longest sequence must be at least 2 tokens, it is %d",
                       o->max_len);
    if (o->kv_tokens < 0 || o->kv_tokens / KG_KV_BLOCK > INT32_MAX / KG_KV_BLOCK - 1)
        return kg_fail(err, KG_EINVAL, "cache of %lld tokens is out of range",
                       (long long)o->kv_tokens);
    return KG_OK;
}

static kg_status cache_blocks(int32_t *n, const struct kg_rollout *r, struct kg_err *err)
{
    int64_t blocks = r->opts.kv_tokens > 0
                         ? (r->opts.kv_tokens + KG_KV_BLOCK - 1) / KG_KV_BLOCK
                         : (int64_t)r->opts.max_batch * r->blocks_per_seq + 1;
    if (blocks > INT32_MAX / KG_KV_BLOCK)
        return kg_fail(
            err, KG_EINVAL,
            "a cache for %d sequences of %d tokens is larger than %d tokens: lower the "
            "batch or give the cache a size",
            r->opts.max_batch, r->opts.max_len, INT32_MAX);
    *n = (int32_t)blocks;
    return KG_OK;
}

static kg_status init_arrays(struct kg_rollout *r, struct kg_err *err)
{
    kg_status status = KG_OK;
    size_t B = (size_t)r->opts.max_batch;
    size_t per_seq = (size_t)r->blocks_per_seq;
    const struct kg_model_config *c = &r->m->config;
    r->slots = alloc(B, sizeof *r->slots, &status, err);
    r->groups = alloc(B, sizeof *r->groups, &status, err);
    r->block_slab = alloc(2 * B * per_seq, sizeof *r->block_slab, &status, err);
    r->last_rows = alloc(B, sizeof *r->last_rows, &status, err);
    r->lse = alloc(B, sizeof *r->lse, &status, err);
    r->inv_temp = alloc(B, sizeof *r->inv_temp, &status, err);
    r->logits = alloc(B * (size_t)c->vocab, sizeof *r->logits, &status, err);
    void *hidden = alloc(B * (size_t)c->hidden, kg_dtype_traits(r->m->ct)->bytes, &status,
                         err);
    r->group_hidden = kg_mat(hidden, r->m->ct, r->opts.max_batch, c->hidden);
    KG_TRY(status);
    for (size_t i = 0; i < B; i++) {
        r->slots[i].blocks = r->block_slab + i * per_seq;
        r->groups[i].blocks = r->block_slab + (B + i) * per_seq;
    }
    return KG_OK;
}

kg_status kg_rollout_create(struct kg_rollout **out, const struct kg_model *m,
                            const struct kg_tokenizer *tok,
                            const struct kg_rollout_opts *opts, struct kg_err *err)
{
    int32_t n_blocks = 0;
    kg_status status = KG_OK;
    *out = NULL;
    KG_TRY(check_opts(opts, err));
    struct kg_rollout *r = kg_mem_calloc(1, sizeof *r, "rollout engine", err);
    if (r == NULL)
        return err->code;
    r->m = m;
    r->tok = tok;
    r->opts = *opts;
    r->opts.prefill_chunk = opts->prefill_chunk > 0 ? opts->prefill_chunk : 512;
    r->blocks_per_seq = kg_rollout_blocks(opts->max_len);
    KG_TRY_GOTO(out, init_arrays(r, err));
    KG_TRY_GOTO(out, cache_blocks(&n_blocks, r, err));
    KG_TRY_GOTO(out, kg_kv_create(&r->kv, m, n_blocks, err));
    *out = r;
    r = NULL;
out:
    kg_rollout_free(r);
    return status;
}

const struct kg_rollout_stats *kg_rollout_stats(const struct kg_rollout *r)
{
    return &r->stats;
}

/* ---- checks ---- */

static kg_status check_prompt(const struct kg_rollout *r, const struct kg_request *q,
                              struct kg_err *err)
{
    for (size_t i = 0; i < q->prompt_n; i++)
        if (q->prompt[i] < 0 || q->prompt[i] >= r->m->config.vocab)
            return kg_fail(err, KG_EINVAL,
                           "token %zu is %d, expected an id between 0 and %d", i,
                           q->prompt[i], r->m->config.vocab - 1);
    return KG_OK;
}

static kg_status check_room(const struct kg_rollout *r, const struct kg_sampling *s,
                            const struct kg_request *q, struct kg_err *err)
{
    int32_t limit = kg_rollout_limit(s, q);
    if (q->prompt_n + (size_t)limit > (size_t)r->opts.max_len)
        return kg_fail(
            err, KG_EINVAL,
            "%zu tokens of prompt and up to %d new ones pass the limit of %d tokens",
            q->prompt_n, limit, r->opts.max_len);
    int32_t copies = q->n_samples > 1 && q->prompt_n % KG_KV_BLOCK != 0;
    int32_t need = kg_rollout_need(s, q) + copies;
    if (need > r->kv->n_blocks)
        return kg_fail(
            err, KG_EINVAL,
            "%zu tokens of prompt and up to %d new ones need a cache of %d tokens, it "
            "has %d",
            q->prompt_n, limit, need * KG_KV_BLOCK, r->kv->n_blocks * KG_KV_BLOCK);
    return KG_OK;
}

static kg_status check_request(const struct kg_rollout *r, const struct kg_sampling *s,
                               const struct kg_request *q, struct kg_err *err)
{
    if (q->prompt_n == 0)
        return kg_fail(err, KG_EINVAL,
                       "expected at least one token, found an empty prompt");
    if (q->n_samples < 1 || q->max_tokens < 0 || q->first_sample < 0)
        return kg_fail(err, KG_EINVAL,
                       "expected at least one sample, a limit and a first sample of at "
                       "least 0, found %d, %d and %d",
                       q->n_samples, q->max_tokens, q->first_sample);
    KG_TRY(check_prompt(r, q, err));
    return check_room(r, s, q, err);
}

static kg_status check_run(const struct kg_rollout *r, const struct kg_sampling *s,
                           const struct kg_request *requests, size_t n,
                           struct kg_err *err)
{
    KG_TRY(kg_sampler_check(s, err));
    if (s->n_stops > 0 && r->tok == NULL)
        return kg_fail(err, KG_EINVAL,
                       "stop strings need a tokenizer, and the model has none");
    if (s->record_top_k < 0 || s->record_top_k > r->m->config.vocab)
        return kg_fail(err, KG_EINVAL,
                       "ids to record with a token must be between 0 and the "
                       "vocabulary's %d, it is %d",
                       r->m->config.vocab, s->record_top_k);
    for (size_t i = 0; i < n; i++)
        if (check_request(r, s, &requests[i], err) != KG_OK)
            return kg_err_prefix(err, "prompt %lld", (long long)requests[i].prompt_index);
    return KG_OK;
}

/* ---- the run ---- */

/* As many workers as threads: the first has room for prompts and for the whole batch, the
 * others for their share. */
static kg_status prepare_workers(struct kg_rollout *r, struct kg_err *err)
{
    int T = kg_threads_get();
    if (r->n_workers != T) {
        for (int i = 0; i < r->n_workers; i++)
            worker_release(&r->workers[i]);
        kg_mem_free(r->workers);
        r->n_workers = 0;
        r->workers = kg_mem_calloc((size_t)T, sizeof *r->workers, "rollout engine", err);
        if (r->workers == NULL)
            return err->code;
    }
    int64_t batch = r->opts.max_batch;
    int64_t whole = batch > r->opts.prefill_chunk ? batch : r->opts.prefill_chunk;
    while (r->n_workers < T) {
        int64_t rows = r->n_workers == 0 ? whole : (batch + T - 1) / T;
        struct kg_worker *w = &r->workers[r->n_workers++];
        kg_status status = worker_init(w, r->m, rows, err);
        if (status != KG_OK) {
            worker_release(w);
            memset(w, 0, sizeof *w);
            r->n_workers--;
            return status;
        }
    }
    return KG_OK;
}

static kg_status prepare_scratch(struct kg_rollout *r, struct kg_err *err)
{
    int32_t V = r->m->config.vocab;
    for (int i = 0; kg_sampler_truncates(r->s, V) && i < r->n_workers; i++)
        if (r->workers[i].scratch.candidates == NULL)
            KG_TRY(kg_sampler_scratch_init(&r->workers[i].scratch, V, err));
    for (int32_t i = 0; i < r->opts.max_batch; i++)
        r->inv_temp[i] = kg_inv_temperature(r->s->temperature);
    return KG_OK;
}

static kg_status prepare_top_k(struct kg_rollout *r, struct kg_err *err)
{
    if (r->s->record_top_k <= r->top_capacity)
        return KG_OK;
    kg_status status = KG_OK;
    size_t n = (size_t)r->opts.max_batch * (size_t)r->s->record_top_k;
    kg_mem_free(r->top_ids);
    kg_mem_free(r->top_logp);
    r->top_capacity = 0;
    r->top_ids = alloc(n, sizeof *r->top_ids, &status, err);
    r->top_logp = alloc(n, sizeof *r->top_logp, &status, err);
    KG_TRY(status);
    r->top_capacity = r->s->record_top_k;
    return KG_OK;
}

static kg_status prepare(struct kg_rollout *r, struct kg_err *err)
{
    KG_TRY(prepare_workers(r, err));
    KG_TRY(prepare_scratch(r, err));
    KG_TRY(prepare_top_k(r, err));
    kg_kv_clear(r->kv);
    r->next_request = 0;
    r->n_running = 0;
    r->n_groups = 0;
    r->first_new = 0;
    return KG_OK;
}

static kg_status run(struct kg_rollout *r, struct kg_err *err)
{
    for (;;) {
        if (r->opts.stop_on_signal && kg_signal_stop_requested())
            return kg_fail(err, KG_EINTERRUPTED, "stopped by a signal while generating");
        KG_TRY(kg_rollout_admit(r, err));
        if (r->n_running == 0)
            return KG_OK;
        KG_TRY(kg_rollout_decode(r, err));
    }
}

kg_status kg_rollout_run(struct kg_rollout *r, struct kg_traj *trajs,
                         const struct kg_request *requests, size_t n_requests,
                         const struct kg_sampling *s, kg_rollout_done_fn done, void *user,
                         struct kg_err *err)
{
    size_t n_trajs = 0;
    for (size_t i = 0; i < n_requests; i++)
        n_trajs += requests[i].n_samples > 0 ? (size_t)requests[i].n_samples : 0;
    memset(trajs, 0, n_trajs * sizeof *trajs);
    memset(&r->stats, 0, sizeof r->stats);
    KG_TRY(check_run(r, s, requests, n_requests, err));
    r->s = s;
    r->requests = requests;
    r->n_requests = n_requests;
    r->next_traj = trajs;
    r->done = done;
    r->user = user;
    KG_TRY(prepare(r, err));
    return run(r, err);
}
