/* Backends by name. */
#include "tensor/backend_testing.h"

#include <string.h>

static void an_unknown_backend_lists_the_valid_ones(void **state)
{
    const struct kg_backend *be;
    struct kg_err err;

    (void)state;
    assert_int_equal(kg_backend_open(&be, "gpu", &err), KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "backend: expected one of cpu"));
    assert_non_null(strstr(err.message, "found 'gpu'"));
    assert_int_equal(kg_backend_open(&be, "cpu", &err), KG_OK);
    assert_string_equal(be->name, "cpu");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_backend_lists_the_valid_ones),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
