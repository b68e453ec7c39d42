/* Tests of option rows: a field of every type gets the value of its text, and only values
 * that pass the check. */
#include "base/option.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct all {
    bool on, second;
    enum { RED, GREEN, BLUE } colour;
    int64_t whole;
    size_t size;
    int small;
    double real;
    float narrow;
    const char *text;
    struct kg_opt_list list;
};
#define AT(field) KG_OPT_AT(struct all, field)

static const struct kg_opt_row rows[] = {
    {"on", AT(on), "false", 0, 0, NULL, "", false},
    {"second", AT(second), "a", 0, 0, "a|b", "", false},
    {"colour", AT(colour), "red", 0, 0, "red|green|blue", "", false},
    {"whole", AT(whole), "0", 0, 0, NULL, "", false},
    {"size", AT(size), "0", 0, 1e15, NULL, "", false},
    {"exact", AT(whole), "0", -0x1p53, 0x1p53, NULL, "", false},
    {"widest", AT(whole), "0", -0x1p63, 0x1p63, NULL, "", false},
    {"small", AT(small), "0", 0, 0, NULL, "", false},
    {"real", AT(real), "0", -1, 1, NULL, "", false},
    {"narrow", AT(narrow), "0", 0, 0, NULL, "", false},
    {"text", AT(text), "", 0, 0, NULL, "", false},
    {"list", AT(list), "", 0, 0, NULL, "", false},
};
enum { ROWS = sizeof rows / sizeof *rows };

static struct kg_err err;

static const struct kg_opt_row *row(const char *key)
{
    for (size_t i = 0; i < ROWS; i++)
        if (strcmp(rows[i].key, key) == 0)
            return &rows[i];
    fail();
    return NULL;
}

static struct all put(const char *key, const char *text)
{
    struct all all = {0};

    if (kg_opt_check(row(key), text, "here", &err) != KG_OK)
        fail_msg("%s", err.message);
    kg_opt_put(&all, row(key), text);
    return all;
}

static void a_field_of_each_type_gets_its_value(void **state)
{
    (void)state;
    assert_true(put("on", "true").on);
    assert_false(put("on", "false").on);
    assert_true(put("second", "b").second);
    assert_false(put("second", "a").second);
    assert_int_equal(put("colour", "blue").colour, BLUE);
    assert_int_equal(put("colour", "green").colour, GREEN);
    assert_true(put("whole", "-9223372036854775808").whole == INT64_MIN);
    assert_true(put("widest", "9223372036854775807").whole == INT64_MAX);
    assert_true(put("exact", "-9007199254740992").whole == -(INT64_C(1) << 53));
    assert_true(put("size", "+0012").size == 12);
    assert_int_equal(put("small", "-2147483648").small, INT32_MIN);
    assert_true(put("real", "-1e-3").real == -1e-3);
    assert_true(put("narrow", "0.1").narrow == 0.1f);
    assert_string_equal(put("text", "as it is").text, "as it is");
}

/* Setting one field changes no other. */
static void other_fields_stay(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        struct all all, zero;

        if (rows[i].type == KG_OPT_LIST)
            continue;
        memset(&all, 0, sizeof all);
        memset(&zero, 0, sizeof zero);
        kg_opt_put(&all, &rows[i], rows[i].fallback);
        if (rows[i].type == KG_OPT_STRING)
            all.text = NULL;
        assert_memory_equal(&all, &zero, sizeof all);
    }
}

static void what_is_no_value_is_refused(void **state)
{
    static const char *const cases[][3] = {
        {"on", "yes", "here: on: expected true or false, found 'yes'"},
        {"second", "true", "here: second: expected one of a, b, found 'true'"},
        {"colour", "gren",
         "here: colour: expected one of red, green, blue, found 'gren'; did you mean "
         "'green'?"},
        {"whole", "1.5", "here: whole: expected an integer, found '1.5'"},
        {"whole", "9223372036854775808",
         "here: whole: expected an integer, found '9223372036854775808'"},
        {"size", "-1", "here: size: expected an integer from 0 to 1e+15, found '-1'"},
        {"exact", "9007199254740993",
         "here: exact: expected an integer from -9.00719925474099e+15 to "
         "9.00719925474099e+15, found '9007199254740993'"},
        {"small", "2147483648", "here: small: expected an integer, found '2147483648'"},
        {"real", "2", "here: real: expected a number from -1 to 1, found '2'"},
        {"real", "nan", "here: real: expected a number from -1 to 1, found 'nan'"},
        {"narrow", "0x1", "here: narrow: expected a number, found '0x1'"},
        {"narrow", "1e-46", "here: narrow: expected a number, found '1e-46'"},
        {"narrow", "1e39", "here: narrow: expected a number, found '1e39'"},
        {"text", "a\xff", "here: text: expected UTF-8 text, found byte 0xff at 1"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(kg_opt_check(row(cases[i][0]), cases[i][1], "here", &err),
                         KG_EINVAL);
        assert_string_equal(err.message, cases[i][2]);
    }
}

static void equal_values_may_be_spelled_differently(void **state)
{
    (void)state;
    assert_true(kg_opt_same(row("small"), "3", "+03"));
    assert_true(kg_opt_same(row("real"), "1e-1", "0.1"));
    assert_false(kg_opt_same(row("text"), "1e-1", "0.1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_field_of_each_type_gets_its_value),
        cmocka_unit_test(other_fields_stay),
        cmocka_unit_test(what_is_no_value_is_refused),
        cmocka_unit_test(equal_values_may_be_spelled_differently),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
