/* Keys that have no effect because their condition does not hold: each is refused by
 * name, and no published recipe or resolved config is refused. */

#include "base/file.h"
#include "base/need_testing.h"
#include "policy/algo.h"
#include "policy/presets.h"
#include "recipe/options.h"
#include "task/task.h"

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

/* The default of the row, or of kg_algo_init. */
static const char *default_of(char *text, size_t n, const struct kg_opt_row *row)
{
    struct kg_algo algo;
    struct kg_err err;

    if (row->fallback)
        return row->fallback;
    kg_algo_init(&algo);
    return kg_algo_get(&algo, row->key, text, n, &err) == KG_OK ? text : "";
}

/* Writes KEY=VALUE with a valid value that is not the default. */
static void put_other(char *out, size_t n, const struct kg_opt_row *row)
{
    char choice[64], text[40];
    const char *usual = default_of(text, sizeof text, row);

    if (kg_opt_is_number(row)) {
        snprintf(out, n, "%s=%.17g", row->key,
                 strtod(usual, NULL) == row->max ? row->min : row->max);
    } else if (row->choices) {
        snprintf(choice, sizeof choice, "%s", strrchr(row->choices, '|') + 1);
        if (strcmp(choice, usual) == 0)
            snprintf(choice, sizeof choice, "%.*s", (int)strcspn(row->choices, "|"),
                     row->choices);
        snprintf(out, n, "%s=%s", row->key, choice);
    } else if (row->type == KG_OPT_BOOL) {
        snprintf(out, n, "%s=%s", row->key,
                 strcmp(usual, "true") == 0 ? "false" : "true");
    } else {
        snprintf(out, n, "%s=other", row->key);
    }
}

/* An assignment that makes the key's condition false; NULL: it is false by default. */
static const char *switch_off(const char *key)
{
    static const char *const rows[][2] = {
        {"algo.mask", "algo.surrogate=none"},
        {"algo.std_eps", "algo.surrogate=none"},
        {"algo.gpg_norm", "algo.surrogate=none"},
        {"algo.gamma", "algo.surrogate=none"},
        {"kl.gradient", "kl.top_k=0"},
        {"algo.mask_truncated", "algo.surrogate=none"},
        {"train.share_prefix", "train.router_aux=0.01"},
        {"rollout.max_staleness", "rollout.dynamic=true"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i][0], key) == 0)
            return rows[i][1];
    return NULL;
}

static void a_key_without_its_condition_is_refused_by_name(void **state)
{
    const struct kg_opt_row *row;

    (void)state;
    for (size_t i = 0; (row = kg_recipe_row(i)); i++) {
        char assignment[128], off[64], *assignments[] = {assignment, off};
        const char *also = switch_off(row->key);
        size_t length = strlen(row->key);

        if (!row->needs)
            continue;
        put_other(assignment, sizeof assignment, row);
        snprintf(off, sizeof off, "%s", also ? also : "");
        if (check(NULL, assignments, also ? 2 : 1) != KG_EINVAL)
            fail_msg("%s: not refused", assignment);
        if (strncmp(err_said.message, row->key, length) != 0 ||
            !strstr(err_said.message, ": has an effect only with ") ||
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
        {"search.device=model", "episode.env=search", "search.kind=dense",
         "model.device=cuda"},
        {"search.model=m", "episode.env=search", "search.kind=hybrid"},
        {"search.model=m", "episode.env=search", "search.kind=dense",
         "search.where=http://h:1/r"},
        {"search.fusion=score", "episode.env=search", "search.kind=hybrid",
         "search.where=http.db"},
        {"algo.tau_pos=2", "algo.surrogate=sapo"},
        /* what a preset left unset, and defaults written out */
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

/* Keys with rows of the algorithm that do or do not read them. */
static const struct {
    char *assignments[4];
    const char *says; /* NULL: accepted */
} beside[] = {
    {{"kl.importance=false", "kl.estimator=exact-reverse"},
     "kl.importance: has an effect"},
    {{"kl.importance=false", "kl.estimator=rpg-ufkl"}, "kl.importance: has an effect"},
    {{"kl.importance=false", "kl.estimator=truncated-reverse"}, "kl.importance: ha"},
    {{"kl.importance=false", "kl.estimator=k3", "kl.in=reward"}, "kl.importance: ha"},
    {{"kl.importance=false", "kl.estimator=topk-forward", "kl.tail=false"},
     "kl.importance: has an effect"},
    {{"kl.importance=false", "kl.estimator=topk-forward"}, NULL},
    {{"kl.importance=false", "kl.estimator=abs"}, NULL},
    {{"kl.iw_upper=2", "kl.estimator=k4", "kl.in=advantage"},
     "kl.iw_upper: has an effect"},
    {{"kl.iw_upper=2", "kl.estimator=k4", "kl.importance=false"},
     "kl.iw_upper: has an effect"},
    {{"kl.iw_upper=2", "kl.estimator=k4"}, NULL},
    {{"kl.clamp=false", "kl.estimator=exact-forward"}, "kl.clamp: has an effect"},
    {{"kl.clamp=false", "kl.estimator=k2", "kl.importance=false"},
     "kl.clamp: has an effect"},
    {{"kl.clamp=false", "kl.estimator=k2"}, NULL},
    {{"kl.clamp=false", "kl.estimator=rpg-urkl"}, NULL},
    {{"kl.clamp=false", "kl.estimator=k3", "kl.in=reward"}, NULL},
    {{"kl.clamp=false", "kl.estimator=topk-forward", "kl.tail=false"},
     "kl.clamp: has an effect"},
    {{"kl.tail=false", "kl.estimator=truncated-forward"}, "kl.tail: has an effect"},
    {{"kl.tail=false", "kl.estimator=bucket-reverse"}, "kl.tail: has an effect"},
    {{"kl.tail=false", "kl.estimator=generalised-reverse"}, "kl.tail: has an effect"},
    {{"kl.importance=false", "kl.estimator=bucket-forward"}, "kl.importance: ha"},
    {{"kl.tail=false", "kl.estimator=topk-reverse"}, NULL},
    {{"kl.gradient=published", "kl.estimator=topk-reverse", "kl.top_k=0"},
     "kl.gradient: has an effect only with kl.top_k above 0"},
    {{"kl.top_k=0", "algo.preset=ema-pg-published"}, NULL},
    {{"kl.after_filter=true", "kl.estimator=k3"}, "kl.after_filter: has an effect"},
    {{"kl.after_filter=true", "kl.estimator=k3", "kl.in=reward", "rollout.dynamic=true"},
     "kl.after_filter: has an effect"},
    {{"kl.after_filter=true", "kl.estimator=k3", "rollout.dynamic=true"}, NULL},
    {{"kl.after_filter=true", "kl.estimator=k3", "algo.mask_truncated=true"}, NULL},
    {{"anchor.period=3", "kl.estimator=k3", "anchor.kind=iterative"},
     "anchor.period: has an effect"},
    {{"anchor.unit=updates", "kl.estimator=k3", "anchor.kind=iterative"},
     "anchor.unit: has an effect"},
    {{"anchor.period=3", "kl.estimator=k3", "anchor.kind=copy"}, NULL},
    {{"algo.count_eps=1e-4"}, "algo.count_eps: has an effect"},
    {{"algo.count_eps=1e-4", "algo.aggregate=seq-mean-token-mean"}, NULL},
    {{"algo.rpg_detach=false", "algo.surrogate=rpg-urkl"},
     "algo.rpg_detach: has an effect"},
    {{"algo.rpg_detach=false", "algo.surrogate=rpg-urkl", "kl.beta=0.1"}, NULL},
    {{"algo.tis_low=0.5", "algo.tis=2", "algo.surrogate=none"},
     "algo.tis_low: has an effect"},
    {{"algo.std_eps=1e-06", "algo.advantage=rloo"}, NULL},
    {{"algo.std_eps=1e-5", "algo.advantage=rloo"}, "algo.std_eps: has an effect"},
    {{"anchor.eta=0.5", "algo.preset=ema-pg", "kl.estimator=none", "kl.beta=0"},
     "anchor.eta: has an effect"},
    {{"algo.mask_truncated=true", "algo.surrogate=none", "algo.entropy_coef=0.1"}, NULL},
    {{"eval.top_p=0.5", "eval.temperature=0", "data.val=x"},
     "eval.top_p: has an effect only with "
     "eval.temperature"},
    {{"eval.top_p=0.5", "data.val=x"}, NULL},
    {{"search.vectors=int8", "episode.env=search"},
     "search.vectors: has an effect only with search.kind dense or hybrid; remove it "
     "(default "
     "fp16)"},
    {{"search.vectors=int8", "episode.env=search", "search.kind=dense",
      "search.where=http://h:1/r"},
     "search.vectors: has an effect only with search.where other than http://*; remove "
     "it "
     "(default fp16)"},
    {{"search.device=model", "episode.env=search", "search.kind=dense"},
     "search.device: has an effect only with model.device other than cpu; remove it "
     "(default "
     "cpu)"},
    {{"search.weight=0", "episode.env=search", "search.kind=dense"},
     "search.weight: has an effect only with search.kind hybrid; remove it (default "
     "0.5), found "
     "0 "},
    {{"search.weight=0", "episode.env=search", "search.kind=hybrid",
      "search.where=http://h:1/r"},
     "search.weight: has an effect only with search.where other than"},
    {{"search.fusion=score", "episode.env=search"},
     "search.fusion: has an effect only with"},
    {{"search.fusion=rank", "episode.env=search"}, NULL},
    {{"search.model=m", "episode.env=search"}, "search.model: has an effect only with"},
    {{"search.model=m"}, "search.model: has an effect only with episode.env search"},
};

static void keys_of_the_algorithm_act_with_rows_that_read_them(void **state)
{
#define ANCHORED "anchor.kind=fixed"

    (void)state;
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        char *assignments[5];
        size_t n = 0;

        for (; n < 4 && beside[i].assignments[n]; n++)
            assignments[n] = beside[i].assignments[n];
        if (beside[i].says) {
            if (check(NULL, assignments, n) != KG_EINVAL ||
                strncmp(err_said.message, beside[i].says, strlen(beside[i].says)) != 0)
                fail_msg("row %zu: expected '%s', found '%s'", i, beside[i].says,
                         err_said.message);
            continue;
        }
        if (strncmp(assignments[0], "kl.", 3) == 0 && n < 5)
            assignments[n++] = (char *)(uintptr_t)ANCHORED;
        if (check(NULL, assignments, n) != KG_OK)
            fail_msg("row %zu: %s", i, err_said.message);
    }
}

/* Each number is refused if no chosen row reads it, and accepted with each row that reads
 * it. */
static void numbers_act_beside_rows_that_read_them(void **state)
{
    static char plain[] = "algo.surrogate=reinforce", mean[] = "algo.advantage=dr-grpo";
    const struct kg_policy_about *row;

    (void)state;
    for (size_t k = 0; k < kg_algo_n_keys(); k++) {
        char number[128], chosen[96], says[96];
        char anchored[] = "kl.estimator=k3", beta[] = "kl.beta=0.1";
        char *without[] = {number, plain, mean};
        char *with[] = {number, anchored, beta, chosen};
        const char *key = kg_algo_key(k);

        if (!kg_policy_is_read(key))
            continue;
        put_other(number, sizeof number, option(key));
        if (check(NULL, without, 3) != KG_EINVAL)
            fail_msg("%s: not refused", number);
        snprintf(says, sizeof says, "%s: has an effect only with ", key);
        assert_memory_equal(err_said.message, says, strlen(says));
        for (int t = 0; t < KG_TABLE_COUNT; t++) {
            const char *table = kg_policy_table_key((enum kg_policy_table)t);

            for (size_t i = 0; (row = kg_policy_row((enum kg_policy_table)t, i)); i++) {
                if (!kg_policy_reads(row, key))
                    continue;
                snprintf(chosen, sizeof chosen, "%s=%s", table, row->name);
                if (check(NULL, with, 4) != KG_OK)
                    fail_msg("%s %s: %s", number, chosen, err_said.message);
            }
        }
    }
}

static void who_reads_a_number_is_named(void **state)
{
    static const struct {
        char *assignments[2];
        const char *says;
    } rows[] = {
        {{"algo.tau_pos=2"},
         "algo.tau_pos: has an effect only with algo.surrogate sapo; rem"},
        {{"algo.gamma=0.5"},
         "algo.gamma: has an effect only with algo.advantage reinforce++ or gae; remove "
         "it "
         "(default 1)"},
        {{"algo.clip_low=0.1", "algo.preset=dppo-binary-tv"},
         "algo.clip_low: has an effect only with algo.surrogate ppo-clip, cispo, gspo, "
         "gmpo, "
         "clip-cov or 2"},
        {{"algo.count_eps=1e-4"},
         "algo.count_eps: has an effect only with algo.advantage gdpo-token, "
         "reinforce++, "
         "reinforce++-baseline or gae, or algo.surrogate gmpo, or algo.aggregate "
         "seq-mean-token-mean, or kl.in reward, advantage or advantage-future"},
        {{"kl.gradient=published", "kl.estimator=truncated-reverse"},
         "kl.gradient: has an effect only with kl.estimator topk-reverse or "
         "topk-forward"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (check(NULL, (char **)(uintptr_t)rows[i].assignments,
                  rows[i].assignments[1] ? 2 : 1) != KG_EINVAL ||
            strncmp(err_said.message, rows[i].says, strlen(rows[i].says)) != 0)
            fail_msg("row %zu: expected '%s', found '%s'", i, rows[i].says,
                     err_said.message);
}

/* A task generates no problems if data files replace them. */
static void nothing_is_generated_beside_files(void **state)
{
    static const struct {
        char *assignments[4], *says;
    } rows[] = {
        {{"task.level=nonsense", "task.name=arithmetic", "data.train=x", "data.val=y"},
         "task.level: has an effect only with problems that no file replaces "
         "(data.train"},
        {{"task.level=hard", "task.name=arithmetic", "rollout.data=x", "data.val=y"},
         "task.level: has an effect only with"},
        {{"task.count=5", "task.name=arithmetic", "data.train=x", "data.unique=true"},
         "task.count: has an effect only with"},
        {{"task.val_count=5", "task.name=arithmetic", "data.val=x", "data.unique=true"},
         "task.val_count: has an effect only with"},
        {{"sft.level=hard", "sft.steps=1", "task.name=math", "data.train=x"},
         "sft.level: has an effect only with"},
        {{"eval.anchor=true", "anchor.kind=ema", "kl.estimator=k3", "kl.beta=0.1"},
         "eval.anchor: has an effect only with data.val or task.name arithmetic or "
         "countdown"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (check(NULL, (char **)(uintptr_t)rows[i].assignments, 4) != KG_EINVAL ||
            strncmp(err_said.message, rows[i].says, strlen(rows[i].says)) != 0)
            fail_msg("row %zu: expected '%s', found '%s'", i, rows[i].says,
                     err_said.message);
}

/* Every preset and recipe. */
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

/* The command line may switch off what a recipe sets up, but may not set keys of what is
 * off. */
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
    assert_non_null(
        strstr(err_said.message, "anchor.eta: has an effect only with anchor.kind ema"));
    NEED(kg_file_write_atomic(path, made, sizeof made - 1, err));
    assert_int_equal(check(path, NULL, 0), KG_OK);
    assert_int_equal(check(path, files, 2), KG_OK);
    assert_int_equal(check(path, off, 1), KG_OK);
    NEED(kg_file_write_atomic(path, idle, sizeof idle - 1, err));
    assert_int_equal(check(path, NULL, 0), KG_EINVAL);
    assert_non_null(strstr(err_said.message, "found x (from build/effect_test.yaml"));
}

/* RUN/config.yaml of a run whose recipe was switched off in part is a recipe. */
static void the_config_of_a_run_is_a_recipe(void **state)
{
    static const char path[] = "build/effect_test.yaml", text[] = "sft: {lr: 0.5}\n";
    struct kg_str whole = {0};
    char *lr[] = {(char[]){"sft.lr=0.7"}};
    struct kg_config *c;

    (void)state;
    NEED(kg_file_write_atomic(path, text, sizeof text - 1, err));
    assert_int_equal(check(path, NULL, 0), KG_EINVAL);
    NEED(kg_train_config(&c, path, NULL, 0, err));
    NEED(kg_config_dump_yaml(&whole, c, true, err));
    kg_config_free(c);
    NEED(kg_file_write_atomic(path, whole.data, whole.len, err));
    assert_int_equal(check(path, NULL, 0), KG_OK);
    assert_int_equal(check(path, lr, 1), KG_EINVAL);
    kg_str_release(&whole);
}

/* A recipe may set keys of validation and leave data.val to the command line; the command
 * line itself may not. */
static void a_recipe_may_leave_validation_to_the_command_line(void **state)
{
    static const char path[] = "build/effect_test.yaml",
                      text[] = "eval: {problems: 7}\nlog: {validation: true}\n";
    char *given[] = {(char[]){"eval.every=5"}};

    (void)state;
    NEED(kg_file_write_atomic(path, text, sizeof text - 1, err));
    assert_int_equal(check(path, NULL, 0), KG_OK);
    assert_int_equal(check(path, given, 1), KG_EINVAL);
    assert_non_null(
        strstr(err_said.message, "eval.every: has an effect only with data.val"));
}

/* KG_TASKS_MADE, which conditions of keys use, equals the table of tasks. */
static void tasks_that_make_problems_are_listed(void **state)
{
    char made[200] = "";

    (void)state;
    for (const struct kg_task_row *row = kg_task_table(); row->name; row++)
        if (row->levels)
            snprintf(made + strlen(made), sizeof made - strlen(made), "%s%s",
                     *made ? "," : "", row->name);
    assert_string_equal(made, KG_TASKS_MADE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_without_its_condition_is_refused_by_name),
        cmocka_unit_test(a_key_with_its_condition_passes),
        cmocka_unit_test(keys_of_the_algorithm_act_with_rows_that_read_them),
        cmocka_unit_test(numbers_act_beside_rows_that_read_them),
        cmocka_unit_test(who_reads_a_number_is_named),
        cmocka_unit_test(nothing_is_generated_beside_files),
        cmocka_unit_test(tasks_that_make_problems_are_listed),
        cmocka_unit_test(what_is_published_passes),
        cmocka_unit_test(a_recipe_may_be_switched_off),
        cmocka_unit_test(the_config_of_a_run_is_a_recipe),
        cmocka_unit_test(a_recipe_may_leave_validation_to_the_command_line),
    };

    return cmocka_run_group_tests_name("effect", tests, NULL, NULL);
}
