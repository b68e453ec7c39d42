/* The recorded experts of every token are those that one forward over the whole
 * trajectory chooses, whatever the batch, the chunks and the turns it was sampled in.
 */
#include "model/rows.h"
#include "rollout/rollout_testing.h"

enum { N_REQ = 3, SAMPLES = 3, MOST = 160, ANSWER = 9, MOST_CHOICES = 16 };

static int32_t prompts[N_REQ][MOST];
static const size_t lengths[N_REQ] = {37, 1, 50};
static const int32_t heard[] = {7, 11, 3, 5}; /* observations */

static struct kg_model *open_model(const char *name)
{
    char dir[128];
    struct kg_model *m = NULL;
    const struct kg_model_opts opts = {.ct = KG_BF16};
    snprintf(dir, sizeof dir, "tests/data/reference/%s", name);
    NEED(kg_model_open(&m, dir, &opts, err));
    for (int i = 0; i < N_REQ; i++)
        for (int t = 0; t < MOST; t++)
            prompts[i][t] = (7 * t * t + 5 * i + t) % 40 + 3;
    return m;
}

static struct kg_sampling sampling(void)
{
    return (struct kg_sampling){.temperature = 1,
                                .top_p = 1,
                                .max_tokens = ANSWER,
                                .ignore_eos = true,
                                .record_experts = true,
                                .rng = {.seed = 3, .stream = KG_RNG_SAMPLE}};
}

/* Checks every token but the last, which was sampled and never fed to the model. */
static void assert_routes(const struct kg_model *m, const struct kg_traj *t)
{
    const struct kg_rows_opts opts = {.max_tokens = MOST};
    uint16_t own[MOST * MOST_CHOICES];
    struct kg_rows *p = NULL;
    const size_t c = (size_t)kg_model_config_choices(&m->config);
    assert_true(t->n > 1 && t->n <= MOST && c <= MOST_CHOICES);
    assert_int_equal(t->choices, c);
    NEED(kg_rows_create(&p, m, &opts, err));
    kg_rows_add(p, t->tokens, t->n);
    kg_rows_want(p, 0, -1, 1, NULL);
    NEED(kg_rows_forward(p, false, err));
    NEED(kg_rows_experts(own, p, 0, (int64_t)t->n, err));
    assert_memory_equal(t->experts, own, (t->n - 1) * c * sizeof *own);
    for (size_t i = 0; i < c; i++)
        assert_int_equal(t->experts[(t->n - 1) * c + i], KG_TRAJ_CHOOSES);
    kg_rows_free(p);
}

static struct kg_request request(int i)
{
    return (struct kg_request){.prompt = prompts[i],
                               .prompt_n = lengths[i],
                               .prompt_index = i,
                               .draw = (uint64_t)i,
                               .n_samples = SAMPLES};
}

static void answers_have_the_experts_of_one_forward(void **state)
{
    static const char *const names[] = {"qwen3_moe", "olmoe"};
    static const struct kg_rollout_opts engines[] = {
        {.max_batch = 1, .max_len = 70},
        {.max_batch = 2, .prefill_chunk = 5, .max_len = 70},
        {.max_batch = 16, .prefill_chunk = 64, .max_len = 70}};
    (void)state;
    for (int n = 0; n < 2 * 3; n++) {
        struct kg_model *m = open_model(names[n / 3]);
        struct kg_rollout *r = NULL;
        struct kg_request q[N_REQ] = {request(0), request(1), request(2)};
        struct kg_traj t[N_REQ * SAMPLES] = {{0}};
        struct kg_sampling s = sampling();
        NEED(kg_rollout_create(&r, m, NULL, &engines[n % 3], err));
        NEED(kg_rollout_run(r, t, q, N_REQ, &s, NULL, NULL, err));
        for (int i = 0; i < N_REQ * SAMPLES; i++)
            assert_routes(m, &t[i]);
        release(t, N_REQ * SAMPLES);
        kg_rollout_free(r);
        kg_model_free(m);
    }
}

/* ---- episodes ---- */

struct episode {
    struct kg_rollout *r;
    int turns[SAMPLES];
    struct kg_traj *t;
};

/* Three turns; an observation of four tokens follows the first, one of one token the
 * second. */
static kg_status goes_on(void *user, const struct kg_request *q, struct kg_traj *t,
                         const struct kg_err *failure, struct kg_err *err)
{
    struct episode *e = user;
    const int turn = e->turns[t - e->t]++;
    (void)q;
    assert_null(failure);
    if (turn == 2) {
        kg_rollout_close(e->r, t);
        return KG_OK;
    }
    return kg_rollout_resume(e->r, t, heard, turn == 0 ? 4 : 1, 0, err);
}

static void what_a_tool_says_has_experts_too(void **state)
{
    (void)state;
    for (int batch = 1; batch <= SAMPLES; batch++) {
        struct kg_model *m = open_model("qwen2_moe");
        const struct kg_rollout_opts opts = {
            .max_batch = batch, .max_open = SAMPLES, .prefill_chunk = 3, .max_len = 120};
        struct kg_traj t[SAMPLES] = {{0}};
        struct episode e = {.t = t};
        struct kg_sampling s = sampling();
        const struct kg_rollout_session session = {
            .sampling = &s, .finished = goes_on, .user = &e, .steady = batch % 2};
        struct kg_request q = request(0);
        struct kg_rollout_load load;
        q.context = 120;
        NEED(kg_rollout_create(&e.r, m, NULL, &opts, err));
        NEED(kg_rollout_begin(e.r, &session, err));
        NEED(kg_rollout_submit(e.r, &q, t, err));
        do
            NEED(kg_rollout_step(e.r, &load, err));
        while (load.running + load.waiting > 0);
        for (int i = 0; i < SAMPLES; i++) {
            assert_int_equal(t[i].n, lengths[0] + 3 * ANSWER + 5);
            assert_routes(m, &t[i]);
        }
        release(t, SAMPLES);
        kg_rollout_free(e.r);
        kg_model_free(m);
    }
}

/* ---- refusals ---- */

static void expect_refused(struct kg_model *m, const struct kg_request *q,
                           const char *why)
{
    const struct kg_rollout_opts opts = {.max_batch = 1, .max_len = 120};
    struct kg_sampling s = sampling();
    const struct kg_rollout_session session = {.sampling = &s};
    struct kg_rollout *r = NULL;
    struct kg_traj t[SAMPLES] = {{0}};
    NEED(kg_rollout_create(&r, m, NULL, &opts, err));
    NEED(kg_rollout_begin(r, &session, err));
    assert_int_equal(kg_rollout_submit(r, q, t, &refusal), KG_EINVAL);
    assert_string_equal(refusal.message, why);
    kg_rollout_free(r);
    kg_model_free(m);
}

static void what_has_no_one_choice_is_refused(void **state)
{
    struct kg_request q = request(0);
    (void)state;
    expect_refused(open_model("qwen3"), &q,
                   "prompt 0: experts to record: the model has none");
    q.context = 120;
    q.window = 40;
    expect_refused(open_model("qwen3_moe"), &q,
                   "prompt 0: experts to record: a window of 40 computes tokens again, "
                   "in another context");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_have_the_experts_of_one_forward),
        cmocka_unit_test(what_a_tool_says_has_experts_too),
        cmocka_unit_test(what_has_no_one_choice_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
