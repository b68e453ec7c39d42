/* Tests of UTF-8 validation. */
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const char *const good[] = {"",
                                   "plain",
                                   "\x7f",
                                   "\xc2\x80",
                                   "\xdf\xbf",
                                   "\xe0\xa0\x80",
                                   "\xed\x9f\xbf",
                                   "\xee\x80\x80",
                                   "\xef\xbf\xbf",
                                   "\xf0\x90\x80\x80",
                                   "\xf4\x8f\xbf\xbf"};
static const char *const bad[] = {"\x80",             /* no start byte */
                                  "\xc1\xbf",         /* overlong */
                                  "\xe0\x9f\xbf",     /* overlong */
                                  "\xf0\x8f\xbf\xbf", /* overlong */
                                  "\xed\xa0\x80",     /* a surrogate */
                                  "\xed\xbf\xbf",     /* a surrogate */
                                  "\xf4\x90\x80\x80", /* above U+10FFFF */
                                  "\xf8\x88\x80\x80\x80",
                                  "\xff",
                                  "\xe2\x82", /* truncated */
                                  "\xe2\x82z"};

/* Tries the part with up to 20 plain bytes before and after it, because valid text is
 * skipped eight bytes at a time. */
static bool is_valid_anywhere(const char *part)
{
    bool valid = kg_utf8_is_valid(part, strlen(part));
    char text[64];

    for (size_t before = 0; before < 20; before++) {
        for (size_t behind = 0; behind < 20; behind++) {
            size_t n = strlen(part);

            memset(text, 'a', sizeof text);
            memcpy(text + before, part, n);
            assert_int_equal(kg_utf8_is_valid(text, before + n + behind), valid);
        }
    }
    return valid;
}

static void characters_are_valid_at_every_offset(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        size_t n = strlen(good[i]);

        assert_true(is_valid_anywhere(good[i]));
        if (n > 0 && n != 5)
            assert_int_equal(kg_utf8_length(good[i], n), n);
    }
}

static void what_is_malformed_is_seen_at_every_offset(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(is_valid_anywhere(bad[i]));
        assert_int_equal(kg_utf8_length(bad[i], strlen(bad[i])), 0);
    }
}

/* Every pair of bytes, compared with the definition. */
static void pairs_of_bytes_follow_the_definition(void **state)
{
    (void)state;
    for (unsigned a = 0; a < 256; a++) {
        for (unsigned b = 0; b < 256; b++) {
            const char pair[2] = {(char)a, (char)b};
            bool two = a >= 0xc2 && a < 0xe0 && b >= 0x80 && b < 0xc0;

            assert_int_equal(kg_utf8_is_valid(pair, 2), two || (a < 0x80 && b < 0x80));
            assert_int_equal(kg_utf8_length(pair, 2), two ? 2 : a < 0x80);
        }
    }
}

/* As bytes.decode("utf-8", "replace") of Python does. */
static void one_replacement_stands_for_a_maximal_subpart(void **state)
{
    static const struct {
        const char *bytes;
        size_t n; /* U+FFFDs, and the letters between */
    } rows[] = {
        {"\xff", 1},
        {"\x80\x80", 2},
        {"\xc0\x80", 2},
        {"\xc3", 1},
        {"\xc3(", 2},
        {"\xe2\x82", 1},
        {"\xe2\x82z", 2},
        {"\xe2\x82\xe2\x82\xac", 2},
        {"\xe0\x80\x80", 3},
        {"\xed\xa0\x80", 3},
        {"\xf0\x9f", 1},
        {"\xf0\x9f\x98", 1},
        {"\xf0\x9f\x98\xff", 2},
        {"\xf0\x80\x80", 3},
        {"\xf4\x90\x80\x80", 4},
        {"\xf1\x80\xc2\x80", 2},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t left = strlen(rows[i].bytes);
        size_t n = 0;

        for (const char *at = rows[i].bytes; left > 0; n++) {
            size_t length = kg_utf8_length(at, left);
            size_t step = length > 0 ? length : kg_utf8_bad_length(at, left);

            assert_in_range(step, 1, left);
            at += step;
            left -= step;
        }
        assert_int_equal(n, rows[i].n);
    }
}

static void a_character_that_is_cut_is_seen(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char text[8];
        size_t n = strlen(good[i]);

        if (n == 0 || n == 5)
            continue;
        text[0] = 'a';
        memcpy(text + 1, good[i], n);
        for (size_t cut = 0; cut < n; cut++)
            assert_int_equal(kg_utf8_cut(text, 1 + cut), cut);
        assert_int_equal(kg_utf8_cut(text, 1 + n), 0);
    }
    assert_int_equal(kg_utf8_cut("", 0), 0);
    assert_int_equal(kg_utf8_cut("\x80\xbf", 2), 0); /* no start byte */
    assert_int_equal(kg_utf8_cut("a\x80\xbf\x80", 4), 0);
    assert_int_equal(kg_utf8_cut("\xc1", 1), 0); /* not a start byte */
    assert_int_equal(kg_utf8_cut("\xf5\x80", 2), 0);
    assert_int_equal(kg_utf8_cut("\xe2\x82z", 3), 0); /* ended by another character */
    assert_int_equal(kg_utf8_cut("\xe2\x82\xe2", 3), 1);
}

static void invalid_sequences_are_found_at_their_offset(void **state)
{
    static const struct {
        const char *text;
        size_t n, offset;
    } rows[] = {
        {"abc\x80", 4, 3},
        {"abcdefgh\xC0\x80", 10, 8},
        {"\xC1\xBF", 2, 0},
        {"\xE0\x9F\xBF", 3, 0},
        {"a\xED\xA0\x80", 4, 1},
        {"\xF0\x8F\xBF\xBF", 4, 0},
        {"\xF4\x90\x80\x80", 4, 0},
        {"\xF5\x80\x80\x80", 4, 0},
        {"\xC3\xA9\xC3", 3, 2},
        {"\xE6\xB1\x28", 3, 0},
        {"\xFF", 1, 0},
        {"\xE6\xB1\x89\xF0\x9F\x98", 6, 3},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(kg_utf8_valid_prefix(rows[i].text, rows[i].n), rows[i].offset);
    assert_int_equal(kg_utf8_valid_prefix("", 0), 0);
    for (size_t n = 0; n < 40; n++) { /* lengths and offsets around eight bytes */
        char text[40];

        memset(text, 'a', sizeof text);
        text[n] = '\xC3';
        assert_int_equal(kg_utf8_ascii_prefix(text, sizeof text), n);
        assert_int_equal(kg_utf8_ascii_prefix(text, n), n);
        assert_int_equal(kg_utf8_valid_prefix(text, sizeof text), n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_are_valid_at_every_offset),
        cmocka_unit_test(what_is_malformed_is_seen_at_every_offset),
        cmocka_unit_test(invalid_sequences_are_found_at_their_offset),
        cmocka_unit_test(pairs_of_bytes_follow_the_definition),
        cmocka_unit_test(a_character_that_is_cut_is_seen),
        cmocka_unit_test(one_replacement_stands_for_a_maximal_subpart),
    };

    return cmocka_run_group_tests_name("utf8", tests, NULL, NULL);
}
