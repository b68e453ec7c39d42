/* Whole runs whose moments are stored in bf16 with stochastic rounding (optim.moments):
 * the same bits for any number of threads, any sampling batch and after kill -9, in SFT
 * too; half the bytes of moments, in memory and on disk; and which combinations are
 * refused.
 */
#define ROOT "build/test-runs/moments"
#include "run_testing.h"

#include "data/safetensors.h"
#include "lab/replay.h"
#include "train/keep/checkpoint.h"

static const char *const in_bf16[] = {
    "optim.moments=bf16", "sft.steps=3",     "sft.batch=8",          "algo.preset=ema-pg",
    "kl.beta=0.05",       "anchor.period=1", "optim.decay=matrices", NULL};

static void draws_are_the_same_on_any_number_of_threads(void **state)
{
    static const char *const one[] = {"run.threads=1", "rollout.max_batch=3", NULL};
    static const char *const two[] = {"run.threads=2", NULL};

    (void)state;
    fresh(ROOT "/one");
    fresh(ROOT "/two");
    must_train(ROOT "/one", false, one);
    must_train(ROOT "/two", false, two);
    assert_same_run(ROOT "/one", ROOT "/two", 4);
}

static void a_killed_run_is_resumed_to_the_same_bits(void **state)
{
    static const useconds_t times[] = {150000, 400000, 650000};

    (void)state;
    assert_kills_leave_no_trace(ROOT "/one", ROOT "/killed", times,
                                sizeof times / sizeof *times);
}

/* ---- bytes ---- */

static void has_type(const char *dir, const char *name, const char *dtype)
{
    const struct kg_st_tensor *t;
    struct kg_st_set *set;
    char path[256];

    snprintf(path, sizeof path, "%s/checkpoints/latest/state.safetensors", dir);
    NEED(kg_st_open_file(&set, path, err));
    t = kg_st_find(set, name);
    assert_non_null(t);
    assert_string_equal(t->dtype, dtype);
    kg_st_close(set);
}

/* Bytes of this run's checkpoint by its plan.   n out: number of parameters */
static uint64_t bytes_with(const char *const *extra, int64_t *n)
{
    struct kg_config *config = config_of(ROOT "/planned", extra);
    struct kg_run run;
    uint64_t bytes;

    NEED(kg_run_open(&run, config, err));
    bytes = kg_checkpoint_bytes(&run.in, &run.state);
    *n = run.state.model->n_elements;
    kg_run_close(&run);
    kg_config_free(config);
    return bytes;
}

static void moments_have_half_the_bytes(void **state)
{
    static const char *const fp32[] = {"optim.moments=fp32", NULL};
    static const char *const free_fp32[] = {"optim.moments=fp32",
                                            "optim.kind=schedule-free", NULL};
    static const char *const free_bf16[] = {"optim.kind=schedule-free", NULL};
    uint64_t saved;
    int64_t n;

    (void)state;
    saved = bytes_with(fp32, &n) - bytes_with(NULL, &n);
    assert_int_equal(saved, 4 * n);
    saved = bytes_with(free_fp32, &n) - bytes_with(free_bf16, &n);
    assert_int_equal(saved, 2 * n);
    has_type(ROOT "/one", "master", "F32");
    has_type(ROOT "/one", "adam_m", "BF16");
    has_type(ROOT "/one", "adam_v", "BF16");
    has_type(ROOT "/one", "anchor", "F32");
}

/* Schedule-free's z is a set of weights, not a moment, so it stays in fp32. */
static void schedule_free_keeps_z_and_resumes(void **state)
{
    static const char *const whole[] = {"optim.kind=schedule-free", NULL};
    static const char *const half[] = {"optim.kind=schedule-free", "train.steps=2", NULL};

    (void)state;
    fresh(ROOT "/free");
    fresh(ROOT "/free-half");
    must_train(ROOT "/free", false, whole);
    must_train(ROOT "/free-half", false, half);
    must_train(ROOT "/free-half", true, whole);
    assert_same_steps(ROOT "/free", ROOT "/free-half", 4);
    has_type(ROOT "/free", "free_z", "F32");
    has_type(ROOT "/free", "adam_v", "BF16");
}

/* ---- readers of the moments ---- */

static void a_replay_reads_them(void **state)
{
    struct kg_replay r;

    (void)state;
    NEED(kg_replay_run(&r, ROOT "/one", 4, NULL, 0, err));
    assert_int_equal(r.weights_step, 3);
    assert_true(r.apart_max == 0);
}

/* A run that starts from the moments of /one with the key `dtype` must be refused. */
static void refuses_to_start(const char *dtype, const char *words)
{
    const char *const extra[] = {"model.path=",
                                 "sft.steps=0",
                                 "sft.batch=32",
                                 "init.from=" ROOT "/one",
                                 "init.parts=[model, anchor, optimizer]",
                                 dtype,
                                 NULL};
    struct kg_config *config;
    struct kg_err why = {0};
    struct kg_run run;
    kg_status status;

    fresh(ROOT "/next");
    config = config_of(ROOT "/next", extra);
    status = kg_run_open(&run, config, &why);
    if (status != KG_OK && !words)
        fail_msg("%s", why.message);
    if (!words) {
        NEED(kg_run_start_rl(&run.in, &run.state, err));
        kg_run_close(&run);
    } else if (status != KG_EFORMAT || !strstr(why.message, words)) {
        fail_msg("expected '%s', found: %s", words, why.message);
    }
    kg_config_free(config);
}

static void another_type_is_refused(void **state)
{
    static const char *const fp32[] = {"optim.moments=fp32", NULL};
    struct kg_err why = {0};

    (void)state;
    refuses_to_start("optim.moments=bf16", NULL);
    refuses_to_start("optim.moments=fp32",
                     "init.from, with optim.moments fp32: " ROOT
                     "/one/checkpoints/step-000004/"
                     "state.safetensors: expected tensor adam_m in F32, found BF16");
    assert_int_equal(train(ROOT "/one", true, fp32, &why), KG_ECONFLICT);
    assert_non_null(strstr(why.message, "found 1 change: optim.moments"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_the_same_on_any_number_of_threads),
        cmocka_unit_test(a_killed_run_is_resumed_to_the_same_bits),
        cmocka_unit_test(moments_have_half_the_bytes),
        cmocka_unit_test(schedule_free_keeps_z_and_resumes),
        cmocka_unit_test(a_replay_reads_them),
        cmocka_unit_test(another_type_is_refused),
    };
    run_also = in_bf16;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
