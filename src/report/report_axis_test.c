/* Tests of axis ticks. */
#include "report/report_plot.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void ticks_are(bool log, double low, double high, const char *text)
{
    const struct kg_axis a = {
        .low = log ? log10(low) : low, .high = log ? log10(high) : high, .log = log};
    struct kg_axis_tick tick[KG_AXIS_TICKS];
    const int n = kg_axis_ticks(tick, &a);
    char found[KG_AXIS_TICKS * (KG_AXIS_LABEL + 1)] = "";

    for (int i = 0; i < n; i++)
        strcat(strcat(found, i > 0 ? " " : ""), tick[i].text);
    assert_string_equal(found, text);
}

static void an_axis_has_ticks(void **state)
{
    (void)state;
    ticks_are(false, 0, 1, "0 0.2 0.4 0.6 0.8 1.0");
    ticks_are(true, 1, 1000, "1 10 100 1000");
    ticks_are(true, 1.5, 25, "2 5 10 20");
    ticks_are(true, 2.1, 4.9, "3 4"); /* no 1, 2 or 5 of a power is inside */
    ticks_are(true, 0.9, 1.1, "0.90 0.95 1.00 1.05 1.10");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_axis_has_ticks)};

    return cmocka_run_group_tests_name("ticks of an axis", tests, NULL, NULL);
}
