/* Tests of error messages. */
#include "base/status.h"
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void fail_sets_code_and_message(void **state)
{
    struct kg_err err = {0};

    (void)state;
    assert_int_equal(kg_fail(&err, KG_ESHAPE, "expected %d, found %d", 3, 4), KG_ESHAPE);
    assert_int_equal(err.code, KG_ESHAPE);
    assert_string_equal(err.message, "expected 3, found 4");
}

static void prefixes_stack_in_front(void **state)
{
    struct kg_err err = {0};

    (void)state;
    kg_fail(&err, KG_EIO, "inner");
    assert_int_equal(kg_err_prefix(&err, "tensor %s", "w"), KG_EIO);
    assert_int_equal(kg_err_prefix(&err, "file"), KG_EIO);
    assert_string_equal(err.message, "file: tensor w: inner");
}

static void message_may_be_made_from_itself(void **state)
{
    struct kg_err err = {0};

    (void)state;
    kg_fail(&err, KG_EIO, "inner");
    kg_fail(&err, KG_EFORMAT, "outer (%s)", err.message);
    assert_string_equal(err.message, "outer (inner)");
}

static void long_messages_are_cut_in_the_middle(void **state)
{
    struct kg_err err = {0};
    char text[2 * KG_ERR_MESSAGE_BYTES];

    (void)state;
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    kg_fail(&err, KG_EIO, "%s", text);
    assert_int_equal(strlen(err.message), KG_ERR_MESSAGE_BYTES - 1);
    kg_err_prefix(&err, "where");
    assert_int_equal(strlen(err.message), KG_ERR_MESSAGE_BYTES - 1);
    assert_memory_equal(err.message, "where: xxx", 10);
    kg_err_prefix(&err, "%s", text);
    assert_int_equal(strlen(err.message), KG_ERR_MESSAGE_BYTES - 1);
    /* a name that is too long is shortened in the middle, so the text around it stays */
    kg_fail(&err, KG_EINVAL, "expected '%s' to be a name, found none", text);
    assert_memory_equal(err.message, "expected 'xxx", 13);
    assert_non_null(strstr(err.message, "xxx ... xxx"));
    assert_non_null(strstr(err.message, "xxx' to be a name, found none"));
    kg_fail(&err, KG_EIO, "cannot open");
    kg_err_prefix(&err, "%s", text);
    assert_string_equal(err.message + strlen(err.message) - 13, ": cannot open");
}

/* A message is never cut inside a character, on either side of the gap. */
static void a_cut_message_is_utf8(void **state)
{
    struct kg_err err = {0};
    char text[2 * KG_ERR_MESSAGE_BYTES];

    (void)state;
    for (int shift = 0; shift < 3; shift++) {
        size_t n = 0;

        memset(text, 'x', sizeof text);
        for (n = (size_t)shift; n + 3 < sizeof text; n += 3)
            memcpy(text + n, "\xe2\x82\xac", 3);
        text[n] = '\0';
        kg_fail(&err, KG_EIO, "%s", text);
        assert_true(kg_utf8_is_valid(err.message, strlen(err.message)));
        assert_in_range(strlen(err.message), KG_ERR_MESSAGE_BYTES - 6,
                        KG_ERR_MESSAGE_BYTES - 1);
    }
}

static void a_message_is_one_line(void **state)
{
    struct kg_err err = {0};

    (void)state;
    kg_fail(&err, KG_EFORMAT, "found 'a\nb\tc\r'");
    assert_string_equal(err.message, "found 'a b c '");
}

static void every_status_has_its_own_name(void **state)
{
    (void)state;
    for (int i = 0; i < KG_STATUS_COUNT; i++) {
        assert_non_null(kg_status_name((kg_status)i));
        for (int j = 0; j < i; j++)
            assert_string_not_equal(kg_status_name((kg_status)i),
                                    kg_status_name((kg_status)j));
    }
    assert_string_equal(kg_status_name((kg_status)-1), "unknown status");
    assert_string_equal(kg_status_name(KG_STATUS_COUNT), "unknown status");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fail_sets_code_and_message),
        cmocka_unit_test(prefixes_stack_in_front),
        cmocka_unit_test(message_may_be_made_from_itself),
        cmocka_unit_test(long_messages_are_cut_in_the_middle),
        cmocka_unit_test(a_cut_message_is_utf8),
        cmocka_unit_test(a_message_is_one_line),
        cmocka_unit_test(every_status_has_its_own_name),
    };

    return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}
