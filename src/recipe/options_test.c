/* The option rows of training agree with what policy/ accepts. */
#include "recipe/options.h"

#include "policy/algo.h"
#include "policy/presets.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct kg_recipe said(const struct kg_config *config)
{
    struct kg_recipe r;

    kg_recipe_read(&r, config);
    return r;
}

static kg_status check_alone(const char *key, double value, struct kg_err *err)
{
    const struct kg_algo_setting setting = {.samples = 8, .reproduction = true};
    struct kg_algo algo;
    char text[48];

    snprintf(text, sizeof text, "%.17g", value);
    kg_algo_init(&algo);
    err->message[0] = '\0';
    if (kg_algo_set(&algo, key, text, err) != KG_OK)
        return err->code;
    return kg_algo_check(&algo, &setting, err);
}

/* Two messages state the same rule: they are equal up to the value found. */
static bool same_rule(const struct kg_err *a, const struct kg_err *b)
{
    size_t n = strcspn(a->message, ","), m = strcspn(b->message, ",");

    return n == m && memcmp(a->message, b->message, n) == 0;
}

/* An end of a range may be refused because of other keys, if a value between the ends is
 * refused by the same rule. An end that is refused for itself is not an end. */
static void the_ends_of_a_range_are_allowed(void **state)
{
    size_t found = 0;

    (void)state;
    for (const struct kg_opt_row *row = kg_algo_rows; row->key; row++) {
        const double ends[] = {row->min, row->max};
        struct kg_err between, end;

        if (row->min == row->max)
            continue;
        found++;
        check_alone(row->key,
                    floor((row->min + row->max) / 2) + (row->max <= 1) * 0.5 * row->max,
                    &between);
        for (size_t i = 0; i < 2; i++)
            if (check_alone(row->key, ends[i], &end) != KG_OK &&
                !same_rule(&end, &between))
                fail_msg("%s=%g: %s", row->key, ends[i], end.message);
    }
    assert_true(found > 25);
}

static void every_preset_resolves(void **state)
{
    (void)state;
    for (size_t i = 0; i < kg_preset_count(); i++) {
        char assignment[128];
        char *assignments[] = {assignment};
        struct kg_config *config;
        struct kg_err err = {0};

        strcpy(assignment, "algo.preset=");
        strcat(assignment, kg_preset_at(i)->name);
        if (kg_train_config(&config, NULL, assignments, 1, &err) != KG_OK)
            fail_msg("%s: %s", kg_preset_at(i)->name, err.message);
        for (const struct kg_preset_value *v = kg_preset_at(i)->values; v->key; v++) {
            assert_string_equal(kg_config_text(config, v->key), v->value);
            assert_string_equal(kg_config_source(config, v->key), v->from);
        }
        kg_config_free(config);
    }
}

static void what_the_user_wrote_is_stronger_than_the_preset(void **state)
{
    char *assignments[] = {(char[]){"kl.beta=0.5"}, (char[]){"algo.preset=ema-pg"}};
    struct kg_config *config;
    struct kg_err err = {0};

    (void)state;
    assert_int_equal(kg_train_config(&config, NULL, assignments, 2, &err), KG_OK);
    assert_true(said(config).algo.kl_beta == 0.5);
    assert_string_equal(kg_config_text(config, "anchor.kind"), "ema");
    kg_config_free(config);
}

/* What papers leave open has the values of the released scripts: recipe/rpg/7b of RPG,
 * recipe/dapo of verl. */
static void recipes_have_the_values_of_the_released_scripts(void **state)
{
    static const char *const rows[][3] = {
        {"grpo-math", "algo.clip_high", "0.2"},
        {"grpo-math", "algo.dual_clip", "10"},
        {"grpo-math", "kl.beta", "0.001"},
        {"dapo-math", "algo.clip_high", "0.28"},
        {"dapo-math", "algo.dual_clip", "10"},
        {"reinforce++-math", "algo.clip_low", "0.2"},
        {"reinforce++-math", "algo.clip_high", "0.28"},
        {"reinforce++-math", "algo.dual_clip", "10"},
        {"reinforce++-math", "kl.estimator", "k1"},
        {"reinforce++-math", "kl.beta", "0.0001"},
        {"reinforce++-baseline-math", "algo.clip_high", "0.28"},
        {"reinforce++-baseline-math", "algo.dual_clip", "10"},
        {"reinforce++-baseline-math", "kl.beta", "0.0001"},
        {"reinforce++-baseline-math", "optim.weight_decay", "0.1"},
        {"dapo-32b", "algo.dual_clip", "10"},
        {"dapo-32b", "rollout.max_refills", "10"},
        {"dapo-32b", "optim.weight_decay", "0.1"},
        {"rpg-released-reinforce-math", "optim.lr", "5e-7"},
        {"rpg-released-urkl-math", "algo.dual_clip", "10"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char preset[64];
        char *assignments[] = {preset};
        struct kg_config *config;
        struct kg_err err = {0};

        snprintf(preset, sizeof preset, "preset=%s", rows[i][0]);
        assert_int_equal(kg_train_config(&config, NULL, assignments, 1, &err), KG_OK);
        if (strcmp(kg_config_text(config, rows[i][1]), rows[i][2]) != 0)
            fail_msg("%s %s: expected %s, found %s", rows[i][0], rows[i][1], rows[i][2],
                     kg_config_text(config, rows[i][1]));
        kg_config_free(config);
    }
}

static void a_preset_is_named_in_short_and_says_where_values_come_from(void **state)
{
    char *assignments[] = {(char[]){"preset=rpg-reinforce-urkl-math"},
                           (char[]){"optim.lr=1e-3"}};
    struct kg_config *config;
    struct kg_err err = {0};

    (void)state;
    assert_int_equal(kg_train_config(&config, NULL, assignments, 2, &err), KG_OK);
    assert_string_equal(kg_config_text(config, "algo.preset"), "rpg-reinforce-urkl-math");
    assert_string_equal(kg_config_text(config, "algo.surrogate"), "rpg-reinforce-urkl");
    assert_string_equal(kg_config_source(config, "algo.dual_clip"), "rpg-fkl");
    assert_string_equal(kg_config_source(config, "rollout.prompts"),
                        "rpg-reinforce-urkl-math");
    assert_string_equal(kg_config_source(config, "optim.lr"), "command line");
    assert_true(said(config).optim.opts.lr == 1e-3);
    kg_config_free(config);
}

static void an_unknown_key_is_named_with_the_nearest_one(void **state)
{
    char *assignments[] = {(char[]){"rollout.temprature=1"}};
    struct kg_config *config;
    struct kg_err err = {0};

    (void)state;
    assert_int_not_equal(kg_train_config(&config, NULL, assignments, 1, &err), KG_OK);
    assert_non_null(strstr(err.message, "rollout.temperature"));
}

static void an_unknown_preset_lists_the_valid_ones(void **state)
{
    char *assignments[] = {(char[]){"algo.preset=ppo"}};
    struct kg_config *config;
    struct kg_err err = {0};

    (void)state;
    assert_int_equal(kg_train_config(&config, NULL, assignments, 1, &err), KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "ema-pg"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ends_of_a_range_are_allowed),
        cmocka_unit_test(every_preset_resolves),
        cmocka_unit_test(what_the_user_wrote_is_stronger_than_the_preset),
        cmocka_unit_test(recipes_have_the_values_of_the_released_scripts),
        cmocka_unit_test(a_preset_is_named_in_short_and_says_where_values_come_from),
        cmocka_unit_test(an_unknown_key_is_named_with_the_nearest_one),
        cmocka_unit_test(an_unknown_preset_lists_the_valid_ones),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
