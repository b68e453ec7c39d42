/* Python's regular expressions on names: what matches, and what is refused. */
#include "text/pattern.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define Q "model.layers.3.self_attn.q_proj"

static kg_status try(bool *found, const char *text, enum kg_pattern_fit fit,
                     const char *name, struct kg_err *err)
{
    struct kg_pattern *p = NULL;
    KG_TRY(kg_pattern_create(&p, text, fit, err));
    int64_t steps = 0;
    const kg_status status = kg_pattern_matches(found, &steps, p, name, err);
    kg_pattern_free(p);
    return status;
}

/* Verdicts of re.fullmatch and re.match in Python 3.11. */
static void test_matches_are_those_of_python(void **state)
{
    static const struct {
        const char *text;
        enum kg_pattern_fit fit;
        bool found;
    } rows[] = {
        {"q_proj", KG_PATTERN_END, true},
        {"proj", KG_PATTERN_END, false},
        {"q_proj|v_proj", KG_PATTERN_END, true},
        {"self_attn", KG_PATTERN_END, false},
        {"self_attn.q_proj", KG_PATTERN_END, true},
        {"self_attn\\.[qk]_proj", KG_PATTERN_END, true},
        {"^model.layers.3.self_attn.q_proj", KG_PATTERN_END, true},
        {"^layers.3.self_attn.q_proj", KG_PATTERN_END, false},
        {"layers\\.[0-2]\\..*", KG_PATTERN_END, false},
        {"layers\\.\\d\\..*", KG_PATTERN_END, true},
        {".*_proj", KG_PATTERN_END, true},
        {"(?P<a>q)_proj", KG_PATTERN_END, true},
        {".*q_proj", KG_PATTERN_WHOLE, true},
        {"q_proj", KG_PATTERN_WHOLE, false},
        {"model", KG_PATTERN_WHOLE, false},
        {".*\\.[0-3]\\..*(q|v)_proj$", KG_PATTERN_WHOLE, true},
        {".*self_attn\\.(q|q_proj)", KG_PATTERN_WHOLE, true}, /* backtracks */
        {"(?i).*SELF_ATTN.*", KG_PATTERN_WHOLE, true},
        {"(?!.*q_proj).*", KG_PATTERN_WHOLE, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_err err = {0};
        bool found = false;
        assert_int_equal(try(&found, rows[i].text, rows[i].fit, Q, &err), KG_OK);
        if (found != rows[i].found)
            fail_msg("'%s': expected %d, found %d", rows[i].text, rows[i].found, found);
    }
}

static void test_what_cannot_be_read_is_refused(void **state)
{
    static const struct {
        const char *text;
        kg_status code;
        const char *said;
    } rows[] = {
        {"q_(proj", KG_EFORMAT, "regular expression 'q_(proj', offset 7:"},
        {"[a", KG_EFORMAT, "offset 2"},
        {"*q", KG_EFORMAT, "offset 0"},
        {"q\\C", KG_EFORMAT, "\\C"},
        {"a{,3}", KG_EUNSUPPORTED, "offset 1: '{,'"},
        {"[[:alpha:]]", KG_EUNSUPPORTED, "offset 1: '[:'"},
        {"[^[:alpha:]]", KG_EUNSUPPORTED, "offset 2: '[:'"},
        {"[a[:digit:]]", KG_EUNSUPPORTED, "offset 2: '[:'"},
        {"[a[.x.]]", KG_EFORMAT, "offset"}, /* PCRE2 itself refuses this and the next */
        {"[a[=x=]]", KG_EFORMAT, "offset"},
        {"(*ACCEPT)", KG_EUNSUPPORTED, "'(*'"},
        {"((a|b|.)*)*[XY]", KG_EFORMAT, "gave up at '" Q "'"},
    };
    char longest[KG_PATTERN_BYTES + 1];
    struct kg_err err = {0};
    bool found;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(try(&found, rows[i].text, KG_PATTERN_WHOLE, Q, &err),
                         rows[i].code);
        if (!strstr(err.message, rows[i].said))
            fail_msg("%s: expected '%s', found '%s'", rows[i].text, rows[i].said,
                     err.message);
    }
    memset(longest, 'a', sizeof longest);
    longest[KG_PATTERN_BYTES] = 0;
    assert_int_equal(try(&found, longest, KG_PATTERN_END, Q, &err), KG_EFORMAT);
    longest[KG_PATTERN_BYTES - 1] = 0;
    assert_int_equal(try(&found, longest, KG_PATTERN_END, Q, &err), KG_OK);
}

static int64_t steps_of(const char *text, kg_status expected)
{
    struct kg_pattern *p = NULL;
    struct kg_err err = {0};
    int64_t steps = 1;
    bool found;
    assert_int_equal(kg_pattern_create(&p, text, KG_PATTERN_WHOLE, &err), KG_OK);
    assert_int_equal(kg_pattern_matches(&found, &steps, p, Q, &err), expected);
    kg_pattern_free(p);
    return steps - 1;
}

static void test_steps_of_many_matches_can_be_added(void **state)
{
    (void)state;
    assert_int_equal(steps_of("q_proj", KG_OK), 64);
    assert_int_equal(steps_of(".*\\.q_proj", KG_OK), 64);
    const int64_t some = steps_of(".*.*[!?]", KG_OK),
                  more = steps_of(".*.*.*[!?]", KG_OK);
    assert_in_range(some, 400, 6 * 600); /* about 31 x 31 / 2 */
    assert_in_range(more, 5000, 6 * 7000);
    assert_in_range(steps_of("((a|b|.)*)*[XY]", KG_EFORMAT), 100000, 200000);
}

static void test_every_failed_allocation_is_a_status(void **state)
{
    kg_status status = KG_ENOMEM;

    (void)state;
    for (uint64_t n = 1; status != KG_OK; n++) {
        struct kg_err err = {0};
        bool found;
        kg_mem_fail_at(n);
        status = try(&found, "(q|v)_proj", KG_PATTERN_END, Q, &err);
        kg_mem_fail_at(0);
        assert_true(status == KG_OK || status == KG_ENOMEM);
    }
    assert_int_equal(kg_mem_current_bytes(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matches_are_those_of_python),
        cmocka_unit_test(test_what_cannot_be_read_is_refused),
        cmocka_unit_test(test_steps_of_many_matches_can_be_added),
        cmocka_unit_test(test_every_failed_allocation_is_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
