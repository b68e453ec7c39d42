/* Requests with different adapters in one batch: each completion, and each score of a
 * prompt, equals bit for bit that of a run with its adapter alone. */
#include "rollout/rollout_testing.h"
#include "tensor/backend_testing.h"

#include "base/clock.h"

enum {
    ADAPTERS = 2,
    MODELS = ADAPTERS + 1,
    N_REQ = 9,
    SAMPLES = 2,
    LONGEST = 60,
    NEW = 9
};

struct mix {
    struct kg_model *base, *others[ADAPTERS];
};

static int32_t prompts[N_REQ][LONGEST];
static struct kg_sampling sampling;
static float scores[2][N_REQ][LONGEST]; /* mixed, alone */

/* Fills all of A and B with random values, as a training step might leave them. */
static void move(struct kg_model *m, uint32_t salt)
{
    float *w = malloc((size_t)m->n_elements * sizeof *w);
    for (int64_t j = 0; j < m->n_elements; j++)
        w[j] = 0.2f * ((float)kg_rng_below((struct kg_rng_key){salt, KG_RNG_TEST}, 0,
                                           (uint32_t)j, 0, 2001) /
                           1000.0f -
                       1.0f);
    NEED(kg_slab_write(&m->master, 0, w, m->n_elements, err));
    NEED(kg_model_refresh(m, err));
    free(w);
}

/* The adapters have different ranks and targets; down_proj's rank 9 is above all others.
 * be: NULL for the default */
static void open_mix(struct mix *x, enum kg_dtype ct, const struct kg_backend *be)
{
    const struct kg_model_config c = config(TEST_V);
    const struct kg_model_opts own = {.backend = be, .ct = ct, .trainable = true};

    struct kg_lora lora[ADAPTERS] = {{.rank = 4, .alpha = 8}, {.rank = 7, .alpha = 3}};
    NEED(kg_lora_add_target(&lora[1], "q_proj", "targets", err));
    NEED(kg_lora_add_target(&lora[1], "down_proj", "targets", err));
    NEED(kg_lora_add_rule(&lora[1], KG_LORA_RANK, "down_proj", 9, "rules", err));
    NEED(kg_model_create(&x->base, &c, &own, 11, err));
    for (int i = 0; i < ADAPTERS; i++) {
        const struct kg_model_opts opts = {.ct = ct, .lora = &lora[i]};
        NEED(kg_model_share(&x->others[i], x->base, &opts, err));
        move(x->others[i], 1 + (uint32_t)i);
    }
}

static void close_mix(struct mix *x)
{
    for (int i = 0; i < ADAPTERS; i++)
        kg_model_free(x->others[i]);
    kg_model_free(x->base);
}

static struct kg_request request(int i, int side)
{
    static struct kg_prompt_scores views[2][N_REQ];
    const size_t n = 1 + (size_t)i * 7 % LONGEST;
    for (size_t t = 0; t < n; t++)
        prompts[i][t] = (int32_t)kg_rng_below((struct kg_rng_key){5, KG_RNG_TEST}, 1,
                                              (uint32_t)i, (uint32_t)t, TEST_V);
    views[side][i] = (struct kg_prompt_scores){.logp = scores[side][i]};
    return (struct kg_request){.prompt = prompts[i],
                               .prompt_n = n,
                               .prompt_index = i,
                               .n_samples = SAMPLES,
                               .scores = &views[side][i]};
}

static void run(struct kg_traj *t, const struct kg_model *m, const struct kg_request *q,
                size_t n, int32_t max_batch)
{
    const struct kg_rollout_opts o = {
        .max_batch = max_batch, .max_len = LONGEST + NEW, .prefill_chunk = 16};
    struct kg_rollout *r;
    NEED(kg_rollout_create(&r, m, NULL, &o, err));
    NEED(kg_rollout_run(r, t, q, n, &sampling, NULL, NULL, err));
    kg_rollout_free(r);
}

/* Runs each request alone, on the model that owns its adapter. */
static void run_alone(struct kg_traj *t, const struct mix *x)
{
    for (int i = 0; i < N_REQ; i++) {
        const struct kg_request q = request(i, 1);
        const int a = i % MODELS;
        run(t + SAMPLES * i, a == 0 ? x->base : x->others[a - 1], &q, 1, 1);
    }
}

static void check_mixed(struct mix *x, const struct kg_traj *alone, int32_t max_batch)
{
    struct kg_traj t[N_REQ * SAMPLES];
    struct kg_request q[N_REQ];
    for (int i = 0; i < N_REQ; i++) {
        q[i] = request(i, 0);
        q[i].adapter = i % MODELS;
    }
    run(t, x->base, q, N_REQ, max_batch);
    for (int i = 0; i < N_REQ * SAMPLES; i++)
        assert_same_traj(&t[i], &alone[i]);
    for (int i = 0; i < N_REQ; i++)
        assert_memory_equal(scores[0][i], scores[1][i],
                            q[i].prompt_n * sizeof scores[0][i][0]);
    release(t, N_REQ * SAMPLES);
}

/* If the adapters changed nothing, the comparison would prove nothing. */
static void assert_adapters_matter(const struct mix *x)
{
    struct kg_traj t[MODELS];
    for (int a = 0; a < MODELS; a++) {
        struct kg_request q = request(8, 0);
        q.n_samples = 1;
        run(&t[a], a == 0 ? x->base : x->others[a - 1], &q, 1, 1);
    }
    for (int a = 0; a < MODELS; a++) {
        const struct kg_traj *u = &t[a], *v = &t[(a + 1) % MODELS];
        assert_true(u->n != v->n ||
                    memcmp(u->logp, v->logp, u->n * sizeof *u->logp) != 0);
    }
    release(t, MODELS);
}

static void check(enum kg_dtype ct, const struct kg_backend *be)
{
    static const int32_t batches[] = {1, 5, 16};
    struct kg_traj alone[N_REQ * SAMPLES];
    struct mix x;
    open_mix(&x, ct, be);
    assert_adapters_matter(&x);
    run_alone(alone, &x);
    NEED(kg_model_mix(x.base, (const struct kg_model *const *)x.others, ADAPTERS, err));
    for (int i = 0; i < 3; i++)
        check_mixed(&x, alone, batches[i]);
    kg_threads_set(1);
    check_mixed(&x, alone, batches[1]);
    kg_threads_set(0);
    release(alone, N_REQ * SAMPLES);
    close_mix(&x);
}

static void mixed_answers_are_those_of_each_alone(void **state)
{
    (void)state;
    check(KG_F32, NULL);
    check(KG_BF16, NULL);
}

/* Simulates a library whose order of summation depends on the width of the weight. */
static struct kg_backend by_width;
static kg_status multiply(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                          enum kg_matmul_kind kind, bool accumulate, struct kg_err *e)
{
    const struct kg_backend *cpu;
    KG_TRY(kg_backend_open_cpu(&cpu, e));
    KG_TRY(cpu->matmul(c, a, b, kind, accumulate, e));
    for (int64_t i = 0; i < c.rows && c.dtype == KG_F32; i++)
        for (int64_t j = 0; j < c.cols; j++)
            ((float *)c.data)[i * c.stride + j] *= 1 + (float)(c.cols % 13) / 1024;
    return KG_OK;
}

static void weights_are_one_in_the_same_rows_always(void **state)
{
    const struct kg_backend *cpu;
    (void)state;
    NEED(kg_backend_open_cpu(&cpu, err));
    by_width = *cpu;
    by_width.weights = KG_ROWS;
    by_width.matmul = multiply;
    by_width.matmul_shared = NULL;
    by_width.matmul_two = NULL;
    check(KG_F32, &by_width);
}

static void an_adapter_that_is_not_there_is_refused(void **state)
{
    const struct kg_rollout_opts o = {.max_batch = 1, .max_len = LONGEST};
    const struct kg_rollout_session session = {.sampling = &sampling};
    struct kg_request q = request(1, 0);
    struct kg_traj t[SAMPLES] = {0};
    struct kg_rollout *r;
    struct mix x;
    (void)state;
    open_mix(&x, KG_F32, NULL);
    NEED(kg_model_mix(x.base, (const struct kg_model *const *)x.others, ADAPTERS, err));
    NEED(kg_rollout_create(&r, x.base, NULL, &o, err));
    NEED(kg_rollout_begin(r, &session, err));
    q.adapter = MODELS;
    assert_int_equal(kg_rollout_submit(r, &q, t, &refusal), KG_EINVAL);
    assert_non_null(strstr(refusal.message, "expected adapter 0 to 2, found 3"));
    kg_rollout_free(r);
    close_mix(&x);
}

static int setup(void **state)
{
    (void)state;
    sampling = (struct kg_sampling){.temperature = 1,
                                    .top_p = 1,
                                    .max_tokens = NEW,
                                    .rng = {.seed = 3, KG_RNG_SAMPLE}};
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixed_answers_are_those_of_each_alone),
        cmocka_unit_test(weights_are_one_in_the_same_rows_always),
        cmocka_unit_test(an_adapter_that_is_not_there_is_refused),
    };
    return RUN_SHOWN(tests, setup, NULL);
}
