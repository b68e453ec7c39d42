/* The two tests and main of a program that compares kedge with the published numbers.
 * Include it at the end, after
 *     static struct kg_golden_report check(const char *folder);
 * which fails the test or returns what it found.
 */
#include "base/file.h"

static void part_of_the_published_numbers(void **state)
{
    (void)state;
    assert_int_equal(check("tests/data/golden").files, 17);
}

static void all_of_the_published_numbers(void **state)
{
    struct kg_golden_report report;

    (void)state;
    if (!kg_file_is_dir("../shared/golden")) {
        printf("skip: ../shared/golden is not there\n");
        skip();
    }
    report = check("../shared/golden");
    assert_int_equal(report.passed, 1171);
    assert_int_equal(report.excepted, 13); /* README lists them */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(part_of_the_published_numbers),
        cmocka_unit_test(all_of_the_published_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
