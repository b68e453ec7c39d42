/* Presets in whole runs: every method makes a step and moves the weights, every recipe
 * has a plan, and one of them runs on every task from the command line alone.
 */
#define ROOT "build/test-presets"
#include "run_testing.h"

#include "policy/presets.h"
#include "train/metric_testing.h"

#include <sys/wait.h>
#include <unistd.h>

static struct kg_err why;

static int shell(const char *line)
{
    int status = system(line);

    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int make_folder(void **state)
{
    (void)state;
    return kg_file_remove_tree(ROOT, &why) || kg_file_make_dirs(ROOT, &why);
}

static void need_kedge(void)
{
    if (access("./kedge", X_OK) == 0)
        return;
    print_message("skip: ./kedge is not built\n");
    skip();
}

/* ---- methods ---- */

static double last(const char *dir, const char *metric)
{
    struct kg_str log = {0};
    char path[256], quoted[64];
    const char *at;
    double x;

    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    NEED(kg_file_read(&log, path, 1 << 20, err));
    snprintf(quoted, sizeof quoted, "\"%s\": ", metric);
    at = strstr(kg_str_text(&log), quoted);
    if (!at)
        fail_msg("%s: no %s", path, metric);
    x = strtod(at + strlen(quoted), NULL);
    kg_str_release(&log);
    return x;
}

/* A grader whose scores differ within a group. */
static const char by_turns[] =
    "task.command=n=0; while read -r line; do n=$(((n + 1) % 4)); "
    "echo \"{\\\"score\\\": $n}\"; done";

static void every_method_makes_its_steps(void **state)
{
    (void)state;
    for (size_t i = 0; i < kg_preset_count(); i++) {
        const struct kg_preset *p = kg_preset_at(i);
        char preset[96], dir[128];
        bool several = strcmp(p->name, "gdpo") == 0;
        const char *const extra[] = {preset,
                                     "task.name=external",
                                     by_turns,
                                     several ? "task.rewards=[a=external, b=external]"
                                             : "task.rewards=[]",
                                     "rollout.prompts=2",
                                     "rollout.samples=4",
                                     "rollout.max_tokens=6",
                                     "train.steps=1",
                                     "checkpoint.every=0",
                                     "eval.problems=1",
                                     "eval.at_start=false",
                                     "log.rollouts=false",
                                     NULL};

        if (p->kind != KG_PRESET_METHOD)
            continue;
        snprintf(preset, sizeof preset, "preset=%s", p->name);
        snprintf(dir, sizeof dir, ROOT "/%s", p->name);
        if (train(dir, false, extra, &why) != KG_OK)
            fail_msg("%s: %s", p->name, why.message);
        metrics_have_rows(dir, NULL);
        /* a teacher that is the student itself has nothing to teach */
        if (strncmp(p->name, "distill-", 8) != 0 && !(last(dir, "optim/grad_norm") > 0))
            fail_msg("%s: the first step has no gradient", p->name);
    }
}

/* ---- recipes and tasks ---- */

static const char stand_ins[] =
    "for i in 1 2 3 4 5 6 7 8; do echo '{\"question\": \"What is 2 + 2?\", "
    "\"answer\": \"#### 4\"}'; done > " ROOT "/data.jsonl && "
    "./kedge new --hidden 32 --ffn 32 --layers 1 --heads 1 --vocab 300 "
    "--max-positions 65536 --train-tokenizer tests/data/tokenizer/corpus.txt " ROOT
    "/model > " ROOT "/said 2>&1 || { cat " ROOT "/said; exit 1; }";

static void must_run(const char *line)
{
    char whole[1024];

    snprintf(whole, sizeof whole,
             "./kedge train model.path=" ROOT "/model %s > " ROOT
             "/said 2>&1 || { cat " ROOT "/said; exit 1; }",
             line);
    if (shell(whole) != 0)
        fail_msg("%s", whole);
}

/* Recipes that a dense model cannot run; tests/experts_test.c plans them. */
static bool wants_experts(const struct kg_preset *p)
{
    return kg_preset_get(p, "rollout.router_replay") != NULL;
}

static void every_recipe_is_planned(void **state)
{
    (void)state;
    need_kedge();
    assert_int_equal(shell(stand_ins), 0);
    for (size_t i = 0; i < kg_preset_count(); i++) {
        char line[256];

        if (kg_preset_at(i)->kind != KG_PRESET_RECIPE || wants_experts(kg_preset_at(i)))
            continue;
        snprintf(line, sizeof line,
                 "preset=%s data.train=" ROOT "/data.jsonl run.dir=" ROOT
                 "/none --dry-run",
                 kg_preset_at(i)->name);
        must_run(line);
    }
    assert_false(kg_file_exists(ROOT "/none"));
}

static void a_preset_runs_on_every_task_without_a_file(void **state)
{
    static const char *const tasks[] = {
        "task.name=arithmetic task.level=easy task.count=8 task.val_count=1",
        "task.name=countdown task.level=easy task.count=8 task.val_count=1",
        "task.name=digits data.train=" DIGITS "/train.jsonl",
        "task.name=qa-number data.train=" ROOT "/data.jsonl",
        "task.name=external data.train=" ROOT "/data.jsonl 'task.command=while read -r "
        "line; do echo \"{\\\"score\\\": 1}\"; done'",
    };

    (void)state;
    need_kedge();
    assert_int_equal(shell("rm -rf " ROOT "/model"), 0);
    assert_int_equal(shell(stand_ins), 0);
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++) {
        char line[768];

        snprintf(line, sizeof line,
                 "preset=rpg-urkl %s rollout.prompts=2 "
                 "rollout.samples=2 rollout.max_tokens=4 train.steps=1 "
                 "eval.at_start=false run.dir=" ROOT "/task-%zu",
                 tasks[i], i);
        must_run(line);
        snprintf(line, sizeof line, ROOT "/task-%zu/metrics.jsonl", i);
        assert_true(kg_file_exists(line));
    }
}

/* ---- the command ---- */

static void the_command_prints_every_value_with_its_source(void **state)
{
    static const char *const lines[] = {
        "test $(./kedge presets --json | wc -l) = $(./kedge presets --all --json | wc "
        "-l)",
        "./kedge presets | grep -q '^rpg-urkl  *method '",
        "./kedge presets rpg-urkl-math | grep -q 'kl.beta  *0.0001  *preset rpg-fkl$'",
        "./kedge presets rpg-urkl-math | grep -q 'rollout.samples  *16  *preset "
        "rpg-urkl-math$'",
        "./kedge presets rpg-urkl-math | grep -q 'algo.mask_truncated  *false  "
        "*default$'",
        "./kedge presets grpo --json | grep -q '\"kl.beta\": {\"value\": \"0.001\", "
        "\"source\": \"grpo\"}'",
        "! ./kedge presets grppo 2> " ROOT "/said && grep -q \"nearest is 'grpo'\" " ROOT
        "/said",
        "./kedge train preset=grpo recipes/digits.yaml model.path=" DIGITS
        " run.dir=" ROOT "/none --dry-run | grep -q 'grpo: advantage grpo'",
        "./kedge train recipes/digits.yaml recipes/gsm8k.yaml 2> " ROOT
        "/said; test $? = 2",
    };

    (void)state;
    need_kedge();
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (shell(lines[i]) != 0)
            fail_msg("%s", lines[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_method_makes_its_steps),
        cmocka_unit_test(every_recipe_is_planned),
        cmocka_unit_test(a_preset_runs_on_every_task_without_a_file),
        cmocka_unit_test(the_command_prints_every_value_with_its_source),
    };

    return cmocka_run_group_tests_name("presets", tests, make_folder, NULL);
}
