/* Keys that do nothing where their condition does not hold: each is refused by name, and
 * nothing that is published or resolved is. */
#include "recipe/effect.h"

#include "base/file.h"
#include "base/need_testing.h"
#include "policy/presets.h"
#include "recipe/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kg_err err_said;

static kg_status check(const char *path, char **assignments, size_t n)
{
    struct kg_config *config;
    kg_status status;

    NEED(kg_train_config(&config, path, assignments, n, err));
    status = kg_effect_check(config, &err_said);
    kg_config_free(config);
    return status;
}

static const struct kg_opt_row *option(const char *key)
{
    const struct kg_opt_row *row;

    for (size_t i = 0; (row = kg_recipe_row(i)); i++)
        if (strcmp(row->key, key) == 0)
            return row;
    fail_msg("%s is no key", key);
    return NULL;
}

/* KEY=VALUE with a value that is allowed and is not the default. */
static void put_other(char *out, size_t n, const struct kg_opt_row *row)
{
    char choice[64];

    if (kg_opt_is_number(row)) {
        snprintf(out, n, "%s=%.17g", row->key,
                 row->fallback && strtod(row->fallback, NULL) == row->max ? row->min
                                                                          : row->max);
    } else if (row->choices) {
        snprintf(choice, sizeof choice, "%s", strrchr(row->choices, '|') + 1);
        if (strcmp(choice, row->fallback) == 0)
            snprintf(choice, sizeof choice, "%.*s", (int)strcspn(row->choices, "|"),
                     row->choices);
        snprintf(out, n, "%s=%s", row->key, choice);
    } else if (row->type == KG_OPT_BOOL) {
        snprintf(out, n, "%s=%s", row->key,
                 row->fallback && strcmp(row->fallback, "true") == 0 ? "false" : "true");
    } else {
        snprintf(out, n, "%s=other", row->key);
    }
}

static void a_key_without_its_condition_is_refused_by_name(void **state)
{
    size_t n;
    const struct kg_effect_row *rows = kg_effect_rows(&n);

    (void)state;
    for (size_t i = 0; i < n; i++) {
        char assignment[128], *assignments[] = {assignment};
        size_t length = strlen(rows[i].key);

        if (i > 0 && strcmp(rows[i].key, rows[i - 1].key) == 0)
            continue; /* a second condition */
        put_other(assignment, sizeof assignment, option(rows[i].key));
        if (check(NULL, assignments, 1) != KG_EINVAL)
            fail_msg("%s: not refused", assignment);
        if (strncmp(err_said.message, rows[i].key, length) != 0 ||
            !strstr(err_said.message, rows[i].needs) ||
            !strstr(err_said.message, "command line"))
            fail_msg("%s: %s", assignment, err_said.message);
    }
}

static void a_key_with_its_condition_passes(void **state)
{
    static char *const rows[][4] = {
        {"lora.alpha=8", "lora.rank=4"},
        {"lora.targets=q_proj", "lora.rank=4"},
        {"lora.rslora=true", "lora.rank=4"},
        {"sft.data=x", "sft.steps=1"},
        {"sft.data=x", "sft.epochs=0.5"},
        {"sft.level=hard", "sft.steps=1", "task.name=arithmetic"},
        {"sft.level=hard", "sft.steps=1", "task.level=easy", "task.name=arithmetic"},
        {"task.level=hard", "task.name=arithmetic", "data.train=x"},
        {"task.level=hard", "task.name=arithmetic", "data.val=x", "task.count=5"},
        {"task.level=hard", "task.name=arithmetic"},
        {"data.val_templates=x", "data.val=y"},
        {"algo.cov_ratio=0.5", "algo.surrogate=clip-cov"},
        {"anchor.eta=0.5", "anchor.kind=ema", "kl.estimator=k3"},
        {"anchor.kind=ema", "eval.anchor=true", "data.val=x"},
        {"eval.problems=7", "data.val=x"},
        {"eval.problems=7", "task.name=arithmetic"},
        {"eval.at_start=false"},
        {"eval.problems=7", "data.val="},
        {"anchor.kind=fixed", "kl.estimator=k3"},
        {"search.topk=5", "episode.env=search"},
        {"search.weight=0.3", "episode.env=search", "search.kind=hybrid"},
        {"search.vectors=int8", "episode.env=search", "search.kind=dense"},
        {"algo.tau_pos=2", "algo.surrogate=sapo"},
        /* what a preset leaves over, and defaults that are written out */
        {"algo.preset=ema-pg", "anchor.kind=fixed"},
        {"anchor.eta=0.90", "rollout.oversample=1.0"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *assignments[4];
        size_t n = 0;

        while (n < 4 && rows[i][n]) {
            assignments[n] = rows[i][n];
            n++;
        }
        if (check(NULL, assignments, n) != KG_OK)
            fail_msg("row %zu: %s", i, err_said.message);
    }
}

/* A task that makes problems makes none where files have them. */
static void nothing_is_generated_beside_files(void **state)
{
    static const struct {
        char *assignments[4], *says;
    } rows[] = {
        {{"task.level=nonsense", "task.name=arithmetic", "data.train=x", "data.val=y"},
         "task.level: acts with a task.name whose problems are generated, and not all"},
        {{"task.level=hard", "task.name=arithmetic", "rollout.data=x", "data.val=y"},
         "task.level: acts with"},
        {{"task.count=5", "task.name=arithmetic", "data.train=x", "data.unique=true"},
         "task.count: acts with"},
        {{"task.val_count=5", "task.name=arithmetic", "data.val=x", "data.unique=true"},
         "task.val_count: acts with"},
        {{"sft.level=hard", "sft.steps=1", "task.name=math", "data.train=x"},
         "sft.level: acts with"},
        {{"eval.anchor=true", "anchor.kind=ema", "kl.estimator=k3", "kl.beta=0.1"},
         "eval.anchor: acts with problems to validate on"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (check(NULL, (char **)(uintptr_t)rows[i].assignments, 4) != KG_EINVAL ||
            strncmp(err_said.message, rows[i].says, strlen(rows[i].says)) != 0)
            fail_msg("row %zu: expected '%s', found '%s'", i, rows[i].says,
                     err_said.message);
}

/* Every preset and recipe, and the config.yaml of its run. */
static void what_is_published_passes(void **state)
{
    char **names, path[256], assignment[128], *assignments[] = {assignment};
    size_t n;

    (void)state;
    for (size_t i = 0; i < kg_preset_count(); i++) {
        snprintf(assignment, sizeof assignment, "algo.preset=%s", kg_preset_at(i)->name);
        if (check(NULL, assignments, 1) != KG_OK)
            fail_msg("%s: %s", assignment, err_said.message);
    }
    NEED(kg_file_list(&names, &n, "recipes", err));
    assert_true(n > 10);
    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof path, "recipes/%s", names[i]);
        if (strstr(path, ".yaml") && check(path, NULL, 0) != KG_OK)
            fail_msg("%s: %s", path, err_said.message);
    }
    kg_file_names_free(names, n);
}

/* The command line may switch off what a recipe has, and may not add to what is off. */
static void a_recipe_may_be_switched_off(void **state)
{
    static const char path
        [] = "build/effect_test.yaml",
    text[] =
        "sft: {steps: 5, data: x}\nanchor: {kind: ema, eta: 0.5}\nkl: {estimator: k3}\n",
    made[] = "task: {name: arithmetic, level: easy}\ndata: {train: [x], val: [x]}\n"
             "sft: {steps: 5, count: 9}\n",
    idle[] = "sft: {data: x}\n";
    char *off[] = {(char[]){"sft.steps=0"}, (char[]){"anchor.kind=fixed"}};
    char *files[] = {(char[]){"task.name=math"}, (char[]){"sft.data=x"}};
    char *added[] = {(char[]){"anchor.kind=fixed"}, (char[]){"anchor.eta=0.7"}};

    (void)state;
    NEED(kg_file_write_atomic(path, text, sizeof text - 1, err));
    assert_int_equal(check(path, NULL, 0), KG_OK);
    assert_int_equal(check(path, off, 2), KG_OK);
    assert_int_equal(check(path, added, 2), KG_EINVAL);
    assert_non_null(strstr(err_said.message, "anchor.eta: acts with anchor.kind ema"));
    NEED(kg_file_write_atomic(path, made, sizeof made - 1, err));
    assert_int_equal(check(path, NULL, 0), KG_OK);
    assert_int_equal(check(path, files, 2), KG_OK);
    assert_int_equal(check(path, off, 1), KG_OK);
    NEED(kg_file_write_atomic(path, idle, sizeof idle - 1, err));
    assert_int_equal(check(path, NULL, 0), KG_EINVAL);
    assert_non_null(strstr(err_said.message, "found x (from build/effect_test.yaml"));
}

/* Whether there are problems is for the command line, which may ask for no more. */
static void a_recipe_may_leave_validation_to_the_command_line(void **state)
{
    static const char path[] = "build/effect_test.yaml",
                      text[] = "eval: {problems: 7}\nlog: {validation: true}\n";
    char *given[] = {(char[]){"eval.every=5"}};

    (void)state;
    NEED(kg_file_write_atomic(path, text, sizeof text - 1, err));
    assert_int_equal(check(path, NULL, 0), KG_OK);
    assert_int_equal(check(path, given, 1), KG_EINVAL);
    assert_non_null(strstr(err_said.message, "eval.every: acts with problems to valid"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_without_its_condition_is_refused_by_name),
        cmocka_unit_test(a_key_with_its_condition_passes),
        cmocka_unit_test(nothing_is_generated_beside_files),
        cmocka_unit_test(what_is_published_passes),
        cmocka_unit_test(a_recipe_may_be_switched_off),
        cmocka_unit_test(a_recipe_may_leave_validation_to_the_command_line),
    };

    return cmocka_run_group_tests_name("effect", tests, NULL, NULL);
}
