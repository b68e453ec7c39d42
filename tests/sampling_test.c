/* A sampling key has one range wherever it can be set: under rollout. and eval. of a
 * recipe, in a set of a suite, in a request, and in the sampler itself. */
#include "eval/suite.h"
#include "recipe/options.h"
#include "rollout/sampler.h"
#include "rollout/sampling.h"
#include "serve/api.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct kg_err err;

static kg_status in_recipe(const char *section, const char *key, const char *value)
{
    struct kg_config *config;
    char text[96], *assignments[] = {text};
    kg_status status;

    snprintf(text, sizeof text, "%s%s=%s", section, key, value);
    status = kg_train_config(&config, NULL, assignments, 1, &err);
    if (status == KG_OK)
        kg_config_free(config);
    return status;
}

static kg_status in_suite(const char *key, const char *value)
{
    struct kg_suite s;
    kg_status status = kg_suite_open(&s, NULL, &err);

    assert_int_equal(status, KG_OK);
    status = kg_suite_set_all(&s, key, value, "test", &err);
    kg_suite_release(&s);
    return status;
}

static kg_status in_request(const char *key, const char *value)
{
    struct kg_api_request r;
    struct kg_api_fault fault;
    char body[160];
    kg_status status;

    snprintf(body, sizeof body, "{\"prompt\": \"x\", \"%s\": %s}", key, value);
    status = kg_api_parse(&r, &fault, KG_API_COMPLETION, body, strlen(body), &err);
    kg_api_release(&r);
    return status;
}

static kg_status in_sampler(const char *key, const char *value)
{
    struct kg_sampling s = {.temperature = 1, KG_TRUNCATION_OFF, .max_tokens = 1};

    kg_opt_put(&s, kg_sampling_row(key), value);
    return kg_sampler_check(&s, &err);
}

static void a_key_has_one_range_everywhere(void **state)
{
    static const struct {
        const char *key, *value;
        bool allowed;
    } rows[] = {
        {"temperature", "0", true},
        {"temperature", "0.0001", true},
        {"temperature", "10000", true},
        {"temperature", "0.00005", false},
        {"temperature", "10001", false},
        {"temperature", "-1", false},
        {"temperature", "100.5", true},
        {"top_p", "1", true},
        {"top_p", "0.000001", true},
        {"top_p", "0", false},
        {"top_p", "1.5", false},
        {"top_k", "0", true},
        {"top_k", "513", true},
        {"top_k", "2147483647", true},
        {"top_k", "-2", false},
        {"min_p", "0", true},
        {"min_p", "1", true},
        {"min_p", "-0.5", false},
        {"min_p", "1.01", false},
        {"min_p", "0.25", true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *key = rows[i].key, *value = rows[i].value;
        const kg_status found[] = {in_recipe("rollout.", key, value),
                                   in_recipe("eval.", key, value), in_suite(key, value),
                                   in_request(key, value), in_sampler(key, value)};

        for (size_t k = 0; k < sizeof found / sizeof *found; k++)
            if ((found[k] == KG_OK) != rows[i].allowed)
                fail_msg("%s %s is %s in place %zu", key, value,
                         rows[i].allowed ? "refused" : "accepted", k);
    }
}

/* A key of kg_sampling_rows is known in all of these places. */
static void every_key_is_everywhere(void **state)
{
    (void)state;
    for (const struct kg_opt_row *row = kg_sampling_rows; row->key; row++) {
        assert_int_equal(in_recipe("rollout.", row->key, row->fallback), KG_OK);
        assert_int_equal(in_recipe("eval.", row->key, row->fallback), KG_OK);
        assert_int_equal(in_suite(row->key, row->fallback), KG_OK);
        assert_int_equal(in_request(row->key, row->fallback), KG_OK);
        assert_int_equal(in_sampler(row->key, row->fallback), KG_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_has_one_range_everywhere),
        cmocka_unit_test(every_key_is_everywhere),
    };

    return cmocka_run_group_tests_name("sampling", tests, NULL, NULL);
}
