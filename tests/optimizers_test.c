/* Whole runs with an optimizer that averages: what samples is what is trained, what is
 * written is the average, and stopping changes no bit. */
#define ROOT "build/test-runs/optimizers"
#include "run_testing.h"

#include "train/checkpoint.h"

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

static void what_samples_is_what_is_trained(void **state)
{
    double mismatch[8];
    int n = metrics_of(mismatch, 8, ROOT "/whole", "mismatch/first_update_max");

    (void)state;
    assert_int_equal(n, 4);
    for (int i = 0; i < n; i++)
        assert_true(mismatch[i] == 0);
}

/* The model that the checkpoint wrote against y and z of its state. */
static void what_is_written_is_the_average(void **state)
{
    struct kg_config *config = config_of(ROOT "/written", whole);
    struct kg_run run;
    struct kg_model *written;
    struct kg_model_opts opts = {.backend = kg_backend_cpu(), .ct = KG_F32};
    double apart = 0, off = 0;
    bool found;

    (void)state;
    opts.trainable = true;
    NEED(kg_run_open(&run, config, err));
    run.dir = ROOT "/whole";
    NEED(kg_checkpoint_load(&run, &found, err));
    assert_true(found);
    NEED(kg_model_open(&written, ROOT "/whole/checkpoints/latest/model", &opts, err));
    for (int64_t i = 0; i < written->n_elements; i++) {
        double y = (double)run.model->master[i], z = (double)run.optim->state[0][i];
        double x = (y - 0.1 * z) / 0.9;

        apart = fmax(apart, fabs(x - y));
        off = fmax(off, fabs(x - (double)written->master[i]));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stopping_and_validating_change_no_bit),
        cmocka_unit_test(what_samples_is_what_is_trained),
        cmocka_unit_test(what_is_written_is_the_average),
        cmocka_unit_test(a_schedule_is_refused_before_the_warm_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
