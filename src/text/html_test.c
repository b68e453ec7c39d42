/* Escaping of text for HTML. */
#include "text/html.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void becomes(const char *text, size_t n, const char *want)
{
    struct kg_str out = {0};
    struct kg_err err;

    assert_int_equal(kg_html_put(&out, text, n, &err), KG_OK);
    assert_string_equal(kg_str_text(&out), want);
    kg_str_release(&out);
}

static void marks_are_escaped(void **state)
{
    (void)state;
    becomes("a<b> & \"c\" 'd'", 14, "a&#60;b&#62; &#38; &#34;c&#34; &#39;d&#39;");
    becomes("", 0, "");
    becomes("tab\tline\n", 9, "tab\tline\n");
}

static void what_is_no_text_is_replaced(void **state)
{
    (void)state;
    becomes("a\0b\x7f\x01", 5,
            "a\xef\xbf\xbd"
            "b\xef\xbf\xbd\xef\xbf\xbd");
    becomes("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9,
            "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    becomes("\xc3(\xff", 3, "\xef\xbf\xbd(\xef\xbf\xbd");
    becomes("\xe2\x82", 2, "\xef\xbf\xbd"); /* truncated */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_are_escaped),
        cmocka_unit_test(what_is_no_text_is_replaced),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
