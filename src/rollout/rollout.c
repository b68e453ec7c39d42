/* The engine: its life, a session's step, and the run of many requests.
 *
 * A step is admission (admit.c), then a decode step (decode.c); a run repeats it until
 * the queue is empty and nothing runs. Everything it needs is allocated when a request is
 * submitted, so only trajectories grow while it works.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "base/phase.h"
#include "base/signal.h"
#include "rollout/rollout_internal.h"

#include <string.h>

/* ---- life ---- */

static void worker_release(struct kg_worker *w)
{
    kg_rows_free(w->rows);
    kg_sampler_scratch_release(&w->scratch);
}

static void *alloc(size_t n, size_t size, kg_status *status, struct kg_err *err)
{
    void *p = *status == KG_OK ? kg_mem_calloc(n, size, "rollout engine", err) : NULL;
    if (*status == KG_OK && p == NULL)
        *status = err->code;
    return p;
}

void kg_rollout_free(struct kg_rollout *r)
{
    if (r == NULL)
        return;
    for (int i = 0; i < r->n_workers; i++)
        worker_release(&r->workers[i]);
    for (int32_t i = 0; r->seqs && i < r->opts.max_open; i++)
        kg_str_release(&r->seqs[i].text);
    for (int32_t i = 0; r->picks && i < r->opts.max_batch; i++)
        kg_sampler_pick_release(&r->picks[i]);
    void *blocks[] = {r->workers, r->seqs,      r->groups,   r->block_slab, r->picks,
                      r->logits,  r->lse,       r->top_ids,  r->top_logp,   r->pending,
                      r->spare,   r->running,   r->starting, r->resuming,   r->over,
                      r->order,   r->prompt_lse};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        kg_mem_free(blocks[i]);
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
    if (o->max_open != 0 && (o->max_open < o->max_batch || o->max_open > 1 << 20))
        return kg_fail(err, KG_EINVAL,
                       "open sequences must be 0 or between the batch's %d and %d, it "
                       "is %d",
                       o->max_batch, 1 << 20, o->max_open);
    if (o->kv_tokens < 0 || o->kv_tokens / KG_KV_BLOCK > INT32_MAX / KG_KV_BLOCK - 1)
        return kg_fail(err, KG_EINVAL, "cache of %lld tokens is out of range",
                       (long long)o->kv_tokens);
    return KG_OK;
}

int64_t kg_rollout_kv_tokens(int32_t n, int32_t max_len)
{
    return ((int64_t)n * kg_rollout_blocks(max_len) + 1) * KG_KV_BLOCK;
}

int64_t kg_rollout_kv_sequences(int64_t kv_tokens, int32_t max_len)
{
    int64_t blocks = kv_tokens / KG_KV_BLOCK;
    return blocks > 0 ? (blocks - 1) / kg_rollout_blocks(max_len) : 0;
}

static kg_status cache_blocks(int32_t *n, const struct kg_rollout *r, struct kg_err *err)
{
    int64_t tokens = r->opts.kv_tokens > 0
                         ? r->opts.kv_tokens
                         : kg_rollout_kv_tokens(r->opts.max_open, r->opts.max_len);
    int64_t blocks = (tokens + KG_KV_BLOCK - 1) / KG_KV_BLOCK;
    if (blocks > INT32_MAX / KG_KV_BLOCK)
        return kg_fail(
            err, KG_EINVAL,
            "a cache for %d sequences of %d tokens is larger than %d tokens: lower the "
            "batch or give the cache a size",
            r->opts.max_open, r->opts.max_len, INT32_MAX);
    *n = (int32_t)blocks;
    return KG_OK;
}

/* Lists of sequences and groups. */
static kg_status init_lists(struct kg_rollout *r, struct kg_err *err)
{
    kg_status status = KG_OK;
    size_t B = (size_t)r->opts.max_batch;
    size_t most = (size_t)r->opts.max_open;
    size_t per_seq = (size_t)r->blocks_per_seq;
    r->seqs = alloc(most, sizeof *r->seqs, &status, err);
    r->groups = alloc(B + 1, sizeof *r->groups, &status, err);
    r->block_slab = alloc((most + B + 1) * per_seq, sizeof *r->block_slab, &status, err);
    r->spare = alloc(most, sizeof *r->spare, &status, err);
    r->resuming = alloc(most, sizeof *r->resuming, &status, err);
    r->running = alloc(B, sizeof *r->running, &status, err);
    r->starting = alloc(B, sizeof *r->starting, &status, err);
    r->over = alloc(B, sizeof *r->over, &status, err);
    r->order = alloc(B + 1, sizeof *r->order, &status, err);
    KG_TRY(status);
    for (size_t i = 0; i < most; i++)
        r->seqs[i].blocks = r->block_slab + i * per_seq;
    for (size_t i = 0; i <= B; i++)
        r->groups[i].blocks = r->block_slab + (most + i) * per_seq;
    return KG_OK;
}

static kg_status init_arrays(struct kg_rollout *r, struct kg_err *err)
{
    kg_status status = KG_OK;
    size_t B = (size_t)r->opts.max_batch;
    size_t chunk = (size_t)r->opts.prefill_chunk;
    const struct kg_model_config *c = &r->m->config;
    r->picks = alloc(B, sizeof *r->picks, &status, err);
    r->lse = alloc(B, sizeof *r->lse, &status, err);
    r->prompt_lse = alloc(chunk, sizeof *r->prompt_lse, &status, err);
    r->logits = alloc(B * (size_t)c->vocab, sizeof *r->logits, &status, err);
    KG_TRY(status);
    return init_lists(r, err);
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
    r->opts.max_open = opts->max_open > 0 ? opts->max_open : opts->max_batch;
    r->blocks_per_seq = kg_rollout_blocks(opts->max_len);
    KG_TRY_GOTO(out, init_arrays(r, err));
    KG_TRY_GOTO(out, cache_blocks(&n_blocks, r, err));
    KG_TRY_GOTO(out, kg_kv_create(&r->kv, m, n_blocks, err));
    kg_rollout_reset(r);
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

/* ---- threads ---- */

/* The first worker has room for prompts, their scores and the whole batch, the others for
 * their share of it. */
static struct kg_rows_opts worker_room(const struct kg_rollout *r, int i, int T)
{
    int64_t batch = r->opts.max_batch, chunk = r->opts.prefill_chunk;
    struct kg_rows_opts o = {.max_tokens = (batch + T - 1) / T, .kv = r->kv};
    if (i == 0) {
        o.max_tokens = batch > chunk ? batch : chunk;
        o.max_rows = batch + chunk;
    }
    return o;
}

/* As many workers as threads. */
static kg_status prepare_workers(struct kg_rollout *r, struct kg_err *err)
{
    int T = r->m->backend->one_caller ? 1 : kg_threads_get();
    if (r->n_workers != T) {
        for (int i = 0; i < r->n_workers; i++)
            worker_release(&r->workers[i]);
        kg_mem_free(r->workers);
        r->n_workers = 0;
        r->workers = kg_mem_calloc((size_t)T, sizeof *r->workers, "rollout engine", err);
        if (r->workers == NULL)
            return err->code;
    }
    while (r->n_workers < T) {
        struct kg_rows_opts room = worker_room(r, r->n_workers, T);
        KG_TRY(kg_rows_create(&r->workers[r->n_workers].rows, r->m, &room, err));
        r->n_workers++;
    }
    return KG_OK;
}

/* ---- a session ---- */

kg_status kg_rollout_begin(struct kg_rollout *r, const struct kg_rollout_session *s,
                           struct kg_err *err)
{
    memset(&r->stats, 0, sizeof r->stats);
    r->longest = 0;
    r->session = *s;
    kg_rollout_reset(r);
    return prepare_workers(r, err);
}

kg_status kg_rollout_step(struct kg_rollout *r, struct kg_rollout_load *load,
                          struct kg_err *err)
{
    if (r->opts.stop_on_signal && kg_signal_stop_requested())
        return kg_fail(err, KG_EINTERRUPTED, "stopped by a signal while generating");
    KG_TRY(kg_rollout_admit(r, err));
    if (r->n_running > 0)
        KG_TRY(kg_rollout_decode(r, err));
    if (load)
        kg_rollout_get_load(load, r);
    return KG_OK;
}

void kg_rollout_show(int phase, const struct kg_rollout *r, int64_t of)
{
    struct kg_rollout_load load;
    kg_rollout_get_load(&load, r);
    kg_phase_at(phase, of - load.running - load.waiting - load.parked);
    kg_phase_note(phase, "tokens of the longest", (int64_t)r->longest);
}

/* ---- a run ---- */

struct run {
    kg_rollout_done_fn done;
    void *user;
};

static kg_status run_finished(void *user, const struct kg_request *q, struct kg_traj *t,
                              const struct kg_err *failure, struct kg_err *err)
{
    const struct run *run = user;
    (void)q;
    if (failure) {
        *err = *failure;
        return failure->code;
    }
    return run->done ? run->done(run->user, t, err) : KG_OK;
}

static kg_status submit_all(struct kg_rollout *r, struct kg_traj *trajs,
                            const struct kg_request *requests, size_t n,
                            struct kg_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (requests[i].context > 0)
            return kg_fail(err, KG_EINVAL,
                           "prompt %lld: expected a request of one turn, found an "
                           "episode of %d tokens",
                           (long long)requests[i].prompt_index, requests[i].context);
        KG_TRY(kg_rollout_submit(r, &requests[i], trajs, err));
        trajs += requests[i].n_samples;
    }
    return KG_OK;
}

kg_status kg_rollout_run(struct kg_rollout *r, struct kg_traj *trajs,
                         const struct kg_request *requests, size_t n_requests,
                         const struct kg_sampling *s, kg_rollout_done_fn done, void *user,
                         struct kg_err *err)
{
    size_t n_trajs = 0;
    struct run run = {done, user};
    struct kg_rollout_session session = {
        .sampling = s, .finished = run_finished, .user = &run};
    struct kg_rollout_load load = {.waiting = 1};
    for (size_t i = 0; i < n_requests; i++)
        n_trajs += requests[i].n_samples > 0 ? (size_t)requests[i].n_samples : 0;
    memset(trajs, 0, n_trajs * sizeof *trajs);
    KG_TRY(kg_rollout_begin(r, &session, err));
    KG_TRY(submit_all(r, trajs, requests, n_requests, err));
    int phase = kg_phase_begin((int64_t)n_trajs, "sequences", "generating");
    while (load.running + load.waiting > 0) {
        KG_TRY(kg_rollout_step(r, &load, err));
        kg_rollout_show(phase, r, (int64_t)n_trajs);
    }
    kg_phase_end(phase);
    return KG_OK;
}
