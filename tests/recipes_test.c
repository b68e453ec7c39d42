/* Every recipe in recipes/: --dry-run must print a plan. Weights and data that cannot be
 * shipped are replaced by small stand-ins, and nothing else is changed. published_test.c
 * compares their values with the published ones. Run from the repository's root.
 */
#include "base/file.h"
#include "model/config.h"
#include "recipe/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char work[] = "/tmp/kedge-recipes-XXXXXX";
static struct kg_err err;

/* ---- stand-ins ---- */

/* Runs a shell line, in which W is the test's folder.   returns its exit status */
static int shell(const char *line)
{
    int status = system(line);

    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int teardown(void **state)
{
    (void)state;
    return kg_file_remove_tree(work, &err) != KG_OK;
}

/* Makes a model with enough positions for the longest recipe, and problems in verl's
 * schema. */
static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(work))
        return 1;
    setenv("W", work, 1);
    if (access("./kedge", X_OK) != 0)
        return 0;
    return shell(
        "for i in 1 2 3 4 5 6 7 8; do printf '%s%d%s\\n' "
        "'{\"prompt\": [{\"role\": \"user\", \"content\": \"What is 2 + ' $i '?"
        "\"}], \"data_source\": \"stand-in\", \"reward_model\": "
        "{\"ground_truth\": \"4\"}}'; done > $W/data.jsonl && "
        "echo '{\"prompt\": \"q\", \"segments\": [{\"source\": \"model\", \"text\": "
        "\"a\"}]}' > $W/episodes.jsonl && echo '{\"id\": 1, \"contents\": \"t\"}' > "
        "$W/corpus.jsonl && ./kedge search index --dense tests/data/encoder/bert "
        "$W/corpus.jsonl $W/index.db > $W/said 2>&1 && "
        "./kedge new --hidden 32 --ffn 32 --layers 1 --heads 1 --vocab 300 "
        "--max-positions 65536 --train-tokenizer tests/data/tokenizer/corpus.txt "
        "$W/model > $W/said 2>&1 && cp tests/data/chat_templates/"
        "Qwen-Qwen1.5-72B-Chat.jinja $W/model/chat_template.jinja || "
        "{ cat $W/said; exit 1; }");
}

static const char *const stand_ins[][2] = {
    {"model.path", "model"},      {"data.train", "data.jsonl"},
    {"data.val", "data.jsonl"},   {"sft.data", "episodes.jsonl"},
    {"anchor.path", "model"},     {"eval.reference", "model"},
    {"search.where", "index.db"},
};
static const char *const others[][2] = {{"search.model", "tests/data/encoder/bert"},
                                        {"search.passages", "1"}};

/* Whether all files that a key names (a path or a list) exist. */
static bool is_here(const struct kg_config *config, const char *key)
{
    struct kg_opt_list list = kg_config_list(config, key);

    for (size_t i = 0; i < list.n; i++)
        if (!kg_file_exists(list.items[i]))
            return false;
    return list.n > 0 || kg_file_exists(kg_config_text(config, key));
}

/* Appends assignments that replace missing files by stand-ins. A stage that would start
 * from an earlier run starts from the stand-in model. */
static void put_stand_ins(struct kg_str *line, const struct kg_config *config)
{
    if (*kg_config_text(config, "init.from"))
        assert_int_equal(
            kg_str_puts(line, " init.from= init.parts=model model.path=$W/model", &err),
            KG_OK);
    for (size_t i = 0; i < sizeof stand_ins / sizeof *stand_ins; i++) {
        const char *key = stand_ins[i][0];

        if (*kg_config_text(config, key) && !is_here(config, key))
            assert_int_equal(kg_str_printf(line, &err, " %s=$W/%s", key, stand_ins[i][1]),
                             KG_OK);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (*kg_config_text(config, "search.model"))
            assert_int_equal(
                kg_str_printf(line, &err, " %s=%s", others[i][0], others[i][1]), KG_OK);
}

static struct kg_config *recipe(const char *path)
{
    struct kg_config *config = NULL;

    if (kg_train_config(&config, path, NULL, 0, &err) != KG_OK)
        fail_msg("%s", err.message);
    return config;
}

static void must_plan(const char *path)
{
    struct kg_config *config = recipe(path);
    struct kg_str line = {0}, said = {0};
    char file[128];

    assert_int_equal(kg_str_printf(&line, &err,
                                   "./kedge train %s --dry-run "
                                   "run.dir=$W/run",
                                   path),
                     KG_OK);
    put_stand_ins(&line, config);
    assert_int_equal(kg_str_puts(&line, " > $W/out 2> $W/err", &err), KG_OK);
    if (shell(line.data) != 0) {
        snprintf(file, sizeof file, "%s/err", work);
        assert_int_equal(kg_file_read(&said, file, 1 << 20, &err), KG_OK);
        fail_msg("%s: %s", path, kg_str_text(&said));
    }
    assert_int_equal(shell("grep -q '^one step ' $W/out && grep -q '^memory ' $W/out && "
                           "test ! -e $W/run"),
                     0);
    kg_str_release(&line);
    kg_str_release(&said);
    kg_config_free(config);
}

static void every_recipe_plans_as_it_stands(void **state)
{
    char **names;
    char path[512];
    size_t n, found = 0;

    (void)state;
    if (access("./kedge", X_OK) != 0) {
        print_message("skip: ./kedge is not built\n");
        skip();
    }
    assert_int_equal(kg_file_list(&names, &n, "recipes", &err), KG_OK);
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(names[i]);

        if (len < 5 || strcmp(names[i] + len - 5, ".yaml") != 0)
            continue;
        snprintf(path, sizeof path, "recipes/%s", names[i]);
        must_plan(path);
        found++;
    }
    kg_file_names_free(names, n);
    assert_true(found >= 5);
}

/* ---- start models ---- */

/* model_type of the start models that recipes name and users must bring. */
static const struct {
    const char *name, *type;
} start_models[] = {
    {"models/DeepSeek-R1-Distill-Qwen-1.5B", "qwen2"},
    {"models/Qwen2.5-32B", "qwen2"},
    {"models/Qwen2.5-3B", "qwen2"},
    {"models/Qwen3-30B-A3B-Base", "qwen3_moe"},
    {"models/Qwen3-4B", "qwen3"},
    {"models/Qwen3-8B-Base", "qwen3"},
    {"models/qwen2.5-0.5b-random", "qwen2"},
    {"runs/", NULL}, /* made by kedge */
    {"tests/data/", NULL},
};

/* Whether kedge can load the model at `path`; a path that is not in the table fails the
 * test. */
static bool is_read(const char *path)
{
    const struct kg_arch *arch;

    for (size_t i = 0; i < sizeof start_models / sizeof *start_models; i++)
        if (strncmp(path, start_models[i].name, strlen(start_models[i].name)) == 0)
            return !start_models[i].type ||
                   kg_arch_find(&arch, start_models[i].type, &err) == KG_OK;
    fail_msg("%s: no row in start_models", path);
    return false;
}

/* returns whether kedge can load the recipe's model; its text must say if not */
static bool says_what_is_not_read(const char *path)
{
    struct kg_config *config = recipe(path);
    const char *model = kg_config_text(config, "model.path");
    struct kg_str text = {0};
    bool read = !*model || is_read(model);

    assert_int_equal(kg_file_read(&text, path, 1 << 20, &err), KG_OK);
    if (read != !strstr(text.data, "are not read yet"))
        fail_msg("%s: its start model %s be loaded, and its head says otherwise", path,
                 read ? "can" : "cannot");
    kg_str_release(&text);
    kg_config_free(config);
    return read;
}

/* The plans above use a dense stand-in. While a start model cannot be loaded, its recipe,
 * README.md and docs/published.md must say so. */
static void a_start_model_that_cannot_be_loaded_is_named(void **state)
{
    static const char *const pages[] = {"README.md", "docs/published.md"};
    struct kg_str text = {0};
    char **names;
    char path[512];
    size_t n, unread = 0;

    (void)state;
    assert_int_equal(kg_file_list(&names, &n, "recipes", &err), KG_OK);
    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof path, "recipes/%s", names[i]);
        if (strstr(names[i], ".yaml"))
            unread += !says_what_is_not_read(path);
    }
    kg_file_names_free(names, n);
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        kg_str_clear(&text);
        assert_int_equal(kg_file_read(&text, pages[i], 1 << 20, &err), KG_OK);
        assert_int_equal(unread > 0, strstr(text.data, "qwen3_moe") != NULL);
    }
    kg_str_release(&text);
}

/* RPG's files repeat each problem, in another order each time. Validation must take each
 * problem once. */
static void a_validation_file_of_repeated_problems_is_taken_once(void **state)
{
    static const char *const recipes[] = {"rpg-math", "dppo-math-8b", "dppo-math-30b"};
    char line[512];

    (void)state;
    if (access("./kedge", X_OK) != 0) {
        print_message("skip: ./kedge is not built\n");
        skip();
    }
    assert_int_equal(shell("for i in 1 2 3 4; do cat $W/data.jsonl; tac $W/data.jsonl; "
                           "done > $W/again.jsonl"),
                     0);
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        snprintf(line, sizeof line,
                 "./kedge train recipes/%s.yaml --dry-run run.dir=$W/run "
                 "model.path=$W/model data.train=$W/data.jsonl "
                 "data.val=\"[$W/again.jsonl, $W/data.jsonl]\" > $W/out 2> $W/err && "
                 "grep -q 'again.jsonl: 8 problems x 32 samples = 256 completions; 56 "
                 "repeated records left out$' $W/out && grep -q 'data.jsonl: 8 problems "
                 "x 32 samples = 256 completions$' $W/out",
                 recipes[i]);
        assert_int_equal(shell(line), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_recipe_plans_as_it_stands),
        cmocka_unit_test(a_start_model_that_cannot_be_loaded_is_named),
        cmocka_unit_test(a_validation_file_of_repeated_problems_is_taken_once),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
