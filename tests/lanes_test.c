/* A run whose gradients are summed lane by lane (train.lanes) has the same bits for any
 * number of threads, any sampling batch and after kill -9. Another number of lanes has
 * other bits, because the sum is rounded otherwise, and trains equally well.
 */
#define ROOT "build/test-runs/lanes"
#include "run_testing.h"

#include "base/hash.h"

/* SFT, several updates per step, batch-scope selection and a moving anchor: everything
 * that adds gradients. */
static const char *const by_lanes[] = {"sft.steps=3",
                                       "sft.batch=8",
                                       "algo.surrogate=clip-cov",
                                       "algo.cov_ratio=0.2",
                                       "kl.estimator=k3",
                                       "kl.beta=0.05",
                                       "anchor.kind=ema",
                                       "anchor.period=1",
                                       "train.micro_tokens=64",
                                       "train.lanes=8",
                                       NULL};

static uint64_t weights(const char *dir)
{
    char path[256];
    uint64_t hash, bytes;

    snprintf(path, sizeof path, "%s/checkpoints/latest/model/model.safetensors", dir);
    NEED(kg_hash_file(&hash, &bytes, path, err));
    return hash;
}

static void lanes_have_the_same_bits_on_any_number_of_threads(void **state)
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

static void a_killed_run_of_lanes_is_resumed_to_the_same_bits(void **state)
{
    static const useconds_t moments[] = {150000, 400000, 650000};

    (void)state;
    assert_kills_leave_no_trace(ROOT "/one", ROOT "/killed", moments,
                                sizeof moments / sizeof *moments);
}

/* An update has eight sequences here. With more lanes, the rest are empty and add
 * nothing. */
static void another_number_of_lanes_has_other_roundings(void **state)
{
    static const char *const lanes[][2] = {{"train.lanes=64", NULL},
                                           {"train.lanes=1", NULL},
                                           {"train.lanes=2", NULL},
                                           {"train.lanes=3", NULL}};
    uint64_t hash[4];

    (void)state;
    for (int i = 0; i < 4; i++) {
        fresh(ROOT "/other");
        must_train(ROOT "/other", false, lanes[i]);
        hash[i] = weights(ROOT "/other");
        for (int j = 0; j < i; j++)
            assert_true(hash[j] != hash[i]);
    }
    assert_true(hash[0] == weights(ROOT "/one"));
}

static void lanes_do_not_change_between_a_run_and_its_resumption(void **state)
{
    static const char *const other[] = {"train.lanes=4", NULL};
    struct kg_config *config = config_of(ROOT "/one", other);
    struct kg_err err;

    (void)state;
    assert_int_not_equal(kg_train_run(config, true, false, &err), KG_OK);
    assert_non_null(strstr(err.message, "train.lanes"));
    kg_config_free(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_have_the_same_bits_on_any_number_of_threads),
        cmocka_unit_test(a_killed_run_of_lanes_is_resumed_to_the_same_bits),
        cmocka_unit_test(another_number_of_lanes_has_other_roundings),
        cmocka_unit_test(lanes_do_not_change_between_a_run_and_its_resumption),
    };

    run_also = by_lanes;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
