/* Models with experts in whole runs: in GRPO the sampler and the trainer agree to the
 * bit; a stop, other threads, other batches and more ranks give the same weights. Also:
 * replay of the sampler's experts, and the loss that balances their load.
 */
#include "base/file.h"
#include "base/need_testing.h"
#include "data/json.h"
#include "data/jsonl.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TINY   "tests/data/reference/"
#define DIGITS "tests/data/verl_digit_llama"
#define LARGE  "tests/data/configs/qwen3_30b_a3b"
#define ROOT   "build/test-experts"

static int set_up(void **state)
{
    (void)state;
    NEED(kg_file_remove_tree(ROOT, err));
    NEED(kg_file_make_dirs(ROOT, err));
    return 0;
}

static void must(const char *line)
{
    const int status = system(line);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) != 0)
        fail_msg("%s", line);
}

/* Copies the checkpoint to ROOT/model, with the digit task's characters as tokenizer. */
static void take_model(const char *name)
{
    char line[512];
    if (access("./kedge", X_OK) != 0) {
        print_message("skip: ./kedge is not built\n");
        skip();
    }
    snprintf(line, sizeof line,
             "rm -rf " ROOT "/model " ROOT "/whole " ROOT "/parts " ROOT
             "/other && cp -r " TINY "%s " ROOT "/model && chmod -R u+w " ROOT
             "/model && cp " DIGITS "/token* " ROOT "/model",
             name);
    must(line);
}

static void train(const char *dir, int steps, const char *more)
{
    char line[1024];
    snprintf(line, sizeof line,
             "./kedge train model.path=" ROOT "/model algo.preset=grpo task.name=digits "
             "data.train=" DIGITS "/train.jsonl rollout.prompts=8 rollout.samples=4 "
             "rollout.max_tokens=10 optim.lr=1e-3 checkpoint.every=2 train.steps=%d "
             "run.dir=" ROOT "/%s %s > " ROOT "/out 2>&1 || { cat " ROOT "/out; false; }",
             steps, dir, more);
    must(line);
}

/* Sampler and trainer must agree in every step, and at least one step must have a
 * gradient. */
static void check_metrics(void)
{
    struct kg_jsonl *lines = NULL;
    struct kg_json_doc line = {0};
    bool more, learned = false;
    int steps = 0;
    NEED(kg_jsonl_open(&lines, ROOT "/whole/metrics.jsonl", err));
    for (;; steps++) {
        NEED(kg_jsonl_next(lines, &line, &more, err));
        if (!more)
            break;
        const struct kg_json *gap = kg_json_get(line.root, "mismatch/first_update_max");
        assert_true(kg_json_real(gap, -1) == 0);
        learned |= kg_json_real(kg_json_get(line.root, "optim/grad_norm"), 0) > 0;
    }
    assert_int_equal(steps, 6);
    assert_true(learned);
    kg_json_release(&line);
    kg_jsonl_close(lines);
}

/* keys: of all parts of the run; file: the checkpoint's file that is compared */
static void a_run_of(const char *name, const char *keys, const char *file)
{
    char line[512];
    take_model(name);
    snprintf(line, sizeof line, "run.threads=1 %s", keys);
    train("whole", 6, line);
    check_metrics();
    snprintf(line, sizeof line, "run.threads=2 rollout.max_batch=5 %s", keys);
    train("parts", 4, line);
    snprintf(line, sizeof line, "run.threads=2 rollout.max_batch=5 %s --resume", keys);
    train("parts", 6, line);
    snprintf(line, sizeof line,
             "cmp " ROOT "/whole/checkpoints/step-000006/%s " ROOT
             "/parts/checkpoints/step-000006/%s",
             file, file);
    must(line);
}

static void layers_without_experts_between(void **state)
{
    (void)state;
    a_run_of("qwen3_moe", "", "model/model.safetensors");
}

static void an_expert_that_all_share(void **state)
{
    (void)state;
    a_run_of("qwen2_moe", "", "model/model.safetensors");
}

/* Adapters on attention, router, experts and the shared expert, in bf16. */
static void adapters_beside_all_of_them(void **state)
{
    (void)state;
    a_run_of("qwen2_moe", "lora.rank=4 checkpoint.dtype=bf16 model.dtype=bf16",
             "adapter/adapter_model.safetensors");
}

/* ---- replay of the sampler's experts ---- */
#define REPLAY " rollout.router_replay=true"
#define AUX    " train.router_aux=0.05"
#define LAST   "/checkpoints/step-00000%d/model/model.safetensors"

/* Whether two runs have the same weights after a step. */
static bool same_weights(const char *a, const char *b, int step)
{
    char line[512];
    snprintf(line, sizeof line, "cmp -s " ROOT "/%s" LAST " " ROOT "/%s" LAST, a, step, b,
             step);
    return system(line) == 0;
}

/* With rollout.lag=1 the first step still samples with the trainer's weights, so the
 * replayed experts are those that the router would choose. */
static void a_router_that_would_choose_the_same_changes_no_bit(void **state)
{
    (void)state;
    take_model("qwen3_moe");
    train("whole", 1, "rollout.lag=1 checkpoint.every=1");
    train("parts", 1, "rollout.lag=1 checkpoint.every=1" REPLAY);
    assert_true(same_weights("whole", "parts", 1));
    must("./kedge data head " ROOT
         "/parts/rollouts/step-000001.jsonl.zst | grep -q experts");
}

static double number_of(const char *file, const char *line, const char *key)
{
    char command[512], text[64] = "";
    snprintf(command, sizeof command,
             "sed -n %s " ROOT
             "/%s | grep -o '\"%s\": *[-0-9.e]*' | head -1 | sed 's/.*: *//'",
             line, file, key);
    FILE *said = popen(command, "r");
    assert_non_null(said);
    assert_non_null(fgets(text, sizeof text, said));
    assert_int_equal(pclose(said), 0);
    return strtod(text, NULL);
}

/* `kedge replay` must find the loss and the gradient norm that the run logged for the
 * step. */
static void check_loss(int step)
{
    char line[16];
    snprintf(line, sizeof line, "%dp", step);
    const double logged = number_of("whole/metrics.jsonl", line, "loss/total");
    const double norm = number_of("whole/metrics.jsonl", line, "optim/grad_norm");
    assert_true(norm > 0);
    assert_true(fabs(number_of("out", "p", "value") - logged) < 1e-9);
    assert_true(fabs(number_of("out", "p", "grad_norm") - norm) < 1e-6 * norm);
}

static void a_replayed_run_stops_resumes_and_is_replayed_itself(void **state)
{
    (void)state;
    take_model("qwen2_moe");
    train("other", 6, "rollout.lag=2" AUX);
    train("whole", 6, "rollout.lag=2 run.threads=1" AUX REPLAY);
    train("parts", 4, "rollout.lag=2 run.threads=2 rollout.max_batch=5" AUX REPLAY);
    train("parts", 6,
          "rollout.lag=2 run.threads=2 rollout.max_batch=5 --resume" AUX REPLAY);
    assert_true(same_weights("whole", "parts", 6));
    assert_false(same_weights("whole", "other", 6));
    must("./kedge replay " ROOT "/whole 5 --json > " ROOT "/out");
    check_loss(5);
}

/* ---- the load of experts ---- */
#define WARM " sft.steps=2 sft.batch=6"

/* SFT, then steps that replay the experts of a lagging sampler, with the balancing
 * loss. */
static void two_ranks_even_and_replay_with_the_bits_of_one(void **state)
{
#define BOTH WARM AUX REPLAY " rollout.lag=1 train.lanes=2 run.threads=1"
    (void)state;
    take_model("qwen3_moe");
    train("whole", 4, BOTH);
    train("parts", 4, BOTH " --ranks 2");
    train("other", 4, WARM REPLAY " rollout.lag=1 train.lanes=2 run.threads=1");
    assert_true(same_weights("whole", "parts", 4));
    assert_false(same_weights("whole", "other", 4));
    must("rm -r " ROOT "/parts");
    train("parts", 4, BOTH " --ranks 2 ranks.shard=gradients");
    assert_true(same_weights("whole", "parts", 4));
    assert_true(number_of("whole/metrics.jsonl", "1p", "router_aux") > 0.05 * 2 * 0.999);
    must("grep -q loss/router_aux " ROOT "/whole/metrics.jsonl");
    assert_true(number_of("whole/metrics.jsonl", "3p", "experts/entropy") ==
                number_of("parts/metrics.jsonl", "3p", "experts/entropy"));
#undef BOTH
}

/* Loss and gradient of the first update, in one micro-batch and in many. */
static void micro_batches_add_up_to_the_loss_of_all_their_tokens(void **state)
{
    (void)state;
    take_model("qwen2_moe");
    train("whole", 0, WARM AUX);
    train("parts", 0, WARM AUX " train.micro_tokens=16");
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "grad_norm" : "router_aux";
        const double of_one = number_of("whole/metrics.jsonl", "1p", key);
        assert_true(of_one > 0);
        assert_true(fabs(number_of("parts/metrics.jsonl", "1p", key) - of_one) <
                    1e-5 * of_one);
    }
}

static void the_load_becomes_even(void **state)
{
#define LONGER "sft.steps=40 sft.batch=16 sft.lr=1e-2"
    (void)state;
    take_model("mixtral");
    train("other", 0, LONGER);
    train("whole", 0, LONGER " train.router_aux=1");
    const double left = number_of("other/metrics.jsonl", "40p", "experts/entropy");
    const double even = number_of("whole/metrics.jsonl", "40p", "experts/entropy");
    printf("entropy of the load %.3f, evened %.3f, even %.3f\n", left, even, log(4));
    assert_true(log(4) - even < (log(4) - left) / 2);
#undef LONGER
}

/* The balancing loss also reaches adapters of attention, through the input of the
 * routers. */
static void a_frozen_router_passes_the_loss_on(void **state)
{
#define SOME WARM " lora.rank=2 'lora.targets=[q_proj]' checkpoint.every=1"
    (void)state;
    take_model("qwen3_moe");
    train("whole", 1, SOME AUX);
    train("parts", 1, SOME);
    must("! cmp -s " ROOT "/whole/checkpoints/step-000001/adapter/"
         "adapter_model.safetensors " ROOT "/parts/checkpoints/step-000001/adapter/"
         "adapter_model.safetensors");
#undef SOME
}

static void expect_refused(const char *settings, const char *why)
{
    char line[1024];
    struct kg_str text = {0};
    snprintf(line, sizeof line,
             "./kedge train algo.preset=grpo task.name=digits data.train=" DIGITS
             "/train.jsonl run.dir=" ROOT "/refused --dry-run %s > " ROOT "/out 2>&1",
             settings);
    assert_int_not_equal(system(line), 0);
    NEED(kg_file_read(&text, ROOT "/out", 1 << 16, err));
    if (!strstr(kg_str_text(&text), why))
        fail_msg("expected \"%s\" in \"%s\"", why, kg_str_text(&text));
    kg_str_release(&text);
}

static void replay_without_effect_is_refused(void **state)
{
    (void)state;
    take_model("qwen3_moe");
    expect_refused(
        "model.path=" ROOT "/model" REPLAY,
        "rollout.router_replay: has an effect only with rollout.lag above 0 or "
        "rollout.dtype other than same");
    expect_refused("model.path=" DIGITS " rollout.lag=1" REPLAY,
                   "rollout.router_replay: expected a model with experts, found "
                   "model_type llama");
}

static void a_load_that_cannot_be_evened_is_refused(void **state)
{
    (void)state;
    expect_refused("model.path=" DIGITS AUX,
                   "train.router_aux: expected a model with experts, found model_type "
                   "llama");
    expect_refused("model.path=" DIGITS AUX " --config-only",
                   "train.router_aux: expected a model with experts");
    take_model("mixtral");
    must("sed -i 's/\"num_experts_per_tok\": 2/\"num_experts_per_tok\": 4/' " ROOT
         "/model/config.json");
    expect_refused("model.path=" ROOT "/model" AUX,
                   "train.router_aux: expected num_experts_per_tok below "
                   "num_experts (4), found that every token uses all experts");
}

/* Only the first layer has experts here. Adapters in its MLP or above it cannot change
 * its router, so train.router_aux is refused with them; an adapter in its attention
 * can. */
static void a_load_that_no_adapter_moves_is_refused(void **state)
{
    (void)state;
    take_model("qwen3_moe");
    must("sed -i 's/^    1$/    1, 2/' " ROOT "/model/config.json");
#define ADAPTED                                                                          \
    "model.path=" ROOT "/model" AUX " --config-only lora.rank=2 checkpoint.dtype=bf16 "
    expect_refused(ADAPTED "lora.targets=[gate_proj,up_proj,down_proj]",
                   "train.router_aux: changes only routers and the layers before them; "
                   "expected lora.targets with a matrix there");
    must("./kedge train algo.preset=grpo task.name=digits data.train=" DIGITS
         "/train.jsonl run.dir=" ROOT "/refused --dry-run " ADAPTED
         "lora.targets=[q_proj] > " ROOT "/out 2>&1");
#undef ADAPTED
}

/* The plan of a preset (--dry-run --config-only) must contain all these words. */
static void expect_plan(const char *preset, const char *more, const char *const words[3])
{
    struct kg_str text = {0};
    char line[512];

    snprintf(line, sizeof line,
             "./kedge train algo.preset=%s model.path=" LARGE " task.name=digits "
             "data.train=" DIGITS "/train.jsonl run.dir=" ROOT
             "/large --dry-run --config-only %s > " ROOT "/out",
             preset, more);
    must(line);
    NEED(kg_file_read(&text, ROOT "/out", 1 << 16, err));
    for (int i = 0; i < 3; i++)
        if (!strstr(kg_str_text(&text), words[i]))
            fail_msg("%s: expected '%s' in '%s'", preset, words[i], kg_str_text(&text));
    kg_str_release(&text);
}

/* Plans the presets of Qwen3-30B-A3B from its published config.json alone. */
static void presets_of_thirty_billion_have_a_plan(void **state)
{
    static const char *const presets[] = {"dppo-binary-tv-30b", "dppo-binary-kl-30b",
                                          "dppo-topk-tv-30b", "dppo-topk-kl-30b"};
    static const char *const replayed[] = {"dppo-binary-tv-30b-r3",
                                           "dppo-binary-kl-30b-r3", "pg-tis-30b-r3",
                                           "grpo-clip-higher-30b-r3"};
    static const char *const adapters[] = {"dppo-binary-tv-30b-lora",
                                           "dppo-binary-kl-30b-lora"};
    struct kg_model_config c;
    const struct kg_model_opts opts = {.ct = KG_BF16};
    struct kg_model *m = NULL;

    (void)state;
    if (access("./kedge", X_OK) != 0) {
        print_message("skip: ./kedge is not built\n");
        skip();
    }
    NEED(kg_model_config_read(&c, LARGE, err));
    NEED(kg_model_outline(&m, &c, &opts, err));
    assert_int_equal(kg_model_parameters(m), 30532122624);
    assert_int_equal(kg_model_active_parameters(m), 3353032704);
    kg_model_free(m);
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        expect_plan(presets[i], "",
                    (const char *const[]){"memory      671.4", "weights (fp32) 122.13,",
                                          "KV cache 109.53"});
    for (size_t i = 0; i < sizeof adapters / sizeof *adapters; i++)
        expect_plan(
            adapters[i], "",
            (const char *const[]){"memory", "adapters (fp32) 6.76,", "KV cache 56.78"});
    for (size_t i = 0; i < sizeof replayed / sizeof *replayed; i++)
        expect_plan(replayed[i], "",
                    (const char *const[]){"memory      726.26 GB",
                                          "weights (fp32) 122.13,",
                                          "recorded experts 54.76"});
    expect_plan(replayed[0], "--ranks 8 train.lanes=8 ranks.shard=optimizer",
                (const char *const[]){"ranks       8 that train", "weights (fp32) 15.27,",
                                      "recorded experts 54.76"});
    assert_false(kg_file_exists(ROOT "/large"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_without_experts_between),
        cmocka_unit_test(adapters_beside_all_of_them),
        cmocka_unit_test(an_expert_that_all_share),
        cmocka_unit_test(a_router_that_would_choose_the_same_changes_no_bit),
        cmocka_unit_test(a_replayed_run_stops_resumes_and_is_replayed_itself),
        cmocka_unit_test(replay_without_effect_is_refused),
        cmocka_unit_test(two_ranks_even_and_replay_with_the_bits_of_one),
        cmocka_unit_test(micro_batches_add_up_to_the_loss_of_all_their_tokens),
        cmocka_unit_test(the_load_becomes_even),
        cmocka_unit_test(a_frozen_router_passes_the_loss_on),
        cmocka_unit_test(a_load_that_cannot_be_evened_is_refused),
        cmocka_unit_test(a_load_that_no_adapter_moves_is_refused),
        cmocka_unit_test(presets_of_thirty_billion_have_a_plan),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
