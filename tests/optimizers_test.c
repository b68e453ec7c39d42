/* Whole runs with an optimizer that averages (schedule-free): the sampler uses the
 * trained weights, the checkpoint's model is the average, and stopping changes no bit. */
#define ROOT "build/test-runs/optimizers"
#include "run_testing.h"

#include "tensor/backend_testing.h"
#include "train/keep/checkpoint.h"

#include <math.h>

static const char *const whole[] = {"optim.kind=schedule-free",
                                    "algo.preset=ema-pg",
                                    "sft.steps=2",
                                    "sft.batch=8",
                                    "optim.warmup_steps=2",
                                    NULL};
static const char *const half[] = {
    "optim.kind=schedule-free", "algo.preset=ema-pg", "sft.steps=2",  "sft.batch=8",
    "optim.warmup_steps=2",     "train.steps=2",      "eval.every=1", NULL};

static void stopping_and_validating_change_no_bit(void **state)
{
    (void)state;
    fresh(ROOT "/whole");
    fresh(ROOT "/half");
    must_train(ROOT "/whole", false, whole);
    must_train(ROOT "/half", false, half);
    must_train(ROOT "/half", true, whole);
    assert_same_file(ROOT "/whole", ROOT "/half", "checkpoints/latest/state.safetensors");
    assert_same_file(ROOT "/whole", ROOT "/half",
                     "checkpoints/latest/model/model.safetensors");
    assert_same_file(ROOT "/whole", ROOT "/half", "rollouts/step-000004.jsonl.zst");
}

/* out (n) <- the start of tensor `name` of the model that a run wrote. */
static void tensor_of(float *out, int64_t n, const char *dir, const char *name)
{
    struct kg_model_opts opts = {.ct = KG_F32};
    struct kg_model *m;
    char path[256];

    snprintf(path, sizeof path, "%s/checkpoints/latest/model", dir);
    opts.trainable = true;
    NEED(kg_model_open(&m, path, &opts, err));
    for (size_t i = 0; i < m->n_params; i++) {
        if (strcmp(m->params[i].name, name) == 0)
            memcpy(out, m->params[i].master, (size_t)n * sizeof *out);
    }
    kg_model_free(m);
}

/* Both runs make one update with the same gradients, so only the decay differs. */
static void decay_reaches_what_the_key_says(void **state)
{
    static const char *const all[] = {"train.steps=1", "train.updates_per_step=1",
                                      "optim.weight_decay=10", "optim.decay=all", NULL};
    static const char *const some[] = {"train.steps=1", "train.updates_per_step=1",
                                       "optim.weight_decay=10", "optim.decay=matrices",
                                       NULL};
    static const char *const idle[] = {"optim.weight_decay=0", "optim.decay=matrices",
                                       NULL};
    static const char matrix[] = "model.layers.0.mlp.up_proj.weight";
    float a[128] = {0}, b[128] = {0};
    struct kg_err found;

    (void)state;
    fresh(ROOT "/all");
    fresh(ROOT "/some");
    must_train(ROOT "/all", false, all);
    must_train(ROOT "/some", false, some);
    tensor_of(a, 128, ROOT "/all", "model.norm.weight");
    tensor_of(b, 128, ROOT "/some", "model.norm.weight");
    for (int i = 0; i < 128; i++) /* the rate is 1e-3, the decay 10 */
        assert_true(fabsf(a[i] - b[i] + 0.01f * b[i]) < 2e-4f * fabsf(b[i]) && a[i] != 0);
    tensor_of(a, 128, ROOT "/all", matrix);
    tensor_of(b, 128, ROOT "/some", matrix);
    assert_memory_equal(a, b, sizeof a);
    fresh(ROOT "/idle");
    assert_int_equal(train(ROOT "/idle", false, idle, &found), KG_EINVAL);
    assert_non_null(strstr(found.message, "optim.decay has no effect"));
}

static void what_samples_is_what_is_trained(void **state)
{
    double mismatch[8];
    int n = metrics_of(mismatch, 8, ROOT "/whole", "mismatch/first_update_max");

    (void)state;
    assert_int_equal(n, 4);
    for (int i = 0; i < n; i++)
        assert_true(mismatch[i] == 0);
}

/* Compares the model of the checkpoint with the average of y and z in its state. */
static void what_is_written_is_the_average(void **state)
{
    struct kg_config *config = config_of(ROOT "/written", whole);
    struct kg_run run;
    struct kg_model *written;
    struct kg_model_opts opts = {.ct = KG_F32};
    double apart = 0, off = 0;
    bool found;

    (void)state;
    opts.trainable = true;
    NEED(kg_run_open(&run, config, err));
    run.log.dir = ROOT "/whole";
    NEED(kg_checkpoint_load(&run, &found, err));
    assert_true(found);
    NEED(kg_model_open(&written, ROOT "/whole/checkpoints/latest/model", &opts, err));
    for (int64_t i = 0; i < written->n_elements; i++) {
        double y = (double)run.state.model->master.data[i],
               z = (double)run.state.optim->state[0].data[i];
        double x = (y - 0.1 * z) / 0.9;

        apart = fmax(apart, fabs(x - y));
        off = fmax(off, fabs(x - (double)written->master.data[i]));
    }
    assert_true(apart > 1e-5);
    assert_true(off < 1e-6);
    kg_model_free(written);
    kg_run_close(&run);
    kg_config_free(config);
}

static void a_schedule_is_refused_before_the_warm_start(void **state)
{
    static const char *const cosine[] = {"optim.kind=schedule-free",
                                         "optim.schedule=cosine", NULL};
    struct kg_err err;

    (void)state;
    fresh(ROOT "/cosine");
    assert_int_equal(train(ROOT "/cosine", false, cosine, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "optim.schedule"));
    assert_false(kg_file_exists(ROOT "/cosine/config.yaml"));
}

/* ---- optim.place ---- */

/* Updates on the host and on the device must give equal weights, state and dumps, on
 * memory that the host cannot touch (`far`) or on emulated kernels. */
static void assert_place_shows_in_no_bit(const char *backend, const char *const *extra,
                                         int steps)
{
    static const char *const dirs[] = {ROOT "/there", ROOT "/on-host"};
    const char *all[32];
    size_t n = 0;

    for (; extra[n]; n++)
        all[n] = extra[n];
    all[n + 1] = NULL;
    setenv("KEDGE_TEST_BACKEND", backend, 1);
    for (int host = 0; host < 2; host++) {
        all[n] = host ? "optim.place=host" : "optim.place=device";
        fresh(dirs[host]);
        must_train(dirs[host], false, all);
    }
    unsetenv("KEDGE_TEST_BACKEND");
    assert_same_run(dirs[0], dirs[1], steps);
    assert_same_file(dirs[0], dirs[1], "checkpoints/latest/state.safetensors");
}

/* Keys of small runs with an anchor; keys that a run lists later win. */
#define EMA   "anchor.kind=ema", "kl.estimator=k3", "kl.beta=0.05", "anchor.period=1"
#define SMALL "rollout.prompts=2", "rollout.samples=2", "eval.problems=2"

static void updates_on_the_host_have_the_same_bits(void **state)
{
    static const char *const adamw[] = {EMA,
                                        SMALL,
                                        "sft.steps=2",
                                        "optim.clip_norm=0.1",
                                        "model.dtype=bf16",
                                        "train.steps=2",
                                        NULL};
    static const char *const bf16[] = {EMA,
                                       SMALL,
                                       "optim.moments=bf16",
                                       "optim.weight_decay=0.1",
                                       "optim.decay=matrices",
                                       "anchor.place=host",
                                       "rollout.lag=1",
                                       "train.steps=3",
                                       NULL};
    static const char *const free[] = {EMA,
                                       SMALL,
                                       "optim.kind=schedule-free",
                                       "eval.every=1",
                                       "optim.warmup_steps=2",
                                       "train.steps=3",
                                       NULL};

    (void)state;
    if (getenv("KEDGE_TEST_BACKEND"))
        skip();
    assert_place_shows_in_no_bit("far", adamw, 2);
    assert_place_shows_in_no_bit("far", bf16, 3);
    assert_place_shows_in_no_bit("far", free, 3);
}

static void updates_on_the_host_have_the_bits_of_kernels(void **state)
{
    static const char *const small[] = {EMA,
                                        SMALL,
                                        "train.steps=1",
                                        "rollout.max_tokens=4",
                                        "eval.every=0",
                                        "eval.at_start=false",
                                        "train.updates_per_step=1",
                                        "model.dtype=bf16",
                                        "optim.moments=bf16",
                                        NULL};
    const struct kg_backend *be;
    struct kg_err e;

    (void)state;
    if (getenv("KEDGE_TEST_BACKEND") || kg_backend_open(&be, "emu", &e) != KG_OK)
        skip();
    assert_place_shows_in_no_bit("emu", small, 1);
}

/* A run that changes optim.place on resume must equal the run that did not. */
static void a_run_goes_on_with_another_place(void **state)
{
    static const char *const once[] = {SMALL, "train.steps=2", "optim.place=device",
                                       NULL};
    static const char *const begun[][6] = {
        {SMALL, "train.steps=1", "optim.place=device", NULL},
        {SMALL, "train.steps=1", "optim.place=host", NULL}};
    static const char *const resumed[][6] = {
        {SMALL, "train.steps=2", "optim.place=host", NULL},
        {SMALL, "train.steps=2", "optim.place=device", NULL}};

    (void)state;
    if (getenv("KEDGE_TEST_BACKEND"))
        skip();
    setenv("KEDGE_TEST_BACKEND", "far", 1);
    fresh(ROOT "/there");
    must_train(ROOT "/there", false, once);
    for (int i = 0; i < 2; i++) {
        fresh(ROOT "/moved");
        must_train(ROOT "/moved", false, begun[i]);
        must_train(ROOT "/moved", true, resumed[i]);
        assert_same_file(ROOT "/there", ROOT "/moved",
                         "checkpoints/latest/state.safetensors");
        assert_same_file(ROOT "/there", ROOT "/moved",
                         "checkpoints/latest/model/model.safetensors");
    }
    unsetenv("KEDGE_TEST_BACKEND");
}

static void on_the_cpu_there_is_no_other_place(void **state)
{
    static const char *const extra[] = {"optim.place=host", NULL};
    struct kg_err e;

    (void)state;
    if (getenv("KEDGE_TEST_BACKEND"))
        skip();
    fresh(ROOT "/none");
    assert_int_equal(train(ROOT "/none", false, extra, &e), KG_EINVAL);
    assert_non_null(strstr(e.message, "optim.place: the CPU backend"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stopping_and_validating_change_no_bit),
        cmocka_unit_test(decay_reaches_what_the_key_says),
        cmocka_unit_test(what_samples_is_what_is_trained),
        cmocka_unit_test(what_is_written_is_the_average),
        cmocka_unit_test(a_schedule_is_refused_before_the_warm_start),
        cmocka_unit_test(updates_on_the_host_have_the_same_bits),
        cmocka_unit_test(updates_on_the_host_have_the_bits_of_kernels),
        cmocka_unit_test(a_run_goes_on_with_another_place),
        cmocka_unit_test(on_the_cpu_there_is_no_other_place),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
