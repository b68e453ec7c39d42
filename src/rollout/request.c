/* The blocks that a request needs, and the reasons to refuse one. An accepted request
 * can always be finished: all blocks that a sequence can ever need are counted before
 * anything is computed (for layers with a window, those needed at once). A request that
 * an empty cache could not hold is refused. The last token is never fed back unless it
 * belongs to the prompt, so its key is never stored. An episode with a window computes
 * some turns again from position 0, in its own blocks: those hold a window and a turn,
 * and none is shared with the prompt. */
#include "rollout/rollout_internal.h"

#include "rollout/sampler.h"

/* ---- lengths and blocks ---- */

const struct kg_sampling *kg_request_sampling(const struct kg_request *q,
                                              const struct kg_request_limits *l)
{
    return q->sampling ? q->sampling : l->sampling;
}

int32_t kg_request_first_limit(const struct kg_request *q,
                               const struct kg_request_limits *l)
{
    if (q->max_tokens == KG_PROMPT_ONLY)
        return 0;
    return q->max_tokens > 0 ? q->max_tokens : kg_request_sampling(q, l)->max_tokens;
}

/* Maximum number of tokens, prompt included. */
static int64_t longest(const struct kg_request *q, const struct kg_request_limits *l)
{
    if (q->context > 0)
        return q->context;
    return (int64_t)q->prompt_n + kg_request_first_limit(q, l);
}

/* Whether a turn may begin with more text than the window. */
static bool rewinds(const struct kg_request *q)
{
    return q->window > 0 && q->window < q->context - 1;
}

/* Blocks of layers with a window. A single sample shares none. An observation is computed
 * in chunks, like a prompt, so an episode needs room for a chunk. */
static struct kg_take through_window(struct kg_take t, const struct kg_request *q,
                                     const struct kg_request_limits *l)
{
    int64_t at_once = q->context > 0 ? l->chunk : 1;
    t.shared = q->n_samples == 1 ? 0 : t.shared;
    t.seen = (int32_t)kg_kv_first_seen((int64_t)q->prompt_n, l->seen);
    t.prompt = (int32_t)kg_kv_round(t.n_prompt, l->seen, l->chunk);
    t.own = (int32_t)kg_kv_round(t.n_blocks - t.shared, l->seen, at_once);
    return t;
}

struct kg_job kg_request_job(const struct kg_request *q, struct kg_traj *trajs,
                             const struct kg_request_limits *l)
{
    int64_t prompt = (int64_t)q->prompt_n, most = longest(q, l);
    int64_t turn = (int64_t)q->window + kg_request_first_limit(q, l);
    int64_t stored = (rewinds(q) && turn < most ? turn : most) - 1;
    struct kg_take all = {
        .n_prompt = (int32_t)kg_kv_entries(prompt),
        .n_blocks = (int32_t)kg_kv_entries(stored > prompt ? stored : prompt),
        .shared = rewinds(q) ? 0 : (int32_t)(prompt / KG_KV_BLOCK)};
    struct kg_job job = {.request = q, .trajs = trajs, .n_left = q->n_samples};
    all.prompt = all.n_prompt;
    all.own = all.n_blocks - all.shared;
    if (l->n_blocks.of[KG_KV_ALL] > 0)
        job.take[KG_KV_ALL] = all;
    if (l->n_blocks.of[KG_KV_WINDOW] > 0)
        job.take[KG_KV_WINDOW] = through_window(all, q, l);
    return job;
}

/* ---- refusals ---- */

static kg_status check_tokens(const struct kg_request_limits *l, const int32_t *tokens,
                              size_t n, struct kg_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= l->vocab)
            return kg_fail(err, KG_EINVAL,
                           "token %zu is %d, expected an id between 0 and %d", i,
                           tokens[i], l->vocab - 1);
    return KG_OK;
}

static kg_status check_cache(const struct kg_request *q,
                             const struct kg_request_limits *l, struct kg_err *err)
{
    struct kg_job job = kg_request_job(q, NULL, l);
    for (int kind = 0; kind < KG_KV_KINDS; kind++) {
        int64_t needs = kg_job_needs(&job, kind), has = l->n_blocks.of[kind];
        if (needs > has)
            return kg_fail(err, KG_EINVAL,
                           "%zu tokens of prompt and up to %lld new ones need a cache of "
                           "%lld tokens, found %lld",
                           q->prompt_n, (long long)longest(q, l) - (long long)q->prompt_n,
                           (long long)needs * KG_KV_BLOCK, (long long)has * KG_KV_BLOCK);
    }
    return KG_OK;
}

static kg_status check_room(const struct kg_request *q, const struct kg_request_limits *l,
                            struct kg_err *err)
{
    int32_t limit = kg_request_first_limit(q, l);
    int32_t most = q->context > 0 && q->context < l->max_len ? q->context : l->max_len;
    if (q->context > l->max_len)
        return kg_fail(err, KG_EINVAL,
                       "an episode of up to %d tokens exceeds the limit of %d tokens",
                       q->context, l->max_len);
    if (q->prompt_n + (size_t)limit > (size_t)most)
        return kg_fail(
            err, KG_EINVAL,
            "%zu prompt tokens and up to %d new ones exceed the limit of %d tokens",
            q->prompt_n, limit, most);
    return check_cache(q, l, err);
}

static kg_status check_bias(const struct kg_request_limits *l, const struct kg_adjust *a,
                            struct kg_err *err)
{
    for (size_t i = 0; a && i < a->n_bias; i++)
        if (a->bias[i].id < 0 || a->bias[i].id >= l->vocab)
            return kg_fail(err, KG_EINVAL,
                           "a bias is for id %d, expected an id between 0 and %d",
                           a->bias[i].id, l->vocab - 1);
    return KG_OK;
}

static kg_status check_stop_ids(const struct kg_request_limits *l,
                                const struct kg_sampling *s, struct kg_err *err)
{
    for (size_t i = 0; i < s->n_stop_ids; i++)
        if (s->stop_ids[i] < 0 || s->stop_ids[i] >= l->vocab)
            return kg_fail(err, KG_EINVAL,
                           "stop id %zu is %d, expected an id between 0 and %d", i,
                           s->stop_ids[i], l->vocab - 1);
    return KG_OK;
}

static kg_status check_sampling(const struct kg_request_limits *l,
                                const struct kg_sampling *s, struct kg_err *err)
{
    if (s == NULL)
        return kg_fail(err, KG_EINVAL,
                       "expected sampling parameters of the request or the session, "
                       "found none");
    KG_TRY(kg_sampler_check(s, err));
    if (s->n_stops > 0 && !l->stops)
        return kg_fail(err, KG_EINVAL,
                       "stop strings need a tokenizer, and the model has none");
    if (s->record_top_k < 0 || s->record_top_k > l->vocab)
        return kg_fail(
            err, KG_EINVAL,
            "ids to record with a token: expected 0 to the vocabulary's %d, found %d",
            l->vocab, s->record_top_k);
    if (s->record_experts && l->choices == 0)
        return kg_fail(err, KG_EINVAL, "experts to record: the model has none");
    KG_TRY(check_stop_ids(l, s, err));
    return check_bias(l, s->adjust, err);
}

static kg_status check_window(const struct kg_request *q, struct kg_err *err)
{
    if (q->window == 0 ||
        (q->window > 0 && q->context > 0 && (size_t)q->window >= q->prompt_n))
        return KG_OK;
    return kg_fail(
        err, KG_EINVAL,
        "expected a window of at least the prompt's %zu tokens, in an episode, "
        "found one of %d in a context of %d",
        q->prompt_n, q->window, q->context);
}

kg_status kg_request_check(const struct kg_request *q, const struct kg_request_limits *l,
                           struct kg_err *err)
{
    if (q->prompt_n == 0)
        return kg_fail(err, KG_EINVAL,
                       "expected at least one token, found an empty prompt");
    bool limited = q->max_tokens >= 0 || q->max_tokens == KG_PROMPT_ONLY;
    if (q->n_samples < 1 || !limited || q->first_sample < 0 || q->context < 0)
        return kg_fail(err, KG_EINVAL,
                       "expected at least one sample, and a limit, a first sample and a "
                       "context of at least 0, found %d, %d, %d and %d",
                       q->n_samples, q->max_tokens, q->first_sample, q->context);
    if (q->adapter < 0 || q->adapter > l->n_adapters)
        return kg_fail(err, KG_EINVAL, "expected adapter 0 to %d, found %d",
                       l->n_adapters, q->adapter);
    KG_TRY(check_window(q, err));
    KG_TRY(check_sampling(l, kg_request_sampling(q, l), err));
    KG_TRY(check_tokens(l, q->prompt, q->prompt_n, err));
    if (rewinds(q) && kg_request_sampling(q, l)->record_experts)
        return kg_fail(err, KG_EINVAL,
                       "experts to record: a window of %d computes tokens again, in "
                       "another context",
                       q->window);
    return check_room(q, l, err);
}

kg_status kg_request_check_turn(const struct kg_request *q,
                                const struct kg_request_limits *l, size_t seen,
                                const int32_t *tokens, size_t n, int32_t limit,
                                struct kg_err *err)
{
    KG_TRY(check_tokens(l, tokens, n, err));
    if (seen + n + (size_t)limit > (size_t)q->context)
        return kg_fail(err, KG_EINVAL,
                       "%zu tokens so far, an observation of %zu and up to %d new ones "
                       "exceed the episode's limit of %d tokens",
                       seen, n, limit, q->context);
    if (rewinds(q) && limit > kg_request_first_limit(q, l))
        return kg_fail(err, KG_EINVAL,
                       "a turn of %d new tokens exceeds the first turn's %d, for which "
                       "the window of %d has room",
                       limit, kg_request_first_limit(q, l), q->window);
    return KG_OK;
}
