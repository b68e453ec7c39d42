/* A rollout whose host launches a decode step before it has read the tokens of the step
 * before. Its trajectories equal those of a backend without the slot `feed`, whose host
 * waits for every step; and the host waits for nothing but the tokens of the previous
 * step. */
#include "rollout/rollout_testing.h"

#include "base/rng.h"
#include "tensor/backend_testing.h"

enum { N_REQ = 12, GROUP = 3, N_ALL = N_REQ * GROUP, NEW = 14, PROMPT = 70, TOP = 3 };

static struct kg_err err;
static struct kg_tokenizer *tok;
static int32_t prompts[N_REQ][PROMPT];
static struct kg_sampling samplings[N_REQ];
static struct kg_request requests[N_REQ];
static const char *const stops[] = {"e", "k"};
static const struct kg_logit_bias bias[] = {{3, 2}, {40, -100}};
static const struct kg_adjust adjust = {.bias = bias, .n_bias = 2, .presence = 0.5f};

/* Covers every way to sample and to end. The samples of a group share their prompt, which
 * may fill a cache block. */
static void make_requests(bool adjusts)
{
    for (int i = 0; i < N_REQ; i++) {
        for (int t = 0; t < PROMPT; t++)
            prompts[i][t] = (int32_t)kg_rng_below((struct kg_rng_key){5, KG_RNG_TEST},
                                                  (uint64_t)i, (uint32_t)t, 0, TEST_V);
        samplings[i] = (struct kg_sampling){.temperature = i % 5 ? 1 : 0,
                                            .top_p = i % 4 == 1 ? 0.8f : 1,
                                            .top_k = i % 4 == 2 ? 20 : 0,
                                            .min_p = i % 4 == 3 ? 0.05f : 0,
                                            .max_tokens = 1 + (i * 5) % NEW,
                                            .ignore_eos = i % 6 == 5,
                                            .stops = stops,
                                            .n_stops = i % 3,
                                            .record_top_k = i % (TOP + 1),
                                            .record_kept = i % 2 == 1,
                                            .rng = {(uint64_t)i, KG_RNG_SAMPLE}};
        if (adjusts && i % 6 == 4)
            samplings[i].adjust = &adjust;
        requests[i] = (struct kg_request){.prompt = prompts[i],
                                          .prompt_n = i % 4 == 2 ? PROMPT : 1 + (size_t)i,
                                          .prompt_index = i,
                                          .draw = (uint64_t)i,
                                          .n_samples = 1 + i % GROUP,
                                          .sampling = &samplings[i]};
    }
}

static int setup(void **state)
{
    (void)state;
    tok = letters();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kg_tokenizer_close(tok);
    return 0;
}

/* window: sliding window of the first of two layers; 0: none */
static struct kg_model *model_seeing(const struct kg_backend *be, int32_t window)
{
    struct kg_model_opts on = {.backend = be, .ct = KG_F32, .trainable = true};
    struct kg_model_config c = config(TEST_V);
    struct kg_model *m = NULL;

    c.window = window;
    c.layer[0] |= window > 0 ? KG_LAYER_WINDOW : 0;

    for (int i = 0; i < 12; i++)
        c.eos[c.n_eos++] = 30 + i;
    assert_int_equal(kg_model_create(&m, &c, &on, 11, &err), KG_OK);
    return m;
}

static struct kg_model *model_on(const struct kg_backend *be)
{
    return model_seeing(be, 0);
}

/* Submits half of the requests while others run.   t (N_ALL): t[i * GROUP + k] is sample
 * k of request i */
static kg_status drive(struct kg_traj *t, struct kg_rollout *r)
{
    const struct kg_rollout_session session = {0};
    struct kg_rollout_load load = {.waiting = 1};
    int next = 0;

    memset(t, 0, N_ALL * sizeof *t);
    KG_TRY(kg_rollout_begin(r, &session, &err));
    for (int step = 0; load.running + load.waiting > 0 || next < N_REQ; step++) {
        for (; next < N_REQ && (next < N_REQ / 2 || step > 2 * (next - N_REQ / 2));
             next++)
            KG_TRY(kg_rollout_submit(r, &requests[next], &t[next * GROUP], &err));
        KG_TRY(kg_rollout_step(r, &load, &err));
    }
    return KG_OK;
}

static kg_status generate(struct kg_traj *t, struct kg_rollout_stats *stats,
                          const struct kg_backend *be, int width)
{
    const struct kg_rollout_opts opts = {
        .max_batch = width, .prefill_chunk = 32, .max_len = PROMPT + NEW};
    struct kg_model *m = model_on(be);
    struct kg_rollout *r = NULL;
    kg_status status;

    assert_int_equal(kg_rollout_create(&r, m, tok, &opts, &err), KG_OK);
    status = drive(t, r);
    *stats = *kg_rollout_stats(r);
    kg_rollout_free(r);
    kg_model_free(m);
    return status;
}

static int count_finish(const struct kg_traj *t, enum kg_finish finish)
{
    int n = 0;

    for (int i = 0; i < N_ALL; i++)
        n += t[i].finish == finish;
    return n;
}

static void assert_same(const struct kg_traj *a, const struct kg_traj *b)
{
    for (int i = 0; i < N_ALL; i++) {
        if (a[i].n == 0 && b[i].n == 0)
            continue;
        assert_same_traj(&a[i], &b[i]);
        assert_int_equal(a[i].kept_total, b[i].kept_total);
        if (a[i].kept_total > 0)
            assert_memory_equal(a[i].kept, b[i].kept, a[i].kept_total);
        assert_memory_equal(&a[i].cut_nats, &b[i].cut_nats, sizeof a[i].cut_nats);
    }
}

/* ---- with and without the slot `feed` ---- */
static void compare(bool adjusts, int width)
{
    struct kg_backend waits = *backend();
    static struct kg_traj ahead[N_ALL], behind[N_ALL];
    struct kg_rollout_stats a, b;

    make_requests(adjusts);
    waits.feed = NULL;
    assert_int_equal(generate(ahead, &a, backend(), width), KG_OK);
    assert_int_equal(generate(behind, &b, &waits, width), KG_OK);
    assert_same(ahead, behind);
    assert_int_equal(a.decode_tokens, b.decode_tokens);
    assert_int_equal(a.prefill_tokens, b.prefill_tokens);
    assert_true(count_finish(ahead, KG_FINISH_STOP) > 0);
    assert_true(count_finish(ahead, KG_FINISH_STRING) > 0);
    assert_true(count_finish(ahead, KG_FINISH_LENGTH) > 0);
    if (width == 1) /* a step launched after the last token is uploaded, not counted */
        assert_true(a.decode_traffic.ups > (uint64_t)a.decode_steps);
    assert_int_equal(b.decode_traffic.ups, b.decode_steps);
    release(ahead, N_ALL);
    release(behind, N_ALL);
}

static void a_rollout_does_not_show_that_the_host_is_behind(void **state)
{
    (void)state;
    compare(false, 5);
    if (SANITIZED) /* a minute each */
        return;
    compare(false, 1);
    compare(false, 64);
}

static void nor_where_some_have_to_be_waited_for(void **state)
{
    (void)state;
    compare(true, 3);
}

/* Two samples. The block table of the windowed layer wraps around two cache blocks, while
 * that of the other layer grows; every step sends both to the device. */
static void nor_where_a_layer_looks_through_a_window(void **state)
{
    enum { SAMPLES = 2, LONG = 140 };
    const struct kg_rollout_opts opts = {
        .max_batch = SAMPLES, .prefill_chunk = 32, .max_len = PROMPT + LONG};
    struct kg_backend waits = *backend();
    const struct kg_backend *const ways[] = {backend(), &waits};
    struct kg_sampling s = {
        .temperature = 1, .top_p = 1, .max_tokens = LONG, .ignore_eos = true};
    struct kg_traj t[2][SAMPLES];

    (void)state;
    if (SANITIZED) /* two minutes; rollout/window_test covers the host's part there */
        skip();
    make_requests(false);
    waits.feed = NULL;
    for (int i = 0; i < 2; i++) {
        const struct kg_request q = {.prompt = prompts[0],
                                     .prompt_n = PROMPT,
                                     .n_samples = SAMPLES,
                                     .sampling = &s};
        struct kg_model *m = model_seeing(ways[i], 11);
        struct kg_rollout *r = NULL;

        assert_int_equal(kg_rollout_create(&r, m, NULL, &opts, &err), KG_OK);
        assert_int_equal(kg_rollout_run(r, t[i], &q, 1, &s, NULL, NULL, &err), KG_OK);
        kg_rollout_free(r);
        if (i == 0)
            assert_scored_in_parts(m, &t[i][1], 0);
        kg_model_free(m);
    }
    for (int k = 0; k < SAMPLES; k++) {
        assert_same_traj(&t[0][k], &t[1][k]);
        kg_traj_release(&t[0][k]);
        kg_traj_release(&t[1][k]);
    }
}

/* ---- what the host waits for ---- */
static char calls[256];
static size_t n_calls;

static void call(char what)
{
    if (n_calls + 1 < sizeof calls)
        calls[n_calls++] = what;
}
static kg_status noted_put(void *to, const void *from, uint64_t bytes, struct kg_err *e)
{
    call('L');
    return backend()->put_later(to, from, bytes, e);
}
static kg_status noted_wait(uint64_t mark, struct kg_err *e)
{
    call('W');
    return backend()->wait(mark, e);
}

/* One prompt with two samples of NEW tokens each. */
static kg_status run_pair(struct kg_rollout_stats *stats, struct kg_traj t[2],
                          const struct kg_backend *be)
{
    const struct kg_rollout_opts opts = {
        .max_batch = 2, .prefill_chunk = 32, .max_len = PROMPT + NEW};
    struct kg_sampling s = {
        .temperature = 1, .top_p = 0.9f, .max_tokens = NEW, .ignore_eos = true};
    struct kg_request q = {
        .prompt = prompts[0], .prompt_n = 3, .n_samples = 2, .sampling = &s};
    struct kg_model *m = model_on(be);
    struct kg_rollout *r = NULL;
    kg_status status;

    assert_int_equal(kg_rollout_create(&r, m, NULL, &opts, &err), KG_OK);
    n_calls = 0;
    status = kg_rollout_run(r, t, &q, 1, &s, NULL, NULL, &err);
    calls[n_calls] = 0;
    n_calls = sizeof calls; /* record no further calls */
    *stats = *kg_rollout_stats(r);
    kg_rollout_free(r);
    kg_model_free(m);
    return status;
}

/* The host launches a step ('L'), then waits for the previous one ('W'), and for nothing
 * else. */
static void the_host_waits_for_the_step_before_alone(void **state)
{
    enum { STEPS = NEW - 1 };
    struct kg_backend noted = *backend();
    struct kg_rollout_stats stats;
    struct kg_traj t[2];
    /* the prompt's pack and the wait for its log-probs, then the first step's pack */
    char expected[2 * STEPS + 3] = "LWL";

    (void)state;
    make_requests(false);
    noted.put_later = noted_put;
    noted.wait = noted_wait;
    assert_int_equal(run_pair(&stats, t, &noted), KG_OK);
    for (int i = 1; i < STEPS; i++)
        strcat(expected, "LW");
    strcat(expected, "W");
    assert_string_equal(calls, expected);
    assert_int_equal(stats.decode_steps, STEPS);
    assert_int_equal(stats.decode_traffic.waits, STEPS);
    assert_int_equal(stats.decode_traffic.ups, STEPS);
    assert_int_equal(stats.decode_traffic.downs, STEPS);
    release(t, 2);
}

/* ---- planted faults ---- */
static kg_status no_wait(uint64_t mark, struct kg_err *e)
{
    (void)mark, (void)e;
    return KG_OK;
}
/* Fault: overwrites the source of an upload that the device has not read yet. */
static kg_status spoilt_put(void *to, const void *from, uint64_t bytes, struct kg_err *e)
{
    KG_TRY(backend()->put_later(to, from, bytes, e));
    *(int32_t *)(uintptr_t)from ^= 1;
    return KG_OK;
}

/* Drains the pending work and faults of a run that did not wait. */
static void settle(void)
{
    int faults = 0;

    while (kg_buf_settle(backend(), &err) != KG_OK)
        assert_true(faults++ < 9);
}

/* Asserts that a rollout on this faulty backend fails with `status`. */
static void assert_found(const struct kg_backend *hasty, kg_status status)
{
    struct kg_rollout_stats stats;
    struct kg_traj t[2];

    if (!emulated())
        skip();
    make_requests(false);
    assert_int_equal(run_pair(&stats, t, hasty), status);
    release(t, 2);
}

static void what_is_read_too_early_is_found(void **state)
{
    struct kg_backend hasty = *backend();

    (void)state;
    hasty.wait = no_wait;
    assert_found(&hasty, KG_ENONFINITE);
    settle();
}

static void what_is_written_too_early_is_found(void **state)
{
    struct kg_backend hasty = *backend();

    (void)state;
    hasty.put_later = spoilt_put;
    assert_found(&hasty, KG_EDEVICE);
    assert_non_null(strstr(err.message, "was changed before it was waited for"));
    settle();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rollout_does_not_show_that_the_host_is_behind),
        cmocka_unit_test(nor_where_some_have_to_be_waited_for),
        cmocka_unit_test(nor_where_a_layer_looks_through_a_window),
        cmocka_unit_test(the_host_waits_for_the_step_before_alone),
        cmocka_unit_test(what_is_read_too_early_is_found),
        cmocka_unit_test(what_is_written_too_early_is_found),
    };

    return RUN_EMULATED_ONCE(tests, setup, teardown);
}
