/* Key files: what is read, what is refused, and that no message contains a key. */
#include "net/http_keys.h"

#include "base/file.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define DIR  "build/test-http-keys"
#define FILE DIR "/keys"
#define ONE  "tml-aaaaaaaaaaaaaaaa"
#define TWO  "tml-bbbbbbbbbbbbbbbb"

static struct kg_err err;

static void write_keys(const char *text, mode_t mode)
{
    assert_int_equal(kg_file_make_dirs(DIR, &err), KG_OK);
    assert_int_equal(kg_file_write_atomic(FILE, text, strlen(text), &err), KG_OK);
    assert_int_equal(chmod(FILE, mode), 0);
}

static void a_line_is_a_user(void **state)
{
    struct kg_http_keys k;
    (void)state;
    write_keys("# users\n\n  ann\t" ONE " \r\nbob-2 " TWO, 0600);
    assert_int_equal(kg_http_keys_read(&k, FILE, &err), KG_OK);
    assert_int_equal(k.n, 2);
    assert_string_equal(k.list[0].name, "ann");
    assert_string_equal(k.list[1].name, "bob-2");
    assert_int_equal(kg_http_keys_find(k.list, k.n, ONE), 0);
    assert_int_equal(kg_http_keys_find(k.list, k.n, TWO), 1);
    assert_int_equal(kg_http_keys_find(k.list, k.n, ""), -1);
    assert_int_equal(kg_http_keys_find(k.list, k.n, ONE "a"), -1);
    assert_int_equal(kg_http_keys_find(k.list, k.n, "tml-aaaaaaaaaaaaaaa"), -1);
    assert_int_equal(kg_http_keys_find(k.list, k.n, ONE ONE), -1);
    assert_int_equal(kg_http_keys_find(k.list, 0, ONE), -1);
    kg_http_keys_release(&k);
}

static void a_file_that_others_can_read_is_refused(void **state)
{
    static const mode_t modes[] = {0604, 0640, 0620, 0602, 0610, 0666};
    struct kg_http_keys k;
    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        write_keys("ann " ONE "\n", modes[i]);
        assert_int_equal(kg_http_keys_read(&k, FILE, &err), KG_EINVAL);
        assert_non_null(strstr(err.message, "its owner alone can read (chmod 600)"));
        kg_http_keys_release(&k);
    }
    write_keys("ann " ONE "\n", 0400);
    assert_int_equal(kg_http_keys_read(&k, FILE, &err), KG_OK);
    kg_http_keys_release(&k);
    if (geteuid() == 0) { /* only root can give a file away */
        assert_int_equal(chown(FILE, 1, 1), 0);
        assert_int_equal(kg_http_keys_read(&k, FILE, &err), KG_EINVAL);
        assert_non_null(strstr(err.message, "as its owner, found user 1"));
    }
    assert_int_equal(kg_http_keys_read(&k, DIR, &err), KG_EIO);
    kg_http_keys_release(&k);
}

static void a_nul_does_not_hide_the_users_after_it(void **state)
{
    static const char text[] = "ann " ONE "\n\0\nbob " TWO "\n";
    struct kg_http_keys k;
    (void)state;
    write_keys("", 0600);
    assert_int_equal(kg_file_write_atomic(FILE, text, sizeof text - 1, &err), KG_OK);
    assert_int_equal(chmod(FILE, 0600), 0);
    assert_int_equal(kg_http_keys_read(&k, FILE, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "expected lines of text, found a NUL"));
    kg_http_keys_release(&k);
}

static void what_is_wrong_is_said_with_its_line_and_without_the_key(void **state)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "expected a line NAME KEY, found none"},
        {"# nobody\n", "found none"},
        {"ann\n", "line 1: expected NAME KEY"},
        {"ann " ONE "\nbob short\n", "line 2: expected NAME KEY"},
        {"ann " ONE " more\n", "line 1: expected NAME KEY"},
        {"../ann " ONE "\n", "line 1: expected NAME KEY"},
        {"ann:b " ONE "\n", "line 1: expected NAME KEY"},
        {".ann " ONE "\n", "line 1: expected NAME KEY"},
        {"a23456789012345678901234567890123 " ONE "\n", "line 1: expected NAME KEY"},
        {"ann tml-\x01" ONE "\n", "line 1: expected NAME KEY"},
        {"ann " ONE "\nAnn " TWO "\n",
         "line 2: expected a different name for each user, found 'Ann'"},
        {"ann " ONE "\nbob " ONE "\n",
         "line 2: expected a different key for each user, found the key of '"},
    };
    struct kg_http_keys k;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_keys(cases[i].text, 0600);
        assert_int_equal(kg_http_keys_read(&k, FILE, &err), KG_EFORMAT);
        if (!strstr(err.message, cases[i].part) || strstr(err.message, "aaaa"))
            fail_msg("%s: expected %s", err.message, cases[i].part);
        kg_http_keys_release(&k);
    }
    assert_int_equal(kg_mem_current_bytes(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_a_user),
        cmocka_unit_test(a_nul_does_not_hide_the_users_after_it),
        cmocka_unit_test(a_file_that_others_can_read_is_refused),
        cmocka_unit_test(what_is_wrong_is_said_with_its_line_and_without_the_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
