/* A run whose index is on the device of its model (search.device=model): model and
 * retriever take turns there, in fp32, and the run equals that of the CPU.
 *
 * Uses emulated kernels, or the backend that KEDGE_TEST_BACKEND names.
 */
#include "train/rl_testing.h"

#include "tensor/backend_testing.h"
#include "train/agent_testing.h"
#include "train/same_testing.h"

#define ROOT "build/test-runs/search-device"
#include "train/search_testing.h"

static const char *const base[] = {"model.dtype=fp32",
                                   "task.name=qa-number",
                                   "data.train=" ROOT "/train.jsonl",
                                   "sft.data=" ROOT "/sft.jsonl",
                                   "sft.batch=8",
                                   "rollout.prompts=2",
                                   "rollout.samples=3",
                                   "rollout.max_tokens=16",
                                   "episode.env=search",
                                   "episode.turns=2",
                                   "episode.context=400",
                                   "search.where=" ROOT "/both",
                                   "search.kind=hybrid",
                                   "search.model=" ENCODER,
                                   "search.topk=2",
                                   "optim.lr=1e-3",
                                   "algo.entropy_coef=0.01",
                                   "anchor.kind=ema",
                                   "kl.estimator=k3",
                                   "kl.beta=0.1",
                                   "eval.at_start=false",
                                   "run.threads=1",
                                   NULL};

/* The turns are learned on the CPU. The compared runs start with one SFT step whose rate
 * is so small that it changes nothing. */
static const char *const sft[] = {"model.path=" ROOT "/model", "sft.steps=60",
                                  "sft.lr=2e-2", "train.steps=0", NULL};
/* clang-format off */
#define LEARNED                                                                          \
    "model.path=" ROOT "/learned/checkpoints/latest/model", "sft.steps=1",               \
    "sft.lr=1e-9", "train.steps=2"
/* clang-format on */
static const char *const apart[] = {LEARNED, NULL};
static const char *const beside[] = {LEARNED, "model.device=auto", "search.device=model",
                                     NULL};

static const char *device; /* backend of the run that is compared */

static void train_on(const char *be, const char *dir, const char *const *extra)
{
    const char *const *const lists[] = {base, extra};
    struct kg_config *c = config_from(dir, lists, 2);
    struct kg_err e = {0};

    setenv("KEDGE_TEST_BACKEND", be, 1);
    if (kg_train_run(c, false, false, &e) != KG_OK)
        fail_msg("%s", e.message);
    kg_config_free(c);
}

static void plan_has_the_index(void)
{
    const char *const *const lists[] = {base, beside};
    struct kg_config *c = config_from(ROOT "/planned", lists, 2);
    struct kg_str out = {0};
    struct kg_err e = {0};

    setenv("KEDGE_TEST_BACKEND", device, 1);
    if (kg_train_plan(&out, c, false, 1, &e) != KG_OK)
        fail_msg("%s", e.message);
    assert_non_null(strstr(kg_str_text(&out), ", index 0.0"));
    kg_str_release(&out);
    kg_config_free(c);
}

static void a_search_beside_the_model_finds_what_the_cpu_finds(void **state)
{
    (void)state;
    fresh(ROOT);
    setenv("KEDGE_TEST_BACKEND", "cpu", 1);
    make_search_agent(ROOT);
    build_both();
    train_on("cpu", ROOT "/learned", sft);
    train_on("cpu", ROOT "/host", apart);
    plan_has_the_index();
    train_on(device, ROOT "/device", beside);
    assert_true(last_metric(ROOT "/device", "episode/calls") > 0.5);
    assert_same_file(ROOT "/host", ROOT "/device", "rollouts/step-000002.jsonl.zst");
    assert_same_file(ROOT "/host", ROOT "/device",
                     "checkpoints/latest/model/model.safetensors");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_search_beside_the_model_finds_what_the_cpu_finds),
    };
    const struct CMUnitTest none_here[] = {cmocka_unit_test(kernels_are_not_emulated)};

    device = getenv("KEDGE_TEST_BACKEND");
    if (!device && !kg_emu_open)
        return cmocka_run_group_tests(none_here, NULL, NULL);
    device = strdup(device ? device : "emu");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
