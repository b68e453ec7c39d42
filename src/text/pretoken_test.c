/* Tests of pre-token patterns: where they split, and what is refused. */
#include "text/pretoken.h"

#include "base/mem.h"
#include "text/tokenizer_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct kg_err err;

static kg_status cut(struct kg_str *out, const char *pattern, bool literal,
                     const char *text)
{
    kg_status status;
    struct kg_pretoken *p = NULL;
    struct kg_pretoken_scan scan = {0};
    size_t start, len = 1;
    KG_TRY_GOTO(out, kg_pretoken_create(&p, pattern, strlen(pattern), literal, &err));
    KG_TRY_GOTO(out, kg_pretoken_scan_init(&scan, p, &err));
    kg_pretoken_scan_start(&scan, text, strlen(text));
    while (len) {
        KG_TRY_GOTO(out, kg_pretoken_scan_next(&scan, &start, &len, &err));
        KG_TRY_GOTO(out, kg_str_append(out, text + start, len, &err));
        if (start + len < strlen(text))
            KG_TRY_GOTO(out, kg_str_putc(out, '/', &err));
    }
out:
    kg_pretoken_scan_release(&scan);
    kg_pretoken_free(p);
    return status;
}

static void assert_cut(const char *pattern, bool literal, const char *text,
                       const char *want)
{
    struct kg_str got = {0};
    if (cut(&got, pattern, literal, text) != KG_OK)
        fail_msg("%s: %s", pattern, err.message);
    assert_string_equal(kg_str_text(&got), want);
    kg_str_release(&got);
}

static void qwen_pattern_cuts_words_digits_and_white_space(void **state)
{
    const char *p = KG_PATTERN_QWEN2;
    (void)state;
    assert_cut(p, false, "Hello world's end", "Hello/ world/'s/ end");
    assert_cut(p, false, "I'LL 1234", "I/'LL/ /1/2/3/4");
    assert_cut(p, false, "a  b\n\n c!?\n", "a/ / b/\n\n/ c/!?\n");
    assert_cut(p, false, "   ", "   ");
    assert_cut(p, false, "\xE6\xB1\x89\xE5\xAD\x97\xE3\x80\x82x",
               "\xE6\xB1\x89\xE5\xAD\x97/\xE3\x80\x82x");
    assert_cut(p, false,
               "'\xC5\xBF"
               "a",
               "'\xC5\xBF/a"); /* U+017F folds to s */
    assert_cut(p, false, "", "");
}

static void gpt2_pattern_keeps_digits_together(void **state)
{
    (void)state;
    assert_cut(KG_PATTERN_GPT2, false, "It's 1234 x=y  z", "It/'s/ 1234/ x/=/y/ / z");
}

/* U+180E is white space only to PCRE2, and U+10D4A is a letter only since Unicode 16. */
static void engines_agree_where_their_tables_do_not(void **state)
{
    (void)state;
    assert_cut(KG_PATTERN_QWEN2, false, "a\xE1\xA0\x8E!", "a/\xE1\xA0\x8E!");
    assert_cut("\\s+", false,
               "a\xC2\x85\xE3\x80\x80"
               "b",
               "a/\xC2\x85\xE3\x80\x80/b");
    assert_cut(KG_PATTERN_QWEN2, false,
               "a\xF0\x90\xB5\x8A"
               "b",
               "a\xF0\x90\xB5\x8A"
               "b");
    assert_cut("\\P{L}+", false, "a12b", "a/12/b");
    assert_cut("\\S+", false, "ab c", "ab/ /c");
    assert_cut("[\\u3040-\\u309f]+", false,
               "a\xE3\x81\x82\xE3\x81\x84"
               "b",
               "a/\xE3\x81\x82\xE3\x81\x84/b");
}

static void literal_patterns_are_plain_text(void **state)
{
    (void)state;
    assert_cut("a.b", true, "a.b axb a.ba.b", "a.b/ axb /a.b/a.b");
}

static void text_between_matches_is_a_piece(void **state)
{
    (void)state;
    assert_cut("[0-9]{1,3}", false, "ab1234cd", "ab/123/4/cd");
}

static void constructs_that_differ_are_refused_by_name(void **state)
{
    static const char *const rows[][2] = {
        {"\\w+", "\\w"},       {"\\bx", "\\b"},   {"\\h", "\\h"},
        {"a$", "$"},           {"^a", "^"},       {"[a[b]]", "class"},
        {"[a&&b]", "&&"},      {"[\\S]", "\\S"},  {"[\\P{L}]", "\\P"},
        {"a{2,3}+", "{2,3}+"}, {"a{,3}", "{,3}"}, {"(?m)a", "(?m)"},
        {"(*UTF)a", "(*"},     {"\\1", "\\1"},    {"(?<n>a)", "(?<n"},
        {"\\", "lone"},        {"\\K", "\\K"},    {"a*", "empty"},
        {"\\pL", "\\pL"},      {"\\x41", "\\x"},  {"\\Q", "\\Q"},
        {"(?i)a", "(?i)"},     {"[]a]", "class"}, {"\\u12", "\\u"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_str out = {0};
        kg_status status = cut(&out, rows[i][0], false, "x");
        kg_str_release(&out);
        if (status != KG_EUNSUPPORTED || !strstr(err.message, rows[i][1]))
            fail_msg("%s: status %d, %s", rows[i][0], status, err.message);
    }
}

static void syntax_errors_have_an_offset(void **state)
{
    static const char *const rows[] = {"(a",    "a)",         "[a", "\\p{Nonsense}",
                                       "a**+b", "\\x{110000}"};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_str out = {0};
        assert_int_equal(cut(&out, rows[i], false, "x"), KG_EFORMAT);
        kg_str_release(&out);
    }
}

static void endless_backtracking_is_an_error(void **state)
{
    struct kg_str out = {0};
    (void)state;
    assert_int_equal(cut(&out, "(?:a+a+)+\\p{N}", false,
                         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
                     KG_EFORMAT);
    assert_non_null(strstr(err.message, "byte offset 0"));
    kg_str_release(&out);
}

static void every_failed_allocation_is_a_status(void **state)
{
    kg_status status = KG_ENOMEM;
    (void)state;
    for (uint64_t n = 1; status != KG_OK; n++) {
        struct kg_str out = {0};
        kg_mem_fail_at(n);
        status = cut(&out, KG_PATTERN_QWEN2, false, "one two");
        kg_mem_fail_at(0);
        kg_str_release(&out);
        assert_true(status == KG_OK || status == KG_ENOMEM);
    }
    assert_int_equal(kg_mem_current_bytes(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen_pattern_cuts_words_digits_and_white_space),
        cmocka_unit_test(gpt2_pattern_keeps_digits_together),
        cmocka_unit_test(engines_agree_where_their_tables_do_not),
        cmocka_unit_test(literal_patterns_are_plain_text),
        cmocka_unit_test(text_between_matches_is_a_piece),
        cmocka_unit_test(constructs_that_differ_are_refused_by_name),
        cmocka_unit_test(syntax_errors_have_an_offset),
        cmocka_unit_test(endless_backtracking_is_an_error),
        cmocka_unit_test(every_failed_allocation_is_a_status),
    };
    return cmocka_run_group_tests_name("pretoken", tests, NULL, NULL);
}
