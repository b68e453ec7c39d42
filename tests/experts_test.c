/* Models with experts through whole runs: GRPO whose sampler and trainer agree to the
 * bit, stopped and resumed, on other threads and in other batches, with the same weights.
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

/* The checkpoint with the characters of the task for a tokenizer. */
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

/* In every step sampler and trainer agree, and in one at least something is learned. */
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

/* keys: of all parts of the run; file: of its checkpoints, that is compared */
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

/* Beside attention, router, experts and the shared one, in bf16. */
static void adapters_beside_all_of_them(void **state)
{
    (void)state;
    a_run_of("qwen2_moe", "lora.rank=4 checkpoint.dtype=bf16 model.dtype=bf16",
             "adapter/adapter_model.safetensors");
}

/* ---- experts that the sampler chose ---- */
#define REPLAY " rollout.router_replay=true"
#define LAST   "/checkpoints/step-00000%d/model/model.safetensors"

/* Whether the weights of two runs are the same after a step. */
static bool same_weights(const char *a, const char *b, int step)
{
    char line[512];
    snprintf(line, sizeof line, "cmp -s " ROOT "/%s" LAST " " ROOT "/%s" LAST, a, step, b,
             step);
    return system(line) == 0;
}

/* In the first step the lagging sampler has the trainer's weights. */
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

/* What `kedge replay` says of a step is what the run logged of it. */
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
    train("other", 6, "rollout.lag=2");
    train("whole", 6, "rollout.lag=2 run.threads=1" REPLAY);
    train("parts", 4, "rollout.lag=2 run.threads=2 rollout.max_batch=5" REPLAY);
    train("parts", 6, "rollout.lag=2 run.threads=2 rollout.max_batch=5 --resume" REPLAY);
    assert_true(same_weights("whole", "parts", 6));
    assert_false(same_weights("whole", "other", 6));
    must("./kedge replay " ROOT "/whole 5 --json > " ROOT "/out");
    check_loss(5);
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
    expect_refused("model.path=" ROOT "/model" REPLAY,
                   "rollout.router_replay: acts with a trainer that may differ from the "
                   "sampler");
    expect_refused("model.path=" DIGITS " rollout.lag=1" REPLAY,
                   "rollout.router_replay: expected a model with experts, found "
                   "model_type llama");
}

/* Of Qwen3-30B-A3B its published config.json alone: what its presets would take. */
static void presets_of_thirty_billion_have_a_plan(void **state)
{
    static const char *const presets[] = {"dppo-binary-tv-30b", "dppo-binary-kl-30b",
                                          "dppo-topk-tv-30b", "dppo-topk-kl-30b"};
    struct kg_model_config c;
    const struct kg_model_opts opts = {.ct = KG_BF16};
    struct kg_model *m = NULL;
    struct kg_str text = {0};
    char line[512];

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
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        snprintf(line, sizeof line,
                 "./kedge train algo.preset=%s model.path=" LARGE " task.name=digits "
                 "data.train=" DIGITS "/train.jsonl run.dir=" ROOT
                 "/large --dry-run --config-only > " ROOT "/out",
                 presets[i]);
        must(line);
        kg_str_clear(&text);
        NEED(kg_file_read(&text, ROOT "/out", 1 << 16, err));
        assert_non_null(strstr(kg_str_text(&text), "weights (fp32) 122.13,"));
        assert_non_null(strstr(kg_str_text(&text), "KV cache 109.53"));
    }
    kg_str_release(&text);
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
        cmocka_unit_test(presets_of_thirty_billion_have_a_plan),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
