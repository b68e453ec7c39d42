/* Commands on a model's folder and on a run's: ./kedge is run in a shell.
 */
#include "base/file.h"
#include "base/need_testing.h"
#include "data/json.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DIGITS "tests/data/verl_digit_llama"
#define ROOT   "build/test-model-folder"
#define SAID   " > " ROOT "/out 2> " ROOT "/err"

static struct kg_str text; /* of the last file read */

static int set_up(void **state)
{
    (void)state;
    NEED(kg_file_remove_tree(ROOT, err));
    NEED(kg_file_make_dirs(ROOT, err));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kg_str_release(&text);
    return 0;
}

/* returns the exit status */
static int shell(const char *line)
{
    int status;

    if (access("./kedge", X_OK) != 0) {
        print_message("skip: ./kedge is not built\n");
        skip();
    }
    status = system(line);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static const char *read_back(const char *name)
{
    char path[128];

    snprintf(path, sizeof path, ROOT "/%s", name);
    kg_str_clear(&text);
    NEED(kg_file_read(&text, path, 1 << 20, err));
    return kg_str_text(&text);
}

static void must(const char *line)
{
    if (shell(line) != 0)
        fail_msg("%s: %s", line, read_back("err"));
}

/* ---- inspect ---- */

static uint64_t said_to_train(void)
{
    struct kg_json_doc doc;
    int64_t bytes;

    read_back("out");
    NEED(kg_json_parse(&doc, text.data, text.len, "inspect", err));
    bytes = kg_json_int(kg_json_get(kg_json_get(doc.root, "memory"), "train_bytes"), -1);
    kg_json_release(&doc);
    assert_true(bytes > 0);
    return (uint64_t)bytes;
}

/* Beside five vectors (weights, gradients, two moments, anchor), of fp32 but for moments
 * in bf16, and activations: what products read of model and anchor, packed in either
 * dtype. */
static void memory_has_the_packed_weights_of_either_dtype(void **state)
{
    static const struct {
        enum kg_dtype ct;
        int64_t each; /* bytes a parameter of the five vectors */
        const char *line;
    } types[] = {
        {KG_F32, 20, "./kedge inspect --json --dtype fp32 " DIGITS SAID},
        {KG_BF16, 20, "./kedge inspect --json --dtype bf16 " DIGITS SAID},
        {KG_BF16, 16, "./kedge inspect --json --dtype bf16 --moments bf16 " DIGITS SAID}};

    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct kg_model_opts opts = {.ct = types[i].ct};
        struct kg_model *m;
        uint64_t rest;

        must(types[i].line);
        NEED(kg_model_open(&m, DIGITS, &opts, err));
        rest = said_to_train() - (uint64_t)(m->n_elements * types[i].each) -
               kg_bytes_sum(kg_acts_bytes(m, 4096, true, 0));
        assert_int_equal(rest, 2 * kg_model_compute_bytes(m));
        kg_model_free(m);
    }
}

/* ---- inspect of a device ---- */

static int64_t number(const struct kg_json *object, const char *name)
{
    return kg_json_int(kg_json_get(object, name), -1);
}

/* The plan of so many GB; what fits is what is no more than that. */
static void assert_verdicts(const char *size, uint64_t total, int fitting)
{
    char line[256];
    const struct kg_json *plans;
    struct kg_json_doc doc;
    int fit = 0;

    snprintf(line, sizeof line,
             "./kedge inspect --json --device-memory %s " ROOT "/shape" SAID, size);
    must(line);
    read_back("out");
    NEED(kg_json_parse(&doc, text.data, text.len, "inspect", err));
    assert_int_equal(number(doc.root, "total_bytes"), total);
    assert_int_equal(number(doc.root, "free_bytes"), total);
    plans = kg_json_get(doc.root, "plans");
    assert_int_equal(kg_json_size(plans), 6);
    for (size_t i = 0; i < kg_json_size(plans); i++) {
        const struct kg_json *p = kg_json_at(plans, i);
        bool fits = kg_json_bool(kg_json_get(p, "fits"), false);

        assert_true(number(p, "device_bytes") > 0);
        assert_int_equal(fits, (uint64_t)number(p, "device_bytes") <= total);
        fit += fits;
    }
    assert_int_equal(fit, fitting);
    kg_json_release(&doc);
}

/* Of config.json alone; what training takes is what a plan of the same recipe says. */
static void what_fits_on_a_device_is_said_of_a_shape(void **state)
{
    char gb[32] = "", *end;

    (void)state;
    must("./kedge new --vocab 32000 --hidden 2048 --layers 1 --heads 16 --ffn 4096 " ROOT
         "/shape" SAID);
    must("rm " ROOT "/shape/*.safetensors");
    assert_verdicts("80GB", 80000000000, 6);
    assert_verdicts("2GiB", (uint64_t)2 << 30, 2);
    must(
        "./kedge train --dry-run --device-memory 80GB algo.preset=grpo model.device=cuda "
        "optim.moments=bf16 model.path=" ROOT "/shape" SAID);
    read_back("out");
    assert_non_null(strstr(kg_str_text(&text), "device "));
    snprintf(gb, sizeof gb, "%s", strstr(kg_str_text(&text), "device ") + 7);
    end = strstr(gb, " GB");
    assert_non_null(end);
    *end = '\0';
    must("./kedge inspect --device-memory 80GB " ROOT "/shape" SAID);
    read_back("out");
    assert_non_null(
        strstr(kg_str_text(&text), "device     80.00 GB, 80.00 of them free"));
    assert_non_null(strstr(kg_str_text(&text), "; optim.moments=bf16)\n"));
    assert_non_null(strstr(kg_str_text(&text), gb));
}

/* A plan computes nothing, so it has none of their operations and is not asked for them.
 */
static void what_fits_is_said_of_experts_too(void **state)
{
    (void)state;
    must("./kedge inspect --device-memory 1GB tests/data/reference/qwen3_moe" SAID);
    read_back("out");
    assert_non_null(strstr(kg_str_text(&text), "train      fits"));
    must("./kedge train --dry-run --device-memory 1GB algo.preset=grpo model.device=cuda "
         "model.path=tests/data/reference/qwen3_moe" SAID);
    read_back("out");
    assert_non_null(strstr(kg_str_text(&text), "the device has 1.00 GB"));
}

static void a_device_is_asked_for_its_memory(void **state)
{
    (void)state;
    must("KEDGE_TEST_BACKEND=far KEDGE_TEST_MEMORY=123450000 " KG_TEST_KEDGE
         " inspect --device cpu --dtype fp32 " DIGITS SAID);
    assert_non_null(strstr(read_back("out"), "device     0.12 GB, 0.12 of them free; in "
                                             "fp32\n"));
    assert_non_null(strstr(kg_str_text(&text), "generate   no "));
    assert_int_equal(shell("./kedge inspect --device cpu " DIGITS SAID), 1);
    assert_non_null(strstr(read_back("err"), "--device: expected a GPU, found the CPU"));
    assert_int_equal(shell("./kedge inspect --device-memory 80 " DIGITS SAID), 1);
    assert_non_null(strstr(read_back("err"), "expected a size as 141GB or 80GiB"));
    assert_int_equal(
        shell("./kedge inspect --device-memory 80GB --moments bf16 " DIGITS SAID), 2);
    assert_int_equal(
        shell("./kedge inspect --device cpu --device-memory 80GB " DIGITS SAID), 2);
}

/* Its own manifest.json is of its inputs: of its checkpoints the newest is looked at. */
static void a_runs_newest_checkpoint_is_verified(void **state)
{
    (void)state;
    must("./kedge train model.path=" DIGITS " task.name=digits data.train=" DIGITS
         "/train.jsonl rollout.prompts=2 rollout.samples=2 rollout.max_tokens=4 "
         "train.steps=2 run.dir=" ROOT "/run" SAID);
    must("./kedge inspect --verify " ROOT "/run" SAID);
    assert_non_null(strstr(read_back("out"), "run/checkpoints/step-000002: "));
    must("printf x >> " ROOT "/run/checkpoints/step-000002/model/config.json");
    assert_int_equal(shell("./kedge inspect --verify " ROOT "/run" SAID), 1);
    assert_non_null(strstr(read_back("err"), "config.json"));
    must("rm -r " ROOT "/run/checkpoints/*");
    assert_int_equal(shell("./kedge inspect --verify " ROOT "/run" SAID), 1);
    assert_non_null(strstr(read_back("err"), "found a run that has none yet"));
}

/* ---- generate ---- */

/* A template that cannot be read stops what would be rendered by it, and nothing else. */
static void plain_text_needs_no_template(void **state)
{
    (void)state;
    must("cp -r " DIGITS " " ROOT "/m && echo '{% bogus %}' > " ROOT
         "/m/chat_template.jinja");
    must("./kedge generate --max-tokens 2 -m " ROOT "/m '1,2:3,4'" SAID);
    must("printf '{\"prompt\": \"1,2:3,4\"}\\n{\"ids\": [1, 2]}\\n' > " ROOT "/in && "
         "./kedge generate --jsonl --max-tokens 2 -m " ROOT "/m < " ROOT "/in" SAID);
    assert_int_equal(shell("echo '{\"prompt\": [{\"role\": \"user\", \"content\": "
                           "\"1\"}]}' | ./kedge generate --jsonl -m " ROOT "/m" SAID),
                     1);
    assert_non_null(strstr(read_back("err"), "bogus"));
    assert_int_equal(shell("./kedge generate --user-turn -m " ROOT "/m 1" SAID), 1);
    assert_non_null(strstr(read_back("err"), "bogus"));
    must("./kedge generate --help" SAID);
    assert_non_null(strstr(read_back("out"), "\"tools\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_has_the_packed_weights_of_either_dtype),
        cmocka_unit_test(what_fits_on_a_device_is_said_of_a_shape),
        cmocka_unit_test(what_fits_is_said_of_experts_too),
        cmocka_unit_test(a_device_is_asked_for_its_memory),
        cmocka_unit_test(a_runs_newest_checkpoint_is_verified),
        cmocka_unit_test(plain_text_needs_no_template),
    };

    return cmocka_run_group_tests_name("model_folder", tests, set_up, tear_down);
}
