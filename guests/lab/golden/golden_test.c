/* A folder of golden cases: which pass, fail or are skipped, and for what reason.
 * tests/policy_golden_test.c compares the published numbers. */
#include "lab/golden/golden.h"

#include "base/file.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Two tokens, of which the mask keeps the first; K4 against a reference: d = log(1/2) -
 * log(1/4). */
static const char good[] =
    "{\"family\": \"kl_sampled\", \"cases\": [{\"name\": \"one\", \"config\": "
    "{\"estimator\": \"k4\"}, \"inputs\": {"
    "\"logits\": {\"shape\": [1,2,2], \"data\": [0,0,3,1]}, "
    "\"tokens\": {\"shape\": [1,2], \"data\": [1,0]}, "
    "\"response_mask\": {\"shape\": [1,2], \"data\": [1,0]}, "
    "\"ref_log_prob\": {\"shape\": [1,2], \"data\": [-1.3862943611198906,0]}}, "
    "\"expected\": {\"kl_token\": {\"shape\": [1,2], \"data\": [0.6931471805599453,0]}, "
    "\"kl_loss\": 0.6931471805599453}, "
    "\"grad\": {\"logits\": {\"shape\": [1,2,2], \"data\": "
    "[-0.34657359027997264,0.34657359027997264,0,0]}}}]}";

struct seen {
    int n;
    enum kg_golden_outcome outcome;
    char why[KG_ERR_MESSAGE_BYTES], name[64], file[64];
};

static kg_status note(const struct kg_golden_result *r, void *context, struct kg_err *err)
{
    struct seen *s = context;

    (void)err;
    s->n++;
    s->outcome = r->outcome;
    snprintf(s->why, sizeof s->why, "%s", r->why);
    snprintf(s->name, sizeof s->name, "%s", r->name);
    snprintf(s->file, sizeof s->file, "%s", r->file);
    return KG_OK;
}

static char folder[64];

static void write_file(const char *name, const char *text)
{
    char path[128];
    struct kg_err err;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (kg_file_write_atomic(path, text, strlen(text), &err))
        fail_msg("%s", err.message);
}

static int fresh_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/kedge-golden-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int drop_folder(void **state)
{
    struct kg_err err;

    (void)state;
    return kg_file_remove_tree(folder, &err) == KG_OK ? 0 : -1;
}

static struct kg_golden_report check(struct seen *seen)
{
    const struct kg_golden_options options = {.seen = note, .context = seen};
    struct kg_golden_report report;
    struct kg_err err;

    *seen = (struct seen){0};
    if (kg_golden_check(&report, folder, &options, &err))
        fail_msg("%s", err.message);
    return report;
}

/* `good` with `from` replaced by `to`. */
static char *edited(const char *from, const char *to)
{
    const char *at = strstr(good, from);
    size_t size = sizeof good + strlen(to) + 1;
    char *text = malloc(size);

    assert_non_null(at);
    assert_non_null(text);
    snprintf(text, size, "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
    return text;
}

static void a_right_case_passes(void **state)
{
    struct seen seen;
    struct kg_golden_report r;

    (void)state;
    write_file("any name.json", good);
    write_file("notes.txt", "not a case");
    r = check(&seen);
    assert_int_equal(r.passed, 1);
    assert_int_equal(r.failed + r.skipped, 0);
    assert_int_equal(r.files, 1);
    assert_int_equal(r.compared, 7); /* kl_token twice, kl_loss, 4 of grad.logits */
    assert_string_equal(seen.name, "one");
    assert_string_equal(seen.file, "any name.json");
}

static void what_may_be_absent_may_be_absent(void **state)
{
    static const char *const edits[][2] = {
        /* the expected value may be null */
        {"\"kl_loss\": 0.6931471805599453", "\"kl_loss\": null"},
        {"\"expected\": {\"kl_token\": {\"shape\": [1,2], \"data\": "
         "[0.6931471805599453,0]}, ",
         "\"expected\": {"},
        {"\"grad\": {", "\"metrics\": {"},
        /* log-probs of the reference from its logits */
        {"\"ref_log_prob\": {\"shape\": [1,2], \"data\": [-1.3862943611198906,0]}",
         "\"ref_logits\": {\"shape\": [1,2,2], \"data\": [1.0986122886681098,0,5,5]}"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        char *text = edited(edits[i][0], edits[i][1]);
        struct seen seen;

        write_file("a.json", text);
        if (check(&seen).passed != 1)
            fail_msg("edit %zu: %s", i, seen.why);
        free(text);
    }
}

static void what_is_wrong_is_named(void **state)
{
    static const struct {
        const char *from, *to;
        enum kg_golden_outcome outcome;
        const char *why;
    } edits[] = {
        {"\"kl_loss\": 0.69314", "\"kl_loss\": 0.69315", KG_GOLDEN_FAILED,
         "kl_loss[0]: expected 0.69315"},
        {"[-0.34657359027997264,", "[-0.346573591,", KG_GOLDEN_FAILED,
         "grad.logits[0]: expected -0.34657359"},
        {"\"data\": [0,0,3,1]", "\"data\": [0,0,3]", KG_GOLDEN_FAILED,
         "inputs.logits: 3 numbers do not fill its shape"},
        {"\"data\": [0,0,3,1]", "\"data\": [0,0,3,\"x\"]", KG_GOLDEN_FAILED,
         "inputs.logits[3]: expected a number, found string"},
        {"\"data\": [1,0]}, \"response", "\"data\": [2,0]}, \"response", KG_GOLDEN_FAILED,
         "inputs.tokens[0]: expected a whole number in 0..1, found 2"},
        {"\"tokens\": {\"shape\": [1,2]", "\"tokens\": {\"shape\": [2,1]",
         KG_GOLDEN_FAILED, "inputs.tokens: expected shape [1,2], found [2,1]"},
        {"\"logits\": {\"shape\": [1,2,2]", "\"logits\": {\"shape\": [4]",
         KG_GOLDEN_FAILED, "inputs.logits: expected shape [*,*,*], found [4]"},
        {"\"logits\": {", "\"l\": {", KG_GOLDEN_FAILED,
         "inputs.logits: expected an array, found nothing"},
        {"\"ref_log_prob\"", "\"r\"", KG_GOLDEN_FAILED, "expected anchor_logp for k4"},
        {"\"estimator\": \"k4\"", "\"estimator\": 4", KG_GOLDEN_FAILED,
         "config.estimator: expected a string, found integer"},
        {"\"estimator\": \"k4\"", "\"estimator\": \"k6\"", KG_GOLDEN_SKIPPED,
         "found 'k6'"},
        {"kl_sampled", "kl_other", KG_GOLDEN_SKIPPED, "found 'kl_other'"},
        {"\"kl_loss\": 0.6931471805599453", "\"kl_loss\": \"nan\"", KG_GOLDEN_SKIPPED,
         "expected.kl_loss is nan"},
        {"\"data\": [0,0,3,1]", "\"data\": [\"nan\",0,3,1]", KG_GOLDEN_FAILED, "nan"},
        {"\"expected\": {", "\"e\": {", KG_GOLDEN_PASSED, ""},
        {"{\"name\": \"one\"", "7, {\"name\": \"one\"", KG_GOLDEN_PASSED, ""},
        {"\"cases\"", "\"case\"", KG_GOLDEN_FAILED, "cases"},
        {"\"cases\": [", "\"cases\": [[", KG_GOLDEN_FAILED, "a.json"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        char *text = edited(edits[i].from, edits[i].to);
        struct seen seen;

        write_file("a.json", text);
        check(&seen);
        if (seen.outcome != edits[i].outcome || !strstr(seen.why, edits[i].why))
            fail_msg("edit %zu: outcome %d, '%s'", i, (int)seen.outcome, seen.why);
        free(text);
    }
}

static void a_case_without_numbers_does_not_pass(void **state)
{
    struct seen seen;

    (void)state;
    write_file("a.json", "{\"family\": \"kl_full\", \"cases\": [{\"name\": \"x\"}]}");
    assert_int_equal(check(&seen).failed, 1);
    write_file("a.json", "{\"family\": \"ema_update\", \"cases\": [{\"name\": \"x\", "
                         "\"config\": {\"tau\": 0.5}, \"inputs\": {\"theta0\": "
                         "{\"shape\": [1], \"data\": [1]}, \"theta\": {\"shape\": [1,1], "
                         "\"data\": [2]}}}]}");
    assert_int_equal(check(&seen).failed, 1);
    assert_string_equal(seen.why, "nothing in it that can be compared");
}

static void an_absent_or_empty_folder_is_an_error(void **state)
{
    const struct kg_golden_options options = {0};
    struct kg_golden_report report;
    struct kg_err err;

    (void)state;
    assert_int_equal(kg_golden_check(&report, folder, &options, &err), KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "expected *.json"));
    assert_int_not_equal(kg_golden_check(&report, "/nowhere/at/all", &options, &err),
                         KG_OK);
}

static void no_allocation_that_fails_goes_unsaid(void **state)
{
    const struct kg_golden_options options = {0};
    struct kg_golden_report report;
    struct kg_err err;
    uint64_t before, n = 0;
    kg_status status;

    (void)state;
    write_file("a.json", good);
    before = kg_mem_current_bytes();
    do {
        kg_mem_fail_at(++n);
        status = kg_golden_check(&report, folder, &options, &err);
        kg_mem_fail_at(0);
        assert_true(kg_mem_current_bytes() == before);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        assert_true(n < 10000);
    } while (status != KG_OK);
    assert_int_equal(report.passed, 1);
    assert_true(n > 10);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, fresh_folder, drop_folder)
    const struct CMUnitTest tests[] = {
        TEST(a_right_case_passes),
        TEST(what_may_be_absent_may_be_absent),
        TEST(what_is_wrong_is_named),
        TEST(a_case_without_numbers_does_not_pass),
        TEST(an_absent_or_empty_folder_is_an_error),
        TEST(no_allocation_that_fails_goes_unsaid),
    };

    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
