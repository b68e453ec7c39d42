/* A run over ranks, each on a device of its own, is the run of one device: weights,
 * moments, anchor and log. What ranks say to each other goes through the host's memory.
 *
 * Devices are memory that the host cannot touch, in a process each. By hand, with
 * KEDGE_TEST_BACKEND=emu KEDGE_TEST_PRODUCTS=own, kernels are emulated, too, for half a
 * minute. The program refuses ranks on GPUs: no two were ever seen together.
 */
#define ROOT "build/test-runs/ranks-device"
#include "ranks_run_testing.h"

static void two_devices_make_the_run_of_one(void **state)
{
    struct kg_str manifest = {0};

    (void)state;
    fresh(ROOT "/1");
    train_on(1, ROOT "/1", false, NULL);
    fresh(ROOT "/n");
    train_on(2, ROOT "/n", false, NULL);
    assert_same_run(ROOT "/1", ROOT "/n", 1);
    read_in(&manifest, ROOT "/n", "manifest.json");
    if (strcmp(getenv("KEDGE_TEST_BACKEND"), "emu") == 0)
        assert_non_null(strstr(kg_str_text(&manifest), "\"gpu\": \"emulated\""));
    kg_str_release(&manifest);
}

int main(void)
{
    static const char *const also[] = {"run.threads=1",
                                       "model.dtype=bf16",
                                       "train.steps=1",
                                       "train.lanes=2",
                                       "train.updates_per_step=1",
                                       "rollout.prompts=2",
                                       "rollout.samples=2",
                                       "rollout.max_tokens=4",
                                       "data.val=",
                                       "kl.estimator=k3",
                                       "kl.beta=0.05",
                                       "anchor.kind=ema",
                                       "anchor.period=1",
                                       NULL};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_devices_make_the_run_of_one),
    };

    run_also = also;
    setenv("KEDGE_TEST_BACKEND", "far", false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
