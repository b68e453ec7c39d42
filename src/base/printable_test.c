/* Tests of making text safe for a terminal. */
#include "base/printable.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void becomes(const char *text, bool lines, const char *expected)
{
    struct kg_str out = {0};
    struct kg_err err;

    assert_int_equal(kg_printable_put(&out, text, strlen(text), lines, &err), KG_OK);
    assert_string_equal(kg_str_text(&out), expected);
    kg_str_release(&out);
}

static void text_stays(void **state)
{
    (void)state;
    becomes("", true, "");
    becomes("Łódź \xc2\xa0€ 🙂", false, "Łódź \xc2\xa0€ 🙂");
    becomes("a\tb\nc", true, "a\tb\nc");
}

static void control_characters_are_written_out(void **state)
{
    (void)state;
    becomes("\x1b[31m\r\x7f", true, "\\x1b[31m\\x0d\\x7f");
    becomes("\xc2\x9b"
            "31m\xc2\x80",
            true, "\\xc2\\x9b31m\\xc2\\x80");
    becomes("a\tb\nc", false, "a\\x09b\\nc");
    becomes("\xff\xc2", true, "\\xff\\xc2");
}

static void widths_are_those_of_characters(void **state)
{
    (void)state;
    assert_int_equal(kg_printable_at("é", 2, true), 2);
    assert_int_equal(kg_printable_at("é", 1, true), 0);
    assert_int_equal(kg_printable_at("\n", 1, true), 1);
    assert_int_equal(kg_printable_at("\n", 1, false), 0);
    assert_int_equal(kg_printable_at("\xc2\x9f", 2, true), 0);
}

static void a_copy_is_cut_between_characters(void **state)
{
    char out[8];

    (void)state;
    kg_printable_copy(out, sizeof out, "ab\n\x1b[1m", true);
    assert_string_equal(out, "ab\n\\x1b");
    kg_printable_copy(out, sizeof out, "a\nb\x1b", false);
    assert_string_equal(out, "a\\nb");
    kg_printable_copy(out, sizeof out, "\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac", true);
    assert_string_equal(out, "\xe2\x82\xac\xe2\x82\xac");
    kg_printable_copy(out, 1, "a", true);
    assert_string_equal(out, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_stays),
        cmocka_unit_test(control_characters_are_written_out),
        cmocka_unit_test(a_copy_is_cut_between_characters),
        cmocka_unit_test(widths_are_those_of_characters),
    };

    return cmocka_run_group_tests_name("printable", tests, NULL, NULL);
}
