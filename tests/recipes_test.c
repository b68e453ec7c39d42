/* The recipes of recipes/, each as it stands: what it names and is not here (weights and
 * data that cannot be shipped) is replaced by small stand-ins, nothing else, and its
 * --dry-run must print a plan. The settings of the EMA-PG mathematics stages are compared
 * with the published ones. Run from the repository's root.
 */
#include "base/file.h"
#include "train/train_options.h"

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

/* Run a line of shell with W, the folder of the test, set.   returns its exit status */
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

/* A model whose positions take the longest recipe, and problems in verl's schema. */
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
        "$W/corpus.jsonl && ./kedge search index $W/corpus.jsonl $W/index.db > $W/said "
        "2>&1 && "
        "./kedge new --hidden 32 --ffn 32 --layers 1 --heads 1 --vocab 300 "
        "--max-positions 65536 --train-tokenizer tests/data/tokenizer/corpus.txt "
        "$W/model > $W/said 2>&1 || { cat $W/said; exit 1; }");
}

static const char *const stand_ins[][2] = {
    {"model.path", "model"},      {"data.train", "data.jsonl"},
    {"data.val", "data.jsonl"},   {"sft.data", "episodes.jsonl"},
    {"anchor.path", "model"},     {"eval.reference", "model"},
    {"search.where", "index.db"},
};

/* Assignments for what the recipe names and is not here. A stage starts from a model in
 * the place of the run before it. */
static void put_stand_ins(struct kg_str *line, const struct kg_config *config)
{
    if (*kg_config_text(config, "init.from"))
        assert_int_equal(
            kg_str_puts(line, " init.from= init.parts=model model.path=$W/model", &err),
            KG_OK);
    for (size_t i = 0; i < sizeof stand_ins / sizeof *stand_ins; i++) {
        const char *named = kg_config_text(config, stand_ins[i][0]);

        if (*named && !kg_file_exists(named))
            assert_int_equal(
                kg_str_printf(line, &err, " %s=$W/%s", stand_ins[i][0], stand_ins[i][1]),
                KG_OK);
    }
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

/* RPG's files hold each problem as often as it is answered, in another order each time:
 * validation takes it once. */
static void a_validation_file_of_repeated_problems_is_taken_once(void **state)
{
    static const char *const recipes[] = {"rpg-math", "dppo-math-8b"};
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
                 "grep -q 'again.jsonl: 8 problems x 32 samples = 256 answers; 56 "
                 "repeated records left out$' $W/out && grep -q 'data.jsonl: 8 problems "
                 "x 32 samples = 256 answers$' $W/out",
                 recipes[i]);
        assert_int_equal(shell(line), 0);
    }
}

/* ---- published settings ---- */

struct setting {
    const char *key;
    const char *values[3]; /* of the stages 8k, 16k, 24k; the first alone: of all */
};

/* arXiv 2602.04417, the released scripts of the three stages. */
static const struct setting ema_pg_math[] = {
    {"data.max_prompt_tokens", {"4096"}},
    {"rollout.max_tokens", {"8192", "16384", "24576"}},
    {"run.seed", {"6725", "986", "986"}},
    {"algo.mask_truncated", {"true", "false", "false"}},
    {"rollout.prompts", {"128"}},
    {"rollout.samples", {"8"}},
    {"rollout.temperature", {"1.0"}},
    {"rollout.top_p", {"1"}},
    {"train.updates_per_step", {"2"}},
    {"optim.lr", {"1e-6"}},
    {"optim.schedule", {"constant"}},
    {"optim.warmup_steps", {"0"}},
    {"optim.beta1", {"0.9"}},
    {"optim.beta2", {"0.999"}},
    {"optim.weight_decay", {"0.01"}},
    {"optim.clip_norm", {"1.0"}},
    {"algo.surrogate", {"ppo-clip"}},
    {"algo.clip_low", {"0.2"}},
    {"algo.clip_high", {"0.28"}},
    {"algo.dual_clip", {"3.0"}},
    {"kl.beta", {"0.001"}},
    {"kl.estimator", {"k3"}},
    {"kl.importance", {"false"}},
    {"anchor.kind", {"ema"}},
    {"anchor.eta", {"0.95"}},
    {"anchor.period", {"10"}},
    {"algo.aggregate", {"seq-mean-token-mean"}},
    {"algo.advantage", {"grpo"}},
    {"algo.entropy_coef", {"0"}},
    {"eval.every", {"20"}},
    {"eval.samples", {"8"}},
    {"eval.temperature", {"1.0"}},
    {"eval.top_p", {"0.95"}},
    {"eval.anchor", {"true"}},
    {"checkpoint.every", {"20"}},
};

/* The released script of the search agent (train_grpo_ema_pg.sh), and what Search-R1's
 * baseline has in its place; no second value: the same. */
static const struct setting search_3b[] = {
    {"task.name", {"search-qa"}},
    {"task.metric", {"em"}},
    {"data.max_prompt_tokens", {"2048"}},
    {"episode.env", {"search"}},
    {"episode.turns", {"4"}},
    {"episode.turn_tokens", {"500"}},
    {"episode.obs_tokens", {"500"}},
    {"episode.context", {"4096"}},
    {"search.topk", {"3"}},
    {"rollout.prompts", {"512"}},
    {"rollout.samples", {"5"}},
    {"rollout.temperature", {"1.0"}},
    {"rollout.top_p", {"0.95"}},
    {"train.updates_per_step", {"10"}},
    {"train.steps", {"1005"}},
    {"optim.lr", {"1e-6"}},
    {"optim.beta1", {"0.9"}},
    {"optim.beta2", {"0.95", "0.999"}},
    {"optim.weight_decay", {"0.01"}},
    {"optim.clip_norm", {"1.0"}},
    {"optim.schedule", {"constant"}},
    {"optim.warmup_steps", {"286"}},
    {"algo.advantage", {"grpo"}},
    {"algo.surrogate", {"ppo-clip"}},
    {"algo.clip_low", {"0.2"}},
    {"algo.clip_high", {"0.28", "0.2"}},
    {"algo.dual_clip", {"0"}},
    {"algo.aggregate", {"token-mean"}},
    {"algo.entropy_coef", {"0", "0.001"}},
    {"kl.beta", {"0.001"}},
    {"kl.estimator", {"topk-reverse", "k3"}},
    {"kl.top_k", {"32"}},
    {"kl.importance", {"true", "false"}},
    {"anchor.kind", {"ema", "fixed"}},
    {"anchor.eta", {"0.9"}},
    {"anchor.period", {"10"}},
    {"eval.every", {"50"}},
    {"eval.temperature", {"0"}},
    {"checkpoint.every", {"50"}},
};

static void dump(struct kg_str *text, const char *path, const char *assignment)
{
    struct kg_config *config = recipe(path);

    if (assignment)
        assert_int_equal(kg_config_override(config, assignment, "published", &err),
                         KG_OK);
    assert_int_equal(kg_config_dump_yaml(text, config, false, &err), KG_OK);
    kg_config_free(config);
}

/* A recipe that is given the published value stays what it is. */
static void assert_setting(const char *path, const char *key, const char *value)
{
    struct kg_str was = {0}, given = {0};
    char assignment[128];

    snprintf(assignment, sizeof assignment, "%s=%s", key, value);
    dump(&was, path, NULL);
    dump(&given, path, assignment);
    if (strcmp(was.data, given.data) != 0)
        fail_msg("%s: expected %s", path, assignment);
    kg_str_release(&was);
    kg_str_release(&given);
}

/* arXiv 2505.17508 (Appendix H) and 2602.04879 (Appendix E). */
static const char *const baselines[][3] = {
    {"rpg-math", "data.max_prompt_tokens", "2048"},
    {"rpg-math", "rollout.prompts", "512"},
    {"rpg-math", "rollout.samples", "16"},
    {"rpg-math", "rollout.max_tokens", "2048"},
    {"rpg-math", "rollout.temperature", "1"},
    {"rpg-math", "rollout.dynamic", "true"},
    {"rpg-math", "rollout.oversample", "3"},
    {"rpg-math", "rollout.max_refills", "20"},
    {"rpg-math", "rollout.overlong_buffer", "512"},
    {"rpg-math", "train.updates_per_step", "16"},
    {"rpg-math", "train.steps", "400"},
    {"rpg-math", "optim.lr", "1e-6"},
    {"rpg-math", "optim.warmup_steps", "10"},
    {"rpg-math", "optim.weight_decay", "0.1"},
    {"rpg-math", "optim.clip_norm", "1"},
    {"rpg-math", "algo.clip_low", "0.2"},
    {"rpg-math", "algo.clip_high", "0.28"},
    {"rpg-math", "algo.dual_clip", "10"},
    {"rpg-math", "algo.advantage", "rpg"},
    {"rpg-math", "algo.aggregate", "token-mean"},
    {"rpg-math", "kl.beta", "0.0001"},
    {"rpg-math", "task.wrong_reward", "-1"},
    {"rpg-math", "eval.every", "10"},
    {"rpg-math", "eval.samples", "32"},
    {"rpg-math", "eval.temperature", "1.0"},
    {"rpg-math", "eval.top_p", "1.0"},
    {"dppo-math-8b", "data.max_prompt_tokens", "1024"},
    {"dppo-math-8b", "rollout.prompts", "128"},
    {"dppo-math-8b", "rollout.samples", "8"},
    {"dppo-math-8b", "rollout.max_tokens", "8000"},
    {"dppo-math-8b", "rollout.temperature", "1"},
    {"dppo-math-8b", "train.updates_per_step", "4"},
    {"dppo-math-8b", "train.steps", "1400"},
    {"dppo-math-8b", "optim.lr", "1e-6"},
    {"dppo-math-8b", "algo.surrogate", "dppo-binary-tv"},
    {"dppo-math-8b", "task.wrong_reward", "-1"},
    {"dppo-math-8b", "eval.every", "10"},
    {"dppo-math-8b", "eval.samples", "32"},
    {"dppo-math-8b", "eval.temperature", "0.7"},
    {"dppo-math-8b", "eval.top_p", "0.95"},
};

static void rpg_and_dppo_have_the_published_settings(void **state)
{
    char path[64];

    (void)state;
    for (size_t i = 0; i < sizeof baselines / sizeof *baselines; i++) {
        snprintf(path, sizeof path, "recipes/%s.yaml", baselines[i][0]);
        assert_setting(path, baselines[i][1], baselines[i][2]);
    }
}

static void ema_pg_math_has_the_published_settings(void **state)
{
    static const char *const paths[] = {"recipes/ema-pg-math-8k.yaml",
                                        "recipes/ema-pg-math-16k.yaml",
                                        "recipes/ema-pg-math-24k.yaml"};

    (void)state;
    for (size_t i = 0; i < sizeof ema_pg_math / sizeof *ema_pg_math; i++)
        for (size_t stage = 0; stage < 3; stage++) {
            const struct setting *s = &ema_pg_math[i];

            assert_setting(paths[stage], s->key,
                           s->values[stage] ? s->values[stage] : s->values[0]);
        }
}

static void search_agents_have_the_published_settings(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof search_3b / sizeof *search_3b; i++) {
        const struct setting *s = &search_3b[i];

        assert_setting("recipes/ema-pg-search-3b.yaml", s->key, s->values[0]);
        assert_setting("recipes/grpo-search-3b.yaml", s->key,
                       s->values[1] ? s->values[1] : s->values[0]);
    }
}

static void same_value(const struct kg_config *a, const struct kg_config *b,
                       const struct kg_opt_row *row)
{
    bool same = false;

    switch (row->type) {
    case KG_OPT_BOOL:
        same = kg_config_bool(a, row->key) == kg_config_bool(b, row->key);
        break;
    case KG_OPT_INT:
        same = kg_config_int(a, row->key) == kg_config_int(b, row->key);
        break;
    case KG_OPT_REAL:
        same = kg_config_real(a, row->key) == kg_config_real(b, row->key);
        break;
    case KG_OPT_STRING:
    case KG_OPT_CHOICE:
        same = strcmp(kg_config_text(a, row->key), kg_config_text(b, row->key)) == 0;
        break;
    default:
        fail_msg("%s: a type that this test does not compare", row->key);
    }
    if (!same)
        fail_msg("%s: the recipe and its preset differ", row->key);
}

/* A recipe and the preset of the same name say the same of the method. */
static void search_recipes_agree_with_their_presets(void **state)
{
    static const char *const pairs[][2] = {
        {"recipes/ema-pg-search-3b.yaml", "preset=ema-pg-search"},
        {"recipes/grpo-search-3b.yaml", "preset=grpo-search"}};
    static const char *const keys[] = {"algo.", "kl.", "anchor.", "optim."};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char *assignments[] = {strdup(pairs[i][1])};
        struct kg_config *mine = recipe(pairs[i][0]), *preset = NULL;

        assert_int_equal(kg_train_config(&preset, NULL, assignments, 1, &err), KG_OK);
        for (const struct kg_opt_row *row = kg_train_option_rows(); row->key; row++)
            for (size_t k = 0; k < 4; k++)
                if (strncmp(row->key, keys[k], strlen(keys[k])) == 0 &&
                    strcmp(row->key, "algo.preset") != 0)
                    same_value(mine, preset, row);
        kg_config_free(mine);
        kg_config_free(preset);
        free(assignments[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_recipe_plans_as_it_stands),
        cmocka_unit_test(a_validation_file_of_repeated_problems_is_taken_once),
        cmocka_unit_test(ema_pg_math_has_the_published_settings),
        cmocka_unit_test(rpg_and_dppo_have_the_published_settings),
        cmocka_unit_test(search_agents_have_the_published_settings),
        cmocka_unit_test(search_recipes_agree_with_their_presets),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
