/* Tests of strings and of the nearest name. */
#include "base/str.h"

#include "base/mem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct kg_err err;

static void the_empty_string_is_zero(void **state)
{
    struct kg_str s = {0};

    (void)state;
    assert_string_equal(kg_str_text(&s), "");
    kg_str_clear(&s);
    kg_str_release(&s);
}

static void appends_in_every_way(void **state)
{
    struct kg_str s = {0};

    (void)state;
    assert_int_equal(kg_str_append(&s, "ab\0c", 4, &err), KG_OK);
    assert_int_equal(kg_str_puts(&s, "de", &err), KG_OK);
    assert_int_equal(kg_str_putc(&s, 'f', &err), KG_OK);
    assert_int_equal(kg_str_printf(&s, &err, "%d-%s", 12, "x"), KG_OK);
    assert_int_equal(s.len, 11);
    assert_memory_equal(s.data, "ab\0cdef12-x", 12);
    kg_str_clear(&s);
    assert_int_equal(s.len, 0);
    assert_string_equal(kg_str_text(&s), "");
    kg_str_release(&s);
}

static void grows_past_any_first_size(void **state)
{
    struct kg_str s = {0};

    (void)state;
    for (int i = 0; i < 100000; i++)
        assert_int_equal(kg_str_putc(&s, (char)('a' + i % 26), &err), KG_OK);
    assert_int_equal(s.len, 100000);
    assert_int_equal(s.data[99999], 'a' + 99999 % 26);
    assert_int_equal(strlen(s.data), 100000);
    kg_str_release(&s);
}

static void the_maximum_is_exact(void **state)
{
    struct kg_str s = {.max = 5};

    (void)state;
    assert_int_equal(kg_str_puts(&s, "12345", &err), KG_OK);
    assert_int_equal(kg_str_putc(&s, '6', &err), KG_ENOMEM);
    assert_string_equal(err.message, "text of 5 bytes cannot grow by 1: the limit is 5");
    assert_string_equal(s.data, "12345");
    assert_int_equal(kg_str_append(&s, "", SIZE_MAX, &err), KG_ENOMEM);
    kg_str_release(&s);
}

static void failure_leaves_the_text(void **state)
{
    struct kg_str s = {0};

    (void)state;
    assert_int_equal(kg_str_puts(&s, "abc", &err), KG_OK);
    kg_mem_fail_at(1);
    assert_int_equal(kg_str_printf(&s, &err, "%0500d", 1), KG_ENOMEM);
    assert_string_equal(s.data, "abc");
    assert_int_equal(s.len, 3);
    kg_str_release(&s);
    assert_int_equal(kg_mem_current_bytes(), 0);
}

static void take_hands_the_buffer_over(void **state)
{
    struct kg_str s = {0};

    (void)state;
    assert_int_equal(kg_str_puts(&s, "abc", &err), KG_OK);
    char *text = kg_str_take(&s, &err);
    assert_string_equal(text, "abc");
    assert_null(s.data);
    kg_mem_free(text);
    text = kg_str_take(&s, &err);
    assert_string_equal(text, "");
    kg_mem_free(text);
    kg_mem_fail_at(1);
    assert_null(kg_str_take(&s, &err));
    assert_int_equal(err.code, KG_ENOMEM);
}

static void distance_counts_edits(void **state)
{
    char a[600], b[600];

    (void)state;
    assert_int_equal(kg_str_distance("", ""), 0);
    assert_int_equal(kg_str_distance("kitten", "sitting"), 3);
    assert_int_equal(kg_str_distance("abc", ""), 3);
    assert_int_equal(kg_str_distance("", "abc"), 3);
    assert_int_equal(kg_str_distance("Steps", "sTEPS"), 0);
    memset(a, 'a', sizeof a);
    memset(b, 'a', sizeof b);
    a[599] = '\0';
    b[300] = '\0';
    assert_int_equal(kg_str_distance(a, b), 299);
}

static void nearest_finds_typing_errors_only(void **state)
{
    static const struct {
        const char *name;
        int n;
    } rows[] = {{"temperature", 0}, {"top_p", 0}, {"top_k", 0}, {"seed", 0}};

    (void)state;
    assert_string_equal(kg_str_nearest("temprature", rows, 4, sizeof *rows),
                        "temperature");
    assert_string_equal(kg_str_nearest("topk", rows, 4, sizeof *rows), "top_k");
    assert_string_equal(kg_str_nearest("SEED", rows, 4, sizeof *rows), "seed");
    assert_null(kg_str_nearest("learning_rate", rows, 4, sizeof *rows));
    assert_null(kg_str_nearest("", rows, 4, sizeof *rows));
    assert_null(kg_str_nearest("x", rows, 0, sizeof *rows));
}

static void unknown_lists_the_names(void **state)
{
    static const struct {
        const char *name;
        int n;
    } rows[] = {{"a", 0}, {"b", 0}};
    static const char *const near[] = {"benches", "check"};

    (void)state;
    assert_int_equal(
        kg_str_unknown(KG_ENOTFOUND, "x.y", "c", rows, 2, sizeof *rows, &err),
        KG_ENOTFOUND);
    assert_string_equal(err.message, "x.y: expected one of a, b; found 'c'");
    assert_int_equal(kg_str_unknown(KG_EINVAL, NULL, "c", rows, 1, sizeof *rows, &err),
                     KG_EINVAL);
    assert_string_equal(err.message, "expected one of a; found 'c'");
    assert_int_equal(
        kg_str_unknown(KG_EINVAL, NULL, "bench", near, 2, sizeof *near, &err), KG_EINVAL);
    assert_string_equal(err.message, "expected one of benches, check; found 'bench'; did "
                                     "you mean 'benches'?");
    kg_mem_fail_at(1);
    assert_int_equal(kg_str_unknown(KG_EINVAL, NULL, "c", rows, 2, sizeof *rows, &err),
                     KG_ENOMEM);
    kg_mem_fail_at(0);
}

/* strchr would find '\0' in every set. */
static void a_nul_is_in_no_set(void **state)
{
    (void)state;
    assert_true(kg_char_in(".,;", ','));
    assert_false(kg_char_in(".,;", ':'));
    assert_false(kg_char_in(".,;", '\0'));
    assert_false(kg_char_in("", '\0'));
}

static void numbers_are_written_as_people_do(void **state)
{
    static const struct {
        double x;
        int digits;
        const char *text;
    } rows[] = {{0.3, 6, "0.3"},
                {23000, 2, "2.3e4"},
                {23000, 6, "23000"},
                {1e-6, 4, "1e-6"},
                {-1.25e-10, 4, "-1.25e-10"},
                {1e100, 4, "1e100"},
                {0, 4, "0"},
                {(double)0.3f, 6, "0.3"},
                {INFINITY, 4, "inf"},
                {-2.5e20, 4, "-2.5e20"}};
    char text[KG_NUMBER];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_string_equal(kg_number(text, rows[i].x, rows[i].digits), rows[i].text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_empty_string_is_zero),
        cmocka_unit_test(appends_in_every_way),
        cmocka_unit_test(grows_past_any_first_size),
        cmocka_unit_test(the_maximum_is_exact),
        cmocka_unit_test(failure_leaves_the_text),
        cmocka_unit_test(take_hands_the_buffer_over),
        cmocka_unit_test(distance_counts_edits),
        cmocka_unit_test(nearest_finds_typing_errors_only),
        cmocka_unit_test(unknown_lists_the_names),
        cmocka_unit_test(a_nul_is_in_no_set),
        cmocka_unit_test(numbers_are_written_as_people_do),
    };

    return cmocka_run_group_tests_name("str", tests, NULL, NULL);
}
