/* Whole runs that train adapters: the sampler uses the trained weights, stopping and
 * killing change no bit, the base stays as it is, an anchor shares it, and a checkpoint
 * contains a PEFT folder.
 */
#define ROOT "build/test-runs/lora"
#include "run_testing.h"

#include "tensor/backend_testing.h"
#include "train/keep/checkpoint.h"
#include "train/open/memory.h"

#include <math.h>

static const char *const whole[] = {
    "checkpoint.dtype=bf16", "lora.rank=4",           "lora.alpha=8",
    "algo.preset=ema-pg",    "model.dtype=bf16",      "sft.steps=2",
    "sft.batch=8",           "rollout.max_tokens=12", NULL};
static const char *const half[] = {
    "checkpoint.dtype=bf16", "lora.rank=4",      "lora.alpha=8",
    "algo.preset=ema-pg",    "model.dtype=bf16", "sft.steps=2",
    "sft.batch=8",           "train.steps=2",    NULL};

static void stopping_changes_no_bit(void **state)
{
    (void)state;
    fresh(ROOT "/whole");
    fresh(ROOT "/half");
    must_train(ROOT "/whole", false, whole);
    must_train(ROOT "/half", false, half);
    must_train(ROOT "/half", true, whole);
    assert_same_file(ROOT "/whole", ROOT "/half", "checkpoints/latest/state.safetensors");
    assert_same_file(ROOT "/whole", ROOT "/half",
                     "checkpoints/latest/adapter/adapter_model.safetensors");
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

static void a_checkpoint_holds_adapters_alone(void **state)
{
    const char *const latest = ROOT "/whole/checkpoints/latest";
    struct kg_st_set *set;
    struct kg_lora lora;

    (void)state;
    assert_false(kg_file_exists(kg_path_in(latest, "model").text));
    assert_true(kg_file_exists(kg_path_in(latest, "adapter/token_ids.json").text));
    NEED(kg_lora_read(&lora, kg_path_in(latest, "adapter").text, err));
    assert_true(lora.rank == 4 && lora.alpha == 8 && lora.n_targets == 7);
    NEED(kg_st_open_file(&set, kg_path_in(latest, "state.safetensors").text, err));
    const struct kg_st_tensor *master = kg_st_find(set, "master");
    assert_non_null(master);
    assert_true(master->bytes < (uint64_t)1 << 20);
    kg_st_close(set);
}

/* The anchor points to the base's own buffers and adds little memory that products read,
 * and master weights exist for the adapters alone. */
static void an_anchor_shares_the_base(void **state)
{
    static const char *const fixed[] = {"lora.rank=4",       "checkpoint.dtype=bf16",
                                        "algo.preset=grpo",  "kl.estimator=k3",
                                        "anchor.kind=fixed", NULL};
    struct kg_config *config = config_of(ROOT "/plan", fixed);
    struct kg_run run;

    (void)state;
    NEED(kg_run_open(&run, config, err));
    const struct kg_model *m = run.state.model, *anchor = run.state.anchor;
    assert_non_null(anchor);
    for (size_t i = 0; i < m->n_base; i++)
        assert_ptr_equal(anchor->params[i].compute.data, m->params[i].compute.data);
    assert_true(2 * kg_bytes_sum(kg_model_memory(anchor, true).read) <
                kg_bytes_sum(kg_model_memory(m, true).read));
    assert_int_equal(run.state.model->master.n, m->n_elements);
    kg_run_close(&run);
    kg_config_free(config);
}

/* A new run that starts from a finished run's adapters keeps their rank and alpha. */
static void adapters_go_on_being_trained(void **state)
{
    static const char *const more[] = {"model.adapter=" ROOT
                                       "/whole/checkpoints/latest/adapter",
                                       "checkpoint.dtype=bf16", "train.steps=1", NULL};
    struct kg_lora lora;

    (void)state;
    fresh(ROOT "/more");
    must_train(ROOT "/more", false, more);
    NEED(kg_lora_read(&lora, ROOT "/more/checkpoints/latest/adapter", err));
    assert_true(lora.rank == 4 && lora.alpha == 8);
}

static int ranks_of(const char *run)
{
    struct kg_st_set *set;
    int narrow = 0;

    NEED(kg_st_open_file(
        &set,
        kg_path_in(run, "checkpoints/latest/adapter/adapter_model.safetensors").text,
        err));
    for (size_t i = 0; i < kg_st_count(set); i++)
        narrow += kg_st_at(set, i)->shape[0] == 2; /* A of rank 2 */
    kg_st_close(set);
    return narrow;
}

/* Adapters with several ranks, as PEFT writes them: a run that was stopped and resumed
 * has the bits and the adapter_config.json of a run that was not. */
static void ranks_of_patterns_go_on_too(void **state)
{
    static const char config[] =
        "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, "
        "\"target_modules\": \".*(q_proj|down_proj)\", "
        "\"rank_pattern\": {\"q_proj\": 2}, \"alpha_pattern\": {\"q_proj\": 3}}";
    static const char *const whole_of[] = {
        "model.adapter=" ROOT "/uneven", "checkpoint.dtype=bf16", "train.steps=2", NULL};
    static const char *const half_of[] = {"model.adapter=" ROOT "/uneven",
                                          "checkpoint.dtype=bf16", "train.steps=1", NULL};
    struct kg_lora lora;
    const struct kg_model_opts opts = {.ct = KG_F32, .lora = &lora, .seed = 5};
    struct kg_model *m;

    (void)state;
    NEED(kg_lora_parse(&lora, config, sizeof config - 1, "config", err));
    NEED(kg_model_open(&m, DIGITS, &opts, err));
    fresh(ROOT "/uneven");
    NEED(kg_model_save(m, ROOT "/uneven", &(struct kg_model_save){.dtype = KG_F32}, err));
    kg_model_free(m);
    fresh(ROOT "/uneven-whole");
    fresh(ROOT "/uneven-half");
    must_train(ROOT "/uneven-whole", false, whole_of);
    must_train(ROOT "/uneven-half", false, half_of);
    must_train(ROOT "/uneven-half", true, whole_of);
    assert_same_file(ROOT "/uneven-whole", ROOT "/uneven-half",
                     "checkpoints/latest/state.safetensors");
    assert_same_file(ROOT "/uneven-whole", ROOT "/uneven-half",
                     "checkpoints/latest/adapter/adapter_config.json");
    assert_same_file(ROOT "/uneven-whole/checkpoints/latest/adapter", ROOT "/uneven",
                     "adapter_config.json");
    assert_true(ranks_of(ROOT "/uneven-whole") > 0);
}

static void kills_leave_no_trace(void **state)
{
    static const useconds_t times[] = {120000, 200000, 280000};
    static const char *const also[] = {"algo.preset=ema-pg", "lora.rank=4",
                                       "lora.targets=[q_proj, v_proj]",
                                       "checkpoint.dtype=bf16", NULL};

    (void)state;
    run_also = also;
    fresh(ROOT "/unkilled");
    fresh(ROOT "/killed");
    must_train(ROOT "/unkilled", false, NULL);
    assert_kills_leave_no_trace(ROOT "/unkilled", ROOT "/killed", times, 3);
    run_also = NULL;
}

static void what_cannot_be_is_refused(void **state)
{
#define BF16    "checkpoint.dtype=bf16"
#define ADAPTER "model.adapter=" ROOT "/whole/checkpoints/latest/adapter"
    static const struct {
        const char *keys[6];
        const char *said;
    } rows[] = {
        {{BF16, "lora.alpha=8"}, "lora.alpha: has an effect only with lora.rank above 0"},
        {{BF16, "lora.targets=q_proj"},
         "lora.targets: has an effect only with lora.rank above 0"},
        {{BF16, "lora.rslora=true"},
         "lora.rslora: has an effect only with lora.rank above 0"},
        {{"lora.rank=4"}, "checkpoint.dtype: adapters are always written"},
        {{BF16, "lora.rank=4", ADAPTER}, "lora.rank: model.adapter has its own rank"},
        {{BF16, "lora.rank=4", "lora.targets=[q_proj, v_prj]"},
         "lora.targets: no layer has a matrix v_prj; did you mean v_proj"},
        {{BF16, "lora.rank=4", "lora.targets=[q_proj, q_proj]"}, "q_proj twice"},
        {{BF16, "lora.rank=4", "lora.targets=[]"}, "found an empty list"},
        {{BF16, "lora.rank=65000"}, "lora.rank: expected at most"},
        {{BF16, "lora.rank=4", "rollout.dtype=fp32", "model.dtype=bf16"},
         "rollout.dtype: with adapters the sampler shares"},
        {{BF16, "model.adapter=" DIGITS}, "adapter_config.json"},
        {{BF16, "model.adapter=" ROOT "/swapped"}, "is '4' in it and '3' in the model's"},
        {{BF16, "lora.rank=4", "model.path=", "init.from=" ROOT "/whole"}, "init.from"},
        {{BF16, "model.path=", "init.from=" ROOT "/whole"},
         "expected a checkpoint of all weights, found one of adapters; continue them "
         "with the model.path of their run and model.adapter=" ROOT
         "/whole/checkpoints/"},
        {{BF16, "lora.rank=4", "anchor.place=host", "anchor.kind=fixed",
          "kl.estimator=k3"},
         "anchor.place: with adapters the anchor shares"},
    };

    (void)state;
    run_also = NULL;
    assert_int_equal(system("rm -rf " ROOT "/swapped && cp -r " ROOT
                            "/whole/checkpoints/latest/adapter " ROOT
                            "/swapped && sed -i "
                            "'s/\"3\":/\"x\":/; s/\"4\":/\"3\":/; s/\"x\":/\"4\":/' " ROOT
                            "/swapped/token_ids.json"),
                     0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_err found = {0};
        kg_status status;

        fresh(ROOT "/no");
        status = train(ROOT "/no", false, rows[i].keys, &found);
        if (status == KG_OK || !strstr(found.message, rows[i].said))
            fail_msg("expected '%s', found '%s'", rows[i].said, found.message);
        assert_false(kg_file_exists(ROOT "/no"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stopping_changes_no_bit),
        cmocka_unit_test(what_samples_is_what_is_trained),
        cmocka_unit_test(a_checkpoint_holds_adapters_alone),
        cmocka_unit_test(an_anchor_shares_the_base),
        cmocka_unit_test(adapters_go_on_being_trained),
        cmocka_unit_test(ranks_of_patterns_go_on_too),
        cmocka_unit_test(kills_leave_no_trace),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
