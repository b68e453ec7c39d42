/* The golden vectors of the authors' code against policy/.
 *
 * tests/data/golden has a small part that always runs; ../shared/golden has all of it, if
 * present. `kedge policy check` does the same evaluation.
 */
#include "base/file.h"
#include "lab/golden/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static kg_status show(const struct kg_golden_result *r, void *context, struct kg_err *err)
{
    (void)context, (void)err;
    if (r->outcome != KG_GOLDEN_PASSED)
        printf("    %s: %s: %s\n", r->file, r->name, r->why);
    return KG_OK;
}

static struct kg_golden_report check(const char *folder)
{
    const struct kg_golden_options options = {.seen = show};
    struct kg_golden_report report;
    struct kg_err err;

    if (kg_golden_check(&report, folder, &options, &err))
        fail_msg("%s", err.message);
    printf("    %s: %lld passed, %lld failed, %lld skipped, %lld numbers, worst relative "
           "error %.1e\n",
           folder, (long long)report.passed, (long long)report.failed,
           (long long)report.skipped, (long long)report.compared, report.worst);
    assert_int_equal(report.failed, 0);
    assert_int_equal(report.skipped, 0);
    assert_true(report.worst <= 1e-10);
    return report;
}

#include "lab/golden_testing.h"
