/* The calculator: exact values, how they are written, and why an expression has no
 * value. */
#include "math/math.h"

#include "base/mem.h"
#include "base/need_testing.h"

#include <string.h>

static void expect(const char *expression, const char *value, bool found)
{
    struct kg_str out = {0};
    bool is;

    NEED(kg_math_calculate(&out, &is, expression, strlen(expression), err));
    if (strcmp(kg_str_text(&out), value) != 0)
        fail_msg("%s: expected %s, found %s", expression, value, kg_str_text(&out));
    assert_int_equal(is, found);
    kg_str_release(&out);
}

static void values_are_exact(void **state)
{
    (void)state;
    expect("1 + 2 * 3", "7", true);
    expect("(1 + 2) * 3", "9", true);
    expect("0.1 + 0.2", "0.3", true);
    expect("2 ^ 3 ^ 2", "512", true);
    expect("-2 ** 2", "-4", true);
    expect("(-2) ^ 2", "4", true);
    expect("2 ^ -3", "0.125", true);
    expect("1,234.50 * 2", "2469", true);
    expect("15% * 200", "30", true);
    expect("7 / 8", "0.875", true);
    expect("-1 / 1000", "-0.001", true);
    expect("1 / 3", "1/3 (about 0.333333333333)", true);
    expect("-22 / 7", "-22/7 (about -3.142857142857)", true);
    expect("3 \xc3\x97 4 \xe2\x88\x92 6 \xc3\xb7 3", "10", true);
    expect("10 - 4 - 3", "3", true);
    expect("2 ^ 100", "1267650600228229401496703205376", true);
    expect("1 / 2 ^ 30", "0.000000000931322574615478515625", true);
    expect("1 / 2 ^ 31", "1/2147483648 (about 0.000000000465)", true);
    expect("0 ^ 0", "1", true);
    expect(".5 + 5.", "5.5", true);
    expect("((((7))))", "7", true);
}

static void what_has_no_value_says_why(void **state)
{
    (void)state;
    expect("1 / 0", "no value: division by zero", false);
    expect("0 ^ -1", "no value: division by zero", false);
    expect("1 / (2 - 2)", "no value: division by zero", false);
    expect("", "no value: the expression ends too early", false);
    expect("1 +", "no value: the expression ends too early", false);
    expect("(1", "no value: the expression ends too early", false);
    expect("2 x 3", "no value: 'x' at character 3 is not expected there", false);
    expect("3 = 3", "no value: '=' at character 3 is not expected there", false);
    expect("1 \xff", "no value: character 3 is not expected there", false);
    expect("2 ^ 0.5", "no value: an exponent is not a whole number", false);
    expect("9 ^ 9 ^ 9", "no value: the numbers grow too large", false);
    expect("2 ^ 99999999999", "no value: an exponent is too large", false);
    expect("1 ^ 2000000000", "1", true);
    expect(".", "no value: a decimal point has no digits", false);
}

static void limits_hold(void **state)
{
    static char text[KG_CALCULATE_MAX_BYTES + 2];
    struct kg_str out = {0};
    bool found;

    (void)state;
    memset(text, '(', KG_CALCULATE_MAX_BYTES);
    expect(text, "no value: the expression is nested too deeply", false);
    memset(text, '-', KG_CALCULATE_MAX_BYTES);
    expect(text, "no value: the expression is nested too deeply", false);
    memset(text, '9', KG_CALCULATE_MAX_BYTES);
    expect(text, "no value: a number has too many digits", false);
    memset(text, '%', KG_CALCULATE_MAX_BYTES);
    text[0] = '7';
    expect(text, "no value: the numbers grow too large", false);
    text[KG_CALCULATE_MAX_BYTES] = '1';
    expect(text, "no value: the expression is too long", false);
    /* 1000 digits are allowed; their square is not */
    memset(text, '9', 1000);
    memcpy(text + 1000, "*1", 3);
    NEED(kg_math_calculate(&out, &found, text, strlen(text), err));
    assert_true(found);
    assert_int_equal(out.len, 1000);
    kg_str_release(&out);
    memcpy(text + 1000, "^2", 3);
    expect(text, "no value: the numbers grow too large", false);
}

/* Each failed allocation gives a status, and nothing leaks. */
static void memory_that_runs_out_is_a_status(void **state)
{
    static const char text[] = "(2^200 + 1/3)^7 / 1.7";
    struct kg_err err;
    bool found;

    (void)state;
    for (uint64_t n = 1;; n++) {
        struct kg_str out = {0};
        kg_status status;

        kg_mem_fail_at(n);
        status = kg_math_calculate(&out, &found, text, strlen(text), &err);
        kg_mem_fail_at(0);
        kg_str_release(&out);
        assert_int_equal(kg_mem_current_bytes(), 0);
        if (status == KG_OK)
            break;
        assert_int_equal(status, KG_ENOMEM);
        assert_true(n < 10000);
    }
    assert_true(found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_exact),
        cmocka_unit_test(what_has_no_value_says_why),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(memory_that_runs_out_is_a_status),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
