/* The engine driven step by step: episodes of several turns, mixed sampling parameters,
 * cancelling, streams. A trajectory must not depend on the requests that share the batch
 * or on when it was submitted, and its log-probs equal the score's bit for bit. */
#include "rollout/rollout_internal.h"
#include "rollout/rollout_testing.h"
#include "rollout/score.h"
#include "tensor/backend_testing.h"
#include <math.h>

enum {
    N_REQ = 12,
    GROUP = 3, /* room for samples of a request; it has 1 + i % GROUP */
    N_ALL = N_REQ * GROUP,
    LONGEST = 512,
    TURN = 14,
    TURNS = 4,
    MOST_OBSERVED = 90,
    TOP = 4
};

static struct kg_model *models[KG_DTYPE_COUNT], *seeing;
static struct kg_tokenizer *tok;
static int32_t prompts[N_REQ][LONGEST];
static struct kg_sampling samplings[N_REQ];
static struct kg_request requests[N_REQ];
static const char *const stops[] = {"e", "zq", "k"};

static uint32_t pick(uint64_t what, uint32_t a, uint32_t b, uint32_t below)
{
    return kg_rng_below((struct kg_rng_key){5, KG_RNG_TEST}, what, a, b, below);
}

/* Every third request has one turn; the others are episodes, some of them with a
 * window. */
static bool is_episode(int i) { return i % 3 != 2; }
static bool has_window(int i) { return i % 6 == 4; }

static void make_request(int i)
{
    static const float temperatures[] = {1, 0.7f, 0, 1.3f, 1};
    size_t n = 1 + pick(1, (uint32_t)i, 0, 140);
    for (size_t t = 0; t < n; t++)
        prompts[i][t] = (int32_t)pick(2, (uint32_t)i, (uint32_t)t, TEST_V);
    samplings[i] = (struct kg_sampling){.temperature = temperatures[i % 5],
                                        .top_p = i % 4 == 1 ? 0.8f : 1,
                                        .top_k = i % 4 == 2 ? 20 : 0,
                                        .max_tokens = TURN,
                                        .ignore_eos = i % 6 == 5,
                                        .stops = stops,
                                        .n_stops = i % 4,
                                        .record_top_k = i % (TOP + 1),
                                        .record_kept = i % 2 == 1,
                                        .rng = {.seed = (uint64_t)i, KG_RNG_SAMPLE}};
    requests[i] = (struct kg_request){.prompt = prompts[i],
                                      .prompt_n = n,
                                      .prompt_index = i,
                                      .draw = 7 * (uint64_t)i,
                                      .n_samples = 1 + i % GROUP,
                                      .sampling = &samplings[i],
                                      .context = is_episode(i) ? LONGEST - 20 * i : 0,
                                      .window = has_window(i) ? (int32_t)n + i : 0};
}

static int setup(void **state)
{
    (void)state;
    tok = letters();
    models[KG_F32] = make_model(KG_F32, TEST_V);
    models[KG_BF16] = make_model(KG_BF16, TEST_V);
    seeing = make_model(KG_F32, TEST_V);
    seeing->config.layer[0] |= KG_LAYER_WINDOW;
    seeing->config.window = 75;
    for (int ct = 0; ct < KG_DTYPE_COUNT; ct++)
        for (int i = 0; models[ct] && i < 3; i++)
            models[ct]->config.eos[models[ct]->config.n_eos++] = 30 + i;
    for (int i = 0; i < 3; i++)
        seeing->config.eos[seeing->config.n_eos++] = 30 + i;
    for (int i = 0; i < N_REQ; i++)
        make_request(i);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kg_tokenizer_close(tok);
    for (int i = 0; i < KG_DTYPE_COUNT; i++)
        kg_model_free(models[i]);
    kg_model_free(seeing);
    return 0;
}

/* ---- a driver that is slow in random ways ---- */

struct driver {
    struct kg_rollout *r;
    struct kg_traj trajs[N_ALL];
    int turn[N_ALL];
    int wake[N_ALL];   /* step at which a parked episode resumes; -1: not parked */
    int victim[N_ALL]; /* step at which to cancel; 0: never */
    int done[N_ALL];
    int failed;
    size_t last_n[N_ALL]; /* tokens that the token callback has seen */
    uint32_t delays;      /* seed of the delays; 0: resume at once, in the callback */
    int step;
};

static size_t which(const struct driver *d, const struct kg_traj *t)
{
    return (size_t)(t - d->trajs);
}

/* Starts the next turn of an episode, or ends it. The observation depends on the episode
 * and the turn alone. */
static void go_on(struct driver *d, size_t i)
{
    struct kg_traj *t = &d->trajs[i];
    int32_t seen[MOST_OBSERVED];
    uint32_t turn = (uint32_t)++d->turn[i];
    size_t n = pick(10 + i, turn, 0, MOST_OBSERVED);
    int32_t context = requests[i / GROUP].context;
    d->wake[i] = -1;
    for (size_t k = 0; k < n; k++)
        seen[k] = (int32_t)pick(1000 + i, turn, (uint32_t)k, TEST_V);
    int32_t limit = 1 + (int32_t)pick(100 + i, turn, 1, TURN);
    if (turn == TURNS || t->n + n + (size_t)limit > (size_t)context) {
        kg_rollout_close(d->r, t);
        d->done[i]++;
        return;
    }
    NEED(kg_rollout_resume(d->r, t, seen, n, limit, err));
    d->last_n[i] = t->n;
}

static kg_status on_finished(void *user, const struct kg_request *q, struct kg_traj *t,
                             const struct kg_err *failure, struct kg_err *e)
{
    struct driver *d = user;
    size_t i = which(d, t);
    (void)e;
    assert_ptr_equal(q, &requests[i / GROUP]);
    assert_int_equal(d->victim[i] != 0 && d->victim[i] <= d->step, 0);
    if (failure) {
        d->failed++;
        return KG_OK;
    }
    assert_int_equal(d->last_n[i], t->n);
    assert_int_not_equal(t->finish, KG_FINISH_NONE);
    if (q->context == 0)
        d->done[i]++;
    else if (d->delays == 0)
        go_on(d, i);
    else
        d->wake[i] = d->step + (int)pick(d->delays, (uint32_t)i, (uint32_t)d->turn[i], 9);
    return KG_OK;
}

static kg_status on_token(void *user, const struct kg_request *q, const struct kg_traj *t,
                          struct kg_err *e)
{
    struct driver *d = user;
    size_t i = which(d, t);
    (void)q;
    (void)e;
    assert_true(t->n == d->last_n[i] + 1 || d->last_n[i] == 0);
    assert_int_equal(t->source[t->n - 1], KG_SOURCE_MODEL);
    d->last_n[i] = t->n;
    return KG_OK;
}

static void submit_some(struct driver *d, int from, int to)
{
    for (int i = from; i < to; i++)
        NEED(kg_rollout_submit(d->r, &requests[i], &d->trajs[i * GROUP], err));
}

static void between_steps(struct driver *d)
{
    if (d->step == 3)
        submit_some(d, N_REQ / 2, N_REQ);
    for (size_t i = 0; i < N_ALL; i++) {
        if (d->victim[i] == d->step && d->step > 0) {
            kg_rollout_cancel(d->r, &d->trajs[i], 1);
            d->wake[i] = -1;
        }
        if (d->wake[i] >= 0 && d->wake[i] <= d->step)
            go_on(d, i);
    }
}

static void assert_nothing_is_held(const struct kg_rollout *r)
{
    const struct kg_sched *s = &r->sched;
    for (int kind = 0; kind < KG_KV_KINDS; kind++)
        assert_int_equal(s->pool[kind].free.n, s->opts.n_blocks.of[kind]);
    assert_int_equal(s->in[KG_SLOT_FREE].n, r->opts.max_open);
    assert_int_equal(s->order.n, 0);
    assert_int_equal(s->queue_n, 0);
    assert_int_equal(s->n_waiting, 0);
}

static int32_t blocks_held(const struct kg_rollout *r)
{
    return (int32_t)r->sched.opts.n_blocks.of[KG_KV_ALL] -
           r->sched.pool[KG_KV_ALL].free.n;
}

struct way {
    int32_t batch, open, chunk;
    uint32_t delays;
    bool steady;
    bool victims;
    int64_t kv_tokens;
};

/* Runs all requests in the way that w describes. */
static void drive(struct driver *d, const struct kg_model *m, const struct way *w)
{
    struct kg_rollout_opts o = {.max_batch = w->batch,
                                .prefill_chunk = w->chunk,
                                .max_len = LONGEST,
                                .max_open = w->open,
                                .kv_tokens = w->kv_tokens};
    struct kg_rollout_session s = {
        .token = on_token, .finished = on_finished, .user = d, .steady = w->steady};
    struct kg_rollout_load load = {.waiting = 1};
    memset(d, 0, sizeof *d);
    d->delays = w->delays;
    for (size_t i = 0; i < N_ALL; i++) {
        d->wake[i] = -1;
        if (w->victims && pick(77, (uint32_t)i, w->delays, 3) == 0)
            d->victim[i] = 4 + (int)pick(78, (uint32_t)i, w->delays, 30);
    }
    NEED(kg_rollout_create(&d->r, m, tok, &o, err));
    NEED(kg_rollout_begin(d->r, &s, err));
    submit_some(d, 0, N_REQ / 2);
    for (d->step = 1; d->step <= 4 || load.running + load.waiting + load.parked > 0;
         d->step++) {
        between_steps(d);
        NEED(kg_rollout_step(d->r, &load, err));
        assert_true(load.running <= w->batch);
        assert_true(d->step < 5000);
    }
    assert_int_equal(d->failed, 0);
    assert_nothing_is_held(d->r);
    kg_rollout_free(d->r);
}

static void assert_scored_alike(const struct kg_model *m, const struct kg_traj *t)
{
    assert_scored_in_parts(m, t, TOP);
    for (size_t p = 0; p < t->n; p++)
        if (t->source[p] != KG_SOURCE_MODEL)
            assert_true(t->logp[p] == 0);
}

static void release_all(struct driver *d) { release(d->trajs, N_ALL); }

/* Trajectories of b that were not cancelled equal those of a; a cancelled one is a prefix
 * of its counterpart in a. */
static void assert_same_way(const struct driver *a, const struct driver *b)
{
    for (size_t i = 0; i < N_ALL; i++) {
        const struct kg_traj *t = &b->trajs[i];
        if (b->victim[i] && t->finish == KG_FINISH_CANCELLED) {
            assert_true(t->n <= a->trajs[i].n);
            if (t->n > 0)
                assert_memory_equal(t->tokens, a->trajs[i].tokens,
                                    t->n * sizeof *t->tokens);
        } else if (t->n > 0 || a->trajs[i].n > 0) {
            assert_same_traj(&a->trajs[i], t);
            assert_int_equal(a->turn[i], b->turn[i]);
            assert_int_equal(b->done[i], 1);
        }
    }
}

static int count_finish(const struct driver *d, enum kg_finish finish)
{
    int n = 0;
    for (size_t i = 0; i < N_ALL; i++)
        n += d->trajs[i].finish == finish;
    return n;
}

static void check_ways(const struct kg_model *m)
{
    static const struct way ways[] = {
        {.batch = 1, .open = 1, .chunk = 512, .delays = 1},
        {.batch = 2, .open = 7, .chunk = 7, .delays = 2},
        {.batch = 3, .open = 40, .chunk = 64, .delays = 3, .steady = true},
        {.batch = 8, .open = 9, .chunk = 30, .delays = 4, .victims = true},
        {.batch = 5,
         .open = 12,
         .chunk = 16,
         .delays = 5,
         .steady = true,
         .victims = true},
        {.batch = 33, .open = 40, .chunk = 512, .delays = 0},
        {.batch = 4, .open = 6, .chunk = 50, .delays = 0, .victims = true},
        {.batch = 6, .open = 40, .chunk = 99, .delays = 6, .kv_tokens = 1100},
    };
    static struct driver first, again;
    int windows = 0;
    kg_threads_set(1);
    drive(&first, m, &(struct way){.batch = 16, .delays = 9});
    for (size_t i = 0; i < N_ALL; i++)
        if (first.trajs[i].n > 0)
            assert_scored_alike(m, &first.trajs[i]);
    for (size_t i = 0; i < N_ALL; i++)
        windows += (int)first.trajs[i].n_windows;
    assert_true(windows > 4);
    assert_true(count_finish(&first, KG_FINISH_LENGTH) > 2);
    assert_true(count_finish(&first, KG_FINISH_STOP) > 0);
    assert_true(count_finish(&first, KG_FINISH_STRING) > 0);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        kg_threads_set(m == seeing ? 1 : 1 + (int)i % 2);
        drive(&again, m, &ways[i]);
        assert_same_way(&first, &again);
        assert_true(ways[i].victims == (count_finish(&again, KG_FINISH_CANCELLED) > 0));
        release_all(&again);
    }
    release_all(&first);
    kg_threads_set(1);
}

static void random_episodes_are_scored_alike_whatever_shares_the_batch(void **state)
{
    (void)state;
    check_ways(models[KG_F32]);
}

static void so_are_they_in_bf16(void **state)
{
    (void)state;
    if (models[KG_BF16] == NULL) {
        print_message("skip: this machine has no bf16 product\n");
        skip();
    }
    check_ways(models[KG_BF16]);
}

static void so_are_they_where_a_layer_looks_through_a_window(void **state)
{
    (void)state;
    check_ways(seeing);
}

/* ---- one at a time ---- */

/* What the callbacks have seen. */
struct seen {
    struct kg_rollout *r;
    int tokens, ended;
    struct kg_traj *cancel; /* cancel it at the next token */
    struct kg_err failure;
    bool stop;
};

static kg_status see_token(void *user, const struct kg_request *q,
                           const struct kg_traj *t, struct kg_err *e)
{
    struct seen *s = user;
    (void)q;
    (void)t;
    s->tokens++;
    if (s->cancel)
        kg_rollout_cancel(s->r, s->cancel, 1);
    s->cancel = NULL;
    return s->stop ? kg_fail(e, KG_EIO, "the client is gone") : KG_OK;
}

static kg_status see_end(void *user, const struct kg_request *q, struct kg_traj *t,
                         const struct kg_err *failure, struct kg_err *e)
{
    struct seen *s = user;
    (void)q;
    (void)t;
    (void)e;
    s->ended++;
    if (failure)
        s->failure = *failure;
    return KG_OK;
}

static void open_engine(struct seen *s, const struct kg_model *m,
                        const struct kg_rollout_opts *o, bool steady)
{
    struct kg_rollout_session session = {
        .token = see_token, .finished = see_end, .user = s, .steady = steady};
    memset(s, 0, sizeof *s);
    NEED(kg_rollout_create(&s->r, m, tok, o, err));
    NEED(kg_rollout_begin(s->r, &session, err));
}

static void step_to_the_end(struct seen *s)
{
    struct kg_rollout_load load = {.waiting = 1};
    while (load.running + load.waiting > 0)
        NEED(kg_rollout_step(s->r, &load, err));
}

static struct kg_sampling plain(int32_t max_tokens)
{
    return (struct kg_sampling){.temperature = 1,
                                .top_p = 1,
                                .max_tokens = max_tokens,
                                .ignore_eos = true,
                                .rng = {8, KG_RNG_SAMPLE}};
}

static struct kg_request prompt_of(size_t n, const struct kg_sampling *s, int32_t samples)
{
    return (struct kg_request){.prompt = prompts[0],
                               .prompt_n = n,
                               .draw = n,
                               .n_samples = samples,
                               .sampling = s};
}

static void a_long_prompt_does_not_hold_up_a_stream(void **state)
{
    (void)state;
    struct kg_rollout_opts o = {.max_batch = 4, .prefill_chunk = 16, .max_len = LONGEST};
    struct kg_sampling s = plain(60);
    struct kg_request talks = prompt_of(3, &s, 1), late = prompt_of(400, &s, 1);
    struct kg_traj t[2] = {0};
    struct seen seen;
    open_engine(&seen, models[KG_F32], &o, true);
    NEED(kg_rollout_submit(seen.r, &talks, &t[0], err));
    NEED(kg_rollout_step(seen.r, NULL, err));
    NEED(kg_rollout_submit(seen.r, &late, &t[1], err));
    for (size_t step = 1; step <= 25; step++) {
        size_t before = t[0].n;
        assert_int_equal(kg_rollout_stats(seen.r)->prefill_tokens, 3 + 16 * (step - 1));
        NEED(kg_rollout_step(seen.r, NULL, err));
        assert_int_equal(t[0].n, before + 1);
        assert_int_equal(t[1].n > 400, step == 25);
    }
    step_to_the_end(&seen);
    assert_int_equal(seen.tokens, 120);
    release(t, 2);
    kg_rollout_free(seen.r);
}

/* kg_rollout_kv_tokens counts as the engine does, in blocks rather than tokens. */
static void a_cache_for_n_sequences_runs_n_at_once(void **state)
{
    static const int32_t lengths[] = {KG_KV_BLOCK, KG_KV_BLOCK + 1, KG_KV_BLOCK + 8};
    enum { N = 5 };
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct kg_rollout_opts o = {.max_batch = N, .max_len = lengths[i]};
        struct kg_sampling s = plain(lengths[i] - 3);
        struct kg_request q = prompt_of(3, &s, 1);
        struct kg_rollout_load load;
        struct kg_traj t[N] = {0};
        struct seen seen;
        o.kv_tokens = kg_rollout_kv_tokens(N, lengths[i]);
        assert_int_equal(kg_rollout_kv_sequences(models[KG_F32], &o), N);
        o.kv_tokens -= KG_KV_BLOCK;
        assert_int_equal(kg_rollout_kv_sequences(models[KG_F32], &o), N - 1);
        o.kv_tokens = 1;
        assert_int_equal(kg_rollout_kv_sequences(models[KG_F32], &o), 0);
        o.kv_tokens = kg_rollout_kv_tokens(N, lengths[i]);
        open_engine(&seen, models[KG_F32], &o, true);
        for (int k = 0; k < N; k++)
            NEED(kg_rollout_submit(seen.r, &q, &t[k], err));
        NEED(kg_rollout_step(seen.r, &load, err));
        assert_int_equal(load.running, N);
        assert_int_equal(load.waiting, 0);
        step_to_the_end(&seen);
        release(t, N);
        kg_rollout_free(seen.r);
    }
}

/* The embedding of `id` holds a NaN: a request that reads it fails. */
static struct kg_model *model_with_a_hole(int32_t id)
{
    struct kg_model_config c = config(3000);
    struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    struct kg_model *m = NULL;
    c.tied = false;
    NEED(kg_model_create(&m, &c, &opts, 11, err));
    const float nan = NAN;
    NEED(kg_slab_write(&m->master, m->embed->offset + id * (int64_t)c.hidden, &nan, 1,
                       err));
    NEED(kg_model_refresh(m, err));
    return m;
}

static void a_request_that_fails_leaves_the_others_alone(void **state)
{
    (void)state;
    struct kg_model *m = model_with_a_hole(prompts[0][30]);
    struct kg_rollout_opts o = {.max_batch = 4, .max_len = LONGEST};
    struct kg_sampling good = plain(9), bad = plain(9);
    struct kg_request q[3] = {prompt_of(30, &good, 1), prompt_of(31, &bad, 2),
                              prompt_of(30, &good, 1)};
    struct kg_traj t[4] = {0};
    struct seen seen;
    open_engine(&seen, m, &o, false);
    NEED(kg_rollout_submit(seen.r, &q[0], &t[0], err));
    NEED(kg_rollout_submit(seen.r, &q[1], &t[1], err));
    NEED(kg_rollout_submit(seen.r, &q[2], &t[3], err));
    step_to_the_end(&seen);
    assert_int_equal(seen.ended, 4);
    assert_int_equal(seen.failure.code, KG_ENONFINITE);
    assert_non_null(strstr(seen.failure.message, "expected finite logits"));
    for (int i = 1; i <= 2; i++) {
        assert_int_equal(t[i].finish, KG_FINISH_NONE);
        assert_int_equal(t[i].n, 31);
    }
    assert_same_traj(&t[0], &t[3]);
    assert_int_equal(t[0].finish, KG_FINISH_LENGTH);
    assert_nothing_is_held(seen.r);
    release(t, 4);
    kg_rollout_free(seen.r);
    kg_model_free(m);
}

static void cancelling_frees_rows_and_blocks_at_once(void **state)
{
    (void)state;
    struct kg_rollout_opts o = {.max_batch = 3, .prefill_chunk = 16, .max_len = LONGEST};
    struct kg_sampling s = plain(50);
    struct kg_request q[3] = {prompt_of(90, &s, 2), prompt_of(100, &s, 3),
                              prompt_of(20, &s, 2)};
    struct kg_traj t[7] = {0};
    struct kg_rollout_load load;
    struct seen seen;
    open_engine(&seen, models[KG_F32], &o, true);
    for (int i = 0, at = 0; i < 3; at += q[i++].n_samples)
        NEED(kg_rollout_submit(seen.r, &q[i], &t[at], err));
    for (int i = 0; i < 3; i++) /* no prompt is complete yet */
        NEED(kg_rollout_step(seen.r, &load, err));
    assert_int_equal(load.running, 3);
    assert_int_equal(load.waiting, 4);
    kg_rollout_cancel(seen.r, t, 2);     /* while their prompt is computed */
    kg_rollout_cancel(seen.r, &t[6], 1); /* in the queue */
    kg_rollout_cancel(seen.r, &t[3], 1); /* a sample of an open group */
    kg_rollout_get_load(&load, seen.r);
    assert_int_equal(load.running, 1);
    assert_int_equal(load.waiting, 2);
    assert_int_equal(blocks_held(seen.r), 4);
    for (int i = 0; i < 10; i++)
        NEED(kg_rollout_step(seen.r, &load, err));
    assert_true(t[2].n > 100 && t[4].n > 100);
    seen.cancel = &t[4]; /* while tokens are handed out */
    NEED(kg_rollout_step(seen.r, &load, err));
    assert_int_equal(t[4].finish, KG_FINISH_CANCELLED);
    size_t cancelled_at = t[4].n;
    kg_rollout_cancel(seen.r, &t[2], 5);
    assert_nothing_is_held(seen.r);
    NEED(kg_rollout_step(seen.r, &load, err));
    assert_int_equal(load.running + load.waiting, 0);
    assert_int_equal(t[4].n, cancelled_at);
    assert_int_equal(seen.ended, 0);
    for (int i = 0; i < 7; i++)
        assert_int_equal(t[i].finish, KG_FINISH_CANCELLED);
    release(t, 7);
    kg_rollout_free(seen.r);
}

/* Cancels each of three samples in turn, at its first token or a later one. It gets no
 * further token; the others get theirs. */
static void any_of_the_running_may_be_cancelled_between_tokens(void **state)
{
    (void)state;
    struct kg_rollout_opts o = {.max_batch = 3, .max_len = LONGEST};
    struct kg_sampling s = plain(9);
    struct kg_request q = prompt_of(10, &s, 3);
    for (int i = 0; i < 6; i++) {
        struct kg_traj t[3] = {0};
        struct kg_rollout_load load;
        struct seen seen;
        int victim = i / 2;
        open_engine(&seen, models[KG_F32], &o, true);
        NEED(kg_rollout_submit(seen.r, &q, t, err));
        while (i % 2 == 1 && t[0].n < 13)
            NEED(kg_rollout_step(seen.r, &load, err));
        seen.cancel = &t[victim];
        size_t before = t[victim].n;
        NEED(kg_rollout_step(seen.r, &load, err));
        assert_int_equal(load.running, 2);
        step_to_the_end(&seen);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(t[k].finish,
                             k == victim ? KG_FINISH_CANCELLED : KG_FINISH_LENGTH);
            if (k != victim)
                assert_int_equal(t[k].n, 10 + 9);
        }
        assert_true(t[victim].n <= (before > 0 ? before : 10) + 1);
        assert_int_equal(seen.ended, 2);
        assert_nothing_is_held(seen.r);
        release(t, 3);
        kg_rollout_free(seen.r);
    }
}

/* The queue moves its requests to the front when the first ones are taken. */
static void requests_may_come_while_others_are_taken(void **state)
{
    (void)state;
    enum { MANY = 70 };
    struct kg_rollout_opts o = {.max_batch = 2, .max_len = 64};
    struct kg_sampling s = plain(3);
    struct kg_request q[MANY];
    struct kg_traj t[MANY] = {0};
    struct kg_rollout_load load;
    struct seen seen;
    int submitted = 0;
    open_engine(&seen, models[KG_F32], &o, false);
    for (int i = 0; i < MANY; i++) {
        q[i] = prompt_of((size_t)(3 + i % 5), &s, 1);
        q[i].prompt_index = i;
    }
    while (submitted < MANY) { /* 15 at first, then one for each that has ended */
        for (; submitted < MANY && submitted < seen.ended + 15; submitted++)
            NEED(kg_rollout_submit(seen.r, &q[submitted], &t[submitted], err));
        NEED(kg_rollout_step(seen.r, &load, err));
    }
    step_to_the_end(&seen);
    assert_int_equal(seen.ended, MANY);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(t[i].prompt_index, i);
        assert_int_equal(t[i].n, 3 + i % 5 + 3);
    }
    assert_nothing_is_held(seen.r);
    release(t, MANY);
    kg_rollout_free(seen.r);
}

static void parked_episodes_hold_blocks_and_no_row(void **state)
{
    (void)state;
    struct kg_rollout_opts o = {.max_batch = 1, .max_len = LONGEST, .max_open = 3};
    struct kg_sampling s = plain(5);
    struct kg_request q = prompt_of(10, &s, 4);
    struct kg_traj t[4] = {0};
    struct kg_rollout_load load;
    struct seen seen;
    int32_t observed[3] = {1, 2, 3};
    q.context = 200;
    open_engine(&seen, models[KG_F32], &o, false);
    NEED(kg_rollout_submit(seen.r, &q, t, err));
    for (int i = 0; i < 20; i++)
        NEED(kg_rollout_step(seen.r, &load, err));
    assert_int_equal(load.running, 0); /* three are open: no slot for the fourth */
    assert_int_equal(load.waiting, 1);
    assert_int_equal(load.parked, 3);
    assert_int_equal(t[3].n, 0);
    /* 4 blocks each, and 1 of the prompt, kept for the fourth */
    assert_int_equal(blocks_held(seen.r), 3 * 4 + 1);
    NEED(kg_rollout_resume(seen.r, &t[1], observed, 3, 0, err));
    kg_rollout_close(seen.r, &t[0]);
    NEED(kg_rollout_step(seen.r, &load, err));
    assert_int_equal(load.running, 1); /* a resumed episode goes before a new sample */
    assert_int_equal(t[1].n, 10 + 5 + 3 + 2);
    assert_int_equal(t[1].source[15], KG_SOURCE_TOOL);
    assert_int_equal(t[3].n, 0);
    step_to_the_end(&seen);
    assert_int_equal(seen.ended, 5);
    assert_int_equal(t[3].n, 15);
    kg_rollout_cancel(seen.r, t, 4); /* t[0] is closed: it stays as it is */
    assert_int_equal(t[0].finish, KG_FINISH_LENGTH);
    assert_int_equal(t[1].finish, KG_FINISH_CANCELLED);
    assert_nothing_is_held(seen.r);
    release(t, 4);
    kg_rollout_free(seen.r);
}

/* After the window has cut the context, each turn equals the completion of a fresh prompt
 * that consists of the tokens in the window. */
static void a_turn_in_a_window_is_the_answer_to_a_fresh_prompt(void **state)
{
    (void)state;
    struct kg_rollout_opts o = {.max_batch = 4, .max_len = LONGEST};
    struct kg_sampling s = plain(TURN);
    struct kg_request q = prompt_of(70, &s, 3);
    struct kg_traj t[3] = {0}, fresh = {0};
    int32_t observed[] = {4, 5, 6, 7, 8};
    struct seen seen;
    s.temperature = 0;
    s.record_top_k = 2;
    q.context = 300;
    q.window = 90;
    open_engine(&seen, models[KG_F32], &o, false);
    NEED(kg_rollout_submit(seen.r, &q, t, err));
    for (int turn = 0; turn < 6; turn++) {
        step_to_the_end(&seen);
        for (int i = 0; turn < 5 && i < 3; i++) /* observations of different lengths */
            NEED(kg_rollout_resume(seen.r, &t[i], observed, (size_t)(3 + i), 0, err));
    }
    kg_rollout_cancel(seen.r, t, 3);
    assert_nothing_is_held(seen.r);
    for (int i = 0; i < 3; i++) {
        assert_true(t[i].n_windows >= 3 && t[i].n_windows < 6);
        assert_scored_in_parts(models[KG_F32], &t[i], 2);
        for (size_t k = 1; k < kg_traj_n_parts(&t[i], false); k++) {
            struct kg_traj_part p = kg_traj_part(&t[i], k, false);
            struct kg_request one = q;
            assert_int_equal(p.begin - p.from, 90);
            one.prompt = t[i].tokens + p.from;
            one.prompt_n = 90;
            one.context = one.window = 0;
            one.n_samples = 1;
            NEED(kg_rollout_run(seen.r, &fresh, &one, 1, NULL, NULL, NULL, err));
            assert_int_equal(fresh.n - 90, p.end - p.begin);
            assert_memory_equal(fresh.tokens + 90, t[i].tokens + p.begin,
                                (fresh.n - 90) * sizeof *fresh.tokens);
            assert_memory_equal(fresh.logp + 90, t[i].logp + p.begin,
                                (fresh.n - 90) * sizeof *fresh.logp);
            assert_memory_equal(fresh.top_logp + 180, t[i].top_logp + 2 * p.begin,
                                2 * (fresh.n - 90) * sizeof *fresh.logp);
            kg_traj_release(&fresh);
        }
    }
    release(t, 3);
    kg_rollout_free(seen.r);
}

static void a_window_that_cannot_be_is_refused(void **state)
{
    (void)state;
    struct kg_rollout_opts o = {.max_batch = 2, .max_len = LONGEST, .kv_tokens = 128};
    struct kg_sampling s = plain(5);
    struct kg_request q = prompt_of(20, &s, 1);
    struct kg_traj t[2] = {0};
    int32_t observed[30] = {0};
    struct seen seen;
    open_engine(&seen, models[KG_F32], &o, false);
    q.window = 30;
    assert_int_equal(kg_rollout_submit(seen.r, &q, t, &refusal), KG_EINVAL);
    assert_non_null(strstr(refusal.message, "in an episode, found one of 30"));
    q.context = 200;
    q.window = 19;
    assert_int_equal(kg_rollout_submit(seen.r, &q, t, &refusal), KG_EINVAL);
    assert_non_null(strstr(refusal.message, "at least the prompt's 20 tokens"));
    q.window = 62; /* 66 tokens have keys: two blocks, and one to copy the prompt from */
    q.n_samples = 2;
    assert_int_equal(kg_rollout_submit(seen.r, &q, t, &refusal), KG_EINVAL);
    assert_non_null(strstr(refusal.message, "need a cache of 192 tokens, found 128"));
    q.n_samples = 1;
    NEED(kg_rollout_submit(seen.r, &q, t, err));
    step_to_the_end(&seen);
    assert_int_equal(kg_rollout_resume(seen.r, t, observed, 30, 6, &refusal), KG_EINVAL);
    assert_non_null(strstr(refusal.message, "exceeds the first turn's 5"));
    NEED(kg_rollout_resume(seen.r, t, observed, 30, 5, err));
    step_to_the_end(&seen);
    assert_int_equal(t->n_windows, 0);
    NEED(kg_rollout_resume(seen.r, t, observed, 30, 5, err));
    step_to_the_end(&seen);
    assert_int_equal(t->n_windows, 1);
    assert_int_equal(t->windows[0].begin, 90);
    assert_int_equal(t->windows[0].from, 90 - 62);
    kg_rollout_close(seen.r, t);
    assert_nothing_is_held(seen.r);
    kg_traj_release(t);
    kg_rollout_free(seen.r);
}

static void what_cannot_go_on_is_refused_and_stays(void **state)
{
    (void)state;
    struct kg_rollout_opts o = {.max_batch = 2, .max_len = LONGEST};
    struct kg_sampling s = plain(5);
    struct kg_request q = prompt_of(10, &s, 1);
    struct kg_traj t = {0};
    int32_t observed[30] = {0};
    struct seen seen;
    q.context = 40;
    open_engine(&seen, models[KG_F32], &o, false);
    assert_int_equal(kg_rollout_resume(seen.r, &t, observed, 1, 5, &refusal), KG_EINVAL);
    assert_non_null(strstr(refusal.message, "not parked"));
    NEED(kg_rollout_submit(seen.r, &q, &t, err));
    step_to_the_end(&seen);
    assert_int_equal(kg_rollout_resume(seen.r, &t, observed, 21, 5, &refusal), KG_EINVAL);
    assert_non_null(strstr(refusal.message, "exceed the episode's limit of 40 tokens"));
    observed[3] = TEST_V;
    assert_int_equal(kg_rollout_resume(seen.r, &t, observed, 20, 5, &refusal), KG_EINVAL);
    assert_non_null(strstr(refusal.message, "token 3 is 97"));
    observed[3] = 0;
    assert_int_equal(t.n, 15);
    NEED(kg_rollout_resume(seen.r, &t, observed, 20, 5, err));
    assert_int_equal(kg_rollout_resume(seen.r, &t, observed, 1, 1, &refusal), KG_EINVAL);
    step_to_the_end(&seen);
    assert_int_equal(t.n, 40);
    assert_scored_alike(models[KG_F32], &t);
    kg_rollout_close(seen.r, &t);
    assert_nothing_is_held(seen.r);
    kg_traj_release(&t);
    kg_rollout_free(seen.r);
}

static void impossible_requests_are_refused_and_the_session_goes_on(void **state)
{
    (void)state;
    struct kg_rollout_opts o = {.max_batch = 2, .max_len = 100};
    struct kg_sampling s = plain(5), hot = plain(5);
    struct kg_request q = prompt_of(10, &s, 1);
    struct kg_traj t = {0};
    struct seen seen;
    open_engine(&seen, models[KG_F32], &o, false);
    q.context = 101;
    assert_int_equal(kg_rollout_submit(seen.r, &q, &t, &refusal), KG_EINVAL);
    assert_non_null(strstr(refusal.message, "an episode of up to 101 tokens"));
    q.context = 14;
    assert_int_equal(kg_rollout_submit(seen.r, &q, &t, &refusal), KG_EINVAL);
    assert_non_null(strstr(refusal.message, "exceed the limit of 14 tokens"));
    q.context = 0;
    q.sampling = NULL;
    assert_int_equal(kg_rollout_submit(seen.r, &q, &t, &refusal), KG_EINVAL);
    assert_non_null(strstr(refusal.message, "found none"));
    q.sampling = &hot;
    hot.top_p = 0;
    assert_int_equal(kg_rollout_submit(seen.r, &q, &t, &refusal), KG_EINVAL);
    q.sampling = &s;
    q.context = 60;
    assert_int_equal(kg_rollout_run(seen.r, &t, &q, 1, &s, NULL, NULL, &refusal),
                     KG_EINVAL);
    assert_non_null(strstr(refusal.message, "found an episode"));
    q.context = 0;
    NEED(kg_rollout_run(seen.r, &t, &q, 1, &s, NULL, NULL, err));
    assert_int_equal(t.n, 15);
    kg_traj_release(&t);
    kg_rollout_free(seen.r);
}

static void a_session_can_be_begun_again_after_a_failure(void **state)
{
    (void)state;
    struct kg_rollout_opts o = {.max_batch = 2, .max_len = 100};
    struct kg_sampling s = plain(5);
    struct kg_request q = prompt_of(10, &s, 3);
    struct kg_rollout_session session = {.sampling = &s};
    struct kg_traj t[3] = {0};
    struct seen seen;
    open_engine(&seen, models[KG_F32], &o, false);
    NEED(kg_rollout_submit(seen.r, &q, t, err));
    seen.stop = true;
    assert_int_equal(kg_rollout_step(seen.r, NULL, &refusal), KG_EIO);
    release(t, 3);
    NEED(kg_rollout_begin(seen.r, &session, err));
    assert_nothing_is_held(seen.r);
    q.sampling = NULL;
    NEED(kg_rollout_submit(seen.r, &q, t, err));
    step_to_the_end(&seen);
    for (int i = 0; i < 3; i++)
        assert_int_equal(t[i].n, 15);
    release(t, 3);
    kg_rollout_free(seen.r);
}

/* Resumes in the callback when the first turn ends; closes when the second one ends. */
static kg_status two_turns(void *user, const struct kg_request *q, struct kg_traj *t,
                           const struct kg_err *failure, struct kg_err *err)
{
    static const int32_t observed[] = {4, 5, 6};
    struct seen *s = user;
    (void)q;
    if (failure) {
        s->failure = *failure;
        return KG_OK;
    }
    if (s->ended++ % 2 == 0)
        return kg_rollout_resume(s->r, t, observed, 3, 0, err);
    kg_rollout_close(s->r, t);
    return KG_OK;
}

static kg_status two_turn_episode(struct seen *s, struct kg_traj *t,
                                  const struct kg_request *q, struct kg_err *err)
{
    struct kg_rollout_opts o = {.max_batch = 2, .max_len = 200};
    struct kg_rollout_session session = {.finished = two_turns, .user = s};
    struct kg_rollout_load load = {.waiting = 1};
    KG_TRY(kg_rollout_create(&s->r, models[KG_F32], tok, &o, err));
    KG_TRY(kg_rollout_begin(s->r, &session, err));
    KG_TRY(kg_rollout_submit(s->r, q, t, err));
    while (load.running + load.waiting > 0)
        KG_TRY(kg_rollout_step(s->r, &load, err));
    return KG_OK;
}

/* ---- a device that fails ---- */

static int rows_until_failure;
static kg_status failing_head(const struct kg_head_out *out, const struct kg_head *h,
                              struct kg_err *err)
{
    if (h->hidden.rows <= rows_until_failure)
        return backend()->head(out, h, err);
    return kg_fail(err, KG_EIO, "the device is gone");
}

/* If one of the threads that decode a share each fails, the step fails. */
static void a_share_that_fails_fails_the_step(void **state)
{
    struct kg_backend broken = *backend();
    struct kg_model *m = make_model(KG_F32, TEST_V);
    struct kg_request q = {.prompt = prompts[0],
                           .prompt_n = 4,
                           .n_samples = 5,
                           .max_tokens = 20,
                           .sampling = &samplings[0]};
    struct kg_rollout *r;
    struct kg_traj t[5] = {0};
    (void)state;
    broken.head = failing_head;
    broken.draw = NULL; /* so that decode steps call the head */
    m->backend = &broken;
    for (int threads = 1; threads < 4; threads++) {
        struct kg_rollout_opts o = {.max_batch = 8, .max_len = 64};
        kg_threads_set(threads);
        /* the prompt's one row passes; at 2 threads, 5 rows are split 2 and 3: 3 fails */
        rows_until_failure = threads == 2 ? 2 : 1;
        NEED(kg_rollout_create(&r, m, NULL, &o, err));
        assert_int_equal(kg_rollout_run(r, t, &q, 1, NULL, NULL, NULL, &refusal), KG_EIO);
        assert_non_null(strstr(refusal.message, "the device is gone"));
        release(t, 5);
        kg_rollout_free(r);
    }
    kg_threads_set(1);
    kg_model_free(m);
}

static void running_out_of_memory_is_a_status_and_leaks_nothing(void **state)
{
    (void)state;
    need_counted_memory();
    uint64_t before = kg_mem_current_bytes();
    struct kg_sampling s = plain(3);
    struct kg_request q = prompt_of(10, &s, 1);
    int n = 0, ended = 0;
    s.stops = stops;
    s.n_stops = 1;
    s.record_top_k = 2;
    q.context = 120;
    while (ended < 2) {
        struct seen seen = {0};
        struct kg_traj t = {0};
        kg_mem_fail_at((uint64_t)++n);
        kg_status status = two_turn_episode(&seen, &t, &q, &refusal);
        kg_mem_fail_at(0);
        ended = seen.ended;
        if (ended < 2 && status != KG_ENOMEM)
            assert_int_equal(seen.failure.code, KG_ENOMEM);
        kg_traj_release(&t);
        kg_rollout_free(seen.r);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
    assert_true(n > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_episodes_are_scored_alike_whatever_shares_the_batch),
        cmocka_unit_test(so_are_they_in_bf16),
        cmocka_unit_test(so_are_they_where_a_layer_looks_through_a_window),
        cmocka_unit_test(a_long_prompt_does_not_hold_up_a_stream),
        cmocka_unit_test(a_cache_for_n_sequences_runs_n_at_once),
        cmocka_unit_test(a_request_that_fails_leaves_the_others_alone),
        cmocka_unit_test(cancelling_frees_rows_and_blocks_at_once),
        cmocka_unit_test(any_of_the_running_may_be_cancelled_between_tokens),
        cmocka_unit_test(requests_may_come_while_others_are_taken),
        cmocka_unit_test(parked_episodes_hold_blocks_and_no_row),
        cmocka_unit_test(a_turn_in_a_window_is_the_answer_to_a_fresh_prompt),
        cmocka_unit_test(a_window_that_cannot_be_is_refused),
        cmocka_unit_test(what_cannot_go_on_is_refused_and_stays),
        cmocka_unit_test(impossible_requests_are_refused_and_the_session_goes_on),
        cmocka_unit_test(a_session_can_be_begun_again_after_a_failure),
        cmocka_unit_test(a_share_that_fails_fails_the_step),
        cmocka_unit_test(running_out_of_memory_is_a_status_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
