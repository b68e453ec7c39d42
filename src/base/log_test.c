/* Tests of log lines and the progress line, written into a memory stream. */
#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *text;
static size_t bytes;
static FILE *stream;

static void begin(bool is_terminal)
{
    stream = open_memstream(&text, &bytes);
    assert_non_null(stream);
    kg_log_set_stream(stream, is_terminal);
}

static void ends_with_text(const char *expected)
{
    kg_log_set_stream(NULL, false);
    fclose(stream);
    assert_string_equal(text, expected);
    free(text);
}

static void silence_is_the_default(void **state)
{
    (void)state;
    kg_log_info("nobody hears %d", 1);
    kg_log_progress(0, "nor this");
    kg_log_progress_end();
}

static void lines_and_warnings(void **state)
{
    (void)state;
    begin(false);
    kg_log_info("step %d", 3);
    kg_log_warn("%s is odd", "x");
    ends_with_text("step 3\nwarning: x is odd\n");
}

static void one_of_several_says_warnings_alone_and_signs_them(void **state)
{
    (void)state;
    begin(false);
    kg_log_as("rank 3 (gpu07)");
    kg_log_info("step 3");
    kg_log_progress(0, "1 of 3");
    kg_log_warn("x is odd");
    kg_log_answer("here");
    kg_log_as("");
    kg_log_info("step 4");
    ends_with_text("warning: rank 3 (gpu07): x is odd\nrank 3 (gpu07): here\nstep 4\n");
}

static void a_terminal_has_one_progress_line(void **state)
{
    (void)state;
    begin(true);
    kg_log_progress(1000, "1 of 3");
    kg_log_progress(1000, "2 of 3");
    kg_log_info("saved");
    kg_log_progress(1000, "3 of 3");
    kg_log_progress_end();
    kg_log_progress_end();
    ends_with_text("\r\033[K1 of 3\r\033[K2 of 3\r\033[Ksaved\n\r\033[K3 of 3\n");
}

/* Escape sequences in a data file reach neither the terminal nor a log that is viewed in
 * one.
 */
static void control_characters_are_written_out(void **state)
{
    (void)state;
    begin(true);
    kg_log_info("a\n\tb %s", "\x1b]0;title\x07\r");
    kg_log_warn("%s", "\xc2\x9b"
                      "2J \xc3\xa9\xff");
    kg_log_progress(0, "%s", "1\n\x1b[2J");
    kg_log_progress_end();
    ends_with_text("a\n\tb \\x1b]0;title\\x07\\x0d\n"
                   "warning: \\xc2\\x9b"
                   "2J \xc3\xa9\\xff\n"
                   "\r\033[K1\\n\\x1b[2J\n");
}

static void a_progress_line_does_not_wrap(void **state)
{
    char wide[400];
    char expected[400];

    (void)state;
    for (int i = 0; i < 100; i++)
        memcpy(wide + 3 * i, "\xe2\x82\xac", 4); /* 100 characters of three bytes */
    snprintf(expected, sizeof expected, "\r\033[K%.*s\n", 79 * 3, wide);
    begin(true);
    kg_log_progress(0, "%s", wide);
    kg_log_progress_end();
    ends_with_text(expected);
}

static void elsewhere_progress_is_rare_lines_and_the_last(void **state)
{
    (void)state;
    begin(false);
    for (int i = 1; i <= 5; i++)
        kg_log_progress(1000000, "%d of 5", i);
    kg_log_progress_end();
    ends_with_text("1 of 5\n5 of 5\n");
}

static void no_interval_prints_every_progress(void **state)
{
    (void)state;
    begin(false);
    kg_log_progress(0, "a");
    kg_log_progress(0, "b");
    kg_log_progress_end();
    ends_with_text("a\nb\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silence_is_the_default),
        cmocka_unit_test(lines_and_warnings),
        cmocka_unit_test(one_of_several_says_warnings_alone_and_signs_them),
        cmocka_unit_test(a_terminal_has_one_progress_line),
        cmocka_unit_test(control_characters_are_written_out),
        cmocka_unit_test(a_progress_line_does_not_wrap),
        cmocka_unit_test(elsewhere_progress_is_rare_lines_and_the_last),
        cmocka_unit_test(no_interval_prints_every_progress),
    };

    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
