/* Whole runs on a device's kernels, with attention and products by its matrix
 * instructions: the sampler's and the trainer's log-probs are equal, the sampling batch
 * leaves no trace, and a run that was stopped ends like one that was not.
 *
 * Runs on the emulation, or on the backend that KEDGE_TEST_BACKEND names. bits_test
 * proves that a device with the CPU's attention and products trains the CPU's weights.
 */
#define ROOT "build/test-runs/device"
#include "overflow_testing.h"
#include "run_testing.h"

#include "data/json.h"
#include "report/history.h"
#include "tensor/backend_testing.h"

#define MODEL ROOT "/model"

/* of the long run; an emulated step takes a second */
enum { STEPS = 20, STEPS_EMULATED = 6 };

/* Writes a model of two layers with heads of 64: four of queries, two of keys. */
static void write_model(const char *dir, void (*change)(struct kg_model *m))
{
    struct kg_model_opts opts = {.ct = KG_F32};
    struct kg_model_save save = {.dtype = KG_F32, .source_dir = DIGITS};
    struct kg_model_config c;
    struct kg_model *digits, *m;

    kg_pages_show(true); /* `change` writes weights in place */
    NEED(kg_model_open(&digits, DIGITS, &opts, err));
    c = digits->config;
    c.hidden = 64;
    c.ffn = 96;
    c.layers = 2;
    c.heads = 4;
    c.kv_heads = 2;
    c.head_dim = 64;
    c.init_range = 0.1f;
    NEED(kg_model_create(&m, &c, &opts, 5, err));
    if (change)
        change(m);
    NEED(kg_model_save(m, dir, &save, err));
    kg_model_free(m);
    kg_model_free(digits);
    kg_pages_show(false);
}

static int setup(void **state)
{
    (void)state;
    fresh(ROOT);
    write_model(MODEL, NULL);
    return 0;
}

static void what_is_sampled_is_what_is_trained(void **state)
{
    const int steps = emulated() ? STEPS_EMULATED : STEPS;
    char until[32];
    const char *const long_run[] = {until,
                                    "rollout.prompts=2",
                                    "kl.estimator=exact-reverse",
                                    "kl.beta=0.01",
                                    "anchor.kind=ema",
                                    "anchor.period=2",
                                    NULL};
    double mismatch[STEPS + 1], norms[STEPS + 1], shared[STEPS + 1];

    (void)state;
    snprintf(until, sizeof until, "train.steps=%d", steps);
    must_train(ROOT "/long", false, long_run);
    assert_int_equal(
        metrics_of(mismatch, STEPS + 1, ROOT "/long", "mismatch/first_update_max"),
        steps);
    assert_int_equal(metrics_of(norms, STEPS + 1, ROOT "/long", "optim/grad_norm"),
                     steps);
    assert_int_equal(metrics_of(shared, STEPS + 1, ROOT "/long", "perf/shared_tokens"),
                     steps);
    for (int i = 0; i < steps; i++) {
        assert_true(mismatch[i] == 0);
        assert_true(shared[i] > 0); /* samples of a group share its prompt */
        assert_true(norms[i] > 0 && norms[i] < 1e3);
    }
}

/* With 64, 7 or 1 completions at a time. */
static void the_sampling_batch_leaves_no_trace(void **state)
{
    static const char *const by[][2] = {{"rollout.max_batch=64", "run.threads=2"},
                                        {"rollout.max_batch=7", "run.threads=1"},
                                        {"rollout.max_batch=1", "run.threads=1"}};
    static const char *const dirs[] = {ROOT "/at-once", ROOT "/seven", ROOT "/one"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        const char *const extra[] = {"train.steps=1",
                                     "rollout.prompts=16",
                                     "train.updates_per_step=1",
                                     by[i][0],
                                     by[i][1],
                                     NULL};

        must_train(dirs[i], false, extra);
        assert_same_file(dirs[0], dirs[i], "rollouts/step-000001.jsonl.zst");
        assert_same_file(dirs[0], dirs[i], "checkpoints/latest/model/model.safetensors");
    }
}

static void a_run_that_was_stopped_is_resumed(void **state)
{
    static const char *const half[] = {"train.steps=2", NULL};

    (void)state;
    must_train(ROOT "/whole", false, NULL);
    must_train(ROOT "/half", false, half);
    must_train(ROOT "/half", true, NULL);
    assert_same_file(ROOT "/whole", ROOT "/half", "checkpoints/latest/state.safetensors");
    assert_same_file(ROOT "/whole", ROOT "/half",
                     "checkpoints/latest/model/model.safetensors");
    assert_same_file(ROOT "/whole", ROOT "/half", "rollouts/step-000004.jsonl.zst");
}

/* The message must end in "OPERATION: KERNEL: the device is lost", after what the run was
 * doing. */
static void must_name_the_operation(const char *message)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz_";
    const char *at = message, *name = NULL, *kernel = NULL;

    for (const char *next; (next = strstr(at, ": ")) != NULL; at = next + 2) {
        name = kernel;
        kernel = at;
    }
    if (strcmp(at, "the device is lost") != 0 || !name ||
        strspn(name, letters) != strcspn(name, ":"))
        fail_msg("expected an operation that met a lost device, found \"%s\"", message);
}

/* Loses the device after 30, 60 and 90 % of a run's launches, wherever these are: in a
 * rollout, in the backward, between operations of an update. */
static void a_device_that_is_lost_loses_a_step(void **state)
{
    static const char *const small[] = {"rollout.prompts=2", "rollout.samples=2",
                                        "rollout.max_tokens=5", NULL};
    int64_t before, all;
    struct kg_err err = {0};

    (void)state;
    if (strcmp(backend()->name, "emu") != 0)
        skip();                              /* others cannot be lost at will */
    must_train(ROOT "/first", false, small); /* tries plans, which later runs reuse */
    before = kg_emu_lose(-1);
    must_train(ROOT "/kept", false, small);
    all = kg_emu_lose(-1) - before;
    for (int i = 3; i < 10; i += 3) {
        fresh(ROOT "/lost");
        kg_emu_lose(all * i / 10);
        assert_int_equal(train(ROOT "/lost", false, small, &err), KG_EDEVICE);
        must_name_the_operation(err.message);
        kg_emu_lose(-1);
        if (i > 3) /* with 3, the save of the first step may be unfinished */
            assert_true(kg_file_exists(ROOT "/lost/checkpoints/latest/state.json"));
        must_train(ROOT "/lost", true, small);
        assert_same_file(ROOT "/kept", ROOT "/lost",
                         "checkpoints/latest/state.safetensors");
        assert_same_file(ROOT "/kept", ROOT "/lost", "rollouts/step-000004.jsonl.zst");
    }
}

/* found <- the error of a run on backend `be` */
static kg_status end_on(struct kg_err *found, const char *be, const char *const *extra)
{
    char *named = strdup(getenv("KEDGE_TEST_BACKEND"));
    kg_status status;

    *found = (struct kg_err){0};
    fresh(ROOT "/ended");
    setenv("KEDGE_TEST_BACKEND", be, true);
    status = train(ROOT "/ended", false, extra, found);
    setenv("KEDGE_TEST_BACKEND", named, true);
    free(named);
    return status;
}

/* In a rollout and in the backward of SFT, the device must report the CPU's error. */
static void what_is_not_finite_is_found_where_the_cpu_finds_it(void **state)
{
    static const char *const logits[] = {
        "model.path=" ROOT "/inf", "rollout.prompts=2", "rollout.samples=2",
        "eval.at_start=false",     "eval.every=0",      NULL};
    static const char *const gradient[] = {
        "model.path=" ROOT "/steep",   "sft.steps=4",         "sft.batch=1",
        "sft.data=" ROOT "/end.jsonl", "eval.at_start=false", NULL};
    static const char *const *const runs[] = {logits, gradient};
    static const char end[] = "{\"prompt\": \"1,2:3,4\", \"response\": \"\"}\n";
    const char *here = backend()->name;
    struct kg_err cpu, device;

    (void)state;
    write_model(ROOT "/inf", overflow_logits);
    write_model(ROOT "/steep", overflow_gradients);
    NEED(kg_file_write_atomic(ROOT "/end.jsonl", end, strlen(end), err));
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        if (end_on(&cpu, "cpu", runs[i]) != KG_ENONFINITE)
            fail_msg("%s", cpu.message);
        assert_int_equal(end_on(&device, here, runs[i]), KG_ENONFINITE);
        assert_non_null(strstr(cpu.message, "step 3: expected finite numbers"));
        assert_string_equal(device.message, cpu.message);
    }
}

/* Returns RUN/manifest.json of the run in dir. */
static struct kg_json_doc manifest_of(const char *dir)
{
    struct kg_json_doc doc = {0};

    NEED(kg_json_read(&doc, kg_path_in(dir, "manifest.json").text, 1 << 20, err));
    return doc;
}

static void must_list_devices(const char *dir, const char *const *kinds, size_t n)
{
    struct kg_json_doc doc = manifest_of(dir);
    const struct kg_json *list = kg_json_get(doc.root, "devices");

    assert_int_equal(kg_json_size(list), n);
    for (size_t i = 0; i < n; i++) {
        const struct kg_json *since = kg_json_get(kg_json_at(list, i), "since");

        assert_string_equal(kg_json_text(kg_json_get(kg_json_at(list, i), "kind"), NULL),
                            kinds[i]);
        assert_string_equal(i ? kg_json_text(since, NULL) : "step-000002", "step-000002");
    }
    kg_json_release(&doc);
}

/* Resuming must fail with `words`, the part of the message after the test's paths. */
static void must_not_resume(const char *dir, const char *const *extra, const char *words)
{
    struct kg_err err = {0};

    assert_int_equal(train(dir, true, extra, &err), KG_ECONFLICT);
    if (!strstr(err.message, words))
        fail_msg("expected \"%s\", found \"%s\"", words, err.message);
}

/* Edits the manifest as if another device had begun the run: inserts `change` after
 * `key`, which adds a trait or changes the start of a value. */
static void change_device(const char *dir, const char *key, const char *change)
{
    struct kg_path path = kg_path_in(dir, "manifest.json");
    struct kg_str text = {0}, other = {0};
    const char *at;

    NEED(kg_file_read(&text, path.text, 1 << 20, err));
    at = strstr(text.data, key);
    assert_non_null(at);
    at += strlen(key);
    NEED(kg_str_printf(&other, err, "%.*s%s%s", (int)(at - text.data), text.data, change,
                       at));
    NEED(kg_file_write_atomic(path.text, other.data, other.len, err));
    kg_str_release(&text);
    kg_str_release(&other);
}

static void another_device_is_refused_unless_it_may_be(void **state)
{
    static const char *const two[] = {"train.steps=2", NULL};
    static const char *const moved[] = {"train.steps=3", "device.may_change=true", NULL};
    static const char *const three[] = {"train.steps=3", NULL};
    const char *here = backend()->name;
    const char *const kinds[] = {here, "cpu"};
    char words[96];
    char *named = strdup(getenv("KEDGE_TEST_BACKEND"));

    (void)state;
    must_train(ROOT "/moved", false, two);
    must_list_devices(ROOT "/moved", kinds, 1);
    setenv("KEDGE_TEST_BACKEND", "far", true);
    snprintf(words, sizeof words,
             "other devices give other bits: kind: expected %s, found cpu; gpu:", here);
    must_not_resume(ROOT "/moved", three, words);
    must_train(ROOT "/moved", true, moved);
    must_list_devices(ROOT "/moved", kinds, 2);
    must_train(ROOT "/moved", true, three); /* this device is listed now */
    must_list_devices(ROOT "/moved", kinds, 2);
    setenv("KEDGE_TEST_BACKEND", named, true);
    snprintf(words, sizeof words, "kind: expected cpu, found %s; gpu: expected none",
             here);
    must_not_resume(ROOT "/moved", three, words);
    free(named);
}

/* Device, driver and library are compared one by one, and the message lists all that
 * differ. */
static void another_gpu_driver_or_library_is_refused_by_name(void **state)
{
    static const struct {
        const char *key, *change, *says;
    } rows[] = {
        {"\"gpu\": \"", "X", "other devices give other bits: gpu: expected X"},
        {"\"products\": \"", "X", "; products: expected X"},
        /* a device of the emulation has no driver: the last row adds one */
        {"\"driver\": \"", "X", "driver: expected X"},
        {"\"devices\": [{", "\"driver\": \"X\", ", "driver: expected X, found "},
    };
    static const char *const two[] = {"train.steps=2", NULL};

    (void)state;
    must_train(ROOT "/other", false, two);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_json_doc doc = manifest_of(ROOT "/other");
        const struct kg_json *device = kg_json_at(kg_json_get(doc.root, "devices"), 0);
        const bool has_driver = kg_json_get(device, "driver") != NULL;

        kg_json_release(&doc);
        if ((i == 2 && !has_driver) || (i == 3 && has_driver))
            continue;
        change_device(ROOT "/other", rows[i].key, rows[i].change);
        must_not_resume(ROOT "/other", two, rows[i].says);
    }
    must_not_resume(ROOT "/other", two, "; gpu: expected X");
}

int main(void)
{
    static const char *const base[] = {"model.path=" MODEL, "model.dtype=bf16",
                                       "rollout.max_tokens=8", "eval.problems=1", NULL};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_sampled_is_what_is_trained),
        cmocka_unit_test(the_sampling_batch_leaves_no_trace),
        cmocka_unit_test(a_run_that_was_stopped_is_resumed),
        cmocka_unit_test(a_device_that_is_lost_loses_a_step),
        cmocka_unit_test(what_is_not_finite_is_found_where_the_cpu_finds_it),
        cmocka_unit_test(another_device_is_refused_unless_it_may_be),
        cmocka_unit_test(another_gpu_driver_or_library_is_refused_by_name),
    };
    const struct CMUnitTest none_here[] = {cmocka_unit_test(kernels_are_not_emulated)};

    run_also = base;
    if (!getenv("KEDGE_TEST_BACKEND") && !kg_emu_open)
        return cmocka_run_group_tests(none_here, NULL, NULL);
    setenv("KEDGE_TEST_BACKEND", "emu", false);
    setenv("KEDGE_TEST_PRODUCTS", "own", false);
    return cmocka_run_group_tests(tests, setup, NULL);
}
