/* Tests of records: gold answers that are not JSON strings. */
#include "task/task.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define FILE_NAME "build/test-tmp/dataset.json"

static struct kg_err err;

static void read_ok(struct kg_dataset *d, const char *text)
{
    assert_int_equal(kg_file_make_dirs("build/test-tmp", &err), KG_OK);
    assert_int_equal(kg_file_write_atomic(FILE_NAME, text, strlen(text), &err), KG_OK);
    if (kg_dataset_read(d, FILE_NAME, "", "", true, &err) != KG_OK)
        fail_msg("%s", err.message);
    assert_int_equal(remove(FILE_NAME), 0);
}

/* They become the text that Python's str() prints. */
static void answers_are_booleans_and_numbers_too(void **state)
{
    static const char *const rows[][2] = {
        {"true", "True"},     {"false", "False"}, {"3", "3"},      {"-17", "-17"},
        {"3.0", "3.0"},       {"-0.5", "-0.5"},   {"0.1", "0.1"},  {"1e20", "1e+20"},
        {"1e-7", "1e-07"},    {"1e16", "1e+16"},  {"2.50", "2.5"}, {"0", "0"},
        {"\"true\"", "true"}, {"[1,2]", "[1,2]"},
    };
    struct kg_dataset d;
    char text[128];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(text, sizeof text, "{\"question\": \"q\", \"answer\": %s}\n",
                 rows[i][0]);
        read_ok(&d, text);
        assert_string_equal(d.records[0].ground_truth, rows[i][1]);
        kg_dataset_release(&d);
    }
}

static void a_list_in_an_object_holds_records(void **state)
{
    struct kg_dataset d;

    (void)state;
    read_ok(&d, "{\"train\": [{\"question\": \"p\", \"answer\": true},\n"
                "{\"question\": \"q\", \"answer\": 4}]}\n");
    assert_int_equal(d.n, 2);
    assert_string_equal(d.records[1].ground_truth, "4");
    kg_dataset_release(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_booleans_and_numbers_too),
        cmocka_unit_test(a_list_in_an_object_holds_records),
    };
    return cmocka_run_group_tests_name("dataset", tests, NULL, NULL);
}
