/* Scores of prompts equal those of kg_score bit for bit, whatever the chunk, the batch
 * and the other requests, with a completion and without. */
#include "rollout/rollout_testing.h"
#include "rollout/score_testing.h"

#include <math.h>

enum { N_REQ = 7, LONGEST = 200, TOP = 5, SAMPLES = 3 };

static struct kg_model *models[KG_DTYPE_COUNT];
static int32_t prompts[N_REQ][LONGEST];
static struct kg_sampling samplings[N_REQ];
static struct kg_request requests[N_REQ];

/* Scores of one prompt: found by the engine, or expected, from kg_score. */
struct scores {
    float logp[LONGEST], top_logp[LONGEST * TOP];
    int32_t top_ids[LONGEST * TOP];
    struct kg_prompt_scores view;
};
static struct scores found[N_REQ], expected[N_REQ];

static uint32_t pick(uint64_t what, uint32_t a, uint32_t b, uint32_t below)
{
    return kg_rng_below((struct kg_rng_key){6, KG_RNG_TEST}, what, a, b, below);
}

/* Lengths around the ends of a block, and a single token; every second request has no
 * completion. */
static void make_request(int i)
{
    static const size_t lengths[N_REQ] = {1, 16, 17, 150, 32, 2, 99};
    static const float temperatures[] = {1, 0, 0.7f};
    for (size_t t = 0; t < lengths[i]; t++)
        prompts[i][t] = (int32_t)pick(1, (uint32_t)i, (uint32_t)t, TEST_V);
    samplings[i] = (struct kg_sampling){.temperature = temperatures[i % 3],
                                        .top_p = 1,
                                        .max_tokens = 9,
                                        .record_top_k = i % 4 == 1 ? 0 : TOP,
                                        .rng = {.seed = 3, KG_RNG_SAMPLE}};
    requests[i] = (struct kg_request){.prompt = prompts[i],
                                      .prompt_n = lengths[i],
                                      .prompt_index = i,
                                      .n_samples = 1 + i % SAMPLES,
                                      .max_tokens = i % 2 ? KG_PROMPT_ONLY : 0,
                                      .sampling = &samplings[i],
                                      .scores = &found[i].view};
}

static int setup(void **state)
{
    (void)state;
    models[KG_F32] = make_model(KG_F32, TEST_V);
    models[KG_BF16] = make_model(KG_BF16, TEST_V);
    for (int i = 0; i < N_REQ; i++)
        make_request(i);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < KG_DTYPE_COUNT; i++)
        kg_model_free(models[i]);
    return 0;
}

static void clear(struct scores *s)
{
    memset(s, 0, sizeof *s);
    s->view = (struct kg_prompt_scores){s->logp, s->top_ids, s->top_logp};
}

static void score(const struct kg_model *m)
{
    for (int i = 0; i < N_REQ; i++) {
        struct scores *e = &expected[i];
        clear(e);
        struct kg_score_seq q = {.tokens = prompts[i],
                                 .n = requests[i].prompt_n,
                                 .temperature = samplings[i].temperature,
                                 .logp = e->logp,
                                 .top_ids = e->top_ids,
                                 .top_logp = e->top_logp};
        score_one(m, &q, 0, samplings[i].record_top_k);
    }
}

static void run(const struct kg_model *m, struct kg_traj *t,
                const struct kg_rollout_opts *o)
{
    struct kg_rollout *r;
    for (int i = 0; i < N_REQ; i++)
        clear(&found[i]);
    NEED(kg_rollout_create(&r, m, NULL, o, err));
    NEED(kg_rollout_run(r, t, requests, N_REQ, NULL, NULL, NULL, err));
    kg_rollout_free(r);
}

static void check(const struct kg_model *m, const struct kg_rollout_opts *o)
{
    struct kg_traj t[N_REQ * SAMPLES];
    const struct kg_traj *at = t;
    run(m, t, o);
    for (int i = 0; i < N_REQ; i++) {
        const struct kg_request *q = &requests[i];
        assert_memory_equal(found[i].logp, expected[i].logp, sizeof found[i].logp);
        assert_memory_equal(found[i].top_ids, expected[i].top_ids,
                            sizeof found[i].top_ids);
        assert_memory_equal(found[i].top_logp, expected[i].top_logp,
                            sizeof found[i].top_logp);
        for (int j = 0; j < q->n_samples; j++, at++) {
            assert_int_equal(at->prompt_n, q->prompt_n);
            assert_int_equal(at->n - at->prompt_n, q->max_tokens == 0 ? 9 : 0);
            assert_int_equal(at->finish, KG_FINISH_LENGTH);
        }
    }
    release(t, (size_t)(at - t));
}

static void prompts_get_the_bits_of_the_score(void **state)
{
    static const struct kg_rollout_opts ways[] = {
        {.max_batch = 1, .prefill_chunk = 1, .max_len = LONGEST},
        {.max_batch = 2, .prefill_chunk = 7, .max_len = LONGEST},
        {.max_batch = 8, .prefill_chunk = 64, .max_len = LONGEST},
        {.max_batch = 16, .prefill_chunk = 512, .max_len = LONGEST},
        {.max_batch = 4, .max_len = LONGEST, .kv_tokens = 200},
    };
    (void)state;
    for (int ct = 0; ct < KG_DTYPE_COUNT; ct++) {
        if (models[ct] == NULL)
            continue;
        score(models[ct]);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
            check(models[ct], &ways[w]);
    }
}

/* The completions equal those of requests without scores. */
static void scoring_changes_no_answer(void **state)
{
    const struct kg_rollout_opts o = {.max_batch = 3, .max_len = LONGEST};
    struct kg_traj with[N_REQ * SAMPLES], without[N_REQ * SAMPLES];
    size_t n = 0;
    (void)state;
    run(models[KG_F32], with, &o);
    for (int i = 0; i < N_REQ; i++)
        requests[i].scores = NULL;
    run(models[KG_F32], without, &o);
    for (int i = 0; i < N_REQ; i++) {
        requests[i].scores = &found[i].view;
        for (int j = 0; j < requests[i].n_samples; j++, n++)
            assert_same_traj(&with[n], &without[n]);
    }
    release(with, n);
    release(without, n);
}

/* A prompt that fills the context can be scored, because no token follows it. */
static void a_prompt_may_fill_the_context(void **state)
{
    const struct kg_rollout_opts o = {.max_batch = 1, .max_len = 150};
    struct kg_request q = requests[3];
    struct kg_rollout *r;
    struct kg_traj t = {0};
    (void)state;
    NEED(kg_rollout_create(&r, models[KG_F32], NULL, &o, err));
    NEED(kg_rollout_run(r, &t, &q, 1, NULL, NULL, NULL, err));
    assert_int_equal(t.n, 150);
    release(&t, 1);
    q.max_tokens = 1;
    assert_int_equal(kg_rollout_run(r, &t, &q, 1, NULL, NULL, NULL, &refusal), KG_EINVAL);
    q.max_tokens = KG_PROMPT_ONLY;
    q.context = 150; /* an episode is parked after its prompt */
    NEED(kg_rollout_begin(r, &(struct kg_rollout_session){0}, err));
    NEED(kg_rollout_submit(r, &q, &t, err));
    for (struct kg_rollout_load load = {.waiting = 1}; load.running + load.waiting > 0;)
        NEED(kg_rollout_step(r, &load, err));
    assert_int_equal(t.n, 150);
    assert_int_equal(t.finish, KG_FINISH_LENGTH);
    release(&t, 1);
    kg_rollout_free(r);
}

/* ---- logits that are not finite ---- */

static int n_failed, n_well;

static kg_status count(void *user, const struct kg_request *q, struct kg_traj *t,
                       const struct kg_err *failure, struct kg_err *err)
{
    (void)user;
    (void)t;
    (void)err;
    n_failed += failure != NULL;
    n_well += failure == NULL;
    if (failure && strstr(failure->message, "prompt 4, token 1") == NULL)
        fail_msg("%s", failure->message);
    assert_int_equal(failure != NULL, q->prompt_index == 4);
    return KG_OK;
}

/* All samples of a prompt that cannot be scored fail; the other requests continue. */
static void a_prompt_that_cannot_be_scored_fails_alone(void **state)
{
    const struct kg_rollout_opts o = {.max_batch = 2, .max_len = LONGEST};
    const struct kg_rollout_session session = {.finished = count};
    struct kg_rollout_load load = {.waiting = 1};
    struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    struct kg_model_config c = config(TEST_V);
    struct kg_model *m;
    struct kg_rollout *r;
    struct kg_traj t[2 * SAMPLES] = {0};
    struct kg_request bad = requests[4], good = requests[2];
    static const int32_t poison[] = {96, 3, 4};
    static const int32_t sound[] = {1, 2, 3, 4};
    (void)state;
    c.tied = false;
    NEED(kg_model_create(&m, &c, &opts, 11, err));
    const float nan = NAN;
    NEED(kg_slab_write(&m->master, m->embed->offset + (int64_t)96 * c.hidden, &nan, 1,
                       err));
    NEED(kg_model_refresh(m, err));
    bad.prompt = poison;
    bad.prompt_n = 3;
    bad.n_samples = 3; /* the third starts in a later pass than the first two */
    good.prompt = sound;
    good.prompt_n = 4;
    good.max_tokens = 1; /* so that no completion continues after a 96 */
    NEED(kg_rollout_create(&r, m, NULL, &o, err));
    NEED(kg_rollout_begin(r, &session, err));
    NEED(kg_rollout_submit(r, &bad, t, err));
    NEED(kg_rollout_submit(r, &good, t + 3, err));
    n_failed = n_well = 0;
    while (load.running + load.waiting > 0)
        NEED(kg_rollout_step(r, &load, err));
    assert_int_equal(n_failed, 3);
    assert_int_equal(n_well, good.n_samples);
    release(t, 2 * SAMPLES);
    kg_rollout_free(r);
    kg_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_get_the_bits_of_the_score),
        cmocka_unit_test(scoring_changes_no_answer),
        cmocka_unit_test(a_prompt_may_fill_the_context),
        cmocka_unit_test(a_prompt_that_cannot_be_scored_fails_alone),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
