/* Layers with a sliding window: the cache holds only what the window sees, and no result
 * depends on that. Log-probs equal those of scoring, which has no cache. */
#include "rollout/rollout_internal.h"
#include "rollout/rollout_testing.h"

#include "tensor/backend_testing.h"

enum {
    WINDOW = 70,
    SEEN = WINDOW / KG_KV_BLOCK + 2,
    LONGEST = 1000,
    CHUNK = 48,
    ALL = 6
};

static int32_t text[LONGEST];

/* The first of two layers has the window; the second has it if `both`. What the first
 * layer computes for a token reaches the tokens after it, so an error there shows. */
static struct kg_model *model_of(bool both)
{
    struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    struct kg_model_config c = config(TEST_V);
    struct kg_model *m = NULL;
    c.max_positions = 1024;
    c.window = WINDOW;
    c.layer[0] |= KG_LAYER_WINDOW;
    c.layer[1] |= both ? KG_LAYER_WINDOW : 0;
    NEED(kg_model_create(&m, &c, &opts, 11, err));
    return m;
}

static int setup(void **state)
{
    (void)state;
    kg_threads_set(1);
    for (int i = 0; i < LONGEST; i++)
        text[i] = (int32_t)kg_rng_below((struct kg_rng_key){6, KG_RNG_TEST}, 1,
                                        (uint32_t)i, 0, TEST_V);
    return 0;
}

/* ---- a run of requests ---- */

struct run {
    struct kg_rollout_opts opts;
    struct kg_sampling sampling;
    struct kg_request requests[ALL];
    int n;
    struct kg_traj trajs[ALL];
    int32_t most_seen; /* most blocks of windowed layers in use while all decode */
    int32_t most_running;
};

/* Request k has a prompt of prompt_n + k tokens and n_samples completions of `new`
 * tokens. */
static void ask(struct run *x, size_t prompt_n, int32_t n_samples, int32_t new)
{
    x->sampling = (struct kg_sampling){.temperature = 1,
                                       .top_p = 1,
                                       .max_tokens = new,
                                       .ignore_eos = true,
                                       .record_top_k = 2,
                                       .rng = {3, KG_RNG_SAMPLE}};
    x->n = ALL / n_samples;
    for (int k = 0; k < x->n; k++)
        x->requests[k] = (struct kg_request){.prompt = text + k,
                                             .prompt_n = prompt_n + (size_t)k,
                                             .draw = (uint64_t)k,
                                             .n_samples = n_samples,
                                             .sampling = &x->sampling};
    x->opts = (struct kg_rollout_opts){.max_batch = ALL,
                                       .prefill_chunk = CHUNK,
                                       .max_len = (int32_t)prompt_n + x->n - 1 + new};
}

static int32_t in_use(const struct kg_rollout *r, enum kg_kv_kind kind)
{
    return (int32_t)r->sched.opts.n_blocks.of[kind] - r->sched.pool[kind].free.n;
}

static void count(struct run *x, const struct kg_rollout *r,
                  const struct kg_rollout_load *load)
{
    const int32_t used = in_use(r, KG_KV_WINDOW);
    x->most_running = load->running > x->most_running ? load->running : x->most_running;
    if (load->running < ALL)
        return;
    for (int32_t i = 0; i < ALL; i++) {
        const struct kg_table *t = &r->sched.slots[i].table[KG_KV_WINDOW];
        assert_true(t->end - t->shared <= SEEN);
    }
    x->most_seen = used > x->most_seen ? used : x->most_seen;
}

static void run(struct run *x, const struct kg_model *m)
{
    const struct kg_rollout_session session = {0};
    struct kg_rollout_load load = {.waiting = 1};
    struct kg_rollout *r = NULL;
    memset(x->trajs, 0, sizeof x->trajs);
    NEED(kg_rollout_create(&r, m, NULL, &x->opts, err));
    NEED(kg_rollout_begin(r, &session, err));
    for (int k = 0, at = 0; k < x->n; at += x->requests[k++].n_samples)
        NEED(kg_rollout_submit(r, &x->requests[k], &x->trajs[at], err));
    while (load.running + load.waiting > 0) {
        NEED(kg_rollout_step(r, &load, err));
        count(x, r, &load);
    }
    assert_int_equal(in_use(r, KG_KV_WINDOW) + in_use(r, KG_KV_ALL), 0);
    kg_rollout_free(r);
}

static void assert_scored(const struct run *x, const struct kg_model *m)
{
    for (int i = 0; i < ALL; i++) {
        assert_int_equal(x->trajs[i].finish, KG_FINISH_LENGTH);
        assert_scored_in_parts(m, &x->trajs[i], 2);
    }
}

/* ---- what is held ---- */

/* Short prompts, completions of eight windows. */
static void check_long_answers(bool both)
{
    static struct run x;
    struct kg_model *m = model_of(both);
    x = (struct run){0};
    ask(&x, 5, 1, 8 * WINDOW);
    run(&x, m);
    assert_scored(&x, m);
    assert_int_equal(x.most_running, ALL);
    assert_true(x.most_seen > 0 && x.most_seen <= ALL * SEEN);
    release(x.trajs, ALL);
    kg_model_free(m);
}

static void a_long_answer_holds_what_its_window_sees(void **state)
{
    (void)state;
    check_long_answers(true);
    check_long_answers(false);
}

/* Prompts that end before the edge of the window, at the end of a block and far after the
 * edge; three samples share each of them and continue past the edge. */
static void a_prompt_is_shared_across_the_edge_of_the_window(void **state)
{
    static const size_t prompts[] = {30, 128, 3 * WINDOW + 1, 600};
    struct kg_model *m = model_of(false);
    static struct run x, alone;
    (void)state;
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        x = alone = (struct run){0};
        ask(&x, prompts[i], 3, 80);
        run(&x, m);
        assert_scored(&x, m);
        alone = x;
        alone.opts.max_batch = 1;
        alone.opts.prefill_chunk = 512;
        run(&alone, m);
        for (int k = 0; k < ALL; k++)
            assert_same_traj(&x.trajs[k], &alone.trajs[k]);
        release(x.trajs, ALL);
        release(alone.trajs, ALL);
    }
    kg_model_free(m);
}

/* Two prompts of two blocks each, which are freed when all samples have passed them. */
static void what_is_out_of_every_window_is_given_back(void **state)
{
    struct kg_model *m = model_of(true);
    struct kg_rollout_load load;
    struct kg_rollout *r = NULL;
    const struct kg_rollout_session session = {0};
    static struct run x;
    (void)state;
    x = (struct run){0};
    ask(&x, 128, 3, 3 * WINDOW);
    NEED(kg_rollout_create(&r, m, NULL, &x.opts, err));
    NEED(kg_rollout_begin(r, &session, err));
    for (int k = 0; k < 2; k++)
        NEED(kg_rollout_submit(r, &x.requests[k], &x.trajs[3 * k], err));
    NEED(kg_rollout_step(r, &load, err));
    assert_int_equal(load.running, ALL);
    assert_int_equal(in_use(r, KG_KV_WINDOW), ALL * 3 + 2 * 2);
    for (int i = 0; i < 2 * WINDOW; i++)
        NEED(kg_rollout_step(r, &load, err));
    assert_int_equal(load.running, ALL);
    assert_int_equal(in_use(r, KG_KV_WINDOW), ALL * 3);
    kg_rollout_free(r);
    release(x.trajs, ALL);
    kg_model_free(m);
}

/* The observation is longer than what a sequence holds between turns; chunks of several
 * lengths. */
static void a_long_observation_is_computed_by_chunks(void **state)
{
    static const int32_t chunks[] = {CHUNK, 300, 1000};
    struct kg_model *m = model_of(false);
    static struct run x;
    (void)state;
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        const struct kg_rollout_session session = {0};
        struct kg_rollout_load load = {0};
        struct kg_rollout *r = NULL;
        x = (struct run){0};
        ask(&x, 140, 3, 20);
        x.opts.max_len = x.requests[0].context = 700;
        x.opts.prefill_chunk = chunks[i];
        x.opts.episodes = true;
        NEED(kg_rollout_create(&r, m, NULL, &x.opts, err));
        NEED(kg_rollout_begin(r, &session, err));
        NEED(kg_rollout_submit(r, &x.requests[0], x.trajs, err));
        for (int turn = 0; turn < 3; turn++) {
            do
                NEED(kg_rollout_step(r, &load, err));
            while (load.running + load.waiting > 0);
            for (int k = 0; k < 3 && turn < 2; k++)
                NEED(kg_rollout_resume(r, &x.trajs[k], text + k, 230, 0, err));
        }
        for (int k = 0; k < 3; k++) {
            assert_int_equal(x.trajs[k].n, 140 + 3 * 20 + 2 * 230);
            assert_scored_in_parts(m, &x.trajs[k], 2);
            kg_rollout_close(r, &x.trajs[k]);
        }
        assert_int_equal(in_use(r, KG_KV_WINDOW) + in_use(r, KG_KV_ALL), 0);
        kg_rollout_free(r);
        release(x.trajs, ALL);
    }
    kg_model_free(m);
}

/* ---- a cache that is too small ---- */

/* The cache has room for one prompt and the windows of one or two of six samples, which
 * wait for one another. */
static void a_full_cache_is_waited_for_and_shows_in_nothing(void **state)
{
    static struct run wide, narrow;
    (void)state;
    for (int both = 0; both < 2; both++) {
        struct kg_model *m = model_of(both);
        for (int32_t samples = 1; samples <= 3; samples += 2) {
            wide = narrow = (struct run){0};
            ask(&wide, 200, samples, 60);
            run(&wide, m);
            narrow = wide;
            narrow.most_running = 0;
            narrow.opts.kv_tokens = (both ? 7 : 9) * KG_KV_BLOCK;
            run(&narrow, m);
            assert_int_equal(wide.most_running, ALL);
            assert_in_range(narrow.most_running, 1, 3);
            for (int k = 0; k < ALL; k++)
                assert_same_traj(&wide.trajs[k], &narrow.trajs[k]);
            assert_scored(&wide, m);
            release(wide.trajs, ALL);
            release(narrow.trajs, ALL);
        }
        kg_model_free(m);
    }
}

/* If all layers have a window, a small cache suffices for a prompt of any length; if one
 * layer sees everything, the cache has to hold the whole sequence. */
static void what_no_empty_cache_could_hold_is_refused(void **state)
{
    static struct run x;
    (void)state;
    for (int both = 0; both < 2; both++) {
        struct kg_model *m = model_of(both);
        struct kg_rollout *r = NULL;
        const struct kg_rollout_session session = {0};
        x = (struct run){0};
        ask(&x, 700, 1, 100);
        x.opts.kv_tokens = (both ? 2 : 12) * KG_KV_BLOCK;
        NEED(kg_rollout_create(&r, m, NULL, &x.opts, err));
        NEED(kg_rollout_begin(r, &session, err));
        assert_int_equal(kg_rollout_submit(r, &x.requests[0], x.trajs, &refusal),
                         KG_EINVAL);
        assert_non_null(
            strstr(refusal.message, both ? "need a cache of 192 tokens, found 128"
                                         : "need a cache of 832 tokens, found 768"));
        kg_rollout_free(r);
        kg_model_free(m);
    }
}

/* ---- what is planned ---- */

static void a_plan_counts_what_windows_see(void **state)
{
    const uint64_t block = 2 * KG_KV_BLOCK * 2 * 16 * sizeof(float); /* of one layer */
    struct kg_rollout_opts o = {.max_batch = 4, .max_len = 1024, .prefill_chunk = CHUNK};
    struct kg_model *all = model_of(true), *mixed = model_of(false);
    uint64_t cache, whole = 4 * 16 + 1, seen = (3 + 1) * 3 + 2 * 3;
    (void)state;
    kg_rollout_memory(&cache, all, &o);
    assert_int_equal(cache, 2 * seen * block);
    kg_rollout_memory(&cache, mixed, &o);
    assert_int_equal(cache, (seen + whole) * block);
    o.max_len = KG_KV_BLOCK; /* as much as a window sees */
    kg_rollout_memory(&cache, all, &o);
    assert_int_equal(cache, 2 * 5 * block);
    o.max_len = 2048;
    o.prefill_chunk = 512; /* a turn is computed in chunks of 512 */
    o.episodes = true;
    kg_rollout_memory(&cache, all, &o);
    assert_int_equal(cache, 2 * 6 * 11 * block);
    assert_int_equal(kg_rollout_kv_sequences(all, &o), 6);
    o.kv_tokens = 40 * KG_KV_BLOCK;
    assert_int_equal(kg_rollout_kv_sequences(all, &o), 3);
    assert_int_equal(kg_rollout_kv_sequences(mixed, &o), 1);
    kg_model_free(all);
    kg_model_free(mixed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_answer_holds_what_its_window_sees),
        cmocka_unit_test(a_prompt_is_shared_across_the_edge_of_the_window),
        cmocka_unit_test(what_is_out_of_every_window_is_given_back),
        cmocka_unit_test(a_long_observation_is_computed_by_chunks),
        cmocka_unit_test(a_full_cache_is_waited_for_and_shows_in_nothing),
        cmocka_unit_test(what_no_empty_cache_could_hold_is_refused),
        cmocka_unit_test(a_plan_counts_what_windows_see),
    };
    return RUN_SHOWN(tests, setup, NULL);
}
