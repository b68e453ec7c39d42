/* Tests of UTF-8, white space and NFC. */
#include "text/unicode.h"

#include "base/mem.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include <cmocka.h>

static struct kg_err err;

static bool is_scalar(uint32_t cp) { return cp < 0xD800 || cp > 0xDFFF; }

static void every_code_point_is_written_and_read_back(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char text[4];
        uint32_t back;
        if (!is_scalar(cp))
            continue;
        size_t n = kg_utf8_encode(text, cp);
        assert_int_equal(kg_utf8_valid_prefix(text, n), n);
        assert_int_equal(kg_utf8_decode(&back, text), n);
        assert_int_equal(back, cp);
        for (size_t cut = 1; cut < n; cut++)
            assert_int_equal(kg_utf8_valid_prefix(text, cut), 0);
    }
}

static void text_that_is_not_utf8_is_refused_with_its_byte(void **state)
{
    (void)state;
    assert_int_equal(kg_utf8_check("12345678", 8, &err), KG_OK);
    assert_int_equal(kg_utf8_check("12345678\xFF", 9, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "byte offset 8"));
    assert_non_null(strstr(err.message, "0xff"));
}

static void what_is_not_utf8_is_replaced(void **state)
{
    static const char text[] = "a\xFF\xC3\xA9\xE2\x82";
    struct kg_str out = {0};
    struct kg_err e;

    (void)state;
    assert_int_equal(kg_utf8_make_valid(&out, text, sizeof text - 1, &e), KG_OK);
    assert_string_equal(out.data, "a\xEF\xBF\xBD\xC3\xA9\xEF\xBF\xBD");
    kg_str_release(&out);
}

static void white_space_is_the_unicode_property(void **state)
{
    int n = 0;
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++)
        n += kg_unicode_is_space(cp);
    assert_int_equal(n, 25);
    assert_true(kg_unicode_is_blank(0x1c) && kg_unicode_is_blank(0x3000));
    assert_false(kg_unicode_is_space(0x1c) || kg_unicode_is_blank(0x1b));
    assert_true(kg_unicode_is_space(0x85) && kg_unicode_is_space(0x3000));
    assert_false(kg_unicode_is_space(0x180E) || kg_unicode_is_space(0x200B));
}

/* NFC of the whole text by utf8proc alone. */
static size_t library_nfc(char **out, const char *text, size_t n)
{
    utf8proc_uint8_t *bytes;
    utf8proc_ssize_t len = utf8proc_map((const utf8proc_uint8_t *)text,
                                        (utf8proc_ssize_t)n, &bytes,
                                        UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    assert_true(len >= 0);
    *out = (char *)bytes;
    return (size_t)len;
}

static void assert_nfc_like_library(const char *text, size_t n)
{
    struct kg_str got = {0};
    char *want;
    size_t len = library_nfc(&want, text, n);
    assert_int_equal(kg_unicode_nfc(&got, text, n, &err), KG_OK);
    assert_int_equal(got.len, len);
    assert_memory_equal(kg_str_text(&got), want, len);
    if (kg_unicode_is_surely_nfc(text, n)) {
        assert_int_equal(len, n);
        assert_memory_equal(want, text, n);
    }
    free(want);
    kg_str_release(&got);
}

/* Each code point alone, and between a letter with a mark and another mark. */
static void nfc_of_every_code_point_in_context(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char text[16];
        size_t n = 0;
        if (!is_scalar(cp))
            continue;
        n += kg_utf8_encode(text, cp);
        assert_nfc_like_library(text, n);
        memcpy(text, "a\xCC\xA3", 3); /* a, dot below */
        n = 3 + kg_utf8_encode(text + 3, cp);
        memcpy(text + n, "\xCC\x81", 2); /* acute */
        assert_nfc_like_library(text, n + 2);
    }
}

static void assert_nfc(const char *text, const char *want)
{
    struct kg_str got = {0};
    assert_int_equal(kg_unicode_nfc(&got, text, strlen(text), &err), KG_OK);
    assert_string_equal(kg_str_text(&got), want);
    kg_str_release(&got);
}

static void nfc_joins_and_sorts(void **state)
{
    (void)state;
    assert_nfc("", "");
    assert_nfc("e\xCC\x81t\xC3\xA9", "\xC3\xA9t\xC3\xA9");
    assert_nfc("a\xCC\x81\xCC\xA3", "\xE1\xBA\xA1\xCC\x81"); /* dot below goes first */
    assert_nfc("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", "\xED\x95\x9C"); /* Hangul */
    assert_nfc("\xE2\x84\xA6", "\xCE\xA9");                             /* ohm sign */
    /* U+11A7 precedes the Hangul finals but is not one: it must neither join nor get
     * lost */
    assert_nfc("\xED\x95\x98\xE1\x86\xA7", "\xED\x95\x98\xE1\x86\xA7");
    assert_nfc("\xED\x95\x98\xE1\x86\xA8", "\xED\x95\x99");
}

static void nfc_of_random_text(void **state)
{
    static const uint32_t ranges[][2] = {
        {0x20, 0x7F},     {0xC0, 0x250},    {0x300, 0x370},
        {0x1100, 0x11A7}, {0xAC00, 0xD7A4}, {0x900, 0xA00},
        {0x3040, 0x30A0}, {0x4E00, 0x9FFF}, {0x1E00, 0x1F00}};
    const struct kg_rng_key key = {1, KG_RNG_TEST};
    (void)state;
    for (uint32_t round = 0; round < 3000; round++) {
        char text[4 * 40];
        size_t n = 0;
        for (uint32_t i = 0; i < 40; i++) {
            const uint32_t *r = ranges[kg_rng_below(key, round, i, 0, 9)];
            n += kg_utf8_encode(
                text + n, r[0] + (uint32_t)kg_rng_below(key, round, i, 1, r[1] - r[0]));
        }
        assert_nfc_like_library(text, n);
    }
}

static void every_failed_allocation_is_a_status(void **state)
{
    struct kg_str out = {0};
    kg_status status = KG_ENOMEM;
    (void)state;
    for (uint64_t n = 1; status != KG_OK; n++) {
        kg_mem_fail_at(n);
        status = kg_unicode_nfc(&out, "cafe\xCC\x81 n\xCC\x83", 10, &err);
        kg_mem_fail_at(0);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        kg_str_release(&out);
    }
    assert_int_equal(kg_mem_current_bytes(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_is_written_and_read_back),
        cmocka_unit_test(text_that_is_not_utf8_is_refused_with_its_byte),
        cmocka_unit_test(what_is_not_utf8_is_replaced),
        cmocka_unit_test(white_space_is_the_unicode_property),
        cmocka_unit_test(nfc_of_every_code_point_in_context),
        cmocka_unit_test(nfc_joins_and_sorts),
        cmocka_unit_test(nfc_of_random_text),
        cmocka_unit_test(every_failed_allocation_is_a_status),
    };
    return cmocka_run_group_tests_name("unicode", tests, NULL, NULL);
}
