/* A call that must succeed in a test: NEED(kg_model_save(m, dir, &save, err)) fails the
 * test and prints the message of err, a variable of the macro.
 *
 * Included by *_test.c and *_testing.h only.
 */
#ifndef KG_BASE_NEED_TESTING_H
#define KG_BASE_NEED_TESTING_H

#include "base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#define NEED(expr)                                                                       \
    do {                                                                                 \
        struct kg_err need_err = {0};                                                    \
        struct kg_err *err = &need_err;                                                  \
        if ((expr) != KG_OK)                                                             \
            fail_msg("%s: %s", #expr, need_err.message);                                 \
    } while (0)

/* NEED in a child process of a test, which reports failure by its exit status:
 * returning to the runner would run the parent's remaining tests. */
#define NEED_IN_CHILD(expr)                                                              \
    do {                                                                                 \
        struct kg_err need_err = {0};                                                    \
        struct kg_err *err = &need_err;                                                  \
        if ((expr) != KG_OK) {                                                           \
            fprintf(stderr, "%s: %s\n", #expr, need_err.message);                        \
            _exit(127);                                                                  \
        }                                                                                \
    } while (0)

#endif
