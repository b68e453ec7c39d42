/* Commands on a model's folder and on a run's folder, run in a shell.
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

/* Memory for training is five vectors (weights, gradients, two moments, anchor), in fp32
 * unless the moments are bf16; activations; and the packed weights that products of model
 * and anchor read, in either dtype. This test checks the packed weights. */
static void memory_has_the_packed_weights_of_either_dtype(void **state)
{
    static const struct {
        enum kg_dtype ct;
        int64_t each; /* bytes per parameter of the five vectors */
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

/* A run's own manifest.json lists its inputs, so `inspect --verify RUN` verifies the
 * newest checkpoint instead. */
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

/* An invalid template is an error only for input that it would render. */
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
        cmocka_unit_test(a_runs_newest_checkpoint_is_verified),
        cmocka_unit_test(plain_text_needs_no_template),
    };

    return cmocka_run_group_tests_name("model_folder", tests, set_up, tear_down);
}
