/* Anchors in whole runs: moved between updates, replaced when the KL exceeds kappa,
 * loaded from another checkpoint, and kept on the host. */
#define ROOT "build/test-runs/anchors"
#include "run_testing.h"

#include "model/model.h"

#include <math.h>

enum { MOST = 16 };

/* ---- within a step ---- */

static void a_copy_after_every_update_is_the_policy_at_every_update(void **state)
{
    static const char *const updates[] = {
        "anchor.kind=copy",          "anchor.period=1", "anchor.unit=updates",
        "kl.estimator=topk-reverse", "kl.beta=0.05",    NULL};
    static const char *const steps[] = {"anchor.kind=copy", "anchor.period=1",
                                        "kl.estimator=topk-reverse", "kl.beta=0.05",
                                        NULL};
    double kl[MOST], count[MOST];

    (void)state;
    fresh(ROOT "/updates");
    fresh(ROOT "/steps");
    must_train(ROOT "/updates", false, updates);
    must_train(ROOT "/steps", false, steps);
    assert_int_equal(metrics_of(kl, MOST, ROOT "/updates", "kl/max"), 4);
    for (int i = 0; i < 4; i++)
        assert_true(kl[i] == 0);
    assert_int_equal(metrics_of(kl, MOST, ROOT "/steps", "kl/max"), 4);
    for (int i = 0; i < 4; i++)
        assert_true(kl[i] > 0);
    assert_int_equal(metrics_of(count, MOST, ROOT "/updates", "anchor/updates"), 4);
    assert_true(count[3] == 8);
}

/* ---- kappa ---- */

static const char *const kappa[] = {"anchor.kind=copy",
                                    "anchor.period=1000000",
                                    "anchor.kappa=0.003",
                                    "anchor.smoothing=0.5",
                                    "kl.estimator=exact-reverse",
                                    "kl.beta=0.05",
                                    "train.updates_per_step=1",
                                    "train.steps=8",
                                    NULL};

static void a_kl_above_kappa_replaces_the_anchor(void **state)
{
    double kl[MOST], average[MOST], refreshed[MOST], m = 0, count = 0;

    (void)state;
    fresh(ROOT "/kappa");
    must_train(ROOT "/kappa", false, kappa);
    assert_int_equal(metrics_of(kl, MOST, ROOT "/kappa", "kl/value"), 8);
    assert_int_equal(metrics_of(average, MOST, ROOT "/kappa", "anchor/kl_average"), 8);
    assert_int_equal(metrics_of(refreshed, MOST, ROOT "/kappa", "anchor/refreshed"), 8);
    for (int i = 0; i < 8; i++) {
        m = 0.5 * m + 0.5 * kl[i];
        count += m > 0.003;
        m = m > 0.003 ? 0 : m;
        assert_true(fabs(average[i] - m) < 1e-9);
        assert_true(refreshed[i] == count);
    }
    assert_true(count >= 1 && count < 8);
}

static void stopping_keeps_the_moving_average(void **state)
{
    const char *half[16];
    size_t n = 0;

    (void)state;
    for (; kappa[n]; n++)
        half[n] = kappa[n];
    half[n++] = "train.steps=3";
    half[n] = NULL;
    fresh(ROOT "/half");
    must_train(ROOT "/half", false, half);
    must_train(ROOT "/half", true, kappa);
    assert_same_file(ROOT "/kappa", ROOT "/half", "checkpoints/latest/state.safetensors");
    assert_same_file(ROOT "/kappa", ROOT "/half",
                     "checkpoints/latest/anchor/model.safetensors");
}

/* ---- anchor.path ---- */

/* Writes a teacher with another hidden size, but the digit vocabulary. */
static void write_teacher(const char *dir, int64_t hidden)
{
    struct kg_model_opts opts = {.ct = KG_F32};
    struct kg_model_save save = {.dtype = KG_F32, .source_dir = DIGITS};
    struct kg_model_config c;
    struct kg_model *digits, *m;

    NEED(kg_file_remove_tree(dir, err));
    NEED(kg_model_open(&digits, DIGITS, &opts, err));
    c = digits->config;
    c.hidden = hidden;
    NEED(kg_model_create(&m, &c, &opts, 5, err));
    NEED(kg_model_save(m, dir, &save, err));
    kg_model_free(m);
    kg_model_free(digits);
}

static void a_path_to_the_start_is_the_fixed_anchor(void **state)
{
    static const char *const none[] = {"algo.preset=grpo", "kl.beta=0.05", NULL};
    static const char *const path[] = {"algo.preset=grpo", "kl.beta=0.05",
                                       "anchor.path=" DIGITS, NULL};

    (void)state;
    fresh(ROOT "/fixed");
    fresh(ROOT "/path");
    must_train(ROOT "/fixed", false, none);
    must_train(ROOT "/path", false, path);
    assert_same_file(ROOT "/fixed", ROOT "/path",
                     "checkpoints/latest/model/model.safetensors");
    assert_true(kg_file_is_dir(ROOT "/fixed/checkpoints/latest/anchor"));
    assert_false(kg_file_exists(ROOT "/path/checkpoints/latest/anchor"));
}

static void a_moving_anchor_starts_from_its_path(void **state)
{
    static const char *const other[] = {
        "algo.preset=ema-pg", "kl.beta=0.05", "anchor.period=1000",
        "anchor.path=" ROOT "/fixed/checkpoints/latest/model", NULL};

    (void)state;
    fresh(ROOT "/moving");
    must_train(ROOT "/moving", false, other);
    assert_same_file(ROOT "/moving/checkpoints/latest/anchor",
                     ROOT "/fixed/checkpoints/latest/model", "model.safetensors");
}

static void a_teacher_may_have_another_shape_when_it_is_fixed(void **state)
{
    static const char *const exact[] = {"kl.estimator=exact-forward", "kl.beta=1",
                                        "anchor.kind=fixed",
                                        "anchor.path=" ROOT "/teacher", NULL};
    static const char *const head[] = {
        "kl.estimator=topk-reverse",    "kl.beta=1", "kl.top_k=4", "anchor.kind=fixed",
        "anchor.path=" ROOT "/teacher", NULL};
    static const char *const ema[] = {"algo.preset=ema-pg",
                                      "anchor.path=" ROOT "/teacher", NULL};
    static const char *const none[] = {"anchor.path=" ROOT "/teacher", NULL};
    double kl[MOST];
    struct kg_err err;

    (void)state;
    write_teacher(ROOT "/teacher", 48);
    fresh(ROOT "/exact");
    must_train(ROOT "/exact", false, exact);
    assert_int_equal(metrics_of(kl, MOST, ROOT "/exact", "kl/value"), 4);
    assert_true(kl[0] > 0 && kl[3] < kl[0]);
    fresh(ROOT "/head");
    must_train(ROOT "/head", false, head);
    fresh(ROOT "/refused");
    assert_int_equal(train(ROOT "/refused", false, ema, &err), KG_ESHAPE);
    assert_non_null(strstr(err.message, "anchor.path"));
    assert_int_equal(train(ROOT "/refused", false, none, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "anchor.kind"));
}

/* ---- anchor.place ---- */

/* anchor.place=host fetches the anchor's layers one by one. No bit of a run may change,
 * on the CPU and on the backend `far`, whose memory the host cannot touch. */
static void an_anchor_on_the_host_has_the_same_bits(void **state)
{
    static const char *const kinds[][2] = {
        {"anchor.kind=ema", "kl.estimator=k3"},
        {"anchor.kind=copy", "kl.estimator=topk-reverse"},
        {"anchor.kind=ema", "kl.estimator=exact-reverse"}};
    static const char *const places[] = {"anchor.place=device", "anchor.place=host"};
    static const char *const dirs[] = {ROOT "/there", ROOT "/on-host"};
    const char *own = getenv("KEDGE_TEST_BACKEND");

    (void)state;
    for (int far = 0; far < (own ? 1 : 2); far++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            if (far)
                setenv("KEDGE_TEST_BACKEND", "far", 1);
            for (int i = 0; i < 2; i++) {
                const char *const extra[] = {kinds[k][0],        kinds[k][1],
                                             "kl.beta=0.05",     "anchor.period=1",
                                             places[i],          "eval.anchor=true",
                                             "model.dtype=bf16", NULL};

                fresh(dirs[i]);
                must_train(dirs[i], false, extra);
            }
            if (far)
                unsetenv("KEDGE_TEST_BACKEND");
            assert_same_run(dirs[0], dirs[1], 4);
        }
}

static void an_anchor_that_stands_still_is_on_the_host_of_a_device_alone(void **state)
{
    static const char *const fixed[] = {"algo.preset=grpo", "kl.beta=0.05",
                                        "anchor.path=" DIGITS, "anchor.place=host", NULL};
    static const char *const idle[] = {"anchor.kind=iterative", "kl.estimator=k3",
                                       "kl.beta=0.05", "anchor.place=host", NULL};
    static const char *const plain[] = {"algo.preset=grpo", "kl.beta=0.05",
                                        "anchor.path=" DIGITS, NULL};
    struct kg_err err;

    (void)state;
    if (getenv("KEDGE_TEST_BACKEND"))
        skip();
    fresh(ROOT "/still");
    fresh(ROOT "/still-host");
    assert_int_equal(train(ROOT "/still", false, fixed, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "anchor.place: on the CPU"));
    assert_int_equal(train(ROOT "/still", false, idle, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "anchor.place: has an effect only with"));
    setenv("KEDGE_TEST_BACKEND", "far", 1);
    must_train(ROOT "/still", false, plain);
    must_train(ROOT "/still-host", false, fixed);
    unsetenv("KEDGE_TEST_BACKEND");
    assert_same_file(ROOT "/still", ROOT "/still-host",
                     "checkpoints/latest/state.safetensors");
    assert_same_file(ROOT "/still", ROOT "/still-host", "rollouts/step-000004.jsonl.zst");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_after_every_update_is_the_policy_at_every_update),
        cmocka_unit_test(a_kl_above_kappa_replaces_the_anchor),
        cmocka_unit_test(stopping_keeps_the_moving_average),
        cmocka_unit_test(a_path_to_the_start_is_the_fixed_anchor),
        cmocka_unit_test(a_moving_anchor_starts_from_its_path),
        cmocka_unit_test(a_teacher_may_have_another_shape_when_it_is_fixed),
        cmocka_unit_test(an_anchor_on_the_host_has_the_same_bits),
        cmocka_unit_test(an_anchor_that_stands_still_is_on_the_host_of_a_device_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
