/* Keys that do nothing where their condition does not hold: each is refused by name, and
 * nothing that is published or resolved is. */
#include "recipe/effect.h"

#include "base/file.h"
#include "base/need_testing.h"
#include "policy/policy.h"
#include "policy/presets.h"
#include "recipe/options.h"

#include <math.h>
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

/* What takes the condition of a key away; NULL: the defaults do. */
static const char *switch_off(const char *key)
{
    static const char *const rows[][2] = {
        {"algo.dual_clip", "algo.surrogate=gspo"},
        {"algo.ratio_clamp", "algo.surrogate=gspo"},
        {"algo.mask", "algo.surrogate=none"},
        {"algo.mask_truncated", "algo.surrogate=none"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i][0], key) == 0)
            return rows[i][1];
    return NULL;
}

static void a_key_without_its_condition_is_refused_by_name(void **state)
{
    size_t n;
    const struct kg_effect_row *rows = kg_effect_rows(&n);

    (void)state;
    for (size_t i = 0; i < n; i++) {
        char assignment[128], off[64], *assignments[] = {assignment, off};
        const char *also = switch_off(rows[i].key);
        size_t length = strlen(rows[i].key);

        if (i > 0 && strcmp(rows[i].key, rows[i - 1].key) == 0)
            continue; /* a second condition */
        put_other(assignment, sizeof assignment, option(rows[i].key));
        snprintf(off, sizeof off, "%s", also ? also : "");
        if (check(NULL, assignments, also ? 2 : 1) != KG_EINVAL)
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

/* Beside rows of the algorithm that do not read them. */
static void keys_of_the_algorithm_act_with_rows_that_read_them(void **state)
{
#define ANCHORED "anchor.kind=fixed"
    static const struct {
        char *assignments[4];
        const char *says; /* NULL: passes */
    } rows[] = {
        {{"kl.importance=false", "kl.estimator=exact-reverse"}, "kl.importance: acts"},
        {{"kl.importance=false", "kl.estimator=rpg-ufkl"}, "kl.importance: acts"},
        {{"kl.importance=false", "kl.estimator=truncated-reverse"}, "kl.importance: a"},
        {{"kl.importance=false", "kl.estimator=k3", "kl.in=reward"}, "kl.importance: ac"},
        {{"kl.importance=false", "kl.estimator=topk-forward", "kl.tail=false"},
         "kl.importance: acts"},
        {{"kl.importance=false", "kl.estimator=topk-forward"}, NULL},
        {{"kl.importance=false", "kl.estimator=abs"}, NULL},
        {{"kl.iw_upper=2", "kl.estimator=k4", "kl.in=advantage"}, "kl.iw_upper: acts"},
        {{"kl.iw_upper=2", "kl.estimator=k4", "kl.importance=false"},
         "kl.iw_upper: acts"},
        {{"kl.iw_upper=2", "kl.estimator=k4"}, NULL},
        {{"kl.clamp=false", "kl.estimator=exact-forward"}, "kl.clamp: acts"},
        {{"kl.clamp=false", "kl.estimator=k2", "kl.importance=false"}, "kl.clamp: acts"},
        {{"kl.clamp=false", "kl.estimator=k2"}, NULL},
        {{"kl.clamp=false", "kl.estimator=rpg-urkl"}, NULL},
        {{"kl.clamp=false", "kl.estimator=k3", "kl.in=reward"}, NULL},
        {{"kl.clamp=false", "kl.estimator=topk-forward", "kl.tail=false"},
         "kl.clamp: acts"},
        {{"kl.tail=false", "kl.estimator=truncated-forward"}, "kl.tail: acts"},
        {{"kl.tail=false", "kl.estimator=topk-reverse"}, NULL},
        {{"kl.after_filter=true", "kl.estimator=k3"}, "kl.after_filter: acts"},
        {{"kl.after_filter=true", "kl.estimator=k3", "kl.in=reward",
          "rollout.dynamic=true"},
         "kl.after_filter: acts"},
        {{"kl.after_filter=true", "kl.estimator=k3", "rollout.dynamic=true"}, NULL},
        {{"kl.after_filter=true", "kl.estimator=k3", "algo.mask_truncated=true"}, NULL},
        {{"anchor.period=3", "kl.estimator=k3", "anchor.kind=iterative"},
         "anchor.period: acts"},
        {{"anchor.unit=updates", "kl.estimator=k3", "anchor.kind=iterative"},
         "anchor.unit: acts"},
        {{"anchor.period=3", "kl.estimator=k3", "anchor.kind=copy"}, NULL},
        {{"algo.count_eps=1e-4"}, "algo.count_eps: acts"},
        {{"algo.count_eps=1e-4", "algo.aggregate=seq-mean-token-mean"}, NULL},
        {{"algo.mask_truncated=true", "algo.surrogate=none", "algo.entropy_coef=0.1"},
         NULL},
        {{"eval.top_p=0.5", "eval.temperature=0", "data.val=x"},
         "eval.top_p: acts with "
         "eval.temperature"},
        {{"eval.top_p=0.5", "data.val=x"}, NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *assignments[5];
        size_t n = 0;

        for (; n < 4 && rows[i].assignments[n]; n++)
            assignments[n] = rows[i].assignments[n];
        if (rows[i].says) {
            if (check(NULL, assignments, n) != KG_EINVAL ||
                strncmp(err_said.message, rows[i].says, strlen(rows[i].says)) != 0)
                fail_msg("row %zu: expected '%s', found '%s'", i, rows[i].says,
                         err_said.message);
            continue;
        }
        if (strncmp(assignments[0], "kl.", 3) == 0 && n < 5)
            assignments[n++] = (char *)(uintptr_t)ANCHORED;
        if (check(NULL, assignments, n) != KG_OK)
            fail_msg("row %zu: %s", i, err_said.message);
    }
}

/* An answer of tokens that fell and rose, little and much, with either sign of the
 * advantage. */
enum { N = 6 };
struct terms {
    double coef[N], value[N];
};

static void evaluate(struct terms *t, const struct kg_algo *algo)
{
    static const int64_t begin[] = {0, N};
    static const double p[N] = {0.8, 0.1, 0.9, 0.3, 0.5, 0.45};
    static const double mu[N] = {0.4, 0.5, 0.1, 0.29, 0.52, 0.75};
    static const double advantage[N] = {1, -1, -1, 1, -1, -0.5};
    static const double weight[N] = {1, 1, 1, 1, 1, 1};
    static const uint8_t selected[N] = {1, 1, 0, 0, 1, 0};
    static const int32_t tokens[N] = {0};
    double logp[N], old[N], a_at[N];
    const struct kg_policy_batch b = {.n_seqs = 1,
                                      .n_tokens = N,
                                      .seq_begin = begin,
                                      .tokens = tokens,
                                      .logp = logp,
                                      .old_logp = old,
                                      .advantage = advantage,
                                      .k_sampler = 1,
                                      .ids = tokens,
                                      .logp_at = logp,
                                      .mu_at = old,
                                      .pg_weight = weight,
                                      .selected = selected};
    struct kg_policy_grad g = {.a_logp = t->coef, .a_at = a_at, .pg_term = t->value};

    for (int i = 0; i < N; i++)
        logp[i] = log(p[i]), old[i] = log(mu[i]);
    NEED(kg_policy_loss(&g, algo, &b, err));
}

/* A number acts beside a surrogate if it changes its term; the conditions above are names
 * of surrogates, and this asks the surrogates. */
static void numbers_of_a_surrogate_act_where_they_change_its_term(void **state)
{
    static const char *const numbers[][2] = {
        {"algo.dual_clip", "1.5"},   {"algo.ratio_clamp", "0.1"},
        {"algo.truncate", "1.2"},    {"algo.delta_low", "0.85"},
        {"algo.delta_high", "0.85"}, {"algo.tau_pos", "3"},
        {"algo.tau_neg", "3"},       {"algo.cov_coef", "3"},
        {"algo.rpg_detach", "false"}};
    const struct kg_policy_about *row;

    (void)state;
    for (size_t s = 0; (row = kg_policy_row(KG_TABLE_SURROGATE, s)); s++)
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
            char surrogate[64], number[64], *assignments[] = {surrogate, number};
            struct terms before, after;
            struct kg_algo algo;
            bool acts;

            snprintf(surrogate, sizeof surrogate, "algo.surrogate=%s", row->name);
            snprintf(number, sizeof number, "%s=%s", numbers[i][0], numbers[i][1]);
            kg_algo_init(&algo);
            algo.top_k = 1;
            algo.kl_beta = 0.1;
            NEED(kg_algo_set(&algo, "algo.surrogate", row->name, err));
            evaluate(&before, &algo);
            NEED(kg_algo_set(&algo, numbers[i][0], numbers[i][1], err));
            evaluate(&after, &algo);
            acts = memcmp(&before, &after, sizeof before) != 0;
            if (acts != (check(NULL, assignments, 2) == KG_OK))
                fail_msg("%s %s: it %s", surrogate, number,
                         acts ? "acts, and is refused" : "does nothing, and passes");
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
        cmocka_unit_test(keys_of_the_algorithm_act_with_rows_that_read_them),
        cmocka_unit_test(numbers_of_a_surrogate_act_where_they_change_its_term),
        cmocka_unit_test(nothing_is_generated_beside_files),
        cmocka_unit_test(what_is_published_passes),
        cmocka_unit_test(a_recipe_may_be_switched_off),
        cmocka_unit_test(a_recipe_may_leave_validation_to_the_command_line),
    };

    return cmocka_run_group_tests_name("effect", tests, NULL, NULL);
}
