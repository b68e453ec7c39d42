/* What tests of operations share: the backend under test.
 *
 * Included by *_test.c only. A failing helper fails the test.
 */
#ifndef KG_TENSOR_BACKEND_TESTING_H
#define KG_TENSOR_BACKEND_TESTING_H

#include "tensor/backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* The default one. */
static inline const struct kg_backend *backend(void)
{
    const struct kg_backend *be = NULL;
    struct kg_err why;

    assert_int_equal(kg_backend_open(&be, NULL, &why), KG_OK);
    return be;
}

#endif
